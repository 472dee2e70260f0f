//! `weir groups`, and the emergency actions on a group.

use std::process::ExitCode;

use api::group::Done;
use api::request::Request;
use cgroup::account::PressureStatus;
use cgroup::{Emergency, GroupStatus, UsageRow};
use config::human;

use super::ask::{self, ask};
use super::exit;
use super::table::{self, number};
use crate::cli::arguments::{GroupCommand, Options};

pub fn groups(options: &Options) -> anyhow::Result<ExitCode> {
    ask(options, &Request::Groups, |groups: &Vec<GroupStatus>| {
        text(groups, table::width())
    })
}

/// The groups as text, for a terminal with this many columns.
fn text(groups: &[GroupStatus], room: Option<usize>) -> String {
    if groups.is_empty() {
        return "No groups.".to_owned();
    }
    let usage = [
        "GROUP",
        "PROCESSES",
        "CPU TIME",
        "THROTTLED",
        "MEMORY",
        "KILLED",
    ];
    let mut parts = vec![table::fitted(
        usage,
        1,
        groups.iter().map(usage_row).collect(),
        room,
    )];
    let mut limits = vec![("GROUP", "LIMITS".to_owned())];
    limits.extend(
        groups
            .iter()
            .map(|group| (group.name.as_str(), limits_of(group))),
    );
    parts.push(defined(&limits, room));
    let network: Vec<_> = groups
        .iter()
        .filter(|group| has_network(group))
        .map(network_row)
        .collect();
    if !network.is_empty() {
        parts.push(table::fitted(
            ["GROUP", "SENT", "REFUSED", "RECEIVED", "REFUSED"],
            1,
            network,
            room,
        ));
    }
    let pressure: Vec<_> = groups.iter().filter_map(pressure_row).collect();
    if !pressure.is_empty() {
        parts.push(table::fitted(
            ["GROUP", "WAITED FOR CPU", "FOR MEMORY", "FOR DISK"],
            1,
            pressure,
            room,
        ));
    }
    let members: Vec<(&str, String)> = groups.iter().flat_map(members).collect();
    if !members.is_empty() {
        let heading = ("GROUP", "ENFORCED ON".to_owned());
        parts.push(defined(
            &std::iter::once(heading).chain(members).collect::<Vec<_>>(),
            room,
        ));
    }
    let notes: Vec<(&str, String)> = groups.iter().flat_map(notes).collect();
    if !notes.is_empty() {
        let heading = ("GROUP", "NOTES".to_owned());
        parts.push(defined(
            &std::iter::once(heading).chain(notes).collect::<Vec<_>>(),
            room,
        ));
    }
    human::printable(&parts.join("\n\n"))
}

fn defined(rows: &[(&str, String)], room: Option<usize>) -> String {
    table::defined(
        rows.iter()
            .map(|(name, text)| (*name, text.as_str()))
            .collect(),
        room,
    )
}

fn limits_of(group: &GroupStatus) -> String {
    let cpu = group
        .cpu
        .max_percent
        .map(|percent| format!("cpu {percent:.0}% at this moment"));
    // An elastic group's present share differs from the config.
    let cpu = cpu.filter(|_| {
        group
            .limits
            .iter()
            .any(|limit| limit.contains("more while"))
    });
    let limits: Vec<String> = group.limits.iter().cloned().chain(cpu).collect();
    if limits.is_empty() {
        "none: its processes are only counted".to_owned()
    } else {
        limits.join(", ")
    }
}

fn processes(count: u64) -> String {
    if count == 1 {
        "1 process".to_owned()
    } else {
        format!("{} processes", number(count))
    }
}

/// How each process, unit and container of a group is enforced, and why some are not.
fn members(group: &GroupStatus) -> Vec<(&str, String)> {
    let enforced = group.members.iter().map(|member| {
        let part = if member.problems.is_empty() {
            ""
        } else {
            " (in part)"
        };
        format!(
            "{} {}, {}: {}{part}",
            member.kind,
            member.name,
            processes(member.processes),
            member.how
        )
    });
    let not = group.not_enforced.iter().map(|one| {
        let place = if one.cgroup.is_empty() {
            String::new()
        } else {
            format!(" in {}", one.cgroup)
        };
        format!(
            "not enforced: {}{place}, {}: {}",
            one.name,
            processes(one.pids.len() as u64),
            one.reason
        )
    });
    enforced
        .chain(not)
        .map(|text| (group.name.as_str(), text))
        .collect()
}

fn notes(group: &GroupStatus) -> Vec<(&str, String)> {
    let network = &group.network;
    let refused = (network.refused() > 0).then(|| {
        let last = network.last_refusal.as_ref().map(|last| format!("; the last: {last}")).unwrap_or_default();
        let (connects, destinations) = (number(network.connects_refused), number(network.destinations_refused));
        format!(
            "refused {connects} connections above connects, {destinations} to destinations above destinations{last}"
        )
    });
    let forks = (group.pids_refused > 0).then(|| {
        format!(
            "refused {} new processes and threads above pids",
            number(group.pids_refused)
        )
    });
    refused
        .into_iter()
        .chain(forks)
        .chain(group.notes.iter().cloned())
        .map(|text| (group.name.as_str(), text))
        .collect()
}

fn usage_row(group: &GroupStatus) -> [String; 6] {
    let memory = &group.memory;
    let used = human::size(memory.current_bytes);
    [
        if group.frozen {
            format!("{} (frozen)", group.name)
        } else {
            group.name.clone()
        },
        number(group.pids.len() as u64),
        human::seconds(group.cpu.usage_seconds),
        human::seconds(group.cpu.throttled_seconds),
        memory.max_bytes.map_or_else(
            || used.clone(),
            |max| format!("{used} of {}", human::size(max)),
        ),
        number(memory.oom_kills),
    ]
}

const fn has_network(group: &GroupStatus) -> bool {
    let network = &group.network;
    network.egress_bytes > 0
        || network.ingress_bytes > 0
        || network.egress_throttled_packets > 0
        || network.ingress_throttled_packets > 0
}

fn network_row(group: &GroupStatus) -> [String; 5] {
    let network = &group.network;
    [
        group.name.clone(),
        human::size(network.egress_bytes),
        number(network.egress_throttled_packets),
        human::size(network.ingress_bytes),
        number(network.ingress_throttled_packets),
    ]
}

/// `None` where the kernel does not report pressure.
fn pressure_row(group: &GroupStatus) -> Option<[String; 4]> {
    let PressureStatus { cpu, memory, io } = group.pressure;
    let percent =
        |value: Option<f64>| value.map_or_else(|| "-".to_owned(), |value| format!("{value:.0} %"));
    (cpu.or(memory).or(io).is_some()).then(|| {
        [
            group.name.clone(),
            percent(cpu),
            percent(memory),
            percent(io),
        ]
    })
}

/// The format of rows without `--json`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rows {
    Table,
    Csv,
}

impl From<bool> for Rows {
    fn from(is_csv: bool) -> Self {
        if is_csv { Self::Csv } else { Self::Table }
    }
}

pub fn usage(request: &Request, rows: Rows, options: &Options) -> anyhow::Result<ExitCode> {
    if let Request::Usage {
        group: Some(name), ..
    } = request
        && let Some(unknown) = unknown_group(name, options)?
    {
        return Ok(exit::usage(&unknown));
    }
    ask(options, request, |usage: &Vec<UsageRow>| match rows {
        Rows::Csv => csv(usage),
        Rows::Table => {
            let heading = [
                "DAY",
                "GROUP",
                "CPU",
                "MEMORY (GiB HOURS)",
                "READ",
                "WRITTEN",
                "SENT",
                "RECEIVED",
            ];
            table::render_or(
                "No group has used anything.",
                heading,
                2,
                usage.iter().map(day_row),
            )
        }
    })
}

fn day_row(row: &UsageRow) -> [String; 8] {
    let usage = &row.usage;
    [
        row.day.clone(),
        row.group.clone(),
        human::seconds(usage.cpu_seconds),
        format!(
            "{:.3}",
            usage.memory_byte_seconds / f64::from(1 << 30) / 3_600.0
        ),
        human::size(usage.disk_read_bytes),
        human::size(usage.disk_write_bytes),
        human::size(usage.network_egress_bytes),
        human::size(usage.network_ingress_bytes),
    ]
}

/// The error for a group that the agent neither has nor has recorded.
fn unknown_group(name: &str, options: &Options) -> anyhow::Result<Option<String>> {
    let client = options.client();
    let groups: Vec<GroupStatus> = client.ask(&Request::Groups)?;
    let recorded: Vec<UsageRow> = client.ask(&Request::Usage {
        group: None,
        from: None,
        to: None,
    })?;
    let mut known: Vec<&str> = groups.iter().map(|group| group.name.as_str()).collect();
    known.extend(recorded.iter().map(|row| row.group.as_str()));
    known.sort_unstable();
    known.dedup();
    Ok(ask::unknown("group", name, known.into_iter()))
}

/// Group names contain neither commas nor quotes.
fn csv(rows: &[UsageRow]) -> String {
    let mut text = "day,group,cpu_seconds,memory_byte_seconds,disk_read_bytes,disk_write_bytes,network_egress_bytes,\
                    network_ingress_bytes"
        .to_owned();
    for UsageRow { day, group, usage } in rows {
        let (cpu, memory) = (usage.cpu_seconds, usage.memory_byte_seconds);
        let (read, write) = (usage.disk_read_bytes, usage.disk_write_bytes);
        let (sent, received) = (usage.network_egress_bytes, usage.network_ingress_bytes);
        text.push_str(&format!(
            "\n{day},{group},{cpu:.6},{memory:.0},{read},{write},{sent},{received}"
        ));
    }
    text
}

pub fn emergency(command: &GroupCommand, options: &Options) -> anyhow::Result<ExitCode> {
    let (group, what, done) = match command {
        GroupCommand::Freeze { name } => (name, Emergency::Freeze, "frozen"),
        GroupCommand::Thaw { name } => (name, Emergency::Thaw, "thawed"),
        GroupCommand::Kill { name } => (name, Emergency::Kill, "killed"),
    };
    let groups: Vec<GroupStatus> = options.client().ask(&Request::Groups)?;
    // If the agent has no groups, its error gives the reason.
    let unknown = ask::unknown(
        "group",
        group,
        groups.iter().map(|group| group.name.as_str()),
    );
    if let Some(unknown) = unknown.filter(|_| !groups.is_empty()) {
        return Ok(exit::usage(&unknown));
    }
    let request = Request::Emergency {
        group: group.clone(),
        what,
    };
    ask(options, &request, |answer: &Done| {
        format!("group {} is {done}", answer.group)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use cgroup::account::{
        CpuStatus, MemberStatus, MemoryStatus, NetworkStatus, NotEnforced, Refusal,
    };

    fn group() -> GroupStatus {
        GroupStatus {
            name: "a-batch-group-with-a-name-that-is-as-long-as-names-of-cgroups-get".to_owned(),
            pids: vec![1; 1_234],
            pids_refused: 1_234,
            limits: vec!["cpu 150%".to_owned(), "memory 1.5 GiB".to_owned(), "egress 20 Mbit/s".to_owned()],
            cpu: CpuStatus { usage_seconds: 86_399.0, throttled_seconds: 43_199.0, max_percent: Some(150.0) },
            memory: MemoryStatus {
                current_bytes: 1_023 << 20,
                high_bytes: None,
                max_bytes: Some(1_023 << 20),
                oom_kills: 12,
            },
            network: NetworkStatus {
                egress_bytes: 200 << 20,
                egress_throttled_packets: 1_234_567,
                connects_refused: 5,
                last_refusal: Some(Refusal {
                    time: 0.0,
                    destination: std::net::IpAddr::from([192, 0, 2, 1]),
                    port: 80,
                    process: 7,
                    program: "evil\u{1b}[2J".to_owned(),
                    limit: "connects".to_owned(),
                }),
                ..NetworkStatus::default()
            },
            pressure: PressureStatus { cpu: Some(1.5), memory: None, io: Some(0.0) },
            notes: vec![
                "a note that is longer than a line of eighty columns has room for, and goes on below".to_owned(),
            ],
            members: vec![MemberStatus {
                kind: "unit".to_owned(),
                name: "nginx.service".to_owned(),
                processes: 3,
                how: "in place: its properties are set through systemd".to_owned(),
                problems: vec!["swap".to_owned()],
                ..MemberStatus::default()
            }],
            not_enforced: vec![NotEnforced {
                name: "ffmpeg".to_owned(),
                cgroup: "/user.slice/user-1000.slice/session-3.scope".to_owned(),
                reason: "its processes stay where they are: set move = true".to_owned(),
                pids: vec![4],
            }],
            ..GroupStatus::default()
        }
    }

    #[test]
    fn groups_fit_eighty_columns_and_lose_nothing_but_the_middle_of_names() {
        let text = text(&[group()], Some(80));
        assert!(
            text.lines().all(|line| human::columns(line) <= 80),
            "{text}"
        );
        // Joined to one line before the words are wrapped.
        let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for part in [
            "1,234 23 h 59 min 11 h 59 min 1023 MiB of 1023 MiB 12",
            "cpu 150%, memory 1.5 GiB, egress 20 Mbit/s",
            "200 MiB 1,234,567 0 B 0",
            "2 % - 0 %",
            "unit nginx.service, 3 processes: in place: its properties are set through systemd (in part)",
            "set move = true",
            "refused 5 connections above connects",
            "refused 1,234 new processes and threads above pids",
            "and goes on below",
        ] {
            assert!(words.contains(part), "{part:?} in\n{text}");
        }
        assert!(
            text.contains("a-batc…") && !text.contains('\u{1b}'),
            "{text}"
        );
    }

    #[test]
    fn wide_tables_have_whole_names() {
        let text = text(&[group()], Some(200));
        assert!(
            text.contains(&group().name) && !text.contains('…'),
            "{text}"
        );
        assert_eq!(super::text(&[], Some(80)), "No groups.");
    }
}
