//! Documents of bans.

use common::ban::Ban;
use datapath::bans::{BanList, By, Held};
use datapath::compile::PrefixKey;

use crate::stats::{BanHolder, BanStatus};

/// The bans of exactly this prefix; `None` if none is in effect. The document is of the one that ends last.
pub(crate) fn ban_status(bans: &BanList, prefix: &PrefixKey, now: u64) -> Option<BanStatus> {
    let mut holders = bans
        .holders(prefix, now)
        .into_iter()
        .map(|(by, held)| holder(by, held, now));
    let BanHolder {
        origin,
        reason,
        since,
        origin_on_host,
        expires_in_seconds,
    } = holders.next()?;
    let also = holders.collect();
    Some(BanStatus {
        cidr: prefix.to_string(),
        expires_in_seconds,
        origin,
        reason,
        since,
        origin_on_host,
        also,
    })
}

/// The operator's or a limit's ban of exactly this prefix until an instant of the monotonic clock.
pub(crate) fn own_status(bans: &BanList, prefix: &PrefixKey, until: u64, now: u64) -> BanStatus {
    let own = bans
        .own(prefix)
        .map(|(by, held)| holder(by, held, now))
        .unwrap_or_default();
    BanStatus {
        cidr: prefix.to_string(),
        expires_in_seconds: seconds_until(until, now),
        origin: own.origin,
        reason: own.reason,
        since: own.since,
        origin_on_host: None,
        also: Vec::new(),
    }
}

fn holder(by: By, held: &Held, now: u64) -> BanHolder {
    let why = held.why.as_ref();
    let origin = match (by, why.and_then(|why| why.limit.as_ref())) {
        (By::Operator, _) => "operator".to_owned(),
        (By::Limit, Some(limit)) => format!("limit:{limit}"),
        (By::Limit, None) => "limit".to_owned(),
        (By::CrowdSec, _) => "crowdsec".to_owned(),
        (By::Host, _) => match why.and_then(|why| why.host.as_ref()) {
            Some(host) => format!("host:{host}"),
            None => "host".to_owned(),
        },
    };
    let origin_on_host = why
        .filter(|why| why.host.is_some())
        .map(|why| match &why.limit {
            Some(limit) if limit.is_empty() => "limit".to_owned(),
            Some(limit) => format!("limit:{limit}"),
            None => "operator".to_owned(),
        });
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
        expires_in_seconds: seconds_until(held.until, now),
    }
}

/// Seconds until an instant of the monotonic clock; `None` if it is infinite.
#[must_use]
fn seconds_until(until: u64, now: u64) -> Option<f64> {
    (until != Ban::FOREVER).then(|| until.saturating_sub(now) as f64 / 1e9)
}
