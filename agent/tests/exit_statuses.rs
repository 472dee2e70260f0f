//! The exit status of every verb: 0 done; 1 failed while running; 2 wrong usage or config, and nothing was touched.
//! Needs no root: the agent here has limits on requests alone.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use clap::CommandFactory as _;

/// A command line, in which `{}` is the test's folder, and the status it ends with.
type Row = (&'static str, i32);

/// Command lines that need no agent.
const ALONE: &[Row] = &[
    ("", 2),
    ("--help", 0),
    ("--version", 0),
    ("nonsense", 2),
    ("status --nonsense", 2),
    ("run --config {}/missing.toml", 2),
    ("run --config {}/invalid.toml", 2),
    ("--config {}/invalid.toml", 2),
    ("check {}/limits.toml", 0),
    ("check {}/invalid.toml", 2),
    ("check {}/invalid.toml --json", 2),
    ("check {}/missing.toml", 2),
    ("check {}/limits.toml --config {}/invalid.toml", 2),
    ("check {}/no-interface.toml", 0),
    ("check {}/no-pattern.toml", 0),
    ("doctor {}/limits.toml", 0),
    ("doctor {}/no-interface.toml", 1),
    ("doctor {}/invalid.toml", 2),
    ("doctor {}/missing.toml", 2),
    ("detach {}/missing.toml", 2),
    ("completions bash", 0),
    ("completions tcsh", 2),
    ("man", 0),
    ("schema", 0),
    ("replay", 2),
    ("replay --config {}/limits.toml {}/missing.pcap", 2),
    ("replay --config {}/packets.toml {}/missing.pcap", 1),
    ("replay --config {}/invalid.toml {}/missing.pcap", 2),
    (
        "replay --config {}/packets.toml --html {}/missing/page.html {}/missing.pcap",
        1,
    ),
    (
        "replay --config {}/packets.toml --html {}/packets.toml {}/missing.pcap",
        2,
    ),
    (
        "replay --config {}/packets.toml --json --html - {}/missing.pcap",
        2,
    ),
    ("suggest", 2),
    ("suggest --html {}/missing/page.html {}/missing.pcap", 1),
    ("suggest --html {}/packets.toml {}/packets.toml", 2),
    ("suggest {}/missing.pcap", 1),
    ("suggest --local 300.0.0.0/8 {}/missing.pcap", 2),
    // An empty standard input.
    ("import", 2),
    ("import {}/missing", 2),
    ("import {}/limits.toml", 2),
    ("import --from pf {}/rules", 2),
    ("import {}/rules", 0),
    ("import --from ipset {}/rules", 2),
    ("import {}/forward", 1),
    ("fleet", 2),
    ("fleet keygen {}/fleet.key", 0),
    ("fleet keygen {}/fleet.key", 1),
    ("fleet status", 2),
    ("fleet status --to web", 2),
    ("fleet status --to {}/missing/web", 1),
    ("fleet status --to {}/web", 0),
    ("fleet history --to {}/web", 0),
    ("fleet diff {}/rules.toml --to {}/web", 0),
    ("fleet diff {}/rules --to {}/web", 2),
    ("fleet abort --to {}/web --key {}/fleet.key --reason x", 2),
    (
        "fleet publish {}/rules.toml --to {}/web --key {}/limits.toml",
        2,
    ),
    (
        "fleet publish {}/limits.toml --to {}/web --key {}/fleet.key",
        2,
    ),
    // No host has reported.
    (
        "fleet publish {}/rules.toml --to {}/web --key {}/fleet.key",
        1,
    ),
    ("status --log-level loud", 2),
    ("help", 0),
    ("help status", 0),
];

/// Command lines that report an agent that is not there, and are not wrong themselves.
const WITHOUT_AGENT: &[&str] = &[
    "status",
    "limits",
    "top --once",
    "events",
    "events --follow",
    "show 192.0.2.1",
    "trace 192.0.2.1",
    "record",
    "record --stop",
    "record --status",
    "record --capture {}/new.pcapng",
    "groups",
    "groups freeze web",
    "usage",
    "reset 192.0.2.1",
    "reset --limit a",
    "reset 192.0.2.0/24",
    "reset 192.0.2.1 --limit a",
    "reset --key user=x",
    "reset --key user=x --limit a",
    "notify test",
    "notify test chat",
    "usage --last 7d",
    "decide --limit a --key user=x",
    "ban 192.0.2.1",
    "unban 192.0.2.1",
    "unban --all",
    "unban --all 192.0.2.1",
    "unban --owner sshd 192.0.2.1",
    "bans",
    "allow 192.0.2.1 --for 1h",
    "allow 192.0.2.1 --for 1h --times 5",
    "allow 192.0.2.1 --for 1h --exempt",
    "allow --list",
    "disallow 192.0.2.1",
    "reload",
    "reload --diff",
    "try {}/limits.toml",
    "confirm",
    "revert",
];

/// Command lines for an agent that runs with `{}/limits.toml`, in this order.
const WITH_AGENT: &[Row] = &[
    ("status", 0),
    ("status extra", 2),
    ("limits --json", 0),
    ("top", 2),
    ("top --json", 2),
    ("top --once", 0),
    ("events", 0),
    ("events --last x", 2),
    ("events --limit a", 0),
    ("events --limit nosuch", 2),
    ("events --limit nosuch --follow", 2),
    ("usage --group nosuch", 2),
    ("show 192.0.2", 2),
    ("trace 192.0.2", 2),
    ("record --stop --for 1h", 2),
    ("record --for soon", 2),
    ("suggest --from {}/missing.pcap {}/missing.pcap", 2),
    ("record --sample 1/100", 2),
    ("record --capture {}/new.pcapng --sample 1/0", 2),
    ("record --capture {}/new.pcapng --of some", 2),
    ("record --capture {}/new.pcapng --max-size 9", 2),
    ("record --capture {}/new.pcapng --for 25h", 2),
    ("record --capture {}/limits.toml", 2),
    ("record --capture - --json", 2),
    // Nothing is captured, either.
    ("record --capture {}/new.pcapng", 1),
    // Nothing is recorded without a limit on packets.
    ("record --for 1h", 1),
    ("record --stop", 1),
    // No packets to trace.
    ("trace 192.0.2.1", 1),
    ("groups", 0),
    ("usage", 0),
    ("usage --from soon", 2),
    ("groups freeze", 2),
    // The config has no groups.
    ("groups freeze web", 1),
    ("groups thaw web", 1),
    ("groups kill web", 1),
    ("decide --limit a --key user=x", 0),
    ("decide --limit a --key user=x --exit-status", 1),
    ("decide --limit none --key user=x", 2),
    ("decide --limit a --key nobody=x", 2),
    ("decide --limit a --key user", 2),
    ("decide --limit a --key user=r --cost -1", 0),
    ("decide --limit a --key user=r --reserve 1s", 0),
    ("decide --limit a --key user=r --reserve 2d", 2),
    ("decide --limit a --key user=r --cost 9 --force", 0),
    ("decide --release 00000000000000000000000000000000", 2),
    ("decide --commit x --limit a", 2),
    ("reset", 2),
    ("reset 192.0.2", 2),
    ("reset --limit a", 0),
    ("reset --limit none", 2),
    ("reset 192.0.2.1 --limit none", 2),
    ("reset 192.0.2.1 --limit a", 1),
    ("reset --key user=x", 0),
    ("reset --key user=x --limit a", 0),
    ("reset --key user=x --limit none", 2),
    ("reset --key user", 2),
    ("reset --key user=x 192.0.2.1", 2),
    // No limit has such keys.
    ("reset --key nobody=x", 1),
    ("reset --key nobody=x --limit a", 1),
    ("reset 192.0.2.0/24", 0),
    ("reset 192.0.2.0/24 --limit a", 1),
    ("reset 192.0.2.0/33", 2),
    ("notify test", 2),
    ("notify test chat", 2),
    ("notify", 2),
    ("usage --last 7d", 0),
    ("usage --last 36h", 2),
    ("usage --last 7d --from 2026-03-31", 2),
    ("decide --limit a --key user=x --exit-status", 0),
    ("ban", 2),
    ("ban 300.0.0.1", 2),
    ("ban 192.0.2.1 --for 0s", 2),
    ("ban 192.0.2.1 --for soon", 2),
    ("ban 192.0.2.1 --until 2020-01-01T00:00:00Z", 2),
    ("ban 192.0.2.1 --until tomorrow", 2),
    ("ban 192.0.2.1 --until 2126-01-01T00:00:00Z --for 1h", 2),
    ("ban 0.0.0.0/0", 2),
    ("ban --file {}/missing", 2),
    ("ban --file {}/invalid.toml", 2),
    // No limit on packets is in effect, so no ban can be.
    ("ban 192.0.2.1", 1),
    ("unban", 2),
    ("unban nobody", 2),
    ("unban --file {}/missing", 2),
    ("unban --all --owner sshd 192.0.2.1", 2),
    ("unban --owner sshd", 2),
    ("bans", 0),
    ("allow --list", 0),
    ("allow 192.0.2.1", 2),
    ("allow --for 1h", 2),
    ("allow nobody --for 1h", 2),
    ("allow 192.0.2.1 --for 1h --times 1", 2),
    ("allow 192.0.2.1 --for 1h --times many", 2),
    ("allow 192.0.2.1 --for 1h --times 5 --exempt", 2),
    ("allow --list --times 5", 2),
    ("allow 0.0.0.0/0 --for 1h", 2),
    ("allow 192.0.2.1 --for 0s", 2),
    ("allow 192.0.2.1 --for 200years", 2),
    ("allow --list --owner me", 2),
    ("allow 192.0.2.1 192.0.2.0/24 --for 1h", 0),
    ("allow 192.0.2.1 --for 1h --times 5", 0),
    ("disallow 192.0.2.1", 0),
    ("disallow 192.0.2.1", 1),
    ("disallow nobody", 2),
    ("reload", 0),
    ("reload --diff", 0),
    ("reload --config {}/limits.toml", 0),
    ("reload {}/limits.toml", 0),
    // Another file than the agent's is compared, and not put in effect by a reload.
    ("reload --config {}/faster.toml", 2),
    ("reload {}/faster.toml", 2),
    ("reload --config {}/missing.toml", 2),
    ("reload --diff {}/faster.toml", 0),
    ("reload --diff --config {}/faster.toml --json", 0),
    ("reload --diff --config {}/invalid.toml", 2),
    ("reload --diff --config {}/missing.toml", 2),
    ("reload --diff {}/other-pins.toml", 2),
    ("top --once --share 2%", 2),
    ("confirm", 1),
    ("revert", 1),
    ("try", 2),
    ("try {}/missing.toml", 2),
    ("try {}/invalid.toml", 2),
    ("try {}/limits.toml --for 0s", 2),
    ("try {}/limits.toml --for 25h", 2),
    ("try {}/other-pins.toml", 2),
    ("try {}/limits.toml --for 10m", 0),
    ("try {}/limits.toml --for 10m", 1),
    ("reload", 1),
    ("revert", 0),
    ("try {}/limits.toml --for 10m", 0),
    ("confirm", 0),
    // A running agent is not taken apart, and a second one does not start.
    ("detach {}/limits.toml", 1),
    ("--config {}/limits.toml", 1),
];

/// The result of `reload` with another file in the place of the agent's.
const RELOADS: &[Row] = &[
    ("invalid.toml", 2),
    ("other-pins.toml", 2),
    ("other-metrics.toml", 2),
    ("missing.toml", 2),
    ("limits.toml.kept", 0),
];

fn command(folder: &Path, line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_agent"));
    let line = line.replace("{}", folder.to_str().unwrap());
    command
        .args(line.split_whitespace())
        .stdin(Stdio::null())
        .env_remove("WEIR_CONFIG")
        .env_remove("SSH_CONNECTION");
    command.env("WEIR_CONTROL", folder.join("control.sock"));
    command
}

fn files(folder: &Path) {
    let limits = |agent: &str, rest: &str| {
        let (control, state) = (folder.join("control.sock"), folder.join("state"));
        let pins = folder.join("pins");
        let pins = if agent.contains("pins") {
            String::new()
        } else {
            format!("pins = {pins:?}\n")
        };
        format!(
            "[agent]\ncontrol = {control:?}\nstate_dir = {state:?}\n{pins}{agent}\n[decide]\nhttp = \"unix:{}/decide.sock\"\n\
             [[limit]]\nname = \"a\"\nscope = \"request\"\nkey = [\"user\"]\nunit = \"requests\"\nrate = \"1/h\"\n{rest}",
            folder.display()
        )
    };
    let on_packets = "[[limit]]\nname = \"p\"\nrate = \"1/s\"\n";
    for (name, text) in [
        ("limits.toml", limits("", "")),
        ("limits.toml.kept", limits("", "")),
        ("invalid.toml", limits("contorl = \"x\"", "")),
        ("faster.toml", limits("", "").replace("\"1/h\"", "\"2/h\"")),
        (
            "other-pins.toml",
            limits("pins = \"/sys/fs/bpf/weir-other\"", ""),
        ),
        (
            "other-metrics.toml",
            limits("metrics = \"127.0.0.1:1\"", ""),
        ),
        ("rules.toml", on_packets.to_owned()),
        ("packets.toml", limits("interfaces = [\"lo\"]", on_packets)),
        (
            "rules",
            "*filter\n-A INPUT -s 192.0.2.1 -j DROP\n".to_owned(),
        ),
        (
            "forward",
            "*filter\n-A FORWARD -s 192.0.2.1 -j DROP\n".to_owned(),
        ),
        (
            "no-interface.toml",
            limits("interfaces = [\"weir-none0\"]", on_packets),
        ),
        (
            "no-pattern.toml",
            limits("interfaces = [\"lo\", \"weir-none*\"]", on_packets),
        ),
    ] {
        std::fs::write(folder.join(name), text).unwrap();
    }
}

#[track_caller]
fn ends_with(folder: &Path, line: &str, status: i32) {
    let output = command(folder, line).output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(
        output.status.code(),
        Some(status),
        "agent {line}: {said}{}",
        String::from_utf8_lossy(&output.stdout)
    );
    // Whoever reads the status finds the reason beside it; `--exit-status` is the answer itself.
    let is_answered = status == 0
        || line.contains("--exit-status")
        || line.contains("--json")
        || line.starts_with("doctor");
    assert!(
        is_answered || !said.trim().is_empty(),
        "agent {line} ends with {status} and no reason"
    );
    assert!(!said.contains("panicked"), "agent {line}: {said}");
}

/// An agent that is killed when dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(folder: &Path) -> Running {
    let child = command(folder, "--config {}/limits.toml")
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut agent = Running(child);
    let deadline = Instant::now() + Duration::from_secs(300);
    while !command(folder, "status").output().unwrap().status.success() {
        assert!(agent.0.try_wait().unwrap().is_none(), "the agent ended");
        assert!(
            Instant::now() < deadline,
            "the agent did not answer in time"
        );
        thread::sleep(Duration::from_millis(20));
    }
    agent
}

#[test]
fn every_verb_is_in_the_table() {
    let rows = ALONE
        .iter()
        .chain(WITH_AGENT)
        .map(|(line, _)| *line)
        .chain(WITHOUT_AGENT.iter().copied());
    let tried: BTreeSet<&str> = rows
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    let command = weir::cli::arguments::Cli::command();
    let missing: Vec<&str> = command
        .get_subcommands()
        .map(clap::Command::get_name)
        .filter(|verb| !tried.contains(verb))
        .collect();
    assert!(
        missing.is_empty(),
        "verbs without a row of exit statuses in this file: {missing:?}"
    );
}

#[test]
fn without_an_agent() {
    let folder = tempfile::tempdir().unwrap();
    files(folder.path());
    for (line, status) in ALONE {
        ends_with(folder.path(), line, *status);
    }
    for line in WITHOUT_AGENT {
        ends_with(folder.path(), line, 1);
    }
}

#[test]
fn options_stand_on_either_side_of_every_verb() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    files(folder);
    let socket = folder.join("nobody.sock").to_str().unwrap().to_owned();
    for line in WITHOUT_AGENT {
        for line in [
            format!("--control {socket} {line}"),
            format!("{line} --control {socket}"),
        ] {
            let output = command(folder, &line)
                .env_remove("WEIR_CONTROL")
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(1), "agent {line}: {said}");
            assert!(said.contains(&socket), "agent {line}: {said}");
        }
    }
}

/// Command lines of verbs that query no agent.
const WITHOUT_SOCKET: &[&str] = &[
    "check {}/limits.toml",
    "doctor {}/limits.toml",
    "detach {}/limits.toml",
    "replay --config {}/packets.toml {}/missing.pcap",
    "suggest {}/missing.pcap",
    "import {}/rules",
    "completions bash",
    "man",
    "schema",
];

#[test]
fn an_option_that_a_verb_does_not_use_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    files(folder);
    let refuses = |line: &str, option: &str| {
        for line in [format!("{option} {line}"), format!("{line} {option}")] {
            let output = command(folder, &line).output().unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert_eq!(output.status.code(), Some(2), "agent {line}: {said}");
            let name = option.split(' ').next().unwrap();
            assert!(
                said.contains(&format!("{name} conflicts with")),
                "agent {line}: {said}"
            );
        }
    };
    for line in WITHOUT_SOCKET.iter().chain(WITHOUT_AGENT) {
        refuses(line, "--log-level debug");
        refuses(line, "--log-format text");
    }
    for line in WITHOUT_SOCKET.iter().chain(&["run {}/limits.toml"]) {
        refuses(line, "--control {}/none.sock");
    }
    for line in [
        "run {}/limits.toml",
        "detach {}/limits.toml",
        "usage --csv",
        "completions bash",
        "man",
    ] {
        refuses(line, "--json");
    }
    for line in [
        "suggest {}/missing.pcap",
        "import {}/rules",
        "completions bash",
        "man",
        "schema",
    ] {
        refuses(line, "--config {}/limits.toml");
    }
    // A verb that takes the socket from a config requires that it can be read.
    for line in WITHOUT_AGENT.iter().filter(|line| !line.starts_with("try")) {
        let line = format!("{line} --config {{}}/nowhere.toml");
        let output = command(folder, &line).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(2), "agent {line}: {said}");
        assert!(said.contains("nowhere.toml"), "agent {line}: {said}");
    }
}

#[test]
fn with_an_agent() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    files(folder);
    let _agent = start(folder);
    for (line, status) in WITH_AGENT {
        ends_with(folder, line, *status);
    }
    let printed =
        |line: &str| String::from_utf8(command(folder, line).output().unwrap().stdout).unwrap();
    let compared = printed("reload --diff {}/faster.toml");
    assert!(
        compared.contains("1 requests/h") && compared.contains("2 requests/h"),
        "{compared}"
    );
    assert_eq!(printed("reload --diff").trim(), "no differences");
    let config = folder.join("limits.toml");
    for (file, status) in RELOADS {
        let _ = std::fs::remove_file(&config);
        let _ = std::fs::copy(folder.join(file), &config);
        ends_with(folder, "reload", *status);
        ends_with(folder, "reload --diff", *status);
        ends_with(folder, "reload --json", *status);
    }
    // Nothing was touched by what ended with 2.
    ends_with(folder, "decide --limit a --key user=y --exit-status", 0);
    // A socket that does not listen is a failure while running.
    ends_with(folder, "status --control {}/limits.toml", 1);
}
