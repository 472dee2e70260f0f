//! The verb itself: files, standard input, lists, statuses.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use testbed::tests;
use testbed::trials::Test;

use super::{IPSET, IPTABLES, parsed};

pub const TESTS: &[Test] = tests![
    the_verb_reads_files_and_standard_input_and_writes_lists,
    json_has_the_config_and_the_reasons,
    statuses_are_those_of_the_reference,
    no_more_than_128_mib_are_read,
];

/// Runs `weir import` with this standard input.
fn run(arguments: &[&str], input: &[u8]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_agent"));
    command
        .arg("import")
        .args(arguments)
        .env_remove("WEIR_CONFIG")
        .env_remove("WEIR_CONTROL");
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    // It may end before it has read everything.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap();
    output
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn the_verb_reads_files_and_standard_input_and_writes_lists() {
    let folder = tempfile::tempdir().unwrap();
    let (rules, sets, lists) = (
        folder.path().join("rules"),
        folder.path().join("sets"),
        folder.path().join("lists"),
    );
    std::fs::write(&rules, IPTABLES).unwrap();
    std::fs::write(&sets, IPSET.replace("blocked ", "bad ")).unwrap();
    let (rules, lists) = (rules.to_str().unwrap(), lists.to_str().unwrap());
    let output = run(
        &[
            rules,
            sets.to_str().unwrap(),
            "--lists",
            lists,
            "--interface",
            "ens3",
        ],
        b"",
    );
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let config = parsed(&text(&output.stdout));
    assert!(
        config
            .agent
            .interfaces
            .iter()
            .any(|name| name.to_string() == "ens3")
    );
    let bad = std::fs::read_to_string(Path::new(lists).join("bad.netset")).unwrap();
    assert_eq!(
        bad,
        "# bad, by agent import\n192.0.2.7/32\n198.51.100.0/24\n"
    );
    // No part of a file is left, and the lists of comments are there, too.
    let mut names: Vec<String> = std::fs::read_dir(lists)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    assert_eq!(names, ["INPUT.netset", "bad.netset", "f2b-sshd.netset"]);
    // The same again, and by standard input.
    for arguments in [&["-"][..], &[]] {
        let output = run(arguments, IPTABLES.as_bytes());
        assert_eq!(output.status.code(), Some(0));
        assert!(!parsed(&text(&output.stdout)).limits.is_empty());
    }
    // The verb's config passes the agent's own check.
    let config = folder.path().join("limits.toml");
    std::fs::write(
        &config,
        run(&["--interface", "lo"], IPTABLES.as_bytes()).stdout,
    )
    .unwrap();
    let check = Command::new(env!("CARGO_BIN_EXE_agent"))
        .arg("check")
        .arg(&config)
        .output()
        .unwrap();
    assert!(
        check.status.success(),
        "{}{}",
        text(&check.stderr),
        text(&check.stdout)
    );
}

fn json_has_the_config_and_the_reasons() {
    let output = run(&["--json"], IPTABLES.as_bytes());
    let document: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    parsed(document["config"].as_str().unwrap());
    assert_eq!(document["limits"], 5, "{document:#}");
    assert_eq!(
        (&document["ban_lists"], &document["lists"][0]["written"]),
        (&1.into(), &false.into())
    );
    let left = document["not_carried_over"].as_object().unwrap();
    let rules = |it: &serde_json::Value| it["rules"].as_array().unwrap().len();
    assert!(left.values().all(|it| it["count"] == rules(it)));
    assert!(
        left.keys().any(|why| why.contains("forwarded")),
        "{left:#?}"
    );
}

fn statuses_are_those_of_the_reference() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(path("file"), "").unwrap();
    let nothing = b"*filter\n-A FORWARD -j DROP\n";
    for (arguments, input, status, words) in [
        (&[path("none")][..], &b""[..], 2, "reading"),
        (&[], b"", 2, "standard input: empty input"),
        (&[], b"what is this\n", 2, "unknown format"),
        (
            &["--from".to_owned(), "pf".to_owned()],
            b"",
            2,
            "possible values",
        ),
        (
            &["--lists".to_owned(), "here".to_owned()],
            IPTABLES.as_bytes(),
            2,
            "absolute path",
        ),
        (
            &["--interface".to_owned(), "a\"b".to_owned()],
            IPTABLES.as_bytes(),
            2,
            "name of an interface",
        ),
        (&[], nothing, 1, "nothing was carried over"),
        (
            &["--lists".to_owned(), path("file")],
            IPTABLES.as_bytes(),
            1,
            "failed",
        ),
    ] {
        let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
        let output = run(&arguments, input);
        let told = text(&output.stderr);
        assert_eq!(output.status.code(), Some(status), "{arguments:?}: {told}");
        assert!(told.contains(words), "{arguments:?}: {told}");
    }
}

fn no_more_than_128_mib_are_read() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("large");
    std::fs::File::create(&file)
        .unwrap()
        .set_len(20 << 30)
        .unwrap();
    let output = run(&[file.to_str().unwrap()], b"");
    assert_eq!(output.status.code(), Some(2));
    assert!(
        text(&output.stderr).contains("larger than 128 MiB"),
        "{}",
        text(&output.stderr)
    );
}
