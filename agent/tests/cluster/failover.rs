//! Stores that fail over, are emptied and lose what they granted, under load: what passes too much in each.

use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use testbed::port::Port;
use testbed::tests;
use testbed::trials::Test;
use testbed::wait::PATIENCE;

use crate::fleet::{BURST, Host, Outcome, RATE, Spread, drive};
use crate::redis::{Redis, program};

pub const TESTS: &[Test] = tests![
    a_sentinels_replica_that_lagged_grants_nothing_twice,
    a_store_that_is_emptied_again_and_again_grants_nothing_twice,
    a_store_whose_connections_are_cut_grants_nothing_twice,
];

pub fn fleet(cluster: &str) -> Vec<Host> {
    let limit = format!("rate = \"{RATE}/s\"\nburst = {BURST}");
    let fleet: Vec<Host> = ["one", "two", "three"]
        .map(|node| Host::start(node, cluster, &limit))
        .into();
    for host in &fleet {
        host.until(PATIENCE, "joined", |cluster| {
            cluster["hosts"] == 3 && cluster["limits"][0]["share_from"] == "lease"
        });
    }
    fleet
}

/// Asks the fleet for `time`, while something happens.
pub fn measured(
    what: &str,
    fleet: &[Host],
    time: Duration,
    happens: impl FnOnce() + Send,
) -> Outcome {
    let outcome = thread::scope(|scope| {
        let asked = scope.spawn(|| drive(fleet, Spread::Skewed, 2.5, time));
        happens();
        asked.join().unwrap()
    });
    eprintln!(
        "{what}: {} of {:.0} passed in {:.1} s, {:+.1} %",
        outcome.passed,
        outcome.limit,
        outcome.seconds,
        100.0 * outcome.error()
    );
    assert!(outcome.wanted > outcome.passed, "{outcome:?}");
    outcome
}

/// A program, ended when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A master with a replica that a Sentinel guards.
pub struct Guarded {
    pub master: Redis,
    pub replica: Redis,
    port: Port,
    _sentinel: Running,
    _folder: tempfile::TempDir,
}

impl Guarded {
    pub fn start() -> Self {
        let master = Redis::start(&[]);
        let replica = Redis::start(&["--replicaof", "127.0.0.1", &master.port().to_string()]);
        let deadline = Instant::now() + PATIENCE;
        while !replica
            .cli(&["info", "replication"])
            .contains("master_link_status:up")
        {
            assert!(
                Instant::now() < deadline,
                "{}",
                replica.cli(&["info", "replication"])
            );
            thread::sleep(Duration::from_millis(20));
        }
        let folder = tempfile::tempdir().unwrap();
        let (config, port) = (folder.path().join("sentinel.conf"), Port::reserve());
        let text = format!(
            "port {}\nbind 127.0.0.1\nsentinel monitor fleet 127.0.0.1 {} 1\n\
             sentinel down-after-milliseconds fleet 500\nsentinel failover-timeout fleet 3000\n",
            port.number(),
            master.port()
        );
        std::fs::write(&config, text).unwrap();
        let mut command = Command::new(program());
        command
            .arg(&config)
            .args(["--sentinel", "--daemonize", "no"])
            .stdout(Stdio::null());
        let sentinel = Running(command.spawn().unwrap());
        let guarded = Self {
            master,
            replica,
            port,
            _sentinel: sentinel,
            _folder: folder,
        };
        while !guarded
            .ask(&["sentinel", "replicas", "fleet"])
            .contains(&guarded.replica.port().to_string())
        {
            assert!(
                Instant::now() < deadline,
                "the sentinel does not find the replica"
            );
            thread::sleep(Duration::from_millis(50));
        }
        guarded
    }

    /// The keys of `[cluster]` that name it.
    pub fn config(&self) -> String {
        format!(
            "store = \"redis://127.0.0.1:{}\"\nsentinel = \"fleet\"",
            self.port.number()
        )
    }

    fn ask(&self, arguments: &[&str]) -> String {
        let output = Command::new("redis-cli")
            .args(["-p", &self.port.number().to_string()])
            .args(arguments)
            .output()
            .unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// Waits until the sentinel names the replica as the master.
    pub fn wait_for_the_replica(&self) {
        let deadline = Instant::now() + PATIENCE;
        while !self
            .ask(&["sentinel", "get-master-addr-by-name", "fleet"])
            .contains(&self.replica.port().to_string())
        {
            assert!(
                Instant::now() < deadline,
                "{}",
                self.ask(&["sentinel", "master", "fleet"])
            );
            thread::sleep(Duration::from_millis(50));
        }
    }
}

fn a_sentinels_replica_that_lagged_grants_nothing_twice() {
    let mut store = Guarded::start();
    let fleet = fleet(&store.config());
    let outcome = measured(
        "a replica that lagged takes over",
        &fleet,
        Duration::from_secs(8),
        || {
            thread::sleep(Duration::from_secs(2));
            // It receives nothing any more of what is granted: shares have moved to the first host by then.
            store.replica.hang();
            thread::sleep(Duration::from_millis(400));
            store.master.kill();
            store.replica.go_on();
            store.wait_for_the_replica();
        },
    );
    assert!(outcome.error() <= 0.1, "{outcome:?}");
    for host in &fleet {
        host.until(PATIENCE, "leased by the replica", |cluster| {
            cluster["hosts"] == 3 && cluster["limits"][0]["share_from"] == "lease"
        });
    }
}

fn a_store_that_is_emptied_again_and_again_grants_nothing_twice() {
    let redis = Redis::start(&[]);
    let fleet = fleet(&format!("store = {:?}", redis.url()));
    let outcome = measured(
        "a store that is emptied every 300 ms",
        &fleet,
        Duration::from_secs(5),
        || {
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(4_500) {
                assert_eq!(redis.cli(&["flushall"]), "OK");
                thread::sleep(Duration::from_millis(300));
            }
        },
    );
    assert!(outcome.error() <= 0.1, "{outcome:?}");
}

fn a_store_whose_connections_are_cut_grants_nothing_twice() {
    let redis = Redis::start(&[]);
    let fleet = fleet(&format!("store = {:?}", redis.url()));
    let outcome = measured(
        "connections that are cut every 300 ms",
        &fleet,
        Duration::from_secs(5),
        || {
            let start = Instant::now();
            while start.elapsed() < Duration::from_millis(4_500) {
                redis.cli(&["client", "kill", "type", "normal"]);
                thread::sleep(Duration::from_millis(300));
            }
        },
    );
    assert!(outcome.error() <= 0.1, "{outcome:?}");
    for host in &fleet {
        host.until(PATIENCE, "leased", |cluster| {
            cluster["limits"][0]["share_from"] == "lease"
        });
    }
}
