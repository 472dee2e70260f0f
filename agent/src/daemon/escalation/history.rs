//! Past bans by limits, which make the next ban longer.

use std::collections::{HashMap, HashSet};
use std::net::Ipv6Addr;
use std::sync::Arc;

use config::policy::{Escalate, Multiplier};
use datapath::compile::PrefixKey;
use serde::{Deserialize, Serialize};

use super::prune::keep_half;

/// The most remembered bans; beyond it, those with the earliest end of memory are dropped. Some 6 MB.
const MOST: usize = 65_536;

/// The last ban of each source by each limit.
#[derive(Clone, Debug, Default)]
pub struct History(HashMap<(Arc<str>, PrefixKey), Last>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Last {
    /// Its duration in nanoseconds.
    time: u64,
    /// Its end on the monotonic clock.
    until: u64,
    /// When the source starts over with the first duration.
    forgotten: u64,
}

/// A ban in the state file, on the saved monotonic clock.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedEscalation {
    limit: String,
    address: Ipv6Addr,
    length: u32,
    time: u64,
    until: u64,
    forgotten: u64,
}

impl History {
    /// The duration in nanoseconds of the ban that is due at an instant.
    #[must_use]
    pub fn time(&self, limit: &Arc<str>, prefix: &PrefixKey, escalate: &Escalate, now: u64) -> u64 {
        let last = self
            .0
            .get(&(Arc::clone(limit), *prefix))
            .filter(|last| now < last.forgotten);
        match last {
            // Refusals during a ban renew it, and do not lengthen it.
            Some(last) if now < last.until => last.time.clamp(escalate.ban, escalate.max),
            last => escalate.time_after(last.map(|last| last.time)),
        }
    }

    /// Whether the last ban has not ended.
    #[must_use]
    pub fn is_banned(&self, limit: &Arc<str>, prefix: &PrefixKey, now: u64) -> bool {
        self.0
            .get(&(Arc::clone(limit), *prefix))
            .is_some_and(|last| now < last.until)
    }

    /// Remembers a ban.
    pub fn record(
        &mut self,
        limit: &Arc<str>,
        prefix: &PrefixKey,
        escalate: &Escalate,
        (now, time): (u64, u64),
    ) {
        if self.0.len() >= MOST {
            self.0.retain(|_, last| now < last.forgotten);
        }
        if self.0.len() >= MOST {
            keep_half(&mut self.0, |last| last.forgotten);
        }
        let until = now.saturating_add(time);
        let remembered = if escalate.grow == Multiplier::ONE {
            0
        } else {
            escalate.max
        };
        let last = Last {
            time,
            until,
            forgotten: until.saturating_add(remembered),
        };
        self.0.insert((Arc::clone(limit), *prefix), last);
    }

    /// Removes sources, so that they start over.
    pub fn forget(&mut self, prefixes: &HashSet<PrefixKey>) {
        self.0.retain(|(_, prefix), _| !prefixes.contains(prefix));
    }

    /// The state for the next agent.
    #[must_use]
    pub fn save(&self, now: u64) -> Vec<SavedEscalation> {
        let remembered = self.0.iter().filter(|(_, last)| now < last.forgotten);
        let save = |((limit, prefix), last): (&(Arc<str>, PrefixKey), &Last)| SavedEscalation {
            limit: limit.to_string(),
            address: prefix.address.into(),
            length: prefix.length,
            time: last.time,
            until: last.until,
            forgotten: last.forgotten,
        };
        remembered.map(save).collect()
    }

    /// Restores saved bans; the instant `then` of the saved clock is `now`. Bans of this run take precedence.
    pub fn restore(&mut self, saved: &[SavedEscalation], (then, now): (u64, u64)) {
        let at = |instant: u64| match instant.checked_sub(then) {
            Some(ahead) => now.saturating_add(ahead),
            None => now.saturating_sub(then - instant),
        };
        for one in saved
            .iter()
            .take(MOST)
            .filter(|one| at(one.forgotten) > now)
        {
            let prefix = PrefixKey {
                address: one.address.octets(),
                length: one.length,
            };
            let last = Last {
                time: one.time,
                until: at(one.until),
                forgotten: at(one.forgotten),
            };
            self.0
                .entry((one.limit.as_str().into(), prefix))
                .or_insert(last);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    fn escalate() -> Escalate {
        let grow = Multiplier::new(2.0).unwrap();
        Escalate {
            after: 1,
            within: SECOND,
            ban: 10 * SECOND,
            grow,
            max: 50 * SECOND,
        }
    }

    fn prefix(number: u32) -> PrefixKey {
        let mut address = [0; 16];
        address[12..].copy_from_slice(&number.to_be_bytes());
        PrefixKey {
            address,
            length: 128,
        }
    }

    /// Bans one source and returns the duration in seconds.
    fn ban(history: &mut History, number: u32, now: u64) -> u64 {
        let (limit, escalate) = ("web".into(), escalate());
        let time = history.time(&limit, &prefix(number), &escalate, now * SECOND);
        history.record(&limit, &prefix(number), &escalate, (now * SECOND, time));
        time / SECOND
    }

    #[test]
    fn each_further_ban_is_longer_until_the_source_keeps_quiet() {
        let mut history = History::default();
        assert_eq!(
            [0, 10, 30, 70].map(|now| ban(&mut history, 1, now)),
            [10, 20, 40, 50]
        );
        // Another source or limit starts with the first duration.
        assert_eq!(ban(&mut history, 2, 71), 10);
        assert_eq!(
            history.time(&"dns".into(), &prefix(1), &escalate(), 71 * SECOND),
            10 * SECOND
        );
        // The last one ended at 120 and is remembered for 50 s.
        assert_eq!(
            history.time(&"web".into(), &prefix(1), &escalate(), 169 * SECOND),
            50 * SECOND
        );
        assert_eq!(
            history.time(&"web".into(), &prefix(1), &escalate(), 170 * SECOND),
            10 * SECOND
        );
    }

    #[test]
    fn refusals_during_a_ban_make_the_next_no_longer() {
        let mut history = History::default();
        assert_eq!([0, 5, 9].map(|now| ban(&mut history, 1, now)), [10, 10, 10]);
        assert_eq!(ban(&mut history, 1, 19), 20);
        history.forget(&HashSet::from([prefix(1)]));
        assert_eq!(ban(&mut history, 1, 20), 10);
    }

    #[test]
    fn a_history_goes_on_after_a_restart_and_a_reboot() {
        let mut history = History::default();
        assert_eq!(ban(&mut history, 1, 100), 10);
        assert_eq!(ban(&mut history, 1, 110), 20);
        let saved = history.save(115 * SECOND);
        let text = serde_json::to_string(&saved).unwrap();
        let saved: Vec<SavedEscalation> = serde_json::from_str(&text).unwrap();
        // The same boot, and another one whose clock restarted, 20 s later.
        for (then, now) in [(130, 130), (135, 3)] {
            let mut next = History::default();
            next.restore(&saved, (then * SECOND, now * SECOND));
            assert_eq!(ban(&mut next, 1, now), 40, "{then} {now}");
            assert_eq!(ban(&mut next, 2, now), 10);
        }
        let mut late = History::default();
        late.restore(&saved, (180 * SECOND, 5 * SECOND));
        assert_eq!(ban(&mut late, 1, 5), 10);
    }

    #[test]
    fn a_history_is_bounded_and_drops_what_is_forgotten_first() {
        let mut history = History::default();
        for number in 0..MOST as u32 + 10 {
            ban(&mut history, number, 100 + u64::from(number) / 10_000);
        }
        assert!(history.0.len() <= MOST, "{}", history.0.len());
        assert_eq!(ban(&mut history, MOST as u32 + 9, 130), 20);
        assert_eq!(ban(&mut history, 0, 130), 10);
    }
}
