//! Several agents that keep one limit on requests together, and what is asked of each.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

/// The limit that the fleet keeps.
pub const LIMIT: &str = "together";

/// One agent.
pub struct Host {
    child: Child,
    folder: tempfile::TempDir,
}

impl Host {
    /// Starts one: `cluster` is what stands in [cluster], `limit` what stands in the limit beside its name and key.
    pub fn start(node: &str, cluster: &str, limit: &str) -> Self {
        Self::start_by(&[], node, cluster, limit)
    }

    /// The same by another program, which runs what follows.
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
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
    }

    /// Ends it with a signal, and starts it again where it was.
    pub fn restart(&mut self, signal: nix::sys::signal::Signal) {
        self.stop(signal);
        self.child = spawn(&[], self.folder.path());
        self.wait();
    }

    fn wait(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(60);
        while !self.command(&["status"]).status.success() {
            assert!(self.child.try_wait().unwrap().is_none(), "the agent ended: {}", self.said());
            assert!(Instant::now() < deadline, "the agent does not answer within a minute: {}", self.said());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// What it said on its standard error.
    pub fn said(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    pub fn command(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_agent"));
        command.args(arguments).arg("--control").arg(self.folder.path().join("control.sock")).output().unwrap()
    }

    /// `cluster` of its status.
    pub fn cluster(&self) -> Value {
        let output = self.command(&["status", "--json"]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["cluster"].take()
    }

    /// One of the limits in its status.
    pub fn limit(&self, name: &str) -> Value {
        let limits = self.cluster()["limits"].take();
        limits.as_array().unwrap().iter().find(|limit| limit["name"] == name).cloned().unwrap_or_default()
    }

    /// What it has to tell an operator.
    pub fn notes(&self) -> String {
        let output = self.command(&["status", "--json"]);
        serde_json::from_slice::<Value>(&output.stdout).unwrap()["notes"].to_string()
    }

    /// The share in force.
    pub fn share(&self) -> f64 {
        self.cluster()["limits"][0]["share"].as_f64().unwrap()
    }

    /// Waits until its status is as it should be, no longer than `within`; how long that took.
    pub fn until(&self, within: Duration, what: &str, is: impl Fn(&Value) -> bool) -> Duration {
        let start = Instant::now();
        loop {
            let cluster = self.cluster();
            if is(&cluster) {
                return start.elapsed();
            }
            assert!(start.elapsed() < within, "not {what} within {within:?}: {cluster:#}\n{}", self.said());
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// A connection that many questions are asked over.
    pub fn connect(&self) -> Asker {
        let path = self.folder.path().join("decide.sock");
        Asker { stream: Asker::connect(&path), path, asked: Instant::now() }
    }

    /// Ends it with a signal, and waits for it.
    pub fn stop(&mut self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.child.id() as i32), signal).unwrap();
        self.child.wait().unwrap();
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
    let text = format!(
        "[agent]\ncontrol = {:?}\nstate_dir = {:?}\n[decide]\nhttp = \"unix:{}\"\n[cluster]\nnode = {node:?}\n{cluster}\n\
         [[limit]]\nname = {LIMIT:?}\nscope = \"request\"\nkey = [\"service\"]\ncluster = true\n{limit}\n",
        path("control.sock"),
        path("state"),
        path("decide.sock").display()
    );
    std::fs::write(path("limits.toml"), text).unwrap();
}

fn spawn(by: &[&str], folder: &Path) -> Child {
    let agent = env!("CARGO_BIN_EXE_agent");
    let mut command = match by {
        [] => Command::new(agent),
        [program, arguments @ ..] => {
            let mut command = Command::new(program);
            command.args(arguments).arg(agent);
            command
        }
    };
    let log = std::fs::OpenOptions::new().create(true).append(true).open(folder.join("log")).unwrap();
    command.arg("--config").arg(folder.join("limits.toml")).stdin(Stdio::null()).stderr(log).spawn().unwrap()
}

/// Somebody who asks.
pub struct Asker {
    stream: BufReader<UnixStream>,
    path: PathBuf,
    asked: Instant,
}

impl Asker {
    fn connect(path: &Path) -> BufReader<UnixStream> {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        BufReader::new(stream)
    }

    /// Asks so many questions as fast as it goes; how many were allowed.
    pub fn ask(&mut self, count: u64) -> u64 {
        let parts = (0..count).step_by(100);
        parts.map(|from| self.ask_at_once((count - from).min(100))).sum()
    }

    fn ask_at_once(&mut self, count: u64) -> u64 {
        // Who says nothing for some seconds is hung up on.
        if self.asked.elapsed() > Duration::from_secs(2) {
            self.stream = Self::connect(&self.path);
        }
        self.asked = Instant::now();
        let question = format!("{{\"limit\":{LIMIT:?},\"key\":{{\"service\":\"one\"}}}}");
        let body = format!("[{}]", vec![question; count as usize].join(","));
        let head = format!("POST /v1/decide HTTP/1.1\r\nhost: weir\r\ncontent-length: {}\r\n\r\n", body.len());
        self.stream.get_mut().write_all((head + &body).as_bytes()).unwrap();
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
        let answers: Value = serde_json::from_slice(&answer).unwrap();
        answers.as_array().unwrap().iter().filter(|answer| answer["allowed"] == true).count() as u64
    }
}

/// How demand is spread over the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Spread {
    /// Every host the same.
    Even,
    /// The first has nine tenths, the others the rest.
    Skewed,
    /// One host at a time has all of it, for six seconds.
    Moving,
}

impl Spread {
    pub const ALL: [Self; 3] = [Self::Even, Self::Skewed, Self::Moving];

    /// The part of all demand that a host has, so long after the start.
    fn part(self, host: usize, hosts: usize, after: Duration) -> f64 {
        match self {
            Self::Even => 1.0 / hosts as f64,
            Self::Skewed if host == 0 => 0.9,
            Self::Skewed => 0.1 / (hosts - 1) as f64,
            Self::Moving => f64::from(u8::from(after.as_secs() as usize / 6 % hosts == host)),
        }
    }
}

impl std::fmt::Display for Spread {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str(match self {
            Self::Even => "even",
            Self::Skewed => "90:10",
            Self::Moving => "moving every 6 s",
        })
    }
}

/// What passed, and what would have passed one host.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    pub seconds: f64,
    pub wanted: u64,
    pub passed: u64,
    /// Burst and rate in the time that really passed.
    pub limit: f64,
    /// The part of the time in which those who ask were kept from it for longer than half a sync.
    pub late: f64,
}

impl Outcome {
    /// How far what passed is from the limit: 0 is exact, below is less.
    pub fn error(&self) -> f64 {
        self.passed as f64 / self.limit - 1.0
    }
}

/// The limit's rate, a second.
pub const RATE: u64 = 1_000;
/// Its burst.
pub const BURST: u64 = 100;

/// So many agents on a store, with 2.5 times of what the limit passes asked of them.
pub fn measure(url: &str, hosts: usize, spread: Spread, time: Duration) -> Outcome {
    let cluster = format!("store = {url:?}\nname = \"{hosts}-{spread:?}\"");
    let limit = format!("rate = \"{RATE}/s\"\nburst = {BURST}");
    let fleet: Vec<Host> = (0..hosts).map(|nth| Host::start(&format!("host-{nth}"), &cluster, &limit)).collect();
    for host in &fleet {
        // They know of each other, and nobody has been asked anything.
        host.until(Duration::from_secs(60), "joined", |cluster| {
            cluster["limits"][0]["hosts"] == hosts && cluster["limits"][0]["share_from"] == "lease"
        });
    }
    drive(&fleet, spread, time)
}

/// Asks 2.5 times of what the limit passes of a fleet for some time.
pub fn drive(fleet: &[Host], spread: Spread, time: Duration) -> Outcome {
    let hosts = fleet.len();
    // Each takes its part of the burst, and then the limit is what refills.
    let start = Instant::now();
    let demand = 2.5 * RATE as f64;
    let counts: Vec<(u64, u64, Duration)> = thread::scope(|scope| {
        let drive = |(nth, host): (usize, &Host)| {
            let mut asker = host.connect();
            scope.spawn(move || {
                let (mut due, mut asked, mut passed) = (0.0, 0u64, 0u64);
                let (mut last, mut late) = (Duration::ZERO, Duration::ZERO);
                while last < time {
                    thread::sleep(Duration::from_millis(10));
                    let now = start.elapsed();
                    if now - last > Duration::from_millis(50) {
                        late += now - last;
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
        drivers.into_iter().map(|driver| driver.join().unwrap()).collect()
    });
    let seconds = start.elapsed().as_secs_f64();
    let (wanted, passed) = counts.iter().fold((0, 0), |sum, count| (sum.0 + count.0, sum.1 + count.1));
    let late: Duration = counts.iter().map(|count| count.2).sum();
    let late = late.as_secs_f64() / seconds / hosts as f64;
    Outcome { seconds, wanted, passed, limit: BURST as f64 + RATE as f64 * seconds, late }
}
