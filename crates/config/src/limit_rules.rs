//! The rules between the keys of `[[limit]]` on packets.

use super::escalate::Counts;
use super::fair_rules;
use super::levels::{self, OwnKey};
use super::limit::Limit;
use super::limit_action::{Action, Throttle};
use super::limit_scope::{SourcePrefix, check_effect, check_some};
use super::policy::{
    Algorithm, ClusterMode, Direction, GeoKey, Key, ProtocolFilter, Prove, Rate, Unit,
};
use super::rates::{RateKeys, ReadRate, ReadRates};
use super::report::Problems;
use super::schema::{self, Located, Place};
use super::words::DESTINATION;

/// `fq` drops packets whose departure time is further ahead than this (its `horizon`).
const FQ_HORIZON_NANOSECONDS: u128 = 10_000_000_000;
const RATES: RateKeys = RateKeys {
    rate: &Limit::RATE,
    burst: &Limit::BURST,
    tiers: &Limit::TIERS,
};

/// Sets what depends on several keys, and checks the rules between them.
pub fn check(read: &mut Located<'_, Limit>, problems: &mut Problems) {
    let (limit, place) = (&mut read.table, read.place);
    check_key(limit, place, problems);
    check_sources(limit, place, problems);
    check_cluster(
        place,
        &Limit::CLUSTER,
        limit.cluster,
        limit.algorithm,
        problems,
    );
    limit.shares = fair_rules::read(limit, place, problems);
    let rates = rates(limit, place, problems);
    let own = OwnKey {
        key: limit.key,
        ipv4: limit.ipv4_prefix,
        ipv6: limit.ipv6_prefix,
    };
    let algorithm = limit.algorithm;
    limit.levels = if limit.is_fair() {
        levels::check_fair(place, &Limit::LEVELS, own, problems)
    } else {
        levels::check(place, &Limit::LEVELS, own, algorithm, &rates, problems)
    };
    rates.check(problems);
    if let (Action::Shape, Some(main)) = (limit.action, &rates.main) {
        check_queue(place, main.rate, rates.burst_of(main.rate), problems);
    }
    if let Some(spec) = rates.spec() {
        limit.rates = spec;
    }
    for check in [
        check_exchange,
        check_concurrent,
        check_action,
        check_traffic,
        check_prove,
    ] {
        check(limit, place, problems);
    }
}

/// Checks the word for the direction, and sets prefixes.
fn check_key(limit: &mut Limit, place: Place<'_>, problems: &mut Problems) {
    // The remote address: the source of incoming packets, the destination of outgoing ones.
    let source = Key::Source.to_string();
    let (other_side, own) = match limit.direction {
        Direction::Ingress => (source.as_str(), DESTINATION),
        Direction::Egress => (DESTINATION, source.as_str()),
    };
    let written = place.find(&Limit::KEY).and_then(|at| at.get_ref().as_str());
    if written == Some(own) {
        let message = format!(
            "invalid key {own:?}: on {} every packet has this host's own address as its {own}",
            limit.direction_name()
        );
        let help = format!("write key = {other_side:?}");
        problems.error(place.span_of(&Limit::KEY), message, help);
    }
    let (ipv4, ipv6) = limit.key.default_prefixes();
    for (key, length, default) in [
        (Limit::IPV4_PREFIX, &mut limit.ipv4_prefix, ipv4),
        (Limit::IPV6_PREFIX, &mut limit.ipv6_prefix, ipv6),
    ] {
        if !place.has(&key) {
            *length = default;
        } else if !limit.key.has_prefix() {
            let (name, own) = (key.name, limit.key);
            let message = format!("{name} conflicts with key = \"{own}\": that key has no address");
            problems.conflict(place.span_of(&key), message, format!("leave out {name}"));
        }
    }
}

/// Adds networks and countries to the sources.
fn check_sources(limit: &mut Limit, place: Place<'_>, problems: &mut Problems) {
    for key in [Limit::ASN, Limit::COUNTRY] {
        if let Some(at) = place.find(&key) {
            check_some(at, &key, "all sources", problems);
        }
    }
    let geo = GeoKey::all(&limit.asn, &limit.country);
    if !geo.is_empty() {
        limit.sources.get_or_insert_default().geo = geo;
    }
    if let Some(sources) = &limit.sources {
        for (source, span) in place.elements::<SourcePrefix>(&Limit::SOURCES) {
            check_effect(source, &span, sources, problems);
        }
    }
}

/// Windows cannot share: a host's count stays on it while its share moves to another.
pub fn check_cluster(
    place: Place<'_>,
    key: &schema::Key,
    cluster: Option<ClusterMode>,
    algorithm: Algorithm,
    problems: &mut Problems,
) {
    if cluster == Some(ClusterMode::Shares) && !algorithm.has_burst() {
        let message =
            format!("cluster = \"shares\" is not supported with algorithm = \"{algorithm}\"");
        let help = "set cluster = \"keys\", or algorithm = \"token-bucket\"";
        problems.error(place.span_of(key), message, help);
    }
}

/// The rates, or the number of open connections in their place.
fn rates<'t>(limit: &Limit, place: Place<'t>, problems: &mut Problems) -> ReadRates<'t> {
    if place.has(&Limit::CONCURRENT) {
        // After an error, any number, so that no rate is missed.
        let count = limit.concurrent.unwrap_or(1);
        let rate = Rate {
            count,
            per_nanoseconds: 1_000_000_000,
        };
        let number = ReadRate {
            rate,
            text: format!("{count} open"),
            span: place.span_of(&Limit::CONCURRENT),
            calendar: None,
        };
        return ReadRates::of_number(place, RATES, number, Unit::Connections);
    }
    if let Some(shares) = &limit.shares {
        let place_of_rate = place.span_of(&Limit::RATE);
        let main = fair_rules::rate_of(limit.unit, shares, place_of_rate);
        return ReadRates::of_number(place, RATES, main, limit.unit);
    }
    let burst = limit.burst;
    let burst = burst.and_then(|burst| burst.of(limit.unit, place.span_of(RATES.burst), problems));
    let measure = (limit.unit, limit.algorithm);
    ReadRates::read(place, RATES, Counts::Packets, measure, burst, problems)
}

/// Checks what hosts exchange of a limit with `cluster`.
fn check_exchange(limit: &Limit, place: Place<'_>, problems: &mut Problems) {
    if limit.cluster.is_some() && place.has(&Limit::LEVELS) {
        let message = "levels conflicts with cluster: hosts share only a limit's own key";
        let help = "leave out levels, or write a second limit without cluster";
        problems.error(place.span_of(&Limit::LEVELS), message, help);
    }
    if limit.cluster != Some(ClusterMode::Keys) {
        return;
    }
    let is_exchanged = limit.key == Key::Source
        && limit.unit == Unit::Packets
        && limit.algorithm.has_burst()
        && matches!(limit.action, Action::Drop | Action::Observe)
        && limit.throttle == Throttle::Hard
        && limit.ipv6_prefix <= 64;
    if !is_exchanged {
        let message = "cluster = \"keys\" on packets is not supported with these settings";
        let help = "set key = \"source\", unit = \"packets\", algorithm = \"token-bucket\", action = \"drop\", \
                    throttle = \"hard\" and an ipv6_prefix of at most 64; or set cluster = \"shares\"";
        problems.error(place.span_of(&Limit::CLUSTER), message, help);
    }
    if !limit.tiers.is_empty() {
        let message = "tiers is not supported with cluster = \"keys\" on packets";
        problems.error(place.span_of(&Limit::TIERS), message, "leave out tiers");
    }
}

/// Checks the keys beside `concurrent`.
fn check_concurrent(limit: &Limit, place: Place<'_>, problems: &mut Problems) {
    let Some(at) = place.find(&Limit::CONCURRENT) else {
        return;
    };
    if limit.unit != Unit::Connections {
        let message = format!("concurrent is not supported with unit = \"{}\"", limit.unit);
        let help = "set unit = \"connections\", or write a rate instead";
        problems.error(at.span(), message, help);
    }
    if limit.direction == Direction::Egress {
        let message = "concurrent is not supported on egress: it counts connections to this host";
        let help = "leave out direction, or limit outgoing connections in a [[group]]";
        problems.error(at.span(), message, help);
    }
    for key in [
        Limit::RATE,
        Limit::BURST,
        Limit::TIERS,
        Limit::ALGORITHM,
        Limit::LEVELS,
        Limit::THROTTLE,
        Limit::CLUSTER,
    ] {
        if place.has(&key) {
            let name = key.name;
            let message =
                format!("{name} conflicts with concurrent, which counts open connections");
            let help = format!("leave out {name}, or write it in a second limit");
            problems.error(place.span_of(&key), message, help);
        }
    }
    if matches!(limit.action, Action::Mark(_) | Action::Shape) {
        let message = "this action conflicts with concurrent: a connection is opened or refused";
        let help = "set action = \"drop\", \"reject\" or \"observe\"";
        problems.error(place.span_of(&Limit::ACTION), message, help);
    }
    // Each forged SYN has a reservation for some seconds, and the reservations of a few refuse everybody.
    let is_proven = limit.prove.is_some_and(Prove::is_by_cookies);
    if !limit.key.has_address() && !is_proven && limit.action != Action::Observe {
        let message = format!(
            "forged SYNs can use up concurrent for others: sources share key = \"{}\", and each SYN reserves a connection \
             for some 3 s",
            limit.key
        );
        let help = "set prove = true, so that sources prove their address while SYN cookies are in use, or prove = \"always\"";
        problems.warning(place.span_of(&Limit::KEY), message, help);
    }
}

/// Checks the keys beside `action`.
fn check_action(limit: &Limit, place: Place<'_>, problems: &mut Problems) {
    let conflict = match limit.action {
        Action::Mark(_) => {
            "throttle conflicts with action = \"mark\": a limit that marks refuses nothing"
        }
        Action::Shape => {
            "throttle conflicts with action = \"shape\": a limit that shapes sends at a constant rate"
        }
        Action::Drop | Action::Observe | Action::Reject => return,
    };
    if limit.throttle != Throttle::Hard {
        let help = "leave out throttle, or set action = \"drop\"";
        problems.error(place.span_of(&Limit::THROTTLE), conflict, help);
    }
    if limit.action != Action::Shape {
        return;
    }
    let span = place.span_of(&Limit::ACTION);
    if limit.direction == Direction::Ingress {
        problems.error(
            span.clone(),
            "action = \"shape\" is not supported on ingress: packets that have arrived cannot be delayed",
            "set direction = \"egress\", or action = \"drop\"",
        );
    }
    if !limit.algorithm.can_shape() {
        problems.error(
            span,
            "action = \"shape\" requires algorithm = \"leaky-bucket\": no other has a queue",
            "set algorithm = \"leaky-bucket\"",
        );
    }
}

/// Checks that such packets exist.
fn check_traffic(limit: &Limit, place: Place<'_>, problems: &mut Problems) {
    let Limit {
        protocol,
        unit,
        algorithm,
        ..
    } = limit;
    if limit.ports.is_some() && *protocol == ProtocolFilter::Icmp {
        problems.conflict(
            place.span_of(&Limit::PORTS),
            "ports is not supported with protocol = \"icmp\"",
            "leave out ports, or set protocol = \"tcp\" or \"udp\"",
        );
    }
    if *unit == Unit::Connections && !matches!(protocol, ProtocolFilter::Any | ProtocolFilter::Tcp)
    {
        problems.error(
            place.span_of(&Limit::UNIT),
            format!("unit = \"connections\" is not supported with protocol = \"{protocol}\""),
            "set protocol = \"tcp\", or unit = \"packets\"",
        );
    }
    if *unit == Unit::Requests && *protocol == ProtocolFilter::Icmp {
        problems.error(
            place.span_of(&Limit::UNIT),
            "unit = \"requests\" is not supported with protocol = \"icmp\"",
            "set unit = \"packets\"",
        );
    }
    if *unit == Unit::Bytes && !algorithm.counts_bytes() {
        problems.error(
            place.span_of(&Limit::ALGORITHM),
            format!("unit = \"bytes\" is not supported with algorithm = \"{algorithm}\""),
            "set algorithm = \"sliding-window\"",
        );
    }
}

/// Only sources of TCP can prove their address, and only before this host replies to them.
fn check_prove(limit: &Limit, place: Place<'_>, problems: &mut Problems) {
    if limit.prove.is_none() {
        return;
    }
    let Limit { protocol, unit, .. } = limit;
    let span = place.span_of(&Limit::PROVE);
    if limit.direction == Direction::Egress {
        let message = "prove is not supported with direction = \"egress\"";
        problems.error(span, message, "leave out prove");
    } else if *protocol != ProtocolFilter::Tcp
        && !(*protocol == ProtocolFilter::Any && *unit == Unit::Connections)
    {
        let message =
            format!("prove is not supported with protocol = \"{protocol}\" and unit = \"{unit}\"");
        let help = "set protocol = \"tcp\", or unit = \"connections\"";
        problems.error(span, message, help);
    } else if limit.action == Action::Observe {
        let message = "prove has no effect with action = \"observe\"";
        problems.warning(span, message, "set action = \"drop\", or leave out prove");
    }
}

/// Packets that `fq` drops beyond its horizon have already been counted as passed.
fn check_queue(place: Place<'_>, rate: Rate, burst: u64, problems: &mut Problems) {
    let longest = rate.nanoseconds_for(burst);
    if longest > FQ_HORIZON_NANOSECONDS {
        let burst = place.find(&Limit::BURST).map(|at| at.span());
        let span = burst.unwrap_or_else(|| place.span_of(&Limit::RATE));
        let seconds = longest / 1_000_000_000;
        let message = format!(
            "a full queue would take {seconds} s to send, and fq drops packets that wait longer than 10 s"
        );
        let help =
            "write a smaller burst, or raise the horizon of fq (tc qdisc replace … fq horizon)";
        problems.warning(span, message, help);
    }
}
