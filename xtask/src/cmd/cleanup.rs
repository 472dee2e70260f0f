//! `cleanup`: takes away what tests that were interrupted left on this machine.

use anyhow::Result;

use crate::cleanup;

/// Says what it removed.
pub fn run() -> Result<()> {
    for removed in cleanup::run()? {
        println!("removed {removed}");
    }
    Ok(())
}
