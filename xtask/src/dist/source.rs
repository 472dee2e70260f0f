//! The source of a release: a commit, whose tree is copied out of git and built there.
//!
//! The copy has exactly the files that git has: no build result and no ignored file of the working tree.

use std::collections::BTreeSet;
use std::fs;
use std::io::Read as _;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};

use crate::process;

/// The commit of a release.
pub struct Source {
    /// The full hash of the commit.
    pub commit: String,
    /// A tag of the commit.
    pub tag: Option<String>,
    /// The hash of the tree that is built: the commit's, or the one with changes.
    pub tree: String,
    /// The commit's time in seconds since 1970, which all files of the release have.
    pub time: u64,
    /// Whether the tree has changes that are not committed.
    pub is_changed: bool,
}

impl Source {
    /// The commit that is checked out. Changes that are not committed are an error, or included.
    pub fn checked_out(root: &Path, with_changes: bool) -> Result<Self> {
        let changes = git(root, &["status", "--porcelain"])?;
        if !changes.is_empty() && !with_changes {
            bail!(
                "a release is built from a commit, and these files differ from it:\n{changes}\nCommit them, or build \
                 with --dirty a release that is not for others"
            );
        }
        let commit = git(root, &["rev-parse", "HEAD"])?;
        let tags = git(root, &["tag", "--points-at", "HEAD", "--list", "v*"])?;
        // Empty without changes of files that git knows.
        let changed = git(root, &["stash", "create"]).context("recording the changes")?;
        let built = if changed.is_empty() {
            &commit
        } else {
            &changed
        };
        Ok(Self {
            tree: git(root, &["rev-parse", &format!("{built}^{{tree}}")])?,
            time: git(root, &["log", "-1", "--format=%ct"])?
                .parse()
                .context("reading the commit's time")?,
            tag: tags.lines().next().map(str::to_owned),
            is_changed: !changed.is_empty(),
            commit,
        })
    }

    /// The commit in the form of `--version`.
    pub fn short_commit(&self) -> String {
        let changed = if self.is_changed {
            ", with changes that are not committed"
        } else {
            ""
        };
        format!("{}{changed}", &self.commit[..self.commit.len().min(12)])
    }

    /// The commit or tag as text.
    pub fn description(&self) -> String {
        let tag = match &self.tag {
            Some(tag) => format!("tag {tag}, "),
            None => String::new(),
        };
        format!("{tag}commit {}", self.short_commit())
    }

    /// Whether a tag is that of this version.
    pub fn is_tagged(&self, version: &str) -> bool {
        self.tag.as_deref().and_then(|tag| tag.strip_prefix('v')) == Some(version)
    }

    /// The commit's time in the form of RFC 3339.
    pub fn date(&self) -> Result<String> {
        let seconds = i64::try_from(self.time).context("the commit's time is not possible")?;
        let time =
            jiff::Timestamp::from_second(seconds).context("the commit's time is not possible")?;
        Ok(time.to_string())
    }

    /// Makes a folder equal to the tree. Unchanged files keep their time, by which cargo finds what to build.
    pub fn copy(&self, root: &Path, folder: &Path) -> Result<()> {
        let archive = tempfile::NamedTempFile::new().context("making a file")?;
        let mut git = Command::new("git");
        git.args(["archive", "--format=tar", "--output"]);
        git.arg(archive.path()).arg(&self.tree).current_dir(root);
        process::capture(&mut git)?;
        let mut wanted = BTreeSet::new();
        let mut archive = tar::Archive::new(archive.as_file());
        for entry in archive.entries().context("reading git's archive")? {
            let mut entry = entry.context("reading git's archive")?;
            let path = folder.join(entry.path().context("reading git's archive")?);
            place(&mut entry, &path).with_context(|| format!("writing {}", path.display()))?;
            wanted.insert(path);
        }
        remove_others(folder, &wanted)
            .with_context(|| format!("removing files from {}", folder.display()))
    }
}

fn git(root: &Path, arguments: &[&str]) -> Result<String> {
    let mut git = Command::new("git");
    // A stash has an author, whose name does not affect the tree.
    git.args(["-c", "user.name=weir", "-c", "user.email=weir@localhost"]);
    let said = process::capture(git.args(arguments).current_dir(root))
        .context("a release is built from git's tree")?;
    Ok(said.trim().to_owned())
}

/// Writes an entry, unless it is there.
fn place(entry: &mut tar::Entry<'_, impl std::io::Read>, path: &Path) -> Result<()> {
    let kind = entry.header().entry_type();
    if kind.is_dir() {
        return Ok(fs::create_dir_all(path)?);
    }
    if let Some(above) = path.parent() {
        fs::create_dir_all(above)?;
    }
    if kind.is_symlink() {
        let target = entry.link_name()?.context("a link without a target")?;
        let _ = fs::remove_file(path);
        return Ok(symlink(target, path)?);
    }
    if !kind.is_file() {
        return Ok(());
    }
    let mut bytes = Vec::new();
    entry.read_to_end(&mut bytes)?;
    if !fs::read(path).is_ok_and(|present| present == bytes) {
        fs::write(path, bytes)?;
    }
    let is_program = entry.header().mode()? & 0o100 != 0;
    let mode = if is_program { 0o755 } else { 0o644 };
    Ok(fs::set_permissions(path, fs::Permissions::from_mode(mode))?)
}

fn remove_others(folder: &Path, wanted: &BTreeSet<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let is_folder = path.symlink_metadata()?.is_dir();
        let is_wanted = wanted.iter().any(|one| one.starts_with(&path));
        match (is_folder, is_wanted) {
            (true, true) => remove_others(&path, wanted)?,
            (true, false) => fs::remove_dir_all(&path)?,
            (false, true) => {}
            (false, false) => fs::remove_file(&path)?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A repository with one commit of one file.
    fn repository() -> tempfile::TempDir {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        git(root, &["init", "--quiet"]).unwrap();
        fs::write(root.join("file"), "committed").unwrap();
        git(root, &["add", "file"]).unwrap();
        let date = "--date=@1000000000 +0000";
        git(root, &["commit", "--quiet", "--message", "one", date]).unwrap();
        folder
    }

    #[test]
    fn changes_are_an_error_or_are_built() {
        let folder = repository();
        let root = folder.path();
        let clean = Source::checked_out(root, false).unwrap();
        assert!(!clean.is_changed);
        fs::write(root.join("file"), "changed").unwrap();
        let error = Source::checked_out(root, false).err().unwrap().to_string();
        assert!(
            error.contains("M file") && error.contains("--dirty"),
            "{error}"
        );
        let changed = Source::checked_out(root, true).unwrap();
        assert_eq!(changed.commit, clean.commit);
        assert_ne!(changed.tree, clean.tree);
        assert!(changed.short_commit().ends_with("not committed"));
        let copy = tempfile::tempdir().unwrap();
        changed.copy(root, copy.path()).unwrap();
        assert_eq!(
            fs::read_to_string(copy.path().join("file")).unwrap(),
            "changed"
        );
    }

    #[test]
    fn a_copy_has_the_tree_and_nothing_else() {
        let folder = repository();
        let root = folder.path();
        let source = Source::checked_out(root, false).unwrap();
        let copy = tempfile::tempdir().unwrap();
        fs::create_dir(copy.path().join("old")).unwrap();
        fs::write(copy.path().join("old/file"), "").unwrap();
        source.copy(root, copy.path()).unwrap();
        let time = || {
            copy.path()
                .join("file")
                .metadata()
                .unwrap()
                .modified()
                .unwrap()
        };
        let first = time();
        source.copy(root, copy.path()).unwrap();
        assert_eq!(first, time());
        let names: Vec<_> = fs::read_dir(copy.path()).unwrap().collect();
        assert_eq!(names.len(), 1);
    }

    #[test]
    fn a_tag_names_its_version() {
        let folder = repository();
        git(folder.path(), &["tag", "v1.2.3"]).unwrap();
        let source = Source::checked_out(folder.path(), false).unwrap();
        assert!(source.is_tagged("1.2.3") && !source.is_tagged("1.2"));
        assert!(source.description().starts_with("tag v1.2.3, commit "));
    }
}
