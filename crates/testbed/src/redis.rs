//! A redis-server or valkey-server of the test, on a free loopback port; stopped on drop.

use std::cell::RefCell;
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::port::Port;
use crate::wait::PATIENCE;

/// Why there is no store here; `None` if there is one.
pub fn obstacle() -> Option<&'static str> {
    let found = Command::new("redis-server")
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    if found.is_ok_and(|status| status.success()) {
        None
    } else {
        Some("there is no redis-server: run `cargo xtask setup --group test`")
    }
}

/// The program of Valkey, if available: `WEIR_VALKEY`, or the installed one.
pub fn valkey() -> Option<String> {
    let program = std::env::var("WEIR_VALKEY").unwrap_or_else(|_| "valkey-server".to_owned());
    let found = Command::new(&program)
        .arg("--version")
        .stdout(Stdio::null())
        .status();
    found
        .is_ok_and(|status| status.success())
        .then_some(program)
}

thread_local! {
    static PROGRAM: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Uses this program for every server that this thread starts.
pub fn start_servers_by(program: &str) {
    PROGRAM.set(program.to_owned());
}

/// The program of this thread's servers.
pub fn program() -> String {
    PROGRAM.with_borrow(|program| {
        if program.is_empty() {
            "redis-server".to_owned()
        } else {
            program.clone()
        }
    })
}

/// A running server.
pub struct Redis {
    program: String,
    child: Child,
    folder: tempfile::TempDir,
    port: Port,
    arguments: Vec<String>,
}

impl Redis {
    /// Starts one with more arguments, and waits until it replies.
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_by(&program(), arguments)
    }

    /// The same with another program.
    pub fn start_by(program: &str, arguments: &[&str]) -> Self {
        let (folder, port) = (tempfile::tempdir().unwrap(), Port::reserve());
        let arguments: Vec<String> = arguments.iter().map(|&one| one.to_owned()).collect();
        let child = spawn(program, &folder, port.number(), &arguments);
        let mut redis = Self {
            program: program.to_owned(),
            child,
            folder,
            port,
            arguments,
        };
        redis.wait();
        redis
    }

    fn wait(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        // It listens on the Unix socket last.
        while TcpStream::connect(("127.0.0.1", self.port())).is_err()
            || UnixStream::connect(self.socket()).is_err()
        {
            assert!(
                self.child.try_wait().unwrap().is_none(),
                "redis-server ended: {}",
                self.said()
            );
            assert!(
                Instant::now() < deadline,
                "redis-server does not listen within {PATIENCE:?}: {}",
                self.said()
            );
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    pub fn port(&self) -> u16 {
        self.port.number()
    }

    pub fn url(&self) -> String {
        let scheme = if self.program.contains("valkey") {
            "valkey"
        } else {
            "redis"
        };
        format!("{scheme}://127.0.0.1:{}", self.port())
    }

    /// Its Unix socket, which network namespaces do not hide.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// One command of redis-cli; returns its output.
    pub fn cli(&self, arguments: &[&str]) -> String {
        let output = Command::new("redis-cli")
            .args(["-s", self.socket().to_str().unwrap(), "--no-auth-warning"])
            .args(arguments)
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    }

    fn signal(&self, signal: nix::sys::signal::Signal) {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(self.child.id() as i32), signal).unwrap();
    }

    /// Stops it: it accepts data but does not reply.
    pub fn hang(&self) {
        self.signal(nix::sys::signal::Signal::SIGSTOP);
    }

    /// Continues it.
    pub fn go_on(&self) {
        self.signal(nix::sys::signal::Signal::SIGCONT);
    }

    /// Kills it.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Restarts it on its port, empty.
    pub fn restart(&mut self) {
        self.child = spawn(&self.program, &self.folder, self.port(), &self.arguments);
        self.wait();
    }
}

impl Drop for Redis {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(program: &str, folder: &tempfile::TempDir, port: u16, arguments: &[String]) -> Child {
    let path = folder.path();
    let mut command = Command::new(program);
    // With TLS or as a Sentinel, the later arguments override these.
    command.args([
        "--bind",
        "127.0.0.1",
        "--port",
        &port.to_string(),
        "--save",
        "",
        "--appendonly",
        "no",
    ]);
    command
        .arg("--dir")
        .arg(path)
        .arg("--logfile")
        .arg(path.join("log"));
    command
        .arg("--unixsocket")
        .arg(path.join("socket"))
        .args(arguments);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}
