//! Pins: maps, links and programs that outlive the agent, in one directory of bpffs.
//!
//! A hook is pinned by its interface's index, not by its name: bpffs rejects dots, and interfaces can be renamed. A
//! colon, which no interface name contains, distinguishes these pins from those of older versions, which are by name.
//!
//! | pin | content |
//! |---|---|
//! | `link-HOOK:INDEX` | the link of the hook; none for a filter of traffic control |
//! | `program-HOOK:INDEX` | the program of the hook |

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use bpf::link::{self, Link};

use crate::error::LoadError;
use crate::hooks::hook::{Hook, HookOf};

/// The maps that all policies share; [`common::settings::TableIdentity::VERSION`] changes with the meaning of their
/// content.
///
/// In the order in which a new table replaces an old one: `SOURCES`, which every program uses, is last.
pub(crate) const SHARED_MAPS: [&str; 5] = ["TABLE", "LAYOUT", "RINGS", "SAMPLES", "SOURCES"];

/// The map that all policies and tables share.
pub(crate) const BANS: &str = "BANS";

/// The map of ban lists, which all policies and tables share.
pub(crate) const LISTS: &str = "LISTS";

/// The sources that proved their address by resets, if some limit of the policy requires it.
pub(crate) const PROVEN_SOURCES: &str = "PROVEN_SOURCES";

/// The prefix of pins of links.
const LINK: &str = "link-";
/// The prefix of pins of programs.
const PROGRAM: &str = "program-";
/// The folder of hooks that replace others during a change.
const BRIDGE: &str = "bridge";
/// The prefix of older versions' pins of filters' programs.
const OLD_FILTER: &str = "filter-";
/// The temporary name of a new pin.
const FRESH: &str = "fresh";

/// A directory of bpffs for Weir's pins.
#[derive(Clone, Debug)]
pub struct PinDirectory(PathBuf);

/// The pins of hooks in one folder: the directory itself, or a folder of a change in progress.
#[derive(Clone, Debug)]
pub(crate) struct HookPins(PathBuf);

impl HookPins {
    pub(crate) const fn at(folder: PathBuf) -> Self {
        Self(folder)
    }

    pub(crate) fn folder(&self) -> &Path {
        &self.0
    }

    pub(crate) fn link(&self, of: HookOf) -> PathBuf {
        self.0.join(format!("{LINK}{of}"))
    }

    pub(crate) fn program(&self, of: HookOf) -> PathBuf {
        self.0.join(format!("{PROGRAM}{of}"))
    }

    /// The hooks that enforce limits while another hook of the same interface is replaced.
    pub(crate) fn bridge(&self) -> Self {
        Self(self.0.join(BRIDGE))
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0)
            .into_iter()
            .flatten()
            .filter_map(Result::ok);
        entries
            .filter_map(|entry| entry.file_name().into_string().ok())
            .collect()
    }

    /// The pinned hooks.
    pub(crate) fn all(&self) -> BTreeSet<HookOf> {
        let of = |name: &String| {
            HookOf::parse(
                name.strip_prefix(LINK)
                    .or_else(|| name.strip_prefix(PROGRAM))?,
            )
        };
        self.names().iter().filter_map(of).collect()
    }

    /// The pins of older versions: (pin, whether it is a link, hook, interface's name).
    pub(crate) fn old(&self) -> Vec<(PathBuf, bool, Hook, String)> {
        let parse = |name: String| {
            let (kind, rest) = name.split_once('-')?;
            let (hook, interface) = rest.split_once('-')?;
            let hook = Hook::named(hook)?;
            let is_link = match kind {
                "link" => true,
                "filter" => false,
                _ => return None,
            };
            Some((self.0.join(&name), is_link, hook, interface.to_owned()))
        };
        self.names().into_iter().filter_map(parse).collect()
    }

    /// Pins a hook's program, replacing the previous one.
    pub(crate) fn pin_program(&self, of: HookOf, program: BorrowedFd<'_>) -> Result<(), LoadError> {
        let (fresh, path) = (self.0.join(FRESH), self.program(of));
        let fail = |source: std::io::Error| LoadError::Pin {
            path: path.clone(),
            reason: source.to_string(),
        };
        link::remove(&fresh).map_err(fail)?;
        link::pin(program, &fresh).map_err(fail)?;
        fs::rename(&fresh, &path).map_err(fail)
    }

    /// The IDs of the programs on the hooks pinned here, by any version.
    pub(crate) fn programs(&self) -> Vec<u32> {
        let program = |name: &String| {
            let path = self.0.join(name);
            if name.starts_with(LINK) {
                Some(Link::open(&path).ok()?.info().ok()?.program)
            } else if name.starts_with(PROGRAM) || name.starts_with(OLD_FILTER) {
                link::program_id(link::open(&path).ok()?.as_fd()).ok()
            } else {
                None
            }
        };
        self.names().iter().filter_map(program).collect()
    }
}

impl PinDirectory {
    /// Opens the directory, and creates it if it does not exist.
    ///
    /// # Errors
    ///
    /// When it cannot be created, or is not in a BPF file system.
    pub fn open(path: &Path) -> Result<Self, LoadError> {
        bpf::open_directory(path)?;
        Ok(Self(path.to_owned()))
    }

    /// The path of a map's pin.
    #[must_use]
    pub fn map(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// The hooks in effect.
    pub(crate) fn hooks(&self) -> HookPins {
        HookPins(self.0.clone())
    }

    /// Whether any hook is pinned, by this version or an older one.
    #[must_use]
    pub fn has_hooks(&self) -> bool {
        !self.hooks().all().is_empty() || !self.hooks().old().is_empty()
    }

    /// Whether state of sources or bans is pinned, also without any hook.
    #[must_use]
    pub fn has_state(&self) -> bool {
        self.is_in_use() || self.map(BANS).exists()
    }

    /// The directory itself.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }

    /// Whether a hook is pinned; `weir detach` removes its pins.
    pub(crate) fn is_pinned(&self, of: HookOf) -> bool {
        self.hooks().program(of).exists()
    }

    /// Whether a policy's table is pinned; `weir detach` removes it.
    pub(crate) fn is_in_use(&self) -> bool {
        self.map("TABLE").exists()
    }
}

pub(crate) fn remove(path: &Path) -> Result<(), LoadError> {
    link::remove(path).map_err(|source| LoadError::Unpin {
        path: path.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_is_found_by_the_index_of_its_interface_and_one_of_an_older_version_is_not_taken_for_it()
     {
        let folder = tempfile::tempdir().unwrap();
        let pins = HookPins::at(folder.path().to_owned());
        let of = HookOf {
            hook: Hook::TcEgress,
            index: 42,
        };
        for path in [
            pins.link(of),
            pins.program(of),
            folder.path().join("link-xdp-7"),
            folder.path().join("TABLE"),
        ] {
            fs::write(path, "").unwrap();
        }
        assert_eq!(pins.all().into_iter().collect::<Vec<_>>(), [of]);
        let old = pins.old();
        assert_eq!(
            (old.len(), old[0].2, old[0].3.as_str()),
            (1, Hook::Xdp, "7")
        );
    }
}
