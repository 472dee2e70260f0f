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
use testbed::stalls::Gaps;
use testbed::tests;
use testbed::trials::Test;

use crate::fair::{CAPACITY, Sent, Watch, fair, polite_number, server};
use crate::support::Network;
use crate::traffic::PORT;

pub const TESTS: &[Test] = tests![a_service_that_reports_its_load_serves_polite_sources];

/// Requests that wait for longer than this are of no use to a client.
const PATIENCE: Duration = Duration::from_millis(250);
/// The longest pause of the service's thread that is made up for, in seconds.
const MADE_UP: f64 = 0.02;
/// Queued requests beyond which the service takes no more.
const MOST: usize = 1_000;
/// How often the service reports.
const EVERY: Duration = Duration::from_millis(100);

/// The service's work.
#[derive(Default)]
struct Work {
    waiting: AtomicU64,
    /// Polite requests that were served in time, of those whose number is at least `from`.
    polite: AtomicU64,
    from: AtomicU64,
    /// Of the service and of its reports.
    gaps: [Gaps; 2],
    stop: AtomicBool,
}

impl Work {
    /// Takes what arrives at once, and works on `CAPACITY` requests a second.
    fn serve(&self, socket: &UdpSocket) {
        socket.set_nonblocking(true).unwrap();
        let (mut last, mut budget) = (Instant::now(), 0.0);
        let mut queue: VecDeque<(Instant, bool)> = VecDeque::new();
        let mut datagram = [0; 64];
        while !self.stop.load(Ordering::Relaxed) {
            self.gaps[0].mark();
            while let Ok((length, from)) = socket.recv_from(&mut datagram) {
                let number = polite_number(&datagram[..length], from);
                let is_counted =
                    number.is_some_and(|number| number >= self.from.load(Ordering::Relaxed));
                if queue.len() < MOST {
                    queue.push_back((Instant::now(), is_counted));
                }
            }
            budget += last.elapsed().as_secs_f64().min(MADE_UP) * CAPACITY;
            last = Instant::now();
            let whole = (budget as usize).min(queue.len());
            for (since, is_counted) in queue.drain(..whole) {
                let is_served = is_counted && since.elapsed() <= PATIENCE;
                self.polite.fetch_add(is_served.into(), Ordering::Relaxed);
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
    let (sent, work) = (Sent::polite((CAPACITY * 0.05) as u64), Work::default());
    work.from.store(u64::MAX, Ordering::Relaxed);
    let (polite_from, is_calm, status) = thread::scope(|scope| {
        scope.spawn(|| work.serve(&socket));
        scope.spawn(|| work.report(&reports));
        scope.spawn(|| network.in_client(|| sent.send()));
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            agent.wait_for("a report", |status| {
                fair(status)["load"]["is_reported"] == true && fair(status)["failure"].is_null()
            });
            sent.heavy
                .store((CAPACITY * 10.0) as u64, Ordering::Relaxed);
            agent.wait_for("a level held by the load", |status| {
                fair(status)["level"].is_f64() && fair(status)["held_by"] == "load"
            });
            // Requests from before the level are served first.
            agent.wait_for("a short queue", |status| {
                let wait = fair(status)["load"]["wait_seconds"].as_f64().unwrap();
                wait < 0.1
            });
            // One that is not sent yet.
            let from = sent.polite_sent.load(Ordering::Relaxed) + 5;
            work.from.store(from, Ordering::Relaxed);
            let watch = Watch::begin(&agent, &[&work.gaps[0], &work.gaps[1], &sent.gaps]);
            thread::sleep(Duration::from_secs(5));
            let (status, is_calm) = (agent.json(&["status"]), watch.is_calm());
            sent.stop.store(true, Ordering::Relaxed);
            thread::sleep(Duration::from_millis(300));
            (from, is_calm, status)
        }));
        sent.stop.store(true, Ordering::Relaxed);
        work.stop.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    });
    let polite = work.polite.load(Ordering::Relaxed) as f64;
    let polite = polite / (sent.polite_sent.load(Ordering::Relaxed) - polite_from) as f64;
    println!("polite {polite:.4}; {}", fair(&status));
    if is_calm {
        assert!(polite >= 0.95, "{polite} of polite requests are served");
    }
    // Nobody reports any more.
    agent.wait_for("its release", |status| {
        fair(status)["failure"] == "unreadable" && fair(status)["level"].is_null()
    });
}
