//! The tasks, and what each changes on the host.

use super::state::{Ends, State};

/// A task of an operator.
pub struct Task {
    pub title: &'static str,
    /// The command line.
    pub line: &'static str,
    /// What is different on the host afterwards; everything else is the same.
    pub changes: fn(&mut State),
}

const fn nothing(_: &mut State) {}

pub const TASKS: &[Task] = &[
    Task {
        title: "Ask what there is",
        line: "weir -V",
        changes: nothing,
    },
    Task {
        title: "Mistype a verb",
        line: "weir statsu",
        changes: nothing,
    },
    Task {
        title: "Mistype a verb that changes something",
        line: "weir detahc",
        changes: nothing,
    },
    Task {
        title: "Check a config",
        line: "weir check limits.toml",
        changes: nothing,
    },
    Task {
        title: "Check a config with mistakes",
        line: "weir check mistakes.toml",
        changes: nothing,
    },
    Task {
        title: "Check a config that limits nothing",
        line: "weir check empty.toml",
        changes: nothing,
    },
    Task {
        title: "Check a file that is not there",
        line: "weir check limit.toml",
        changes: nothing,
    },
    Task {
        title: "Ask an agent that does not run",
        line: "weir status --control nobody.sock",
        changes: nothing,
    },
    Task {
        title: "See what is in effect",
        line: "weir status",
        changes: nothing,
    },
    Task {
        title: "See the limits",
        line: "weir limits",
        changes: nothing,
    },
    Task {
        title: "See who is refused",
        line: "weir top --once",
        changes: nothing,
    },
    Task {
        title: "See everything about one source",
        line: "weir show 10.77.0.7",
        changes: nothing,
    },
    Task {
        title: "See what happened to it",
        line: "weir events --source 10.77.0.7",
        changes: nothing,
    },
    Task {
        title: "Mistype an address",
        line: "weir show 10.77.0",
        changes: nothing,
    },
    Task {
        title: "Give a source its allowance back",
        line: "weir reset 10.77.0.7",
        changes: |state| state.left[0] = 20,
    },
    Task {
        title: "Give a network its allowance back",
        line: "weir reset 10.77.0.10/31",
        changes: |state| state.left[2] = 20,
    },
    Task {
        title: "Give every source its allowance back",
        line: "weir reset --limit web",
        changes: |state| state.left = [20; 3],
    },
    Task {
        title: "Name a limit that does not exist",
        line: "weir reset --limit wbe",
        changes: nothing,
    },
    Task {
        title: "Set the counters to 0",
        line: "weir limits --reset-counters",
        changes: |state| state.counted = (0, 0),
    },
    Task {
        title: "Record how busy the sources are",
        line: "weir record --for 1h",
        changes: |state| state.recording = "recording".to_owned(),
    },
    Task {
        title: "End the recording",
        line: "weir record --stop",
        changes: |state| state.recording = "ended".to_owned(),
    },
    Task {
        title: "Ban an address",
        line: "weir ban 203.0.113.7",
        changes: |state| state.ban("203.0.113.7", "root", Ends::WhenLifted),
    },
    Task {
        title: "Ban it as another owner",
        line: "weir ban 203.0.113.7 --for 1d --owner desk",
        changes: |state| state.ban("203.0.113.7", "desk", Ends::ByItself),
    },
    Task {
        title: "Ban a network for an hour",
        line: "weir ban 203.0.113.0/24 --for 1h",
        changes: |state| state.ban("203.0.113.0/24", "root", Ends::ByItself),
    },
    Task {
        title: "Ban an address of IPv6",
        line: "weir ban 2001:db8::7 --for 10m",
        changes: |state| state.ban("2001:db8::/64", "root", Ends::ByItself),
    },
    Task {
        title: "Ban an address for a time without sense",
        line: "weir ban 203.0.113.8 --for soon",
        changes: nothing,
    },
    Task {
        title: "Ban what is no address",
        line: "weir ban 203.0.113",
        changes: nothing,
    },
    Task {
        title: "Ban an address that is exempt",
        line: "weir ban 10.77.0.9",
        changes: nothing,
    },
    Task {
        title: "Ban the whole internet",
        line: "weir ban 0.0.0.0/0",
        changes: nothing,
    },
    Task {
        title: "Shorten a ban",
        line: "weir ban 203.0.113.7 --for 1m",
        changes: nothing,
    },
    Task {
        title: "List the bans",
        line: "weir bans",
        changes: nothing,
    },
    Task {
        title: "Lift the ban of an address inside a banned network",
        line: "weir unban 203.0.113.7",
        changes: |state| state.unban("203.0.113.7", "root"),
    },
    Task {
        title: "Lift the ban of a network",
        line: "weir unban 203.0.113.0/24",
        changes: |state| state.unban("203.0.113.0/24", "root"),
    },
    Task {
        title: "Lift a ban that is not there",
        line: "weir unban 203.0.113.0/24",
        changes: nothing,
    },
    Task {
        title: "Lift every ban",
        line: "weir unban --all",
        changes: |state| state.bans.clear(),
    },
    Task {
        title: "Exempt an address for an hour",
        line: "weir allow 203.0.113.50 --for 1h --reason load-test",
        changes: |state| {
            state.exempt.insert("203.0.113.50".to_owned());
        },
    },
    Task {
        title: "Exempt an address without an end",
        line: "weir allow 203.0.113.51",
        changes: nothing,
    },
    Task {
        title: "List the exemptions",
        line: "weir allow --list",
        changes: nothing,
    },
    Task {
        title: "Ban what is exempt for a while",
        line: "weir ban 203.0.113.50",
        changes: nothing,
    },
    Task {
        title: "End the exemption",
        line: "weir disallow 203.0.113.50",
        changes: |state| state.exempt.clear(),
    },
    Task {
        title: "End an exemption that is not there",
        line: "weir disallow 203.0.113.50",
        changes: nothing,
    },
    Task {
        title: "See what a reload would change",
        line: "weir reload --diff --config limits.toml",
        changes: nothing,
    },
    Task {
        title: "Reload",
        line: "weir reload",
        changes: nothing,
    },
    Task {
        title: "Reload another file than the agent's",
        line: "weir reload stricter.toml",
        changes: nothing,
    },
    Task {
        title: "See what another file would change",
        line: "weir reload --diff stricter.toml",
        changes: nothing,
    },
    Task {
        title: "Try a config",
        line: "weir try stricter.toml --for 10m",
        changes: |state| state.tries("stricter.toml", "10/day", 10),
    },
    Task {
        title: "Try another one meanwhile",
        line: "weir try limits.toml --for 10m",
        changes: nothing,
    },
    Task {
        title: "End the trial",
        line: "weir revert",
        changes: |state| state.ends_trial("20/day", 20),
    },
    Task {
        title: "End a trial that is over",
        line: "weir revert",
        changes: nothing,
    },
    Task {
        title: "Try a config that is wrong",
        line: "weir try mistakes.toml --for 10m",
        changes: nothing,
    },
    Task {
        title: "Try and keep a config",
        line: "weir try stricter.toml --for 10m",
        changes: |state| state.tries("stricter.toml", "10/day", 10),
    },
    Task {
        title: "Keep it",
        line: "weir confirm",
        changes: |state| state.trial = None,
    },
    Task {
        title: "Keep it once more",
        line: "weir confirm",
        changes: nothing,
    },
    Task {
        title: "Take apart what a running agent holds",
        line: "weir detach limits.toml",
        changes: nothing,
    },
];
