//! The mounts in a process's mountinfo (proc(5)).

use std::ffi::OsString;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// `major:minor` of the file system.
    pub device: String,
    /// The mount point.
    pub point: PathBuf,
    /// The file system's type.
    pub kind: String,
    /// The mounted device or other source; may be empty.
    pub source: PathBuf,
    /// Options of the file system, separated by commas.
    options: String,
}

impl Mount {
    #[must_use]
    pub fn has_option(&self, name: &str) -> bool {
        self.options.split(',').any(|option| option == name)
    }
}

/// The mounts in a mountinfo file. Entries with paths that are not UTF-8 or without a source are parsed like others.
///
/// # Errors
///
/// When the file cannot be read.
pub fn mounts(file: &Path) -> io::Result<Vec<Mount>> {
    Ok(parse(&fs::read(file)?))
}

fn parse(text: &[u8]) -> Vec<Mount> {
    text.split(|byte| *byte == b'\n')
        .filter_map(mount)
        .collect()
}

fn mount(line: &[u8]) -> Option<Mount> {
    let mut fields = line.split(|byte| *byte == b' ');
    let (device, point) = (fields.nth(2)?, fields.nth(1)?);
    // Before the separator are optional fields, and the mount's own options.
    fields.find(|field| *field == b"-")?;
    let (kind, source, options) = (fields.next()?, fields.next()?, fields.next()?);
    let text = |field: &[u8]| String::from_utf8_lossy(field).into_owned();
    Some(Mount {
        device: text(device),
        point: unescaped(point),
        kind: text(kind),
        source: unescaped(source),
        options: text(options),
    })
}

/// Decodes the kernel's escapes: spaces, tabs, newlines and backslashes are a backslash and three octal digits.
fn unescaped(field: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(field.len());
    let mut left = field;
    while let [first, rest @ ..] = left {
        let (byte, after) = match rest {
            [
                a @ b'0'..=b'3',
                b @ b'0'..=b'7',
                c @ b'0'..=b'7',
                after @ ..,
            ] if *first == b'\\' => ((a - b'0') << 6 | (b - b'0') << 3 | (c - b'0'), after),
            _ => (*first, rest),
        };
        bytes.push(byte);
        left = after;
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;

    use super::*;

    #[test]
    fn a_mount_has_what_its_line_says() {
        let line = b"36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 shared:9 - ext3 /dev/root rw,errors=continue\n";
        let [mount] = &parse(line)[..] else { panic!() };
        assert_eq!(
            (mount.device.as_str(), mount.point.as_path()),
            ("98:0", Path::new("/mnt2"))
        );
        assert_eq!(
            (mount.kind.as_str(), mount.source.as_path()),
            ("ext3", Path::new("/dev/root"))
        );
        assert!(mount.has_option("errors=continue") && !mount.has_option("noatime"));
    }

    #[test]
    fn no_mount_of_a_user_hides_another() {
        let text = b"74 25 0:59 / /a\\040b\\134\\011c rw - tmpfs  rw\n\
                     75 25 0:60 / /home/u/\xff rw,nosuid - fuse \xfe rw\n\
                     broken\n\
                     30 25 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n";
        let mounts = parse(text);
        let points: Vec<&OsStr> = mounts.iter().map(|mount| mount.point.as_os_str()).collect();
        let expected: [&[u8]; 3] = [b"/a b\\\tc", b"/home/u/\xff", b"/sys/fs/cgroup"];
        assert_eq!(points, expected.map(OsStr::from_bytes));
        assert_eq!(
            (mounts[0].source.as_os_str(), mounts[2].kind.as_str()),
            (OsStr::new(""), "cgroup2")
        );
    }
}
