//! `weir ban`, `unban`, `bans`.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use testbed::tests;
use testbed::trials::Test;

use crate::support::{Agent, Network};
use crate::traffic::{PORT, burst, udp_from, udp6_from, v6};

pub const TESTS: &[Test] = tests![
    a_ban_refuses_everything_until_it_is_lifted,
    a_ban_ends_by_itself_and_opens_no_hole_in_a_longer_one,
    never_limit_is_stronger_than_a_ban,
    a_ban_is_enforced_in_observe_mode,
    a_ban_or_unban_without_effect_says_so_and_fails,
    a_shorter_ban_does_not_shorten_a_longer_one,
    twenty_thousand_prefixes_are_banned_from_a_file_and_outlive_the_agent,
    invalid_bans_are_errors_and_ban_no_source,
    the_reason_of_a_ban_is_shown_and_survives_restarts_and_reboots,
    bans_outlive_a_detach_and_a_config_without_limits_on_packets,
    an_unprintable_reason_bans_no_source,
    a_hundred_thousand_prefixes_of_classes_load,
];

const LIMIT: &str = "[[limit]]\nname = \"packets\"\nrate = \"1000/s\"\n";

fn a_ban_refuses_everything_until_it_is_lifted() {
    let network = Network::new();
    let agent = network.start("", LIMIT);
    let receiver = network.receiver(PORT);
    network.told(&["ban", "10.77.0.7"]);
    network.told(&["ban", "fd77:0:0:3::/64", "--for", "10m"]);
    burst(&network, &[udp_from(7), udp_from(8)], 40);
    burst(&network, &[udp6_from(v6(3, 1))], 9);
    let counts = receiver.counts();
    assert_eq!((counts[7], counts[8]), (0, 20));
    let bans = agent.json(&["bans"]);
    assert_eq!(bans[0]["cidr"], "10.77.0.7");
    assert_eq!(
        (
            &bans[0]["expires_in_seconds"],
            &bans[0]["throttled_packets"]
        ),
        (&serde_json::Value::Null, &20.into())
    );
    assert_eq!(
        (&bans[1]["cidr"], &bans[1]["throttled_packets"]),
        (&"fd77:0:0:3::/64".into(), &9.into())
    );
    let left = bans[1]["expires_in_seconds"].as_f64().unwrap();
    assert!(left > 0.0 && left <= 600.0, "{left}");
    let status = agent.json(&["status"]);
    assert_eq!(
        (&status["bypass"]["banned"], &status["bans"]),
        (&29.into(), &2.into())
    );
    assert_eq!(status["totals"]["throttled_packets"], 29);
    assert_eq!(
        agent.json(&["show", "10.77.0.7"])["ban"]["cidr"],
        "10.77.0.7"
    );
    assert_eq!(
        agent.json(&["show", "10.77.0.8"])["ban"],
        serde_json::Value::Null
    );

    assert_eq!(agent.json(&["unban", "10.77.0.7"])["was_banned"], true);
    assert_eq!(agent.json(&["unban", "10.77.0.7"])["was_banned"], false);
    burst(&network, &[udp_from(7)], 10);
    assert_eq!(receiver.counts()[7], 10);
}

/// Waits until no more than `count` bans are listed.
fn wait_for_bans(agent: &Agent<'_>, count: usize) {
    let deadline = Instant::now() + Duration::from_secs(300);
    while agent.json(&["bans"]).as_array().unwrap().len() > count {
        assert!(
            Instant::now() < deadline,
            "a ban of a second is listed after a minute"
        );
        std::thread::sleep(Duration::from_millis(50));
    }
}

fn a_ban_ends_by_itself_and_opens_no_hole_in_a_longer_one() {
    let network = Network::new();
    let agent = network.start("", LIMIT);
    let receiver = network.receiver(PORT);
    network.told(&["ban", "10.77.0.7", "--for", "1s"]);
    wait_for_bans(&agent, 0);
    burst(&network, &[udp_from(7)], 10);
    assert_eq!(receiver.counts()[7], 10);
    // A short ban within a long one.
    network.told(&["ban", "10.77.0.0/24", "--for", "1h"]);
    network.told(&["ban", "10.77.0.7", "--for", "1s"]);
    wait_for_bans(&agent, 1);
    burst(&network, &[udp_from(7), udp_from(8)], 10);
    assert_eq!(
        (
            receiver.counts()[7],
            agent.json(&["bans"])[0]["throttled_packets"]
                .as_u64()
                .unwrap()
                > 0
        ),
        (0, true)
    );
    // The clock that ends it is the kernel's: nobody has to be there.
    network.told(&["unban", "10.77.0.0/24"]);
    network.told(&["ban", "10.77.0.7", "--for", "1s"]);
    agent.stop(Signal::SIGKILL);
    std::thread::sleep(Duration::from_millis(1_100));
    burst(&network, &[udp_from(7)], 10);
    assert_eq!(receiver.counts()[7], 10);
}

fn never_limit_is_stronger_than_a_ban() {
    let network = Network::new();
    let _agent = network.start("never_limit = [\"10.77.0.7\"]", LIMIT);
    let receiver = network.receiver(PORT);
    network.told(&["ban", "10.77.0.0/16"]);
    burst(&network, &[udp_from(7), udp_from(8)], 40);
    let counts = receiver.counts();
    assert_eq!((counts[7], counts[8]), (20, 0));
}

fn a_ban_is_enforced_in_observe_mode() {
    let network = Network::new();
    let agent = network.start(
        "mode = \"observe\"",
        "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\n",
    );
    let receiver = network.receiver(PORT);
    network.told(&["ban", "10.77.0.7"]);
    burst(&network, &[udp_from(7), udp_from(8)], 40);
    let counts = receiver.counts();
    assert_eq!((counts[7], counts[8]), (0, 20));
    assert_eq!(agent.json(&["status"])["totals"]["throttled_packets"], 20);
    assert_eq!(agent.limit("packets")["would_throttle"]["packets"], 19);
}

/// Ends with status 1 and says this on standard error.
#[track_caller]
fn fails(network: &Network, arguments: &[&str], words: &[&str]) {
    let output = network.command(arguments);
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
    assert!(
        words.iter().all(|word| said.contains(word)),
        "{arguments:?}: {said}"
    );
}

fn a_ban_or_unban_without_effect_says_so_and_fails() {
    let network = Network::new();
    let agent = network.start("never_limit = [\"10.77.0.7\"]", LIMIT);
    fails(
        &network,
        &["ban", "10.77.0.7"],
        &["no effect: 10.77.0.7", "never_limit"],
    );
    assert_eq!(agent.json(&["bans"]).as_array().unwrap().len(), 0);
    let banned = agent.json(&["ban", "10.77.0.0/16"]);
    assert!(
        banned["notes"][0]
            .as_str()
            .unwrap()
            .contains("10.77.0.7/32 in 10.77.0.0/16 is exempt"),
        "{banned}"
    );
    fails(
        &network,
        &["unban", "10.77.0.9"],
        &["10.77.0.9 is still banned", "agent unban 10.77.0.0/16"],
    );
    let wide = network.command(&["ban", "0.0.0.0/0"]);
    assert_eq!(wide.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&wide.stderr).contains("add --force"),
        "{wide:?}"
    );
    // In the kernel's tree, the IPv4 addresses are within ::/80.
    for arguments in [&["ban", "::/20"][..], &["ban", "::/0", "--force"]] {
        let wide = network.command(arguments);
        assert_eq!(wide.status.code(), Some(2));
        let text = String::from_utf8_lossy(&wide.stderr);
        assert!(
            text.contains("invalid prefix ::/") && text.contains("2000::/3"),
            "{text}"
        );
    }
    network.told(&["ban", "2001:db8::7", "192.0.2.7"]);
    let bans: Vec<String> = agent
        .json(&["bans"])
        .as_array()
        .unwrap()
        .iter()
        .map(|ban| ban["cidr"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(bans, ["10.77.0.0/16", "192.0.2.7", "2001:db8::/64"]);
    // Bans within a prefix stay, and are named.
    network.told(&["ban", "192.0.2.8", "192.0.2.0/24"]);
    let lifted = network.command(&["unban", "192.0.2.0/24"]);
    let lifted = String::from_utf8(lifted.stdout).unwrap();
    assert!(
        lifted.contains("1 unbanned")
            && lifted.contains("bans of 2 prefixes within 192.0.2.0/24, such as 192.0.2.7, remain"),
        "{lifted}"
    );
    network.told(&["unban", "192.0.2.8"]);
    network.told(&["unban", "2001:db8::7"]);
    assert_eq!(agent.json(&["unban", "--all"])["unbanned"], 2);
    // Nothing of it is banned, as wanted.
    network.told(&["unban", "192.0.2.7"]);
    drop(agent);
    let _agent = network.start_on(&["absent0"], "", LIMIT);
    fails(
        &network,
        &["ban", "192.0.2.7"],
        &["no interface is attached"],
    );
}

fn a_shorter_ban_does_not_shorten_a_longer_one() {
    let network = Network::new();
    let agent = network.start("", LIMIT);
    network.told(&["ban", "10.77.0.7"]);
    fails(
        &network,
        &["ban", "10.77.0.7", "--for", "600"],
        &["10.77.0.7 stays banned until it is lifted"],
    );
    assert_eq!(
        agent.json(&["bans"])[0]["expires_in_seconds"],
        serde_json::Value::Null
    );
    network.told(&["unban", "10.77.0.7"]);
    network.told(&["ban", "10.77.0.7", "--for", "600"]);
    let left = agent.json(&["bans"])[0]["expires_in_seconds"]
        .as_f64()
        .unwrap();
    assert!(left > 0.0 && left <= 600.0, "{left}");
    network.told(&["ban", "10.77.0.7"]);
    assert_eq!(
        agent.json(&["bans"])[0]["expires_in_seconds"],
        serde_json::Value::Null
    );
}

fn twenty_thousand_prefixes_are_banned_from_a_file_and_outlive_the_agent() {
    let network = Network::new();
    let agent = network.start("", LIMIT);
    let path = network.folder.path().join("list");
    let mut text = String::from("# scrapers\n");
    for number in 0..20_000u32 {
        text += &format!("{}\n", std::net::Ipv4Addr::from(0x0b00_0000 + number));
    }
    text += "10.77.0.7  # the one that is here\n";
    std::fs::write(&path, text).unwrap();
    network.told(&["ban", "--file", path.to_str().unwrap()]);
    assert_eq!(agent.json(&["bans"]).as_array().unwrap().len(), 20_001);
    let receiver = network.receiver(PORT);
    burst(&network, &[udp_from(7), udp_from(8)], 40);
    let counts = receiver.counts();
    assert_eq!((counts[7], counts[8]), (0, 20));
    agent.stop(Signal::SIGKILL);
    let agent = network.start("", LIMIT);
    assert_eq!(agent.json(&["status"])["bans"], 20_001);
    burst(&network, &[udp_from(7)], 10);
    assert_eq!(receiver.counts()[7], 0);
    let bans = agent.json(&["bans"]);
    assert_eq!(
        (&bans[0]["cidr"], &bans[0]["throttled_packets"]),
        (&"10.77.0.7".into(), &30.into())
    );
}

fn invalid_bans_are_errors_and_ban_no_source() {
    let network = Network::new();
    let agent = network.start("", LIMIT);
    let path = network.folder.path().join("list");
    std::fs::write(&path, "10.77.0.7\nnobody\n10.77.0.9/8\n").unwrap();
    let refused = |arguments: &[&str], code: i32, messages: &[&str]| {
        let output = network.command(arguments);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(code), "{arguments:?}: {said}");
        assert!(
            messages.iter().all(|message| said.contains(message)),
            "{arguments:?}: {said}"
        );
    };
    refused(
        &["ban", "--file", path.to_str().unwrap()],
        2,
        &["list:2: ", "list:3: ", "10.0.0.0/8", "nothing was banned"],
    );
    refused(&["ban", "--file", "/nonexistent"], 2, &["/nonexistent"]);
    refused(
        &["ban", "10.77.0.300"],
        2,
        &["neither an address nor a prefix"],
    );
    refused(&["ban", "10.77.0.7", "--for", "soon"], 2, &["soon"]);
    refused(&["ban", "10.77.0.7", "--for", "0s"], 2, &["--for 10m"]);
    refused(&["ban"], 2, &["CIDR"]);
    refused(
        &["unban", "nobody"],
        2,
        &["neither an address nor a prefix"],
    );
    let own = network.command_with(
        "SSH_CONNECTION",
        "10.77.0.2 50000 10.77.0.1 22",
        &["ban", "10.77.0.0/24"],
    );
    assert_eq!(own.status.code(), Some(2));
    assert!(
        String::from_utf8_lossy(&own.stderr).contains("--force"),
        "{own:?}"
    );
    assert_eq!(agent.json(&["bans"]).as_array().unwrap().len(), 0);
}

fn a_hundred_thousand_prefixes_of_classes_load() {
    let network = Network::new();
    let list = |first: u32| -> String {
        (0..50_000u32)
            .map(|number| format!("\"{}\",", std::net::Ipv4Addr::from(first + number)))
            .collect()
    };
    let classes = format!(
        "[[class]]\nname = \"a\"\nmultiplier = 2\nsources = [{}\"10.77.0.7\"]\n\
         [[class]]\nname = \"b\"\nunlimited = true\nsources = [{}\"10.77.0.8\"]\n",
        list(0x0b00_0000),
        list(0x0c00_0000)
    );
    let start = Instant::now();
    let agent = network.start(
        "",
        &format!("{classes}[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 10\n"),
    );
    println!(
        "100,002 prefixes in force in {:.2} s",
        start.elapsed().as_secs_f64()
    );
    burst(&network, &[udp_from(7), udp_from(8), udp_from(9)], 120);
    assert_eq!(agent.counts("packets"), (30, 50));
    assert_eq!(agent.json(&["show", "10.77.0.8"])["class"], "b");
}

/// (prefix, reason) of every ban.
fn reasons(agent: &Agent<'_>) -> Vec<(String, Option<String>)> {
    let bans = agent.json(&["bans"]);
    let row = |ban: &serde_json::Value| {
        (
            ban["cidr"].as_str().unwrap().to_owned(),
            ban["reason"].as_str().map(str::to_owned),
        )
    };
    bans.as_array().unwrap().iter().map(row).collect()
}

fn the_reason_of_a_ban_is_shown_and_survives_restarts_and_reboots() {
    let network = Network::new();
    let config = network.config("max_sources = 2000", LIMIT);
    let agent = network.start_in_boot("a", &config);
    let why = "brute force, siehe #12 „ssh“";
    network.told(&[
        "ban",
        "10.77.0.7",
        "2001:db8::7",
        "--for",
        "1h",
        "--reason",
        why,
    ]);
    network.told(&["ban", "10.77.0.9", "--reason", "scan"]);
    network.told(&["ban", "10.77.0.11"]);
    let expected = |ninth: Option<&str>| {
        let row = |cidr: &str, reason: Option<&str>| (cidr.to_owned(), reason.map(str::to_owned));
        vec![
            row("10.77.0.7", Some(why)),
            row("10.77.0.9", ninth),
            row("10.77.0.11", None),
            row("2001:db8::/64", Some(why)),
        ]
    };
    assert_eq!(reasons(&agent), expected(Some("scan")));
    assert_eq!(agent.json(&["show", "10.77.0.7"])["ban"]["reason"], why);
    for (arguments, width) in [(&["bans"][..], 80), (&["show", "10.77.0.7"], 200)] {
        let output = network.command_with("COLUMNS", "80", arguments);
        let text = String::from_utf8(output.stdout).unwrap();
        assert!(
            text.contains("brute force") && text.lines().all(|line| line.chars().count() <= width),
            "{text}"
        );
    }
    let events = agent.lines(&["events", "--json"]);
    let event = events
        .iter()
        .find(|event| event["source"] == "10.77.0.7")
        .unwrap();
    assert_eq!(
        (&event["verdict"], event["reason"].as_str().unwrap()),
        (
            &"banned".into(),
            &*format!("ordered by an operator for 1 h: {why}")
        )
    );
    assert_eq!(
        events
            .iter()
            .filter(|event| event["verdict"] == "banned")
            .count(),
        4
    );
    // A ban that is shorter than the one there leaves its reason as well; a longer one replaces it.
    let output = network.command(&["ban", "10.77.0.9", "--for", "1s", "--reason", "other"]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(reasons(&agent), expected(Some("scan")));
    network.told(&["ban", "10.77.0.9"]);
    assert_eq!(reasons(&agent), expected(None));
    network.told(&["ban", "10.77.0.9", "--reason", "again"]);
    // A list of many has few events.
    let list: String = (0..100).map(|nth| format!("10.78.0.{nth}\n")).collect();
    let file = network.folder.path().join("list");
    std::fs::write(&file, list).unwrap();
    network.told(&[
        "ban",
        "--file",
        file.to_str().unwrap(),
        "--reason",
        "a list",
    ]);
    let events = agent.lines(&["events", "--json"]);
    let of_list = events
        .iter()
        .filter(|event| event["reason"].as_str().unwrap().ends_with("a list"));
    assert_eq!(
        of_list
            .clone()
            .map(|event| event["count"].as_u64().unwrap())
            .sum::<u64>(),
        100
    );
    assert_eq!(of_list.count(), 11);
    network.told(&["unban", "--file", file.to_str().unwrap()]);
    // Another agent, another boot.
    agent.stop(Signal::SIGTERM);
    let agent = network.start_in_boot("a", &config);
    assert_eq!(reasons(&agent), expected(Some("again")));
    agent.stop(Signal::SIGTERM);
    network.told(&["detach", "--config", config.to_str().unwrap()]);
    let agent = network.start_in_boot("b", &config);
    assert_eq!(reasons(&agent), expected(Some("again")));
    // A ban that is lifted takes its reason with it.
    network.told(&["unban", "10.77.0.9"]);
    network.told(&["ban", "10.77.0.9"]);
    assert_eq!(reasons(&agent), expected(None));
}

fn bans_outlive_a_detach_and_a_config_without_limits_on_packets() {
    let network = Network::new();
    let refuses = |agent: &Agent<'_>, source: u8, reason: &str| {
        let receiver = network.receiver(PORT);
        burst(&network, &[udp_from(source), udp_from(99)], 20);
        let counts = receiver.counts();
        assert_eq!(
            (counts[usize::from(source)], counts[99]),
            (0, 10),
            "{source}"
        );
        let ban = agent.ban_of(&format!("10.77.0.{source}"));
        assert_eq!(ban["reason"], reason, "{ban}");
    };
    let config = network.config("", LIMIT);
    let detach = || network.told(&["detach", "--config", config.to_str().unwrap()]);
    let agent = network.start_file(&config, &[]);
    network.told(&["ban", "10.77.0.7", "--reason", "scan"]);
    agent.stop(Signal::SIGTERM);
    detach();
    assert!(!network.has_pins());
    let agent = network.start_file(&config, &[]);
    refuses(&agent, 7, "scan");
    // Killed before it saved the second one: it is in the kernel.
    network.told(&["ban", "10.77.0.8"]);
    agent.stop(Signal::SIGKILL);
    detach();
    let agent = network.start_file(&config, &[]);
    refuses(&agent, 7, "scan");
    assert!(agent.is_banned("10.77.0.8"));
    // What was lifted stays lifted.
    network.told(&["unban", "10.77.0.8"]);
    agent.stop(Signal::SIGTERM);
    let _ = network.config("on_exit = \"detach\"", LIMIT);
    for _ in 0..2 {
        let agent = network.start_file(&config, &[]);
        refuses(&agent, 7, "scan");
        assert!(!agent.is_banned("10.77.0.8"));
        agent.stop(Signal::SIGTERM);
        assert!(!network.has_pins());
    }
    // Limits on packets that are gone for a while, with and without an agent.
    let requests = "[[limit]]\nname = \"r\"\nscope = \"request\"\nkey = [\"user\"]\nunit = \"requests\"\nrate = \"1/s\"\n";
    let with_packets = std::fs::read_to_string(&config).unwrap();
    let without: String = with_packets
        .replace(LIMIT, "")
        .lines()
        .filter(|line| !line.starts_with("interfaces"))
        .map(|line| format!("{line}\n"))
        .collect();
    let agent = network.start_file(&config, &[]);
    std::fs::write(&config, format!("{without}{requests}")).unwrap();
    network.told(&["reload"]);
    assert!(!network.has_pins());
    std::fs::write(&config, &with_packets).unwrap();
    network.told(&["reload"]);
    refuses(&agent, 7, "scan");
    std::fs::write(&config, format!("{without}{requests}")).unwrap();
    network.told(&["reload"]);
    agent.stop(Signal::SIGTERM);
    let agent = network.start_file(&config, &[]);
    std::fs::write(&config, &with_packets).unwrap();
    network.told(&["reload"]);
    refuses(&agent, 7, "scan");
}

fn an_unprintable_reason_bans_no_source() {
    let network = Network::new();
    let agent = network.start("", LIMIT);
    for reason in ["", " ", "a\nb", "\u{1b}[2J", "a\u{202e}b", &"x".repeat(201)] {
        let output = network.command(&["ban", "10.77.0.7", "--reason", reason]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{reason:?}: {said}");
        assert!(
            said.contains("--reason") && said.contains("nothing was banned"),
            "{said}"
        );
        assert!(
            !said.contains('\u{1b}') && !said.contains('\u{202e}'),
            "{said:?}"
        );
    }
    // Who writes to the socket is not held to the command line.
    let order = serde_json::json!({"verb": "ban", "orders": [
        {"cidr": "10.77.0.8", "for_seconds": null},
        {"cidr": "10.77.0.7", "for_seconds": null, "reason": "a\nb"},
    ]});
    let mut stream = std::os::unix::net::UnixStream::connect(network.control()).unwrap();
    std::io::Write::write_all(&mut stream, format!("{order}\n").as_bytes()).unwrap();
    let mut reply = String::new();
    std::io::Read::read_to_string(&mut stream, &mut reply).unwrap();
    assert!(reply.contains("control character"), "{reply}");
    assert_eq!(agent.json(&["bans"]), serde_json::json!([]));
}
