//! Grants of units to proxies, and the use that they report.

use std::borrow::Cow;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::Ordering;

use config::request_key::{SOURCE, entry_name, is_remote_address};

use super::bucket::{Grant, Report};
use crate::charge::Charge;
use crate::engine::Engine;
use crate::headers;
use crate::reservations::{Account, Reservation};

/// Grants have at most this part of the whole allowance, or the units of a report's interval: a proxy may have two until
/// its next report, a tenth in all.
const PART: u64 = 20;

impl Engine {
    /// One unit of each limit on a bucket, as on a descriptor with these entries.
    pub(super) fn charges_of_bucket(
        &self,
        domain: &str,
        entries: &HashMap<String, Vec<u8>>,
    ) -> Vec<Charge> {
        let texts = entries.iter();
        let texts: Vec<(&str, Cow<'_, str>)> = texts
            .map(|(name, value)| (name.as_str(), headers::text(value)))
            .collect();
        let named = || {
            texts
                .iter()
                .map(|(name, value)| (entry_name(name), &**value))
        };
        let address = |is_it: fn(&str) -> bool| {
            let value = &texts.iter().find(|(name, _)| is_it(name))?.1;
            let address: IpAddr = value.parse().ok()?;
            Some(address.to_canonical())
        };
        let source = address(is_remote_address).or_else(|| address(|name| name == SOURCE));
        let limits = self.limits_of(domain, named).into_iter();
        // The limits of a bucket have its entries: each has a key.
        limits
            .filter_map(|limit| self.charge_of(limit, named(), source, 1).ok())
            .collect()
    }

    /// Whether a proxy has to have units for this limit: it enforces, and the client is not exempt.
    pub(super) fn takes_units(&self, charge: &Charge) -> bool {
        !self.limits[charge.limit].observes_now() && self.store_of(charge).is_some()
    }

    /// Whether a limit has no room for the key of a bucket.
    pub(super) fn is_without_room(&self, charges: &[Charge]) -> bool {
        charges.iter().any(|charge| {
            let store = self.store_of(charge);
            store.is_some_and(|store| store.is_full() && !store.lock(charge.key).knows(charge.key))
        })
    }

    /// The units that all limits have left.
    pub(super) fn remaining(&self, charges: &[Charge], now: u64) -> u64 {
        let remaining = |charge: &Charge| {
            let store = self.store_of(charge);
            store.map_or(0, |store| store.peek(charge.key, now, 0).remaining)
        };
        charges.iter().map(remaining).min().unwrap_or(u64::MAX)
    }

    /// Charges up to `most` units to all limits, or none if they are not more than `more_than`.
    pub(super) fn grant(
        &self,
        charges: &[Charge],
        most: u64,
        more_than: u64,
        now: u64,
    ) -> Option<Grant> {
        if charges.iter().any(|charge| self.is_behind(charge, now)) {
            return None;
        }
        let mut units = self
            .remaining(charges, now)
            .min(most)
            .min(u64::from(u32::MAX));
        // Of a limit that hosts exchange, less may be free than remains.
        while units > more_than {
            let mut reservations = Vec::with_capacity(charges.len());
            for charge in charges {
                let cost = units;
                match self.reserve_units(Charge { cost, ..*charge }, now) {
                    Some(reservation) => reservations.push(reservation),
                    None => break,
                }
            }
            if reservations.len() == charges.len() {
                return Some(Grant::new(units, reservations));
            }
            for (charge, reservation) in charges.iter().zip(&reservations) {
                self.return_units(charge, reservation, now);
            }
            units /= 2;
        }
        None
    }

    /// Whether requests wait for a key.
    fn is_behind(&self, charge: &Charge, now: u64) -> bool {
        if self.line_of(charge).is_empty() {
            return false;
        }
        self.behind(&self.waiting.lock(), charge, now).is_some()
    }

    /// Returns units that were charged at the same instant, as that of another limit does not pass.
    fn return_units(&self, charge: &Charge, reservation: &Reservation, now: u64) {
        match &reservation.account {
            Some(Account { store, is_own, .. }) if !is_own => {
                let cost = reservation.charged;
                let charge = Charge { cost, ..*charge };
                store.lock(charge.key).return_without_room(&charge, now);
            }
            _ => {
                self.settle_reservation(reservation, 0, now);
            }
        }
    }

    /// The most units of the grants of all proxies, with so many nanoseconds between reports.
    pub(super) fn most_of_proxies(&self, charges: &[Charge], interval: u64) -> u64 {
        let of = |charge: &Charge| {
            let part = self.most_of(charge) / PART;
            let refilled = self.quota(charge).map_or(0, |rate| {
                let units = u128::from(rate.count) * u128::from(interval);
                u64::try_from(units / u128::from(rate.per_nanoseconds)).unwrap_or(u64::MAX)
            });
            part.max(refilled).max(1)
        };
        charges.iter().map(of).min().unwrap_or(0)
    }

    /// Charges units if they conform.
    fn reserve_units(&self, charge: Charge, now: u64) -> Option<Reservation> {
        let store = self.shared_store_of(&charge)?;
        let (outcome, account) = self.charge_account(store, &charge, now);
        outcome
            .allowed
            .then(|| self.reservation(&charge, Some(account), charge.cost, now))
    }

    /// Returns the units of a grant that were not used.
    pub(super) fn settle_grant(&self, grant: &Grant, now: u64) {
        for reservation in &grant.reservations {
            self.settle_reservation(reservation, grant.used(), now);
            self.wake(&reservation.line);
        }
    }

    /// Charges units that passed without a grant, at most the whole allowance: a proxy may have passed any number while
    /// there was no agent.
    pub(super) fn charge_beyond(&self, charges: &[Charge], units: u64, now: u64) {
        for charge in charges.iter().filter(|_| units > 0) {
            if let Some(store) = self.store_of(charge) {
                let units = units.min(self.most_of(charge));
                store.lock(charge.key).force(charge.key, now, units);
            }
        }
    }

    /// Counts the requests of a report. A limit on observe is charged with those that passed, as far as they conform.
    pub(super) fn count_report(&self, charge: &Charge, report: Report) {
        let limit = &self.limits[charge.limit];
        let (observes, counters) = (limit.observes_now(), &limit.counters);
        let conforming = match self.store_of(charge).filter(|_| observes) {
            Some(store) => {
                let mut held = store.lock(charge.key);
                let left = held.peek(charge.key, report.now, 0).remaining;
                let cost = report.allowed.min(left);
                let outcome = held.decide(charge.key, report.now, cost);
                if outcome.allowed { cost } else { 0 }
            }
            None => report.allowed,
        };
        let beyond = report.allowed - conforming;
        let denied = if observes { 0 } else { report.denied };
        counters.passed.fetch_add(conforming, Ordering::Relaxed);
        counters.would_refuse.fetch_add(beyond, Ordering::Relaxed);
        counters.refused.fetch_add(denied, Ordering::Relaxed);
        if let Some(together) = &limit.together {
            let most = self.most_of(charge);
            let wanted = report.requests().min(most);
            together.wanted.fetch_add(wanted, Ordering::Relaxed);
            let refused = (denied + beyond).min(most);
            together.refused.fetch_add(refused, Ordering::Relaxed);
        }
        if denied + beyond > 0 {
            let source = limit.refused_source(charge.source);
            self.refusals.record(source, observes, report.now);
        }
    }
}
