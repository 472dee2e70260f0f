//! Classes and never-limited addresses as one trie: the longest match says everything.

use std::collections::BTreeMap;

use common::settings::PrefixEntry;

use super::image::PrefixKey;
use crate::config::policy::{Config, Multiplier, Prefix, Service};

/// The distinct multipliers of a policy; the first is 1, that of the default class.
pub struct Grades(Vec<Multiplier>);

impl Grades {
    pub fn of(config: &Config) -> Self {
        let mut grades = vec![Multiplier::ONE];
        for class in &config.classes {
            if let Service::Multiplier(multiplier) = class.service
                && !grades.contains(&multiplier)
            {
                grades.push(multiplier);
            }
        }
        Self(grades)
    }

    pub fn multipliers(&self) -> impl Iterator<Item = Multiplier> + '_ {
        self.0.iter().copied()
    }

    pub fn are_needed(&self, config: &Config) -> bool {
        !config.classes.is_empty() || !config.agent.never_limit.is_empty()
    }

    /// The trie's content. Never-limited prefixes reach into the classes' longer ones: such an entry is of its class,
    /// and never limited all the same.
    pub fn entries(&self, config: &Config) -> Vec<(PrefixKey, PrefixEntry)> {
        let mut entries: BTreeMap<(u32, [u8; 16]), PrefixEntry> = BTreeMap::new();
        for (nth, class) in config.classes.iter().enumerate() {
            let (grade, flags) = match class.service {
                Service::Unlimited => (0, PrefixEntry::UNLIMITED),
                Service::Multiplier(multiplier) => {
                    (self.0.iter().position(|grade| *grade == multiplier).unwrap_or(0) as u16, 0)
                }
            };
            for prefix in &class.sources {
                entries.insert(order(prefix), PrefixEntry { class: nth as u32 + 1, grade, flags });
            }
        }
        let by_class: Vec<_> = entries.iter().map(|(prefix, entry)| (*prefix, *entry)).collect();
        for prefix in &config.agent.never_limit {
            let own = order(prefix);
            // The class of the never-limited prefix itself is that of the longest one around it.
            let around =
                by_class.iter().filter(|(outer, _)| contains(*outer, own)).map(|(_, entry)| *entry).next_back();
            let entry = entries.entry(own).or_insert_with(|| around.unwrap_or_default());
            entry.flags |= PrefixEntry::NEVER_LIMIT;
            for (_, inner) in entries.iter_mut().filter(|(inner, _)| contains(own, **inner)) {
                inner.flags |= PrefixEntry::NEVER_LIMIT;
            }
        }
        entries.into_iter().map(|((length, address), entry)| (PrefixKey { address, length }, entry)).collect()
    }
}

/// Shorter ones first.
fn order(prefix: &Prefix) -> (u32, [u8; 16]) {
    (prefix.mapped_length(), prefix.mapped_address())
}

/// Whether `inner` lies within `outer`, or is the same.
fn contains(outer: (u32, [u8; 16]), inner: (u32, [u8; 16])) -> bool {
    let mask = u128::MAX.checked_shl(128 - outer.0).unwrap_or(0);
    outer.0 <= inner.0 && u128::from_be_bytes(outer.1) & mask == u128::from_be_bytes(inner.1) & mask
}
