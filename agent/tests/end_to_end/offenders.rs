//! Sources that a limit on packets keeps refusing are banned.

use std::thread;
use std::time::{Duration, Instant};

use common::packet::build::Frame;
use nix::sys::signal::Signal;
use serde_json::Value;
use testbed::measure;
use testbed::stalls::Stalls;
use testbed::tests;
use testbed::trials::Test;

use crate::support::{Agent, CLIENT_MAC, Network, SERVER, SERVER_MAC};
use crate::traffic::{PORT, burst, udp_from, udp6_from, v6};

pub const TESTS: &[Test] = tests![
    a_source_that_keeps_exceeding_is_banned_within_a_second_and_longer_each_time_by_native_xdp,
    a_source_that_keeps_exceeding_is_banned_within_a_second_and_longer_each_time_by_traffic_control,
    a_ban_by_a_packet_limit_takes_the_prefix_of_the_key_and_spares_exempt_addresses,
    a_ban_of_a_packet_limit_is_reported_once_in_observe_mode,
    growth_goes_on_after_a_restart_and_refusals_count_on_over_reloads_alone,
    a_thousand_sources_are_banned_at_once,
];

/// Refuses everything but the first five packets of a source.
const LIMIT: &str = "
[[limit]]
name = \"packets\"
rate = \"5/day\"
escalate = { after = 1000, within = \"10m\", ban = \"2s\", grow = 2.0, max = \"1h\" }
";
const PASSING: u64 = 5;

/// Sends packets from one source until the limit has refused so many of all sources. From one CPU: of two that count the same
/// source at once, the kernel may lose a refusal.
fn refuse(network: &Network, agent: &Agent<'_>, frame: &[u8], until: u64) {
    loop {
        let refused = throttled(agent);
        assert!(
            refused <= until,
            "{refused} packets refused, wanted {until}"
        );
        if refused == until {
            return;
        }
        measure::pinned(0, || {
            burst(network, &[frame.to_vec()], (until - refused) as usize);
            Ok(())
        })
        .unwrap();
    }
}

fn throttled(agent: &Agent<'_>) -> u64 {
    let throttled = &agent.limit("packets")["throttled"]["packets"];
    throttled.as_u64().unwrap()
}

fn bans(agent: &Agent<'_>) -> Vec<Value> {
    agent.json(&["bans"]).as_array().unwrap().clone()
}

fn cidrs(agent: &Agent<'_>) -> Vec<String> {
    bans(agent)
        .iter()
        .map(|ban| ban["cidr"].as_str().unwrap().to_owned())
        .collect()
}

/// Waits for what is to happen within a second, on a host that takes its time for everything; how long it took beyond the
/// slowest of the commands that asked, and the time in which the machine did other things.
fn wait_for<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> (T, Duration) {
    let (start, mut slowest, stalls) = (Instant::now(), Duration::ZERO, Stalls::watch());
    loop {
        let asked = Instant::now();
        let found = look();
        slowest = slowest.max(asked.elapsed());
        if let Some(found) = found {
            return (
                found,
                start
                    .elapsed()
                    .saturating_sub(2 * slowest + 4 * stalls.so_far()),
            );
        }
        assert!(
            start.elapsed() < Duration::from_secs(300),
            "{what} did not come in time"
        );
        thread::sleep(Duration::from_millis(20));
    }
}

/// Longer than any threshold that has been passed goes unnoticed.
fn settle() {
    thread::sleep(Duration::from_millis(1_500));
}

fn banned_for(agent: &Agent<'_>) -> Vec<String> {
    let events = agent.lines(&["events", "--json"]);
    let banned = events.iter().filter(|event| event["verdict"] == "banned");
    banned
        .map(|event| {
            event["reason"]
                .as_str()
                .unwrap()
                .rsplit_once("for ")
                .unwrap()
                .1
                .to_owned()
        })
        .collect()
}

fn a_source_that_keeps_exceeding_is_banned_within_a_second_and_longer_each_time_by_native_xdp() {
    keeps_exceeding("native");
}

fn a_source_that_keeps_exceeding_is_banned_within_a_second_and_longer_each_time_by_traffic_control()
{
    keeps_exceeding("tc");
}

fn keeps_exceeding(attach: &str) {
    let network = Network::new();
    let agent = network.start(
        &format!("attach = {attach:?}\nnever_limit = [\"10.77.0.9\"]"),
        LIMIT,
    );
    let receiver = network.receiver(PORT);
    // A polite neighbour, one that is exempt, and one that is refused once too few.
    burst(&network, &[udp_from(8)], PASSING as usize);
    burst(&network, &[udp_from(9)], 3_000);
    let arrived = receiver.counts();
    assert_eq!(arrived[8], PASSING);
    assert!(arrived[9] > 2_000, "{}", arrived[9]);
    refuse(&network, &agent, &udp_from(7), 999);
    settle();
    assert_eq!(cidrs(&agent), [""; 0]);
    assert_eq!(
        agent.json(&["show", "10.77.0.7"])["limits"][0]["throttled_packets"],
        999
    );

    let sent = Instant::now();
    refuse(&network, &agent, &udp_from(7), 1_000);
    let (_, first) = wait_for("a ban after 1000 refusals", || banned_for(&agent).pop());
    // Listed for as long as it lasts.
    let listed = bans(&agent);
    if sent.elapsed() < Duration::from_secs(2) {
        let ban = &listed[0];
        assert_eq!(
            (&ban["cidr"], &ban["origin"]),
            (&"10.77.0.7".into(), &"limit:packets".into())
        );
        assert_eq!(
            ban["reason"],
            "limit \"packets\" refused 1000 packets within 10 min"
        );
        let left = ban["expires_in_seconds"].as_f64().unwrap();
        assert!(left > 0.0 && left <= 2.0, "{left}");
    }
    let events = agent.lines(&["events", "--json"]);
    let banned: Vec<&Value> = events
        .iter()
        .filter(|event| event["verdict"] == "banned")
        .collect();
    assert_eq!(banned.len(), 1, "{events:?}");
    assert_eq!(
        (&banned[0]["source"], &banned[0]["limit"]),
        (&"10.77.0.7".into(), &"packets".into())
    );
    assert!(
        banned[0]["reason"]
            .as_str()
            .unwrap()
            .ends_with(": banned for 2 s"),
        "{}",
        banned[0]
    );

    // After the ban refusals count anew, and the next one takes twice as long.
    wait_for("the end of the ban", || {
        bans(&agent).is_empty().then_some(())
    });
    refuse(&network, &agent, &udp_from(7), 1_999);
    settle();
    assert_eq!(cidrs(&agent), [""; 0]);
    let sent = Instant::now();
    refuse(&network, &agent, &udp_from(7), 2_000);
    let (_, second) = wait_for("the second ban", || {
        (banned_for(&agent).len() == 2).then_some(())
    });
    // A busy machine may delay one of them.
    assert!(
        first.min(second) <= Duration::from_secs(1),
        "{first:?}, {second:?}"
    );
    let listed = bans(&agent);
    if sent.elapsed() < Duration::from_secs(4) {
        let left = listed[0]["expires_in_seconds"].as_f64().unwrap();
        assert!(
            left <= 4.0 && left >= 4.0 - sent.elapsed().as_secs_f64(),
            "{left}"
        );
    }
    assert_eq!(banned_for(&agent), ["2 s", "4 s"]);
    let shown = agent.json(&["show", "10.77.0.7"]);
    if sent.elapsed() < Duration::from_secs(4) {
        assert_eq!(
            (&shown["ban"]["cidr"], &shown["ban"]["origin"]),
            (&"10.77.0.7".into(), &"limit:packets".into())
        );
        receiver.counts();
        burst(&network, &[udp_from(7), udp_from(9)], 60);
        // Still banned, or else above the limit.
        let counts = receiver.counts();
        assert_eq!((counts[7], counts[9]), (0, 30));
    }
    assert_eq!(agent.json(&["show", "10.77.0.8"])["ban"], Value::Null);
    assert_eq!(agent.json(&["show", "10.77.0.9"])["ban"], Value::Null);
}

fn a_ban_by_a_packet_limit_takes_the_prefix_of_the_key_and_spares_exempt_addresses() {
    let network = Network::new();
    let limits = LIMIT
        .replace("ban = \"2s\"", "ban = \"1h\"")
        .replace("after = 1000", "after = 100");
    let limits = format!("{limits}ipv4_prefix = 24\nkey = \"source-port\"\n");
    let limits = limits.replace(", grow = 2.0, max = \"1h\"", "");
    let agent = network.start("never_limit = [\"10.77.0.9\"]", &limits);
    let receiver = network.receiver(PORT);
    // Hosts of one network, whose refusals count together.
    burst(
        &network,
        &(1..=20)
            .map(|host| udp6_from(v6(3, host)))
            .collect::<Vec<_>>(),
        200,
    );
    burst(&network, &(10..=30).map(udp_from).collect::<Vec<_>>(), 210);
    wait_for("two bans", || (bans(&agent).len() == 2).then_some(()));
    assert_eq!(cidrs(&agent), ["10.77.0.0/24", "fd77:0:0:3::/64"]);
    receiver.counts();
    burst(&network, &[udp_from(40), udp_from(9)], 20);
    let counts = receiver.counts();
    assert_eq!((counts[40], counts[9]), (0, 10));
    let shown = agent.json(&["show", "10.77.0.9"]);
    assert_eq!(shown["never_limit"], true, "{shown}");

    // The operator's word is the last, in either direction.
    let output = network.command(&["unban", "fd77:0:0:3::/64"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(said.contains("is still banned by limit:"), "{said}");
    network.told(&["unban", "fd77:0:0:3::/64", "--all"]);
    settle();
    assert_eq!(cidrs(&agent), ["10.77.0.0/24"]);
    network.told(&["ban", "10.77.0.0/24"]);
    settle();
    let bans = bans(&agent);
    assert_eq!(
        (
            bans.len(),
            &bans[0]["origin"],
            &bans[0]["expires_in_seconds"]
        ),
        (2, &"operator".into(), &Value::Null)
    );
}

fn a_ban_of_a_packet_limit_is_reported_once_in_observe_mode() {
    let network = Network::new();
    let agent = network.start("mode = \"observe\"", LIMIT);
    let would_ban = || {
        let events = agent.lines(&["events", "--json"]);
        events
            .into_iter()
            .filter(|event| event["verdict"] == "would-ban")
            .collect::<Vec<_>>()
    };
    // The ban that it would be lasts longer than the test.
    network.config(
        "mode = \"observe\"",
        &LIMIT.replace("ban = \"2s\"", "ban = \"1h\""),
    );
    network.told(&["reload"]);
    burst(&network, &[udp_from(7)], 4_000);
    let (event, _) = wait_for("an event", || would_ban().pop());
    assert_eq!(
        (&event["source"], &event["limit"]),
        (&"10.77.0.7".into(), &"packets".into())
    );
    assert!(
        event["reason"]
            .as_str()
            .unwrap()
            .contains("in enforce mode it would be banned for 1 h"),
        "{event}"
    );
    burst(&network, &[udp_from(7)], 4_000);
    settle();
    assert_eq!((would_ban().len(), cidrs(&agent).len()), (1, 0));

    // Observed refusals are no reason to ban.
    network.config("", LIMIT);
    network.told(&["reload"]);
    burst(&network, &[udp_from(7)], 500);
    settle();
    assert_eq!(cidrs(&agent), [""; 0]);
    burst(&network, &[udp_from(7)], 1_000);
    wait_for("a ban", || banned_for(&agent).pop());
}

fn growth_goes_on_after_a_restart_and_refusals_count_on_over_reloads_alone() {
    let network = Network::new();
    let limits = LIMIT.replace("ban = \"2s\"", "ban = \"1s\"");
    let agent = network.start("", &limits);
    refuse(&network, &agent, &udp_from(7), 1_000);
    wait_for("a ban", || (banned_for(&agent).len() == 1).then_some(()));
    // Refusals count on over a reload that keeps the limit, also one that gives it another place.
    wait_for("the end of the ban", || {
        bans(&agent).is_empty().then_some(())
    });
    refuse(&network, &agent, &udp_from(7), 1_600);
    settle();
    let others =
        "[[limit]]\nname = \"others\"\nprotocol = \"tcp\"\nports = 22\nrate = \"1000/s\"\n";
    network.config("", &format!("{others}{limits}"));
    network.told(&["reload"]);
    refuse(&network, &agent, &udp_from(7), 1_999);
    settle();
    assert_eq!(banned_for(&agent), ["1 s"]);
    refuse(&network, &agent, &udp_from(7), 2_000);
    wait_for("the second ban", || {
        (banned_for(&agent) == ["1 s", "2 s"]).then_some(())
    });

    // Without escalate nobody is banned; what was refused meanwhile does not count once it is back.
    network.config(
        "",
        &LIMIT
            .lines()
            .filter(|line| !line.starts_with("escalate"))
            .collect::<Vec<_>>()
            .join("\n"),
    );
    network.told(&["reload"]);
    wait_for("the end of the ban", || {
        bans(&agent).is_empty().then_some(())
    });
    refuse(&network, &agent, &udp_from(7), 4_000);
    settle();
    network.config("", &limits);
    network.told(&["reload"]);
    settle();
    refuse(&network, &agent, &udp_from(7), 4_900);
    settle();
    assert_eq!((cidrs(&agent), banned_for(&agent).len()), (Vec::new(), 2));

    // The next agent counts from its start, and knows how long the last ban was.
    agent.stop(Signal::SIGTERM);
    let agent = network.start("", &limits);
    let before = throttled(&agent);
    refuse(&network, &agent, &udp_from(7), before + 999);
    settle();
    assert_eq!(cidrs(&agent), [""; 0]);
    refuse(&network, &agent, &udp_from(7), before + 1_000);
    wait_for("the third ban", || {
        (banned_for(&agent) == ["4 s"]).then_some(())
    });
    // A ban outlives the agent, with its origin.
    let longer = limits.replace("ban = \"1s\"", "ban = \"10m\"");
    network.config("", &longer);
    network.told(&["reload"]);
    wait_for("the end of the ban", || {
        bans(&agent).is_empty().then_some(())
    });
    let before = throttled(&agent);
    refuse(&network, &agent, &udp_from(7), before + 1_000);
    wait_for("the fourth ban", || {
        (banned_for(&agent) == ["4 s", "10 min"]).then_some(())
    });
    agent.stop(Signal::SIGTERM);
    let agent = network.start("", &longer);
    let ban = bans(&agent).pop().unwrap();
    assert_eq!(
        (&ban["cidr"], &ban["origin"]),
        (&"10.77.0.7".into(), &"limit:packets".into())
    );
}

fn a_thousand_sources_are_banned_at_once() {
    let network = Network::new();
    let limits = LIMIT
        .replace("after = 1000", "after = 20")
        .replace("ban = \"2s\"", "ban = \"1h\"");
    let agent = network.start("", &limits);
    let receiver = network.receiver(PORT);
    let from = |nth: u16| {
        let source = [10, 77, 1 + (nth / 250) as u8, (nth % 250) as u8];
        Frame::between(CLIENT_MAC, SERVER_MAC)
            .ipv4(source, SERVER)
            .udp(5000, PORT, &[0; 22])
            .build()
    };
    let frames: Vec<Vec<u8>> = (0..1_000).map(from).collect();
    burst(&network, &frames, 26_000);
    // Packets that the sender's queue dropped are sent again.
    let (_, took) = wait_for("a thousand bans", || {
        let count = bans(&agent).len();
        if count < 1_000 {
            burst(&network, &frames, 5_000);
        }
        (count == 1_000).then_some(())
    });
    println!("1000 sources were banned within {took:?}");
    receiver.counts();
    burst(&network, &[udp_from(8)], PASSING as usize);
    assert_eq!(receiver.counts()[8], PASSING);
    let ((events, sum), _) = wait_for("the events of all bans", || {
        let events = agent.lines(&["events", "--json"]);
        let banned = events.iter().filter(|event| event["verdict"] == "banned");
        let counts: Vec<u64> = banned
            .map(|event| event["count"].as_u64().unwrap())
            .collect();
        let sum: u64 = counts.iter().sum();
        (sum >= 1_000).then_some((counts.len(), sum))
    });
    assert!(sum == 1_000 && events <= 500, "{events} events of {sum}");
    network.told(&["unban", "--all"]);
    assert_eq!(cidrs(&agent), [""; 0]);
}
