//! Bans of sources that limits on requests keep refusing.

use std::net::IpAddr;

use common::limiter::Rate;
use common::rate_limiter::{Policy, PolicyError};
use config::PrefixKey;
use config::policy::{Escalate, OnFull};
use ipnet::IpNet;

use super::fingerprint::Fingerprints;
use super::offence::Offence;
use super::state_store::{Saved, StateStore};

/// The interface to the kernel's bans.
pub trait Edge: Send + Sync {
    /// Bans the source of an offence, without waiting. The edge reports a ban that fails; the decision that led to it
    /// is not affected.
    fn escalate(&self, offence: Offence);
}

/// Memory for refused addresses, in bytes. Addresses beyond it are not escalated.
const MEMORY: usize = 64 << 20;
/// An IPv6 host has a whole network of this length, and would evade a ban of one address.
const IPV6_PREFIX: u8 = 64;

/// The refusals of one limit, by address.
#[derive(Debug)]
pub struct Escalation {
    refusals: StateStore,
}

impl Escalation {
    /// # Errors
    ///
    /// When `after` exceeds the length of a log.
    pub fn new(escalate: Escalate) -> Result<Self, PolicyError> {
        let (log, addresses) = Self::refusals(escalate)?;
        Ok(Self {
            refusals: StateStore::new(vec![log], addresses, OnFull::Pass),
        })
    }

    /// The most memory for the addresses, in bytes.
    ///
    /// # Errors
    ///
    /// As [`Escalation::new`].
    pub fn most_bytes(escalate: Escalate) -> Result<u64, PolicyError> {
        let (log, addresses) = Self::refusals(escalate)?;
        Ok(StateStore::most_bytes(&[log], addresses))
    }

    fn refusals(escalate: Escalate) -> Result<(Policy, usize), PolicyError> {
        let rate = Rate {
            count: escalate.after,
            per_nanoseconds: escalate.within,
        };
        let log = Policy::sliding_log(rate)?;
        let addresses = MEMORY / (log.words() * 8 + 64);
        Ok((log, addresses))
    }

    /// Counts a refusal; returns the prefix of the source if it is to be banned.
    pub fn refused(
        &self,
        source: IpAddr,
        fingerprints: &Fingerprints,
        now: u64,
    ) -> Option<PrefixKey> {
        let length = if source.is_ipv4() { 32 } else { IPV6_PREFIX };
        let prefix = IpNet::new(source, length).ok()?.trunc();
        let key = fingerprints.of(&prefix);
        let mut held = self.refusals.lock(key);
        let outcome = held.decide(key, now, 1);
        // The log is full. Refusals after the ban are counted from 0.
        let is_due = outcome.remaining == 0;
        if is_due {
            held.restore(key, &Saved::default());
        }
        is_due.then(|| prefix.into())
    }

    /// Removes addresses whose refusals have expired.
    pub fn sweep(&self, now: u64) {
        self.refusals.sweep(now);
    }
}
