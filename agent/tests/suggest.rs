//! `weir suggest`: what is suggested for mixtures of polite traffic and attacks, and the command as a user meets it. Needs no
//! root.
//!
//! A mixture's packets are labelled. The config that is suggested for a capture is enforced, by the code of a replay, over the
//! same capture and over that of another day: other clients and attackers, the same networks, crawlers and resolvers. A packet
//! counts as refused if it is, or if the SYN of its connection was: the host resets such a connection.
//!
//! The seeds in `HELD_OUT` were not used while the method was made; those below 100 were. `WEIR_SUGGEST_SEEDS=1,2` runs
//! others, and prints what is refused.

use std::cell::Cell;
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use api::record::RecordGap;
use common::packet::{Address, Depth, parse};
use common::record::{PART, RecordKey, Recorded};
use common::rule::Size;
use datapath::compile::plan;
use host::StateDirectory;
use serde_json::Value;
use tempfile::TempDir;
use testbed::mixtures::{Label, Mixture, SPAN};
use testbed::random::Random;
use testbed::trials::is_long;
use weir::daemon::record::RecordFile;
use weir::replay::capture::{Capture, InterfaceNames};
use weir::replay::{CapturedFrame, Evaluation, Local, TableMemory, Verdict, read};
use weir::suggest::capture::summarise;
use weir::suggest::{Collector, Decision, Transport, decide, limits_toml, read_once};

const HELD_OUT: [u64; 2] = [101, 102];

/// Refused packets of each label, of all.
#[derive(Clone, Copy, Debug, Default)]
struct Refused {
    polite: (u64, u64),
    attack: (u64, u64),
}

impl Refused {
    fn polite(&self) -> f64 {
        self.polite.0 as f64 / self.polite.1.max(1) as f64
    }

    fn attack(&self) -> f64 {
        self.attack.0 as f64 / self.attack.1.max(1) as f64
    }
}

fn seeds() -> Vec<u64> {
    let held_out = || HELD_OUT[..if is_long() { 2 } else { 1 }].to_vec();
    std::env::var("WEIR_SUGGEST_SEEDS").map_or_else(
        |_| held_out(),
        |seeds| seeds.split(',').map(|seed| seed.parse().unwrap()).collect(),
    )
}

/// The decision on a capture, and the config as it would be enforced.
fn suggested(capture: &Path) -> (Decision, String) {
    let traffic = summarise(
        &[capture.to_owned()],
        InterfaceNames::default(),
        &Local::default(),
        |_| {},
    )
    .traffic;
    let decision = decide(&traffic).unwrap_or_else(|error| panic!("{error}"));
    let text = limits_toml(&traffic, &decision, &["lo".to_owned()], Err(&read_once()));
    (
        decision,
        text.replace("mode = \"observe\"", "mode = \"enforce\""),
    )
}

/// Enforces a config over a mixture.
fn enforced(config: &str, mixture: &Mixture, capture: &Path) -> Refused {
    let config = config::parse(Path::new("limits.toml"), config)
        .unwrap_or_else(|report| panic!("{report}"))
        .config;
    let plan = plan(&config).unwrap();
    let mut memory = TableMemory::new(&plan.ingress.settings);
    let mut evaluation = Evaluation::new(&config, &plan, memory.table());
    let mut names = InterfaceNames::default();
    let mut capture = Capture::open(capture, &mut names).unwrap();
    let mut refused = Refused::default();
    // Connections whose SYN was refused, by source and port.
    let mut closed = HashSet::new();
    for event in &mixture.events {
        assert!(capture.advance(&mut names).unwrap());
        let packet = capture.packet().unwrap();
        let now = packet.nanoseconds.unwrap();
        let verdict = evaluation
            .evaluate(&packet, common::packet::Direction::Ingress, now, now)
            .verdict;
        let mut is_refused = verdict != Verdict::Pass;
        let connection = (event.source, event.port);
        if event.is_syn {
            if is_refused {
                closed.insert(connection)
            } else {
                closed.remove(&connection)
            };
        } else {
            is_refused |= closed.contains(&connection);
        }
        let counts = match event.label {
            Label::Polite => &mut refused.polite,
            Label::Attack => &mut refused.attack,
        };
        *counts = (counts.0 + u64::from(is_refused), counts.1 + 1);
    }
    refused
}

/// The packets that the config for one day refuses on that day and on another.
fn two_days(
    name: &str,
    seed: u64,
    make: impl Fn(&mut Random) -> Mixture,
) -> (Decision, String, [Refused; 2]) {
    let folder = tempfile::tempdir().unwrap();
    let days = [seed, seed + 10_000].map(|seed| {
        let path = folder.path().join(format!("{seed}.pcap"));
        let mixture = make(&mut Random::new(seed)).sorted();
        mixture.write(&path);
        (mixture, path)
    });
    let (decision, config) = suggested(&days[0].1);
    let refused = [0, 1].map(|nth| {
        let (mixture, path) = &days[nth];
        enforced(&config, mixture, path)
    });
    for (day, refused) in ["same day", "another day"].iter().zip(&refused) {
        println!(
            "{name}, seed {seed}, {day}: polite {:.4} % of {}, attack {:.2} % of {}",
            refused.polite() * 100.0,
            refused.polite.1,
            refused.attack() * 100.0,
            refused.attack.1
        );
    }
    (decision, config, refused)
}

/// Less than 0.1 % of the polite packets are refused, and at least 95 % of the attack's.
fn holds(name: &str, make: impl Fn(&mut Random) -> Mixture) {
    for seed in seeds() {
        let (_, config, days) = two_days(name, seed, &make);
        for refused in days {
            assert!(
                refused.polite() < 0.001,
                "{name}, seed {seed}: {refused:?}\n{config}"
            );
            assert!(
                refused.attack.1 == 0 || refused.attack() >= 0.95,
                "{name}, seed {seed}: {refused:?}\n{config}"
            );
        }
    }
}

fn web(random: &mut Random) -> Mixture {
    Mixture::default()
        .web_clients(random, 1_100)
        .nats(random, &[60, 150, 400])
        .crawlers(random, &[0.5, 2.0])
}

/// Fewer clients than the attack has sources.
fn few_clients(random: &mut Random) -> Mixture {
    Mixture::default()
        .web_clients(random, 400)
        .nats(random, &[60, 150])
        .crawlers(random, &[0.5])
}

fn dns(random: &mut Random) -> Mixture {
    Mixture::default()
        .dns_clients(random, 1_500)
        .resolvers(random, &[3.0, 8.0, 12.0])
}

#[test]
fn web_clients_networks_and_crawlers_alone_are_not_refused() {
    holds("no attack", web);
}

#[test]
fn a_syn_flood_is_refused() {
    holds("SYN flood", |random| {
        web(random).syn_flood(random, 60, (50.0, 200.0), 1_200.0, 30.0)
    });
}

#[test]
fn a_slow_flood_below_the_busiest_second_of_clients_is_refused() {
    holds("slow flood", |random| {
        web(random).slow_flood(random, 15, (8.0, 14.0), 900.0, 600.0)
    });
}

#[test]
fn an_attack_from_the_first_packet_to_the_last_is_refused() {
    holds("SYN flood, whole", |random| {
        web(random).syn_flood(random, 8, (15.0, 30.0), 0.0, SPAN)
    });
}

#[test]
fn an_attack_of_most_sources_and_packets_is_refused() {
    holds("SYN flood of most sources", |random| {
        few_clients(random).syn_flood(random, 500, (40.0, 60.0), 1_200.0, 30.0)
    });
}

#[test]
fn dns_amplification_is_refused() {
    holds("DNS amplification", |random| {
        dns(random).amplification(random, 20, (80.0, 200.0), 600.0, 100.0)
    });
}

/// A flood of which each source sends one SYN cannot be told from new clients. That is said, no limit by source is loosened for
/// it, and the limit on all sources together does what its comment says, to polite clients as well.
#[test]
fn a_syn_flood_from_made_up_sources_is_reported_as_what_no_limit_by_source_refuses() {
    let make = |random: &mut Random| web(random).random_flood(random, 200_000, 1_200.0, 60.0);
    for seed in seeds() {
        let (decision, config, days) = two_days("made-up sources", seed, make);
        for refused in days {
            assert!(refused.polite() < 0.001, "{refused:?}");
            assert!(
                refused.attack() < 0.01,
                "nothing tells one from the other: {refused:?}"
            );
        }
        let [together] = decision.together.as_slice() else {
            panic!("{decision:?}")
        };
        let said = format!(
            "refuses {:.1} % of all new connections",
            together.refused_share * 100.0
        );
        assert!(unbroken(&config).contains(&said), "{config}");
        // The limits are those without the flood.
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("day.pcap");
        let quiet = web(&mut Random::new(seed)).sorted();
        quiet.write(&path);
        let (without, _) = suggested(&path);
        let rates = |decision: &Decision| -> Vec<_> {
            decision
                .limits
                .iter()
                .map(|limit| (limit.name(), limit.rate, limit.burst))
                .collect()
        };
        assert_eq!(rates(&decision), rates(&without));
        assert!(without.together.is_empty(), "{without:?}");
        // Enabled, the limit refuses what it says.
        let (commented, of_limit) = config.split_once("#[[limit]]").unwrap();
        let limit: String = of_limit
            .lines()
            .map(|line| line.trim_start_matches('#').to_owned() + "\n")
            .take(8)
            .collect();
        let enabled = format!("{commented}[[limit]]{limit}");
        let mixture = make(&mut Random::new(seed)).sorted();
        mixture.write(&path);
        let refused = enforced(&enabled, &mixture, &path);
        println!(
            "made-up sources, seed {seed}, together: polite {:.2} %, attack {:.2} %",
            refused.polite() * 100.0,
            refused.attack() * 100.0
        );
        assert!(refused.attack() >= 0.95, "{refused:?}\n{enabled}");
        assert!(
            refused.attack() > together.refused_share - 0.02,
            "{refused:?}"
        );
    }
}

/// A crowd that lasts and is like clients is not taken for the few that are known: it gets no class, and that is said. So the
/// networks and crawlers beside it get none either, and their packets are refused with its own until somebody names them.
#[test]
fn a_crowd_that_is_busy_all_the_time_gets_no_class() {
    let folder = Folder::new();
    let random = &mut Random::new(12);
    let path = folder.capture(
        "day.pcap",
        web(random).slow_flood(random, 20, (1.0, 1.5), 0.0, SPAN),
    );
    let (decision, config) = suggested(&path);
    assert!(decision.classes.is_empty(), "{:?}", decision.classes);
    assert!(
        unbroken(&config).contains("may be an attack, so none gets a class"),
        "{config}"
    );
    let limit = decision
        .limits
        .iter()
        .find(|limit| limit.name() == "tcp-443-connections")
        .unwrap();
    assert!(
        limit.basis.exceeding >= 20 && limit.allows(600) < 600.0,
        "{limit:?}"
    );
}

/// Replies that a host did not ask for, to ports that nobody else uses: nothing polite is there to learn from, and the file
/// says so instead of a limit.
#[test]
fn reflected_replies_to_a_host_without_other_udp_traffic_are_reported_as_too_little_data() {
    let folder = Folder::new();
    let random = &mut Random::new(13);
    let path = folder.capture(
        "day.pcap",
        web(random).amplification(random, 50, (50.0, 100.0), 900.0, 20.0),
    );
    let (decision, config) = suggested(&path);
    assert!(
        decision
            .limits
            .iter()
            .all(|limit| limit.name().starts_with("tcp-")),
        "{config}"
    );
    assert!(
        unbroken(&config).contains("UDP port 53, packets: 50 of at least 100 sources"),
        "{config}"
    );
}

/// A comment's text without its line breaks.
fn unbroken(config: &str) -> String {
    config.replace("\n# ", " ")
}

/// A folder with captures.
struct Folder(TempDir);

impl Folder {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn capture(&self, name: &str, mixture: Mixture) -> PathBuf {
        mixture.sorted().write(&self.path(name));
        self.path(name)
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_agent"));
        command
            .current_dir(self.0.path())
            .env_remove("WEIR_CONFIG")
            .env_remove("WEIR_CONTROL")
            .args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A quarter of an hour of clients, and one that opens too many connections.
fn small(random: &mut Random) -> Mixture {
    let mut mixture = Mixture::default().web_clients(random, 400).syn_flood(
        random,
        1,
        (200.0, 200.0),
        300.0,
        60.0,
    );
    mixture.events.retain(|event| event.at < 900_000_000);
    mixture
}

#[test]
fn the_config_is_valid_and_a_replay_refuses_what_its_comments_say() {
    let folder = Folder::new();
    folder.capture("day.pcap", small(&mut Random::new(7)));
    let output = folder.run(&[
        "suggest",
        "--interface",
        "eth7",
        "--local",
        "192.0.2.1",
        "day.pcap",
    ]);
    let config = text(&output.stdout);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    std::fs::write(folder.path("limits.toml"), &config).unwrap();
    let checked = folder.run(&["check", "limits.toml"]);
    assert_eq!(
        checked.status.code(),
        Some(0),
        "{}\n{config}",
        text(&checked.stderr)
    );
    assert!(
        !text(&checked.stderr).contains("warning"),
        "{}",
        text(&checked.stderr)
    );
    for words in [
        "mode = \"observe\"",
        "interfaces = [\"eth7\"]",
        "tcp-443-connections",
        "only opens connections",
    ] {
        assert!(
            unbroken(&config).contains(words),
            "no {words:?} in\n{config}"
        );
    }
    let replayed = folder.run(&[
        "replay",
        "--config",
        "limits.toml",
        "--local",
        "192.0.2.1",
        "--json",
        "day.pcap",
    ]);
    let replayed: Value = serde_json::from_slice(&replayed.stdout).unwrap();
    let limits = replayed["configs"][0]["limits"].as_array().unwrap();
    assert_eq!(limits.len(), config.matches("Replayed: ").count());
    for (limit, part) in limits
        .iter()
        .zip(unbroken(&config).split("Replayed: ").skip(1))
    {
        let count = |what: &str| limit[what]["packets"].as_u64().unwrap();
        let refused = count("would_throttle") + count("throttled");
        let said = format!(
            "it refuses {} of {} packets",
            config::human::number(refused),
            config::human::number(count("passed") + count("throttled"))
        );
        assert!(part.starts_with(&said), "{said}: {part}");
    }
    let json = folder.run(&[
        "suggest",
        "--interface",
        "eth7",
        "--local",
        "192.0.2.1",
        "--json",
        "day.pcap",
    ]);
    let document: Value = serde_json::from_slice(&json.stdout).unwrap();
    assert_eq!(document["config"].as_str().unwrap(), config);
    for limit in document["limits"].as_array().unwrap() {
        assert!(
            config.contains(&format!("name = {}", limit["name"])),
            "{limit}"
        );
        assert!(
            config.contains(&format!(
                "rate = {}\nburst = {}",
                limit["rate"], limit["burst"]
            )),
            "{limit}"
        );
        assert!(
            limit["basis"]["sources"].as_u64().unwrap() >= 100,
            "{limit}"
        );
        assert_eq!(limit["basis"]["quantile"], 0.99);
        assert!(limit["basis"]["value"].as_u64().is_some(), "{limit}");
    }
}

#[test]
fn a_page_has_each_limit_among_the_sources_and_over_time_and_the_text_stays() {
    let folder = Folder::new();
    folder.capture("day.pcap", small(&mut Random::new(7)));
    let run = |html: &[&str]| {
        let output = folder.run(
            &[
                &[
                    "suggest",
                    "--interface",
                    "eth7",
                    "--local",
                    "192.0.2.1",
                    "day.pcap",
                ],
                html,
            ]
            .concat(),
        );
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        text(&output.stdout)
    };
    let config = run(&[]);
    assert_eq!(run(&["--html", "page.html"]), config);
    let page = std::fs::read_to_string(folder.path("page.html")).unwrap();
    let limits = config.matches("[[limit]]").count();
    // 15 minutes have three of the windows.
    assert_eq!(
        page.matches("<line class=\"limit\"").count(),
        3 * limits,
        "{page}"
    );
    assert_eq!(
        page.matches("packets over time, in steps of 2 s</figcaption>")
            .count(),
        limits,
        "{page}"
    );
    let escaped = config
        .replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('>', "&gt;")
        .replace('"', "&quot;");
    assert!(
        page.contains(&escaped) && page.len() < 300_000,
        "{} bytes: {page}",
        page.len()
    );
    assert_eq!(run(&["--html", "-"]), page);
    // Without limits, the page has the reason.
    folder.capture("none.pcap", Mixture::default());
    let output = folder.run(&["suggest", "--html", "page.html", "none.pcap"]);
    assert_eq!(output.status.code(), Some(1));
    let page = std::fs::read_to_string(folder.path("page.html")).unwrap();
    assert!(
        page.contains("role=\"alert\">no incoming packets") && !page.contains("class=\"limit\""),
        "{page}"
    );
}

/// A recording of the packets of a capture, as the kernel programs count them: by source, service and part.
fn record(folder: &Folder, capture: &Path) -> PathBuf {
    let mut counted: BTreeMap<(u32, u16, u16, u64, u64), Recorded> = BTreeMap::new();
    read(
        &[capture.to_owned()],
        InterfaceNames::default(),
        |_| {},
        |outcome, packet| {
            let (now, _) = outcome.place(packet, &Local::default());
            let is_cut = Cell::new(false);
            let frame = CapturedFrame::new(packet, &is_cut);
            let parsed = parse(&frame, packet.link, Depth::Requests).unwrap();
            let Some(key) = RecordKey::of(&parsed, now) else {
                return;
            };
            let one = Recorded::of(
                Size {
                    packets: 1,
                    bytes: packet.length,
                },
                parsed.kind,
            );
            let sum = counted
                .entry((key.part, key.protocol, key.local_port, key.hi, key.lo))
                .or_default();
            *sum = sum.plus(one);
        },
    );
    let mut collector = Collector::default();
    for ((part, protocol, port, hi, lo), counted) in counted {
        let protocol = [Transport::Tcp, Transport::Udp, Transport::Icmp][usize::from(protocol)];
        let port = Some(port).filter(|port| *port != 0);
        collector.add_counted(
            u64::from(part) * PART,
            protocol,
            port,
            Address { hi, lo },
            &counted,
        );
    }
    let file = RecordFile {
        is_ended: true,
        gaps: vec![RecordGap {
            from: 5.0,
            to: 65.0,
        }],
        sampled_seconds: 30.0,
        least_sample: 8,
        collected: collector.save(),
        ..RecordFile::new(1.0, Duration::from_secs(900), vec!["eth7".to_owned()])
    };
    let directory = StateDirectory::at(&folder.path("state"));
    file.write(&directory).unwrap();
    RecordFile::path(&directory)
}

#[test]
fn limits_from_a_recording_are_those_from_the_capture() {
    let folder = Folder::new();
    let capture = folder.capture("day.pcap", small(&mut Random::new(10)));
    let recording = record(&folder, &capture);
    let recording = recording.to_str().unwrap();
    let limits = |arguments: &[&str]| {
        let output = folder.run(&[&["suggest", "--json"], arguments].concat());
        assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let of = |limit: &Value| {
            (
                limit["name"].clone(),
                limit["rate"].clone(),
                limit["burst"].clone(),
            )
        };
        (
            report["limits"]
                .as_array()
                .unwrap()
                .iter()
                .map(of)
                .collect::<Vec<_>>(),
            report,
        )
    };
    let (of_capture, _) = limits(&["--local", "192.0.2.1", "day.pcap"]);
    let (of_recording, report) = limits(&["--from", recording]);
    assert!(of_capture.len() >= 3, "{of_capture:?}");
    assert_eq!(of_recording, of_capture);
    assert_eq!(report["captures"][0]["format"], "recording");
    // A recording is found by its content, too, and the config says what it lacks.
    let output = folder.run(&["suggest", "--html", "page.html", recording]);
    let config = text(&output.stdout);
    assert!(output.status.success(), "{}", text(&output.stderr));
    for words in [
        "interfaces = [\"eth7\"]",
        "Not replayed: a recording has",
        "1 gaps of 1 min",
        "at least one in 8",
    ] {
        assert!(
            config.replace("\n# ", " ").contains(words),
            "{words}: {config}"
        );
    }
    let parsed = config::parse(Path::new("limits.toml"), &config)
        .unwrap_or_else(|report| panic!("{report}"));
    assert_eq!(parsed.config.limits.len(), of_capture.len());
    assert!(
        std::fs::read_to_string(folder.path("page.html"))
            .unwrap()
            .contains("recording")
    );
    for arguments in [
        &["suggest", recording, "day.pcap"][..],
        &["suggest", "--from", recording, "--local", "192.0.2.1"],
    ] {
        let output = folder.run(arguments);
        assert_eq!(
            output.status.code(),
            Some(2),
            "{arguments:?}: {}",
            text(&output.stderr)
        );
    }
    // A capture may be named likewise.
    let (from, _) = limits(&["--local", "192.0.2.1", "--from", "day.pcap"]);
    assert_eq!(from, of_capture);
}

#[test]
fn a_pipe_is_read_once_and_the_config_says_so() {
    let folder = Folder::new();
    let capture = folder.capture("day.pcap", small(&mut Random::new(8)));
    let child = folder
        .command(&["suggest", "-"])
        .stdin(Stdio::from(std::fs::File::open(capture).unwrap()))
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let config = text(&output.stdout);
    assert!(
        config.contains("Not replayed") && !config.contains("Replayed:"),
        "{config}"
    );
    // Nothing tells its direction or its interface: both are said.
    assert!(
        text(&output.stderr).contains("--local PREFIX"),
        "{}",
        text(&output.stderr)
    );
    assert!(
        config.contains("interfaces = [\"eth0\"]   # nothing names it"),
        "{config}"
    );
}

#[test]
fn too_little_data_is_refused_and_the_error_says_how_much_is_needed() {
    let folder = Folder::new();
    let random = &mut Random::new(9);
    folder.capture("none.pcap", Mixture::default());
    let mut minute = small(random);
    minute.events.retain(|event| event.at < 60_000_000);
    folder.capture("minute.pcap", minute);
    folder.capture("one.pcap", Mixture::default().crawlers(random, &[1.0]));
    folder.capture(
        "attack.pcap",
        Mixture::default().syn_flood(random, 150, (0.3, 0.5), 0.0, SPAN),
    );
    std::fs::write(folder.path("empty.pcap"), b"").unwrap();
    for (capture, words) in [
        ("none.pcap", "no incoming packets"),
        ("minute.pcap", "at least 10 min required"),
        (
            "one.pcap",
            "TCP port 443, packets: 1 of at least 100 sources",
        ),
        (
            "attack.pcap",
            "150 more only open connections and are not counted",
        ),
        ("empty.pcap", "empty: it has no bytes"),
        ("missing.pcap", "No such file"),
    ] {
        let output = folder.run(&["suggest", capture]);
        let said = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{capture}: {said}");
        assert!(said.contains(words), "{capture}: {said}");
        assert!(
            output.stdout.is_empty() && !said.contains("panicked"),
            "{capture}: {said}"
        );
        let output = folder.run(&["suggest", "--json", capture]);
        let document: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert!(
            document["config"].is_null() && document["error"].is_string(),
            "{document}"
        );
    }
    let output = folder.run(&["suggest"]);
    assert_eq!(output.status.code(), Some(2));
}

#[test]
fn a_capture_of_both_directions_requires_the_hosts_address() {
    let folder = Folder::new();
    let capture = folder.capture("day.pcap", small(&mut Random::new(11)));
    let mut bytes = std::fs::read(&capture).unwrap();
    // Every other packet goes the other way: source and destination change places.
    let (mut at, mut nth) = (24, 0);
    while at < bytes.len() {
        let captured = u32::from_le_bytes(bytes[at + 8..at + 12].try_into().unwrap()) as usize;
        let frame = &mut bytes[at + 16..at + 16 + captured];
        if nth % 2 == 1 {
            frame[26..34].rotate_left(4);
            frame[34..38].rotate_left(2);
        }
        (at, nth) = (at + 16 + captured, nth + 1);
    }
    std::fs::write(&capture, bytes).unwrap();
    let output = folder.run(&["suggest", "day.pcap"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("--local 192.0.2.1"),
        "{}",
        text(&output.stderr)
    );
    let output = folder.run(&["suggest", "--local", "192.0.2.1", "day.pcap"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

#[test]
fn of_a_truncated_capture_the_part_that_can_be_read_is_used_and_the_error_reported() {
    let folder = Folder::new();
    let capture = folder.capture("day.pcap", small(&mut Random::new(10)));
    let bytes = std::fs::read(&capture).unwrap();
    std::fs::write(folder.path("cut.pcap"), &bytes[..bytes.len() - 7]).unwrap();
    let output = folder.run(&["suggest", "cut.pcap"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(
        text(&output.stderr).contains("truncated within the record"),
        "{}",
        text(&output.stderr)
    );
    assert!(text(&output.stdout).contains("[[limit]]"));
}
