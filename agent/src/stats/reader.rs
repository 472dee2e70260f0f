//! Converts counters, table and samples to documents.

mod bans;
mod events;
mod exchange;
mod live;
mod polite;
mod source;
mod trace;

pub(crate) use bans::{holder, owner_text};
pub use live::Live;
pub use source::{ResetError, ResetSources};

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::OnceLock;

use common::counters::{Bypass, Counters, KeyStatistics};
use common::key::Key;
use common::packet::Direction;
use common::rule::Rule;
use common::time::{Ticks, is_alive};
use config::policy::{Action, Config, Limit, Mode};
use datapath::bans::BanList;
use datapath::compile::{Group, LimitAt};
use datapath::counters::by_limit;
use datapath::{Datapath, LoadError, SlotView, Sources};
use host::monotonic_nanoseconds;

use super::counted::{Baseline, Counted, name_at, of_limit};
use super::key_text::key_text;
use super::samples::{self, LimitCounts, Samples, Spans};
use super::{BypassStatus, LevelStatus, LimitStatus, ProofStatus, SourcesStatus, TopRow, Totals};

/// Reads a policy in effect.
pub struct Reader<'a> {
    config: &'a Config,
    ingress: &'a Datapath,
    egress: Option<&'a Datapath>,
    bans: &'a BanList,
    counted: &'a Counted,
    baseline: &'a Baseline,
    /// Mapped on first use.
    table: OnceLock<Sources>,
}

impl<'a> Reader<'a> {
    /// Reads the enforcement of a config by `ingress` and `egress`. `counted` are the counters of earlier policies, and
    /// `baseline` is subtracted.
    #[must_use]
    pub const fn new(
        config: &'a Config,
        (ingress, egress): (&'a Datapath, Option<&'a Datapath>),
        bans: &'a BanList,
        counted: &'a Counted,
        baseline: &'a Baseline,
    ) -> Self {
        Self {
            config,
            ingress,
            egress,
            bans,
            counted,
            baseline,
            table: OnceLock::new(),
        }
    }
}

/// How much of a document is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Extent {
    Whole,
    /// Without the numbers of keys, for which the whole table is read: they are 0.
    Counters,
}

impl<'a> Reader<'a> {
    fn now(&self) -> (u64, Ticks) {
        let nanoseconds = monotonic_nanoseconds();
        (
            nanoseconds,
            self.ingress.settings().scale.ticks(nanoseconds),
        )
    }

    /// The samples of both directions.
    fn samples(&self) -> Result<Vec<(Key, KeyStatistics)>, LoadError> {
        self.ingress.samples_with_rest(self.egress)
    }

    fn datapaths(&self) -> impl Iterator<Item = &Datapath> {
        std::iter::once(self.ingress).chain(self.egress)
    }

    /// The datapath of a limit's direction.
    pub(crate) fn datapath_of(&self, limit: &Limit) -> &'a Datapath {
        match (limit.direction, self.egress) {
            (Direction::Egress, Some(egress)) => egress,
            _ => self.ingress,
        }
    }

    /// The table of sources, shared by both directions.
    fn sources(&self) -> Result<&Sources, LoadError> {
        if let Some(table) = self.table.get() {
            return Ok(table);
        }
        let table = self.ingress.sources()?;
        Ok(self.table.get_or_init(|| table))
    }

    /// The groups of keys in both directions.
    fn groups(&self) -> &[Group] {
        &self.ingress.image().groups
    }

    /// The counters and the table's state for `status`.
    ///
    /// # Errors
    ///
    /// When a map cannot be read.
    pub fn totals(
        &self,
        extent: Extent,
    ) -> Result<(Totals, SourcesStatus, BypassStatus, Option<ProofStatus>), LoadError> {
        let mut counters = Vec::new();
        let mut table = self.counted.table;
        let mut bypassing = self.counted.bypass;
        for datapath in self.datapaths() {
            let rows = datapath.counters()?;
            for (sum, row) in bypassing.iter_mut().zip(&rows) {
                *sum = sum.plus(*row);
            }
            counters.extend(rows);
            table = table.plus(datapath.table_counters()?);
        }
        let sum = counters
            .iter()
            .fold(self.counted.total, |sum, row| sum.plus(*row));
        let totals = Totals {
            passed_packets: sum.passed.packets,
            passed_bytes: sum.passed.bytes,
            throttled_packets: sum.throttled.packets,
            throttled_bytes: sum.throttled.bytes,
        };
        let bypass = bypass_status(|bypass| bypassing[bypass as usize]);
        let tracked = match extent {
            Extent::Whole => self
                .sources()?
                .tracked(self.now().1, self.groups().len())
                .iter()
                .sum(),
            Extent::Counters => 0,
        };
        let sources = SourcesStatus {
            tracked,
            capacity: u64::from(self.ingress.image().max_sources),
            evicted: table.evicted,
            full_passed: table.full_passed,
            full_throttled: table.full_throttled,
            full_shared: table.full_shared,
            contended: table.contended,
        };
        let proves = self.ingress.settings().prove_in_use != 0;
        let proofs = proves.then(|| proof_status(|bypass| bypassing[bypass as usize]));
        Ok((totals, sources, bypass, proofs))
    }

    /// Every limit's counters.
    ///
    /// # Errors
    ///
    /// When a map cannot be read.
    pub fn limits(&self, extent: Extent) -> Result<Vec<LimitStatus>, LoadError> {
        let read = |datapath: &Datapath| -> Result<_, LoadError> {
            Ok(by_limit(datapath.image(), &datapath.counters()?))
        };
        let ingress = read(self.ingress)?;
        let egress = self.egress.map(read).transpose()?;
        let keys = match extent {
            Extent::Whole => self.keys()?,
            Extent::Counters => HashMap::new(),
        };
        let statuses = self.config.limits.iter().enumerate().map(|(nth, limit)| {
            let now = match (limit.direction, &egress) {
                (Direction::Egress, Some(egress)) => egress,
                _ => &ingress,
            };
            let keys = |at: LimitAt| keys.get(&at).copied().unwrap_or(0);
            let of = |at: LimitAt| {
                let name = name_at(limit, at.level);
                let sum = self.counted.named(&name).plus(now(at));
                self.baseline.of_limit(&name, sum)
            };
            let own = LimitAt {
                limit: nth,
                level: 0,
            };
            let sum = of_limit(nth, limit, of);
            let levels = (1..).zip(&limit.levels).map(|(level, it)| {
                let at = LimitAt { limit: nth, level };
                let counters = of(at);
                LevelStatus {
                    level: it.key.to_string(),
                    factor: (!limit.is_fair()).then(|| it.factor.factor()),
                    throttled: counters.throttled.into(),
                    would_throttle: counters.would_throttle.into(),
                    over: counters.over.into(),
                    keys: keys(at),
                }
            });
            LimitStatus {
                definition: limit.into(),
                passed: sum.passed.into(),
                throttled: sum.throttled.into(),
                would_throttle: sum.would_throttle.into(),
                over: sum.over.into(),
                contended: sum.contended.into(),
                keys: keys(own),
                levels: levels.collect(),
                level: None,
                waiting: None,
                without_room: None,
            }
        });
        Ok(statuses.collect())
    }

    /// For each limit at each level, the keys whose state has not decayed.
    fn keys(&self) -> Result<HashMap<LimitAt, u64>, LoadError> {
        let (_, now) = self.now();
        let mut keys = HashMap::new();
        for view in self.sources()?.iter() {
            let Some(group) = self.groups().get(view.group as usize) else {
                continue;
            };
            let mut last = None;
            for (at, rule) in &group.states {
                // Several states of one limit count as one key.
                if last != Some(*at) && is_alive(view.words[usize::from(rule.position)], now) {
                    *keys.entry(*at).or_default() += 1;
                    last = Some(*at);
                }
            }
        }
        // Keys with open connections are not in the table.
        if let Some(connections) = self.ingress.connections() {
            for (key, _) in connections.keys()? {
                let group = self.groups().get(key.group as usize);
                for (at, _) in group.into_iter().flat_map(|group| &group.states) {
                    *keys.entry(*at).or_default() += 1;
                }
            }
        }
        Ok(keys)
    }

    /// The sets of states that packets of each group pass.
    fn spans(&self) -> Spans {
        Spans::of(
            self.datapaths()
                .flat_map(|datapath| &datapath.image().rules),
        )
    }

    /// The counts of each limit for a key.
    fn counts(
        &self,
        key: &Key,
        samples: &Samples,
        spans: &Spans,
    ) -> Result<Vec<LimitCounts>, LoadError> {
        let Some(group) = self.groups().get(key.group as usize) else {
            return Ok(Vec::new());
        };
        let observes = |limit: usize| {
            let limit = self.config.limits.get(limit);
            self.config.agent.mode == Mode::Observe
                || limit.is_some_and(|limit| limit.action == Action::Observe)
        };
        let mut counts = samples.counts(key, (group, spans), self.sources()?, observes);
        self.baseline.subtract(key, &mut counts);
        Ok(counts)
    }

    /// The counts in the slots of all sampled keys.
    ///
    /// # Errors
    ///
    /// When a map cannot be read.
    pub fn counted_by_key(&self) -> Result<HashMap<Key, Vec<LimitCounts>>, LoadError> {
        let spans = self.spans();
        let keys = samples::by_key(self.samples()?).into_iter();
        keys.map(|(key, samples)| Ok((key, self.counts(&key, &samples, &spans)?)))
            .collect()
    }

    /// A key under one limit.
    fn top_row(&self, key: &Key, counts: &LimitCounts, now: u64) -> Option<TopRow> {
        let group = self.groups().get(key.group as usize)?;
        let limit = self.config.limits.get(counts.limit)?;
        Some(TopRow {
            source: self.describe(key, &group.key),
            limit: limit.name.clone(),
            level: limit.level_text(counts.level),
            sources: counts.sources,
            passed_packets: counts.passed,
            passed_precision: counts.precision,
            throttled_packets: counts.refused,
            would_throttle_packets: counts.would_refuse,
            last_throttled_seconds_ago: seconds_since(counts.last(), now),
        })
    }

    /// The most refused and the busiest sampled keys, most refused first: a row for each limit that has passed or
    /// refused packets of a source.
    ///
    /// # Errors
    ///
    /// When a map cannot be read.
    pub fn top(&self) -> Result<Vec<TopRow>, LoadError> {
        let (now, spans) = (self.now().0, self.spans());
        let mut rows: Vec<TopRow> = Vec::new();
        for (key, samples) in samples::by_key(self.samples()?) {
            let counts = self.counts(&key, &samples, &spans)?;
            let known = counts.iter().filter(|counts| counts.is_known());
            rows.extend(known.filter_map(|counts| self.top_row(&key, counts, now)));
        }
        let order = |row: &TopRow| {
            Reverse((
                row.throttled_packets,
                row.would_throttle_packets,
                row.passed_packets,
            ))
        };
        rows.sort_by(|a, b| {
            order(a)
                .cmp(&order(b))
                .then_with(|| (&a.source, &a.limit).cmp(&(&b.source, &b.limit)))
        });
        Ok(rows)
    }

    fn describe(&self, key: &Key, rule: &Rule) -> String {
        key_text(self.config, key, rule, interface_name)
    }
}

/// Packets to which no limit applied, by reason.
pub(crate) fn bypass_status(row: impl Fn(Bypass) -> Counters) -> BypassStatus {
    // On `observe` they pass, and are counted as would-be refusals.
    let refused = |bypass| row(bypass).throttled.packets + row(bypass).would_throttle.packets;
    BypassStatus {
        unlimited: row(Bypass::Unlimited).passed.packets,
        not_ip: row(Bypass::NotIp).passed.packets,
        essential: row(Bypass::Essential).passed.packets,
        never_limit: row(Bypass::NeverLimit).passed.packets,
        malformed: refused(Bypass::Malformed),
        banned: refused(Bypass::Banned),
        essential_throttled: refused(Bypass::EssentialThrottled),
        not_ip_throttled: refused(Bypass::NotIpThrottled),
    }
}

/// Packets of sources that prove their address.
fn proof_status(row: impl Fn(Bypass) -> Counters) -> ProofStatus {
    ProofStatus {
        syns_answered: row(Bypass::Answered).throttled.packets,
        syns_challenged: row(Bypass::Challenged).throttled.packets,
        syns_refused: row(Bypass::Unanswered).throttled.packets,
        syns_passed: row(Bypass::WithoutCookie).over.packets,
        syns_to_closed_ports: row(Bypass::Closed).over.packets,
        acks_accepted: row(Bypass::Proven).over.packets,
        acks_limited: row(Bypass::ProvenRefused).over.packets,
        acks_refused: row(Bypass::Unproven).throttled.packets,
        resets_accepted: row(Bypass::ProvenByReset).over.packets,
    }
}

/// Seconds since an instant of the monotonic clock; `None` if it is 0.
fn seconds_since(at: u64, now: u64) -> Option<f64> {
    (at != 0).then(|| now.saturating_sub(at) as f64 / 1e9)
}

/// (units that would pass, ticks until one passes) of one rule.
fn allowance(sources: &Sources, rule: &Rule, slot: Option<&SlotView>, now: Ticks) -> (u64, Ticks) {
    let Some(slot) = slot else {
        return (rule.most, 0);
    };
    let (limiter, words) = (rule.any_limiter(), sources.state(slot, rule));
    (
        limiter.remaining(&words, now),
        limiter.wait_for_one(&words, now),
    )
}

fn interface_name(index: u32) -> String {
    nix::net::if_::if_indextoname(index).map_or_else(
        |_| index.to_string(),
        |name| name.to_string_lossy().into_owned(),
    )
}
