//! Limits that this kernel cannot enforce, at a start.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use nix::sys::signal::Signal;
use serde_json::{Value, json};
use testbed::tests;
use testbed::trials::Test;

use crate::metrics::{METRICS, get};
use crate::support::Network;
use crate::traffic::{PORT, burst, udp_from};

pub const TESTS: &[Test] = tests![
    a_limit_that_the_kernel_cannot_enforce_is_left_out_of_a_start_and_named,
    a_strict_agent_starts_with_no_limit_left_out,
    a_start_whose_only_limit_is_left_out_runs_and_says_so,
];

/// On a kernel that is booted with `lockdown=confidentiality`.
pub const LOCKED_DOWN: &[Test] = tests![a_locked_down_kernel_enforces_the_limits_that_it_can];

/// Whether this kernel lets no program read its memory.
pub fn is_locked_down() -> bool {
    let modes = fs::read_to_string("/sys/kernel/security/lockdown").unwrap_or_default();
    modes.contains("[confidentiality]")
}

/// Kernels that cannot count connections: what a process there sees instead of a directory of sysfs, and the reason.
const KERNELS: [(&str, &str, &str); 2] = [
    ("/sys/kernel/btf", ":", "no BTF"),
    (
        "/sys/kernel/security",
        "echo 'none integrity [confidentiality]' >lockdown; echo lockdown,capability,bpf >lsm",
        "lockdown",
    ),
];
const OPEN: &str = "[[limit]]\nname = \"open\"\nunit = \"connections\"\nconcurrent = 3\nprove = \"reset\"\n\
                    escalate = { after = 5, within = \"10s\", ban = \"1h\" }\n";
const PACKETS: &str =
    "[[limit]]\nname = \"packets\"\nprotocol = \"udp\"\nrate = \"1/h\"\nburst = 10\n";

fn names(limits: &Value) -> Vec<&str> {
    let limits = limits.as_array().unwrap().iter();
    limits
        .map(|limit| limit["name"].as_str().unwrap())
        .collect()
}

fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    text(&output.stdout) + &text(&output.stderr)
}

/// Runs one command of the CLI on a kernel.
fn on(network: &Network, (directory, fill, _): (&str, &str, &str), arguments: &[&str]) -> Output {
    let mut command = Network::hiding(directory, fill, arguments);
    network.in_server(|| command.output()).unwrap()
}

fn a_limit_that_the_kernel_cannot_enforce_is_left_out_of_a_start_and_named() {
    for kernel in KERNELS {
        let (directory, fill, reason) = kernel;
        let network = Network::new();
        let folder = network.folder.path().to_owned();
        let config = network.config(METRICS, &format!("{OPEN}{PACKETS}"));
        let (file, log) = (config.to_str().unwrap(), folder.join("log"));
        for verb in ["check", "doctor"] {
            let arguments: &[&str] = match verb {
                "check" => &["check", file],
                _ => &["doctor", "--config", file],
            };
            let output = on(&network, kernel, arguments);
            let text = said(&output);
            assert!(text.contains(reason), "{verb}: {text}");
            assert!(text.contains("concurrent"), "{verb}: {text}");
            assert_eq!(output.status.success(), verb == "check", "{text}");
        }
        // A second start, after a kill, comes to the same.
        for (start, source) in [(1, 7), (2, 8)] {
            let agent = network.start_hiding((directory, fill), &config, &log);
            let receiver = network.receiver(PORT);
            burst(&network, &[udp_from(source)], 30);
            assert_eq!(receiver.counts()[usize::from(source)], 10, "{reason}");
            let status = agent.json(&["status"]);
            assert_eq!(names(&status["limits"]), ["packets"]);
            assert_eq!(names(&agent.json(&["limits"])), ["packets"]);
            let left_out = &status["left_out"];
            assert_eq!(left_out.as_array().unwrap().len(), 1, "{left_out}");
            assert_eq!(left_out[0]["limit"], "open");
            assert!(
                left_out[0]["reason"].to_string().contains(reason),
                "{left_out}"
            );
            let notes = status["notes"].to_string();
            assert!(notes.contains("limit `open` is not in effect"), "{notes}");
            let events = agent.lines(&["events", "--json"]);
            let event = |event: &&Value| event["verdict"] == "left-out" && event["limit"] == "open";
            assert_eq!(events.iter().filter(event).count(), 1, "{events:?}");
            let journal = fs::read_to_string(&log).unwrap();
            let lines = journal
                .lines()
                .filter(|line| line.contains("error: limit `open` is not"));
            assert_eq!(lines.count(), start, "{journal}");
            let scraped = get(&network);
            assert!(scraped.contains("\nweir_limits_left_out 1\n"), "{scraped}");
            let output = on(&network, kernel, &["doctor", "--config", file]);
            let text = said(&output);
            assert!(
                !output.status.success() && text.contains("`open`"),
                "{text}"
            );
            // Somebody is there to read it.
            for change in [&["reload"][..], &["try", file, "--for", "1h"]] {
                let output = network.command(change);
                assert!(!output.status.success(), "{}", said(&output));
                assert!(said(&output).contains(reason), "{}", said(&output));
            }
            burst(&network, &[udp_from(source)], 30);
            assert_eq!(receiver.counts()[usize::from(source)], 0, "{reason}");
            assert_eq!(agent.json(&["status"])["left_out"], *left_out);
            if start == 1 {
                drop(agent);
                continue;
            }
            // On a kernel that can, it is in effect.
            let id = agent.process().to_string();
            let unmounted = Command::new("nsenter")
                .args(["-m", "-t", &id, "umount", directory])
                .status();
            assert!(unmounted.unwrap().success());
            network.told(&["reload"]);
            let status = agent.json(&["status"]);
            assert_eq!(names(&status["limits"]), ["open", "packets"]);
            assert_eq!(status["left_out"], json!([]));
        }
    }
}

fn a_strict_agent_starts_with_no_limit_left_out() {
    let network = Network::new();
    let config = network.config("strict = true", &format!("{OPEN}{PACKETS}"));
    let file = config.to_str().unwrap();
    for kernel in KERNELS {
        let output = on(&network, kernel, &["--config", file]);
        let text = said(&output);
        assert!(!output.status.success(), "{text}");
        assert!(text.contains(kernel.2) && text.contains("strict"), "{text}");
    }
    assert!(!Path::new(&network.control()).exists());
    // It refuses nothing else.
    let agent = network.start("strict = true", PACKETS);
    assert_eq!(names(&agent.json(&["limits"])), ["packets"]);
    agent.stop(Signal::SIGTERM);
}

fn a_start_whose_only_limit_is_left_out_runs_and_says_so() {
    let network = Network::new();
    let notified = network.folder.path().join("notified");
    let notify = format!(
        "[[notify]]\non = \"not-enforced\"\ncommand = [\"/bin/sh\", \"-c\", \"cat >> {}\"]\n",
        notified.display()
    );
    let config = network.config("", &format!("{OPEN}{notify}"));
    let (directory, fill, _) = KERNELS[0];
    let log = network.folder.path().join("log");
    let agent = network.start_hiding((directory, fill), &config, &log);
    let status = agent.json(&["status"]);
    assert_eq!(status["left_out"][0]["limit"], "open");
    assert_eq!(status["interfaces"][0]["state"], "attached");
    agent.wait_for("a notification", |_| {
        let text = fs::read_to_string(&notified).unwrap_or_default();
        text.contains("\"left-out\"")
    });
    // Bans require no limit.
    network.told(&["ban", "10.77.0.9"]);
    let receiver = network.receiver(PORT);
    burst(&network, &[udp_from(9), udp_from(8)], 20);
    let counts = receiver.counts();
    assert_eq!((counts[9], counts[8]), (0, 10));
}

fn a_locked_down_kernel_enforces_the_limits_that_it_can() {
    for hook in ["native", "generic", "tc"] {
        let network = Network::new();
        let attach = format!("attach = {hook:?}");
        let agent = network.start(&attach, &format!("{OPEN}{PACKETS}"));
        let left_out = agent.json(&["status"])["left_out"].clone();
        assert_eq!(left_out[0]["limit"], "open", "{left_out}");
        assert!(
            left_out[0]["reason"].to_string().contains("lockdown"),
            "{left_out}"
        );
        let receiver = network.receiver(PORT);
        burst(&network, &[udp_from(7)], 30);
        assert_eq!(receiver.counts()[7], 10, "{hook}");
        let output = network.command(&["reload"]);
        assert!(!output.status.success() && said(&output).contains("lockdown"));
        agent.stop(Signal::SIGTERM);
        let config = network.config("strict = true", &format!("{OPEN}{PACKETS}"));
        let output = network.run_to_end(&config);
        assert!(!output.status.success() && said(&output).contains("lockdown"));
    }
    // Even if the mode cannot be read, the kernel's refusal of the programs leaves the limit out.
    let network = Network::new();
    let config = network.config("", &format!("{OPEN}{PACKETS}"));
    let log = network.folder.path().join("log");
    let agent = network.start_hiding(("/sys/kernel/security", ":"), &config, &log);
    assert_eq!(agent.json(&["status"])["left_out"][0]["limit"], "open");
    assert_eq!(names(&agent.json(&["limits"])), ["packets"]);
}
