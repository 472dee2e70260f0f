//! A reload replaces the config in effect: all of it or nothing, and each packet is evaluated by one of the two.

use std::fmt::Write;
use std::time::{Duration, Instant};

use common::limiter::Algorithm;
use nix::sys::signal::Signal;
use serde_json::Value;
use testbed::tests;
use testbed::trials::{Test, is_long};

use crate::support::{Network, StopWhenDropped};
use crate::traffic::{PORT, burst, udp_from};
use crate::wire::Sender;

pub const TESTS: &[Test] = tests![
    a_reload_keeps_the_state_of_unchanged_limits,
    a_reload_keeps_the_used_units_of_changed_rates,
    a_bad_file_changes_nothing_and_is_reported,
    a_file_that_changes_is_read_again_if_it_is_watched,
    reloads_under_traffic_evaluate_each_packet_by_one_policy,
    ten_thousand_limits_and_a_hundred_thousand_prefixes_are_reloaded,
    limits_on_requests_and_groups_are_reloaded_with_the_rest,
    keys_that_require_a_restart_are_reported_and_change_nothing,
    a_reload_names_what_it_changes_and_diff_changes_nothing,
    a_config_that_limits_nothing_replaces_no_limits,
];

/// One after another, so that what a packet is held to is decided by the source.
const SLOW: &str = "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 100\n";

fn a_reload_keeps_the_state_of_unchanged_limits() {
    let network = Network::new();
    let agent = network.start("", SLOW);
    let receiver = network.receiver(PORT);
    network.told(&["ban", "10.77.0.9"]);
    burst(&network, &[udp_from(7)], 60);
    assert_eq!(agent.remaining("10.77.0.7", "packets"), 40);
    // Each of these cuts the table otherwise, or numbers what is in it otherwise.
    let more = "[[limit]]\nname = \"more\"\nrate = \"500/h\"\nburst = 500\n";
    let logged = "[[limit]]\nname = \"logged\"\nrate = \"300/h\"\nalgorithm = \"sliding-log\"\n";
    let apart = "[[limit]]\nname = \"apart\"\nrate = \"900/h\"\nburst = 900\nipv4_prefix = 24\n";
    let egress = "[[limit]]\nname = \"out\"\ndirection = \"egress\"\nrate = \"100/h\"\n";
    let class = "[[class]]\nname = \"payer\"\nsources = [\"10.99.0.0/16\"]\nmultiplier = 3\n";
    let mut left = 40;
    for (agent_table, rest) in [
        ("", format!("{more}{SLOW}")),
        ("", format!("{apart}{SLOW}{more}")),
        ("max_sources = 5000", format!("{apart}{SLOW}{more}")),
        (
            "max_sources = 5000",
            format!("{class}{SLOW}{logged}{apart}"),
        ),
        ("max_sources = 50000", format!("{egress}{SLOW}{class}")),
        ("", SLOW.to_owned()),
    ] {
        network.config(agent_table, &rest);
        let answer = agent.json(&["reload"]);
        assert_eq!(
            (&answer["ok"], &answer["errors"], &answer["notes"]),
            (
                &true.into(),
                &Value::from(Vec::<u8>::new()),
                &Value::from(Vec::<u8>::new())
            ),
            "{rest}"
        );
        assert_eq!(agent.remaining("10.77.0.7", "packets"), left, "{rest}");
        burst(&network, &[udp_from(7), udp_from(9)], 6);
        left -= 3;
        assert_eq!(agent.remaining("10.77.0.7", "packets"), left, "{rest}");
    }
    // Counters go on where they were, and so does what is known of sources; bans outlive every policy.
    assert_eq!(agent.counts("packets"), (78, 0));
    assert_eq!(agent.json(&["bans"])[0]["throttled_packets"], 18);
    burst(&network, &[udp_from(7)], 100);
    assert_eq!(agent.counts("packets"), (100, 78));
    assert_eq!(
        agent.json(&["show", "10.77.0.7"])["limits"][0]["throttled_packets"],
        78
    );
    assert_eq!(agent.json(&["top", "--once"])[0]["source"], "10.77.0.7");
    let counts = receiver.counts();
    assert_eq!((counts[7], counts[9]), (100, 0));
}

fn a_reload_keeps_the_used_units_of_changed_rates() {
    let network = Network::new();
    let limits = |count: u32| {
        Algorithm::ALL
            .iter()
            .fold(String::new(), |mut text, algorithm| {
                let burst = if algorithm.has_burst() {
                    format!("burst = {count}\n")
                } else {
                    String::new()
                };
                // So long a window that the clock does not move what is left by a unit within the test.
                let limit =
                    format!("[[limit]]\nname = \"{algorithm}\"\nalgorithm = \"{algorithm}\"\n");
                let _ = write!(text, "{limit}rate = \"{count}/day\"\n{burst}");
                text
            })
    };
    let agent = network.start("max_sources = 2000", &limits(100));
    let left = |agent: &crate::support::Agent<'_>, of: &[u64]| {
        for algorithm in Algorithm::ALL {
            let remaining = agent.remaining("10.77.0.7", algorithm.name());
            assert!(
                of.contains(&remaining),
                "{algorithm}: {remaining} are left, not {of:?}"
            );
        }
    };
    burst(&network, &[udp_from(7)], 60);
    left(&agent, &[40]);
    // 60 are used, whatever the limit is. A day's window returns less than a unit within the test.
    for (count, remaining) in [(1000, 940), (50, 0)] {
        network.config("max_sources = 2000", &limits(count));
        assert_eq!(agent.json(&["reload"])["ok"], true);
        left(&agent, &[remaining]);
    }
    burst(&network, &[udp_from(7)], 10);
    assert_eq!(agent.counts("token-bucket").0, 60);
    network.config("max_sources = 2000", &limits(100));
    assert_eq!(agent.json(&["reload"])["ok"], true);
    // A log of 50 kept the newest 50, and so did buckets of packets.
    left(&agent, &[40, 50]);
    burst(&network, &[udp_from(7)], 100);
    assert!((39..=40).contains(&(agent.counts("token-bucket").0 - 60)));
    // A limit with another algorithm starts over, and a note says so.
    network.config(
        "max_sources = 2000",
        &limits(100)
            .replacen(
                "algorithm = \"token-bucket\"",
                "algorithm = \"fixed-window\"",
                1,
            )
            .replacen("burst = 100\n", "", 1),
    );
    let answer = agent.json(&["reload"]);
    assert!(
        answer["notes"][0]
            .as_str()
            .unwrap()
            .contains("the state of limit \"token-bucket\" is reset"),
        "{answer}"
    );
    assert_eq!(
        agent.json(&["status"])["last_reload"]["notes"],
        answer["notes"]
    );
    assert_eq!(agent.remaining("10.77.0.7", "token-bucket"), 100);
    // Of the bucket's 50, as many passed as of the windows' 40.
    let left = agent.remaining("10.77.0.7", "leaky-bucket");
    assert!((10..=11).contains(&left), "{left}");
}

fn a_bad_file_changes_nothing_and_is_reported() {
    let network = Network::new();
    let agent = network.start("", SLOW);
    assert_eq!(agent.json(&["status"])["last_reload"], Value::Null);
    burst(&network, &[udp_from(7)], 60);
    let bad = network.config(
        "mode = \"enfroce\"",
        &SLOW.replace("burst = 100", "burst = -1"),
    );
    let output = network.command(&["reload"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("did you mean \"enforce\"?") && said.contains("limits.toml:7:"),
        "{said}"
    );
    assert!(
        said.contains("burst") && said.contains("nothing was changed"),
        "{said}"
    );
    agent.signal(Signal::SIGHUP);
    let status = agent.wait_for("the signal's reload", |status| {
        status["last_reload"]["cause"] == "signal"
    });
    assert_eq!(status["last_reload"]["ok"], false);
    assert_eq!(
        status["last_reload"]["errors"].as_array().unwrap().len(),
        2,
        "{status}"
    );
    assert_eq!(status["mode"], "enforce");
    let table = String::from_utf8(network.command(&["status"]).stdout).unwrap();
    assert!(
        table.contains("last reload") && table.contains("did you mean \"enforce\"?"),
        "{table}"
    );
    // Nor does one that is gone, or right and not to be had here.
    std::fs::remove_file(&bad).unwrap();
    assert_eq!(network.command(&["reload"]).status.code(), Some(2));
    burst(&network, &[udp_from(7)], 60);
    assert_eq!(agent.counts("packets"), (100, 20));
    // Nor does one whose interface cannot be held: what was replaced on the way is as it was.
    network.config_on(
        &["weir0", "lo"],
        "attach = \"native\"",
        &SLOW.replace("100", "1000"),
    );
    let output = network.command(&["reload"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("native XDP is not supported"),
        "{output:?}"
    );
    burst(&network, &[udp_from(7), udp_from(8)], 300);
    assert_eq!(agent.counts("packets"), (200, 220));
    network.config("", SLOW);
    assert_eq!(agent.json(&["reload"])["ok"], true);
    assert_eq!(agent.remaining("10.77.0.7", "packets"), 0);
}

fn a_file_that_changes_is_read_again_if_it_is_watched() {
    let network = Network::new();
    let agent = network.start("watch = true\nmax_sources = 2000", SLOW);
    let is_watch = |status: &Value| status["last_reload"]["cause"] == "watch";
    // As editors do it: another file in its place.
    let place = network.folder.path().join("limits.toml");
    let write = |text: &str, name: &str| {
        let next = network.folder.path().join(name);
        std::fs::write(&next, text).unwrap();
        std::fs::rename(next, &place).unwrap();
    };
    let text = std::fs::read_to_string(&place).unwrap();
    write(
        &text.replace("burst = 100", "burst = 200"),
        ".limits.toml.swp",
    );
    let status = agent.wait_for("the reload", is_watch);
    assert_eq!(status["last_reload"]["ok"], true);
    assert_eq!(agent.limit("packets")["burst"], 200);
    // In place, and wrong.
    std::fs::write(&place, "[agent\n").unwrap();
    agent.wait_for("the failure", |status| {
        is_watch(status) && status["last_reload"]["ok"] == false
    });
    assert_eq!(agent.limit("packets")["burst"], 200);
    // And right again, without being watched from then on.
    write(&text.replace("watch = true", ""), "again");
    agent.wait_for("the reload", |status| {
        is_watch(status) && status["last_reload"]["ok"] == true
    });
    assert_eq!(agent.limit("packets")["burst"], 100);
    std::fs::write(&place, "[agent\n").unwrap();
    std::thread::sleep(Duration::from_millis(600));
    assert_eq!(
        agent.json(&["status"])["last_reload"]["ok"],
        true,
        "nobody watches any more"
    );
}

fn reloads_under_traffic_evaluate_each_packet_by_one_policy() {
    const FAST: &str =
        "[[limit]]\nname = \"fast\"\nrate = \"1000/s\"\nburst = 2000\nprotocol = \"udp\"\n";
    const FEW: &str = "[[limit]]\nname = \"few\"\nrate = \"1/day\"\nburst = 10\nprotocol = \"udp\"\nipv4_prefix = 31\n\
        ports = [9000]\n";
    let network = Network::new();
    let agent_table = "max_sources = 20000\nnever_limit = [\"10.77.0.30\"]\n";
    let classes =
        "[[class]]\nname = \"node\"\nsources = [\"10.77.0.31\", \"10.77.0.8\"]\nunlimited = true\n";
    let own = "[[class]]\nname = \"rest\"\nsources = [\"10.77.0.6\"]\nmultiplier = 100000\n";
    let base = format!("{classes}{own}{FAST}{FEW}");
    let with_more = format!(
        "{classes}{own}[[limit]]\nname = \"other\"\nrate = \"77/s\"\nports = [1234]\n{FEW}{FAST}[[limit]]\nname = \"wide\"\nrate = \"1/day\"\nports = [4321]\nalgorithm = \"leaky-bucket\"\n"
    );
    let agent = network.start(agent_table, &base);
    network.told(&["ban", "10.77.0.40"]);
    let receiver = network.receiver(PORT);
    // 20: ten packets in all. 30 and 31: all. 40: none. 6: what its class has, which is all.
    let frames: Vec<Vec<u8>> = [20, 30, 31, 40, 6].map(udp_from).to_vec();
    let reloads = if is_long() { 200 } else { 20 };
    let stop = std::sync::atomic::AtomicBool::new(false);
    let (counts, sent, tables) = std::thread::scope(|scope| {
        let receiving = scope.spawn(|| receiver.counts_until(&stop));
        let sending = scope.spawn(|| {
            network.in_client(|| {
                let sender = Sender::new();
                let mut rounds = 0u64;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    sender.send_all(&frames);
                    rounds += 1;
                    std::thread::sleep(Duration::from_millis(2));
                }
                rounds
            })
        });
        let stopping = StopWhenDropped(&stop);
        // Packets pass both tables during a copy: the ten have passed before it begins.
        agent.wait_for("a refusal", |_| agent.counts("few").1 > 0);
        let mut tables = 0;
        for nth in 0..reloads {
            // Every fourth of the same table, with another class's factor; the others with another table.
            let text = if nth % 4 < 2 { &base } else { &with_more };
            let text = if nth % 2 == 0 {
                text.clone()
            } else {
                text.replace("multiplier = 100000", "multiplier = 200000")
            };
            tables += u32::from(nth % 2 == 0);
            network.config(agent_table, &text);
            let answer = agent.json(&["reload"]);
            assert_eq!(answer["ok"], true, "{answer}");
            assert_eq!(answer["notes"], Value::from(Vec::<u8>::new()), "{answer}");
        }
        drop(stopping);
        let sent = sending.join().unwrap();
        (receiving.join().unwrap(), sent, tables)
    });
    let late = receiver.counts();
    let counts: Vec<u64> = counts
        .iter()
        .zip(late)
        .map(|(count, late)| count + late)
        .collect();
    eprintln!(
        "{reloads} reloads, {tables} of them with another table, {sent} rounds: {:?}",
        [20, 30, 31, 40, 6].map(|n| counts[n])
    );
    assert_eq!(
        counts[20], 10,
        "a limit of ten packets passed ten, whatever came and went around it"
    );
    assert_eq!(
        (counts[30], counts[31], counts[6]),
        (sent, sent, sent),
        "who is not limited lost nothing"
    );
    assert_eq!(counts[40], 0, "a ban holds through all of it");
    assert_eq!(
        agent.json(&["bans"])[0]["throttled_packets"].as_u64(),
        Some(sent)
    );
    assert_eq!(agent.counts("few").0, 10 + sent, "counters went on");
}

fn ten_thousand_limits_and_a_hundred_thousand_prefixes_are_reloaded() {
    let network = Network::new();
    let text = |burst: u32| {
        let mut text = String::with_capacity(4 << 20);
        let mut prefixes = (0..100_000u32).fold(String::new(), |mut text, n| {
            let address = std::net::Ipv4Addr::from(0x0b00_0000 + n * 16);
            let _ = write!(text, "\"{address}/28\",");
            text
        });
        prefixes.pop();
        let _ = write!(
            text,
            "[[class]]\nname = \"many\"\nsources = [{prefixes}]\nmultiplier = 2\n"
        );
        for port in 1..=10_000 {
            let name = format!("[[limit]]\nname = \"port-{port}\"\nports = [{port}]\n");
            let _ = write!(
                text,
                "{name}rate = \"1/h\"\nburst = {}\n",
                if port == 9_000 { 10 } else { burst }
            );
        }
        text
    };
    let agent = network.start("", &text(10));
    let receiver = network.receiver(PORT);
    burst(&network, &[udp_from(7)], 4);
    let mut fastest = (Duration::MAX, Duration::MAX);
    for nth in 1..=if is_long() { 3 } else { 1 } {
        network.config("", &text(10 + nth));
        let (began, used) = (Instant::now(), agent.cpu_time());
        let answer = agent.json(&["reload"]);
        assert_eq!(answer["ok"], true, "{answer}");
        fastest = fastest.min((agent.cpu_time() - used, began.elapsed()));
        burst(&network, &[udp_from(7)], 1);
    }
    // That it is less than two seconds is for `cargo xtask bench` to show, with an agent that is built for use.
    let (used, took) = fastest;
    eprintln!(
        "10,000 limits and 100,000 prefixes reload in {used:.2?} of a CPU, {took:.2?} by the clock"
    );
    burst(&network, &[udp_from(7)], 20);
    assert_eq!(
        receiver.counts()[7],
        10,
        "its limit is unchanged through all of them"
    );
}

fn limits_on_requests_and_groups_are_reloaded_with_the_rest() {
    let network = Network::new();
    let cgroup = format!("weir-t{}-live", std::process::id());
    let decide = "[[limit]]\nname = \"logins\"\nscope = \"request\"\nkey = [\"user\"]\nrate = \"100/day\"\nburst = 100\n";
    let group = |name: &str| {
        format!(
            "[[group]]\nname = \"{name}\"\nmatch = [{{ exe = \"/nowhere/{name}\" }}]\npids = 100\n"
        )
    };
    let agent_table = format!("cgroup = {cgroup:?}\n");
    let agent = network.start(&agent_table, &format!("{SLOW}{decide}{}", group("one")));
    let ask = |user: &str, cost: &str| {
        agent.json(&[
            "decide",
            "--limit",
            "logins",
            "--key",
            &format!("user={user}"),
            "--cost",
            cost,
        ])["remaining"]
            .clone()
    };
    assert_eq!(ask("alice", "60"), 40);
    assert_eq!(
        agent.json(&["status"])["groups"],
        serde_json::json!(["one"])
    );
    // Unchanged, beside much that changes.
    let more = decide.replace("logins", "uploads");
    network.config(
        &agent_table,
        &format!(
            "{}{more}{decide}{}{}",
            SLOW.replace("100", "200"),
            group("two"),
            group("one")
        ),
    );
    assert_eq!(agent.json(&["reload"])["ok"], true);
    assert_eq!(ask("alice", "10"), 30);
    assert_eq!(
        agent.json(&["status"])["groups"],
        serde_json::json!(["two", "one"])
    );
    assert_eq!(
        agent.limit("logins")["passed"]["packets"],
        2,
        "its counters go on"
    );
    // Changed: 70 stay used.
    network.config(
        &agent_table,
        &format!("{SLOW}{}{}", decide.replace("100", "1000"), group("two")),
    );
    assert_eq!(agent.json(&["reload"])["ok"], true);
    assert_eq!(ask("alice", "1"), 929);
    assert_eq!(ask("bob", "1"), 999);
    assert_eq!(
        agent.json(&["status"])["groups"],
        serde_json::json!(["two"])
    );
    // A file that is wrong in one of them changes none.
    network.config(
        &agent_table,
        &format!("{}{}{}", SLOW.replace("100", "300"), decide, group("t/w")),
    );
    assert_eq!(network.command(&["reload"]).status.code(), Some(2));
    assert_eq!(
        (ask("alice", "1"), agent.limit("packets")["burst"].clone()),
        (928.into(), 100.into())
    );
    assert_eq!(
        agent.json(&["status"])["groups"],
        serde_json::json!(["two"])
    );
    // No limits on packets any more, and then some again.
    network.config_on(&[], &agent_table, decide);
    assert_eq!(agent.json(&["reload"])["ok"], true);
    assert!(!network.has_program());
    network.config(&agent_table, &format!("{SLOW}{decide}"));
    assert_eq!(agent.json(&["reload"])["ok"], true);
    assert!(network.has_program());
    burst(&network, &[udp_from(7)], 120);
    assert_eq!(agent.counts("packets"), (100, 20));
    agent.stop(Signal::SIGTERM);
    network.told(&[
        "detach",
        "--config",
        network.config(&agent_table, SLOW).to_str().unwrap(),
    ]);
}

fn keys_that_require_a_restart_are_reported_and_change_nothing() {
    let network = Network::new();
    let agent = network.start("", SLOW);
    let config = network.config("", SLOW);
    let text = std::fs::read_to_string(&config).unwrap();
    for (from, to) in [
        ("control.sock", "elsewhere.sock"),
        ("/sys/fs/bpf/weir-t", "/sys/fs/bpf/weir-u"),
    ] {
        std::fs::write(&config, text.replace(from, to)).unwrap();
        let output = network.command(&["reload"]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{said}");
        assert!(said.contains("restart the agent"), "{said}");
    }
    burst(&network, &[udp_from(7)], 120);
    assert_eq!(agent.counts("packets"), (100, 20));
}

fn a_reload_names_what_it_changes_and_diff_changes_nothing() {
    let network = Network::new();
    let agent = network.start(
        "",
        "[[limit]]\nname = \"a\"\nrate = \"5/s\"\n[[limit]]\nname = \"b\"\nrate = \"5/s\"\n",
    );
    let _ = network.config(
        "",
        "[[limit]]\nname = \"b\"\nrate = \"6/s\"\n[[limit]]\nname = \"c\"\nrate = \"5/s\"\n",
    );
    let differences = network.command(&["reload", "--diff"]);
    let said = String::from_utf8_lossy(&differences.stdout).into_owned();
    for line in [
        "- limit a  ingress any  5 packets/s",
        "+ limit b  ingress any  6 packets/s",
        "+ limit c  ",
    ] {
        assert!(said.contains(line), "{said}");
    }
    assert_eq!(agent.json(&["limits"])[0]["name"], "a");
    let reloaded = agent.json(&["reload"]);
    let named = |list: &str| {
        reloaded["changes"][list][0]["what"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    assert_eq!(
        [named("added"), named("changed"), named("removed")],
        ["limit c", "limit b", "limit a"]
    );
    assert!(
        agent.json(&["reload"])["changes"]["changed"]
            .as_array()
            .unwrap()
            .is_empty()
    );
}

fn a_config_that_limits_nothing_replaces_no_limits() {
    let network = Network::new();
    let agent = network.start("", SLOW);
    let config = network.config("", "");
    let text = std::fs::read_to_string(&config)
        .unwrap()
        .replace("allow_empty = true", "");
    std::fs::write(&config, &text).unwrap();
    let output = network.command(&["reload"]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(2) && said.contains("limits nothing"),
        "{said}"
    );
    assert!(said.contains("allow_empty = true"), "{said}");
    assert_eq!(agent.json(&["limits"]).as_array().unwrap().len(), 1);
    let _ = network.config("", "");
    let reloaded = agent.json(&["reload"]);
    assert_eq!(
        reloaded["changes"]["removed"].as_array().unwrap().len(),
        1,
        "{reloaded}"
    );
}
