//! Trials end as they should, whatever becomes of the host meanwhile: interfaces vanish, hooks are taken, it reboots.

use std::fs::File;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use testbed::tests;
use testbed::trials::Test;

use crate::foreign::Place;
use crate::safety::{SLOW, SMALL, said};
use crate::support::{INTERFACE, Network, a_while};
use crate::traffic::{PORT, burst, udp_from};

pub const TESTS: &[Test] = tests![
    a_trial_is_rolled_back_without_a_missing_interface,
    a_rollback_that_fails_is_reported_and_tried_again_until_it_succeeds,
    a_revert_that_fails_is_tried_again_before_the_trial_ends,
    a_reboot_does_not_put_an_unconfirmed_config_in_effect,
    a_trial_needs_no_file_that_the_agent_can_read,
    an_agent_without_a_state_directory_runs_and_says_so,
    a_trial_is_ended_at_once,
    a_link_of_the_agents_file_is_its_file,
    watch_puts_no_trial_in_effect_that_ended_unconfirmed,
];

fn a_trial_is_rolled_back_without_a_missing_interface() {
    let network = Network::new();
    network.add_link("weir1", "client1");
    let agent = network.start_on(&[INTERFACE, "weir1"], SMALL, SLOW);
    let receiver = network.receiver(PORT);
    let own = network.folder.path().join("limits.toml");
    let tried = network.folder.path().join("tried.toml");
    let text = std::fs::read_to_string(own).unwrap();
    std::fs::write(
        &tried,
        text.replace(", \"weir1\"", "")
            .replace("burst = 100", "burst = 5000"),
    )
    .unwrap();
    network.told(&[
        "try",
        tried.to_str().unwrap(),
        "--for",
        &format!("{}s", a_while().as_secs()),
    ]);
    network.remove_link("weir1");
    let status = agent.wait_for("the rollback", |status| status["trial"].is_null());
    assert_eq!(status["last_reload"]["ok"], true, "{status}");
    assert!(
        status.to_string().contains("weir1"),
        "the missing interface is reported: {status}"
    );
    assert_eq!(agent.limit("packets")["burst"], 100);
    burst(&network, &[udp_from(7)], 300);
    assert_eq!(receiver.counts()[7], 100);
}

fn a_revert_that_fails_is_tried_again_before_the_trial_ends() {
    let network = Network::new();
    let native = format!("{SMALL}attach = \"native\"\n");
    let agent = network.start(&native, SLOW);
    let own = network.folder.path().join("limits.toml");
    let tried = network.folder.path().join("tried.toml");
    let text = std::fs::read_to_string(own).unwrap();
    let text = text.replace("\"native\"", "\"tc\"");
    std::fs::write(&tried, text.replace("burst = 100", "burst = 50")).unwrap();
    network.told(&["try", tried.to_str().unwrap(), "--for", "1h"]);
    let foreign = network.attach_foreign(Place::Xdp);
    let output = network.command(&["revert"]);
    assert!(!output.status.success(), "{output:?}");
    agent.wait_for("a second attempt", |status| {
        status["trial"]["rollback"]["attempts"].as_u64() >= Some(2)
    });
    drop(foreign);
    agent.wait_for("the rollback", |status| status["trial"].is_null());
    assert_eq!(agent.limit("packets")["burst"], 100);
}

fn a_rollback_that_fails_is_reported_and_tried_again_until_it_succeeds() {
    let network = Network::new();
    let native = format!("{SMALL}attach = \"native\"\n");
    let agent = network.start(&native, SLOW);
    let receiver = network.receiver(PORT);
    let own = network.folder.path().join("limits.toml");
    let tried = network.folder.path().join("tried.toml");
    let text = std::fs::read_to_string(own).unwrap();
    std::fs::write(
        &tried,
        text.replace("\"native\"", "\"tc\"")
            .replace("burst = 100", "burst = 50"),
    )
    .unwrap();
    let tried = tried.to_str().unwrap();
    // Long enough for another program to take the hook that the config before needs.
    let time = format!("{}s", 2 * a_while().as_secs());
    network.told(&["try", tried, "--for", &time]);
    let foreign = network.attach_foreign(Place::Xdp);
    let failing =
        |status: &serde_json::Value| status["trial"]["rollback"]["attempts"].as_u64() >= Some(2);
    let status = agent.wait_for("a second attempt", failing);
    assert_eq!(status["trial"]["rollback_failing"], true, "{status}");
    assert_eq!(status["trial"]["file"], tried);
    assert!(
        status["trial"]["rollback"]["error"]
            .as_str()
            .unwrap()
            .contains(INTERFACE),
        "{status}"
    );
    assert_eq!(
        (
            &status["last_reload"]["cause"],
            &status["last_reload"]["ok"]
        ),
        (&"trial-ended".into(), &false.into())
    );
    let events = said(&network.command(&["events", "--json"]));
    assert!(
        events.contains("trial-rollback-failed") && events.contains("stays in effect"),
        "{events}"
    );
    let output = network.command(&["status"]);
    assert!(said(&output).contains("rolling back fails"), "{output:?}");
    for arguments in [&["reload"][..], &["try", tried]] {
        let output = network.command(arguments);
        assert!(
            !output.status.success() && said(&output).contains("agent confirm"),
            "{output:?}"
        );
    }
    // The config on trial is in effect, and every report says so.
    assert_eq!(agent.limit("packets")["burst"], 50);
    burst(&network, &[udp_from(7)], 80);
    assert_eq!(receiver.counts()[7], 50);
    drop(foreign);
    let status = agent.wait_for("the rollback", |status| status["trial"].is_null());
    assert_eq!(
        (
            &status["last_reload"]["cause"],
            &status["last_reload"]["ok"]
        ),
        (&"trial-ended".into(), &true.into())
    );
    assert_eq!(agent.limit("packets")["burst"], 100);
    // Confirmed while it fails, it stays.
    network.told(&["try", tried, "--for", &time]);
    let foreign = network.attach_foreign(Place::Xdp);
    agent.wait_for("a failure", |status| {
        status["trial"]["rollback_failing"] == true
    });
    network.told(&["confirm"]);
    drop(foreign);
    thread::sleep(Duration::from_secs(3));
    let status = agent.json(&["status"]);
    assert!(status["trial"].is_null(), "{status}");
    assert_eq!(agent.limit("packets")["burst"], 50);
    let (log, _) = agent.stop(Signal::SIGTERM);
    assert_eq!(
        log.matches("rolled back to the previous config").count(),
        1,
        "{log}"
    );
}

fn a_reboot_does_not_put_an_unconfirmed_config_in_effect() {
    let network = Network::new();
    let agent = network.start(SMALL, SLOW);
    let own = network.folder.path().join("limits.toml");
    let before = std::fs::read_to_string(&own).unwrap();
    std::fs::write(&own, before.replace("burst = 100", "burst = 1")).unwrap();
    network.told(&["try", own.to_str().unwrap(), "--for", "1h"]);
    agent.stop(Signal::SIGKILL);
    // Of /run and of the kernel nothing is left; the disk is as it was.
    network.told(&["detach", "--config", own.to_str().unwrap()]);
    let _ = std::fs::remove_file(network.control());
    assert!(!network.folder.path().join("control.trial.json").exists());
    let agent = network.start_file(&own, &[]);
    assert_eq!(agent.limit("packets")["burst"], 100);
    assert!(
        agent
            .stop(Signal::SIGTERM)
            .0
            .contains("was on trial and not confirmed")
    );
}

fn a_trial_needs_no_file_that_the_agent_can_read() {
    let network = Network::new();
    let agent = network.start(SMALL, SLOW);
    let own = network.folder.path().join("limits.toml");
    let text = std::fs::read_to_string(own).unwrap();
    // Two megabytes, most of them escaped in JSON. What is /dev/stdin to the command is not what is to the agent.
    let long = format!(
        "{}# {}\n",
        text.replace("burst = 100", "burst = 50"),
        "\"\\".repeat(1 << 20)
    );
    let tried = network.folder.path().join("tried.toml");
    let attempt = |text: &str| {
        std::fs::write(&tried, text).unwrap();
        let file = File::open(&tried).unwrap();
        let child = network.spawn(&["try", "/dev/stdin", "--for", "1h"], |command| {
            command
                .stdin(file)
                .stdout(Stdio::piped())
                .stderr(Stdio::piped());
        });
        child.wait_with_output().unwrap()
    };
    let began = Instant::now();
    let output = attempt(&long);
    assert!(output.status.success(), "{}", said(&output));
    eprintln!(
        "a trial of {} bytes began after {:?}",
        long.len(),
        began.elapsed()
    );
    assert_eq!(agent.limit("packets")["burst"], 50);
    assert_eq!(agent.json(&["status"])["trial"]["file"], "/dev/stdin");
    network.told(&["confirm"]);
    // Errors name the file as it was given; what is too long is refused with the figure.
    let output = attempt(&text.replace("burst", "brust"));
    assert!(
        output.status.code() == Some(2) && said(&output).contains("/dev/stdin:"),
        "{output:?}"
    );
    let output = attempt(&format!("{text}#{}\n", "x".repeat(4 << 20)));
    assert!(
        output.status.code() == Some(2) && said(&output).contains("at most 4194304"),
        "{output:?}"
    );
    assert_eq!(agent.limit("packets")["burst"], 50);
}

fn an_agent_without_a_state_directory_runs_and_says_so() {
    let network = Network::new();
    let config = network.config(SMALL, SLOW);
    let text = std::fs::read_to_string(&config).unwrap();
    std::fs::write(
        &config,
        text.replace(network.state().to_str().unwrap(), "/proc/weir"),
    )
    .unwrap();
    let agent = network.start_file(&config, &[]);
    let receiver = network.receiver(PORT);
    burst(&network, &[udp_from(7)], 150);
    assert_eq!(receiver.counts()[7], 100);
    let notes = agent.json(&["status"])["notes"].to_string();
    assert!(
        notes.contains("/proc/weir") && notes.contains("[agent] state_dir"),
        "{notes}"
    );
    let output = network.command(&["try", config.to_str().unwrap()]);
    assert!(
        !output.status.success() && said(&output).contains("starting the trial failed"),
        "{output:?}"
    );
    assert!(agent.stop(Signal::SIGTERM).0.contains("[agent] state_dir"));
}

fn a_trial_is_ended_at_once() {
    let network = Network::new();
    let agent = network.start("", "[[limit]]\nname = \"own\"\nrate = \"5/s\"\n");
    let refused = network.command(&["revert"]);
    let said = String::from_utf8_lossy(&refused.stderr);
    assert!(
        refused.status.code() == Some(1) && said.contains("agent try FILE"),
        "{said}"
    );
    let text = std::fs::read_to_string(network.folder.path().join("limits.toml")).unwrap();
    let tried = network.folder.path().join("tried.toml");
    std::fs::write(&tried, text.replace("rate = \"5/s\"", "rate = \"6/s\"")).unwrap();
    let began = agent.json(&["try", tried.to_str().unwrap(), "--for", "600"]);
    assert_eq!(began["changes"]["changed"][0]["what"], "limit own");
    assert_eq!(agent.limit("own")["rate"], "6/s");
    assert_eq!(agent.json(&["revert"])["ok"], true);
    assert_eq!(agent.limit("own")["rate"], "5/s");
    let status = agent.json(&["status"]);
    assert_eq!(
        (&status["trial"], &status["last_reload"]["cause"]),
        (&serde_json::Value::Null, &"revert".into())
    );
}

fn a_link_of_the_agents_file_is_its_file() {
    let network = Network::new();
    let agent = network.start("", "[[limit]]\nname = \"own\"\nrate = \"5/s\"\n");
    let own = network.folder.path().join("limits.toml");
    let text = std::fs::read_to_string(&own).unwrap();
    let (hard, symbolic) = (own.with_file_name("hard"), own.with_file_name("symbolic"));
    std::fs::hard_link(&own, &hard).unwrap();
    std::os::unix::fs::symlink(&own, &symbolic).unwrap();
    let other = own.with_file_name("other");
    std::fs::write(&other, text.replace("rate = \"5/s\"", "rate = \"6/s\"")).unwrap();
    for (file, is_own) in [(&hard, true), (&symbolic, true), (&other, false)] {
        let name = file.to_str().unwrap();
        network.told(&["try", name, "--for", "1h"]);
        let confirmed = agent.json(&["confirm"]);
        assert_eq!(confirmed["note"].is_null(), is_own, "{name}: {confirmed}");
        let reloaded = network.command(&["reload", name]);
        assert_eq!(reloaded.status.success(), is_own, "{}", said(&reloaded));
    }
}

fn watch_puts_no_trial_in_effect_that_ended_unconfirmed() {
    let network = Network::new();
    let agent = network.start("watch = true\nmax_sources = 1000", SLOW);
    let own = network.folder.path().join("limits.toml");
    let before = std::fs::read_to_string(&own).unwrap();
    // A trial of the agent's own file, which keeps what was tried, over a restart and over a rollback.
    let try_own = |text: String| {
        let tried = network.folder.path().join("tried.toml");
        std::fs::write(&tried, &text).unwrap();
        network.told(&["try", tried.to_str().unwrap(), "--for", "1h"]);
        std::fs::write(&own, &text).unwrap();
    };
    try_own(before.replace("burst = 100", "burst = 1"));
    agent.stop(Signal::SIGKILL);
    let agent = network.start_file(&own, &[]);
    assert_eq!(agent.limit("packets")["burst"], 100);
    // The watcher looks at the file as it starts, and whenever its folder changes.
    std::fs::write(network.folder.path().join("other"), "").unwrap();
    thread::sleep(Duration::from_millis(1_000));
    assert_eq!(agent.limit("packets")["burst"], 100);
    assert_eq!(agent.json(&["reload"])["ok"], true);
    assert_eq!(agent.limit("packets")["burst"], 1);
    try_own(before.replace("burst = 100", "burst = 2"));
    assert_eq!(agent.json(&["revert"])["ok"], true);
    std::fs::write(network.folder.path().join("other"), "again").unwrap();
    thread::sleep(Duration::from_millis(1_000));
    assert_eq!(agent.limit("packets")["burst"], 1);
    // An edit after that is one.
    let next = network.folder.path().join("next.toml");
    std::fs::write(&next, before.replace("burst = 100", "burst = 3")).unwrap();
    std::fs::rename(&next, &own).unwrap();
    agent.wait_for("the reload", |status| {
        status["last_reload"]["cause"] == "watch"
    });
    assert_eq!(agent.limit("packets")["burst"], 3);
}
