//! A gap between the counts of most sources and those of outliers.
//!
//! The test is that of Rényi's representation (1953) of order statistics. In a Pareto tail with exponent α, the
//! logarithm of the ratio between the k-th highest value and the next is exponential with mean 1/(k·α). So a ratio of g
//! or more, with k sources above it, has a probability of g^(-k·α). α = 1 is the heaviest tail that has a mean. With
//! it, a gap is not part of the tail if g^(-k) is at most one in a million. More sources above the gap make it more
//! certain, so an attack by most sources is found as well as one by a few.
//!
//! The lowest such gap counts, with one exception: if a higher one is less likely by chance, and at most one in
//! [`OUTLIERS`] of the sources is between the two, these are the end of the tail below.

use super::limit::LEAST_SOURCES;
use super::traffic::Counts;

/// The threshold of the logarithm of g^k: one in a million.
const SIGNIFICANT: f64 = 13.8;
/// The least ratio of a gap, whatever is above it: a limit's margin covers less.
const LEAST_RATIO: f64 = 2.0;
/// The ratio above which a single source is an outlier: no margin covers it.
const LARGEST_RATIO: f64 = 8.0;

/// At most one in this many of the sources below a gap may be above a lower one.
const OUTLIERS: u64 = 100;

/// The division of sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Split {
    /// The highest count below the gap; without a gap, of all sources.
    pub highest: u64,
    /// Sources with at most that count.
    pub below: u64,
    /// Sources beyond the gap.
    pub beyond: u64,
    /// Their lowest count; 0 without a gap.
    pub next: u64,
}

/// Divides sources at the lowest gap with at least [`LEAST_SOURCES`] sources below it. Counts below `least` are too
/// small to be significant: a gap does not start among them.
pub(super) fn split(counts: &Counts, least: u64) -> Split {
    let rows: Vec<(u64, u64)> = counts.rows().collect();
    let all = counts.sources();
    let mut below = 0;
    let mut found: Option<(Split, f64)> = None;
    for (nth, (low, sources)) in rows.iter().enumerate() {
        below += sources;
        let Some((high, _)) = rows.get(nth + 1) else {
            break;
        };
        let beyond = all - below;
        if *low < least || below < LEAST_SOURCES {
            continue;
        }
        // Two standard deviations of a random count, so that small ones do not seem far apart.
        let low_at_most = *low as f64 + 2.0 * (*low as f64).sqrt() + 4.0;
        let ratio = *high as f64 / low_at_most;
        let unlikely = beyond as f64 * ratio.ln();
        if ratio < LARGEST_RATIO && (ratio < LEAST_RATIO || unlikely < SIGNIFICANT) {
            continue;
        }
        let is_end_of_tail = |(lower, of_lower): &(Split, f64)| {
            unlikely > *of_lower && below - lower.below <= (lower.below / OUTLIERS).max(1)
        };
        if found.as_ref().is_none_or(is_end_of_tail) {
            found = Some((
                Split {
                    highest: *low,
                    below,
                    beyond,
                    next: *high,
                },
                unlikely,
            ));
        }
    }
    let without = Split {
        highest: rows.last().map_or(0, |(value, _)| *value),
        below: all,
        beyond: 0,
        next: 0,
    };
    found.map_or(without, |(split, _)| split)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Counts of a Pareto tail with this exponent, by its quantiles.
    fn tail(sources: u32, exponent: f64) -> Vec<u32> {
        (0..sources)
            .map(|nth| {
                (8.0 * (1.0 - (f64::from(nth) + 0.5) / f64::from(sources)).powf(-1.0 / exponent))
                    as u32
            })
            .collect()
    }

    fn counts(values: impl IntoIterator<Item = u32>) -> Counts {
        let mut counts = Counts::default();
        values
            .into_iter()
            .for_each(|value| counts.add(value.into()));
        counts
    }

    #[test]
    fn a_heavy_tail_has_no_gap() {
        for sources in [100, 1_000, 20_000] {
            for exponent in [1.0, 1.2, 2.0, 4.0] {
                let found = split(&counts(tail(sources, exponent)), 8);
                assert_eq!(
                    (found.beyond, found.below),
                    (0, u64::from(sources)),
                    "{sources} {exponent}"
                );
            }
        }
    }

    #[test]
    fn an_attack_is_apart_whether_it_is_of_one_source_or_of_most() {
        for attackers in [1u32, 20, 1_000, 50_000] {
            // From 150,000 on; the tail ends at 16,000.
            let attack = (0..attackers).map(|nth| 150_000 + nth % 1_000 * 100);
            let found = split(&counts(tail(1_000, 1.0).into_iter().chain(attack)), 8);
            assert_eq!((found.below, found.beyond), (1_000, u64::from(attackers)));
        }
    }

    #[test]
    fn a_few_that_are_somewhat_busier_are_no_attack_and_many_are() {
        let bulk = || (0..1_000).map(|nth| 10 + nth % 50);
        assert_eq!(split(&counts(bulk().chain([240])), 8).beyond, 0);
        assert_eq!(
            split(&counts(bulk().chain((0..40).map(|nth| 240 + nth))), 8).beyond,
            40
        );
    }

    #[test]
    fn a_lower_group_of_attackers_is_no_end_of_the_tail() {
        let bulk = (0..1_000).map(|nth| 10 + nth % 50);
        let attack = (0..100)
            .map(|nth| 1_000 + nth)
            .chain((0..1_000).map(|nth| 30_000 + nth));
        let found = split(&counts(bulk.chain(attack)), 8);
        assert_eq!((found.below, found.beyond), (1_000, 1_100));
    }

    #[test]
    fn too_few_sources_below_are_no_bulk() {
        let found = split(
            &counts((0..99).map(|_| 10).chain((0..1_000).map(|_| 5_000))),
            8,
        );
        assert_eq!((found.beyond, found.below), (0, 1_099));
    }
}
