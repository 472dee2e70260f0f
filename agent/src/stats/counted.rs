//! The counters of policies that are no longer in effect, so that totals never decrease, and those at the last
//! `weir limits --reset-counters`, which are subtracted.

use std::collections::{BTreeMap, HashMap};

use common::counters::{BYPASS_ROWS, Counters, TableCounters, Traffic};
use common::key::Key;
use config::policy::Limit;
use datapath::compile::{Image, LimitAt};
use datapath::counters::{sums_of_rows, without_passed};
use serde::{Deserialize, Serialize};

use super::samples::LimitCounts;

/// The name under which the counters of a limit at one of its keys are kept.
#[must_use]
pub fn name_at(limit: &Limit, level: usize) -> String {
    match level.checked_sub(1).and_then(|nth| limit.levels.get(nth)) {
        Some(level) => limit.level_name(level),
        None => limit.name.clone(),
    }
}

/// The names under which counters are kept: the limits, in the config's order, and then their levels.
#[must_use]
pub fn names(limits: &[Limit]) -> Vec<String> {
    let of_levels = limits
        .iter()
        .flat_map(|limit| (1..=limit.levels.len()).map(|level| name_at(limit, level)));
    let own = limits.iter().map(|limit| limit.name.clone());
    own.chain(of_levels).collect()
}

/// For each row of a rule: the index among [`names`], and the row with the span's passed packets.
#[must_use]
pub fn rows(limits: &[Limit], image: &Image) -> Vec<(usize, u32)> {
    let levels_before = |limit: usize| {
        limits
            .iter()
            .take(limit)
            .map(|limit| limit.levels.len())
            .sum::<usize>()
    };
    let index = |limit: usize, level: usize| match level {
        0 => limit,
        level => limits.len() + levels_before(limit) + level - 1,
    };
    image
        .catalogue
        .iter()
        .map(|counted| (index(counted.at.limit, counted.at.level), counted.span))
        .collect()
}

/// Counters of earlier policies.
#[derive(Clone, Debug, Default)]
pub struct Counted {
    /// By limit name; levels are separate.
    pub limits: HashMap<String, Counters>,
    /// Packets without any rule, by reason.
    pub bypass: [Counters; BYPASS_ROWS as usize],
    /// Of all packets.
    pub total: Counters,
    /// Events of the table of sources.
    pub table: TableCounters,
}

/// The serialised form. Each row of counters has packets and bytes of each outcome, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CountedDocument {
    limits: BTreeMap<String, [u64; 8]>,
    /// Packets and bytes that each limit refused because of contention; missing in earlier versions.
    #[serde(default)]
    contended: BTreeMap<String, [u64; 2]>,
    bypass: Vec<[u64; 8]>,
    total: [u64; 8],
    table: BTreeMap<String, u64>,
}

impl Counted {
    /// Adds the counters of one direction of a policy, by the limit's index and the span's row.
    pub fn add(
        &mut self,
        limits: &[String],
        bypass: u32,
        catalogue: &[(usize, u32)],
        rows: &[Counters],
        table: TableCounters,
    ) {
        for (sum, row) in self
            .bypass
            .iter_mut()
            .zip(rows.iter().take(bypass as usize))
        {
            *sum = sum.plus(*row);
        }
        self.total = rows.iter().fold(self.total, |sum, row| sum.plus(*row));
        self.table = self.table.plus(table);
        let rules = (bypass..).zip(catalogue);
        let rules = rules.map(|(row, (limit, span))| (*limit, row, *span));
        for (limit, counters) in sums_of_rows(rules, rows) {
            let Some(name) = limits.get(limit) else {
                continue;
            };
            let sum = self.limits.entry(name.clone()).or_default();
            *sum = sum.plus(counters);
        }
    }

    /// The counters under a name.
    #[must_use]
    pub fn named(&self, name: &str) -> Counters {
        self.limits.get(name).copied().unwrap_or_default()
    }

    /// Adds another one's counters.
    pub fn plus(&mut self, other: &Self) {
        for (name, counters) in &other.limits {
            let sum = self.limits.entry(name.clone()).or_default();
            *sum = sum.plus(*counters);
        }
        for (sum, row) in self.bypass.iter_mut().zip(&other.bypass) {
            *sum = sum.plus(*row);
        }
        self.total = self.total.plus(other.total);
        self.table = self.table.plus(other.table);
    }
}

/// The counters of a limit at all its keys, of those `at` each: its passed packets are those at its own key.
#[must_use]
pub fn of_limit(nth: usize, limit: &Limit, at: impl Fn(LimitAt) -> Counters) -> Counters {
    let levels = (0..=limit.levels.len()).map(|level| at(LimitAt { limit: nth, level }));
    levels
        .reduce(|sum, level| sum.plus(without_passed(level)))
        .unwrap_or_default()
}

fn words(counters: &Counters) -> [u64; 8] {
    let of = |traffic: Traffic| [traffic.packets, traffic.bytes];
    let [passed, throttled, would, over] = [
        counters.passed,
        counters.throttled,
        counters.would_throttle,
        counters.over,
    ]
    .map(of);
    [
        passed[0],
        passed[1],
        throttled[0],
        throttled[1],
        would[0],
        would[1],
        over[0],
        over[1],
    ]
}

fn counters(words: &[u64; 8]) -> Counters {
    let of = |nth: usize| Traffic {
        packets: words[2 * nth],
        bytes: words[2 * nth + 1],
    };
    Counters {
        passed: of(0),
        throttled: of(1),
        would_throttle: of(2),
        over: of(3),
        contended: Traffic::default(),
    }
}

impl From<&Counted> for CountedDocument {
    fn from(counted: &Counted) -> Self {
        let table = [
            ("evicted", counted.table.evicted),
            ("full_passed", counted.table.full_passed),
            ("full_throttled", counted.table.full_throttled),
            ("full_shared", counted.table.full_shared),
            ("contended", counted.table.contended),
        ];
        Self {
            limits: counted
                .limits
                .iter()
                .map(|(name, row)| (name.clone(), words(row)))
                .collect(),
            contended: counted
                .limits
                .iter()
                .filter(|(_, row)| row.contended.packets > 0)
                .map(|(name, row)| (name.clone(), [row.contended.packets, row.contended.bytes]))
                .collect(),
            bypass: counted.bypass.iter().map(words).collect(),
            total: words(&counted.total),
            table: table
                .into_iter()
                .map(|(name, count)| (name.to_owned(), count))
                .collect(),
        }
    }
}

impl From<&CountedDocument> for Counted {
    fn from(document: &CountedDocument) -> Self {
        let table = |name: &str| document.table.get(name).copied().unwrap_or_default();
        let limit = |name: &str, words: &[u64; 8]| {
            let [packets, bytes] = document.contended.get(name).copied().unwrap_or_default();
            Counters {
                contended: Traffic { packets, bytes },
                ..counters(words)
            }
        };
        let mut bypass = [Counters::default(); BYPASS_ROWS as usize];
        for (row, words) in bypass.iter_mut().zip(&document.bypass) {
            *row = counters(words);
        }
        Self {
            limits: document
                .limits
                .iter()
                .map(|(name, words)| (name.clone(), limit(name, words)))
                .collect(),
            bypass,
            total: counters(&document.total),
            table: TableCounters {
                evicted: table("evicted"),
                full_passed: table("full_passed"),
                full_throttled: table("full_throttled"),
                full_shared: table("full_shared"),
                contended: table("contended"),
            },
        }
    }
}

/// Counters at the last reset.
#[derive(Clone, Debug, Default)]
pub struct Baseline {
    /// By limit name.
    pub limits: HashMap<String, Counters>,
    /// By sampled key: the counts in its slot beyond the samples, fewer than 64 packets per state. The samples
    /// themselves are set to 0.
    pub keys: HashMap<Key, Vec<LimitCounts>>,
}

impl Baseline {
    /// A limit's counts since the reset.
    #[must_use]
    pub fn of_limit(&self, name: &str, now: Counters) -> Counters {
        self.limits.get(name).map_or(now, |then| since(now, *then))
    }

    /// Subtracts a key's counts at the reset.
    pub fn subtract(&self, key: &Key, counts: &mut [LimitCounts]) {
        let Some(then) = self.keys.get(key) else {
            return;
        };
        for counts in counts {
            let Some(then) = then.iter().find(|then| then.limit == counts.limit) else {
                continue;
            };
            // A slot that another key has taken meanwhile restarts.
            counts.passed = counts.passed.saturating_sub(then.passed);
            counts.refused = counts.refused.saturating_sub(then.refused);
            counts.would_refuse = counts.would_refuse.saturating_sub(then.would_refuse);
        }
    }
}

fn since(now: Counters, then: Counters) -> Counters {
    let of = |now: Traffic, then: Traffic| Traffic {
        packets: now.packets.saturating_sub(then.packets),
        bytes: now.bytes.saturating_sub(then.bytes),
    };
    Counters {
        passed: of(now.passed, then.passed),
        throttled: of(now.throttled, then.throttled),
        would_throttle: of(now.would_throttle, then.would_throttle),
        over: of(now.over, then.over),
        contended: of(now.contended, then.contended),
    }
}
