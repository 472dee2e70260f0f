//! The status of the thread of leases.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use api::cluster::ClusterStatus;
use decide::EffectiveShare;

use super::past::Past;

/// The thread's part of `weir status`.
#[derive(Default)]
pub(super) struct SharedStatus(Mutex<WorkerStatus>);

#[derive(Default)]
pub(super) struct WorkerStatus {
    pub(super) status: ClusterStatus,
    pub(super) notes: Vec<String>,
    pub(super) shares: HashMap<String, EffectiveShare>,
    pub(super) past: Past,
    pub(super) granted_at: Option<u64>,
}

impl SharedStatus {
    pub(super) fn set(
        &self,
        status: ClusterStatus,
        notes: Vec<String>,
        shares: HashMap<String, EffectiveShare>,
        past: Past,
        granted_at: Option<u64>,
    ) {
        *self.lock() = WorkerStatus {
            status,
            notes,
            shares,
            past,
            granted_at,
        };
    }

    pub(super) fn lock(&self) -> MutexGuard<'_, WorkerStatus> {
        // Every change is one assignment.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
