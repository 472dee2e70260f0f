//! A fair limit on connections before a listener that accepts so many a second, and one that nobody serves.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::socket::{Backlog, listen};
use testbed::overload::Watch;
use testbed::stalls::Gaps;
use testbed::tcp::begin;
use testbed::tests;
use testbed::trials::Test;

use crate::support::{Network, SERVER};

pub const TESTS: &[Test] = tests![
    polite_connections_are_served_beside_ten_times_the_capacity,
    a_listener_that_nobody_serves_limits_nobody,
];

const WEB: u16 = 8080;
const ABANDONED: u16 = 8081;
const LIMIT: &str = "[[limit]]\nname = \"web\"\nprotocol = \"tcp\"\nports = [8080, 8081]\nunit = \"connections\"\n\
    rate = \"fair\"\nfair = { at_least = \"2/s\" }\n";
/// Connections that the server accepts in a second, and its backlog.
const CAPACITY: f64 = 200.0;
const BACKLOG: i32 = 50;
/// How long a client waits for the reply.
const PATIENCE: Duration = Duration::from_secs(1);

fn source(last: u8) -> [u8; 4] {
    [10, 77, 0, last]
}

const HEAVY: [u8; 5] = [11, 12, 13, 14, 15];
const POLITE: [u8; 10] = [21, 22, 23, 24, 25, 26, 27, 28, 29, 30];

fn listener(network: &Network, port: u16) -> TcpListener {
    network.in_server(|| {
        let listener = TcpListener::bind((Ipv4Addr::from(SERVER), port)).unwrap();
        listen(&listener, Backlog::new(BACKLOG).unwrap()).unwrap();
        listener
    })
}

/// Begins a connection from a source.
fn connect(from: u8, port: u16) -> OwnedFd {
    begin(source(from), SocketAddrV4::new(SERVER.into(), port)).unwrap()
}

/// What was accepted, and what could have been.
#[derive(Default)]
struct Accepted {
    all: AtomicU64,
    possible: AtomicU64,
    stop: AtomicBool,
    gaps: Gaps,
}

impl Accepted {
    /// Accepts `CAPACITY` connections a second, and greets each.
    fn serve(&self, listener: &TcpListener) {
        listener.set_nonblocking(true).unwrap();
        let (mut last, mut budget) = (Instant::now(), 0.0);
        while !self.stop.load(Ordering::Relaxed) {
            self.gaps.mark();
            budget += last.elapsed().as_secs_f64().min(0.05) * CAPACITY;
            last = Instant::now();
            for _ in 0..budget as u64 {
                self.possible.fetch_add(1, Ordering::Relaxed);
                if let Ok((mut stream, _)) = listener.accept() {
                    self.all.fetch_add(1, Ordering::Relaxed);
                    // The client may have gone.
                    let _ = stream.write_all(b"x");
                }
            }
            budget = budget.fract();
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn now(&self) -> (u64, u64) {
        (
            self.all.load(Ordering::Relaxed),
            self.possible.load(Ordering::Relaxed),
        )
    }
}

/// Begins `per_second` connections in turn, until the end; each is closed after 100 ms.
fn flood(per_second: f64, port: u16, stop: &AtomicBool, gaps: &Gaps) {
    let (mut last, mut due) = (Instant::now(), 0.0);
    let mut open: VecDeque<(Instant, OwnedFd)> = VecDeque::new();
    let mut sources = HEAVY.iter().cycle();
    while !stop.load(Ordering::Relaxed) {
        gaps.mark();
        due += last.elapsed().as_secs_f64().min(0.05) * per_second;
        last = Instant::now();
        for from in sources.by_ref().take(due as usize) {
            open.push_back((Instant::now(), connect(*from, port)));
        }
        due = due.fract();
        while open
            .front()
            .is_some_and(|(since, _)| since.elapsed() > Duration::from_millis(100))
        {
            open.pop_front();
        }
        thread::sleep(Duration::from_millis(2));
    }
}

/// Whether a connection from a source is greeted in time.
fn is_greeted(from: u8) -> bool {
    let mut stream = TcpStream::from(connect(from, WEB));
    stream.set_nonblocking(false).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let began = Instant::now();
    loop {
        // Before the last try: a busy machine may pause this thread at any point.
        let is_late = began.elapsed() > PATIENCE;
        match stream.read(&mut [0; 1]) {
            Ok(count) => return count == 1,
            // The connection is in progress.
            Err(error) if error.kind() == std::io::ErrorKind::NotConnected => {}
            Err(_) => return false,
        }
        if is_late {
            return false;
        }
        thread::sleep(Duration::from_millis(1));
    }
}

/// Polite connections, ten a second together, for so long: their number, and how many were greeted.
fn polite(time: Duration) -> (u64, u64) {
    let (began, greeted) = (Instant::now(), AtomicU64::new(0));
    let mut number = 0;
    thread::scope(|scope| {
        for from in POLITE.iter().cycle() {
            if began.elapsed() >= time {
                break;
            }
            number += 1;
            scope.spawn(|| greeted.fetch_add(u64::from(is_greeted(*from)), Ordering::Relaxed));
            thread::sleep(Duration::from_millis(100));
        }
    });
    (number, greeted.load(Ordering::Relaxed))
}

fn polite_connections_are_served_beside_ten_times_the_capacity() {
    let network = Network::new();
    network.add_client_addresses(&HEAVY.map(source));
    network.add_client_addresses(&POLITE.map(source));
    let listener = listener(&network, WEB);
    let agent = network.start("", LIMIT);
    let (accepted, stop) = (Accepted::default(), AtomicBool::new(false));
    let gaps = Gaps::default();
    thread::scope(|scope| {
        scope.spawn(|| accepted.serve(&listener));
        let work = || {
            let watch = Watch::begin(&agent, &[&accepted.gaps]);
            let before = network.in_client(|| polite(Duration::from_secs(1)));
            if watch.is_calm() {
                assert_eq!(before.0, before.1, "connections before the overload");
                assert_eq!(agent.counts("web").1, 0);
            }
            scope.spawn(|| network.in_client(|| flood(10.0 * CAPACITY, WEB, &stop, &gaps)));
            agent.wait_for("an overload", |status| status["fair"][0]["level"].is_f64());
            thread::sleep(Duration::from_secs(1));
            let (watch, before) = (
                Watch::begin(&agent, &[&accepted.gaps, &gaps]),
                accepted.now(),
            );
            let (sent, greeted) = network.in_client(|| polite(Duration::from_secs(5)));
            let after = accepted.now();
            let fair = agent.json(&["status"])["fair"][0].clone();
            let used = (after.0 - before.0) as f64 / (after.1 - before.1) as f64;
            println!("used {used:.3}, {greeted} of {sent} polite connections; {fair}");
            if watch.is_calm() {
                assert!(used >= 0.95, "{used} of the capacity is used; {fair:#}");
                assert!(
                    greeted as f64 >= 0.97 * sent as f64,
                    "{greeted} of {sent}; {fair:#}"
                );
            }
        };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        stop.store(true, Ordering::Relaxed);
        if done.is_ok() {
            agent.wait_for("the end", |status| status["fair"][0]["state"] == "off");
        }
        accepted.stop.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

fn a_listener_that_nobody_serves_limits_nobody() {
    let network = Network::new();
    network.add_client_addresses(&HEAVY.map(source));
    network.add_client_addresses(&POLITE.map(source));
    let (listener, abandoned) = (listener(&network, WEB), listener(&network, ABANDONED));
    let agent = network.start("", LIMIT);
    let (accepted, stop) = (Accepted::default(), AtomicBool::new(false));
    let gaps = Gaps::default();
    thread::scope(|scope| {
        scope.spawn(|| accepted.serve(&listener));
        let work = || {
            let watch = Watch::begin(&agent, &[&accepted.gaps, &gaps]);
            scope.spawn(|| network.in_client(|| flood(200.0, ABANDONED, &stop, &gaps)));
            let is_ignored = |status: &serde_json::Value| {
                let signals = status["fair"][0]["signals"].as_array();
                signals.is_some_and(|all| {
                    all.iter()
                        .any(|one| one["port"] == ABANDONED && one["is_served"] == false)
                })
            };
            agent.wait_for("a queue that nobody serves", is_ignored);
            agent.wait_for("no level", |status| status["fair"][0]["state"] == "off");
            let refused = agent.counts("web").1;
            let (sent, greeted) = network.in_client(|| polite(Duration::from_secs(2)));
            let counts = (sent, agent.counts("web").1);
            let events = agent.lines(&["events", "--json"]);
            if watch.is_calm() {
                assert_eq!(counts, (greeted, refused), "{events:#?}");
            }
            let mut events = events.iter().filter(|event| event["verdict"] == "unserved");
            assert_eq!(events.next().unwrap()["port"], ABANDONED);
        };
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        stop.store(true, Ordering::Relaxed);
        accepted.stop.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    drop(abandoned);
}
