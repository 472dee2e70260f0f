//! A group's limits as properties of a unit, combined with the unit's own.

use std::collections::BTreeMap;

use config::group::{CpuShare, Group};

use super::disk;
use super::error::GroupsError;
use super::host_paths::Host;
use super::units::{INFINITY, Properties, Value};

/// Properties of disks: bytes and operations a second, each direction.
const DISKS: [&str; 4] = [
    "IOReadBandwidthMax",
    "IOWriteBandwidthMax",
    "IOReadIOPSMax",
    "IOWriteIOPSMax",
];

/// A group's limits as properties of a unit, and those that are not supported.
#[must_use]
pub fn properties(host: &Host, group: &Group) -> (Properties, Vec<GroupsError>) {
    let mut all = Properties::new();
    let mut number = |name: &str, value: Option<u64>| {
        all.extend(value.map(|value| (name.to_owned(), Value::Number(value))));
    };
    number("CPUQuotaPerSecUSec", group.cpu.max.map(quota));
    number("CPUWeight", group.cpu.weight.map(u64::from));
    number("MemoryHigh", group.memory.high.map(|size| size.0));
    number("MemoryMax", group.memory.max.map(|size| size.0));
    number("MemorySwapMax", group.memory.swap_max.map(|size| size.0));
    number("TasksMax", group.pids);
    if let Some(cpus) = &group.cpus {
        all.insert("AllowedCPUs".to_owned(), Value::Cpus(cpus.bits()));
    }
    let (disks, problems) = disk::limits(host, group);
    for (disk, rates) in disks {
        // systemd may see a path that this agent does not; the disk is the same.
        let device = format!("/dev/block/{disk}");
        for (name, value) in DISKS.into_iter().zip(rates) {
            let Some(value) = value else { continue };
            let devices = all
                .entry(name.to_owned())
                .or_insert_with(|| Value::Devices(Vec::new()));
            if let Value::Devices(devices) = devices {
                devices.push((device.clone(), value));
            }
        }
    }
    (all, problems)
}

/// The properties whose limits a cgroup's file has.
#[must_use]
pub fn of_file(file: &str) -> &'static [&'static str] {
    match file {
        "cpu.max" => &["CPUQuotaPerSecUSec"],
        "cpu.weight" => &["CPUWeight"],
        "memory.high" => &["MemoryHigh"],
        "memory.max" => &["MemoryMax"],
        "memory.swap.max" => &["MemorySwapMax"],
        "pids.max" => &["TasksMax"],
        "cpuset.cpus" => &["AllowedCPUs"],
        "io.max" => &DISKS,
        _ => &[],
    }
}

/// All limits; missing ones are set to "none".
#[must_use]
pub fn with_defaults(properties: Properties) -> Properties {
    let numbers = [
        "CPUQuotaPerSecUSec",
        "CPUWeight",
        "MemoryHigh",
        "MemoryMax",
        "MemorySwapMax",
        "TasksMax",
    ];
    let mut all: Properties = numbers
        .map(|name| (name.to_owned(), Value::Number(INFINITY)))
        .into();
    all.insert("AllowedCPUs".to_owned(), Value::Cpus(Vec::new()));
    all.extend(DISKS.map(|name| (name.to_owned(), Value::Devices(Vec::new()))));
    all.extend(properties);
    all
}

/// The CPU quota in microseconds per second.
#[must_use]
pub const fn quota(share: CpuShare) -> u64 {
    share.quota_microseconds() * (1_000_000 / CpuShare::PERIOD_MICROSECONDS)
}

/// Whether the property has its default.
#[must_use]
pub fn is_unset(value: &Value) -> bool {
    match value {
        Value::Number(number) => *number == INFINITY,
        Value::Cpus(bits) => bits.iter().all(|byte| *byte == 0),
        Value::Devices(devices) => devices.is_empty(),
    }
}

/// Whether a property still has the value that was set. systemd writes CPU quotas to a file in whole percents, and
/// reads it again on a reload; the order of devices may change.
#[must_use]
pub fn is_same(name: &str, set: &Value, now: &Value) -> bool {
    const PERCENT: u64 = 10_000;
    match (set, now) {
        (Value::Number(set), Value::Number(now)) if name == "CPUQuotaPerSecUSec" => {
            set / PERCENT == now / PERCENT
        }
        (set, now) => is_equal(set, now),
    }
}

/// Whether two values are equal, in any order of devices.
#[must_use]
pub fn is_equal(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Devices(one), Value::Devices(other)) => {
            one.len() == other.len() && one.iter().all(|device| other.contains(device))
        }
        (one, other) => one == other,
    }
}

/// The group's properties that do not loosen a unit's limits: the lower of both applies. `theirs` is the unit's value
/// without Weir.
#[must_use]
pub fn tightened(theirs: &Properties, ours: &Properties, default_tasks: Option<u64>) -> Properties {
    let lower = |(name, ours): (&String, &Value)| {
        let value = match (ours, theirs.get(name)) {
            // No weight is safer than another; the group's applies.
            (ours, _) if name == "CPUWeight" => ours.clone(),
            (ours, None) => ours.clone(),
            (ours, Some(theirs)) if is_unset(theirs) => ours.clone(),
            (Value::Number(ours), Some(Value::Number(theirs)))
                if name == "TasksMax" && Some(*theirs) == default_tasks =>
            {
                Value::Number(*ours)
            }
            (Value::Number(ours), Some(Value::Number(theirs))) => Value::Number(*ours.min(theirs)),
            (Value::Cpus(ours), Some(Value::Cpus(theirs))) => {
                let common: Vec<u8> = ours
                    .iter()
                    .zip(theirs)
                    .map(|(ours, theirs)| ours & theirs)
                    .collect();
                let is_empty = common.iter().all(|byte| *byte == 0);
                Value::Cpus(if is_empty { theirs.clone() } else { common })
            }
            (Value::Devices(ours), Some(Value::Devices(theirs))) => {
                let mut all: BTreeMap<String, u64> = theirs.iter().cloned().collect();
                for (device, limit) in ours {
                    let known = all.entry(device.clone()).or_insert(*limit);
                    *known = (*known).min(*limit);
                }
                Value::Devices(all.into_iter().collect())
            }
            (ours, Some(_)) => ours.clone(),
        };
        (name.clone(), value)
    };
    ours.iter().map(lower).collect()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use config::parse;

    use super::*;

    #[test]
    fn properties_that_systemd_reorders_are_equal() {
        let devices = |all: &[(&str, u64)]| {
            Value::Devices(
                all.iter()
                    .map(|(name, limit)| ((*name).into(), *limit))
                    .collect(),
            )
        };
        let (one, other) = (
            devices(&[("/dev/a", 1), ("/dev/b", 2)]),
            devices(&[("/dev/b", 2), ("/dev/a", 1)]),
        );
        assert!(is_same("IOReadBandwidthMax", &one, &other));
        assert!(!is_same(
            "IOReadBandwidthMax",
            &one,
            &devices(&[("/dev/a", 1), ("/dev/b", 3)])
        ));
        assert!(!is_same(
            "IOReadBandwidthMax",
            &one,
            &devices(&[("/dev/a", 1)])
        ));
        let quota = |one, other| {
            is_same(
                "CPUQuotaPerSecUSec",
                &Value::Number(one),
                &Value::Number(other),
            )
        };
        assert!(quota(333_000, 330_000) && !quota(333_000, 320_000) && !quota(INFINITY, 330_000));
        assert!(!is_same(
            "MemoryMax",
            &Value::Number(333_000),
            &Value::Number(330_000)
        ));
    }

    fn host() -> Host {
        Host::this(
            &parse(
                Path::new("limits.toml"),
                "[[group]]\nname = \"a\"\npid = 7\n",
            )
            .unwrap()
            .config
            .agent,
        )
    }

    fn of(lines: &str) -> Properties {
        let text = format!("[[group]]\nname = \"a\"\nunit = \"a.service\"\n{lines}\n");
        let config = parse(Path::new("limits.toml"), &text).unwrap().config;
        let (properties, problems) = properties(&host(), &config.groups[0]);
        assert!(problems.is_empty(), "{problems:?}");
        properties
    }

    #[test]
    fn a_groups_limits_are_properties_of_a_unit() {
        let properties = of(
            "cpu = { max = \"150%\", weight = 50 }\npids = 9\ncpus = \"0-1,9\"\n\
                             memory = { high = \"1MiB\", max = \"2MiB\", swap_max = \"0B\" }",
        );
        let number = |name: &str| match &properties[name] {
            Value::Number(number) => *number,
            other => panic!("{other:?}"),
        };
        assert_eq!(number("CPUQuotaPerSecUSec"), 1_500_000);
        assert_eq!((number("CPUWeight"), number("TasksMax")), (50, 9));
        assert_eq!(
            (
                number("MemoryHigh"),
                number("MemoryMax"),
                number("MemorySwapMax")
            ),
            (1 << 20, 2 << 20, 0)
        );
        assert_eq!(properties["AllowedCPUs"], Value::Cpus(vec![0b11, 0b10]));
    }

    #[test]
    fn the_lower_of_a_units_limit_and_the_groups_holds() {
        let ours = of("memory = { max = \"2MiB\" }\npids = 100\ncpu = { weight = 10 }");
        let number = |value| Value::Number(value);
        let theirs = |memory, tasks| {
            Properties::from([
                ("MemoryMax".to_owned(), number(memory)),
                ("TasksMax".to_owned(), number(tasks)),
                ("CPUWeight".to_owned(), number(INFINITY)),
            ])
        };
        let both = tightened(&theirs(1 << 20, 5), &ours, Some(4915));
        assert_eq!(
            (&both["MemoryMax"], &both["TasksMax"]),
            (&number(1 << 20), &number(5))
        );
        let both = tightened(&theirs(INFINITY, 4915), &ours, Some(4915));
        assert_eq!(
            (&both["MemoryMax"], &both["TasksMax"]),
            (&number(2 << 20), &number(100))
        );
        assert_eq!(both["CPUWeight"], number(10));
        let cpus =
            |bits: u8| Properties::from([("AllowedCPUs".to_owned(), Value::Cpus(vec![bits]))]);
        assert_eq!(tightened(&cpus(0b110), &cpus(0b011), None), cpus(0b010));
        assert_eq!(tightened(&cpus(0b100), &cpus(0b011), None), cpus(0b100));
        let disks = |limit| {
            let devices = Value::Devices(vec![("/dev/vda".to_owned(), limit)]);
            Properties::from([("IOReadBandwidthMax".to_owned(), devices)])
        };
        assert_eq!(tightened(&disks(5), &disks(9), None), disks(5));
        assert_eq!(tightened(&disks(9), &disks(5), None), disks(5));
    }
}
