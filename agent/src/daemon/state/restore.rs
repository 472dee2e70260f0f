//! The state of an earlier agent, on this boot's clocks.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use common::ban::Ban;
use datapath::bans::{BanKey, Held};
use host::Moment;
use host::clock::boot_nanoseconds;

use super::file::{Saved, SavedBan};
use super::journal::{self, Recorded};

const SECOND: u64 = 1_000_000_000;

/// The saved state of an earlier agent.
#[derive(Clone, Debug)]
pub struct Restore {
    /// Whether there was a reboot since. If not, the kernel still has its state.
    pub is_reboot: bool,
    pub saved: Saved,
    /// The changes of bans after it, of this boot or earlier ones.
    changes: Vec<Recorded>,
    /// The present on the clock of the save.
    pub then: u64,
    /// The present on this boot's monotonic clock.
    pub now: u64,
    /// The present.
    pub present: Moment,
}

impl Restore {
    /// The saved state and the journal's changes; `None` if there is neither.
    #[must_use]
    pub fn new(saved: Option<Saved>, changes: Vec<Recorded>, present: Moment) -> Option<Self> {
        let at = saved.as_ref().and_then(|saved| saved.at.clone());
        let at = at.unwrap_or_else(|| present.clone());
        let journaled = saved.as_ref().map_or(0, |saved| saved.journaled);
        let is_after = |change: &Recorded| {
            // An earlier version counted no changes: those after its save are of the same boot.
            change.number > journaled
                || change.number == 0 && journaled == 0 && change.at.boot == at.boot
        };
        let mut changes: Vec<Recorded> = changes.into_iter().filter(is_after).collect();
        for change in changes.iter_mut().filter(|change| change.number == 0) {
            change.at = at.clone();
        }
        if saved.is_none() && changes.is_empty() {
            return None;
        }
        let is_reboot = at.boot != present.boot;
        // If the kernel reports no boot ID, the clock may have restarted.
        if !is_reboot && at.monotonic > present.monotonic {
            return None;
        }
        let then = if is_reboot {
            at.continued(&present)
        } else {
            present.monotonic
        };
        let saved = saved.unwrap_or_default();
        let saved = Saved {
            at: Some(at),
            ..saved
        };
        Some(Self {
            is_reboot,
            saved,
            changes,
            then,
            now: present.monotonic,
            present,
        })
    }

    /// State that was saved on this boot's clock.
    #[must_use]
    pub fn of_this_boot(saved: Saved) -> Self {
        let present = Moment::now();
        Self {
            is_reboot: false,
            saved,
            changes: Vec::new(),
            then: present.monotonic,
            now: present.monotonic,
            present,
        }
    }

    /// The bans on this boot's clocks that have not ended, the changes after the save included; of one prefix, the one
    /// that ends last first.
    #[must_use]
    pub fn bans(&self) -> Vec<SavedBan> {
        self.bans_from(&self.present)
    }

    /// The same bans as an agent that restored them at this moment of this boot has them.
    #[must_use]
    pub fn bans_from(&self, restored: &Moment) -> Vec<SavedBan> {
        let at = self.saved.at.as_ref().unwrap_or(restored);
        let bans = self.saved.bans.iter().filter_map(|ban| {
            Some(SavedBan {
                held: on_clock(&ban.held, at, restored)?,
                ..ban.clone()
            })
        });
        if self.changes.is_empty() {
            return bans.collect();
        }
        let mut bans: BTreeMap<BanKey, SavedBan> = bans.map(|ban| (ban.key.clone(), ban)).collect();
        for Recorded { at, key, held, .. } in &self.changes {
            let before = bans.remove(key);
            let held = held.as_ref().and_then(|held| on_clock(held, at, restored));
            if let Some(held) = held {
                let packets = before.map_or(0, |ban| ban.packets);
                let key = key.clone();
                bans.insert(key.clone(), SavedBan { key, held, packets });
            }
        }
        let mut bans: Vec<SavedBan> = bans.into_values().collect();
        bans.sort_by_key(|ban| (ban.key.prefix, Reverse(ban.held.until)));
        bans
    }

    /// The owners of the bans in the kernel, which an agent may have restored at this moment of this boot.
    #[must_use]
    pub fn owners(&self, restored: Option<&Moment>) -> BTreeMap<BanKey, Held> {
        let bans = self
            .bans_from(restored.unwrap_or(&self.present))
            .into_iter();
        bans.map(|ban| (ban.key, ban.held)).collect()
    }

    /// The bans and counters on this boot's clock, for an agent that has no limits on packets yet.
    #[must_use]
    pub fn parked(&self) -> Saved {
        Saved {
            at: Some(Moment::now()),
            journaled: journal::last(Some(&self.saved), &self.changes),
            bans: self.bans(),
            table: None,
            requests: None,
            // Their times are on the clock of the save.
            escalations: if self.is_reboot {
                Vec::new()
            } else {
                self.saved.escalations.clone()
            },
            ..self.saved.clone()
        }
    }

    /// The state with these bans of this boot's clock instead, which include all changes.
    #[must_use]
    pub fn with_bans(self, bans: Vec<SavedBan>) -> Saved {
        let journaled = journal::last(Some(&self.saved), &self.changes);
        let on_clock_of_save = |mut ban: SavedBan| {
            if ban.held.until != Ban::FOREVER {
                let left = ban.held.until.saturating_sub(self.now);
                ban.held.until = self.then.saturating_add(left);
            }
            ban
        };
        Saved {
            bans: bans.into_iter().map(on_clock_of_save).collect(),
            journaled,
            ..self.saved
        }
    }
}

/// A ban of one moment's clocks on those of another one, later if it is of another boot; `None` if it has ended by then.
fn on_clock(held: &Held, at: &Moment, other: &Moment) -> Option<Held> {
    let is_same = at.boot == other.boot;
    let then = if is_same {
        other.monotonic
    } else {
        at.continued(other)
    };
    let until = match held.until {
        Ban::FOREVER => Ban::FOREVER,
        until if until > then => other.monotonic.saturating_add(until - then),
        _ => return None,
    };
    let began = held.began.filter(|_| is_same);
    Some(Held {
        until,
        began: began.or_else(|| began_by_wall(held.since)),
        ..held.clone()
    })
}

/// The start of a ban, in nanoseconds since boot, by the wall clock; `None` if it is not known or in the future.
fn began_by_wall(since: u64) -> Option<i64> {
    let now = Moment::of_boot("").wall / SECOND;
    let age = now.checked_sub(since).filter(|_| since != 0)?;
    let age = i64::try_from(age.saturating_mul(SECOND)).unwrap_or(i64::MAX);
    Some((boot_nanoseconds() as i64).saturating_sub(age))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::state::{Keeping, StateDirectory};
    use config::PrefixKey;
    use datapath::bans::{By, Owner};

    fn key(name: &str) -> BanKey {
        let prefix = config::policy::Prefix::of_address([192, 0, 2, 1].into());
        BanKey::new(PrefixKey::from(&prefix), Owner::named(By::Operator, name))
    }

    fn held(until: u64) -> Held {
        Held {
            until,
            ..Held::default()
        }
    }

    /// Owners and ends.
    fn ends(bans: &[SavedBan]) -> Vec<(String, u64)> {
        let end = |ban: &SavedBan| {
            let name = ban.key.owner.name.as_ref().unwrap();
            (name.to_string(), ban.held.until)
        };
        bans.iter().map(end).collect()
    }

    /// Starts an agent's state; returns its bans and the moment, and records these changes.
    fn start(
        directory: &StateDirectory,
        restored: Option<&Moment>,
        changes: &[(&str, Option<u64>)],
    ) -> (Vec<(String, u64)>, Moment) {
        let (keeping, restore) = Keeping::open(directory.clone());
        let restore = restore.unwrap();
        let restored = restored.unwrap_or(&restore.present);
        let journal = keeping.journal().unwrap();
        for (name, until) in changes {
            let held = until.map(|left| held(restored.monotonic + left * SECOND));
            journal.record(&key(name), held.as_ref());
        }
        journal.flush().unwrap();
        (ends(&restore.bans_from(restored)), restored.clone())
    }

    #[test]
    fn a_start_that_is_killed_before_its_first_save_loses_no_owner() {
        let folder = tempfile::tempdir().unwrap();
        let directory = StateDirectory::at(folder.path());
        let now = Moment::now();
        // A state that another boot saved 100 s ago.
        let at = Moment {
            boot: "before".to_owned(),
            monotonic: 5_000 * SECOND,
            wall: now.wall - 100 * SECOND,
        };
        let ban = |name: &str, left: u64| SavedBan {
            key: key(name),
            held: held(at.monotonic + left * SECOND),
            packets: 0,
        };
        let saved = Saved {
            bans: vec![ban("recidive", 9_000), ban("sshd", 600), ban("ended", 50)],
            at: Some(at.clone()),
            ..Saved::default()
        };
        saved.write(&directory).unwrap();
        let (first, restored) = start(&directory, None, &[("web", Some(100)), ("recidive", None)]);
        let names =
            |bans: &[(String, u64)]| bans.iter().map(|ban| ban.0.clone()).collect::<Vec<_>>();
        assert_eq!(names(&first), ["recidive", "sshd"]);
        let left = 600 * SECOND - (restored.wall - at.wall);
        assert_eq!(first[1].1, restored.monotonic + left);
        // The next start of the same boot has the ends that the kernel has, and the changes.
        let web = ("web".to_owned(), restored.monotonic + 100 * SECOND);
        let expected = [first[1].clone(), web];
        for _ in 0..2 {
            let (next, _) = start(&directory, Some(&restored), &[]);
            assert_eq!(next, expected);
        }
        // Saved at last, nothing is applied twice.
        let (keeping, restore) = Keeping::open(directory.clone());
        keeping.close(Some(&restore.unwrap().parked()));
        let (_, restore) = Keeping::open(directory);
        let restore = restore.unwrap();
        assert!(restore.changes.is_empty() && !restore.is_reboot);
        assert_eq!(names(&ends(&restore.bans())), ["sshd", "web"]);
    }

    #[test]
    fn changes_of_boots_without_a_save_are_applied_after_the_next_reboot() {
        let change = |number, boot: &str, wall, name: &str, until: Option<u64>| Recorded {
            number,
            at: Moment {
                boot: boot.to_owned(),
                monotonic: 0,
                wall,
            },
            key: key(name),
            held: until.map(held),
        };
        let at = change(0, "a", 1_000, "", None).at;
        let saved = Saved {
            at: Some(at),
            journaled: 4,
            ..Saved::default()
        };
        let changes = vec![
            change(4, "a", 900, "saved", Some(9_000)),
            change(5, "a", 1_000, "first", Some(500)),
            change(6, "b", 1_200, "second", Some(900)),
            change(7, "b", 1_250, "first", None),
            change(8, "b", 1_250, "ended", Some(50)),
        ];
        let present = Moment {
            boot: "c".to_owned(),
            monotonic: 10,
            wall: 1_500,
        };
        let restore = Restore::new(Some(saved), changes.clone(), present.clone()).unwrap();
        assert_eq!(ends(&restore.bans()), [("second".to_owned(), 10 + 600)]);
        // Without a state file all count.
        let restore = Restore::new(None, changes, present.clone()).unwrap();
        let expected = [("saved".to_owned(), 10 + 8_400), ("second".to_owned(), 610)];
        assert_eq!(ends(&restore.bans()), expected);
        assert!(Restore::new(None, Vec::new(), present).is_none());
    }

    #[test]
    fn a_start_by_the_wall_clock_is_an_age_before_the_present() {
        let hour = 3_600 * SECOND as i64;
        let before = boot_nanoseconds() as i64;
        let began = began_by_wall(Moment::of_boot("").wall / SECOND - 3_600).unwrap();
        let after = boot_nanoseconds() as i64;
        // Both readings of the wall clock are rounded to a second.
        let earliest = before - hour - (after - before) - SECOND as i64;
        assert!((earliest..=after - hour).contains(&began));
        assert_eq!((began_by_wall(0), began_by_wall(u64::MAX)), (None, None));
    }
}
