//! The first of many sources with their rates, from two consecutive samples.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use common::key::Key;
use common::packet::Address;
use common::rule::KeyKind;
use datapath::LoadError;
use datapath::compile::PrefixKey;

use super::Reader;
use crate::stats::samples::{self, LimitCounts};
use crate::stats::{MOST_SOURCES, Sort, SourceLoad, View, ViewQuery};

/// The least time between two samples for a rate, since there may be several viewers.
const APART: Duration = Duration::from_millis(500);
/// The time without a query after which there is no viewer.
const UNWATCHED: Duration = Duration::from_secs(60);

/// The counters of the last sample and the rates up to it, for the kernel's sampled keys: at most some 16,000, a
/// megabyte. Empty without viewers.
#[derive(Default)]
pub struct Live(Option<Look>);

struct Look {
    at: Instant,
    counts: HashMap<Row, Counts>,
    rates: Option<HashMap<Row, Rates>>,
}

/// A key and a limit, by its index in the config.
type Row = (Key, usize);

#[derive(Clone, Copy, Default)]
struct Counts {
    passed: u64,
    /// Includes packets that would have been refused.
    refused: u64,
}

#[derive(Clone, Copy, Default)]
struct Rates {
    passed: f64,
    refused: f64,
}

struct Candidate {
    key: Key,
    all: LimitCounts,
    counts: Counts,
    rates: Rates,
}

impl Candidate {
    const fn row(&self) -> Row {
        (self.key, self.all.limit)
    }
}

impl Live {
    /// Removes the sample if there is no viewer.
    pub fn forget_if_unwatched(&mut self) {
        self.0.take_if(|look| look.at.elapsed() >= UNWATCHED);
    }

    /// The sources of a view.
    ///
    /// # Errors
    ///
    /// When a map cannot be read.
    pub fn view(
        &mut self,
        reader: &Reader<'_>,
        query: &ViewQuery,
        within: Option<PrefixKey>,
    ) -> Result<View, LoadError> {
        self.forget_if_unwatched();
        let (sampled, spans) = (samples::by_key(reader.samples()?), reader.spans());
        let remembered = sampled.len() as u64;
        let mut candidates: Vec<Candidate> = Vec::with_capacity(sampled.len());
        for (key, samples) in sampled {
            let limits = reader
                .counts(&key, &samples, &spans)?
                .into_iter()
                .filter(LimitCounts::is_known);
            candidates.extend(limits.map(|all| {
                let counts = Counts {
                    passed: all.passed,
                    refused: all.refused + all.would_refuse,
                };
                Candidate {
                    key,
                    all,
                    counts,
                    rates: Rates::default(),
                }
            }));
        }
        let has_rates = self.rate(&mut candidates);
        if let Some(within) = within {
            candidates.retain(|candidate| reader.is_within(&candidate.key, &within));
        }
        let matching = candidates.len() as u64;
        let most = query.most.min(MOST_SOURCES);
        let order = |a: &Candidate, b: &Candidate| compare(query.sort, a, b);
        if candidates.len() > most && most > 0 {
            candidates.select_nth_unstable_by(most, order);
        }
        candidates.truncate(most);
        candidates.sort_unstable_by(order);
        let now = reader.now().0;
        let sources = candidates
            .iter()
            .filter_map(|candidate| reader.load(candidate, now, has_rates))
            .collect();
        let allowed = |limit: &config::policy::Limit| {
            (
                limit.name.clone(),
                limit.rates.rate.count as f64 * 1e9 / limit.rates.rate.per_nanoseconds as f64,
            )
        };
        Ok(View {
            at_seconds: now as f64 / 1e9,
            // The rate of a fair limit is its level, which is in the status.
            allowed_per_second: reader
                .config
                .limits
                .iter()
                .filter(|limit| !limit.is_fair())
                .map(allowed)
                .collect(),
            sources,
            matching,
            remembered,
            ..View::default()
        })
    }

    /// Computes the rates since the last sample and stores the present one; returns whether there are rates.
    fn rate(&mut self, candidates: &mut [Candidate]) -> bool {
        let now = Instant::now();
        let is_new = self
            .0
            .as_ref()
            .is_none_or(|look| now.duration_since(look.at) >= APART);
        if is_new {
            let counts = candidates
                .iter()
                .map(|candidate| (candidate.row(), candidate.counts))
                .collect();
            let rates = self.0.take().map(|look| {
                let seconds = now.duration_since(look.at).as_secs_f64();
                let of = |candidate: &Candidate| {
                    // A missing key has been added since.
                    let before = look
                        .counts
                        .get(&candidate.row())
                        .copied()
                        .unwrap_or_default();
                    let since = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
                    let counts = candidate.counts;
                    (
                        candidate.row(),
                        Rates {
                            passed: since(counts.passed, before.passed),
                            refused: since(counts.refused, before.refused),
                        },
                    )
                };
                candidates.iter().map(of).collect()
            });
            self.0 = Some(Look {
                at: now,
                counts,
                rates,
            });
        }
        let Some(rates) = self.0.as_ref().and_then(|look| look.rates.as_ref()) else {
            return false;
        };
        for candidate in candidates {
            candidate.rates = rates.get(&candidate.row()).copied().unwrap_or_default();
        }
        true
    }
}

/// Descending. Equal rows are ordered by the other count, and finally by key, so that lines do not jump.
fn compare(sort: Sort, a: &Candidate, b: &Candidate) -> Ordering {
    let refused_now = || b.rates.refused.total_cmp(&a.rates.refused);
    let passed_now = || b.rates.passed.total_cmp(&a.rates.passed);
    let refused = || b.counts.refused.cmp(&a.counts.refused);
    let passed = || b.counts.passed.cmp(&a.counts.passed);
    let order = match sort {
        Sort::ThrottledRate => refused_now().then_with(passed_now).then_with(refused),
        Sort::PassedRate => passed_now().then_with(refused_now).then_with(passed),
        Sort::Throttled => refused().then_with(passed),
        Sort::Passed => passed().then_with(refused),
    };
    let place = |of: &Candidate| {
        (
            of.key.group,
            of.key.hi,
            of.key.lo,
            of.key.extra,
            of.all.limit,
        )
    };
    order.then_with(|| place(a).cmp(&place(b)))
}

impl Reader<'_> {
    /// Whether a key's addresses are in a prefix, or contain it.
    fn is_within(&self, key: &Key, prefix: &PrefixKey) -> bool {
        let Some(group) = self.groups().get(key.group as usize) else {
            return false;
        };
        let has_address = group.key.key == KeyKind::Network as u8 && key.extra == 0;
        if group.key.key >= KeyKind::Class as u8 && !has_address {
            return false;
        }
        let address = Address {
            hi: key.hi,
            lo: key.lo,
        }
        .octets();
        let is_ipv4 = std::net::Ipv6Addr::from(address).to_ipv4_mapped().is_some();
        let own = if is_ipv4 {
            96 + group.key.mask_ipv4.count_ones()
        } else {
            group.key.mask_hi.count_ones() + group.key.mask_lo.count_ones()
        };
        let length = own.min(prefix.length);
        PrefixKey {
            address,
            length: own,
        }
        .cut(length)
        .address
            == prefix.cut(length).address
    }

    fn load(&self, candidate: &Candidate, now: u64, has_rates: bool) -> Option<SourceLoad> {
        Some(SourceLoad {
            row: self.top_row(&candidate.key, &candidate.all, now)?,
            passed_per_second: has_rates.then_some(candidate.rates.passed),
            throttled_per_second: has_rates.then_some(candidate.rates.refused),
        })
    }
}
