//! The agent's program.

use std::env;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The path in `WEIR_AGENT`, or the program that cargo built beside the running test.
pub fn agent() -> PathBuf {
    let built = || {
        let test = env::current_exe().unwrap();
        test.ancestors().nth(2).unwrap().join("agent")
    };
    env::var_os("WEIR_AGENT").map_or_else(built, PathBuf::from)
}

/// A link to the program in the folder, by the name that packages install; made by the first call.
pub fn weir_in(folder: &Path) -> PathBuf {
    let link = folder.join("weir");
    if !link.exists() {
        symlink(agent(), &link).unwrap();
    }
    link
}
