//! How many keys each limit on requests remembers, and how much memory they take at the most.

use common::rate_limiter::{Policy, PolicyError};

use super::escalation::Escalation;
use super::sources::Sources;
use super::store::Store;
use crate::config::policy::{Config, RequestLimit};

/// Keys that a limit remembers for each multiplier, if memory allows.
const DEFAULT_KEYS: usize = 1_000_000;
/// What all limits together may take unless `[decide] max_keys` is set: half of what the unit allows the agent.
const DEFAULT_BYTES: u64 = 1 << 30;

/// The keys of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitMemory {
    /// The limit's name.
    pub limit: String,
    /// Keys that it remembers, for each multiplier of a class.
    pub keys: usize,
    /// What all of them take at the most; addresses that `escalate` counts included.
    pub bytes: u64,
}

/// Of every limit on requests, in the file's order. Without `max_keys`, limits that need little have all of their keys,
/// and the others have equal parts of what is left.
///
/// # Errors
///
/// When a limit cannot be kept: its name, and why.
pub fn memory(config: &Config) -> Result<Vec<LimitMemory>, (String, PolicyError)> {
    let sources = Sources::of(config);
    let of_limit = |limit: &RequestLimit| {
        let tiers = sources.multipliers().iter().map(|multiplier| limit.policies(*multiplier));
        tiers.collect::<Result<Vec<_>, _>>().map_err(|error| (limit.name.clone(), error))
    };
    let limits = config.decide.limits.iter().map(of_limit).collect::<Result<Vec<_>, _>>()?;
    let keys = match config.decide.max_keys {
        Some(keys) => vec![keys as usize; limits.len()],
        None => shared_out(&limits),
    };
    let escalates = |limit: &RequestLimit| {
        let bytes = limit.escalate.map(Escalation::most_bytes).transpose();
        bytes.map(Option::unwrap_or_default).map_err(|error| (limit.name.clone(), error))
    };
    let rows = config.decide.limits.iter().zip(limits.iter().zip(keys));
    rows.map(|(limit, (tiers, keys))| {
        let bytes = bytes(tiers, keys) + escalates(limit)?;
        Ok(LimitMemory { limit: limit.name.clone(), keys, bytes })
    })
    .collect()
}

/// What so many keys take for each multiplier.
fn bytes(tiers: &[Vec<Policy>], keys: usize) -> u64 {
    tiers.iter().map(|tiers| Store::most_bytes(tiers, keys)).sum()
}

fn shared_out(limits: &[Vec<Vec<Policy>>]) -> Vec<usize> {
    let mut keys = vec![DEFAULT_KEYS; limits.len()];
    let mut order: Vec<usize> = (0..limits.len()).collect();
    order.sort_by_key(|nth| bytes(&limits[*nth], DEFAULT_KEYS));
    let mut left = DEFAULT_BYTES;
    for (nth, those_left) in order.into_iter().zip((1..=limits.len() as u64).rev()) {
        let part = left / those_left;
        // More keys never take less.
        let (mut fit, mut too_many) = (1, DEFAULT_KEYS + 1);
        while too_many - fit > 1 {
            let middle = fit.midpoint(too_many);
            if bytes(&limits[nth], middle) <= part { fit = middle } else { too_many = middle }
        }
        keys[nth] = fit;
        left = left.saturating_sub(bytes(&limits[nth], fit));
    }
    keys
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn memory_of(text: &str) -> Vec<LimitMemory> {
        let loaded = crate::config::parse(Path::new("limits.toml"), text).unwrap_or_else(|report| panic!("{report}"));
        memory(&loaded.config).unwrap()
    }

    fn limit(name: &str, lines: &str) -> String {
        format!("[[limit]]\nname = {name:?}\nscope = \"request\"\nkey = [\"user\"]\n{lines}\n")
    }

    #[test]
    fn the_default_fits_whatever_the_algorithms() {
        let bucket = limit("bucket", "rate = \"1/s\"");
        let log = limit("log", "rate = \"1000/h\"\nalgorithm = \"sliding-log\"");
        let few = memory_of(&bucket);
        assert_eq!(few[0].keys, DEFAULT_KEYS);
        assert!(few[0].bytes < 64 << 20, "{few:?}");
        let both = memory_of(&format!("{log}{bucket}{}", log.replace("\"log\"", "\"more\"")));
        assert_eq!(both[1], few[0]);
        assert!(both[0].keys.abs_diff(both[2].keys) <= 1, "{both:?}");
        let all: u64 = both.iter().map(|memory| memory.bytes).sum();
        assert!(all <= DEFAULT_BYTES && all > DEFAULT_BYTES / 10 * 9, "{both:?}");
        // What the operator wants is what he gets.
        let wanted = memory_of(&format!("[decide]\nmax_keys = 500_000\n{log}"));
        assert!(wanted[0].keys == 500_000 && wanted[0].bytes > 4_000_000_000, "{wanted:?}");
    }
}
