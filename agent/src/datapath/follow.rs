//! A policy in effect follows the host: interfaces appear, are renamed, change and go, and others take programs off.

use std::time::{Duration, Instant};

use super::Datapath;
use super::device::Interface;
use super::error::AttachError;
use super::interface::Attached;
use crate::config::policy::Attach;

/// A program that is off its hook for this long is attached again. `agent detach` takes less to remove the pins, which
/// tell that it was meant.
const LOST: Duration = Duration::from_millis(300);
/// How soon an interface that could not be attached is tried again if nothing about it changes.
const RETRY: Duration = Duration::from_secs(5);

/// What has changed about an interface.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Its name, or the pattern.
    pub interface: String,
    /// Whether it is attached now.
    pub is_attached: bool,
    /// Why.
    pub reason: String,
}

/// An interface that cannot be attached as it is.
#[derive(Debug)]
pub struct Trouble {
    device: Interface,
    reason: String,
    is_down: bool,
    tried: Instant,
}

impl Trouble {
    /// What an operator should know of it.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Whether it is for the interface to be set up.
    #[must_use]
    pub const fn is_down(&self) -> bool {
        self.is_down
    }

    /// Whether it is worth another attempt, as the interface is now.
    fn is_due(&self, now: &Interface) -> bool {
        let (before, now) = ((self.device.is_up, &self.device.link), (now.is_up, &now.link));
        before != now || self.tried.elapsed() >= RETRY
    }
}

impl Datapath {
    /// The hook that is held on an interface, if its program is there as the kernel says now.
    #[must_use]
    pub fn in_force_on(&self, index: u32) -> Option<&Attached> {
        self.attached.iter().find(|attached| attached.index == index && attached.is_in_force(&self.pins))
    }

    /// What stands in the way on an interface.
    #[must_use]
    pub fn trouble_on(&self, index: u32) -> Option<&Trouble> {
        self.troubles.iter().find(|trouble| trouble.device.index == index)
    }

    /// Whether [`Datapath::follow`] has something to do although no interface has changed.
    #[must_use]
    pub fn needs_a_look(&self) -> bool {
        self.troubles.iter().any(|trouble| trouble.tried.elapsed() >= RETRY)
            || self.attached.iter().any(|attached| {
                // One that `agent detach` has taken off stays off.
                let is_noted = attached.lost.is_some() && !self.pins.is_held(attached.of);
                !is_noted && (attached.lost.is_some() || !attached.is_in_force(&self.pins))
            })
    }

    /// Attaches to each wanted interface that is not attached, and releases all others.
    pub fn follow(&mut self, wanted: &[Interface], attach: Attach) -> Vec<Turn> {
        let mut turns = Vec::new();
        self.troubles.retain(|trouble| wanted.iter().any(|device| device.index == trouble.device.index));
        let (kept, gone): (Vec<_>, Vec<_>) = std::mem::take(&mut self.attached)
            .into_iter()
            .partition(|attached| wanted.iter().any(|device| device.index == attached.index));
        self.attached = kept;
        for attached in gone {
            let result = self.pins.hooks().release(&self.pins, attached.of);
            let why = result.map_or_else(
                |error| error.to_string(),
                |()| "the interface is gone, or its name is none of the config's now".to_owned(),
            );
            turns.push(turn(&attached.interface, false, why));
        }
        for device in wanted {
            turns.extend(self.follow_one(device, attach));
        }
        turns
    }

    fn follow_one(&mut self, device: &Interface, attach: Attach) -> Option<Turn> {
        let place = self.attached.iter().position(|attached| attached.index == device.index);
        if let Some(attached) = place.and_then(|place| self.attached.get_mut(place)) {
            attached.interface.clone_from(&device.name);
            let is_as_before = device.link.as_ref() == Ok(&attached.frames);
            if is_as_before && attached.is_in_force(&self.pins) {
                let was_lost = attached.lost.take().is_some();
                return was_lost.then(|| turn(&device.name, true, "its program is back".to_owned()));
            }
            match attached.lost {
                _ if !is_as_before => {}
                None => {
                    attached.lost = Some(Instant::now());
                    return Some(turn(&device.name, false, "its program was taken off by somebody else".to_owned()));
                }
                Some(since) if since.elapsed() < LOST || !self.pins.is_held(attached.of) => return None,
                Some(_) => {}
            }
        } else if !self.pins.is_in_use() {
            return None;
        }
        if self.trouble_on(device.index).is_some_and(|trouble| !trouble.is_due(device)) {
            return None;
        }
        let before = place.and_then(|place| self.attached.get(place)).map(|attached| attached.of);
        let was_in_trouble = self.trouble_on(device.index).is_some();
        self.troubles.retain(|trouble| trouble.device.index != device.index);
        match self.attach_at(device, attach, &self.pins.hooks()) {
            Ok(()) => {
                let now = self.attached.iter().find(|attached| attached.index == device.index)?;
                if let Some(before) = before.filter(|before| *before != now.of) {
                    // A pin that stays is found by the next agent.
                    let _ = self.pins.hooks().release(&self.pins, before);
                }
                Some(turn(&device.name, true, format!("limits are in effect ({})", now.mode)))
            }
            Err(error) => {
                let is_down = matches!(error, AttachError::Down { .. });
                let reason = error.to_string();
                let (device, tried) = (device.clone(), Instant::now());
                let told = turn(&device.name, false, reason.clone());
                self.troubles.push(Trouble { device, reason, is_down, tried });
                (!was_in_trouble).then_some(told)
            }
        }
    }

    /// What should be known of its interfaces.
    #[must_use]
    pub fn interface_notes(&self) -> Vec<String> {
        let lost = |attached: &&Attached| attached.lost.is_some();
        let lost = self.attached.iter().filter(lost).map(|attached| {
            let name = &attached.interface;
            if self.pins.is_held(attached.of) {
                format!("{name} has no limits: its program was taken off by somebody else; it is being attached again")
            } else {
                format!("{name} has no limits: agent detach took them off; agent reload attaches it again")
            }
        });
        let notes = self.attached.iter().filter_map(|attached| attached.note().map(str::to_owned));
        let troubles = self.troubles.iter().map(|trouble| format!("no limits are in effect: {}", trouble.reason));
        notes.chain(lost).chain(troubles).collect()
    }
}

fn turn(interface: &str, is_attached: bool, reason: String) -> Turn {
    Turn { interface: interface.to_owned(), is_attached, reason }
}
