//! The counters at the last `agent limits --reset-counters`, which are subtracted from the present ones.

use std::collections::HashMap;

use common::counters::{Counters, Traffic};
use common::key::Key;

use super::samples::LimitCounts;

/// Counters at the last reset.
#[derive(Clone, Debug, Default)]
pub struct Baseline {
    /// By limit name.
    pub limits: HashMap<String, Counters>,
    /// By sampled key: the counts in its slot beyond the samples, fewer than 64 packets per state. The samples
    /// themselves are set to 0.
    pub keys: HashMap<Key, Vec<LimitCounts>>,
}

impl Baseline {
    /// A limit's counts since the reset.
    #[must_use]
    pub fn of_limit(&self, name: &str, now: Counters) -> Counters {
        self.limits.get(name).map_or(now, |then| since(now, *then))
    }

    /// Subtracts a key's counts at the reset.
    pub fn subtract(&self, key: &Key, counts: &mut [LimitCounts]) {
        let Some(then) = self.keys.get(key) else {
            return;
        };
        for counts in counts {
            let Some(then) = then.iter().find(|then| then.limit == counts.limit) else {
                continue;
            };
            // A slot that another key has taken meanwhile restarts.
            counts.passed = counts.passed.saturating_sub(then.passed);
            counts.refused = counts.refused.saturating_sub(then.refused);
            counts.would_refuse = counts.would_refuse.saturating_sub(then.would_refuse);
        }
    }
}

fn since(now: Counters, then: Counters) -> Counters {
    let of = |now: Traffic, then: Traffic| Traffic {
        packets: now.packets.saturating_sub(then.packets),
        bytes: now.bytes.saturating_sub(then.bytes),
    };
    Counters {
        passed: of(now.passed, then.passed),
        throttled: of(now.throttled, then.throttled),
        would_throttle: of(now.would_throttle, then.would_throttle),
        over: of(now.over, then.over),
        contended: of(now.contended, then.contended),
    }
}
