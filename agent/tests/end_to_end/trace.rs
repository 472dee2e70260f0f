//! `weir trace`: refused by an agent with ordinary kernel programs, and what a trace build prints. The agent under test is
//! one or the other: `cargo xtask test --trace -- -p agent --test end_to_end trace` runs the second half.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use common::packet::build::Frame;
use common::trace::MOST_TRACED;
use serde_json::Value;
use testbed::tests;
use testbed::trials::Test;

use crate::support::{CLIENT_MAC, Network, SERVER, SERVER_MAC};
use crate::traffic::{PORT, burst, udp_from};

/// For an agent with ordinary kernel programs.
pub const ORDINARY: &[Test] =
    tests![a_trace_without_a_trace_build_is_refused_with_the_command_that_builds_one,];

/// For an agent of a trace build.
pub const TRACED: &[Test] = tests![
    a_trace_prints_each_verdict_on_its_source_and_its_reason_also_after_a_reload,
    a_trace_at_level_warn_has_refusals_alone,
    traces_are_bounded_hang_nobody_and_end_with_their_clients,
];

/// The port of packets that show a trace to be in effect.
const FIRST: u16 = 9_009;
const LIMIT: &str = "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 10\n";

/// Whether the agent under test has kernel programs that log verdicts.
pub fn is_built() -> bool {
    let Some(agent) = std::env::var_os("WEIR_AGENT") else {
        return false;
    };
    let search = Command::new("grep")
        .args(["-q", "--text", "--fixed-strings", "weir_trace_begin"])
        .arg(agent)
        .status();
    search.is_ok_and(|status| status.success())
}

fn a_trace_without_a_trace_build_is_refused_with_the_command_that_builds_one() {
    let network = Network::new();
    let agent = network.start("", LIMIT);
    for arguments in [
        &["trace", "10.77.0.7"][..],
        &["trace", "10.77.0.7", "--json"],
    ] {
        let output = network.command(arguments);
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(
            (output.status.code(), output.stdout.len()),
            (Some(1), 0),
            "{said}"
        );
        for words in [
            "log no verdicts",
            "cargo xtask build --trace",
            "agent events",
        ] {
            assert!(said.contains(words), "{words:?} is missing from: {said}");
        }
    }
    assert_eq!(agent.json(&["status"])["mode"], "enforce");
}

/// Whether a line is about a packet that showed a trace to be in effect: some of them may come late.
fn is_first(line: &str) -> bool {
    [format!("\"port\":{FIRST}"), format!("port {FIRST}")]
        .iter()
        .any(|port| line.contains(port))
}

/// A running `weir trace`.
struct Trace {
    child: Child,
    lines: Receiver<String>,
}

impl Trace {
    /// Begins a trace, and returns once it is in effect: a packet of the source to [`FIRST`] has been logged.
    fn begin(network: &Network, last: u8, options: &[&str]) -> Self {
        let source = format!("10.77.0.{last}");
        let first = Frame::between(CLIENT_MAC, SERVER_MAC)
            .ipv4([10, 77, 0, last], SERVER)
            .udp(5000, FIRST, &[0; 22])
            .build();
        let mut child = network.spawn(&[&["trace", &source], options].concat(), |command| {
            command.stdout(Stdio::piped()).stderr(Stdio::piped());
        });
        let (sender, lines) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        // It ends with the program.
        std::thread::spawn(move || {
            out.lines()
                .map_while(Result::ok)
                .try_for_each(|line| sender.send(line))
        });
        let mut trace = Self { child, lines };
        let deadline = Instant::now() + Duration::from_secs(300);
        loop {
            burst(network, std::slice::from_ref(&first), 1);
            match trace.lines.recv_timeout(Duration::from_millis(300)) {
                Ok(_) => break,
                Err(RecvTimeoutError::Timeout) => {
                    assert!(Instant::now() < deadline, "nothing was logged in a minute");
                }
                Err(RecvTimeoutError::Disconnected) => {
                    panic!("the trace ended: {:?}", trace.child.wait())
                }
            }
        }
        trace
    }

    fn next(&self) -> String {
        loop {
            let line = self.lines.recv_timeout(Duration::from_secs(300));
            let line = line.expect("another line");
            if !is_first(&line) {
                return line;
            }
        }
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.next()).unwrap()
    }

    fn is_silent(&self) -> bool {
        loop {
            match self.lines.recv_timeout(Duration::from_millis(500)) {
                Ok(line) if is_first(&line) => {}
                other => return matches!(other, Err(RecvTimeoutError::Timeout)),
            }
        }
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn a_trace_prints_each_verdict_on_its_source_and_its_reason_also_after_a_reload() {
    let network = Network::new();
    let agent = network.start("", LIMIT);
    let trace = Trace::begin(&network, 7, &["--json"]);
    network.told(&["reset", "10.77.0.7"]);
    burst(&network, &[udp_from(8), udp_from(7)], 2 * 12);
    for nth in 0..12 {
        let line = trace.json();
        assert_eq!(
            (&line["source"], &line["direction"]),
            (&"10.77.0.7".into(), &"ingress".into()),
            "{line}"
        );
        assert_eq!(
            (&line["protocol"], &line["port"]),
            (&"udp".into(), &PORT.into()),
            "{line}"
        );
        assert_eq!(
            (&line["interface"], &line["packets"], &line["bytes"]),
            (&"weir0".into(), &1.into(), &64.into())
        );
        let verdict = [&line["verdict"], &line["limit"], &line["reason"]].map(Clone::clone);
        if nth < 10 {
            assert_eq!(
                verdict,
                ["passed".into(), Value::Null, "within its limits".into()],
                "{nth}"
            );
        } else {
            assert_eq!(
                verdict,
                ["throttled", "packets", "more than 1/h packets, burst 10"].map(Value::from),
                "{nth}"
            );
        }
    }
    assert!(trace.is_silent(), "another source's packets are not logged");

    // For people, another source at the same time.
    let other = Trace::begin(&network, 8, &[]);
    burst(&network, &[udp_from(8)], 1);
    let line = other.next();
    for words in [
        "throttled",
        "packets ",
        "more than 1/h packets",
        "64 bytes",
        "udp, port 9000, ingress, weir0",
    ] {
        assert!(line.contains(words), "{words:?} is missing from {line}");
    }

    // Bans, exempt addresses, and a policy that observes: the trace goes on with each.
    network.told(&["ban", "10.77.0.7"]);
    burst(&network, &[udp_from(7)], 1);
    let line = trace.json();
    assert_eq!(
        (&line["verdict"], &line["reason"], &line["limit"]),
        (&"throttled".into(), &"banned".into(), &Value::Null)
    );
    network.told(&["unban", "10.77.0.7"]);
    network.config("mode = \"observe\"", LIMIT);
    network.told(&["reload"]);
    let line = until_line(&network, &trace, 7, "would-throttle");
    assert_eq!(
        (&line["limit"], &line["verdict"]),
        (&"packets".into(), &"would-throttle".into())
    );
    network.config("never_limit = [\"10.77.0.7\"]", LIMIT);
    network.told(&["reload"]);
    let line = until_line(&network, &trace, 7, "passed");
    assert_eq!(line["reason"], "exempt (never_limit)");

    drop(agent);
    let mut trace = trace;
    let output = trace.child.wait().unwrap();
    assert_eq!(output.code(), Some(1));
}

/// Sends packets until one has this verdict: after a reload the new programs log nothing for a moment.
fn until_line(network: &Network, trace: &Trace, last: u8, verdict: &str) -> Value {
    let deadline = Instant::now() + Duration::from_secs(300);
    loop {
        burst(network, &[udp_from(last)], 1);
        if let Ok(line) = trace.lines.recv_timeout(Duration::from_millis(300)) {
            let line: Value = serde_json::from_str(&line).unwrap();
            if line["verdict"] == verdict {
                return line;
            }
        }
        assert!(Instant::now() < deadline, "no {verdict} in time");
    }
}

fn a_trace_at_level_warn_has_refusals_alone() {
    let network = Network::new();
    let config = network.config("", LIMIT);
    let agent = network.spawn_with(&config, |command| {
        command.args(["--log-level", "warn"]);
    });
    let _agent = network.wait_for_agent(agent);
    burst(&network, &[udp_from(7)], 10);
    // It begins with the first refusal.
    let trace = Trace::begin(&network, 7, &["--json"]);
    network.told(&["reset", "10.77.0.7"]);
    burst(&network, &[udp_from(7)], 13);
    for _ in 0..3 {
        assert_eq!(trace.json()["verdict"], "throttled");
    }
    assert!(
        trace.is_silent(),
        "what passes is not logged, and not counted as lost"
    );
}

fn traces_are_bounded_hang_nobody_and_end_with_their_clients() {
    let network = Network::new();
    let agent = network.start("", LIMIT);
    let request = |stream: &mut UnixStream| {
        stream
            .write_all(b"{\"verb\":\"trace\",\"source\":\"10.77.0.7\"}\n")
            .unwrap();
    };
    // None of them ever reads.
    let mut hung: Vec<UnixStream> = (0..MOST_TRACED)
        .map(|_| {
            let mut stream = UnixStream::connect(network.control()).unwrap();
            request(&mut stream);
            stream
        })
        .collect();
    let deadline = Instant::now() + Duration::from_secs(300);
    let said = loop {
        assert!(Instant::now() < deadline, "one more was let in");
        let mut stream = UnixStream::connect(network.control()).unwrap();
        request(&mut stream);
        stream
            .set_read_timeout(Some(Duration::from_millis(500)))
            .unwrap();
        let mut line = String::new();
        // Where the others are not in yet, this one is, and waits for packets.
        if BufReader::new(stream).read_line(&mut line).is_ok() && !line.is_empty() {
            break line;
        }
    };
    assert!(said.contains("8 traces already run"), "{said}");
    let sent = 20_000;
    burst(&network, &[udp_from(7)], sent);
    assert_eq!(agent.json(&["status"])["mode"], "enforce");
    assert_eq!(agent.counts("packets").1, sent as u64 - 10);
    // Their places are free once they are gone.
    hung.clear();
    let deadline = Instant::now() + Duration::from_secs(300);
    let trace = loop {
        let mut stream = UnixStream::connect(network.control()).unwrap();
        request(&mut stream);
        stream
            .set_read_timeout(Some(Duration::from_millis(500)))
            .unwrap();
        burst(&network, &[udp_from(7)], 1);
        let mut line = String::new();
        let _ = BufReader::new(stream).read_line(&mut line);
        if line.contains("throttled") {
            break line;
        }
        assert!(
            Instant::now() < deadline,
            "no place was free in time: {line}"
        );
    };
    assert!(trace.contains("10.77.0.7"), "{trace}");
}
