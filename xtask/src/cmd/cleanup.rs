//! `cleanup`: removes leftovers of interrupted tests on this machine.

use anyhow::Result;

use crate::cleanup;

/// Removes leftovers and prints them.
pub fn run() -> Result<()> {
    for removed in cleanup::run()? {
        println!("removed {removed}");
    }
    Ok(())
}
