//! Refused requests of applications in `weir events` and `weir show`, and what followers of events select.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testbed::application::Agent;
use testbed::wait::until;

const LIMITS: &str = r#"
[[limit]]
name = "addresses"
scope = "request"
key = "source"
rate = "10/h"

[[limit]]
name = "users"
scope = "request"
key = ["user"]
unit = "credits"
algorithm = "fixed-window"
rate = "10/h"

[[limit]]
name = "tried"
scope = "request"
key = "source"
rate = "1/h"
action = "observe"
"#;

/// Sources that one second's events name: `MOST_AT_ONCE` of the module that records refusals.
const NAMED: u64 = 100;

fn start() -> Agent {
    Agent::start_with("http = \"127.0.0.1:0\"", LIMITS)
}

/// Asks for more than there ever is, so many times in one body.
fn refuse(agent: &Agent, limit: &str, source: &str, times: usize) {
    let question = json!({"limit": limit, "key": {"source": source}, "cost": 1_000});
    assert_eq!(agent.ask(&json!(vec![question; times])).0, 200);
}

fn events(agent: &Agent, arguments: &[&str]) -> Vec<Value> {
    let output = agent.command(&[&["events", "--json"], arguments].concat());
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

fn of_verdict<'e>(events: &'e [Value], verdict: &str) -> Vec<&'e Value> {
    events
        .iter()
        .filter(|event| event["verdict"] == verdict)
        .collect()
}

#[test]
fn refused_requests_are_events_of_their_source_and_limit() {
    let agent = start();
    refuse(&agent, "addresses", "203.0.113.9", 40);
    refuse(&agent, "addresses", "2001:db8:7::1", 2);
    refuse(&agent, "tried", "203.0.113.9", 3);
    let users =
        json!({"limit": "users", "key": {"user": "a-secret"}, "source": "203.0.113.9", "cost": 11});
    assert_eq!(agent.ask(&users).0, 429);
    let nobody = json!({"limit": "users", "key": {"user": "a-secret"}, "cost": 11});
    assert_eq!(agent.ask(&nobody).0, 429);
    // A peek is refused nothing.
    let peek =
        json!({"limit": "addresses", "key": {"source": "203.0.113.77"}, "cost": 11, "peek": true});
    assert_eq!(agent.ask(&peek).0, 429);

    let expected = [
        (json!("203.0.113.9"), "addresses", 40),
        (json!("2001:db8:7::/64"), "addresses", 2),
        (json!("203.0.113.9"), "tried", 3),
        (json!("203.0.113.9"), "users", 1),
        (Value::Null, "users", 1),
    ];
    let told = until("event of each", || {
        let told = events(&agent, &["--since", "10m"]);
        let has = |(source, limit, count): &(Value, &str, u64)| {
            told.iter().any(|event| {
                event["source"] == *source && event["limit"] == *limit && event["count"] == *count
            })
        };
        expected.iter().all(has).then_some(told)
    });
    let of = |source: Value, limit: &str| {
        let mut found = told
            .iter()
            .filter(|event| event["source"] == source && event["limit"] == limit);
        found
            .next_back()
            .unwrap_or_else(|| panic!("{source} under {limit}: {told:?}"))
    };
    let event = of(json!("203.0.113.9"), "addresses");
    assert_eq!(
        (&event["verdict"], &event["direction"]),
        (&json!("throttled"), &json!("request"))
    );
    assert_eq!(event["reason"], "more than 10/h requests, burst 10");
    assert_eq!(
        of(json!("203.0.113.9"), "users")["reason"],
        "more than 10/h credits"
    );
    assert_eq!(
        of(json!("203.0.113.9"), "tried")["verdict"],
        "would-throttle"
    );
    let all = serde_json::to_string(&told).unwrap();
    assert!(
        !all.contains("a-secret") && !all.contains("203.0.113.77"),
        "{all}"
    );

    // The filters.
    let by_limit = events(&agent, &["--limit", "users"]);
    assert_eq!(by_limit.len(), 2, "{by_limit:?}");
    let by_source = events(&agent, &["--source", "2001:db8:7::1"]);
    assert!(
        by_source
            .iter()
            .all(|event| event["source"] == "2001:db8:7::/64"),
        "{by_source:?}"
    );
    assert_eq!(by_source.last().unwrap()["count"], 2);

    // The address itself.
    let shown = agent.json(&["show", "203.0.113.9"]);
    let row = |name: &str| {
        shown["requests"]
            .as_array()
            .unwrap()
            .iter()
            .find(|row| row["name"] == name)
            .unwrap()
    };
    assert_eq!(
        (
            &row("addresses")["throttled_requests"],
            &row("addresses")["remaining"]
        ),
        (&json!(40), &json!(10))
    );
    assert_eq!(
        (
            &row("users")["throttled_requests"],
            &row("users")["remaining"]
        ),
        (&json!(1), &Value::Null)
    );
    assert_eq!(row("tried")["would_throttle_requests"], 3);
    assert!(
        row("addresses")["last_throttled_seconds_ago"]
            .as_f64()
            .unwrap()
            < 600.0
    );
    assert_eq!(
        (&shown["class"], &shown["ban"]),
        (&json!("default"), &Value::Null)
    );
    let text = String::from_utf8(agent.command(&["show", "203.0.113.9"]).stdout).unwrap();
    assert!(
        text.contains("REQUEST LIMIT") && text.contains("40"),
        "{text}"
    );
    assert!(
        text.lines().all(|line| line.chars().count() <= 80),
        "{text}"
    );
    // Another address of the same /64 shares its record, and others have none.
    let other = agent.json(&["show", "2001:db8:7::2"]);
    assert_eq!(other["requests"][0]["throttled_requests"], 2);
    let other = agent.json(&["show", "2001:db8:8::2"]);
    assert_eq!(other["requests"][0]["throttled_requests"], 0);
}

#[test]
fn a_flood_of_refused_requests_gives_few_events_and_each_refusal_counts() {
    let agent = start();
    const MADE_UP: u64 = 9_000;
    let real = "203.0.113.9";
    let start = Instant::now();
    for part in 0..10u32 {
        // Made-up sources, and among them one that is there.
        let question = |nth: u32| {
            let made_up =
                std::net::Ipv4Addr::from_bits(0x0b00_0000 + part * 1_000 + nth).to_string();
            let source = if nth.is_multiple_of(10) {
                real.to_owned()
            } else {
                made_up
            };
            json!({"limit": "addresses", "key": {"source": source}, "cost": 1_000})
        };
        assert_eq!(
            agent
                .ask(&json!((0..1_000).map(question).collect::<Vec<Value>>()))
                .0,
            200
        );
    }
    // Every made-up source was refused once. When events are made, the real one is among the busiest, unless it was
    // refused once as well since the last time: then that counts among the lost.
    let counted = |told: &[Value]| -> u64 {
        let throttled = of_verdict(told, "throttled").into_iter();
        throttled
            .filter(|event| event["source"] != real)
            .chain(of_verdict(told, "lost"))
            .map(|event| event["count"].as_u64().unwrap())
            .sum()
    };
    until("count of every refusal", || {
        (counted(&events(&agent, &[])) >= MADE_UP).then_some(())
    });
    refuse(&agent, "addresses", real, 1);
    let told = until("event of the busiest source", || {
        let told = events(&agent, &[]);
        let last = told.iter().rfind(|event| event["source"] == real);
        last.is_some_and(|event| event["count"] == 1_001)
            .then_some(told)
    });
    let seconds = start.elapsed().as_secs() + 1;
    assert!(
        (MADE_UP..=MADE_UP + seconds).contains(&counted(&told)),
        "{} of {MADE_UP} in {seconds} s",
        counted(&told)
    );
    assert!(
        told.len() as u64 <= seconds * (NAMED + 1),
        "{} events in {seconds} s",
        told.len()
    );
    assert_eq!(
        agent.json(&["show", real])["requests"][0]["throttled_requests"],
        1_001
    );
}

/// A source that shows that somebody follows.
const MARK: &str = "192.0.2.99";

/// A follower and what it prints.
struct Follower {
    child: Child,
    lines: Receiver<String>,
}

impl Follower {
    fn start(agent: &Agent, arguments: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_agent"));
        command
            .args(["events", "--follow", "--json"])
            .args(arguments)
            .arg("--control")
            .arg(agent.socket());
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = channel();
        let out = BufReader::new(child.stdout.take().unwrap());
        // It ends with the program.
        thread::spawn(move || {
            out.lines()
                .map_while(Result::ok)
                .try_for_each(|line| sender.send(line))
        });
        Self { child, lines }
    }

    fn next(&self) -> Value {
        serde_json::from_str(
            &self
                .lines
                .recv_timeout(Duration::from_secs(300))
                .expect("another line"),
        )
        .unwrap()
    }

    /// `source limit` of the events up to the one that `is_last`.
    fn until(&self, is_last: impl Fn(&Value) -> bool) -> Vec<String> {
        let mut found = Vec::new();
        loop {
            let event = self.next();
            if event["source"] == MARK {
                continue;
            }
            found.push(format!(
                "{} {}",
                event["source"].as_str().unwrap(),
                event["limit"].as_str().unwrap()
            ));
            if is_last(&event) {
                return found;
            }
        }
    }
}

impl Drop for Follower {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits until a source's refusals are remembered as an event.
fn remembered(agent: &Agent, source: &str, limit: &str) {
    refuse(agent, limit, source, 1);
    until("event", || {
        (!events(agent, &["--source", source, "--limit", limit]).is_empty()).then_some(())
    });
}

#[test]
fn a_follower_prints_the_events_that_its_options_select() {
    let agent = start();
    for (source, limit) in [
        ("203.0.113.1", "addresses"),
        ("203.0.113.2", "addresses"),
        ("203.0.113.2", "tried"),
        ("198.51.100.3", "addresses"),
    ] {
        remembered(&agent, source, limit);
    }
    let followers = [
        (
            vec![],
            vec![
                "203.0.113.1 addresses",
                "203.0.113.2 addresses",
                "203.0.113.2 tried",
                "198.51.100.3 addresses",
            ],
        ),
        (
            vec!["--source", "203.0.113.0/24"],
            vec![
                "203.0.113.1 addresses",
                "203.0.113.2 addresses",
                "203.0.113.2 tried",
            ],
        ),
        (vec!["--limit", "tried"], vec!["203.0.113.2 tried"]),
        (
            vec!["--source", "203.0.113.2", "--limit", "addresses"],
            vec!["203.0.113.2 addresses"],
        ),
        // The last of those that match, not those of the last that match.
        (
            vec!["-n", "1", "--source", "203.0.113.0/24"],
            vec!["203.0.113.2 tried"],
        ),
        (vec!["-n", "0"], vec![]),
        // Nothing happened within the last nanosecond; what comes is newer.
        (vec!["--since", "1ns"], vec![]),
        (
            vec!["--since", "1h", "-n", "2"],
            vec!["203.0.113.2 tried", "198.51.100.3 addresses"],
        ),
    ];
    let started: Vec<_> = followers
        .iter()
        .map(|(arguments, expected)| {
            let follower = Follower::start(&agent, arguments);
            let first: Vec<String> = expected
                .iter()
                .map(|_| follower.next())
                .map(|event| {
                    format!(
                        "{} {}",
                        event["source"].as_str().unwrap(),
                        event["limit"].as_str().unwrap()
                    )
                })
                .collect();
            assert_eq!(first, *expected, "{arguments:?}");
            follower
        })
        .collect();
    // A follower that was sent nothing may not follow yet: it does once it prints this source.
    for (follower, _) in started
        .iter()
        .zip(&followers)
        .filter(|(_, (_, expected))| expected.is_empty())
    {
        until("following", || {
            refuse(&agent, "addresses", MARK, 1);
            follower.lines.recv_timeout(Duration::from_secs(1)).ok()
        });
    }
    remembered(&agent, "203.0.113.5", "tried");
    remembered(&agent, "192.0.2.6", "addresses");
    // One that every follower but the one of a single source selects.
    remembered(&agent, "203.0.113.2", "tried");
    let new = [
        "203.0.113.5 tried",
        "192.0.2.6 addresses",
        "203.0.113.2 tried",
    ];
    let selects: [fn(&str) -> bool; 8] = [
        |_| true,
        |event| event.starts_with("203.0.113."),
        |event| event.ends_with(" tried"),
        |event| event == "203.0.113.2 addresses",
        |event| event.starts_with("203.0.113."),
        |_| true,
        |_| true,
        |_| true,
    ];
    for (((arguments, _), follower), selects) in followers.iter().zip(&started).zip(selects) {
        let expected: Vec<&str> = new.into_iter().filter(|event| selects(event)).collect();
        if expected.is_empty() {
            let silence = follower.lines.recv_timeout(Duration::from_millis(300));
            assert_eq!(silence, Err(RecvTimeoutError::Timeout), "{arguments:?}");
            continue;
        }
        let found =
            follower.until(|event| event["source"] == "203.0.113.2" && event["limit"] == "tried");
        assert_eq!(found, expected, "{arguments:?}");
    }
}
