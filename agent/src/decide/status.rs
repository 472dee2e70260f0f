//! What limits on requests tell of themselves, as those on packets do.

use std::sync::atomic::{AtomicU64, Ordering};

use super::Engine;
use crate::config::policy::RequestLimit;
use crate::stats::{Count, LimitDefinition, LimitStatus};

impl From<&RequestLimit> for LimitDefinition {
    fn from(limit: &RequestLimit) -> Self {
        Self {
            name: limit.name.clone(),
            direction: "request".to_owned(),
            key: limit.key_text(),
            unit: limit.unit.to_string(),
            algorithm: limit.algorithm.to_string(),
            rate: limit.rate_text(),
            burst: limit.burst,
            cluster: limit.cluster,
            summary: limit.summary(),
            protocol: None,
            ports: Vec::new(),
            ipv4_prefix: limit.ipv4_prefix,
            ipv6_prefix: limit.ipv6_prefix,
            action: limit.enforcement.word().to_owned(),
            throttle: "hard".to_owned(),
            tiers: limit.tiers.iter().map(|tier| tier.text.clone()).collect(),
        }
    }
}

impl Engine {
    /// Each limit; its counters count decisions where those of packets count packets.
    #[must_use]
    pub fn statuses(&self) -> Vec<LimitStatus> {
        let of = |counter: &AtomicU64| Count { packets: counter.load(Ordering::Relaxed), bytes: 0 };
        let status = |limit: &super::engine::Limit| LimitStatus {
            definition: LimitDefinition::from(&limit.policy),
            passed: of(&limit.counters.passed),
            throttled: of(&limit.counters.refused),
            would_throttle: of(&limit.counters.would_refuse),
            over: Count::default(),
            waiting: Some(limit.line.status()),
            keys: limit.stores.iter().map(|store| store.keys()).sum::<usize>() as u64,
        };
        self.limits.iter().map(status).collect()
    }
}
