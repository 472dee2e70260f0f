//! The kernel's SYN cookies: `net.ipv4.tcp_syncookies` of this network namespace, for both IP versions.

use std::{fs, io};

use crate::StateDirectory;
use crate::read::read_text;

/// The setting's name for messages.
pub const SETTING: &str = "net.ipv4.tcp_syncookies";
/// Cookies for every connection.
pub const ALWAYS: u32 = 2;

const PATH: &str = "/proc/sys/net/ipv4/tcp_syncookies";
/// The file of the state directory with the setting before Weir changed it.
const BEFORE: &str = "tcp_syncookies";
/// The most bytes of that file.
const LONGEST: u64 = 64;

/// The setting: 0 never, 1 while a listener's queue is full, 2 always; `None` if the kernel has no SYN cookies.
#[must_use]
pub fn current() -> Option<u32> {
    fs::read_to_string(PATH).ok()?.trim().parse().ok()
}

/// Whether this process may change it: it may be read-only in a container or a sandbox.
#[must_use]
pub fn is_writable() -> bool {
    fs::OpenOptions::new().write(true).open(PATH).is_ok()
}

/// The setting before Weir changed it, which is still to be restored; `None` if it is not changed.
#[must_use]
pub fn before(directory: &StateDirectory) -> Option<u32> {
    let text = read_text(&directory.file(BEFORE), LONGEST).ok()?;
    text.trim().parse().ok()
}

/// Sets it to [`ALWAYS`]. The former setting is stored first, so that a later agent can restore it.
///
/// # Errors
///
/// When the former setting cannot be stored, or the new one cannot be written.
pub fn set_always(directory: &StateDirectory) -> io::Result<()> {
    match current() {
        None => {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel has no SYN cookies",
            ));
        }
        Some(ALWAYS) => return Ok(()),
        Some(value) => {
            directory
                .replace(BEFORE, &[value.to_string().as_bytes()])
                .map_err(io::Error::other)?;
        }
    }
    fs::write(PATH, ALWAYS.to_string())
}

/// Restores the former setting, unless it was changed meanwhile. Returns it, if there was one to restore.
///
/// # Errors
///
/// When it cannot be written; it is still stored then.
pub fn restore(directory: &StateDirectory) -> io::Result<Option<u32>> {
    let Some(value) = before(directory) else {
        return Ok(None);
    };
    if current() == Some(ALWAYS) {
        fs::write(PATH, value.to_string())?;
    }
    directory.remove(BEFORE).map_err(io::Error::other)?;
    Ok(Some(value))
}
