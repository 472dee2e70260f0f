//! The results of offences.

use std::time::Duration;

use config::human;
use decide::{Offence, Scope};

use crate::daemon::events::{Event, EventKind};

/// The result of an offence.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Escalated {
    /// The source is banned for this time.
    Banned(Duration),
    /// It would be banned if the agent were not on `observe`.
    Observed(Duration),
    /// A longer ban exists, or the source is exempt.
    Unchanged,
    /// The ban failed, with the reason.
    Failed(String),
}

/// The event of a ban; `None` if there is none.
#[must_use]
pub fn event(offence: &Offence, outcome: &Escalated) -> Option<Event> {
    let (what, ban, time) = match outcome {
        Escalated::Banned(time) => (EventKind::Banned, "banned", time),
        Escalated::Observed(time) => (
            EventKind::WouldBan,
            "in enforce mode it would be banned",
            time,
        ),
        Escalated::Unchanged | Escalated::Failed(_) => return None,
    };
    let reason = format!("{}: {ban} for {}", offence.reason(), human::time(*time));
    let direction = if offence.scope == Scope::Packet {
        "ingress"
    } else {
        "request"
    };
    Some(Event {
        source: Some(offence.prefix.to_string()),
        limit: Some(offence.limit.to_string()),
        owner: Some(format!("limit:{}", offence.limit)),
        direction: Some(direction.to_owned()),
        ..Event::now(what, 1, reason)
    })
}
