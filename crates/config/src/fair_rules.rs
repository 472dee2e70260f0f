//! What a limit with `rate = "fair"` may have.

use super::fair::{FAIR, Fair, FairTable, LimitRate, Signal};
use super::limit::Limit;
use super::limit_action::{Action, Throttle};
use super::policy::{
    Algorithm, Class, Direction, Key, Multiplier, ProtocolFilter, Rate, Service, Unit,
};
use super::rates::{RateText, ReadRate};
use super::report::{Problems, Span};
use super::schema::{self, Located, Place, read_inner};
use super::units;

impl Limit {
    /// Whether the agent finds its rate.
    #[must_use]
    pub const fn is_fair(&self) -> bool {
        self.shares.is_some()
    }

    /// Whether the load that its service reports is one of its signals.
    #[must_use]
    pub fn takes_load(&self) -> bool {
        let shares = self.shares.as_ref();
        shares.is_some_and(|shares| shares.signals.contains(&Signal::Load))
    }
}

/// Reads the shares of a limit with `rate = "fair"`, and reports what does not go with it.
pub fn read(limit: &Limit, place: Place<'_>, problems: &mut Problems) -> Option<Fair> {
    if !limit.rate.as_ref().is_some_and(LimitRate::is_fair) {
        if place.has(&Limit::FAIR) {
            let message = "fair requires rate = \"fair\"";
            let help = "set rate = \"fair\", or leave out fair";
            problems.error(place.span_of(&Limit::FAIR), message, help);
        }
        return None;
    }
    check(limit, place, problems);
    let written = limit.fair.clone().unwrap_or_default();
    let table = place.find(&Limit::FAIR).and_then(|at| {
        let unreported = &mut Problems::default();
        read_inner::<FairTable>(at, &Limit::FAIR, unreported)
    });
    let span = |key| match &table {
        Some(table) => table.span_of(key),
        None => place.span_of(&Limit::RATE),
    };
    let mut rate = |text: Option<RateText>, key| {
        let read = units::rate(&text?.0, limit.unit);
        read.map_err(|wrong| problems.error(span(key), wrong.message, wrong.help))
            .ok()
    };
    let at_least = rate(written.at_least, &FairTable::AT_LEAST);
    let at_most = rate(written.at_most, &FairTable::AT_MOST);
    let (least, least_text) = least(limit.unit);
    if at_least.is_some_and(|rate| is_below(rate, least)) {
        let message = format!("at_least is below {least_text}");
        let help = format!("write at_least = {least_text:?} or more");
        problems.error(span(&FairTable::AT_LEAST), message, help);
    }
    if let (Some(least), Some(most)) = (at_least, at_most)
        && is_below(most, least)
    {
        let message = "at_most is below at_least";
        let help = "write an at_most that is at least at_least";
        problems.conflict(span(&FairTable::AT_MOST), message, help);
    }
    let signals = written.signals.unwrap_or_else(|| vec![Signal::Sockets]);
    if signals.is_empty() {
        let message = "signals is empty: the limit would never refuse anything";
        let help = "write signals = [\"sockets\"], or leave out signals";
        problems.error(span(&FairTable::SIGNALS), message, help);
    }
    if let Err((message, help)) = check_signals(limit, &signals) {
        problems.error(span(&FairTable::SIGNALS), message, help);
    }
    if written.reported_by.as_deref() == Some("") {
        let message = "reported_by is empty";
        let help =
            "write a user's name or number, or leave out reported_by: then root alone reports";
        problems.error(span(&FairTable::REPORTED_BY), message, help);
    }
    if written.reported_by.is_some() && !signals.contains(&Signal::Load) {
        let message = "reported_by requires \"load\" in signals";
        let help = "write signals = [\"sockets\", \"load\"], or leave out reported_by";
        problems.error(span(&FairTable::REPORTED_BY), message, help);
    }
    Some(Fair {
        at_least,
        at_most,
        signals,
        reported_by: written.reported_by,
    })
}

/// Checks that each sign is one of this limit, and is there once. Returns what is wrong, and the correction.
fn check_signals(limit: &Limit, signals: &[Signal]) -> Result<(), (String, String)> {
    let reads_sockets = signals.contains(&Signal::Sockets);
    if limit.protocol == ProtocolFilter::Icmp && reads_sockets {
        let message =
            "signals has \"sockets\", and no socket queues packets of protocol = \"icmp\"";
        let help = "name the port of a server on this host, as signals = [8080], or write a number as the rate";
        return Err((message.to_owned(), help.to_owned()));
    }
    for (place, signal) in signals.iter().enumerate() {
        let text = signal.word();
        if signals[..place].contains(signal) {
            let message = format!("duplicate signal {text}");
            return Err((message, format!("leave out one {text}")));
        }
        // Of a limit on UDP, a number is a listener.
        let Signal::Port(port) = signal else { continue };
        let is_own = limit.ports.as_ref().is_none_or(|own| own.contains(*port));
        if reads_sockets && is_own && limit.protocol != ProtocolFilter::Udp {
            let message = format!(
                "duplicate signal {text}: it is one of the limit's own ports, whose signal is \"sockets\""
            );
            return Err((message, format!("leave out {text}")));
        }
    }
    Ok(())
}

/// The least level that may be set: what a source uses at a low level it owes for as long at a higher one.
const fn least(unit: Unit) -> (Rate, &'static str) {
    match unit {
        Unit::Bytes => (Rate::per_second(1_000), "1kB/s"),
        _ => (Rate::per_second(1), "1/s"),
    }
}

fn is_below(rate: Rate, other: Rate) -> bool {
    let cross = |a: Rate, b: Rate| u128::from(a.count) * u128::from(b.per_nanoseconds);
    cross(rate, other) < cross(other, rate)
}

/// The rate in place of a fair one: `at_most`, which has a rule of its own, or any.
pub fn rate_of(unit: Unit, fair: &Fair, span: Span) -> ReadRate {
    let any = match unit {
        Unit::Bytes => Rate::per_second(1_000_000),
        _ => Rate::per_second(1_000),
    };
    ReadRate {
        rate: fair.at_most.unwrap_or(any),
        text: FAIR.to_owned(),
        span,
        calendar: None,
    }
}

/// Reports keys and values that a fair limit does not support.
fn check(limit: &Limit, place: Place<'_>, problems: &mut Problems) {
    let mut unsupported = |key: &schema::Key, value: String, help: &str| {
        let message = format!("{value} is not supported with rate = \"fair\"");
        problems.error(place.span_of(key), message, help);
    };
    let Limit {
        unit,
        direction,
        key,
        algorithm,
        ..
    } = limit;
    if *unit == Unit::Requests {
        let help = "set unit = \"connections\", \"packets\" or \"bytes\"";
        unsupported(&Limit::UNIT, format!("unit = \"{unit}\""), help);
    }
    if *direction == Direction::Egress {
        let help = "leave out direction: signals are those of this host's servers";
        unsupported(
            &Limit::DIRECTION,
            format!("direction = \"{}\"", limit.direction_name()),
            help,
        );
    }
    if *key != Key::Source && *direction == Direction::Ingress {
        let help = "set key = \"source\", with ipv4_prefix and ipv6_prefix for networks";
        unsupported(&Limit::KEY, format!("key = \"{key}\""), help);
    }
    if *algorithm != Algorithm::TokenBucket {
        let help = "leave out algorithm";
        unsupported(
            &Limit::ALGORITHM,
            format!("algorithm = \"{algorithm}\""),
            help,
        );
    }
    if !matches!(limit.action, Action::Drop | Action::Reject) {
        let help = "set action = \"drop\" or \"reject\"";
        unsupported(
            &Limit::ACTION,
            format!("action = \"{}\"", limit.action.words()),
            help,
        );
    }
    if limit.throttle != Throttle::Hard {
        unsupported(
            &Limit::THROTTLE,
            "throttle".to_owned(),
            "leave out throttle",
        );
    }
    for key in [Limit::BURST, Limit::TIERS, Limit::ESCALATE, Limit::CLUSTER] {
        if place.has(&key) {
            let name = key.name;
            let help = format!("leave out {name}, or write it in a second limit");
            unsupported(&key, name.to_owned(), &help);
        }
    }
}

/// Reports classes with a multiplier beside fair limits.
pub fn check_classes(
    limits: &[Located<'_, Limit>],
    classes: &[Located<'_, Class>],
    problems: &mut Problems,
) {
    let is_multiplied = |read: &&Located<'_, Class>| matches!(read.table.service(), Service::Multiplier(by) if by != Multiplier::ONE);
    let Some(class) = classes.iter().find(is_multiplied) else {
        return;
    };
    let name = &class.table.name;
    for read in limits.iter().filter(|read| read.table.is_fair()) {
        let message = format!(
            "rate = \"fair\" is not supported with a multiplier, as class {name:?} has one"
        );
        let help = "leave out the multiplier, or write a number as the rate";
        problems.error(read.span_of(&Limit::RATE), message, help);
    }
}

#[cfg(test)]
mod tests;
