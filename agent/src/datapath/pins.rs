//! What outlives the agent: maps and links pinned in one directory of bpffs.

use std::fs;
use std::path::{Path, PathBuf};

use aya::maps::{Array, Map, MapData};
use common::settings::{Settings, TableIdentity};

use super::error::LoadError;

/// What all policies share; [`TableIdentity::VERSION`] changes when what they hold means something else.
pub(super) const SHARED_MAPS: [&str; 4] = ["SOURCES", "RINGS", "SIGHTINGS", "TABLE"];

/// A directory of bpffs that is Weir's own.
#[derive(Clone, Debug)]
pub struct PinDirectory(PathBuf);

/// Whether there is a table of an earlier policy to go on with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Inherited {
    /// The same table, its secret included.
    Table(TableIdentity),
    /// None, or one that is cut otherwise: what it held is forgotten.
    Nothing,
}

impl PinDirectory {
    /// Makes sure of the directory.
    ///
    /// # Errors
    ///
    /// When it cannot be made, or does not lie in a BPF file system.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        let fail = |source| LoadError::PinDirectory { path: path.to_owned(), source };
        fs::create_dir_all(path).map_err(fail)?;
        let statistics = nix::sys::statfs::statfs(path).map_err(|errno| fail(errno.into()))?;
        if statistics.filesystem_type() != nix::sys::statfs::BPF_FS_MAGIC {
            return Err(LoadError::NotBpffs { path: path.to_owned() });
        }
        Ok(Self(path.to_owned()))
    }

    /// Where the map of this name is pinned.
    #[must_use]
    pub fn map(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Where the link of a hook of an interface is pinned.
    #[must_use]
    pub fn link(&self, interface: &str, hook: &str) -> PathBuf {
        self.0.join(format!("link-{hook}-{interface}"))
    }

    /// The links that are pinned, as (hook, interface, path).
    #[must_use]
    pub fn links(&self) -> Vec<(String, String, PathBuf)> {
        let Ok(entries) = fs::read_dir(&self.0) else { return Vec::new() };
        entries
            .filter_map(Result::ok)
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let (hook, interface) = name.strip_prefix("link-")?.split_once('-')?;
                Some((hook.to_owned(), interface.to_owned(), entry.path()))
            })
            .collect()
    }

    /// Looks for the table of an earlier policy; one that `settings` cannot go on with is unpinned.
    pub(super) fn inherit(&self, settings: &Settings) -> Result<Inherited, LoadError> {
        if let Some(identity) = self.identity()?
            && identity.fits(settings)
        {
            return Ok(Inherited::Table(identity));
        }
        for name in SHARED_MAPS {
            remove(&self.map(name))?;
        }
        Ok(Inherited::Nothing)
    }

    fn identity(&self) -> Result<Option<TableIdentity>, LoadError> {
        let path = self.map("TABLE");
        if !path.exists() {
            return Ok(None);
        }
        // A map of another layout is one of another version: not ours to go on with.
        let Ok(array) = Array::<_, TableIdentity>::try_from(Map::Array(MapData::from_pin(&path)?)) else {
            return Ok(None);
        };
        Ok(Some(array.get(&0, 0)?))
    }

    /// After a failure: takes out what was pinned on the way, unless a policy is in force here. What cannot be taken out
    /// is taken over by the next agent; the failure itself is what is told.
    pub(super) fn clear_unless_linked(&self) {
        if self.links().is_empty() {
            let _ = self.clear();
        }
    }

    /// Takes everything out of the directory, which detaches what is linked there, and removes it. Returns what it
    /// took out.
    ///
    /// # Errors
    ///
    /// When a pin cannot be removed.
    pub fn clear(&self) -> Result<Vec<PathBuf>, LoadError> {
        let mut removed = Vec::new();
        // Links first: packets stop coming before the state they are held to goes.
        for (_, _, path) in self.links() {
            remove(&path)?;
            removed.push(path);
        }
        for path in SHARED_MAPS.map(|name| self.map(name)) {
            if path.exists() {
                remove(&path)?;
                removed.push(path);
            }
        }
        // Somebody else's files keep the directory; that is not our failure.
        let _ = fs::remove_dir(&self.0);
        Ok(removed)
    }
}

fn remove(path: &Path) -> Result<(), LoadError> {
    match fs::remove_file(path) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
            Err(LoadError::Unpin { path: path.to_owned(), source })
        }
        _ => Ok(()),
    }
}
