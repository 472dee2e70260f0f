//! `[geo]`: classes and ban lists of networks and countries.

use std::fs;
use std::path::PathBuf;

use nix::sys::signal::Signal;
use serde_json::Value;
use testbed::mmdb::{Mmdb, asn, country};
use testbed::tests;
use testbed::trials::Test;
use testbed::wait::wait;

use crate::support::{Agent, Network};
use crate::traffic::{PORT, burst, udp_from, udp6_from, v6};

pub const TESTS: &[Test] = tests![
    networks_have_the_multiplier_of_their_class_and_countries_are_banned,
    a_start_and_a_reload_with_a_bad_database,
    networks_share_a_budget_and_follow_the_database,
    a_level_of_networks_holds_what_all_sources_of_one_send,
    a_limit_for_a_network_leaves_other_sources_alone,
    without_a_database_networks_are_prefixes,
];

const LIMIT: &str = "[[limit]]\nname = \"packets\"\nrate = \"5/h\"\n";

fn path(network: &Network, name: &str) -> PathBuf {
    network.state().with_file_name(name)
}

/// Replaces a file by renaming, as downloads should.
fn replace(network: &Network, name: &str, bytes: &[u8]) {
    let next = path(network, "next");
    fs::write(&next, bytes).unwrap();
    fs::rename(&next, path(network, name)).unwrap();
}

/// AS 64500 is a network of the test, and AS 64501 all others.
fn networks(of_class: &str) -> Vec<u8> {
    let all = Mmdb::new(6, 28)
        .with("10.77.0.0/16", asn(64501))
        .with("fd77::/32", asn(64501));
    all.with(of_class, asn(64500))
        .with("fd77:0:0:3::/64", asn(64500))
        .bytes()
}

fn countries(banned: &[&str]) -> Vec<u8> {
    let all = Mmdb::new(4, 24).with("10.77.0.0/16", country("YY"));
    banned
        .iter()
        .fold(all, |file, network| file.with(network, country("XX")))
        .bytes()
}

fn config(network: &Network) -> String {
    let (asn, country) = (path(network, "asn.mmdb"), path(network, "country.mmdb"));
    format!(
        "[geo]\nasn = {asn:?}\ncountry = {country:?}\n\
         [[class]]\nname = \"partner\"\nsources = [\"10.77.0.40\"]\nasn = [64500]\nmultiplier = 3\n\
         [[ban_list]]\nname = \"region\"\ncountry = [\"XX\"]\n{LIMIT}"
    )
}

/// The packets of 20 that arrive from each of these sources.
fn arriving<const N: usize>(network: &Network, sources: [u8; N]) -> [usize; N] {
    let receiver = network.receiver(PORT);
    burst(network, &sources.map(udp_from), 20 * N);
    let counts = receiver.counts();
    sources.map(|last| counts[usize::from(last)] as usize)
}

fn class_of(agent: &Agent<'_>, source: &str) -> String {
    agent.json(&["show", source])["class"]
        .as_str()
        .unwrap()
        .to_owned()
}

fn notes(agent: &Agent<'_>) -> String {
    agent.json(&["status"])["notes"].to_string()
}

fn verdicts(agent: &Agent<'_>) -> Vec<String> {
    let events = agent.lines(&["events", "--json"]);
    let of_geo = events.iter().filter(|event| {
        event["source"]
            .as_str()
            .is_some_and(|source| source.starts_with("geo "))
    });
    let shown = |event: &Value| {
        format!(
            "{} {}",
            event["source"].as_str().unwrap(),
            event["verdict"].as_str().unwrap()
        )
    };
    of_geo.map(shown).collect()
}

fn networks_have_the_multiplier_of_their_class_and_countries_are_banned() {
    let network = Network::new();
    replace(&network, "asn.mmdb", &networks("10.77.0.16/28"));
    replace(&network, "country.mmdb", &countries(&["10.77.0.64/26"]));
    let agent = network.start("", &config(&network));
    // 5 packets each, and three times as many in the class by a network or by an address; none from the country.
    assert_eq!(
        arriving(&network, [7, 17, 31, 40, 64, 127]),
        [5, 15, 15, 15, 0, 0]
    );
    burst(&network, &[udp6_from(v6(3, 1)), udp6_from(v6(4, 1))], 40);
    agent.wait_for("packets of the IPv6 networks", |status| {
        status["bypass"]["banned"] == 40
    });
    assert_eq!(
        agent.counts("packets"),
        (5 + 3 * 15 + 15 + 5, 15 + 3 * 5 + 5 + 15)
    );
    for (source, class) in [
        ("10.77.0.7", "default"),
        ("10.77.0.17", "partner"),
        ("10.77.0.40", "partner"),
        ("fd77:0:0:3::9", "partner"),
    ] {
        assert_eq!(class_of(&agent, source), class, "{source}");
    }
    let ban = agent.ban_of("10.77.0.99");
    assert_eq!(
        (&ban["origin"], &ban["cidr"]),
        (&"list:region".into(), &"10.77.0.64/26".into())
    );
    let bans = network.command(&["bans"]);
    let bans = String::from_utf8_lossy(&bans.stdout).into_owned();
    assert!(
        bans.contains("region") && bans.contains("country XX"),
        "{bans}"
    );
    // Both files are replaced. What a source has consumed stays consumed.
    replace(&network, "asn.mmdb", &networks("10.77.0.0/28"));
    replace(
        &network,
        "country.mmdb",
        &countries(&["10.77.0.128/26", "10.77.0.32/29"]),
    );
    agent.wait_for("the new list", |status| {
        status["ban_lists"]["lists"][0]["prefixes"] == 2
    });
    agent.wait_for("the new class", |_| {
        class_of(&agent, "10.77.0.7") == "partner"
    });
    assert_eq!(class_of(&agent, "10.77.0.17"), "default");
    assert_eq!(
        arriving(&network, [8, 18, 40, 41, 65, 129]),
        [15, 5, 0, 5, 5, 0]
    );
    assert_eq!(
        arriving(&network, [31]),
        [0],
        "it had more than its class allows now"
    );
    // A file that is cut short changes nothing.
    for (name, whole) in [
        ("asn.mmdb", networks("10.77.0.48/28")),
        ("country.mmdb", countries(&["10.77.0.0/24"])),
    ] {
        replace(&network, name, &whole[..whole.len() - 9]);
    }
    agent.wait_for("notes about both files", |status| {
        let notes = status["notes"].to_string();
        ["asn.mmdb cannot be used", "country.mmdb cannot be used"]
            .iter()
            .all(|note| notes.contains(note))
    });
    assert!(
        notes(&agent).contains("download it again; the prefixes in effect stay"),
        "{}",
        notes(&agent)
    );
    assert_eq!(arriving(&network, [9, 49, 130]), [15, 5, 0]);
    let seen = verdicts(&agent);
    for (event, count) in [
        ("geo asn geo-updated", 2),
        ("geo asn geo-failed", 1),
        ("geo country geo-updated", 2),
        ("geo country geo-failed", 1),
    ] {
        assert_eq!(
            seen.iter().filter(|seen| *seen == event).count(),
            count,
            "{event}: {seen:?}"
        );
    }
    // Nor does a reload meanwhile.
    network.told(&["reload"]);
    assert_eq!(
        (
            class_of(&agent, "10.77.0.7").as_str(),
            class_of(&agent, "10.77.0.49").as_str()
        ),
        ("partner", "default")
    );
    replace(&network, "asn.mmdb", &networks("10.77.0.48/28"));
    agent.wait_for("a class of the repaired file", |_| {
        class_of(&agent, "10.77.0.49") == "partner"
    });
    agent.wait_for("the end of its note", |status| {
        !status["notes"]
            .to_string()
            .contains("asn.mmdb cannot be used")
    });
}

fn a_start_and_a_reload_with_a_bad_database() {
    let network = Network::new();
    fs::write(path(&network, "country.mmdb"), "rubbish").unwrap();
    let text = config(&network);
    let file = network.config("", &text);
    let checked = network.command(&["check", file.to_str().unwrap()]);
    let errors = String::from_utf8_lossy(&checked.stderr).into_owned();
    assert_eq!(checked.status.code(), Some(2), "{errors}");
    assert!(
        errors.contains("[geo] asn: reading ") && errors.contains("[geo] country: "),
        "{errors}"
    );
    // The agent starts, with the sources of its class and an empty list.
    let agent = network.start("", &text);
    assert_eq!(arriving(&network, [17, 40, 64]), [5, 15, 5]);
    let noted = notes(&agent);
    for part in [
        "asn.mmdb failed: No such file",
        "country.mmdb cannot be used",
        "until it can be read",
    ] {
        assert!(noted.contains(part), "{part}: {noted}");
    }
    assert_eq!(
        verdicts(&agent),
        ["geo asn geo-failed", "geo country geo-failed"]
    );
    // A reload that requires a network for which there is no database is refused.
    network.config("", &text.replace("[64500]", "[64500, 64501]"));
    let reload = network.command(&["reload"]);
    assert!(!reload.status.success());
    let said = String::from_utf8_lossy(&reload.stderr).into_owned();
    assert!(said.contains("[geo] asn: reading "), "{said}");
    network.config("", &text);
    network.told(&["reload"]);
    // The files appear.
    replace(&network, "asn.mmdb", &networks("10.77.0.16/28"));
    replace(&network, "country.mmdb", &countries(&["10.77.0.64/26"]));
    agent.wait_for("the class", |_| class_of(&agent, "10.77.0.17") == "partner");
    agent.wait_for("the list", |status| {
        status["ban_lists"]["lists"][0]["prefixes"] == 1
    });
    assert_eq!(arriving(&network, [18, 65]), [15, 0]);
    let checked = network.command(&["check", file.to_str().unwrap()]);
    let shown = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert!(
        checked.status.success() && shown.contains("[geo] country: 1 prefixes from "),
        "{shown}"
    );
    // The next agent has no database: the list has its last copy, and the class its sources.
    agent.stop(Signal::SIGTERM);
    for name in ["asn.mmdb", "country.mmdb"] {
        fs::remove_file(path(&network, name)).unwrap();
    }
    let agent = network.start("", &text);
    assert_eq!(arriving(&network, [66]), [0]);
    assert_eq!(
        (
            class_of(&agent, "10.77.0.18").as_str(),
            class_of(&agent, "10.77.0.40").as_str()
        ),
        ("default", "partner")
    );
}

fn by_network(network: &Network) -> String {
    let asn = path(network, "asn.mmdb");
    format!(
        "[geo]\nasn = {asn:?}\n[[limit]]\nname = \"networks\"\nkey = \"asn\"\nipv4_prefix = 29\nrate = \"5/h\"\n"
    )
}

/// AS 64500 has two prefixes, AS 4200000001 one; 10.77.0.192 to 223 are in a network with a reserved number.
fn some_networks(second: &str) -> Vec<u8> {
    Mmdb::new(6, 28)
        .with("10.77.0.16/28", asn(64500))
        .with(second, asn(64500))
        .with("10.77.0.48/28", asn(4_200_000_001))
        .with("10.77.0.192/27", asn(4_294_967_295))
        .with("fd77:0:0:3::/64", asn(64500))
        .bytes()
}

/// How many packets of 20 from each of these sources arrive in all.
fn sum<const N: usize>(network: &Network, sources: [u8; N]) -> usize {
    arriving(network, sources).iter().sum()
}

fn networks_share_a_budget_and_follow_the_database() {
    let network = Network::new();
    replace(&network, "asn.mmdb", &some_networks("10.77.0.64/26"));
    let text = by_network(&network);
    let agent = network.start("", &text);
    // Two prefixes of one network, and its IPv6 prefix.
    assert_eq!(sum(&network, [17, 18, 65]), 5);
    burst(&network, &[udp6_from(v6(3, 1))], 20);
    agent.wait_for("packets of the IPv6 network", |_| {
        agent.counts("networks") == (5, 3 * 20 + 20 - 5)
    });
    assert_eq!(sum(&network, [49, 50]), 5, "another network");
    // In none: by prefix.
    assert_eq!(
        (
            sum(&network, [9, 10, 15]),
            sum(&network, [129, 130]),
            sum(&network, [137])
        ),
        (5, 5, 5)
    );
    assert_eq!(
        (sum(&network, [193, 194]), sum(&network, [201])),
        (5, 5),
        "of a reserved number"
    );
    let noted = notes(&agent);
    assert!(
        noted.contains("1 prefixes of ") && noted.contains("have reserved AS numbers"),
        "{noted}"
    );
    let top = agent.json(&["top", "--once"]);
    let sources: Vec<&str> = top
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|row| row["source"].as_str())
        .collect();
    for wanted in ["AS64500", "AS4200000001", "10.77.0.8/29", "10.77.0.128/29"] {
        assert!(sources.contains(&wanted), "{wanted}: {sources:?}");
    }
    wait("the event of the network", || {
        agent
            .lines(&["events", "--json"])
            .iter()
            .any(|event| event["verdict"] == "throttled" && event["source"] == "AS64500")
    });
    let shown = agent.json(&["show", "10.77.0.70"]);
    assert_eq!(
        (
            &shown["limits"][0]["name"],
            &shown["limits"][0]["remaining"]
        ),
        (&"networks".into(), &0.into())
    );
    let limit = agent.json(&["limits"])[0].clone();
    assert_eq!(
        (&limit["key"], &limit["keys"]),
        (&"asn".into(), &7.into()),
        "{limit}"
    );
    // Others are in the network, too; a prefix outside of all is the address's own.
    assert_eq!(agent.json(&["reset", "10.77.0.17"])["forgotten"], 0);
    assert_eq!(agent.json(&["reset", "10.77.0.9"])["forgotten"], 1);
    assert_eq!((sum(&network, [17]), sum(&network, [10])), (0, 5));
    // The network keeps its state, and has another prefix.
    replace(&network, "asn.mmdb", &some_networks("10.77.0.160/27"));
    agent.wait_for("the new database", |_| {
        agent.json(&["show", "10.77.0.161"])["limits"][0]["remaining"] == 0
    });
    assert_eq!((sum(&network, [162]), sum(&network, [66])), (0, 5));
    let database = || agent.json(&["status"])["geo"][0].clone();
    assert_eq!(
        (&database()["database"], &database()["prefixes"]),
        (&"asn".into(), &4.into()),
        "{}",
        database()
    );
    assert!(database()["built"].as_u64() > Some(1_600_000_000) && database()["problem"].is_null());
    // A file that is cut short changes nothing.
    let whole = some_networks("10.77.0.96/27");
    replace(&network, "asn.mmdb", &whole[..whole.len() - 9]);
    agent.wait_for("a note", |status| {
        status["notes"]
            .to_string()
            .contains("asn.mmdb cannot be used")
    });
    assert!(
        database()["problem"].as_str().is_some() && database()["prefixes"] == 4,
        "{}",
        database()
    );
    network.told(&["reload"]);
    assert_eq!((sum(&network, [163]), sum(&network, [97])), (0, 5));
    let checked = network.command(&["check", network.config("", &text).to_str().unwrap()]);
    assert_eq!(checked.status.code(), Some(2));
}

fn a_level_of_networks_holds_what_all_sources_of_one_send() {
    let network = Network::new();
    replace(&network, "asn.mmdb", &some_networks("10.77.0.64/26"));
    let text = by_network(&network);
    let (geo, _) = text.split_once("[[limit]]").unwrap();
    let limit = "[[limit]]\nname = \"networks\"\nrate = \"5/h\"\nburst = 5\nlevels = [{ key = \"asn\", factor = 2 }]\n";
    let agent = network.start("", &format!("{geo}{limit}"));
    // Three sources of one network have what two have alone.
    assert_eq!(sum(&network, [17, 18, 65]), 10);
    assert_eq!(sum(&network, [49]), 5, "another network");
    assert_eq!(sum(&network, [9, 10, 11]), 10, "one prefix in no network");
    wait("the event of the network", || {
        agent
            .lines(&["events", "--json"])
            .iter()
            .any(|event| event["level"] == "asn" && event["source"] == "AS64500")
    });
}

fn a_limit_for_a_network_leaves_other_sources_alone() {
    let network = Network::new();
    let asn_file = path(&network, "asn.mmdb");
    let text = format!(
        "[geo]\nasn = {asn_file:?}\n[[limit]]\nname = \"networks\"\nrate = \"5/h\"\nasn = [64500]\nsources = [\"!10.77.0.20\"]\n"
    );
    // Without its database it is for nobody, and says so.
    let agent = network.start("", &text);
    assert!(
        notes(&agent).contains("classes and limits have only their sources"),
        "{}",
        notes(&agent)
    );
    assert_eq!(arriving(&network, [17]), [20]);
    replace(&network, "asn.mmdb", &some_networks("10.77.0.64/26"));
    agent.wait_for("the database", |status| {
        !status["notes"].to_string().contains("only their sources")
    });
    assert_eq!(arriving(&network, [18, 65, 20, 49, 9]), [5, 5, 20, 20, 20]);
    let limit = agent.json(&["limits"])[0].clone();
    assert_eq!(
        limit["sources"],
        serde_json::json!(["!10.77.0.20", "AS64500"])
    );
    // It follows the database.
    replace(&network, "asn.mmdb", &some_networks("10.77.0.160/27"));
    wait("the next database", || arriving(&network, [161]) != [20]);
    assert_eq!(arriving(&network, [66]), [20]);
}

fn without_a_database_networks_are_prefixes() {
    let network = Network::new();
    let text = by_network(&network);
    let agent = network.start("", &text);
    let noted = notes(&agent);
    assert!(
        noted.contains("limits with key = \\\"asn\\\" count each address by its prefix"),
        "{noted}"
    );
    assert_eq!((sum(&network, [17, 18]), sum(&network, [25])), (5, 5));
    replace(&network, "asn.mmdb", &some_networks("10.77.0.64/26"));
    agent.wait_for("the database", |status| {
        !status["notes"].to_string().contains("count each address")
    });
    assert_eq!(sum(&network, [19, 26, 66]), 5);
    // Without a limit that requires them, the database is not read; with one, a reload reads it.
    network.config("", LIMIT);
    network.told(&["reload"]);
    network.config("", &text);
    network.told(&["reload"]);
    assert_eq!(sum(&network, [49, 50]), 5);
    fs::remove_file(path(&network, "asn.mmdb")).unwrap();
    network.config("", LIMIT);
    network.told(&["reload"]);
    network.config("", &text);
    let refused = network.command(&["reload"]);
    assert!(!refused.status.success(), "there is no database");
}
