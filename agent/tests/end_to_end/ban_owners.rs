//! Bans of several owners: users, fail2ban's jails, limits.

use std::hash::Hasher as _;
use std::path::Path;

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use siphasher::sip::SipHasher13;
use testbed::tests;
use testbed::trials::Test;

use crate::support::{Agent, Network};
use crate::traffic::{PORT, burst, udp_from, udp6_from, v6};

pub const TESTS: &[Test] = tests![
    two_jails_ban_one_source_and_each_lifts_its_own_ban,
    two_addresses_of_a_network_have_bans_of_their_own,
    a_user_lifts_own_bans_and_sees_the_owners_of_others,
    owners_survive_restarts_a_kill_a_detach_and_a_reboot,
    owners_survive_kills_before_the_first_save_after_a_reboot,
    bans_of_a_version_without_owners_are_everybodys,
    invalid_owners_ban_no_source,
    a_prefix_has_at_most_64_bans_of_users,
    a_jail_bans_any_number_of_addresses_of_a_network,
];

const LIMIT: &str = "[[limit]]\nname = \"packets\"\nrate = \"100000/s\"\n";
const WEEK: f64 = 7.0 * 86_400.0;

/// Owner and remaining seconds of each ban of a prefix, the longest first.
fn owners(agent: &Agent<'_>, cidr: &str) -> Vec<(String, Option<f64>)> {
    let bans = agent.json(&["bans"]);
    let of_prefix = bans.as_array().unwrap().iter();
    of_prefix
        .filter(|ban| ban["cidr"] == cidr)
        .map(|ban| {
            let owner = ban["owner"].as_str().unwrap().to_owned();
            (owner, ban["expires_in_seconds"].as_f64())
        })
        .collect()
}

fn names(agent: &Agent<'_>, cidr: &str) -> Vec<String> {
    let owners = owners(agent, cidr).into_iter();
    owners.map(|(owner, _)| owner).collect()
}

/// Whether packets from 10.77.0.7 are refused; those of others pass.
#[track_caller]
fn refuses_7(network: &Network) -> bool {
    let receiver = network.receiver(PORT);
    burst(network, &[udp_from(7), udp_from(99)], 20);
    let counts = receiver.counts();
    assert_eq!(counts[99], 10);
    assert!(counts[7] == 0 || counts[7] == 10, "{}", counts[7]);
    counts[7] == 0
}

fn two_jails_ban_one_source_and_each_lifts_its_own_ban() {
    let network = Network::new();
    let agent = network.start("", LIMIT);
    let short = ["ban", "10.77.0.7", "--for", "10m", "--owner", "sshd"];
    let long = ["ban", "10.77.0.7", "--for", "7d", "--owner", "recidive"];
    for orders in [[short, long], [long, short]] {
        for order in &orders {
            network.told(order);
        }
        let bans = owners(&agent, "10.77.0.7");
        assert_eq!(names(&agent, "10.77.0.7"), ["recidive", "sshd"]);
        let left = |nth: usize| bans[nth].1.unwrap();
        assert!(left(0) > 600.0 && left(0) <= WEEK && left(1) <= 600.0);
        // The first jail's unban, and the other one's.
        for (nth, [jail, other]) in [["sshd", "recidive"], ["recidive", "sshd"]]
            .into_iter()
            .enumerate()
        {
            assert!(refuses_7(&network));
            let output = network.command(&["unban", "10.77.0.7", "--owner", jail]);
            let said = String::from_utf8(output.stderr).unwrap();
            assert!(output.status.success(), "{said}");
            let others: &[&str] = if nth == 0 { &[other] } else { &[] };
            assert_eq!(names(&agent, "10.77.0.7"), others);
            let is_said = said.contains(&format!("10.77.0.7 is still banned by {other}"))
                && said.contains("agent unban 10.77.0.7 --all");
            assert_eq!(is_said, nth == 0, "{said}");
        }
        assert!(!refuses_7(&network));
        // The longer ban is lifted first: the shorter one stays, and its end.
        for order in &orders {
            network.told(order);
        }
        network.told(&["unban", "10.77.0.7", "--owner", "recidive"]);
        let bans = owners(&agent, "10.77.0.7");
        assert!(bans.len() == 1 && bans[0].1.unwrap() <= 600.0, "{bans:?}");
        assert!(refuses_7(&network));
        network.told(&["unban", "10.77.0.7", "--owner", "sshd"]);
    }
    // The longer one of two ends by itself.
    network.told(&["ban", "10.77.0.7", "--for", "1s", "--owner", "sshd"]);
    network.told(&short.map(|word| if word == "sshd" { "recidive" } else { word }));
    agent.wait_for_bans(&["recidive"]);
    assert!(refuses_7(&network));
    let events = agent.lines(&["events", "--json"]);
    let banned = events.iter().filter(|event| event["verdict"] == "banned");
    assert!(banned.clone().any(|event| event["owner"] == "sshd"));
    assert!(banned.clone().all(|event| event["owner"].is_string()));
    let shown = agent.json(&["show", "10.77.0.7"]);
    assert_eq!(shown["ban"]["owner"], "recidive");
}

trait Bans {
    fn wait_for_bans(&self, wanted: &[&str]);
}

impl Bans for Agent<'_> {
    /// Waits until 10.77.0.7 has bans of exactly these owners.
    fn wait_for_bans(&self, wanted: &[&str]) {
        testbed::wait::wait("the end of a ban", || names(self, "10.77.0.7") == wanted);
    }
}

fn two_addresses_of_a_network_have_bans_of_their_own() {
    let network = Network::new();
    let agent = network.start("", LIMIT);
    let cidr = "fd77:0:0:3::/64";
    let refuses = |host: u8| {
        let refused = || {
            agent.json(&["status"])["bypass"]["banned"]
                .as_u64()
                .unwrap()
        };
        let before = refused();
        burst(&network, &[udp6_from(v6(3, host))], 5);
        refused() == before + 5
    };
    network.told(&["ban", "fd77:0:0:3::1", "--for", "1h"]);
    network.told(&["ban", "fd77:0:0:3::2", "--for", "2h"]);
    let bans = agent.json(&["bans"]);
    let addresses: Vec<_> = bans.as_array().unwrap().iter().collect();
    assert_eq!(addresses.len(), 2);
    assert_eq!(
        (&addresses[0]["address"], &addresses[1]["address"]),
        (&"fd77:0:0:3::2".into(), &"fd77:0:0:3::1".into())
    );
    assert!(refuses(1) && refuses(2) && refuses(9));
    let output = network.command(&["unban", "fd77:0:0:3::1"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        output.status.success() && said.contains("agent unban fd77:0:0:3::1 --all"),
        "{said}"
    );
    assert!(refuses(1) && refuses(2));
    // In the other order, and an address that was not banned.
    network.told(&["ban", "fd77:0:0:3::1", "--for", "1h"]);
    network.told(&["unban", "fd77:0:0:3::2"]);
    assert!(refuses(1) && refuses(2));
    let output = network.command(&["unban", "fd77:0:0:3::3"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(refuses(3));
    network.told(&["unban", "fd77:0:0:3::1"]);
    assert!(!refuses(1) && agent.json(&["bans"]) == json!([]));
    // The network lifts the bans of its addresses.
    network.told(&["ban", "fd77:0:0:3::1", "fd77:0:0:3::2", cidr]);
    assert_eq!(owners(&agent, cidr).len(), 3);
    network.told(&["unban", cidr]);
    assert!(!refuses(1) && agent.json(&["bans"]) == json!([]));
    // And so does everybody's order for an address.
    network.told(&["ban", "fd77:0:0:3::1", "--owner", "sshd"]);
    network.told(&["ban", cidr]);
    network.told(&["unban", "fd77:0:0:3::2", "--all"]);
    assert!(!refuses(1) && agent.json(&["bans"]) == json!([]));
}

fn a_user_lifts_own_bans_and_sees_the_owners_of_others() {
    let network = Network::new();
    let agent = network.start("", LIMIT);
    let by = |user: &str, arguments: &[&str]| {
        let output = network.command_with("SUDO_USER", user, arguments);
        let text = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(text).unwrap())
    };
    assert_eq!(by("alice", &["ban", "10.77.0.7"]).0, Some(0));
    assert_eq!(names(&agent, "10.77.0.7"), ["alice"]);
    let (code, said) = by("bob", &["unban", "10.77.0.7"]);
    assert_eq!(code, Some(1));
    assert!(
        said.contains("10.77.0.7 is still banned by alice: agent unban 10.77.0.7 --all"),
        "{said}"
    );
    // A wider ban: whose it is, and what lifts it.
    let (code, said) = by("bob", &["unban", "10.77.0.7/32", "10.77.0.8"]);
    assert_eq!(code, Some(1), "{said}");
    assert_eq!(by("alice", &["ban", "10.77.0.0/24"]).0, Some(0));
    let (_, said) = by("bob", &["unban", "10.77.0.8"]);
    assert!(said.contains("agent unban 10.77.0.0/24 --all"), "{said}");
    let (_, said) = by("alice", &["unban", "10.77.0.8"]);
    assert!(said.trim().ends_with("agent unban 10.77.0.0/24"), "{said}");
    assert_eq!(by("alice", &["unban", "10.77.0.0/24"]).0, Some(0));
    assert!(refuses_7(&network));
    // The owner as bans lists it, and everybody.
    assert_eq!(by("bob", &["ban", "10.77.0.7", "--for", "1h"]).0, Some(0));
    assert_eq!(
        by("bob", &["unban", "10.77.0.7", "--owner", "alice"]).0,
        Some(0)
    );
    assert_eq!(names(&agent, "10.77.0.7"), ["bob"]);
    assert_eq!(by("alice", &["ban", "10.77.0.7"]).0, Some(0));
    let (code, said) = by("carol", &["unban", "10.77.0.7", "--all"]);
    assert_eq!(
        (code, names(&agent, "10.77.0.7").len()),
        (Some(0), 0),
        "{said}"
    );
    assert!(!refuses_7(&network));
    // A client without the command line is its user.
    let order = json!({"verb": "ban", "orders": [{"cidr": "10.77.0.7", "for_seconds": null}]});
    socket(&network, &order);
    assert_eq!(names(&agent, "10.77.0.7"), ["root"]);
    let text = String::from_utf8(network.command(&["bans"]).stdout).unwrap();
    assert!(text.contains("OWNER") && text.contains("root"), "{text}");
    let text = String::from_utf8(network.command(&["show", "10.77.0.7"]).stdout).unwrap();
    assert!(text.contains("by root"), "{text}");
    assert_eq!(
        socket(&network, &json!({"verb": "unban", "cidrs": ["10.77.0.7"]}))["unbanned"],
        1
    );
}

/// The reply to a request on the control socket.
fn socket(network: &Network, request: &Value) -> Value {
    let mut stream = std::os::unix::net::UnixStream::connect(network.control()).unwrap();
    std::io::Write::write_all(&mut stream, format!("{request}\n").as_bytes()).unwrap();
    let mut reply = String::new();
    std::io::Read::read_to_string(&mut stream, &mut reply).unwrap();
    let reply: Value = serde_json::from_str(&reply).unwrap();
    reply
        .get("ok")
        .or(reply.get("Ok"))
        .cloned()
        .unwrap_or(reply)
}

fn owners_survive_restarts_a_kill_a_detach_and_a_reboot() {
    let network = Network::new();
    let config = network.config("max_sources = 2000", LIMIT);
    let mut agent = network.start_in_boot("a", &config);
    network.told(&["ban", "10.77.0.7", "--for", "1h", "--owner", "sshd"]);
    network.told(&["ban", "10.77.0.7", "--owner", "recidive"]);
    network.told(&["ban", "fd77:0:0:3::1", "fd77:0:0:3::2"]);
    let rows = |agent: &Agent<'_>| {
        let bans = agent.json(&["bans"]);
        let row = |ban: &Value| {
            let is_permanent = ban["expires_in_seconds"].is_null();
            let texts = ["cidr", "owner", "address", "since"].map(|name| ban[name].clone());
            (texts, is_permanent)
        };
        bans.as_array().unwrap().iter().map(row).collect::<Vec<_>>()
    };
    let expected = rows(&agent);
    assert_eq!(expected.len(), 4);
    for (signal, boot, detaches) in [
        (Signal::SIGTERM, "a", false),
        (Signal::SIGKILL, "a", false),
        (Signal::SIGTERM, "a", true),
        (Signal::SIGTERM, "b", true),
    ] {
        agent.stop(signal);
        if detaches {
            network.told(&["detach", "--config", config.to_str().unwrap()]);
        }
        agent = network.start_in_boot(boot, &config);
        assert_eq!(rows(&agent), expected, "{signal} {boot} {detaches}");
        assert!(refuses_7(&network));
    }
    // Changes since the last save survive a kill: a shorter ban beside a longer one, and what was lifted.
    network.told(&["ban", "10.77.0.7", "--for", "10m", "--owner", "web"]);
    network.told(&["ban", "10.77.0.8", "--owner", "web", "--reason", "scan"]);
    network.told(&["unban", "10.77.0.7", "--owner", "sshd"]);
    network.told(&["unban", "fd77:0:0:3::1"]);
    let expected = rows(&agent);
    for detaches in [false, true] {
        agent.stop(Signal::SIGKILL);
        if detaches {
            network.told(&["detach", "--config", config.to_str().unwrap()]);
        }
        agent = network.start_in_boot("b", &config);
        assert_eq!(rows(&agent), expected, "{detaches}");
    }
    assert_eq!(names(&agent, "10.77.0.7"), ["recidive", "web"]);
    network.told(&["unban", "10.77.0.7", "--owner", "recidive"]);
    assert!(refuses_7(&network));
    let bans = owners(&agent, "10.77.0.7");
    assert!(bans.len() == 1 && bans[0].1.unwrap() <= 600.0, "{bans:?}");
    network.told(&["unban", "10.77.0.7", "--owner", "web"]);
    assert!(!refuses_7(&network));
}

fn owners_survive_kills_before_the_first_save_after_a_reboot() {
    let network = Network::new();
    let config = network.config("max_sources = 2000", LIMIT);
    let owned = |agent: &Agent<'_>| {
        let bans = agent.json(&["bans"]);
        let owned =
            |ban: &Value| ["cidr", "owner", "address", "reason"].map(|name| ban[name].clone());
        bans.as_array()
            .unwrap()
            .iter()
            .map(owned)
            .collect::<Vec<_>>()
    };
    // The file of the journal alone, before the first save ever.
    let next = network.state().join("state.next");
    std::fs::create_dir_all(network.state()).unwrap();
    // Opening a pipe without a reader blocks every save.
    nix::unistd::mkfifo(&next, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let agent = network.start_in_boot("a", &config);
    network.told(&["ban", "10.77.0.7", "--for", "1h", "--owner", "sshd"]);
    network.told(&["ban", "10.77.0.7", "--owner", "recidive"]);
    let expected = owned(&agent);
    agent.stop(Signal::SIGKILL);
    let agent = network.start_in_boot("a", &config);
    assert_eq!(owned(&agent), expected);
    agent.stop(Signal::SIGKILL);
    std::fs::remove_file(&next).unwrap();
    let agent = network.start_in_boot("a", &config);
    network.told(&["ban", "fd77:0:0:3::1", "fd77:0:0:3::2", "--for", "2h"]);
    let expected = owned(&agent);
    assert_eq!(expected.len(), 4);
    agent.stop(Signal::SIGTERM);
    network.told(&["detach", "--config", config.to_str().unwrap()]);
    // After the reboot no save succeeds.
    nix::unistd::mkfifo(&next, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let agent = network.start_in_boot("b", &config);
    assert_eq!(owned(&agent), expected);
    agent.stop(Signal::SIGKILL);
    let agent = network.start_in_boot("b", &config);
    assert_eq!(owned(&agent), expected);
    network.told(&["ban", "10.77.0.7", "--for", "10m", "--owner", "web"]);
    network.told(&["ban", "10.77.0.8", "--owner", "web", "--reason", "scan"]);
    network.told(&["unban", "10.77.0.7", "--owner", "recidive"]);
    network.told(&["unban", "fd77:0:0:3::1"]);
    let expected = owned(&agent);
    assert_eq!(names(&agent, "10.77.0.7"), ["sshd", "web"]);
    agent.stop(Signal::SIGKILL);
    let agent = network.start_in_boot("b", &config);
    assert_eq!(owned(&agent), expected);
    agent.stop(Signal::SIGKILL);
    // And another reboot, with the state of the one before the last.
    network.told(&["detach", "--config", config.to_str().unwrap()]);
    let agent = network.start_in_boot("c", &config);
    assert_eq!(owned(&agent), expected);
    network.told(&["unban", "10.77.0.7", "--owner", "sshd"]);
    assert!(refuses_7(&network));
    network.told(&["unban", "10.77.0.7", "--owner", "web"]);
    assert!(!refuses_7(&network));
    agent.stop(Signal::SIGKILL);
}

/// Rewrites the state file as a version without owners wrote it.
fn forget_owners(path: &Path) {
    let bytes = std::fs::read(path).unwrap();
    let word = |nth: usize| u64::from_le_bytes(bytes[nth * 8..nth * 8 + 8].try_into().unwrap());
    let (document, words) = bytes[24..].split_at(usize::try_from(word(2)).unwrap());
    let mut document: Value = serde_json::from_slice(document).unwrap();
    for reason in document["reasons"].as_array_mut().unwrap() {
        let reason = reason.as_object_mut().unwrap();
        reason.remove("owner");
        reason.remove("interface_id");
    }
    let body = [serde_json::to_vec(&document).unwrap(), words.to_vec()].concat();
    let length = ((body.len() - words.len()) as u64).to_le_bytes();
    let mut hasher = SipHasher13::new();
    hasher.write(&length);
    hasher.write(&body);
    let checksum = hasher.finish().to_le_bytes();
    std::fs::write(path, [&bytes[..8], &checksum, &length, &body].concat()).unwrap();
}

fn bans_of_a_version_without_owners_are_everybodys() {
    let network = Network::new();
    let config = network.config("max_sources = 2000", LIMIT);
    for boots in [["a", "a"], ["b", "c"]] {
        let agent = network.start_in_boot(boots[0], &config);
        for cidr in ["10.77.0.7", "10.77.0.8", "fd77:0:0:3::1"] {
            network.told(&["ban", cidr, "--reason", "scan"]);
        }
        agent.stop(Signal::SIGTERM);
        if boots[0] != boots[1] {
            network.told(&["detach", "--config", config.to_str().unwrap()]);
        }
        forget_owners(&network.state().join("state"));
        let agent = network.start_in_boot(boots[1], &config);
        let bans = agent.json(&["bans"]);
        assert_eq!(bans.as_array().unwrap().len(), 3);
        for ban in bans.as_array().unwrap() {
            assert_eq!(
                (&ban["owner"], &ban["reason"], &ban["origin"]),
                (&"operator".into(), &"scan".into(), &"operator".into())
            );
        }
        assert!(refuses_7(&network));
        // A jail may have made them, and a user.
        network.told(&["ban", "10.77.0.7", "--for", "1h", "--owner", "recidive"]);
        network.told(&["unban", "10.77.0.7", "--owner", "sshd"]);
        assert_eq!(names(&agent, "10.77.0.7"), ["recidive"]);
        network.told(&["unban", "10.77.0.8", "fd77:0:0:3::1"]);
        network.told(&["unban", "10.77.0.7", "--owner", "recidive"]);
        assert_eq!(agent.json(&["bans"]), json!([]));
        agent.stop(Signal::SIGTERM);
        network.told(&["detach", "--config", config.to_str().unwrap()]);
    }
}

fn invalid_owners_ban_no_source() {
    let network = Network::new();
    let agent = network.start("", LIMIT);
    let long = "x".repeat(65);
    for owner in [
        "",
        " ",
        " a",
        "a\nb",
        "\u{1b}[2J",
        "a\u{202e}b",
        "crowdsec",
        "operator",
        "limit:packets",
        &long,
    ] {
        let output = network.command(&["ban", "10.77.0.7", "--owner", owner]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(output.status.code(), Some(2), "{owner:?}: {said}");
        assert!(
            said.contains("--owner") && said.contains("nothing was banned"),
            "{said}"
        );
        assert!(
            !said.contains('\u{1b}') && !said.contains('\u{202e}'),
            "{said:?}"
        );
        // Clients of the socket are not limited by the command line.
        let order = json!({"cidr": "10.77.0.7", "for_seconds": null, "owner": owner});
        let reply = socket(&network, &json!({"verb": "ban", "orders": [order]}));
        assert!(reply.to_string().contains("owner"), "{owner:?}: {reply}");
    }
    for (cidr, address) in [("10.77.0.7", "::1"), ("2001:db8::/64", "2001:db8:0:1::1")] {
        let order = json!({"cidr": cidr, "for_seconds": null, "address": address});
        let reply = socket(&network, &json!({"verb": "ban", "orders": [order]}));
        assert!(
            reply.to_string().contains("it is not in this /64"),
            "{reply}"
        );
    }
    let output = network.command(&["unban", "10.77.0.7", "--owner", "\u{1b}[2J"]);
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(
        !output.status.success() && !said.contains('\u{1b}'),
        "{said:?}"
    );
    // Feeds have no bans to lift, but exceptions.
    for owner in ["crowdsec", "list:drop"] {
        let output = network.command(&["unban", "10.77.0.7", "--owner", owner]);
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(
            !output.status.success() && said.contains("--all makes an exception"),
            "{said}"
        );
    }
    assert_eq!(agent.json(&["bans"]), json!([]));
}

fn a_prefix_has_at_most_64_bans_of_users() {
    let network = Network::new();
    let agent = network.start("", LIMIT);
    let orders = |count: usize| {
        let order = |nth: usize| json!({"cidr": "10.77.0.7", "for_seconds": 3_600, "owner": format!("jail-{nth}")});
        json!({"verb": "ban", "orders": (0..count).map(order).collect::<Vec<_>>()})
    };
    let reply = socket(&network, &orders(70));
    assert_eq!(reply["banned"], 64, "{reply}");
    assert_eq!(reply["without_effect"].as_array().unwrap().len(), 6);
    assert_eq!(owners(&agent, "10.77.0.7").len(), 64);
    let output = network.command(&["ban", "10.77.0.7", "--owner", "one-more"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(said.contains("at most 64 by users"), "{said}");
    // Other prefixes and owners who have one are not concerned.
    network.told(&["ban", "10.77.0.8", "--owner", "one-more"]);
    network.told(&["ban", "10.77.0.7", "--owner", "jail-3"]);
    network.told(&["unban", "10.77.0.7", "--all"]);
    assert!(!refuses_7(&network));
}

fn a_jail_bans_any_number_of_addresses_of_a_network() {
    let network = Network::new();
    let agent = network.start("", LIMIT);
    let cidr = "fd77:0:0:3::/64";
    let order = |nth: u64| {
        let address = format!("fd77:0:0:3::{nth:x}");
        json!({"cidr": cidr, "for_seconds": 1_000 + nth, "owner": "sshd", "address": address})
    };
    let orders: Vec<Value> = (1..=70).map(order).collect();
    let reply = socket(&network, &json!({"verb": "ban", "orders": orders}));
    assert_eq!(
        (&reply["banned"], &reply["without_effect"]),
        (&70.into(), &json!([]))
    );
    let notes = reply["notes"].to_string();
    assert!(
        notes.contains("sshd has 64 bans of fd77:0:0:3::/64"),
        "{notes}"
    );
    // The whole has the latest end of the first 64.
    let bans = owners(&agent, cidr);
    assert_eq!(bans.len(), 7);
    let ends: Vec<f64> = bans.iter().map(|ban| ban.1.unwrap()).collect();
    assert!(
        ends[0] <= 1_070.0 && ends[6] <= 1_064.0 && ends[6] > ends[0] - 7.0,
        "{ends:?}"
    );
    let whole = |ban: &Value| ban["owner"] == "sshd" && ban["address"].is_null();
    let rows = agent.json(&["bans"]);
    assert_eq!(
        rows.as_array()
            .unwrap()
            .iter()
            .filter(|ban| whole(ban))
            .count(),
        1
    );
    // Another jail has room, too.
    network.told(&["ban", "fd77:0:0:3::1", "--owner", "recidive"]);
    let output = network.command(&["unban", "fd77:0:0:3::1", "--owner", "sshd"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    network.told(&["unban", cidr, "--owner", "sshd"]);
    assert_eq!(names(&agent, cidr), ["recidive"]);
}
