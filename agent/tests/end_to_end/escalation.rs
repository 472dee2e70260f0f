//! From a refusal in user space to the kernel edge.

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use testbed::tests;
use testbed::trials::Test;
use testbed::wait::until;

use crate::support::{Agent, Network};
use crate::traffic::{PORT, burst, udp_from};

pub const TESTS: &[Test] = tests![
    a_source_that_an_application_keeps_refusing_is_banned_in_xdp,
    a_member_of_the_group_bans_nobody_by_its_requests,
    clients_of_decide_ban_only_where_escalate_from_has_their_endpoint,
    bans_that_limits_made_are_suspended_in_observe_mode_and_an_operators_are_not,
];

const LIMITS: &str = "
[[limit]]
name = \"packets\"
rate = \"1000/s\"

[[limit]]
name = \"logins\"
scope = \"request\"
key = [\"user\"]
rate = \"5/h\"
escalate = { after = 20, within = \"1h\", ban = \"5m\" }
";

/// Who keeps being refused is banned by the kernel's programs, nobody else, and never who is never limited.
fn a_source_that_an_application_keeps_refusing_is_banned_in_xdp() {
    let network = Network::new();
    let agent = network.start("never_limit = [\"10.77.0.9\"]", LIMITS);
    let receiver = network.receiver(PORT);
    let decide = |source: &str| {
        let answer = agent.json(&[
            "decide",
            "--limit",
            "logins",
            "--key",
            "user=alice",
            "--source",
            source,
        ]);
        answer["allowed"].as_bool().unwrap()
    };
    let bans = || agent.json(&["bans"]).as_array().unwrap().clone();
    let allowed = (0..24).filter(|_| decide("10.77.0.7")).count();
    assert_eq!(
        (allowed, bans().len()),
        (5, 0),
        "19 refusals are one too few"
    );
    burst(&network, &[udp_from(7)], 10);
    assert_eq!(receiver.counts()[7], 10);

    assert!(!decide("10.77.0.7"));
    assert!((0..40).all(|_| decide("10.77.0.9")), "never limited");
    // The ban is carried out beside the decision.
    let deadline = Instant::now() + Duration::from_secs(300);
    while bans().is_empty() {
        assert!(Instant::now() < deadline, "no ban came of 20 refusals");
        thread::sleep(Duration::from_millis(20));
    }
    let ban = &bans()[0];
    assert_eq!((bans().len(), ban["cidr"].as_str()), (1, Some("10.77.0.7")));
    let left = ban["expires_in_seconds"].as_f64().unwrap();
    assert!(left > 200.0 && left <= 300.0, "{left}");
    let banned = agent.events(1, |event| event["verdict"] == "banned");
    assert_eq!(
        (banned.len(), &banned[0]["source"]),
        (1, &"10.77.0.7".into()),
        "{banned:?}"
    );
    assert!(
        banned[0]["reason"]
            .as_str()
            .unwrap()
            .ends_with("banned for 5 min"),
        "{}",
        banned[0]
    );
    burst(&network, &[udp_from(7), udp_from(8), udp_from(9)], 30);
    let counts = receiver.counts();
    assert_eq!((counts[7], counts[8], counts[9]), (0, 10, 10));

    // An operator's longer ban is not shortened by the limit, nor by the operator himself but in two steps; the limit's
    // ban is the operator's to shorten.
    network.told(&["ban", "10.77.0.8"]);
    assert_eq!((0..40).filter(|_| decide("10.77.0.8")).count(), 0);
    assert_eq!((0..40).filter(|_| decide("10.77.0.6")).count(), 0);
    until("a ban of 40 refusals", || {
        let bans = bans();
        bans.iter()
            .any(|ban| ban["cidr"] == "10.77.0.6")
            .then_some(())
    });
    let expires = |source: &str| {
        let bans = bans();
        bans.iter().find(|ban| ban["cidr"] == source).unwrap()["expires_in_seconds"].as_f64()
    };
    // The bans are carried out in their order: this one came before the one of 10.77.0.6.
    assert_eq!(expires("10.77.0.8"), None);
    let output = network.command(&["ban", "10.77.0.8", "--for", "10m"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(1), "{said}");
    assert!(
        said.contains("stays banned until it is lifted") && said.contains("agent unban"),
        "{said}"
    );
    assert_eq!(expires("10.77.0.8"), None);
    network.told(&["unban", "10.77.0.8"]);
    network.told(&["ban", "10.77.0.8", "--for", "10m"]);
    network.told(&["ban", "10.77.0.8", "--for", "20m"]);
    assert!(expires("10.77.0.8").unwrap() > 1_000.0);
    // His shorter ban is beside the limit's, which lasts.
    network.told(&["ban", "10.77.0.6", "--for", "1m"]);
    assert!(expires("10.77.0.6").unwrap() > 60.0);
    network.told(&["unban", "10.77.0.6", "--owner", "limit:logins"]);
    assert!(expires("10.77.0.6").unwrap() <= 60.0);
    network.told(&["unban", "10.77.0.8"]);

    // Limits of both kinds are listed, and forgotten, by their names.
    let names: Vec<String> = agent
        .json(&["limits"])
        .as_array()
        .unwrap()
        .iter()
        .map(|limit| limit["name"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(names, ["packets", "logins"]);
    assert_eq!(agent.limit("logins")["throttled"]["packets"], 100);
    agent.json(&["reset", "--limit", "logins"]);
    assert!(decide("10.77.0.8"));
}

/// Runs as another user, who is in the sockets' group.
fn as_member<T: Send>(act: impl FnOnce() -> T + Send) -> T {
    const NOBODY: libc::uid_t = 65_534;
    const UNCHANGED: libc::uid_t = libc::uid_t::MAX;

    let member = || {
        // SAFETY: the call takes numbers, and changes this thread's user alone.
        let changed = unsafe { libc::syscall(libc::SYS_setresuid, UNCHANGED, NOBODY, UNCHANGED) };
        assert_eq!(changed, 0);
        act()
    };
    thread::scope(|scope| scope.spawn(member).join().unwrap())
}

/// A member of the socket's group, who may ask but not ban, asks in a victim's name.
fn a_member_of_the_group_bans_nobody_by_its_requests() {
    let network = Network::new();
    let agent = network.start("", LIMITS);
    let control = network.control();
    fs::set_permissions(network.folder.path(), Permissions::from_mode(0o711)).unwrap();
    let question = json!({"limit": "logins", "key": {"user": "alice"}, "source": "10.77.0.7"});
    let waiting =
        json!({"limit": "logins", "key": {"user": "alice"}, "source": "10.77.0.7", "wait": "1ms"});
    let ask = |request: Value| {
        let mut stream = UnixStream::connect(&control).unwrap();
        writeln!(stream, "{request}").unwrap();
        let mut reply = String::new();
        BufReader::new(stream).read_line(&mut reply).unwrap();
        reply
    };
    let (replies, ban, forced) = as_member(|| {
        let replies: Vec<String> = (0..60)
            .map(|nth| if nth % 2 == 0 { &question } else { &waiting })
            .map(|question| ask(json!({"verb": "decide", "question": question})))
            .collect();
        let bans = json!([{"cidr": "10.77.0.7", "for_seconds": null, "reason": null}]);
        let mut force = question.clone();
        force["charge"] = "force".into();
        let forced = ask(json!({"verb": "decide", "question": force}));
        (replies, ask(json!({"verb": "ban", "orders": bans})), forced)
    });
    assert!(forced.contains("requires root"), "{forced}");
    let passed = replies
        .iter()
        .filter(|reply| reply.contains("\"allowed\":true"));
    assert_eq!(passed.count(), 5, "{replies:?}");
    assert!(ban.contains("requires root"), "{ban}");
    // 20 refusals by root ban another one, after these would have.
    for _ in 0..20 {
        ask(json!({"verb": "decide", "question":
            {"limit": "logins", "key": {"user": "alice"}, "source": "10.77.0.8"}}));
    }
    agent.wait_for("the ban", |_| agent.is_banned("10.77.0.8"));
    assert!(!agent.is_banned("10.77.0.7"));
}

/// The same members reach the Unix socket of `[decide]`: alone, in arrays, and with `wait`.
fn clients_of_decide_ban_only_where_escalate_from_has_their_endpoint() {
    let network = Network::new();
    let socket = network.folder.path().join("decide.sock");
    let decide = |more: &str| {
        format!(
            "[decide]\nhttp = \"unix:{}\"\n{more}{LIMITS}",
            socket.display()
        )
    };
    let agent = network.start("", &decide(""));
    fs::set_permissions(network.folder.path(), Permissions::from_mode(0o711)).unwrap();
    let post = |body: Value| {
        let (mut stream, body) = (UnixStream::connect(&socket).unwrap(), body.to_string());
        write!(
            stream,
            "POST /v1/decide HTTP/1.1\r\nhost: weir\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )
        .unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    };
    let ask = |source: &str| {
        let one = json!({"limit": "logins", "key": {"user": "alice"}, "source": source});
        let mut waiting = one.clone();
        waiting["wait"] = json!("1ms");
        (0..20)
            .flat_map(|_| {
                [
                    post(one.clone()),
                    post(waiting.clone()),
                    post(json!([one, waiting])),
                ]
            })
            .collect::<Vec<_>>()
    };
    let passed = |replies: &[String]| {
        let passed = replies
            .iter()
            .map(|reply| reply.matches("\"allowed\":true").count());
        passed.sum::<usize>()
    };
    assert_eq!(
        passed(&as_member(|| ask("10.77.0.7"))),
        5,
        "limited all the same"
    );
    let check = network.command(&[
        "check",
        network.folder.path().join("limits.toml").to_str().unwrap(),
    ]);
    let said = String::from_utf8([check.stdout, check.stderr].concat()).unwrap();
    assert!(
        said.contains("escalate of limit \"logins\" bans nobody"),
        "{said}"
    );

    // The permission needs no restart.
    network.config("", &decide("escalate_from = [\"http\"]\n"));
    network.told(&["reload"]);
    assert_eq!(passed(&as_member(|| ask("10.77.0.8"))), 0);
    agent.wait_for("the ban", |_| agent.is_banned("10.77.0.8"));
    // Bans are made in the order of the refusals.
    assert!(!agent.is_banned("10.77.0.7"));
    network.config("", &decide(""));
    network.told(&["reload"]);
    ask("10.77.0.6");
    for _ in 0..20 {
        agent.json(&[
            "decide",
            "--limit",
            "logins",
            "--key",
            "user=alice",
            "--source",
            "10.77.0.5",
        ]);
    }
    agent.wait_for("the ban by root", |_| agent.is_banned("10.77.0.5"));
    assert!(!agent.is_banned("10.77.0.6"));
}

/// Across reloads, a trial and a killed agent: what `escalate` banned is enforced in enforce mode only, what an operator
/// banned always.
fn bans_that_limits_made_are_suspended_in_observe_mode_and_an_operators_are_not() {
    let network = Network::new();
    let agent = network.start("", LIMITS);
    let receiver = network.receiver(PORT);
    for _ in 0..30 {
        agent.json(&[
            "decide",
            "--limit",
            "logins",
            "--key",
            "user=alice",
            "--source",
            "10.77.0.7",
        ]);
    }
    network.told(&["ban", "10.77.0.8"]);
    let banned = |agent: &Agent<'_>| -> Vec<String> {
        let bans = agent.json(&["bans"]);
        bans.as_array()
            .unwrap()
            .iter()
            .map(|ban| ban["cidr"].as_str().unwrap().to_owned())
            .collect()
    };
    let deadline = Instant::now() + Duration::from_secs(300);
    while banned(&agent).len() < 2 {
        assert!(Instant::now() < deadline, "no ban came of 25 refusals");
        thread::sleep(Duration::from_millis(20));
    }
    let arrived = || {
        burst(&network, &[udp_from(7), udp_from(8), udp_from(9)], 30);
        let counts = receiver.counts();
        [counts[7], counts[8], counts[9]]
    };
    let is_noted = |agent: &Agent<'_>| {
        let status = agent.json(&["status"]);
        status["notes"]
            .as_array()
            .unwrap()
            .iter()
            .any(|note| note.as_str().unwrap().contains("suspended in observe mode"))
    };
    assert_eq!((arrived(), is_noted(&agent)), ([0, 0, 10], false));

    network.config("mode = \"observe\"", LIMITS);
    network.told(&["reload"]);
    assert_eq!(
        (banned(&agent), arrived(), is_noted(&agent)),
        (vec!["10.77.0.8".to_owned()], [10, 0, 10], true)
    );
    network.config("", LIMITS);
    network.told(&["reload"]);
    assert_eq!(
        (banned(&agent).len(), arrived(), is_noted(&agent)),
        (2, [0, 0, 10], false)
    );

    // A trial of observe mode takes nothing with it.
    let observe = network.folder.path().join("observe.toml");
    std::fs::copy(network.config("mode = \"observe\"", LIMITS), &observe).unwrap();
    network.config("", LIMITS);
    network.told(&["try", observe.to_str().unwrap(), "--for", "1h"]);
    assert_eq!(arrived(), [10, 0, 10]);
    network.told(&["revert"]);
    assert_eq!(arrived(), [0, 0, 10]);

    // The next agent knows who banned whom.
    agent.stop(nix::sys::signal::Signal::SIGKILL);
    let agent = network.start(
        "mode = \"observe\"\n# A text that was not on trial.",
        LIMITS,
    );
    assert_eq!(
        (banned(&agent), arrived(), is_noted(&agent)),
        (vec!["10.77.0.8".to_owned()], [10, 0, 10], true)
    );
    network.config("", LIMITS);
    network.told(&["reload"]);
    assert_eq!((banned(&agent).len(), arrived()), (2, [0, 0, 10]));

    // Lifting a suspended ban discards it.
    network.config("mode = \"observe\"", LIMITS);
    network.told(&["reload"]);
    assert_eq!(
        agent.json(&["unban", "10.77.0.7", "--all"])["was_banned"],
        true
    );
    network.config("", LIMITS);
    network.told(&["reload"]);
    assert_eq!(
        (banned(&agent), arrived()),
        (vec!["10.77.0.8".to_owned()], [10, 0, 10])
    );
}
