use config::policy::{Attach, Config};
use datapath::{AttachedProgram, DeviceFacts, Owner};

use super::host::of_fair;
use super::interfaces::checks;
use super::{Verdict, examine};

fn facts() -> DeviceFacts {
    DeviceFacts {
        native_xdp: Some(true),
        native_xdp_fragments: Some(false),
        mtu: Some(1500),
        ..DeviceFacts::default()
    }
}

/// A config with one limit, which has `more`.
fn config(attach: Attach, more: &str) -> Config {
    let text =
        format!("[agent]\ninterfaces = [\"lo\"]\n[[limit]]\nname = \"a\"\nrate = \"1/s\"\n{more}");
    let mut config = config::parse(std::path::Path::new("limits.toml"), &text)
        .unwrap_or_else(|report| panic!("{report}"))
        .config;
    config.agent.attach = attach;
    config
}

#[test]
fn the_hook_is_the_one_that_the_agent_uses() {
    let of = |driver: &str, attach, more| {
        let facts = DeviceFacts {
            driver: Some(driver.to_owned()),
            ..facts()
        };
        checks("eth7", &facts, &config(attach, more))[0]
            .found
            .clone()
    };
    const PROVE: &str = "unit = \"connections\"\nprove = true\n";
    let is_traffic_control = |found: String| found.starts_with("traffic control");
    assert!(is_traffic_control(of("veth", Attach::Auto, PROVE)));
    assert!(is_traffic_control(of(
        "veth",
        Attach::Auto,
        "action = \"reject\"\n"
    )));
    assert!(is_traffic_control(of("bonding", Attach::Auto, "")));
    assert!(is_traffic_control(of(
        "e1000",
        Attach::Auto,
        "action = \"mark\"\n"
    )));
    assert_eq!(of("e1000", Attach::Auto, PROVE), "native XDP");
    assert_eq!(of("veth", Attach::Auto, ""), "native XDP");
    assert_eq!(of("veth", Attach::Native, PROVE), "native XDP");
}

/// (name, verdict, fix) of every check that is not good.
fn faults(facts: &DeviceFacts, attach: Attach) -> Vec<(String, Verdict, String)> {
    let checks = checks("eth7", facts, &config(attach, ""));
    assert_eq!(checks[0].name, "hook");
    checks
        .into_iter()
        .filter(|check| check.verdict != Verdict::Good)
        .map(|check| {
            (
                check.name,
                check.verdict,
                check.fix.expect("what is not good has a fix"),
            )
        })
        .collect()
}

fn fault(name: &str, verdict: Verdict, fix: &str) -> Vec<(String, Verdict, String)> {
    vec![(name.to_owned(), verdict, fix.to_owned())]
}

#[test]
fn every_obstacle_to_native_xdp_comes_with_the_command_that_removes_it() {
    use Verdict::{Limited, Missing};
    assert_eq!(faults(&facts(), Attach::Auto), []);
    let lro = DeviceFacts {
        lro: Some(true),
        ..facts()
    };
    assert_eq!(
        faults(&lro, Attach::Auto),
        fault("LRO", Limited, "ethtool -K eth7 lro off")
    );
    assert_eq!(
        faults(&lro, Attach::Tc),
        [],
        "traffic control does not mind"
    );
    let gro = DeviceFacts {
        gro_hardware: Some(true),
        ..facts()
    };
    assert_eq!(
        faults(&gro, Attach::Native),
        fault("GRO-HW", Limited, "ethtool -K eth7 rx-gro-hw off")
    );
    let jumbo = DeviceFacts {
        mtu: Some(9000),
        ..facts()
    };
    assert_eq!(
        faults(&jumbo, Attach::Auto),
        fault("MTU", Limited, "ip link set dev eth7 mtu 1500")
    );
    let fragments = DeviceFacts {
        native_xdp_fragments: Some(true),
        ..jumbo
    };
    assert_eq!(faults(&fragments, Attach::Auto), []);
    let none = DeviceFacts {
        native_xdp: Some(false),
        ..facts()
    };
    assert_eq!(faults(&none, Attach::Native)[0].1, Missing);
    assert_eq!(faults(&none, Attach::Auto)[0].1, Limited);
}

#[test]
fn another_program_on_the_hook_is_named_and_ours_is_no_obstacle() {
    let program = |name: &str| AttachedProgram::named(7, Some(name), "native");
    let other = DeviceFacts {
        xdp: Some(program("xdp_lb")),
        ..facts()
    };
    assert_eq!(faults(&other, Attach::Auto)[0].1, Verdict::Limited);
    let faults_of_native = faults(&other, Attach::Native);
    assert_eq!(faults_of_native[0].1, Verdict::Missing);
    assert!(
        faults_of_native[0].2.contains("bpftool prog show id 7"),
        "{faults_of_native:?}"
    );
    assert!(
        faults_of_native[0].2.contains("attach = \"auto\""),
        "{faults_of_native:?}"
    );
    assert!(
        checks("eth7", &other, &config(Attach::Native, ""))[0]
            .found
            .contains("xdp_lb (program 7, native)")
    );
    let ours = DeviceFacts {
        xdp: Some(program("weir_xdp")),
        ..facts()
    };
    assert_eq!(faults(&ours, Attach::Native), []);
}

#[test]
fn a_program_before_weir_in_a_chain_is_a_fault_of_the_limits_there() {
    let verdict = |at, names: &[&str], more: &str| {
        let named = |name: &&str| AttachedProgram::named(7, Some(name), at);
        let facts = DeviceFacts {
            tcx: names.iter().map(named).collect(),
            ..facts()
        };
        let checks = checks("eth7", &facts, &config(Attach::Tc, more));
        let found = checks.into_iter().find(|check| check.name == "TCX");
        found.unwrap().verdict
    };
    let egress = "direction = \"egress\"\n";
    // Without an agent: Weir will be first on ingress and last on egress.
    assert_eq!(verdict("egress", &["shaper"], egress), Verdict::Limited);
    assert_eq!(verdict("egress", &["shaper"], ""), Verdict::Good);
    assert_eq!(verdict("ingress", &["shaper"], ""), Verdict::Good);
    // As the chain is.
    let (first, last) = (["shaper", "weir_tc"], ["weir_tc", "shaper"]);
    assert_eq!(verdict("egress", &first, egress), Verdict::Limited);
    assert_eq!(verdict("egress", &last, egress), Verdict::Good);
    assert_eq!(verdict("ingress", &first, ""), Verdict::Limited);
    assert_eq!(verdict("ingress", &last, ""), Verdict::Good);
}

/// A user who cannot read a program's name is not advised to remove what may be Weir's.
#[test]
fn a_program_without_a_readable_name_is_no_strangers() {
    let hidden = AttachedProgram {
        id: 7,
        name: None,
        owner: Owner::Hidden,
        at: "native",
    };
    let facts = DeviceFacts {
        xdp: Some(hidden),
        ..facts()
    };
    for attach in [Attach::Auto, Attach::Native, Attach::Generic] {
        let faults = faults(&facts, attach);
        assert_eq!(faults.len(), 1);
        assert_eq!(faults[0].1, Verdict::Limited, "{faults:?}");
        assert!(
            faults[0].2.contains("sudo agent doctor") && !faults[0].2.contains("off"),
            "{faults:?}"
        );
    }
}

#[test]
fn a_config_for_an_interface_that_does_not_exist_cannot_be_put_in_effect() {
    let report = examine(&Config::built_in(&["weir-none".to_owned()]));
    assert!(!report.ok);
    let interface = &report.interfaces[0];
    assert_eq!(
        (interface.name.as_str(), interface.checks[0].verdict),
        ("weir-none", Verdict::Missing)
    );
    assert!(
        interface.checks[0].found.contains("lo"),
        "it tells which there are"
    );
}

#[test]
fn a_pattern_may_match_an_interface_later_and_a_name_is_missing() {
    let of = |pattern: &str| {
        let text = format!(
            "[agent]\ninterfaces = [\"lo\", {pattern:?}]\n[[limit]]\nname = \"a\"\nrate = \"1/s\"\n"
        );
        let config = config::parse(std::path::Path::new("limits.toml"), &text)
            .unwrap_or_else(|report| panic!("{report}"))
            .config;
        let report = examine(&config);
        let interface = report
            .interfaces
            .iter()
            .find(|interface| interface.name == pattern)
            .unwrap();
        (interface.checks[0].verdict, super::lacking(&config))
    };
    let (verdict, lacking) = of("weir-none*");
    assert_eq!(verdict, Verdict::Limited);
    let names = |text: &String| text.contains("weir-none");
    assert!(!lacking.iter().any(names), "{lacking:?}");
    let (verdict, lacking) = of("weir-none0");
    assert_eq!(verdict, Verdict::Missing);
    assert!(
        lacking[0].starts_with("interface `weir-none0` not found"),
        "{lacking:?}"
    );
}

#[test]
fn a_fair_limit_that_is_not_in_effect_fails_its_check() {
    let verdicts = |failure: Option<&str>| {
        let mut status = api::status::Status::default();
        status.fair.push(api::fair::FairStatus {
            limit: "web".to_owned(),
            failure: failure.map(str::to_owned),
            signals: vec![api::fair::FairSignal {
                port: 80,
                is_served: true,
                ..Default::default()
            }],
            ..Default::default()
        });
        let checks = of_fair(&status);
        let verdict = |check: &super::check::Check| (check.verdict, check.fix.is_some());
        checks.iter().map(verdict).collect::<Vec<_>>()
    };
    assert_eq!(verdicts(None), [(Verdict::Good, false)]);
    assert_eq!(verdicts(Some("observe-mode")), [(Verdict::Limited, true)]);
    for failure in ["no-maps", "ended", "unreadable"] {
        assert_eq!(verdicts(Some(failure)), [(Verdict::Missing, true)]);
    }
}
