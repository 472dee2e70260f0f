//! Completions by shells: names that the running agent has, and silence where it does not reply. Needs no root.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread;
use std::time::{Duration, Instant};

use api::allowance::Allowance;
use api::limit::LimitDefinition;
use api::request::Request;
use api::source::{BanHolder, BanStatus, BansRow};
use api::status::Status;
use serde_json::{Value, json};
use testbed::wait::until;

/// How long a client of the control socket waits for a reply otherwise.
const PATIENCE: Duration = Duration::from_secs(10);

/// The reply of an agent with two limits, two groups, three bans and an exemption.
fn reply(request: &Request) -> Value {
    let limit = |name: &str| LimitDefinition {
        name: name.to_owned(),
        ..LimitDefinition::default()
    };
    let ban = |cidr: &str, owner: &str, address: Option<&str>| BansRow {
        ban: BanStatus {
            cidr: cidr.to_owned(),
            holder: BanHolder {
                owner: owner.to_owned(),
                origin: "operator".to_owned(),
                address: address.map(|address| address.parse().unwrap()),
                ..BanHolder::default()
            },
            also: Vec::new(),
        },
        throttled_packets: 0,
    };
    let document = match request {
        Request::Status => serde_json::to_value(Status {
            limits: vec![limit("web"), limit("web pages"), limit("dns")],
            groups: vec!["builds".to_owned(), "backups".to_owned()],
            ..Status::default()
        }),
        Request::Bans => serde_json::to_value([
            ban("203.0.113.7", "root", None),
            ban("203.0.113.0/24", "desk", None),
            ban("2001:db8::/64", "sshd", Some("2001:db8::7")),
        ]),
        Request::Allowances => serde_json::to_value([Allowance {
            times: None,
            cidr: "198.51.100.1".to_owned(),
            owner: "root".to_owned(),
            reason: None,
            since: 0,
            until: u64::MAX,
        }]),
        other => panic!("a completion sends {other:?}"),
    };
    json!({ "ok": document.unwrap() })
}

/// The socket of an agent that replies to each request, or of one that never does.
fn socket(folder: &Path, replies: bool) -> PathBuf {
    let path = folder.join(if replies { "agent.sock" } else { "silent.sock" });
    let listener = UnixListener::bind(&path).unwrap();
    thread::spawn(move || {
        let mut silent = Vec::new();
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            if !replies {
                silent.push(stream);
                continue;
            }
            let mut line = String::new();
            // A client that waits no longer may have sent nothing.
            let Some(request) = BufReader::new(&stream)
                .read_line(&mut line)
                .ok()
                .and_then(|_| serde_json::from_str(&line).ok())
            else {
                continue;
            };
            let reply = reply(&request);
            // A client that has its names no longer reads.
            let _ = writeln!(stream, "{reply}");
        }
    });
    path
}

fn agent() -> &'static Path {
    Path::new(env!("CARGO_BIN_EXE_agent"))
}

fn script(shell: &str) -> String {
    let output = Command::new(agent())
        .args(["completions", shell])
        .output()
        .unwrap();
    assert!(output.status.success(), "{shell}");
    String::from_utf8(output.stdout).unwrap()
}

/// What bash offers for a line, with the agent at `control`; it has printed nothing.
fn offered(line: &str, control: &Path) -> Vec<String> {
    let program = format!(
        "{}\nCOMP_LINE=$1 COMP_POINT=${{#1}}\n_weir_agent\nprintf '%s\\n' \"${{COMPREPLY[@]}}\"",
        script("bash")
    );
    let path = format!(
        "{}:{}",
        agent().parent().unwrap().display(),
        std::env::var("PATH").unwrap()
    );
    let output = Command::new("bash")
        .args(["-c", &program, "bash", line])
        .env("PATH", path)
        .env("WEIR_CONTROL", control)
        .env_remove("WEIR_CONFIG")
        .output()
        .unwrap();
    assert_eq!(String::from_utf8_lossy(&output.stderr), "", "{line}");
    assert!(output.status.success(), "{line}");
    let mut offered: Vec<String> = String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .filter(|line| !line.is_empty())
        .map(str::to_owned)
        .collect();
    offered.sort();
    offered
}

/// What bash offers once the agent replies within the time that a completion waits: later, there are no names.
fn offered_in_time(line: &str, control: &Path) -> Vec<String> {
    until(line, || {
        let offered = offered(line, control);
        let has_names = offered.iter().any(|found| !found.starts_with('-'));
        has_names.then_some(offered)
    })
}

/// The reply to a shell's script of a line whose last word is completed.
fn queried(shell: &str, words: &[&str], control: &Path) -> Output {
    Command::new(agent())
        .arg("--")
        .args(words)
        .env("WEIR_COMPLETE", shell)
        .env("_CLAP_IFS", "\n")
        .env("_CLAP_COMPLETE_INDEX", (words.len() - 1).to_string())
        .env("WEIR_CONTROL", control)
        .env_remove("WEIR_CONFIG")
        .output()
        .unwrap()
}

#[test]
fn bash_offers_what_the_running_agent_has() {
    let folder = tempfile::tempdir().unwrap();
    let control = socket(folder.path(), true);
    for (line, names) in [
        ("agent events --limit ", &["dns", "web", "web\\ pages"][..]),
        ("agent events --limit=d", &["dns"]),
        ("agent reset --limit we", &["web", "web\\ pages"]),
        ("agent decide --limit dn", &["dns"]),
        ("agent groups freeze b", &["backups", "builds"]),
        ("agent usage --group bu", &["builds"]),
        ("agent unban 203.0.113.0", &["203.0.113.0/24"]),
        // Bash replaces what follows the last colon.
        ("agent unban 2001:db8:", &[":7"]),
        (
            "agent unban 203.0.113.7 --owner ",
            &["desk", "root", "sshd"],
        ),
        ("agent ban 192.0.2.1 --owner s", &["sshd"]),
        ("agent disallow ", &["198.51.100.1"]),
        ("agent stat", &["status"]),
        ("agent top --by p", &["prefix"]),
        ("agent events --limit nosuch", &[]),
    ] {
        let offered = if names.is_empty() {
            offered(line, &control)
        } else {
            offered_in_time(line, &control)
        };
        let are_there = names
            .iter()
            .all(|name| offered.iter().any(|found| found == name));
        assert!(
            are_there && (names.is_empty() == offered.is_empty()),
            "{line}: {offered:?}"
        );
        // Besides names, only options, where no value is begun.
        let others = offered
            .iter()
            .filter(|found| !names.contains(&found.as_str()));
        for other in others {
            assert!(
                other.starts_with('-') && line.ends_with(' '),
                "{line}: {offered:?}"
            );
        }
    }
    // The agent that the line names.
    let other = folder.path().join("nobody.sock");
    let line = format!("agent --control {} events --limit d", control.display());
    assert_eq!(offered_in_time(&line, &other), ["dns"]);
}

#[test]
fn without_a_reply_completions_are_silent_and_soon_over() {
    let folder = tempfile::tempdir().unwrap();
    let silent = socket(folder.path(), false);
    let missing = folder.path().join("nobody.sock");
    // A config that can be opened and never read.
    let pipe = folder.path().join("pipe.toml");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for shell in ["bash", "zsh", "fish"] {
        let words: [&[&str]; 2] = [
            &["agent", "events", "--limit", "w"],
            &["agent", "groups", "freeze", "b"],
        ];
        for (words, control) in words
            .iter()
            .flat_map(|words| [(words, &silent), (words, &missing)])
        {
            // One that waited as other clients do would never take less.
            until("a query that is soon over", || {
                let begun = Instant::now();
                let output = queried(shell, words, control);
                let took = begun.elapsed();
                let said = String::from_utf8_lossy(&output.stderr).into_owned();
                assert_eq!(
                    (output.stdout.as_slice(), said.as_str()),
                    (&b""[..], ""),
                    "{shell}"
                );
                assert!(output.status.success(), "{shell} {words:?}");
                (took < PATIENCE).then_some(())
            });
        }
    }
    let pipe = pipe.to_str().unwrap();
    let words = ["agent", "--config", pipe, "events", "--limit", "w"];
    let output = Command::new(agent())
        .arg("--")
        .args(words)
        .env("WEIR_COMPLETE", "fish")
        .env_remove("WEIR_CONTROL")
        .output()
        .unwrap();
    assert!(output.status.success() && output.stderr.is_empty());
    // A shell that no script is for, and a line without words.
    let output = queried("tcsh", &["agent", "st"], &missing);
    assert!(!output.status.success() && output.stderr.is_empty());
}

#[test]
fn each_shells_protocol_has_the_names() {
    let folder = tempfile::tempdir().unwrap();
    let control = socket(folder.path(), true);
    let printed_in_time = |shell: &str, words: &[&str]| {
        until("names in time", || {
            let output = queried(shell, words, &control);
            let printed = String::from_utf8(output.stdout).unwrap();
            (!printed.is_empty()).then_some(printed)
        })
    };
    for shell in ["bash", "zsh", "fish", "elvish"] {
        let printed = printed_in_time(shell, &["agent", "unban", "2001"]);
        let expected = if shell == "zsh" {
            "2001\\:db8\\:\\:7"
        } else {
            "2001:db8::7"
        };
        assert_eq!(printed.trim_end(), expected, "{shell}");
        let printed = printed_in_time(shell, &["agent", "reset", "--limit", "web"]);
        assert_eq!(printed.trim_end(), "web\nweb pages", "{shell}");
    }
}

#[test]
fn each_script_is_one_of_its_shell() {
    for (shell, words) in [
        ("bash", "complete -o nosort -F _weir_agent agent"),
        ("zsh", "#compdef agent"),
        ("fish", "--command agent"),
        ("elvish", "edit:completion:arg-completer[agent]"),
        ("powershell", "Register-ArgumentCompleter"),
    ] {
        let script = script(shell);
        assert!(
            script.contains(words) && script.contains("WEIR_COMPLETE"),
            "{shell}: {script}"
        );
        let is_installed = |shell: &str| Command::new(shell).arg("--version").output().is_ok();
        if matches!(shell, "bash" | "zsh" | "fish") && is_installed(shell) {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(file.path(), script).unwrap();
            let check = Command::new(shell).arg("-n").arg(file.path()).output();
            let check = check.unwrap();
            assert!(
                check.status.success(),
                "{}",
                String::from_utf8_lossy(&check.stderr)
            );
        }
    }
}
