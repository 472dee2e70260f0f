//! One policy in place of another on many hooks: all of them or none, whenever the agent dies.
//!
//! What the directory of pins itself holds is what is in effect. A change makes its pins in a folder beside them:
//!
//! | folder | the change | what the next agent does with it |
//! |---|---|---|
//! | `next` | is being put on the hooks | undoes it: the programs pinned in the directory go back on their hooks |
//! | `done` | is on every hook | releases the hooks that it does not use |
//! | `moved` | has the hooks for itself | moves the pins that are left into the directory |
//!
//! Each step between them is one rename of the folder.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;

use super::error::LoadError;
use super::pins::{HookOf, HookPins, PinDirectory, SHARED_MAPS, remove};
use super::traffic_control;
use crate::link::{self, Link};

const NEXT: &str = "next";
const DONE: &str = "done";
const MOVED: &str = "moved";

/// How older versions named the programs of a table that is not in use yet.
const OLD_PROGRAMS: [&str; 2] = ["program-ingress-", "program-egress-"];

impl PinDirectory {
    /// Where a change has its pins until it is on every hook.
    pub(super) fn next(&self) -> PathBuf {
        self.path().join(NEXT)
    }

    fn folder(&self, name: &str) -> HookPins {
        HookPins::at(self.path().join(name))
    }

    /// The folders in which a change may have hooks pinned.
    pub(super) fn changes(&self) -> impl Iterator<Item = HookPins> {
        let [next, done, moved] = [NEXT, DONE, MOVED].map(|name| self.folder(name));
        [next.bridge(), next, done.bridge(), done, moved].into_iter()
    }

    /// Begins a change.
    pub(super) fn begin_change(&self) -> Result<(), LoadError> {
        self.discard_change()?;
        let next = self.next();
        fs::create_dir_all(&next).map_err(|source| LoadError::PinDirectory { path: next, source })
    }

    /// The change is on every hook: from here on it is completed, whatever happens. Releases the hooks that it does not
    /// use.
    ///
    /// # Errors
    ///
    /// When a pin cannot be moved or removed; the next agent goes on with it.
    pub fn commit(&self) -> Result<(), LoadError> {
        self.step(NEXT, DONE)?;
        self.release_unused()
    }

    fn step(&self, from: &str, to: &str) -> Result<(), LoadError> {
        let from = self.path().join(from);
        fs::rename(&from, self.path().join(to)).map_err(|source| LoadError::MovePin { path: from, source })
    }

    fn release_unused(&self) -> Result<(), LoadError> {
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
                // The filter is the change's own by now.
                remove(&bridge.program(of))?;
            } else {
                bridge.release(self, of)?;
            }
        }
        // As a rule there is none.
        let _ = fs::remove_dir(bridge.folder());
        Ok(())
    }

    /// Moves the pins of a change that is committed into their places.
    ///
    /// # Errors
    ///
    /// When one cannot be moved.
    pub fn complete(&self) -> Result<(), LoadError> {
        let moved = self.path().join(MOVED);
        let mut names: Vec<_> = fs::read_dir(&moved).into_iter().flatten().filter_map(Result::ok).collect();
        // The table's maps come last, in their order.
        names.sort_by_key(|entry| SHARED_MAPS.iter().position(|map| entry.file_name() == *map));
        for entry in names {
            let (from, to) = (entry.path(), self.path().join(entry.file_name()));
            fs::rename(&from, to).map_err(|source| LoadError::MovePin { path: from, source })?;
        }
        // It is not there, as a rule.
        let _ = fs::remove_dir(moved);
        Ok(())
    }

    /// Puts back on every hook what was there before the change that is in progress, and forgets the change.
    ///
    /// # Errors
    ///
    /// When the kernel refuses to: what could not be put back is tried again by the next agent.
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
        // Those that made room for another mode.
        for of in known {
            restore(self, &hooks, of)?;
        }
        self.release_bridges(&next)?;
        self.discard_change()
    }

    /// Removes the pins of a change that is on no hook.
    ///
    /// # Errors
    ///
    /// When a pin cannot be removed.
    pub fn discard_change(&self) -> Result<(), LoadError> {
        for name in [NEXT, DONE, MOVED] {
            let folder = self.path().join(name);
            for entry in fs::read_dir(&folder).into_iter().flatten().filter_map(Result::ok) {
                if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                    let _ = fs::remove_dir(entry.path());
                } else {
                    remove(&entry.path())?;
                }
            }
            // It is not there, as a rule.
            let _ = fs::remove_dir(folder);
        }
        Ok(())
    }

    /// Completes or undoes what an earlier agent began, and takes over what an older version pinned.
    pub(super) fn recover(&self) -> Result<(), LoadError> {
        self.adopt_old()?;
        if self.next().exists() {
            if self.is_of_old_version_and_in_force() {
                self.step(NEXT, DONE)?;
                self.step(DONE, MOVED)?;
            } else {
                self.roll_back()?;
            }
        }
        if self.path().join(DONE).exists() {
            self.release_unused()?;
        }
        self.complete()
    }

    /// Whether a hook runs a program of the change in progress, which an older version of the agent began: it kept no
    /// programs to go back to.
    fn is_of_old_version_and_in_force(&self) -> bool {
        let in_force = self.hooks().programs();
        let pinned = fs::read_dir(self.next()).into_iter().flatten().filter_map(Result::ok);
        let of_old = pinned.filter(|entry| {
            let name = entry.file_name();
            OLD_PROGRAMS.iter().any(|start| name.to_string_lossy().starts_with(start))
        });
        let programs: Vec<_> = of_old.map(|entry| entry.path()).collect();
        let id = |path: &PathBuf| link::program_id(link::open(path).ok()?.as_fd()).ok();
        let is_in_force = programs.iter().filter_map(id).any(|program| in_force.contains(&program));
        if is_in_force {
            // They are of no use in the directory itself.
            for path in programs {
                let _ = link::remove(&path);
            }
        }
        is_in_force
    }
}

/// Puts the program that belongs on a hook back there, if it is not.
fn restore(pins: &PinDirectory, hooks: &HookPins, of: HookOf) -> Result<(), LoadError> {
    let fail = |reason: io::Error| LoadError::Restore { hook: of.to_string(), reason };
    // Older versions pinned no program, so that there is nothing to go back to.
    let Ok(program) = link::open(&hooks.program(of)) else { return Ok(()) };
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
        // The interface is gone, and with it what was to be put back.
        Err(error) if error.raw_os_error() == Some(libc::ENODEV) => hooks.release(pins, of),
        Err(error) => Err(fail(error)),
    }
}
