//! The last minutes of a fair limit and the sources above its level, for documents.
//!
//! The thread of fair limits has its own copy. It publishes that once a second, and does not wait for a reader of what it
//! publishes: while one copies, the next tick publishes.

use std::net::Ipv6Addr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};

use api::event::seconds_since_1970;
use api::fair::{FairHistory, FairSource, FairStatus};
use common::packet::Address;
use config::PrefixKey;
use config::policy::Limit;
use fair::{Above, History, Second, Step};

use super::changes::word_of_cause;

/// The two halves of a source's address.
type Key = (u64, u64);

/// The thread's copy.
#[derive(Debug)]
pub(super) struct Recent {
    history: History,
    above: Above<Key>,
    /// Whether the last reading had a level.
    has_level: bool,
    /// Whether there is something new that is not published.
    is_due: bool,
}

/// The copy for documents.
#[derive(Clone, Debug, Default)]
pub(super) struct SharedRecent(Arc<Mutex<Published>>);

#[derive(Clone, Debug)]
struct Published {
    history: History,
    above: Above<Key>,
    /// When this was published, on the thread's clock and in seconds since 1970.
    at: f64,
    time: f64,
}

impl Default for Recent {
    fn default() -> Self {
        Self {
            history: History::new(),
            above: Above::default(),
            has_level: false,
            is_due: false,
        }
    }
}

impl Default for Published {
    fn default() -> Self {
        Self {
            history: History::new(),
            above: Above::default(),
            at: 0.0,
            time: 0.0,
        }
    }
}

impl Recent {
    /// Adds a reading; `above` returns the sources above a level, and is called once a second and at an onset.
    pub(super) fn add(&mut self, step: &Step, above: impl FnOnce(f64) -> Above<Key>) {
        let has_begun_or_ended = step.level.is_some() != self.has_level;
        self.has_level = step.level.is_some();
        if self.history.add(step) || has_begun_or_ended {
            self.above = step.level.map_or_else(Above::default, above);
            self.is_due = true;
        }
    }

    /// Copies it for documents if there is something new. `now`: on the clock of the steps.
    pub(super) fn publish(&mut self, now: f64, shared: &SharedRecent) {
        if !self.is_due {
            return;
        }
        let mut published = match shared.0.try_lock() {
            Ok(published) => published,
            Err(TryLockError::Poisoned(error)) => error.into_inner(),
            Err(TryLockError::WouldBlock) => return,
        };
        published.history.clone_from(&self.history);
        published.above = self.above;
        (published.at, published.time) = (now, seconds_since_1970());
        self.is_due = false;
    }

    /// The same limit after other settings.
    pub(super) fn after(self) -> Self {
        Self {
            above: Above::default(),
            has_level: false,
            ..self
        }
    }
}

impl SharedRecent {
    fn lock(&self) -> MutexGuard<'_, Published> {
        // A copy of numbers.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds what it has to the status of a limit in effect.
    pub(super) fn complete(&self, status: &mut FairStatus, limit: &Limit) {
        let published = self.lock().clone();
        status.history = published.document();
        if status.level.is_none() {
            return;
        }
        status.sources_above = published.above.sources as u64;
        let heaviest = published.above.heaviest.into_iter().flatten();
        status.heaviest = heaviest
            .map(|heavy| FairSource {
                source: source(limit, heavy.key),
                offered: rounded(heavy.rate),
                refused: rounded(heavy.rate - heavy.share),
            })
            .collect();
    }
}

impl Published {
    fn document(&self) -> FairHistory {
        let seconds = || self.history.seconds();
        let each = |of: fn(&Second) -> f64| {
            let values = seconds().map(|second| second.as_ref().map(of).map(rounded));
            values.collect::<Vec<_>>()
        };
        let level = seconds().map(|second| second?.level.map(rounded));
        let held_by =
            seconds().map(|second| second?.cause.map(|cause| word_of_cause(cause).to_owned()));
        let end = self.history.end_of_last().filter(|_| seconds().len() > 0);
        FairHistory {
            ended: end.map(|end| rounded(self.time - (self.at - end))),
            step_seconds: 1,
            level: level.collect(),
            held_by: held_by.collect(),
            offered: each(|second| second.passed + second.refused),
            passed: each(|second| second.passed),
            refused: each(|second| second.refused),
        }
    }
}

/// In hundredths.
fn rounded(value: f64) -> f64 {
    (100.0 * value).round() / 100.0
}

/// A key as text, as in `weir top`.
fn source(limit: &Limit, (hi, lo): Key) -> String {
    let address = Address { hi, lo }.octets();
    let length = match Ipv6Addr::from(address).to_ipv4_mapped() {
        Some(_) => PrefixKey::IPV4.length + u32::from(limit.ipv4_prefix),
        None => u32::from(limit.ipv6_prefix),
    };
    PrefixKey { address, length }.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;
    use fair::{Cause, Heavy};

    fn limit(prefix: &str) -> Limit {
        let text = format!(
            "[agent]\ninterfaces = [\"lo\"]\n[[limit]]\nname = \"web\"\nports = [80]\nunit = \"connections\"\nrate = \"fair\"\n{prefix}"
        );
        let config = config::parse("limits.toml".as_ref(), &text).unwrap().config;
        config.limits[0].clone()
    }

    fn key(address: &str) -> Key {
        let address: std::net::IpAddr = address.parse().unwrap();
        let octets = match address {
            std::net::IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
            std::net::IpAddr::V6(address) => address.octets(),
        };
        let address = Address::from_ipv6(octets);
        (address.hi, address.lo)
    }

    fn step(from: f64, level: Option<f64>) -> Step {
        Step {
            from,
            to: from + 0.5,
            units: Some((1_000.0, 2_000.0)),
            level,
            cause: level.map(|_| Cause::Drops),
        }
    }

    fn above(address: &str) -> Above<Key> {
        let mut above = Above {
            sources: 7,
            ..Above::default()
        };
        above.heaviest[0] = Some(Heavy {
            key: key(address),
            rate: 500.0,
            share: 20.5,
        });
        above
    }

    #[test]
    fn a_document_has_the_last_seconds_and_the_heaviest_sources() {
        let (mut recent, shared) = (Recent::default(), SharedRecent::default());
        for nth in 0..6 {
            let level = (nth >= 2).then_some(20.504);
            recent.add(&step(f64::from(nth) / 2.0, level), |level| {
                assert_eq!(level, 20.504);
                above("192.0.2.1")
            });
        }
        recent.publish(3.0, &shared);
        let mut status = FairStatus {
            level: Some(20.504),
            ..FairStatus::default()
        };
        shared.complete(&mut status, &limit(""));
        let history = &status.history;
        assert_eq!(history.level, [None, Some(20.5), Some(20.5)]);
        assert_eq!(
            history.held_by,
            [None, Some("drops".to_owned()), Some("drops".to_owned())]
        );
        assert_eq!(history.passed, [Some(2_000.0); 3]);
        assert_eq!(history.refused, [Some(4_000.0); 3]);
        assert_eq!(history.offered, [Some(6_000.0); 3]);
        let published = shared.lock().time;
        assert!((history.ended.unwrap() - published).abs() < 0.01);
        assert_eq!(status.sources_above, 7);
        let heavy = FairSource {
            source: "192.0.2.1".to_owned(),
            offered: 500.0,
            refused: 479.5,
        };
        assert_eq!(status.heaviest, [heavy]);
        // The level has ended since.
        let mut off = FairStatus::default();
        shared.complete(&mut off, &limit(""));
        assert!(off.heaviest.is_empty() && off.history == status.history);
    }

    #[test]
    fn a_reader_delays_a_copy_and_not_the_thread() {
        let (mut recent, shared) = (Recent::default(), SharedRecent::default());
        (0..2).for_each(|nth| recent.add(&step(f64::from(nth) / 2.0, None), |_| Above::default()));
        let mut status = FairStatus::default();
        {
            let _reader = shared.lock();
            recent.publish(1.0, &shared);
        }
        shared.complete(&mut status, &limit(""));
        assert_eq!(
            (status.history.ended, status.history.passed.len()),
            (None, 0)
        );
        recent.publish(1.05, &shared);
        shared.complete(&mut status, &limit(""));
        assert_eq!(status.history.passed.len(), 1);
        let published = shared.lock().time;
        assert!((published - status.history.ended.unwrap() - 0.05).abs() < 0.01);
    }

    #[test]
    fn a_source_is_the_prefix_that_shares_a_key() {
        let limit = limit("ipv4_prefix = 24\nipv6_prefix = 56\n");
        assert_eq!(source(&limit, key("198.51.100.0")), "198.51.100.0/24");
        assert_eq!(source(&limit, key("2001:db8::")), "2001:db8::/56");
    }
}
