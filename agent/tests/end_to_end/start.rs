//! A start with a config that parses and cannot be put in effect.

use std::net::TcpListener;

use nix::sys::signal::Signal;
use testbed::tests;
use testbed::trials::Test;

use crate::support::Network;
use crate::traffic::{PORT, burst, udp_from};

pub const TESTS: &[Test] = tests![
    a_config_that_cannot_be_put_in_effect_leaves_the_last_valid_one_in_effect,
    a_failure_of_the_host_puts_no_older_config_in_effect,
    without_another_valid_config_a_start_fails_with_its_own_reason,
];

const SMALL: &str = "max_sources = 2000";
const LIMIT: &str = "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 100\n";

/// Configs that parse, and what their start fails with.
fn hopeless() -> Vec<(&'static str, String, &'static str)> {
    let limits: String = (0..17)
        .map(|nth| format!("[[limit]]\nname = \"n{nth}\"\nrate = \"1/h\"\n"))
        .collect();
    let loose = LIMIT.replace("100", "5000");
    let log = loose
        .replace("burst = 5000", "algorithm = \"sliding-log\"")
        .replace("1/h", "1000/h");
    vec![
        (SMALL, format!("{loose}{limits}"), "limits"),
        ("max_sources = 16_000_000", log, "sliding logs"),
    ]
}

fn a_config_that_cannot_be_put_in_effect_leaves_the_last_valid_one_in_effect() {
    for (settings, hopeless, reason) in hopeless() {
        let network = Network::new();
        let state = network.state();
        let service = [("STATE_DIRECTORY", state.to_str().unwrap())];
        let agent = network.start_file(&network.config(SMALL, LIMIT), &service);
        let receiver = network.receiver(PORT);
        burst(&network, &[udp_from(7)], 150);
        agent.stop(Signal::SIGTERM);
        let config = network.config(settings, &hopeless);
        let agent = network.start_file(&config, &service);
        burst(&network, &[udp_from(7), udp_from(8)], 300);
        let counts = receiver.counts();
        assert_eq!((counts[7], counts[8]), (100, 100), "{reason}");
        let last = agent.json(&["status"])["last_reload"].clone();
        assert_eq!(
            (&last["ok"], &last["cause"]),
            (&false.into(), &"start".into()),
            "{last}"
        );
        assert!(last["errors"].to_string().contains(reason), "{last}");
        // Corrected, it is in effect.
        network.config(SMALL, &LIMIT.replace("100", "300"));
        assert_eq!(agent.json(&["reload"])["ok"], true);
        assert_eq!(agent.json(&["status"])["last_reload"]["ok"], true);
        let (said, _) = agent.stop(Signal::SIGTERM);
        assert!(
            said.contains("could not be put in effect: the agent uses the last valid config"),
            "{said}"
        );
    }
}

fn without_another_valid_config_a_start_fails_with_its_own_reason() {
    let network = Network::new();
    let (settings, hopeless, reason) = hopeless().pop().unwrap();
    let state = network.state();
    // Neither without a service manager, nor with a last valid config that is the same.
    for environment in [vec![], vec![("STATE_DIRECTORY", state.to_str().unwrap())]] {
        let config = network.config(settings, &hopeless);
        std::fs::create_dir_all(&state).unwrap();
        std::fs::copy(&config, state.join("last-valid.toml")).unwrap();
        let (said, status) = network.spawn_agent(&config, &environment).end();
        assert!(
            status.code() == Some(2) && said.contains(reason),
            "{status}: {said}"
        );
        assert!(!network.has_program() && !network.has_pins(), "{said}");
    }
}

/// An address that is there at the next attempt.
fn a_failure_of_the_host_puts_no_older_config_in_effect() {
    let network = Network::new();
    let state = network.state();
    let service = [("STATE_DIRECTORY", state.to_str().unwrap())];
    network
        .start_file(&network.config(SMALL, LIMIT), &service)
        .stop(Signal::SIGTERM);
    let _taken = network.in_server(|| TcpListener::bind("127.0.0.1:9465").unwrap());
    let config = network.config("max_sources = 2000\nmetrics = \"127.0.0.1:9465\"", LIMIT);
    let (said, status) = network.spawn_agent(&config, &service).end();
    assert!(
        status.code() == Some(1) && said.contains("127.0.0.1:9465"),
        "{status}: {said}"
    );
    assert!(!said.contains("last valid"), "{said}");
}
