//! Fields over gRPC that the agent does not support: they are counted and reported, and the rest of the request is decided. Envoy would
//! let the whole request pass after an error.

use std::sync::atomic::{AtomicU64, Ordering};

use config::human;

/// Descriptors since the agent started.
#[derive(Debug, Default)]
pub struct Unsupported {
    /// With `is_negative_hits`: nothing is given back.
    refunds: AtomicU64,
    /// With a `limit` of their own: the config's limits apply.
    limits: AtomicU64,
}

impl Unsupported {
    pub(super) fn count_refund(&self) {
        self.refunds.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn count_limit(&self) {
        self.limits.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes for the operator.
    pub(super) fn notes(&self) -> impl Iterator<Item = String> {
        let kinds = [
            (&self.refunds, "is_negative_hits", "nothing is given back"),
            (&self.limits, "limit", "the limits of limits.toml apply"),
        ];
        kinds.into_iter().filter_map(|(count, field, effect)| {
            let count = count.load(Ordering::Relaxed);
            (count > 0).then(|| {
                format!(
                    "{field} of a descriptor over gRPC is not supported (sent so far: {}): {effect}",
                    human::number(count)
                )
            })
        })
    }
}
