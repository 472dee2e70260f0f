//! The number of hosts that exchange keys, saved for the next start of the agent.

use host::{StateDirectory, StateError};
use tokio::task::JoinHandle;

use crate::past::Past;

pub(super) struct SavedHostCount {
    directory: StateDirectory,
    saved: u64,
    writing: Option<JoinHandle<Result<(), StateError>>>,
    cannot_save: bool,
}

impl SavedHostCount {
    pub(super) const fn new(directory: StateDirectory) -> Self {
        Self {
            directory,
            saved: 0,
            writing: None,
            cannot_save: false,
        }
    }

    /// Saves the number, on a thread that may wait for the disk.
    pub(super) async fn save(&mut self, hosts: u64) {
        if let Some(writing) = self.writing.take_if(|writing| writing.is_finished()) {
            self.note(writing.await.unwrap_or(Ok(())));
        }
        if self.writing.is_some() || hosts == self.saved {
            return;
        }
        self.saved = hosts;
        let directory = self.directory.clone();
        self.writing = Some(tokio::task::spawn_blocking(move || {
            Past::write_exchanging(&directory, hosts)
        }));
    }

    /// Waits until it is saved, before the agent stops.
    pub(super) async fn end(&mut self, hosts: u64) {
        if let Some(writing) = self.writing.take() {
            self.note(writing.await.unwrap_or(Ok(())));
        }
        if hosts != self.saved {
            self.note(Past::write_exchanging(&self.directory, hosts));
        }
    }

    fn note(&mut self, result: Result<(), StateError>) {
        if let (Err(error), false) = (&result, self.cannot_save) {
            tracing::warn!("saving the cluster's hosts for the next start failed: {error}");
        }
        self.cannot_save = result.is_err();
        if self.cannot_save {
            self.saved = 0;
        }
    }
}
