//! Resolves a configured device to the whole disk that the kernel throttles.

use std::fs;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use config::group::Group;
use host::Mount;

use super::error::GroupsError;
use super::host_paths::Host;

/// The `major:minor` of the disk that `device` is, is a partition of, or is stored on. `proc` is /proc, `sys` is /sys.
///
/// # Errors
///
/// When the path does not exist, or has no disk.
pub fn resolve(proc: &Path, sys: &Path, device: &Path) -> Result<String, GroupsError> {
    let wrong = |reason: String| GroupsError::Device {
        path: device.to_owned(),
        reason,
    };
    let seen = match metadata(proc, device) {
        Ok(metadata) if metadata.file_type().is_block_device() => Ok(metadata.rdev()),
        Ok(metadata) if metadata.is_dir() || metadata.is_file() => Ok(metadata.dev()),
        Ok(_) => return Err(wrong("is neither a disk nor a file on one".to_owned())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return Err(wrong(format!("cannot be found ({error})")));
        }
        Err(error) => Err(format!("cannot be read ({error})")),
    };
    let number = |number| {
        format!(
            "{}:{}",
            nix::sys::stat::major(number),
            nix::sys::stat::minor(number)
        )
    };
    if let Some(disk) = seen
        .as_ref()
        .ok()
        .and_then(|seen| whole_disk(sys, &number(*seen)))
    {
        return Ok(disk);
    }
    // A service with ProtectHome= has an empty /home; the first process has the host's mounts.
    let of_host = host::mounts(&proc.join("1/mountinfo")).ok();
    let disk = of_host.and_then(|mounts| mounted_disk(proc, sys, &mounts, device));
    disk.ok_or_else(|| {
        wrong(
            seen.err()
                .unwrap_or_else(|| "lies on no block device".to_owned()),
        )
    })
}

/// A disk's limits, in the order of [`Io`]'s fields.
///
/// [`Io`]: config::group::Io
pub type Rates = [Option<u64>; 4];

/// The limits of a group's disks by `major:minor`, and the devices without a disk. The kernel and systemd keep one limit
/// for each disk: of several paths on one disk, the lower limit applies.
#[must_use]
pub fn limits(host: &Host, group: &Group) -> (Vec<(String, Rates)>, Vec<GroupsError>) {
    let (mut disks, mut problems): (Vec<(String, Rates)>, _) = (Vec::new(), Vec::new());
    for io in &group.io {
        let disk = match resolve(&host.proc, &host.sys, &io.device) {
            Ok(disk) => disk,
            Err(problem) => {
                problems.push(problem);
                continue;
            }
        };
        match disks.iter_mut().find(|(known, _)| *known == disk) {
            Some((_, rates)) => {
                for (rate, other) in rates.iter_mut().zip(io.rates()) {
                    *rate = (*rate).into_iter().chain(other).min();
                }
            }
            None => disks.push((disk, io.rates())),
        }
    }
    (disks, problems)
}

/// The metadata of `path` in the first process's file system: a service with PrivateDevices= has no disks in its /dev.
/// If that cannot be read, the agent's own.
fn metadata(proc: &Path, path: &Path) -> io::Result<fs::Metadata> {
    let of_host = path
        .strip_prefix("/")
        .ok()
        .and_then(|path| fs::metadata(proc.join("1/root").join(path)).ok());
    of_host.map_or_else(|| fs::metadata(path), Ok)
}

/// The disk of the innermost mount that contains a path.
fn mounted_disk(proc: &Path, sys: &Path, mounts: &[Mount], path: &Path) -> Option<String> {
    let around = mounts.iter().filter(|mount| path.starts_with(&mount.point));
    // Of several mounts on one point, the last one is visible.
    let mount = around.max_by_key(|mount| mount.point.as_os_str().len())?;
    // btrfs has a device number for each subvolume; its source is the disk.
    whole_disk(sys, &mount.device).or_else(|| {
        let metadata = metadata(proc, &mount.source)
            .ok()
            .filter(|found| found.file_type().is_block_device())?;
        let (major, minor) = (
            nix::sys::stat::major(metadata.rdev()),
            nix::sys::stat::minor(metadata.rdev()),
        );
        whole_disk(sys, &format!("{major}:{minor}"))
    })
}

/// A partition's directory in /sys is inside that of its disk.
fn whole_disk(sys: &Path, number: &str) -> Option<String> {
    let own = fs::canonicalize(sys.join("dev/block").join(number)).ok()?;
    let disk = if own.join("partition").exists() {
        own.parent()?
    } else {
        &own
    };
    Some(fs::read_to_string(disk.join("dev")).ok()?.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_partition_is_its_disk_and_a_disk_is_itself() {
        let folder = tempfile::tempdir().unwrap();
        let sys = folder.path();
        let disk = sys.join("devices/virtio/block/vda");
        fs::create_dir_all(disk.join("vda1")).unwrap();
        fs::create_dir_all(sys.join("dev/block")).unwrap();
        fs::write(disk.join("dev"), "254:0\n").unwrap();
        fs::write(disk.join("vda1/dev"), "254:1\n").unwrap();
        fs::write(disk.join("vda1/partition"), "1\n").unwrap();
        std::os::unix::fs::symlink(
            "../../devices/virtio/block/vda",
            sys.join("dev/block/254:0"),
        )
        .unwrap();
        std::os::unix::fs::symlink(
            "../../devices/virtio/block/vda/vda1",
            sys.join("dev/block/254:1"),
        )
        .unwrap();
        assert_eq!(whole_disk(sys, "254:0").as_deref(), Some("254:0"));
        assert_eq!(whole_disk(sys, "254:1").as_deref(), Some("254:0"));
        assert_eq!(whole_disk(sys, "254:2"), None);
    }

    #[test]
    fn a_path_that_this_service_does_not_see_lies_on_the_hosts_disk() {
        let folder = tempfile::tempdir().unwrap();
        let sys = folder.path();
        for (name, number) in [("vda", "254:0"), ("vdb", "254:16")] {
            let disk = sys.join("devices/virtio/block").join(name);
            fs::create_dir_all(&disk).unwrap();
            fs::write(disk.join("dev"), format!("{number}\n")).unwrap();
            fs::create_dir_all(sys.join("dev/block")).unwrap();
            let link = sys.join("dev/block").join(number);
            std::os::unix::fs::symlink(format!("../../devices/virtio/block/{name}"), link).unwrap();
        }
        let mounts = "22 1 254:0 / / rw shared:1 - ext4 /dev/vda rw\n\
                      23 22 254:16 / /home rw - ext4 /dev/vdb rw\n\
                      24 23 0:40 / /home/tmp rw - tmpfs tmpfs rw\n";
        let file = sys.join("mountinfo");
        fs::write(&file, mounts).unwrap();
        let mounts = host::mounts(&file).unwrap();
        let of = |path| mounted_disk(&sys.join("proc"), sys, &mounts, Path::new(path));
        assert_eq!(of("/home/alice").as_deref(), Some("254:16"));
        assert_eq!(of("/homeless").as_deref(), Some("254:0"));
        assert_eq!(of("/home/tmp/x"), None);
    }

    #[test]
    fn a_path_without_a_disk_is_an_error_that_names_it() {
        let (proc, sys) = (Path::new("/proc"), Path::new("/sys"));
        let missing = resolve(proc, sys, Path::new("/dev/weir-has-no-such-disk"))
            .unwrap_err()
            .to_string();
        assert!(
            missing.contains("/dev/weir-has-no-such-disk cannot be found"),
            "{missing}"
        );
        let null = resolve(proc, sys, Path::new("/dev/null"))
            .unwrap_err()
            .to_string();
        assert!(
            null.contains("neither a disk") && null.contains("lsblk"),
            "{null}"
        );
    }
}
