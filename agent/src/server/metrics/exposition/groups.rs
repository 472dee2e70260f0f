//! Metrics of process groups.

use cgroup::GroupStatus;
use cgroup::account::Enforcement;
use prometheus::Error;

use super::page::{Page, Row};

impl Page<'_> {
    pub(super) fn groups(&mut self, groups: &[GroupStatus]) -> Result<(), Error> {
        fn each<T: Copy>(
            groups: &[GroupStatus],
            value: impl Fn(&GroupStatus) -> T,
        ) -> Vec<Row<'_, T, 1>> {
            groups
                .iter()
                .map(|group| ([group.name.as_str()], value(group)))
                .collect()
        }
        let known = |value: fn(&GroupStatus) -> Option<u64>| {
            groups
                .iter()
                .filter_map(move |group| Some(([group.name.as_str()], value(group)?)))
        };
        self.gauge(
            "weir_group_processes",
            "Processes and threads of a group.",
            ["group"],
            each(groups, |group| group.pids_current),
        )?;
        self.gauge(
            "weir_group_frozen",
            "1 while a group is frozen.",
            ["group"],
            each(groups, |group| u64::from(group.frozen)),
        )?;
        self.gauge(
            "weir_group_notes",
            "Notes of the group: what is not as configured.",
            ["group"],
            each(groups, |group| group.notes.len() as u64),
        )?;
        self.gauge(
            "weir_group_partly_enforced",
            "1 while some limit of a group, or some process that matches it, is not enforced.",
            ["group"],
            each(groups, |group| {
                u64::from(group.enforcement != Enforcement::Full)
            }),
        )?;
        self.gauge(
            "weir_group_processes_not_enforced",
            "Processes that match a group and are not limited.",
            ["group"],
            each(groups, |group| {
                group
                    .not_enforced
                    .iter()
                    .map(|one| one.pids.len() as u64)
                    .sum()
            }),
        )?;
        self.seconds(
            "weir_group_cpu_seconds_total",
            "CPU time that a group used.",
            ["group"],
            each(groups, |group| group.cpu.usage_seconds),
        )?;
        self.seconds(
            "weir_group_cpu_throttled_seconds_total",
            "Time for which a group was throttled by its CPU limit.",
            ["group"],
            each(groups, |group| group.cpu.throttled_seconds),
        )?;
        self.ratio(
            "weir_group_cpu_max_ratio",
            "The CPU limit in effect at this moment: 1 is one CPU.",
            ["group"],
            groups
                .iter()
                .filter_map(|group| Some(([group.name.as_str()], group.cpu.max_percent? / 100.0))),
        )?;
        self.gauge(
            "weir_group_memory_bytes",
            "Memory that a group uses.",
            ["group"],
            each(groups, |group| group.memory.current_bytes),
        )?;
        self.gauge(
            "weir_group_memory_high_bytes",
            "Its soft limit.",
            ["group"],
            known(|group| group.memory.high_bytes),
        )?;
        self.gauge(
            "weir_group_memory_max_bytes",
            "Its hard limit.",
            ["group"],
            known(|group| group.memory.max_bytes),
        )?;
        self.counter(
            "weir_group_oom_kills_total",
            "Processes killed at the hard limit.",
            ["group"],
            each(groups, |group| group.memory.oom_kills),
        )?;
        self.counter(
            "weir_group_processes_refused_total",
            "New processes and threads refused above its pids limit.",
            ["group"],
            each(groups, |group| group.pids_refused),
        )?;
        self.counter(
            "weir_group_io_bytes_total",
            "Read from and written to a disk by a group.",
            ["group", "device", "operation"],
            groups.iter().flat_map(|group| {
                group.io.iter().flat_map(|io| {
                    let labels = |operation| [group.name.as_str(), io.device.as_str(), operation];
                    [
                        (labels("read"), io.read_bytes),
                        (labels("write"), io.write_bytes),
                    ]
                })
            }),
        )?;
        self.counter(
            "weir_group_network_bytes_total",
            "Bytes that a group's network limits let through.",
            ["group", "direction"],
            groups.iter().flat_map(|group| {
                let labels = |direction| [group.name.as_str(), direction];
                [
                    (labels("egress"), group.network.egress_bytes),
                    (labels("ingress"), group.network.ingress_bytes),
                ]
            }),
        )?;
        self.counter(
            "weir_group_network_throttled_packets_total",
            "Packets that a group's network limits refused.",
            ["group", "direction"],
            groups.iter().flat_map(|group| {
                let labels = |direction| [group.name.as_str(), direction];
                [
                    (labels("egress"), group.network.egress_throttled_packets),
                    (labels("ingress"), group.network.ingress_throttled_packets),
                ]
            }),
        )?;
        self.counter(
            "weir_group_connects_total",
            "Connections that a group began, by verdict and limit.",
            ["group", "verdict", "limit"],
            groups.iter().flat_map(|group| {
                let labels = |verdict, limit| [group.name.as_str(), verdict, limit];
                let network = &group.network;
                [
                    (labels("passed", "connects"), network.connects),
                    (labels("refused", "connects"), network.connects_refused),
                    (labels("passed", "destinations"), network.destinations),
                    (
                        labels("refused", "destinations"),
                        network.destinations_refused,
                    ),
                ]
            }),
        )?;
        self.ratio(
            "weir_group_pressure_ratio",
            "Share of the last ten seconds in which some process of a group waited for a resource.",
            ["group", "resource"],
            groups.iter().flat_map(|group| {
                let it = &group.pressure;
                [("cpu", it.cpu), ("memory", it.memory), ("io", it.io)]
                    .into_iter()
                    .filter_map(|(resource, percent)| {
                        Some(([group.name.as_str(), resource], percent? / 100.0))
                    })
            }),
        )
    }
}
