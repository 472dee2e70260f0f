//! Each verb of the command line, to the packaged service in its sandbox.

use std::fs;

use testbed::tests;

use crate::Test;
use crate::guest::{configure, limit, received, run, said, systemctl, try_run};
use crate::service::{UNIT, start};

pub const TESTS: &[Test] = tests![every_verb_does_its_work_under_the_unit];

const CANDIDATE: &str = "/root/candidate.toml";
const CAPTURE: &str = "/root/capture.pcapng";
const MORE: &str = "\n[[limit]]\nname = \"logins\"\nscope = \"request\"\nkey = [\"user\"]\nunit = \"requests\"\nrate = \"5/h\"\n\
                    [[notify]]\non = \"ban\"\ncommand = [\"/bin/cat\"]\n";

/// The verbs that follow, by their order: what each prints.
const TO_THE_SERVICE: [(&[&str], &str); 35] = [
    (&["status"], "weir0"),
    (&["limits"], "logins"),
    (&["top", "--once"], "10.77.0.2"),
    (&["top", "--once", "--by", "prefix"], ""),
    (&["events"], "10.77.0.2"),
    (&["show", "10.77.0.2"], "packets"),
    (&["groups"], ""),
    (&["usage"], ""),
    (
        &["decide", "--limit", "logins", "--key", "user=1"],
        "allowed",
    ),
    (&["reset", "10.77.0.2"], "forgotten"),
    (&["notify", "test"], "delivered"),
    (&["ban", "192.0.2.9", "--for", "1h"], "1 banned"),
    (&["bans"], "192.0.2.9"),
    (&["unban", "192.0.2.9"], "1 unbanned"),
    (&["allow", "192.0.2.9", "--for", "1h"], "1 exempt"),
    (&["allow", "--list"], "192.0.2.9"),
    (&["disallow", "192.0.2.9"], "1 no longer exempt"),
    (
        &["allow", "192.0.2.9", "--for", "1h", "--times", "5"],
        "1 allowed 5 times the limits for",
    ),
    (&["disallow", "192.0.2.9"], "1 allowed no more"),
    (&["reload"], ""),
    (&["reload", "--diff"], "no differences"),
    (&["try", CANDIDATE, "--for", "1h"], ""),
    (&["confirm"], ""),
    (&["reload"], ""),
    (&["try", CANDIDATE, "--for", "1h"], ""),
    (&["revert"], ""),
    (&["record", "--for", "1h"], ""),
    (&["record", "--status"], ""),
    (&["record", "--stop"], ""),
    (
        &["record", "--capture", CAPTURE, "--of", "all", "--for", "1s"],
        "",
    ),
    (&["check"], "logins"),
    (&["doctor"], ""),
    (&["completions", "bash"], "agent"),
    (&["man", "agent"], "agent"),
    (&["schema"], "limits"),
];
/// Verbs that need something else: a file or a recording of an hour, a trace build, no agent, or they are the service.
const OTHERS: [&str; 7] = [
    "suggest", "replay", "import", "trace", "detach", "run", "help",
];

fn every_verb_does_its_work_under_the_unit() {
    start(&format!("{}{MORE}", limit(10)));
    let help = run("agent", &["--help"]);
    let verbs = help
        .lines()
        .skip_while(|line| !line.starts_with("Commands:"))
        .skip(1)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| {
            line.strip_prefix("  ")
                .filter(|line| !line.starts_with(' '))
        })
        .filter_map(|line| line.split_whitespace().next());
    for verb in verbs {
        let is_tried = TO_THE_SERVICE.iter().any(|(words, _)| words[0] == verb);
        assert!(
            is_tried != OTHERS.contains(&verb),
            "`{verb}` is not tried here"
        );
    }
    fs::write(CANDIDATE, format!("{}{MORE}", limit(20))).unwrap();
    assert_eq!(received(2, 15), 10);
    let failed: Vec<String> = TO_THE_SERVICE
        .iter()
        .filter_map(|(words, wanted)| {
            let output = try_run("agent", words);
            let printed = said(&output);
            let is_done = output.status.success() && printed.contains(wanted);
            (!is_done).then(|| format!("{words:?}: {}\n{printed}", output.status))
        })
        .collect();
    assert!(failed.is_empty(), "{}", failed.join("\n"));
    configure(&limit(10));
    systemctl(&["stop", UNIT]);
    run("agent", &["detach"]);
}
