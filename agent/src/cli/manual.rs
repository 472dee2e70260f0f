//! The manual page, from the command line's definition and additional text.

#[cfg(test)]
mod commands;
pub mod limits;

use std::io;

use clap::{Arg, Command};
use clap_mangen::Man;
use clap_mangen::roff::{Inline, Roff, bold, italic, roman};
use host::PROGRAM;

use super::as_called::{self, as_called};

/// The description of weir(1).
const DESCRIPTION: [&str; 3] = [
    "Weir enforces rate limits per source address: packets, bytes, connections and requests, in XDP before the kernel \
     allocates a buffer, or in traffic control. It also limits requests of applications, and the CPU time, memory, disks \
     and network of process groups. One file describes all limits.",
    "weir --config FILE runs until SIGINT or SIGTERM. All other commands either read a file or this host (check, \
     doctor, detach), or query the running agent through its control socket. Queries print a table, or with --json one \
     JSON document with stable fields.",
    "weir run without a config observes the interfaces of the default route with built-in limits, and refuses nothing. \
     When it ends, limits stay in effect (on_exit = \"keep\") and the next agent takes them over with their state; weir \
     detach removes everything from the kernel.",
];

const FILES: [(&str, &str); 7] = [
    (
        "/etc/weir/limits.toml",
        "the config that the service runs with",
    ),
    (
        "/run/weir/control.sock",
        "the control socket; [agent] control names another",
    ),
    (
        "/run/weir/control.trial.json",
        "the config for the rollback of a trial, also for the next agent",
    ),
    (
        "/run/weir/control.origins.json",
        "the former cgroups of processes in groups, for their return",
    ),
    (
        "/sys/fs/bpf/weir",
        "pinned programs, links and maps, which outlive an agent; [agent] pins names another",
    ),
    (
        "/sys/fs/cgroup/…/weir",
        "the cgroups of process groups; [agent] cgroup names another",
    ),
    (
        "/usr/share/doc/weir",
        "the documents, examples, Prometheus rules and a Grafana dashboard",
    ),
];

const EXIT: [(&str, &str); 3] = [
    ("0", "done"),
    (
        "1",
        "failed while running, or a negative result (doctor, decide --exit-status)",
    ),
    ("2", "wrong usage or an invalid config; nothing was changed"),
];

const SECURITY: [&str; 2] = [
    "The control socket has mode 0660 and belongs to root and, where there is one, to the group weir. Users who \
     may open it may query (status, limits, top, show, bans, events, groups) and decide. Only root and the user that the \
     agent runs as may change it (reload, try, confirm, ban, unban, reset, groups freeze …).",
    "The agent needs CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON, and for process groups CAP_SYS_PTRACE and \
     CAP_SYS_NICE; the unit weir.service and, for a config with groups, its drop-in groups.conf grant these and no others. Without systemd, groups \
     also need CAP_DAC_OVERRIDE and CAP_KILL. The agent's main loop notifies systemd's watchdog.",
];

const EXAMPLES: [(&str, &str); 8] = [
    (
        "weir check limits.toml",
        "Validate the file, and print what it enforces.",
    ),
    (
        "weir doctor --config limits.toml",
        "Report what this host lacks for it, with the fix.",
    ),
    (
        "weir --config limits.toml",
        "Enforce it. Start with mode = \"observe\", which counts and refuses nothing.",
    ),
    (
        "weir reload",
        "Read the file again: all of it takes effect, or nothing.",
    ),
    (
        "weir try next.toml --for 60s",
        "Put a file in effect, and roll back unless weir confirm follows within a minute.",
    ),
    ("weir top --once", "Who is throttled most?"),
    (
        "weir show 203.0.113.9",
        "Why is this one throttled, and until when?",
    ),
    (
        "weir ban 203.0.113.0/24 --for 10m",
        "Refuse everything from a network for ten minutes.",
    ),
];

/// The page, in roff.
///
/// # Errors
///
/// When it cannot be written.
pub fn page() -> io::Result<Vec<u8>> {
    let mut command = as_called::command();
    command.build();
    let man = Man::new(command.clone())
        .manual("Weir")
        .title(PROGRAM.name().to_uppercase());
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
    section(
        "SEE ALSO",
        &["limits.toml(5), systemd.service(5), tc(8), ip-link(8), bpftool(8), cgroups(7)"],
    )
    .to_writer(&mut page)?;
    Ok(page)
}

fn synopsis() -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["SYNOPSIS"]);
    roff.text([
        bold(PROGRAM.name()),
        roman(" [--config "),
        italic("FILE"),
        roman("]"),
    ]);
    roff.control("br", []);
    roff.text([
        bold(PROGRAM.name()),
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
        roff.text([roman(as_called(paragraph))]);
    }
    roff
}

fn pairs(title: &str, pairs: &[(&str, &str)]) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", [title]);
    for (what, meaning) in pairs {
        roff.control("TP", []);
        roff.text([bold(*what)]);
        roff.text([roman(as_called(meaning))]);
    }
    roff
}

fn examples() -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["EXAMPLES"]);
    for (typed, purpose) in EXAMPLES {
        roff.control("PP", []);
        roff.text([roman(as_called(purpose))]);
        roff.control("PP", []);
        roff.control("RS", ["4"]);
        roff.text([bold(as_called(typed))]);
        roff.control("RE", []);
    }
    roff
}

fn config_section() -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["LIMITS.TOML"]);
    roff.control("PP", []);
    roff.text([roman(
        "TOML; every size, rate and time has a unit, and an unknown key is an error that names the nearest one. The \
         smallest with a limit:",
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
    roff.control("PP", []);
    roff.text([bold("limits.toml"), roman("(5) has every key.")]);
    roff
}

/// Every command with its arguments; the global ones once.
fn commands(command: &Command) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["OPTIONS"]);
    let shared = ["config", "control", "json"];
    for argument in command.get_arguments() {
        write_argument(&mut roff, argument);
    }
    roff.control("SH", ["COMMANDS"]);
    for verb in command
        .get_subcommands()
        .filter(|verb| verb.get_name() != "help")
    {
        write_verb(&mut roff, PROGRAM.name(), verb, &shared);
    }
    roff
}

fn write_verb(roff: &mut Roff, parent: &str, verb: &Command, shared: &[&str]) {
    let name = format!("{parent} {}", verb.get_name());
    roff.control("TP", []);
    let mut heading = vec![bold(name.as_str())];
    for argument in verb.get_positionals() {
        let value = value_names(argument);
        heading.push(roman(" "));
        heading.push(if argument.is_required_set() {
            italic(value)
        } else {
            italic(format!("[{value}]"))
        });
    }
    roff.text(heading);
    roff.text([roman(about(verb))]);
    let own: Vec<&Arg> = verb
        .get_arguments()
        .filter(|it| !shared.contains(&it.get_id().as_str()) && !is_built_in(it))
        .collect();
    if !own.is_empty() {
        roff.control("RS", []);
        for argument in own {
            write_argument(roff, argument);
        }
        roff.control("RE", []);
    }
    for verb in verb
        .get_subcommands()
        .filter(|verb| verb.get_name() != "help")
    {
        write_verb(roff, &name, verb, &[shared, &["name"]].concat());
    }
}

fn is_built_in(argument: &Arg) -> bool {
    matches!(argument.get_id().as_str(), "help" | "version")
}

fn write_argument(roff: &mut Roff, argument: &Arg) {
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
    let mut text = argument
        .get_help()
        .map(ToString::to_string)
        .unwrap_or_default();
    let defaults: Vec<String> = argument
        .get_default_values()
        .iter()
        .map(|value| value.to_string_lossy().into_owned())
        .collect();
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
        let page = String::from_utf8(page().unwrap())
            .unwrap()
            .replace("\\-", "-");
        let mut command = as_called::command();
        command.build();
        for verb in command
            .get_subcommands()
            .filter(|verb| verb.get_name() != "help")
        {
            assert!(
                page.contains(&format!("\\fBagent {}\\fR", verb.get_name())),
                "{} is missing",
                verb.get_name()
            );
            for argument in verb.get_arguments().filter(|it| !is_built_in(it)) {
                let Some(long) = argument.get_long() else {
                    continue;
                };
                assert!(
                    page.contains(&format!("\\fB--{long}\\fR")),
                    "--{long} of {} is missing",
                    verb.get_name()
                );
            }
        }
        for section in [
            "NAME",
            "SYNOPSIS",
            "DESCRIPTION",
            "OPTIONS",
            "COMMANDS",
            "FILES",
            "SECURITY",
            "EXAMPLES",
        ] {
            assert!(
                page.lines().any(|line| line == format!(".SH {section}")),
                "{section} is missing"
            );
        }
    }
}
