//! The lead of a zone: one of its hosts leases the zone's share from the ledger of all zones, and writes it into the zone's
//! own, whose shares it bounds.
//!
//! The store runs `zone.lua`. This is the same function with the same operations.

use super::Ledger;

/// How far a change of the lead raises the sequence, so that what the previous lead has still under way is refused.
const TERM: u64 = 1_000;

/// The zone's share of a limit, as its lead writes it. Instants are milliseconds of the zone's ledger's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZoneShare {
    /// Increases with each write of a lead.
    pub sequence: u64,
    /// In billionths of the limit.
    pub share: u64,
    pub ends: u64,
    /// The share without the ledger of all zones, after the end.
    pub alone: u64,
    /// From when on that may be larger than `share`: the other zones' shares have ended as well.
    pub grows: u64,
    /// The zones that divide the limit.
    pub zones: u64,
    /// The name by which the lead has leased the share.
    pub member: String,
    /// The epoch of the ledger of all zones.
    pub epoch: u64,
}

impl ZoneShare {
    /// The bound of the sum of the hosts' shares.
    #[must_use]
    pub const fn share_at(&self, now: u64) -> u64 {
        if now >= self.ends && (self.alone <= self.share || now >= self.grows) {
            self.alone
        } else {
            self.share
        }
    }
}

/// A host's request to lead its zone, or to go on leading it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub host: String,
    /// How long the lead lasts, in milliseconds; 0 ends it.
    pub lasts: u64,
    /// The length of a lease of the zone's hosts, in milliseconds.
    pub lease: u64,
    /// Whether the host has seen a share of the zone: if the ledger has none, its lead writes it again.
    pub has_seen: bool,
    /// The zone's share from now on; `None` leaves it as it is.
    pub share: Option<ZoneShare>,
}

/// The reply to a [`Claim`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimReply {
    /// Whether the host leads.
    pub leads: bool,
    /// The most that the zone's hosts may enforce, in billionths of the limit.
    pub held: u64,
    /// The zone's demand, in billionths of the limit's rate.
    pub demand: u64,
    /// Whether hosts may enforce shares that the ledger lacks.
    pub is_quiet: bool,
    /// The ledger's clock, in milliseconds.
    pub at: u64,
    /// The zone's share before this claim.
    pub before: Option<ZoneShare>,
}

impl Ledger {
    /// Evaluates a claim at `micros` of the store's clock.
    pub fn claim(&mut self, micros: u64, claim: &Claim) -> ClaimReply {
        let now = (micros / 1_000 + self.offset).max(self.last);
        let current = self.lead.as_ref().filter(|(ends, _)| *ends > now);
        let is_own = current.is_some_and(|(_, host)| *host == claim.host);
        if let (false, None, Some(zone), 1..) = (is_own, current, &mut self.zone, claim.lasts) {
            zone.sequence += TERM;
        }
        let written = self.zone.as_ref().map_or(0, |zone| zone.sequence);
        let mut reply = ClaimReply {
            leads: false,
            held: self.held,
            demand: self.demand,
            is_quiet: now < self.quiet,
            at: now,
            before: self.zone.clone(),
        };
        let is_late = claim
            .share
            .as_ref()
            .is_some_and(|share| share.sequence <= written);
        let is_lost = self.zone.is_none() && claim.share.is_none() && claim.has_seen;
        if current.is_some() && !is_own || claim.lasts > 0 && (is_late || is_lost) {
            return reply;
        }
        if claim.lasts == 0 {
            self.lead = None;
            return reply;
        }
        reply.leads = true;
        self.lead = Some((now + claim.lasts, claim.host.clone()));
        if let Some(share) = &claim.share {
            // The ledger has lost a share, and perhaps those of hosts.
            if share.sequence > written + 1 {
                self.quiet = self.quiet.max(now + claim.lease);
            }
            self.zone = Some(share.clone());
        }
        reply
    }
}
