//! The first few of many sources, with their rates: what is remembered between two looks of whoever watches.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::time::{Duration, Instant};

use common::counters::Sighted;
use common::key::Key;
use common::packet::Address;
use common::rule::KeyKind;

use super::{Reader, counted};
use crate::compile::PrefixKey;
use crate::datapath::LoadError;
use crate::stats::{MOST_SOURCES, Sort, SourceLoad, TopRow, View, ViewQuery};

/// Two looks are so far apart at least for a rate: several may watch at one time.
const APART: Duration = Duration::from_millis(500);
/// After so long without a look nobody watches.
const UNWATCHED: Duration = Duration::from_secs(10);

/// What was counted at the last look, and the rates up to it: of the keys the kernel remembers, some 16,000 at the most
/// and a megabyte in all; nothing while nobody watches.
#[derive(Default)]
pub struct Live(Option<Look>);

struct Look {
    at: Instant,
    counts: HashMap<Key, Counts>,
    rates: Option<HashMap<Key, Rates>>,
}

#[derive(Clone, Copy, Default)]
struct Counts {
    passed: u64,
    /// Or would have been.
    refused: u64,
}

#[derive(Clone, Copy, Default)]
struct Rates {
    passed: f64,
    refused: f64,
}

struct Candidate {
    key: Key,
    sighted: Sighted,
    counts: Counts,
    rates: Rates,
}

impl Live {
    /// Forgets what was counted if nobody has looked lately.
    pub fn forget_if_unwatched(&mut self) {
        self.0.take_if(|look| look.at.elapsed() >= UNWATCHED);
    }

    /// What is said of sources.
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
        let sightings = reader.datapaths().next().map(|datapath| datapath.sightings()).transpose()?.unwrap_or_default();
        let (remembered, table) = (sightings.len() as u64, reader.sources()?);
        let mut candidates: Vec<Candidate> = sightings
            .into_iter()
            .map(|(key, sighted)| {
                let (passed, refused) = counted(table, &key, &sighted);
                let counts = Counts { passed, refused: refused + sighted.would_refuse };
                Candidate { key, sighted, counts, rates: Rates::default() }
            })
            .collect();
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
        let sources = candidates.iter().filter_map(|candidate| reader.load(candidate, has_rates)).collect();
        let allowed = |limit: &crate::config::policy::Limit| {
            (limit.name.clone(), limit.rate.count as f64 * 1e9 / limit.rate.per_nanoseconds as f64)
        };
        Ok(View {
            at_seconds: reader.now().0 as f64 / 1e9,
            allowed_per_second: reader.config.limits.iter().map(allowed).collect(),
            sources,
            matching,
            remembered,
            ..View::default()
        })
    }

    /// Fills in the rates since the last look but this, and takes note of this one; whether there are any.
    fn rate(&mut self, candidates: &mut [Candidate]) -> bool {
        let now = Instant::now();
        let is_new = self.0.as_ref().is_none_or(|look| now.duration_since(look.at) >= APART);
        if is_new {
            let counts = candidates.iter().map(|candidate| (candidate.key, candidate.counts)).collect();
            let rates = self.0.take().map(|look| {
                let seconds = now.duration_since(look.at).as_secs_f64();
                let of = |candidate: &Candidate| {
                    // What was not remembered then has come since.
                    let before = look.counts.get(&candidate.key).copied().unwrap_or_default();
                    let since = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
                    let counts = candidate.counts;
                    (
                        candidate.key,
                        Rates {
                            passed: since(counts.passed, before.passed),
                            refused: since(counts.refused, before.refused),
                        },
                    )
                };
                candidates.iter().map(of).collect()
            });
            self.0 = Some(Look { at: now, counts, rates });
        }
        let Some(rates) = self.0.as_ref().and_then(|look| look.rates.as_ref()) else { return false };
        for candidate in candidates {
            candidate.rates = rates.get(&candidate.key).copied().unwrap_or_default();
        }
        true
    }
}

/// Most first. What is equal in one is told apart by the other, and by its key in the end, so that lines stay in place.
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
    let place = |key: &Key| (key.group, key.hi, key.lo, key.extra);
    order.then_with(|| place(&a.key).cmp(&place(&b.key)))
}

impl Reader<'_> {
    /// Whether a key is of addresses in a prefix, or of one around it.
    fn is_within(&self, key: &Key, prefix: &PrefixKey) -> bool {
        let Some(group) = self.groups().get(key.group as usize) else { return false };
        if group.key.key >= KeyKind::Class as u8 {
            return false;
        }
        let address = Address { hi: key.hi, lo: key.lo }.octets();
        let is_ipv4 = std::net::Ipv6Addr::from(address).to_ipv4_mapped().is_some();
        let own = if is_ipv4 {
            96 + group.key.mask_ipv4.count_ones()
        } else {
            group.key.mask_hi.count_ones() + group.key.mask_lo.count_ones()
        };
        let length = own.min(prefix.length);
        PrefixKey { address, length: own }.cut(length).address == prefix.cut(length).address
    }

    fn load(&self, candidate: &Candidate, has_rates: bool) -> Option<SourceLoad> {
        let group = self.groups().get(candidate.key.group as usize)?;
        let by = self.limit_of(&candidate.key, &candidate.sighted);
        let limit = by.or_else(|| group.states.first().map(|(limit, _)| *limit))?;
        let would = candidate.sighted.would_refuse;
        Some(SourceLoad {
            row: TopRow {
                source: self.describe(&candidate.key, &group.key),
                limit: self.config.limits.get(limit)?.name.clone(),
                passed_packets: candidate.counts.passed,
                throttled_packets: candidate.counts.refused - would,
            },
            would_throttle_packets: would,
            passed_per_second: has_rates.then_some(candidate.rates.passed),
            throttled_per_second: has_rates.then_some(candidate.rates.refused),
        })
    }
}
