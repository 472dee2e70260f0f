//! Guests that have BusyBox and nothing else, where a shell script tries a release's static program.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, ensure};

use super::guest::Guest;
use super::kernel::Kernel;
use super::machine::{Machine, Outcome};

const SCRIPT: &[u8] = include_bytes!("try.sh");
/// The timeout, including the boot.
const PATIENCE: Duration = Duration::from_secs(900);

/// Unpacks the archive of a static program in such a guest, and checks that the program enforces a limit.
pub fn try_archive(kernel: &Kernel, archive: &Path, to: &mut impl Write) -> Result<Outcome> {
    let guest = Guest::with_busybox_only(kernel, SCRIPT, archive)?;
    let outcome = Machine::new(kernel, &guest, PATIENCE)?.run(to)?;
    ensure!(
        outcome.status == 0,
        "the script in the guest ended with {}",
        outcome.status
    );
    Ok(outcome)
}
