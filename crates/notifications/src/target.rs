//! The thread of one `[[notify]]`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use api::Event;
use api::event::seconds_since_1970;
use api::notification::{NotificationStatus, NotificationTest};
use config::policy::{Notify, NotifyTarget};
use host::backoff::random;

use crate::batch::Batch;
use crate::document::Document;
use crate::outbox::{Change, Failure, Outbox, Step};
use crate::{command, webhook};

/// One `[[notify]]` in effect.
pub struct Target {
    pub config: Notify,
    host: String,
    outbox: Mutex<Outbox>,
    wake: Condvar,
    is_stopped: AtomicBool,
}

impl Target {
    pub fn new(config: Notify, host: &str) -> Self {
        let run = getrandom::u64().unwrap_or_else(|_| seconds_since_1970().to_bits());
        let outbox = Mutex::new(Outbox::new(
            config.clone(),
            host.to_owned(),
            run,
            Instant::now(),
        ));
        Self {
            config,
            host: host.to_owned(),
            outbox,
            wake: Condvar::new(),
            is_stopped: AtomicBool::new(false),
        }
    }

    /// Adds an event. Waits for nothing but a short lock.
    pub fn absorb(&self, event: &Arc<Event>) {
        if self.lock().absorb(event, Instant::now()) {
            self.wake.notify_one();
        }
    }

    pub fn status(&self) -> NotificationStatus {
        self.lock().status(Instant::now())
    }

    /// Sends a notification about nothing, at once and once, whatever waits.
    pub fn test(&self) -> NotificationTest {
        let (time, nothing) = (seconds_since_1970(), Batch::default());
        let id = format!("test-{time}");
        let document = Document::test(&id, time, &self.host, &self.config.name, &nothing);
        let error = self.attempt(&document.json()).err();
        NotificationTest {
            name: self.config.name.clone(),
            to: self.status().to,
            error: error.map(|failure| failure.reason),
        }
    }

    /// Ends the thread, and the command that it runs. Does not wait for it.
    pub fn stop(&self) {
        self.is_stopped.store(true, Ordering::Relaxed);
        // Under the lock, so that a thread that is about to wait is not missed.
        let _outbox = self.lock();
        self.wake.notify_one();
    }

    /// Sends until it is stopped.
    pub fn work(&self) {
        let mut outbox = self.lock();
        while !self.is_stopped.load(Ordering::Relaxed) {
            let now = Instant::now();
            outbox = match outbox.next(now, seconds_since_1970()) {
                Step::Idle => self
                    .wake
                    .wait(outbox)
                    .unwrap_or_else(PoisonError::into_inner),
                Step::Wait(until) => {
                    let time = until
                        .saturating_duration_since(now)
                        .max(Duration::from_millis(1));
                    self.wake
                        .wait_timeout(outbox, time)
                        .unwrap_or_else(PoisonError::into_inner)
                        .0
                }
                Step::Attempt(body) => {
                    drop(outbox);
                    let result = self.attempt(&body);
                    let mut outbox = self.lock();
                    self.record(&mut outbox, result);
                    outbox
                }
            };
        }
    }

    fn attempt(&self, body: &str) -> Result<(), Failure> {
        let Notify { name, timeout, .. } = &self.config;
        match self.config.target() {
            NotifyTarget::Command(command) => {
                command::run(&command, name, body, *timeout, &self.is_stopped)
                    .map_err(Failure::retried)
            }
            NotifyTarget::Webhook { url, secret_file } => {
                webhook::post(&url, secret_file.as_deref(), body, *timeout)
            }
        }
    }

    /// Records an attempt, and logs changes.
    fn record(&self, outbox: &mut Outbox, result: Result<(), Failure>) {
        if self.is_stopped.load(Ordering::Relaxed) {
            return;
        }
        let changes = match result {
            Ok(()) => outbox.delivered().into_iter().collect(),
            Err(failure) => outbox.failed(failure, Instant::now(), random()),
        };
        let name = &self.config.name;
        for change in changes {
            match change {
                Change::Failing => {
                    tracing::warn!("notify {name:?}: delivering failed: {}", outbox.reason());
                }
                Change::Recovered(failures) => {
                    tracing::info!(
                        "notify {name:?}: delivers again, after {failures} failed attempts"
                    );
                }
                Change::Dropped => {
                    tracing::error!(
                        "notify {name:?}: a notification was dropped, undelivered: {}",
                        outbox.reason()
                    );
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, Outbox> {
        // A panic elsewhere cannot leave it half changed: events are added and steps taken as a whole.
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
