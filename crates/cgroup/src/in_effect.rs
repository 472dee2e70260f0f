//! Whether a limit is in effect: the content of a cgroup's file compared with a group's value.

use std::collections::BTreeSet;

use super::level::level;
use super::limit::Setting;

/// Whether a file's content limits at least as much as the group's value.
#[must_use]
pub fn is_in_effect(setting: &Setting, now: &str) -> bool {
    let ours = setting.value.as_str();
    match setting.file {
        "cpuset.cpus" => {
            let (now, ours) = (cpus(now), cpus(ours));
            !now.is_empty() && now.is_subset(&ours)
        }
        "io.max" => rates(ours).all(|(key, ours)| {
            let now = rates(now).find(|(name, _)| *name == key);
            now.is_some_and(|(_, now)| now <= ours)
        }),
        // With the same quota, a shorter period is more CPU time.
        "cpu.cfs_period_us" => level(now)
            .zip(level(ours))
            .is_some_and(|(now, ours)| now >= ours),
        file if file.starts_with("blkio.") => {
            let rate = |text: &str| text.split(' ').next_back()?.parse::<u64>().ok();
            rate(now)
                .zip(rate(ours))
                .is_some_and(|(now, ours)| now <= ours)
        }
        _ => level(now)
            .zip(level(ours))
            .is_some_and(|(now, ours)| now <= ours),
    }
}

/// The lower of the group's value and another program's. Without a CPU that both allow, the other program's stays.
#[must_use]
pub fn lower(setting: &Setting, theirs: &str) -> String {
    let ours = setting.value.as_str();
    match setting.file {
        "cpuset.cpus" => {
            let common: Vec<String> = cpus(ours)
                .intersection(&cpus(theirs))
                .map(ToString::to_string)
                .collect();
            if common.is_empty() {
                theirs.to_owned()
            } else {
                common.join(",")
            }
        }
        "io.max" => {
            let disk = ours.split(' ').next().unwrap_or_default();
            let keys = ["rbps", "wbps", "riops", "wiops"].map(|key| {
                let rate = rates(ours)
                    .chain(rates(theirs))
                    .filter(|(name, _)| *name == key)
                    .map(|(_, rate)| rate)
                    .min();
                let rate = rate.map_or_else(|| "max".to_owned(), |rate| rate.to_string());
                format!("{key}={rate}")
            });
            format!("{disk} {}", keys.join(" "))
        }
        // No weight is safer than another.
        "cpu.weight" | "cpu.shares" | "cpu.cfs_period_us" => ours.to_owned(),
        _ if is_in_effect(setting, theirs) => theirs.to_owned(),
        _ => ours.to_owned(),
    }
}

/// The limited rates of a disk's line in `io.max`.
fn rates(line: &str) -> impl Iterator<Item = (&str, u64)> {
    line.split(' ').filter_map(|field| {
        let (key, rate) = field.split_once('=')?;
        Some((key, rate.parse().ok()?))
    })
}

/// The CPUs of a list such as `0-1,4`.
fn cpus(list: &str) -> BTreeSet<u16> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.trim().parse().ok()?..=last.trim().parse().ok()?)
    };
    list.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limit::Origin;

    fn setting(file: &'static str, value: &str) -> Setting {
        Setting {
            file,
            value: value.to_owned(),
            default: "max".to_owned(),
            origin: Origin::Wanted,
        }
    }

    #[test]
    fn a_lower_limit_is_in_effect_and_a_higher_one_or_none_is_not() {
        for (file, ours, lower, higher) in [
            ("memory.max", "2097152", "1048576", "4194304"),
            ("memory.max", "2097152", "2097152", "max"),
            ("pids.max", "9", "0", ""),
            ("cpu.max", "50000 100000", "5000 10000", "50000 50000"),
            ("cpu.max", "50000 100000", "50000 100000", "max 100000"),
            ("cpu.weight", "50", "20", "100"),
            ("cpuset.cpus", "0-1,4", "1,4", "1-2"),
            ("cpuset.cpus", "0-1", "0", ""),
            (
                "io.max",
                "8:0 rbps=9 wbps=max riops=max wiops=7",
                "8:0 rbps=5 wbps=3 riops=max wiops=7",
                "8:0 rbps=5 wbps=3 riops=1 wiops=max",
            ),
            (
                "io.max",
                "8:0 rbps=9 wbps=max riops=max wiops=max",
                "8:0 rbps=9",
                "",
            ),
            ("cpu.cfs_quota_us", "50000", "20000", "-1"),
            ("cpu.cfs_period_us", "100000", "200000", "50000"),
            (
                "memory.limit_in_bytes",
                "4096",
                "4096",
                "9223372036854771712",
            ),
            ("blkio.throttle.read_bps_device", "8:0 9", "8:0 8", "8:0 10"),
        ] {
            let ours = setting(file, ours);
            assert!(is_in_effect(&ours, lower), "{file} {lower}");
            assert!(!is_in_effect(&ours, higher), "{file} {higher}");
        }
    }

    #[test]
    fn the_lower_of_both_is_that_of_each_rate_and_of_common_cpus() {
        for (file, ours, theirs, both) in [
            ("memory.max", "2", "4", "2"),
            ("memory.max", "4", "2", "2"),
            ("memory.max", "4", "max", "4"),
            ("cpuset.cpus", "0-1", "1-3", "1"),
            ("cpuset.cpus", "0-1", "2-3", "2-3"),
            (
                "io.max",
                "8:0 rbps=9 wbps=max riops=max wiops=7",
                "8:0 rbps=5 wbps=3 riops=max wiops=max",
                "8:0 rbps=5 wbps=3 riops=max wiops=7",
            ),
        ] {
            assert_eq!(lower(&setting(file, ours), theirs), both, "{file} {theirs}");
        }
    }
}
