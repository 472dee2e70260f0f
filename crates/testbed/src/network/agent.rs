//! Agents in the namespace of the server.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::{INTERFACE, Network, agent};
use crate::wait::{PATIENCE, until};

impl Network {
    /// A config for another agent on the same interface, with its own socket and pins at `pins`.
    pub fn rival(&self, agent: &str, rest: &str, pins: &Path) -> PathBuf {
        let path = self.folder.path().join("rival.toml");
        let control = self.folder.path().join("rival.sock");
        let state = self.folder.path().join("rival-state");
        let text = format!(
            "[agent]\ninterfaces = [{INTERFACE:?}]\ncontrol = {control:?}\npins = {pins:?}\nstate_dir = {state:?}\n{agent}\n{rest}\n"
        );
        std::fs::write(&path, text).unwrap();
        path
    }

    /// A config with `[agent]` filled in: `agent` is added to that table, `rest` follows it.
    pub fn config(&self, agent: &str, rest: &str) -> PathBuf {
        self.config_on(&[INTERFACE], agent, rest)
    }

    /// The same for other interfaces.
    pub fn config_on(&self, interfaces: &[&str], agent: &str, rest: &str) -> PathBuf {
        let path = self.folder.path().join("limits.toml");
        let control = self.control();
        let is_empty = !rest.contains("[[limit]]") && !rest.contains("[[group]]");
        let allow_empty = if is_empty { "allow_empty = true\n" } else { "" };
        let text = format!(
            "[agent]\ninterfaces = {interfaces:?}\ncontrol = {control:?}\npins = {:?}\nstate_dir = {:?}\n\
             resolv_conf = [{:?}]\n{allow_empty}{agent}\n{rest}\n",
            self.pins,
            self.state(),
            self.resolv_conf()
        );
        std::fs::write(&path, text).unwrap();
        path
    }

    pub fn control(&self) -> PathBuf {
        self.folder.path().join("control.sock")
    }

    /// The file with resolvers that the agent reads instead of the machine's; it is missing until a test writes it.
    pub fn resolv_conf(&self) -> PathBuf {
        self.folder.path().join("resolv.conf")
    }

    /// The agent's state directory.
    pub fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    /// Starts an agent, and waits until it enforces.
    pub fn start(&self, agent: &str, rest: &str) -> Agent<'_> {
        self.start_on(&[INTERFACE], agent, rest)
    }

    /// The same on other interfaces.
    pub fn start_on(&self, interfaces: &[&str], agent: &str, rest: &str) -> Agent<'_> {
        let config = self.config_on(interfaces, agent, rest);
        self.start_file(&config, &[])
    }

    /// Starts an agent without waiting for it.
    pub fn spawn_agent(&self, config: &Path, environment: &[(&str, &str)]) -> Agent<'_> {
        self.spawn_with(config, |command| {
            command.envs(environment.iter().copied());
        })
    }

    /// The same with changes to its process by `set_up`.
    pub fn spawn_with(&self, config: &Path, set_up: impl FnOnce(&mut Command)) -> Agent<'_> {
        let mut command = self.program();
        command.arg("--config").arg(config).stderr(Stdio::piped());
        set_up(&mut command);
        Agent {
            network: self,
            child: self.in_server(|| command.spawn()).unwrap(),
        }
    }

    /// Starts an agent that sees another boot of the kernel, and waits until it enforces.
    pub fn start_in_boot(&self, boot: &str, config: &Path) -> Agent<'_> {
        let file = self.folder.path().join(format!("boot-{boot}"));
        std::fs::write(&file, format!("{boot}\n")).unwrap();
        let mut command = Command::new("unshare");
        command.args([
            "-m",
            "sh",
            "-c",
            "mount --bind \"$0\" /proc/sys/kernel/random/boot_id && exec \"$@\"",
        ]);
        command
            .arg(file)
            .arg(agent().unwrap())
            .arg("--config")
            .arg(config)
            .stderr(Stdio::piped());
        self.wait_for_agent(Agent {
            network: self,
            child: self.in_server(|| command.spawn()).unwrap(),
        })
    }

    /// A command that sees a file system of memory instead of a directory, with what `fill` writes there.
    pub fn hiding(directory: &str, fill: &str, arguments: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        command.args([
            "-m",
            "sh",
            "-c",
            "mount -t tmpfs none \"$0\" && cd \"$0\" && eval \"$1\" && cd / && shift && exec \"$@\"",
            directory,
            fill,
        ]);
        command.arg(agent().unwrap()).args(arguments);
        command
    }

    /// Starts an agent that sees a file system of memory instead of a directory, and waits until it enforces. Its log is
    /// added to `log`.
    pub fn start_hiding(
        &self,
        (directory, fill): (&str, &str),
        config: &Path,
        log: &Path,
    ) -> Agent<'_> {
        let config = config.to_str().unwrap();
        let mut command = Self::hiding(directory, fill, &["--config", config]);
        let log = std::fs::File::options().create(true).append(true).open(log);
        command.stderr(log.unwrap());
        self.wait_for_agent(Agent {
            network: self,
            child: self.in_server(|| command.spawn()).unwrap(),
        })
    }

    /// Starts an agent in a cgroup, without waiting for it.
    pub fn spawn_in_group(&self, cgroup: &Path, config: &Path) -> Agent<'_> {
        let mut command = Command::new("sh");
        command
            .args(["-c", "echo $$ > \"$0\" && exec \"$@\""])
            .arg(cgroup.join("cgroup.procs"));
        command
            .arg(agent().unwrap())
            .arg("--config")
            .arg(config)
            .stderr(Stdio::piped());
        // As a service manager does.
        command.env("STATE_DIRECTORY", self.state());
        Agent {
            network: self,
            child: self.in_server(|| command.spawn()).unwrap(),
        }
    }

    /// The same, and waits until it enforces.
    pub fn start_in_group(&self, cgroup: &Path, config: &Path) -> Agent<'_> {
        self.wait_for_agent(self.spawn_in_group(cgroup, config))
    }

    /// Starts an agent with an unmodified config, and waits until it enforces.
    pub fn start_file(&self, config: &Path, environment: &[(&str, &str)]) -> Agent<'_> {
        self.wait_for_agent(self.spawn_agent(config, environment))
    }

    /// Waits until an agent enforces.
    pub fn wait_for_agent<'n>(&'n self, mut agent: Agent<'n>) -> Agent<'n> {
        let child = &mut agent.child;
        let deadline = Instant::now() + PATIENCE;
        while std::os::unix::net::UnixStream::connect(self.control()).is_err() || !self.answers() {
            if let Some(status) = child.try_wait().unwrap() {
                let mut said = String::new();
                child
                    .stderr
                    .take()
                    .unwrap()
                    .read_to_string(&mut said)
                    .unwrap();
                panic!("the agent ended with {status}: {said}");
            }
            assert!(
                Instant::now() < deadline,
                "the agent did not answer within {PATIENCE:?}"
            );
            thread::sleep(Duration::from_millis(20));
        }
        agent
    }

    fn answers(&self) -> bool {
        self.command(&["status"]).status.success()
    }

    /// Runs one command of the CLI against this network's agent.
    pub fn command(&self, arguments: &[&str]) -> Output {
        self.command_with("WEIR_TEST", "1", arguments)
    }

    /// Runs one command that must succeed.
    pub fn told(&self, arguments: &[&str]) {
        let output = self.command(arguments);
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }

    /// Runs one command of the CLI with a variable in its environment.
    pub fn command_with(&self, variable: &str, value: &str, arguments: &[&str]) -> Output {
        let mut command = self.program();
        // Whoever runs the tests, bans are root's.
        command.env_remove("SUDO_USER").env(variable, value);
        command.args(arguments);
        let is_of_files = arguments.contains(&"--from");
        if !is_of_files
            && !matches!(
                arguments.first(),
                Some(&"run" | &"check" | &"detach" | &"doctor" | &"--config")
            )
        {
            command.arg("--control").arg(self.control());
        }
        self.in_server(|| command.output()).unwrap()
    }

    /// Starts one command of the CLI against this network's agent, with standard input and output from `set_up`.
    pub fn spawn(&self, arguments: &[&str], set_up: impl FnOnce(&mut Command)) -> Child {
        let mut command = self.program();
        command
            .args(arguments)
            .arg("--control")
            .arg(self.control())
            .stdin(Stdio::null());
        set_up(&mut command);
        // It does not need the network: the socket is a file.
        command.spawn().unwrap()
    }

    /// Runs an agent that must end by itself.
    pub fn run_to_end(&self, config: &Path) -> Output {
        let mut command = self.program();
        command
            .arg("--config")
            .arg(config)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = self.in_server(|| command.spawn()).unwrap();
        let deadline = Instant::now() + PATIENCE;
        while child.try_wait().unwrap().is_none() {
            if Instant::now() >= deadline {
                child.kill().unwrap();
                let said = child.wait_with_output().unwrap().stderr;
                panic!("the agent runs on: {}", String::from_utf8_lossy(&said));
            }
            thread::sleep(Duration::from_millis(20));
        }
        child.wait_with_output().unwrap()
    }
}

/// A running agent, killed when dropped.
pub struct Agent<'n> {
    network: &'n Network,
    child: Child,
}

impl Agent<'_> {
    /// The JSON of one command.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let mut arguments = arguments.to_vec();
        arguments.push("--json");
        let output = self.network.command(&arguments);
        let said = [&output.stderr, &output.stdout].map(|text| String::from_utf8_lossy(text));
        assert!(
            output.status.success(),
            "{arguments:?}: {}{}",
            said[0],
            said[1]
        );
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// The ban of a source; `null` if there is none.
    pub fn ban_of(&self, source: &str) -> Value {
        self.json(&["show", source])["ban"].clone()
    }

    pub fn is_banned(&self, source: &str) -> bool {
        !self.ban_of(source).is_null()
    }

    /// The events of which this holds, once there are so many: an event follows the state that it is about.
    pub fn events(&self, count: usize, is: impl Fn(&Value) -> bool) -> Vec<Value> {
        until("the events", || {
            let mut events = self.lines(&["events", "--json"]);
            events.retain(&is);
            (events.len() >= count).then_some(events)
        })
    }

    /// The documents of one command that prints one a line.
    pub fn lines(&self, arguments: &[&str]) -> Vec<Value> {
        let output = self.network.command(arguments);
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        String::from_utf8(output.stdout)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect()
    }

    /// One limit's element of `limits --json`.
    pub fn limit(&self, name: &str) -> Value {
        let limits = self.json(&["limits"]);
        limits
            .as_array()
            .unwrap()
            .iter()
            .find(|limit| limit["name"] == name)
            .unwrap()
            .clone()
    }

    /// (passed, throttled) packets of a limit.
    pub fn counts(&self, name: &str) -> (u64, u64) {
        let limit = self.limit(name);
        (
            limit["passed"]["packets"].as_u64().unwrap(),
            limit["throttled"]["packets"].as_u64().unwrap(),
        )
    }

    /// Waits until a line of its output contains this, and ends it by SIGTERM.
    pub fn wait_until_it_says(mut self, wanted: &str) {
        let mut lines = BufReader::new(self.child.stderr.take().unwrap()).lines();
        let mut said = Vec::new();
        loop {
            match lines.next() {
                Some(Ok(line)) if line.contains(wanted) => break,
                Some(Ok(line)) => said.push(line),
                _ => panic!("it did not say {wanted:?} but {said:?}"),
            }
        }
        self.signal(nix::sys::signal::Signal::SIGTERM);
        assert!(self.child.wait().unwrap().success());
    }

    /// Its CPU time, including the kernel's on its behalf.
    pub fn cpu_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        // The fields after the name in parentheses start with the third one; times are the 14th and 15th.
        let fields: Vec<&str> = stat
            .rsplit(')')
            .next()
            .unwrap()
            .split_whitespace()
            .collect();
        let ticks: u64 = fields[11..13]
            .iter()
            .map(|field| field.parse::<u64>().unwrap())
            .sum();
        Duration::from_millis(ticks * 10)
    }

    pub fn process(&self) -> u32 {
        self.child.id()
    }

    pub fn signal(&self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Waits until its status fulfils `wanted`, and returns it.
    pub fn wait_for(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = self.json(&["status"]);
            if wanted(&status) {
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "{what} did not come within {PATIENCE:?}: {status}"
            );
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// The remaining units of a limit for a source.
    pub fn remaining(&self, source: &str, limit: &str) -> u64 {
        let shown = self.json(&["show", source]);
        let limits = shown["limits"].as_array().unwrap();
        let of_limit = limits.iter().find(|shown| shown["name"] == limit);
        of_limit.unwrap_or_else(|| panic!("{shown} has no limit {limit}"))["remaining"]
            .as_u64()
            .unwrap()
    }

    /// Waits until it ends by itself; returns its output and exit status.
    pub fn end(mut self) -> (String, std::process::ExitStatus) {
        let mut said = String::new();
        self.child
            .stderr
            .take()
            .unwrap()
            .read_to_string(&mut said)
            .unwrap();
        (said, self.child.wait().unwrap())
    }

    /// Ends it with a signal; returns its output and exit status.
    pub fn stop(self, signal: nix::sys::signal::Signal) -> (String, std::process::ExitStatus) {
        self.signal(signal);
        self.end()
    }
}

impl Drop for Agent<'_> {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Stops a thread on drop.
pub struct StopWhenDropped<'a>(pub &'a AtomicBool);

impl Drop for StopWhenDropped<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}
