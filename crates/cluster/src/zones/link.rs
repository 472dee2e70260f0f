//! A connection to a store that the leads of all limits share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::connect::Connection;
use crate::error::StoreError;
use crate::store::Store;

/// After a failed attempt to connect, the next one follows after this time.
pub(super) const PAUSE: Duration = Duration::from_millis(100);

/// A connection, opened when it is needed. Nobody waits for that.
pub(super) struct Link {
    pub(super) store: Store,
    /// How long a store may be silent until another server may use its address.
    patience: Duration,
    state: Mutex<State>,
}

struct State {
    connection: Held,
    /// How many connections there have been.
    number: u64,
    replied: Instant,
}

enum Held {
    Closed,
    Opening,
    Failed(StoreError, Instant),
    Open(Connection),
}

/// The state of the connection for a request.
pub(super) enum Opened {
    /// The connection, and its number.
    Open(Connection, u64),
    NotYet,
    Failed(StoreError),
}

impl Link {
    pub(super) fn new(store: Store, patience: Duration) -> Arc<Self> {
        Arc::new(Self {
            store,
            patience,
            state: Mutex::new(State {
                connection: Held::Closed,
                number: 0,
                replied: Instant::now(),
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn open(self: &Arc<Self>) -> Opened {
        let mut state = self.state();
        match &state.connection {
            Held::Open(connection) => return Opened::Open(connection.clone(), state.number),
            Held::Opening => return Opened::NotYet,
            Held::Failed(error, at) if at.elapsed() < PAUSE => {
                return Opened::Failed(error.clone());
            }
            Held::Closed | Held::Failed(..) => {}
        }
        state.connection = Held::Opening;
        let link = Arc::clone(self);
        tokio::spawn(async move {
            let opened = link.store.connect().await;
            let mut state = link.state();
            state.number += 1;
            state.replied = Instant::now();
            state.connection = match opened {
                Ok(connection) => Held::Open(connection),
                Err(error) => Held::Failed(error, Instant::now()),
            };
        });
        Opened::NotYet
    }

    /// Records a reply.
    pub(super) fn replied(&self) {
        self.state().replied = Instant::now();
    }

    /// Closes the connection of a number after an error, if another server may use the address. The nodes of a Cluster fail
    /// separately.
    pub(super) fn failed(&self, number: u64, error: &StoreError) {
        let mut state = self.state();
        let Held::Open(connection) = &state.connection else {
            return;
        };
        let is_gone = matches!(error, StoreError::Gone(_)) && connection.is_one();
        let is_silent = !error.is_reply() && state.replied.elapsed() >= 2 * self.patience;
        if state.number == number && (is_gone || is_silent) {
            state.connection = Held::Closed;
        }
    }
}
