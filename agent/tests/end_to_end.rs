//! Real packets over veth, native XDP, the agent's own binary: what an operator would see.

mod support;

use std::time::Duration;

use common::packet::build::{Frame, MoreFragments};
use libtest_mimic::{Arguments, Trial};
use nix::sys::signal::Signal;
use support::{CLIENT_MAC, INTERFACE, Network, SERVER, SERVER_MAC, SERVER6, Sender};

const LIMIT: &str = "[[limit]]\nname = \"packets\"\nrate = \"1000/s\"\nburst = 100\n";
const PORT: u16 = 9000;

fn main() {
    let arguments = Arguments::from_args();
    let obstacle = support::obstacle();
    let is_too_old = weir::datapath::is_kernel_too_old();
    let reason = match obstacle {
        Some(reason) => reason,
        None if is_too_old => "this kernel is older than Linux 5.15, so that all it can show is a refusal",
        None => "the refusal of kernels before Linux 5.15, since this one is newer",
    };
    eprintln!("skipped: {reason}");
    let tests: &[(&str, fn())] = &[
        ("a_source_at_twenty_times_its_limit_gets_burst_plus_rate_times_time", greedy),
        ("a_source_within_its_limit_loses_nothing_beside_a_greedy_one", polite),
        ("an_ipv6_prefix_shares_one_limit", ipv6),
        ("tags_options_and_fragments_hide_nobody", wrapped),
        ("observing_throttles_nothing_and_counts", observe),
        ("never_limit_is_never_limited", never_limit),
        ("two_limits_on_one_packet_charge_both_or_none", two_limits),
        ("a_limit_on_ports_leaves_other_ports_alone", ports),
        ("connections_are_counted_by_their_syn", connections),
        ("classes_multiply_and_lift_limits", classes),
        ("a_soft_limit_passes_its_share_and_counts_it_apart", soft),
        ("every_algorithm_holds_in_the_kernel", algorithms),
        ("arp_and_neighbour_discovery_pass_whatever_happens", essential),
        ("the_documents_have_the_fields_of_the_interface", documents),
        ("limits_stay_in_force_while_the_agent_is_gone_and_the_next_one_goes_on", takeover),
        ("detaching_leaves_nothing", detach),
        ("what_cannot_be_done_is_one_message_and_leaves_nothing", refusals),
        ("a_driver_without_native_xdp_is_told_and_generic_only_when_asked_for", generic),
        ("a_root_without_the_capabilities_is_told_which", capabilities),
        ("reset_gives_a_source_its_whole_allowance", reset),
    ];
    let refusal: (&str, fn()) = ("a_kernel_that_is_too_old_is_refused_in_plain_words_and_left_alone", old_kernel);
    let served = tests.iter().map(|test| (test, !is_too_old));
    let trials = served
        .chain([(&refusal, is_too_old)])
        .map(|((name, test), fits)| {
            let test = *test;
            Trial::test(*name, move || {
                test();
                Ok(())
            })
            .with_ignored_flag(obstacle.is_some() || !fits)
        })
        .collect();
    libtest_mimic::run(&arguments, trials).exit();
}

fn udp_from(last: u8) -> Vec<u8> {
    Frame::between(CLIENT_MAC, SERVER_MAC).ipv4([10, 77, 0, last], SERVER).udp(5000, PORT, &[0; 22]).build()
}

fn udp6_from(source: [u8; 16]) -> Vec<u8> {
    Frame::between(CLIENT_MAC, SERVER_MAC).ipv6(source, SERVER6).udp(5000, PORT, &[0; 22]).build()
}

fn v6(last_of_prefix: u8, last: u8) -> [u8; 16] {
    [0xfd, 0x77, 0, 0, 0, 0, 0, last_of_prefix, 0, 0, 0, 0, 0, 0, 0, last]
}

/// Sends `count` frames as fast as it goes.
fn burst(network: &Network, frames: &[Vec<u8>], count: usize) {
    network.in_client(|| {
        let sender = Sender::new();
        for frame in frames.iter().cycle().take(count) {
            sender.send(frame);
        }
    });
}

fn flood(network: &Network, frames: &[Vec<u8>], per_millisecond: usize, seconds: u64) -> (u64, Duration) {
    network.in_client(|| Sender::new().flood(frames, per_millisecond, Duration::from_secs(seconds), 2_200))
}

/// A burst large enough that a sender which the host holds up for a while loses no allowance by it.
const WIDE_LIMIT: &str = "[[limit]]\nname = \"packets\"\nrate = \"1000/s\"\nburst = 2000\n";

/// What that limit passes in a time, by its definition.
fn allowed(time: Duration) -> f64 {
    2_000.0 + 1_000.0 * time.as_secs_f64()
}

fn greedy() {
    let network = Network::new();
    let agent = network.start("", WIDE_LIMIT);
    let receiver = network.receiver(PORT);
    let (sent, time) = flood(&network, &[udp_from(7)], 20, 5);
    let received = receiver.counts()[7] as f64;
    assert!(sent as f64 >= 10.0 * allowed(time), "only {sent} were sent");
    assert!(received <= allowed(time), "{received} passed of at most {}", allowed(time));
    assert!(received >= 0.98 * allowed(time), "only {received} passed of {}", allowed(time));
    let (passed, throttled) = agent.counts("packets");
    assert_eq!((passed as f64, passed + throttled), (received, sent));
}

fn polite() {
    let network = Network::new();
    let agent = network.start("", WIDE_LIMIT);
    let receiver = network.receiver(PORT);
    // Nineteen of the greedy one for each of the polite one, who stays at half its limit.
    let mut frames = vec![udp_from(7); 19];
    frames.push(udp_from(8));
    let (sent, _) = network.in_client(|| Sender::new().pace(&frames, 10, Duration::from_secs(4)));
    let counts = receiver.counts();
    // The polite one's frame is the last of each twenty.
    assert_eq!(counts[8], sent / 20, "of {} that were sent", sent / 20);
    let shown = agent.json(&["show", "10.77.0.8"]);
    assert_eq!(shown["limits"][0]["throttled_packets"], 0);
    assert_eq!(shown["limits"][0]["passed_packets"].as_u64(), Some(counts[8]));
    let top = agent.json(&["top", "--once"]);
    assert_eq!(top[0]["source"], "10.77.0.7");
    assert_eq!(top[0]["limit"], "packets");
    assert!(top[0]["throttled_packets"].as_u64().unwrap() > 0);
}

fn ipv6() {
    let network = Network::new();
    let agent = network.start("", "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 50\n");
    let frames: Vec<_> = (1..=10).map(|host| udp6_from(v6(3, host))).collect();
    burst(&network, &frames, 200);
    burst(&network, &[udp6_from(v6(4, 1))], 20);
    assert_eq!(agent.counts("packets"), (70, 150));
    let shown = agent.json(&["show", "fd77:0:0:3::99"]);
    assert_eq!(shown["limits"][0]["remaining"], 0);
    assert!(shown["limits"][0]["retry_after_seconds"].as_f64().unwrap() > 1.0);
    assert_eq!(agent.json(&["top", "--once"])[0]["source"], "fd77:0:0:3::/64");
}

fn wrapped() {
    let network = Network::new();
    let agent = network.start("", "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 10\n");
    let link = || Frame::between(CLIENT_MAC, SERVER_MAC);
    let source = |last: u8| ([10, 77, 1, last], SERVER);
    let wrap: Vec<(u8, Frame)> = vec![
        (1, link().vlan(5).ipv4(source(1).0, SERVER)),
        (2, link().tag(0x88a8, 5).vlan(6).ipv4(source(2).0, SERVER)),
        (3, link().vlan(1).vlan(2).vlan(3).ipv4(source(3).0, SERVER)),
        (4, link().ipv4_with_options(source(4).0, SERVER, 10)),
        (5, link().ipv4(source(5).0, SERVER).fragment(0, MoreFragments::Yes)),
        (6, link().ipv4(source(6).0, SERVER).fragment(64, MoreFragments::No)),
    ];
    for (last, frame) in wrap {
        let (passed, throttled) = agent.counts("packets");
        burst(&network, &[frame.udp(1, 2, &[0; 64]).build()], 30);
        let (passed_now, throttled_now) = agent.counts("packets");
        assert_eq!((passed_now - passed, throttled_now - throttled), (10, 20), "source {last}");
        assert_eq!(agent.json(&["show", &format!("10.77.1.{last}")])["limits"][0]["remaining"], 0);
    }
    // More tags than anybody looks through: refused as malformed, not passed.
    let five = (0..5).fold(link(), |frame, id| frame.vlan(id)).ipv4(source(9).0, SERVER).udp(1, 2, b"").build();
    burst(&network, &[five], 5);
    assert_eq!(agent.json(&["status"])["bypass"]["malformed"], 5);
}

fn observe() {
    let network = Network::new();
    let agent = network.start("mode = \"observe\"", "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 10\n");
    let receiver = network.receiver(PORT);
    burst(&network, &[udp_from(7)], 100);
    assert_eq!(receiver.counts()[7], 100);
    let limit = agent.limit("packets");
    assert_eq!(limit["throttled"]["packets"], 0);
    assert_eq!(limit["would_throttle"]["packets"], 90);
    assert_eq!(limit["passed"]["packets"], 100);
    assert_eq!(agent.json(&["status"])["mode"], "observe");
}

fn never_limit() {
    let network = Network::new();
    let agent = network.start(
        "never_limit = [\"10.77.0.7\", \"fd77:0:0:3::/64\"]",
        "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 10\n",
    );
    burst(&network, &[udp_from(7)], 100);
    burst(&network, &[udp6_from(v6(3, 1))], 100);
    assert_eq!(agent.counts("packets"), (0, 0));
    assert_eq!(agent.json(&["status"])["bypass"]["never_limit"], 200);
    assert_eq!(agent.json(&["show", "10.77.0.7"])["never_limit"], true);
    burst(&network, &[udp_from(8)], 100);
    assert_eq!(agent.counts("packets"), (10, 90));
}

fn two_limits() {
    let network = Network::new();
    let agent = network.start(
        "",
        "[[limit]]\nname = \"wide\"\nrate = \"1/h\"\nburst = 100\n\
         [[limit]]\nname = \"narrow\"\nrate = \"1/h\"\nburst = 30\nprotocol = \"udp\"\n\
         [[limit]]\nname = \"network\"\nrate = \"1/h\"\nburst = 80\nipv4_prefix = 24\n",
    );
    burst(&network, &[udp_from(7)], 50);
    assert_eq!(agent.counts("wide"), (30, 0));
    assert_eq!(agent.counts("narrow"), (30, 20));
    // What the narrow one refused was charged to neither of the others.
    let remaining = |nth: usize| agent.json(&["show", "10.77.0.7"])["limits"][nth]["remaining"].clone();
    assert_eq!((remaining(0), remaining(1), remaining(2)), (70.into(), 0.into(), 50.into()));
    // The network's is shared, and the last to give out.
    burst(&network, &[udp_from(8)], 30);
    burst(&network, &[udp_from(9)], 30);
    assert_eq!(agent.counts("network"), (80, 10));
}

fn ports() {
    let network = Network::new();
    let agent = network.start(
        "",
        "[[limit]]\nname = \"dns\"\nrate = \"1/h\"\nburst = 5\nprotocol = \"udp\"\nports = [53, \"8000-8100\"]\n",
    );
    let to =
        |port: u16| Frame::between(CLIENT_MAC, SERVER_MAC).ipv4([10, 77, 0, 7], SERVER).udp(5000, port, b"x").build();
    burst(&network, &[to(52), to(54), to(7999), to(8101)], 40);
    assert_eq!(agent.counts("dns"), (0, 0));
    burst(&network, &[to(53), to(8000), to(8100)], 30);
    assert_eq!(agent.counts("dns"), (5, 25));
}

fn connections() {
    let network = Network::new();
    let agent =
        network.start("", "[[limit]]\nname = \"connections\"\nrate = \"1/h\"\nburst = 5\nunit = \"connections\"\n");
    let tcp = |flags: u8| {
        Frame::between(CLIENT_MAC, SERVER_MAC).ipv4([10, 77, 0, 7], SERVER).tcp(5000, 80, flags, b"").build()
    };
    burst(&network, &[tcp(16)], 50);
    assert_eq!(agent.counts("connections"), (0, 0));
    burst(&network, &[tcp(2)], 20);
    assert_eq!(agent.counts("connections"), (5, 15));
    burst(&network, &[tcp(16)], 50);
    assert_eq!(agent.counts("connections"), (5, 15));
}

fn classes() {
    let network = Network::new();
    let agent = network.start(
        "",
        "[[class]]\nname = \"payer\"\nsources = [\"10.77.0.0/28\"]\nmultiplier = 5\n\
         [[class]]\nname = \"poor\"\nsources = [\"10.77.0.7\"]\nmultiplier = 0.5\n\
         [[class]]\nname = \"node\"\nsources = [\"10.77.0.9\"]\nunlimited = true\n\
         [[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 10\n",
    );
    for (last, class, passes) in [(8u8, "payer", 50u64), (7, "poor", 5), (9, "node", 0), (200, "default", 10)] {
        let (passed, _) = agent.counts("packets");
        burst(&network, &[udp_from(last)], 100);
        assert_eq!(agent.counts("packets").0 - passed, passes, "class {class}");
        assert_eq!(agent.json(&["show", &format!("10.77.0.{last}")])["class"], class);
    }
    assert_eq!(agent.json(&["status"])["bypass"]["unlimited"], 100);
}

fn soft() {
    let network = Network::new();
    let agent = network
        .start("", "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 100\nthrottle = { soft = \"10%\" }\n");
    burst(&network, &[udp_from(7)], 300);
    let limit = agent.limit("packets");
    assert_eq!(
        (&limit["passed"]["packets"], &limit["over"]["packets"], &limit["throttled"]["packets"]),
        (&110.into(), &10.into(), &190.into())
    );
}

fn algorithms() {
    for algorithm in ["token-bucket", "leaky-bucket", "fixed-window", "sliding-window", "sliding-log"] {
        let network = Network::new();
        let agent = network.start(
            "max_sources = 1000",
            &format!(
                "[[limit]]\nname = \"packets\"\nrate = \"20/h\"\nalgorithm = \"{algorithm}\"\ntiers = [\"500/day\"]\n"
            ),
        );
        burst(&network, &[udp_from(7)], 100);
        assert_eq!(agent.counts("packets"), (20, 80), "{algorithm}");
        let shown = agent.json(&["show", "10.77.0.7"]);
        assert_eq!(shown["limits"][0]["remaining"], 0, "{algorithm}");
        assert!(shown["limits"][0]["retry_after_seconds"].as_f64().unwrap() > 60.0, "{algorithm}");
        assert_eq!(agent.limit("packets")["keys"], 1, "{algorithm}");
    }
}

fn essential() {
    let network = Network::new();
    let agent = network.start("", "[[limit]]\nname = \"packets\"\nrate = \"1/day\"\n");
    let link = || Frame::between(CLIENT_MAC, SERVER_MAC);
    let arp = link().other(0x0806, &[0; 28]).build();
    let solicitation = link().ipv6(v6(3, 1), SERVER6).hops(255).icmp(135).build();
    let dhcp = link().ipv4([10, 77, 0, 7], SERVER).udp(67, 68, &[0; 240]).build();
    let before = agent.json(&["status"])["bypass"].clone();
    burst(&network, &[arp, solicitation, dhcp], 90);
    let after = agent.json(&["status"])["bypass"].clone();
    assert_eq!(agent.counts("packets").1, 0);
    // The kernels of the two namespaces talk as well, so at least.
    assert!(after["not_ip"].as_u64().unwrap() - before["not_ip"].as_u64().unwrap() >= 30);
    assert!(after["essential"].as_u64().unwrap() - before["essential"].as_u64().unwrap() >= 60);
}

fn documents() {
    let network = Network::new();
    let agent = network.start("", LIMIT);
    burst(&network, &[udp_from(7)], 300);
    let status = agent.json(&["status"]);
    for field in ["version", "mode", "uptime_seconds", "config", "interfaces", "totals", "sources"] {
        assert!(status.get(field).is_some(), "status has no {field}");
    }
    assert_eq!(status["interfaces"], serde_json::json!([{ "name": INTERFACE, "attach": "native" }]));
    for field in ["passed_packets", "passed_bytes", "throttled_packets", "throttled_bytes"] {
        assert!(status["totals"][field].as_u64().unwrap() > 0, "totals has no {field}");
    }
    for field in ["tracked", "capacity", "evicted"] {
        assert!(status["sources"][field].is_u64(), "sources has no {field}");
    }
    let limit = agent.limit("packets");
    for field in ["name", "direction", "key", "unit", "algorithm", "rate", "burst", "keys"] {
        assert!(limit.get(field).is_some(), "a limit has no {field}");
    }
    for field in ["passed", "throttled", "would_throttle"] {
        assert!(limit[field]["packets"].is_u64() && limit[field]["bytes"].is_u64(), "a limit has no {field}");
    }
    let shown = agent.json(&["show", "10.77.0.7"]);
    for field in ["source", "class", "never_limit", "ban", "limits"] {
        assert!(shown.get(field).is_some(), "show has no {field}");
    }
    for field in ["name", "remaining", "retry_after_seconds", "passed_packets", "throttled_packets"] {
        assert!(shown["limits"][0].get(field).is_some(), "a limit of show has no {field}");
    }
    for field in ["source", "limit", "passed_packets", "throttled_packets"] {
        assert!(agent.json(&["top", "--once"])[0].get(field).is_some(), "top has no {field}");
    }
    for arguments in [&["status"][..], &["limits"], &["top", "--once"], &["show", "10.77.0.7"]] {
        let table = String::from_utf8(network.command(arguments).stdout).unwrap();
        assert!(table.lines().count() >= 2, "{arguments:?} printed {table}");
    }
}

fn takeover() {
    let network = Network::new();
    let limit = "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 100\n";
    let agent = network.start("", limit);
    let receiver = network.receiver(PORT);
    burst(&network, &[udp_from(7)], 60);
    let (said, status) = agent.stop(Signal::SIGKILL);
    assert!(!status.success() && said.contains("enforcing"), "{said}");
    burst(&network, &[udp_from(7)], 60);
    assert_eq!(receiver.counts()[7], 100);
    // The next agent forgets nothing.
    let agent = network.start("", limit);
    burst(&network, &[udp_from(7)], 60);
    assert_eq!(receiver.counts()[7], 0);
    assert_eq!(agent.json(&["show", "10.77.0.7"])["limits"][0]["remaining"], 0);
    let (said, status) = agent.stop(Signal::SIGTERM);
    assert!(status.success() && said.contains("stay in force"), "{said}");
    assert!(network.has_program());
    let config = network.config("", limit);
    let output = network.command(&["detach", "--config", config.to_str().unwrap()]);
    assert!(output.status.success());
    assert!(!network.has_program() && !network.has_pins());
}

fn detach() {
    let network = Network::new();
    let agent = network.start("on_exit = \"detach\"", LIMIT);
    assert!(network.has_program() && network.has_pins());
    let (said, status) = agent.stop(Signal::SIGINT);
    assert!(status.success() && said.contains("out of force"), "{said}");
    assert!(!network.has_program() && !network.has_pins());
}

fn refusals() {
    let network = Network::new();
    let told = |output: std::process::Output, code: i32, message: &str| {
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{said}");
        assert!(said.contains(message), "{said}");
        assert!(!said.contains("panicked"), "{said}");
    };
    // An interface that does not exist.
    let config = network.config("", LIMIT);
    let wrong = std::fs::read_to_string(&config).unwrap().replace(INTERFACE, "weir9");
    std::fs::write(&config, wrong).unwrap();
    told(network.run_to_end(&config), 1, "there is no interface weir9");
    assert!(!network.has_pins());
    // A config that is wrong: nothing is touched.
    let config = network.config("mod = \"observe\"", LIMIT);
    told(network.run_to_end(&config), 2, "did you mean \"mode\"?");
    assert!(!network.has_pins() && !network.has_program());
    told(network.run_to_end(std::path::Path::new("/nonexistent/limits.toml")), 2, "/nonexistent/limits.toml");
    // Pins where no BPF file system is.
    let config = network.config("", LIMIT);
    let wrong = std::fs::read_to_string(&config).unwrap().replace("/sys/fs/bpf/weir-t", "/tmp/weir-t");
    std::fs::write(&config, &wrong).unwrap();
    told(network.run_to_end(&config), 1, "BPF file system");
    let place = wrong.lines().find_map(|line| line.strip_prefix("pins = ")).unwrap().trim_matches('"').to_owned();
    std::fs::remove_dir(place).unwrap();
    // A hook that is taken, by an agent with other pins.
    let agent = network.start("", LIMIT);
    let config = network.config("", LIMIT);
    let other = std::fs::read_to_string(&config)
        .unwrap()
        .replace("control.sock", "other.sock")
        .replace("/sys/fs/bpf/weir-t", "/sys/fs/bpf/weir-to");
    std::fs::write(&config, other).unwrap();
    told(network.run_to_end(&config), 1, "another program holds the XDP hook");
    // A second agent with the same socket.
    let config = network.config("", LIMIT);
    told(network.run_to_end(&config), 1, "another agent is running");
    burst(&network, &[udp_from(7)], 10);
    assert_eq!(agent.counts("packets").0, 10, "the first agent goes on");
    drop(agent);
    // Nobody answers.
    let output = network.command(&["status"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&output.stderr).contains("no agent answers"));
    // No privileges: as nobody, with a config that nobody can read and a place that nobody may write.
    let config = network.config("", LIMIT);
    std::fs::set_permissions(network.folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    let output = network.in_server(|| {
        let _ = std::fs::remove_file(network.control());
        use std::os::unix::process::CommandExt;
        std::process::Command::new(std::env::var_os("WEIR_AGENT").unwrap())
            .arg("--config")
            .arg(&config)
            .uid(65534)
            .gid(65534)
            .output()
    });
    told(output.unwrap(), 1, "run as root");
}

fn reset() {
    let network = Network::new();
    let agent = network.start("", "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 10\n");
    burst(&network, &[udp_from(7)], 30);
    assert_eq!(agent.counts("packets"), (10, 20));
    assert_eq!(agent.json(&["reset", "10.77.0.7"])["forgotten"], 1);
    assert_eq!(agent.json(&["show", "10.77.0.7"])["limits"][0]["remaining"], 10);
    burst(&network, &[udp_from(7)], 30);
    assert_eq!(agent.counts("packets"), (20, 40));
}

fn old_kernel() {
    let network = Network::new();
    let output = network.run_to_end(&network.config("", LIMIT));
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("Weir needs Linux 5.15 or newer") && !said.contains("fault in Weir"), "{said}");
    assert!(!network.has_pins() && !network.has_program(), "something was left behind");
}

fn generic() {
    let network = Network::new();
    // The loopback device has no native XDP.
    for attach in ["", "attach = \"native\""] {
        let config = network.config(attach, LIMIT);
        let text = std::fs::read_to_string(&config).unwrap().replace(INTERFACE, "lo");
        std::fs::write(&config, text).unwrap();
        let output = network.run_to_end(&config);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("does not do native XDP") && said.contains("attach = \"generic\""), "{said}");
        assert!(!network.has_pins(), "something was left behind");
    }
    let agent = network.start("attach = \"generic\"", &LIMIT.replace("1000/s", "1/h"));
    assert_eq!(agent.json(&["status"])["interfaces"][0]["attach"], "generic");
    burst(&network, &[udp_from(7)], 150);
    assert_eq!(agent.counts("packets"), (100, 50));
    // The mode is the operator's choice at each start, and what is told is what is so.
    drop(agent);
    let agent = network.start("attach = \"native\"", LIMIT);
    assert_eq!(agent.json(&["status"])["interfaces"][0]["attach"], "native");
}

fn capabilities() {
    use std::os::unix::process::CommandExt;
    const CAP_NET_ADMIN: libc::c_ulong = 12;
    const CAP_SYS_ADMIN: libc::c_ulong = 21;
    const CAP_BPF: libc::c_ulong = 39;
    let fails_without = |network: &Network, dropped: &'static [libc::c_ulong]| {
        let config = network.config("", &LIMIT.replace("packets", "other"));
        let mut command = std::process::Command::new(std::env::var_os("WEIR_AGENT").unwrap());
        command.arg("--config").arg(&config);
        // SAFETY: between fork and exec, a system call that touches no memory.
        unsafe {
            command.pre_exec(move || {
                for capability in dropped {
                    if libc::prctl(libc::PR_CAPBSET_DROP, *capability, 0, 0, 0) != 0 {
                        return Err(std::io::Error::last_os_error());
                    }
                }
                Ok(())
            });
        }
        let output = network.in_server(|| command.output()).unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.contains("CAP_BPF") && said.contains("CAP_NET_ADMIN"), "{said}");
    };
    for dropped in [&[CAP_NET_ADMIN, CAP_SYS_ADMIN][..], &[CAP_BPF, CAP_SYS_ADMIN]] {
        let network = Network::new();
        fails_without(&network, dropped);
        assert!(!network.has_pins() && !network.has_program(), "something was left behind");
        // What an earlier agent left in force stays in force, whatever becomes of the next one.
        let agent = network.start("", &LIMIT.replace("1000/s", "1/h"));
        let receiver = network.receiver(PORT);
        agent.stop(Signal::SIGKILL);
        fails_without(&network, dropped);
        assert!(network.has_program());
        burst(&network, &[udp_from(7)], 150);
        assert_eq!(receiver.counts()[7], 100);
    }
}
