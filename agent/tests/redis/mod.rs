//! A redis-server of the test's own, on a loopback port that nobody has, gone when dropped.

use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

/// Why there is no store here, if there is none.
pub fn obstacle() -> Option<&'static str> {
    let found = Command::new("redis-server").arg("--version").stdout(Stdio::null()).status();
    if found.is_ok_and(|status| status.success()) {
        None
    } else {
        Some("there is no redis-server: run `cargo xtask setup --group test`")
    }
}

/// The program of Valkey, if there is one: `WEIR_VALKEY`, or what the system finds.
pub fn valkey() -> Option<String> {
    let program = std::env::var("WEIR_VALKEY").unwrap_or_else(|_| "valkey-server".to_owned());
    let found = Command::new(&program).arg("--version").stdout(Stdio::null()).status();
    found.is_ok_and(|status| status.success()).then_some(program)
}

/// A running server.
pub struct Redis {
    program: String,
    child: Child,
    folder: tempfile::TempDir,
    port: u16,
    arguments: Vec<String>,
}

impl Redis {
    /// Starts one, with more arguments, and waits until it answers.
    pub fn start(arguments: &[&str]) -> Self {
        Self::start_by("redis-server", arguments)
    }

    /// The same by another program.
    pub fn start_by(program: &str, arguments: &[&str]) -> Self {
        let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
        let arguments: Vec<String> = arguments.iter().map(|&one| one.to_owned()).collect();
        let child = spawn(program, &folder, port, &arguments);
        let mut redis = Self { program: program.to_owned(), child, folder, port, arguments };
        redis.wait();
        redis
    }

    fn wait(&mut self) {
        let deadline = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(self.child.try_wait().unwrap().is_none(), "redis-server ended: {}", self.said());
            assert!(Instant::now() < deadline, "redis-server does not listen within 30 s: {}", self.said());
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.folder.path().join("log")).unwrap_or_default()
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Its socket in the file system, which network namespaces do not hide.
    pub fn socket(&self) -> PathBuf {
        self.folder.path().join("socket")
    }

    /// One command of redis-cli; what it said.
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

    /// It takes what is sent, and says nothing.
    pub fn hang(&self) {
        self.signal(nix::sys::signal::Signal::SIGSTOP);
    }

    /// It answers again.
    pub fn go_on(&self) {
        self.signal(nix::sys::signal::Signal::SIGCONT);
    }

    /// It is gone.
    pub fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// It is back on its port, empty.
    pub fn restart(&mut self) {
        self.child = spawn(&self.program, &self.folder, self.port, &self.arguments);
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
    // With TLS or as a Sentinel, what comes later holds.
    command.args(["--bind", "127.0.0.1", "--port", &port.to_string(), "--save", "", "--appendonly", "no"]);
    command.arg("--dir").arg(path).arg("--logfile").arg(path.join("log"));
    command.arg("--unixsocket").arg(path.join("socket")).args(arguments);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap()
}

/// A port that nobody listens on, nor did a moment ago.
pub fn free_port() -> u16 {
    // The port of a Cluster's node plus 10,000 has to be one as well.
    loop {
        let port = TcpListener::bind(("127.0.0.1", 0)).unwrap().local_addr().unwrap().port();
        if port < 55_000 {
            return port;
        }
    }
}
