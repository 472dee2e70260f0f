//! Locates the eBPF objects that are embedded into the binary: those that `cargo xtask build` names, else those of its
//! last run. Without them the agent builds, and reports at start what to do.

use std::path::{Path, PathBuf};
use std::{env, fs};

use sha2::{Digest as _, Sha256};

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default());
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let build = if env::var_os("CARGO_FEATURE_TRACE").is_some() {
        "bpf/trace"
    } else {
        "bpf"
    };
    let last = root.join("../../target").join(build).join("weir.o");
    println!("cargo::rerun-if-env-changed=WEIR_EBPF_OBJECT");
    let weir = env::var_os("WEIR_EBPF_OBJECT").map_or(last, PathBuf::from);
    // The others are beside it.
    let mut hash = Sha256::new();
    hash.update(place(&weir, &out.join("weir.o")));
    for other in ["groups.o", "connections.o"] {
        hash.update(place(&weir.with_file_name(other), &out.join(other)));
    }
    println!(
        "cargo::rustc-env=WEIR_OBJECTS_HASH=sha256:{:x}",
        hash.finalize()
    );
}

/// Copies an object, and returns it.
fn place(object: &Path, out: &Path) -> Vec<u8> {
    println!("cargo::rerun-if-changed={}", object.display());
    let bytes = fs::read(object).unwrap_or_default();
    if let Err(error) = fs::write(out, &bytes) {
        println!("cargo::error=writing {}: {error}", out.display());
    }
    bytes
}
