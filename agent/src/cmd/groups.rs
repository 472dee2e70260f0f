//! `agent groups`, and what is done to a group in an emergency.

use std::process::ExitCode;

use super::ask::ask;
use super::table::{self, number};
use crate::cli::{GroupCommand, Options};
use crate::control::{Done, Request};
use crate::groups::{Emergency, GroupStatus};

pub fn groups(options: &Options) -> anyhow::Result<ExitCode> {
    ask(options, &Request::Groups, |groups: &Vec<GroupStatus>| {
        let heading = [
            "GROUP",
            "CPU",
            "MEMORY",
            "PRESSURE",
            "LIMITS",
            "PROCESSES",
            "THROTTLED",
            "OOM KILLS",
            "EGRESS",
            "INGRESS",
        ];
        let mut text = table::render(heading, 5, groups.iter().map(row));
        for group in groups {
            for note in &group.notes {
                text.push_str(&format!("\nnote: group {}: {note}", group.name));
            }
        }
        text
    })
}

fn row(group: &GroupStatus) -> [String; 10] {
    let of =
        |used: String, limit: Option<String>| limit.map_or_else(|| used.clone(), |limit| format!("{used} of {limit}"));
    let percent = |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.0}%"));
    let pressure = &group.pressure;
    let traffic = |bytes, packets| format!("{} B, {} refused", number(bytes), number(packets));
    let network = &group.network;
    [
        if group.frozen { format!("{} (frozen)", group.name) } else { group.name.clone() },
        format!("{}, max {}", table::seconds(group.cpu.usage_seconds), percent(group.cpu.max_percent)),
        of(number(group.memory.current_bytes), group.memory.max_bytes.map(number)),
        format!("cpu {} memory {} io {}", percent(pressure.cpu), percent(pressure.memory), percent(pressure.io)),
        group.limits.join("\n"),
        number(group.pids.len() as u64),
        table::seconds(group.cpu.throttled_seconds),
        number(group.memory.oom_kills),
        traffic(network.egress_bytes, network.egress_throttled_packets),
        traffic(network.ingress_bytes, network.ingress_throttled_packets),
    ]
}

pub fn emergency(command: &GroupCommand, options: &Options) -> anyhow::Result<ExitCode> {
    let (group, what, done) = match command {
        GroupCommand::Freeze { name } => (name, Emergency::Freeze, "frozen"),
        GroupCommand::Thaw { name } => (name, Emergency::Thaw, "thawed"),
        GroupCommand::Kill { name } => (name, Emergency::Kill, "killed"),
    };
    let request = Request::Emergency { group: group.clone(), what };
    ask(options, &request, |answer: &Done| format!("group {} is {done}", answer.group))
}
