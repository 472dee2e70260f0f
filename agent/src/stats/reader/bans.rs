//! Documents of bans.

use std::net::Ipv6Addr;

use common::ban::Ban;
use datapath::bans::{BanKey, BanList, By, Held, Owner};
use datapath::compile::PrefixKey;

use crate::stats::{BanHolder, BanStatus};

/// The bans of exactly this prefix; `None` if none is in effect. The document is of the one that ends last.
pub(crate) fn ban_status(bans: &BanList, prefix: &PrefixKey, now: u64) -> Option<BanStatus> {
    let holders = bans.holders(prefix, now).into_iter();
    let mut holders = holders.map(|(key, held)| holder(key, held, now));
    let first = holders.next()?.of(prefix.to_string());
    Some(BanStatus {
        also: holders.collect(),
        ..first
    })
}

/// One owner's ban.
pub(crate) fn holder(key: &BanKey, held: &Held, now: u64) -> BanHolder {
    let why = held.why.as_ref();
    let on_host = why.and_then(|why| why.host.as_ref());
    let origin = match (key.owner.by, on_host) {
        (By::Operator, _) => "operator".to_owned(),
        (By::Host, Some((host, _))) => format!("host:{host}"),
        _ => owner_text(&key.owner),
    };
    let origin_on_host = on_host.map(|(_, owner)| match owner.by {
        By::Operator => "operator".to_owned(),
        _ => owner_text(owner),
    });
    let owner = match key.owner.by {
        By::Host => origin.clone(),
        _ => owner_text(&key.owner),
    };
    let owner_on_host = on_host
        .filter(|(_, owner)| owner.name.is_some())
        .map(|(_, owner)| owner_text(owner));
    let reason = why
        .filter(|why| !why.text.is_empty())
        .map(|why| match why.decision {
            Some(id) => format!("{}, decision {id}", why.text),
            None => why.text.to_string(),
        });
    let since = (held.since != 0).then_some(held.since);
    BanHolder {
        origin,
        reason,
        since,
        origin_on_host,
        owner,
        owner_on_host,
        address: address(key),
        expires_in_seconds: seconds_until(held.until, now),
    }
}

/// An owner's name in documents.
#[must_use]
pub(crate) fn owner_text(owner: &Owner) -> String {
    match (owner.by, &owner.name) {
        (By::Operator, Some(name)) => name.to_string(),
        (By::Operator, None) => "operator".to_owned(),
        (By::Limit, Some(limit)) => format!("limit:{limit}"),
        (By::Limit, None) => "limit".to_owned(),
        (By::CrowdSec, _) => "crowdsec".to_owned(),
        (By::Host, _) => "host".to_owned(),
    }
}

/// The IPv6 address that was named instead of its /64.
fn address(key: &BanKey) -> Option<Ipv6Addr> {
    let network = u128::from_be_bytes(key.prefix.address);
    let id = u128::from(key.interface_id);
    (id != 0).then(|| Ipv6Addr::from(network | id))
}

/// Seconds until an instant of the monotonic clock; `None` if it is infinite.
#[must_use]
fn seconds_until(until: u64, now: u64) -> Option<f64> {
    (until != Ban::FOREVER).then(|| until.saturating_sub(now) as f64 / 1e9)
}
