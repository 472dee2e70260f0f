//! Decisions in user space, as ratios within one run: `cargo bench -p agent --bench decide`.
//!
//! Candidates take turns, a slice of some tens to hundreds of milliseconds each, and a ratio is the median over all
//! turns, so that what else the machine does falls on both sides; in process, of the time that the threads had a
//! processor. It ends with status 1 if a bound of the documentation is missed. `-- pause`, `-- process` and
//! `-- http` measure only that.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::num::NonZeroU32;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use common::limiter::Rate;
use common::rate_limiter::Policy;
use config::policy::{Endpoint, OnFull};
use decide::{Edge, Engine, Fingerprints, Service, StateStore};
use governor::{Quota, RateLimiter};
use weir::stats::monotonic_nanoseconds;

const ROUNDS: usize = 3;
const TURNS: usize = 21;
const MILLION: u64 = 1_000_000;
/// Of requests over HTTP.
const SLICE: Duration = Duration::from_millis(250);
/// The bounds that are promised.
const LONGEST_PAUSE: Duration = Duration::from_millis(1);
const LEAST_OF_GOVERNOR: f64 = 1.0;
const LEAST_OF_EMPTY: f64 = 0.8;
const LONGEST_99TH: Duration = Duration::from_millis(1);

fn main() -> ExitCode {
    let only: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let wanted = |what: &str| only.is_empty() || only.iter().any(|only| only == what);
    let mut is_missed = false;
    let mut hold = |what: &str, holds: bool| {
        if !holds {
            eprintln!("MISSED: {what}");
            is_missed = true;
        }
    };
    if wanted("pause") {
        let pause = (0..ROUNDS)
            .map(|_| longest_pause())
            .min()
            .unwrap_or_default();
        println!("longest pause of forgetting a million keys: {pause:?}");
        hold("pauses below 1 ms", pause < LONGEST_PAUSE);
    }
    if wanted("process") {
        println!(
            "| in process: threads | keys | ours, million/s | governor, million/s | ratio | by the clock on the wall |"
        );
        println!("|---|---|---|---|---|---|");
        for threads in [1, 2] {
            for keys in [1, 10, 100, 1_000, 10_000, 100_000, MILLION] {
                let turns = in_process(threads, keys);
                let of =
                    |figure: fn(&(Throughput, Throughput)) -> f64| median(turns.iter().map(figure));
                let (ours, theirs) = (of(|(ours, _)| ours.worked), of(|(_, theirs)| theirs.worked));
                let ratio = of(|(ours, theirs)| ours.worked / theirs.worked);
                let elapsed = of(|(ours, theirs)| ours.elapsed / theirs.elapsed);
                println!(
                    "| {threads} | {keys} | {:.1} | {:.1} | {ratio:.2} | {elapsed:.2} |",
                    ours / 1e6,
                    theirs / 1e6
                );
                hold("no less than governor", ratio >= LEAST_OF_GOVERNOR);
            }
        }
        println!();
        println!(
            "| in process: threads | keys | hash and clock alone, million/s | of governor's decisions |"
        );
        println!("|---|---|---|---|");
        for keys in [1, 1_000] {
            let turns = needed(keys);
            let alone = median(turns.iter().map(|(alone, _)| alone.worked));
            let bound = median(
                turns
                    .iter()
                    .map(|(alone, theirs)| alone.worked / theirs.worked),
            );
            println!("| 1 | {keys} | {:.1} | {bound:.2} |", alone / 1e6);
        }
    }
    if wanted("http") {
        let Http {
            decisions,
            empty,
            ratio,
            slowest,
        } = over_http();
        println!("over HTTP: {decisions:.0}/s, the empty handler {empty:.0}/s: {ratio:.2}");
        hold(
            "no less than 0.8 of the empty handler",
            ratio >= LEAST_OF_EMPTY,
        );
        println!(
            "over HTTP at half of the highest load: 99 of 100 are answered within {slowest:?}"
        );
        hold("the 99th percentile below 1 ms", slowest < LONGEST_99TH);
    }
    if is_missed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// The longest that one shard is held while a million decayed keys are forgotten, or one of them is added.
fn longest_pause() -> Duration {
    let store = StateStore::new(
        vec![Policy::token_bucket(Rate::per_second(1_000), 10)],
        MILLION as usize,
        OnFull::Pass,
    );
    let Ok(fingerprints) = Fingerprints::new() else {
        return Duration::MAX;
    };
    let mut longest = Duration::ZERO;
    for key in 0..MILLION {
        let key = fingerprints.of(&key);
        let start = worked();
        store.allowed(key, 1, 1);
        longest = longest.max(worked() - start);
    }
    for shard in 0..store.shards() {
        let start = worked();
        let forgotten = store.sweep_shard(shard, 1 << 40);
        longest = longest.max(worked() - start);
        drop(forgotten);
    }
    longest
}

/// This thread's CPU time: time in which others had its processor is not the store's.
fn worked() -> Duration {
    let time = nix::time::clock_gettime(nix::time::ClockId::CLOCK_THREAD_CPUTIME_ID);
    time.map(Duration::from).unwrap_or_default()
}

/// Decisions a second, a pair for each turn: (ours, governor's).
fn in_process(threads: u64, keys: u64) -> Vec<(Throughput, Throughput)> {
    let Ok(fingerprints) = Fingerprints::new() else {
        return Vec::new();
    };
    let tiers = vec![Policy::token_bucket(Rate::per_second(100), 100)];
    let ours = StateStore::new(tiers, 2 * MILLION as usize, OnFull::Pass);
    let (theirs, now) = (governor(), clock());
    let of_ours = |key: u64| {
        std::hint::black_box(ours.allowed(fingerprints.of(&key), now(), 1));
    };
    let of_theirs = |key: u64| {
        std::hint::black_box(theirs.check_key(&key).is_ok());
    };
    (0..keys).for_each(of_ours);
    (0..keys).for_each(of_theirs);
    let decisions = if keys < MILLION { 1_000_000 } else { 500_000 };
    in_turns(
        || throughput(threads, keys, decisions, of_ours),
        || throughput(threads, keys, decisions, of_theirs),
    )
}

/// The peer, with the limit of the store.
fn governor() -> governor::DefaultKeyedRateLimiter<u64> {
    RateLimiter::keyed(Quota::per_second(NonZeroU32::MIN.saturating_add(99)))
}

/// The clock of both, read as governor's own.
fn clock() -> impl Fn() -> u64 + Sync {
    let clock = quanta::Clock::new();
    move || clock.delta_as_nanos(0, clock.raw())
}

/// Hashes of keys with readings of the clock, and governor's decisions: the most decisions of any limiter with this hash and
/// this clock, beside them.
fn needed(keys: u64) -> Vec<(Throughput, Throughput)> {
    let Ok(fingerprints) = Fingerprints::new() else {
        return Vec::new();
    };
    let (theirs, now) = (governor(), clock());
    let alone = |key: u64| {
        std::hint::black_box((fingerprints.of(&key), now()));
    };
    let of_theirs = |key: u64| {
        std::hint::black_box(theirs.check_key(&key).is_ok());
    };
    (0..keys).for_each(of_theirs);
    in_turns(
        || throughput(1, keys, 1_000_000, alone),
        || throughput(1, keys, 1_000_000, of_theirs),
    )
}

/// Measures both in each turn; who is first takes turns, too.
fn in_turns<T>(one: impl Fn() -> T, other: impl Fn() -> T) -> Vec<(T, T)> {
    let turn = |turn| {
        if turn % 2 == 0 {
            let one = one();
            (one, other())
        } else {
            let other = other();
            (one(), other)
        }
    };
    (0..TURNS).map(turn).collect()
}

/// Decisions a second, all threads together.
struct Throughput {
    /// Of the time that the threads worked: what else the machine does takes nothing from it.
    worked: f64,
    /// Of the time that went by.
    elapsed: f64,
}

fn throughput(threads: u64, keys: u64, decisions: u64, decide: impl Fn(u64) + Sync) -> Throughput {
    let start = Instant::now();
    let time = thread::scope(|scope| {
        let walk = |thread: u64| {
            let decide = &decide;
            move || {
                let start = worked();
                // Through all keys in no order (Weyl), another one for each thread.
                let mut place = thread * 7_919;
                for _ in 0..decisions / threads {
                    place = place.wrapping_add(0x9e37_79b9_7f4a_7c15);
                    // The upper half, scaled: a division would weigh more than some decisions.
                    decide(((place >> 32) * keys) >> 32);
                }
                worked() - start
            }
        };
        let walks: Vec<_> = (0..threads)
            .map(|thread| scope.spawn(walk(thread)))
            .collect();
        walks
            .into_iter()
            .filter_map(|walk| walk.join().ok())
            .sum::<Duration>()
    });
    let (decisions, elapsed) = (decisions as f64, start.elapsed().as_secs_f64());
    Throughput {
        worked: decisions * threads as f64 / time.as_secs_f64(),
        elapsed: decisions / elapsed,
    }
}

fn median(figures: impl Iterator<Item = f64>) -> f64 {
    let mut figures: Vec<f64> = figures.collect();
    figures.sort_unstable_by(f64::total_cmp);
    figures.get(figures.len() / 2).copied().unwrap_or_default()
}

struct NoEdge;

impl Edge for NoEdge {
    fn escalate(&self, _: weir::daemon::escalation::Offence) {}
}

/// Decisions over HTTP for clients on the same machine.
struct Http {
    /// Decisions a second.
    decisions: f64,
    /// Empty answers a second.
    empty: f64,
    /// The one as a part of the other.
    ratio: f64,
    /// The 99th percentile of the time to a decision, at half of the highest load.
    slowest: Duration,
}

fn over_http() -> Http {
    let text = "[decide]\nhttp = \"127.0.0.1:0\"\n[[limit]]\nname = \"credits-per-user\"\nscope = \"request\"\n\
                key = [\"user\"]\nrate = \"1000000/s\"\n";
    let loaded =
        config::parse(Path::new("bench.toml"), text).unwrap_or_else(|report| panic!("{report}"));
    let engine =
        Engine::new(&loaded.config, Arc::new(NoEdge)).unwrap_or_else(|error| panic!("{error}"));
    let service = Service::start(&loaded.config.decide, engine, monotonic_nanoseconds);
    let service = service.unwrap_or_else(|error| panic!("{error}"));
    let Some(Endpoint::Tcp(address)) = service.http() else {
        panic!("the service listens on a port")
    };
    let request = |path: &str| {
        let body = "{\"limit\":\"credits-per-user\",\"key\":{\"user\":\"alice\"},\"cost\":1}";
        format!(
            "POST {path} HTTP/1.1\r\nhost: weir\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
    };
    let (decide, empty) = (request("/v1/decide"), request("/v1/health"));
    let load = |request: &str| {
        let done = AtomicU64::new(0);
        let start = Instant::now();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let mut client = TcpStream::connect(address).unwrap();
                    while start.elapsed() < SLICE {
                        exchange(&mut client, request);
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
        });
        done.load(Ordering::Relaxed) as f64 / start.elapsed().as_secs_f64()
    };
    let turns = in_turns(|| load(&decide), || load(&empty));
    let highest = turns
        .iter()
        .map(|(decisions, _)| *decisions)
        .fold(0.0, f64::max);
    let slowest = (0..ROUNDS)
        .map(|_| percentile(*address, &decide, highest / 2.0))
        .min();
    Http {
        decisions: median(turns.iter().map(|(decisions, _)| *decisions)),
        empty: median(turns.iter().map(|(_, empty)| *empty)),
        ratio: median(turns.iter().map(|(decisions, empty)| decisions / empty)),
        slowest: slowest.unwrap_or(Duration::MAX),
    }
}

/// The 99th percentile of the time to an answer, with so many requests a second from two clients.
fn percentile(address: std::net::SocketAddr, request: &str, per_second: f64) -> Duration {
    let gap = Duration::from_secs_f64(2.0 / per_second);
    let times = thread::scope(|scope| {
        let client = || {
            let mut client = TcpStream::connect(address).unwrap();
            client.set_nodelay(true).unwrap();
            let start = Instant::now();
            let mut times = Vec::new();
            let mut due = start;
            while start.elapsed() < Duration::from_secs(2) {
                while Instant::now() < due {
                    thread::yield_now();
                }
                let sent = Instant::now();
                exchange(&mut client, request);
                times.push(sent.elapsed());
                // Late ones are not made up for: the load is what it is said to be, or less.
                due = (due + gap).max(Instant::now());
            }
            times
        };
        let clients = [scope.spawn(client), scope.spawn(client)];
        clients
            .into_iter()
            .flat_map(|client| client.join().unwrap())
            .collect::<Vec<Duration>>()
    });
    let mut times = times;
    times.sort_unstable();
    times
        .get(times.len() * 99 / 100)
        .copied()
        .unwrap_or(Duration::MAX)
}

/// One request and its whole answer.
fn exchange(client: &mut TcpStream, request: &str) {
    client.write_all(request.as_bytes()).unwrap();
    let mut answer = [0; 2048];
    let mut length = 0;
    loop {
        length += client.read(&mut answer[length..]).unwrap();
        let text = std::str::from_utf8(&answer[..length]).unwrap();
        // All of the body has come once it is as long as the head says.
        let Some((head, body)) = text.split_once("\r\n\r\n") else {
            continue;
        };
        let said = head
            .lines()
            .find_map(|line| line.strip_prefix("content-length: "))
            .and_then(|said| said.parse().ok());
        if said == Some(body.len()) {
            return;
        }
    }
}
