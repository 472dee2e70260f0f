//! A fair limit before a service that takes everything at once and works on it later: no socket shows its overload, it
//! reports it.

use std::collections::VecDeque;
use std::net::UdpSocket;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;
use testbed::application::exchange;
use testbed::overload::{MADE_UP, Sources, Unit, Watch};
use testbed::stalls::Gaps;
use testbed::tests;
use testbed::trials::Test;

use crate::fair::{CAPACITY, POLITE, fair, server, set_heavy, sources};
use crate::support::Network;
use crate::traffic::PORT;

pub const TESTS: &[Test] = tests![a_service_that_reports_its_load_serves_polite_sources];

/// Requests that wait for longer than this are of no use to a client.
const PATIENCE: Duration = Duration::from_millis(250);
/// Queued requests beyond which the service takes no more.
const MOST: usize = 1_000;
/// How often the service reports.
const EVERY: Duration = Duration::from_millis(100);

/// The service's work.
#[derive(Default)]
struct Work {
    waiting: AtomicU64,
    /// Of the service and of its reports.
    gaps: [Gaps; 2],
    stop: AtomicBool,
}

impl Work {
    /// Takes what arrives at once, and works on `CAPACITY` requests a second.
    fn serve(&self, socket: &UdpSocket, sources: &Sources) {
        socket.set_nonblocking(true).unwrap();
        let (mut last, mut budget) = (Instant::now(), 0.0);
        let mut queue: VecDeque<(Instant, Option<Unit>)> = VecDeque::new();
        let mut datagram = [0; 64];
        while !self.stop.load(Ordering::Relaxed) {
            self.gaps[0].mark();
            while let Ok((length, from)) = socket.recv_from(&mut datagram) {
                if queue.len() < MOST {
                    queue.push_back((Instant::now(), sources.unit(&datagram[..length], from)));
                }
            }
            budget += last.elapsed().min(MADE_UP).as_secs_f64() * CAPACITY;
            last = Instant::now();
            let whole = (budget as usize).min(queue.len());
            for (since, unit) in queue.drain(..whole) {
                if let Some(unit) = unit.filter(|_| since.elapsed() <= PATIENCE) {
                    sources.serve(unit);
                }
            }
            budget = (budget - whole as f64).min(1.0);
            self.waiting.store(queue.len() as u64, Ordering::Relaxed);
            thread::sleep(Duration::from_micros(500));
        }
    }

    /// Reports for how long requests wait.
    fn report(&self, socket: &Path) {
        while !self.stop.load(Ordering::Relaxed) {
            let wait = self.waiting.load(Ordering::Relaxed) as f64 / CAPACITY;
            let (status, reply) = post(socket, &json!({"service": "app", "wait_seconds": wait}));
            assert_eq!(status, 200, "{reply}");
            for _ in 0..10 {
                thread::sleep(EVERY / 10);
                self.gaps[1].mark();
            }
        }
    }
}

fn post(socket: &Path, report: &serde_json::Value) -> (u16, serde_json::Value) {
    let body = report.to_string();
    let request = format!(
        "POST /v1/load HTTP/1.1\r\nhost: weir\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let (status, _, reply) = exchange(UnixStream::connect(socket).unwrap(), &request);
    (status, reply)
}

fn a_service_that_reports_its_load_serves_polite_sources() {
    let network = Network::new();
    let socket = server(&network);
    let reports = network.control().with_file_name("decide.sock");
    let limit = format!(
        "[decide]\nhttp = \"unix:{}\"\n[[limit]]\nname = \"app\"\nprotocol = \"udp\"\nports = [{PORT}]\nunit = \"packets\"\n\
         rate = \"fair\"\nfair = {{ at_least = \"5/s\", signals = [\"load\"] }}\n",
        reports.display()
    );
    let agent = network.start("", &limit);
    // Without a report, it cannot know of an overload, and says so.
    let status = agent.wait_for("a note", |status| fair(status)["failure"] == "unreadable");
    assert_eq!(fair(&status)["load"]["is_reported"], false, "{status}");
    let wrong = post(&reports, &json!({"service": "web", "load": 1.0}));
    assert_eq!(wrong.0, 404, "{}", wrong.1);
    let (sources, work) = (sources(), Work::default());
    let (polite_from, is_calm, status) = thread::scope(|scope| {
        scope.spawn(|| work.serve(&socket, &sources));
        scope.spawn(|| work.report(&reports));
        scope.spawn(|| network.in_client(|| sources.send_datagrams(PORT)));
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            agent.wait_for("a report", |status| {
                fair(status)["load"]["is_reported"] == true && fair(status)["failure"].is_null()
            });
            set_heavy(&sources, 10.0);
            agent.wait_for("a level held by the load", |status| {
                fair(status)["level"].is_f64() && fair(status)["held_by"] == "load"
            });
            // Requests from before the level are served first.
            agent.wait_for("a short queue", |status| {
                let fair = fair(status);
                let (load, level) = (&fair["load"], &fair["level"]);
                let wait = load["wait_seconds"].as_f64().unwrap();
                load["is_reported"] == true && level.is_f64() && wait < 0.1
            });
            let from = sources.now() + 1;
            let watch = Watch::begin(&agent, &[&work.gaps[0], &work.gaps[1], &sources.gaps]);
            thread::sleep(Duration::from_secs(5));
            let (status, is_calm) = (agent.json(&["status"]), watch.is_calm());
            sources.stop();
            thread::sleep(Duration::from_millis(300));
            (from, is_calm, status)
        }));
        sources.stop();
        work.stop.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    let polite = sources.groups[POLITE]
        .share(polite_from..usize::MAX)
        .unwrap();
    println!("polite {polite:.4}; {}", fair(&status));
    if is_calm {
        assert!(polite >= 0.95, "{polite} of polite requests are served");
    }
    // Nobody reports any more.
    agent.wait_for("its release", |status| {
        fair(status)["failure"] == "unreadable" && fair(status)["level"].is_null()
    });
}
