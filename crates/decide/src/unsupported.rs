//! Fields over gRPC that the agent does not support: they are counted and reported, and the rest of the request is decided. Envoy would
//! let the whole request pass after an error.

use std::sync::atomic::{AtomicU64, Ordering};

use config::human;

/// Descriptors since the agent started.
#[derive(Debug, Default)]
pub struct Unsupported {
    /// With a `limit` of their own: the config's limits apply.
    limits: AtomicU64,
}

impl Unsupported {
    pub(super) fn count_limit(&self) {
        self.limits.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes for the operator.
    pub(super) fn notes(&self) -> impl Iterator<Item = String> {
        let count = self.limits.load(Ordering::Relaxed);
        let note = (count > 0).then(|| {
            format!(
                "limit of a descriptor over gRPC is not supported (sent so far: {}): the limits of limits.toml apply",
                human::number(count)
            )
        });
        note.into_iter()
    }
}
