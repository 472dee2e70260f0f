//! `weir replay` as a user meets it: captures of known traffic, what is printed, and what is wrong. Needs no root.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use common::packet::build::Frame;
use nix::sys::stat::Mode;
use serde_json::Value;
use tempfile::TempDir;
use testbed::mmdb::{Mmdb, asn};
use testbed::process::memory;

const START: u64 = 1_700_000_000;
const HOST: [u8; 4] = [192, 0, 2, 1];

/// A folder with a config and captures.
struct Folder(TempDir);

/// Ten packets a second for each source, and a class with three times as much.
const LIMITS: &str = "[agent]\ninterfaces = [\"lo\"]\n\
    [[class]]\nname = \"payer\"\nsources = [\"10.0.1.0/24\"]\nmultiplier = 3\n\
    [[limit]]\nname = \"packets\"\nrate = \"10/s\"\nburst = 10\n\
    [[limit]]\nname = \"replies\"\ndirection = \"egress\"\nrate = \"5/s\"\nburst = 5\n";

impl Folder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().unwrap());
        folder.write("limits.toml", LIMITS.as_bytes());
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_agent"));
        command
            .current_dir(self.0.path())
            .env_remove("WEIR_CONFIG")
            .env_remove("WEIR_CONTROL");
        command
            .args(["replay", "--config", "limits.toml"])
            .args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// The document, and the exit status.
    fn report(&self, arguments: &[&str]) -> (Value, i32) {
        let output = self.run(&[arguments, &["--json"]].concat());
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        let report = serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|error| panic!("{error}: {said}"));
        (report, output.status.code().unwrap())
    }
}

/// A pcap of packets: milliseconds after the start, and the frame.
fn pcap(packets: &[(u64, Vec<u8>)]) -> Vec<u8> {
    let mut bytes: Vec<u8> = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 262_144, 1]
        .iter()
        .flat_map(|word| word.to_le_bytes())
        .collect();
    for (milliseconds, frame) in packets {
        let (seconds, fraction) = (START + milliseconds / 1_000, milliseconds % 1_000 * 1_000);
        for word in [
            seconds as u32,
            fraction as u32,
            frame.len() as u32,
            frame.len() as u32,
        ] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(frame);
    }
    bytes
}

fn udp(from: [u8; 4], to: [u8; 4]) -> Vec<u8> {
    Frame::ethernet()
        .ipv4(from, to)
        .udp(4_000, 53, &[7; 18])
        .build()
}

/// Ten seconds: one source at 5/s, one at 100/s, a payer at 100/s.
fn traffic() -> Vec<(u64, Vec<u8>)> {
    (0..1_000u64)
        .flat_map(|nth| {
            let at = nth * 10;
            let polite = (nth % 20 == 0).then(|| (at, udp([10, 0, 0, 1], HOST)));
            polite.into_iter().chain([
                (at, udp([10, 0, 0, 2], HOST)),
                (at, udp([10, 0, 1, 1], HOST)),
            ])
        })
        .collect()
}

fn limit<'r>(report: &'r Value, name: &str) -> &'r Value {
    let limits = report["configs"][0]["limits"].as_array().unwrap();
    limits.iter().find(|limit| limit["name"] == name).unwrap()
}

#[test]
fn a_class_of_a_network_has_its_prefixes_and_a_bad_database_is_an_error() {
    let folder = Folder::new();
    folder.write("day.pcap", &pcap(&traffic()));
    let database = folder.path("asn.mmdb");
    let text = LIMITS.replace("sources = [\"10.0.1.0/24\"]", "asn = [64500]");
    folder.write(
        "limits.toml",
        format!("[geo]\nasn = {database:?}\n{text}").as_bytes(),
    );
    let output = folder.run(&["day.pcap"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(
        said.contains("[geo] asn: reading ")
            && said.contains("put a database in MaxMind's format there"),
        "{said}"
    );
    folder.write(
        "asn.mmdb",
        &Mmdb::new(4, 28).with("10.0.1.0/24", asn(64500)).bytes(),
    );
    let (report, status) = folder.report(&["day.pcap"]);
    assert_eq!(status, 0, "{report}");
    let classes = limit(&report, "packets")["classes"]
        .as_array()
        .unwrap()
        .clone();
    let passed = |class: &str| {
        classes.iter().find(|row| row["class"] == class).unwrap()["passed"]["packets"].as_u64()
    };
    assert_eq!(
        (passed("default"), passed("payer")),
        (Some(50 + 109), Some(329))
    );
}

#[test]
fn each_limit_class_and_source_has_what_the_definition_allows() {
    let folder = Folder::new();
    folder.write("day.pcap", &pcap(&traffic()));
    let (report, status) = folder.report(&["day.pcap"]);
    assert_eq!(status, 0, "{report}");
    assert_eq!(report["packets"], 2_050);
    assert_eq!(report["from"].as_f64(), Some(START as f64));
    assert!((report["seconds"].as_f64().unwrap() - 9.99).abs() < 1e-6);
    let packets = limit(&report, "packets");
    // A burst of ten, and ten a second for 9.99 s: 109. The payer has a burst of thirty and thirty a second: 329.
    let passed = |class: &str| {
        let classes = packets["classes"].as_array().unwrap();
        classes.iter().find(|row| row["class"] == class).unwrap()["passed"]["packets"]
            .as_u64()
            .unwrap()
    };
    assert_eq!((passed("default"), passed("payer")), (50 + 109, 329));
    assert_eq!(packets["passed"]["packets"], 50 + 109 + 329);
    assert_eq!(packets["throttled"]["packets"], 1_000 - 109 + 1_000 - 329);
    let timeline = &packets["timeline"];
    assert_eq!(timeline["step_seconds"], 1);
    let sum = |what: &str| {
        timeline[what]
            .as_array()
            .unwrap()
            .iter()
            .map(|step| step.as_u64().unwrap())
            .sum::<u64>()
    };
    assert_eq!((sum("passed"), sum("throttled")), (488, 1_562));
    let sources = report["configs"][0]["sources"].as_array().unwrap();
    let refused: Vec<_> = sources
        .iter()
        .map(|row| {
            (
                row["source"].as_str().unwrap(),
                row["throttled_packets"].as_u64().unwrap(),
            )
        })
        .collect();
    assert_eq!(refused, [("10.0.0.2", 891), ("10.0.1.1", 671)]);
    assert_eq!(sources[0]["peak_per_second"], 90);
    assert_eq!(report["configs"][0]["sources_error"], 0);

    let output = folder.run(&["day.pcap"]);
    let text = String::from_utf8(output.stdout).unwrap();
    for words in [
        "2,050 packets from 2023-11-14T22:13:20Z in 10 s",
        "class payer",
        "10.0.0.2",
        "76.20 %",
        "--local PREFIX",
    ] {
        assert!(text.contains(words), "no {words:?} in\n{text}");
    }
}

#[test]
fn directions_come_from_the_addresses() {
    let folder = Folder::new();
    let both: Vec<_> = (0..100)
        .flat_map(|nth| {
            [
                (nth, udp([10, 0, 0, 9], HOST)),
                (nth, udp(HOST, [10, 0, 0, 9])),
            ]
        })
        .collect();
    folder.write("both.pcap", &pcap(&both));
    let (report, _) = folder.report(&["both.pcap", "--local", "192.0.2.0/24"]);
    let config = &report["configs"][0];
    assert_eq!(
        (&config["ingress_packets"], &config["egress_packets"]),
        (&100.into(), &100.into())
    );
    assert_eq!(report["undirected_packets"], 0);
    assert_eq!(limit(&report, "packets")["passed"]["packets"], 10);
    assert_eq!(limit(&report, "replies")["passed"]["packets"], 5);
    assert!(report["notes"].as_array().unwrap().is_empty(), "{report}");
    let (report, _) = folder.report(&["both.pcap"]);
    assert_eq!(report["undirected_packets"], 200);
    assert_eq!(report["configs"][0]["egress_packets"], 0);
    let output = folder.run(&["both.pcap", "--local", "300.0.0.0/8"]);
    assert_eq!(output.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&output.stderr).contains("neither an address nor a prefix"));
}

#[test]
fn a_fair_limit_refuses_only_what_exceeds_at_most() {
    let folder = Folder::new();
    let one = |milliseconds: u64| (milliseconds, udp([10, 0, 0, 1], HOST));
    folder.write("a.pcap", &pcap(&(0..100).map(one).collect::<Vec<_>>()));
    for (fair, refused, note) in [
        (
            "",
            0,
            "1 fair limit evaluated as while the host keeps up, refusing nothing",
        ),
        (
            "fair = { at_most = \"10/s\" }\n",
            90,
            "1 fair limit with at_most evaluated as while the host keeps up, refusing only what",
        ),
    ] {
        let limits = format!(
            "[agent]\ninterfaces = [\"lo\"]\n[[limit]]\nname = \"a\"\nrate = \"fair\"\n{fair}"
        );
        folder.write("limits.toml", limits.as_bytes());
        let (report, status) = folder.report(&["--local", "192.0.2.0/24", "a.pcap"]);
        assert_eq!(status, 0, "{report}");
        let limit = limit(&report, "a");
        assert_eq!(limit["passed"]["packets"], 100 - refused, "{report}");
        assert_eq!(limit["throttled"]["packets"], refused, "{report}");
        assert!(report["notes"].to_string().contains(note), "{report}");
    }
}

#[test]
fn two_configs_are_compared_packet_by_packet() {
    let folder = Folder::new();
    folder.write("day.pcap", &pcap(&traffic()));
    folder.write(
        "next.toml",
        LIMITS
            .replace("rate = \"10/s\"\nburst = 10", "rate = \"20/s\"\nburst = 20")
            .as_bytes(),
    );
    let (report, status) = folder.report(&["day.pcap", "--compare", "next.toml"]);
    assert_eq!(status, 0);
    let comparison = &report["comparison"];
    let of = |field: &str| comparison[field].as_u64().unwrap();
    let sum =
        of("both_pass") + of("both_refuse") + of("only_first_refuses") + of("only_second_refuses");
    assert_eq!(sum, 2_050);
    // 219 instead of 109, and 659 instead of 329.
    assert_eq!(
        (of("only_first_refuses"), of("only_second_refuses")),
        (110 + 330, 0)
    );
    assert_eq!(comparison["first_sources"][0]["source"], "10.0.1.1");
    assert_eq!(report["configs"].as_array().unwrap().len(), 2);
    let text =
        String::from_utf8(folder.run(&["day.pcap", "--compare", "next.toml"]).stdout).unwrap();
    for words in ["only limits.toml refuses", "-440", "limit: refused by"] {
        assert!(text.contains(words), "no {words:?} in\n{text}");
    }
    // A config against itself.
    let (report, _) = folder.report(&["day.pcap", "--compare", "limits.toml"]);
    assert_eq!(report["comparison"]["only_first_refuses"], 0);
    assert_eq!(report["comparison"]["only_second_refuses"], 0);
}

#[test]
fn captures_are_merged_by_time_and_standard_input_and_pipes_are_read() {
    let folder = Folder::new();
    let packets = traffic();
    folder.write("whole.pcap", &pcap(&packets));
    let part = |rest: usize| {
        let part: Vec<_> = packets
            .iter()
            .enumerate()
            .filter(|(nth, _)| nth % 2 == rest)
            .map(|(_, packet)| packet.clone())
            .collect();
        pcap(&part)
    };
    let (one, other) = (part(0), part(1));
    folder.write(
        "other.pcap.zst",
        &zstd::encode_all(other.as_slice(), 1).unwrap(),
    );
    let (whole, _) = folder.report(&["whole.pcap"]);
    let same = |report: &Value| {
        assert_eq!(report["configs"], whole["configs"]);
        assert_eq!(report["clock"]["reordered"], 0);
    };
    let mut child = folder
        .command(&["other.pcap.zst", "-", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    input.write_all(&one).unwrap();
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    same(&serde_json::from_slice(&output.stdout).unwrap());

    let pipe = folder.path("pipe");
    nix::unistd::mkfifo(&pipe, Mode::from_bits_truncate(0o600)).unwrap();
    let writer = std::thread::spawn(move || std::fs::write(pipe, one).unwrap());
    let (report, status) = folder.report(&["pipe", "other.pcap.zst"]);
    writer.join().unwrap();
    assert_eq!(status, 0);
    same(&report);
}

#[test]
fn an_unreadable_capture_is_an_error_and_others_are_reported() {
    let folder = Folder::new();
    let bytes = pcap(&traffic());
    folder.write("whole.pcap", &bytes);
    folder.write("cut.pcap", &bytes[..bytes.len() / 2]);
    folder.write("empty.pcap", b"");
    folder.write(
        "text.pcap",
        b"tcpdump: listening on eth0, and no capture at all",
    );
    let (report, status) = folder.report(&[
        "whole.pcap",
        "empty.pcap",
        "cut.pcap",
        "missing.pcap",
        "text.pcap",
        ".",
    ]);
    assert_eq!(status, 1);
    let captures = report["captures"].as_array().unwrap();
    let error = |nth: usize| captures[nth]["error"].as_str().unwrap_or("").to_owned();
    assert_eq!(error(0), "");
    for (nth, words) in [
        (1, "empty"),
        (2, "truncated within the record at byte"),
        (3, "No such file"),
        (4, "neither pcap nor pcapng"),
        (5, "Is a directory"),
    ] {
        assert!(error(nth).contains(words), "{}", error(nth));
    }
    assert!(captures[2]["packets"].as_u64().unwrap() > 1_000);
    assert_eq!(
        report["packets"],
        2_050 + captures[2]["packets"].as_u64().unwrap()
    );
    // Each on standard error, once.
    let said = String::from_utf8(folder.run(&["empty.pcap", "text.pcap"]).stderr).unwrap();
    assert_eq!(said.matches("error: ").count(), 2, "{said}");
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn wrong_usage_and_configs_end_with_2() {
    let folder = Folder::new();
    folder.write("whole.pcap", &pcap(&traffic()));
    folder.write("bad.toml", b"[[limit]]\nname = \"a\"\nrate = 7\n");
    folder.write("none.toml", b"[agent]\nallow_empty = true\n");
    for (arguments, words) in [
        (&["whole.pcap", "--compare", "bad.toml"][..], "rate"),
        (
            &["whole.pcap", "--compare", "none.toml"],
            "nothing to replay",
        ),
        (&["whole.pcap", "--compare", "missing.toml"], "missing.toml"),
        (&[], "CAPTURE"),
    ] {
        let output = folder.run(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {said}");
        assert!(said.contains(words), "{arguments:?}: {said}");
        assert!(output.stdout.is_empty());
    }
}

#[test]
fn truncated_packets_are_distinguished_from_malformed_ones() {
    let folder = Folder::new();
    let limits = LIMITS.replace(
        "burst = 10\n",
        "burst = 10\nports = [53]\nprotocol = \"udp\"\n",
    );
    folder.write("limits.toml", limits.as_bytes());
    // The first is cut by the capture within its ports, the second on the wire.
    let frame = udp([10, 0, 0, 1], HOST);
    let short = &frame[..35];
    let mut bytes = pcap(&[(0, frame.clone())]);
    for length in [frame.len(), short.len()] {
        for word in [START as u32, 0, short.len() as u32, length as u32] {
            bytes.extend(word.to_le_bytes());
        }
        bytes.extend(short);
    }
    folder.write("cut.pcap", &bytes);
    let (report, status) = folder.report(&["cut.pcap", "--local", "192.0.2.1"]);
    assert_eq!(status, 0);
    let config = &report["configs"][0];
    assert_eq!(config["unknown_packets"], 1);
    assert_eq!(config["bypass"]["malformed"], 1);
    assert_eq!(limit(&report, "packets")["passed"]["packets"], 1);
    let note = report["notes"][0].as_str().unwrap();
    assert!(
        note.starts_with("1 packet not evaluated") && note.contains("tcpdump -s 128"),
        "{report}"
    );
}

#[test]
fn memory_is_that_of_max_sources_and_not_of_the_capture() {
    let folder = Folder::new();
    folder.write(
        "limits.toml",
        LIMITS
            .replace("[agent]\n", "[agent]\nmax_sources = 10_000\n")
            .as_bytes(),
    );
    let mut child = folder
        .command(&["-", "--json"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut input = child.stdin.take().unwrap();
    let process = child.id();
    // The most that has been resident since the program began.
    let resident = || memory(process, "VmHWM");
    // Every packet is of another source, and comes more often than its burst allows.
    let mut send = |from: u32, to: u32| {
        for chunk in (from..to).collect::<Vec<_>>().chunks(1_000) {
            let packets: Vec<_> = chunk
                .iter()
                .flat_map(|nth| {
                    let at = u64::from(nth / 1_000);
                    let frame = udp((0x0a00_0000 + nth).to_be_bytes(), HOST);
                    std::iter::repeat_n((at, frame), 12)
                })
                .collect();
            let bytes = pcap(&packets);
            input
                .write_all(if chunk[0] == 0 { &bytes } else { &bytes[24..] })
                .unwrap();
        }
    };
    send(0, 20_000);
    let small = resident();
    send(20_000, 150_000);
    let large = resident();
    drop(input);
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["packets"], 150_000 * 12);
    assert!(
        report["configs"][0]["sources_error"].as_u64().unwrap() > 0,
        "more sources than are remembered"
    );
    assert!(
        large < small + (8 << 20),
        "{small} bytes after 20,000 sources, {large} after 150,000"
    );
}

/// A pcapng with an interface for each name, and packets: milliseconds, interface and frame.
fn pcapng(names: &[&str], packets: &[(u64, u32, Vec<u8>)]) -> Vec<u8> {
    let block = |kind: u32, mut body: Vec<u8>| {
        body.resize(body.len().next_multiple_of(4), 0);
        let length = (12 + body.len() as u32).to_le_bytes();
        [&kind.to_le_bytes()[..], &length, &body, &length].concat()
    };
    let words = |words: &[u32]| {
        words
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect::<Vec<u8>>()
    };
    let mut bytes = block(0x0a0d_0d0a, words(&[0x1a2b_3c4d, 1, u32::MAX, u32::MAX]));
    for name in names {
        // The link type, and the option `if_name`.
        let mut body = words(&[1, 262_144, 2 | (name.len() as u32) << 16]);
        body.extend(name.as_bytes());
        body.resize(body.len().next_multiple_of(4), 0);
        body.extend([0; 4]);
        bytes.extend(block(
            1,
            if name.is_empty() {
                words(&[1, 262_144])
            } else {
                body
            },
        ));
    }
    for (milliseconds, interface, frame) in packets {
        let time = (START * 1_000 + milliseconds) * 1_000;
        let mut body = words(&[
            *interface,
            (time >> 32) as u32,
            time as u32,
            frame.len() as u32,
            frame.len() as u32,
        ]);
        body.extend(frame);
        bytes.extend(block(6, body));
    }
    bytes
}

#[test]
fn limits_for_some_sources_and_interfaces_apply_as_in_the_kernel() {
    let folder = Folder::new();
    let table =
        |name: &str, rest: &str| format!("[[limit]]\nname = {name:?}\nrate = \"5/h\"\n{rest}\n");
    let text = "[agent]\ninterfaces = [\"eth0\", \"wg*\"]\n".to_owned()
        + &table("some", "sources = [\"10.0.0.0/24\", \"!10.0.0.2\"]")
        + &table("tunnels", "interfaces = [\"wg*\"]\nburst = 8")
        + &table("all", "burst = 50");
    folder.write("limits.toml", text.as_bytes());
    let packets: Vec<_> = (0..60)
        .map(|nth| {
            (
                nth,
                (nth % 3) as u32,
                udp([10, 0, 0, 1 + (nth / 3 % 2) as u8], HOST),
            )
        })
        .collect();
    folder.write("named.pcapng", &pcapng(&["eth0", "wg1", ""], &packets));
    let counts = |report: &Value| {
        ["some", "tunnels", "all"].map(|name| {
            let limit = limit(report, name);
            (
                limit["passed"]["packets"].as_u64().unwrap(),
                limit["throttled"]["packets"].as_u64().unwrap(),
            )
        })
    };
    let (report, status) = folder.report(&["named.pcapng"]);
    assert_eq!(status, 0, "{report}");
    // 30 of 10.0.0.1, of which 5 pass; of 10.0.0.2 on eth0 and the one without a name 20, and on wg1 8.
    let of_tunnels = counts(&report)[1];
    assert_eq!(
        (counts(&report)[0], counts(&report)[2]),
        ((5, 25), (33, 0)),
        "{report}"
    );
    assert_eq!(of_tunnels.1, 2, "{report}");
    let note = "20 packets evaluated without the limits that have interfaces: the capture does not name theirs; name it \
                with --interface NAME";
    assert!(
        report["notes"].as_array().unwrap().contains(&note.into()),
        "{report}"
    );
    // With a name for what has none.
    let (report, _) = folder.report(&["named.pcapng", "--interface", "wg7"]);
    assert_eq!(counts(&report)[1].1, 12, "{report}");
    assert!(
        !report["notes"].to_string().contains("--interface"),
        "{report}"
    );
    let frames: Vec<_> = packets
        .into_iter()
        .map(|(at, _, frame)| (at, frame))
        .collect();
    folder.write("plain.pcap", &pcap(&frames));
    let (report, _) = folder.report(&["plain.pcap", "--interface", "eth0"]);
    assert_eq!(counts(&report), [(5, 25), (0, 0), (35, 0)], "{report}");
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn a_page_has_the_report_and_the_text_stays() {
    let folder = Folder::new();
    folder.write("day.pcap", &pcap(&traffic()));
    let without = folder.run(&["day.pcap"]);
    let with = folder.run(&["day.pcap", "--html", "page.html"]);
    assert_eq!(
        (with.status.code(), text(&with.stdout)),
        (Some(0), text(&without.stdout))
    );
    let page = std::fs::read_to_string(folder.path("page.html")).unwrap();
    for part in [
        "<title>Replay of day.pcap</title>",
        "<figcaption>packets</figcaption>",
        "passed 488",
        "refused 1,562 (76.20 %)",
        "<td>10.0.1.1</td>",
        "multiplier = 3",
    ] {
        assert!(page.contains(part), "no {part:?} in {page}");
    }
    // Standard output has the page instead of the text.
    let printed = folder.run(&["day.pcap", "--html", "-"]);
    assert_eq!(
        (printed.status.code(), text(&printed.stdout)),
        (Some(0), page)
    );
    // A disk that is full at the end leaves the text.
    let full = folder.run(&["day.pcap", "--html", "/dev/full"]);
    assert_eq!(
        (full.status.code(), text(&full.stdout)),
        (Some(1), text(&without.stdout))
    );
    assert!(
        text(&full.stderr).contains("cannot write \"/dev/full\": No space left"),
        "{}",
        text(&full.stderr)
    );
    let names: Vec<_> = std::fs::read_dir(folder.0.path())
        .unwrap()
        .map(|entry| entry.unwrap().file_name())
        .collect();
    assert_eq!(names.len(), 3, "nothing else is left: {names:?}");
}

/// Names are not markup, and tables that a replay does not use are not shown.
#[test]
fn a_page_has_neither_markup_from_names_nor_secrets() {
    let folder = Folder::new();
    let limits = LIMITS.replace(
        "name = \"packets\"",
        "name = \"<script>alert(1)</script>\" # ]]> </pre><script>alert(2)</script>",
    );
    let secret = "[cluster]\nstore = \"redis://:classified@127.0.0.1\"\n";
    folder.write("limits.toml", format!("{secret}{limits}").as_bytes());
    folder.write("<img src=x onerror=alert(3)>.pcap", &pcap(&traffic()));
    let output = folder.run(&["<img src=x onerror=alert(3)>.pcap", "--html", "page.html"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let page = std::fs::read_to_string(folder.path("page.html")).unwrap();
    assert_eq!(
        (
            page.matches("<script>").count(),
            page.matches("<img").count()
        ),
        (1, 0),
        "{page}"
    );
    for part in [
        "&lt;script&gt;alert(1)",
        "]]&gt; &lt;/pre&gt;&lt;script&gt;alert(2)",
        "&lt;img src=x onerror=alert(3)&gt;.pcap",
    ] {
        assert!(page.contains(part), "no {part:?} in {page}");
    }
    assert!(
        !page.contains("classified") && !page.contains("redis://"),
        "{page}"
    );
}

/// The table has room for a thousand sources; all others are refused, each as a source of its own.
#[test]
fn the_page_of_a_million_sources_is_small() {
    let folder = Folder::new();
    let config = "[agent]\ninterfaces = [\"lo\"]\nmax_sources = 1000\n\
        [[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 1\non_full = \"throttle\"\n";
    folder.write("limits.toml", config.as_bytes());
    let packets: Vec<(u64, Vec<u8>)> = (0..1_000_000u32)
        .map(|nth| {
            (
                u64::from(nth) * 10,
                udp((0x0a00_0000 + nth).to_be_bytes(), HOST),
            )
        })
        .collect();
    folder.write("day.pcap", &pcap(&packets));
    let output = folder.run(&["day.pcap", "--html", "page.html"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let page = std::fs::read_to_string(folder.path("page.html")).unwrap();
    assert!(
        page.contains("<dt>packets</dt><dd>1,000,000</dd>"),
        "{}",
        &page[..20_000.min(page.len())]
    );
    println!("{} bytes", page.len());
    assert!(page.len() < 100_000, "{} bytes", page.len());
}
