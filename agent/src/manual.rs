//! The manual page, from the table of the command line and what does not stand in it.

use std::io;

use clap::{Arg, Command, CommandFactory as _};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};

use crate::cli::Cli;

/// What the agent is, for who has never heard of it.
const DESCRIPTION: [&str; 3] = [
    "Weir holds the callers of a host to limits: packets, bytes, connections and requests per source, decided in XDP or \
     traffic control before the kernel spends anything on a packet; requests that applications ask about; and groups of \
     processes by CPU, memory, disks and network. One file says what nobody may exceed.",
    "agent --config FILE runs until SIGINT or SIGTERM. All other commands either look at a file or this host (check, \
     doctor, detach), or ask the running agent through its control socket; those print a table, or with --json one JSON \
     document whose fields scripts may rely on.",
    "agent run without a config observes the interfaces of the default route with built-in limits, and refuses nothing. \
     When it ends, limits stay in force (on_exit = \"keep\") and the next agent takes them over with their state; agent \
     detach takes everything out of the kernel.",
];

/// (what, what it is for).
const FILES: [(&str, &str); 7] = [
    ("/etc/weir/limits.toml", "the config that the service runs with"),
    ("/run/weir/control.sock", "the control socket; [agent] control names another"),
    ("/run/weir/control.trial.json", "what to go back to while a config is on trial, also for the next agent"),
    ("/run/weir/control.origins.json", "where the processes of groups came from, for giving them back"),
    ("/sys/fs/bpf/weir", "what outlives an agent: programs, links and maps, pinned; [agent] pins names another"),
    ("/sys/fs/cgroup/…/weir", "the cgroups of process groups; [agent] cgroup names another"),
    ("/usr/share/doc/weir", "the manual in full, examples, Prometheus rules and a Grafana dashboard"),
];

const EXIT: [(&str, &str); 3] = [
    ("0", "done"),
    ("1", "failed while running, or (doctor, decide --exit-status) the answer is no"),
    ("2", "wrong usage or a wrong config; nothing was touched"),
];

const SECURITY: [&str; 2] = [
    "The control socket has mode 0660 and belongs to root and, where there is one, to the group weir. Who may open it may \
     ask (status, limits, top, show, bans, events, groups) and decide; what changes anything in force (reload, try, \
     confirm, ban, unban, reset, groups freeze …) is for root and the user that the agent runs as.",
    "The agent needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON, and for process groups CAP_SYS_PTRACE, CAP_SYS_NICE and \
     CAP_KILL; the unit weir.service gives it these and nothing else. It speaks to systemd's watchdog from the loop that does its work.",
];

const EXAMPLES: [(&str, &str); 8] = [
    ("agent check limits.toml", "Is the file right, and what would it enforce?"),
    ("agent doctor --config limits.toml", "Can this host do it, and if not, which command helps?"),
    ("agent --config limits.toml", "Enforce it. Begin with mode = \"observe\", which counts and throttles nothing."),
    ("agent reload", "Read the file again: all of it is put in force, or nothing."),
    (
        "agent try next.toml --for 60s",
        "Put a file in force, and go back by itself unless agent confirm follows within a minute.",
    ),
    ("agent top --once", "Who is throttled most?"),
    ("agent show 203.0.113.9", "Why is this one throttled, and until when?"),
    ("agent ban 203.0.113.0/24 --for 10m", "Refuse everything from a network for ten minutes."),
];

/// The page, in roff.
///
/// # Errors
///
/// When it cannot be written, which takes more than memory.
pub fn page() -> io::Result<Vec<u8>> {
    let mut command = Cli::command();
    command.build();
    let man = Man::new(command.clone()).manual("Weir").title("AGENT");
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    synopsis().to_writer(&mut page)?;
    section("DESCRIPTION", &DESCRIPTION).to_writer(&mut page)?;
    commands(&command).to_writer(&mut page)?;
    config_section().to_writer(&mut page)?;
    pairs("EXIT STATUS", &EXIT).to_writer(&mut page)?;
    pairs("FILES", &FILES).to_writer(&mut page)?;
    section("SECURITY", &SECURITY).to_writer(&mut page)?;
    examples().to_writer(&mut page)?;
    section("SEE ALSO", &["systemd.service(5), tc(8), ip-link(8), bpftool(8), cgroups(7)"]).to_writer(&mut page)?;
    Ok(page)
}

fn synopsis() -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]);
    roff.text([bold("agent"), roman(" [--config "), italic("FILE"), roman("]")]);
    roff.control("br", []);
    roff.text([
        bold("agent"),
        roman(" "),
        italic("COMMAND"),
        roman(" [--config "),
        italic("FILE"),
        roman("] [--control "),
        italic("PATH"),
        roman("] [--json] …"),
    ]);
    roff
}

fn section(title: &str, paragraphs: &[&str]) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", [title]);
    for paragraph in paragraphs {
        roff.control("PP", []);
        roff.text([roman(*paragraph)]);
    }
    roff
}

fn pairs(title: &str, pairs: &[(&str, &str)]) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", [title]);
    for (what, meaning) in pairs {
        roff.control("TP", []);
        roff.text([bold(*what)]);
        roff.text([roman(*meaning)]);
    }
    roff
}

fn examples() -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["EXAMPLES"]);
    for (typed, purpose) in EXAMPLES {
        roff.control("PP", []);
        roff.text([roman(purpose)]);
        roff.control("PP", []);
        roff.control("RS", ["4"]);
        roff.text([bold(typed)]);
        roff.control("RE", []);
    }
    roff
}

fn config_section() -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["LIMITS.TOML"]);
    roff.control("PP", []);
    roff.text([roman(
        "TOML; every size, rate and time carries its unit, and an unknown key is an error that names the nearest one. The \
         smallest that limits anything:",
    )]);
    roff.control("PP", []);
    roff.control("RS", ["4"]);
    roff.control("nf", []);
    let example = "[agent]\ninterfaces = [\"eth0\"]\n\n[[limit]]\nname = \"packets-per-source\"\nrate = \"1000/s\"";
    for line in example.lines() {
        roff.text([roman(line)]);
    }
    roff.control("fi", []);
    roff.control("RE", []);
    let tables: [(&str, &str); 7] = [
        (
            "[agent]",
            "interfaces, attach (auto, native, generic, tc), mode (enforce, observe), on_exit (keep, detach), control, \
             pins, cgroup, metrics, max_sources, never_limit, protect, watch",
        ),
        ("[[class]]", "name, sources, multiplier or unlimited: who is calling"),
        (
            "[[limit]]",
            "name, direction, protocol, ports, key, unit, algorithm, rate, burst, throttle, action, on_full, tiers; with \
             scope = \"request\" also domain, initial, refill_every and escalate",
        ),
        ("[[group]]", "name, match, cpu, memory, io, pids, cpus, network: a cgroup that is kept filled"),
        ("[decide]", "http, grpc, max_keys, max_waiting, max_waiting_per_key: where applications ask"),
        ("[[request]]", "name, cost: what a request costs, by a formula"),
        ("[cluster]", "store, node, sync, when_store_is_down …: limits with cluster = true are one for many hosts"),
    ];
    for (table, keys) in tables {
        roff.control("TP", []);
        roff.text([bold(table)]);
        roff.text([roman(keys)]);
    }
    roff.control("PP", []);
    roff.text([roman("The file /usr/share/doc/weir/README.md explains each key, and limits.example.toml shows it.")]);
    roff
}

/// Every command with its arguments; the global ones once.
fn commands(command: &Command) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["OPTIONS"]);
    let shared = ["config", "control", "json"];
    for argument in command.get_arguments() {
        tell_argument(&mut roff, argument);
    }
    roff.control("SH", ["COMMANDS"]);
    for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
        tell_verb(&mut roff, "agent", verb, &shared);
    }
    roff
}

fn tell_verb(roff: &mut Roff, parent: &str, verb: &Command, shared: &[&str]) {
    let name = format!("{parent} {}", verb.get_name());
    roff.control("TP", []);
    let mut heading = vec![bold(name.as_str())];
    for argument in verb.get_positionals() {
        let value = value_names(argument);
        heading.push(roman(" "));
        heading.push(if argument.is_required_set() { italic(value) } else { italic(format!("[{value}]")) });
    }
    roff.text(heading);
    roff.text([roman(about(verb))]);
    let own: Vec<&Arg> =
        verb.get_arguments().filter(|it| !shared.contains(&it.get_id().as_str()) && !is_built_in(it)).collect();
    if !own.is_empty() {
        roff.control("RS", []);
        for argument in own {
            tell_argument(roff, argument);
        }
        roff.control("RE", []);
    }
    for verb in verb.get_subcommands().filter(|verb| verb.get_name() != "help") {
        tell_verb(roff, &name, verb, &[shared, &["name"]].concat());
    }
}

fn is_built_in(argument: &Arg) -> bool {
    matches!(argument.get_id().as_str(), "help" | "version")
}

fn tell_argument(roff: &mut Roff, argument: &Arg) {
    roff.control("TP", []);
    let mut heading: Vec<Inline> = Vec::new();
    if let Some(long) = argument.get_long() {
        if let Some(short) = argument.get_short() {
            heading.extend([bold(format!("-{short}")), roman(", ")]);
        }
        heading.push(bold(format!("--{long}")));
        if argument.get_action().takes_values() {
            heading.extend([roman(" "), italic(value_names(argument))]);
        }
    } else {
        heading.push(italic(value_names(argument)));
    }
    roff.text(heading);
    let mut text = argument.get_help().map(ToString::to_string).unwrap_or_default();
    let defaults: Vec<String> =
        argument.get_default_values().iter().map(|value| value.to_string_lossy().into_owned()).collect();
    if !defaults.is_empty() && argument.get_action().takes_values() {
        text.push_str(&format!(" (default: {})", defaults.join(" ")));
    }
    roff.text([roman(text)]);
}

fn value_names(argument: &Arg) -> String {
    match argument.get_value_names() {
        Some(names) if !names.is_empty() => names.join(" "),
        _ => argument.get_id().as_str().to_uppercase(),
    }
}

fn about(verb: &Command) -> String {
    let about = verb.get_long_about().or_else(|| verb.get_about());
    about.map(ToString::to_string).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_every_command_with_every_option() {
        let page = String::from_utf8(page().unwrap()).unwrap().replace("\\-", "-");
        let mut command = Cli::command();
        command.build();
        for verb in command.get_subcommands().filter(|verb| verb.get_name() != "help") {
            assert!(page.contains(&format!("\\fBagent {}\\fR", verb.get_name())), "{} is missing", verb.get_name());
            for argument in verb.get_arguments().filter(|it| !is_built_in(it)) {
                let Some(long) = argument.get_long() else { continue };
                assert!(page.contains(&format!("\\fB--{long}\\fR")), "--{long} of {} is missing", verb.get_name());
            }
        }
        for section in ["NAME", "SYNOPSIS", "DESCRIPTION", "OPTIONS", "COMMANDS", "FILES", "SECURITY", "EXAMPLES"] {
            assert!(page.lines().any(|line| line == format!(".SH {section}")), "{section} is missing");
        }
    }
}
