//! Translated ports, and where their connections go.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

/// Where netfilter sends the connections to a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Target {
    /// To another port or address of this host. `concurrent` counts them by the port that the client means.
    ThisHost,
    /// To another host or a container, whose sockets are not this host's.
    Elsewhere,
}

/// The translated TCP ports; of one that is sent to several, the furthest.
pub type Translations = BTreeMap<u16, Target>;

/// Adds other ports.
pub fn unite(to: &mut Translations, others: impl IntoIterator<Item = (u16, Target)>) {
    for (port, target) in others {
        let known = to.entry(port).or_insert(target);
        *known = target.max(*known);
    }
}

/// Where connections to this address go.
pub(super) fn target_of(address: IpAddr, own: &BTreeSet<IpAddr>) -> Target {
    if address.is_loopback() || own.contains(&address) {
        Target::ThisHost
    } else {
        Target::Elsewhere
    }
}
