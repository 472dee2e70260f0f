//! Each verb of the command line, to the packaged service in its sandbox.

use std::fs;
use std::net::UdpSocket;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use testbed::tests;

use crate::Test;
use crate::guest::{
    SERVER, configure, in_client, limit, received, run, said, systemctl, try_run, within,
};
use crate::service::{UNIT, start};

pub const TESTS: &[Test] = tests![every_verb_does_its_work_under_the_unit];

/// The source of `received(2, …)`.
const SOURCE: &str = "10.77.0.2";
const MOST_PACKETS: usize = 6_000;
const LONGEST: Duration = Duration::from_secs(60);
const CANDIDATE: &str = "/root/candidate.toml";
const CAPTURE: &str = "/root/capture.pcapng";
const MORE: &str = "\n[[limit]]\nname = \"logins\"\nscope = \"request\"\nkey = [\"user\"]\nunit = \"requests\"\nrate = \"5/h\"\n\
                    [[notify]]\non = \"ban\"\ncommand = [\"/bin/cat\"]\n";

/// The verbs that follow, by their order: what each prints.
const TO_THE_SERVICE: [(&[&str], &str); 36] = [
    (&["status"], "weir0"),
    (&["limits"], "logins"),
    (&["top", "--once"], "10.77.0.2"),
    (&["top", "--once", "--by", "prefix"], "10.77.0.2"),
    (&["events"], "10.77.0.2"),
    (&["show", "10.77.0.2"], "packets"),
    (&["groups"], ""),
    (&["usage"], ""),
    (
        &["decide", "--limit", "logins", "--key", "user=1"],
        "allowed",
    ),
    (&["reset", "10.77.0.2"], "forgotten"),
    (&["notify", "test"], "delivered"),
    (&["ban", "192.0.2.9", "--for", "1h"], "1 banned"),
    (&["bans"], "192.0.2.9"),
    (&["unban", "192.0.2.9"], "1 unbanned"),
    (&["allow", "192.0.2.9", "--for", "1h"], "1 exempt"),
    (&["allow", "--list"], "192.0.2.9"),
    (&["disallow", "192.0.2.9"], "1 no longer exempt"),
    (
        &["allow", "192.0.2.9", "--for", "1h", "--times", "5"],
        "1 allowed 5 times the limits for",
    ),
    (&["disallow", "192.0.2.9"], "1 allowed no more"),
    (&["reload"], ""),
    (&["reload", "--diff"], "no differences"),
    (&["try", CANDIDATE, "--for", "1h"], ""),
    (&["confirm"], ""),
    (&["reload"], ""),
    (&["try", CANDIDATE, "--for", "1h"], ""),
    (&["revert"], ""),
    (&["record", "--for", "1h"], ""),
    (&["record", "--status"], ""),
    (&["record", "--stop"], ""),
    (
        &["record", "--capture", CAPTURE, "--of", "all", "--for", "1h"],
        "",
    ),
    (&["fleet", "keygen", "/root/fleet.key"], "public_keys"),
    (&["check"], "logins"),
    (&["doctor"], ""),
    (&["completions", "bash"], "agent"),
    (&["man", "weir"], "agent"),
    (&["schema"], "limits"),
];
/// Verbs that need something else: a file or a recording of an hour, a trace build, no agent, or they are the service.
const OTHERS: [&str; 7] = [
    "suggest", "replay", "import", "trace", "detach", "run", "help",
];

/// Sends packets of 10.77.0.2 until `work` returns, at most [`MOST_PACKETS`] and for [`LONGEST`].
fn with_traffic<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    let is_done = AtomicBool::new(false);
    thread::scope(|scope| {
        let traffic = scope.spawn(|| {
            in_client(|| {
                let socket = UdpSocket::bind((SOURCE, 0)).unwrap();
                let start = Instant::now();
                for _ in 0..MOST_PACKETS {
                    if is_done.load(Ordering::Relaxed) || start.elapsed() > LONGEST {
                        return;
                    }
                    // A port without a listener: an error of the packet before may be reported here.
                    let _ = socket.send_to(b"x", (SERVER, 9));
                    thread::sleep(Duration::from_millis(10));
                }
            });
        });
        let outcome = work();
        is_done.store(true, Ordering::Relaxed);
        traffic.join().unwrap();
        outcome
    })
}

/// Runs a capture until the file has a packet.
fn captured(words: &[&str]) -> Output {
    let mut command = Command::new("agent");
    command.args(words).stdout(Stdio::piped());
    let child = command.stderr(Stdio::piped()).spawn().unwrap();
    within(LONGEST, "a packet is captured", has_packet);
    kill(Pid::from_raw(child.id().cast_signed()), Signal::SIGINT).unwrap();
    child.wait_with_output().unwrap()
}

/// Whether the capture has a packet of the source.
fn has_packet() -> bool {
    // The source and the destination of an IPv4 header.
    let addresses = [10, 77, 0, 2, 10, 77, 0, 1];
    let capture = fs::read(CAPTURE).unwrap_or_default();
    capture.windows(8).any(|bytes| bytes == addresses)
}

fn every_verb_does_its_work_under_the_unit() {
    start(&format!("{}{MORE}", limit(10)));
    let help = run("agent", &["--help"]);
    let verbs = help
        .lines()
        .skip_while(|line| !line.starts_with("Commands:"))
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| {
            line.strip_prefix("  ")
                .filter(|line| !line.starts_with(' '))
        })
        .filter_map(|line| line.split_whitespace().next());
    for verb in verbs {
        let is_tried = TO_THE_SERVICE.iter().any(|(words, _)| words[0] == verb);
        assert!(
            is_tried != OTHERS.contains(&verb),
            "`{verb}` is not tried here"
        );
    }
    fs::write(CANDIDATE, format!("{}{MORE}", limit(20))).unwrap();
    assert_eq!(received(2, 15), 10);
    let failed: Vec<String> = TO_THE_SERVICE
        .iter()
        .filter_map(|(words, wanted)| {
            let output = if words.contains(&"--capture") {
                with_traffic(|| captured(words))
            } else if words.contains(&"prefix") {
                with_traffic(|| try_run("agent", words))
            } else {
                try_run("agent", words)
            };
            let printed = said(&output);
            let is_done = output.status.success() && printed.contains(wanted);
            (!is_done).then(|| format!("{words:?}: {}\n{printed}", output.status))
        })
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    assert!(has_packet());
    configure(&limit(10));
    systemctl(&["stop", UNIT]);
    run("agent", &["detach"]);
}
