//! A redis-server for a test: on a loopback port of its own, in a folder of its own, ended by its process id.

use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use redis_limits::Store;

/// A running server, killed when dropped.
pub struct Server {
    child: Child,
    port: u16,
    folder: tempfile::TempDir,
    options: &'static [&'static str],
}

impl Server {
    /// Starts one, and waits until it answers.
    pub fn start() -> Self {
        Self::with(&[])
    }

    fn with(options: &'static [&'static str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        // Another program may take the port between the two steps; then this server ends, and the next port is tried.
        for _ in 0..10 {
            let port = free_port();
            let mut child = spawn(port, &folder, options);
            if answers(&mut child, port) {
                return Self {
                    child,
                    port,
                    folder,
                    options,
                };
            }
        }
        panic!("redis-server found no port on loopback");
    }

    pub fn address(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn store(&self, timeout: Duration) -> Store {
        Store::single(&self.address(), timeout).unwrap()
    }

    /// Holds it where it is: it neither answers nor closes a connection.
    pub fn pause(&self) {
        kill(self.pid(), Signal::SIGSTOP).unwrap();
    }

    pub fn go_on(&self) {
        kill(self.pid(), Signal::SIGCONT).unwrap();
    }

    pub fn stop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// On the same port, with nothing in memory.
    pub fn restart(&mut self) {
        self.child = spawn(self.port, &self.folder, self.options);
        assert!(answers(&mut self.child, self.port), "it came not back");
    }

    /// Its reply as text.
    pub fn command(&self, words: &[&str]) -> redis::Value {
        let client = redis::Client::open(self.address()).unwrap();
        let mut connection = client
            .get_connection_with_timeout(Duration::from_secs(10))
            .unwrap();
        redis::cmd(words[0])
            .arg(&words[1..])
            .query(&mut connection)
            .unwrap()
    }

    pub fn keys(&self) -> u64 {
        redis::from_redis_value(self.command(&["DBSIZE"])).unwrap()
    }

    /// How long the key lives that lives longest; panics if one lives for good.
    pub fn longest_life(&self) -> Duration {
        let keys: Vec<String> = redis::from_redis_value(self.command(&["KEYS", "*"])).unwrap();
        let life = |key: &String| -> i64 {
            redis::from_redis_value(self.command(&["PTTL", key])).unwrap()
        };
        let lives = keys
            .iter()
            .map(life)
            .inspect(|life| assert_ne!(*life, -1, "a key for good"));
        Duration::from_millis(lives.max().unwrap_or(0).max(0) as u64)
    }

    fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Two nodes that share the slots.
#[cfg(feature = "cluster")]
pub struct Cluster([Server; 2]);

#[cfg(feature = "cluster")]
impl Cluster {
    pub fn start() -> Self {
        let nodes = [(); 2].map(|()| {
            Server::with(&["--cluster-enabled", "yes", "--cluster-node-timeout", "5000"])
        });
        nodes[0].command(&["CLUSTER", "ADDSLOTSRANGE", "0", "8191"]);
        nodes[1].command(&["CLUSTER", "ADDSLOTSRANGE", "8192", "16383"]);
        nodes[1].command(&["CLUSTER", "SET-CONFIG-EPOCH", "2"]);
        nodes[0].command(&["CLUSTER", "MEET", "127.0.0.1", &nodes[1].port.to_string()]);
        let deadline = Instant::now() + Duration::from_secs(30);
        for node in &nodes {
            loop {
                let state: String =
                    redis::from_redis_value(node.command(&["CLUSTER", "INFO"])).unwrap();
                if state.contains("cluster_state:ok") && state.contains("cluster_size:2") {
                    break;
                }
                assert!(Instant::now() < deadline, "{state}");
                thread::sleep(Duration::from_millis(50));
            }
        }
        Self(nodes)
    }

    pub fn addresses(&self) -> Vec<String> {
        self.0.iter().map(Server::address).collect()
    }

    pub fn keys(&self) -> [u64; 2] {
        [self.0[0].keys(), self.0[1].keys()]
    }
}

/// A port that is free, and whose neighbour 10,000 further, which a cluster's nodes talk on, is a port, too.
fn free_port() -> u16 {
    loop {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        if port < 55_000 {
            return port;
        }
    }
}

fn spawn(port: u16, folder: &tempfile::TempDir, options: &[&str]) -> Child {
    let port = port.to_string();
    let settings = [
        "--port",
        &port,
        "--bind",
        "127.0.0.1",
        "--save",
        "",
        "--appendonly",
        "no",
        "--daemonize",
        "no",
    ];
    Command::new("redis-server")
        .args(settings)
        .args(options)
        .arg("--dir")
        .arg(folder.path())
        .stdout(Stdio::null())
        .spawn()
        .expect("redis-server is there: `cargo xtask setup` installs it")
}

fn answers(child: &mut Child, port: u16) -> bool {
    let deadline = Instant::now() + Duration::from_secs(30);
    let client = redis::Client::open(format!("redis://127.0.0.1:{port}")).unwrap();
    while child.try_wait().unwrap().is_none() {
        if let Ok(mut connection) = client.get_connection_with_timeout(Duration::from_secs(1))
            && redis::cmd("PING").query::<String>(&mut connection).is_ok()
        {
            return true;
        }
        assert!(Instant::now() < deadline, "redis-server does not answer");
        thread::sleep(Duration::from_millis(10));
    }
    false
}
