//! Archives whose bytes depend on nothing but names, contents and one time.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use flate2::{Compression, GzBuilder};
use tar::{Builder, EntryType, Header};

/// Files by path, in the order in which an archive has them.
#[derive(Default)]
pub struct Tree(BTreeMap<String, Entry>);

enum Entry {
    File { mode: u32, bytes: Vec<u8> },
    Link { target: String },
    Folder,
}

impl Tree {
    /// Adds a file and the folders above it.
    pub fn file(&mut self, path: &str, mode: u32, bytes: Vec<u8>) {
        self.add(path, Entry::File { mode, bytes });
    }

    /// Adds a copy of a file of this machine, readable by everyone.
    pub fn copy(&mut self, path: &str, source: &Path) -> Result<()> {
        let bytes =
            std::fs::read(source).with_context(|| format!("reading {}", source.display()))?;
        self.file(path, 0o644, bytes);
        Ok(())
    }

    /// Adds a symbolic link.
    pub fn link(&mut self, path: &str, target: &str) {
        let target = target.to_owned();
        self.add(path, Entry::Link { target });
    }

    /// Adds an empty folder.
    pub fn folder(&mut self, path: &str) {
        self.add(path, Entry::Folder);
    }

    fn add(&mut self, path: &str, entry: Entry) {
        for (end, _) in path.match_indices('/') {
            let above = path[..end].to_owned();
            self.0.entry(above).or_insert(Entry::Folder);
        }
        self.0.insert(path.to_owned(), entry);
    }

    /// Writes a tar archive: sorted by path, owned by root, all of this time in seconds since 1970.
    pub fn tar(&self, time: u64) -> Result<Vec<u8>> {
        let mut builder = Builder::new(Vec::new());
        for (path, entry) in &self.0 {
            let mut header = Header::new_ustar();
            header.set_uid(0);
            header.set_gid(0);
            header.set_username("root")?;
            header.set_groupname("root")?;
            header.set_mtime(time);
            header.set_size(0);
            let written = match entry {
                Entry::File { mode, bytes } => {
                    header.set_entry_type(EntryType::Regular);
                    header.set_mode(*mode);
                    header.set_size(u64::try_from(bytes.len())?);
                    builder.append_data(&mut header, path, bytes.as_slice())
                }
                Entry::Link { target } => {
                    header.set_entry_type(EntryType::Symlink);
                    header.set_mode(0o777);
                    builder.append_link(&mut header, path, target)
                }
                Entry::Folder => {
                    header.set_entry_type(EntryType::Directory);
                    header.set_mode(0o755);
                    builder.append_data(&mut header, format!("{path}/"), std::io::empty())
                }
            };
            written.with_context(|| format!("adding {path} to an archive"))?;
        }
        builder.into_inner().context("ending an archive")
    }
}

/// Compresses without name and time.
pub fn gzip(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut encoder = GzBuilder::new().write(Vec::new(), Compression::best());
    encoder.write_all(bytes).context("compressing")?;
    encoder.finish().context("compressing")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree(paths: &[&str]) -> Tree {
        let mut tree = Tree::default();
        for path in paths {
            tree.file(path, 0o644, path.as_bytes().to_vec());
        }
        tree.link("usr/bin/agent", "weir");
        tree
    }

    #[test]
    fn the_order_of_additions_does_not_matter() {
        let one = tree(&["usr/bin/weir", "etc/a"]).tar(7).unwrap();
        let other = tree(&["etc/a", "usr/bin/weir"]).tar(7).unwrap();
        assert_eq!(one, other);
        assert_ne!(one, tree(&["etc/a", "usr/bin/weir"]).tar(8).unwrap());
        assert_eq!(gzip(&one).unwrap(), gzip(&other).unwrap());
    }

    #[test]
    fn entries_belong_to_root_and_have_one_time() {
        let bytes = tree(&["usr/bin/weir"]).tar(7).unwrap();
        let mut archive = tar::Archive::new(bytes.as_slice());
        let mut paths = Vec::new();
        for entry in archive.entries().unwrap() {
            let entry = entry.unwrap();
            let header = entry.header();
            assert_eq!((header.uid().unwrap(), header.mtime().unwrap()), (0, 7));
            paths.push(entry.path().unwrap().display().to_string());
        }
        assert_eq!(paths, ["usr/", "usr/bin/", "usr/bin/agent", "usr/bin/weir"]);
    }
}
