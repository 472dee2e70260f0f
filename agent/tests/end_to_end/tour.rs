//! docs/TOUR.md: everyday tasks as they are typed, with what they print. WEIR_TOUR=write writes the page anew.

use std::path::Path;
use std::process::{Command, Stdio};

use testbed::tests;
use testbed::trials::Test;

use crate::support::{INTERFACE, Network};
use crate::traffic::{burst, udp_from};

pub const TESTS: &[Test] = tests![the_tour_prints_what_the_page_says,];

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/TOUR.md");

const HEAD: &str = "# Tour

Everyday tasks on a host, mistakes included, each with its real output. A test types every command and compares the
output, except for times and sizes. `[2]` is an exit status other than 0.
";

/// (title, command line).
const TASKS: &[(&str, &str)] = &[
    ("Ask what there is", "agent --version"),
    ("Mistype a verb", "agent statsu"),
    ("Mistype a verb that changes something", "agent detahc"),
    ("Check a config", "agent check limits.toml"),
    ("Check a config with mistakes", "agent check mistakes.toml"),
    (
        "Check a config that limits nothing",
        "agent check empty.toml",
    ),
    ("Check a file that is not there", "agent check limit.toml"),
    (
        "Ask an agent that does not run",
        "agent status --control nobody.sock",
    ),
    ("See what is in effect", "agent status"),
    ("See the limits", "agent limits"),
    ("See who is refused", "agent top --once"),
    ("See everything about one source", "agent show 10.77.0.7"),
    ("Mistype an address", "agent show 10.77.0"),
    ("Give a source its allowance back", "agent reset 10.77.0.7"),
    (
        "Give every source its allowance back",
        "agent reset --limit web",
    ),
    (
        "Name a limit that does not exist",
        "agent reset --limit wbe",
    ),
    ("Ban an address", "agent ban 203.0.113.7"),
    (
        "Ban a network for an hour",
        "agent ban 203.0.113.0/24 --for 1h",
    ),
    ("Ban an address of IPv6", "agent ban 2001:db8::7 --for 10m"),
    (
        "Ban an address for a time without sense",
        "agent ban 203.0.113.8 --for soon",
    ),
    ("Ban what is no address", "agent ban 203.0.113"),
    ("Ban an address that is exempt", "agent ban 10.77.0.9"),
    ("Ban the whole internet", "agent ban 0.0.0.0/0"),
    ("Shorten a ban", "agent ban 203.0.113.7 --for 1m"),
    ("List the bans", "agent bans"),
    (
        "Lift the ban of an address inside a banned network",
        "agent unban 203.0.113.7",
    ),
    ("Lift the ban of a network", "agent unban 203.0.113.0/24"),
    ("Lift a ban that is not there", "agent unban 203.0.113.0/24"),
    ("Lift every ban", "agent unban --all"),
    (
        "See what a reload would change",
        "agent reload --diff --config limits.toml",
    ),
    ("Reload", "agent reload"),
    ("Try a config", "agent try stricter.toml --for 10m"),
    (
        "Try another one meanwhile",
        "agent try limits.toml --for 10m",
    ),
    ("End the trial", "agent revert"),
    ("End a trial that is over", "agent revert"),
    (
        "Try a config that is wrong",
        "agent try mistakes.toml --for 10m",
    ),
    ("Try and keep a config", "agent try stricter.toml --for 10m"),
    ("Keep it", "agent confirm"),
    ("Keep it once more", "agent confirm"),
    (
        "Take apart what a running agent holds",
        "agent detach limits.toml",
    ),
];

fn the_tour_prints_what_the_page_says() {
    let network = Network::new();
    let limits = |rate: &str| {
        format!(
            "[[limit]]\nname = \"web\"\nports = [\"http\", \"https\", 9000]\nrate = {rate:?}\n\n\
             [[limit]]\nname = \"ssh\"\nports = [\"ssh\"]\nunit = \"connections\"\nrate = \"5/min\"\naction = \"drop\"\n"
        )
    };
    let folder = network.folder.path().to_owned();
    let write = |name: &str, text: &str| std::fs::write(folder.join(name), text).unwrap();
    let agent_table = "never_limit = [\"10.77.0.9\"]\nprotect = []";
    let own = network.config(agent_table, &limits("20/h"));
    let text = std::fs::read_to_string(&own).unwrap();
    write("stricter.toml", &text.replace("20/h", "10/h"));
    write(
        "mistakes.toml",
        &text.replace("rate = \"5/min\"", "rate = \"5\"\nburts = 3"),
    );
    write(
        "empty.toml",
        &format!("[agent]\ninterfaces = [{INTERFACE:?}]\n"),
    );
    let _agent = network.start_file(&own, &[]);
    burst(&network, &[udp_from(7)], 50);
    burst(&network, &[udp_from(8)], 10);
    let mut page = HEAD.to_owned();
    for (nth, (title, line)) in TASKS.iter().enumerate() {
        let mut command = Command::new(std::env::var_os("WEIR_AGENT").unwrap());
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
    }
    if std::env::var_os("WEIR_TOUR").is_some_and(|value| value == "write") {
        std::fs::write(PAGE, &page).unwrap();
    }
    let known = std::fs::read_to_string(PAGE).unwrap_or_default();
    let lines = |text: &str| -> Vec<String> { text.lines().map(without_measurements).collect() };
    let (known, printed) = (lines(&known), lines(&page));
    let fix = "run `WEIR_TOUR=write cargo test -p agent --test end_to_end -- tour` as root";
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
        let is_instant = word.len() == 20 && word.ends_with('Z') && word.contains('T');
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
