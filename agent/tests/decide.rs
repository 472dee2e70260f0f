//! Applications ask the agent's own binary: over HTTP, a unix socket and the command line.

#[path = "decide/calendar.rs"]
mod calendar;
#[path = "decide/settling.rs"]
mod settling;

use std::process::{Command, Output};
use std::thread;
use std::time::Instant;

use serde_json::{Value, json};
use testbed::application::{Agent, CONFIG};
use testbed::process::memory;

fn alice(more: Value) -> Value {
    let mut question = json!({"limit": "credits-per-user", "key": {"user": "alice"}});
    question
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    question
}

#[test]
fn a_decision_is_answered_with_what_is_left_and_the_drafts_headers() {
    let agent = Agent::start("http = \"127.0.0.1:0\"");
    let (status, head, answer) = agent.post(
        &alice(
            json!({"source": "203.0.113.9", "request": "publish", "parameters": {"messages": 3}}),
        )
        .to_string(),
    );
    assert_eq!(
        (status, &answer["allowed"], &answer["limit"]),
        (200, &json!(true), &json!("credits-per-user"))
    );
    // A credit comes back every 6 s.
    let remaining = answer["remaining"].as_u64().unwrap();
    assert!((700..705).contains(&remaining), "{answer}");
    assert_eq!(answer["retry_after_seconds"], 0.0);
    let reset = answer["reset_after_seconds"].as_f64().unwrap();
    assert!(reset > 1_700.0 && reset <= 1_800.0, "{answer}");
    assert!(
        head.contains("\r\ncontent-type: application/json"),
        "{head}"
    );
    assert!(
        head.contains("\r\nratelimit-policy: \"credits-per-user\";q=600;w=3600;qu=\"credits\""),
        "{head}"
    );
    assert!(
        head.contains(&format!(
            "\r\nratelimit: \"credits-per-user\";r={remaining};t={}",
            reset.ceil()
        )),
        "{head}"
    );
    assert!(!head.contains("retry-after"), "{head}");

    let (status, head, answer) = agent.post(&alice(json!({"cost": 800})).to_string());
    assert_eq!((status, &answer["allowed"]), (429, &json!(false)));
    let wait = answer["retry_after_seconds"].as_f64().unwrap();
    assert!(wait > 500.0 && wait <= 600.0, "{answer}");
    assert!(
        head.contains(&format!("\r\nretry-after: {}", wait.ceil())),
        "{head}"
    );
    // Refused requests are not charged, and a cost above the burst has no time to retry.
    assert!(agent.remaining("alice") >= 700);
    let (status, head, answer) = agent.post(&alice(json!({"cost": 1_001})).to_string());
    assert_eq!(
        (status, &answer["retry_after_seconds"]),
        (429, &Value::Null)
    );
    assert!(!head.contains("retry-after"), "{head}");
    // The payer's class has five times as much, the formula's `allowance` with it.
    let (_, answer) = agent.ask(
        &json!({"limit": "credits-per-user", "key": {"user": "bob"}, "source": "198.51.100.7", "request": "query"}),
    );
    assert_eq!(answer["remaining"], 4_500);
}

#[test]
fn bad_input_is_a_reason_and_charges_nothing() {
    let agent = Agent::start("http = \"127.0.0.1:0\"");
    for (body, reason) in [
        ("".to_owned(), "invalid request: "),
        ("{".to_owned(), "invalid request: "),
        ("5".to_owned(), "invalid request: "),
        ("[1]".to_owned(), "invalid array of requests"),
        (alice(json!({"cost": 1.5})).to_string(), "invalid request: "),
        (alice(json!({"costs": 1})).to_string(), "costs"),
        (
            alice(json!({"limit": "credit-per-user"})).to_string(),
            "did you mean",
        ),
        (
            alice(json!({"key": {}})).to_string(),
            "missing entry \"user\"",
        ),
        (
            alice(json!({"key": {"user": "alice", "team": "x"}})).to_string(),
            "unknown entry \"team\"",
        ),
        (
            alice(json!({"source": "here"})).to_string(),
            "invalid request: ",
        ),
        (
            alice(json!({"request": "publish"})).to_string(),
            "requires the parameter",
        ),
        (
            alice(json!({"request": "publish", "parameters": {"messages": -3}})).to_string(),
            "negative",
        ),
        (
            alice(json!({"request": "publish", "parameters": {"messages": 1e300}})).to_string(),
            "above the largest cost",
        ),
        (
            alice(json!({"request": "subscribe"})).to_string(),
            "unknown request \"subscribe\"",
        ),
        (
            alice(json!({"request": "query", "cost": 1})).to_string(),
            "request conflicts with cost",
        ),
        (
            alice(json!({"parameters": {"messages": 3}})).to_string(),
            "parameters requires request",
        ),
        (
            json!([alice(json!({"cost": 5})), alice(json!({"limit": "x"}))]).to_string(),
            "request 2 of the array",
        ),
    ] {
        let (status, _, answer) = agent.post(&body);
        assert_eq!(status, 400, "{body}: {answer}");
        let said = answer["error"].as_str().unwrap();
        assert!(said.contains(reason), "{body}: {said}");
    }
    let (status, _, answer) = agent.post(&format!("[{}]", "1,".repeat(300_000)));
    assert_eq!(status, 413, "{answer}");
    let (status, _, _) =
        agent.exchange("GET /v1/decide HTTP/1.1\r\nhost: weir\r\nconnection: close\r\n\r\n");
    assert_eq!(status, 405);
    let (status, _, _) = agent.exchange(
        "POST /v2 HTTP/1.1\r\nhost: weir\r\nconnection: close\r\ncontent-length: 0\r\n\r\n",
    );
    assert_eq!(status, 404);
    assert_eq!(agent.remaining("alice"), 1_000);
}

/// A browser sends a page's POST to any address, and to a name that the page's owner points there.
#[test]
fn web_pages_may_not_ask() {
    let body = alice(json!({"cost": 10})).to_string();
    let post = |agent: &Agent, headers: &str| {
        let length = body.len();
        let (status, _, answer) = agent.exchange(&format!(
            "POST /v1/decide HTTP/1.1\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n\r\n{body}"
        ));
        (
            status,
            answer["error"].as_str().unwrap_or_default().to_owned(),
        )
    };
    let agent = Agent::start("http = \"127.0.0.1:0\"");
    for (headers, refused) in [
        (
            "host: evil.example\r\norigin: http://evil.example\r\ncontent-type: text/plain",
            403,
        ),
        (
            "host: 127.0.0.1\r\nOrigin: null\r\ncontent-type: application/json",
            403,
        ),
        ("host: localhost\r\norigin: http://localhost", 403),
    ] {
        let (status, error) = post(&agent, headers);
        assert_eq!(status, refused, "{headers}: {error}");
        assert!(error.contains("web page"), "{headers}: {error}");
    }
    assert_eq!(agent.remaining("alice"), 1_000);
    // Applications, by the name of a container or none, with the type that curl or Node sends or none.
    for headers in [
        "host: weir\r\ncontent-type: text/plain;charset=UTF-8",
        "host: weir",
        "host: weir:80\r\ncontent-type: application/json",
        "host: 127.0.0.1\r\ncontent-type: application/x-www-form-urlencoded",
    ] {
        assert_eq!(post(&agent, headers), (200, String::new()), "{headers}");
    }
    // No page reaches a file, and a proxy may pass on its client's headers.
    let behind_proxy = Agent::start("http = \"unix:FOLDER/decide.sock\"");
    let headers = "host: shop.example\r\norigin: https://shop.example\r\ncontent-type: text/plain";
    assert_eq!(post(&behind_proxy, headers), (200, String::new()));
}

#[test]
fn many_are_decided_at_once_each_for_itself_and_looking_is_free() {
    let agent = Agent::start("http = \"127.0.0.1:0\"");
    let (status, answers) = agent.ask(&json!([
        alice(json!({"cost": 900})),
        alice(json!({"cost": 900})),
        alice(json!({"cost": 100, "peek": true})),
        {"limit": "logins", "key": {"path": "/a"}, "source": "192.0.2.1"},
        alice(json!({"cost": 50})),
    ]));
    let allowed: Vec<bool> = answers
        .as_array()
        .unwrap()
        .iter()
        .map(|answer| answer["allowed"].as_bool().unwrap())
        .collect();
    assert_eq!(
        (status, allowed),
        (200, vec![true, false, true, true, true])
    );
    let remaining = agent.remaining("alice");
    assert!((50..60).contains(&remaining), "{remaining}");
    assert_eq!(agent.ask(&json!([])), (200, json!([])));
}

#[test]
fn clients_that_ask_at_once_get_exactly_what_there_is() {
    let agent = Agent::start("http = \"127.0.0.1:0\"");
    let start = Instant::now();
    let passed: u64 = thread::scope(|scope| {
        let agent = &agent;
        let ask = move || {
            (0..150)
                .filter(|_| agent.ask(&alice(json!({"cost": 3}))).0 == 200)
                .count() as u64
        };
        let clients: Vec<_> = (0..4).map(|_| scope.spawn(ask)).collect();
        clients
            .into_iter()
            .map(|client| client.join().unwrap())
            .sum()
    });
    let most = 1_000 + start.elapsed().as_secs() / 6 + 1;
    assert!(passed * 3 <= most && passed >= 333, "{passed} passed");
}

#[test]
fn a_unix_socket_serves_requests_and_is_removed_at_the_end() {
    let mut agent = Agent::start("http = \"unix:FOLDER/decide.sock\"");
    let path = agent.folder.path().join("decide.sock");
    let (status, answer) = agent.ask(&alice(json!({"cost": 10})));
    assert_eq!((status, &answer["remaining"]), (200, &json!(990)));
    let mode =
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o660);
    let pid = nix::unistd::Pid::from_raw(agent.child.id() as i32);
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM).unwrap();
    assert!(agent.child.wait().unwrap().success());
    assert!(!path.exists() && !agent.socket().exists());
}

#[test]
fn the_command_line_gets_the_same_verdicts() {
    let agent = Agent::start("http = \"127.0.0.1:0\"");
    let decide = |more: &[&str]| {
        let mut arguments = vec![
            "decide",
            "--limit",
            "credits-per-user",
            "--key",
            "user=alice",
            "--json",
        ];
        arguments.extend(more);
        agent.command(&arguments)
    };
    let answer = |output: &Output| -> Value { serde_json::from_slice(&output.stdout).unwrap() };
    let start = Instant::now();
    let output = decide(&["--request", "publish", "messages=3"]);
    assert!(output.status.success() && answer(&output)["remaining"].as_u64().unwrap() >= 700);
    assert!(
        agent.remaining("alice") as i64 <= 700 + settling::refilled(start),
        "HTTP and the command line ask the same limit"
    );
    let output = decide(&["--cost", "900", "--exit-status"]);
    assert_eq!(
        (output.status.code(), &answer(&output)["allowed"]),
        (Some(1), &json!(false))
    );
    let output = decide(&["--cost", "900"]);
    assert_eq!(output.status.code(), Some(0));
    let output = decide(&["--peek", "--cost", "600"]);
    assert_eq!(answer(&output)["allowed"], true);
    for wrong in [
        &["--request", "nothing"][..],
        &["--request", "publish"],
        &["--key", "team=x"],
    ] {
        let output = decide(wrong);
        assert_eq!(output.status.code(), Some(2), "{wrong:?}: {output:?}");
        assert!(!output.stderr.is_empty());
    }
    let output = agent.command(&[
        "decide",
        "--limit",
        "credits-per-user",
        "--key",
        "user=alice",
        "--peek",
    ]);
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("allowed      yes"), "{text}");

    let output = agent.command(&["limits", "--json"]);
    let limits: Value = serde_json::from_slice(&output.stdout).unwrap();
    let limit = &limits[0];
    assert_eq!(
        (&limit["name"], &limit["key"], &limit["unit"]),
        (
            &json!("credits-per-user"),
            &json!("user"),
            &json!("credits")
        )
    );
    assert_eq!(
        (&limit["passed"]["packets"], &limit["throttled"]["packets"]),
        (&json!(1), &json!(2))
    );
    assert_eq!(
        (&limit["keys"], &limits[1]["name"]),
        (&json!(1), &json!("logins"))
    );
    let output = agent.command(&["status", "--json"]);
    let status: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&status["mode"], &status["interfaces"]),
        (&json!("enforce"), &json!([]))
    );

    let output = Command::new(env!("CARGO_BIN_EXE_agent"))
        .arg("check")
        .arg(agent.folder.path().join("limits.toml"))
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(
        output.status.success() && text.contains("credits-per-user"),
        "{text}"
    );
}

#[test]
fn an_address_that_cannot_be_bound_is_one_message() {
    let agent = Agent::start("http = \"127.0.0.1:0\"");
    let path = agent.folder.path().join("second.toml");
    let text = format!(
        "[agent]\ncontrol = {:?}\nstate_dir = {:?}\n[decide]\nhttp = {:?}\n{CONFIG}",
        agent.folder.path().join("second.sock"),
        agent.folder.path().join("second-state"),
        agent.http
    );
    std::fs::write(&path, text).unwrap();
    let output = Command::new(env!("CARGO_BIN_EXE_agent"))
        .arg("--config")
        .arg(&path)
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("[decide] http") && said.contains(&agent.http),
        "{said}"
    );
}

/// A sliding log has the most words a key; the agent's memory is filled with as many as it remembers.
#[test]
fn keys_take_no_more_memory_than_check_prints() {
    const KEYS: usize = 20_000;
    let limit = "[[limit]]\nname = \"jobs\"\nscope = \"request\"\nkey = [\"user\"]\nalgorithm = \"sliding-log\"\n\
                 rate = \"1000/h\"\n";
    let agent = Agent::start_with(&format!("http = \"127.0.0.1:0\"\nmax_keys = {KEYS}"), limit);
    let file = agent.folder.path().join("limits.toml");
    let output = Command::new(env!("CARGO_BIN_EXE_agent"))
        .arg("check")
        .arg(&file)
        .arg("--json")
        .output()
        .unwrap();
    let checked: Value = serde_json::from_slice(&output.stdout).unwrap();
    let predicted = &checked["memory"][0];
    assert_eq!(
        (&predicted["limit"], &predicted["keys"]),
        (&json!("jobs"), &json!(KEYS)),
        "{checked}"
    );
    let most = predicted["bytes"].as_u64().unwrap();
    // Pages of the program's file come and go by what else the machine does.
    let resident = || memory(agent.child.id(), "RssAnon");
    let ask = |part: usize, peek: bool| {
        let question =
            |nth| json!({"limit": "jobs", "key": {"user": format!("{part}-{nth}")}, "peek": peek});
        assert_eq!(
            agent
                .ask(&json!((0..1_000).map(question).collect::<Vec<Value>>()))
                .0,
            200
        );
    };
    // The memory of questions and answers themselves is allocated before.
    (0..8).for_each(|part| ask(part, true));
    let before = resident();
    (0..=KEYS / 1_000).for_each(|part| ask(part, false));
    assert_eq!(agent.json(&["limits"])[0]["keys"], KEYS);
    let grown = resident() - before;
    // The log itself is 8 kB a key: the bound is not far off.
    assert!(grown <= most && grown > most / 2, "{grown} of {most}");
    assert!(most > 8_000 * KEYS as u64);
}
