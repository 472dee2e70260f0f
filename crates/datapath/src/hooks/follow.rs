//! Follows changes of the host while a policy is in effect: interfaces that appear, change or are removed, and programs
//! that others detach.

use std::time::{Duration, Instant};

use api::interface::AttachMode;
use config::policy::Attach;
use host::PROGRAM;

use crate::datapath::Datapath;
use crate::devices::device::Interface;
use crate::devices::features;
use crate::hooks::attached::{Attached, Turn};
use crate::hooks::trouble::Trouble;

/// A program that is detached for this long is attached again. `weir detach` removes the pins sooner, so it is
/// distinguishable from other programs.
const LOST: Duration = Duration::from_millis(300);
const RELEASED: &str = "the interface was removed, or [agent] interfaces no longer names it";

impl Datapath {
    /// The attachment on an interface, if the kernel reports its program there with the limits of its present name.
    #[must_use]
    pub fn in_effect_on(&self, device: &Interface) -> Option<&Attached> {
        // A program that is still attached may parse its frames wrongly.
        if self.trouble_on(device.index).is_some() {
            return None;
        }
        let attached = self
            .attached
            .iter()
            .find(|attached| attached.index == device.index)?;
        // Until a rename is followed, the limits of the previous name apply.
        let is_named = attached.interface == device.name || !self.image().interfaces.are_in_use();
        (is_named && attached.is_in_effect(&self.pins)).then_some(attached)
    }

    /// Why an interface could not be attached.
    #[must_use]
    pub fn trouble_on(&self, index: u32) -> Option<&Trouble> {
        self.troubles
            .iter()
            .find(|trouble| trouble.device.index == index)
    }

    /// The indices of the interfaces that could not be attached, or whose programs others have taken off.
    pub fn lacking(&self) -> impl Iterator<Item = u32> + '_ {
        let is_lost = |attached: &&Attached| !attached.is_in_effect(&self.pins);
        let lost = self.attached.iter().filter(is_lost);
        let troubles = self.troubles.iter().map(|trouble| trouble.device.index);
        troubles.chain(lost.map(|attached| attached.index))
    }

    /// Whether [`Datapath::follow`] is due although no interface has changed.
    #[must_use]
    pub fn needs_a_look(&self) -> bool {
        self.troubles.iter().any(Trouble::is_old)
            || self.attached.iter().any(|attached| {
                // A program that `weir detach` removed is not attached again.
                let is_noted = attached.lost.is_some() && !self.pins.is_pinned(attached.of);
                !is_noted && (attached.lost.is_some() || !attached.is_in_effect(&self.pins))
            })
    }

    /// The interfaces that were attached and released when this policy replaced another one.
    #[must_use]
    pub fn turns_since(&self, before: &Self) -> Vec<Turn> {
        // A rename changes nothing.
        let is_among = |all: &[Attached], one: &Attached| {
            all.iter()
                .any(|other| other.index == one.index && other.lost.is_none())
        };
        let appeared = self
            .attached
            .iter()
            .filter(|now| !is_among(&before.attached, now))
            .map(taken);
        let gone = before
            .attached
            .iter()
            .filter(|then| then.lost.is_none() && !is_among(&self.attached, then))
            .filter(|then| self.trouble_on(then.index).is_none())
            .map(|then| turn(&then.interface, false, RELEASED.to_owned()));
        let refused = self
            .troubles
            .iter()
            .filter(|trouble| before.trouble_on(trouble.device.index).is_none())
            .map(Trouble::turn);
        gone.chain(appeared).chain(refused).collect()
    }

    /// The interfaces that a change did not attach because of their own state.
    pub fn refusals(&self) -> impl Iterator<Item = Turn> {
        self.troubles.iter().map(Trouble::turn)
    }

    /// Attaches to each wanted interface that is not attached, then releases all others. In this order, because a
    /// released interface may have charged packets that another one charges from now on; so they stay while one of the wanted
    /// cannot be attached for the moment.
    pub fn follow(&mut self, wanted: &[Interface], attach: Attach) -> Vec<Turn> {
        let mut turns = Vec::new();
        self.troubles.retain(|trouble| {
            wanted
                .iter()
                .any(|device| device.index == trouble.device.index)
        });
        let began = Instant::now();
        for device in wanted {
            turns.extend(self.follow_one(device, attach));
        }
        let is_complete = !self.troubles.iter().any(Trouble::is_temporary);
        let (kept, gone): (Vec<_>, Vec<_>) = std::mem::take(&mut self.attached)
            .into_iter()
            .partition(|attached| {
                let is_wanted = wanted.iter().any(|device| device.index == attached.index);
                is_wanted || !is_complete && attached.is_in_effect(&self.pins)
            });
        self.attached = kept;
        let is_freed = !gone.is_empty();
        for attached in gone {
            let released = self
                .pins
                .hooks()
                .release(&self.pins, attached.of)
                .map_err(|error| error.to_string());
            let result = released.and_then(|()| {
                self.forget_interface(attached.index)
                    .map_err(|error| error.to_string())
            });
            let why = result.map_or_else(|error| error, |()| RELEASED.to_owned());
            turns.push(turn(&attached.interface, false, why));
        }
        // The kernel rejects XDP below an interface with a program, and on a bond whose member has one.
        let is_refused = |device: &&Interface| {
            self.trouble_on(device.index)
                .is_some_and(|it| it.tried >= Some(began))
        };
        let refused: Vec<&Interface> = wanted
            .iter()
            .filter(|_| is_freed)
            .filter(is_refused)
            .collect();
        for device in refused {
            for trouble in &mut self.troubles {
                if trouble.device.index == device.index {
                    trouble.tried = None;
                }
            }
            if let Some(attached) = self.follow_one(device, attach) {
                turns.retain(|turn| turn.interface != device.name);
                turns.push(attached);
            }
        }
        turns
    }

    fn follow_one(&mut self, device: &Interface, attach: Attach) -> Option<Turn> {
        let place = self
            .attached
            .iter()
            .position(|attached| attached.index == device.index);
        // Members join and leave a bond without a change of the bond's own state.
        if place.is_some_and(|place| {
            !device.device.names().eq(&self.attached[place].names) || device.is_bond
        }) && let Err(error) = self.number_interface(device)
        {
            return Some(turn(
                &device.name,
                false,
                format!("applying the limits of its new name failed: {error}"),
            ));
        }
        if let Some(attached) = place.and_then(|place| self.attached.get_mut(place)) {
            attached.interface.clone_from(&device.name);
            attached.names = device.device.names().map(str::to_owned).collect();
            let is_as_before = device.link.as_ref() == Ok(&attached.frames);
            if is_as_before && attached.is_in_effect(&self.pins) {
                let was_lost = attached.lost.take().is_some();
                return was_lost.then(|| {
                    turn(
                        &device.name,
                        true,
                        "its program is attached again".to_owned(),
                    )
                });
            }
            match attached.lost {
                _ if !is_as_before => {}
                None => {
                    attached.lost = Some(Instant::now());
                    return Some(turn(
                        &device.name,
                        false,
                        "its program was detached by another program".to_owned(),
                    ));
                }
                Some(since) if since.elapsed() < LOST || !self.pins.is_pinned(attached.of) => {
                    return None;
                }
                Some(_) => {}
            }
        } else if !self.pins.is_in_use() {
            return None;
        }
        if self
            .trouble_on(device.index)
            .is_some_and(|trouble| !trouble.is_due(device))
        {
            return None;
        }
        let before = place
            .and_then(|place| self.attached.get(place))
            .map(|attached| attached.of);
        let was_in_trouble = self.trouble_on(device.index).is_some();
        self.troubles
            .retain(|trouble| trouble.device.index != device.index);
        match self.attach_at(device, attach, &self.pins.hooks()) {
            Ok(()) => {
                let now = self
                    .attached
                    .iter()
                    .find(|attached| attached.index == device.index)?;
                if let Some(before) = before.filter(|before| *before != now.of) {
                    // The next agent finds a pin that stays.
                    let _ = self.pins.hooks().release(&self.pins, before);
                }
                Some(taken(now))
            }
            Err(error) => {
                // A program for the previous frame type would refuse these frames as malformed.
                let is_of_another_type =
                    |attached: &Attached| device.link.as_ref() != Ok(&attached.frames);
                if let Some(place) =
                    place.filter(|place| self.attached.get(*place).is_some_and(is_of_another_type))
                {
                    let attached = self.attached.remove(place);
                    let _ = self.pins.hooks().release(&self.pins, attached.of);
                }
                let trouble = Trouble::new(device, &error, Some(Instant::now()));
                let refused = trouble.turn();
                self.troubles.push(trouble);
                (!was_in_trouble).then_some(refused)
            }
        }
    }

    /// Notes about its interfaces, for the operator.
    #[must_use]
    pub fn interface_notes(&self) -> Vec<String> {
        let lost = |attached: &&Attached| attached.lost.is_some();
        let lost = self.attached.iter().filter(lost).map(|attached| {
            let name = &attached.interface;
            if self.pins.is_pinned(attached.of) {
                format!(
                    "no limits are in effect on {name}: another program detached Weir's; it is being attached again"
                )
            } else {
                format!("no limits are in effect on {name}: {PROGRAM} detach removed them; {PROGRAM} reload attaches it again")
            }
        });
        let notes = self
            .attached
            .iter()
            .filter_map(|attached| attached.note().map(str::to_owned));
        let troubles = self
            .troubles
            .iter()
            .map(|trouble| format!("no limits are in effect: {}", trouble.reason));
        let ahead = self.attached.iter().filter_map(Attached::ahead_note);
        notes
            .chain(ahead)
            .chain(lost)
            .chain(troubles)
            .chain(self.reply_notes())
            .collect()
    }

    /// Notes about interfaces whose replies are lost: as the kernel reports in advance, or as the driver counts.
    fn reply_notes(&self) -> Vec<String> {
        let replies = |attached: &&Attached| self.replies() && attached.mode == AttachMode::Native;
        self.attached
            .iter()
            .filter(replies)
            .filter_map(|attached| {
                if features::loses_replies(attached.index) {
                    Some(features::LostReplies(&attached.interface).to_string())
                } else {
                    attached.unsent_note()
                }
            })
            .collect()
    }
}

fn taken(attached: &Attached) -> Turn {
    let reason = format!("limits are in effect ({})", attached.mode);
    turn(&attached.interface, true, reason)
}

fn turn(interface: &str, is_attached: bool, reason: String) -> Turn {
    Turn {
        interface: interface.to_owned(),
        is_attached,
        reason,
    }
}
