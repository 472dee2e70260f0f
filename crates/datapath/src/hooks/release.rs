//! Detaches hooks and removes pins.

use std::fs;
use std::os::fd::AsFd;
use std::path::PathBuf;

use bpf::link::{self, Link};

use crate::error::LoadError;
use crate::hooks::hook::HookOf;
use crate::hooks::pins::{
    BANS, HookPins, LISTS, PROVEN_SOURCES, PinDirectory, SHARED_MAPS, remove,
};
use crate::hooks::traffic_control;

impl HookPins {
    /// Detaches a hook and removes its pins; a detached hook is no error.
    pub(crate) fn release(&self, pins: &PinDirectory, of: HookOf) -> Result<(), LoadError> {
        let unpin = |path: PathBuf| move |source| LoadError::Unpin { path, source };
        let link = self.link(of);
        link::release(&link).map_err(unpin(link))?;
        let program = self.program(of);
        if of.hook.target().is_none() {
            // Before its pin, so that the next agent finds the filter if this one is killed in between.
            traffic_control::remove_filter(
                pins,
                of,
                link::open(&program).ok().as_ref().map(AsFd::as_fd),
            );
        }
        link::remove(&program).map_err(unpin(program))
    }
}

impl PinDirectory {
    /// Renames the pins of older versions, which have an interface's name. Pins of removed interfaces are removed.
    pub(crate) fn adopt_old(&self) -> Result<(), LoadError> {
        let hooks = self.hooks();
        for (path, is_link, hook, _) in hooks.old() {
            // From the kernel, since the interface may have been renamed.
            let index = if is_link {
                Link::open(&path)
                    .ok()
                    .and_then(|link| Some(link.info().ok()?.interface))
            } else {
                traffic_control::interface_of(&path, hook.direction())
            };
            let Some(index) = index.filter(|index| *index != 0) else {
                link::release(&path).map_err(|source| LoadError::Unpin {
                    path: path.clone(),
                    source,
                })?;
                continue;
            };
            let of = HookOf { hook, index };
            let to = if is_link {
                hooks.link(of)
            } else {
                hooks.program(of)
            };
            fs::rename(&path, &to).map_err(|source| LoadError::MovePin { path, source })?;
        }
        Ok(())
    }

    /// Removes all pins after a failure, unless a policy is in effect. Errors are ignored: the failure is reported
    /// anyway, and the next agent takes over the remaining pins.
    pub fn clear_unless_linked(&self) {
        if !self.has_hooks() {
            let _ = self.clear();
        }
    }

    /// Detaches all hooks, and removes all pins and the directory. Returns the removed pins.
    ///
    /// # Errors
    ///
    /// When a pin cannot be removed.
    pub fn clear(&self) -> Result<Vec<PathBuf>, LoadError> {
        let mut removed = Vec::new();
        // Links first, so that no program uses the maps any more.
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
        self.forget_connections(None)?;
        for path in SHARED_MAPS
            .iter()
            .chain(&[BANS, LISTS, PROVEN_SOURCES])
            .map(|name| self.map(name))
        {
            if path.exists() {
                remove(&path)?;
                removed.push(path);
            }
        }
        // Fails if other files are in the directory, which is no error.
        let _ = fs::remove_dir(self.path());
        Ok(removed)
    }

    /// Removes the sources that proved their address.
    ///
    /// # Errors
    ///
    /// When the pin cannot be removed.
    pub(crate) fn forget_proven_sources(&self) -> Result<(), LoadError> {
        let path = self.map(PROVEN_SOURCES);
        if path.exists() { remove(&path) } else { Ok(()) }
    }
}
