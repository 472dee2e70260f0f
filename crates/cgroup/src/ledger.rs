//! The usage of groups per day, saved in the state directory: the ledger of `weir usage`.
//!
//! The kernel's counters start with each cgroup. The ledger saves the last values beside the totals, in one file, so
//! that the next agent continues them. The usage between the last reading and the end of a cgroup is lost; readings are
//! a second apart.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use api::group::{Usage, UsageRow};
use host::Moment;
use serde::{Deserialize, Serialize};

use super::account::Counters;

/// The number of days that are kept.
const MOST_DAYS: usize = 400;
const DAY: u64 = 86_400_000_000_000;

/// The counters of a group's cgroup at an instant.
#[derive(Clone, Debug)]
pub struct Reading {
    pub group: String,
    pub path: String,
    /// Detects that the cgroup was created again under the same path.
    pub inode: u64,
    /// Whether its whole usage is the group's, and not only from now on.
    pub is_groups: bool,
    pub counters: Counters,
}

/// Bytes that a group sent and received.
#[derive(Clone, Debug)]
pub struct Traffic {
    pub group: String,
    pub egress: u64,
    pub ingress: u64,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Seen {
    group: String,
    inode: u64,
    counters: Counters,
}

/// The usage of all groups, and the last values of their counters.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Ledger {
    at: Moment,
    days: BTreeMap<String, BTreeMap<String, Usage>>,
    seen: BTreeMap<String, Seen>,
    traffic: BTreeMap<String, (u64, u64)>,
}

/// The day of an instant, in nanoseconds since 1970.
fn day(wall: u64) -> String {
    let text =
        humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_nanos(wall)).to_string();
    text.chars().take(10).collect()
}

/// Validates a day written as YYYY-MM-DD.
///
/// # Errors
///
/// When it is not a day; the error has the format.
pub fn parse_day(text: &str) -> Result<String, String> {
    let is_day = text.len() == 10 && humantime::parse_rfc3339(&format!("{text}T00:00:00Z")).is_ok();
    if is_day {
        Ok(text.to_owned())
    } else {
        Err(format!(
            "invalid day {text:?}: write YYYY-MM-DD, as in 2026-03-31"
        ))
    }
}

/// The first of the last `days`, of which today is one.
#[must_use]
pub fn first_of_last(days: u64) -> String {
    let before = days.saturating_sub(1).saturating_mul(DAY);
    day(Moment::now().wall.saturating_sub(before))
}

/// The days of a span, and each day's part of it.
fn shares(from: u64, to: u64) -> Vec<(String, f64)> {
    if from >= to || from / DAY == to / DAY {
        return vec![(day(to), 1.0)];
    }
    let whole = (to - from) as f64;
    let part = |nth: u64| {
        let (start, end) = ((nth * DAY).max(from), ((nth + 1) * DAY).min(to));
        (day(start), (end - start) as f64 / whole)
    };
    (from / DAY..=to / DAY).map(part).collect()
}

impl Ledger {
    /// An empty ledger.
    #[must_use]
    pub const fn new(now: Moment) -> Self {
        Self {
            at: now,
            days: BTreeMap::new(),
            seen: BTreeMap::new(),
            traffic: BTreeMap::new(),
        }
    }

    /// Adds the usage since the last reading.
    pub fn look(&mut self, now: Moment, readings: &[Reading], traffic: &[Traffic]) {
        let is_same_boot = now.boot == self.at.boot;
        let elapsed = if is_same_boot {
            now.monotonic.saturating_sub(self.at.monotonic) as f64 / 1e9
        } else {
            0.0
        };
        // A clock change is not elapsed time. Usage before this boot is not in these readings.
        let passed = if is_same_boot {
            now.monotonic.saturating_sub(self.at.monotonic)
        } else {
            now.wall.saturating_sub(self.at.wall).min(now.monotonic)
        };
        let span = shares(now.wall.saturating_sub(passed), now.wall);
        let before = if is_same_boot {
            std::mem::take(&mut self.seen)
        } else {
            BTreeMap::new()
        };
        let mut seen = BTreeMap::new();
        for reading in readings {
            let is_known = |one: &&Seen| one.inode == reading.inode && one.group == reading.group;
            let last = before
                .get(&reading.path)
                .filter(is_known)
                .map(|one| one.counters);
            // After a reboot, the usage of a known group's cgroup is the group's from its start.
            let is_groups = reading.is_groups || (!is_same_boot && self.has(&reading.group));
            let from = last.unwrap_or(if is_groups {
                Counters::default()
            } else {
                reading.counters
            });
            let (now, mean) = (
                reading.counters,
                (from.memory_bytes as f64 + reading.counters.memory_bytes as f64) / 2.0,
            );
            let used = Usage {
                cpu_seconds: (now.cpu_seconds - from.cpu_seconds).max(0.0),
                memory_byte_seconds: mean * elapsed,
                disk_read_bytes: now.read_bytes.saturating_sub(from.read_bytes),
                disk_write_bytes: now.write_bytes.saturating_sub(from.write_bytes),
                ..Usage::default()
            };
            self.add(&reading.group, &used, &span);
            let one = Seen {
                group: reading.group.clone(),
                inode: reading.inode,
                counters: now,
            };
            seen.insert(reading.path.clone(), one);
        }
        self.seen = seen;
        if !is_same_boot {
            // Network counters restart, and may already be higher than before the reboot.
            self.traffic.clear();
        }
        for one in traffic {
            let last = self
                .traffic
                .insert(one.group.clone(), (one.egress, one.ingress))
                .unwrap_or_default();
            // Lower counters than before are new ones.
            let last = if one.egress < last.0 || one.ingress < last.1 {
                (0, 0)
            } else {
                last
            };
            let used = Usage {
                network_egress_bytes: one.egress - last.0,
                network_ingress_bytes: one.ingress - last.1,
                ..Usage::default()
            };
            self.add(&one.group, &used, &span);
        }
        self.at = now;
        while self.days.len() > MOST_DAYS {
            self.days.pop_first();
        }
    }

    fn has(&self, group: &str) -> bool {
        self.days.values().any(|groups| groups.contains_key(group))
    }

    fn add(&mut self, group: &str, used: &Usage, span: &[(String, f64)]) {
        let mut left = *used;
        for (nth, (day, share)) in span.iter().enumerate() {
            let is_last = nth + 1 == span.len();
            let bytes = |all: u64, left: &mut u64| {
                let part = if is_last {
                    *left
                } else {
                    ((all as f64 * share) as u64).min(*left)
                };
                *left -= part;
                part
            };
            let total = self
                .days
                .entry(day.clone())
                .or_default()
                .entry(group.to_owned())
                .or_default();
            total.cpu_seconds += used.cpu_seconds * share;
            total.memory_byte_seconds += used.memory_byte_seconds * share;
            total.disk_read_bytes += bytes(used.disk_read_bytes, &mut left.disk_read_bytes);
            total.disk_write_bytes += bytes(used.disk_write_bytes, &mut left.disk_write_bytes);
            total.network_egress_bytes +=
                bytes(used.network_egress_bytes, &mut left.network_egress_bytes);
            total.network_ingress_bytes +=
                bytes(used.network_ingress_bytes, &mut left.network_ingress_bytes);
        }
    }

    /// The rows of these days, both included, for one group or all.
    #[must_use]
    pub fn rows(&self, group: Option<&str>, from: Option<&str>, to: Option<&str>) -> Vec<UsageRow> {
        let is_wanted = |day: &&String| {
            from.is_none_or(|from| from <= day.as_str()) && to.is_none_or(|to| day.as_str() <= to)
        };
        let days = self.days.iter().filter(|(day, _)| is_wanted(day));
        let rows = days.flat_map(|(day, groups)| {
            let groups = groups
                .iter()
                .filter(|(name, _)| group.is_none_or(|group| group == name.as_str()));
            groups.map(|(name, usage)| UsageRow {
                day: day.clone(),
                group: name.clone(),
                usage: *usage,
            })
        });
        rows.collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOON: u64 = 20_000 * DAY + DAY / 2;
    const SECOND: u64 = 1_000_000_000;

    fn at(boot: &str, seconds: u64) -> Moment {
        Moment {
            boot: boot.to_owned(),
            monotonic: seconds * SECOND,
            wall: NOON + seconds * SECOND,
        }
    }

    fn reading(inode: u64, cpu_seconds: f64, memory_bytes: u64, is_groups: bool) -> Reading {
        let counters = Counters {
            cpu_seconds,
            memory_bytes,
            read_bytes: 10,
            write_bytes: 20,
        };
        Reading {
            group: "g".to_owned(),
            path: "/a".to_owned(),
            inode,
            is_groups,
            counters,
        }
    }

    fn traffic(egress: u64) -> Traffic {
        Traffic {
            group: "g".to_owned(),
            egress,
            ingress: 0,
        }
    }

    fn total(ledger: &Ledger) -> Usage {
        ledger.rows(Some("g"), None, None)[0].usage
    }

    #[test]
    fn use_before_a_process_joined_its_group_is_not_charged() {
        let mut ledger = Ledger::new(at("a", 0));
        ledger.look(at("a", 1), &[reading(7, 5.0, 1_000, false)], &[]);
        let first = Usage {
            memory_byte_seconds: 1_000.0,
            ..Usage::default()
        };
        assert_eq!(total(&ledger), first);
        ledger.look(at("a", 3), &[reading(7, 6.5, 3_000, false)], &[]);
        assert_eq!(total(&ledger).cpu_seconds, 1.5);
        assert_eq!(total(&ledger).memory_byte_seconds, 1_000.0 + 4_000.0);
        // The cgroup was created again.
        ledger.look(at("a", 4), &[reading(8, 0.5, 0, true)], &[]);
        assert_eq!(
            (total(&ledger).cpu_seconds, total(&ledger).disk_read_bytes),
            (2.0, 10)
        );
    }

    #[test]
    fn a_restart_of_the_agent_and_a_reboot_charge_all_and_nothing_twice() {
        let mut ledger = Ledger::new(at("a", 0));
        ledger.look(at("a", 1), &[reading(7, 5.0, 0, true)], &[traffic(100)]);
        let text = serde_json::to_vec(&ledger).unwrap();
        let mut ledger: Ledger = serde_json::from_slice(&text).unwrap();
        // Another agent finds the same cgroup.
        ledger.look(at("a", 60), &[reading(7, 9.0, 0, false)], &[traffic(150)]);
        assert_eq!(
            (
                total(&ledger).cpu_seconds,
                total(&ledger).network_egress_bytes
            ),
            (9.0, 150)
        );
        // Another boot: counters start at 0, whatever the cgroup's inode.
        ledger.look(
            at("b", 80),
            &[reading(7, 2.0, 1 << 30, false)],
            &[traffic(20)],
        );
        assert_eq!(
            (
                total(&ledger).cpu_seconds,
                total(&ledger).network_egress_bytes
            ),
            (11.0, 170)
        );
        assert_eq!(total(&ledger).memory_byte_seconds, 0.0, "the host was off");
        // And again: the network's counter is already above the previous one's last value.
        ledger.look(at("c", 100), &[reading(7, 1.0, 0, false)], &[traffic(500)]);
        assert_eq!(
            (
                total(&ledger).cpu_seconds,
                total(&ledger).network_egress_bytes
            ),
            (12.0, 670)
        );
    }

    #[test]
    fn a_look_over_midnight_is_shared_by_both_days() {
        let mut ledger = Ledger::new(at("a", 0));
        ledger.look(at("a", 0), &[reading(7, 0.0, 0, true)], &[traffic(0)]);
        let half_a_day = DAY / 2 / SECOND;
        ledger.look(
            at("a", half_a_day * 4),
            &[reading(7, 40.0, 0, true)],
            &[traffic(41)],
        );
        let days = ledger.rows(None, None, None);
        let cpu: Vec<f64> = days.iter().map(|row| row.usage.cpu_seconds).collect();
        let sent: Vec<u64> = days
            .iter()
            .map(|row| row.usage.network_egress_bytes)
            .collect();
        assert_eq!((cpu, sent), (vec![10.0, 20.0, 10.0], vec![10, 20, 11]));
        let second = days[1].day.as_str();
        assert_eq!(ledger.rows(None, Some(second), Some(second)).len(), 1);
        assert_eq!(ledger.rows(Some("h"), None, None), []);
    }

    #[test]
    fn a_clock_that_is_set_back_takes_nothing_back() {
        let mut ledger = Ledger::new(at("a", 100));
        ledger.look(at("a", 101), &[reading(7, 1.0, 0, true)], &[]);
        let back = Moment {
            wall: NOON - 10 * DAY,
            ..at("a", 102)
        };
        ledger.look(back, &[reading(7, 2.0, 0, true)], &[]);
        let cpu: f64 = ledger
            .rows(None, None, None)
            .iter()
            .map(|row| row.usage.cpu_seconds)
            .sum();
        assert_eq!(cpu, 2.0);
    }

    #[test]
    fn a_clock_that_is_wrong_for_a_while_removes_no_day() {
        let mut ledger = Ledger::new(at("a", 0));
        ledger.look(at("a", 1), &[reading(7, 1.0, 0, true)], &[traffic(10)]);
        let wrong = |wall| Moment { wall, ..at("a", 2) };
        // A clock without a battery shows 1970; one with a bad battery, another century.
        for wall in [0, NOON + 80 * 366 * DAY] {
            let mut ledger = ledger.clone();
            ledger.look(wrong(wall), &[reading(7, 2.0, 0, true)], &[traffic(20)]);
            ledger.look(at("a", 3), &[reading(7, 3.0, 0, true)], &[traffic(30)]);
            let today = ledger.rows(None, Some(&day(NOON)), Some(&day(NOON)));
            assert_eq!(
                (
                    today[0].usage.cpu_seconds,
                    today[0].usage.network_egress_bytes
                ),
                (2.0, 20),
                "{wall}"
            );
            assert_eq!(ledger.rows(None, None, None).len(), 2, "{wall}");
        }
        // The first reading after a reboot, before the clock is set, and the one after that.
        ledger.look(
            Moment {
                wall: 0,
                ..at("b", 5)
            },
            &[reading(7, 1.0, 0, true)],
            &[],
        );
        ledger.look(at("b", 6), &[reading(7, 2.0, 0, true)], &[]);
        let days: Vec<String> = ledger
            .rows(None, None, None)
            .into_iter()
            .map(|row| row.day)
            .collect();
        assert_eq!(days, [day(0), day(NOON)]);
    }

    #[test]
    fn days_are_those_of_the_calendar() {
        assert_eq!(day(0), "1970-01-01");
        assert_eq!(parse_day("2026-02-28").as_deref(), Ok("2026-02-28"));
        for wrong in ["2026-02-30", "2026-2-3", "yesterday", ""] {
            assert!(
                parse_day(wrong).unwrap_err().contains("YYYY-MM-DD"),
                "{wrong}"
            );
        }
    }
}
