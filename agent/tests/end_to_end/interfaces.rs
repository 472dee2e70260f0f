//! Interfaces that come, go and change while the agent runs, and programs that others take off.

use std::io::Write as _;
use std::os::fd::AsRawFd as _;
use std::time::{Duration, Instant};

use aya::util::KernelVersion;
use bpf::link::Link;
use common::packet::build::Frame;
use datapath::PinDirectory;
use nix::sys::signal::Signal;
use serde_json::Value;
use testbed::stalls::Stalls;
use testbed::tests;
use testbed::trials::Test;

use crate::foreign::{Foreign, Place};
use crate::support::{Agent, Network};
use crate::traffic::{PORT, burst, udp_from};

pub const TESTS: &[Test] = tests![
    any_legal_name_is_attached_and_stays_so_when_it_changes,
    an_alternative_name_is_a_name,
    pins_by_name_of_an_older_version_are_adopted_or_released,
    an_interface_that_is_made_anew_is_attached_again,
    a_missing_interface_is_reported_and_attached_when_it_appears,
    what_a_reload_attaches_and_releases_is_reported,
    a_tunnel_that_appears_is_attached_by_traffic_control,
    a_tunnel_whose_type_of_traffic_changes_is_attached_anew,
    changes_without_a_message_are_followed,
    a_program_that_is_taken_off_is_reported_and_attached_again,
    pins_that_somebody_removes_are_reported_and_not_made_again,
    an_interface_that_cannot_be_attached_keeps_no_other_without_limits,
    interfaces_with_xdp_programs_of_others_delay_a_change_by_no_more_than_one,
    a_change_that_fails_part_way_leaves_the_old_policy_on_every_hook,
    a_change_that_is_on_every_hook_stays_though_its_pins_cannot_be_moved,
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
fn print_time(began: Instant, stalls: &Stalls, what: &str) {
    let (took, late) = (began.elapsed(), stalls.so_far());
    eprintln!("{what} after {took:?}, {late:?} of them late");
}

fn has_event(agent: &Agent<'_>, verdict: &str, interface: &str) -> bool {
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
    let reloaded = agent.json(&["reload"]);
    assert_eq!(reloaded["ok"], true, "{reloaded}");
    // A second for each, if a change waited for each hook to be released.
    assert!(
        reloaded["milliseconds"].as_u64() < Some(1_000 * COUNT),
        "{reloaded}"
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
