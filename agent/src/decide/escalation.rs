//! Who keeps being refused is stopped at the kernel edge.

use std::net::IpAddr;
use std::time::Duration;

use common::limiter::Rate;
use common::rate_limiter::{Policy, PolicyError};
use ipnet::IpNet;

use super::fingerprint::Fingerprints;
use super::store::Store;
use crate::config::policy::{Escalate, OnFull};

/// What the kernel edge can be asked for.
pub trait Edge: Send + Sync {
    /// Bans all addresses of a prefix, for a time or until it is lifted. Does not wait for it, and a ban that cannot be
    /// had is the edge's to report: the decision that led to it stands either way.
    fn ban(&self, prefix: IpNet, time: Option<Duration>);
}

/// Memory for the addresses that were refused, in bytes; those that find no room are not escalated.
const MEMORY: usize = 64 << 20;
/// A host of IPv6 has a network of this length to itself, and would evade a ban of one address.
const IPV6_PREFIX: u8 = 64;

/// The refusals of one limit, by address.
#[derive(Debug)]
pub struct Escalation {
    refusals: Store,
    ban: Duration,
}

impl Escalation {
    /// # Errors
    ///
    /// When `after` is more than a log holds.
    pub fn new(escalate: Escalate) -> Result<Self, PolicyError> {
        let (log, addresses) = Self::refusals(escalate)?;
        Ok(Self { refusals: Store::new(vec![log], addresses, OnFull::Pass), ban: Duration::from_nanos(escalate.ban) })
    }

    /// Bytes that the addresses take at the most.
    ///
    /// # Errors
    ///
    /// As [`Escalation::new`].
    pub fn most_bytes(escalate: Escalate) -> Result<u64, PolicyError> {
        let (log, addresses) = Self::refusals(escalate)?;
        Ok(Store::most_bytes(&[log], addresses))
    }

    fn refusals(escalate: Escalate) -> Result<(Policy, usize), PolicyError> {
        let rate = Rate { count: escalate.after, per_nanoseconds: escalate.within };
        let log = Policy::sliding_log(rate)?;
        let addresses = MEMORY / (log.words() * 8 + 64);
        Ok((log, addresses))
    }

    /// Notes a refusal; the ban that is due with it.
    pub fn refused(&self, source: IpAddr, fingerprints: &Fingerprints, now: u64) -> Option<(IpNet, Duration)> {
        let length = if source.is_ipv4() { 32 } else { IPV6_PREFIX };
        let prefix = IpNet::new(source, length).ok()?.trunc();
        let key = fingerprints.of(&prefix);
        let mut held = self.refusals.hold(key);
        let outcome = held.decide(key, now, 1);
        // The log is full with the last refusal it has room for. Those after the ban are counted anew.
        let is_due = outcome.remaining == 0;
        if is_due {
            held.restore(key, None);
        }
        is_due.then_some((prefix, self.ban))
    }

    /// Forgets addresses whose refusals are long ago.
    pub fn sweep(&self, now: u64) {
        self.refusals.sweep(now);
    }
}
