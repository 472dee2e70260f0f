//! The hosts' shares of one limit: the function that the store runs, in Rust.
//!
//! The store runs `lease.lua`. This is the same function with the same operations, for the simulation and for readers.
//! A test sends the same requests to both and compares every reply.
//!
//! Source: B. Raghavan et al., "Cloud Control with Distributed Rate Limiting", SIGCOMM 2007. As in their flow
//! proportional share, a host's share is its part of all demand. Their hosts gossip estimates, whose sum may
//! temporarily be above or below the limit. Here shares are leases from one ledger, whose sum never exceeds the limit:
//! a share grows only by shares that other hosts have released, or whose leases have ended. Three problems that the
//! paper names are solved as follows:
//!
//! - *Stale demand.* A share that moves is idle from its release by one host to the next request of another. A host
//!   that releases a share, or waits for one, sends its next request early (`member.rs`), and small shares do not move.
//! - *Hosts below their share.* Proportion to demand alone starves hosts with new demand. Half of the spare limit is
//!   split in proportion, half evenly; a hundredth is always split evenly.
//! - *Senders that slow down.* Refused flows that adapt have less demand, and would get a smaller share. A host that
//!   refuses requests at least a tenth more than it has (`member.rs`).

use std::collections::{BTreeMap, BTreeSet};

use common::share::Share;

mod lead;

pub use lead::{Claim, ClaimReply, ZoneShare};

/// A hundredth is split evenly whatever the demand, so that a host with new demand has a share at once.
const IDLE_PART: u64 = 100;
/// The most expired leases that one request removes, to bound its work.
const FORGOTTEN: usize = 100;
/// The largest demand in a request, in billionths of the limit: sums of 2,000 hosts stay exact.
pub const LARGEST_DEMAND: u64 = 4_000 * Share::PARTS;

/// An epoch that no ledger has, for a host whose requests may reach another server than before.
pub const ANOTHER_EPOCH: u64 = 1;

/// A host's request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The host, and which of its agents.
    pub host: String,
    /// Increases with each request of this host, so that a late older one is ignored.
    pub sequence: u64,
    /// The share that it has in effect, in billionths.
    pub applied: u64,
    /// The host's demand, passed and refused, in billionths of the limit's rate.
    pub demand: u64,
    /// The limit's burst in units: shares are whole numbers of them.
    pub units: u64,
    /// The lease's length in milliseconds.
    pub lease: u64,
    /// The ledger's epoch in the host's last reply; 0 if there was none.
    pub epoch: u64,
    /// Whether the host returns its share and leaves.
    pub leaves: bool,
    /// An earlier run of this host's agent, which has ended: its lease ends now.
    pub replaces: Option<String>,
    /// The grant that the host enforces, while its lease lasts.
    pub grant: Option<Acknowledged>,
    /// Whether the ledger is a zone's: its shares add up to the zone's share of the limit.
    pub in_zone: bool,
}

/// The host's record of the grant that it enforces. The ledger compares it with its own, to detect that the store has lost
/// writes or that its clock was set forward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acknowledged {
    /// The sequence of the request that was granted.
    pub sequence: u64,
    /// The instant of the grant by the ledger's clock, in milliseconds.
    pub at: u64,
    /// The time since its request by the host's clock, in milliseconds.
    pub elapsed: u64,
}

/// The ledger's reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The host's share from now on, in billionths.
    pub share: u64,
    /// Hosts that have a lease.
    pub hosts: u64,
    /// A random number of each new or emptied ledger.
    pub epoch: u64,
    /// Whether no share may grow yet, because the ledger may lack shares that hosts enforce.
    pub is_quiet: bool,
    /// The sum of all hosts' shares, in billionths.
    pub held: u64,
    /// The sum of all hosts' demand, in billionths of the limit's rate.
    pub demand: u64,
    /// The host's share after the others have released what is above theirs.
    pub target: u64,
    /// The instant of the grant by the ledger's clock, in milliseconds.
    pub at: u64,
    /// The bound of the sum of all hosts' shares, in billionths: the whole limit, or the zone's share.
    pub all: u64,
    /// The zones that divide the limit.
    pub zones: u64,
}

/// A host's entry in the ledger.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    held: u64,
    demand: u64,
    sequence: u64,
    share: u64,
    ends: u64,
}

/// The ledger of one limit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ledger {
    hosts: BTreeMap<String, Entry>,
    ends: BTreeSet<(u64, String)>,
    epoch: u64,
    last: u64,
    offset: u64,
    quiet: u64,
    held: u64,
    demand: u64,
    zone: Option<ZoneShare>,
    lead: Option<(u64, String)>,
}

impl Ledger {
    /// Evaluates a request at `micros` of the store's clock; `None` if a later one of the host was evaluated before, or the
    /// zone has no share yet.
    pub fn lease(&mut self, micros: u64, report: &Report) -> Option<Grant> {
        if self
            .hosts
            .get(&report.host)
            .is_some_and(|own| own.sequence >= report.sequence)
        {
            return None;
        }
        let before = (self.epoch, self.quiet, self.offset);
        let now = self.advance(micros, report);
        let (all, zones) = match &self.zone {
            _ if !report.in_zone || report.leaves => (Share::PARTS, 1),
            Some(zone) => (zone.share_at(now), zone.zones),
            None => {
                (self.epoch, self.quiet, self.offset) = before;
                return None;
            }
        };
        self.forget(now);
        for host in report.replaces.iter().chain([&report.host]) {
            self.remove(host);
        }
        let (share, target) = if report.leaves {
            (0, 0)
        } else {
            self.grant(now, all, report)
        };
        self.last = now;
        Some(Grant {
            share,
            hosts: self.hosts.len() as u64,
            epoch: self.epoch,
            is_quiet: now < self.quiet,
            held: self.held,
            demand: self.demand,
            target,
            at: now,
            all,
            zones,
        })
    }

    fn remove(&mut self, host: &str) {
        if let Some(entry) = self.hosts.remove(host) {
            self.ends.remove(&(entry.ends, host.to_owned()));
            self.held -= entry.held;
            self.demand -= entry.demand;
        }
    }

    /// Advances the ledger's clock monotonically, and determines whether shares may be missing from the ledger.
    fn advance(&mut self, micros: u64, report: &Report) -> u64 {
        let mut now = micros / 1_000 + self.offset;
        if self.epoch == 0 {
            self.epoch = micros;
            if report.epoch != 0 {
                self.quiet = self.quiet.max(now + report.lease);
            }
            return now;
        }
        if now < self.last {
            self.offset += self.last - now;
            now = self.last;
        } else if now - self.last > report.lease && !self.hosts.is_empty() {
            self.quiet = self.quiet.max(now + report.lease);
        }
        let is_lost = |grant: Acknowledged| {
            self.hosts
                .get(&report.host)
                .is_none_or(|own| own.sequence < grant.sequence)
        };
        let is_ahead =
            |grant: Acknowledged| 2 * now.saturating_sub(grant.at + grant.elapsed) > report.lease;
        let is_another = report.epoch != 0 && report.epoch != self.epoch;
        if is_another
            || report
                .grant
                .is_some_and(|grant| is_lost(grant) || is_ahead(grant))
        {
            self.quiet = self.quiet.max(now + report.lease);
        }
        now
    }

    fn forget(&mut self, now: u64) {
        for _ in 0..FORGOTTEN {
            let Some((_, host)) = self.ends.first().filter(|(ends, _)| *ends <= now).cloned()
            else {
                return;
            };
            self.remove(&host);
        }
    }

    fn grant(&mut self, now: u64, all: u64, report: &Report) -> (u64, u64) {
        let applied = report.applied;
        self.held += applied;
        self.demand += report.demand;
        let room = all as f64 - self.held as f64;
        let hosts = (self.hosts.len() + 1) as f64;
        let mut target = target(all, report.demand as f64, self.demand as f64, hosts);
        if target < applied && target * 16 >= applied * 15 && room >= 0.0 {
            target = applied;
        }
        let room = if room > 0.0 && now < self.quiet {
            0.0
        } else {
            room
        };
        let unit = (Share::PARTS / report.units).max(1);
        let count = if report.demand > 0 {
            target.div_ceil(unit)
        } else {
            target / unit
        };
        let target = (count * unit).min(all / unit * unit);
        let share = target.min((applied as f64 + room).max(0.0) as u64) / unit * unit;
        let holds = applied.max(share);
        self.held += holds - applied;
        let ends = now + report.lease;
        let entry = Entry {
            held: holds,
            demand: report.demand,
            sequence: report.sequence,
            share,
            ends,
        };
        self.hosts.insert(report.host.clone(), entry);
        self.ends.insert((ends, report.host.clone()));
        (share, target)
    }

    /// The sum of the shares in the ledger, in billionths.
    #[must_use]
    pub const fn held(&self) -> u64 {
        self.held
    }

    /// Every host's entry in the store's format.
    pub fn entries(&self) -> impl Iterator<Item = (String, String)> + '_ {
        self.hosts.iter().map(|(host, entry)| {
            (
                host.clone(),
                format!(
                    "{} {} {} {}",
                    entry.held, entry.demand, entry.sequence, entry.share
                ),
            )
        })
    }
}

/// A share in proportion to demand; half of the spare limit is split evenly. The operations are those of the script.
fn target(all: u64, wanted: f64, demand: f64, hosts: f64) -> u64 {
    let idle = all / IDLE_PART;
    let all = all as f64;
    if demand == 0.0 {
        return (all / hosts).floor() as u64;
    }
    let spare = ((all - demand) / 2.0).max(idle as f64);
    (wanted / demand * (all - spare) + spare / hosts).floor() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(host: &str, sequence: u64, applied: u64, demand: f64) -> Report {
        let demand = (demand * Share::PARTS as f64) as u64;
        Report {
            host: host.to_owned(),
            sequence,
            applied,
            demand,
            units: 1_000,
            lease: 1_000,
            epoch: 0,
            leaves: false,
            replaces: None,
            grant: None,
            in_zone: false,
        }
    }

    const START: u64 = 1_700_000_000_000_000;

    #[test]
    fn a_host_alone_has_all_of_it() {
        let mut ledger = Ledger::default();
        for (nth, demand) in [0.0, 0.5, 40.0].into_iter().enumerate() {
            let grant = ledger
                .lease(START + nth as u64, &report("a", 1 + nth as u64, 0, demand))
                .unwrap();
            assert_eq!((grant.share, grant.hosts), (Share::PARTS, 1));
        }
    }

    #[test]
    fn a_released_share_is_granted_once_its_host_reports_it() {
        let mut ledger = Ledger::default();
        let first = ledger.lease(START, &report("a", 1, 0, 2.0)).unwrap();
        // All of the limit is leased: the new host gets nothing yet, though its target is half.
        let second = ledger
            .lease(START + 1_000, &report("b", 1, 0, 2.0))
            .unwrap();
        assert_eq!((second.share, second.target), (0, Share::PARTS / 2));
        let first = ledger
            .lease(START + 2_000, &report("a", 2, first.share, 2.0))
            .unwrap();
        assert_eq!(first.share, Share::PARTS / 2);
        assert_eq!(
            ledger
                .lease(START + 3_000, &report("b", 2, 0, 2.0))
                .unwrap()
                .share,
            0,
            "not acknowledged yet"
        );
        ledger
            .lease(START + 4_000, &report("a", 3, first.share, 2.0))
            .unwrap();
        assert_eq!(
            ledger
                .lease(START + 5_000, &report("b", 3, 0, 2.0))
                .unwrap()
                .share,
            Share::PARTS / 2
        );
    }

    #[test]
    fn a_lease_that_ran_out_is_free_and_one_given_back_at_once() {
        let mut ledger = Ledger::default();
        ledger.lease(START, &report("dies", 1, 0, 1.0)).unwrap();
        ledger
            .lease(START + 500_000, &report("b", 1, 0, 1.0))
            .unwrap();
        assert_eq!(
            ledger
                .lease(START + 999_000, &report("b", 2, 0, 1.0))
                .unwrap()
                .share,
            0
        );
        let grant = ledger
            .lease(START + 1_000_000, &report("b", 3, 0, 1.0))
            .unwrap();
        assert_eq!((grant.share, grant.hosts), (Share::PARTS, 1));
        ledger
            .lease(
                START + 1_001_000,
                &Report {
                    leaves: true,
                    ..report("b", 4, grant.share, 1.0)
                },
            )
            .unwrap();
        assert_eq!(
            ledger
                .lease(START + 1_002_000, &report("c", 1, 0, 1.0))
                .unwrap()
                .share,
            Share::PARTS
        );
    }

    #[test]
    fn a_request_that_comes_late_changes_nothing() {
        let mut ledger = Ledger::default();
        ledger.lease(START, &report("a", 7, 0, 1.0)).unwrap();
        let before = ledger.clone();
        assert_eq!(ledger.lease(START + 1_000, &report("a", 6, 0, 0.0)), None);
        assert_eq!(ledger, before);
    }

    #[test]
    fn an_emptied_store_grants_nothing_until_all_hosts_report() {
        let mut ledger = Ledger::default();
        let known = Report {
            epoch: 5,
            ..report("a", 9, 300_000_000, 9.0)
        };
        let grant = ledger.lease(START, &known).unwrap();
        assert_eq!((grant.share, grant.is_quiet), (300_000_000, true));
        let other = ledger
            .lease(
                START + 900_000,
                &Report {
                    epoch: 5,
                    ..report("b", 9, 700_000_000, 1.0)
                },
            )
            .unwrap();
        assert!(other.is_quiet && other.share <= 700_000_000);
        assert!(ledger.held() <= Share::PARTS);
    }

    #[test]
    fn a_clock_that_is_set_back_ends_no_lease_late_and_one_set_forward_grants_nothing_rashly() {
        let mut ledger = Ledger::default();
        ledger.lease(START, &report("a", 1, 0, 1.0)).unwrap();
        ledger.lease(START, &report("b", 1, 0, 1.0)).unwrap();
        // An hour back: a's lease still ends a second after its grant, by the elapsed time.
        let back = START - 3_600_000_000;
        ledger.lease(back, &report("b", 2, 0, 1.0)).unwrap();
        ledger
            .lease(back + 500_000, &report("b", 3, 0, 1.0))
            .unwrap();
        assert_eq!(
            ledger
                .lease(back + 1_000_000, &report("b", 4, 0, 1.0))
                .unwrap()
                .share,
            Share::PARTS
        );
        // An hour forward: all leases have expired by the clock; b keeps its share.
        let forward = ledger
            .lease(back + 3_600_000_000, &report("c", 1, 0, 1.0))
            .unwrap();
        assert_eq!((forward.share, forward.is_quiet), (0, true));
    }

    #[test]
    fn spare_shares_are_granted_ahead_of_demand() {
        let mut ledger = Ledger::default();
        let mut shares = [0; 4];
        for round in 1..20 {
            for (nth, share) in shares.iter_mut().enumerate() {
                let demand = if nth == 0 { 0.4 } else { 0.0 };
                let at = START + round * 100_000 + nth as u64 * 10_000;
                *share = ledger
                    .lease(at, &report(&nth.to_string(), round, *share, demand))
                    .unwrap()
                    .share;
            }
        }
        // Demand 0.4, spare 0.6: half of the spare in proportion, half in four parts.
        for (share, expected) in shares.iter().zip([0.775, 0.075, 0.075, 0.075]) {
            assert!(
                (*share as f64 / Share::PARTS as f64 - expected).abs() < 0.03,
                "{shares:?}"
            );
        }
    }

    /// Two hosts that have requested several times with even demand: the last grant of each.
    fn pair(ledger: &mut Ledger) -> [Grant; 2] {
        let mut shares = [0; 2];
        let mut grants = [None; 2];
        for sequence in 1..20 {
            for (nth, host) in ["a", "b"].into_iter().enumerate() {
                let at = START + sequence * 100_000 + nth as u64 * 1_000;
                let grant = ledger
                    .lease(at, &report(host, sequence, shares[nth], 2.0))
                    .unwrap();
                (shares[nth], grants[nth]) = (grant.share, Some(grant));
            }
        }
        grants.map(Option::unwrap)
    }

    fn with_grant(host: &str, grant: &Grant, elapsed: u64) -> Report {
        let acknowledged = Acknowledged {
            sequence: 19,
            at: grant.at,
            elapsed,
        };
        Report {
            epoch: grant.epoch,
            grant: Some(acknowledged),
            ..report(host, 20, grant.share, 2.0)
        }
    }

    #[test]
    fn a_store_that_has_lost_grants_lets_nobody_grow_for_a_lease() {
        let mut ledger = Ledger::default();
        let [_, second] = pair(&mut ledger);
        let lagging = ledger.clone();
        // Without a loss, shares continue.
        let at = START + 2_000_000;
        assert!(
            !ledger
                .clone()
                .lease(at, &with_grant("b", &second, 99))
                .unwrap()
                .is_quiet
        );
        // The replica missed the last grants: up to sequence 20 of both hosts.
        for host in ["a", "b"] {
            let mut behind = lagging.clone();
            let report = with_grant(host, &second, 50);
            let report = Report {
                sequence: 22,
                grant: report.grant.map(|grant| Acknowledged {
                    sequence: 20,
                    ..grant
                }),
                ..report
            };
            let grant = behind.lease(at, &report).unwrap();
            assert!(grant.is_quiet && grant.share <= report.applied, "{grant:?}");
        }
        // Also if the host's entry is missing.
        let mut behind = lagging;
        behind.remove("b");
        assert!(
            behind
                .lease(at, &with_grant("b", &second, 50))
                .unwrap()
                .is_quiet
        );
    }

    #[test]
    fn a_clock_set_forward_by_most_of_a_lease_lets_nobody_grow_for_a_lease() {
        let mut ledger = Ledger::default();
        let [_, second] = pair(&mut ledger);
        // 100 ms later by the host's clock; `step` more by the store's.
        for (step, is_quiet) in [(0, false), (400, false), (600, true), (990, true)] {
            let mut ledger = ledger.clone();
            let grant = ledger
                .lease(
                    START + 2_001_000 + step * 1_000,
                    &with_grant("b", &second, 100),
                )
                .unwrap();
            assert_eq!(grant.is_quiet, is_quiet, "{step} ms");
            assert!(
                !is_quiet || grant.share <= second.share,
                "{step} ms: {grant:?}"
            );
        }
    }

    #[test]
    fn an_agent_that_was_restarted_takes_its_own_lease_over() {
        let mut ledger = Ledger::default();
        let [first, _] = pair(&mut ledger);
        // Killed, and back 50 ms later: it keeps its share, and the other host loses nothing.
        let back = Report {
            replaces: Some("a".to_owned()),
            ..report("a2", 1, first.share, 2.0)
        };
        let grant = ledger.lease(START + 2_000_000, &back).unwrap();
        assert_eq!((grant.share, grant.hosts), (first.share, 2));
        assert!(ledger.held() <= Share::PARTS);
    }

    #[test]
    fn a_limit_of_few_units_is_leased_in_whole_ones() {
        let mut ledger = Ledger::default();
        let ask = |ledger: &mut Ledger, host: &str, sequence, applied| {
            ledger
                .lease(
                    START,
                    &Report {
                        units: 3,
                        ..report(host, sequence, applied, 1.0)
                    },
                )
                .unwrap()
                .share
        };
        let first = ask(&mut ledger, "a", 1, 0);
        ask(&mut ledger, "b", 1, 0);
        let first = ask(&mut ledger, "a", 2, first);
        ask(&mut ledger, "a", 3, first);
        let second = ask(&mut ledger, "b", 2, 0);
        let units = |share| Share::of_parts(share).units(3);
        assert_eq!((units(first), units(second)), (2, 1));
    }
}
