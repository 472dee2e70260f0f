//! Envoy under a steady load, with as little patience as people give it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::proxy::{Envoy, Reply, header, route};
use testbed::application::Agent;
use testbed::groups::run_delay;

const PER_SECOND: u32 = 1_000;
const SECONDS: u32 = 10;
const CLIENTS: u32 = 4;
const TIMEOUT: &str = "0.02s";
/// A thread that is woken later than this was kept from a processor: others had all of them.
const LATE: Duration = Duration::from_millis(4);

const LIMITS: &str = r#"
[[limit]]
name = "users"
scope = "request"
key = ["user"]
rate = "100000/s"
"#;

/// A thousand requests a second for ten seconds, and each is answered in time. What is excused is only what came while the
/// machine had no processor to give, to others or to the threads of Envoy, the agent and the clients: as many requests as were
/// due then, and while that was made up for.
pub fn a_thousand_requests_a_second_are_answered_within_20_ms() {
    let agent = Agent::start_with("grpc = \"127.0.0.1:0\"", LIMITS);
    let envoy = Envoy::start(
        &agent.grpc,
        TIMEOUT,
        vec![route("/", json!([{"actions": [header("x-user", "user")]}]))],
    );
    // Connections are made before it counts.
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| envoy.client()).collect();
    for client in &mut clients {
        while !client.get("/", &[("x-user", "first")]).is_passed() {}
    }
    let errors_before = envoy.counter("ratelimit.error");
    let has_ended = AtomicBool::new(false);
    let servers = || run_delay(envoy.process()) + run_delay(agent.child.id());
    let waited_before = servers();
    let (replies, stalled) = thread::scope(|scope| {
        let probe = scope.spawn(|| stalls(&has_ended));
        let start = Instant::now();
        let gap = Duration::from_secs(1) * CLIENTS / PER_SECOND;
        let load = |(nth, mut client): (u32, super::Client)| {
            scope.spawn(move || {
                let request = |turn: u32| {
                    let due = start + gap * turn + gap * nth / CLIENTS;
                    thread::sleep(due.saturating_duration_since(Instant::now()));
                    client.get(
                        "/",
                        &[("x-user", ["alice", "bob", "carol"][(turn % 3) as usize])],
                    )
                };
                let replies: Vec<Reply> =
                    (0..PER_SECOND * SECONDS / CLIENTS).map(request).collect();
                (replies, thread_waited())
            })
        };
        let threads: Vec<_> = (0..).zip(clients).map(load).collect();
        let (mut replies, mut waited) = (Vec::new(), Duration::ZERO);
        for thread in threads {
            let (of_one, of_thread) = thread.join().unwrap();
            replies.extend(of_one);
            waited += of_thread;
        }
        has_ended.store(true, Ordering::Relaxed);
        (replies, probe.join().unwrap() + waited)
    });
    let stalled = stalled + servers().saturating_sub(waited_before);
    let asked = replies.len() as u64;
    assert_eq!(asked, u64::from(PER_SECOND * SECONDS));
    let failed = replies.iter().filter(|reply| !reply.is_passed()).count() as u64;
    let excused = (2.0 * stalled.as_secs_f64() * f64::from(PER_SECOND)) as u64;
    eprintln!(
        "{failed} of {asked} failed; for {stalled:?} there was no processor, which excuses {excused}"
    );
    assert!(failed <= excused, "{failed} failed; {excused} are excused");
    assert_eq!(envoy.counter("ratelimit.error") - errors_before, failed);
    // Each was asked about, and refused by none.
    let limits: Value =
        serde_json::from_slice(&agent.command(&["limits", "--json"]).stdout).unwrap();
    let count = |what: &str| limits[0][what]["packets"].as_u64().unwrap();
    assert!(
        count("passed") >= asked - failed && count("throttled") == 0,
        "{limits}"
    );
}

/// How long this thread has waited for a processor.
fn thread_waited() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    let nanoseconds = text.split_whitespace().nth(1).unwrap();
    Duration::from_nanos(nanoseconds.parse().unwrap())
}

/// For how long in all a thread that wanted to run did not.
fn stalls(has_ended: &AtomicBool) -> Duration {
    const REST: Duration = Duration::from_millis(1);
    let mut stalled = Duration::ZERO;
    while !has_ended.load(Ordering::Relaxed) {
        let start = Instant::now();
        thread::sleep(REST);
        stalled += Some(start.elapsed() - REST)
            .filter(|late| *late > LATE)
            .unwrap_or_default();
    }
    stalled
}
