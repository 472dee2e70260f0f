//! Keeps groups filled and elastic while the agent runs.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{MissedTickBehavior, interval};

use super::kernel::{Heard, Starts};
use super::{Groups, Host, detach};
use crate::config::policy::{Config, OnExit};
use crate::control::Done;
use crate::groups::{Emergency, GroupStatus};
use crate::host_load::HostLoad;

/// A net below the kernel's events: for those that changed without starting a program, as by setuid.
const SCAN: Duration = Duration::from_secs(2);
/// How often elastic groups are looked at: what somebody else needs is taken back within a few of these.
const ADJUST: Duration = Duration::from_millis(250);

/// The kernel's events of processes that start.
enum Watch {
    /// There were no groups so far.
    NotYet,
    /// They come.
    Running(Box<Starts>),
    /// They do not, which is noted.
    Failed,
}

/// Waits for ever if nothing is watched.
async fn next(watch: &mut Watch) -> std::io::Result<Heard> {
    match watch {
        Watch::Running(starts) => starts.next().await,
        Watch::NotYet | Watch::Failed => std::future::pending().await,
    }
}

/// The groups of a running agent, or why there are none. Clones are of the same groups.
#[derive(Clone)]
pub struct Keeper(Arc<Mutex<Kept>>);

struct Kept {
    groups: Option<Groups>,
    names: Vec<String>,
    failure: Option<String>,
}

impl Keeper {
    /// Puts the config's groups in force. A failure is told in [`Keeper::notes`]: limits on packets go on without.
    #[must_use]
    pub fn start(config: &Config) -> Self {
        let keeper = Self(Arc::new(Mutex::new(Kept { groups: None, names: Vec::new(), failure: None })));
        keeper.replace(config);
        keeper
    }

    /// Puts another config's groups in force in place of those that are. Who stays in its group is not moved, and
    /// groups that are no more give their processes back.
    pub fn replace(&self, config: &Config) {
        let mut kept = self.lock();
        kept.names = config.groups.iter().map(|group| group.name.clone()).collect();
        let host = Host::this(&config.agent);
        if config.groups.is_empty() {
            // The file tells that it was this agent, or one before it, that made what lies there.
            let problems = if host.origins.exists() { detach(&config.agent).1 } else { Vec::new() };
            kept.groups = None;
            kept.failure = problems.first().map(|problem| format!("ending the groups of an earlier config: {problem}"));
            return;
        }
        match Groups::start(config, host) {
            Ok(groups) => (kept.groups, kept.failure) = (Some(groups), None),
            Err(error) => kept.failure = Some(format!("no group is in force: {error}")),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        // A panic elsewhere left the cgroups as they are, and the next scan finds them.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with(&self, work: impl FnOnce(&mut Groups)) {
        if let Some(groups) = &mut self.lock().groups {
            work(groups);
        }
    }

    /// Fills and adjusts until it is dropped.
    pub async fn keep_filled(&self) {
        let (mut scan, mut adjust) = (interval(SCAN), interval(ADJUST));
        for ticker in [&mut scan, &mut adjust] {
            ticker.set_missed_tick_behavior(MissedTickBehavior::Delay);
        }
        let mut watch = Watch::NotYet;
        let mut load = HostLoad::new().ok();
        loop {
            if matches!(watch, Watch::NotYet) && self.lock().groups.is_some() {
                watch = self.watch();
            }
            tokio::select! {
                started = next(&mut watch) => match started {
                    Ok(heard) => self.with(|groups| {
                        heard.started.iter().for_each(|started| groups.started(started));
                        if heard.is_incomplete {
                            groups.scan();
                        }
                    }),
                    // The scan still finds them.
                    Err(_) => watch = Watch::Failed,
                },
                _ = scan.tick() => self.with(Groups::scan),
                _ = adjust.tick() => self.with(|groups| {
                    if groups.has_elastic() && let Some(Ok(sample)) = load.as_mut().map(HostLoad::sample) {
                        groups.adjust(&sample);
                    }
                }),
            }
        }
    }

    /// Watches processes start; without that, the scan has to do.
    fn watch(&self) -> Watch {
        let mut watch = Watch::Failed;
        self.with(|groups| match Starts::watch(&groups.host().sys) {
            Ok(starts) => watch = Watch::Running(Box::new(starts)),
            Err(problem) => groups.note(&problem),
        });
        // What started between the first scan and the watch.
        self.with(Groups::scan);
        watch
    }

    /// The groups' names.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.lock().names.clone()
    }

    /// What an operator should know.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let kept = self.lock();
        let own = kept.groups.as_ref().map(Groups::notes).unwrap_or_default();
        kept.failure.iter().cloned().chain(own).collect()
    }

    /// How many processes of each group were killed for want of memory, since its cgroup was made.
    #[must_use]
    pub fn oom_kills(&self) -> Vec<(String, u64)> {
        self.lock().groups.as_ref().map(Groups::oom_kills).unwrap_or_default()
    }

    /// The document of `agent groups`.
    #[must_use]
    pub fn statuses(&self) -> Vec<GroupStatus> {
        self.lock().groups.as_ref().map(Groups::statuses).unwrap_or_default()
    }

    /// Freezes, thaws or kills a group.
    ///
    /// # Errors
    ///
    /// With what to tell the operator.
    pub fn emergency(&self, group: String, what: Emergency) -> Result<Done, String> {
        let kept = self.lock();
        let Some(groups) = &kept.groups else {
            return Err(kept.failure.clone().unwrap_or_else(|| "the config in force has no groups".to_owned()));
        };
        groups.emergency(&group, what).map_err(|error| error.to_string())?;
        Ok(Done { group, what })
    }

    /// Ends: what stays in force stays as it is, the rest is taken back. Returns what could not be.
    #[must_use]
    pub fn stop(&self, on_exit: OnExit) -> Vec<String> {
        let mut problems = Vec::new();
        self.with(|groups| match on_exit {
            OnExit::Keep => groups.keep(),
            OnExit::Detach => problems = groups.give_back().iter().map(ToString::to_string).collect(),
        });
        problems
    }
}
