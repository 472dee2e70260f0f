//! Elastic limits: what they pass above their rate, and when that ends.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::signal::Signal;
use testbed::tests;
use testbed::trials::Test;

use crate::support::{Agent, Network, StopWhenDropped};
use crate::traffic::{burst, udp_from};

pub const TESTS: &[Test] = tests![an_elastic_limit_holds_two_seconds_after_the_agent_was_killed,];

const LIMIT: &str = "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 5\nthrottle = { elastic = { up_to = 3.0 } }\n";

/// How long room lasts when no agent renews it.
const ROOM: Duration = Duration::from_secs(2);

/// Files in place of /proc/stat and /proc/pressure/cpu: the agent sees CPUs that are always idle.
struct IdleCpus {
    stat: File,
    idle_jiffies: u64,
}

impl IdleCpus {
    fn new(folder: &Path) -> Self {
        let stat = OpenOptions::new()
            .create_new(true)
            .write(true)
            .open(folder.join("stat"))
            .unwrap();
        std::fs::write(
            folder.join("cpu"),
            "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
        )
        .unwrap();
        let mut cpus = Self {
            stat,
            idle_jiffies: 0,
        };
        cpus.advance();
        cpus
    }

    fn advance(&mut self) {
        self.idle_jiffies += 1;
        // In place and of one length: whoever reads it meanwhile finds a whole line.
        let line = format!("cpu  0 0 0 {:012} 0 0 0 0 0 0\n", self.idle_jiffies);
        self.stat.write_all_at(line.as_bytes(), 0).unwrap();
    }
}

/// Starts an agent that sees those files.
fn start<'n>(network: &'n Network, folder: &Path) -> Agent<'n> {
    thread::scope(|scope| {
        let starting = scope.spawn(|| {
            // Only this thread and what it starts see the mounts.
            unshare(CloneFlags::CLONE_NEWNS).unwrap();
            let none: Option<&str> = None;
            mount(none, "/", none, MsFlags::MS_REC | MsFlags::MS_PRIVATE, none).unwrap();
            for (file, place) in [("stat", "/proc/stat"), ("cpu", "/proc/pressure/cpu")] {
                if Path::new(place).exists() {
                    mount(
                        Some(&folder.join(file)),
                        place,
                        none,
                        MsFlags::MS_BIND,
                        none,
                    )
                    .unwrap();
                }
            }
            network.start("", LIMIT)
        });
        starting.join().unwrap()
    })
}

/// How many of 40 packets of a source that was never seen before pass.
fn passed(network: &Network, agent: &Agent<'_>, source: u8) -> u64 {
    let before = agent.counts("packets").0;
    burst(network, &[udp_from(source)], 40);
    agent.counts("packets").0 - before
}

fn an_elastic_limit_holds_two_seconds_after_the_agent_was_killed() {
    let network = Network::new();
    let folder = tempfile::tempdir().unwrap();
    let mut cpus = IdleCpus::new(folder.path());
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let _stop = StopWhenDropped(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::Relaxed) {
                cpus.advance();
                thread::sleep(Duration::from_millis(5));
            }
        });
        let agent = start(&network, folder.path());
        let mut sources = 10..;
        let deadline = Instant::now() + Duration::from_secs(60);
        // The whole of the elastic allowance: there was room from the first of the packets to the last.
        while passed(&network, &agent, sources.next().unwrap()) != 15 {
            assert!(
                Instant::now() < deadline,
                "an idle host had no room within a minute"
            );
        }
        agent.stop(Signal::SIGKILL);
        thread::sleep(ROOM);
        let receiver = network.receiver(crate::traffic::PORT);
        burst(&network, &[udp_from(7)], 40);
        assert_eq!(
            receiver.counts()[7],
            5,
            "packets of a limit of 5 whose agent is dead"
        );
    });
}
