use std::fs;
use std::path::Path;

use common::essential::Essential;
use common::limiter::{AnyLimiter, Decision, Instants};
use common::packet::{Direction, Kind, Protocol};
use common::proof::PROVEN_REQUEST;
use common::rule::{KeyKind, Rule, RuleSpan};
use common::settings::{PortSpans, Settings, span_index};
use config::{load, parse};
use proptest::prelude::*;

use super::compile;

const CONFIGS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../config");

#[test]
fn every_config_that_is_shipped_compiles() {
    let paths = fs::read_dir(CONFIGS)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let configs = paths.filter(|path| {
        path.file_name()
            .unwrap()
            .to_string_lossy()
            .starts_with("limits.")
    });
    for path in configs {
        let loaded = load(&path).unwrap_or_else(|error| panic!("{error}"));
        compile(&loaded.config, Direction::Ingress)
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    }
}

/// `limits` of a host, compiled for incoming packets.
fn ingress(limits: &str) -> super::Image {
    let text = format!("[agent]\ninterfaces = [\"eth0\"]\n{limits}");
    let loaded = parse(Path::new("limits.toml"), &text).unwrap_or_else(|report| panic!("{report}"));
    compile(&loaded.config, Direction::Ingress).unwrap()
}

/// A class that gets a larger multiplier changes the format of windows, and no count.
#[test]
fn counts_of_windows_and_logs_stay_when_a_multiplier_changes() {
    for algorithm in ["fixed-window", "sliding-window", "sliding-log"] {
        let image = |multiplier: f64| {
            ingress(&format!(
                "max_sources = 4096\n[[class]]\nname = \"c\"\nsources = [\"192.0.2.0/24\"]\nmultiplier = {multiplier}\n\
                 [[limit]]\nname = \"a\"\nrate = \"100/h\"\nalgorithm = \"{algorithm}\"\n"
            ))
        };
        let (old, new) = (image(0.5), image(7.0));
        let plan = old.layout.carry(&new.layout);
        assert!(plan.resets.is_empty(), "{:?}", plan.resets);
        let states: Vec<_> = plan.groups.values().flatten().collect();
        let [state] = states[..] else {
            panic!("{states:?}")
        };
        assert!(!state.is_verbatim(true), "{algorithm}");
        let (scale, start) = (old.settings.scale, 1 << 50);
        let now = |at| Instants { from: at, to: at };
        // Sixty units of a source in no class, of which the class had fifty.
        let (from, to) = (old.rules[0].any_limiter(), new.rules[0].any_limiter());
        let mut words = vec![0; from.words()];
        from.open(&mut words, start);
        for _ in 0..60 {
            assert!(from.charge(&mut words, start, 1));
        }
        let mut moved = vec![0; state.to.words() + state.to.ring_words()];
        let later = start + scale.ticks(1_000_000_000);
        state
            .to
            .any_limiter()
            .migrate(&state.from.any_limiter(), &words, &mut moved, now(later));
        let of_class = new.rules.last().unwrap().any_limiter();
        assert_eq!(
            [to, of_class].map(|limiter| limiter.remaining(&moved, later)),
            [40, 640],
            "{algorithm}"
        );
    }
}

/// Counts that no window has the bits for stay apart, and logs that no table has room for ignore multipliers: neither costs
/// sources in no class anything.
#[test]
fn a_large_multiplier_takes_nothing_from_others() {
    let image = |multiplier: f64, limit: &str| {
        ingress(&format!(
            "max_sources = 1_000_000\n[[class]]\nname = \"c\"\nsources = [\"192.0.2.0/24\"]\nmultiplier = {multiplier}\n\
             [[limit]]\nname = \"a\"\n{limit}\n"
        ))
    };
    let window = "unit = \"bytes\"\nrate = \"1GB/s\"\nalgorithm = \"fixed-window\"";
    let (plain, large) = (image(1.0, window), image(1_000.0, window));
    assert_eq!(plain.rules[0].shift, large.rules[0].shift);
    let plan = large.layout.carry(&image(2_000.0, window).layout);
    assert!(plan.groups.is_empty() && plan.resets.len() == 1);
    let log = "rate = \"20/s\"\nalgorithm = \"sliding-log\"";
    let most = |image: &super::Image| image.rules.iter().map(|rule| rule.most).collect::<Vec<_>>();
    let (small, large) = (image(2.0, log), image(10.0, log));
    assert_eq!((most(&small), small.logs.factor()), (vec![20, 40], 2.0));
    assert_eq!((most(&large), large.logs.factor()), (vec![20, 20], 1.0));
    assert_eq!(small.max_sources, large.max_sources);
}

/// At a thousandth, one unit takes a thousand years.
#[test]
fn a_class_of_a_thousandth_of_a_slow_limit_is_limited() {
    let image = ingress(
        "[[class]]\nname = \"slow\"\nsources = [\"192.0.2.0/24\"]\nmultiplier = 0.001\n\
         [[limit]]\nname = \"rare\"\nrate = \"1/30day\"\nburst = 1\n",
    );
    let scale = image.settings.scale;
    let slow = image.rules.last().unwrap();
    let AnyLimiter::Bucket(bucket) = slow.any_limiter() else {
        panic!("{slow:?}");
    };
    let now = scale.ticks(1 << 40);
    let Decision::Pass(state) = bucket.decide(0, now, 1) else {
        panic!("{bucket:?}");
    };
    for days in [0, 1, 30, 3_000, 29_000] {
        let later = now + scale.ticks(days * 86_400 * 1_000_000_000);
        let decision = bucket.decide(state, later, 1);
        assert_eq!(decision, Decision::Refuse, "{days} days later");
    }
}

#[test]
fn states_at_levels_are_no_states_of_a_rate() {
    let limit = |lines: &str| ingress(&format!("[[limit]]\nname = \"a\"\n{lines}"));
    let fair = limit("rate = \"fair\"\n");
    let bounded = limit("rate = \"fair\"\nfair = { at_most = \"300/s\" }\n");
    let other = limit("rate = \"fair\"\nfair = { at_most = \"500/s\" }\n");
    let number = limit("rate = \"10/min\"\n");
    let carried = |old: &super::Image, new: &super::Image| {
        let plan = old.layout.carry(&new.layout);
        plan.groups.values().map(Vec::len).sum::<usize>()
    };
    assert_eq!(
        [&bounded, &other, &number].map(|new| carried(&fair, new)),
        [1, 1, 0]
    );
    assert_eq!(carried(&number, &fair), 0);
    // The level, and `at_most`.
    assert_eq!(
        (carried(&bounded, &other), carried(&bounded, &fair)),
        (2, 1)
    );
}

/// The program walks the rules of a span. Those of wider keys are behind it, and none of the others moves.
#[test]
fn rules_of_networks_and_of_all_are_behind_the_span() {
    let fair = "[[limit]]\nname = \"a\"\nrate = \"fair\"\nfair = { at_most = \"300/s\" }\n";
    let other = "[[limit]]\nname = \"b\"\nrate = \"9/s\"\n[[limit]]\nname = \"c\"\nrate = \"fair\"\nipv4_prefix = 24\n";
    let levels = "levels = [{ prefix = \"24/48\" }, { key = \"all\" }]\n";
    let plain = ingress(&format!("{fair}{other}"));
    let wider = ingress(&format!("{fair}{levels}{other}"));
    let of = |image: &super::Image| image.settings.spans[span_index(Protocol::Udp, Kind::Plain)];
    assert_eq!(of(&plain), of(&wider));
    let count = (of(&wider).count & !RuleSpan::FAIR) as usize;
    let (first, rules) = (of(&wider).first as usize, &wider.rules);
    let shape = |rules: &[Rule]| {
        let rows = rules
            .iter()
            .map(|rule| (rule.key, rule.enforcement, rule.ring));
        rows.collect::<Vec<_>>()
    };
    let span = first..first + count;
    assert_eq!(
        shape(&plain.rules[span.clone()]),
        shape(&rules[span.clone()])
    );
    let behind: Vec<_> = (span.end..span.end + 2)
        .map(|row| (wider.at_of_row(row).unwrap(), rules[row]))
        .collect();
    assert!(
        behind
            .iter()
            .all(|(at, rule)| at.limit == 0 && rule.is_fair())
    );
    let keys = behind
        .iter()
        .map(|(at, rule)| (at.level, rule.key, rule.mask_ipv4));
    let (address, all) = (KeyKind::Address as u8, KeyKind::All as u8);
    assert_eq!(
        keys.collect::<Vec<_>>(),
        [(1, address, 0xffff_ff00_u32.to_be()), (2, all, 0)]
    );
    // Each key has slots of its own.
    let groups = [
        &rules[span.end - 2],
        &rules[span.end - 1],
        &behind[0].1,
        &behind[1].1,
    ];
    let groups: std::collections::BTreeSet<_> = groups.iter().map(|rule| rule.group).collect();
    assert_eq!(groups.len(), 4);
    assert_eq!(
        [&plain, &wider].map(|image| image.settings.fair_in_use),
        [Settings::FAIR, Settings::FAIR | Settings::WIDER]
    );
}

#[test]
fn a_fair_limit_is_no_limit_on_essential_packets() {
    let bits = |limits: &str| ingress(limits).settings.essential_limited;
    let both = 1 << Essential::Dhcp as u32 | 1 << Essential::NeighbourDiscovery as u32;
    let fair = "[[limit]]\nname = \"a\"\nrate = \"fair\"\n";
    assert_eq!(bits(fair), 0);
    assert_eq!(bits("[[limit]]\nname = \"b\"\nrate = \"9/s\"\n"), both);
    assert_eq!(
        bits(&format!("{fair}[[limit]]\nname = \"b\"\nrate = \"9/s\"\n")),
        both
    );
    assert_eq!(
        bits(&format!("{fair}fair = {{ at_most = \"300/s\" }}\n")),
        both
    );
}

#[test]
fn tcp_of_the_limits_ports_has_the_bit_of_proofs_and_a_row_for_requests() {
    const LIMITS: &str = "[[limit]]\nname = \"requests\"\nunit = \"requests\"\nrate = \"9/s\"\n\
        [[limit]]\nname = \"web\"\nprotocol = \"tcp\"\nports = [80]\nunit = \"connections\"\nrate = \"5/s\"\n";
    let plain = ingress(LIMITS);
    let proves = ingress(&format!("{LIMITS}prove = true\n"));
    assert_eq!(
        (plain.settings.prove_in_use, proves.settings.prove_in_use),
        (0, Settings::BY_COOKIES)
    );
    let row = |image: &super::Image, port: usize, index: usize| {
        PortSpans::unpack(image.ports[port].packed[index])
    };
    let connection = span_index(Protocol::Tcp, Kind::Connection);
    let request = span_index(Protocol::Tcp, Kind::Request);
    for (index, rules) in [
        (span_index(Protocol::Tcp, Kind::Plain), 0),
        (connection, 1),
        (request, 1),
        (PROVEN_REQUEST, 2),
    ] {
        assert_eq!(
            row(&proves, 80, index).count,
            rules | RuleSpan::PROVES,
            "{index}"
        );
        // Nothing of other ports, and of policies without proofs.
        assert_eq!(row(&proves, 81, index).count & RuleSpan::PROVES, 0);
        assert_eq!(row(&plain, 80, index).count & RuleSpan::PROVES, 0);
    }
    let by_resets = ingress(&format!("{LIMITS}prove = \"reset\"\n"));
    assert_eq!(by_resets.settings.prove_in_use, Settings::BY_RESETS);
    assert_eq!(
        row(&by_resets, 80, connection).count,
        1 | RuleSpan::PROVES | RuleSpan::RESETS
    );
    assert_eq!(
        row(&by_resets, 80, connection).without_proofs(),
        row(&plain, 80, connection)
    );
    // Two limits of one port: by resets. Of other ports, each has its own way.
    let both = ingress(&format!(
        "{LIMITS}prove = true\n[[limit]]\nname = \"b\"\nprotocol = \"tcp\"\nports = [80, 81]\n\
         unit = \"connections\"\nrate = \"5/s\"\nprove = \"reset\"\n\
         [[limit]]\nname = \"c\"\nprotocol = \"tcp\"\nports = [82]\nrate = \"5/s\"\nprove = true\n"
    ));
    assert_eq!(
        both.settings.prove_in_use,
        Settings::BY_COOKIES | Settings::BY_RESETS
    );
    let resets =
        [80, 81, 82].map(|port| row(&both, port, connection).count & RuleSpan::RESETS != 0);
    assert_eq!(resets, [true, true, false]);
    let observed = ingress(&format!("{LIMITS}prove = true\naction = \"observe\"\n"));
    assert_eq!(observed.settings.prove_in_use, 0);
}

#[test]
fn cpus_count_by_themselves_unless_exact_counts_have_consequences() {
    const CLUSTER: &str = "[cluster]\nname = \"c\"\nstore = \"redis://127.0.0.1\"\n";
    let limit = |more: &str| {
        let image = ingress(&format!(
            "{CLUSTER}[[limit]]\nname = \"a\"\nrate = \"1000/s\"\nburst = 1000\n{more}"
        ));
        let rule = image.rules[0];
        (rule.counts_by_cpu(), rule.has_holds())
    };
    assert_eq!(limit(""), (true, true));
    assert_eq!(limit("cluster = \"shares\"\n"), (true, true));
    // Counts decide upon bans, or are told to other hosts.
    assert_eq!(limit("cluster = \"keys\"\n"), (false, false));
    assert_eq!(
        limit("escalate = { after = 100, within = \"1m\", ban = \"1h\" }\n"),
        (false, false)
    );
    // No bucket, or more than a verdict.
    assert_eq!(limit("action = \"observe\"\n"), (true, false));
}

proptest! {
    #[test]
    fn a_changed_example_is_an_error_or_compiles(
        at in 0usize..2_000,
        insert in prop_oneof![Just(""), Just("\""), Just("]"), Just("0"), Just("\n"), Just("= [")],
        length in 0usize..20,
    ) {
        let mut text = include_str!("../../../../config/limits.example.toml").to_owned();
        let boundary = |at: usize| (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        let cut = boundary(at)..boundary(at + length);
        text.replace_range(cut, insert);
        let _ = parse(Path::new("limits.toml"), &text).map(|loaded| compile(&loaded.config, Direction::Ingress));
    }
}
