//! Interfaces by name: names that change, alternative names, and pins by name.

use bpf::link::Link;
use nix::sys::signal::Signal;
use testbed::tests;
use testbed::trials::Test;

use crate::interfaces::{SLOW, has_event, rename, state, wait_for};
use crate::support::Network;
use crate::traffic::{PORT, burst, udp_from};

pub const TESTS: &[Test] = tests![
    any_legal_name_is_attached_and_stays_so_when_it_changes,
    an_alternative_name_is_a_name,
    pins_by_name_of_an_older_version_are_adopted_or_released,
];

fn any_legal_name_is_attached_and_stays_so_when_it_changes() {
    let network = Network::new();
    network.add_link("a.b", "client1");
    let agent = network.start_on(&["weir0", "a*", "b:c"], "", SLOW);
    assert_eq!(
        state(&agent.json(&["status"]), "a.b"),
        ("native".into(), "attached".to_owned())
    );
    let pin = network
        .pins()
        .join(format!("link-xdp:{}", network.index("a.b")));
    assert!(pin.exists());
    // Renamed within the pattern it stays as it is; the next agent knows it by its index.
    rename(&network, "a.b", "a.b.c");
    wait_for(&agent, "a.b.c", "attached");
    agent.stop(Signal::SIGKILL);
    rename(&network, "a.b.c", "a-1");
    let agent = network.start_on(&["weir0", "a*"], "", SLOW);
    assert_eq!(
        state(&agent.json(&["status"]), "a-1"),
        ("native".into(), "attached".to_owned())
    );
    assert!(pin.exists());
    // Renamed away from it it is released, and taken back when it returns.
    rename(&network, "a-1", "other");
    agent.wait_for("the release", |status| {
        state(status, "a-1").1 == "unknown" && !pin.exists()
    });
    agent.wait_for("the event", |_| has_event(&agent, "detached", "a-1"));
    rename(&network, "other", "a.b");
    wait_for(&agent, "a.b", "attached");
    agent.stop(Signal::SIGKILL);
    network.told(&[
        "detach",
        "--config",
        network.config("", SLOW).to_str().unwrap(),
    ]);
    assert!(!network.has_pins() && !network.has_program());
}

/// systemd gives each card some, of which the operator may know only one.
fn an_alternative_name_is_a_name() {
    const ALTERNATIVE: &str = "enx020000007701-of-the-second-card";
    let named = || {
        let network = Network::new();
        network.server_ip(&[
            "link",
            "property",
            "add",
            "dev",
            "weir0",
            "altname",
            ALTERNATIVE,
        ]);
        network
    };
    let limits = format!(
        "{SLOW}[[limit]]\nname = \"scoped\"\nrate = \"1/h\"\nburst = 50\ninterfaces = [\"{ALTERNATIVE}\"]\n"
    );
    for name in [ALTERNATIVE, "enx*-card"] {
        let network = named();
        let agent = network.start_on(&[name], "", &limits);
        let status = agent.json(&["status"]);
        assert_eq!(state(&status, "weir0").1, "attached", "{status}");
        burst(&network, &[udp_from(7)], 200);
        assert_eq!(agent.counts("scoped"), (50, 150), "{name}");
        let config = network.folder.path().join("limits.toml");
        let said = network.command(&["doctor", "--config", config.to_str().unwrap()]);
        let said = String::from_utf8(said.stdout).unwrap();
        assert!(
            said.contains("weir0") && !said.contains("there is none"),
            "{said}"
        );
    }
    // Limits that mix the names have a note that says which one counts.
    let network = named();
    let mixed =
        format!("{limits}[[limit]]\nname = \"other\"\nrate = \"1/h\"\ninterfaces = [\"weir0\"]\n");
    let agent = network.start_on(&["weir0", ALTERNATIVE], "", &mixed);
    let notes = agent.json(&["status"])["notes"].to_string();
    assert!(
        notes.contains("scoped") && notes.contains("which other limits call weir0"),
        "{notes}"
    );
}

fn pins_by_name_of_an_older_version_are_adopted_or_released() {
    let network = Network::new();
    let index = network.index("weir0");
    let (pin, program) = (
        network.pins().join(format!("link-xdp:{index}")),
        network.pins().join(format!("program-xdp:{index}")),
    );
    let receiver = network.receiver(PORT);
    let by_name = |name: &str| {
        std::fs::rename(&pin, network.pins().join(format!("link-xdp-{name}"))).unwrap();
        std::fs::remove_file(&program).unwrap();
    };
    network.start("", SLOW).stop(Signal::SIGKILL);
    by_name("weir0");
    burst(&network, &[udp_from(7)], 60);
    let link = Link::open(&network.pins().join("link-xdp-weir0"))
        .unwrap()
        .info()
        .unwrap();
    let agent = network.start("", SLOW);
    let now = Link::open(&pin).unwrap().info().unwrap();
    assert!(
        now.interface == link.interface && now.program != link.program,
        "the link has another program"
    );
    assert!(!network.pins().join("link-xdp-weir0").exists() && program.exists());
    assert_eq!(agent.remaining("10.77.0.7", "packets"), 40);
    // One of an interface that has been renamed since.
    agent.stop(Signal::SIGKILL);
    by_name("eth9");
    let agent = network.start("", SLOW);
    assert_eq!(agent.remaining("10.77.0.7", "packets"), 40);
    agent.stop(Signal::SIGKILL);
    by_name("eth9");
    network.told(&[
        "detach",
        "--config",
        network.config("", SLOW).to_str().unwrap(),
    ]);
    assert!(!network.has_pins() && !network.has_program());
    burst(&network, &[udp_from(7)], 100);
    assert_eq!(receiver.counts()[7], 160);
}
