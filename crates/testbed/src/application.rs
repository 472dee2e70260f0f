//! A running agent for applications, and their requests. Needs no root: these configs have no limit on packets.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use crate::program;
use crate::wait::PATIENCE;
use serde_json::{Value, json};

/// Two limits on requests, with costs.
pub const CONFIG: &str = r#"
[[request]]
name = "query"
cost = "allowance / 10"
[[request]]
name = "publish"
cost = "100 * messages"

[[class]]
name = "payer"
sources = ["198.51.100.0/24"]
multiplier = 5

[[limit]]
name = "credits-per-user"
scope = "request"
key = ["user"]
unit = "credits"
rate = "600/h"
burst = 1000

[[limit]]
name = "logins"
scope = "request"
key = ["source", "path"]
domain = "shop"
algorithm = "sliding-log"
rate = "3/h"
"#;

/// A running agent, killed when dropped.
pub struct Agent {
    pub child: Child,
    pub folder: tempfile::TempDir,
    pub http: String,
    pub grpc: String,
    pub metrics: String,
}

/// The settings of an agent.
pub struct Setup<'s> {
    /// The lines of `[decide]`; FOLDER is replaced by the agent's folder.
    pub decide: &'s str,
    /// More lines of `[agent]`.
    pub agent: &'s str,
    /// Requests, classes and limits.
    pub config: &'s str,
    /// The most file descriptors.
    pub descriptors: Option<u64>,
}

impl Default for Setup<'_> {
    fn default() -> Self {
        Self {
            decide: "http = \"127.0.0.1:0\"",
            agent: "",
            config: CONFIG,
            descriptors: None,
        }
    }
}

impl Agent {
    /// Starts one, and waits until it listens.
    pub fn start(decide: &str) -> Self {
        Self::start_with(decide, CONFIG)
    }

    /// Starts one with these limits.
    pub fn start_with(decide: &str, config: &str) -> Self {
        Self::start_as(&Setup {
            decide,
            config,
            ..Setup::default()
        })
    }

    /// Starts one with these settings, and waits until it listens.
    pub fn start_as(setup: &Setup<'_>) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let decide = setup
            .decide
            .replace("FOLDER", folder.path().to_str().unwrap());
        // Callers are limited here, whatever gateways this host has.
        let agent = format!(
            "[agent]\ncontrol = {:?}\nstate_dir = {:?}\nprotect = false\n{}\n",
            path("control.sock"),
            path("state"),
            setup.agent
        );
        let text = format!("{agent}[decide]\n{decide}\n{}", setup.config);
        std::fs::write(path("limits.toml"), text).unwrap();
        Self::launch(folder, setup.descriptors)
    }

    /// Stops it as an operator does, and starts it again with the same files.
    pub fn restart(&mut self) {
        let pid = nix::unistd::Pid::from_raw(self.child.id() as i32);
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
        assert!(self.child.wait().unwrap().success());
        let folder = std::mem::replace(&mut self.folder, tempfile::tempdir().unwrap());
        *self = Self::launch(folder, None);
    }

    fn launch(folder: tempfile::TempDir, descriptors: Option<u64>) -> Self {
        let file = folder.path().join("limits.toml");
        let text = std::fs::read_to_string(&file).unwrap();
        let mut command = Command::new(program::agent());
        command.arg("--config").arg(&file).stderr(Stdio::piped());
        if let Some(most) = descriptors {
            // SAFETY: one system call between fork and exec.
            unsafe {
                command.pre_exec(move || {
                    let limit = libc::rlimit {
                        rlim_cur: most,
                        rlim_max: most,
                    };
                    match libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) {
                        0 => Ok(()),
                        _ => Err(std::io::Error::last_os_error()),
                    }
                });
            }
        }
        let mut child = command.spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (said, heard) = mpsc::channel();
        thread::spawn(move || {
            stderr
                .lines()
                .map_while(Result::ok)
                .for_each(|line| drop(said.send(line)));
        });
        let mut agent = Self {
            child,
            folder,
            http: String::new(),
            grpc: String::new(),
            metrics: String::new(),
        };
        let listens = |line: &&str| {
            ["http =", "grpc =", "metrics ="]
                .iter()
                .any(|key| line.starts_with(key))
        };
        let wanted = text.lines().filter(listens).count();
        let mut found = 0;
        while found < wanted {
            let line = heard
                .recv_timeout(PATIENCE)
                .expect("the agent says where it listens");
            for (what, place) in [
                ("HTTP on ", &mut agent.http),
                ("gRPC on ", &mut agent.grpc),
                ("metrics on http://", &mut agent.metrics),
            ] {
                if let Some((_, at)) = line.split_once(what) {
                    *place = at.trim_end_matches("/metrics").to_owned();
                    found += 1;
                }
            }
        }
        // If it replies there, it is also ready to be stopped.
        assert!(agent.command(&["status"]).status.success());
        agent
    }

    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("control.sock")
    }

    /// The document of a command.
    pub fn json(&self, arguments: &[&str]) -> Value {
        let output = self.command(&[arguments, &["--json"]].concat());
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).unwrap()
    }

    /// CPU time that the agent has used so far.
    pub fn cpu_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<&str> = stat.rsplit_once(") ").unwrap().1.split(' ').collect();
        let ticks = fields[11].parse::<u64>().unwrap() + fields[12].parse::<u64>().unwrap();
        Duration::from_millis(ticks * 10)
    }

    /// Posts a body; returns the status, the head and the document.
    pub fn post(&self, body: &str) -> (u16, String, Value) {
        let head = format!(
            "POST /v1/decide HTTP/1.1\r\nhost: weir\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        self.exchange(&(head + body))
    }

    pub fn exchange(&self, request: &str) -> (u16, String, Value) {
        match self.http.strip_prefix("unix:") {
            Some(path) => exchange(UnixStream::connect(path).unwrap(), request),
            None => exchange(TcpStream::connect(&self.http).unwrap(), request),
        }
    }

    pub fn ask(&self, question: &Value) -> (u16, Value) {
        let (status, _, answer) = self.post(&question.to_string());
        (status, answer)
    }

    pub fn command(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(program::agent());
        command
            .args(arguments)
            .arg("--control")
            .arg(self.socket())
            .output()
            .unwrap()
    }

    pub fn remaining(&self, user: &str) -> u64 {
        let (status, answer) =
            self.ask(&json!({"limit": "credits-per-user", "key": {"user": user}, "peek": true}));
        assert_eq!(status, 200, "{answer}");
        answer["remaining"].as_u64().unwrap()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub fn exchange(mut stream: impl Read + Write, request: &str) -> (u16, String, Value) {
    // The agent may reply and close before it has read a body that is too long.
    let _ = stream.write_all(request.as_bytes());
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    let answer = String::from_utf8(answer).unwrap();
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .unwrap_or_else(|| panic!("no answer: {answer:?}"));
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (
        status,
        head.to_lowercase(),
        serde_json::from_str(body).unwrap(),
    )
}
