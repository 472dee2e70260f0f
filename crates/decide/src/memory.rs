//! The number of keys of each limit on requests, and their memory.

use common::rate_limiter::PolicyError;
use config::policy::{ClusterMode, Config, RequestLimit};

use super::escalation::Escalation;
use super::state_store::StateStore;
use super::tiers::Tiers;

/// The default number of keys of a limit for each multiplier, if memory allows.
const DEFAULT_KEYS: usize = 1_000_000;
/// The memory of all limits unless `[decide] max_keys` is set: half of the unit's limit for the agent.
const DEFAULT_BYTES: u64 = 1 << 30;

/// The number of keys of a limit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitMemory {
    /// The limit's name.
    pub limit: String,
    /// The number of keys for each class multiplier.
    pub keys: usize,
    /// Their most memory in bytes, including the addresses that `escalate` counts.
    pub bytes: u64,
}

/// The memory of every limit on requests, in the file's order. Without `max_keys`, limits that need little have all of
/// their keys, and the others share the rest evenly.
///
/// # Errors
///
/// When a limit cannot be enforced: its name, and the reason.
pub fn memory(config: &Config) -> Result<Vec<LimitMemory>, (String, PolicyError)> {
    let multipliers = config.multipliers();
    let of_limit = |limit: &RequestLimit| {
        let tiers = multipliers
            .iter()
            .map(|multiplier| Tiers::of(limit, *multiplier));
        let tiers = tiers
            .collect::<Result<Vec<_>, _>>()
            .map_err(|error| (limit.name.clone(), error))?;
        Ok(Stores {
            tiers,
            cluster: limit.cluster,
        })
    };
    let limits = config
        .decide
        .limits
        .iter()
        .map(of_limit)
        .collect::<Result<Vec<_>, _>>()?;
    let keys = match config.decide.max_keys {
        Some(keys) => vec![keys as usize; limits.len()],
        None => shared_out(&limits),
    };
    let escalates = |limit: &RequestLimit| {
        let bytes = limit.escalate.map(Escalation::most_bytes).transpose();
        bytes
            .map(Option::unwrap_or_default)
            .map_err(|error| (limit.name.clone(), error))
    };
    let rows = config.decide.limits.iter().zip(limits.iter().zip(keys));
    rows.map(|(limit, (stores, keys))| {
        let bytes = stores.bytes(keys) + escalates(limit)?;
        Ok(LimitMemory {
            limit: limit.name.clone(),
            keys,
            bytes,
        })
    })
    .collect()
}

/// The stores of a limit: its tiers under each multiplier.
struct Stores {
    tiers: Vec<Tiers>,
    cluster: Option<ClusterMode>,
}

impl Stores {
    /// The bytes of each store with this many keys.
    fn bytes(&self, keys: usize) -> u64 {
        let accounts = if self.cluster == Some(ClusterMode::Keys) {
            StateStore::most_account_bytes(keys)
        } else {
            0
        };
        self.tiers
            .iter()
            .map(|tiers| StateStore::most_bytes(tiers, keys) + accounts)
            .sum()
    }
}

fn shared_out(limits: &[Stores]) -> Vec<usize> {
    let mut keys = vec![DEFAULT_KEYS; limits.len()];
    let mut order: Vec<usize> = (0..limits.len()).collect();
    order.sort_by_key(|nth| limits[*nth].bytes(DEFAULT_KEYS));
    let mut left = DEFAULT_BYTES;
    for (nth, those_left) in order.into_iter().zip((1..=limits.len() as u64).rev()) {
        let part = left / those_left;
        // The memory never decreases with the number of keys.
        let (mut fit, mut too_many) = (1, DEFAULT_KEYS + 1);
        while too_many - fit > 1 {
            let middle = fit.midpoint(too_many);
            if limits[nth].bytes(middle) <= part {
                fit = middle;
            } else {
                too_many = middle;
            }
        }
        keys[nth] = fit;
        left = left.saturating_sub(limits[nth].bytes(fit));
    }
    keys
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn memory_of(text: &str) -> Vec<LimitMemory> {
        let loaded = config::parse(Path::new("limits.toml"), text)
            .unwrap_or_else(|report| panic!("{report}"));
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
        let both = memory_of(&format!(
            "{log}{bucket}{}",
            log.replace("\"log\"", "\"more\"")
        ));
        assert_eq!(both[1], few[0]);
        assert!(both[0].keys.abs_diff(both[2].keys) <= 1, "{both:?}");
        let all: u64 = both.iter().map(|memory| memory.bytes).sum();
        assert!(
            all <= DEFAULT_BYTES && all > DEFAULT_BYTES / 10 * 9,
            "{both:?}"
        );
        // The accounts of exchanged keys are included.
        let keys = memory_of(&format!(
            "[cluster]\nstore = \"redis://127.0.0.1\"\n{}",
            limit("keys", "rate = \"1/s\"\ncluster = \"keys\"")
        ));
        assert!(keys[0].bytes > few[0].bytes + 100_000_000, "{keys:?}");
        // A configured value takes precedence.
        let wanted = memory_of(&format!("[decide]\nmax_keys = 500_000\n{log}"));
        assert!(
            wanted[0].keys == 500_000 && wanted[0].bytes > 4_000_000_000,
            "{wanted:?}"
        );
    }
}
