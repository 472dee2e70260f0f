//! Use that is reported after the work: forced charges, reservations and refunds.

use std::time::Instant;

use serde_json::{Value, json};
use testbed::application::Agent;

use super::alice;

/// A credit of `credits-per-user` comes back every 6 s.
const SECONDS_A_CREDIT: f64 = 6.0;

fn id(answer: &Value) -> String {
    answer["reservation"].as_str().unwrap().to_owned()
}

fn left(agent: &Agent) -> i64 {
    let (_, answer) = agent.ask(&alice(json!({"peek": true})));
    answer["remaining"].as_i64().unwrap()
}

/// What has come back since `start` at most.
pub fn refilled(start: Instant) -> i64 {
    (start.elapsed().as_secs_f64() / SECONDS_A_CREDIT) as i64 + 1
}

/// As many credits are left as expected, and those that have come back since `start`.
fn assert_left(agent: &Agent, expected: i64, start: Instant) {
    let left = left(agent);
    assert!(
        (expected..=expected + refilled(start)).contains(&left),
        "{left} of {expected}"
    );
}

#[test]
fn forced_use_goes_below_zero_and_is_paid_by_the_refill() {
    let agent = Agent::start("http = \"127.0.0.1:0\"");
    let start = Instant::now();
    let (status, head, answer) =
        agent.post(&alice(json!({"cost": 5_000, "charge": "force"})).to_string());
    assert_eq!((status, &answer["allowed"]), (200, &json!(true)));
    let below = -4_000..=-4_000 + refilled(start);
    assert!(
        below.contains(&answer["remaining"].as_i64().unwrap()),
        "{answer}"
    );
    // The draft has no number below zero.
    assert!(
        head.contains("\r\nratelimit: \"credits-per-user\";r=0;t="),
        "{head}"
    );
    let (status, head, answer) = agent.post(&alice(json!({"cost": 1})).to_string());
    assert_eq!((status, &answer["allowed"]), (429, &json!(false)));
    let wait = answer["retry_after_seconds"].as_f64().unwrap();
    let most = 4_001.0 * SECONDS_A_CREDIT;
    assert!(
        wait <= most && wait >= most - start.elapsed().as_secs_f64() - 0.1,
        "{answer}"
    );
    assert!(
        head.contains(&format!("\r\nretry-after: {}", wait.ceil())),
        "{head}"
    );
    // A refund pays it back.
    let (status, answer) = agent.ask(&alice(json!({"cost": -4_500})));
    assert_eq!(status, 200);
    let paid = 500..=500 + refilled(start);
    assert!(
        paid.contains(&answer["remaining"].as_i64().unwrap()),
        "{answer}"
    );
}

#[test]
fn a_reservation_is_committed_or_released_once() {
    let agent = Agent::start("http = \"127.0.0.1:0\"\nmax_reservations = 2");
    let start = Instant::now();
    let near = |expected| assert_left(&agent, expected, start);
    let (status, answers) = agent.ask(&json!([
        alice(json!({"cost": 300, "reserve": "1h"})),
        alice(json!({"request": "publish", "parameters": {"messages": 2}, "reserve": "1h"})),
    ]));
    assert_eq!(status, 200, "{answers}");
    let ids = [id(&answers[0]), id(&answers[1])];
    near(500);
    // The store is full, which is no verdict and charges nothing.
    let (status, answer) = agent.ask(&alice(json!({"cost": 1, "reserve": "1h"})));
    assert_eq!(status, 503);
    assert!(
        answer["error"]
            .as_str()
            .unwrap()
            .contains("raise [decide] max_reservations"),
        "{answer}"
    );
    near(500);
    // Less, and more: 3 messages cost 300.
    let (status, answer) = agent.ask(&json!({"commit": ids[0], "cost": 120}));
    assert_eq!(
        (status, &answer["limit"]),
        (200, &json!("credits-per-user"))
    );
    near(680);
    let (status, _) =
        agent.ask(&json!({"commit": ids[1], "request": "publish", "parameters": {"messages": 3}}));
    assert_eq!(status, 200);
    near(580);
    for again in [
        json!({"commit": ids[0]}),
        json!({"release": ids[1]}),
        json!({"release": "x"}),
    ] {
        let (status, answer) = agent.ask(&again);
        assert_eq!(status, 404, "{answer}");
        assert!(
            answer["error"]
                .as_str()
                .unwrap()
                .contains("unknown reservation"),
            "{answer}"
        );
    }
    for (wrong, reason) in [
        (json!({}), "missing limit"),
        (
            json!({"commit": ids[0], "limit": "logins"}),
            "leave out the other fields",
        ),
        (alice(json!({"reserve": "2d"})), "invalid reserve"),
        (
            alice(json!({"on_expiry": "release"})),
            "on_expiry requires reserve",
        ),
    ] {
        let (status, answer) = agent.ask(&wrong);
        assert_eq!(status, 400, "{answer}");
        assert!(
            answer["error"].as_str().unwrap().contains(reason),
            "{answer}"
        );
    }
    near(580);
}

/// The queue is served when a reservation expires: without it, the cost would pass in 12 s, and nothing would remain.
#[test]
fn a_request_that_waits_passes_when_a_reservation_expires() {
    let agent = Agent::start("http = \"127.0.0.1:0\"");
    let start = Instant::now();
    let question = json!({"cost": 1_000, "reserve": "300ms", "on_expiry": "release"});
    let (_, answer) = agent.ask(&alice(question));
    let reservation = id(&answer);
    let (status, answer) = agent.ask(&alice(json!({"cost": 2, "wait": "50s"})));
    assert_eq!(
        (status, &answer["allowed"]),
        (200, &json!(true)),
        "{answer}"
    );
    let remaining = answer["remaining"].as_i64().unwrap();
    assert!(
        (998 - refilled(start)..=998 + refilled(start)).contains(&remaining),
        "{answer}"
    );
    assert_eq!(agent.ask(&json!({"commit": reservation})).0, 404);
}

#[test]
fn the_command_line_reserves_and_settles() {
    let agent = Agent::start("http = \"127.0.0.1:0\"");
    let start = Instant::now();
    let near = |expected| assert_left(&agent, expected, start);
    let json = |arguments: &[&str]| agent.json(&[&["decide"], arguments].concat());
    let user = ["--limit", "credits-per-user", "--key", "user=alice"];
    let of = |more: &[&'static str]| json(&[&user[..], more].concat());
    let one = id(&of(&["--cost", "400", "--reserve", "10min"]));
    let other = id(&of(&[
        "--cost",
        "100",
        "--reserve",
        "10min",
        "--on-expiry",
        "release",
    ]));
    near(500);
    json(&["--commit", &one, "--cost", "50"]);
    json(&["--release", &other]);
    near(950);
    of(&["--cost", "2000", "--force"]);
    near(-1_050);
    of(&["--cost", "-1500"]);
    near(450);
    let output = agent.command(&["decide", "--release", &other]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2));
    assert!(said.contains("unknown reservation"), "{said}");
    let forced = [&["decide"], &user[..], &["--cost", "2000", "--force"]].concat();
    let text = String::from_utf8(agent.command(&forced).stdout).unwrap();
    assert!(
        text.contains("remaining    -1,5") && text.contains("allowed      yes"),
        "{text}"
    );
}

/// The saved use of a quota is what was charged, an open reservation among it; its ID is not known to the next agent.
#[test]
fn a_debt_and_a_reservation_survive_a_restart_as_use() {
    let limit = "[[limit]]\nname = \"daily\"\nscope = \"request\"\nkey = [\"user\"]\nunit = \"credits\"\n\
                 algorithm = \"fixed-window\"\nrate = \"1000/day\"\n";
    let mut agent = Agent::start_with("http = \"127.0.0.1:0\"", limit);
    let of = |user: &str, more: Value| {
        let mut question = json!({"limit": "daily", "key": {"user": user}});
        question
            .as_object_mut()
            .unwrap()
            .extend(more.as_object().unwrap().clone());
        question
    };
    let forced = of("alice", json!({"cost": 5_000, "charge": "force"}));
    assert_eq!(agent.ask(&forced).1["remaining"], -4_000);
    let reserved = of(
        "bob",
        json!({"cost": 300, "reserve": "1h", "on_expiry": "release"}),
    );
    let reservation = id(&agent.ask(&reserved).1);
    agent.restart();
    let (status, answer) = agent.ask(&of("alice", json!({})));
    assert_eq!((status, &answer["remaining"]), (429, &json!(-4_000)));
    assert_eq!(
        agent.ask(&of("bob", json!({"peek": true}))).1["remaining"],
        700
    );
    assert_eq!(agent.ask(&json!({"release": reservation})).0, 404);
}
