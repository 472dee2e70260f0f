//! Detects the start and end of attacks by a limit's refusals.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use api::attack::{Attack, AttackSource};

use crate::daemon::packets::Evaluated;

/// The refused packets per second from which an attack starts.
pub const BEGINS_AT: u64 = 100;
/// The share of a limit's packets that it refuses, from which an attack starts.
pub const BEGINS_AT_SHARE: f64 = 0.1;
/// The refused packets per second below which it ends.
const ENDS_BELOW: u64 = 10;
/// The share below which it ends.
const ENDS_BELOW_SHARE: f64 = 0.05;
/// How long refusals must be that many before an attack starts.
const BEGINS_AFTER: Duration = Duration::from_secs(2);
/// How long they must be that few before it ends.
const ENDS_AFTER: Duration = Duration::from_secs(10);
/// The shortest span over which a rate is measured.
const SHORTEST: Duration = Duration::from_millis(500);
/// The most limits that are observed at a time.
const MOST: usize = 64;
/// The sources that an attack reports.
const REPORTED: usize = 10;
/// The most sources that are remembered of a limit; beyond them the half with fewer refusals is forgotten.
const MOST_SOURCES: usize = 512;

/// A change of a limit's state.
#[derive(Clone, Debug, PartialEq)]
pub enum Turn {
    Began(Attack),
    Ended(Attack),
}

/// The attacks that last now, for other threads.
#[derive(Debug, Default)]
pub struct CurrentAttacks(Mutex<(Vec<Attack>, u64)>);

impl CurrentAttacks {
    /// The attacks that last now, and the number of attacks that have started.
    #[must_use]
    pub fn get(&self) -> (Vec<Attack>, u64) {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, (Vec<Attack>, u64)> {
        // It is replaced as a whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The limits that refuse packets at present.
#[derive(Debug, Default)]
pub struct Attacks {
    limits: HashMap<String, Refusals>,
    current: Arc<CurrentAttacks>,
}

#[derive(Debug)]
struct Refusals {
    /// The last values of the counters and their instant.
    last: (Evaluated, Instant),
    /// Since when refusals are many or, during an attack, few.
    since: Option<Instant>,
    attack: Option<Ongoing>,
    /// Refused and evaluated packets since refusals rose, until they are an attack.
    rising: Evaluated,
    rising_peak: u64,
    sources: Sources,
}

/// An attack that lasts.
#[derive(Debug)]
struct Ongoing {
    began: Instant,
    sum: Evaluated,
    rate: u64,
    peak: u64,
}

impl Attacks {
    /// The attacks that last now, for other threads.
    #[must_use]
    pub fn current(&self) -> Arc<CurrentAttacks> {
        Arc::clone(&self.current)
    }

    /// Starts to observe a limit that has refused a packet.
    pub fn follow(&mut self, limit: &str, evaluated: Evaluated, now: Instant) {
        if self.limits.len() < MOST && !self.limits.contains_key(limit) {
            let refusals = Refusals {
                last: (evaluated, now),
                since: None,
                attack: None,
                rising: Evaluated::default(),
                rising_peak: 0,
                sources: Sources::default(),
            };
            self.limits.insert(limit.to_owned(), refusals);
        }
    }

    /// Whether a limit is observed.
    #[must_use]
    pub fn follows(&self, limit: &str) -> bool {
        self.limits.contains_key(limit)
    }

    /// The observed limits.
    #[must_use]
    pub fn limits(&self) -> Vec<String> {
        self.limits.keys().cloned().collect()
    }

    /// Records that an observed limit refuses a source, and how many of its packets it has refused so far.
    pub fn refused(&mut self, limit: &str, source: &str, count: u64) {
        if let Some(refusals) = self.limits.get_mut(limit) {
            refusals.sources.add(source, count);
        }
    }

    /// Processes the counters of an observed limit; `None` if the limit no longer exists. `time` is `now` in seconds
    /// since 1970.
    pub fn look(
        &mut self,
        limit: &str,
        evaluated: Option<Evaluated>,
        now: Instant,
        time: f64,
    ) -> Option<Turn> {
        let refusals = self.limits.get_mut(limit)?;
        if evaluated.is_some() && now.saturating_duration_since(refusals.last.1) < SHORTEST {
            return None;
        }
        let turn = refusals.look(limit, evaluated.unwrap_or_default(), now, time);
        let is_quiet = refusals.attack.is_none() && refusals.since.is_none();
        // A limit that no longer exists cannot be attacked.
        let ended = match (evaluated, &turn) {
            (None, None) => refusals.attack.as_ref().map(|attack| {
                Turn::Ended(Attack {
                    ended: Some(time),
                    ..refusals.describe(limit, attack, now, time)
                })
            }),
            _ => None,
        };
        if evaluated.is_none() || is_quiet {
            self.limits.remove(limit);
        }
        turn.or(ended)
    }

    /// Publishes the attacks that last now, and counts those that began.
    pub fn publish(&self, began: u64, now: Instant, time: f64) {
        let lasting = self
            .limits
            .iter()
            .filter_map(|(limit, refusals)| Some((limit, refusals, refusals.attack.as_ref()?)));
        let mut attacks: Vec<Attack> = lasting
            .map(|(limit, refusals, attack)| refusals.describe(limit, attack, now, time))
            .collect();
        attacks.sort_by(|a, b| a.started.total_cmp(&b.started));
        let mut current = self.current.lock();
        (current.0, current.1) = (attacks, current.1 + began);
    }
}

impl Refusals {
    fn look(&mut self, limit: &str, evaluated: Evaluated, now: Instant, time: f64) -> Option<Turn> {
        let (before, then) = self.last;
        let seconds = now.saturating_duration_since(then).as_secs_f64();
        // Counters restart with another policy.
        let more = Evaluated {
            all: evaluated.all.saturating_sub(before.all),
            refused: evaluated.refused.saturating_sub(before.refused),
        };
        let rate = (more.refused as f64 / seconds) as u64;
        let share = share(more);
        self.last = (evaluated, now);
        let lasts = |since: &mut Option<Instant>, is_so: bool, time: Duration| {
            *since = if is_so { since.or(Some(then)) } else { None };
            since.is_some_and(|since| now.saturating_duration_since(since) >= time)
        };
        match &mut self.attack {
            None => {
                let is_many = rate >= BEGINS_AT && share >= BEGINS_AT_SHARE;
                if !is_many {
                    (self.rising, self.rising_peak) = (Evaluated::default(), 0);
                } else {
                    self.rising = sum(self.rising, more);
                    self.rising_peak = self.rising_peak.max(rate);
                }
                if !lasts(&mut self.since, is_many, BEGINS_AFTER) {
                    return None;
                }
                let began = self.since.take().unwrap_or(now);
                let attack = Ongoing {
                    began,
                    sum: self.rising,
                    rate,
                    peak: self.rising_peak,
                };
                let described = self.describe(limit, &attack, now, time);
                self.attack = Some(attack);
                Some(Turn::Began(described))
            }
            Some(attack) => {
                attack.sum = sum(attack.sum, more);
                (attack.rate, attack.peak) = (rate, attack.peak.max(rate));
                let is_few = rate < ENDS_BELOW || share < ENDS_BELOW_SHARE;
                if !lasts(&mut self.since, is_few, ENDS_AFTER) {
                    return None;
                }
                let quiet = now.saturating_duration_since(self.since.take().unwrap_or(now));
                let attack = self.attack.take()?;
                let ended = Some(time - quiet.as_secs_f64());
                Some(Turn::Ended(Attack {
                    ended,
                    ..self.describe(limit, &attack, now, time)
                }))
            }
        }
    }

    fn describe(&self, limit: &str, attack: &Ongoing, now: Instant, time: f64) -> Attack {
        Attack {
            limit: limit.to_owned(),
            started: time - now.saturating_duration_since(attack.began).as_secs_f64(),
            ended: None,
            refused_per_second: attack.rate,
            peak_per_second: attack.peak,
            refused_share: share(attack.sum),
            refused_packets: attack.sum.refused,
            sources: self.sources.most(REPORTED),
        }
    }
}

fn sum(one: Evaluated, other: Evaluated) -> Evaluated {
    Evaluated {
        all: one.all + other.all,
        refused: one.refused + other.refused,
    }
}

/// The refused share, from 0 to 1.
fn share(evaluated: Evaluated) -> f64 {
    // Two counters are not read at the same instant.
    evaluated.refused as f64 / evaluated.all.max(evaluated.refused).max(1) as f64
}

/// Refused packets by source, as far as events report them.
#[derive(Debug, Default)]
struct Sources {
    /// The last count, and the packets refused since the source is observed.
    counts: HashMap<String, (u64, u64)>,
    /// Whether sources were forgotten: then one that seems new may be one of them.
    has_forgotten: bool,
}

impl Sources {
    fn add(&mut self, source: &str, count: u64) {
        if let Some((last, refused)) = self.counts.get_mut(source) {
            // A count starts again once the kernel has forgotten the source.
            *refused += count.checked_sub(*last).unwrap_or(count);
            *last = count;
            return;
        }
        if self.counts.len() >= MOST_SOURCES {
            self.has_forgotten = true;
            let mut all: Vec<u64> = self.counts.values().map(|(_, refused)| *refused).collect();
            let (_, middle, _) = all.select_nth_unstable(MOST_SOURCES / 2);
            let (middle, mut equal) = (*middle, 0);
            self.counts.retain(|_, (_, refused)| {
                equal += usize::from(*refused == middle);
                *refused > middle || (*refused == middle && equal <= MOST_SOURCES / 4)
            });
        }
        let refused = if self.has_forgotten { count } else { 1 };
        self.counts.insert(source.to_owned(), (count, refused));
    }

    fn most(&self, count: usize) -> Vec<AttackSource> {
        let all = self.counts.iter();
        let mut all: Vec<AttackSource> = all
            .map(|(source, (_, refused))| AttackSource {
                source: source.clone(),
                refused_packets: *refused,
            })
            .collect();
        all.sort_by(|a, b| {
            b.refused_packets
                .cmp(&a.refused_packets)
                .then_with(|| a.source.cmp(&b.source))
        });
        all.truncate(count);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evaluated(refused: u64) -> Evaluated {
        Evaluated {
            all: refused,
            refused,
        }
    }

    /// The changes of a limit that refuses and evaluates so many packets per second.
    fn turns(rates: &[(u64, u64)]) -> Vec<(usize, Turn)> {
        let (mut attacks, start, mut so_far) =
            (Attacks::default(), Instant::now(), Evaluated::default());
        let mut turns = Vec::new();
        for (second, (refused, all)) in rates.iter().enumerate() {
            let now = start + Duration::from_secs(second as u64);
            if *refused > 0 {
                attacks.follow("web", so_far, now);
                attacks.refused("web", "192.0.2.1", so_far.refused + refused);
            }
            so_far = sum(
                so_far,
                Evaluated {
                    all: *all,
                    refused: *refused,
                },
            );
            let time = second as f64 + 1_001.0;
            turns.extend(
                attacks
                    .look("web", Some(so_far), now + Duration::from_secs(1), time)
                    .map(|turn| (second, turn)),
            );
        }
        turns
    }

    fn refused_alone(rates: &[u64]) -> Vec<(usize, Turn)> {
        turns(&rates.iter().map(|rate| (*rate, *rate)).collect::<Vec<_>>())
    }

    #[test]
    fn an_attack_begins_when_refusals_stay_many_and_ends_when_they_stay_few() {
        let mut rates = vec![0, 50, 100, 200, 200];
        rates.extend([0; 9]);
        rates.push(20);
        rates.extend([0; 12]);
        let found = refused_alone(&rates);
        let [(3, Turn::Began(began)), (24, Turn::Ended(ended))] = &found[..] else {
            panic!("{found:?}")
        };
        let of = |attack: &Attack| {
            (
                attack.refused_per_second,
                attack.peak_per_second,
                attack.refused_packets,
            )
        };
        assert_eq!((began.limit.as_str(), of(began)), ("web", (200, 200, 300)));
        assert_eq!(
            (began.started, began.ended, began.refused_share),
            (1_002.0, None, 1.0)
        );
        assert_eq!(
            (ended.started, ended.ended, of(ended)),
            (1_002.0, Some(1_015.0), (0, 200, 520))
        );
        assert_eq!(began.sources[0].source, "192.0.2.1");
    }

    #[test]
    fn a_short_burst_of_refusals_is_no_attack() {
        assert_eq!(
            refused_alone(&[0, 5_000, 0, 99, 99, 99, 99, 0, 5_000, 0]),
            []
        );
    }

    #[test]
    fn many_refusals_that_are_a_small_share_of_the_traffic_are_no_attack() {
        assert_eq!(turns(&[(900, 10_000); 20]), []);
        let found = turns(&[(1_000, 10_000); 20]);
        let [(1, Turn::Began(began))] = &found[..] else {
            panic!("{found:?}")
        };
        assert!((began.refused_share - 0.1).abs() < 1e-9);
        // It ends while the same number is a much smaller share.
        let mut rates = vec![(1_000, 2_000); 5];
        rates.extend([(1_000, 100_000); 15]);
        let found = turns(&rates);
        assert!(
            matches!(&found[..], [(1, Turn::Began(_)), (14, Turn::Ended(_))]),
            "{found:?}"
        );
    }

    #[test]
    fn a_counter_that_starts_over_ends_nothing_early_and_a_removed_limit_does() {
        let (mut attacks, start) = (Attacks::default(), Instant::now());
        let at = |seconds| start + Duration::from_secs(seconds);
        attacks.follow("web", evaluated(0), at(0));
        attacks.look("web", Some(evaluated(1_000)), at(1), 1.0);
        let turn = attacks.look("web", Some(evaluated(2_000)), at(2), 2.0);
        assert!(matches!(turn, Some(Turn::Began(_))), "{turn:?}");
        attacks.publish(1, at(2), 2.0);
        let (lasting, total) = attacks.current().get();
        assert_eq!(
            (lasting.len(), lasting[0].peak_per_second, total),
            (1, 1_000, 1)
        );
        assert_eq!(attacks.look("web", Some(evaluated(0)), at(3), 3.0), None);
        let turn = attacks.look("web", None, at(4), 4.0);
        assert!(
            matches!(
                turn,
                Some(Turn::Ended(Attack {
                    ended: Some(4.0),
                    ..
                }))
            ),
            "{turn:?}"
        );
        assert!(attacks.limits().is_empty());
        attacks.publish(0, at(4), 4.0);
        assert_eq!(attacks.current().get(), (Vec::new(), 1));
    }

    #[test]
    fn the_busiest_sources_stay_among_a_flood_of_others() {
        let mut sources = Sources::default();
        for round in 1..=100u64 {
            for busy in 0..5u64 {
                sources.add(&format!("192.0.2.{busy}"), round * 1_000 * (busy + 1));
            }
            (0..1_000)
                .for_each(|nth| sources.add(&format!("10.{round}.{}.{}", nth / 256, nth % 256), 1));
            assert!(sources.counts.len() <= MOST_SOURCES);
        }
        let most = sources.most(REPORTED);
        let names: Vec<&str> = most.iter().take(5).map(|one| one.source.as_str()).collect();
        assert_eq!(
            names,
            [
                "192.0.2.4",
                "192.0.2.3",
                "192.0.2.2",
                "192.0.2.1",
                "192.0.2.0"
            ]
        );
        // All but the first count, unless it was forgotten after that.
        assert!(
            (99 * 5_000 + 1..=100 * 5_000).contains(&most[0].refused_packets)
                && most.len() == REPORTED,
            "{most:?}"
        );
    }
}
