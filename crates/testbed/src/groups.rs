//! An agent with groups in cgroups of the test's own, and processes for them; all of it gone when dropped.

use std::fs;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use crate::host_load::HostCpus;
use crate::wait::PATIENCE;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// The binary under test: the one with the eBPF objects inside.
pub fn agent() -> Option<PathBuf> {
    std::env::var_os("WEIR_AGENT")
        .map(PathBuf::from)
        .filter(|path| path.exists())
}

/// A folder, a parent of cgroups and a place for pins.
pub struct Host {
    folder: tempfile::TempDir,
    name: String,
    agent: Option<Child>,
}

impl Host {
    pub fn new() -> Self {
        let name = format!(
            "weir-t{}-g{}",
            std::process::id(),
            NEXT.fetch_add(1, Ordering::Relaxed)
        );
        let host = Self {
            folder: tempfile::tempdir().unwrap(),
            name,
            agent: None,
        };
        copy(&std::env::current_exe().unwrap(), &host.worker());
        host
    }

    /// The program that tests put in groups.
    pub fn worker(&self) -> PathBuf {
        self.path("worker")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// The cgroup of a group, from a hierarchy's root.
    pub fn cgroup(&self, group: &str) -> String {
        format!("/{}/{group}", self.name)
    }

    /// Whether any cgroup or pin of this test's is there.
    pub fn has_remains(&self) -> bool {
        Path::new("/sys/fs/bpf").join(&self.name).exists() || self.has_cgroups()
    }

    /// Whether any cgroup of this test's is there.
    pub fn has_cgroups(&self) -> bool {
        hierarchies()
            .iter()
            .any(|root| root.join(&self.name).exists())
    }

    /// A config of one group named `g` that matches the worker, with these lines.
    pub fn config(&self, agent: &str, lines: &str) -> PathBuf {
        let path = self.path("limits.toml");
        let text = format!(
            "[agent]\ncontrol = {:?}\nstate_dir = {:?}\npins = \"/sys/fs/bpf/{name}\"\ncgroup = \"{name}\"\n{agent}\n\
             [[group]]\nname = \"g\"\nmatch = [{{ exe = {:?} }}]\n{lines}\n",
            self.path("control.sock"),
            self.path("state"),
            self.worker(),
            name = self.name,
        );
        fs::write(&path, text).unwrap();
        path
    }

    /// Starts an agent whose config has no groups any more, and no limits either.
    pub fn start_without_groups(&mut self) {
        let config = self.config("allow_empty = true", "");
        let text = fs::read_to_string(&config).unwrap();
        fs::write(&config, text.split("[[group]]").next().unwrap()).unwrap();
        self.launch(&config);
    }

    /// Starts an agent that sees other CPUs than this host's, and waits until it answers.
    pub fn start_on(&mut self, cpus: &HostCpus, agent: &str, lines: &str) {
        let config = self.config(agent, lines);
        cpus.seen_by(|| self.launch(&config));
    }

    /// Starts an agent, and waits until it answers.
    pub fn start(&mut self, agent: &str, lines: &str) {
        let config = self.config(agent, lines);
        self.launch(&config);
    }

    pub fn launch(&mut self, config: &Path) {
        let errors = fs::File::create(self.path("errors")).unwrap();
        let child = Command::new(self::agent().unwrap())
            .arg("--config")
            .arg(config)
            .stderr(errors)
            .spawn();
        self.agent = Some(child.unwrap());
        let deadline = Instant::now() + PATIENCE;
        while !self.command(&["status"]).status.success() {
            let ended = self.agent.as_mut().unwrap().try_wait().unwrap();
            assert!(
                ended.is_none() && Instant::now() < deadline,
                "the agent does not answer: {}",
                self.said()
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The agent's log.
    pub fn said(&self) -> String {
        fs::read_to_string(self.path("errors")).unwrap_or_default()
    }

    pub fn command(&self, arguments: &[&str]) -> std::process::Output {
        let mut command = Command::new(agent().unwrap());
        command
            .args(arguments)
            .arg("--control")
            .arg(self.path("control.sock"))
            .output()
            .unwrap()
    }

    /// A verb for the agent that a config in the test's folder describes.
    pub fn command_of(&self, verb: &str, config: &str) -> std::process::Output {
        Command::new(agent().unwrap())
            .arg(verb)
            .arg("--config")
            .arg(self.path(config))
            .output()
            .unwrap()
    }

    /// The agent's process.
    pub fn agent_pid(&self) -> u32 {
        self.agent.as_ref().unwrap().id()
    }

    /// How long the control socket takes for a reply; the request is a line of its own, without a program to start.
    pub fn status_takes(&self) -> Duration {
        let start = Instant::now();
        let mut stream =
            std::os::unix::net::UnixStream::connect(self.path("control.sock")).unwrap();
        stream.write_all(b"{\"verb\":\"status\"}\n").unwrap();
        let mut reply = String::new();
        BufReader::new(stream).read_line(&mut reply).unwrap();
        assert!(reply.contains("uptime_seconds"), "{reply}");
        start.elapsed()
    }

    pub fn json(&self, arguments: &[&str]) -> Value {
        let mut arguments = arguments.to_vec();
        arguments.push("--json");
        let output = self.command(&arguments);
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The element of `groups --json`.
    pub fn group(&self) -> Value {
        self.json(&["groups"])[0].clone()
    }

    /// The first event, which is waited for.
    pub fn event(&self) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let output = self.command(&["events", "--json"]);
            let text = String::from_utf8(output.stdout).unwrap();
            if let Some(line) = text.lines().next() {
                return serde_json::from_str(line).unwrap();
            }
            assert!(Instant::now() < deadline, "there is no event");
            thread::sleep(Duration::from_millis(100));
        }
    }

    /// The periods in which the kernel throttled the group, by its cgroup, which an agent need not be there for.
    pub fn throttled_periods(&self) -> u64 {
        let path = self.cgroup("g");
        let texts = hierarchies().into_iter().filter_map(|root| {
            fs::read_to_string(root.join(path.trim_matches('/')).join("cpu.stat")).ok()
        });
        texts
            .filter_map(|text| {
                text.lines()
                    .find_map(|line| line.strip_prefix("nr_throttled ")?.parse::<u64>().ok())
            })
            .sum()
    }

    /// Ends the agent by a signal.
    pub fn stop(&mut self, signal: Signal) {
        let mut agent = self.agent.take().unwrap();
        kill(Pid::from_raw(agent.id().cast_signed()), signal).unwrap();
        agent.wait().unwrap();
    }

    /// A worker that has been put in the group and was not told to begin yet.
    pub fn spawn(&self, work: &[&str]) -> Worker {
        let worker = Worker::spawn(&self.worker(), work);
        self.wait_for(worker.id());
        worker
    }

    /// Waits until a process is in the group.
    pub fn wait_for(&self, pid: u32) {
        let deadline = Instant::now() + PATIENCE;
        while !is_in(pid, &self.cgroup("g")) {
            assert!(
                Instant::now() < deadline,
                "{pid} is not in the group: {:?}",
                cgroups_of(pid)
            );
            thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Some(mut agent) = self.agent.take() {
            // To the end, whatever the test came to: SIGTERM, so that a config that detaches does.
            let _ = kill(Pid::from_raw(agent.id().cast_signed()), Signal::SIGTERM);
            let _ = agent.wait();
        }
        let config = self.path("limits.toml");
        if let (Some(agent), true) = (agent(), config.exists()) {
            let _ = Command::new(agent)
                .arg("detach")
                .arg("--config")
                .arg(config)
                .output();
        }
    }
}

/// Copies a program. Another process does it: a child that this one forks for another test meanwhile would hold the copy
/// open for writing, and such a file cannot be executed.
pub fn copy(program: &Path, to: &Path) {
    let status = Command::new("cp").arg(program).arg(to).status().unwrap();
    assert!(
        status.success(),
        "cp {} {}",
        program.display(),
        to.display()
    );
}

/// The lines of /proc/PID/cgroup.
pub fn cgroups_of(pid: u32) -> Vec<String> {
    let text = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
    text.lines().map(str::to_owned).collect()
}

/// Whether a process is in this cgroup in the unified hierarchy, and so in all: it is the first that is written, and any
/// other follows at once; the wait for `cpu` makes sure of the last.
fn is_in(pid: u32, cgroup: &str) -> bool {
    let held = [
        "0::",
        ":cpu:",
        ":memory:",
        ":blkio:",
        ":pids:",
        ":cpu,cpuacct:",
    ];
    let lines = cgroups_of(pid);
    let relevant: Vec<&String> = lines
        .iter()
        .filter(|line| held.iter().any(|name| line.contains(name)))
        .collect();
    !relevant.is_empty() && relevant.iter().all(|line| line.ends_with(cgroup))
}

/// The CPU time that the first thread of a process has used.
pub fn cpu_time(pid: u32) -> Duration {
    crate::measure::scheduled(&PathBuf::from(format!("/proc/{pid}"))).unwrap()
}

/// How long threads of a process have waited for a CPU, of all the time that they could have run.
pub fn run_delay(pid: u32) -> Duration {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    let texts =
        threads.filter_map(|thread| fs::read_to_string(thread.path().join("schedstat")).ok());
    let nanoseconds = texts.filter_map(|text| text.split_whitespace().nth(1)?.parse::<u64>().ok());
    Duration::from_nanos(nanoseconds.sum())
}

/// The roots of all cgroup hierarchies.
pub fn hierarchies() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let fields = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    fields
        .filter(|fields| fields.get(2).is_some_and(|kind| kind.starts_with("cgroup")))
        .filter_map(|fields| fields.get(1).map(PathBuf::from))
        .collect()
}

/// A process that works for a test; killed when dropped.
pub struct Worker {
    child: Child,
    input: Option<ChildStdin>,
    output: BufReader<ChildStdout>,
}

impl Worker {
    pub fn spawn(program: &Path, work: &[&str]) -> Self {
        let mut command = Command::new(program);
        let mut child = command
            .arg("--work")
            .args(work)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (input, output) = (
            child.stdin.take(),
            BufReader::new(child.stdout.take().unwrap()),
        );
        Self {
            child,
            input,
            output,
        }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Tells it to begin.
    pub fn begin(&mut self) {
        assert_eq!(self.line(), "ready");
        self.input.as_mut().unwrap().write_all(b"\n").unwrap();
    }

    /// Closes its input.
    pub fn end(&mut self) {
        self.input = None;
    }

    /// The next line it prints.
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        self.output.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// The two numbers of its next line.
    pub fn numbers(&mut self) -> (f64, f64) {
        let line = self.line();
        let (first, second) = line
            .split_once(' ')
            .unwrap_or_else(|| panic!("two numbers are wanted: {line:?}"));
        (first.parse().unwrap(), second.parse().unwrap())
    }

    /// All it still prints, and how it ended.
    pub fn rest(&mut self) -> (String, std::process::ExitStatus) {
        let mut rest = String::new();
        self.output.read_to_string(&mut rest).unwrap();
        (rest, self.child.wait().unwrap())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
