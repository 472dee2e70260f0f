//! From what an operator names to the whole disk that the kernel throttles.

use std::fs;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};
use std::path::Path;

use super::error::GroupsError;

/// The `major:minor` of the whole disk that `device` is, is a partition of, or lies on. `sys` is /sys.
///
/// # Errors
///
/// When there is no such path, or no disk behind it.
pub fn resolve(sys: &Path, device: &Path) -> Result<String, GroupsError> {
    let wrong = |reason: String| GroupsError::Device { path: device.to_owned(), reason };
    let metadata = fs::metadata(device).map_err(|error| wrong(format!("cannot be found ({error})")))?;
    let kind = metadata.file_type();
    let number = if kind.is_block_device() {
        metadata.rdev()
    } else if kind.is_dir() || kind.is_file() {
        metadata.dev()
    } else {
        return Err(wrong("is neither a disk nor a file on one".to_owned()));
    };
    whole_disk(sys, &format!("{}:{}", nix::sys::stat::major(number), nix::sys::stat::minor(number)))
        .ok_or_else(|| wrong("lies on no block device".to_owned()))
}

/// A partition's directory in /sys lies in that of its disk.
fn whole_disk(sys: &Path, number: &str) -> Option<String> {
    let own = fs::canonicalize(sys.join("dev/block").join(number)).ok()?;
    let disk = if own.join("partition").exists() { own.parent()? } else { &own };
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
        std::os::unix::fs::symlink("../../devices/virtio/block/vda", sys.join("dev/block/254:0")).unwrap();
        std::os::unix::fs::symlink("../../devices/virtio/block/vda/vda1", sys.join("dev/block/254:1")).unwrap();
        assert_eq!(whole_disk(sys, "254:0").as_deref(), Some("254:0"));
        assert_eq!(whole_disk(sys, "254:1").as_deref(), Some("254:0"));
        assert_eq!(whole_disk(sys, "254:2"), None);
    }

    #[test]
    fn what_is_no_disk_is_told_with_its_path() {
        let sys = Path::new("/sys");
        let missing = resolve(sys, Path::new("/dev/weir-has-no-such-disk")).unwrap_err().to_string();
        assert!(missing.contains("/dev/weir-has-no-such-disk cannot be found"), "{missing}");
        let null = resolve(sys, Path::new("/dev/null")).unwrap_err().to_string();
        assert!(null.contains("neither a disk") && null.contains("lsblk"), "{null}");
    }
}
