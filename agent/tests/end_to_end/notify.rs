//! `[[notify]]`: commands and webhooks receive events, whatever they do themselves, and the agent does not wait for them.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testbed::tests;
use testbed::trials::Test;

use crate::metrics::{get, value};
use crate::support::{Agent, INTERFACE, Network, a_while};
use crate::traffic::udp_from;
use crate::wire::Sender;

pub const TESTS: &[Test] = tests![
    a_command_and_a_webhook_receive_every_kind_of_event,
    a_storm_of_bans_is_a_few_notifications_that_count_all_of_them,
    commands_that_hang_or_write_without_end_are_killed,
    a_test_names_the_receiver_that_fails,
    a_reload_changes_receivers,
];

const LIMIT: &str = "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 100\n";
const PATIENCE: Duration = Duration::from_secs(120);

/// The server's reaction to a request.
const HANG: u8 = 0;
const FAIL: u8 = 1;
const ACCEPT: u8 = 2;

/// A program that appends the document to the file that is its argument.
fn script(network: &Network, name: &str, lines: &str) -> PathBuf {
    let path = network.folder.path().join(name);
    fs::write(&path, format!("#!/bin/sh\n{lines}\n")).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
}

fn recorder(network: &Network) -> PathBuf {
    script(
        network,
        "record",
        "document=$(cat) && printf '%s\\n' \"$document\" >> \"$1\"",
    )
}

/// The documents in a recorder's file.
fn recorded(path: &Path) -> Vec<Value> {
    let text = fs::read_to_string(path).unwrap_or_default();
    // The last line may not be complete yet.
    let complete = &text[..text.rfind('\n').map_or(0, |end| end + 1)];
    complete
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}")))
        .collect()
}

/// Requests that a webhook accepted: their heads and documents.
type Requests = Arc<Mutex<Vec<(String, Value)>>>;

/// Serves on a port of the agent's network until the test ends.
fn serve(network: &Network, port: u16, mode: &Arc<AtomicU8>) -> Requests {
    let listener = network.in_server(|| TcpListener::bind(("127.0.0.1", port)).unwrap());
    let (requests, mode) = (Requests::default(), Arc::clone(mode));
    let accepted = Arc::clone(&requests);
    thread::spawn(move || {
        let mut hanging = Vec::new();
        for stream in listener.incoming().map_while(Result::ok) {
            let mode = mode.load(Ordering::Relaxed);
            if mode == HANG {
                hanging.push(stream);
            } else {
                // A request that ends early is repeated.
                let _ = reply(stream, mode, &accepted);
            }
        }
    });
    requests
}

fn reply(mut stream: TcpStream, mode: u8, accepted: &Requests) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let (mut head, mut length) = (String::new(), 0);
    while !head.ends_with("\r\n\r\n") {
        let start = head.len();
        if reader.read_line(&mut head)? == 0 {
            return Ok(());
        }
        if let Some(value) = head[start..]
            .to_ascii_lowercase()
            .strip_prefix("content-length: ")
        {
            length = value.trim().parse().unwrap();
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    if mode == FAIL {
        return stream
            .write_all(b"HTTP/1.1 500 Busy\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
    }
    accepted
        .lock()
        .unwrap()
        .push((head, serde_json::from_slice(&body).unwrap()));
    stream.write_all(b"HTTP/1.1 204 Fine\r\nConnection: close\r\n\r\n")
}

/// The events of documents, in order.
fn events(documents: &[Value]) -> Vec<Value> {
    documents
        .iter()
        .flat_map(|document| document["events"].as_array().unwrap().clone())
        .collect()
}

/// The element of `status` about one `[[notify]]`.
fn of(status: &Value, name: &str) -> Value {
    let all = status["notifications"].as_array().unwrap();
    all.iter()
        .find(|one| one["name"] == name)
        .unwrap_or_else(|| panic!("{status}"))
        .clone()
}

fn wait_for(agent: &Agent<'_>, name: &str, what: &str, wanted: impl Fn(&Value) -> bool) -> Value {
    of(
        &agent.wait_for(what, |status| wanted(&of(status, name))),
        name,
    )
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !is_so() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        thread::sleep(Duration::from_millis(50));
    }
}

fn is_running(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| !rest.is_empty() && !rest.starts_with(" Z"))
}

fn a_command_and_a_webhook_receive_every_kind_of_event() {
    const KINDS: [&str; 7] = [
        "banned",
        "attack",
        "attack-ended",
        "trial-rolled-back",
        "detached",
        "attached",
        "store-down",
    ];
    let network = Network::new();
    let (record, out) = (recorder(&network), network.folder.path().join("out"));
    let token = network.folder.path().join("token");
    fs::write(&token, "s3cret\n").unwrap();
    // Nobody listens there yet.
    let port = network.in_server(|| {
        TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port()
    });
    let on = "on = [\"ban\", \"attack\", \"trial-failed\", \"interface\", \"store-down\"]\nrate = \"100/s\"\n";
    let rest = format!(
        "{LIMIT}[[limit]]\nname = \"shared\"\nkey = \"interface\"\nprotocol = \"icmp\"\nrate = \"1000/s\"\n\
         cluster = true\n[cluster]\nstore = \"unix://{0}/no.sock\"\nnode = \"host-1\"\n\
         [[notify]]\nname = \"page\"\n{on}command = [{record:?}, {out:?}]\n\
         [[notify]]\nname = \"hook\"\n{on}webhook = \"http://127.0.0.1:{port}/T0/path\"\nsecret_file = {token:?}\n\
         timeout = \"3s\"\n",
        network.folder.path().display()
    );
    let agent = network.start("max_sources = 2000\nmetrics = \"127.0.0.1:9464\"", &rest);
    let failing = |what: &str, error: &str| {
        wait_for(&agent, "hook", what, |hook| {
            hook["failing"]["error"]
                .as_str()
                .is_some_and(|it| it.contains(error))
        })
    };
    failing("a webhook that is away", "refused");
    let mode = Arc::new(AtomicU8::new(HANG));
    let requests = serve(&network, port, &mode);
    failing("a webhook that hangs", "no complete response within 3 s");
    mode.store(FAIL, Ordering::Relaxed);
    failing("a webhook that fails", "replied with status 500");
    let status = agent.json(&["status"]);
    let note = status["notes"].to_string();
    assert!(
        note.contains("notify \\\"hook\\\"") && note.contains("status 500"),
        "{note}"
    );
    assert!(
        !status.to_string().contains("T0"),
        "the webhook's path is a secret: {status}"
    );
    mode.store(ACCEPT, Ordering::Relaxed);
    let hook = wait_for(&agent, "hook", "delivery", |hook| {
        hook["failing"].is_null() && hook["delivered"] != 0
    });
    assert!(hook["failed_attempts"].as_u64() >= Some(3), "{hook}");

    network.told(&["ban", "10.77.0.9", "--for", "1h", "--reason", "test"]);
    let own = network.folder.path().join("limits.toml");
    let tried = network.folder.path().join("tried.toml");
    fs::write(
        &tried,
        fs::read_to_string(own)
            .unwrap()
            .replace("burst = 100", "burst = 101"),
    )
    .unwrap();
    network.told(&[
        "try",
        tried.to_str().unwrap(),
        "--for",
        &format!("{}s", a_while().as_secs()),
    ]);
    agent.wait_for("the rollback", |status| status["trial"].is_null());
    network.remove_link(INTERFACE);
    agent.wait_for("the missing interface", |status| {
        status["interfaces"][0]["state"] != "attached"
    });
    network.join();
    agent.wait_for("the interface", |status| {
        status["interfaces"][0]["state"] == "attached"
    });
    let frame = udp_from(7);
    thread::scope(|scope| {
        let sending = scope.spawn(|| {
            network.in_client(|| Sender::new().pace(&[frame], 2, Duration::from_secs(8)))
        });
        let status = agent.wait_for("the attack", |status| {
            status["attacks"][0]["limit"] == "packets"
        });
        assert_eq!(
            (&status["attacks"][0]["ended"], &status["attacks_total"]),
            (&Value::Null, &1.into()),
            "{status}"
        );
        assert!(
            (value(
                &get(&network),
                "weir_limit_attacked",
                &[("limit", "packets")]
            ) - 1.0)
                .abs()
                < 1e-9
        );
        sending.join().unwrap();
    });

    let of_hook = || -> Vec<Value> {
        requests
            .lock()
            .unwrap()
            .iter()
            .map(|(_, document)| document.clone())
            .collect()
    };
    for (what, documents) in [
        ("command", &(|| recorded(&out)) as &dyn Fn() -> Vec<Value>),
        ("webhook", &of_hook),
    ] {
        until(what, || {
            let events = events(&documents());
            KINDS
                .iter()
                .all(|kind| events.iter().any(|event| event["verdict"] == *kind))
        });
        let documents = documents();
        let events = events(&documents);
        let first = |kind: &str| {
            events
                .iter()
                .find(|event| event["verdict"] == kind)
                .unwrap()
        };
        assert_eq!(
            (&first("banned")["source"], &first("banned")["count"]),
            (&"10.77.0.9".into(), &1.into())
        );
        assert!(
            first("store-down")["source"]
                .as_str()
                .unwrap()
                .starts_with("store "),
            "{events:?}"
        );
        assert_eq!(
            first("detached")["source"],
            format!("interface {INTERFACE}")
        );
        let (began, ended) = (&first("attack")["attack"], &first("attack-ended")["attack"]);
        assert_eq!(
            (&began["limit"], &began["ended"]),
            (&"packets".into(), &Value::Null)
        );
        assert_eq!(
            (&ended["sources"][0]["source"], &ended["started"]),
            (&"10.77.0.7".into(), &ended["started"])
        );
        let number = |of: &Value, field: &str| {
            of[field]
                .as_f64()
                .unwrap_or_else(|| panic!("{field}: {of}"))
        };
        assert!(
            number(ended, "peak_per_second") >= 100.0 && number(ended, "refused_share") > 0.5,
            "{ended}"
        );
        assert!(
            number(ended, "ended") >= number(ended, "started") + 2.0,
            "{ended}"
        );
        assert!(
            number(ended, "refused_packets") >= number(began, "refused_packets"),
            "{began} {ended}"
        );
        assert!(
            documents
                .iter()
                .all(|document| document["host"] == "host-1" && document["text"].is_string())
        );
        // A receiver that is too slow has a document twice, and sees that by its id.
        let mut by_id: HashMap<&str, &Value> = HashMap::new();
        for document in &documents {
            let first = by_id
                .entry(document["id"].as_str().unwrap())
                .or_insert(document);
            assert_eq!(*first, document);
        }
    }
    let (head, _) = &requests.lock().unwrap()[0];
    let head = head.to_ascii_lowercase();
    assert!(
        head.contains("content-type: application/json")
            && head.contains("authorization: bearer s3cret"),
        "{head}"
    );
    let page = get(&network);
    let hook = of(&agent.json(&["status"]), "hook");
    let delivered = value(
        &page,
        "weir_notifications_total",
        &[("notify", "hook"), ("outcome", "delivered")],
    );
    assert!(
        delivered >= 1.0 && delivered <= hook["delivered"].as_f64().unwrap(),
        "{delivered}"
    );
    assert!(
        value(
            &page,
            "weir_notification_failures_total",
            &[("notify", "hook")]
        ) >= 3.0
    );
}

fn a_storm_of_bans_is_a_few_notifications_that_count_all_of_them() {
    const BANS: usize = 20_000;
    let network = Network::new();
    let (record, out) = (recorder(&network), network.folder.path().join("out"));
    let notify = format!(
        "[[notify]]\nname = \"page\"\non = \"ban\"\ncommand = [{record:?}, {out:?}]\nrate = \"6/min\"\n"
    );
    let (agent, began) = (
        network.start("", &format!("{LIMIT}{notify}")),
        Instant::now(),
    );
    let list = network.folder.path().join("list.txt");
    let lines = |from: usize, to: usize| -> String {
        (from..to)
            .map(|nth| format!("11.{}.{}.{}\n", nth >> 16, (nth >> 8) & 255, nth & 255))
            .collect()
    };
    // Many orders, each of which has events of its own: the command sends a few thousand at a time.
    let mut longest = Duration::ZERO;
    for part in 0..10 {
        fs::write(&list, lines(part * BANS / 10, (part + 1) * BANS / 10)).unwrap();
        network.told(&["ban", "--file", list.to_str().unwrap(), "--for", "1h"]);
        let asked = Instant::now();
        assert_eq!(agent.json(&["status"])["mode"], "enforce");
        longest = longest.max(asked.elapsed());
    }
    eprintln!(
        "`weir status` took at most {longest:?} between orders of {} bans",
        BANS / 10
    );
    // On a busy machine, a command may exceed its time, and its document is delivered again.
    let delivered = || -> Vec<Value> {
        let documents = recorded(&out).into_iter();
        let by_id: HashMap<String, Value> = documents
            .map(|document| (document["id"].as_str().unwrap().to_owned(), document))
            .collect();
        by_id.into_values().collect()
    };
    let counted = |documents: &[Value]| -> usize {
        let left_out = documents
            .iter()
            .filter_map(|document| document["left_out"]["banned"].as_u64())
            .sum::<u64>();
        events(documents).len() + left_out as usize
    };
    until("all bans are reported", || counted(&delivered()) == BANS);
    let documents = delivered();
    // The burst, and one every 10 s; none names more than a few.
    let most = 6 + 1 + began.elapsed().as_secs() / 10;
    assert!(
        documents.len() as u64 <= most,
        "{} of {most}",
        documents.len()
    );
    assert!(
        documents
            .iter()
            .all(|document| document["events"].as_array().unwrap().len() <= 20)
    );
    let page = wait_for(&agent, "page", "delivery", |page| {
        page["events_waiting"] == 0
    });
    let named = events(&documents).len();
    assert_eq!(page["left_out"], BANS - named, "{page}");
}

fn commands_that_hang_or_write_without_end_are_killed() {
    let network = Network::new();
    let pids = network.folder.path().join("pids");
    let hang = script(
        &network,
        "hang",
        &format!(
            "sleep 1000 & echo $! >> {0}; echo $$ >> {0}; wait",
            pids.display()
        ),
    );
    let write = script(&network, "write", "exec head -c 1000000000 /dev/zero");
    let (record, out) = (recorder(&network), network.folder.path().join("out"));
    let rest = format!(
        "{LIMIT}[[notify]]\nname = \"hang\"\non = \"ban\"\ncommand = [{hang:?}]\ntimeout = \"10s\"\nretry_for = \"1s\"\n\
         [[notify]]\nname = \"write\"\non = \"ban\"\ncommand = [{write:?}]\nretry_for = \"1s\"\n\
         [[notify]]\nname = \"page\"\non = \"ban\"\ncommand = [{record:?}, {out:?}]\n"
    );
    let agent = network.start("", &rest);
    network.told(&["ban", "10.77.0.9", "--for", "1h"]);
    // Neither another receiver nor a client waits for them.
    until("the other command", || !recorded(&out).is_empty());
    let is_dropped = |one: &Value| one["dropped"] == 1;
    let write = wait_for(&agent, "write", "the end of the writer", is_dropped);
    let error = write["failing"]["error"].as_str().unwrap();
    assert!(
        error.contains("wrote more than 1 MiB") && error.len() < 2_000,
        "{error}"
    );
    let hang = wait_for(&agent, "hang", "the end of what hangs", is_dropped);
    assert!(
        hang["failing"]["error"]
            .as_str()
            .unwrap()
            .contains("did not end within 10 s"),
        "{hang}"
    );
    let text = fs::read_to_string(&pids).unwrap();
    assert!(text.lines().count() >= 2, "{text}");
    until("its processes are killed", || !text.lines().any(is_running));
    assert!(
        agent.json(&["status"])["notes"]
            .to_string()
            .contains("the notification was dropped")
    );
    // One that runs when the agent ends, ends with it.
    fs::remove_file(&pids).unwrap();
    network.told(&["ban", "10.77.0.10", "--for", "1h"]);
    until("it runs", || {
        fs::read_to_string(&pids).is_ok_and(|text| text.lines().count() == 2)
    });
    let (log, status) = agent.stop(nix::sys::signal::Signal::SIGTERM);
    assert!(status.success(), "{log}");
    assert_eq!(
        log.matches("notify \"hang\": delivering failed").count(),
        1,
        "each change is logged once: {log}"
    );
    let leader = fs::read_to_string(&pids)
        .unwrap()
        .lines()
        .last()
        .unwrap()
        .to_owned();
    until("the command ends with the agent", || !is_running(&leader));
    for pid in fs::read_to_string(&pids)
        .unwrap()
        .lines()
        .filter(|pid| is_running(pid))
    {
        let _ = nix::sys::signal::kill(
            nix::unistd::Pid::from_raw(pid.parse().unwrap()),
            nix::sys::signal::Signal::SIGKILL,
        );
    }
}

/// A test reaches each receiver at once, whatever its events and its rate, and names those that fail.
fn a_test_names_the_receiver_that_fails() {
    let network = Network::new();
    let (record, file) = (recorder(&network), network.folder.path().join("received"));
    let failing = script(&network, "failing", "echo no such team >&2; exit 3");
    let agent = network.start(
        "",
        &format!(
            "{LIMIT}[[notify]]\nname = \"pager\"\non = [\"oom-kill\"]\ncommand = [{record:?}, {file:?}]\nrate = \"1/day\"\n\
             [[notify]]\nname = \"chat\"\non = [\"ban\"]\ncommand = [{failing:?}]\n"
        ),
    );
    let output = network.command(&["notify", "test", "--json"]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    let tests: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(
        (&tests[0]["name"], &tests[0]["error"]),
        (&json!("pager"), &Value::Null)
    );
    assert_eq!(tests[1]["name"], "chat");
    let error = tests[1]["error"].as_str().unwrap();
    assert!(
        error.contains("exited with status 3") && error.contains("no such team"),
        "{error}"
    );
    network.told(&["notify", "test", "pager"]);
    let received = recorded(&file);
    assert_eq!(received.len(), 2);
    assert_ne!(received[0]["id"], received[1]["id"]);
    for document in &received {
        assert_eq!(document["events"], json!([]));
        let text = document["text"].as_str().unwrap();
        assert!(text.ends_with(": a test of notify \"pager\""), "{text}");
    }
    let unknown = network.command(&["notify", "test", "page"]);
    let said = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert_eq!(unknown.status.code(), Some(2), "{said}");
    assert!(
        said.contains("unknown notify \"page\" (available: pager, chat)"),
        "{said}"
    );
    // A test is no delivery: what waits is not counted, and what failed is not tried again.
    let status = agent.json(&["status"]);
    assert_eq!(of(&status, "pager")["delivered"], 0);
    assert_eq!(of(&status, "chat")["failing"], Value::Null);
}

fn a_reload_changes_receivers() {
    let network = Network::new();
    let record = recorder(&network);
    let file = |name: &str| network.folder.path().join(name);
    let notify = |name: &str, on: &str| {
        format!(
            "[[notify]]\nname = {name:?}\non = [{on}]\ncommand = [{record:?}, {:?}]\nrate = \"100/s\"\n",
            file(name)
        )
    };
    let ban = "\"ban\"";
    let agent = network.start(
        "",
        &format!("{LIMIT}{}{}", notify("kept", ban), notify("removed", ban)),
    );
    network.told(&["ban", "10.77.0.9", "--for", "1h"]);
    until("both", || {
        ["kept", "removed"]
            .iter()
            .all(|name| recorded(&file(name)).len() == 1)
    });
    network.config(
        "",
        &format!("{LIMIT}{}{}", notify("kept", ban), notify("added", ban)),
    );
    let output = network.command(&["reload"]);
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(
        output.status.success() && said.contains("notify added") && said.contains("notify removed"),
        "{output:?}"
    );
    network.told(&["ban", "10.77.0.10", "--for", "1h"]);
    until("the kept and the added one", || {
        recorded(&file("kept")).len() == 2 && recorded(&file("added")).len() == 1
    });
    assert_eq!(recorded(&file("removed")).len(), 1);
    // An unchanged one goes on. A delivery counts once its command has ended.
    wait_for(&agent, "kept", "the second delivery", |kept| {
        kept["delivered"] == 2
    });
    let status = agent.json(&["status"]);
    let names: Vec<&Value> = status["notifications"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["name"])
        .collect();
    assert_eq!(names, ["kept", "added"]);
    network.config(
        "",
        &format!("{LIMIT}{}", notify("kept", "\"ban\", \"attacks\"")),
    );
    let output = network.command(&["reload"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned()
        + &String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.code() == Some(2) && said.contains("invalid on \"attacks\""),
        "{said}"
    );
    assert!(
        said.contains(
            "did you mean \"attack\"? All: ban, would-ban, attack, overload, trial-failed"
        ),
        "{said}"
    );
    assert_eq!(
        agent.json(&["status"])["notifications"]
            .as_array()
            .unwrap()
            .len(),
        2
    );
}
