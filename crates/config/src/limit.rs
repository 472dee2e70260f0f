//! `[[limit]]`.

use super::concurrent;
use super::escalate::{self, Counts};
use super::levels::{self, OwnKey};
use super::limit_action::{action, check_action, throttle};
use super::limit_ports::ports;
use super::limit_prove::{check_prove, prove};
use super::limit_scope;
use super::policy::{
    Action, Algorithm, ClusterMode, Direction, Key, Limit, OnFull, ProtocolFilter, Prove, Rate,
    Throttle, Unit,
};
use super::rates::ReadRates;
use super::read_limit::ReadLimit;
use super::table::Table;

/// `fq` drops packets whose departure time is further ahead than this (its `horizon`).
const FQ_HORIZON_NANOSECONDS: u128 = 10_000_000_000;

const DIRECTIONS: &[(&str, Direction)] = &[
    ("ingress", Direction::Ingress),
    ("egress", Direction::Egress),
];

pub fn read(mut table: Table<'_, '_>) -> Option<ReadLimit> {
    let name = table.name("limit", "\"packets-per-source\"");
    let direction = table
        .word("direction", DIRECTIONS)
        .unwrap_or(Direction::Ingress);
    let protocol = table
        .word("protocol", ProtocolFilter::WORDS)
        .unwrap_or(ProtocolFilter::Any);
    let unit = table.word("unit", Unit::WORDS).unwrap_or(Unit::Packets);
    let algorithm = table
        .word("algorithm", Algorithm::WORDS)
        .unwrap_or(Algorithm::TokenBucket);
    let key = key(&mut table, direction);
    let ports = ports(&mut table);
    let (sources, interfaces, scope_spans) = limit_scope::read(&mut table);
    let (ipv4_prefix, ipv6_prefix) = key.default_prefixes();
    let ipv4_prefix = table
        .number("ipv4_prefix", 0, 32)
        .map_or(ipv4_prefix, |length| length as u8);
    let ipv6_prefix = table
        .number("ipv6_prefix", 0, 128)
        .map_or(ipv6_prefix, |length| length as u8);
    let on_full = table
        .word("on_full", OnFull::WORDS)
        .unwrap_or(OnFull::Share);
    let action = action(&mut table, direction, algorithm);
    let throttle = throttle(&mut table);
    // Limits with scope = "request" are read in another module.
    table.word("scope", &[("packet", ()), ("request", ())]);
    let prove = prove(&mut table);
    let cluster = cluster(&mut table);
    check_cluster(&mut table, cluster, algorithm);
    let is_exchanged = key == Key::Source
        && unit == Unit::Packets
        && algorithm.has_burst()
        && matches!(action, Action::Drop | Action::Observe)
        && throttle == Throttle::Hard
        && ipv6_prefix <= 64;
    if cluster == Some(ClusterMode::Keys) && !is_exchanged {
        let span = table.span_of("cluster");
        let message = "cluster = \"keys\" on packets is not supported with these settings";
        let help = "set key = \"source\", unit = \"packets\", algorithm = \"token-bucket\", action = \"drop\", \
                    throttle = \"hard\" and an ipv6_prefix of at most 64; or set cluster = \"shares\"";
        table.problems.error(span, message, help);
    }

    let example = if unit == Unit::Bytes {
        "\"10MB/s\""
    } else {
        "\"1000/s\""
    };
    let concurrent = concurrent::read(&mut table, direction, unit, action);
    let rates = match &concurrent {
        Some(rate) => ReadRates::of_connections(rate.clone()),
        None => ReadRates::read(&mut table, Counts::Packets, unit, algorithm, example),
    };
    let burst_span = table.span_of(if concurrent.is_some() {
        "concurrent"
    } else if rates.burst.is_some() {
        "burst"
    } else {
        "rate"
    });
    let escalate = escalate::read(&mut table, Counts::Packets);
    if let (Some(ClusterMode::Keys), false) = (cluster, rates.tiers.is_empty()) {
        let span = table.span_of("tiers");
        table.problems.error(
            span,
            "tiers is not supported with cluster = \"keys\" on packets",
            "leave out tiers",
        );
    }
    let own = OwnKey {
        key,
        ipv4: ipv4_prefix,
        ipv6: ipv6_prefix,
    };
    let levels = levels::read(&mut table, own, algorithm, &rates);
    let levels_span = table.span_of("levels");
    combinations(&mut table, protocol, unit, algorithm, key, ports.is_some());
    check_action(&mut table, action, throttle);
    if prove.is_some() {
        check_prove(&mut table, direction, protocol, unit, action);
    }
    if concurrent.is_some() {
        concurrent::check_shared(
            &mut table,
            key,
            prove.is_some_and(Prove::is_by_cookies),
            action,
        );
    }
    if let (Action::Shape, Some(main)) = (action, &rates.main) {
        check_queue(&mut table, main.rate, rates.burst_of(main.rate));
    }
    rates.check(&mut table);
    let (key_span, escalate_span) = (table.span_of("key"), table.span_of("escalate"));
    table.finish();

    let ((name, name_span), rates) = (name?, rates.spec()?);
    let limit = Limit {
        name: name.to_owned(),
        direction,
        protocol,
        ports,
        key,
        ipv4_prefix,
        ipv6_prefix,
        unit,
        rates,
        concurrent: concurrent.map(|read| read.rate.count),
        levels,
        throttle,
        action,
        on_full,
        escalate,
        cluster,
        prove,
        sources,
        interfaces,
    };
    Some(ReadLimit {
        limit,
        name_span,
        key_span,
        burst_span,
        scope_spans,
        escalate_span,
        levels_span,
    })
}

/// The mode in which the cluster's hosts share the limit; `None` without `cluster`.
pub fn cluster(table: &mut Table<'_, '_>) -> Option<ClusterMode> {
    let value = table.value("cluster")?;
    if let Some(is_clusters) = value.get_ref().as_bool() {
        return is_clusters.then_some(ClusterMode::Shares);
    }
    if value.get_ref().as_str().is_some() {
        return table.word("cluster", ClusterMode::WORDS);
    }
    table.wrong_type(
        "cluster",
        value,
        "cluster = true (\"shares\"), cluster = \"keys\" or cluster = false",
    );
    None
}

/// Windows cannot share: a host's count stays on it while its share moves to another.
pub fn check_cluster(
    table: &mut Table<'_, '_>,
    cluster: Option<ClusterMode>,
    algorithm: Algorithm,
) {
    if cluster == Some(ClusterMode::Shares) && !algorithm.has_burst() {
        let span = table.span_of("cluster");
        let message =
            format!("cluster = \"shares\" is not supported with algorithm = \"{algorithm}\"");
        table.problems.error(
            span,
            message,
            "set cluster = \"keys\", or algorithm = \"token-bucket\"",
        );
    }
}

fn key(table: &mut Table<'_, '_>, direction: Direction) -> Key {
    let Some((text, span)) = table.string("key", "\"source\"") else {
        return Key::Source;
    };
    // The remote address: the source of incoming packets, the destination of outgoing ones.
    let (other_side, own) = match direction {
        Direction::Ingress => ("source", "destination"),
        Direction::Egress => ("destination", "source"),
    };
    if text == own {
        let message = format!(
            "invalid key {own:?}: on {} every packet has this host's own address as its {own}",
            direction_name(direction)
        );
        table
            .problems
            .error(span, message, format!("write key = {other_side:?}"));
        return Key::Source;
    }
    if text == other_side {
        Key::Source
    } else {
        table.word("key", Key::WORDS).unwrap_or(Key::Source)
    }
}

fn direction_name(direction: Direction) -> &'static str {
    DIRECTIONS
        .iter()
        .find(|(_, known)| *known == direction)
        .map_or("", |(name, _)| name)
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
        table.problems.error(
            span,
            "ports is not supported with protocol = \"icmp\"",
            "leave out ports, or set protocol = \"tcp\" or \"udp\"",
        );
    }
    if unit == Unit::Connections && !matches!(protocol, ProtocolFilter::Any | ProtocolFilter::Tcp) {
        let span = table.span_of("unit");
        table.problems.error(
            span,
            format!("unit = \"connections\" is not supported with protocol = \"{protocol}\""),
            "set protocol = \"tcp\", or unit = \"packets\"",
        );
    }
    if unit == Unit::Requests && protocol == ProtocolFilter::Icmp {
        let span = table.span_of("unit");
        let message = "unit = \"requests\" is not supported with protocol = \"icmp\"";
        table
            .problems
            .error(span, message, "set unit = \"packets\"");
    }
    if unit == Unit::Bytes && !algorithm.counts_bytes() {
        let span = table.span_of("algorithm");
        table.problems.error(
            span,
            format!("unit = \"bytes\" is not supported with algorithm = \"{algorithm}\""),
            "set algorithm = \"sliding-window\"",
        );
    }
    for prefix in ["ipv4_prefix", "ipv6_prefix"] {
        if !key.has_prefix() && table.value(prefix).is_some() {
            let span = table.span_of(prefix);
            table.problems.error(
                span,
                format!("{prefix} conflicts with key = \"{key}\": that key has no address"),
                format!("leave out {prefix}"),
            );
        }
    }
}

/// Packets that `fq` drops beyond its horizon have already been counted as passed.
fn check_queue(table: &mut Table<'_, '_>, rate: Rate, burst: u64) {
    let longest = rate.nanoseconds_for(burst);
    if longest > FQ_HORIZON_NANOSECONDS {
        let said = if table.value("burst").is_some() {
            "burst"
        } else {
            "rate"
        };
        let span = table.span_of(said);
        let seconds = longest / 1_000_000_000;
        let message = format!(
            "a full queue would take {seconds} s to send, and fq drops packets that wait longer than 10 s"
        );
        table.problems.warning(
            span,
            message,
            "write a smaller burst, or raise the horizon of fq (tc qdisc replace … fq horizon)",
        );
    }
}
