//! Enforces and adjusts groups on a separate thread while the agent runs, so that commands do not wait for a scan of
//! all processes.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use api::group::{Done, Emergency, GroupStatus, NetworkStatus, UsageRow};
use common::group::Started;
use config::policy::{Config, OnExit};
use host::StateDirectory;
use host::load::HostLoad;
use tokio::time::{MissedTickBehavior, interval};

use super::comparisons::{Lifted, MOST_REPORTS};
use super::error::GroupsError;
use super::groups::Groups;
use super::host_paths::Host;
use super::leave::detach;
use super::starts::Starts;
use super::threads;
use super::usage::Book;
use super::view::View;

/// The interval at which containers, units and some processes are checked.
const TICK: Duration = Duration::from_secs(1);
/// The CPU time for scanning processes every [`TICK`], in addition to the kernel's events: some processes change
/// without starting a program, as by setuid.
const BUDGET: Duration = Duration::from_millis(4);
/// The same if the kernel does not report process starts, or events were lost.
const BUDGET_WITHOUT_EVENTS: Duration = Duration::from_millis(50);
/// The interval at which elastic groups are adjusted: they return CPU time within a few intervals.
const ADJUST: Duration = Duration::from_millis(250);

const ENDED: &str = "the thread of process groups has ended because of an error in Weir: new processes are not limited, and lifted limits are not set again; restart the agent";

/// A message to the thread.
enum Message {
    Started(Vec<Started>),
    /// Events were lost.
    Missed,
    /// Events are available from now on, or the error.
    Watching(Result<(), GroupsError>),
}

/// The groups of a running agent. Clones refer to the same groups.
#[derive(Clone)]
pub struct GroupManager(Arc<Shared>);

struct Shared {
    /// Locked for the duration of the work.
    work: Mutex<Option<Groups>>,
    /// Locked briefly.
    seen: Mutex<Seen>,
    /// Locked for a reading of all cgroups.
    book: Mutex<Book>,
    /// Whether the thread has ended by a panic.
    has_ended: AtomicBool,
    /// Limits that other programs have lifted, until a reader takes them.
    lifted: Mutex<Vec<Lifted>>,
}

/// The snapshot for readers.
#[derive(Clone, Default)]
struct Seen {
    view: Arc<View>,
    names: Vec<String>,
    failure: Option<String>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves the cgroups as they are, and the next scan finds them.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs work on a thread outside of any runtime: the D-Bus client has its own. Without one, nothing is done.
fn apart<T: Send>(work: impl FnOnce() -> T + Send) -> Result<T, GroupsError> {
    const NAME: &str = "groups-config";
    std::thread::scope(|scope| {
        let started = threads::named(NAME).spawn_scoped(scope, work);
        let thread = started.map_err(|source| GroupsError::Refused { name: NAME, source })?;
        match thread.join() {
            Ok(done) => Ok(done),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}

impl GroupManager {
    /// Enforces the config's groups. A failure is in [`GroupManager::notes`]; limits on packets are not affected.
    #[must_use]
    pub fn start(config: &Config) -> Self {
        let manager = {
            let book = Book::open(StateDirectory::at(&config.agent.state_dir));
            Self(Arc::new(Shared {
                work: Mutex::new(None),
                seen: Mutex::default(),
                book: Mutex::new(book),
                has_ended: AtomicBool::new(false),
                lifted: Mutex::default(),
            }))
        };
        manager.replace(config);
        manager
    }

    /// Enforces another config's groups instead. Processes that stay in their group are not moved, and those of removed
    /// groups are moved back.
    pub fn replace(&self, config: &Config) {
        if let Err(problem) = apart(|| self.replace_here(config)) {
            locked(&self.0.seen).failure = Some(format!(
                "the groups of this config are not in effect, those before it are: {problem}"
            ));
        }
    }

    /// Adds the usage until now, before the groups end or change.
    fn record_usage(&self, groups: &Groups) {
        let mut book = locked(&self.0.book);
        book.look(groups);
        book.save();
    }

    fn replace_here(&self, config: &Config) {
        let mut work = locked(&self.0.work);
        let before = work.take();
        before.iter().for_each(|before| self.record_usage(before));
        let mut seen = Seen {
            names: config
                .groups
                .iter()
                .map(|group| group.name.clone())
                .collect(),
            ..Seen::default()
        };
        if config.groups.is_empty() {
            drop(before);
            // The record shows that this agent or an earlier one created the limits.
            let is_noted = Host::this(&config.agent).has_notes();
            let problems = if is_noted {
                detach(&config.agent).1
            } else {
                Vec::new()
            };
            seen.failure = problems.first().map(|problem| {
                format!("removing the groups of an earlier config failed: {problem}")
            });
        } else {
            match Groups::start(config, Host::this(&config.agent), before) {
                Ok(mut groups) => {
                    seen.view = Arc::new(groups.changed_view().unwrap_or_default());
                    *work = Some(groups);
                }
                Err(error) => seen.failure = Some(format!("no process group is enforced: {error}")),
            }
        }
        *locked(&self.0.seen) = seen;
    }

    /// Enforces and adjusts until it is dropped.
    pub async fn keep_filled(&self) {
        let (sender, messages) = channel();
        let manager = self.clone();
        let thread = std::thread::Builder::new()
            .name("groups".to_owned())
            .spawn(move || manager.while_it_lasts(|| manager.work(&messages)));
        if let Err(error) = thread {
            locked(&self.0.seen).failure = Some(format!(
                "starting the thread of process groups failed: {error}; new processes are not limited"
            ));
            return std::future::pending().await;
        }
        let mut ticks = interval(TICK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        while locked(&self.0.seen).names.is_empty() {
            ticks.tick().await;
        }
        self.forward(&sender).await;
        std::future::pending::<()>().await;
    }

    /// Forwards the kernel's events.
    async fn forward(&self, sender: &Sender<Message>) -> Option<()> {
        let mut starts = match Starts::watch(Path::new("/sys")) {
            Ok(starts) => starts,
            Err(problem) => return sender.send(Message::Watching(Err(problem))).ok(),
        };
        sender.send(Message::Watching(Ok(()))).ok()?;
        loop {
            match starts.next().await {
                Ok(received) => {
                    sender.send(Message::Started(received.started)).ok()?;
                    if received.is_incomplete {
                        sender.send(Message::Missed).ok()?;
                    }
                }
                Err(source) => {
                    let problem = GroupsError::read(Path::new("the kernel's events"), source);
                    return sender.send(Message::Watching(Err(problem))).ok();
                }
            }
        }
    }

    /// Does the thread's work, and records that it has ended by a panic.
    fn while_it_lasts(&self, work: impl FnOnce()) {
        let ended = catch_unwind(AssertUnwindSafe(work));
        self.0.has_ended.store(ended.is_err(), Ordering::Relaxed);
    }

    /// The thread's work, until all senders are dropped.
    fn work(&self, messages: &Receiver<Message>) {
        let mut load = HostLoad::new().ok();
        let (mut ticked, mut adjusted) = (Instant::now(), Instant::now());
        let mut budget = BUDGET_WITHOUT_EVENTS;
        let mut extra = 0;
        loop {
            let has_elastic = locked(&self.0.work)
                .as_ref()
                .is_some_and(Groups::has_elastic);
            let until_tick = TICK.saturating_sub(ticked.elapsed());
            let until_adjust = if has_elastic {
                ADJUST.saturating_sub(adjusted.elapsed())
            } else {
                TICK
            };
            let message = messages.recv_timeout(until_tick.min(until_adjust));
            let mut work = locked(&self.0.work);
            let groups = work.as_mut();
            match (message, groups) {
                (Err(RecvTimeoutError::Disconnected), _) => return,
                (Ok(Message::Started(started)), Some(groups)) => {
                    started.iter().for_each(|started| groups.started(started));
                    groups.move_queued();
                }
                (Ok(Message::Missed), _) => extra = 4,
                (Ok(Message::Watching(result)), Some(groups)) => match result {
                    // Finds processes that started between the first scan and the watch.
                    Ok(()) => {
                        groups.scan();
                        budget = BUDGET;
                    }
                    Err(problem) => {
                        groups.note(&problem);
                        budget = BUDGET_WITHOUT_EVENTS;
                    }
                },
                _ => {}
            }
            if let Some(groups) = work.as_mut() {
                if ticked.elapsed() >= TICK {
                    groups.tick(if extra > 0 {
                        BUDGET_WITHOUT_EVENTS
                    } else {
                        budget
                    });
                    locked(&self.0.book).tick(groups);
                    self.keep_reports(groups);
                    extra = u32::saturating_sub(extra, 1);
                    ticked = Instant::now();
                }
                if has_elastic && adjusted.elapsed() >= ADJUST {
                    if let Some(Ok(sample)) = load.as_mut().map(HostLoad::sample) {
                        groups.adjust(&sample);
                    }
                    adjusted = Instant::now();
                }
                if let Some(view) = groups.changed_view() {
                    locked(&self.0.seen).view = Arc::new(view);
                }
            } else if ticked.elapsed() >= TICK {
                ticked = Instant::now();
            }
        }
    }

    /// Keeps reports for a reader; without one, the latest are dropped.
    fn keep_reports(&self, groups: &mut Groups) {
        let mut kept = locked(&self.0.lifted);
        let room = MOST_REPORTS.saturating_sub(kept.len());
        kept.extend(groups.comparisons.reports.drain(..).take(room));
    }

    /// Takes the reports of limits that other programs have lifted.
    #[must_use]
    pub fn take_lifted(&self) -> Vec<Lifted> {
        std::mem::take(&mut *locked(&self.0.lifted))
    }

    fn seen(&self) -> Seen {
        locked(&self.0.seen).clone()
    }

    /// The groups' names.
    #[must_use]
    pub fn names(&self) -> Vec<String> {
        self.seen().names
    }

    /// Notes for the operator.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let seen = self.seen();
        let book = locked(&self.0.book).note();
        let has_ended = self.0.has_ended.load(Ordering::Relaxed);
        has_ended
            .then(|| ENDED.to_owned())
            .into_iter()
            .chain(seen.failure)
            .chain(book)
            .chain(seen.view.notes())
            .collect()
    }

    /// The processes of each group that the kernel killed for lack of memory, since its cgroup was created.
    #[must_use]
    pub fn oom_kills(&self) -> Vec<(String, u64)> {
        self.seen().view.oom_kills()
    }

    /// The processes and threads of each group that the kernel refused above `pids`, since its cgroup was created.
    #[must_use]
    pub fn pids_refused(&self) -> Vec<(String, u64)> {
        self.seen().view.pids_refused()
    }

    /// The refused connections of each group, and the last refusal.
    #[must_use]
    pub fn refusals(&self) -> Vec<(String, NetworkStatus)> {
        self.seen().view.refusals()
    }

    /// The document of `weir groups`.
    #[must_use]
    pub fn statuses(&self) -> Vec<GroupStatus> {
        self.seen().view.statuses()
    }

    /// The usage of groups on these days, both included.
    #[must_use]
    pub fn usage(
        &self,
        group: Option<&str>,
        from: Option<&str>,
        to: Option<&str>,
    ) -> Vec<UsageRow> {
        locked(&self.0.book).rows(group, from, to)
    }

    /// Freezes, thaws or kills a group.
    ///
    /// # Errors
    ///
    /// When there is no such group, or the kernel refuses.
    pub fn emergency(&self, group: String, what: Emergency) -> Result<Done, String> {
        let seen = self.seen();
        if seen.view.place.is_none() {
            return Err(seen
                .failure
                .unwrap_or_else(|| "the config in effect has no groups".to_owned()));
        }
        seen.view
            .emergency(&group, what)
            .map_err(|error| error.to_string())?;
        Ok(Done { group, what })
    }

    /// Ends the groups: some limits stay in effect, the others are removed. Returns the failures.
    #[must_use]
    pub fn stop(&self, on_exit: OnExit) -> Vec<String> {
        let ended = apart(|| {
            let Some(mut groups) = locked(&self.0.work).take() else {
                return Vec::new();
            };
            self.record_usage(&groups);
            match on_exit {
                OnExit::Keep => {
                    groups.keep();
                    Vec::new()
                }
                OnExit::Detach => groups.give_back().iter().map(ToString::to_string).collect(),
            }
        });
        ended.unwrap_or_else(|problem| vec![format!("ending the groups failed: {problem}")])
    }
}

#[cfg(test)]
mod tests {
    use config::parse;

    use super::*;

    /// A config without groups, of an agent that has no files.
    fn config(folder: &Path) -> Config {
        let text = "[agent]\nallow_empty = true\n";
        let mut config = parse(Path::new("limits.toml"), text).unwrap().config;
        config.agent.control = folder.join("control.sock");
        config.agent.state_dir = folder.to_owned();
        config
    }

    #[test]
    fn a_thread_that_ended_by_a_panic_is_a_note() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let manager = GroupManager::start(&config);
        assert_eq!(manager.notes(), [""; 0]);
        manager.while_it_lasts(|| panic!("out of order"));
        manager.replace(&config);
        assert_eq!(manager.notes(), [ENDED]);
    }

    #[test]
    fn a_config_that_finds_no_free_thread_changes_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let config = config(folder.path());
        let manager = GroupManager::start(&config);
        threads::NONE.set(true);
        manager.replace(&config);
        assert!(manager.notes()[0].contains("starting the thread groups-config failed"));
        assert_eq!(manager.stop(OnExit::Keep).len(), 1);
        threads::NONE.set(false);
        manager.replace(&config);
        assert_eq!(manager.notes(), [""; 0]);
    }
}
