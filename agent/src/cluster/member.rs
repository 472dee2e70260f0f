//! One host's part in one limit: what it tells the ledger, and what is in force here, at every instant.
//!
//! No clock, no store: instants are given, in nanoseconds of a clock of this host alone that only goes forward. The
//! agent runs it against a store, the simulation against the ledger itself.
//!
//! A lease counts from when it was asked for, by this host's clock; the store's counts from when it was granted, which
//! is later. So it has ended here before the store gives it to others, whatever either clock shows.

use std::time::Duration;

use common::share::Share;

use super::ledger::{ANOTHER_EPOCH, Acknowledged, Grant, LARGEST_DEMAND, Report};
use super::past::PastLimit;
use crate::config::policy::WhenStoreIsDown;

/// A share that shrinks by more than an eighth, and more than this, is told of at once, so that others get it.
const WORTH_TELLING: u64 = Share::PARTS / 10_000;
/// How often a host asks early for what others have yet to give up, before it waits like everybody else.
const MOST_EARLY: u32 = 10;
/// Demand is averaged over the time in which so many units are asked for: fewer tell little of a rate.
const UNITS_TO_AVERAGE: f64 = 50.0;
/// Demand is averaged over no more than this.
const LONGEST_AVERAGE_SECONDS: f64 = 10.0;
/// What a host that refuses wants, as a multiple of what it has: those who are refused may have slowed down.
const WANTED_WHEN_REFUSING: f64 = 1.1;

/// What does not change while a config is in force.
#[derive(Clone, Debug, PartialEq)]
pub struct Terms {
    /// How often the host asks.
    pub sync: Duration,
    /// For how long a share is good.
    pub lease: Duration,
    /// What holds when it is good no longer.
    pub when_store_is_down: WhenStoreIsDown,
    /// The limit's rate in units a second.
    pub rate: f64,
    /// Units that pass at once at the most.
    pub units: u64,
}

impl Terms {
    /// A lease lasts for ten syncs, and no less than a second, so that a store may be slow for a while.
    #[must_use]
    pub fn lease_for(sync: Duration) -> Duration {
        (10 * sync).max(Duration::from_secs(1))
    }

    /// For how long an answer is waited for: a third of a lease, so that other tries are left.
    #[must_use]
    pub fn patience_for(sync: Duration) -> Duration {
        Self::lease_for(sync) / 3
    }
}

/// What was asked of the limit here since it was made, in units.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// Passed and refused.
    pub wanted: u64,
    /// Refused.
    pub refused: u64,
}

/// What holds on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InForce {
    /// The share of rate and burst.
    pub share: Share,
    /// Nothing is refused, whatever the share.
    pub is_open: bool,
}

/// Where the share in force is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// No store has answered yet.
    Joining,
    /// The ledger.
    Leased,
    /// The lease ran out: `when_store_is_down`.
    Alone,
}

/// A host's part in one limit.
#[derive(Clone, Debug)]
pub struct Member {
    terms: Terms,
    host: String,
    standing: Standing,
    in_force: InForce,
    ends: u64,
    next: u64,
    early: u32,
    sequence: u64,
    /// The last grant, and when it was asked for by this host's clock.
    granted: Option<(Acknowledged, u64)>,
    /// An earlier run of the agent, until the ledger has taken note of its end.
    replaces: Option<String>,
    epoch: u64,
    /// Whether another server may be asked from now on than the one that granted the share.
    has_moved: bool,
    hosts: u64,
    is_quiet: bool,
    /// Demand in units a second, averaged.
    demand: f64,
    counted: Usage,
    counted_at: u64,
    refuses: bool,
}

impl Member {
    /// Joins at `now`. `host` names the host and this run of its agent.
    #[must_use]
    pub fn new(terms: Terms, host: String, usage: Usage, now: u64) -> Self {
        let mut member = Self {
            terms,
            host,
            standing: Standing::Joining,
            in_force: InForce { share: Share::NOTHING, is_open: false },
            ends: now,
            next: now,
            early: 0,
            sequence: 0,
            granted: None,
            replaces: None,
            epoch: 0,
            has_moved: false,
            hosts: 1,
            is_quiet: false,
            demand: 0.0,
            counted: usage,
            counted_at: now,
            refuses: false,
        };
        member.in_force = member.fallback();
        member
    }

    /// Joins in place of an earlier run of this host's agent, or, where that has left nothing of this limit, in a cluster
    /// of `hosts`. Until the ledger grants a share, the host applies no more than the earlier run did, and, for as long as
    /// others may have a lease, no more than `when_store_is_down` allows.
    #[must_use]
    pub fn after(past: Option<&PastLimit>, hosts: u64, new: Self) -> Self {
        let mut member = Self { hosts: hosts.max(1), ..new };
        if let Some(past) = past {
            member.hosts = past.hosts.max(1);
            member.epoch = past.epoch;
        }
        member.in_force = member.fallback();
        if let Some((past, share)) = past.and_then(|past| Some((past, past.share?))) {
            member.replaces = Some(past.host.clone());
            member.standing = Standing::Alone;
            let share = Share::of_parts(share).min(member.in_force.share);
            member.in_force = InForce { share, is_open: false };
        }
        member
    }

    /// The same member under another config: what it has stays valid for as long as it was.
    #[must_use]
    pub fn under(self, terms: Terms, usage: Usage, now: u64) -> Self {
        let mut member = Self { terms, counted: usage, counted_at: now, next: now, early: 0, ..self };
        if member.standing == Standing::Joining {
            member.in_force = member.fallback();
        }
        member
    }

    /// What the next run of this agent has to know; without a share if it was given back.
    #[must_use]
    pub fn past(&self) -> PastLimit {
        let share = (self.standing != Standing::Joining).then(|| self.in_force.share.parts());
        PastLimit { host: self.host.clone(), share, hosts: self.hosts, epoch: self.epoch }
    }

    /// Without a store: each host for itself.
    fn fallback(&self) -> InForce {
        let share = |share| InForce { share, is_open: false };
        match self.terms.when_store_is_down {
            WhenStoreIsDown::Share => share(Share::one_of(self.hosts)),
            WhenStoreIsDown::Local => share(Share::WHOLE),
            WhenStoreIsDown::Open => InForce { share: Share::WHOLE, is_open: true },
            WhenStoreIsDown::Closed => share(Share::NOTHING),
        }
    }

    /// What holds at `now`.
    pub fn in_force(&mut self, now: u64) -> InForce {
        if self.standing == Standing::Leased && now >= self.ends {
            self.standing = Standing::Alone;
        }
        if self.standing == Standing::Alone {
            let fallback = self.fallback();
            // Others' leases may end later than this one, by less than a lease: until then nobody takes more.
            let grows = fallback.is_open || fallback.share > self.in_force.share;
            if !grows || now >= self.ends.saturating_add(nanoseconds(self.terms.lease)) {
                self.in_force = fallback;
            }
        }
        self.in_force
    }

    /// Takes note of what was asked of the limit until `now`; whether that is a reason to ask the store early.
    pub fn count(&mut self, usage: Usage, now: u64) {
        let elapsed = now.saturating_sub(self.counted_at);
        if elapsed < nanoseconds(self.terms.sync) / 5 {
            return;
        }
        let seconds = elapsed as f64 / 1e9;
        let wanted = usage.wanted.saturating_sub(self.counted.wanted) as f64;
        let refused = usage.refused > self.counted.refused;
        // The larger of what was and what is, so that what begins and what ends are both seen at once.
        let rate = (wanted / seconds).max(self.demand);
        let average = (UNITS_TO_AVERAGE / rate).min(LONGEST_AVERAGE_SECONDS).max(self.terms.sync.as_secs_f64() / 4.0);
        self.demand += (wanted / seconds - self.demand) * (1.0 - (-seconds / average).exp());
        if refused && !self.refuses && self.in_force.share < Share::WHOLE {
            // It begins to refuse: that cannot wait.
            self.next = self.next.min(now);
        }
        self.refuses = refused;
        self.counted = usage;
        self.counted_at = now;
    }

    /// Whether it is time to ask.
    #[must_use]
    pub const fn is_due(&self, now: u64) -> bool {
        now >= self.next
    }

    /// Asks at `now`.
    pub fn report(&mut self, now: u64) -> Report {
        let in_force = self.in_force(now);
        let applied = match self.standing {
            Standing::Leased => in_force.share.parts(),
            // The answer ends whatever holds before it; all that may go on without one is what nobody leased.
            Standing::Joining => 0,
            Standing::Alone => in_force.share.min(Share::one_of(self.hosts)).parts(),
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
            epoch: if self.has_moved { ANOTHER_EPOCH } else { self.epoch },
            leaves: false,
            replaces: self.replaces.clone(),
            grant: self
                .granted
                .filter(|_| self.standing == Standing::Leased)
                .map(|(grant, asked)| Acknowledged { elapsed: now.saturating_sub(asked) / 1_000_000, ..grant }),
        }
    }

    /// The demand that is told, in billionths of the limit's rate.
    fn demand_parts(&self) -> u64 {
        let mut factor = self.demand / self.terms.rate;
        if self.refuses {
            factor = factor.max(self.in_force.share.factor() * WANTED_WHEN_REFUSING);
        }
        ((factor * Share::PARTS as f64) as u64).min(LARGEST_DEMAND)
    }

    /// Takes the answer to the last report, which was made at `asked`.
    pub fn granted(&mut self, asked: u64, grant: &Grant, now: u64) -> InForce {
        let before = if self.standing == Standing::Leased { self.in_force.share.parts() } else { 0 };
        self.standing = Standing::Leased;
        self.ends = asked + nanoseconds(self.terms.lease);
        self.in_force = InForce { share: Share::of_parts(grant.share), is_open: false };
        self.granted = Some((Acknowledged { sequence: self.sequence, at: grant.at, elapsed: 0 }, asked));
        self.replaces = None;
        self.has_moved = false;
        self.epoch = grant.epoch;
        self.hosts = grant.hosts.max(1);
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
        // An answer that took longer than the lease is worth nothing.
        self.in_force(now)
    }

    /// The connection to the store is a new one. A replica may have taken over that lacks what was granted last.
    pub const fn reconnected(&mut self) {
        self.has_moved = self.epoch != 0;
    }

    /// Does not ask again before an instant: the store did not answer.
    pub fn ask_after(&mut self, instant: u64) {
        self.next = self.next.max(instant);
    }

    /// Gives everything back: the last report. From then on it is as a host that has not joined yet.
    pub fn leave(&mut self, now: u64) -> Report {
        let report = Report { leaves: true, ..self.report(now) };
        self.standing = Standing::Joining;
        report
    }

    /// Where the share is from.
    #[must_use]
    pub const fn standing(&self) -> Standing {
        self.standing
    }

    /// Hosts that the ledger knew of when it last answered, this one included.
    #[must_use]
    pub const fn hosts(&self) -> u64 {
        self.hosts
    }

    /// Whether the ledger lets no share grow yet.
    #[must_use]
    pub const fn is_quiet(&self) -> bool {
        self.is_quiet
    }

    /// What is asked of the limit here, in units a second.
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
        let terms =
            Terms { sync, lease: Terms::lease_for(sync), when_store_is_down: when, rate: 1_000.0, units: 1_000 };
        Member::new(terms, "a".to_owned(), Usage::default(), 0)
    }

    fn grant(share: f64, hosts: u64) -> Grant {
        let share = (share * Share::PARTS as f64) as u64;
        Grant { share, hosts, epoch: 1, is_quiet: false, held: share, demand: 0, target: share, at: 1 }
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
            assert_eq!(member.in_force(0).share.factor(), first, "{when}");
            member.granted(0, &grant(0.1, 4), 5 * MS);
            assert_eq!(member.in_force(999 * MS).share.factor(), 0.1, "the lease is good for a second");
            // For a lease more nobody takes more than they had; to hold less is at once.
            let during = member.in_force(1_999 * MS);
            assert_eq!((during.share.factor(), during.is_open), (f64::min(alone, 0.1), false), "{when}");
            let after = member.in_force(2_000 * MS);
            assert_eq!((after.share.factor(), after.is_open), (alone, is_open), "{when}");
            assert_eq!(member.standing(), Standing::Alone);
            // What it tells when the store is back is never more than its part.
            assert!(member.report(2_300 * MS).applied <= Share::PARTS / 4);
            assert_eq!(member.granted(2_300 * MS, &grant(0.3, 4), 2_301 * MS).share.factor(), 0.3);
        }
    }

    #[test]
    fn a_lease_counts_from_when_it_was_asked_for() {
        let mut member = member(WhenStoreIsDown::Closed);
        // The answer took 900 ms: it is good for 100 ms more.
        assert_eq!(member.granted(0, &grant(0.5, 2), 900 * MS).share.factor(), 0.5);
        assert_eq!(member.in_force(1_000 * MS).share, Share::NOTHING);
        // One that took longer than the lease is none.
        assert_eq!(member.granted(2_000 * MS, &grant(0.5, 2), 3_500 * MS).share, Share::NOTHING);
    }

    #[test]
    fn demand_is_what_passed_and_what_was_refused() {
        let mut member = member(WhenStoreIsDown::Share);
        let mut wanted = 0;
        for step in 1..=20 {
            wanted += 50;
            member.count(Usage { wanted, refused: 0 }, step * 25 * MS);
        }
        assert!((member.demand() - 2_000.0).abs() < 1.0, "{}", member.demand());
        assert!(member.report(500 * MS).demand.abs_diff(2 * Share::PARTS) < Share::PARTS / 1_000);
        // Half a second without: as good as forgotten.
        for step in 21..=40 {
            member.count(Usage { wanted, refused: 0 }, step * 25 * MS);
        }
        assert!(member.demand() < 100.0, "{}", member.demand());
    }

    #[test]
    fn whoever_begins_to_refuse_asks_at_once_and_for_more_than_it_has() {
        let mut member = member(WhenStoreIsDown::Share);
        member.report(0);
        member.granted(0, &grant(0.5, 2), MS);
        assert!(!member.is_due(30 * MS));
        member.count(Usage { wanted: 10, refused: 1 }, 30 * MS);
        assert!(member.is_due(30 * MS));
        assert_eq!(member.report(30 * MS).demand, (0.5f64 * 1.1 * Share::PARTS as f64) as u64);
    }

    #[test]
    fn what_is_given_up_is_told_at_once() {
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
            let past = PastLimit { host: "before".to_owned(), share, hosts: 4, epoch: 9 };
            let mut member = Member::after(Some(&past), 1, member(when));
            assert_eq!(member.in_force(0).share.factor(), first, "{when}");
            // Somebody else may have a lease for that long.
            assert_eq!(member.in_force(999 * MS).share.factor(), first, "{when}");
            assert_eq!(member.in_force(1_000 * MS).share.factor(), later, "{when}");
            let report = member.report(1_000 * MS);
            assert_eq!((report.replaces.is_some(), report.epoch), (share.is_some(), 9));
            member.granted(1_000 * MS, &grant(0.3, 4), 1_001 * MS);
            assert_eq!(member.report(1_100 * MS).replaces, None);
        }
        // A limit that is new among others that are known.
        let mut new = Member::after(None, 5, member(WhenStoreIsDown::Share));
        assert_eq!(new.in_force(0).share.factor(), 0.2);
    }

    #[test]
    fn a_lease_goes_on_under_another_config_until_it_ends() {
        let mut member = member(WhenStoreIsDown::Share);
        member.report(0);
        member.granted(0, &grant(0.7, 2), MS);
        let sequence = member.report(100 * MS).sequence;
        let terms = Terms { rate: 5_000.0, ..member.terms.clone() };
        let mut member = member.under(terms, Usage::default(), 200 * MS);
        assert!(member.is_due(200 * MS));
        assert_eq!(member.in_force(999 * MS).share.factor(), 0.7);
        assert_eq!(member.in_force(1_000 * MS).share.factor(), 0.5);
        assert_eq!(member.report(1_000 * MS).sequence, sequence + 1);
    }
}
