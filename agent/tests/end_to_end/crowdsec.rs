//! CrowdSec's decisions as bans, and bans by limits as alerts, with a local API that the test makes.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use serde_json::Value;
use testbed::lapi::{KEY, Lapi, MACHINE, Manner};
use testbed::tests;
use testbed::trials::Test;
use testbed::wait::{until, wait};

use crate::metrics::{get, value};
use crate::support::{Agent, Network};
use crate::traffic::{PORT, burst, socket, udp_from, until_refused};

pub const TESTS: &[Test] = tests![
    a_decision_is_enforced_within_a_second_and_its_deletion_followed,
    sixty_thousand_decisions_in_one_pull_are_enforced,
    bans_stay_in_effect_after_any_invalid_reply_of_the_api,
    a_set_that_drifted_is_reconciled,
    decisions_survive_a_restart_and_a_reboot_while_the_api_is_away,
    an_exception_survives_the_next_pull_and_a_restart,
    bans_of_several_authors_end_one_by_one,
    a_reload_follows_the_config_of_the_bouncer,
    a_ban_by_a_limit_is_reported_as_an_alert,
    metrics_are_what_the_api_has_served_and_received,
];

pub const WITH_CROWDSEC: &[Test] = tests![crowdsec_itself_bans_and_takes_alerts];

const HOUR: Duration = Duration::from_secs(3_600);
const LIMIT: &str = "[[limit]]\nname = \"packets\"\nrate = \"1000/s\"\n";

fn lapi(network: &Network) -> Lapi {
    network.in_server(Lapi::new)
}

fn table(url: &str, more: &str) -> String {
    format!("[crowdsec]\nurl = {url:?}\napi_key = {KEY:?}\nupdate = \"500ms\"\n{more}\n{LIMIT}")
}

fn crowdsec(agent: &Agent<'_>) -> Value {
    agent.json(&["status"])["crowdsec"].clone()
}

/// From the decision to the first packet that is refused: half a second until the next pull, and what this machine takes.
fn a_decision_is_enforced_within_a_second_and_its_deletion_followed() {
    let network = Network::new();
    let lapi = lapi(&network);
    let agent = network.start("", &table(&lapi.url(), ""));
    let receiver = socket(&network);
    wait("the first pull", || lapi.pulls().0 == 1);
    let mut times = Vec::new();
    for nth in 20..28u8 {
        let start = Instant::now();
        lapi.ban(&format!("10.77.0.{nth}"), HOUR);
        times.push(until_refused(&network, &receiver, nth) - start);
    }
    drop(receiver);
    let receiver = network.receiver(PORT);
    times.sort_unstable();
    println!(
        "from a decision to the drop: {:?} (median), {:?} (longest)",
        times[4], times[7]
    );
    // The shortest, because a busy machine holds up some: each decision follows a drop, so that a whole interval is ahead.
    assert!(times[0] < Duration::from_secs(1), "{times:?}");
    // A pull is enforced before the next begins, however long either takes.
    lapi.ban("10.77.0.28", HOUR);
    let pulls = lapi.pulls().1;
    wait("the pull after that of the decision", || {
        lapi.pulls().1 >= pulls + 2
    });
    burst(&network, &[udp_from(28), udp_from(29)], 20);
    let counts = receiver.counts();
    assert_eq!((counts[28], counts[29]), (0, 10), "{counts:?}");
    let ban = agent.ban_of("10.77.0.20");
    assert_eq!(
        (&ban["origin"], &ban["reason"]),
        (
            &"crowdsec".into(),
            &"crowdsecurity/test-bf, decision 1".into()
        )
    );
    let left = ban["expires_in_seconds"].as_f64().unwrap();
    assert!(
        left > 3_000.0 && left <= 3_600.0 && ban["since"].as_u64().unwrap() > 1_000_000_000,
        "{ban}"
    );
    let events = agent.lines(&["events", "--json"]);
    let event = events
        .iter()
        .find(|event| event["source"] == "10.77.0.20")
        .unwrap();
    assert_eq!(event["verdict"], "banned");
    lapi.delete("10.77.0.20");
    wait("the deletion", || !agent.is_banned("10.77.0.20"));
    burst(&network, &[udp_from(20), udp_from(21)], 20);
    let counts = receiver.counts();
    assert!(counts[20] >= 10, "{}", counts[20]);
    assert!(agent.is_banned("10.77.0.21"));
    // Not enforced: other scopes, other types.
    lapi.decide("XX", "Country", "ban", HOUR);
    lapi.decide("10.77.0.30", "Ip", "captcha", HOUR);
    lapi.ban("0.0.0.0/0", HOUR);
    lapi.ban("10.78.0.0/16", HOUR);
    wait("the range", || agent.is_banned("10.78.3.4"));
    let status = crowdsec(&agent);
    assert_eq!(
        (&status["ignored"]["scope"], &status["ignored"]["type"]),
        (&1.into(), &1.into()),
        "{status}"
    );
    assert_eq!(
        (&status["ignored"]["wide"], &status["decisions"]),
        (&1.into(), &9.into()),
        "{status}"
    );
    assert!(!agent.is_banned("10.77.0.30"));
}

fn sixty_thousand_decisions_in_one_pull_are_enforced() {
    let network = Network::new();
    let lapi = lapi(&network);
    let agent = network.start(
        "never_limit = [\"10.77.0.9\"]",
        &table(&lapi.url(), "timeout = \"10m\""),
    );
    wait("the first pull", || lapi.pulls().0 == 1);
    for number in 0..60_000u32 {
        lapi.ban(&Ipv4Addr::from(0x0b00_0000 + number).to_string(), HOUR);
    }
    lapi.ban("10.77.0.9", HOUR);
    let start = Instant::now();
    lapi.ban("10.77.0.7", HOUR);
    wait("the last of them", || {
        crowdsec(&agent)["banned_prefixes"] == 60_001
    });
    println!(
        "60,001 decisions enforced in {:.2} s",
        start.elapsed().as_secs_f64()
    );
    assert_eq!(crowdsec(&agent)["decisions"], 60_002);
    let receiver = network.receiver(PORT);
    burst(&network, &[udp_from(7), udp_from(8), udp_from(9)], 60);
    let counts = receiver.counts();
    assert_eq!((counts[7], counts[8], counts[9]), (0, 20, 20));
    // All lifted is all but these, and the output says so.
    let output = network.command(&["unban", "--all"]);
    assert!(
        String::from_utf8_lossy(&output.stdout).contains("60,001 bans by CrowdSec stay"),
        "{output:?}"
    );
    assert_eq!(agent.json(&["status"])["bans"], 60_001);
}

fn bans_stay_in_effect_after_any_invalid_reply_of_the_api() {
    let network = Network::new();
    let lapi = lapi(&network);
    lapi.ban("10.77.0.7", HOUR);
    let agent = network.start(
        "",
        &table(&lapi.url(), "timeout = \"1s\"\nreconcile = \"1s\""),
    );
    wait("the ban", || agent.is_banned("10.77.0.7"));
    let page = r#"{"new":null,"deleted":null}"#;
    let with = |head: &str, body: &str| {
        Manner::Bytes(format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\n{body}").into_bytes())
    };
    for (manner, reason) in [
        (
            Manner::Status(403, "access forbidden"),
            "refuses the API key",
        ),
        (
            Manner::Status(500, "out of \u{1b}[2J order"),
            "status 500: out of ?[2J order",
        ),
        (Manner::Status(302, ""), "status 302"),
        (
            Manner::Status(200, "<html>hello</html>"),
            "no list of decisions",
        ),
        (Manner::Status(200, "{}"), "neither \"new\" nor \"deleted\""),
        (Manner::Status(200, "{\"new\":7}"), "no list of decisions"),
        // More than there is, less, more than fits, and none at all.
        (
            with("Content-Length: 5000", page),
            "before the response was complete",
        ),
        (with("Content-Length: 9", page), "no list of decisions"),
        (with("Content-Length: 99999999999999", page), "larger than"),
        (with("Content-Length: -1", page), ""),
        (with("Transfer-Encoding: chunked", "zzzz"), ""),
        (Manner::Bytes(b"SSH-2.0-hello\r\n".to_vec()), ""),
        (Manner::Bytes(Vec::new()), ""),
        (Manner::Silent, "no complete response within 1 s"),
    ] {
        lapi.behave(Manner::Honest);
        wait("the API", || crowdsec(&agent)["state"] == "ok");
        lapi.behave(manner.clone());
        // On a busy machine, a pull may have timed out before.
        let status = agent.wait_for(&format!("{reason:?} for {manner:?}"), |status| {
            let crowdsec = &status["crowdsec"];
            let error = crowdsec["error"].as_str();
            crowdsec["state"] == "unavailable" && error.is_some_and(|error| error.contains(reason))
        });
        let error = status["crowdsec"]["error"].as_str().unwrap();
        assert!(!error.contains(KEY), "{manner:?}: {error}");
        let notes = status["notes"].as_array().unwrap();
        assert!(
            notes
                .iter()
                .any(|note| note.as_str().unwrap().contains("is unavailable")),
            "{notes:?}"
        );
        assert!(agent.is_banned("10.77.0.7"), "{manner:?}");
    }
    let events = agent.lines(&["events", "--json"]);
    let count = |verdict: &str| {
        events
            .iter()
            .filter(|event| event["verdict"] == verdict)
            .count()
    };
    let (down, up) = (count("crowdsec-down"), count("crowdsec-up"));
    assert!(down >= 14 && down == up + 1, "{down}, {up}: {events:?}");
    // A decision ends by the kernel's clock while the API is away.
    lapi.behave(Manner::Honest);
    wait("the API", || crowdsec(&agent)["state"] == "ok");
    // On a busy machine, one may end before it is pulled.
    let (mut lasts, mut began) = (Duration::from_secs(4), Instant::now());
    lapi.ban("10.77.0.8", lasts);
    until("the ban", || {
        let is_banned = agent.is_banned("10.77.0.8");
        if !is_banned && began.elapsed() > lasts {
            (lasts, began) = (2 * lasts, Instant::now());
            lapi.ban("10.77.0.8", lasts);
        }
        is_banned.then_some(())
    });
    lapi.behave(Manner::Status(500, ""));
    wait("its end", || !agent.is_banned("10.77.0.8"));
    assert!(agent.is_banned("10.77.0.7"));
}

fn a_set_that_drifted_is_reconciled() {
    let network = Network::new();
    let lapi = lapi(&network);
    lapi.ban("10.77.0.7", HOUR);
    lapi.ban("10.77.0.8", HOUR);
    let agent = network.start("", &table(&lapi.url(), "reconcile = \"2s\""));
    wait("the bans", || {
        agent.is_banned("10.77.0.7") && agent.is_banned("10.77.0.8")
    });
    lapi.delete("10.77.0.7");
    lapi.ban("10.77.0.9", HOUR);
    lapi.lose_changes();
    wait("the next full pull", || {
        !agent.is_banned("10.77.0.7") && agent.is_banned("10.77.0.9")
    });
    assert!(agent.is_banned("10.77.0.8"));
}

fn decisions_survive_a_restart_and_a_reboot_while_the_api_is_away() {
    let network = Network::new();
    let lapi = lapi(&network);
    lapi.ban("10.77.0.7", HOUR);
    lapi.ban("10.77.0.8", HOUR);
    lapi.ban("10.77.0.9", Duration::from_secs(10));
    let ends = Instant::now() + Duration::from_secs(10);
    let config = network.config("", &table(&lapi.url(), ""));
    let agent = network.start_in_boot("a", &config);
    wait("the bans", || agent.is_banned("10.77.0.8"));
    // An agent that ends waits for a save for a second at most.
    wait("the save", || network.state().join("crowdsec").exists());
    agent.stop(Signal::SIGTERM);
    lapi.behave(Manner::Status(500, ""));
    // The kernel refuses without an agent, the next takes it over, and so does one after a kill.
    let receiver = network.receiver(PORT);
    burst(&network, &[udp_from(7)], 10);
    assert_eq!(receiver.counts()[7], 0);
    let agent = network.start_in_boot("a", &config);
    assert_eq!(
        agent.ban_of("10.77.0.7")["reason"],
        "crowdsecurity/test-bf, decision 1"
    );
    agent.stop(Signal::SIGKILL);
    network.told(&["detach", "--config", config.to_str().unwrap()]);
    thread::sleep(ends.saturating_duration_since(Instant::now()));
    let agent = network.start_in_boot("b", &config);
    assert!(agent.is_banned("10.77.0.7") && agent.is_banned("10.77.0.8"));
    // It began when the agent read it, some time after the API sent it.
    wait("its end", || !agent.is_banned("10.77.0.9"));
    lapi.delete("10.77.0.8");
    lapi.lose_changes();
    lapi.behave(Manner::Honest);
    wait("the first pull", || !agent.is_banned("10.77.0.8"));
    assert_eq!(agent.ban_of("10.77.0.7")["origin"], "crowdsec");
}

fn an_exception_survives_the_next_pull_and_a_restart() {
    let network = Network::new();
    let lapi = lapi(&network);
    lapi.ban("10.77.0.7", HOUR);
    lapi.ban("10.77.0.8", HOUR);
    lapi.ban("10.78.0.0/16", HOUR);
    let config = network.config("", &table(&lapi.url(), "reconcile = \"1s\""));
    let agent = network.start_file(&config, &[]);
    wait("the bans", || agent.is_banned("10.77.0.8"));
    let output = network.command(&["unban", "10.77.0.7", "10.78.0.3"]);
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(
        output.status.success() && said.contains("CrowdSec bans 10.77.0.7"),
        "{output:?}"
    );
    assert!(
        said.contains("agent ban 10.78.0.3 ends this exception"),
        "{said}"
    );
    let (full, _) = lapi.pulls();
    wait("two more full pulls", || lapi.pulls().0 >= full + 2);
    let receiver = network.receiver(PORT);
    burst(&network, &[udp_from(7), udp_from(8)], 40);
    let counts = receiver.counts();
    assert_eq!((counts[7], counts[8]), (20, 0));
    assert!(!agent.is_banned("10.78.0.3") && agent.is_banned("10.78.0.4"));
    assert_eq!(
        crowdsec(&agent)["exceptions"],
        serde_json::json!(["10.77.0.7", "10.78.0.3"])
    );
    // The API bans it once more; a kill follows.
    lapi.ban("10.77.0.7", 2 * HOUR);
    agent.stop(Signal::SIGKILL);
    network.told(&["detach", "--config", config.to_str().unwrap()]);
    let agent = network.start_file(&config, &[]);
    wait("the bans", || agent.is_banned("10.77.0.8"));
    assert!(!agent.is_banned("10.77.0.7") && !agent.is_banned("10.78.0.3"));
    // An operator's ban ends the exception.
    network.told(&["ban", "10.77.0.7", "--for", "1m"]);
    assert_eq!(
        crowdsec(&agent)["exceptions"],
        serde_json::json!(["10.78.0.3"])
    );
    network.told(&["unban", "10.78.0.4"]);
    wait("the ban by CrowdSec", || {
        agent.ban_of("10.77.0.7")["origin"] == "crowdsec"
    });
    assert_eq!(agent.ban_of("10.77.0.7")["also"][0]["origin"], "operator");
}

fn bans_of_several_authors_end_one_by_one() {
    let network = Network::new();
    let lapi = lapi(&network);
    let agent = network.start("", &table(&lapi.url(), ""));
    network.told(&["ban", "10.77.0.7", "--for", "10m", "--reason", "mine"]);
    lapi.ban("10.77.0.7", HOUR);
    wait("the decision", || {
        agent.ban_of("10.77.0.7")["origin"] == "crowdsec"
    });
    let ban = agent.ban_of("10.77.0.7");
    assert_eq!(
        (&ban["also"][0]["origin"], &ban["also"][0]["reason"]),
        (&"operator".into(), &"mine".into())
    );
    let bans = agent.json(&["bans"]);
    assert_eq!(
        (bans.as_array().unwrap().len(), &bans[0]["owner"]),
        (2, &"crowdsec".into())
    );
    // Who lifts a ban of his own does not overrule CrowdSec.
    let lifted = agent.json(&["unban", "10.77.0.7"]);
    assert_eq!(
        lifted["still_banned_by_crowdsec"],
        serde_json::json!(["10.77.0.7"]),
        "{lifted}"
    );
    assert!(agent.ban_of("10.77.0.7")["also"].is_null() && agent.is_banned("10.77.0.7"));
    network.told(&["ban", "10.77.0.7", "--for", "10m"]);
    lapi.delete("10.77.0.7");
    wait("the deletion", || {
        agent.ban_of("10.77.0.7")["origin"] == "operator"
    });
    let ban = agent.ban_of("10.77.0.7");
    let left = ban["expires_in_seconds"].as_f64().unwrap();
    assert!(left <= 600.0 && ban["also"].is_null(), "{ban}");
    let receiver = network.receiver(PORT);
    burst(&network, &[udp_from(7)], 10);
    assert_eq!(receiver.counts()[7], 0);
    network.told(&["unban", "10.77.0.7"]);
    assert_eq!(crowdsec(&agent)["exceptions"], serde_json::json!([]));
    burst(&network, &[udp_from(7)], 10);
    assert_eq!(receiver.counts()[7], 10);
}

fn a_reload_follows_the_config_of_the_bouncer() {
    let network = Network::new();
    let lapi = lapi(&network);
    lapi.ban("10.77.0.7", HOUR);
    lapi.ban("10.77.0.8", HOUR);
    network.config("", LIMIT);
    let agent = network.start("", LIMIT);
    assert!(agent.json(&["status"])["crowdsec"].is_null());
    let reload = |options: &str, rest: &str| {
        network.config(options, rest);
        network.told(&["reload"]);
    };
    reload("", &table(&lapi.url(), ""));
    wait("the bans", || {
        agent.is_banned("10.77.0.7") && agent.is_banned("10.77.0.8")
    });
    // Exempt, on observe, and back.
    reload("never_limit = [\"10.77.0.7\"]", &table(&lapi.url(), ""));
    wait("the exemption", || !agent.is_banned("10.77.0.7"));
    assert!(agent.is_banned("10.77.0.8"));
    reload("mode = \"observe\"", &table(&lapi.url(), ""));
    assert!(!agent.is_banned("10.77.0.8"));
    assert_eq!(crowdsec(&agent)["decisions"], 2);
    reload("", &table(&lapi.url(), ""));
    wait("the bans", || {
        agent.is_banned("10.77.0.7") && agent.is_banned("10.77.0.8")
    });
    reload("", &table(&lapi.url(), "").replace(KEY, "another-key"));
    wait("the refusal", || crowdsec(&agent)["state"] == "unavailable");
    assert!(agent.is_banned("10.77.0.7"));
    reload("", LIMIT);
    wait("the end of the bouncer", || !agent.is_banned("10.77.0.7"));
    assert_eq!(agent.json(&["status"])["bans"], 0);
}

const ESCALATE: &str = "[[limit]]\nname = \"logins\"\nscope = \"request\"\nkey = [\"user\"]\nrate = \"5/h\"\n\
                        escalate = { after = 20, within = \"1h\", ban = \"5m\" }\n";

/// Lets the limit refuse an address until it is banned.
fn provoke(agent: &Agent<'_>, source: &str) {
    for _ in 0..30 {
        agent.json(&[
            "decide",
            "--limit",
            "logins",
            "--key",
            "user=alice",
            "--source",
            source,
        ]);
    }
    wait("the ban", || agent.is_banned(source));
}

fn a_ban_by_a_limit_is_reported_as_an_alert() {
    let network = Network::new();
    let lapi = lapi(&network);
    let machine = format!("machine_id = {:?}\npassword = {:?}", MACHINE.0, MACHINE.1);
    let agent = network.start("", &format!("{}{ESCALATE}", table(&lapi.url(), &machine)));
    provoke(&agent, "10.77.0.7");
    wait("the alert", || !lapi.alerts().is_empty());
    let alert = &lapi.alerts()[0];
    assert_eq!(
        (&alert["scenario"], &alert["source"]["value"]),
        (&"weir/logins".into(), &"10.77.0.7".into())
    );
    let decision = &alert["decisions"][0];
    assert_eq!(
        (&decision["origin"], &decision["type"]),
        (&format!("weir:{}", MACHINE.0).into(), &"ban".into())
    );
    // While the API is away, alerts wait.
    lapi.behave(Manner::Status(500, "closed"));
    provoke(&agent, "10.77.0.8");
    wait("the failure", || {
        crowdsec(&agent)["alerts"]["error"].is_string()
    });
    assert_eq!(crowdsec(&agent)["alerts"]["waiting"], 1);
    lapi.behave(Manner::Honest);
    wait("the second alert", || lapi.alerts().len() == 2);
    wait("the status", || crowdsec(&agent)["alerts"]["sent"] == 2);
    assert!(lapi.logins() >= 1 && crowdsec(&agent)["alerts"]["error"].is_null());
}

fn metrics_are_what_the_api_has_served_and_received() {
    let network = Network::new();
    let lapi = lapi(&network);
    let begun = Instant::now();
    // Four decisions on three prefixes.
    for prefix in ["10.77.0.20", "10.77.0.21", "10.77.0.21", "10.78.0.0/16"] {
        lapi.ban(prefix, HOUR);
    }
    lapi.decide("XX", "Country", "ban", HOUR);
    lapi.decide("10.77.0.22", "Ip", "captcha", HOUR);
    lapi.decide("10.77.0.23", "Ip", "captcha", HOUR);
    lapi.ban("0.0.0.0/0", HOUR);
    lapi.ban("nobody", HOUR);
    let machine = format!("machine_id = {:?}\npassword = {:?}", MACHINE.0, MACHINE.1);
    let agent = network.start(
        "metrics = \"127.0.0.1:9464\"",
        &format!("{}{ESCALATE}", table(&lapi.url(), &machine)),
    );
    let metric = |name: &str, labels: &[(&str, &str)]| {
        value(&get(&network), &format!("weir_crowdsec_{name}"), labels)
    };
    wait("the decisions", || metric("decisions", &[]) == 4.0);
    wait("the bans", || metric("banned_prefixes", &[]) == 3.0);
    wait("the end of the pull", || metric("up", &[]) == 1.0);
    let ignored = [
        ("scope", 1),
        ("type", 2),
        ("wide", 1),
        ("invalid", 1),
        ("simulated", 0),
        ("own", 0),
        ("excess", 0),
    ];
    for (reason, count) in ignored {
        assert_eq!(
            metric("ignored_decisions", &[("reason", reason)]),
            f64::from(count),
            "{reason}"
        );
    }
    assert_eq!(metric("exceptions", &[]), 0.0);
    network.told(&["unban", "10.78.3.4"]);
    // A page may be some milliseconds old.
    wait("the exception", || metric("exceptions", &[]) == 1.0);
    provoke(&agent, "10.77.0.7");
    wait("the alert", || {
        metric("alerts_total", &[("result", "sent")]) == 1.0
    });
    assert_eq!(
        (lapi.alerts().len(), metric("alerts_waiting", &[])),
        (1, 0.0)
    );

    lapi.behave(Manner::Status(500, "closed"));
    wait("the failure", || metric("up", &[]) == 0.0);
    // All pulls that the API has served, none of which is under way.
    let (full, changes) = lapi.pulls();
    assert_eq!(
        metric("pulls_total", &[("result", "ok")]),
        (full + changes) as f64
    );
    assert!(full >= 1 && metric("pulls_total", &[("result", "failed")]) >= 1.0);
    provoke(&agent, "10.77.0.8");
    wait("the alert that waits", || {
        metric("alerts_waiting", &[]) == 1.0
    });
    wait("the age of the last pull", || {
        metric("last_pull_age_seconds", &[]) >= 2.0
    });
    assert!(metric("last_pull_age_seconds", &[]) <= begun.elapsed().as_secs_f64());
    assert_eq!(
        (metric("decisions", &[]), metric("banned_prefixes", &[])),
        (4.0, 3.0)
    );

    lapi.behave(Manner::Honest);
    wait("the second alert", || {
        metric("alerts_total", &[("result", "sent")]) == 2.0
    });
    assert_eq!(
        (
            metric("alerts_waiting", &[]),
            metric("alerts_total", &[("result", "dropped")])
        ),
        (0.0, 0.0)
    );
    wait("the API", || metric("up", &[]) == 1.0);
    let failed = metric("pulls_total", &[("result", "failed")]);
    lapi.delete("10.77.0.20");
    wait("the deletion", || {
        (metric("decisions", &[]), metric("banned_prefixes", &[])) == (3.0, 2.0)
    });
    assert_eq!(metric("pulls_total", &[("result", "failed")]), failed);
}

/// Debian's CrowdSec, with its local API alone.
struct CrowdSec {
    folder: PathBuf,
    root: PathBuf,
    child: Child,
}

impl CrowdSec {
    fn start(network: &Network) -> Self {
        let root = PathBuf::from(std::env::var_os("WEIR_CROWDSEC").unwrap());
        let folder = network.folder.path().join("crowdsec");
        for part in [
            "data",
            "hub",
            "etc/notifications",
            "etc/patterns",
            "plugins",
        ] {
            std::fs::create_dir_all(folder.join(part)).unwrap();
        }
        let of = |part: &str| folder.join(part).display().to_string();
        let mut text = String::new();
        write!(
            text,
            "common:\n  daemonize: false\n  log_media: stdout\n  log_level: error\n  working_dir: {0}\nconfig_paths:\n  config_dir: {0}/etc/\n  \
             data_dir: {0}/data/\n  simulation_path: {0}/etc/simulation.yaml\n  hub_dir: {0}/hub/\n  index_path: {0}/hub/.index.json\n  \
             notification_dir: {0}/etc/notifications/\n  plugin_dir: {0}/plugins/\ncscli:\n  output: human\ndb_config:\n  \
             log_level: error\n  type: sqlite\n  use_wal: true\n  db_path: {0}/data/crowdsec.db\nplugin_config:\n  user: nobody\n  group: nogroup\n\
             api:\n  client:\n    insecure_skip_verify: false\n    credentials_path: {0}/etc/credentials.yaml\n  server:\n    \
             log_level: error\n    listen_uri: 127.0.0.1:8080\n    profiles_path: {0}/etc/profiles.yaml\nprometheus:\n  enabled: false\n",
            folder.display()
        )
        .unwrap();
        std::fs::write(of("config.yaml"), text).unwrap();
        std::fs::write(of("hub/.index.json"), "{}").unwrap();
        std::fs::write(of("etc/simulation.yaml"), "simulation: false\n").unwrap();
        std::fs::write(
            of("etc/profiles.yaml"),
            "name: none\nfilters:\n - \"false\"\ndecisions: []\non_success: break\n",
        )
        .unwrap();
        let credentials = of("etc/credentials.yaml");
        for arguments in [
            &[
                "machines",
                "add",
                MACHINE.0,
                "--password",
                MACHINE.1,
                "-f",
                credentials.as_str(),
            ][..],
            &["bouncers", "add", "weir", "-k", KEY],
        ] {
            run(network, &root, &folder, arguments);
        }
        let mut command = Command::new(root.join("usr/bin/crowdsec"));
        command
            .arg("-c")
            .arg(folder.join("config.yaml"))
            .arg("-no-cs")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let child = network.in_server(|| command.spawn()).unwrap();
        Self {
            folder,
            root,
            child,
        }
    }

    /// Runs cscli.
    fn cscli(&self, network: &Network, arguments: &[&str]) -> String {
        run(network, &self.root, &self.folder, arguments)
    }
}

fn run(
    network: &Network,
    root: &std::path::Path,
    folder: &std::path::Path,
    arguments: &[&str],
) -> String {
    let mut command = Command::new(root.join("usr/bin/cscli"));
    command
        .arg("-c")
        .arg(folder.join("config.yaml"))
        .args(arguments);
    let output = network.in_server(|| command.output()).unwrap();
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

impl Drop for CrowdSec {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Whether Debian's CrowdSec is there.
pub fn has_crowdsec() -> bool {
    std::env::var_os("WEIR_CROWDSEC")
        .is_some_and(|root| PathBuf::from(root).join("usr/bin/cscli").exists())
}

fn crowdsec_itself_bans_and_takes_alerts() {
    let network = Network::new();
    let lapi = CrowdSec::start(&network);
    let machine = format!("machine_id = {:?}\npassword = {:?}", MACHINE.0, MACHINE.1);
    let agent = network.start(
        "",
        &format!("{}{ESCALATE}", table("http://127.0.0.1:8080", &machine)),
    );
    wait("the first pull", || crowdsec(&agent)["state"] == "ok");
    let receiver = network.receiver(PORT);
    lapi.cscli(
        &network,
        &[
            "decisions",
            "add",
            "--ip",
            "10.77.0.7",
            "--duration",
            "1h",
            "--reason",
            "scan",
        ],
    );
    let time = wait("the ban", || agent.is_banned("10.77.0.7"));
    println!("from cscli's end to the ban: {:.2} s", time.as_secs_f64());
    lapi.cscli(
        &network,
        &[
            "decisions",
            "add",
            "--range",
            "10.78.0.0/16",
            "--duration",
            "1h",
        ],
    );
    wait("the range", || agent.is_banned("10.78.3.4"));
    burst(&network, &[udp_from(7), udp_from(8)], 20);
    let counts = receiver.counts();
    assert_eq!((counts[7], counts[8]), (0, 10));
    assert!(
        agent.ban_of("10.77.0.7")["reason"]
            .as_str()
            .unwrap()
            .starts_with("scan, decision ")
    );
    lapi.cscli(&network, &["decisions", "delete", "--ip", "10.77.0.7"]);
    wait("the deletion", || !agent.is_banned("10.77.0.7"));
    // Many at once, from a file of cscli.
    let file = network.folder.path().join("decisions.csv");
    let mut list = String::from("duration,scope,value\n");
    (0..1_000u32)
        .for_each(|nth| writeln!(list, "4h,ip,{}", Ipv4Addr::from(0x0b00_0000 + nth)).unwrap());
    std::fs::write(&file, list).unwrap();
    lapi.cscli(
        &network,
        &["decisions", "import", "-i", file.to_str().unwrap()],
    );
    wait("the import", || {
        crowdsec(&agent)["banned_prefixes"] == 1_001
    });
    // An alert becomes a decision for other bouncers, which is no second ban here.
    provoke(&agent, "10.77.0.9");
    wait("the alert", || crowdsec(&agent)["alerts"]["sent"] == 1);
    wait("its decision", || crowdsec(&agent)["ignored"]["own"] == 1);
    assert!(agent.ban_of("10.77.0.9")["also"].is_null());
}
