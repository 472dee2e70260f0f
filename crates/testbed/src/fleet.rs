//! Several agents that share one limit on requests, and demand on each of them.

pub mod windows;
pub mod zones;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::program;
use crate::wait::PATIENCE;
use serde_json::Value;

/// The beginning of the lines of [`passed_during`].
const DURING: &str = "passed during an event: ";

/// Prints what passed of a limit during an event, for the table of `cargo xtask accuracy`.
pub fn passed_during(event: &str, passed: impl std::fmt::Display, limit: impl std::fmt::Display) {
    println!("{DURING}| {event} | {passed} | {limit} |");
}

/// The limit that the fleet shares.
pub const LIMIT: &str = "together";

/// One agent.
pub struct Host {
    child: Child,
    folder: tempfile::TempDir,
}

impl Host {
    /// Starts one: `cluster` is the content of [cluster], `limit` that of the limit besides its name and key.
    pub fn start(node: &str, cluster: &str, limit: &str) -> Self {
        Self::start_by(&[], node, cluster, limit)
    }

    /// The same with a wrapper program, which executes the following command.
    pub fn start_by(by: &[&str], node: &str, cluster: &str, limit: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), node, cluster, limit);
        let child = spawn(by, folder.path());
        let mut host = Self { child, folder };
        host.wait();
        host
    }

    /// Replaces its config, and has it read again.
    pub fn reload(&self, node: &str, cluster: &str, limit: &str) {
        write(self.folder.path(), node, cluster, limit);
        let output = self.command(&["reload"]);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stdout)
        );
    }

    /// Ends it with a signal, and starts it again with the same files.
    pub fn restart(&mut self, signal: nix::sys::signal::Signal) {
        self.stop(signal);
        self.child = spawn(&[], self.folder.path());
        self.wait();
    }

    fn wait(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        while !self.command(&["status"]).status.success() {
            assert!(
                self.child.try_wait().unwrap().is_none(),
                "the agent ended: {}",
                self.said()
            );
            assert!(
                Instant::now() < deadline,
                "the agent does not answer within {PATIENCE:?}: {}",
                self.said()
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Its standard error.
    pub fn said(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    /// A file of its state directory.
    pub fn state(&self, name: &str) -> String {
        std::fs::read_to_string(self.folder.path().join("state").join(name)).unwrap_or_default()
    }

    /// How often it exchanged nothing for so long that the others may have removed it: for a lease, or for a third of one
    /// with failed exchanges.
    pub fn times_gone(&self) -> usize {
        let (said, lines) = (
            self.said(),
            [
                "the other hosts removed this host meanwhile",
                "exchanging keys failed",
            ],
        );
        lines.map(|line| said.matches(line).count()).iter().sum()
    }

    pub fn command(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(program::agent());
        command
            .args(arguments)
            .arg("--control")
            .arg(self.folder.path().join("control.sock"))
            .output()
            .unwrap()
    }

    /// `cluster` of its status.
    pub fn cluster(&self) -> Value {
        let output = self.command(&["status", "--json"]);
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["cluster"].take()
    }

    /// One of the limits in its status.
    pub fn limit(&self, name: &str) -> Value {
        let limits = self.cluster()["limits"].take();
        limits
            .as_array()
            .unwrap()
            .iter()
            .find(|limit| limit["name"] == name)
            .cloned()
            .unwrap_or_default()
    }

    /// Its notes for the operator.
    pub fn notes(&self) -> String {
        let output = self.command(&["status", "--json"]);
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["notes"].to_string()
    }

    /// The share in effect.
    pub fn share(&self) -> f64 {
        self.cluster()["limits"][0]["share"].as_f64().unwrap()
    }

    /// Waits until its status is as required, at most `within`; returns how long that took.
    pub fn until(
        &self,
        within: Duration,
        what: &str,
        mut is: impl FnMut(&Value) -> bool,
    ) -> Duration {
        let start = Instant::now();
        loop {
            let cluster = self.cluster();
            if is(&cluster) {
                return start.elapsed();
            }
            assert!(
                start.elapsed() < within,
                "not {what} within {within:?}: {cluster:#}\n{}",
                self.said()
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// A connection for many questions.
    pub fn connect(&self) -> Asker {
        Asker::at(&self.folder.path().join("decide.sock"))
    }

    /// Ends it with a signal, and waits for it.
    pub fn stop(&mut self, signal: nix::sys::signal::Signal) {
        self.signal(signal);
        self.child.wait().unwrap();
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn write(folder: &Path, node: &str, cluster: &str, limit: &str) {
    let path = |name: &str| folder.join(name);
    // Other limits may follow it.
    let own = limit.split("[[").next().unwrap_or_default();
    let together = if own.contains("cluster = ") {
        ""
    } else {
        "cluster = true\n"
    };
    let text = format!(
        "[agent]\ncontrol = {:?}\nstate_dir = {:?}\n[decide]\nhttp = \"unix:{}\"\n[cluster]\nnode = {node:?}\n{cluster}\n\
         [[limit]]\nname = {LIMIT:?}\nscope = \"request\"\nkey = [\"service\"]\n{together}{limit}\n",
        path("control.sock"),
        path("state"),
        path("decide.sock").display()
    );
    std::fs::write(path("limits.toml"), text).unwrap();
}

fn spawn(by: &[&str], folder: &Path) -> Child {
    let agent = program::agent();
    let mut command = match by {
        [] => Command::new(agent),
        [program, arguments @ ..] => {
            let mut command = Command::new(program);
            command.args(arguments).arg(agent);
            command
        }
    };
    let log = std::fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(folder.join("log"))
        .unwrap();
    command
        .arg("--config")
        .arg(folder.join("limits.toml"))
        .stdin(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}

/// A client.
pub struct Asker {
    stream: BufReader<UnixStream>,
    path: PathBuf,
    asked: Instant,
}

impl Asker {
    /// A client of the socket at a path.
    pub fn at(path: &Path) -> Self {
        Self {
            stream: Self::connect(path),
            path: path.to_owned(),
            asked: Instant::now(),
        }
    }

    fn connect(path: &Path) -> BufReader<UnixStream> {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        BufReader::new(stream)
    }

    /// Asks `count` questions as fast as possible; returns how many were allowed.
    pub fn ask(&mut self, count: u64) -> u64 {
        self.ask_for("one", count)
    }

    /// The same for another key.
    pub fn ask_for(&mut self, key: &str, count: u64) -> u64 {
        let parts = (0..count).step_by(100);
        parts
            .map(|from| self.ask_at_once(key, (count - from).min(100)))
            .sum()
    }

    fn ask_at_once(&mut self, key: &str, count: u64) -> u64 {
        let question = |_| Self::question(key);
        self.ask_all((0..count).map(question))
            .into_iter()
            .filter(|allowed| *allowed)
            .count() as u64
    }

    /// A question about one unit of a key.
    pub fn question(key: &str) -> String {
        Self::question_to(LIMIT, key)
    }

    /// The same for another limit.
    pub fn question_to(limit: &str, key: &str) -> String {
        format!("{{\"limit\":{limit:?},\"key\":{{\"service\":{key:?}}}}}")
    }

    /// Asks questions in one request; returns which were allowed.
    pub fn ask_all(&mut self, questions: impl Iterator<Item = String>) -> Vec<bool> {
        let answers = self.answers(questions);
        answers
            .iter()
            .map(|answer| answer["allowed"] == true)
            .collect()
    }

    /// Asks questions in one request; returns the answers.
    pub fn answers(&mut self, questions: impl Iterator<Item = String>) -> Vec<Value> {
        // The agent disconnects clients after some seconds without a request.
        if self.asked.elapsed() > Duration::from_secs(2) {
            self.stream = Self::connect(&self.path);
        }
        self.asked = Instant::now();
        let body = format!("[{}]", questions.collect::<Vec<_>>().join(","));
        let head = format!(
            "POST /v1/decide HTTP/1.1\r\nhost: weir\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        self.stream
            .get_mut()
            .write_all((head + &body).as_bytes())
            .unwrap();
        let mut length = 0;
        loop {
            let mut line = String::new();
            self.stream.read_line(&mut line).unwrap();
            let line = line.trim().to_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some((_, value)) = line.split_once("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut answer = vec![0; length];
        self.stream.read_exact(&mut answer).unwrap();
        serde_json::from_slice(&answer).unwrap()
    }
}

/// The distribution of demand over the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Equal demand on every host.
    Even,
    /// Nine tenths on the first host, the rest on the others.
    Skewed,
    /// All demand on one host at a time, for some seconds.
    Moving,
    /// All demand on one host at a time, for less than a sync.
    Hopping,
    /// All demand on the first host.
    One,
}

/// The time for which one host has all demand.
const MOVES_AFTER: Duration = Duration::from_secs(5);
const HOPS_AFTER: Duration = Duration::from_millis(50);

/// The method by which hosts share a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kept {
    /// `cluster = "shares"`.
    Shares,
    /// `cluster = "keys"`.
    Keys,
}

/// The lines of a limit whose hosts exchange keys.
pub const KEYS: &str = "cluster = \"keys\"";

impl Kept {
    /// (lines of the limit, the origin of its shares, demand as a multiple of the limit).
    const fn terms(self) -> (&'static str, &'static str, f64) {
        match self {
            Self::Shares => ("cluster = \"shares\"", "lease", 2.5),
            Self::Keys => (KEYS, "keys", 5.0),
        }
    }
}

impl std::fmt::Display for Kept {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Shares => "shares",
            Self::Keys => "keys",
        })
    }
}

impl Spread {
    pub const ALL: [Self; 3] = [Self::Even, Self::Skewed, Self::Moving];

    /// A host's part of all demand, this long after the start.
    fn part(self, host: usize, hosts: usize, after: Duration) -> f64 {
        let all_by_turns = |each: Duration| {
            let turn = (after.as_nanos() / each.as_nanos()) as usize;
            f64::from(u8::from(turn % hosts == host))
        };
        match self {
            Self::Even => 1.0 / hosts as f64,
            Self::Skewed if host == 0 => 0.9,
            Self::Skewed => 0.1 / (hosts - 1) as f64,
            Self::Moving => all_by_turns(MOVES_AFTER),
            Self::Hopping => all_by_turns(HOPS_AFTER),
            Self::One => f64::from(u8::from(host == 0)),
        }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Even => "even",
            Self::Skewed => "90:10",
            Self::Moving => return write!(formatter, "moving every {} s", MOVES_AFTER.as_secs()),
            Self::Hopping => {
                return write!(formatter, "moving every {} ms", HOPS_AFTER.as_millis());
            }
            Self::One => "on one host",
        })
    }
}

/// The result of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    pub seconds: f64,
    pub wanted: u64,
    pub passed: u64,
    /// The burst plus the rate times the elapsed time.
    pub limit: f64,
    /// The part of the time by which the machine delayed clients, in delays of more than half a sync.
    pub late: f64,
    /// How often a host that exchanges keys may have been removed: [`Host::times_gone`].
    pub gone: usize,
}

impl Outcome {
    /// The relative difference between passed units and the limit: 0 is exact, negative is less.
    pub fn error(&self) -> f64 {
        self.passed as f64 / self.limit - 1.0
    }
}

/// The limit's rate per second.
pub const RATE: u64 = 1_000;
pub const BURST: u64 = 100;

/// Measures this many agents on a store, which exchange every `sync`, with demand above the limit.
pub fn measure(
    url: &str,
    (hosts, sync): (usize, &str),
    kept: Kept,
    spread: Spread,
    time: Duration,
) -> Outcome {
    let cluster =
        format!("store = {url:?}\nsync = {sync:?}\nname = \"{kept}-{hosts}-{sync}-{spread:?}\"");
    let (together, from, times) = kept.terms();
    let limit = format!("{together}\nrate = \"{RATE}/s\"\nburst = {BURST}");
    let fleet: Vec<Host> = (0..hosts)
        .map(|nth| Host::start(&format!("host-{nth}"), &cluster, &limit))
        .collect();
    for host in &fleet {
        // All agents have exchanged before the first request.
        host.until(PATIENCE, "joined", |cluster| {
            cluster["limits"][0]["hosts"] == hosts && cluster["limits"][0]["share_from"] == from
        });
    }
    drive(&fleet, spread, times, time)
}

/// Sends this multiple of the limit as demand to a fleet for some time.
pub fn drive(fleet: &[Host], spread: Spread, times: f64, time: Duration) -> Outcome {
    drive_some(&fleet.iter().collect::<Vec<_>>(), spread, times, time)
}

/// The same to some hosts of a fleet.
pub fn drive_some(fleet: &[&Host], spread: Spread, times: f64, time: Duration) -> Outcome {
    let hosts = fleet.len();
    // Each uses its part of the burst first; then the limit is the refill.
    let start = Instant::now();
    let demand = times * RATE as f64;
    let counts: Vec<(u64, u64, Duration)> = thread::scope(|scope| {
        let drive = |(nth, host): (usize, &&Host)| {
            let mut asker = host.connect();
            scope.spawn(move || {
                let (mut due, mut asked, mut passed) = (0.0, 0u64, 0u64);
                let (mut last, mut late) = (Duration::ZERO, Duration::ZERO);
                while last < time {
                    let asleep = start.elapsed();
                    thread::sleep(Duration::from_millis(10));
                    let now = start.elapsed();
                    // Only what the machine took: the agent's own time does not count.
                    if now - asleep > Duration::from_millis(50) {
                        late += now - asleep;
                    }
                    due += demand * spread.part(nth, hosts, now) * (now - last).as_secs_f64();
                    last = now;
                    let count = due as u64 - asked;
                    passed += asker.ask(count);
                    asked += count;
                }
                (asked, passed, late)
            })
        };
        let drivers: Vec<_> = fleet.iter().enumerate().map(drive).collect();
        drivers
            .into_iter()
            .map(|driver| driver.join().unwrap())
            .collect()
    });
    let seconds = start.elapsed().as_secs_f64();
    let (wanted, passed) = counts
        .iter()
        .fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1));
    let late: Duration = counts.iter().map(|count| count.2).sum();
    let late = late.as_secs_f64() / seconds / hosts as f64;
    Outcome {
        seconds,
        wanted,
        passed,
        limit: BURST as f64 + RATE as f64 * seconds,
        late,
        gone: fleet.iter().map(|host| host.times_gone()).sum(),
    }
}
