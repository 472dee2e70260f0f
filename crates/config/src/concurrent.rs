//! `concurrent` of `[[limit]]`: open connections at one time instead of a rate.

use super::policy::{Action, Direction, Key, Rate, Unit};
use super::rates::ReadRate;
use super::table::Table;

/// The most connections of one key ([`common::connections::MOST_CONCURRENT`]).
const MOST: u64 = common::connections::MOST_CONCURRENT;

/// The keys that describe a rate, or what becomes of packets above it.
const OF_RATES: [&str; 7] = [
    "rate",
    "burst",
    "tiers",
    "algorithm",
    "levels",
    "throttle",
    "cluster",
];

/// Reads the number, and reports the keys that conflict with it.
pub fn read(
    table: &mut Table<'_, '_>,
    direction: Direction,
    unit: Unit,
    action: Action,
) -> Option<ReadRate> {
    table.value("concurrent")?;
    let span = table.span_of("concurrent");
    // After an error, any number, so that no rate is missed.
    let number = table.number("concurrent", 1, MOST).unwrap_or(1);
    if unit != Unit::Connections {
        let message = format!("concurrent is not supported with unit = \"{unit}\"");
        table.problems.error(
            span.clone(),
            message,
            "set unit = \"connections\", or write a rate instead",
        );
    }
    if direction == Direction::Egress {
        let message = "concurrent is not supported on egress: it counts connections to this host";
        table.problems.error(
            span.clone(),
            message,
            "leave out direction, or limit outgoing connections in a [[group]]",
        );
    }
    for key in OF_RATES {
        if table.value(key).is_some() {
            let span = table.span_of(key);
            let message = format!("{key} conflicts with concurrent, which counts open connections");
            table.problems.error(
                span,
                message,
                format!("leave out {key}, or write it in a second limit"),
            );
        }
    }
    if matches!(action, Action::Mark(_) | Action::Shape) {
        let span = table.span_of("action");
        let message = "this action conflicts with concurrent: a connection is opened or refused";
        table.problems.error(
            span,
            message,
            "set action = \"drop\", \"reject\" or \"observe\"",
        );
    }
    let rate = Rate {
        count: number,
        per_nanoseconds: 1_000_000_000,
    };
    Some(ReadRate {
        rate,
        text: format!("{number} open"),
        span,
    })
}

/// Warns of a key that sources share if they do not prove their address: each forged SYN has a reservation for some
/// seconds, and the reservations of a few refuse everybody.
pub fn check_shared(table: &mut Table<'_, '_>, key: Key, is_proven: bool, action: Action) {
    if key.has_address() || is_proven || action == Action::Observe {
        return;
    }
    let span = table.span_of("key");
    let message = format!(
        "forged SYNs can use up concurrent for others: sources share key = \"{key}\", and each SYN reserves a connection \
         for some 3 s"
    );
    let help = "set prove = true, so that sources prove their address while SYN cookies are in use, or prove = \"always\"";
    table.problems.warning(span, message, help);
}
