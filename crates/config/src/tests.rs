use std::fs;
use std::io::{self, Write as _};
use std::net::IpAddr;
use std::os::fd::AsRawFd as _;
use std::path::Path;

use proptest::prelude::*;

use super::policy::{
    Action, Algorithm, Key, Mode, Multiplier, OnExit, OnFull, PortSet, ProtocolFilter, Rate,
    Throttle, Unit,
};
use super::report::Report;
use super::*;

mod errors;

fn check(text: &str) -> Result<Loaded, Report> {
    parse(Path::new("limits.toml"), text)
}

/// A limits.toml of one limit with these lines.
fn limit(lines: &str) -> String {
    format!("[agent]\ninterfaces = [\"eth0\"]\n[[limit]]\nname = \"a\"\n{lines}\n")
}

#[test]
fn exempt_addresses_that_others_can_forge_are_named_except_loopback() {
    let note = |agent: &str, more: &str| {
        let text = limit("rate = \"1/s\"").replace("[agent]", &format!("[agent]\n{agent}"));
        let loaded = check(&format!("{text}\n{more}")).unwrap_or_else(|report| panic!("{report}"));
        crate::forgeable_exemptions(&loaded.config)
    };
    let class =
        |more: &str| format!("[[class]]\nname = \"c\"\nsources = [\"192.0.2.0/24\"]\n{more}\n");
    assert_eq!(note("", ""), None);
    assert_eq!(
        note(
            "never_limit = [\"127.0.0.0/8\", \"127.0.0.53\", \"::1\"]",
            ""
        ),
        None
    );
    assert_eq!(note("", &class("multiplier = 2")), None);
    let all = "never_limit = [\"127.0.0.1\", \"192.0.2.1\", \"2001:db8::/48\", \"10.0.0.1\", \"10.0.0.2\", \"10.0.0.3\"]";
    let named = note(all, &class("unlimited = true")).unwrap();
    for part in [
        "192.0.2.1 (never_limit), 2001:db8::/48 (never_limit)",
        "and 1 others",
        "rp_filter",
    ] {
        assert!(named.contains(part), "{named}");
    }
    assert!(
        !named.contains("127.0.0.1") && !named.contains("prove"),
        "{named}"
    );
    let named = note("", &class("unlimited = true")).unwrap();
    assert!(named.contains("192.0.2.0/24 (class \"c\")"), "{named}");
    let proving = "[[limit]]\nname = \"web\"\nprotocol = \"tcp\"\nunit = \"connections\"\nrate = \"1/s\"\nprove = true\n";
    let named = note("never_limit = [\"192.0.2.1\"]", proving).unwrap();
    assert!(
        named.contains("prove nothing") && named.contains("BGP"),
        "{named}"
    );
    let only_requests = check(
        "[agent]\nnever_limit = [\"192.0.2.1\"]\n[decide]\nhttp = \"127.0.0.1:8080\"\n[[limit]]\nname = \"a\"\nscope = \"request\"\n\
         key = [\"user\"]\nrate = \"5/h\"\n",
    );
    assert_eq!(
        crate::forgeable_exemptions(&only_requests.unwrap().config),
        None
    );
}

#[test]
fn open_connections_of_proven_sources_are_no_risk() {
    let open = |lines: &str| {
        check(&limit(&format!(
            "unit = \"connections\"\nconcurrent = 5\n{lines}"
        )))
        .unwrap()
        .warnings
    };
    for key in ["all", "class", "interface"] {
        let warnings = open(&format!("key = {key:?}"));
        assert_eq!(
            (warnings.len(), warnings[0].line, warnings[0].column),
            (1, 7, 7),
            "{warnings:?}"
        );
        assert!(warnings[0].help.contains("prove = true"), "{warnings:?}");
        assert_eq!(open(&format!("key = {key:?}\nprove = true")), []);
        assert_eq!(open(&format!("key = {key:?}\naction = \"observe\"")), []);
    }
    assert_eq!(open(""), []);
    let escalate = "escalate = { after = 9, within = \"9s\", ban = \"9m\" }";
    assert!(open(escalate)[0].help.contains("prove = true"));
    assert_eq!(open(&format!("{escalate}\nprove = true")), []);
}

#[test]
fn missing_keys_have_the_documented_default() {
    let config = check(&limit("rate = \"10/5s\"\ntiers = [\"60/h\"]"))
        .unwrap()
        .config;
    let limit = &config.limits[0];
    assert_eq!((limit.rates.burst, limit.rates.tiers[0].burst), (10, 60));
    assert_eq!((limit.ipv4_prefix, limit.ipv6_prefix), (32, 64));
    assert_eq!(
        (limit.unit, limit.rates.algorithm, limit.key),
        (Unit::Packets, Algorithm::TokenBucket, Key::Source)
    );
    assert_eq!(
        (limit.protocol, limit.action, limit.throttle),
        (ProtocolFilter::Any, Action::Drop, Throttle::Hard)
    );
    assert_eq!(limit.on_full, OnFull::Share);
    assert_eq!(
        (
            config.agent.mode,
            config.agent.on_exit,
            config.agent.max_sources
        ),
        (Mode::Enforce, OnExit::Keep, None)
    );
    assert_eq!(config.agent.control, Path::new("/run/weir/control.sock"));
}

#[test]
fn the_live_page_is_served_on_loopback_unless_the_config_says_otherwise() {
    let [loopback, mapped, other, any] = ["127.0.0.9", "::ffff:127.0.0.1", "192.0.2.1", "0.0.0.0"]
        .map(|text| text.parse::<IpAddr>().unwrap());
    for (line, is_served, names) in [
        ("", [true, true, false, false], &[][..]),
        ("live = true", [true; 4], &[]),
        (
            "live = [\"Weir.example.org\"]",
            [true; 4],
            &["weir.example.org"],
        ),
        ("live = false", [false; 4], &[]),
    ] {
        let text = limit("rate = \"10/s\"").replace(
            "[agent]",
            &format!("[agent]\nmetrics = \"127.0.0.1:9464\"\n{line}"),
        );
        let live = check(&text).unwrap().config.agent.live;
        assert_eq!(
            [loopback, mapped, other, any].map(|address| live.is_served_on(address)),
            is_served,
            "{line}"
        );
        assert_eq!(live.names(), names, "{line}");
    }
}

#[test]
fn ports_are_ranges_that_do_not_overlap() {
    let config = check(&limit(
        "rate = \"1/s\"\nports = [443, \"8000-8100\", \"8050-8200\", 8201]",
    ))
    .unwrap()
    .config;
    assert_eq!(
        config.limits[0].ports,
        Some(PortSet::new(vec![(443, 443), (8000, 8201)]))
    );
    for (ports, expected) in [("22", 22), ("\"SSH\"", 22), ("[\"https\"]", 443)] {
        let config = check(&limit(&format!(
            "rate = \"1/s\"\nprotocol = \"TCP\"\nports = {ports}"
        )))
        .unwrap()
        .config;
        assert_eq!(
            config.limits[0].ports,
            Some(PortSet::new(vec![(expected, expected)])),
            "{ports}"
        );
        assert_eq!(config.limits[0].protocol, ProtocolFilter::Tcp);
    }
}

#[test]
fn the_default_burst_of_bytes_is_a_quarter_of_a_second_whatever_the_unit() {
    for (rate, burst) in [
        ("20MB/s", 5_000_000),
        ("160Mbit/s", 5_000_000),
        ("1200MB/min", 5_000_000),
        ("12345Mbit/s", 385_781_250),
        ("20Mbit/s", 625_000),
        ("1GB/day", 256 << 10),
    ] {
        let config = check(&limit(&format!(
            "unit = \"bytes\"\nrate = {rate:?}\ntiers = [\"2GB/h\"]"
        )))
        .unwrap()
        .config;
        assert_eq!(
            (
                config.limits[0].rates.burst,
                config.limits[0].rates.tiers[0].burst
            ),
            (burst, 2_000_000_000),
            "{rate}"
        );
    }
}

#[test]
fn every_config_that_is_shipped_is_valid() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config");
    let mut count = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path
            .file_name()
            .unwrap()
            .to_string_lossy()
            .starts_with("limits.")
        {
            let loaded = load(&path).unwrap_or_else(|error| panic!("{error}"));
            assert_eq!(loaded.warnings, [], "{}", path.display());
            count += 1;
        }
    }
    assert!(count >= 3, "only {count} configs are shipped");
}

#[test]
fn an_ssh_session_that_could_be_throttled_is_warned_of() {
    let client: Option<IpAddr> = Some([192, 0, 2, 7].into());
    let warns = |text: &str| ssh_warning(&check(text).unwrap().config, client).is_some();
    // By default, the session is exempt.
    assert!(!warns(&limit("rate = \"1/s\"")));
    let limit = |lines: &str| limit(lines).replace("[[limit]]", "protect = false\n[[limit]]");
    let base = limit("rate = \"1/s\"");
    assert!(warns(&base));
    assert!(!warns(
        &base.replace("protect = false", "protect = [\"ssh\"]")
    ));
    assert!(warns(
        &base.replace("protect = false", "protect = [\"gateways\"]")
    ));
    assert!(warns(&limit("rate = \"1/s\"\nports = [22]")));
    assert!(!warns(&limit("rate = \"1/s\"\nports = [80]")));
    assert!(!warns(&limit("rate = \"1/s\"\nprotocol = \"udp\"")));
    assert!(!warns(&base.replace(
        "[[limit]]",
        "never_limit = [\"192.0.2.0/24\"]\n[[limit]]"
    )));
    assert!(!warns(
        &base.replace("[[limit]]", "mode = \"observe\"\n[[limit]]")
    ));
    assert!(!warns(&format!(
        "{base}[[class]]\nname = \"us\"\nsources = [\"192.0.2.7\"]\nunlimited = true\n"
    )));
    assert_eq!(ssh_warning(&check(&base).unwrap().config, None), None);
}

#[test]
fn multipliers_are_exact() {
    let rate = Rate {
        count: 10,
        per_nanoseconds: 1_000_000_000,
    };
    let times = |factor: f64| Multiplier::new(factor).unwrap();
    assert_eq!(
        times(2.5).rate(rate),
        Rate {
            count: 1,
            per_nanoseconds: 40_000_000
        }
    );
    assert_eq!(
        (
            times(2.5).units(10),
            times(0.3).units(10),
            times(0.01).units(10)
        ),
        (25, 3, 0)
    );
    assert_eq!(
        (
            Multiplier::new(0.0),
            Multiplier::new(-1.0),
            Multiplier::new(f64::NAN)
        ),
        (None, None, None)
    );
}

#[test]
fn a_config_without_an_end_is_an_error_and_a_pipe_an_argument() {
    for path in ["/dev/zero", "/"] {
        let text = read_text(Path::new(path)).unwrap_err().to_string();
        assert!(
            text.starts_with(&format!("reading {path} failed: it is a "))
                && text.ends_with("not a regular file; name a readable file with --config"),
            "{text}"
        );
    }
    let text = load(Path::new("/dev/zero")).unwrap_err().to_string();
    assert!(text.contains("it is larger than 64 MiB; name"), "{text}");
    let (pipe, mut writer) = io::pipe().unwrap();
    let example = include_str!("../../../config/limits.example.toml");
    writer.write_all(example.as_bytes()).unwrap();
    drop(writer);
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    assert_eq!(read_argument(Path::new(&path)).unwrap(), example);
}

proptest! {
    /// The parser neither panics nor hangs on any text.
    #[test]
    fn no_text_is_too_much(text in "(?s).{0,300}") {
        let _ = check(&text);
    }

    /// The same for one change anywhere in the example.
    #[test]
    fn no_change_of_the_example_is_too_much(at in 0usize..2_000, what in prop_oneof![Just(""), Just("\""), Just("]"), Just("0"), Just("\n"), Just("= [")], length in 0usize..20) {
        let mut text = include_str!("../../../config/limits.example.toml").to_owned();
        let boundary = |mut at: usize| { while !text.is_char_boundary(at) { at -= 1; } at };
        let start = boundary(at.min(text.len()));
        let end = boundary((start + length).min(text.len()));
        text.replace_range(start..end.max(start), what);
        let _ = check(&text);
    }
}
