//! Three hosts of a fleet, a store and a publisher.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::fcntl::{Flock, FlockArg};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;
use testbed::fleet::Asker;
use testbed::wait::PATIENCE;

pub const HOSTS: usize = 3;
/// The limit of the fleet.
pub const LIMIT: &str = "web";
/// The shortest bake.
pub const BAKE: &str = "10s";

/// A limit on requests.
pub fn rules(rate: &str) -> String {
    limit(LIMIT, rate)
}

/// A limit on requests with this name.
pub fn limit(name: &str, rate: &str) -> String {
    format!(
        "[[limit]]\nname = {name:?}\nscope = \"request\"\nkey = [\"service\"]\nrate = {rate:?}\nburst = 100\n"
    )
}

/// A host of the fleet.
pub struct Host {
    pub child: Child,
    pub folder: tempfile::TempDir,
    pub environment: Environment,
}

/// A variable that agents and commands have, such as that of the store's authorities.
pub type Environment = Option<(&'static str, PathBuf)>;

impl Host {
    pub fn start(node: &str, fleet: &Fleet, more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let fleet_table = fleet.table();
        let text = format!(
            "[agent]\ncontrol = {:?}\nstate_dir = {:?}\n[decide]\nhttp = \"unix:{}\"\n[fleet]\n\
             {fleet_table}every = \"1s\"\nnode = {node:?}\nlabels = {{ role = \"web\" }}\n\
             [[limit]]\nname = \"own\"\nscope = \"request\"\nkey = [\"service\"]\nrate = \"1/s\"\n{more}",
            path("control.sock"),
            path("state"),
            path("decide.sock").display(),
        );
        fs::write(path("limits.toml"), text).unwrap();
        let environment = fleet.environment.clone();
        let child = spawn(folder.path(), &environment);
        let mut host = Self {
            child,
            folder,
            environment,
        };
        host.wait();
        host
    }

    pub fn wait(&mut self) {
        let began = Instant::now();
        while !self.command(&["status"]).status.success() {
            let ended = self.child.try_wait().unwrap();
            assert!(ended.is_none(), "the agent ended: {}", self.log());
            assert!(began.elapsed() < PATIENCE, "{}", self.log());
            thread::sleep(Duration::from_millis(20));
        }
    }

    pub fn restart(&mut self, signal: Signal) {
        kill(Pid::from_raw(self.child.id() as i32), signal).unwrap();
        self.child.wait().unwrap();
        self.child = spawn(self.folder.path(), &self.environment);
        self.wait();
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    pub fn command(&self, arguments: &[&str]) -> Output {
        let control = self.folder.path().join("control.sock");
        let mut command = Command::new(testbed::agent());
        command.args(arguments).arg("--control").arg(control);
        command.output().unwrap()
    }

    pub fn status(&self) -> Value {
        let output = self.command(&["status", "--json"]);
        serde_json::from_slice(&output.stdout)
            .unwrap_or_else(|_| panic!("{output:?}\n{}", self.log()))
    }

    /// The fleet's own stream in its status.
    pub fn rules(&self) -> Value {
        self.status()["rules"][0].clone()
    }

    pub fn version(&self) -> u64 {
        self.rules()["version"].as_u64().unwrap()
    }

    /// The rate of the fleet's limit in effect.
    pub fn rate(&self) -> Option<String> {
        self.rate_of(LIMIT)
    }

    /// The rate of a limit in effect.
    pub fn rate_of(&self, name: &str) -> Option<String> {
        let output = self.command(&["limits", "--json"]);
        let limits: Vec<Value> = serde_json::from_slice(&output.stdout).unwrap();
        let limit = limits.iter().find(|limit| limit["name"] == name)?;
        Some(limit["rate"].as_str().unwrap().to_owned())
    }

    /// The reasons of its events of a kind.
    pub fn events(&self, kind: &str) -> Vec<String> {
        let output = self.command(&["events", "--json"]);
        let lines = String::from_utf8(output.stdout).unwrap();
        let events = lines
            .lines()
            .map(|line| serde_json::from_str(line).unwrap());
        let of_kind = events.filter(|event: &Value| event["verdict"] == kind);
        of_kind
            .map(|event| event["reason"].as_str().unwrap().to_owned())
            .collect()
    }

    pub fn until(&self, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        self.until_stream(0, what, holds)
    }

    /// Waits for a state of the stream that is the `nth` of its status.
    pub fn until_stream(&self, nth: usize, what: &str, holds: impl Fn(&Value) -> bool) -> Value {
        let began = Instant::now();
        loop {
            let rules = self.status()["rules"][nth].clone();
            if holds(&rules) {
                return rules;
            }
            let waited = began.elapsed();
            assert!(waited < PATIENCE, "not {what}: {rules}\n{}", self.log());
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Sends requests to the fleet's limit; returns how many were allowed.
    pub fn request(&self, count: usize) -> usize {
        self.request_of(LIMIT, count)
    }

    /// Sends requests to a limit; returns how many were allowed.
    pub fn request_of(&self, limit: &str, count: usize) -> usize {
        let socket = self.folder.path().join("decide.sock");
        let mut asker = Asker::at(&socket);
        let questions = (0..count).map(|_| Asker::question_to(limit, "shop"));
        let allowed = asker.ask_all(questions);
        allowed.into_iter().filter(|allowed| *allowed).count()
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(folder: &Path, environment: &Environment) -> Child {
    let log = fs::OpenOptions::new()
        .create(true)
        .append(true)
        .open(folder.join("log"))
        .unwrap();
    let mut command = Command::new(testbed::agent());
    command
        .envs(environment.clone())
        .arg("--config")
        .arg(folder.join("limits.toml"))
        .env_remove("STATE_DIRECTORY")
        .stdin(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap()
}

/// A store with its publisher.
pub struct Fleet {
    pub folder: tempfile::TempDir,
    /// `[fleet] rules`.
    pub rules: String,
    pub public_key: String,
    pub environment: Environment,
}

impl Fleet {
    /// In a folder.
    pub fn new() -> Self {
        Self::of("web")
    }

    /// A stream with this name, in a folder of its own.
    pub fn of(stream: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("store")).unwrap();
        let rules = format!("file://{}/store/{stream}", folder.path().display());
        Self::at(folder, rules)
    }

    /// The stream and its key, as a host's file has them.
    pub fn table(&self) -> String {
        let Self {
            rules, public_key, ..
        } = self;
        format!("rules = {rules:?}\npublic_keys = [{public_key:?}]\n")
    }

    pub fn at(folder: tempfile::TempDir, rules: String) -> Self {
        let key = folder.path().join("key");
        let output = weir(&["fleet", "keygen", key.to_str().unwrap()], &None);
        let line = said(&output);
        let public_key = line.split('"').nth(1).unwrap().to_owned();
        Self {
            folder,
            rules,
            public_key,
            environment: None,
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// An object of the stream in a folder.
    pub fn object(&self, name: &str) -> PathBuf {
        self.path("store/web").join(name)
    }

    /// Replaces an object as hosts and publishers do: whole, and not between what another reads and writes.
    pub fn replace(&self, name: &str, text: &str) {
        let path = self.object(name);
        let lock = File::create(self.object("index.lock")).unwrap();
        let _lock = Flock::lock(lock, FlockArg::LockExclusive).unwrap();
        let next = self.path("next");
        fs::write(&next, text).unwrap();
        fs::rename(&next, path).unwrap();
    }

    /// Waits until this holds for the publisher's view of the stream.
    pub fn until(&self, holds: impl Fn(&Value) -> bool) {
        let began = Instant::now();
        loop {
            let status = self.status();
            if holds(&status) {
                return;
            }
            assert!(began.elapsed() < PATIENCE, "{status}");
            thread::sleep(Duration::from_millis(50));
        }
    }

    /// Waits until all hosts have reported that they keep the newest version.
    pub fn until_reported(&self) {
        self.until(|status| status["held"] == HOSTS);
    }

    pub fn hosts(&self) -> Vec<Host> {
        (0..HOSTS)
            .map(|nth| Host::start(&format!("web-{nth}"), self, ""))
            .collect()
    }

    /// Publishes rules once all hosts have reported.
    pub fn publish(&self, text: &str, arguments: &[&str]) -> String {
        self.publish_to(HOSTS, self, text, arguments)
    }

    /// Publishes rules with the key of a stream, maybe another one, once so many hosts have reported.
    pub fn publish_to(
        &self,
        hosts: usize,
        signer: &Self,
        text: &str,
        arguments: &[&str],
    ) -> String {
        self.until(|status| status["hosts"].as_u64() >= Some(hosts as u64));
        let file = self.path("rules.toml");
        fs::write(&file, text).unwrap();
        let key = signer.path("key");
        let (file, key) = (file.to_str().unwrap(), key.to_str().unwrap());
        let fixed = ["fleet", "publish", file, "--to", &self.rules, "--key", key];
        let bake = if arguments.contains(&"--bake") {
            &[][..]
        } else {
            &["--bake", BAKE]
        };
        let output = self.weir(&[&fixed[..], bake, arguments].concat());
        assert!(output.status.success(), "{}", said(&output));
        said(&output)
    }

    pub fn weir(&self, arguments: &[&str]) -> Output {
        weir(arguments, &self.environment)
    }

    pub fn abort(&self, reason: &str) {
        let key = self.path("key");
        let key = key.to_str().unwrap();
        let fixed = ["fleet", "abort", "--to", &self.rules, "--key", key];
        let output = self.weir(&[&fixed[..], &["--reason", reason]].concat());
        assert!(output.status.success(), "{}", said(&output));
    }

    pub fn status(&self) -> Value {
        let output = self.weir(&["fleet", "status", "--to", &self.rules, "--json"]);
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", said(&output)))
    }
}

fn weir(arguments: &[&str], environment: &Environment) -> Output {
    let mut command = Command::new(testbed::agent());
    command.envs(environment.clone());
    command.args(arguments).output().unwrap()
}

/// The output of a command.
pub fn said(output: &Output) -> String {
    let [out, error] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    format!("{out}{error}")
}

/// The host that a publisher's output names as the canary, and the others.
pub fn canary_of<'h>(published: &str, hosts: &'h [Host]) -> (&'h Host, Vec<&'h Host>) {
    let is_named = |nth: &usize| published.contains(&format!("web-{nth}"));
    let named: Vec<usize> = (0..HOSTS).filter(is_named).collect();
    assert_eq!(named.len(), 1, "{published}");
    let others = (0..HOSTS).filter(|nth| !named.contains(nth));
    (&hosts[named[0]], others.map(|nth| &hosts[nth]).collect())
}

/// Waits until a version has held on all hosts.
pub fn until_held(hosts: &[Host], version: u64) {
    for host in hosts {
        host.until("held", |rules| {
            rules["state"] == "held" && rules["version"] == version
        });
    }
}

/// Good rules reach all, from this store.
pub fn spread(fleet: &Fleet) -> Vec<Host> {
    let hosts = fleet.hosts();
    let published = fleet.publish(&rules("1000/s"), &[]);
    let (canary, others) = canary_of(&published, &hosts);
    canary.until("on trial", |rules| rules["state"] == "trying");
    assert_eq!(canary.rate().as_deref(), Some("1000/s"));
    // The others have nothing of it while the canary has not held.
    for other in &others {
        let rules = other.until("waiting", |rules| rules["accepted"] == 1);
        let is_behind = canary.rules()["state"] == "trying";
        assert!(!is_behind || rules["version"] == 0, "{rules}");
    }
    until_held(&hosts, 1);
    for host in &hosts {
        assert_eq!(host.rate().as_deref(), Some("1000/s"));
        assert_eq!(host.events("rules-tried").len(), 1);
        assert_eq!(host.events("rules-confirmed").len(), 1);
    }
    hosts
}
