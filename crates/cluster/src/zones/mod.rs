//! Limits that are divided between zones, such as data centres, and by each zone among its hosts.
//!
//! A zone has a store of its own, whose ledger ([`crate::ledger`]) divides the zone's share among its hosts. One host leads
//! the zone for a limit: it leases that share from the ledger of all zones, as one member whose demand is the zone's, and
//! writes it into the zone's ledger. So a share moves between hosts within the zone's round trip, and the distance between
//! zones delays only what moves between them. A zone that is cut off from the others has its part of the limit, undivided.
//!
//! Bound: a zone returns a part of its share once its ledger says that no host enforces it. So the shares of all hosts add
//! up to the limit at most, under the conditions of a single ledger, whichever host leads.
//!
//! - [`zone_member`]: the lead of a zone for one limit, pure.
//! - `leads`: the tasks that run it against the two stores; `link`: their connections; [`claim`]: its requests to the zone's.

pub mod claim;
mod leads;
mod link;
#[cfg(test)]
mod simulation;
pub mod zone_member;

pub(crate) use leads::Leads;
