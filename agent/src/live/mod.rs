//! The config in force, and how another one takes its place: read again, tried for a time, taken back.

mod documents;
mod record;
mod watch;

pub use documents::{Confirmed, LastReload, Reloaded, TrialStatus};
pub use record::{Record, RecordError};
pub use watch::changes;

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use thiserror::Error;

use crate::applications::Agent;
use crate::compile::{self, CompileError};
use crate::config::policy::Config;
use crate::config::{self, ConfigError};
use crate::datapath::interface_names;
use crate::decide::EngineError;
use crate::protect::{self, Protected};
use crate::supervisor::Supervisor;

/// The shortest and the longest trial.
pub const TRIALS: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(24 * 3600);

/// What makes the config be read again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
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
}

impl Cause {
    const fn word(self) -> &'static str {
        match self {
            Self::Signal => "signal",
            Self::Command => "command",
            Self::Watch => "watch",
            Self::Try => "try",
            Self::TrialEnded => "trial-ended",
        }
    }
}

/// A config that cannot take the place of the one in force; that is in force as it was.
#[derive(Debug, Error)]
pub enum ReloadError {
    /// There is nothing to read.
    #[error("this agent runs without a config file, on built-in limits: start it with --config FILE")]
    NoFile,
    /// It is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// More than the kernel's rows can say.
    #[error(transparent)]
    Policy(#[from] CompileError),
    /// What can only be changed by starting anew.
    #[error("{0} cannot be changed while the agent runs: put it back, or restart the agent")]
    NeedsRestart(String),
    /// An interface is not there.
    #[error("{0}")]
    NoInterface(String),
    /// Limits on requests cannot be kept.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// Limits on packets cannot be held.
    #[error("{0}")]
    Packets(String),
    /// A trial is in progress.
    #[error("a config is on trial: confirm it (agent confirm), or wait until the trial ends in {0} s")]
    OnTrial(u64),
    /// A trial of no or too long a time.
    #[error("a trial lasts from 1s to 24h: write --for 60s")]
    Time,
    /// What is to be gone back to cannot be written down.
    #[error("the trial was not begun: {0}")]
    Record(#[from] RecordError),
}

impl ReloadError {
    /// Whether the config itself is wrong.
    const fn is_of_the_config(&self) -> bool {
        matches!(self, Self::Config(_) | Self::Policy(_) | Self::Time)
    }

    /// Each thing that is wrong, in a line.
    fn lines(&self) -> Vec<String> {
        match self {
            Self::Config(ConfigError::Invalid(report)) => report.errors.iter().map(ToString::to_string).collect(),
            other => vec![other.to_string()],
        }
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
}

/// A config on trial.
#[derive(Debug)]
struct Trial {
    file: PathBuf,
    ends: Instant,
    before: Source,
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
    /// What an agent starts with.
    #[must_use]
    pub fn new(source: Source, protected: Vec<Protected>) -> Self {
        let seen = source.text.clone();
        Self { source, protected, operators: BTreeSet::new(), seen, last: None, trial: None }
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
        let trial = self.trial.as_ref()?;
        let ends_in_seconds = trial.ends.saturating_duration_since(Instant::now()).as_secs_f64();
        Some(TrialStatus { file: trial.file.display().to_string(), ends_in_seconds })
    }
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

    fn one(&self) -> MutexGuard<'_, ()> {
        self.one.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The interfaces that a config's patterns name.
///
/// # Errors
///
/// With what is missing.
pub fn interfaces(config: &Config) -> Result<Vec<String>, String> {
    let present = interface_names();
    let mut interfaces = Vec::new();
    for pattern in &config.agent.interfaces {
        let matching: Vec<&String> = present.iter().filter(|name| pattern.matches(name)).collect();
        if matching.is_empty() {
            let present = present.join(", ");
            return Err(format!(
                "there is no interface {pattern} on this host; it has {present}: correct [agent] interfaces"
            ));
        }
        for name in matching {
            if !interfaces.contains(name) {
                interfaces.push(name.clone());
            }
        }
    }
    Ok(interfaces)
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

    fn reload_file(&self, cause: Cause, operator: Option<IpAddr>) -> Result<Vec<String>, ReloadError> {
        let file = self.file().ok_or(ReloadError::NoFile)?;
        if let Some(trial) = self.changing().live().trial() {
            return Err(ReloadError::OnTrial(trial.ends_in_seconds.ceil() as u64));
        }
        let text = config::read_text(file)?;
        self.changing().live().seen = Some(text.clone());
        let loaded = config::parse(file, &text).map_err(ConfigError::Invalid)?;
        let notes = self.apply(&Source { config: loaded.config, text: Some(text) }, operator)?;
        if cause != Cause::Watch {
            // The operator has said which one it is to be.
            Record::forget(&self.changing().live().source.config.agent);
        }
        Ok(notes)
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

    /// Puts a config in force for a time.
    ///
    /// # Errors
    ///
    /// When it cannot be; nothing is changed then.
    pub fn try_config(&self, file: &Path, time: Duration, operator: Option<IpAddr>) -> Reloaded {
        let _one = self.changing().one();
        let began = Instant::now();
        let result = self.begin_trial(file, time, operator);
        if result.is_ok() {
            self.changing().trial_began.notify_one();
        }
        self.told(Cause::Try, Some(file), began, result)
    }

    fn begin_trial(&self, file: &Path, time: Duration, operator: Option<IpAddr>) -> Result<Vec<String>, ReloadError> {
        if !TRIALS.contains(&time) {
            return Err(ReloadError::Time);
        }
        if let Some(trial) = self.changing().live().trial() {
            return Err(ReloadError::OnTrial(trial.ends_in_seconds.ceil() as u64));
        }
        let (tried, _) = Source::read(file)?;
        let before = self.changing().live().source.clone();
        // Before anything is changed: whenever the agent is killed, the next one knows what to go back to.
        let record = Record { tried: tried.text.clone(), before: before.text.clone() };
        let earlier = Record::read(&before.config.agent);
        record.write(&before.config.agent)?;
        match self.apply(&tried, operator) {
            Ok(notes) => {
                let trial = Trial { file: file.to_owned(), ends: Instant::now() + time, before };
                self.changing().live().trial = Some(trial);
                Ok(notes)
            }
            Err(error) => {
                match earlier {
                    // What was written a moment ago can be written again.
                    Some(earlier) => drop(earlier.write(&before.config.agent)),
                    None => Record::forget(&before.config.agent),
                }
                Err(error)
            }
        }
    }

    /// Keeps the config that is on trial.
    ///
    /// # Errors
    ///
    /// When none is.
    pub fn confirm(&self) -> Result<Confirmed, String> {
        let _one = self.changing().one();
        let mut live = self.changing().live();
        let Some(trial) = live.trial.take() else {
            return Err("no config is on trial: start one with agent try FILE --for 60s".to_owned());
        };
        Record::forget(&live.source.config.agent);
        let own = self.file().map(|file| file.display().to_string());
        let file = trial.file.display().to_string();
        let is_own = self.file().is_some_and(|own| is_same_file(own, &trial.file));
        let note = match own {
            _ if is_own => None,
            Some(own) => Some(format!(
                "it is in force until the next reload or start, which read {own}: to keep it, copy {file} there"
            )),
            None => Some(format!("it is in force until the agent ends: to keep it, start it with --config {file}")),
        };
        Ok(Confirmed { file, note })
    }

    /// When the trial in progress ends.
    pub fn trial_ends(&self) -> Option<Instant> {
        self.changing().live().trial.as_ref().map(|trial| trial.ends)
    }

    /// Goes back to what was in force before a trial whose time is over.
    pub fn end_trial_if_due(&self) {
        let _one = self.changing().one();
        let due = {
            let live = self.changing().live();
            live.trial.as_ref().filter(|trial| trial.ends <= Instant::now()).map(|trial| trial.before.clone())
        };
        let Some(before) = due else { return };
        let began = Instant::now();
        let result = self.apply(&before, None);
        let file = self.changing().live().trial.take().map(|trial| trial.file);
        let result = result.map(|mut notes| {
            if let (Some(tried), Some(own)) = (&file, self.file())
                && is_same_file(tried, own)
            {
                notes.push(format!(
                    "{} is still what was on trial: it is not in force, and will not be after a restart either, until agent reload or agent try",
                    own.display()
                ));
            }
            notes
        });
        self.told(Cause::TrialEnded, file.as_deref(), began, result);
    }

    /// Puts a config in force in place of the one that is.
    fn apply(&self, source: &Source, operator: Option<IpAddr>) -> Result<Vec<String>, ReloadError> {
        let config = &source.config;
        let (before, operators) = {
            let mut live = self.changing().live();
            live.operators.extend(operator);
            (live.source.config.clone(), live.operators.clone())
        };
        self.check_fixed(&before, config)?;
        let protected = protect::of(config, &operators);
        let effective = protect::applied(config, &protected);
        let plan = compile::plan_after(&effective, &self.layout())?;
        let interfaces = interfaces(&effective).map_err(ReloadError::NoInterface)?;
        let engine = self.requests().engine().after(&effective, self.requests().now())?;
        // The last that can fail.
        let mut notes = self.replace_packets(&effective, plan, &interfaces).map_err(ReloadError::Packets)?;
        self.requests().replace(engine);
        self.groups().replace(&effective);
        notes.extend(self.replace_cluster(&before, config));
        let mut live = self.changing().live();
        live.source = source.clone();
        live.protected = protected;
        Ok(notes)
    }

    /// What was set up when the agent started stays as it is.
    fn check_fixed(&self, before: &Config, config: &Config) -> Result<(), ReloadError> {
        let (old, new) = (&before.agent, &config.agent);
        let mut fixed = Vec::new();
        for (is_same, name) in [
            (old.control == new.control, "[agent] control"),
            (old.pins == new.pins, "[agent] pins"),
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
        result: Result<Vec<String>, ReloadError>,
    ) -> Reloaded {
        let (notes, errors, is_of_the_config) = match result {
            Ok(notes) => (notes, Vec::new(), false),
            Err(error) => (Vec::new(), error.lines(), error.is_of_the_config()),
        };
        let file = file.map(|file| file.display().to_string());
        let what = file.clone().unwrap_or_else(|| "the built-in limits".to_owned());
        let milliseconds = began.elapsed().as_millis() as u64;
        let line = match (errors.is_empty(), cause) {
            (true, Cause::TrialEnded) => {
                format!("the trial of {what} was not confirmed: went back to the config before")
            }
            (true, Cause::Try) => format!("{what} is in force, on trial"),
            (true, _) => format!("reloaded {what} in {milliseconds} ms"),
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
        self.changing().live().last = Some(LastReload {
            at: SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64()),
            ok,
            cause: cause.word().to_owned(),
            file,
            seconds: began.elapsed().as_secs_f64(),
            errors: errors.clone(),
            notes: notes.clone(),
        });
        Reloaded { ok, wrong_config: is_of_the_config, milliseconds, errors, notes }
    }
}

fn is_same_file(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| path.to_owned());
    real(one) == real(other)
}
