//! The command line as a new user meets it: what is wrong is told once, with what to do. Needs no root.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read as _;
use std::os::fd::OwnedFd;
use std::process::{Command, Output, Stdio};

use common::limiter::Algorithm;
use nix::pty::openpty;

fn agent(arguments: &[&str]) -> Output {
    command(arguments).output().unwrap()
}

/// The agent, whatever the environment of the tests names.
fn command(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_agent"));
    command
        .args(arguments)
        .env_remove("WEIR_CONFIG")
        .env_remove("WEIR_CONTROL");
    command
}

/// Limits on requests alone: an agent that needs no privileges.
const REQUESTS: &str = "[decide]\nhttp = \"127.0.0.1:0\"\n[[limit]]\nname = \"a\"\nscope = \"request\"\n\
                        key = [\"user\"]\nunit = \"requests\"\nrate = \"1/s\"\n";

/// Ends with this status, and says all of this, each once, without a panic.
#[track_caller]
fn tells(arguments: &[&str], status: i32, words: &[&str]) {
    let output = agent(arguments);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(status), "{arguments:?}: {said}");
    for word in words {
        assert_eq!(
            said.matches(word).count(),
            1,
            "{arguments:?} does not say {word:?} once: {said}"
        );
    }
    assert!(!said.contains("panicked"), "{said}");
}

#[test]
fn wrong_usage_ends_with_2_and_the_right_one() {
    tells(&["statsu"], 2, &["'status'"]);
    tells(&["show", "1.2.3"], 2, &["neither an address nor a prefix"]);
    tells(&["show", "192.0.2.0/24"], 2, &["a prefix of many sources"]);
    tells(
        &["ban", "192.0.2.1", "--for", "10x"],
        2,
        &["write seconds, or a time such as 10m"],
    );
    tells(
        &["ban", "300.0.0.1"],
        2,
        &["neither an address nor a prefix", "nothing was banned"],
    );
    tells(&["completions", "tcsh"], 2, &["bash"]);
    tells(
        &["import", "--from", "pf"],
        2,
        &["possible values", "hashlimit"],
    );
    tells(&["import", "/nowhere"], 2, &["reading /nowhere failed"]);
}

#[test]
fn the_agent_alone_prints_its_help_and_starts_nothing() {
    tells(&[], 2, &["Usage: agent", "Exit status:"]);
    tells(&["--json"], 2, &["missing command", "agent --help"]);
}

#[test]
fn options_stand_on_either_side_of_the_verb() {
    let folder = tempfile::tempdir().unwrap();
    let socket = folder
        .path()
        .join("nobody.sock")
        .to_str()
        .unwrap()
        .to_owned();
    for arguments in [
        ["--control", &socket, "status"],
        ["status", "--control", &socket],
    ] {
        tells(&arguments, 1, &[&socket]);
    }
    let config = folder
        .path()
        .join("limits.toml")
        .to_str()
        .unwrap()
        .to_owned();
    std::fs::write(
        &config,
        format!("[agent]\ncontrol = {socket:?}\n{REQUESTS}"),
    )
    .unwrap();
    for arguments in [
        &["check", &config][..],
        &["check", "--config", &config],
        &["--config", &config, "check"],
        &["--json", "--config", &config, "check"],
    ] {
        let output = agent(arguments);
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    tells(
        &["check", &config, "--config", &socket],
        2,
        &["both name a config"],
    );
    // The socket that the config names.
    tells(&["status", "--config", &config], 1, &[&socket]);
    for (variable, value) in [("WEIR_CONTROL", &socket), ("WEIR_CONFIG", &config)] {
        let output = command(&["limits"]).env(variable, value).output().unwrap();
        assert!(
            String::from_utf8_lossy(&output.stderr).contains(&socket),
            "{variable}"
        );
    }
    assert!(
        command(&["check"])
            .env("WEIR_CONFIG", &config)
            .status()
            .unwrap()
            .success()
    );
}

#[test]
fn a_wrong_path_is_an_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    for verb in [
        &["check"][..],
        &["--config"],
        &["doctor", "--config"],
        &["detach", "--config"],
    ] {
        let missing = path("missing.toml");
        tells(
            &[verb, &[missing.as_str()]].concat(),
            2,
            &[&missing, "No such file"],
        );
        let directory = folder.path().to_str().unwrap();
        tells(&[verb, &[directory]].concat(), 2, &["it is a directory"]);
    }
    let socket = path("nobody.sock");
    for verb in [
        &["status"][..],
        &["limits"],
        &["bans"],
        &["groups"],
        &["show", "192.0.2.1"],
        &["top", "--once"],
    ] {
        tells(
            &[verb, &["--control", &socket]].concat(),
            1,
            &["no agent replies", &socket, "--config FILE"],
        );
    }
    let file = path("file");
    std::fs::write(&file, "text").unwrap();
    tells(&["status", "--control", &file], 1, &["is not a socket"]);
}

#[test]
fn the_default_number_of_sources_works_with_every_algorithm() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.toml");
    let file = file.to_str().unwrap();
    let check = |agent: &str, algorithm: &str| {
        let text = format!(
            "[agent]\ninterfaces = [\"lo\"]\ncontrol = \"{}/none.sock\"\n{agent}\n[[limit]]\nname = \"l\"\nrate = \"1024/min\"\nalgorithm = {algorithm:?}\n",
            folder.path().display()
        );
        std::fs::write(file, text).unwrap();
        agent_json(&["check", file, "--json"])
    };
    for algorithm in Algorithm::ALL
        .iter()
        .filter(|algorithm| !algorithm.has_ring())
    {
        let checked = check("", algorithm.name());
        assert_eq!(
            (
                &checked["packet_memory"]["max_sources"],
                &checked["notes"][0]
            ),
            (&1_000_000.into(), &().into())
        );
    }
    let checked = check("", "sliding-log");
    let sources = checked["packet_memory"]["max_sources"].as_u64().unwrap();
    assert!(sources.is_power_of_two() && sources >= 16_384, "{checked}");
    assert!(
        checked["packet_memory"]["kernel_bytes"].as_u64().unwrap() < 600 << 20,
        "{checked}"
    );
    assert!(
        checked["notes"][0]
            .as_str()
            .unwrap()
            .contains(&sources.to_string()),
        "{checked}"
    );
    // One that is written is an error that names the most.
    std::fs::write(
        file,
        std::fs::read_to_string(file)
            .unwrap()
            .replace("[[limit]]", "max_sources = 1000000\n[[limit]]"),
    )
    .unwrap();
    let said = String::from_utf8(agent(&["check", file]).stderr).unwrap();
    let document: serde_json::Value =
        serde_json::from_slice(&agent(&["check", file, "--json"]).stdout).unwrap();
    assert_eq!(document["valid"], false);
    assert!(
        said.contains(document["errors"][0]["message"].as_str().unwrap()),
        "{document}"
    );
    let fits: u32 = said
        .split("max_sources = ")
        .nth(1)
        .unwrap()
        .split(',')
        .next()
        .unwrap()
        .parse()
        .unwrap();
    assert_eq!(
        check(&format!("max_sources = {fits}"), "sliding-log")["packet_memory"]["max_sources"],
        fits
    );
}

fn agent_json(arguments: &[&str]) -> serde_json::Value {
    let output = agent(arguments);
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).unwrap()
}

#[test]
fn a_wrong_key_is_an_error_with_its_position_and_the_right_one() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.toml");
    let file = file.to_str().unwrap();
    std::fs::write(file, "[agent]\nmetrics = \"9464\"\ncontorl = \"/run/x\"\n").unwrap();
    for verb in ["check", "--config"] {
        tells(
            &[verb, file],
            2,
            &[
                "limits.toml:2:11",
                "127.0.0.1:9464",
                "limits.toml:3:1",
                "did you mean \"control\"?",
            ],
        );
    }
}

#[test]
fn a_socket_that_cannot_be_made_is_one_error() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("limits.toml");
    // Limits on requests alone: no privileges are needed, and nothing of the kernel is touched.
    let run = |control: &str, words: &[&str]| {
        std::fs::write(&file, format!("[agent]\ncontrol = {control:?}\n{REQUESTS}")).unwrap();
        tells(&["--config", file.to_str().unwrap()], 1, words);
    };
    let long = format!("{}/{}.sock", folder.path().display(), "x".repeat(120));
    run(
        &long,
        &["listening on the control socket", "107 bytes at most"],
    );
    run(
        "/proc/weir/control.sock",
        &[
            "listening on the control socket",
            "under [agent] control",
            "(os error",
        ],
    );
}

#[test]
fn a_command_whose_output_is_closed_ends_quietly() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_agent"))
        .arg("man")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let mut said = String::new();
    child
        .stderr
        .take()
        .unwrap()
        .read_to_string(&mut said)
        .unwrap();
    child.wait().unwrap();
    assert_eq!(said, "");
}

#[test]
fn a_full_disk_is_an_error() {
    for arguments in [
        &["man"][..],
        &[
            "check",
            concat!(env!("CARGO_MANIFEST_DIR"), "/../config/limits.demo.toml"),
        ],
    ] {
        let full = std::fs::File::options()
            .write(true)
            .open("/dev/full")
            .unwrap();
        let output = Command::new(env!("CARGO_BIN_EXE_agent"))
            .args(arguments)
            .stdout(full)
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(1), "{arguments:?}: {said}");
        assert_eq!(
            said.matches("No space left on device").count(),
            1,
            "{arguments:?}: {said}"
        );
        assert!(!said.contains("panicked"), "{said}");
    }
}

/// A new terminal has no size until somebody sets it.
#[test]
fn a_terminal_of_0_columns_has_lines_of_usual_width() {
    let file = tempfile::NamedTempFile::with_suffix(".toml").unwrap();
    std::fs::write(&file, REQUESTS).unwrap();
    let terminal = openpty(None, None).unwrap();
    let shown: OwnedFd = terminal.slave;
    let status = command(&["check", file.path().to_str().unwrap()])
        .env_remove("COLUMNS")
        .stdout(shown.try_clone().unwrap())
        .status()
        .unwrap();
    assert!(status.success());
    drop(shown);
    // Reading ends with an error once nobody has the terminal open.
    let mut text = Vec::new();
    let _ = File::from(terminal.master).read_to_end(&mut text);
    let text = String::from_utf8(text).unwrap();
    assert!(
        text.contains("a  requests  1 requests/s per user, burst 1, refuse"),
        "{text}"
    );
}

#[test]
fn help_messages_and_completions_have_the_name_that_was_typed() {
    let directory = tempfile::tempdir().unwrap();
    let link = directory.path().join("weir");
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_agent"), &link).unwrap();
    let printed = |program: &OsStr, arguments: &[&str]| {
        let output = Command::new(program)
            .args(arguments)
            .env_remove("WEIR_CONFIG")
            .env_remove("WEIR_CONTROL")
            .output()
            .unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    for (arguments, named) in [
        (&["--version"][..], "PROGRAM 0."),
        (&["ban", "--help"], "Usage: PROGRAM ban"),
        (&["ban", "--help"], "Example: PROGRAM ban"),
        (&["disallow", "--help"], "by PROGRAM allow"),
        (&["statsu"], "Usage: PROGRAM [OPTIONS]"),
        (&["--json"], "missing command: PROGRAM --help lists them"),
        (
            &["status", "--control", "/nonexistent"],
            "start one (PROGRAM --config FILE)",
        ),
        (&["man"], ".TH PROGRAM_UPPER 1"),
        (&["man"], "\\fBPROGRAM reload\\fR"),
        (&["man", "limits.toml"], "\\fBPROGRAM check\\fR"),
        (&["man", "limits.toml"], "note in \\fBPROGRAM status\\fR"),
        (&["schema"], "note in `PROGRAM status`"),
        (
            &["completions", "bash"],
            "complete -o nosort -F _weir_PROGRAM PROGRAM",
        ),
        (&["completions", "fish"], "PROGRAM"),
    ] {
        for (program, name) in [
            (link.as_os_str(), "weir"),
            (OsStr::new(env!("CARGO_BIN_EXE_agent")), "agent"),
        ] {
            let printed = printed(program, arguments);
            let named = named
                .replace("PROGRAM_UPPER", &name.to_uppercase())
                .replace("PROGRAM", name);
            assert!(
                printed.contains(&named),
                "{arguments:?}: {named}\n{printed}"
            );
        }
    }
    let version = printed(link.as_os_str(), &["--version"]);
    for part in ["\ncommit: ", "\ntarget: ", "\nkernel programs: sha256:"] {
        assert!(version.contains(part), "{version}");
    }
}
