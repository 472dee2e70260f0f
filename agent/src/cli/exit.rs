//! The exit status of wrong usage.

use std::process::ExitCode;

/// Wrong usage or an invalid config: nothing was changed.
pub(super) const USAGE: u8 = 2;

/// Reports wrong usage.
pub(super) fn usage(error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("error: {error}");
    ExitCode::from(USAGE)
}

/// Reports an invalid config, or an error that starts with its position.
pub(super) fn invalid(error: &dyn std::fmt::Display) -> ExitCode {
    eprintln!("{error}");
    ExitCode::from(USAGE)
}
