//! What outlives the agent: maps, links and programs pinned in one directory of bpffs.
//!
//! A hook is pinned by the index of its interface, never by its name: bpffs refuses dots, and an interface can be renamed.
//! A colon, which no interface's name has, sets these pins apart from those of older versions, which are by name.
//!
//! | pin | content |
//! |---|---|
//! | `link-HOOK:INDEX` | the link that keeps a program on the hook; none where a filter does |
//! | `program-HOOK:INDEX` | the program that belongs there |

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};

use common::packet::Direction;

use super::error::LoadError;
use super::traffic_control;
use crate::link::{self, Link, Target};

/// What all policies share; [`common::settings::TableIdentity::VERSION`] changes when what they hold means something else.
///
/// In the order in which a new table takes an old one's place: `SOURCES`, which every program uses, is the last.
pub(super) const SHARED_MAPS: [&str; 5] = ["TABLE", "LAYOUT", "RINGS", "SIGHTINGS", "SOURCES"];

/// What outlives policies and tables alike.
pub(super) const BANS: &str = "BANS";

/// How the pin of a hook's link begins.
const LINK: &str = "link-";
/// How that of its program begins.
const PROGRAM: &str = "program-";
/// Where hooks are pinned that stand in for others during a change.
const BRIDGE: &str = "bridge";
/// How older versions named the program of a filter.
const OLD_FILTER: &str = "filter-";
/// A pin on its way to its name.
const FRESH: &str = "fresh";

/// A place in the kernel where a packet comes by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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

/// A hook of one interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HookOf {
    /// Where in the kernel.
    pub hook: Hook,
    /// The interface's index.
    pub index: u32,
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

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == name)
    }

    /// That of traffic control.
    pub(super) const fn of(direction: Direction) -> Self {
        match direction {
            Direction::Ingress => Self::TcIngress,
            Direction::Egress => Self::TcEgress,
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

    /// Where a link attaches; `None` where only a filter can.
    pub(super) fn target(self) -> Option<Target> {
        match self {
            Self::Xdp => Some(Target::XdpNative),
            Self::XdpGeneric => Some(Target::XdpGeneric),
            Self::TcIngress => traffic_control::has_tcx().then_some(Target::TcxIngress),
            Self::TcEgress => traffic_control::has_tcx().then_some(Target::TcxEgress),
        }
    }
}

impl std::fmt::Display for HookOf {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}:{}", self.hook.name(), self.index)
    }
}

impl HookOf {
    fn parse(text: &str) -> Option<Self> {
        let (hook, index) = text.split_once(':')?;
        Some(Self { hook: Hook::named(hook)?, index: index.parse().ok()? })
    }
}

/// A directory of bpffs that is Weir's own.
#[derive(Clone, Debug)]
pub struct PinDirectory(PathBuf);

/// The pins of hooks in one folder: the directory itself, or that of a change in progress.
#[derive(Clone, Debug)]
pub(super) struct HookPins(PathBuf);

impl HookPins {
    pub(super) const fn at(folder: PathBuf) -> Self {
        Self(folder)
    }

    pub(super) fn folder(&self) -> &Path {
        &self.0
    }

    pub(super) fn link(&self, of: HookOf) -> PathBuf {
        self.0.join(format!("{LINK}{of}"))
    }

    pub(super) fn program(&self, of: HookOf) -> PathBuf {
        self.0.join(format!("{PROGRAM}{of}"))
    }

    /// What holds packets only while another hook of the same interface is replaced.
    pub(super) fn bridge(&self) -> Self {
        Self(self.0.join(BRIDGE))
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).into_iter().flatten().filter_map(Result::ok);
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    /// The hooks with a pin here.
    pub(super) fn all(&self) -> BTreeSet<HookOf> {
        let of = |name: &String| HookOf::parse(name.strip_prefix(LINK).or_else(|| name.strip_prefix(PROGRAM))?);
        self.names().iter().filter_map(of).collect()
    }

    /// The pins of older versions: (pin, whether it is of a link and not of a filter's program, hook, interface's name).
    fn old(&self) -> Vec<(PathBuf, bool, Hook, String)> {
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

    /// Pins a hook's program, in place of the one that is pinned for it.
    pub(super) fn keep_program(&self, of: HookOf, program: BorrowedFd<'_>) -> Result<(), LoadError> {
        let (fresh, path) = (self.0.join(FRESH), self.program(of));
        let fail = |source: std::io::Error| LoadError::Pin { path: path.clone(), reason: source.to_string() };
        link::remove(&fresh).map_err(fail)?;
        link::pin(program, &fresh).map_err(fail)?;
        fs::rename(&fresh, &path).map_err(fail)
    }

    /// Detaches a hook and removes its pins; a hook that is detached already is no error.
    pub(super) fn release(&self, pins: &PinDirectory, of: HookOf) -> Result<(), LoadError> {
        let unpin = |path: PathBuf| move |source| LoadError::Unpin { path, source };
        let link = self.link(of);
        link::release(&link).map_err(unpin(link))?;
        let program = self.program(of);
        if of.hook.target().is_none() {
            // Before its pin: what is left by a kill in between is found again.
            traffic_control::remove_filter(pins, of, link::open(&program).ok().as_ref().map(AsFd::as_fd));
        }
        link::remove(&program).map_err(unpin(program))
    }

    /// The numbers of the programs that are on the hooks pinned here, whatever version pinned them.
    pub(super) fn programs(&self) -> Vec<u32> {
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

    /// The hooks that are held.
    pub(super) fn hooks(&self) -> HookPins {
        HookPins(self.0.clone())
    }

    /// Whether any hook is held, by this version or an older one.
    #[must_use]
    pub fn has_hooks(&self) -> bool {
        !self.hooks().all().is_empty() || !self.hooks().old().is_empty()
    }

    /// The directory itself.
    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    /// Whether a hook is pinned here: `agent detach` removes the pins of what it takes off.
    pub(super) fn is_held(&self, of: HookOf) -> bool {
        self.hooks().program(of).exists()
    }

    /// Whether there is a policy's table here: `agent detach` removes it.
    pub(super) fn is_in_use(&self) -> bool {
        self.map("TABLE").exists()
    }

    /// Renames the pins of older versions, which are by an interface's name, so that their hooks are taken over like any
    /// other. A pin whose interface is gone is removed.
    pub(super) fn adopt_old(&self) -> Result<(), LoadError> {
        let hooks = self.hooks();
        for (path, is_link, hook, _) in hooks.old() {
            // The kernel tells, whatever the interface is called by now.
            let index = if is_link {
                Link::open(&path).ok().and_then(|link| Some(link.info().ok()?.interface))
            } else {
                traffic_control::interface_of(&path, hook.direction())
            };
            let Some(index) = index.filter(|index| *index != 0) else {
                link::release(&path).map_err(|source| LoadError::Unpin { path: path.clone(), source })?;
                continue;
            };
            let of = HookOf { hook, index };
            let to = if is_link { hooks.link(of) } else { hooks.program(of) };
            fs::rename(&path, &to).map_err(|source| LoadError::MovePin { path, source })?;
        }
        Ok(())
    }

    /// After a failure: takes out what was pinned on the way, unless a policy is in force here. What cannot be taken out
    /// is taken over by the next agent; the failure itself is what is told.
    pub(crate) fn clear_unless_linked(&self) {
        if !self.has_hooks() {
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
        self.adopt_old()?;
        for hooks in std::iter::once(self.hooks()).chain(self.changes()) {
            for of in hooks.all() {
                let (link, program) = (hooks.link(of), hooks.program(of));
                removed.push(if link.exists() { link } else { program });
                hooks.release(self, of)?;
            }
        }
        traffic_control::remove_strays(self);
        self.discard_change()?;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_is_found_by_the_index_of_its_interface_and_one_of_an_older_version_is_not_taken_for_it() {
        let folder = tempfile::tempdir().unwrap();
        let pins = HookPins::at(folder.path().to_owned());
        let of = HookOf { hook: Hook::TcEgress, index: 42 };
        for path in [pins.link(of), pins.program(of), folder.path().join("link-xdp-7"), folder.path().join("TABLE")] {
            fs::write(path, "").unwrap();
        }
        assert_eq!(pins.all().into_iter().collect::<Vec<_>>(), [of]);
        let old = pins.old();
        assert_eq!((old.len(), old[0].2, old[0].3.as_str()), (1, Hook::Xdp, "7"));
    }
}
