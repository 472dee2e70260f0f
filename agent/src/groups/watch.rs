//! Keeps groups filled and elastic while the agent runs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use common::group::Started;
use tokio::time::{MissedTickBehavior, interval};

use super::kernel::Starts;
use super::{Groups, Host};
use crate::config::policy::{Config, OnExit};
use crate::control::Done;
use crate::groups::{Emergency, GroupStatus};
use crate::host_load::HostLoad;

/// A net below the kernel's events: for those that changed without starting a program, as by setuid.
const SCAN: Duration = Duration::from_secs(2);
/// How often elastic groups are looked at: what somebody else needs is taken back within a few of these.
const ADJUST: Duration = Duration::from_millis(250);

/// Waits for ever if nothing is watched.
async fn next(starts: &mut Option<Starts>) -> std::io::Result<Vec<Started>> {
    match starts {
        Some(starts) => starts.next().await,
        None => std::future::pending().await,
    }
}

/// The groups of a running agent, or why there are none.
#[derive(Clone)]
pub struct Keeper {
    groups: Option<Arc<Mutex<Groups>>>,
    names: Vec<String>,
    failure: Option<String>,
}

impl Keeper {
    /// Puts the config's groups in force. A failure is told in [`Keeper::notes`]: limits on packets go on without.
    #[must_use]
    pub fn start(config: &Config) -> Self {
        let names = config.groups.iter().map(|group| group.name.clone()).collect();
        if config.groups.is_empty() {
            return Self { groups: None, names, failure: None };
        }
        match Groups::start(config, Host::this(&config.agent)) {
            Ok(groups) => Self { groups: Some(Arc::new(Mutex::new(groups))), names, failure: None },
            Err(error) => Self { groups: None, names, failure: Some(format!("no group is in force: {error}")) },
        }
    }

    fn lock(&self) -> Option<MutexGuard<'_, Groups>> {
        // A panic elsewhere left the cgroups as they are, and the next scan finds them.
        self.groups.as_ref().map(|groups| groups.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Fills and adjusts until it is dropped.
    pub async fn keep_filled(&self) {
        let (mut scan, mut adjust) = (interval(SCAN), interval(ADJUST));
        for ticker in [&mut scan, &mut adjust] {
            ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
        }
        let Some(sys) = self.lock().map(|groups| groups.host().sys.clone()) else {
            return std::future::pending().await;
        };
        let mut starts = match Starts::watch(&sys) {
            Ok(starts) => Some(starts),
            Err(problem) => {
                self.lock().into_iter().for_each(|mut groups| groups.note(&problem));
                None
            }
        };
        // What started between the first scan and the watch.
        self.lock().into_iter().for_each(|mut groups| groups.scan());
        let mut load = HostLoad::new().ok();
        let is_elastic = self.lock().is_some_and(|groups| groups.has_elastic());
        loop {
            tokio::select! {
                started = next(&mut starts) => match started {
                    Ok(started) => self.lock().into_iter().for_each(|mut groups| {
                        started.iter().for_each(|started| groups.started(started));
                    }),
                    // The scan still finds them.
                    Err(_) => starts = None,
                },
                _ = scan.tick() => self.lock().into_iter().for_each(|mut groups| groups.scan()),
                _ = adjust.tick(), if is_elastic => {
                    if let (Some(mut groups), Some(Ok(sample))) = (self.lock(), load.as_mut().map(HostLoad::sample)) {
                        groups.adjust(&sample);
                    }
                }
            }
        }
    }

    /// The groups' names.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.names.clone()
    }

    /// What an operator should know.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let own = self.lock().map(|groups| groups.notes()).unwrap_or_default();
        self.failure.iter().cloned().chain(own).collect()
    }

    /// The document of `agent groups`.
    #[must_use]
    pub fn statuses(&self) -> Vec<GroupStatus> {
        self.lock().map(|groups| groups.statuses()).unwrap_or_default()
    }

    /// Freezes, thaws or kills a group.
    ///
    /// # Errors
    ///
    /// With what to tell the operator.
    pub fn emergency(&self, group: String, what: Emergency) -> Result<Done, String> {
        let Some(groups) = self.lock() else {
            return Err(self.failure.clone().unwrap_or_else(|| "the config in force has no groups".to_owned()));
        };
        groups.emergency(&group, what).map_err(|error| error.to_string())?;
        Ok(Done { group, what })
    }

    /// Ends: what stays in force stays as it is, the rest is taken back. Returns what could not be.
    #[must_use]
    pub fn stop(&self, on_exit: OnExit) -> Vec<String> {
        let Some(mut groups) = self.lock() else { return Vec::new() };
        match on_exit {
            OnExit::Keep => {
                groups.keep();
                Vec::new()
            }
            OnExit::Detach => groups.give_back().iter().map(ToString::to_string).collect(),
        }
    }
}
