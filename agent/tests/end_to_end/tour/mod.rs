//! docs/TOUR.md: everyday tasks as they are typed, with what they print, and what is so afterwards. WEIR_TOUR=write writes the
//! page anew.

mod state;
mod tasks;

use std::path::Path;
use std::process::{Command, Stdio};

use testbed::tests;
use testbed::trials::Test;

use crate::support::{INTERFACE, Network};
use crate::traffic::{burst, udp_from};
use state::State;
use tasks::{TASKS, Task};

pub const TESTS: &[Test] = tests![the_tour_prints_its_page_and_changes_what_tasks_are_for,];

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/TOUR.md");
/// The fewest tasks of the page.
const LEAST: usize = 50;

const HEAD: &str = "# Tour

Everyday tasks on a host, mistakes included, each with its real output. A test types every command and compares the
output, except for times and sizes, and after each command, that it has changed on the host what it is for, and nothing else.
`[2]` is an exit status other than 0.
";

fn the_tour_prints_its_page_and_changes_what_tasks_are_for() {
    let network = Network::new().as_packaged();
    let limits = |rate: &str| {
        format!(
            "[[limit]]\nname = \"web\"\nports = [\"http\", \"https\", 9000]\nrate = {rate:?}\n\n\
             [[limit]]\nname = \"ssh\"\nports = [\"ssh\"]\nunit = \"connections\"\nrate = \"5/min\"\naction = \"drop\"\n"
        )
    };
    let folder = network.folder.path().to_owned();
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
    let agent_table = "never_limit = [\"10.77.0.9\"]\nprotect = []";
    let own = network.config(agent_table, &limits("20/day"));
    let text = std::fs::read_to_string(&own).unwrap();
    write("stricter.toml", &text.replace("20/day", "10/day"));
    write(
        "mistakes.toml",
        &text.replace("rate = \"5/min\"", "rate = \"5\"\nburts = 3"),
    );
    write(
        "empty.toml",
        &format!("[agent]\ninterfaces = [{INTERFACE:?}]\n"),
    );
    let agent = network.start_file(&own, &[]);
    burst(&network, &[udp_from(7)], 50);
    burst(&network, &[udp_from(8)], 10);
    burst(&network, &[udp_from(10)], 10);
    let mut state = State::read(&agent);
    assert_eq!((state.left, state.counted), ([0, 10, 10], (40, 30)));
    let links = tempfile::tempdir().unwrap();
    let program = testbed::weir_in(links.path());
    let mut page = HEAD.to_owned();
    assert!(TASKS.len() >= LEAST);
    for (nth, task) in TASKS.iter().enumerate() {
        let Task {
            title,
            line,
            changes,
        } = task;
        let mut command = Command::new(&program);
        command
            .args(line.split_whitespace().skip(1))
            .current_dir(&folder)
            .stdin(Stdio::null());
        command
            .env("WEIR_CONTROL", network.control())
            .env_remove("SSH_CONNECTION")
            .env_remove("COLUMNS");
        let output = network.in_server(|| command.output()).unwrap();
        let printed = [output.stdout, output.stderr]
            .map(|bytes| String::from_utf8(bytes).unwrap())
            .concat();
        let printed = with_usual_paths(&printed, &folder, &network);
        let status = match output.status.code() {
            Some(0) => String::new(),
            code => format!("[{}]\n", code.unwrap()),
        };
        page.push_str(&format!(
            "\n## {}. {title}\n\n```console\n# {line}\n{printed}{status}```\n",
            nth + 1
        ));
        changes(&mut state);
        assert_eq!(State::read(&agent), state, "after {line}");
    }
    if std::env::var_os("WEIR_TOUR").is_some_and(|value| value == "write") {
        std::fs::write(PAGE, &page).unwrap();
    }
    let known = std::fs::read_to_string(PAGE).unwrap_or_default();
    let lines = |text: &str| -> Vec<String> { text.lines().map(without_measurements).collect() };
    let (known, printed) = (lines(&known), lines(&page));
    let fix = "run `WEIR_TOUR=write cargo xtask test -- --test end_to_end the_tour` as root";
    let difference = known
        .iter()
        .zip(&printed)
        .find(|(known, printed)| known != printed);
    assert_eq!(
        difference, None,
        "docs/TOUR.md is not what is printed: {fix}"
    );
    assert_eq!(
        known.len(),
        printed.len(),
        "docs/TOUR.md is not what is printed: {fix}"
    );
}

/// The output with the paths of a packaged host.
fn with_usual_paths(printed: &str, folder: &Path, network: &Network) -> String {
    let paths = [
        (
            network.control().display().to_string(),
            "/run/weir/control.sock",
        ),
        (network.state().display().to_string(), "/var/lib/weir"),
        (network.pins().display().to_string(), "/sys/fs/bpf/weir"),
        (folder.display().to_string(), "/etc/weir"),
    ];
    let text = paths
        .iter()
        .fold(printed.to_owned(), |text, (path, usual)| {
            text.replace(path, usual)
        });
    text.lines()
        .map(|line| format!("{}\n", line.trim_end()))
        .collect()
}

/// A line for comparison: without times, sizes and instants, which differ from run to run, and without the width of
/// columns, which follows from them.
fn without_measurements(line: &str) -> String {
    const UNITS: [&str; 10] = ["µs", "ms", "s", "min", "h", "d", "B", "KiB", "MiB", "GiB"];
    let mut kept: Vec<&str> = Vec::new();
    let mut words = line
        .split_whitespace()
        .map(|word| word.trim_matches([',', ';', ')', '(', ':']))
        .peekable();
    while let Some(word) = words.next() {
        let (number, unit) = word.split_at(
            word.find(|c: char| !c.is_ascii_digit() && c != '.')
                .unwrap_or(word.len()),
        );
        let is_instant = word.len() >= 20 && word.ends_with('Z') && word.contains('T');
        if !number.is_empty()
            && unit.is_empty()
            && words.next_if(|unit| UNITS.contains(unit)).is_some()
        {
            continue;
        }
        if !is_instant && (number.is_empty() || !UNITS.contains(&unit)) {
            kept.push(word);
        }
    }
    kept.join(" ")
}
