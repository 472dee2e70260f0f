//! Sources that no limit has refused, and what limits count of them.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher as _, RandomState};
use std::net::Ipv6Addr;

use common::packet::Address;
use common::rule::{KeyKind, Subject};
use datapath::LoadError;
use datapath::compile::Group;

use super::Reader;
use crate::stats::samples::{self, LimitCounts, Samples};

/// Passed and refused packets by the limits' names.
type Counts = BTreeMap<String, (u64, u64)>;

impl Reader<'_> {
    /// A random choice of at most `most` sources that have been sampled since an instant of the monotonic clock, and of which
    /// no limit has refused a packet since then, nor would have on `observe`. Limits whose keys several sources share do not
    /// count.
    ///
    /// # Errors
    ///
    /// When a map cannot be read.
    pub fn polite(&self, most: usize, since: u64) -> Result<Vec<Address>, LoadError> {
        let spans = self.spans();
        let mut sources: HashMap<Address, bool> = HashMap::new();
        for (key, samples) in samples::by_key(self.samples()?) {
            let is_own = (self.groups().get(key.group as usize)).is_some_and(has_own_keys);
            if !is_own || !samples.are_since(since) {
                continue;
            }
            let counts = self.counts(&key, &samples, &spans)?;
            let is_polite = !counts.iter().any(|counts| has_refused(counts, since));
            let (hi, lo) = (key.hi, key.lo);
            *sources.entry(Address { hi, lo }).or_insert(true) &= is_polite;
        }
        let polite = sources.into_iter().filter(|(_, is_polite)| *is_polite);
        let polite = polite.map(|(source, _)| source).collect();
        Ok(chosen(polite, most, &RandomState::new()))
    }

    /// For each source the packets that limits passed and refused at its own keys, by the limits' names. By single
    /// look-ups: the cost grows with the sources and the kinds of keys, and not with the table.
    ///
    /// # Errors
    ///
    /// When a map cannot be read.
    pub fn counts_of(&self, sources: &[Address]) -> Result<Vec<Counts>, LoadError> {
        let spans = self.spans();
        let groups: Vec<&Group> = (self.groups().iter())
            .filter(|group| has_own_keys(group))
            .collect();
        let mut all = Vec::with_capacity(sources.len());
        for source in sources {
            let is_ipv4 = Ipv6Addr::from(source.octets()).to_ipv4_mapped().is_some();
            let subject = Subject {
                hi: source.hi,
                lo: source.lo,
                is_ipv4: u32::from(is_ipv4),
                ..Subject::default()
            };
            let mut of_source = BTreeMap::new();
            for group in &groups {
                let key = group.key.key_of(&subject);
                let look_up = |key: &_| self.ingress.sample(self.egress, key);
                let samples = Samples::of_key(&key, &spans, look_up)?;
                for counts in self.counts(&key, &samples, &spans)? {
                    if let Some(limit) = self.config.limits.get(counts.limit) {
                        of_source.insert(limit.name.clone(), (counts.passed, counts.refused));
                    }
                }
            }
            all.push(of_source);
        }
        Ok(all)
    }
}

/// Whether the keys are those of limits by address, each with one source: no levels, and no prefixes that neighbours share.
fn has_own_keys(group: &Group) -> bool {
    let is_own = group.states.iter().any(|(at, _)| at.level == 0);
    let key = &group.key;
    let is_one_source = key.mask_ipv4 == u32::MAX && key.mask_hi == u64::MAX;
    is_own && is_one_source && key.key == KeyKind::Address as u8
}

/// Whether it has refused since an instant, or would have. Without an instant of the last refusal, it may have been then.
fn has_refused(counts: &LimitCounts, since: u64) -> bool {
    let is_old = counts.last() != 0 && counts.last() < since;
    (counts.refused > 0 || counts.would_refuse > 0) && !is_old
}

/// Those with the smallest hashes: each set of `most` sources is as probable as any other.
fn chosen(mut sources: Vec<Address>, most: usize, hasher: &RandomState) -> Vec<Address> {
    sources.sort_by_cached_key(|source| hasher.hash_one(source));
    sources.truncate(most);
    sources
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_choice_is_bounded_and_without_bias() {
        let sources: Vec<Address> = (0..20).map(|lo| Address { hi: 0, lo }).collect();
        let mut times = [0; 20];
        for _ in 0..2_000 {
            let chosen = chosen(sources.clone(), 5, &RandomState::new());
            assert_eq!(chosen.len(), 5);
            for source in chosen {
                times[source.lo as usize] += 1;
            }
        }
        // 500 are expected of each, with a standard deviation of 19.
        assert!(
            times.iter().all(|times| (300..700).contains(times)),
            "{times:?}"
        );
        assert_eq!(chosen(sources.clone(), 100, &RandomState::new()).len(), 20);
    }

    #[test]
    fn a_source_is_polite_an_hour_after_its_last_refusal() {
        let counts = |refused, would_refuse, refused_at| LimitCounts {
            refused,
            would_refuse,
            refused_at,
            ..LimitCounts::default()
        };
        for (counts, expected) in [
            (counts(0, 0, 0), false),
            (counts(1, 0, 99), false),
            (counts(1, 0, 100), true),
            (counts(1, 0, 0), true),
            (counts(0, 1, 0), true),
        ] {
            assert_eq!(has_refused(&counts, 100), expected, "{counts:?}");
        }
    }
}
