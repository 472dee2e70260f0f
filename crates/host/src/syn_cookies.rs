//! The kernel's SYN cookies: `net.ipv4.tcp_syncookies` of this network namespace, for both IP versions.

use std::os::unix::fs::MetadataExt as _;
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
/// The kernel's counters of this network namespace.
const COUNTERS: &str = "/proc/net/netstat";

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
    stored(directory).map(|(value, _)| value)
}

/// The former setting, and its network namespace, which agents of before did not store.
fn stored(directory: &StateDirectory) -> Option<(u32, Option<u64>)> {
    let text = read_text(&directory.file(BEFORE), LONGEST).ok()?;
    let mut words = text.split_whitespace();
    let value = words.next()?.parse().ok()?;
    Some((value, words.next().and_then(|inode| inode.parse().ok())))
}

/// The number of this process's network namespace.
fn namespace() -> io::Result<u64> {
    fs::metadata("/proc/self/ns/net").map(|namespace| namespace.ino())
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
            let stored = format!("{value} {}", namespace()?);
            directory
                .replace(BEFORE, &[stored.as_bytes()])
                .map_err(io::Error::other)?;
        }
    }
    fs::write(PATH, ALWAYS.to_string())
}

/// Restores the former setting, unless it was changed meanwhile. Returns it, if there was one to restore.
///
/// # Errors
///
/// When it cannot be written, or is that of another network namespace; it is still stored then.
pub fn restore(directory: &StateDirectory) -> io::Result<Option<u32>> {
    let Some((value, of)) = stored(directory) else {
        return Ok(None);
    };
    let here = namespace()?;
    if of.is_some_and(|of| of != here) {
        return Err(io::Error::other(format!(
            "{SETTING} was changed in another network namespace: run this there, by nsenter --net"
        )));
    }
    if current() == Some(ALWAYS) {
        fs::write(PATH, value.to_string())?;
    }
    directory.remove(BEFORE).map_err(io::Error::other)?;
    Ok(Some(value))
}

/// The ACKs with a valid cookie that the kernel has received so far; `None` if it does not tell.
#[must_use]
pub fn received() -> Option<u64> {
    counter(&fs::read_to_string(COUNTERS).ok()?)
}

/// Of two lines, the names and the values.
fn counter(text: &str) -> Option<u64> {
    let mut lines = text
        .lines()
        .filter_map(|line| line.strip_prefix("TcpExt: "));
    let (names, values) = (lines.next()?, lines.next()?);
    let mut counters = names.split(' ').zip(values.split(' '));
    let (_, value) = counters.find(|(name, _)| *name == "SyncookiesRecv")?;
    value.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_counter_of_cookies_is_read() {
        let text = "TcpExt: SyncookiesSent SyncookiesRecv SyncookiesFailed\nTcpExt: 4 33 5\nIpExt: InNoRoutes\nIpExt: 7\n";
        assert_eq!(counter(text), Some(33));
        assert_eq!(counter("TcpExt: SyncookiesSent\nTcpExt: 4\n"), None);
        assert_eq!(counter("TcpExt: SyncookiesRecv\n"), None);
        assert!(received().is_some());
    }
}
