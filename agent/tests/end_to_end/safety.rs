//! Nobody is locked out: trials that go back by themselves, and who is never throttled.

use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;
use testbed::tests;
use testbed::trials::Test;

use crate::support::{Agent, Network, a_while};
use crate::traffic::{PORT, burst, udp_from};

pub const TESTS: &[Test] = tests![
    a_trial_goes_back_by_itself_unless_it_is_confirmed,
    a_trial_of_the_agents_own_file_survives_neither_a_kill_nor_a_restart,
    a_trial_of_another_file_is_reported_after_a_kill,
    a_trial_that_cannot_be_changes_nothing,
    ssh_sessions_and_gateways_are_never_throttled_unless_the_config_insists,
    the_session_of_a_command_is_exempt_after_a_restart,
    a_gateway_that_appears_later_is_exempt_though_its_network_is_banned,
    the_ssh_session_is_found_though_sudo_clears_the_environment,
    conflicts_are_reported_with_the_fix,
];

/// A small table, for what many agents are started for.
pub const SMALL: &str = "max_sources = 2000\n";
pub const SLOW: &str = "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 100\n";

pub fn said(output: &std::process::Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

/// Another config of the same network, in a file of its own.
fn other(network: &Network, from: &str, to: &str) -> String {
    let own = network.folder.path().join("limits.toml");
    let path = network.folder.path().join("tried.toml");
    std::fs::write(
        &path,
        std::fs::read_to_string(own).unwrap().replace(from, to),
    )
    .unwrap();
    path.to_str().unwrap().to_owned()
}

fn a_trial_goes_back_by_itself_unless_it_is_confirmed() {
    let network = Network::new();
    let agent = network.start(SMALL, SLOW);
    burst(&network, &[udp_from(7)], 60);
    assert!(
        !network.command(&["confirm"]).status.success(),
        "there is nothing to confirm"
    );
    let tried = other(&network, "burst = 100", "burst = 50");
    let output = network.command(&["try", &tried, "--for", "1h"]);
    assert!(
        output.status.success() && said(&output).contains("agent confirm"),
        "{output:?}"
    );
    assert_eq!(agent.limit("packets")["burst"], 50);
    assert_eq!(agent.remaining("10.77.0.7", "packets"), 0);
    let status = agent.json(&["status"]);
    assert_eq!(status["trial"]["file"], tried.as_str());
    assert!(status["trial"]["ends_in_seconds"].as_f64().unwrap() <= 3_600.0);
    // One at a time, and nothing else meanwhile.
    for arguments in [&["try", tried.as_str(), "--for", "60s"][..], &["reload"]] {
        let output = network.command(arguments);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(said(&output).contains("on trial"), "{output:?}");
    }
    network.told(&["revert"]);
    let began = Instant::now();
    network.told(&["try", &tried, "--for", "1s"]);
    // A bucket of packets keeps no more use than its burst.
    let status = agent.wait_for("going back", |status| status["trial"].is_null());
    assert!(began.elapsed() >= Duration::from_secs(1));
    assert_eq!(
        (
            &status["last_reload"]["cause"],
            &status["last_reload"]["ok"]
        ),
        (&"trial-ended".into(), &true.into())
    );
    assert_eq!(
        (
            agent.limit("packets")["burst"].clone(),
            agent.remaining("10.77.0.7", "packets")
        ),
        (100.into(), 50)
    );
    // Confirmed, it stays, and says how it will be there after a restart.
    let time = 2 * a_while();
    let began = Instant::now();
    network.told(&["try", &tried, "--for", &format!("{}s", time.as_secs())]);
    let output = network.command(&["confirm"]);
    assert!(
        output.status.success() && said(&output).contains(&format!("copy {tried} there")),
        "{output:?}"
    );
    thread::sleep((time + Duration::from_millis(300)).saturating_sub(began.elapsed()));
    assert_eq!(agent.limit("packets")["burst"], 50);
    assert_eq!(agent.remaining("10.77.0.7", "packets"), 0);
}

fn a_trial_of_the_agents_own_file_survives_neither_a_kill_nor_a_restart() {
    let network = Network::new();
    let agent = network.start(SMALL, SLOW);
    let own = network.folder.path().join("limits.toml");
    let before = std::fs::read_to_string(&own).unwrap();
    // The operator changes the file in place, and tries it.
    std::fs::write(&own, before.replace("burst = 100", "burst = 1")).unwrap();
    network.told(&["try", own.to_str().unwrap(), "--for", "1h"]);
    assert_eq!(agent.limit("packets")["burst"], 1);
    agent.stop(Signal::SIGKILL);
    // Until an agent comes the trial holds; the next one goes back, and the one after it.
    for (signal, is_new) in [(Signal::SIGTERM, true), (Signal::SIGKILL, false)] {
        let agent = network.start_file(&own, &[]);
        assert_eq!(agent.limit("packets")["burst"], 100);
        assert_eq!(has_event_of_the_trial(&agent), is_new);
        let last = &agent.json(&["status"])["last_reload"];
        assert!(last["notes"].to_string().contains("was on trial"), "{last}");
        let (warned, _) = agent.stop(signal);
        assert!(
            warned.contains("was on trial and not confirmed"),
            "{warned}"
        );
    }
    // After a reload, the file is in effect and stays so.
    let agent = network.start_file(&own, &[]);
    assert_eq!(agent.json(&["reload"])["ok"], true);
    assert_eq!(agent.limit("packets")["burst"], 1);
    agent.stop(Signal::SIGKILL);
    let agent = network.start_file(&own, &[]);
    assert_eq!(agent.limit("packets")["burst"], 1);
    // So it is once it is confirmed …
    std::fs::write(&own, before.replace("burst = 100", "burst = 2")).unwrap();
    network.told(&["try", own.to_str().unwrap(), "--for", "1h"]);
    network.told(&["confirm"]);
    agent.stop(Signal::SIGKILL);
    let agent = network.start_file(&own, &[]);
    assert_eq!(agent.limit("packets")["burst"], 2);
    // … and after a rollback, a restart does not put the tried file in effect.
    std::fs::write(&own, before.replace("burst = 100", "burst = 3")).unwrap();
    network.told(&["try", own.to_str().unwrap(), "--for", "1s"]);
    let status = agent.wait_for("going back", |status| status["trial"].is_null());
    assert!(
        status["last_reload"]["notes"]
            .to_string()
            .contains("is not in effect"),
        "{status}"
    );
    agent.stop(Signal::SIGKILL);
    let agent = network.start_file(&own, &[]);
    assert_eq!(agent.limit("packets")["burst"], 2);
    agent.stop(Signal::SIGKILL);
    // A file that says something else is read as ever.
    std::fs::write(&own, before.replace("burst = 100", "burst = 4")).unwrap();
    let agent = network.start_file(&own, &[]);
    assert_eq!(agent.limit("packets")["burst"], 4);
}

fn has_event_of_the_trial(agent: &Agent) -> bool {
    agent
        .lines(&["events", "--json"])
        .iter()
        .any(|event| event["verdict"] == "trial-rolled-back")
}

fn a_trial_of_another_file_is_reported_after_a_kill() {
    let network = Network::new();
    let agent = network.start(SMALL, SLOW);
    let own = network.folder.path().join("limits.toml");
    let tried = other(&network, "burst = 100", "burst = 1");
    network.told(&["try", &tried, "--for", "1h"]);
    agent.stop(Signal::SIGKILL);
    let agent = network.start_file(&own, &[]);
    assert_eq!(agent.limit("packets")["burst"], 100);
    assert!(has_event_of_the_trial(&agent));
    let (log, _) = agent.stop(Signal::SIGTERM);
    assert!(log.contains("a config was on trial when"), "{log}");
    // Once: neither the next start nor one after a trial that ended in time reports it.
    let agent = network.start_file(&own, &[]);
    assert!(!has_event_of_the_trial(&agent));
    network.told(&["try", &tried, "--for", "1s"]);
    agent.wait_for("the rollback", |status| status["trial"].is_null());
    let (log, _) = agent.stop(Signal::SIGKILL);
    assert!(!log.contains("a config was on trial when"), "{log}");
    // Copied over the agent's own after that, it is not put in effect by a start, either.
    let before = std::fs::read(&own).unwrap();
    std::fs::copy(&tried, &own).unwrap();
    let agent = network.start_file(&own, &[]);
    assert_eq!(agent.limit("packets")["burst"], 100);
    assert!(!has_event_of_the_trial(&agent));
    // A second agent changes nothing of it.
    let output = network.command(&["run", own.to_str().unwrap()]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    std::fs::write(&own, before).unwrap();
    agent.stop(Signal::SIGKILL);
    let agent = network.start_file(&own, &[]);
    let (log, _) = agent.stop(Signal::SIGKILL);
    assert!(!log.contains("on trial"), "{log}");
}

fn a_trial_that_cannot_be_changes_nothing() {
    let network = Network::new();
    let agent = network.start(SMALL, SLOW);
    let wrong = other(&network, "burst = 100", "brust = 100");
    let output = network.command(&["try", &wrong]);
    assert_eq!(output.status.code(), Some(2), "{output:?}");
    assert!(
        said(&output).contains("did you mean \"burst\"?"),
        "{output:?}"
    );
    assert_eq!(
        network
            .command(&["try", "/nowhere/limits.toml"])
            .status
            .code(),
        Some(2)
    );
    let right = other(&network, "burst = 100", "burst = 50");
    for time in ["0s", "500ms", "2days"] {
        assert_eq!(
            network
                .command(&["try", &right, "--for", time])
                .status
                .code(),
            Some(2),
            "{time}"
        );
    }
    // Where it cannot be written down what to go back to, nothing is tried.
    let record = network.state().join("trial.json");
    std::fs::create_dir(&record).unwrap();
    // Nor can it be set aside.
    let aside = network.state().join("trial.json.damaged");
    std::fs::create_dir_all(aside.join("content")).unwrap();
    let output = network.command(&["try", &right]);
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(
        said(&output).contains("starting the trial failed") && said(&output).contains("state_dir"),
        "{output:?}"
    );
    std::fs::remove_dir(&record).unwrap();
    std::fs::remove_dir_all(&aside).unwrap();
    assert!(agent.json(&["status"])["trial"].is_null());
    assert_eq!(agent.limit("packets")["burst"], 100);
    // Nothing of it is left for the next agent either.
    agent.stop(Signal::SIGKILL);
    let agent = network.start(SMALL, SLOW);
    assert_eq!(agent.limit("packets")["burst"], 100);
}

fn the_session_of_a_command_is_exempt_after_a_restart() {
    let network = Network::new();
    let config = network.config(&format!("{SMALL}protect = [\"ssh\"]"), SLOW);
    let start = || network.start_file(&config, &[("SSH_CONNECTION", "")]);
    let exempt = |agent: &Agent<'_>| agent.json(&["show", "10.77.0.10"])["never_limit"].clone();
    let agent = start();
    assert_eq!(exempt(&agent), false);
    let session = "10.77.0.10 50000 10.77.0.1 22";
    let output = network.command_with("SSH_CONNECTION", session, &["reload"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(exempt(&agent), true);
    // As a service, it has no session of its own.
    agent.stop(Signal::SIGKILL);
    assert_eq!(exempt(&start()), true);
    // A damaged file keeps no limit from being in effect.
    std::fs::write(network.state().join("operators"), "{").unwrap();
    let agent = start();
    assert_eq!(exempt(&agent), false);
    let (said, _) = agent.stop(Signal::SIGTERM);
    assert!(said.contains("addresses of SSH sessions"), "{said}");
}

fn ssh_sessions_and_gateways_are_never_throttled_unless_the_config_insists() {
    let network = Network::new();
    network.add_default_route("10.77.0.9");
    network.add_default_route("fd77::9");
    let receiver = network.receiver(PORT);
    let passed = || {
        burst(&network, &[7, 8, 9, 10].map(udp_from), 600);
        let counts = receiver.counts();
        [7, 8, 9, 10].map(|source| counts[source])
    };
    let session = [("SSH_CONNECTION", "10.77.0.7 50000 10.77.0.1 22")];
    let agent = network.start_file(&network.config(SMALL, SLOW), &session);
    let status = agent.json(&["status"]);
    let named = status["protected"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["address"].as_str().unwrap().to_owned());
    assert_eq!(
        named.collect::<Vec<_>>(),
        ["10.77.0.7", "10.77.0.9", "fd77::9"]
    );
    assert_eq!(passed(), [150, 100, 150, 100]);
    assert_eq!(agent.json(&["show", "10.77.0.7"])["never_limit"], true);
    // The session that a reload or a trial comes from is protected as well.
    let output = network.command_with(
        "SSH_CONNECTION",
        "10.77.0.10 50000 10.77.0.1 22",
        &["reload"],
    );
    assert!(output.status.success(), "{output:?}");
    assert_eq!(passed(), [150, 0, 150, 150]);
    let table = String::from_utf8(network.command(&["status"]).stdout).unwrap();
    assert!(
        table.contains("exempt: ") && table.contains("10.77.0.9 (a default gateway)"),
        "{table}"
    );
    // Unless the config insists, on some or on all.
    network.config(&format!("{SMALL}protect = [\"ssh\"]"), SLOW);
    network.told(&["reload"]);
    assert_eq!(passed(), [150, 0, 100, 150]);
    let warned = agent.stop(Signal::SIGKILL).0;
    assert!(
        warned.contains("exempt: 10.77.0.7 (an SSH session"),
        "{warned}"
    );
    let agent = network.start_file(
        &network.config(&format!("{SMALL}protect = false"), SLOW),
        &session,
    );
    assert_eq!(agent.json(&["status"])["protected"], serde_json::json!([]));
    assert_eq!(passed(), [100, 0, 0, 0]);
    let config = network.folder.path().join("limits.toml");
    let (name, session) = session[0];
    for arguments in [
        &["check", config.to_str().unwrap()][..],
        &["reload", "--diff"],
        &["reload"],
    ] {
        let output = network.command_with(name, session, arguments);
        assert!(
            said(&output).contains("10.77.0.7, the client of this SSH session"),
            "{arguments:?}: {output:?}"
        );
    }
    let warned = agent.stop(Signal::SIGKILL).0;
    assert!(
        warned.contains("the client of this SSH session"),
        "{warned}"
    );
    // The cluster's store, by the address that its name has now.
    let cluster = "[cluster]\nstore = \"redis://10.77.0.12:6379\"\n";
    let config = network.config(
        &format!("{SMALL}{cluster}"),
        &SLOW.replace("rate", "cluster = true\nrate"),
    );
    let checked = said(&network.command(&["check", config.to_str().unwrap()]));
    assert!(
        checked.contains("exempt: 10.77.0.12 (the cluster's store)"),
        "{checked}"
    );
    let config = network.config("protect = [\"gateway\"]", SLOW);
    assert!(
        said(&network.command(&["check", config.to_str().unwrap()]))
            .contains("did you mean \"gateways\"?")
    );
}

/// At boot the agent starts before the network is configured.
fn a_gateway_that_appears_later_is_exempt_though_its_network_is_banned() {
    let network = Network::new();
    let receiver = network.receiver(PORT);
    let agent = network.start(SMALL, SLOW);
    assert_eq!(agent.json(&["status"])["protected"], serde_json::json!([]));
    network.told(&["ban", "10.77.0.8/29"]);
    let protected = |status: &serde_json::Value| {
        let all = status["protected"].as_array().unwrap();
        all.iter()
            .map(|one| one["address"].as_str().unwrap().to_owned())
            .collect::<Vec<_>>()
    };
    network.add_default_route("10.77.0.9");
    agent.wait_for("the gateway is exempt", |status| {
        protected(status) == ["10.77.0.9"]
    });
    let passed = || {
        burst(&network, &[8, 9].map(udp_from), 300);
        let counts = receiver.counts();
        [8, 9].map(|source| counts[source])
    };
    assert_eq!(passed(), [0, 150]);
    // Other routes change nothing; the next gateway is exempt instead of the one before.
    network
        .ip_batch("route add 192.0.2.0/24 via 10.77.0.11\nroute replace default via 10.77.0.10\n");
    agent.wait_for("the next gateway is exempt", |status| {
        protected(status) == ["10.77.0.10"]
    });
    assert_eq!(passed(), [0, 0]);
    let events = agent.events(2, |event| event["verdict"] == "protected");
    let reasons: Vec<_> = events.iter().map(|event| event["reason"].clone()).collect();
    assert_eq!(
        reasons,
        [
            "exempt: 10.77.0.9 (a default gateway)",
            "exempt: 10.77.0.10 (a default gateway); no longer exempt: 10.77.0.9 (a default gateway)"
        ]
    );
}

fn the_ssh_session_is_found_though_sudo_clears_the_environment() {
    let network = Network::new();
    let config = network.config(SMALL, SLOW);
    let agent = std::env::var("WEIR_AGENT").unwrap();
    // A shell under sshd, and a program that clears the environment of what it starts.
    let script = format!("env -i {agent} check {}; true", config.display());
    let mut shell = Command::new("sh");
    shell
        .args(["-c", &script])
        .env("SSH_CONNECTION", "10.77.0.7 50000 10.77.0.1 22");
    let output = network.in_server(|| shell.output()).unwrap();
    assert!(
        said(&output).contains("exempt: 10.77.0.7 (an SSH session"),
        "{output:?}"
    );
}

fn conflicts_are_reported_with_the_fix() {
    let network = Network::new();
    let told = |config: &Path, messages: &[&str]| {
        let output = network.run_to_end(config);
        let said = said(&output);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(
            messages.iter().all(|message| said.contains(message)) && !said.contains("panicked"),
            "{said}"
        );
    };
    let config = network.config(SMALL, SLOW);
    let text = std::fs::read_to_string(&config).unwrap();
    let with = |from: &str, to: &str| std::fs::write(&config, text.replace(from, to)).unwrap();
    let pins = network.pins().to_str().unwrap();
    // Pins where nothing can be made, and where what is made is no BPF file system's.
    with(pins, "/proc/weir");
    told(&config, &["/proc/weir", "bpffs mounted"]);
    with(pins, network.folder.path().join("pins").to_str().unwrap());
    told(&config, &["is not in a BPF file system", "[agent] pins"]);
    // A socket where there can be none.
    let control = network.control();
    with(control.to_str().unwrap(), "/proc/weir/control.sock");
    told(&config, &["control socket /proc/weir/control.sock"]);
    // No room on the disk for it: a folder that is a file, and one that is full.
    with(control.to_str().unwrap(), "/dev/full/control.sock");
    told(&config, &["control socket /dev/full/control.sock"]);
    assert!(!network.has_pins() && !network.has_program());
    // A socket that nobody answers on any more is replaced; a command that finds it so says what to do.
    with("", "");
    let agent = network.start_file(&config, &[]);
    agent.stop(Signal::SIGKILL);
    assert!(control.exists());
    for arguments in [
        &["status"][..],
        &["reload"],
        &["confirm"],
        &["try", config.to_str().unwrap()],
    ] {
        let output = network.command(arguments);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(
            said(&output).contains("no agent replies on") && said(&output).contains("start one"),
            "{output:?}"
        );
    }
    let agent = network.start_file(&config, &[]);
    assert!(agent.json(&["status"])["interfaces"].is_array());
    // No root: reading the config works, and nothing else.
    let mut command = Command::new(std::env::var_os("WEIR_AGENT").unwrap());
    std::os::unix::process::CommandExt::uid(&mut command, 65534);
    std::os::unix::process::CommandExt::gid(&mut command, 65534);
    command
        .args(["reload", "--control"])
        .arg(&control)
        .stderr(Stdio::piped());
    std::fs::set_permissions(
        network.folder.path(),
        std::os::unix::fs::PermissionsExt::from_mode(0o755),
    )
    .unwrap();
    let output = network.in_server(|| command.output()).unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(said(&output).contains("run as root"), "{output:?}");
}
