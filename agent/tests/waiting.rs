//! Requests that wait in line, over HTTP, a Unix socket and the command line.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};
use testbed::application::{Agent, Setup};
use testbed::stalls::Stalls;
use testbed::wait::until;

const JOBS: &str = "[[limit]]\nname = \"jobs\"\nscope = \"request\"\nkey = [\"user\"]\nrate = \"2/s\"\nburst = 1\n";

fn start(decide: &str, config: &str) -> Agent {
    Agent::start_as(&Setup {
        decide,
        config,
        agent: "metrics = \"127.0.0.1:0\"",
        ..Setup::default()
    })
}

fn job(user: &str, wait: &str) -> Value {
    json!({"limit": "jobs", "key": {"user": user}, "wait": wait})
}

/// The line of the first limit, read without another process: while one starts, turns come.
fn line(agent: &Agent) -> Value {
    let mut stream = UnixStream::connect(agent.socket()).unwrap();
    stream.write_all(b"{\"verb\":\"limits\"}\n").unwrap();
    let mut reply = String::new();
    BufReader::new(stream).read_line(&mut reply).unwrap();
    let mut reply: Value = serde_json::from_str(&reply).unwrap();
    reply["ok"][0]["waiting"].take()
}

/// How many have been in line so far.
fn came(agent: &Agent) -> u64 {
    let line = line(agent);
    line["waiting"].as_u64().unwrap() + line["passed"].as_u64().unwrap()
}

fn until_waiting(agent: &Agent, count: u64) {
    let start = Instant::now();
    while line(agent)["waiting"] != count {
        assert!(
            start.elapsed() < Duration::from_secs(300),
            "never {count} in line: {}",
            line(agent)
        );
        thread::sleep(Duration::from_millis(10));
    }
}

/// Asks, and waits for nothing.
fn begin(agent: &Agent, question: &Value) -> TcpStream {
    begin_on(TcpStream::connect(&agent.http).unwrap(), question)
}

fn begin_on<S: Write>(mut stream: S, question: &Value) -> S {
    let body = question.to_string();
    let head = format!(
        "POST /v1/decide HTTP/1.1\r\nhost: weir\r\nconnection: close\r\ncontent-length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).unwrap();
    stream
}

fn end(mut stream: TcpStream) -> (String, Value) {
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    (
        head.lines().next().unwrap().to_owned(),
        serde_json::from_str(body).unwrap(),
    )
}

#[test]
fn requests_wait_for_their_turn_in_the_order_in_which_they_came() {
    let slow = JOBS.replace("2/s", "1/s");
    for decide in [
        "http = \"127.0.0.1:0\"",
        "http = \"unix:FOLDER/decide.sock\"",
    ] {
        let agent = start(decide, &slow);
        let began = Instant::now();
        assert_eq!(agent.ask(&job("alice", "30s")).0, 200);
        thread::scope(|scope| {
            let waiting: Vec<_> = (1..=3)
                .map(|_| {
                    let agent = &agent;
                    let before = came(agent);
                    let client = scope.spawn(move || {
                        let asked = Instant::now();
                        (asked, agent.ask(&job("alice", "30s")), Instant::now())
                    });
                    // The next one comes when this one is in line or, if it came late, has passed without waiting.
                    until("client in line", || {
                        (came(agent) > before || client.is_finished()).then_some(())
                    });
                    client
                })
                .collect();
            // Another key has a line of its own.
            assert_eq!(agent.ask(&job("bob", "30s")).0, 200);
            let ends: Vec<_> = waiting
                .into_iter()
                .map(|client| client.join().unwrap())
                .collect();
            for (nth, (_, (status, answer), at)) in ends.iter().enumerate() {
                assert_eq!(
                    (*status, &answer["allowed"]),
                    (200, &json!(true)),
                    "{answer}"
                );
                assert!(
                    *at - began >= Duration::from_millis(990 * (nth as u64 + 1)),
                    "{nth} passed too early"
                );
            }
            // The earliest time at which the one in front may have passed, and the latest of the next one.
            let is_in_order = ends.windows(2).all(|two| {
                let (asked, (_, answer), _) = &two[0];
                let waited = answer["waited_seconds"].as_f64().unwrap_or(0.0);
                *asked + Duration::from_secs_f64(waited) <= two[1].2
            });
            assert!(is_in_order, "somebody was overtaken: {ends:?}");
        });
        assert_eq!(line(&agent)["waiting"], 0);
    }
}

#[test]
fn too_short_waits_are_refused_at_once_and_order_is_kept() {
    let soon = JOBS.replace("jobs", "soon").replace("2/s", "6/min");
    let limits = format!("{}{soon}", JOBS.replace("2/s", "1/min"));
    let agent = start("http = \"127.0.0.1:0\"", &limits);
    let soon = json!({"limit": "soon", "key": {"user": "alice"}, "wait": "30s"});
    assert_eq!(agent.ask(&soon).0, 200);
    let first = begin(&agent, &soon);
    let (head, answer) = end(first);
    assert!(
        head.contains("200") && answer["waited_seconds"].as_f64().unwrap() > 0.1,
        "{head} {answer}"
    );

    assert_eq!(agent.ask(&job("alice", "1s")).0, 200);
    let (began, stalls) = (Instant::now(), Stalls::watch());
    let (status, answer) = agent.ask(&job("alice", "20s"));
    assert_eq!((status, &answer["allowed"]), (429, &json!(false)));
    assert!(
        began.elapsed() < Duration::from_secs(20) + 4 * stalls.so_far(),
        "it waited"
    );
    assert!(answer["waited_seconds"].is_null(), "{answer}");

    let first = begin(&agent, &job("alice", "60s"));
    until_waiting(&agent, 1);
    let (status, answer) = agent.ask(&json!({"limit": "jobs", "key": {"user": "alice"}}));
    let retry_after = answer["retry_after_seconds"].as_f64().unwrap();
    // After the one in front, which takes up to a minute itself.
    assert!(
        status == 429 && retry_after > 60.0 && retry_after <= 120.0,
        "{answer}"
    );
    let (status, peeked) =
        agent.ask(&json!({"limit": "jobs", "key": {"user": "alice"}, "peek": true}));
    assert_eq!((status, &peeked["allowed"]), (429, &json!(false)));
    drop(first);

    for (wrong, reason) in [
        (
            json!({"limit": "jobs", "key": {"user": "a"}, "wait": "1s", "peek": true}),
            "peek conflicts with wait",
        ),
        (job("a", "61s"), "1 min at most"),
        (job("a", "5"), "invalid wait"),
        (job("a", "soon"), "invalid wait"),
    ] {
        let (status, answer) = agent.ask(&wrong);
        assert!(
            status == 400 && answer["error"].as_str().unwrap().contains(reason),
            "{wrong}: {answer}"
        );
    }
}

#[test]
fn a_client_that_disconnects_frees_its_place_and_charges_nothing() {
    let agent = start("http = \"127.0.0.1:0\"", &JOBS.replace("2/s", "4/min"));
    let (charged, stalls) = (Instant::now(), Stalls::watch());
    assert_eq!(agent.ask(&job("alice", "1s")).0, 200);
    let gone = [
        begin(&agent, &job("alice", "60s")),
        begin(&agent, &job("alice", "60s")),
    ];
    until_waiting(&agent, 2);
    let mut command = Command::new(env!("CARGO_BIN_EXE_agent"))
        .args([
            "decide",
            "--limit",
            "jobs",
            "--key",
            "user=alice",
            "--wait",
            "60s",
            "--json",
            "--control",
        ])
        .arg(agent.socket())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    until_waiting(&agent, 3);
    drop(gone);
    until_waiting(&agent, 1);
    // It is the first now, and passes when the first would have.
    let output = {
        let mut text = String::new();
        command
            .stdout
            .take()
            .unwrap()
            .read_to_string(&mut text)
            .unwrap();
        assert!(command.wait().unwrap().success());
        serde_json::from_str::<Value>(&text).unwrap()
    };
    let took = charged.elapsed();
    assert_eq!(output["allowed"], true);
    let most = Duration::from_secs(29) + 4 * stalls.so_far();
    assert!(
        took >= Duration::from_millis(14_900) && took < most,
        "{took:?} of {most:?}"
    );

    let mut command = Command::new(env!("CARGO_BIN_EXE_agent"))
        .args([
            "decide",
            "--limit",
            "jobs",
            "--key",
            "user=alice",
            "--wait",
            "60s",
            "--control",
        ])
        .arg(agent.socket())
        .spawn()
        .unwrap();
    until_waiting(&agent, 1);
    // A program in a shell's background ignores SIGINT.
    kill(Pid::from_raw(command.id() as i32), Signal::SIGTERM).unwrap();
    command.wait().unwrap();
    until_waiting(&agent, 0);
    let line = line(&agent);
    assert_eq!(
        (&line["passed"], &line["left"], &line["refused"]),
        (&json!(1), &json!(3), &json!(0))
    );
    let mut stream = TcpStream::connect(&agent.metrics).unwrap();
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nhost: weir\r\nconnection: close\r\n\r\n")
        .unwrap();
    let mut page = String::new();
    stream.read_to_string(&mut page).unwrap();
    assert!(
        page.contains("weir_waited_requests_total{limit=\"jobs\",outcome=\"left\"} 3"),
        "{page}"
    );
    assert!(
        page.contains("weir_waiting_requests{limit=\"jobs\"} 0"),
        "{page}"
    );
}

#[test]
fn the_questions_of_a_batch_wait_each_for_itself() {
    let agent = start("http = \"127.0.0.1:0\"", JOBS);
    let began = Instant::now();
    let (status, answers) = agent.ask(&json!([
        job("alice", "30s"),
        job("alice", "30s"),
        job("alice", "30s"),
        {"limit": "jobs", "key": {"user": "alice"}},
        job("bob", "30s"),
    ]));
    let allowed: Vec<bool> = answers
        .as_array()
        .unwrap()
        .iter()
        .map(|answer| answer["allowed"].as_bool().unwrap())
        .collect();
    assert_eq!(
        (status, allowed),
        (200, vec![true, true, true, false, true])
    );
    assert!(began.elapsed() >= Duration::from_millis(990));
    // One that is not understood, and none waits.
    assert_eq!(
        agent.ask(&json!([job("alice", "30s"), {"limit": "x"}])).0,
        400
    );
    assert_eq!(line(&agent)["waiting"], 0);
}

/// A client that has sent its request and closed its half of the connection counts as gone.
#[test]
fn a_client_that_closes_its_half_frees_its_places() {
    for decide in [
        "http = \"127.0.0.1:0\"",
        "http = \"unix:FOLDER/decide.sock\"",
    ] {
        let agent = start(decide, &JOBS.replace("2/s", "3/min"));
        assert_eq!(agent.ask(&job("alice", "1s")).0, 200);
        let jobs = json!([job("alice", "50s"), job("alice", "50s")]);
        if decide.contains("unix") {
            let path = agent.folder.path().join("decide.sock");
            let stream = begin_on(UnixStream::connect(path).unwrap(), &jobs);
            until_waiting(&agent, 2);
            stream.shutdown(Shutdown::Write).unwrap();
            until_waiting(&agent, 0);
        } else {
            let stream = begin(&agent, &jobs);
            until_waiting(&agent, 2);
            stream.shutdown(Shutdown::Write).unwrap();
            until_waiting(&agent, 0);
        }
        assert_eq!(line(&agent)["left"], 2);
    }
}

/// A batch of a thousand waits in an eighth of the places at the most, over however many keys.
#[test]
fn a_batch_takes_no_more_than_its_part_of_the_places() {
    let agent = start(
        "http = \"127.0.0.1:0\"\nmax_waiting = 80",
        &JOBS.replace("2/s", "2/min"),
    );
    // None of them passes within half a minute.
    let jobs: Vec<Value> = (0..500)
        .flat_map(|user| [job(&user.to_string(), "60s"), job(&user.to_string(), "60s")])
        .collect();
    let batch = begin(&agent, &json!(jobs));
    until("490 without a place", || {
        (line(&agent)["full"] == 490).then_some(())
    });
    assert_eq!(line(&agent)["waiting"], 10);
    // Others find room.
    let others: Vec<TcpStream> = (0..20)
        .map(|user| begin(&agent, &job(&user.to_string(), "60s")))
        .collect();
    until_waiting(&agent, 30);
    drop(batch);
    until_waiting(&agent, 20);
    drop(others);
}

#[test]
fn a_reload_is_noticed_and_the_end_answers_everybody() {
    let slow = JOBS.replace("2/s", "1/min");
    let mut agent = start("http = \"127.0.0.1:0\"", &slow);
    assert_eq!(agent.ask(&job("alice", "1s")).0, 200);
    let waits = begin(&agent, &job("alice", "60s"));
    until_waiting(&agent, 1);
    let file = agent.folder.path().join("limits.toml");
    let text = std::fs::read_to_string(&file).unwrap();
    let began = Instant::now();
    std::fs::write(&file, text.replace("1/min", "100/s")).unwrap();
    assert!(agent.command(&["reload"]).status.success());
    assert!(end(waits).0.contains("200"));
    assert!(
        began.elapsed() < Duration::from_secs(30),
        "it waited for the limit before"
    );

    std::fs::write(&file, &text).unwrap();
    assert!(agent.command(&["reload"]).status.success());
    while agent
        .ask(&json!({"limit": "jobs", "key": {"user": "bob"}}))
        .0
        == 200
    {}
    let waits = begin(&agent, &job("bob", "60s"));
    until_waiting(&agent, 1);
    kill(Pid::from_raw(agent.child.id() as i32), Signal::SIGTERM).unwrap();
    let (head, answer) = end(waits);
    assert!(
        head.contains("429") && answer["allowed"] == false,
        "{head} {answer}"
    );
    assert!(agent.child.wait().unwrap().success());
}
