//! All `[[notify]]` of the config in effect.

use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use api::Event;
use api::notification::{NotificationFailing, NotificationStatus, NotificationTest};
use arc_swap::ArcSwap;
use config::human;
use config::policy::{Config, Notify};
use events::Observer;

use crate::subject::subject;
use crate::target::Target;

/// The receivers of the config in effect, each with a thread.
#[derive(Default)]
pub struct Notifier {
    targets: ArcSwap<Vec<Arc<Target>>>,
    /// One replacement at a time.
    replacing: Mutex<()>,
}

impl Notifier {
    /// Starts the receivers of a config.
    #[must_use]
    pub fn start(config: &Config) -> Self {
        let notifier = Self::default();
        notifier.replace(config);
        notifier
    }

    /// Puts another config's receivers in effect. Unchanged ones continue, with the events that they have not delivered;
    /// events of removed ones are dropped. Waits for none.
    pub fn replace(&self, config: &Config) {
        let _one = self
            .replacing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let before = self.targets.load_full();
        let host = host(config);
        let kept = |notify: &Notify| {
            before
                .iter()
                .find(|target| target.config == *notify)
                .cloned()
        };
        let after = config
            .notify
            .iter()
            .filter_map(|notify| kept(notify).or_else(|| started(notify, &host)));
        let after: Vec<Arc<Target>> = after.collect();
        let removed = before
            .iter()
            .filter(|target| !after.iter().any(|kept| Arc::ptr_eq(kept, target)));
        let removed: Vec<Arc<Target>> = removed.cloned().collect();
        self.targets.store(Arc::new(after));
        removed.iter().for_each(|target| target.stop());
    }

    /// Ends all threads and the commands that they run.
    pub fn stop(&self) {
        let _one = self
            .replacing
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.targets
            .swap(Arc::default())
            .iter()
            .for_each(|target| target.stop());
    }

    /// The deliveries of each receiver.
    #[must_use]
    pub fn status(&self) -> Vec<NotificationStatus> {
        self.targets
            .load()
            .iter()
            .map(|target| target.status())
            .collect()
    }

    /// Sends a notification about nothing to the receiver with this name, or to all at once; waits for each attempt.
    ///
    /// # Errors
    ///
    /// When there is no such receiver.
    pub fn test(&self, name: Option<&str>) -> Result<Vec<NotificationTest>, String> {
        let targets = self.targets.load_full();
        let is_wanted = |target: &&Arc<Target>| name.is_none_or(|name| target.config.name == name);
        let wanted: Vec<&Arc<Target>> = targets.iter().filter(is_wanted).collect();
        if wanted.is_empty() {
            let names: Vec<&str> = targets
                .iter()
                .map(|target| target.config.name.as_str())
                .collect();
            return Err(match (names.is_empty(), name) {
                (false, Some(name)) => {
                    format!("unknown notify {name:?} (available: {})", names.join(", "))
                }
                _ => "the config in effect has no [[notify]]".to_owned(),
            });
        }
        Ok(thread::scope(|scope| {
            let attempts: Vec<_> = wanted
                .iter()
                .map(|target| scope.spawn(|| target.test()))
                .collect();
            attempts
                .into_iter()
                .filter_map(|attempt| attempt.join().ok())
                .collect()
        }))
    }

    /// Notes for the operator about failing receivers.
    #[must_use]
    pub fn notes(status: &[NotificationStatus]) -> Vec<String> {
        status
            .iter()
            .filter_map(|one| Some(note(one, one.failing.as_ref()?)))
            .collect()
    }
}

impl Drop for Notifier {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The note about a failing receiver.
fn note(status: &NotificationStatus, failing: &NotificationFailing) -> String {
    let time = human::time(Duration::from_secs(failing.for_seconds as u64));
    let next = match failing.next_attempt_in_seconds {
        Some(_) => format!("events waiting: {}", human::number(status.events_waiting)),
        None => "the notification was dropped".to_owned(),
    };
    let (name, attempts, error) = (&status.name, failing.attempts, &failing.error);
    format!("notify {name:?}: {attempts} attempts failed in {time}, {next}: {error}")
}

impl Observer for Notifier {
    fn observe(&self, event: &Arc<Event>) {
        let Some(subject) = subject(event.verdict) else {
            return;
        };
        for target in self
            .targets
            .load()
            .iter()
            .filter(|target| target.config.on.contains(&subject))
        {
            target.absorb(event);
        }
    }
}

/// Starts a receiver's thread; `None` if that fails, which is logged.
fn started(notify: &Notify, host: &str) -> Option<Arc<Target>> {
    let target = Arc::new(Target::new(notify.clone(), host));
    let working = Arc::clone(&target);
    match thread::Builder::new()
        .name("weir-notify".to_owned())
        .spawn(move || working.work())
    {
        Ok(_) => Some(target),
        Err(error) => {
            tracing::error!(
                "starting the thread of notify {:?} failed: {error}; it reports nothing",
                notify.name
            );
            None
        }
    }
}

/// This host's name: in the cluster, else the host's own.
fn host(config: &Config) -> String {
    let own = || {
        rustix::system::uname()
            .nodename()
            .to_string_lossy()
            .into_owned()
    };
    config
        .cluster
        .as_ref()
        .map_or_else(own, |cluster| cluster.node.clone())
}
