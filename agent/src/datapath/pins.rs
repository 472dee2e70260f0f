//! What outlives the agent: maps and links pinned in one directory of bpffs.

use std::fs;
use std::path::{Path, PathBuf};

use common::packet::Direction;

use super::error::LoadError;
use super::traffic_control;
use crate::link;

/// What all policies share; [`common::settings::TableIdentity::VERSION`] changes when what they hold means something else.
///
/// In the order in which a new table takes an old one's place: `SOURCES`, which every program uses, is the last.
pub(super) const SHARED_MAPS: [&str; 5] = ["TABLE", "LAYOUT", "RINGS", "SIGHTINGS", "SOURCES"];

/// What outlives policies and tables alike.
pub(super) const BANS: &str = "BANS";

/// A place in the kernel where a packet comes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hook {
    /// In the driver.
    Xdp,
    /// Before the network stack, for any driver. An interface has this or [`Hook::Xdp`].
    XdpGeneric,
    /// In the network stack, coming in.
    TcIngress,
    /// In the network stack, going out.
    TcEgress,
}

/// What holds a program at its hook.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holder {
    /// A link, which is gone with its last pin.
    Link,
    /// A filter, which has to be removed.
    Filter,
}

/// A hook that is held, and what is pinned for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PinnedHook {
    /// Where in the kernel.
    pub hook: Hook,
    /// By what.
    pub holder: Holder,
    /// Of which interface.
    pub interface: String,
    /// The pin.
    pub path: PathBuf,
}

impl Hook {
    const ALL: [Self; 4] = [Self::Xdp, Self::XdpGeneric, Self::TcIngress, Self::TcEgress];

    /// As it is in the pin's name: a link does not tell its mode, and `status` has to.
    const fn name(self) -> &'static str {
        match self {
            Self::Xdp => "xdp",
            Self::XdpGeneric => "xdpgeneric",
            Self::TcIngress => "tcingress",
            Self::TcEgress => "tcegress",
        }
    }

    /// Which way packets go there.
    #[must_use]
    pub const fn direction(self) -> Direction {
        match self {
            Self::Xdp | Self::XdpGeneric | Self::TcIngress => Direction::Ingress,
            Self::TcEgress => Direction::Egress,
        }
    }
}

impl Holder {
    const ALL: [Self; 2] = [Self::Link, Self::Filter];

    const fn name(self) -> &'static str {
        match self {
            Self::Link => "link",
            Self::Filter => "filter",
        }
    }
}

impl PinnedHook {
    /// Detaches it.
    ///
    /// # Errors
    ///
    /// When the pin cannot be removed.
    pub fn release(&self) -> Result<(), LoadError> {
        if self.holder == Holder::Filter {
            traffic_control::remove_filter(&self.interface, self.hook.direction());
            return remove(&self.path);
        }
        link::release(&self.path).map_err(|source| LoadError::Unpin { path: self.path.clone(), source })
    }
}

/// A directory of bpffs that is Weir's own.
#[derive(Clone, Debug)]
pub struct PinDirectory(PathBuf);

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

    /// Where what holds a hook of an interface is pinned: its link, or the program of a filter.
    #[must_use]
    pub fn hook(&self, interface: &str, hook: Hook, holder: Holder) -> PathBuf {
        self.0.join(format!("{}-{}-{interface}", holder.name(), hook.name()))
    }

    /// The hooks that are held.
    #[must_use]
    pub fn hooks(&self) -> Vec<PinnedHook> {
        let Ok(entries) = fs::read_dir(&self.0) else { return Vec::new() };
        entries
            .filter_map(Result::ok)
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let (holder, rest) = name.split_once('-')?;
                let (hook, interface) = rest.split_once('-')?;
                Some(PinnedHook {
                    holder: Holder::ALL.into_iter().find(|known| known.name() == holder)?,
                    hook: Hook::ALL.into_iter().find(|known| known.name() == hook)?,
                    interface: interface.to_owned(),
                    path: entry.path(),
                })
            })
            .collect()
    }

    /// A directory that need not be there.
    pub(super) const fn at(path: PathBuf) -> Self {
        Self(path)
    }

    /// The directory itself.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// After a failure: takes out what was pinned on the way, unless a policy is in force here. What cannot be taken out
    /// is taken over by the next agent; the failure itself is what is told.
    pub(crate) fn clear_unless_linked(&self) {
        if self.hooks().is_empty() {
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
        for hook in self.hooks() {
            hook.release()?;
            removed.push(hook.path);
        }
        self.discard_next()?;
        self.generations().clear()?;
        for path in SHARED_MAPS.iter().chain(&[BANS]).map(|name| self.map(name)) {
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

pub(super) fn remove(path: &Path) -> Result<(), LoadError> {
    link::remove(path).map_err(|source| LoadError::Unpin { path: path.to_owned(), source })
}
