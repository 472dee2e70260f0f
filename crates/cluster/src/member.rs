//! One host's part in one limit: its requests to the ledger, and the share in effect at every instant.
//!
//! Without a clock and a store: callers pass instants, in nanoseconds of a monotonic clock of this host. The agent runs
//! it against a store, the simulation against the ledger itself.
//!
//! This host counts a lease from its request, the store from the later grant. So a lease ends here before the store
//! grants its share to others, whatever the two clocks show.

use std::time::Duration;

use common::share::Share;
use config::policy::WhenStoreIsDown;
use decide::EffectiveShare;

use super::ledger::{ANOTHER_EPOCH, Acknowledged, Grant, LARGEST_DEMAND, Report};
use super::past::PastLimit;
use super::recent_hosts::RecentHosts;

/// A share that shrinks by more than an eighth and more than this is reported at once, so that others get it.
const WORTH_TELLING: u64 = Share::PARTS / 10_000;
/// The most early requests for shares that others have yet to release; then the host waits for the next sync.
const MOST_EARLY: u32 = 10;
/// Demand is averaged over the time of this many units: fewer do not determine a rate.
const UNITS_TO_AVERAGE: f64 = 50.0;
/// The longest time over which demand is averaged.
const LONGEST_AVERAGE_SECONDS: f64 = 10.0;
/// The requested share of a host that refuses, as a multiple of its share: refused clients may have slowed down.
const WANTED_WHEN_REFUSING: f64 = 1.1;

/// The timeout of a host's last requests: the agent must not wait for a store when it ends.
pub const LEAVE_TIMEOUT: Duration = Duration::from_millis(500);

/// The parameters of a limit's leases under one config.
#[derive(Clone, Debug, PartialEq)]
pub struct Terms {
    /// The interval of requests.
    pub sync: Duration,
    /// The length of a lease.
    pub lease: Duration,
    /// The fallback after the lease has ended.
    pub when_store_is_down: WhenStoreIsDown,
    /// The limit's rate in units a second.
    pub rate: f64,
    /// The burst in units.
    pub units: u64,
    /// Whether the ledger is a zone's.
    pub in_zone: bool,
}

impl Terms {
    /// The length of a lease: ten syncs, at least a second, so that it outlasts a slow store.
    #[must_use]
    pub fn lease_for(sync: Duration) -> Duration {
        (10 * sync).max(Duration::from_secs(1))
    }

    /// The timeout of a request: a third of a lease, which leaves time for two more.
    #[must_use]
    pub fn patience_for(sync: Duration) -> Duration {
        Self::lease_for(sync) / 3
    }
}

/// Units since the limit was created on this host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Passed and refused.
    pub wanted: u64,
    pub refused: u64,
}

/// The origin of the share in effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// No store has replied yet.
    Joining,
    /// The ledger.
    Leased,
    /// The lease has ended: `when_store_is_down`.
    Alone,
}

/// A host's part in one limit.
#[derive(Clone, Debug)]
pub struct Member {
    terms: Terms,
    host: String,
    state: LeaseState,
    in_effect: EffectiveShare,
    ends: u64,
    next: u64,
    early: u32,
    sequence: u64,
    /// The last grant, and the instant of its request by this host's clock.
    granted: Option<(Acknowledged, u64)>,
    /// An earlier run of the agent, until the ledger has recorded its end.
    replaces: Option<String>,
    epoch: u64,
    /// Whether the next request may reach another server than the one that granted the share.
    has_moved: bool,
    /// The hosts by which the limit is divided without a store; in a zone, the zone's hosts times the zones.
    hosts: RecentHosts,
    /// The last grant's hosts, zones, and what all shares add up to.
    present: u64,
    zones: u64,
    all: Share,
    is_quiet: bool,
    /// Demand in units a second, averaged.
    demand: f64,
    counted: Usage,
    counted_at: u64,
    refuses: bool,
}

impl Member {
    /// Joins at `now`. `host` is the name of the host and of this run of its agent.
    #[must_use]
    pub fn new(terms: Terms, host: String, usage: Usage, now: u64) -> Self {
        let mut member = Self {
            terms,
            host,
            state: LeaseState::Joining,
            in_effect: EffectiveShare {
                share: Share::NOTHING,
                is_open: false,
            },
            ends: now,
            next: now,
            early: 0,
            sequence: 0,
            granted: None,
            replaces: None,
            epoch: 0,
            has_moved: false,
            hosts: RecentHosts::new(1, now),
            present: 1,
            zones: 1,
            all: Share::WHOLE,
            is_quiet: false,
            demand: 0.0,
            counted: usage,
            counted_at: now,
            refuses: false,
        };
        member.in_effect = member.fallback();
        member
    }

    /// Joins in place of an earlier run of this host's agent or, if that has saved no state of this limit, in a cluster
    /// of `hosts`. Until the ledger grants a share, the host enforces at most the earlier run's share and, while others
    /// may have a lease, at most what `when_store_is_down` allows.
    #[must_use]
    pub fn after(past: Option<&PastLimit>, hosts: u64, new: Self) -> Self {
        let hosts = past.map_or(hosts, |past| past.hosts);
        let mut member = Self {
            hosts: RecentHosts::new(hosts, new.counted_at),
            ..new
        };
        if let Some(past) = past {
            member.epoch = past.epoch;
        }
        member.in_effect = member.fallback();
        if let Some((past, share)) = past.and_then(|past| Some((past, past.share?))) {
            member.replaces = Some(past.host.clone());
            member.state = LeaseState::Alone;
            let share = Share::of_parts(share).min(member.in_effect.share);
            member.in_effect = EffectiveShare {
                share,
                is_open: false,
            };
        }
        member
    }

    /// The same member under another config; its lease stays valid until its end.
    #[must_use]
    pub fn under(self, terms: Terms, usage: Usage, now: u64) -> Self {
        let mut member = Self {
            terms,
            counted: usage,
            counted_at: now,
            next: now,
            early: 0,
            ..self
        };
        if member.state == LeaseState::Joining {
            member.in_effect = member.fallback();
        }
        member
    }

    /// The state for the next run of this agent; without a share if it was returned.
    #[must_use]
    pub fn past(&self) -> PastLimit {
        let share = (self.state != LeaseState::Joining).then(|| self.in_effect.share.parts());
        PastLimit {
            host: self.host.clone(),
            share,
            hosts: self.hosts.most(),
            epoch: self.epoch,
        }
    }

    /// The enforcement without the store.
    #[must_use]
    pub fn fallback(&self) -> EffectiveShare {
        EffectiveShare::alone(self.terms.when_store_is_down, self.hosts.most())
    }

    /// The enforcement at `now`.
    pub fn in_effect(&mut self, now: u64) -> EffectiveShare {
        if self.state == LeaseState::Leased && now >= self.ends {
            self.state = LeaseState::Alone;
        }
        if self.state == LeaseState::Alone {
            let fallback = self.fallback();
            // Other hosts' leases may end later than this one, by less than a lease: until then no share grows.
            let grows = fallback.is_open || fallback.share > self.in_effect.share;
            if !grows || now >= self.ends.saturating_add(nanoseconds(self.terms.lease)) {
                self.in_effect = fallback;
            }
        }
        self.in_effect
    }

    /// Records the demand until `now`, and may advance the next request.
    pub fn count(&mut self, usage: Usage, now: u64) {
        let elapsed = now.saturating_sub(self.counted_at);
        if elapsed < nanoseconds(self.terms.sync) / 5 {
            return;
        }
        let seconds = elapsed as f64 / 1e9;
        let wanted = usage.wanted.saturating_sub(self.counted.wanted) as f64;
        let refused = usage.refused > self.counted.refused;
        // The larger of the average and the newest rate, so that new demand counts at once.
        let rate = (wanted / seconds).max(self.demand);
        let average = (UNITS_TO_AVERAGE / rate)
            .min(LONGEST_AVERAGE_SECONDS)
            .max(self.terms.sync.as_secs_f64() / 4.0);
        self.demand += (wanted / seconds - self.demand) * (1.0 - (-seconds / average).exp());
        if refused && !self.refuses && self.in_effect.share < Share::WHOLE {
            // The first refusals are reported at once.
            self.next = self.next.min(now);
        }
        self.refuses = refused;
        self.counted = usage;
        self.counted_at = now;
    }

    /// Whether a request is due.
    #[must_use]
    pub const fn is_due(&self, now: u64) -> bool {
        now >= self.next
    }

    /// The request at `now`.
    pub fn report(&mut self, now: u64) -> Report {
        let in_effect = self.in_effect(now);
        let applied = match self.state {
            LeaseState::Leased => in_effect.share.parts(),
            // The reply ends the previous share; without one, only a share that no other host has leased may continue.
            LeaseState::Joining => 0,
            LeaseState::Alone => in_effect
                .share
                .min(Share::one_of(self.hosts.most()))
                .parts(),
        };
        self.sequence += 1;
        self.next = now + nanoseconds(self.terms.sync);
        Report {
            host: self.host.clone(),
            sequence: self.sequence,
            applied,
            demand: self.demand_parts(),
            units: self.terms.units,
            lease: self.terms.lease.as_millis() as u64,
            epoch: if self.has_moved {
                ANOTHER_EPOCH
            } else {
                self.epoch
            },
            leaves: false,
            replaces: self.replaces.clone(),
            grant: self
                .granted
                .filter(|_| self.state == LeaseState::Leased)
                .map(|(grant, asked)| Acknowledged {
                    elapsed: now.saturating_sub(asked) / 1_000_000,
                    ..grant
                }),
            in_zone: self.terms.in_zone,
        }
    }

    /// The reported demand, in billionths of the limit's rate.
    fn demand_parts(&self) -> u64 {
        let mut factor = self.demand / self.terms.rate;
        if self.refuses {
            factor = factor.max(self.in_effect.share.factor() * WANTED_WHEN_REFUSING);
        }
        ((factor * Share::PARTS as f64) as u64).min(LARGEST_DEMAND)
    }

    /// Applies the reply to the request of `asked`.
    pub fn granted(&mut self, asked: u64, grant: &Grant, now: u64) -> EffectiveShare {
        let before = if self.state == LeaseState::Leased {
            self.in_effect.share.parts()
        } else {
            0
        };
        self.state = LeaseState::Leased;
        self.ends = asked + nanoseconds(self.terms.lease);
        self.in_effect = EffectiveShare {
            share: Share::of_parts(grant.share),
            is_open: false,
        };
        self.granted = Some((
            Acknowledged {
                sequence: self.sequence,
                at: grant.at,
                elapsed: 0,
            },
            asked,
        ));
        self.replaces = None;
        self.has_moved = false;
        self.epoch = grant.epoch;
        self.hosts.record(grant.hosts * grant.zones, now);
        (self.present, self.zones) = (grant.hosts, grant.zones);
        self.all = Share::of_parts(grant.all);
        self.is_quiet = grant.is_quiet;
        let is_much = |from: u64, to: u64| from.saturating_sub(to) > (from / 8).max(WORTH_TELLING);
        let gives_up = is_much(before, grant.share);
        let waits = is_much(grant.target, grant.share);
        if gives_up {
            self.next = now + nanoseconds(self.terms.sync) / 50;
        } else if waits && self.early < MOST_EARLY {
            self.early += 1;
            self.next = now + nanoseconds(self.terms.sync) / 5;
        } else {
            self.early = if waits { self.early } else { 0 };
        }
        // If the reply took longer than the lease, the lease has ended.
        self.in_effect(now)
    }

    /// Records a connection to another server, or an unknown one: a promoted replica may lack the last grants.
    pub const fn reconnected(&mut self) {
        self.has_moved = self.epoch != 0;
    }

    /// Sends no request before this instant, after one without a reply.
    pub fn request_after(&mut self, instant: u64) {
        self.next = self.next.max(instant);
    }

    /// The last request, which returns the share. Afterwards the member is as before it joined.
    pub fn leave(&mut self, now: u64) -> Report {
        let report = Report {
            leaves: true,
            ..self.report(now)
        };
        self.state = LeaseState::Joining;
        report
    }

    /// The origin of the share.
    #[must_use]
    pub const fn state(&self) -> LeaseState {
        self.state
    }

    /// Hosts in the ledger's last reply, this one included.
    #[must_use]
    pub const fn hosts(&self) -> u64 {
        self.present
    }

    /// The hosts that have shared the limit last, by this ledger or by that of an earlier run.
    #[must_use]
    pub const fn last_hosts(&self) -> u64 {
        self.hosts.last()
    }

    /// The zones in the ledger's last reply.
    #[must_use]
    pub const fn zones(&self) -> u64 {
        self.zones
    }

    /// The bound of the sum of all hosts' shares, by the ledger's last reply: the zone's share.
    #[must_use]
    pub const fn all(&self) -> Share {
        self.all
    }

    /// The instant at which the lease ends, or ended.
    #[must_use]
    pub const fn ends(&self) -> u64 {
        self.ends
    }

    /// The same share, as one whose lease ends, or ended, at another instant.
    #[must_use]
    pub fn ending(self, ends: u64) -> Self {
        Self { ends, ..self }
    }

    /// The same member, whose requests follow those of an earlier one of its name.
    #[must_use]
    pub fn following(self, sequence: u64) -> Self {
        Self { sequence, ..self }
    }

    /// The instant of the next request.
    #[must_use]
    pub const fn next(&self) -> u64 {
        self.next
    }

    /// The epoch of the ledger.
    #[must_use]
    pub const fn epoch(&self) -> u64 {
        self.epoch
    }

    /// Sets the demand, in billionths of the limit's rate, in place of [`Self::count`].
    pub fn set_demand(&mut self, parts: u64) {
        self.demand = parts as f64 / Share::PARTS as f64 * self.terms.rate;
    }

    /// Whether the ledger lets no share grow yet.
    #[must_use]
    pub const fn is_quiet(&self) -> bool {
        self.is_quiet
    }

    /// The demand on this host in units a second.
    #[must_use]
    pub const fn demand(&self) -> f64 {
        self.demand
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn member(when: WhenStoreIsDown) -> Member {
        let sync = Duration::from_millis(100);
        let terms = Terms {
            sync,
            lease: Terms::lease_for(sync),
            when_store_is_down: when,
            rate: 1_000.0,
            units: 1_000,
            in_zone: false,
        };
        Member::new(terms, "a".to_owned(), Usage::default(), 0)
    }

    fn grant(share: f64, hosts: u64) -> Grant {
        let share = (share * Share::PARTS as f64) as u64;
        Grant {
            share,
            hosts,
            epoch: 1,
            is_quiet: false,
            held: share,
            demand: 0,
            target: share,
            at: 1,
            all: Share::PARTS,
            zones: 1,
        }
    }

    #[test]
    fn without_a_store_holds_what_the_config_says() {
        for (when, first, alone, is_open) in [
            (WhenStoreIsDown::Share, 1.0, 0.25, false),
            (WhenStoreIsDown::Local, 1.0, 1.0, false),
            (WhenStoreIsDown::Open, 1.0, 1.0, true),
            (WhenStoreIsDown::Closed, 0.0, 0.0, false),
        ] {
            let mut member = member(when);
            assert_eq!(member.in_effect(0).share.factor(), first, "{when}");
            member.granted(0, &grant(0.1, 4), 5 * MS);
            assert_eq!(
                member.in_effect(999 * MS).share.factor(),
                0.1,
                "the lease is good for a second"
            );
            // For one more lease no host takes more than it had; a smaller share is enforced at once.
            let during = member.in_effect(1_999 * MS);
            assert_eq!(
                (during.share.factor(), during.is_open),
                (f64::min(alone, 0.1), false),
                "{when}"
            );
            let after = member.in_effect(2_000 * MS);
            assert_eq!(
                (after.share.factor(), after.is_open),
                (alone, is_open),
                "{when}"
            );
            assert_eq!(member.state(), LeaseState::Alone);
            // The applied share that it reports to the store afterwards is at most its part.
            assert!(member.report(2_300 * MS).applied <= Share::PARTS / 4);
            assert_eq!(
                member
                    .granted(2_300 * MS, &grant(0.3, 4), 2_301 * MS)
                    .share
                    .factor(),
                0.3
            );
        }
    }

    /// The ledger removes a host that has lost the store, and the others' next replies have one host less.
    #[test]
    fn hosts_that_lose_the_store_in_turn_pass_the_limit() {
        let (sync, lease) = (100 * MS, 1_000 * MS);
        let mut shares = 0.0;
        for nth in 0..4 {
            let mut member = member(WhenStoreIsDown::Share);
            let ends = (1 + nth) * 60 * lease;
            for at in (0..ends).step_by(sync as usize) {
                let hosts = 4 - at / (60 * lease);
                member.granted(at, &grant(1.0 / hosts as f64, hosts), at + MS);
                assert_eq!(member.hosts(), hosts);
            }
            shares += member.in_effect(ends + 2 * lease).share.factor();
            assert_eq!(member.state(), LeaseState::Alone);
        }
        assert!((shares - 1.0).abs() < 1e-6, "{shares}");
    }

    #[test]
    fn a_lease_counts_from_its_request() {
        let mut member = member(WhenStoreIsDown::Closed);
        // The reply took 900 ms: the lease lasts 100 ms more.
        assert_eq!(
            member.granted(0, &grant(0.5, 2), 900 * MS).share.factor(),
            0.5
        );
        assert_eq!(member.in_effect(1_000 * MS).share, Share::NOTHING);
        // A reply that took longer than the lease is ignored.
        assert_eq!(
            member.granted(2_000 * MS, &grant(0.5, 2), 3_500 * MS).share,
            Share::NOTHING
        );
    }

    #[test]
    fn demand_is_what_passed_and_what_was_refused() {
        let mut member = member(WhenStoreIsDown::Share);
        let mut wanted = 0;
        for step in 1..=20 {
            wanted += 50;
            member.count(Usage { wanted, refused: 0 }, step * 25 * MS);
        }
        assert!(
            (member.demand() - 2_000.0).abs() < 1.0,
            "{}",
            member.demand()
        );
        assert!(member.report(500 * MS).demand.abs_diff(2 * Share::PARTS) < Share::PARTS / 1_000);
        // After half a second without demand, the average is near zero.
        for step in 21..=40 {
            member.count(Usage { wanted, refused: 0 }, step * 25 * MS);
        }
        assert!(member.demand() < 100.0, "{}", member.demand());
    }

    #[test]
    fn a_host_that_starts_to_refuse_requests_more_at_once() {
        let mut member = member(WhenStoreIsDown::Share);
        member.report(0);
        member.granted(0, &grant(0.5, 2), MS);
        assert!(!member.is_due(30 * MS));
        member.count(
            Usage {
                wanted: 10,
                refused: 1,
            },
            30 * MS,
        );
        assert!(member.is_due(30 * MS));
        assert_eq!(
            member.report(30 * MS).demand,
            (0.5f64 * 1.1 * Share::PARTS as f64) as u64
        );
    }

    #[test]
    fn a_released_share_is_reported_at_once() {
        let mut member = member(WhenStoreIsDown::Share);
        member.report(0);
        member.granted(0, &grant(0.9, 2), MS);
        assert!(!member.is_due(50 * MS));
        member.report(100 * MS);
        member.granted(100 * MS, &grant(0.2, 2), 101 * MS);
        assert!(member.is_due(103 * MS));
        assert_eq!(member.report(103 * MS).applied, Share::PARTS / 5);
    }

    #[test]
    fn an_agent_that_starts_without_a_store_applies_what_the_one_before_left() {
        for (when, share, first, later) in [
            (WhenStoreIsDown::Share, Some(0.1), 0.1, 0.25),
            (WhenStoreIsDown::Share, Some(0.9), 0.25, 0.25),
            (WhenStoreIsDown::Share, None, 0.25, 0.25),
            (WhenStoreIsDown::Local, Some(0.1), 0.1, 1.0),
            (WhenStoreIsDown::Closed, Some(0.1), 0.0, 0.0),
        ] {
            let share = share.map(|share: f64| (share * Share::PARTS as f64) as u64);
            let past = PastLimit {
                host: "before".to_owned(),
                share,
                hosts: 4,
                epoch: 9,
            };
            let mut member = Member::after(Some(&past), 1, member(when));
            assert_eq!(member.in_effect(0).share.factor(), first, "{when}");
            // Other hosts may have a lease for that long.
            assert_eq!(member.in_effect(999 * MS).share.factor(), first, "{when}");
            assert_eq!(member.in_effect(1_000 * MS).share.factor(), later, "{when}");
            let report = member.report(1_000 * MS);
            assert_eq!(
                (report.replaces.is_some(), report.epoch),
                (share.is_some(), 9)
            );
            member.granted(1_000 * MS, &grant(0.3, 4), 1_001 * MS);
            assert_eq!(member.report(1_100 * MS).replaces, None);
        }
        // A new limit besides known ones.
        let mut new = Member::after(None, 5, member(WhenStoreIsDown::Share));
        assert_eq!(new.in_effect(0).share.factor(), 0.2);
    }

    #[test]
    fn a_lease_goes_on_under_another_config_until_it_ends() {
        let mut member = member(WhenStoreIsDown::Share);
        member.report(0);
        member.granted(0, &grant(0.7, 2), MS);
        let sequence = member.report(100 * MS).sequence;
        let terms = Terms {
            rate: 5_000.0,
            ..member.terms.clone()
        };
        let mut member = member.under(terms, Usage::default(), 200 * MS);
        assert!(member.is_due(200 * MS));
        assert_eq!(member.in_effect(999 * MS).share.factor(), 0.7);
        assert_eq!(member.in_effect(1_000 * MS).share.factor(), 0.5);
        assert_eq!(member.report(1_000 * MS).sequence, sequence + 1);
    }
}
