//! Detects the start and end of attacks by a limit's refusals.

use std::collections::HashMap;
use std::time::{Duration, Instant};

/// The refused packets per second at which an attack starts.
pub const BEGINS_AT: u64 = 100;
/// The refused packets per second below which it ends.
const ENDS_BELOW: u64 = 10;
/// How long refusals must be that many before an attack starts.
const BEGINS_AFTER: Duration = Duration::from_secs(2);
/// How long they must be that few before it ends.
const ENDS_AFTER: Duration = Duration::from_secs(10);
/// The shortest span over which a rate is measured.
const SHORTEST: Duration = Duration::from_millis(500);
/// The most limits that are observed at a time.
const MOST: usize = 64;

/// A change of a limit's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// An attack has started, with this many refused packets per second.
    Began(u64),
    /// It has ended.
    Ended {
        /// The duration of the attack.
        lasted: Duration,
        /// Refused packets during the attack.
        refused: u64,
    },
}

/// The limits that refuse packets at present.
#[derive(Debug, Default)]
pub struct Attacks(HashMap<String, Refusals>);

#[derive(Debug)]
struct Refusals {
    /// The last value of the counter and its instant.
    last: (u64, Instant),
    /// Since when refusals are many or, during an attack, few.
    since: Option<Instant>,
    /// The start of the attack, and its refusals so far.
    attack: Option<(Instant, u64)>,
}

impl Attacks {
    /// Starts to observe a limit that has refused a packet.
    pub fn follow(&mut self, limit: &str, refused: u64, now: Instant) {
        if self.0.len() < MOST && !self.0.contains_key(limit) {
            self.0.insert(limit.to_owned(), Refusals { last: (refused, now), since: None, attack: None });
        }
    }

    /// Whether a limit is observed.
    #[must_use]
    pub fn follows(&self, limit: &str) -> bool {
        self.0.contains_key(limit)
    }

    /// The observed limits.
    #[must_use]
    pub fn limits(&self) -> Vec<String> {
        self.0.keys().cloned().collect()
    }

    /// Processes the counter of an observed limit: packets refused so far; `None` if the limit no longer exists.
    pub fn look(&mut self, limit: &str, refused: Option<u64>, now: Instant) -> Option<Turn> {
        let refusals = self.0.get_mut(limit)?;
        if refused.is_some() && now.saturating_duration_since(refusals.last.1) < SHORTEST {
            return None;
        }
        let turn = refusals.look(refused.unwrap_or(0), now);
        let is_quiet = refusals.attack.is_none() && refusals.since.is_none();
        if refused.is_none() || is_quiet {
            self.0.remove(limit);
        }
        turn
    }
}

impl Refusals {
    fn look(&mut self, refused: u64, now: Instant) -> Option<Turn> {
        let (before, then) = self.last;
        let time = now.saturating_duration_since(then);
        // A counter restarts with another policy.
        let more = refused.saturating_sub(before);
        let rate = (more as f64 / time.as_secs_f64()) as u64;
        self.last = (refused, now);
        let lasts = |since: &mut Option<Instant>, is_so: bool, time: Duration| {
            *since = if is_so { since.or(Some(then)) } else { None };
            since.is_some_and(|since| now.saturating_duration_since(since) >= time)
        };
        match &mut self.attack {
            None => {
                let begins = lasts(&mut self.since, rate >= BEGINS_AT, BEGINS_AFTER);
                begins.then(|| {
                    let began = self.since.take().unwrap_or(now);
                    self.attack = Some((began, more));
                    Turn::Began(rate)
                })
            }
            Some((began, sum)) => {
                *sum += more;
                let (began, refused) = (*began, *sum);
                lasts(&mut self.since, rate < ENDS_BELOW, ENDS_AFTER).then(|| {
                    let ended = self.since.take().unwrap_or(now);
                    self.attack = None;
                    Turn::Ended { lasted: ended.saturating_duration_since(began), refused }
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The changes of a limit with these refused packets per second.
    fn turns(rates: &[u64]) -> Vec<(usize, Turn)> {
        let (mut attacks, start, mut refused) = (Attacks::default(), Instant::now(), 0);
        let mut turns = Vec::new();
        for (second, rate) in rates.iter().enumerate() {
            let now = start + Duration::from_secs(second as u64);
            if *rate > 0 {
                attacks.follow("web", refused, now);
            }
            refused += rate;
            turns.extend(attacks.look("web", Some(refused), now + Duration::from_secs(1)).map(|turn| (second, turn)));
        }
        turns
    }

    #[test]
    fn an_attack_begins_when_refusals_stay_many_and_ends_when_they_stay_few() {
        let mut rates = vec![0, 50, 100, 200, 200];
        rates.extend([0; 9]);
        rates.push(20);
        rates.extend([0; 12]);
        let found = turns(&rates);
        assert_eq!(found[0], (3, Turn::Began(200)));
        assert_eq!(found[1], (24, Turn::Ended { lasted: Duration::from_secs(13), refused: 420 }));
        assert_eq!(found.len(), 2, "{found:?}");
    }

    #[test]
    fn a_moment_of_many_refusals_is_no_attack() {
        assert_eq!(turns(&[0, 5_000, 0, 99, 99, 99, 99, 0, 5_000, 0]), []);
    }

    #[test]
    fn a_counter_that_starts_over_or_vanishes_ends_nothing_early() {
        let (mut attacks, start) = (Attacks::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        attacks.follow("web", 0, at(0));
        attacks.look("web", Some(1_000), at(1));
        assert_eq!(attacks.look("web", Some(2_000), at(2)), Some(Turn::Began(1_000)));
        assert_eq!(attacks.look("web", Some(0), at(3)), None);
        assert_eq!(attacks.look("web", None, at(4)), None);
        assert!(attacks.limits().is_empty());
    }
}
