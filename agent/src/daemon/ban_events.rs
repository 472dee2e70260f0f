//! Events of bans by operators.

use std::time::Duration;

use api::request::{BanOrder, Banned};
use config::{PrefixKey, human, prefix};

use crate::daemon::events::{Event, EventKind};

/// `for 10 min`, or until an operator ends it.
fn ban_time(seconds: Option<f64>) -> String {
    let time = seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    time.map_or_else(
        || "until it is lifted".to_owned(),
        |time| {
            format!(
                "for {}",
                human::time(Duration::from_secs(time.as_secs().max(1)))
            )
        },
    )
}

/// The most bans of one order with separate events; one event counts the rest.
const NAMED_BANS: usize = 10;

/// The events of an operator's bans.
pub(super) fn ordered(orders: &[BanOrder], banned: &Banned) -> Vec<Event> {
    let is_in_effect = |cidr: &String| {
        banned.kept.iter().all(|kept| kept.cidr != *cidr)
            && banned.without_effect.iter().all(|ban| ban.cidr != *cidr)
    };
    let canonical = |order: &BanOrder| {
        prefix::parse(&order.cidr)
            .ok()
            .map(|cidr| PrefixKey::from(&cidr).to_string())
    };
    let event = |order: &BanOrder, source: Option<String>, count: u64| {
        let reason = order
            .reason
            .as_ref()
            .map(|reason| format!(": {reason}"))
            .unwrap_or_default();
        let reason = format!(
            "ordered by an operator {}{reason}",
            ban_time(order.for_seconds)
        );
        Event {
            source,
            owner: order.owner.clone(),
            ..Event::now(EventKind::Banned, count, reason)
        }
    };
    let named = orders
        .iter()
        .filter_map(|order| Some((order, canonical(order).filter(is_in_effect)?)));
    let mut events: Vec<Event> = named
        .take(NAMED_BANS)
        .map(|(order, source)| event(order, Some(source), 1))
        .collect();
    let others = banned.banned.saturating_sub(events.len() as u64);
    if let (Some(order), true) = (orders.last(), others > 0) {
        events.push(event(order, None, others));
    }
    events
}
