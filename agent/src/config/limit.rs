//! `[[limit]]`.

use common::limiter::sliding_log::LARGEST_LOG;
use toml::de::DeValue;

use super::policy::{
    Action, Algorithm, Direction, Key, Limit, Mark, Multiplier, OnFull, PortSet, ProtocolFilter, Rate, Throttle, Tier,
    Unit,
};
use super::report::Span;
use super::table::{Table, Value, float, integer};
use super::{services, tcp, units};

/// A limit, and where its name stands.
pub struct ReadLimit {
    pub limit: Limit,
    pub name_span: Span,
    /// Where the burst stands, or the rate that is one.
    pub burst_span: Span,
}

/// One Ethernet frame without jumbo: a byte limit that cannot hold one can never pass it.
const FULL_FRAME: u64 = 1514;
/// The most rates of one limit.
const MOST_RATES: usize = 7;
/// A code point has six bits.
const LARGEST_DSCP: u64 = 63;
/// Packets that are to leave later than this are dropped by `fq` instead (its `horizon`).
const FQ_HORIZON_NANOSECONDS: u128 = 10_000_000_000;
/// The largest burst of packets.
const LARGEST_BURST: u64 = u32::MAX as u64;

const DIRECTIONS: &[(&str, Direction)] = &[("ingress", Direction::Ingress), ("egress", Direction::Egress)];

pub fn read(mut table: Table<'_, '_>) -> Option<ReadLimit> {
    table.required("name", "\"packets-per-source\"");
    let name = table.string("name", "\"packets-per-source\"");
    if let Some(("", span)) = &name {
        table.problems.error(span.clone(), "a limit needs a name", "write name = \"packets-per-source\"");
    }
    let direction = table.word("direction", DIRECTIONS).unwrap_or(Direction::Ingress);
    let protocol = table.word("protocol", ProtocolFilter::WORDS).unwrap_or(ProtocolFilter::Any);
    let unit = table.word("unit", Unit::WORDS).unwrap_or(Unit::Packets);
    let algorithm = table.word("algorithm", Algorithm::WORDS).unwrap_or(Algorithm::TokenBucket);
    let key = key(&mut table, direction);
    let ports = ports(&mut table);
    let ipv4_prefix = table.number("ipv4_prefix", 0, 32).unwrap_or(32) as u8;
    let ipv6_prefix = table.number("ipv6_prefix", 0, 128).unwrap_or(64) as u8;
    let on_full = table.word("on_full", OnFull::WORDS).unwrap_or(OnFull::Share);
    let action = action(&mut table, direction, algorithm);
    let throttle = throttle(&mut table);
    // What has scope = "request" is read elsewhere.
    table.word("scope", &[("packet", ()), ("request", ())]);
    let cluster = cluster(&mut table);

    table.required("rate", if unit == Unit::Bytes { "\"10MB/s\"" } else { "\"1000/s\"" });
    let rate = table.string("rate", "\"1000/s\"").and_then(|(text, span)| match units::rate(text, unit) {
        Ok(rate) => Some((rate, text.to_owned(), span)),
        Err(wrong) => {
            table.problems.error(span, wrong.message, wrong.help);
            None
        }
    });
    let burst = burst(&mut table, unit, algorithm);
    let burst_span = table.span_of(if burst.is_some() { "burst" } else { "rate" });
    let tiers = tiers(&mut table, unit);
    combinations(&mut table, protocol, unit, algorithm, key, ports.is_some());
    check_action(&mut table, action, throttle);
    if let (Action::Shape, Some((rate, _, _))) = (action, &rate) {
        check_queue(&mut table, *rate, burst.unwrap_or_else(|| default_burst(*rate, unit, algorithm)));
    }
    if let Some((rate, text, span)) = &rate {
        check_rates(&mut table, unit, algorithm, burst, &tiers, (*rate, text, span.clone()));
    }
    table.finish();

    let ((name, name_span), (rate, rate_text, _)) = (name?, rate?);
    let tiers = tiers
        .into_iter()
        .map(|(rate, text, _)| Tier { rate, burst: tier_burst(rate, unit, algorithm), text })
        .collect();
    let limit = Limit {
        name: name.to_owned(),
        direction,
        protocol,
        ports,
        key,
        ipv4_prefix,
        ipv6_prefix,
        unit,
        algorithm,
        rate,
        rate_text,
        burst: burst.unwrap_or_else(|| default_burst(rate, unit, algorithm)),
        throttle,
        action,
        on_full,
        tiers,
        cluster,
    };
    Some(ReadLimit { limit, name_span, burst_span })
}

/// The burst where none is written: the rate's N, and of bytes what TCP needs at that rate.
fn default_burst(rate: Rate, unit: Unit, algorithm: Algorithm) -> u64 {
    if unit == Unit::Bytes && algorithm.has_burst() { tcp::least_burst(rate) } else { rate.count }
}

/// A tier is a further allowance, such as a day's: its N passes at once, and of bytes no less than TCP needs.
fn tier_burst(rate: Rate, unit: Unit, algorithm: Algorithm) -> u64 {
    rate.count.max(default_burst(rate, unit, algorithm))
}

/// Whether all hosts of the cluster keep the limit together.
pub fn cluster(table: &mut Table<'_, '_>) -> bool {
    let Some(value) = table.value("cluster") else { return false };
    value.get_ref().as_bool().unwrap_or_else(|| {
        table.wrong_type("cluster", value, "cluster = true or cluster = false");
        false
    })
}

fn key(table: &mut Table<'_, '_>, direction: Direction) -> Key {
    let Some((text, span)) = table.string("key", "\"source\"") else { return Key::Source };
    // The address on the other side: the source of what comes in, the destination of what goes out.
    let (other_side, own) = match direction {
        Direction::Ingress => ("source", "destination"),
        Direction::Egress => ("destination", "source"),
    };
    if text == own {
        let message = format!("on {} every packet has this host's own address as its {own}", direction_name(direction));
        table.problems.error(span, message, format!("write key = {other_side:?}"));
        return Key::Source;
    }
    if text == other_side { Key::Source } else { table.word("key", Key::WORDS).unwrap_or(Key::Source) }
}

fn direction_name(direction: Direction) -> &'static str {
    DIRECTIONS.iter().find(|(_, known)| *known == direction).map_or("", |(name, _)| name)
}

fn ports(table: &mut Table<'_, '_>) -> Option<PortSet> {
    let example = "[443, \"8000-8100\", \"ssh\"]";
    let value = table.value("ports")?;
    let values = value.get_ref().as_array().map_or_else(|| vec![value], |array| array.iter().collect());
    if values.is_empty() {
        let span = table.span_of("ports");
        table.problems.error(
            span,
            "no port is named, so nothing would be limited",
            "name one, or leave ports out for all",
        );
    }
    let mut ranges = Vec::new();
    for value in values {
        match range(value) {
            Some(range) => ranges.push(range),
            None => {
                let help =
                    format!("write ports from 1 to 65535, ranges (the lower first) or services: ports = {example}");
                table.problems.error(value.span(), "invalid port: not a number, a range or a known service", help);
            }
        }
    }
    Some(PortSet::new(ranges))
}

fn range(value: Value<'_>) -> Option<(u16, u16)> {
    let port = |number: u64| u16::try_from(number).ok().filter(|port| *port > 0);
    if let Some(number) = integer(value) {
        return port(number).map(|port| (port, port));
    }
    let text = value.get_ref().as_str()?;
    if let Some(port) = services::port(text) {
        return Some((port, port));
    }
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let parse = |text: &str| text.trim().parse().ok().and_then(port);
    Some((parse(first)?, parse(last)?)).filter(|(first, last)| first <= last)
}

fn action(table: &mut Table<'_, '_>, direction: Direction, algorithm: Algorithm) -> Action {
    let words =
        &[("drop", Action::Drop), ("observe", Action::Observe), ("reject", Action::Reject), ("shape", Action::Shape)];
    let Some(value) = table.value("action") else { return Action::Drop };
    if value.get_ref().as_str() == Some("mark") {
        return Action::Mark(Mark::DEFAULT);
    }
    if let DeValue::Table(content) = value.get_ref() {
        let mut inner = Table::new(content, value.span(), "action", table.problems);
        let mark = inner.value("mark").map(|value| mark(&mut inner, value));
        if mark.is_none() {
            inner.problems.error(value.span(), "this is no action", MARK_HELP);
        }
        inner.finish();
        return Action::Mark(mark.unwrap_or(Mark::DEFAULT));
    }
    let action = table.word("action", words).unwrap_or(Action::Drop);
    if action == Action::Shape {
        if direction == Direction::Ingress {
            table.problems.error(
                value.span(),
                "what has arrived cannot be delayed",
                "set direction = \"egress\", or action = \"drop\"",
            );
        }
        if algorithm != Algorithm::LeakyBucket {
            table.problems.error(
                value.span(),
                "only a leaky bucket has a queue to delay in",
                "set algorithm = \"leaky-bucket\"",
            );
        }
    }
    action
}

const MARK_HELP: &str = "write \"mark\", or action = { mark = { mark = 1, dscp = 8 } }";

/// What a packet is marked with: one of the two at least.
fn mark(table: &mut Table<'_, '_>, value: Value<'_>) -> Mark {
    let DeValue::Table(content) = value.get_ref() else {
        table.problems.error(value.span(), "a mark is a table", MARK_HELP);
        return Mark::DEFAULT;
    };
    let mut inner = Table::new(content, value.span(), "mark", table.problems);
    let mark = inner.number("mark", 0, u64::from(u32::MAX)).map(|mark| mark as u32);
    let dscp = inner.number("dscp", 0, LARGEST_DSCP).map(|dscp| dscp as u8);
    if mark.is_none() && dscp.is_none() {
        inner.problems.error(value.span(), "this marks nothing", MARK_HELP);
    }
    inner.finish();
    Mark { mark, dscp }
}

fn throttle(table: &mut Table<'_, '_>) -> Throttle {
    let Some(value) = table.value("throttle") else { return Throttle::Hard };
    let help = "write \"hard\", { soft = \"10%\" } or { elastic = { up_to = 3.0 } }";
    match value.get_ref() {
        DeValue::String(text) if text == "hard" => Throttle::Hard,
        DeValue::Table(content) if content.contains_key("soft") => {
            let mut inner = Table::new(content, value.span(), "throttle", table.problems);
            let soft = inner.string("soft", "\"10%\"").and_then(|(text, span)| {
                let share = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
                let share = share.filter(|share| *share > 0.0 && *share <= 1_000.0);
                let multiplier = share.and_then(|share| Multiplier::new(1.0 + share / 100.0));
                if multiplier.is_none() {
                    inner.problems.error(
                        span,
                        format!("{text:?} is no share"),
                        "write a percentage above 0: { soft = \"10%\" }",
                    );
                }
                multiplier
            });
            inner.finish();
            soft.map_or(Throttle::Hard, Throttle::Soft)
        }
        DeValue::Table(content) if content.contains_key("elastic") => {
            let mut inner = Table::new(content, value.span(), "throttle", table.problems);
            let elastic = inner.value("elastic").and_then(|value| up_to(&mut inner, value));
            inner.finish();
            elastic.map_or(Throttle::Hard, Throttle::Elastic)
        }
        _ => {
            table.problems.error(value.span(), "this is no way to throttle", help);
            Throttle::Hard
        }
    }
}

/// How many times the limit an elastic one gives while the host has room.
fn up_to(table: &mut Table<'_, '_>, value: Value<'_>) -> Option<Multiplier> {
    const HELP: &str = "write { elastic = { up_to = 3.0 } }";
    let DeValue::Table(content) = value.get_ref() else {
        table.problems.error(value.span(), "elastic says up to how many times the limit", HELP);
        return None;
    };
    let mut inner = Table::new(content, value.span(), "elastic", table.problems);
    inner.required("up_to", "3.0");
    let up_to = inner.value("up_to").and_then(|value| {
        let times = float(value).filter(|times| *times > 1.0 && *times <= 1_000.0).and_then(Multiplier::new);
        if times.is_none() {
            inner.problems.error(value.span(), "up_to is a number above 1, at most 1000", HELP);
        }
        times
    });
    inner.finish();
    up_to
}

fn burst(table: &mut Table<'_, '_>, unit: Unit, algorithm: Algorithm) -> Option<u64> {
    let value = table.value("burst")?;
    let burst = match (unit, value.get_ref().as_str()) {
        (Unit::Bytes, Some(text)) => match units::size(text) {
            Ok(size) => Some(size),
            Err(wrong) => {
                table.problems.error(value.span(), wrong.message, wrong.help);
                None
            }
        },
        (Unit::Bytes, None) => {
            table.problems.error(value.span(), "a burst of bytes needs a unit", "write burst = \"256KiB\"");
            None
        }
        (_, Some(_)) => {
            table.problems.error(value.span(), format!("a burst of {unit} is a number"), "write burst = 2000");
            None
        }
        (_, None) => table.number("burst", 1, LARGEST_BURST),
    };
    if !algorithm.has_burst() {
        let help = "leave burst out, or set algorithm = \"token-bucket\"";
        table.problems.error(value.span(), format!("a {algorithm} has no burst: its rate says all"), help);
    }
    burst
}

fn tiers(table: &mut Table<'_, '_>, unit: Unit) -> Vec<(Rate, String, Span)> {
    let mut tiers = Vec::new();
    for (text, span) in table.strings("tiers", "[\"60/h\", \"10/5s\"]") {
        match units::rate(text, unit) {
            Ok(rate) => tiers.push((rate, text.to_owned(), span)),
            Err(wrong) => table.problems.error(span, wrong.message, wrong.help),
        }
    }
    tiers
}

fn combinations(
    table: &mut Table<'_, '_>,
    protocol: ProtocolFilter,
    unit: Unit,
    algorithm: Algorithm,
    key: Key,
    has_ports: bool,
) {
    if has_ports && protocol == ProtocolFilter::Icmp {
        let span = table.span_of("ports");
        table.problems.error(span, "icmp has no ports", "leave out ports, or set protocol = \"tcp\" or \"udp\"");
    }
    if unit == Unit::Connections && !matches!(protocol, ProtocolFilter::Any | ProtocolFilter::Tcp) {
        let span = table.span_of("unit");
        table.problems.error(
            span,
            format!("{protocol} has no connections"),
            "set protocol = \"tcp\", or unit = \"packets\"",
        );
    }
    if unit == Unit::Requests && protocol == ProtocolFilter::Icmp {
        let span = table.span_of("unit");
        table.problems.error(span, "icmp has no requests that are counted", "set unit = \"packets\"");
    }
    if unit == Unit::Bytes && algorithm == Algorithm::SlidingLog {
        let span = table.span_of("algorithm");
        table.problems.error(
            span,
            "a sliding log holds one instant a packet, and cannot count bytes",
            "set algorithm = \"sliding-window\"",
        );
    }
    for prefix in ["ipv4_prefix", "ipv6_prefix"] {
        if !key.has_address() && table.value(prefix).is_some() {
            let span = table.span_of(prefix);
            table.problems.error(
                span,
                format!("keys by {key} hold no address that {prefix} could shorten"),
                format!("leave out {prefix}"),
            );
        }
    }
}

/// What waits longer than `fq` allows is dropped after it has been counted as passed.
fn check_queue(table: &mut Table<'_, '_>, rate: Rate, burst: u64) {
    let longest = rate.nanoseconds_for(burst);
    if longest > FQ_HORIZON_NANOSECONDS {
        let said = if table.value("burst").is_some() { "burst" } else { "rate" };
        let span = table.span_of(said);
        let seconds = longest / 1_000_000_000;
        let message = format!("a full queue would take {seconds} s to send, and fq drops what waits longer than 10 s");
        table.problems.warning(span, message, "write a smaller burst, or give fq a longer horizon");
    }
}

/// An action and a throttle that do not go together.
fn check_action(table: &mut Table<'_, '_>, action: Action, throttle: Throttle) {
    let why = match action {
        _ if throttle == Throttle::Hard => return,
        Action::Mark(_) => "a limit that marks refuses nothing, so there is nothing to let through above it",
        Action::Shape => "a limit that shapes sends at a constant rate, so nothing passes above it",
        Action::Drop | Action::Observe | Action::Reject => return,
    };
    let span = table.span_of("throttle");
    table.problems.error(span, why, "leave out throttle, or set action = \"drop\"");
}

fn check_rates(
    table: &mut Table<'_, '_>,
    unit: Unit,
    algorithm: Algorithm,
    burst: Option<u64>,
    tiers: &[(Rate, String, Span)],
    main: (Rate, &str, Span),
) {
    let (rate, text, span) = main;
    let rates: Vec<(Rate, &str, Span)> = std::iter::once((rate, text, span.clone()))
        .chain(tiers.iter().map(|(rate, text, span)| (*rate, text.as_str(), span.clone())))
        .collect();
    if rates.len() > MOST_RATES {
        let span = table.span_of("tiers");
        table.problems.error(
            span,
            format!("{} rates on one limit", rates.len()),
            format!("write at most {MOST_RATES}, the main one included"),
        );
    }
    for (nth, (rate, text, span)) in rates.iter().enumerate() {
        if rates[..nth].iter().any(|(other, _, _)| other == rate) {
            table.problems.error(span.clone(), format!("{text} is said twice"), "leave one of them out");
        }
        if algorithm == Algorithm::SlidingLog && rate.count > LARGEST_LOG {
            let message = format!("{text} is more than a sliding log holds");
            table.problems.error(
                span.clone(),
                message,
                format!("write at most {LARGEST_LOG}, or algorithm = \"sliding-window\""),
            );
        }
        let holds = match (nth, burst) {
            (0, Some(burst)) => burst,
            (0, None) => default_burst(*rate, unit, algorithm),
            _ => tier_burst(*rate, unit, algorithm),
        };
        if unit == Unit::Bytes && holds < FULL_FRAME {
            let (span, help) = if nth == 0 && burst.is_some() {
                (table.span_of("burst"), "write at least burst = \"1514B\"")
            } else {
                (span.clone(), "give it a longer time, or a burst of at least \"1514B\"")
            };
            table.problems.error(span, "a full Ethernet frame has 1514 bytes and could never pass", help);
        }
        if nth == 0
            && let Some(burst) = burst
            && u128::from(burst) * u128::from(rate.per_nanoseconds) < u128::from(rate.count) * 100_000
            && rate.count > 1
        {
            let span = table.span_of("burst");
            let help = format!("leave burst out for {}", rate.count);
            table.problems.warning(span, format!("a burst of {burst} is less than {text} passes in a tenth of a millisecond: packets arrive less evenly than that"), help);
        }
    }
}
