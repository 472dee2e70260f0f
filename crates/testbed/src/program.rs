//! The agent's program.

use std::env;
use std::path::PathBuf;

/// The path in `WEIR_AGENT`, or the program that cargo built beside the running test.
pub fn agent() -> PathBuf {
    let built = || {
        let test = env::current_exe().unwrap();
        test.ancestors().nth(2).unwrap().join("agent")
    };
    env::var_os("WEIR_AGENT").map_or_else(built, PathBuf::from)
}
