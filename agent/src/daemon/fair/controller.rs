//! The thread of fair limits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use api::fair::FairStatus;
use common::fair::LIFE_NANOSECONDS;
use config::policy::{Config, Mode};
use datapath::{FairHandle, LoadError};
use fair::Loads;
use host::read::read_text;

use super::document::{document, without_effect};
use super::limited::Limited;
use super::recent::SharedRecent;
use super::settings::{LimitSettings, user_id};
use crate::daemon::events::EventLog;
use crate::daemon::packets::{PacketEngine, Packets};

/// The shortest tick: of limits that are off.
const TICK: Duration = Duration::from_millis(50);
/// How often a new policy is looked for while the one in effect has no fair limit.
const IDLE: Duration = Duration::from_millis(500);

/// The users of this host, and the most bytes of them.
const USERS: &str = "/etc/passwd";
const MOST_USERS: u64 = 16 << 20;

/// How long levels are in effect after they were written.
const LASTS: Duration = Duration::from_nanos(LIFE_NANOSECONDS);

/// The fair limits in effect.
pub struct FairController {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    known: Mutex<Known>,
    /// By the names of limits; it changes with the policy.
    recents: Mutex<Vec<(String, SharedRecent)>>,
    has_ended: AtomicBool,
}

/// The state of the thread.
#[derive(Default)]
struct Known {
    statuses: Vec<FairStatus>,
    /// Why it has no limits.
    failure: Option<&'static str>,
    /// When it wrote this last.
    at: Option<Instant>,
}

impl Known {
    /// Each fair limit of a config, in its order.
    fn of(&self, config: &Config, now: Instant) -> Vec<FairStatus> {
        let since = self.at.map(|at| now.saturating_duration_since(at));
        let is_late = since.is_some_and(|since| since > LASTS);
        let failure = match config.agent.mode {
            Mode::Observe => FairStatus::OBSERVE_MODE,
            Mode::Enforce if is_late => FairStatus::LATE,
            Mode::Enforce => self.failure.unwrap_or(FairStatus::STARTING),
        };
        let limits = config.limits.iter();
        let status = limits.filter_map(|limit| {
            let known = self.statuses.iter();
            let known = known.filter(|_| config.agent.mode == Mode::Enforce && !is_late);
            known
                .clone()
                .find(|known| known.limit == limit.name && limit.is_fair())
                .cloned()
                .or_else(|| without_effect(limit, failure))
        });
        status.collect()
    }
}

impl FairController {
    /// Starts the thread. `loads`: what services report of themselves.
    #[must_use]
    pub fn start(packets: Packets, events: Arc<EventLog>, loads: Arc<Loads>) -> Self {
        let shared = Arc::new(Shared::default());
        let running = Running {
            packets,
            events,
            loads,
            shared: Arc::clone(&shared),
            began: Instant::now(),
            policy: None,
            limits: Vec::new(),
            failure: None,
        };
        let thread = thread::Builder::new().name("weir-fair".to_owned());
        if let Err(error) = thread.spawn(move || running.run()) {
            shared.known().failure = Some(FairStatus::ENDED);
            tracing::error!(
                "starting the thread of fair limits failed: {error}; they refuse nothing below at_most: restart the agent"
            );
        }
        Self { shared }
    }

    /// The same as [`FairController::statuses`], without history and heaviest sources.
    #[must_use]
    pub fn levels(&self, config: &Config) -> Vec<FairStatus> {
        self.shared.known().of(config, Instant::now())
    }

    /// Each fair limit of the config in effect, also those that refuse nothing since something fails.
    #[must_use]
    pub fn statuses(&self, config: &Config) -> Vec<FairStatus> {
        let mut statuses = self.levels(config);
        let recents = self.shared.recents().clone();
        for status in statuses.iter_mut().filter(|status| status.is_in_effect()) {
            let recent = recents.iter().find(|(name, _)| *name == status.limit);
            let mut limits = config.limits.iter();
            let limit = limits.find(|limit| limit.name == status.limit);
            if let (Some((_, recent)), Some(limit)) = (recent, limit) {
                recent.complete(status, limit);
            }
        }
        statuses
    }
}

impl Drop for FairController {
    fn drop(&mut self) {
        self.shared.has_ended.store(true, Ordering::Relaxed);
    }
}

impl Shared {
    fn known(&self) -> MutexGuard<'_, Known> {
        // It is replaced as a whole.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn recents(&self) -> MutexGuard<'_, Vec<(String, SharedRecent)>> {
        // It is replaced as a whole, too.
        self.recents.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The work of the thread.
struct Running {
    packets: Packets,
    events: Arc<EventLog>,
    loads: Arc<Loads>,
    shared: Arc<Shared>,
    began: Instant,
    /// The engine whose limits these are, and its number of changes at that time.
    policy: Option<(Weak<PacketEngine>, u64)>,
    limits: Vec<Limited>,
    /// Why the limits of a policy cannot be taken; logged once.
    failure: Option<String>,
}

impl Drop for Running {
    fn drop(&mut self) {
        if thread::panicking() {
            // Levels end with their deadlines, and nobody reads what is reported.
            self.loads.replace([]);
            *self.shared.known() = Known {
                statuses: Vec::new(),
                failure: Some(FairStatus::ENDED),
                at: None,
            };
            tracing::error!(
                "the thread of fair limits has ended; they refuse nothing below at_most: restart the agent"
            );
        }
    }
}

impl Running {
    fn run(mut self) {
        let mut deadline = Instant::now();
        while !self.shared.has_ended.load(Ordering::Relaxed) {
            self.follow();
            for limit in &mut self.limits {
                // Of each: the limits before it may have taken a while.
                for change in limit.tick(self.began.elapsed().as_secs_f64()) {
                    self.events.push(change.event(&limit.name));
                }
            }
            *self.shared.known() = Known {
                statuses: self.limits.iter().map(document).collect(),
                failure: self.failure.as_ref().map(|_| FairStatus::NO_MAPS),
                at: Some(Instant::now()),
            };
            deadline += if self.limits.is_empty() { IDLE } else { TICK };
            // After a pause of this thread, ticks are not made up for.
            deadline = deadline.max(Instant::now());
            thread::sleep(deadline.saturating_duration_since(Instant::now()));
        }
        self.drop_limits();
    }

    /// Takes the limits of another policy, if one is in effect and nobody changes it now.
    fn follow(&mut self) {
        let Some(engine) = self.packets.load_full() else {
            self.policy = None;
            self.failure = None;
            self.drop_limits();
            return;
        };
        let changes = engine.changes();
        let is_same = self.policy.as_ref().is_some_and(|(of, at)| {
            *at == changes && std::ptr::eq(of.as_ptr(), Arc::as_ptr(&engine))
        });
        if is_same {
            return;
        }
        match engine.try_fair_handles() {
            // Until it is, the old handles do no harm.
            None => {}
            Some(Err(error)) => {
                // The old handles may be those of rules that are no longer in effect. The next tick tries again.
                self.drop_limits();
                self.policy = None;
                self.fail(&error);
            }
            Some(Ok((config, handles))) => {
                self.take(&config, handles);
                self.failure = None;
                self.policy = Some((Arc::downgrade(&engine), changes));
            }
        }
    }

    /// Takes the limits of a policy; those that have not changed stay as they are.
    fn take(&mut self, config: &Config, handles: Vec<FairHandle>) {
        let now = self.began.elapsed().as_secs_f64();
        let mut before = std::mem::take(&mut self.limits);
        for handle in handles {
            let limit = &config.limits[handle.limit().index];
            let Some(settings) = LimitSettings::of(limit) else {
                continue;
            };
            let old = before.iter().position(|old| old.name == limit.name);
            let old = old.map(|old| before.swap_remove(old));
            self.limits.push(match old {
                Some(old) if old.settings == settings => old.with(handle, now),
                old => Limited::new(handle, settings, Arc::clone(&self.loads), now).after(old),
            });
        }
        self.end(before);
        self.expect_loads();
        let recents = self.limits.iter();
        let recents = recents.map(|limit| (limit.name.clone(), limit.shared.clone()));
        *self.shared.recents() = recents.collect();
    }

    /// From now on, loads of these limits are reported, by these users.
    fn expect_loads(&self) {
        let limits = self.limits.iter();
        let services = limits.filter(|limit| limit.settings.takes_load);
        self.loads.replace(services.map(|limit| {
            let user = limit.settings.reported_by.as_ref();
            (
                limit.name.clone(),
                user.and_then(|user| reporter(&limit.name, user)),
            )
        }));
    }

    /// Releases the limits in effect.
    fn drop_limits(&mut self) {
        let limits = std::mem::take(&mut self.limits);
        self.end(limits);
        self.expect_loads();
        self.shared.recents().clear();
    }

    /// Releases limits that are no longer in effect.
    fn end(&self, limits: Vec<Limited>) {
        let now = self.began.elapsed().as_secs_f64();
        for mut limit in limits {
            limit.release();
            if let Some(change) = limit.end(now) {
                self.events.push(change.event(&limit.name));
            }
        }
    }

    /// Logs it once.
    fn fail(&mut self, error: &LoadError) {
        let error = error.to_string();
        if self.failure.as_ref() != Some(&error) {
            tracing::error!(
                "taking the maps of fair limits failed: {error}; they refuse nothing below at_most"
            );
            self.failure = Some(error);
        }
    }
}

/// The number of the user that may report a limit's load, beside root.
fn reporter(limit: &str, user: &str) -> Option<u32> {
    let users = read_text(USERS.as_ref(), MOST_USERS);
    let number = user_id(user, users.as_deref().unwrap_or_default());
    if number.is_none() {
        tracing::error!(
            limit,
            "user {user:?} is not in {USERS}: only root may report the load of limit {limit:?}; write its number in reported_by"
        );
    }
    number
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(mode: &str) -> Config {
        let text = format!(
            "[agent]\ninterfaces = [\"lo\"]\nmode = \"{mode}\"\n\
             [[limit]]\nname = \"web\"\nports = [80]\nunit = \"connections\"\nrate = \"fair\"\n\
             [[limit]]\nname = \"dns\"\nprotocol = \"udp\"\nrate = \"5/s\"\n\
             [[limit]]\nname = \"udp\"\nprotocol = \"udp\"\nrate = \"fair\"\n"
        );
        config::parse("limits.toml".as_ref(), &text).unwrap().config
    }

    fn failures(known: &Known, mode: &str, now: Instant) -> Vec<(String, Option<String>)> {
        let statuses = known.of(&config(mode), now).into_iter();
        statuses
            .map(|status| (status.limit, status.failure))
            .collect()
    }

    #[test]
    fn each_fair_limit_of_the_config_has_a_status() {
        let of_both =
            |failure: &str| ["web", "udp"].map(|name| (name.to_owned(), Some(failure.to_owned())));
        let (mut known, now) = (Known::default(), Instant::now());
        assert_eq!(failures(&known, "enforce", now), of_both("starting"));
        for failure in [FairStatus::NO_MAPS, FairStatus::ENDED] {
            known.failure = Some(failure);
            assert_eq!(failures(&known, "enforce", now), of_both(failure));
        }
        assert_eq!(failures(&known, "observe", now), of_both("observe-mode"));
        let in_effect = |limit: &str| FairStatus {
            limit: limit.to_owned(),
            ..FairStatus::default()
        };
        known = Known {
            statuses: ["dns", "udp", "web", "of-the-policy-before"]
                .map(in_effect)
                .to_vec(),
            failure: None,
            at: Some(now),
        };
        let none = ["web", "udp"].map(|name| (name.to_owned(), None));
        assert_eq!(failures(&known, "enforce", now), none);
        // The thread has not seen the change yet.
        assert_eq!(failures(&known, "observe", now), of_both("observe-mode"));
    }

    #[test]
    fn levels_of_a_thread_that_does_not_run_are_not_in_effect() {
        let began = Instant::now();
        let known = Known {
            statuses: vec![FairStatus {
                limit: "web".to_owned(),
                level: Some(20.0),
                ..FairStatus::default()
            }],
            failure: None,
            at: Some(began),
        };
        let web = |after| known.of(&config("enforce"), began + after)[0].clone();
        assert_eq!((web(LASTS).level, web(LASTS).failure), (Some(20.0), None));
        let late = web(LASTS + TICK);
        assert_eq!((late.level, late.failure.as_deref()), (None, Some("late")));
    }

    #[test]
    fn a_thread_that_ends_leaves_the_reason() {
        let shared = Arc::new(Shared::default());
        let running = Running {
            packets: Packets::default(),
            events: Arc::new(EventLog::default()),
            loads: Arc::default(),
            shared: Arc::clone(&shared),
            began: Instant::now(),
            policy: None,
            limits: Vec::new(),
            failure: None,
        };
        let thread = thread::spawn(move || {
            let _running = running;
            panic!("a test");
        });
        assert!(thread.join().is_err());
        let found = shared.known().of(&config("enforce"), Instant::now());
        assert_eq!(found[0].failure.as_deref(), Some(FairStatus::ENDED));
    }
}
