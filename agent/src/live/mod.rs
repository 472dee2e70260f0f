//! The config in force, and how another one takes its place: read again, tried for a time, taken back.

mod documents;
mod error;
mod follow;
mod last_valid;
mod record;
mod trial;
mod watch;

pub use crate::host_links::interfaces;
pub use documents::{Confirmed, LastReload, Reloaded, RollbackStatus, TrialStatus};
pub use error::ReloadError;
pub use follow::follow_interfaces;
pub use last_valid::LastValid;
pub use record::{Record, RecordDamaged};
pub use trial::TRIALS;
pub use watch::changes;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use self::trial::Trial;
use crate::applications::Agent;
use crate::compile::{self, Plan};
use crate::config::policy::Config;
use crate::config::{self, Changes, ConfigError};
use crate::decide::{Engine, Moves};
use crate::memory::{self, Lasting};
use crate::protect::{self, Protected};
use crate::stacking;
use crate::supervisor::Supervisor;

/// What makes the config be read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// The start of the agent.
    Start,
    /// SIGHUP.
    Signal,
    /// `agent reload`.
    Command,
    /// The file has changed.
    Watch,
    /// `agent try`.
    Try,
    /// A trial that was not confirmed.
    TrialEnded,
    /// `agent revert`.
    Revert,
}

impl Cause {
    const fn word(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Signal => "signal",
            Self::Command => "command",
            Self::Watch => "watch",
            Self::Try => "try",
            Self::TrialEnded => "trial-ended",
            Self::Revert => "revert",
        }
    }

    const fn ends_a_trial(self) -> bool {
        matches!(self, Self::TrialEnded | Self::Revert)
    }
}

/// A config, as it was read.
#[derive(Clone, Debug)]
pub struct Source {
    /// What it says.
    pub config: Config,
    /// Its text; `None` for the built-in limits.
    pub text: Option<String>,
}

impl Source {
    /// Reads a file.
    ///
    /// # Errors
    ///
    /// When it cannot be read, or is wrong.
    pub fn read(path: &Path) -> Result<(Self, Vec<String>), ConfigError> {
        let text = config::read_text(path)?;
        let loaded = config::parse(path, &text).map_err(ConfigError::Invalid)?;
        let warnings = loaded.warnings.iter().map(ToString::to_string).collect();
        Ok((Self { config: loaded.config, text: Some(text) }, warnings))
    }

    /// Keeps the text for a service that is started with an invalid config; returns what should be known if that fails.
    #[must_use]
    pub fn keep_as_last_valid(&self) -> Option<String> {
        let kept = LastValid::of_service()?.keep(self.text.as_deref()?);
        kept.err().map(|error| format!("a start with an invalid config will not find this one: {error}"))
    }
}

/// A config that has taken the place of another.
#[derive(Default)]
struct Applied {
    /// What an operator should know.
    notes: Vec<String>,
    changes: Changes,
}

/// A config that can take the place of the one in effect, as far as can be known without doing it.
struct Prepared {
    before: Config,
    protected: Vec<Protected>,
    effective: Config,
    plan: Plan,
    interfaces: Vec<String>,
    engine: Engine,
    moves: Moves,
}

/// The config in force.
#[derive(Debug)]
pub struct Live {
    source: Source,
    protected: Vec<Protected>,
    /// SSH sessions that commands came from.
    operators: BTreeSet<IpAddr>,
    /// The file's text when it was last looked at: a change is a change of this.
    seen: Option<String>,
    last: Option<LastReload>,
    trial: Option<Trial>,
}

impl Live {
    /// What an agent starts with. `seen` is the text of its file, which is not that of `source` after a trial that was not
    /// confirmed: that is no change that `watch` may put in effect.
    #[must_use]
    pub fn new(source: Source, seen: Option<String>, protected: Vec<Protected>) -> Self {
        Self { source, protected, operators: BTreeSet::new(), seen, last: None, trial: None }
    }

    /// Notes that the file was invalid when the agent started, and that another config is in effect.
    pub fn start_failed(&mut self, file: &Path, errors: Vec<String>) {
        // It is read again when its text changes.
        self.seen = config::read_text(file).ok();
        self.last = Some(LastReload {
            at: seconds_since_1970(),
            ok: false,
            cause: Cause::Start.word().to_owned(),
            file: Some(file.display().to_string()),
            seconds: 0.0,
            errors,
            notes: Vec::new(),
        });
    }

    /// The config, as the operator wrote it.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.source.config
    }

    /// What came of the last time another config was to take its place.
    #[must_use]
    pub fn last(&self) -> Option<LastReload> {
        self.last.clone()
    }

    /// Who is protected.
    #[must_use]
    pub fn protected(&self) -> Vec<Protected> {
        self.protected.clone()
    }

    /// The config on trial.
    #[must_use]
    pub fn trial(&self) -> Option<TrialStatus> {
        self.trial.as_ref().map(Trial::status)
    }
}

fn seconds_since_1970() -> f64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// One change at a time, while others look at what is in force.
#[derive(Debug)]
pub struct Changing {
    live: Mutex<Live>,
    one: Mutex<()>,
    /// Woken when a trial begins.
    pub(crate) trial_began: tokio::sync::Notify,
}

impl Changing {
    /// For what an agent starts with.
    #[must_use]
    pub fn new(live: Live) -> Self {
        Self { live: Mutex::new(live), one: Mutex::new(()), trial_began: tokio::sync::Notify::new() }
    }

    /// What is in force.
    pub fn live(&self) -> MutexGuard<'_, Live> {
        // What is written under it is written in single assignments.
        self.live.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn one(&self) -> MutexGuard<'_, ()> {
        self.one.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Agent {
    /// Reads the config again and puts it in force: all of it or nothing.
    pub fn reload(&self, cause: Cause, operator: Option<IpAddr>) -> Reloaded {
        let _one = self.changing().one();
        let began = Instant::now();
        Supervisor.reloading();
        let result = self.reload_file(cause, operator);
        self.told(cause, self.file(), began, result)
    }

    /// Reports what a reload would change, and changes nothing.
    pub fn compare(&self) -> Reloaded {
        let _one = self.changing().one();
        let began = Instant::now();
        let compared = self.read_file().and_then(|source| {
            let prepared = self.prepare(&source.config, None)?;
            Ok(Changes::between(&prepared.before, &source.config))
        });
        let milliseconds = began.elapsed().as_millis() as u64;
        let plain = Reloaded { ok: true, wrong_config: false, milliseconds, ..Reloaded::default() };
        match compared {
            Ok(changes) => Reloaded { changes, ..plain },
            Err(error) => {
                Reloaded { ok: false, wrong_config: error.is_of_the_config(), errors: error.lines(), ..plain }
            }
        }
    }

    /// The file of this agent, as it is now.
    fn read_file(&self) -> Result<Source, ReloadError> {
        let file = self.file().ok_or(ReloadError::NoFile)?;
        let text = config::read_text(file)?;
        let loaded = config::parse(file, &text).map_err(ConfigError::Invalid)?;
        Ok(Source { config: loaded.config, text: Some(text) })
    }

    fn reload_file(&self, cause: Cause, operator: Option<IpAddr>) -> Result<Applied, ReloadError> {
        let file = self.file().ok_or(ReloadError::NoFile)?;
        if let Some(trial) = &self.changing().live().trial {
            return Err(trial.obstacle());
        }
        self.changing().live().seen = Some(config::read_text(file)?);
        let source = self.read_file()?;
        let mut applied = self.apply(&source, operator, Lasting::Indefinite)?;
        applied.notes.extend(source.keep_as_last_valid());
        if cause != Cause::Watch {
            // The operator has said which one it is to be.
            let forgotten = Record::forget(&self.changing().live().source.config.agent);
            applied.notes.extend(
                forgotten.err().map(|error| format!("the next start may roll back to the config before: {error}")),
            );
        }
        Ok(applied)
    }

    /// Reads the file again if it says something else than when it was last looked at.
    pub fn reload_if_changed(&self) {
        let is_watched = {
            let live = self.changing().live();
            live.source.config.agent.watch && live.trial.is_none()
        };
        let Some(file) = self.file().filter(|_| is_watched) else { return };
        // A file that is not there is one that is being replaced.
        let Ok(text) = config::read_text(file) else { return };
        if self.changing().live().seen.as_ref() != Some(&text) {
            self.reload(Cause::Watch, None);
        }
    }

    /// Puts a config in force in place of the one that is.
    fn apply(&self, source: &Source, operator: Option<IpAddr>, lasting: Lasting) -> Result<Applied, ReloadError> {
        let config = &source.config;
        let Prepared { before, protected, effective, plan, interfaces, engine, moves } =
            self.prepare(config, operator)?;
        // The last that can fail.
        let mut notes = self.replace_packets(&effective, plan, &interfaces, lasting).map_err(ReloadError::Packets)?;
        let known = self.requests().engine();
        engine.set_shares(self.shares(config).iter().filter(|(name, _)| known.asked(name).is_none()));
        self.requests().replace(engine, moves);
        self.groups().replace(&effective);
        notes.extend(self.replace_cluster(config));
        notes.extend(stacking::gaps(config));
        let mut live = self.changing().live();
        live.source = source.clone();
        live.protected = protected;
        Ok(Applied { notes, changes: Changes::between(&before, config) })
    }

    fn prepare(&self, config: &Config, operator: Option<IpAddr>) -> Result<Prepared, ReloadError> {
        let (before, operators) = {
            let mut live = self.changing().live();
            live.operators.extend(operator);
            (live.source.config.clone(), live.operators.clone())
        };
        self.check_fixed(&before, config)?;
        let protected = protect::of(config, &operators);
        let effective = protect::applied(config, &protected);
        let plan = compile::plan_after(&effective, &self.layout())?;
        let interfaces = interfaces(&effective).map_err(ReloadError::Interfaces)?;
        let (engine, moves) = self.requests().engine().after(&effective)?;
        Ok(Prepared { before, protected, effective, plan, interfaces, engine, moves })
    }

    /// What was set up when the agent started stays as it is.
    fn check_fixed(&self, before: &Config, config: &Config) -> Result<(), ReloadError> {
        let (old, new) = (&before.agent, &config.agent);
        let mut fixed = Vec::new();
        for (is_same, name) in [
            (old.control == new.control, "[agent] control"),
            (old.pins == new.pins, "[agent] pins"),
            (old.state_dir == new.state_dir, "[agent] state_dir"),
            (old.cgroup == new.cgroup, "[agent] cgroup"),
            (old.metrics == new.metrics, "[agent] metrics"),
            (before.decide.http == config.decide.http, "[decide] http"),
            (before.decide.grpc == config.decide.grpc, "[decide] grpc"),
        ] {
            if !is_same {
                fixed.push(name);
            }
        }
        let has_endpoint = config.decide.http.is_some() || config.decide.grpc.is_some();
        if has_endpoint && !config.decide.limits.is_empty() && !self.requests().is_listening() {
            fixed.push("that nobody listens for applications");
        }
        if fixed.is_empty() { Ok(()) } else { Err(ReloadError::NeedsRestart(fixed.join(", "))) }
    }

    /// Notes what came of a change, for `status`, for who asked, and for the log.
    fn told(
        &self,
        cause: Cause,
        file: Option<&Path>,
        began: Instant,
        result: Result<Applied, ReloadError>,
    ) -> Reloaded {
        let (Applied { notes, changes }, errors, is_of_the_config) = match result {
            Ok(applied) => (applied, Vec::new(), false),
            Err(error) => (Applied::default(), error.lines(), error.is_of_the_config()),
        };
        memory::trim();
        let file = file.map(|file| file.display().to_string());
        let what = file.clone().unwrap_or_else(|| "the built-in limits".to_owned());
        let milliseconds = began.elapsed().as_millis() as u64;
        let line = match (errors.is_empty(), cause) {
            (true, Cause::TrialEnded) => {
                format!("the trial of {what} was not confirmed: rolled back to the config before")
            }
            (true, Cause::Revert) => format!("the trial of {what} was reverted: rolled back to the config before"),
            (true, Cause::Try) => format!("{what} is in force, on trial"),
            (true, _) => format!("reloaded {what} in {milliseconds} ms"),
            (false, Cause::TrialEnded | Cause::Revert) => {
                format!("the trial of {what} is over, and rolling back failed: it stays in effect until that succeeds")
            }
            (false, _) => format!("{what} is not in force; what was before is"),
        };
        eprintln!("{line}");
        for error in &errors {
            eprintln!("error: {error}");
        }
        Supervisor.ready(&line);
        for note in &notes {
            eprintln!("note: {note}");
        }
        let ok = errors.is_empty();
        let mut live = self.changing().live();
        if cause.ends_a_trial() && ok {
            // Here, so that whoever sees that it is over also sees what came of it.
            live.trial = None;
            // What was written during a trial is put in effect by an operator, not by `watch`.
            live.seen = self.file().and_then(|file| config::read_text(file).ok());
        }
        live.last = Some(LastReload {
            at: seconds_since_1970(),
            ok,
            cause: cause.word().to_owned(),
            file,
            seconds: began.elapsed().as_secs_f64(),
            errors: errors.clone(),
            notes: notes.clone(),
        });
        drop(live);
        Reloaded { ok, wrong_config: is_of_the_config, milliseconds, errors, notes, changes }
    }
}
