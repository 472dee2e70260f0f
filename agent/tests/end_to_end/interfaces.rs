//! Interfaces that come, go and change while the agent runs.

use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::time::Instant;

use aya::util::KernelVersion;
use common::packet::build::Frame;
use nix::sys::signal::Signal;
use serde_json::Value;
use testbed::stalls::Stalls;
use testbed::tests;
use testbed::trials::Test;

use crate::support::{Agent, Network};
use crate::traffic::{PORT, burst, udp_from};

pub const TESTS: &[Test] = tests![
    an_interface_that_is_made_anew_is_attached_again,
    a_missing_interface_is_reported_and_attached_when_it_appears,
    what_a_reload_attaches_and_releases_is_reported,
    a_tunnel_that_appears_is_attached_by_traffic_control,
    a_tunnel_whose_type_of_traffic_changes_is_attached_anew,
    changes_without_a_message_are_followed,
];

pub const SLOW: &str = "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 100\n";

/// An interface in `status`: how it is attached, and its state.
pub fn state(status: &Value, name: &str) -> (Value, String) {
    let interfaces = status["interfaces"].as_array().unwrap();
    let found = interfaces
        .iter()
        .find(|interface| interface["name"] == name);
    found.map_or((Value::Null, "unknown".to_owned()), |interface| {
        (
            interface["attach"].clone(),
            interface["state"].as_str().unwrap().to_owned(),
        )
    })
}

/// Waits until an interface is in a state.
pub fn wait_for(agent: &Agent<'_>, name: &str, wanted: &str) {
    let (began, stalls) = (Instant::now(), Stalls::watch());
    agent.wait_for(wanted, |status| state(status, name).1 == wanted);
    print_time(began, &stalls, &format!("{name} was {wanted}"));
}

/// Prints how long it took: beside other work it depends on the machine.
pub fn print_time(began: Instant, stalls: &Stalls, what: &str) {
    let (took, late) = (began.elapsed(), stalls.so_far());
    eprintln!("{what} after {took:?}, {late:?} of them late");
}

pub fn has_event(agent: &Agent<'_>, verdict: &str, interface: &str) -> bool {
    let source = format!("interface {interface}");
    agent
        .lines(&["events", "--json"])
        .iter()
        .any(|event| event["verdict"] == verdict && event["source"] == *source)
}

/// Renames an interface that is up, which Linux allows from 6.2 on (commit bd039b5ea2a9); before, it goes down meanwhile.
pub fn rename(network: &Network, from: &str, to: &str) {
    let is_live =
        KernelVersion::current().is_ok_and(|version| version >= KernelVersion::new(6, 2, 0));
    if !is_live {
        network.ip(&["link", "set", from, "down"]);
    }
    network.ip(&["link", "set", from, "name", to]);
    if !is_live {
        network.ip(&["link", "set", to, "up"]);
    }
}

fn an_interface_that_is_made_anew_is_attached_again() {
    for attach in ["native", "tc"] {
        let network = Network::new();
        let agent = network.start(&format!("attach = {attach:?}"), SLOW);
        let index = network.index("weir0");
        network.ip(&["link", "del", "weir0"]);
        wait_for(&agent, "weir0", "missing");
        agent.wait_for("the event", |_| has_event(&agent, "detached", "weir0"));
        let events = agent.lines(&["events", "--json"]);
        let detached = events
            .iter()
            .find(|event| event["verdict"] == "detached")
            .unwrap();
        assert!(
            detached["reason"].as_str().unwrap().contains("was removed"),
            "{detached}"
        );
        let notes = agent.json(&["status"])["notes"].to_string();
        assert!(
            notes.contains("interface `weir0` not found (available: lo)"),
            "{notes}"
        );
        network.join();
        let began = Instant::now();
        wait_for(&agent, "weir0", "attached");
        assert_eq!(state(&agent.json(&["status"]), "weir0").0, attach);
        assert_ne!(network.index("weir0"), index);
        eprintln!("{attach}: attached {:?} after it appeared", began.elapsed());
        let receiver = network.receiver(PORT);
        burst(&network, &[udp_from(7)], 4_000);
        assert_eq!(
            (receiver.counts()[7], agent.counts("packets")),
            (100, (100, 3_900))
        );
        agent.wait_for("the event", |_| has_event(&agent, "attached", "weir0"));
        // The pins of the one before are removed.
        let pins: Vec<_> = std::fs::read_dir(network.pins())
            .unwrap()
            .map(|pin| pin.unwrap().file_name())
            .collect();
        assert!(
            pins.iter()
                .all(|pin| !pin.to_string_lossy().ends_with(&format!(":{index}"))),
            "{pins:?}"
        );
    }
}

fn a_missing_interface_is_reported_and_attached_when_it_appears() {
    let network = Network::new();
    let agent = network.start_on(
        &["weir0", "srv9", "tap*"],
        "metrics = \"127.0.0.1:9464\"",
        SLOW,
    );
    let status = agent.json(&["status"]);
    assert_eq!(
        state(&status, "weir0"),
        ("native".into(), "attached".to_owned())
    );
    assert_eq!(state(&status, "srv9"), (Value::Null, "missing".to_owned()));
    assert_eq!(
        state(&status, "tap*"),
        (Value::Null, "unmatched".to_owned())
    );
    let note =
        "interface `srv9` not found (available: lo, weir0); it will be attached when it appears";
    assert!(
        status["notes"].as_array().unwrap().contains(&note.into()),
        "{status}"
    );
    agent.wait_for("the event", |_| has_event(&agent, "detached", "srv9"));
    let metric =
        |name: &str, value: u8| format!("weir_interface_attached{{interface=\"{name}\"}} {value}");
    let page = crate::metrics::get(&network);
    assert!(
        page.contains(&metric("weir0", 1)) && page.contains(&metric("srv9", 0)),
        "{page}"
    );
    network.add_link("srv9", "client1");
    wait_for(&agent, "srv9", "attached");
    network.add_link("tap7", "client2");
    wait_for(&agent, "tap7", "attached");
    let status = agent.json(&["status"]);
    assert_eq!(state(&status, "tap*").1, "unknown");
    assert_eq!(status["notes"], serde_json::json!([]));
    // A reload keeps what has appeared.
    assert_eq!(agent.json(&["reload"])["ok"], true);
    assert_eq!(state(&agent.json(&["status"]), "srv9").1, "attached");
    // One that another config names, and that is not there, is a note as well.
    network.config_on(&["weir0", "weir9"], "metrics = \"127.0.0.1:9464\"", SLOW);
    let answer = agent.json(&["reload"]);
    assert_eq!(answer["ok"], true, "{answer}");
    assert!(
        answer["notes"]
            .to_string()
            .contains("interface `weir9` not found"),
        "{answer}"
    );
    // Two hundred interfaces at once are not too many.
    network.config_on(&["weir0", "m*"], "metrics = \"127.0.0.1:9464\"", SLOW);
    assert_eq!(agent.json(&["reload"])["ok"], true);
    let commands: String = (0..100)
        .map(|nth| format!("link add m{nth} type veth peer name p{nth}\n"))
        .collect();
    network.ip_batch(&commands);
    let began = Instant::now();
    agent.wait_for("all of them", |status| {
        (0..100).all(|nth| state(status, &format!("m{nth}")).1 == "attached")
    });
    eprintln!(
        "100 interfaces were attached {:?} after the last was made",
        began.elapsed()
    );
}

fn what_a_reload_attaches_and_releases_is_reported() {
    let network = Network::new();
    network.add_link("srv1", "client1");
    let agent = network.start_on(&["weir0"], "", SLOW);
    network.config_on(&["srv1"], "", SLOW);
    assert_eq!(agent.json(&["reload"])["ok"], true);
    agent.wait_for("both events", |_| {
        has_event(&agent, "attached", "srv1") && has_event(&agent, "detached", "weir0")
    });
    // Nobody attached what stayed.
    network.config_on(&["srv1", "weir0"], "", SLOW);
    assert_eq!(agent.json(&["reload"])["ok"], true);
    agent.wait_for("the event", |_| has_event(&agent, "attached", "weir0"));
    let events = agent.lines(&["events", "--json"]);
    let of_interfaces = events.iter().filter(|event| {
        event["source"]
            .as_str()
            .is_some_and(|source| source.starts_with("interface "))
    });
    assert_eq!(of_interfaces.count(), 3, "{events:?}");
}

fn a_tunnel_that_appears_is_attached_by_traffic_control() {
    let network = Network::new();
    let agent = network.start_on(&["weir0", "weirtun"], "", SLOW);
    let _tunnel = network.in_server(|| crate::wire::tunnel("weirtun"));
    agent.wait_for("the tunnel", |status| {
        state(status, "weirtun") == ("tc".into(), "attached".to_owned())
    });
}

/// Changes the type of a tunnel's frames (`ARPHRD_*`), which Linux allows while it is down.
fn change_type(network: &Network, tunnel: &std::fs::File, kind: libc::c_ulong) {
    // Of include/uapi/linux/if_tun.h.
    const TUNSETLINK: libc::Ioctl = 0x4004_54cd;
    network.ip(&["link", "set", "weirtun", "down"]);
    // SAFETY: the call takes a number.
    let result = unsafe { libc::ioctl(tunnel.as_raw_fd(), TUNSETLINK, kind) };
    assert_eq!(result, 0, "{}", std::io::Error::last_os_error());
    network.ip(&["link", "set", "weirtun", "up"]);
}

fn a_tunnel_whose_type_of_traffic_changes_is_attached_anew() {
    // `ARPHRD_RAWIP` of include/uapi/linux/if_arp.h.
    const RAW_IP: libc::c_ulong = 519;
    let network = Network::new();
    let tunnel = network.in_server(|| crate::wire::tunnel("weirtun"));
    network.configure_server("weirtun", "10.78.0.1/24");
    let agent = network.start_on(&["weirtun"], "attach = \"tc\"", SLOW);
    let receiver = network.receiver(PORT);
    let packet = Frame::raw()
        .ipv4([10, 78, 0, 7], [10, 78, 0, 1])
        .udp(5000, PORT, &[0; 22])
        .build();
    let send = |count: usize| (0..count).for_each(|_| (&tunnel).write_all(&packet).unwrap());
    network.told(&["ban", "192.0.2.9"]);
    send(60);
    assert_eq!(receiver.counts()[7], 60);
    change_type(
        &network,
        &tunnel,
        libc::c_ulong::from(libc::ARPHRD_IEEE80211_RADIOTAP),
    );
    wait_for(&agent, "weirtun", "failed");
    let status = agent.json(&["status"]);
    assert!(status["notes"].to_string().contains("weirtun"), "{status}");
    // A change meanwhile takes nothing of the policy before it away, and says at once what it does not limit.
    let reload = agent.json(&["reload"]);
    assert!(reload["notes"].to_string().contains("weirtun"), "{reload}");
    let status = agent.json(&["status"]);
    assert_eq!(state(&status, "weirtun").1, "failed", "{status}");
    assert!(status["notes"].to_string().contains("weirtun"), "{status}");
    change_type(&network, &tunnel, RAW_IP);
    wait_for(&agent, "weirtun", "attached");
    send(300);
    assert_eq!((receiver.counts()[7], agent.counts("packets").0), (40, 100));
    assert!(agent.is_banned("192.0.2.9"));
}

/// Messages that the kernel could not deliver to sockets that listen for changes of interfaces.
fn lost(network: &Network) -> u64 {
    let table = network
        .in_server(|| std::fs::read_to_string("/proc/thread-self/net/netlink"))
        .unwrap();
    let fields = table
        .lines()
        .skip(1)
        .map(|line| line.split_whitespace().collect::<Vec<_>>());
    // sk, protocol (0: rtnetlink), port, groups, …, drops, inode.
    let listens = |fields: &Vec<&str>| {
        fields[1] == "0" && u32::from_str_radix(fields[3], 16).unwrap() & 1 == 1
    };
    fields
        .filter(listens)
        .map(|fields| fields[8].parse::<u64>().unwrap())
        .sum()
}

fn changes_without_a_message_are_followed() {
    let network = Network::new();
    network.add_link("other", "client2");
    let agent = network.start_on(&["weir0", "m*"], "", SLOW);
    agent.signal(Signal::SIGSTOP);
    let changes: String = (0..2_000)
        .map(|nth| format!("link set other mtu {}\n", 1_000 + nth % 2))
        .collect();
    network.ip_batch(&changes);
    assert!(lost(&network) > 0, "the socket took all messages");
    // Nobody is told of these.
    let lost_before = lost(&network);
    network.add_link("m1", "client1");
    network.ip(&["link", "del", "weir0"]);
    assert!(lost(&network) > lost_before);
    agent.signal(Signal::SIGCONT);
    wait_for(&agent, "m1", "attached");
    wait_for(&agent, "weir0", "missing");
    network.join();
    wait_for(&agent, "weir0", "attached");
}
