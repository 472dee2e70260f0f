//! A host's part in the lead of its zone for one limit: its claims to the zone's ledger, and the zone's requests to the
//! ledger of all zones.
//!
//! Without a clock and stores: callers pass instants, in nanoseconds of a monotonic clock of this host. What is written into
//! the zone's ledger has instants of that ledger's clock, so that a claim that arrives late prolongs nothing.

use std::time::Duration;

use common::share::Share;
use decide::EffectiveShare;

use crate::ledger::{Claim, ClaimReply, Grant, Report, ZoneShare};
use crate::member::{LeaseState, Member, Terms, Usage};
use crate::past::PastLimit;

const MILLISECOND: u64 = 1_000_000;
/// A lease from all zones outlasts the zone's share by this many leases of the zone's hosts: the last of them may begin just
/// before the share ends.
const HOST_LEASES: u64 = 2;

/// A host that leads its zone for a limit, or claims to.
#[derive(Clone, Debug)]
pub struct ZoneMember {
    /// Between zones.
    terms: Terms,
    /// The length of a lease of the zone's hosts, and of a claim, in nanoseconds.
    host_lease: u64,
    claim_lasts: u64,
    /// The name of this host, of this run of its agent and of this member.
    host: String,
    zone: String,
    term: Option<Term>,
    claim_at: u64,
    /// Whether the last claim has no reply yet.
    is_unanswered: bool,
    /// The zones and the epoch that were seen last: the zone's store may lose them.
    seen: Option<(u64, u64)>,
    /// Whether the zone's ledger has had a share, and when it was first without.
    has_share: bool,
    lost_at: Option<u64>,
}

/// While the host leads.
#[derive(Clone, Debug)]
struct Term {
    /// The name under which the zone leases: that of the lead before, so that the zone is one member.
    name: String,
    member: Member,
    /// The host leads until then, by its clock.
    until: u64,
    clock: LedgersClock,
    /// The most that the zone's hosts may enforce, in billionths.
    reserve: u64,
    /// Until then the zone's ledger may lack shares that hosts enforce: the reserve does not become smaller.
    unsettled_until: u64,
    /// The sequence of the last share in the zone's ledger, as far as known, and of the last that was sent.
    written: u64,
    sequence: u64,
    /// The sequence and the share of the claim that has no reply yet.
    sent: Option<(u64, u64)>,
    /// The share that was written or sent last.
    share: u64,
    /// The reserve in the last request, and what that said that the zone applies.
    reported: u64,
    applied: u64,
    has_failed: bool,
}

/// The zone's ledger's clock, read between two instants of this host's.
#[derive(Clone, Copy, Debug)]
struct LedgersClock {
    at: u64,
    asked: u64,
    received: u64,
}

impl LedgersClock {
    /// Its time at an instant of this host, or an earlier one.
    const fn at_least(self, instant: u64) -> u64 {
        let before = self.received.saturating_sub(instant).div_ceil(MILLISECOND);
        (self.at + instant.saturating_sub(self.received) / MILLISECOND).saturating_sub(before)
    }

    /// Its time at an instant of this host, or a later one.
    const fn at_most(self, instant: u64) -> u64 {
        self.at + instant.saturating_sub(self.asked).div_ceil(MILLISECOND) + 1
    }

    /// This host's instant for a time of it, or a later one.
    const fn instant_of(self, at: u64) -> u64 {
        (self.received + at.saturating_sub(self.at) * MILLISECOND)
            .saturating_sub(self.at.saturating_sub(at) * MILLISECOND)
    }
}

impl ZoneMember {
    /// `host_terms` are those of the zone's hosts, `sync` the interval of requests to all zones. `host` is a name that no
    /// other member has, of this run of the agent or another.
    #[must_use]
    pub fn new(host_terms: &Terms, sync: Duration, zone: &str, host: String, now: u64) -> Self {
        let terms = Terms {
            sync,
            lease: Terms::lease_for(sync),
            in_zone: false,
            ..host_terms.clone()
        };
        // A request to each of the two stores, and the time until the next claim.
        let claim =
            Terms::patience_for(sync) + Terms::patience_for(host_terms.sync) + 2 * terms.sync;
        Self {
            terms,
            host_lease: host_terms.lease.as_nanos() as u64,
            claim_lasts: claim.as_nanos() as u64,
            host,
            zone: zone.to_owned(),
            term: None,
            claim_at: now,
            is_unanswered: false,
            seen: None,
            has_share: false,
            lost_at: None,
        }
    }

    #[must_use]
    pub fn leads(&self, now: u64) -> bool {
        self.term.as_ref().is_some_and(|term| now < term.until)
    }

    /// The instant of the next claim or request.
    #[must_use]
    pub fn next(&self, now: u64) -> u64 {
        let of_term = |term: &Term| {
            if term.reserve < term.reported {
                now
            } else {
                term.member.next()
            }
        };
        let term = self.term.as_ref().filter(|_| self.leads(now));
        self.claim_at.min(term.map_or(u64::MAX, of_term))
    }

    #[must_use]
    pub const fn claims(&self, now: u64) -> bool {
        now >= self.claim_at
    }

    /// The claim at `now`, with the zone's share.
    pub fn claim(&mut self, now: u64) -> Claim {
        // Hosts have no lease while their ledger lacks the zone's share.
        let sync = self.terms.sync.as_nanos() as u64;
        self.claim_at = now + sync.min(self.host_lease / 2);
        let lease = self.terms.lease.as_nanos() as u64;
        // A store that has not replied may have stood still, and its clock: the next claim reads it.
        let is_unanswered = std::mem::replace(&mut self.is_unanswered, true);
        let share = self.term.as_mut().and_then(|term| {
            term.sent = None;
            if is_unanswered {
                return None;
            }
            term.share((lease, self.host_lease), now)
        });
        Claim {
            host: self.host.clone(),
            lasts: self.claim_lasts / MILLISECOND,
            lease: self.host_lease / MILLISECOND,
            has_seen: self.has_share && self.term.is_none(),
            share,
        }
    }

    /// Applies the reply to the claim of `asked`.
    pub fn claimed(&mut self, asked: u64, reply: &ClaimReply, now: u64) {
        self.is_unanswered = false;
        if let Some(before) = &reply.before {
            (self.has_share, self.lost_at) = (true, None);
            if before.epoch != 0 {
                self.seen = Some((before.zones, before.epoch));
            }
        } else if self.has_share {
            let lost_at = *self.lost_at.get_or_insert(now);
            self.has_share = now.saturating_sub(lost_at) < self.claim_lasts;
        }
        if !reply.leads {
            self.term = None;
            return;
        }
        let clock = LedgersClock {
            at: reply.at,
            asked,
            received: now,
        };
        if self.term.is_none() {
            let name = match &reply.before {
                Some(before) => before.member.clone(),
                None => format!("{}/{}.{}", self.zone, self.host, reply.at),
            };
            let new = Member::new(self.terms.clone(), name.clone(), Usage::default(), now);
            self.term = Some(Term::begin(name, new, self.seen, clock, reply));
        }
        let Some(term) = &mut self.term else { return };
        term.until = asked + self.claim_lasts;
        term.clock = clock;
        let wrote = term.sent.is_some();
        let share = term.claimed(reply, self.host_lease, now);
        // Hosts release what is above the zone's share within a few of their syncs.
        if term.reserve > share {
            self.claim_at = self.claim_at.min(now + self.host_lease / 10);
        }
        if !wrote && term.member.state() == LeaseState::Leased {
            self.claim_at = now;
        }
    }

    /// Whether the zone's request is due.
    #[must_use]
    pub fn is_due(&self, now: u64) -> bool {
        let is_due = |term: &Term| term.member.is_due(now) || term.reserve < term.reported;
        self.leads(now) && self.term.as_ref().is_some_and(is_due)
    }

    /// The zone's request to the ledger of all zones.
    pub fn report(&mut self, now: u64) -> Option<Report> {
        if !self.leads(now) {
            return None;
        }
        let margin = HOST_LEASES * self.host_lease;
        let term = self.term.as_mut()?;
        let report = term.member.report(now);
        // Hosts may enforce the zone's share for a lease after it has ended.
        let may_hold = term.member.state() == LeaseState::Leased
            || now < term.member.ends().saturating_add(margin);
        term.applied = if may_hold {
            term.reserve.max(report.applied)
        } else {
            // No host has the share from before that any more.
            term.reserve = parts(term.member.in_effect(now));
            report.applied
        };
        term.reported = term.reserve;
        Some(Report {
            applied: term.applied,
            lease: (self.terms.lease.as_nanos() as u64 + margin) / MILLISECOND,
            ..report
        })
    }

    /// Applies the reply to the request of `asked`. The next claim writes it.
    pub fn granted(&mut self, asked: u64, grant: &Grant, now: u64) {
        if let Some(term) = &mut self.term {
            // While no share may grow, no other zone could have what this one releases.
            let keeps = grant.is_quiet && grant.held <= Share::PARTS;
            let share = if keeps {
                grant.share.max(term.applied.min(term.share))
            } else {
                grant.share
            };
            term.member.granted(asked, &Grant { share, ..*grant }, now);
            self.seen = Some((grant.hosts, grant.epoch));
            self.claim_at = now;
        }
    }

    /// Records a request to all zones that failed, and when the next one may follow.
    pub fn failed(&mut self, next: u64) {
        if let Some(term) = &mut self.term {
            term.has_failed = true;
            term.reported = term.reserve;
            term.member.request_after(next);
        }
    }

    /// Records a connection to another server of all zones.
    pub const fn reconnected(&mut self) {
        if let Some(term) = &mut self.term {
            term.member.reconnected();
        }
    }

    /// The claim that ends the lead, so that another host has it at once. The zone keeps its share for as long as that
    /// lasts.
    pub fn leave(&mut self) -> Claim {
        self.term = None;
        Claim {
            host: self.host.clone(),
            lasts: 0,
            lease: self.host_lease / MILLISECOND,
            has_seen: false,
            share: None,
        }
    }
}

impl Term {
    /// Takes the lead over, with the zone's share as it is in effect.
    fn begin(
        name: String,
        new: Member,
        seen: Option<(u64, u64)>,
        clock: LedgersClock,
        reply: &ClaimReply,
    ) -> Self {
        let before = reply.before.as_ref();
        let share = before.map(|before| before.share_at(reply.at));
        let seen = before.map(|before| (before.zones, before.epoch)).or(seen);
        let past = seen.map(|(hosts, epoch)| PastLimit {
            host: before.map_or(String::new(), |before| before.member.clone()),
            share,
            hosts,
            epoch,
        });
        let ends = before.map_or(clock.received, |before| clock.instant_of(before.ends));
        // The instant of the zone's ledger is later in each term: a thousand requests fit into a millisecond.
        let mut member = Member::after(past.as_ref(), 1, new)
            .ending(ends)
            .following(reply.at * 1_000);
        // It may request from another server than the previous lead.
        member.reconnected();
        let written = before.map_or(0, |before| before.sequence);
        Self {
            name,
            member,
            until: 0,
            clock,
            reserve: share.unwrap_or(0),
            share: share.unwrap_or(0),
            unsettled_until: 0,
            written,
            sequence: written,
            sent: None,
            reported: 0,
            applied: 0,
            has_failed: false,
        }
    }

    /// The zone's share, unless the previous lead's is in effect, or none is known.
    fn share(&mut self, (lease, host_lease): (u64, u64), now: u64) -> Option<ZoneShare> {
        let in_effect = self.member.in_effect(now);
        let ends = self.member.ends();
        let lasts_until = match self.member.state() {
            LeaseState::Leased => ends,
            LeaseState::Joining if !self.has_failed => return None,
            _ if now < ends => return None,
            LeaseState::Joining | LeaseState::Alone => now + host_lease,
        };
        let share = parts(in_effect);
        let grows = ends + lease + HOST_LEASES * host_lease;
        if self.member.state() == LeaseState::Alone && share > self.share && now < grows {
            return None;
        }
        self.share = share;
        self.reserve = self.reserve.max(share);
        self.sequence = self.sequence.max(self.written) + 1;
        self.sent = Some((self.sequence, share));
        Some(ZoneShare {
            sequence: self.sequence,
            share,
            ends: self.clock.at_least(lasts_until),
            alone: parts(self.member.fallback()),
            grows: self.clock.at_most(grows),
            zones: self.member.last_hosts(),
            member: self.name.clone(),
            epoch: self.member.epoch(),
        })
    }

    /// Applies the reply to a claim; returns the zone's share in its ledger.
    fn claimed(&mut self, reply: &ClaimReply, host_lease: u64, now: u64) -> u64 {
        let before = reply.before.as_ref();
        let (written, sequence) = (before.map_or(0, |before| before.sequence), self.sequence);
        let is_first = self.unsettled_until == 0;
        // A store that was emptied, or a replica that lagged, lacks what hosts have leased from it as well.
        let has_lost = written < self.written || self.sent.is_some() && written + 1 < sequence;
        if is_first || has_lost || reply.is_quiet {
            self.unsettled_until = now + host_lease;
        }
        let share = match self.sent.take() {
            Some((sequence, share)) => {
                self.written = sequence;
                share
            }
            None => before.map_or(0, |before| before.share_at(reply.at)),
        };
        let held = share.max(reply.held);
        if now >= self.unsettled_until {
            self.reserve = held;
            self.member.set_demand(reply.demand);
        } else {
            self.reserve = self.reserve.max(held);
        }
        share
    }
}

/// The share in billionths: a zone's ledger bounds its shares also where nothing is refused.
const fn parts(in_effect: EffectiveShare) -> u64 {
    if in_effect.is_open {
        Share::PARTS
    } else {
        in_effect.share.parts()
    }
}

#[cfg(test)]
impl ZoneMember {
    /// Whether it knows of a ledger of all zones.
    pub(super) const fn has_seen(&self) -> bool {
        self.seen.is_some()
    }
}
