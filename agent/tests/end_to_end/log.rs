//! The agent's log: lines and levels.

use std::fs::File;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;
use std::process::{Child, Command};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testbed::tests;
use testbed::trials::Test;

use crate::heavy_prefixes::while_sending;
use crate::support::{Network, is_virtual};
use crate::traffic::udp_from;

pub const TESTS: &[Test] = tests![
    every_turn_of_the_agents_life_is_logged_at_its_level,
    an_attack_is_logged_when_it_begins_and_when_it_ends,
    the_log_level_leaves_out_what_matters_less,
    a_log_in_json_has_one_object_a_line_also_for_an_error_of_many_lines,
];

const LIMIT: &str = "[[limit]]\nname = \"packets\"\nrate = \"1000/s\"\n";

/// An agent whose standard error is a file, for the journal or not.
struct Logged<'n> {
    network: &'n Network,
    child: Child,
    file: PathBuf,
}

impl<'n> Logged<'n> {
    fn start(network: &'n Network, arguments: &[&str], is_journal: bool) -> Self {
        let file = network.folder.path().join("log");
        let stderr = File::create(&file).unwrap();
        let metadata = stderr.metadata().unwrap();
        let mut command = Command::new(std::env::var_os("WEIR_AGENT").unwrap());
        command
            .arg("--config")
            .arg(network.folder.path().join("limits.toml"))
            .args(arguments)
            .stderr(stderr);
        // As systemd names the stream; another one is not this file.
        let inode = metadata.ino() + u64::from(!is_journal);
        command.env("JOURNAL_STREAM", format!("{}:{inode}", metadata.dev()));
        let child = network.in_server(|| command.spawn()).unwrap();
        let logged = Self {
            network,
            child,
            file,
        };
        let deadline = Instant::now() + Duration::from_secs(300);
        while !network.command(&["status"]).status.success() {
            assert!(
                Instant::now() < deadline,
                "the agent did not answer in time: {}",
                logged.text()
            );
            thread::sleep(Duration::from_millis(20));
        }
        logged
    }

    fn text(&self) -> String {
        std::fs::read_to_string(&self.file).unwrap()
    }

    /// Waits until a line begins and goes on like this.
    #[track_caller]
    fn says(&self, start: &str, words: &[&str]) {
        let deadline = Instant::now() + Duration::from_secs(if is_virtual() { 300 } else { 60 });
        let is_said = || {
            let fits = |line: &str| {
                line.starts_with(start) && words.iter().all(|word| line.contains(word))
            };
            self.text().lines().any(fits)
        };
        while !is_said() {
            assert!(
                Instant::now() < deadline,
                "no line {start:?} with {words:?} in {}",
                self.text()
            );
            thread::sleep(Duration::from_millis(50));
        }
    }

    fn stop(mut self) -> String {
        kill(Pid::from_raw(self.child.id() as i32), Signal::SIGTERM).unwrap();
        assert!(self.child.wait().unwrap().success());
        self.text()
    }
}

impl Drop for Logged<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // So that what a failed test left is not taken for another agent's.
        let _ = self.network;
    }
}

fn every_turn_of_the_agents_life_is_logged_at_its_level() {
    let network = Network::new();
    let config = network.config("", LIMIT);
    let logged = Logged::start(&network, &[], true);
    logged.says(
        "<6>enforcing 1 limit on weir0 (native)",
        &["control socket"],
    );

    network.told(&["ban", "192.0.2.1", "192.0.2.0/28", "--for", "10m"]);
    logged.says(
        "<6>bans of 192.0.2.1, 192.0.2.0/28 ordered by root, for 10 min",
        &[],
    );
    network.told(&["unban", "192.0.2.1", "192.0.2.0/28"]);
    logged.says("<6>bans of 192.0.2.1, 192.0.2.0/28 lifted by root", &[]);
    network.told(&["ban", "192.0.2.9", "--for", "1s"]);
    logged.says("<6>ban of 192.0.2.9 expired", &[]);
    let list = network.folder.path().join("list");
    std::fs::write(
        &list,
        (0..200)
            .map(|nth| format!("198.51.100.{nth}\n"))
            .collect::<String>(),
    )
    .unwrap();
    network.told(&["ban", "--file", list.to_str().unwrap()]);
    logged.says(
        "<6>200 bans, of 198.51.100.0,",
        &["and 195 others ordered by root, until it is lifted"],
    );

    network.config("", &LIMIT.replace("1000", "500"));
    network.told(&["reload"]);
    logged.says("<6>reloaded", &["in ", "s: enforcing 1 limit on weir0"]);
    network.config("wrong = 1", LIMIT);
    assert!(!network.command(&["reload"]).status.success());
    logged.says("<3>", &["was not applied"]);
    logged.says("<3>", &["unknown key \"wrong\""]);
    let config = config.to_str().unwrap();
    network.config("mode = \"observe\"", LIMIT);
    network.told(&["try", config, "--for", "10m"]);
    logged.says(
        "<6>",
        &["is in effect, on trial: observing 1 limit on weir0"],
    );
    network.told(&["revert"]);
    logged.says("<6>the trial of", &["was reverted", "enforcing 1 limit"]);
    network.told(&["try", config, "--for", "1s"]);
    logged.says("<6>the trial of", &["was not confirmed: rolled back"]);
    network.told(&["try", config, "--for", "10m"]);
    network.told(&["confirm"]);
    logged.says("<6>", &["limits.toml is confirmed"]);

    network.remove_link(crate::support::INTERFACE);
    logged.says("<4>weir0 detached:", &[]);
    network.join();
    logged.says("<6>weir0 attached:", &[]);
    let text = logged.stop();
    assert!(text.lines().all(|line| line.starts_with('<')), "{text}");
    assert!(
        text.lines()
            .last()
            .is_some_and(|line| line.starts_with("<6>stopped; limits stay in effect")),
        "{text}"
    );
}

fn an_attack_is_logged_when_it_begins_and_when_it_ends() {
    let network = Network::new();
    network.config("", &LIMIT.replace("1000/s", "1/h"));
    let logged = Logged::start(&network, &[], false);
    while_sending(&network, &[udp_from(7), udp_from(7)], 2, || {
        logged.says(
            "warning: attack on limit \"packets\" began:",
            &["packets/s are refused"],
        );
    });
    logged.says(
        "attack on limit \"packets\" ended:",
        &["packets were refused in"],
    );
    let events = network.command(&["events", "--json"]);
    let events = String::from_utf8(events.stdout).unwrap();
    let is_about = |verdict: &str| {
        events
            .matches(&format!("\"verdict\":\"{verdict}\""))
            .count()
    };
    assert_eq!(
        (is_about("attack"), is_about("attack-ended")),
        (1, 1),
        "{events}"
    );
}

fn the_log_level_leaves_out_what_matters_less() {
    let network = Network::new();
    network.config("", LIMIT);
    let logged = Logged::start(&network, &["--log-level", "warn"], true);
    network.told(&["ban", "192.0.2.1"]);
    network.config("wrong = 1", LIMIT);
    assert!(!network.command(&["reload"]).status.success());
    logged.says("<3>", &["was not applied"]);
    let text = logged.stop();
    assert!(!text.contains("<6>"), "{text}");
    // An unknown level is wrong usage.
    assert_eq!(
        network
            .command(&["status", "--log-level", "loud"])
            .status
            .code(),
        Some(2)
    );
}

fn a_log_in_json_has_one_object_a_line_also_for_an_error_of_many_lines() {
    let network = Network::new();
    network.config("never_limit = [\"192.0.2.7\"]", LIMIT);
    // Not even the journal's priorities stand before an object.
    let logged = Logged::start(&network, &["--log-format", "json"], true);
    network.told(&["ban", "192.0.2.1", "--reason", "a \"quoted\" reason"]);
    network.config("wrong = 1", LIMIT);
    assert!(!network.command(&["reload"]).status.success());
    logged.says("{", &["\"level\":\"error\"", "unknown key \\\"wrong\\\""]);
    network.remove_link(crate::support::INTERFACE);
    logged.says(
        "{",
        &["\"fields\":{\"interface\":\"weir0\"}", "weir0 detached:"],
    );
    let text = logged.stop();
    let lines: Vec<serde_json::Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect();
    let start = std::time::SystemTime::now() - Duration::from_secs(3_600);
    for line in &lines {
        let keys: Vec<&String> = line.as_object().unwrap().keys().collect();
        assert_eq!(
            keys,
            ["fields", "level", "message", "target", "time"],
            "{line}"
        );
        assert!(
            ["error", "warn", "info"].contains(&line["level"].as_str().unwrap()),
            "{line}"
        );
        assert!(line["target"].as_str().unwrap().contains("::"), "{line}");
        assert!(
            line["fields"].is_object() && !line["message"].as_str().unwrap().is_empty(),
            "{line}"
        );
        assert!(
            humantime::parse_rfc3339(line["time"].as_str().unwrap()).unwrap() > start,
            "{line}"
        );
    }
    let has = |words: &str| {
        lines
            .iter()
            .any(|line| line["message"].as_str().unwrap().contains(words))
    };
    for words in [
        "enforcing 1 limit on weir0",
        "exempt: 192.0.2.7 (never_limit)",
        "until it is lifted: a \"quoted\" reason",
        "stopped; limits stay in effect",
    ] {
        assert!(has(words), "no {words:?} in {text}");
    }
    // A config that is invalid at the start, and an unknown format.
    let config = network.folder.path().join("limits.toml");
    let output = network.command(&["run", config.to_str().unwrap(), "--log-format", "json"]);
    assert_eq!(output.status.code(), Some(2));
    let text = String::from_utf8(output.stderr).unwrap();
    assert!(
        text.lines().count() > 0 && text.lines().all(|line| line.starts_with("{\"fields\"")),
        "{text}"
    );
    assert_eq!(
        network
            .command(&["status", "--log-format", "xml"])
            .status
            .code(),
        Some(2)
    );
}
