//! Programs and pins that others take off, hooks that others have, and changes that fail part way.

use std::time::{Duration, Instant};

use bpf::link::Link;
use datapath::PinDirectory;
use nix::sys::signal::Signal;
use serde_json::Value;
use testbed::stalls::Stalls;
use testbed::tests;
use testbed::trials::Test;

use crate::foreign::{Foreign, Place};
use crate::interfaces::{SLOW, has_event, print_time, state, wait_for};
use crate::support::{Agent, Network};
use crate::traffic::{PORT, burst, udp_from};

pub const TESTS: &[Test] = tests![
    a_program_that_is_taken_off_is_reported_and_attached_again,
    pins_that_somebody_removes_are_reported_and_not_made_again,
    an_interface_that_cannot_be_attached_keeps_no_other_without_limits,
    interfaces_with_xdp_programs_of_others_delay_a_change_by_no_more_than_one,
    a_change_that_fails_part_way_leaves_the_old_policy_on_every_hook,
    a_change_that_is_on_every_hook_stays_though_its_pins_cannot_be_moved,
];

/// The pin of the link on weir0, on kernels where there is one.
fn take_off(network: &Network, attach: &str) {
    let index = network.index("weir0");
    if attach == "tc" && !crate::support::has_tcx() {
        network.tc(&["qdisc", "del", "dev", "weir0", "clsact"]);
        return;
    }
    let hook = if attach == "tc" { "tcingress" } else { "xdp" };
    Link::open(&network.pins().join(format!("link-{hook}:{index}")))
        .unwrap()
        .detach()
        .unwrap();
}

fn a_program_that_is_taken_off_is_reported_and_attached_again() {
    for attach in ["native", "tc"] {
        let network = Network::new();
        let agent = network.start(&format!("attach = {attach:?}"), SLOW);
        let receiver = network.receiver(PORT);
        burst(&network, &[udp_from(7)], 60);
        take_off(&network, attach);
        let (began, stalls) = (Instant::now(), Stalls::watch());
        // As the kernel says at this moment, whatever the agent has noticed; on a slow machine it has attached again.
        let now = state(&agent.json(&["status"]), "weir0");
        let is_again =
            now == (attach.into(), "attached".to_owned()) && has_event(&agent, "detached", "weir0");
        assert!(
            is_again || now == (Value::Null, "detached".to_owned()),
            "{now:?}"
        );
        agent.wait_for("the event", |_| has_event(&agent, "detached", "weir0"));
        print_time(began, &stalls, "the program was missed");
        agent.wait_for("the program", |status| {
            state(status, "weir0") == (attach.into(), "attached".to_owned())
        });
        agent.wait_for("the event", |_| has_event(&agent, "attached", "weir0"));
        burst(&network, &[udp_from(7)], 100);
        assert_eq!(receiver.counts()[7], 100);
    }
}

fn pins_that_somebody_removes_are_reported_and_not_made_again() {
    for attach in ["native", "tc"] {
        let network = Network::new();
        let agent = network.start(&format!("attach = {attach:?}"), SLOW);
        network
            .in_server(|| {
                PinDirectory::open(network.pins())
                    .unwrap()
                    .clear()
                    .map(drop)
            })
            .unwrap();
        assert_eq!(
            state(&agent.json(&["status"]), "weir0"),
            (Value::Null, "detached".to_owned())
        );
        agent.wait_for("the event", |_| has_event(&agent, "detached", "weir0"));
        // The operator meant it, and it stays so, whatever happens to other interfaces.
        network.add_link("weir1", "client1");
        std::thread::sleep(Duration::from_millis(1_500));
        let status = agent.json(&["status"]);
        assert_eq!(
            state(&status, "weir0"),
            (Value::Null, "detached".to_owned())
        );
        assert!(
            status["notes"]
                .to_string()
                .contains("agent reload attaches it again"),
            "{status}"
        );
        assert_eq!(agent.json(&["reload"])["ok"], true);
        assert_eq!(
            state(&agent.json(&["status"]), "weir0"),
            (attach.into(), "attached".to_owned())
        );
    }
}

/// Attaches another owner's XDP program to an interface of the server.
fn take(network: &Network, name: &str) -> Foreign {
    network.in_server(|| Foreign::attach(nix::net::if_::if_nametoindex(name).unwrap(), Place::Xdp))
}

/// Not at a start, not in a reload, and not in a rollback.
fn an_interface_that_cannot_be_attached_keeps_no_other_without_limits() {
    let network = Network::new();
    let on = ["weir*", "extra*"];
    network.add_link("extra0", "peer0");
    let foreign = take(&network, "extra0");
    let agent = network.start_on(&on, "attach = \"native\"", SLOW);
    let is = |agent: &Agent<'_>, name: &str| state(&agent.json(&["status"]), name).1;
    assert_eq!(
        [is(&agent, "weir0"), is(&agent, "extra0")],
        ["attached", "failed"]
    );
    let config = network.config_on(
        &on,
        "attach = \"native\"",
        &SLOW.replace("burst = 100", "burst = 90"),
    );
    network.told(&["reload"]);
    assert_eq!(agent.limit("packets")["burst"], 90);
    let tried = network.folder.path().join("tried.toml");
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(&tried, text.replace("burst = 90", "burst = 1")).unwrap();
    network.told(&["try", tried.to_str().unwrap(), "--for", "1h"]);
    network.told(&["revert"]);
    assert_eq!(agent.limit("packets")["burst"], 90);
    // Nor does one that a trial left out and another program has taken since.
    drop(foreign);
    wait_for(&agent, "extra0", "attached");
    std::fs::write(&tried, text.replace("\"extra*\"", "\"other*\"")).unwrap();
    network.told(&["try", tried.to_str().unwrap(), "--for", "1h"]);
    let foreign = take(&network, "extra0");
    network.told(&["revert"]);
    assert_eq!(
        [is(&agent, "weir0"), is(&agent, "extra0")],
        ["attached", "failed"]
    );
    drop(foreign);
    wait_for(&agent, "extra0", "attached");
    // Nor one whose hook another program takes from Weir.
    agent.signal(Signal::SIGSTOP);
    let pin = format!("link-xdp:{}", network.index("extra0"));
    Link::open(&network.pins().join(pin))
        .unwrap()
        .detach()
        .unwrap();
    let foreign = take(&network, "extra0");
    agent.signal(Signal::SIGCONT);
    let smaller = SLOW.replace("burst = 100", "burst = 80");
    network.config_on(&on, "attach = \"native\"", &smaller);
    network.told(&["reload"]);
    assert_eq!(agent.limit("packets")["burst"], 80);
    assert_eq!(is(&agent, "weir0"), "attached");
    wait_for(&agent, "extra0", "failed");
    drop(foreign);
    wait_for(&agent, "extra0", "attached");
    // All of them cannot be attached: an error.
    agent.stop(Signal::SIGTERM);
    network.told(&["detach", "--config", config.to_str().unwrap()]);
    let foreign = [take(&network, "weir0"), take(&network, "extra0")];
    let output = network.run_to_end(&config);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(1)
            && said.contains("another program is attached to the XDP hook"),
        "{said}"
    );
    drop(foreign);
}

fn interfaces_with_xdp_programs_of_others_delay_a_change_by_no_more_than_one() {
    const COUNT: u64 = 10;
    let network = Network::new();
    let names: Vec<String> = (0..COUNT).map(|nth| format!("extra{nth}")).collect();
    let foreign: Vec<Foreign> = names
        .iter()
        .map(|name| {
            network.add_link(name, &name.replace("extra", "peer"));
            take(&network, name)
        })
        .collect();
    let on = ["weir*", "extra*"];
    let agent = network.start_on(&on, "attach = \"auto\"", SLOW);
    let another = SLOW.replace("packets", "another");
    network.config_on(&on, "attach = \"auto\"", &format!("{SLOW}{another}"));
    // The time in which the agent works, or could and has no CPU.
    let busy = || agent.cpu_time() + testbed::groups::run_delay(agent.process());
    let before = busy();
    let reloaded = agent.json(&["reload"]);
    let busy = busy().saturating_sub(before);
    assert_eq!(reloaded["ok"], true, "{reloaded}");
    // A second for each, if a change waited for each hook to be released.
    let took = Duration::from_millis(reloaded["milliseconds"].as_u64().unwrap());
    assert!(
        took.saturating_sub(busy) < Duration::from_secs(COUNT),
        "{reloaded}, {busy:?} busy"
    );
    let status = agent.json(&["status"]);
    assert!(
        names
            .iter()
            .all(|name| state(&status, name) == ("tc".into(), "attached".to_owned())),
        "{status}"
    );
    drop(foreign);
}

fn a_change_that_fails_part_way_leaves_the_old_policy_on_every_hook() {
    let network = Network::new();
    let receiver = network.receiver(PORT);
    let larger = SLOW.replace("100", "1000");
    let on = ["weir0", "lo"];
    let agent = network.start_on(&on, "attach = \"generic\"", SLOW);
    burst(&network, &[udp_from(7)], 60);
    // lo has no native XDP, which shows when weir0 has been changed already: a reload, and then a start.
    network.config_on(&on, "attach = \"native\"", &larger);
    let output = network.command(&["reload"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("native XDP is not supported"),
        "{output:?}"
    );
    let status = agent.json(&["status"]);
    for name in on {
        assert_eq!(
            state(&status, name),
            ("generic".into(), "attached".to_owned())
        );
    }
    burst(&network, &[udp_from(7), udp_from(8)], 300);
    let counts = receiver.counts();
    assert_eq!((counts[7], counts[8]), (100, 100));
    agent.stop(Signal::SIGKILL);
    let output = network.run_to_end(&network.config_on(&on, "attach = \"native\"", &larger));
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    burst(&network, &[udp_from(8), udp_from(9)], 2_000);
    let counts = receiver.counts();
    assert_eq!(
        (counts[8], counts[9]),
        (0, 100),
        "the old limit is in effect"
    );
    for name in on {
        let pin = network
            .pins()
            .join(format!("link-xdpgeneric:{}", network.index(name)));
        assert_eq!(
            Link::open(&pin).unwrap().info().unwrap().interface,
            network.index(name)
        );
    }
    let agent = network.start_on(&on, "attach = \"generic\"", SLOW);
    assert_eq!(agent.remaining("10.77.0.9", "packets"), 0);
    assert_eq!(agent.json(&["status"])["notes"], serde_json::json!([]));
}

/// Something is where a pin of the new table belongs, so that it cannot be moved there: the change is in effect by then.
fn a_change_that_is_on_every_hook_stays_though_its_pins_cannot_be_moved() {
    let network = Network::new();
    let agent = network.start("attach = \"native\"\nmax_sources = 1000", SLOW);
    let receiver = network.receiver(PORT);
    burst(&network, &[udp_from(7)], 60);
    let pin = network.pins().join("SAMPLES");
    std::fs::remove_file(&pin).unwrap();
    std::fs::create_dir(&pin).unwrap();
    network.config(
        "attach = \"tc\"\nmax_sources = 2000",
        &SLOW.replace("100", "150"),
    );
    let answer = agent.json(&["reload"]);
    assert_eq!(answer["ok"], true, "{answer}");
    assert!(answer["notes"].to_string().contains("SAMPLES"), "{answer}");
    let status = agent.json(&["status"]);
    assert_eq!(
        state(&status, "weir0"),
        ("tc".into(), "attached".to_owned()),
        "{status}"
    );
    assert!(status["notes"].to_string().contains("SAMPLES"), "{status}");
    assert_eq!(
        (
            agent.limit("packets")["burst"].as_u64(),
            network.has_program()
        ),
        (Some(150), false)
    );
    burst(&network, &[udp_from(7), udp_from(8)], 400);
    let counts = receiver.counts();
    assert_eq!(
        (counts[7], counts[8]),
        (60 + 90, 150),
        "60 of the burst were used"
    );
    // The next change goes on where this one could not.
    std::fs::remove_dir(&pin).unwrap();
    let answer = agent.json(&["reload"]);
    assert_eq!(
        (&answer["ok"], &answer["notes"]),
        (&true.into(), &serde_json::json!([])),
        "{answer}"
    );
    agent.stop(Signal::SIGKILL);
    let agent = network.start(
        "attach = \"tc\"\nmax_sources = 2000",
        &SLOW.replace("100", "150"),
    );
    assert_eq!(
        (
            agent.remaining("10.77.0.7", "packets"),
            agent.remaining("10.77.0.8", "packets")
        ),
        (0, 0)
    );
}
