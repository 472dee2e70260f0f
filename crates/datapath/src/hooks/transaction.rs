//! Replaces a policy on many hooks, all or none, also if the agent is killed meanwhile.
//!
//! The pins in the directory itself are in effect. A change has its pins in a folder beside them:
//!
//! | folder | the change | the next agent |
//! |---|---|---|
//! | `next` | is being attached | rolls it back to the programs pinned in the directory |
//! | `done` | is attached to every hook | detaches the hooks that it does not use |
//! | `moved` | is the only one attached | moves the pins that are left into the directory |
//!
//! Each step between them is one rename of the folder.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;

use bpf::link::{self, Link};

use crate::error::LoadError;
use crate::hooks::hook::HookOf;
use crate::hooks::pins::{HookPins, PinDirectory, SHARED_MAPS, remove};
use crate::hooks::traffic_control;

const NEXT: &str = "next";
const DONE: &str = "done";
const MOVED: &str = "moved";

/// The prefixes of older versions' pins of programs whose table is not in use yet.
const OLD_PROGRAMS: [&str; 2] = ["program-ingress-", "program-egress-"];

impl PinDirectory {
    /// The folder of a change until it is attached to every hook.
    pub(crate) fn next(&self) -> PathBuf {
        self.path().join(NEXT)
    }

    fn folder(&self, name: &str) -> HookPins {
        HookPins::at(self.path().join(name))
    }

    /// The folders in which a change may have hooks pinned.
    pub(crate) fn changes(&self) -> impl Iterator<Item = HookPins> {
        let [next, done, moved] = [NEXT, DONE, MOVED].map(|name| self.folder(name));
        [next.bridge(), next, done.bridge(), done, moved].into_iter()
    }

    pub(crate) fn begin_change(&self) -> Result<(), LoadError> {
        self.discard_change()?;
        Ok(bpf::create_directory(&self.next())?)
    }

    /// Commits the change, which is attached to every hook: from here on it is completed.
    ///
    /// # Errors
    ///
    /// When the directory cannot be renamed; then it is rolled back.
    pub fn commit(&self) -> Result<(), LoadError> {
        self.step(NEXT, DONE)
    }

    /// Detaches the hooks that a committed change does not use, and moves its pins to their final places.
    ///
    /// # Errors
    ///
    /// When a pin cannot be moved or removed; the next change or agent continues.
    pub fn finish(&self) -> Result<(), LoadError> {
        if self.path().join(DONE).exists() {
            self.release_unused()?;
        }
        self.complete()
    }

    fn step(&self, from: &str, to: &str) -> Result<(), LoadError> {
        let from = self.path().join(from);
        fs::rename(&from, self.path().join(to))
            .map_err(|source| LoadError::MovePin { path: from, source })
    }

    /// Releases the hooks that a committed change does not use.
    ///
    /// # Errors
    ///
    /// When a pin cannot be removed or the folder renamed.
    pub fn release_unused(&self) -> Result<(), LoadError> {
        let (hooks, done) = (self.hooks(), self.folder(DONE));
        let wanted = done.all();
        for of in hooks.all().difference(&wanted) {
            hooks.release(self, *of)?;
        }
        self.release_bridges(&done)?;
        self.step(DONE, MOVED)
    }

    fn release_bridges(&self, change: &HookPins) -> Result<(), LoadError> {
        let bridge = change.bridge();
        let kept = change.all();
        for of in bridge.all() {
            if of.hook.target().is_none() && kept.contains(&of) {
                // The filter belongs to the change by now.
                remove(&bridge.program(of))?;
            } else {
                bridge.release(self, of)?;
            }
        }
        // Fails if it does not exist, as usual.
        let _ = fs::remove_dir(bridge.folder());
        Ok(())
    }

    /// Moves the pins of a committed change to their final places.
    fn complete(&self) -> Result<(), LoadError> {
        let moved = self.path().join(MOVED);
        let mut names: Vec<_> = fs::read_dir(&moved)
            .into_iter()
            .flatten()
            .filter_map(Result::ok)
            .collect();
        // The table's maps come last, in their order.
        names.sort_by_key(|entry| SHARED_MAPS.iter().position(|map| entry.file_name() == *map));
        for entry in names {
            let (from, to) = (entry.path(), self.path().join(entry.file_name()));
            fs::rename(&from, to).map_err(|source| LoadError::MovePin { path: from, source })?;
        }
        // Fails if it does not exist, as usual.
        let _ = fs::remove_dir(moved);
        Ok(())
    }

    /// Rolls back the change in progress: restores the previous program of every hook, and removes the change's pins.
    ///
    /// # Errors
    ///
    /// When the kernel rejects a program; the next agent retries.
    pub fn roll_back(&self) -> Result<(), LoadError> {
        let (hooks, next) = (self.hooks(), self.folder(NEXT));
        let known = hooks.all();
        for of in next.all() {
            if next.link(of).exists() || !known.contains(&of) {
                next.release(self, of)?;
            } else {
                restore(self, &hooks, of)?;
            }
        }
        // Hooks whose program was detached for another mode.
        for of in known {
            restore(self, &hooks, of)?;
        }
        self.release_bridges(&next)?;
        self.discard_change()
    }

    /// Removes the pins of a change that is attached to no hook.
    ///
    /// # Errors
    ///
    /// When a pin cannot be removed.
    pub fn discard_change(&self) -> Result<(), LoadError> {
        for name in [NEXT, DONE, MOVED] {
            let folder = self.path().join(name);
            for entry in fs::read_dir(&folder)
                .into_iter()
                .flatten()
                .filter_map(Result::ok)
            {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    let _ = fs::remove_dir(entry.path());
                } else {
                    remove(&entry.path())?;
                }
            }
            // Fails if it does not exist, as usual.
            let _ = fs::remove_dir(folder);
        }
        Ok(())
    }

    /// Completes or rolls back a change of an earlier agent, and takes over pins of an older version.
    pub(crate) fn recover(&self) -> Result<(), LoadError> {
        self.adopt_old()?;
        if self.next().exists() {
            if self.is_of_old_version_and_in_effect() {
                self.step(NEXT, DONE)?;
                self.step(DONE, MOVED)?;
            } else {
                self.roll_back()?;
            }
        }
        self.finish()
    }

    /// Whether a hook runs a program of a change in progress of an older version, which pinned no programs for a
    /// rollback.
    fn is_of_old_version_and_in_effect(&self) -> bool {
        let in_effect = self.hooks().programs();
        let pinned = fs::read_dir(self.next())
            .into_iter()
            .flatten()
            .filter_map(Result::ok);
        let of_old = pinned.filter(|entry| {
            let name = entry.file_name();
            OLD_PROGRAMS
                .iter()
                .any(|start| name.to_string_lossy().starts_with(start))
        });
        let programs: Vec<_> = of_old.map(|entry| entry.path()).collect();
        let id = |path: &PathBuf| link::program_id(link::open(path).ok()?.as_fd()).ok();
        let is_in_effect = programs
            .iter()
            .filter_map(id)
            .any(|program| in_effect.contains(&program));
        if is_in_effect {
            // They are not used in the directory itself.
            for path in programs {
                let _ = link::remove(&path);
            }
        }
        is_in_effect
    }
}

/// Attaches the pinned program of a hook again, if another is there.
fn restore(pins: &PinDirectory, hooks: &HookPins, of: HookOf) -> Result<(), LoadError> {
    let fail = |reason: io::Error| LoadError::Restore {
        hook: of.to_string(),
        reason,
    };
    // Older versions pinned no program, so nothing can be restored.
    let Ok(program) = link::open(&hooks.program(of)) else {
        return Ok(());
    };
    let Some(target) = of.hook.target() else {
        return traffic_control::put_filter(pins, of, program.as_fd()).map_err(fail);
    };
    let pin = hooks.link(of);
    let info = Link::open(&pin).and_then(|link| Ok((link.info()?, link)));
    if let Ok((info, link)) = info
        && info.interface != 0
    {
        if info.program == link::program_id(program.as_fd()).map_err(fail)? {
            return Ok(());
        }
        return link.update(program.as_fd()).map_err(fail);
    }
    match Link::create(program.as_fd(), of.index, target) {
        Ok(link) => {
            remove(&pin)?;
            link.pin(&pin).map_err(fail)
        }
        // The interface was removed.
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => hooks.release(pins, of),
        Err(error) => Err(fail(error)),
    }
}
