//! Captures for `weir replay`: what they have of real packets, and how they end.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use aya::maps::{Array, Map, MapData};
use common::settings::Runtime;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use testbed::tests;
use testbed::trials::Test;
use weir::replay::capture::{Capture as CaptureFile, InterfaceNames};

use crate::support::{Agent, Network};
use crate::traffic::{burst, udp_from};

pub const TESTS: &[Test] = tests![
    a_replay_of_a_capture_has_the_agents_counts_by_native_xdp,
    a_replay_of_a_capture_has_the_agents_counts_by_traffic_control,
    only_refused_packets_are_captured_by_default,
    a_sample_has_all_packets_of_some_sources,
    a_capture_ends_by_its_size_and_by_its_time,
    a_killed_command_ends_its_capture_in_the_kernel,
    a_killed_agent_leaves_a_whole_file_and_the_next_captures_nothing,
    a_capture_goes_on_over_reloads,
    a_command_that_reads_nothing_loses_packets_and_reports_them,
    a_full_disk_is_reported_and_the_file_is_whole,
    a_capture_is_a_new_file_of_its_user_or_standard_output,
];

/// Passes ten packets of each source.
const TEN: &str = "[[limit]]\nname = \"packets\"\nrate = \"1/day\"\nburst = 10\n";
const WAIT: Duration = Duration::from_secs(60);

/// A running `weir record --capture`.
pub struct Capture {
    child: Child,
    pub file: PathBuf,
}

impl Capture {
    /// Returns once packets are captured.
    pub fn begin(network: &Network, arguments: &[&str]) -> Self {
        let file = network.folder.path().join("capture.pcapng");
        let _ = fs::remove_file(&file);
        let all = ["record", "--json", "--capture", file.to_str().unwrap()];
        let child = network.spawn(&[&all, arguments].concat(), |command| {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        });
        let mut capture = Self { child, file };
        wait_for("the file", || {
            let has_ended = capture.child.try_wait().unwrap().is_some();
            let metadata = capture.file.metadata();
            let is_captured = metadata.is_ok_and(|metadata| metadata.len() > 0);
            assert!(is_captured || !has_ended, "it ended");
            is_captured
        });
        capture
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Its output at its end.
    fn output(self) -> Output {
        self.child.wait_with_output().unwrap()
    }

    fn summary(self) -> Value {
        let output = self.output();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        serde_json::from_slice(&output.stdout).unwrap()
    }

    pub fn end(self) -> Value {
        self.signal(Signal::SIGINT);
        self.summary()
    }
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + WAIT;
    while !is_so() {
        assert!(Instant::now() < deadline, "no {what} in time");
        thread::sleep(Duration::from_millis(20));
    }
}

/// The settings that the kernel programs of this agent read.
pub fn runtimes(agent: &Agent<'_>) -> Vec<Runtime> {
    let files = fs::read_dir(format!("/proc/{}/fdinfo", agent.process())).unwrap();
    let texts = files.filter_map(|file| fs::read_to_string(file.unwrap().path()).ok());
    let numbers = texts.filter_map(|text| {
        text.lines()
            .find_map(|line| line.strip_prefix("map_id:")?.trim().parse().ok())
    });
    let maps = numbers.filter_map(|number| MapData::from_id(number).ok());
    let maps = maps.filter(|map| {
        map.info()
            .is_ok_and(|info| info.name_as_str() == Some("RUNTIME"))
    });
    let runtimes = maps.map(|map| {
        Array::<_, Runtime>::try_from(Map::Array(map))
            .unwrap()
            .get(&0, 0)
            .unwrap()
    });
    let runtimes: Vec<_> = runtimes.collect();
    assert!(!runtimes.is_empty(), "the agent has a map of settings");
    runtimes
}

fn is_capturing(agent: &Agent<'_>) -> bool {
    runtimes(agent)
        .iter()
        .any(|runtime| runtime.capture.until != 0)
}

fn replayed(config: &Path, file: &Path) -> Value {
    let mut command = Command::new(testbed::agent());
    let output = command
        .args(["replay", "--json", "--config"])
        .arg(config)
        .arg(file)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

/// The UDP packets in a file by the last byte of their source.
fn packets_by_source(file: &Path) -> BTreeMap<u8, u64> {
    let mut names = InterfaceNames::default();
    let mut capture = CaptureFile::open(file, &mut names).unwrap();
    let mut counts = BTreeMap::new();
    while capture.advance(&mut names).unwrap() {
        let frame = capture.packet().unwrap().frame;
        if frame[12..14] == [8, 0] && frame[23] == 17 {
            *counts.entry(frame[29]).or_default() += 1;
        }
    }
    counts
}

fn frames(sources: std::ops::Range<u8>) -> Vec<Vec<u8>> {
    sources.map(udp_from).collect()
}

fn same_counts(agent_config: &str) {
    let network = Network::new();
    let config = network.config(agent_config, TEN);
    let agent = network.start_file(&config, &[]);
    let capture = Capture::begin(&network, &["--of", "all"]);
    assert!(is_capturing(&agent));
    burst(&network, &frames(10..30), 20 * 17);
    burst(&network, &frames(40..45), 5 * 3);
    let file = capture.file.clone();
    let summary = capture.end();
    assert_eq!(
        (&summary["lost"], &summary["end"]),
        (&0.into(), &"client".into()),
        "{summary}"
    );
    assert!(!is_capturing(&agent));
    let (passed, refused) = agent.counts("packets");
    assert_eq!((passed, refused), (20 * 10 + 15, 20 * 7));
    let report = replayed(&config, &file);
    let limit = &report["configs"][0]["limits"][0];
    let counts = (&limit["passed"]["packets"], &limit["throttled"]["packets"]);
    assert_eq!(counts, (&passed.into(), &refused.into()), "{report:#}");
    assert_eq!(
        (&report["undirected_packets"], &report["packets"]),
        (&0.into(), &summary["packets"]),
        "{report:#}"
    );
    let origin = &report["captures"][0];
    assert_eq!(
        (&origin["one_in"], &origin["of"], &origin["lost"]),
        (&1.into(), &"all".into(), &0.into())
    );
    // Whole packets are shorter than what is captured of each.
    assert_eq!(
        limit["throttled"]["bytes"],
        refused * udp_from(10).len() as u64
    );
}

fn a_replay_of_a_capture_has_the_agents_counts_by_native_xdp() {
    same_counts("");
}

fn a_replay_of_a_capture_has_the_agents_counts_by_traffic_control() {
    same_counts("attach = \"tc\"");
}

fn only_refused_packets_are_captured_by_default() {
    let network = Network::new();
    let config = network.config("", TEN);
    let agent = network.start_file(&config, &[]);
    let capture = Capture::begin(&network, &[]);
    burst(&network, &frames(10..12), 2 * 25);
    let file = capture.file.clone();
    let summary = capture.end();
    assert_eq!(
        (&summary["packets"], agent.counts("packets").1),
        (&30.into(), 30),
        "{summary}"
    );
    assert_eq!(
        packets_by_source(&file),
        BTreeMap::from([(10, 15), (11, 15)])
    );
    let report = replayed(&config, &file);
    assert!(
        report["notes"].to_string().contains("only refused packets"),
        "{report:#}"
    );
    // Nothing is suggested without polite sources.
    let output = network.command(&["suggest", "--from", file.to_str().unwrap()]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(1) && said.contains("only refused packets"),
        "{said}"
    );
    // While nothing is refused, the operator is told.
    network.config("mode = \"observe\"", TEN);
    network.told(&["reload"]);
    let capture = Capture::begin(&network, &[]);
    burst(&network, &frames(10..12), 2 * 25);
    capture.signal(Signal::SIGTERM);
    let output = capture.output();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.success() && said.contains("--of all"),
        "{said}"
    );
    assert!(packets_by_source(&file).is_empty());
}

fn a_sample_has_all_packets_of_some_sources() {
    let network = Network::new();
    let config = network.config("", TEN);
    let _agent = network.start_file(&config, &[]);
    let capture = Capture::begin(&network, &["--of", "all", "--sample", "1/4"]);
    burst(&network, &frames(10..138), 128 * 20);
    let file = capture.file.clone();
    let summary = capture.end();
    assert_eq!(
        (&summary["lost"], &summary["one_in"]),
        (&0.into(), &4.into()),
        "{summary}"
    );
    let counts = packets_by_source(&file);
    assert!(counts.values().all(|count| *count == 20), "{counts:?}");
    // 128 sources: 32 and six standard deviations.
    assert!((3..=61).contains(&counts.len()), "{counts:?}");
    let report = replayed(&config, &file);
    assert!(
        report["notes"].to_string().contains("one in 4 sources"),
        "{report:#}"
    );
    let throttled = &report["configs"][0]["limits"][0]["throttled"]["packets"];
    assert_eq!(
        *throttled,
        counts.len() * 10,
        "the rates of its sources are whole"
    );
}

fn a_capture_ends_by_its_size_and_by_its_time() {
    let network = Network::new();
    let config = network.config("", TEN);
    let agent = network.start_file(&config, &[]);
    let capture = Capture::begin(&network, &["--max-size", "8KiB"]);
    burst(&network, &frames(10..11), 1_000);
    let file = capture.file.clone();
    let summary = capture.summary();
    assert_eq!(summary["end"], "size", "{summary}");
    let length = file.metadata().unwrap().len();
    // A block is at most 256 bytes long, and there is room for one more.
    assert!(
        (8_192 - 512..=8_192).contains(&length) && summary["bytes"] == length,
        "{length}: {summary}"
    );
    assert_eq!(replayed(&config, &file)["packets"], summary["packets"]);
    wait_for("end in the kernel", || !is_capturing(&agent));

    let began = Instant::now();
    let capture = Capture::begin(&network, &["--for", "2s"]);
    let summary = capture.summary();
    assert_eq!(summary["end"], "time", "{summary}");
    assert!(began.elapsed() >= Duration::from_secs(2));
    wait_for("end in the kernel", || !is_capturing(&agent));
}

/// The rings of this size that an agent has.
pub fn rings(agent: &Agent<'_>, bytes: u32) -> usize {
    const RINGBUF: &str = "map_type:\t27\n";
    let bytes = format!("max_entries:\t{bytes}\n");
    fs::read_dir(format!("/proc/{}/fdinfo", agent.process()))
        .unwrap()
        .filter_map(|file| fs::read_to_string(file.unwrap().path()).ok())
        .filter(|text| text.contains(RINGBUF) && text.contains(&bytes))
        .count()
}

fn a_killed_command_ends_its_capture_in_the_kernel() {
    let network = Network::new();
    let config = network.config("", TEN);
    let agent = network.start_file(&config, &[]);
    let capture = Capture::begin(&network, &[]);
    burst(&network, &frames(10..11), 30);
    wait_for("packets in the file", || {
        packets_by_source(&capture.file).get(&10) == Some(&20)
    });
    let file = capture.file.clone();
    assert!(rings(&agent, 256 << 10) > 0);
    capture.signal(Signal::SIGKILL);
    capture.output();
    wait_for("end in the kernel", || !is_capturing(&agent));
    assert_eq!(replayed(&config, &file)["packets"], 20);
    wait_for("the rings to be released", || rings(&agent, 256 << 10) == 0);
    assert_eq!(Capture::begin(&network, &[]).end()["packets"], 0);
}

fn a_killed_agent_leaves_a_whole_file_and_the_next_captures_nothing() {
    let network = Network::new();
    let config = network.config("", TEN);
    let agent = network.start_file(&config, &[]);
    let capture = Capture::begin(&network, &[]);
    burst(&network, &frames(10..11), 30);
    wait_for("packets in the file", || {
        packets_by_source(&capture.file).get(&10) == Some(&20)
    });
    agent.stop(Signal::SIGKILL);
    let file = capture.file.clone();
    let output = capture.output();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(1) && said.contains("complete until then"),
        "{said}"
    );
    assert_eq!(replayed(&config, &file)["packets"], 20);
    // The programs stay, with rings that nobody reads.
    burst(&network, &frames(10..11), 30);
    let agent = network.start_file(&config, &[]);
    assert!(!is_capturing(&agent));
    let capture = Capture::begin(&network, &[]);
    burst(&network, &frames(10..11), 5);
    assert_eq!(capture.end()["packets"], 5);
}

fn a_capture_goes_on_over_reloads() {
    let network = Network::new();
    let config = network.config("", TEN);
    let agent = network.start_file(&config, &[]);
    let capture = Capture::begin(&network, &["--of", "all", "--sample", "1/2"]);
    for round in 0..3 {
        burst(&network, &frames(10..60), 50 * 4);
        network.config("", &TEN.replace("1/day", &format!("{}/day", round + 2)));
        network.told(&["reload"]);
    }
    burst(&network, &frames(10..60), 50 * 4);
    let file = capture.file.clone();
    let summary = capture.end();
    assert_eq!(summary["lost"], 0, "{summary}");
    let counts = packets_by_source(&file);
    assert!(
        !counts.is_empty() && counts.values().all(|count| *count == 16),
        "{counts:?}"
    );
    wait_for("end in the kernel", || !is_capturing(&agent));
}

fn a_command_that_reads_nothing_loses_packets_and_reports_them() {
    let network = Network::new();
    let config = network.config("", TEN);
    let agent = network.start_file(&config, &[]);
    let capture = Capture::begin(&network, &[]);
    capture.signal(Signal::SIGSTOP);
    // More than the agent keeps for it.
    let sent = 80_000;
    burst(&network, &frames(10..11), sent);
    assert_eq!(agent.json(&["status"])["mode"], "enforce");
    let refused = agent.counts("packets").1;
    assert_eq!(refused, sent as u64 - 10);
    capture.signal(Signal::SIGCONT);
    let file = capture.file.clone();
    let summary = capture.end();
    let [packets, lost] = ["packets", "lost"].map(|name| summary[name].as_u64().unwrap());
    assert!(
        lost > 0 && packets > 0 && packets + lost == refused,
        "{summary}"
    );
    let report = replayed(&config, &file);
    assert_eq!(
        (&report["packets"], &report["captures"][0]["lost"]),
        (&packets.into(), &lost.into())
    );
    assert!(
        report["notes"].to_string().contains("missing"),
        "{report:#}"
    );
}

fn a_full_disk_is_reported_and_the_file_is_whole() {
    let network = Network::new();
    let config = network.config("", TEN);
    let agent = network.start_file(&config, &[]);
    let file = network.folder.path().join("full.pcapng");
    let mut command = Command::new("sh");
    // Files of at most 8 blocks of 512 or 1,024 bytes.
    command.args([
        "-c",
        "trap '' XFSZ; ulimit -f 8; exec \"$@\"",
        "sh",
        testbed::agent().to_str().unwrap(),
        "record",
    ]);
    command
        .arg("--capture")
        .arg(&file)
        .arg("--control")
        .arg(network.control())
        .stdin(Stdio::null());
    let child = command
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_for("the file", || {
        file.metadata().is_ok_and(|metadata| metadata.len() > 0)
    });
    burst(&network, &frames(10..11), 1_000);
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(1) && said.contains("too large"),
        "{said}"
    );
    assert!(
        said.contains("complete until then") && said.contains("full.pcapng"),
        "{said}"
    );
    assert!(replayed(&config, &file)["packets"].as_u64() < Some(990));
    wait_for("end in the kernel", || !is_capturing(&agent));
    let output = network.command(&["record", "--capture", "/dev/full", "--force"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(
        output.status.code() == Some(1) && said.contains("No space left"),
        "{said}"
    );
}

fn a_capture_is_a_new_file_of_its_user_or_standard_output() {
    let network = Network::new();
    let config = network.config("", TEN);
    let agent = network.start_file(&config, &[]);
    let capture = Capture::begin(&network, &[]);
    let mode = capture.file.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let file = capture.file.to_str().unwrap().to_owned();
    let other = network.folder.path().join("other.pcapng");
    let refused = |arguments: &[&str], status: i32, words: &str| {
        let output = network.command(arguments);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(
            output.status.code() == Some(status) && said.contains(words),
            "{arguments:?}: {said}"
        );
    };
    refused(
        &["record", "--capture", other.to_str().unwrap()],
        1,
        "a capture is running",
    );
    assert!(!other.exists());
    capture.end();
    fs::write(&file, b"precious").unwrap();
    refused(&["record", "--capture", &file], 2, "--force");
    assert_eq!(fs::read(&file).unwrap(), b"precious");
    assert!(!is_capturing(&agent));
    let output = network.command(&["record", "--capture", &file, "--force", "--for", "1s"]);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(replayed(&config, Path::new(&file))["packets"], 0);
    // A link is replaced, and not followed.
    let target = network.folder.path().join("target");
    fs::write(&target, b"precious").unwrap();
    std::os::unix::fs::symlink(&target, &other).unwrap();
    let output = network.command(&[
        "record",
        "--capture",
        other.to_str().unwrap(),
        "--force",
        "--for",
        "1s",
    ]);
    assert!(output.status.success() && !other.is_symlink());
    assert_eq!(fs::read(&target).unwrap(), b"precious");

    // Into a replay.
    let mut child = network.spawn(&["record", "--capture", "-", "--for", "1h"], |command| {
        command.stdout(Stdio::piped());
    });
    let mut replay = Command::new(testbed::agent());
    replay
        .args(["replay", "--json", "--config"])
        .arg(&config)
        .arg("-")
        .stdin(child.stdout.take().unwrap());
    let replay = replay.stdout(Stdio::piped()).spawn().unwrap();
    wait_for("the capture", || is_capturing(&agent));
    burst(&network, &frames(10..11), 30);
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    let report: Value = serde_json::from_slice(&replay.wait_with_output().unwrap().stdout).unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(report["packets"], 20, "{report:#}");
}
