use std::path::Path;

use super::*;

const LIMIT: &str =
    "[[limit]]\nname = \"web\"\nports = [80, 443]\nunit = \"connections\"\nrate = \"fair\"\n";

fn parse(text: &str) -> Result<crate::Loaded, crate::report::Report> {
    let text = format!("[agent]\ninterfaces = [\"eth0\"]\n{text}");
    crate::parse(Path::new("limits.toml"), &text)
}

fn limit(lines: &str) -> Limit {
    let loaded = parse(&format!("{LIMIT}{lines}")).unwrap_or_else(|report| panic!("{report}"));
    assert!(loaded.warnings.is_empty());
    loaded.config.limits[0].clone()
}

#[test]
fn a_fair_limit_has_bounds_and_signals() {
    let shares = |lines: &str| limit(lines).shares.unwrap();
    assert_eq!(
        shares(""),
        Fair {
            at_least: None,
            at_most: None,
            signals: vec![Signal::Sockets],
            reported_by: None,
        }
    );
    assert_eq!(
        shares(
            "fair = { at_least = \"20/s\", at_most = \"5000/s\", signals = [\"sockets\", 8080] }\n"
        ),
        Fair {
            at_least: Some(Rate::per_second(20)),
            at_most: Some(Rate::per_second(5_000)),
            signals: vec![Signal::Sockets, Signal::Port(8_080)],
            reported_by: None,
        }
    );
}

#[test]
fn bounds_of_bytes_have_sizes() {
    let text = LIMIT.replace("connections", "bytes");
    let fair = "fair = { at_least = \"10kB/s\", at_most = \"80Mbit/s\" }\n";
    let loaded = parse(&format!("{text}{fair}")).unwrap_or_else(|report| panic!("{report}"));
    let shares = loaded.config.limits[0].shares.clone().unwrap();
    assert_eq!(
        (shares.at_least, shares.at_most),
        (
            Some(Rate::per_second(10_000)),
            Some(Rate::per_second(10_000_000))
        )
    );
    let report = parse(&format!("{text}fair = {{ at_least = \"10/s\" }}\n")).unwrap_err();
    assert!(report.to_string().contains("10kB/s"), "{report}");
}

#[test]
fn the_summary_of_a_fair_limit_has_its_keys() {
    assert_eq!(
        limit("fair = { at_least = \"20/s\", at_most = \"5000/s\", signals = [8080] }\n").summary(),
        "ingress tcp+udp/80,443  fair share of connections per address (IPv6 /64), at least 20/s, at most 5,000/s, by port 8080, drop"
    );
    assert_eq!(
        limit("").summary(),
        "ingress tcp+udp/80,443  fair share of connections per address (IPv6 /64), by sockets, drop"
    );
}

#[test]
fn networks_and_all_sources_are_levels_without_a_factor() {
    let levels =
        "levels = [{ prefix = \"24/48\" }, { key = \"all\" }]\nfair = { at_most = \"500/s\" }\n";
    let limit = limit(levels);
    assert!(
        limit.summary().contains(
            "at most 500/s, by sockets, when needed per IPv4 /24, IPv6 /48, when needed for all, drop"
        ),
        "{}",
        limit.summary()
    );
    let at_levels = limit.at_levels();
    let most: Vec<_> = at_levels
        .iter()
        .map(|at| (at.name.as_str(), at.shares.clone().unwrap().at_most))
        .collect();
    // `at_most` is a rate for sources.
    let of_sources = Some(Rate::per_second(500));
    assert_eq!(
        most,
        [
            ("web", of_sources),
            ("web at 24/48", None),
            ("web at all", None)
        ]
    );
}

#[test]
fn what_a_fair_limit_does_not_support_is_an_error() {
    for (text, message) in [
        ("fair = { at_least = \"59/min\" }", "at_least is below 1/s"),
        (
            "fair = { at_least = \"20/s\", at_most = \"10/s\" }",
            "at_most is below at_least",
        ),
        ("fair = { at_most = \"20\" }", "missing time"),
        (
            "fair = { at_mots = \"20/s\" }",
            "unknown key \"at_mots\" in fair",
        ),
        ("fair = { signals = [] }", "signals is empty"),
        ("fair = { signals = [\"cpu\"] }", "invalid signal \"cpu\""),
        ("fair = { signals = [0] }", "invalid signal 0"),
        (
            "fair = { signals = [\"load\"] }",
            "\"load\" in signals requires a Unix socket of [decide]",
        ),
        (
            "fair = { signals = [\"load\"], reported_by = \"\" }",
            "reported_by is empty",
        ),
        (
            "fair = { reported_by = \"app\" }",
            "reported_by requires \"load\" in signals",
        ),
        (
            "fair = { signals = [\"sockets\", \"sockets\"] }",
            "duplicate signal \"sockets\"",
        ),
        (
            "fair = { signals = [8080, 9090, 8080] }",
            "duplicate signal 8080",
        ),
        (
            "fair = { signals = [443, \"sockets\"] }",
            "duplicate signal 443: it is one of the limit's own ports",
        ),
        ("burst = 5", "burst is not supported"),
        ("tiers = [\"60/h\"]", "tiers is not supported"),
        (
            "levels = [{ prefix = \"24/48\", factor = 20 }]",
            "factor is not supported with rate = \"fair\"",
        ),
        (
            "levels = [{ key = \"all\" }]",
            "the first level is key = \"all\"",
        ),
        (
            "levels = [{ prefix = \"24/48\" }, { prefix = \"16/32\" }]",
            "a second level with a prefix is not supported",
        ),
        (
            "levels = [{ prefix = \"32/64\" }]",
            "not wider than the limit's own key, 32/64",
        ),
        (
            "levels = [{ prefix = \"24/48\" }, { key = \"asn\" }]\n[geo]\nasn = \"/asn.mmdb\"",
            "key = \"asn\" of a level is not supported with rate = \"fair\"",
        ),
        (
            "levels = [{ prefix = \"24/48\" }, { key = \"all\" }, { key = \"all\" }]",
            "is not wider than the level before",
        ),
        ("key = \"all\"", "key = \"all\" is not supported"),
        (
            "algorithm = \"leaky-bucket\"",
            "algorithm = \"leaky-bucket\" is not",
        ),
        (
            "action = \"observe\"",
            "action = \"observe\" is not supported",
        ),
        (
            "throttle = { soft = \"10%\" }",
            "throttle is not supported with rate = \"fair\"",
        ),
        (
            "escalate = { after = 9, within = \"1s\", ban = \"1m\" }",
            "escalate is not supported",
        ),
        ("concurrent = 5", "rate conflicts with concurrent"),
        (
            "direction = \"egress\"",
            "direction = \"egress\" is not supported",
        ),
        (
            "[[class]]\nname = \"payer\"\nsources = [\"192.0.2.0/24\"]\nmultiplier = 5",
            "as class \"payer\" has one",
        ),
    ] {
        let report = parse(&format!("{LIMIT}{text}\n")).unwrap_err().to_string();
        assert!(report.contains(message), "{text}: {report}");
    }
    let requests = LIMIT.replace("connections", "requests");
    let report = parse(&requests).unwrap_err().to_string();
    assert!(
        report.contains("unit = \"requests\" is not supported"),
        "{report}"
    );
    let without = LIMIT.replace("\"fair\"", "\"5/s\"\nfair = { at_most = \"7/s\" }");
    let report = parse(&without).unwrap_err().to_string();
    assert!(report.contains("fair requires rate = \"fair\""), "{report}");
}

#[test]
fn the_load_of_a_service_is_reported_on_a_unix_socket() {
    let fair = "fair = { signals = [\"sockets\", \"load\"], reported_by = \"app\" }\n";
    let with = |http: &str| parse(&format!("{LIMIT}{fair}[decide]\nhttp = \"{http}\"\n"));
    let loaded = with("unix:/run/weir/decide.sock").unwrap_or_else(|report| panic!("{report}"));
    // The socket serves something, although no limit is on requests.
    assert!(loaded.warnings.is_empty() && loaded.config.decide.takes_loads);
    let limit = &loaded.config.limits[0];
    assert_eq!(
        limit.shares.clone().unwrap().signals,
        [Signal::Sockets, Signal::Load]
    );
    assert!(
        limit.summary().contains("by sockets, reported load"),
        "{}",
        limit.summary()
    );
    let report = with("127.0.0.1:9465").unwrap_err().to_string();
    assert!(report.contains("requires a Unix socket"), "{report}");
}

#[test]
fn sockets_are_no_signal_of_icmp() {
    let icmp = "[[limit]]\nname = \"ping\"\nprotocol = \"icmp\"\nrate = \"fair\"\n";
    for signals in ["", "fair = { signals = [\"sockets\", 8080] }\n"] {
        let report = parse(&format!("{icmp}{signals}")).unwrap_err().to_string();
        assert!(
            report.contains("no socket queues packets of protocol = \"icmp\""),
            "{report}"
        );
    }
    let backend = "fair = { signals = [8080] }\n";
    assert!(parse(&format!("{icmp}{backend}")).is_ok());
}

#[test]
fn a_port_of_the_limit_is_a_signal_where_sockets_are_not() {
    for signals in ["[443]", "[443, 8080]"] {
        let shares = limit(&format!("fair = {{ signals = {signals} }}\n")).shares;
        assert_eq!(shares.unwrap().signals[0], Signal::Port(443));
    }
    // The listener of DNS over TCP.
    let dns = "[[limit]]\nname = \"dns\"\nprotocol = \"udp\"\nports = [53]\nrate = \"fair\"\n\
               fair = { signals = [\"sockets\", 53] }\n";
    assert!(parse(dns).is_ok());
}

#[test]
fn a_class_without_limits_goes_with_a_fair_limit() {
    let class = "[[class]]\nname = \"node\"\nsources = [\"192.0.2.0/24\"]\nunlimited = true\n";
    assert!(parse(&format!("{LIMIT}{class}")).is_ok());
}
