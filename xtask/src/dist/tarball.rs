//! The archive of a static program with its documents, in one folder, for systems without the packages.

use std::path::Path;

use anyhow::Result;

use super::archive::{Tree, gzip};

/// Files of the source tree, and their places in the archive.
const FILES: [(&str, &str); 9] = [
    ("README.md", "README.md"),
    ("CHANGELOG.md", "CHANGELOG.md"),
    ("LICENSE-MIT", "LICENSE-MIT"),
    ("LICENSE-APACHE", "LICENSE-APACHE"),
    ("config/limits.package.toml", "limits.toml"),
    ("config/systemd/weir.service", "systemd/weir.service"),
    ("config/systemd/groups.conf", "systemd/groups.conf"),
    ("config/systemd/weir-generator", "systemd/weir-generator"),
    (
        "config/systemd/weir.sysusers.conf",
        "systemd/weir.sysusers.conf",
    ),
];
/// Files of [`crate::package::files`], and their places.
const GENERATED: [(&str, &str); 7] = [
    ("copyright", "LICENSES-OF-CRATES"),
    ("weir.1.gz", "doc/weir.1.gz"),
    ("limits.toml.5.gz", "doc/limits.toml.5.gz"),
    ("limits.schema.json", "doc/limits.schema.json"),
    ("weir.bash", "complete/weir.bash"),
    ("weir.fish", "complete/weir.fish"),
    ("weir.zsh", "complete/_weir"),
];

/// Packs the program and the files of both folders. All have this time, in seconds since 1970.
pub fn tarball(
    title: &str,
    program: Vec<u8>,
    root: &Path,
    generated: &Path,
    time: u64,
) -> Result<Vec<u8>> {
    let mut tree = Tree::default();
    tree.file(&format!("{title}/weir"), 0o755, program);
    for (folder, files) in [(root, FILES.as_slice()), (generated, &GENERATED)] {
        for (source, place) in files {
            tree.copy(&format!("{title}/{place}"), &folder.join(source))?;
        }
    }
    gzip(&tree.tar(time)?)
}
