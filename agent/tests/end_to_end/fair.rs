//! Fair limits before a UDP server of known capacity: polite sources lose nothing to heavy ones, nothing is refused while the
//! server keeps up, and nobody is held to the level of an agent that is dead.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use common::packet::build::Frame;
use nix::sys::signal::Signal;
use nix::sys::socket::{setsockopt, sockopt::RcvBufForce};
use serde_json::Value;
use testbed::groups::run_delay;
use testbed::stalls::{Gaps, Stalls};
use testbed::tests;
use testbed::trials::Test;
use testbed::wait::until;

use crate::support::{Agent, CLIENT_MAC, Network, SERVER, SERVER_MAC};
use crate::traffic::PORT;
use crate::wire::Sender;

pub const TESTS: &[Test] = tests![
    polite_sources_lose_nothing_to_ten_times_the_capacity,
    polite_sources_lose_nothing_to_twice_the_capacity,
    nobody_is_held_to_the_level_of_a_dead_agent,
    a_server_that_keeps_up_has_nothing_refused,
];

/// Datagrams that the server reads in a second.
pub const CAPACITY: f64 = 2_000.0;
/// What a pause of the server's thread may be made up for, in seconds.
const MADE_UP: f64 = 0.02;
/// Delays of this machine's threads below which figures are compared.
const CALM: Duration = Duration::from_millis(40);
/// Less time than the agent's threads together may wait for a CPU: twice as much ends a level.
const LATE: Duration = Duration::from_secs(1);
/// The datagrams that a source sends at once for a page.
const PAGE: usize = 30;

fn limit(more: &str) -> String {
    format!(
        "[[limit]]\nname = \"dns\"\nprotocol = \"udp\"\nports = [{PORT}]\nunit = \"packets\"\nrate = \"fair\"\n\
         fair = {{ at_least = \"5/s\"{more} }}\n"
    )
}

/// Third byte of a source's address.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Group {
    Heavy = 1,
    Polite = 2,
    Pages = 3,
}

/// The number of a datagram, if a polite source has sent it.
pub fn polite_number(datagram: &[u8], from: SocketAddr) -> Option<u64> {
    let IpAddr::V4(from) = from.ip() else {
        return None;
    };
    let number = datagram.try_into().map(u32::from_be_bytes).unwrap();
    (from.octets()[2] == Group::Polite as u8).then_some(number.into())
}

fn frame(group: Group, nth: u8, number: u32) -> Vec<u8> {
    Frame::between(CLIENT_MAC, SERVER_MAC)
        .ipv4([10, 77, group as u8, nth], SERVER)
        .udp(5000, PORT, &number.to_be_bytes())
        .build()
}

/// What the server has read, and what it could have read.
#[derive(Default)]
struct Served {
    all: AtomicU64,
    possible: AtomicU64,
    /// Polite datagrams whose number is at least `from`.
    polite: AtomicU64,
    from: AtomicU64,
    stop: AtomicBool,
    gaps: Gaps,
}

impl Served {
    /// Reads `CAPACITY` datagrams a second, until the end.
    fn serve(&self, socket: &UdpSocket) {
        socket.set_nonblocking(true).unwrap();
        let (mut last, mut budget) = (Instant::now(), 0.0);
        let mut datagram = [0; 64];
        while !self.stop.load(Ordering::Relaxed) {
            self.gaps.mark();
            let gained = (last.elapsed().as_secs_f64()).min(MADE_UP) * CAPACITY;
            last = Instant::now();
            budget += gained;
            let whole = budget as u64;
            budget -= whole as f64;
            self.possible.fetch_add(whole, Ordering::Relaxed);
            for _ in 0..whole {
                let Ok((length, from)) = socket.recv_from(&mut datagram) else {
                    break;
                };
                self.all.fetch_add(1, Ordering::Relaxed);
                let number = polite_number(&datagram[..length], from);
                if number.is_some_and(|number| number >= self.from.load(Ordering::Relaxed)) {
                    self.polite.fetch_add(1, Ordering::Relaxed);
                }
            }
            thread::sleep(Duration::from_micros(500));
        }
    }

    fn now(&self) -> (u64, u64) {
        (
            self.all.load(Ordering::Relaxed),
            self.possible.load(Ordering::Relaxed),
        )
    }
}

/// What sources send, in datagrams a second of all of a group.
#[derive(Default)]
pub struct Sent {
    pub heavy: AtomicU64,
    pages: AtomicU64,
    polite: AtomicU64,
    heavy_sent: AtomicU64,
    pub polite_sent: AtomicU64,
    pub stop: AtomicBool,
    pub gaps: Gaps,
}

impl Sent {
    pub fn polite(per_second: u64) -> Self {
        Self {
            polite: per_second.into(),
            ..Self::default()
        }
    }

    /// Sends by the time that has passed, until the end. After a pause, 20 ms are made up for.
    pub fn send(&self) {
        let sender = Sender::new();
        let mut last = Instant::now();
        let (mut heavy, mut polite, mut pages) = (0.0, 0.0, 0.0);
        let (mut nth_heavy, mut nth_page) = (0_u8, 0_u8);
        while !self.stop.load(Ordering::Relaxed) {
            let elapsed = last.elapsed().as_secs_f64().min(0.02);
            last = Instant::now();
            let take = |due: &mut f64, rate: &AtomicU64, size: f64| {
                *due += elapsed * rate.load(Ordering::Relaxed) as f64 / size;
                let whole = due.floor();
                *due -= whole;
                whole as u64
            };
            let mut frames = Vec::new();
            for _ in 0..take(&mut heavy, &self.heavy, 1.0) {
                nth_heavy = (nth_heavy + 1) % 5;
                frames.push(frame(Group::Heavy, 1 + nth_heavy, 0));
            }
            self.heavy_sent
                .fetch_add(frames.len() as u64, Ordering::Relaxed);
            for _ in 0..take(&mut polite, &self.polite, 1.0) {
                let number = self.polite_sent.fetch_add(1, Ordering::Relaxed) as u32;
                frames.push(frame(Group::Polite, 1 + (number % 50) as u8, number));
            }
            for _ in 0..take(&mut pages, &self.pages, PAGE as f64) {
                nth_page = (nth_page + 1) % 50;
                frames.extend((0..PAGE).map(|_| frame(Group::Pages, 1 + nth_page, 0)));
            }
            sender.send_all(&frames);
            self.gaps.mark();
            thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Runs a server and sources while `work` runs.
fn before_a_server<T>(
    network: &Network,
    socket: &UdpSocket,
    sent: &Sent,
    served: &Served,
    work: impl FnOnce() -> T,
) -> T {
    thread::scope(|scope| {
        scope.spawn(|| served.serve(socket));
        scope.spawn(|| network.in_client(|| sent.send()));
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
        sent.stop.store(true, Ordering::Relaxed);
        thread::sleep(Duration::from_millis(300));
        served.stop.store(true, Ordering::Relaxed);
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

pub fn server(network: &Network) -> UdpSocket {
    let socket = network.in_server(|| UdpSocket::bind((std::net::Ipv4Addr::from(SERVER), PORT)));
    socket.unwrap()
}

pub fn fair(status: &Value) -> &Value {
    &status["fair"][0]
}

fn refused(agent: &Agent<'_>) -> u64 {
    agent.counts("dns").1
}

fn polite_sources_lose_nothing_to_ten_times_the_capacity() {
    assert_polite(10.0);
}

fn polite_sources_lose_nothing_to_twice_the_capacity() {
    assert_polite(2.0);
}

/// Asserts that polite sources lose nothing to five that send so many times what the server can read.
fn assert_polite(times: f64) {
    let network = Network::new();
    let socket = server(&network);
    let agent = network.start("", &limit(""));
    let (sent, served) = (Sent::polite((CAPACITY * 0.05) as u64), Served::default());
    served.from.store(u64::MAX, Ordering::Relaxed);
    let watch = || Watch::begin(&agent, &[&served.gaps, &sent.gaps]);
    let all = watch();
    let work = || {
        agent.wait_for("the signal", |status| {
            fair(status)["signals"][0]["kind"] == "udp"
        });
        thread::sleep(Duration::from_secs(1));
        if all.is_calm() {
            assert_eq!(refused(&agent), 0);
        }
        sent.heavy
            .store((CAPACITY * times) as u64, Ordering::Relaxed);
        agent.wait_for("an overload", |status| fair(status)["level"].is_f64());
        thread::sleep(Duration::from_secs(1));
        // One that is not sent yet.
        let polite_from = sent.polite_sent.load(Ordering::Relaxed) + 5;
        served.from.store(polite_from, Ordering::Relaxed);
        let (window, before) = (watch(), served.now());
        thread::sleep(Duration::from_secs(5));
        let after = served.now();
        let status = agent.json(&["status"]);
        sent.heavy.store(0, Ordering::Relaxed);
        let (release, end) = (watch(), SystemTime::now());
        agent.wait_for("the end", |status| fair(status)["state"] == "off");
        let off = ended_at(&agent) - end.duration_since(UNIX_EPOCH).unwrap().as_secs_f64();
        if release.is_calm() {
            assert!(off < 5.0, "off after {off} s");
        }
        let ended = refused(&agent);
        thread::sleep(Duration::from_secs(1));
        assert_eq!(refused(&agent), ended, "refused after the end");
        // Polite datagrams count until now.
        let is_calm = [window, all].map(|watch| watch.is_calm());
        (before, after, polite_from, status, off, is_calm)
    };
    let (before, after, polite_from, status, off, [is_calm, is_all_calm]) =
        before_a_server(&network, &socket, &sent, &served, work);
    let used = (after.0 - before.0) as f64 / (after.1 - before.1) as f64;
    let polite = served.polite.load(Ordering::Relaxed) as f64;
    let polite = polite / (sent.polite_sent.load(Ordering::Relaxed) - polite_from) as f64;
    let fair = fair(&status);
    println!("{times} times: used {used:.4}, polite {polite:.4}, off after {off:.2} s; {fair}");
    if is_calm {
        assert!(used >= 0.95, "{used} of the capacity is used; {fair:#}");
        assert!(
            polite >= 0.99,
            "{polite} of polite datagrams are served; {fair:#}"
        );
        // A fifth of what polite sources leave.
        let level = fair["level"].as_f64().unwrap();
        assert!((0.1..0.3).contains(&(level / CAPACITY)), "{fair:#}");
    }
    let events = agent.lines(&["events", "--json"]);
    let count = |kind: &str| {
        events
            .iter()
            .filter(|event| event["verdict"] == kind)
            .count()
    };
    let onsets = count("overload");
    assert!(onsets == 1 || (onsets > 1 && !is_all_calm), "{events:#?}");
    assert_eq!(onsets, count("overload-ended"), "{events:#?}");
}

/// When the last overload ended, in seconds since 1970.
fn ended_at(agent: &Agent<'_>) -> f64 {
    until("the event of the end", || {
        let events = agent.lines(&["events", "--json"]);
        let mut ended = events
            .iter()
            .filter(|event| event["verdict"] == "overload-ended");
        ended.next_back()?["time"].as_f64()
    })
}

/// Since when, and the threads on which figures of that time depend.
pub struct Watch<'t> {
    since: Instant,
    stalls: Stalls,
    agent: u32,
    waited: Duration,
    threads: Vec<&'t Gaps>,
}

impl<'t> Watch<'t> {
    /// Begins to watch these threads, of the server and of senders, and the agent.
    pub fn begin(agent: &Agent<'_>, threads: &[&'t Gaps]) -> Self {
        Self {
            since: Instant::now(),
            stalls: Stalls::watch(),
            agent: agent.process(),
            waited: run_delay(agent.process()),
            threads: threads.to_vec(),
        }
    }

    /// Whether figures so far say something: a server that stalls has another capacity and may be overloaded by nobody, and
    /// senders that stall send less.
    pub fn is_calm(&self) -> bool {
        let made_up = Duration::from_secs_f64(MADE_UP);
        let gaps = self
            .threads
            .iter()
            .map(|gaps| gaps.since(self.since, made_up));
        let stalled = self.stalls.so_far() + gaps.sum::<Duration>();
        let waited = if Path::new(&format!("/proc/{}/task", self.agent)).exists() {
            run_delay(self.agent).saturating_sub(self.waited)
        } else {
            Duration::ZERO
        };
        let is_calm = stalled < CALM && waited < LATE;
        if !is_calm {
            println!(
                "threads stalled for {stalled:?}, the agent for {waited:?}: figures are not compared"
            );
        }
        is_calm
    }
}

/// Datagrams that reached the socket so far: read ones and those that it dropped.
fn reached(network: &Network, served: &Served) -> u64 {
    let table = network.in_server(|| std::fs::read_to_string("/proc/thread-self/net/udp").unwrap());
    let port = format!(":{PORT:04X}");
    let mut rows = table.lines().filter(|row| {
        row.split_whitespace()
            .nth(1)
            .is_some_and(|local| local.ends_with(&port))
    });
    let drops = rows
        .next()
        .unwrap()
        .split_whitespace()
        .last()
        .unwrap()
        .parse::<u64>()
        .unwrap();
    drops + served.now().0
}

fn nobody_is_held_to_the_level_of_a_dead_agent() {
    let network = Network::new();
    let socket = server(&network);
    let agent = network.start("", &limit(", at_most = \"1000/s\""));
    let (sent, served) = (Sent::polite(100), Served::default());
    before_a_server(&network, &socket, &sent, &served, || {
        sent.heavy.store(20_000, Ordering::Relaxed);
        agent.wait_for("a level", |status| {
            fair(status)["level"]
                .as_f64()
                .is_some_and(|level| level < 600.0)
        });
        let rate = |time: Duration| {
            let (start, before) = (Instant::now(), reached(&network, &served));
            thread::sleep(time);
            (reached(&network, &served) - before) as f64 / start.elapsed().as_secs_f64()
        };
        thread::sleep(Duration::from_secs(1));
        let watch = Watch::begin(&agent, &[&served.gaps, &sent.gaps]);
        let held = rate(Duration::from_secs(1));
        let is_calm_with_agent = watch.is_calm();
        agent.stop(Signal::SIGKILL);
        thread::sleep(Duration::from_millis(2_200));
        let free = rate(Duration::from_secs(2));
        println!("with the agent {held:.0}/s, without {free:.0}/s");
        // Five sources at 1,000 a second with their bursts, and polite ones.
        assert!(free < 6_500.0, "{free}/s without the agent");
        if is_calm_with_agent && watch.is_calm() {
            assert!(
                (1_000.0..3_000.0).contains(&held),
                "{held}/s with the agent"
            );
            assert!(free > 4_000.0, "{free}/s without the agent");
        }
    });
}

fn a_server_that_keeps_up_has_nothing_refused() {
    let network = Network::new();
    let socket = server(&network);
    // Pauses of this machine are no overload of the server: it makes up for them, and loses nothing meanwhile.
    setsockopt(&socket.as_fd(), RcvBufForce, &(8 << 20)).unwrap();
    let agent = network.start("", &limit(""));
    let (sent, served) = (Sent::polite((CAPACITY * 0.05) as u64), Served::default());
    let watch = Watch::begin(&agent, &[&served.gaps, &sent.gaps]);
    before_a_server(&network, &socket, &sent, &served, || {
        // A NAT and a crawler are heavy here: 70 % of the capacity.
        sent.heavy
            .store((CAPACITY * 0.70) as u64, Ordering::Relaxed);
        sent.pages
            .store((CAPACITY * 0.10) as u64, Ordering::Relaxed);
        thread::sleep(Duration::from_secs(6));
        let refused = refused(&agent);
        println!("{refused} refused, {:?} served", served.now());
        if watch.is_calm() {
            assert_eq!(refused, 0);
        }
        sent.heavy.store(0, Ordering::Relaxed);
        sent.pages.store(0, Ordering::Relaxed);
        agent.wait_for("no level", |status| fair(status)["state"] == "off");
    });
}
