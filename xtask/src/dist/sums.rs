//! SHA-256 of a release's files, and the signature of their list.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use sha2::{Digest as _, Sha256};

use crate::process;

/// The list of hashes, in the form of `sha256sum`.
pub const SUMS: &str = "SHA256SUMS";
const SIGNATURE: &str = "SHA256SUMS.sig";
/// The purpose of a signature (`ssh-keygen -n`).
const NAMESPACE: &str = "weir";

/// The hash of these bytes, in hexadecimal digits.
pub fn of(bytes: &[u8]) -> String {
    format!("{:x}", Sha256::digest(bytes))
}

/// Hashes of a folder's files, by name.
pub fn sums_of(folder: &Path) -> Result<BTreeMap<String, String>> {
    let listing = || format!("listing {}", folder.display());
    let mut sums = BTreeMap::new();
    for entry in fs::read_dir(folder).with_context(listing)? {
        let path = entry.with_context(listing)?.path();
        let name = path
            .file_name()
            .map(|name| name.to_string_lossy().into_owned());
        let bytes = fs::read(&path)
            .with_context(|| format!("reading {}: a release consists of files", path.display()))?;
        sums.extend(name.map(|name| (name, of(&bytes))));
    }
    Ok(sums)
}

/// Writes the list of a folder's files into it.
pub fn write(folder: &Path) -> Result<()> {
    let text = list(&sums_of(folder)?);
    let path = folder.join(SUMS);
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
}

fn list(sums: &BTreeMap<String, String>) -> String {
    let lines = sums.iter().filter(|(name, _)| !is_about_others(name));
    lines
        .map(|(name, hash)| format!("{hash}  {name}\n"))
        .collect()
}

/// Whether a file is the list or its signature.
pub fn is_about_others(name: &str) -> bool {
    [SUMS, SIGNATURE].contains(&name)
}

/// Signs the list with an SSH key, and returns the signature's path. With a public key, ssh-agent signs.
pub fn sign(folder: &Path, key: &Path) -> Result<PathBuf> {
    let keygen = process::find("ssh-keygen")
        .context("signing requires ssh-keygen: run `apt-get install openssh-client`")?;
    let list = folder.join(SUMS);
    let mut sign = Command::new(keygen);
    sign.args(["-Y", "sign", "-n", NAMESPACE, "-f"])
        .arg(key)
        .arg(&list);
    process::run(&mut sign).with_context(|| format!("signing with the key {}", key.display()))?;
    let signature = folder.join(SIGNATURE);
    ensure!(
        signature.exists(),
        "ssh-keygen wrote no signature {}",
        signature.display()
    );
    Ok(signature)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_what_sha256sum_reads() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["weir-b", "weir-a", SIGNATURE, "SHA256SUMS.txt"] {
            fs::write(folder.path().join(name), "abc").unwrap();
        }
        write(folder.path()).unwrap();
        let hash = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(
            fs::read_to_string(folder.path().join(SUMS)).unwrap(),
            format!("{hash}  SHA256SUMS.txt\n{hash}  weir-a\n{hash}  weir-b\n")
        );
    }
}
