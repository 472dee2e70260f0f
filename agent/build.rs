//! Finds the eBPF object that goes into the binary: the one `cargo xtask build` names, else the one it left last.
//! Without one the agent still builds, and says at start what to do.

use std::path::{Path, PathBuf};
use std::{env, fs};

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").unwrap_or_default()).join("weir.o");
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").unwrap_or_default());
    let last = root.join("../target/bpf/weir.o");
    let named = env::var_os("WEIR_EBPF_OBJECT").map(PathBuf::from);
    println!("cargo::rerun-if-env-changed=WEIR_EBPF_OBJECT");
    let object = named.unwrap_or(last);
    println!("cargo::rerun-if-changed={}", object.display());
    let bytes = fs::read(Path::new(&object)).unwrap_or_default();
    if let Err(error) = fs::write(&out, bytes) {
        println!("cargo::error=writing {}: {error}", out.display());
    }
}
