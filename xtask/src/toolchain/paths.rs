//! Names for this machine's folders, which the compiler writes into programs: the same on every machine.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};

use super::compiler::Compiler;
use crate::workspace::Workspace;

/// A folder of this machine, and its name in programs.
pub struct Renamed {
    folder: PathBuf,
    name: &'static str,
}

/// The folders, in the order in which rustc takes them: of two that match, the last one counts.
pub fn renamed(workspace: &Workspace, compiler: &Compiler) -> Vec<Renamed> {
    let home = env::home_dir();
    let cargo = env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| home.as_ref().map(|home| home.join(".cargo")));
    // Named by the registry's address, which differs with a mirror.
    let registries = cargo
        .iter()
        .flat_map(|cargo| folders(&cargo.join("registry/src")));
    let registries: Vec<PathBuf> = registries.collect();
    let mut all: Vec<Renamed> = Vec::new();
    let mut add = |folder: &Path, name| {
        all.push(Renamed {
            folder: folder.to_path_buf(),
            name,
        });
    };
    if let Some(home) = &home {
        add(home, "/home");
    }
    if let Some(cargo) = &cargo {
        add(cargo, "/cargo");
    }
    for registry in &registries {
        add(registry, "/cargo/registry");
    }
    add(&compiler.source, "/rust");
    add(&workspace.root, "/weir");
    add(&workspace.target, "/weir/target");
    all
}

impl Renamed {
    /// The argument for rustc.
    pub fn for_rustc(&self) -> String {
        format!(
            "--remap-path-prefix={}={}",
            self.folder.display(),
            self.name
        )
    }

    /// The argument for compilers of C.
    pub fn for_cc(&self) -> String {
        format!("-ffile-prefix-map={}={}", self.folder.display(), self.name)
    }
}

fn folders(of: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(of) else {
        return Vec::new();
    };
    let mut folders: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    folders.sort();
    folders
}
