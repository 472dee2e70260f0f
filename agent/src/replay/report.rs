//! The document of `weir replay`.

use std::net::{IpAddr, Ipv6Addr};

use api::capture::CaptureOf;
use common::counters::Counters;
use common::key::Key;
use common::packet::Address;
use config::policy;
use datapath::compile::LimitAt;
use serde::ser::Error as _;
use serde::{Serialize, Serializer};

use super::capture::InterfaceNames;
use super::evaluation::Evaluation;
use super::refused::{Refused, RefusedSource, SourceKey};
use super::timeline::TimelineDocument;
use super::{ClockTroubles, Outcome};
use crate::stats::{
    BypassStatus, Count, LimitDefinition, SourcesStatus, bypass_status, key_text, source_count,
};

/// The most sources in the document.
pub const LISTED: usize = 100;
const SECOND: f64 = 1e9;

/// `weir replay --json`.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// In the order given.
    pub captures: Vec<CaptureReport>,
    /// Captured time of the first packet, in seconds since 1970; `null` without packets.
    pub from: Option<f64>,
    /// The time from the first packet to the last, on the replay's clock.
    pub seconds: f64,
    /// Packets that were read and parsed.
    pub packets: u64,
    /// Packets with an unknown direction: evaluated as ingress.
    pub undirected_packets: u64,
    /// Packets with irregular times.
    pub clock: ClockTroubles,
    /// The config, and with `--compare` the other one.
    pub configs: Vec<ConfigReport>,
    /// The differences of the two configs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub comparison: Option<ComparisonReport>,
    /// Notes for the operator.
    pub notes: Vec<String>,
}

#[derive(Clone, Debug, Serialize)]
pub struct CaptureReport {
    /// The path as given.
    pub file: String,
    /// `pcap` or `pcapng`; `null` if it could not be opened.
    pub format: Option<String>,
    /// `none`, `gzip` or `zstd`.
    pub compression: Option<String>,
    pub packets: u64,
    /// Packets skipped: of unsupported link types, or truncated within the capture's own header.
    pub skipped: u64,
    /// One in this many sources is in a capture of `weir record --capture`; `null` for other captures.
    pub one_in: Option<u32>,
    /// The packets in it.
    pub of: Option<CaptureOf>,
    /// Its packets that were lost while it was captured.
    pub lost: u64,
    /// Why it could not be read, or not to its end.
    pub error: Option<String>,
}

/// The result of one config.
#[derive(Clone, Debug, Serialize)]
pub struct ConfigReport {
    pub config: String,
    /// `enforce` or `observe`.
    pub mode: String,
    /// All packets that were evaluated.
    pub passed: Count,
    pub throttled: Count,
    /// Packets above a limit on `observe`, or above any limit of a config on `observe`; each once, however many limits it
    /// exceeds.
    pub would_throttle: Count,
    /// Packets evaluated as ingress.
    pub ingress_packets: u64,
    /// Packets evaluated as egress, including those without limits.
    pub egress_packets: u64,
    /// Packets that were not evaluated because too little was captured.
    pub unknown_packets: u64,
    /// Packets evaluated, although the programs read beyond the captured part.
    pub cut_packets: u64,
    /// Packets to which no limit applied, by reason.
    pub bypass: BypassStatus,
    pub table: SourcesStatus,
    /// Limits on packets, in the file's order.
    pub limits: Vec<LimitReport>,
    /// The sources with the most refusals, most first.
    pub sources: Vec<SourceReport>,
    /// The most refusals of any source that may be missing from its count.
    pub sources_error: u64,
}

/// A definition without its `classes`, a name that a limit of this document has for counts.
fn without_classes<S: Serializer>(
    definition: &LimitDefinition,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let mut value = serde_json::to_value(definition).map_err(S::Error::custom)?;
    if let Some(object) = value.as_object_mut() {
        object.remove("classes");
    }
    value.serialize(serializer)
}

#[derive(Clone, Debug, Serialize)]
pub struct LimitReport {
    #[serde(flatten, serialize_with = "without_classes")]
    pub definition: LimitDefinition,
    /// Packets that conformed to this and all other limits on them.
    pub passed: Count,
    /// Refused by this limit.
    pub throttled: Count,
    /// Packets that would be refused if the limit were not on `observe`.
    pub would_throttle: Count,
    /// Packets that passed above it, because it is soft or marks them.
    pub over: Count,
    /// The limit's levels, without keys; absent without levels. The limit's other counts include theirs.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub levels: Vec<LevelReport>,
    /// The same by class; classes without packets are omitted.
    pub classes: Vec<ClassReport>,
    /// The counts over time.
    pub timeline: TimelineDocument,
}

/// The result of one level of a limit.
#[derive(Clone, Debug, Serialize)]
pub struct LevelReport {
    /// Its key: prefix lengths as in `24/48`, or `all`.
    pub level: String,
    /// As in [`LimitReport`].
    pub throttled: Count,
    /// As in [`LimitReport`].
    pub would_throttle: Count,
    /// As in [`LimitReport`].
    pub over: Count,
}

/// The result of a limit for one class.
#[derive(Clone, Debug, Serialize)]
pub struct ClassReport {
    pub class: String,
    /// As in [`LimitReport`].
    pub passed: Count,
    /// As in [`LimitReport`].
    pub throttled: Count,
    /// As in [`LimitReport`].
    pub would_throttle: Count,
}

/// The result of a limit for one source.
#[derive(Clone, Debug, Serialize)]
pub struct SourceReport {
    /// The address, or the prefix that shares one key.
    pub source: String,
    /// The limit that refused it.
    pub limit: String,
    /// The level whose key it is; absent for the limit's own key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// Under a level: an estimate of the sources whose packets it refused.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sources: Option<u64>,
    pub class: String,
    /// Whether the limit is on `observe`: its packets passed.
    pub observed: bool,
    /// Packets refused, or that would be refused.
    pub throttled_packets: u64,
    pub throttled_bytes: u64,
    /// Packets passed since the first refusal, in steps of 64.
    pub passed_packets: u64,
    /// Captured time of the first refused packet, in seconds since 1970.
    pub first: f64,
    pub last: f64,
    /// Refused packets in the second with the most.
    pub peak_per_second: u64,
    /// The start of that second, in seconds since 1970.
    pub peak_at: f64,
}

/// The differences of two configs.
#[derive(Clone, Debug, Serialize)]
pub struct ComparisonReport {
    /// Packets that both pass.
    pub both_pass: u64,
    /// Packets that both refuse.
    pub both_refuse: u64,
    /// Packets that only the first config refuses.
    pub only_first_refuses: u64,
    /// Packets that only the second one refuses.
    pub only_second_refuses: u64,
    /// Their sources, most first.
    pub first_sources: Vec<DifferingSource>,
    /// Their sources, most first.
    pub second_sources: Vec<DifferingSource>,
}

/// A source that only one of the configs refuses.
#[derive(Clone, Debug, Serialize)]
pub struct DifferingSource {
    pub source: String,
    pub packets: u64,
    /// Captured time of the first, in seconds since 1970.
    pub first: f64,
    pub last: f64,
}

impl Report {
    /// The report of a completed replay; `files` are the evaluations' configs.
    #[must_use]
    pub fn of(outcome: &Outcome, evaluations: &[Evaluation<'_>], files: &[String]) -> Self {
        let captures: Vec<CaptureReport> = outcome.captures.iter().map(CaptureReport::of).collect();
        Self {
            from: outcome.clock.first().map(seconds),
            seconds: outcome.clock.elapsed() as f64 / SECOND,
            packets: captures.iter().map(|capture| capture.packets).sum(),
            undirected_packets: outcome.undirected,
            clock: outcome.clock.troubles(),
            configs: evaluations
                .iter()
                .zip(files)
                .map(|(evaluation, file)| ConfigReport::of(evaluation, file, &outcome.interfaces))
                .collect(),
            comparison: outcome
                .comparison
                .as_ref()
                .map(|comparison| ComparisonReport {
                    both_pass: comparison.both_pass,
                    both_refuse: comparison.both_refuse,
                    only_first_refuses: comparison.only[0],
                    only_second_refuses: comparison.only[1],
                    first_sources: differing(&comparison.sources[0]),
                    second_sources: differing(&comparison.sources[1]),
                }),
            notes: super::notes::of(outcome, evaluations),
            captures,
        }
    }

    /// Whether every capture was read to its end.
    #[must_use]
    pub fn is_complete(&self) -> bool {
        self.captures.iter().all(|capture| capture.error.is_none())
    }
}

impl CaptureReport {
    fn of(read: &super::ReadCapture) -> Self {
        Self {
            file: read.path.display().to_string(),
            format: read.format.map(str::to_owned),
            compression: read.compression.map(str::to_owned),
            packets: read.packets,
            skipped: read.skipped.link_types.values().sum::<u64>() + read.skipped.headerless,
            one_in: read.origin.sample.map(|sample| sample.one_in),
            of: read.origin.sample.map(|sample| sample.of),
            lost: read.origin.lost,
            error: read.error.as_ref().map(ToString::to_string),
        }
    }
}

impl ConfigReport {
    fn of(evaluation: &Evaluation<'_>, file: &str, interfaces: &InterfaceNames) -> Self {
        let config = evaluation.config();
        let totals = evaluation.totals();
        let tally = evaluation.tally();
        let bypass = bypass_status(|bypass| evaluation.bypass(bypass));
        let table = evaluation
            .programs()
            .fold(SourcesStatus::default(), |sum, program| {
                let counted = program.table_counters();
                SourcesStatus {
                    capacity: program.image().settings.shape.capacity(),
                    evicted: sum.evicted + counted.evicted,
                    full_passed: sum.full_passed + counted.full_passed,
                    full_throttled: sum.full_throttled + counted.full_throttled,
                    full_shared: sum.full_shared + counted.full_shared,
                    contended: sum.contended + counted.contended,
                    tracked: evaluation.tracked(),
                }
            });
        let mut sources = sources_of(evaluation, evaluation.refused(), false, interfaces);
        sources.extend(sources_of(
            evaluation,
            evaluation.would_refuse(),
            true,
            interfaces,
        ));
        sources.retain(|source| source.throttled_packets > 0);
        sources.sort_by_key(|source| std::cmp::Reverse(source.throttled_packets));
        sources.truncate(LISTED);
        Self {
            config: file.to_owned(),
            mode: config.agent.mode.to_string(),
            passed: totals.passed.into(),
            throttled: totals.throttled.into(),
            would_throttle: tally.would_refuse.into(),
            ingress_packets: tally.ingress,
            egress_packets: tally.egress + tally.egress_unlimited.packets,
            unknown_packets: tally.unknown,
            cut_packets: tally.cut,
            bypass: BypassStatus {
                unlimited: bypass.unlimited + tally.egress_unlimited.packets,
                ..bypass
            },
            table,
            limits: (0..config.limits.len())
                .map(|nth| LimitReport::of(evaluation, nth))
                .collect(),
            sources,
            sources_error: evaluation
                .refused()
                .missed()
                .max(evaluation.would_refuse().missed()),
        }
    }
}

impl LimitReport {
    fn of(evaluation: &Evaluation<'_>, nth: usize) -> Self {
        let config = evaluation.config();
        let Counters {
            passed,
            throttled,
            would_throttle,
            over,
            ..
        } = evaluation.counters(nth, None);
        let classes =
            (0..=config.classes.len()).map(|class| (class, evaluation.counters(nth, Some(class))));
        Self {
            definition: LimitDefinition::from(&config.limits[nth]),
            passed: passed.into(),
            throttled: throttled.into(),
            would_throttle: would_throttle.into(),
            over: over.into(),
            levels: (1..=config.limits[nth].levels.len())
                .filter_map(|level| {
                    let counters = evaluation.level_counters(LimitAt { limit: nth, level });
                    Some(LevelReport {
                        level: config.limits[nth].level_text(level)?,
                        throttled: counters.throttled.into(),
                        would_throttle: counters.would_throttle.into(),
                        over: counters.over.into(),
                    })
                })
                .collect(),
            classes: classes
                .filter(|(_, counters)| *counters != Counters::default())
                .map(|(class, counters)| ClassReport {
                    class: policy::class_name(&config.classes, class as u32).to_owned(),
                    passed: counters.passed.into(),
                    throttled: counters.throttled.into(),
                    would_throttle: counters.would_throttle.into(),
                })
                .collect(),
            timeline: evaluation.timeline().document(nth),
        }
    }
}

fn sources_of(
    evaluation: &Evaluation<'_>,
    refused: &Refused,
    observed: bool,
    interfaces: &InterfaceNames,
) -> Vec<SourceReport> {
    let config = evaluation.config();
    let row = |(key, source): (SourceKey, RefusedSource)| {
        let limit = config.limits.get(key.at.limit)?;
        let rule = evaluation.rule_of(key.at)?;
        Some(SourceReport {
            source: key_text(config, &key.key, rule, |index| {
                interfaces.name(index).unwrap_or("unknown").to_owned()
            }),
            limit: limit.name.clone(),
            level: limit.level_text(key.at.level),
            sources: source_count::estimate(&source.senders),
            class: policy::class_name(&config.classes, source.class).to_owned(),
            observed,
            throttled_packets: source.packets,
            throttled_bytes: source.bytes,
            passed_packets: source.passed,
            first: seconds(source.first),
            last: seconds(source.last),
            peak_per_second: source.peak,
            peak_at: seconds(source.peak_at),
        })
    };
    refused.top(LISTED).into_iter().filter_map(row).collect()
}

fn differing(refused: &Refused) -> Vec<DifferingSource> {
    let row = |(key, source): (SourceKey, RefusedSource)| DifferingSource {
        source: address_text(&key.key),
        packets: source.packets,
        first: seconds(source.first),
        last: seconds(source.last),
    };
    refused.top(LISTED).into_iter().map(row).collect()
}

fn address_text(key: &Key) -> String {
    IpAddr::from(Ipv6Addr::from(
        Address {
            hi: key.hi,
            lo: key.lo,
        }
        .octets(),
    ))
    .to_canonical()
    .to_string()
}

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / SECOND
}
