//! Replaces the config in effect, all or nothing.

use std::net::IpAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::allowance::Allowance;
use api::event::seconds_since_1970;
use api::reload::{LastReload, Reloaded};
use config::policy::Config;
use config::{Changes, human};
use datapath::compile::{self, Plan};
use datapath::memory::{self, Lasting};
use decide::{Engine, Moves};
use host::StateDirectory;

use super::databases::report_changes;
use super::error::ReloadError;
use super::last_valid::keep_as_last_valid;
use super::live::{Applied, Cause};
use super::on_trial::Trial;
use super::record::Record;
use super::source::{Source, is_same_file};
use super::summary::in_effect;
use crate::allowances;
use crate::daemon::Agent;
use crate::daemon::packets::Purpose;
use crate::daemon::rollout::Signal;
use crate::geo::Databases;
use crate::protect::{self, Detected, Found};
use crate::supervisor::Supervisor;

/// A config that passed all checks that change nothing.
struct Prepared {
    before: Arc<Config>,
    found: Found,
    detected: Vec<Detected>,
    allowances: Vec<Allowance>,
    effective: Arc<Config>,
    /// Notes on classes that share addresses.
    overlaps: Vec<String>,
    plan: Plan,
    engine: Engine,
    moves: Moves,
}

/// The result of a change that was not made.
pub(super) fn not_made(error: &ReloadError) -> Reloaded {
    Reloaded {
        ok: false,
        wrong_config: error.is_of_the_config(),
        errors: error.lines(),
        ..Reloaded::default()
    }
}

impl Agent {
    /// Reads the config again and puts it in effect, all or nothing.
    pub fn reload(&self, cause: Cause, operator: Option<IpAddr>) -> Reloaded {
        self.alone(|| {
            let began = Instant::now();
            Supervisor.reloading();
            let result = self.reload_file(operator);
            self.conclude(cause, self.file(), began, result)
        })
    }

    /// Makes a change while no other is made.
    pub(super) fn alone(&self, change: impl FnOnce() -> Reloaded) -> Reloaded {
        match self.changing().lock() {
            Ok(_one) => change(),
            Err(error) => not_made(&error),
        }
    }

    /// Reports the changes of a reload without making them, or those of a trial of another config: `text`, as read from
    /// `file`.
    pub fn compare(
        &self,
        file: Option<&Path>,
        text: Option<String>,
        operator: Option<IpAddr>,
    ) -> Reloaded {
        self.alone(|| {
            let began = Instant::now();
            let compared = self.changes_of(file, text, operator);
            Reloaded {
                milliseconds: began.elapsed().as_millis() as u64,
                ..compared.unwrap_or_else(|error| not_made(&error))
            }
        })
    }

    fn changes_of(
        &self,
        file: Option<&Path>,
        text: Option<String>,
        operator: Option<IpAddr>,
    ) -> Result<Reloaded, ReloadError> {
        let file = file.or(self.file()).ok_or(ReloadError::NoFile)?;
        let text = match text {
            Some(text) => text,
            None => config::read_text(file)?,
        };
        let source = self.read_with_rules(file, text)?;
        let databases = self.databases_of(&source.config)?;
        let prepared = self.prepare(&source.config, &databases, None)?;
        Ok(Reloaded {
            ok: true,
            changes: Changes::between(&prepared.before, &source.config),
            notes: Vec::from_iter(config::ssh_warning(&source.config, operator)),
            ..Reloaded::default()
        })
    }

    /// The reply to a reload that names another file than the agent's.
    pub fn other_file(&self, named: &Path) -> Option<Reloaded> {
        let own = self.file()?;
        (!is_same_file(own, named)).then(|| {
            let (own, named) = (own.display().to_string(), named.display().to_string());
            not_made(&ReloadError::OtherFile { own, named })
        })
    }

    fn reload_file(&self, operator: Option<IpAddr>) -> Result<Applied, ReloadError> {
        let file = self.file().ok_or(ReloadError::NoFile)?;
        if let Some(trial) = &self.changing().live().trial
            && (trial.stream().is_none() || trial.failing.is_some())
        {
            return Err(trial.obstacle());
        }
        let text = config::read_text(file)?;
        self.changing().live().seen = Some(text.clone());
        let before = self.before_rules_on_trial(file, &text)?;
        let source = self.read_with_rules(file, text)?;
        let databases = self.databases_of(&source.config)?;
        let lasting = match before {
            Some(_) => Lasting::Trial,
            None => Lasting::Indefinite,
        };
        let mut applied = self.apply(&source, databases, operator, Purpose::Change(lasting))?;
        {
            let mut live = self.changing().live();
            match (before, &mut live.trial) {
                (Some(before), Some(trial)) => trial.begin_again(before),
                // Rules of a stream that the file does not follow any more have left with it.
                (None, trial) => *trial = None,
                (Some(_), None) => {}
            }
        }
        self.rollout.signal(Signal::Reloaded);
        applied.notes.extend(keep_as_last_valid(&source));
        // The operator has decided which config applies: `watch` reads the file only after another change of it.
        let forgotten = Record::forget(&self.changing().live().source.config.agent);
        applied.notes.extend(
            forgotten.err().map(|error| format!("ending the record of the trial failed: {error}; the next start may roll back to the previous config")),
        );
        Ok(applied)
    }

    /// Reads the file again if its text has changed.
    pub fn reload_if_changed(&self) {
        let is_watched = {
            let live = self.changing().live();
            let is_free = |trial: &Trial| trial.stream().is_some();
            live.source.config.agent.watch && live.trial.as_ref().is_none_or(is_free)
        };
        let Some(file) = self.file().filter(|_| is_watched) else {
            return;
        };
        // A missing file is being replaced.
        let Ok(text) = config::read_text(file) else {
            return;
        };
        if self.changing().live().seen.as_ref() != Some(&text) {
            self.reload(Cause::Watch, None);
        }
    }

    /// Puts a config in effect instead of the present one.
    pub(super) fn apply(
        &self,
        source: &Source,
        databases: Databases,
        operator: Option<IpAddr>,
        purpose: Purpose,
    ) -> Result<Applied, ReloadError> {
        let config = &source.config;
        let Prepared {
            before,
            found,
            detected,
            allowances,
            effective,
            overlaps,
            plan,
            engine,
            moves,
        } = self.prepare(config, &databases, operator)?;
        if self.changing().is_closed() {
            return Err(ReloadError::Stopping);
        }
        // The last step that can fail.
        let mut notes = self
            .replace_packets(&effective, plan, purpose)
            .map_err(ReloadError::Packets)?;
        self.lists().replace(&effective, &databases);
        let known = self.requests().engine();
        engine.set_shares(
            self.fleet
                .shares(config)
                .iter()
                .filter(|(name, _)| known.demand(name).is_none()),
        );
        self.requests().replace(engine, moves);
        self.groups.replace(&effective);
        notes.extend(self.groups.notes());
        notes.extend(self.replace_cluster(config));
        self.notifier().replace(config);
        self.crowdsec().replace(config.crowdsec.as_ref());
        notes.extend(databases.notes());
        notes.extend(overlaps);
        notes.extend(config::ssh_warning(config, operator));
        notes.extend(operator.and_then(|address| self.keep_operator(address)));
        let changes = databases.changes(self.changing().live().databases());
        report_changes(self.events(), &changes);
        let mut live = self.changing().live();
        live.source = source.clone();
        live.found = found;
        live.detected = detected;
        live.allowances = allowances;
        live.databases = databases;
        self.changing().databases_replaced.notify_one();
        self.changing().stores_replaced.notify_one();
        self.changing().resolvers_replaced.notify_one();
        Ok(Applied {
            notes,
            changes: Changes::between(&before, config),
        })
    }

    /// Saves the addresses of operators for the next agent. Returns a note if that fails.
    fn keep_operator(&self, address: IpAddr) -> Option<String> {
        let (operators, directory) = {
            let live = self.changing().live();
            let directory = StateDirectory::at(&live.source.config.agent.state_dir);
            (live.operators.clone(), directory)
        };
        let error = operators.write(&directory).err()?;
        Some(format!(
            "the next agent will not exempt {address}, from which this command came: {error}"
        ))
    }

    fn prepare(
        &self,
        config: &Config,
        databases: &Databases,
        operator: Option<IpAddr>,
    ) -> Result<Prepared, ReloadError> {
        let now = seconds_since_1970() as u64;
        let (before, operators, found, mut allowances) = {
            let mut live = self.changing().live();
            if let Some(address) = operator {
                live.operators.add(address, now);
            }
            (
                Arc::clone(&live.source.config),
                live.operators.addresses(now),
                live.found.clone(),
                live.ordered_allowances.clone(),
            )
        };
        self.check_fixed(&before, config)?;
        let found = found.read_again(config);
        let detected = protect::of(config, &operators, &found);
        let (applied, mut overlaps) = databases.applied(config);
        let (applied, lowered) = allowances::applied_where_possible(applied, &mut allowances);
        overlaps.extend(lowered);
        let effective = Arc::new(protect::applied(applied, &detected));
        let plan = compile::plan_after(&effective, &self.layout())?;
        let (engine, moves) = self.requests().engine().after(&effective)?;
        Ok(Prepared {
            before,
            found,
            detected,
            allowances,
            effective,
            overlaps,
            plan,
            engine,
            moves,
        })
    }

    /// Settings that only take effect at a start must not change.
    fn check_fixed(&self, before: &Config, config: &Config) -> Result<(), ReloadError> {
        let mut fixed = config::needing_restart(before, config);
        let has_endpoint = config.decide.http.is_some() || config.decide.grpc.is_some();
        if has_endpoint && config.decide.has_questions() && !self.requests().is_listening() {
            fixed.push("whether [decide] has a server".to_owned());
        }
        if fixed.is_empty() {
            Ok(())
        } else {
            Err(ReloadError::NeedsRestart(fixed.join(", ")))
        }
    }

    /// Records the result of a change for `status`, the reply and the log.
    pub(super) fn conclude(
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
        memory::trim_soon();
        let file = file.map(|file| file.display().to_string());
        let what = file
            .clone()
            .unwrap_or_else(|| "the built-in limits".to_owned());
        let milliseconds = began.elapsed().as_millis() as u64;
        let took = human::time(Duration::from_millis(milliseconds));
        let line = match (errors.is_empty(), cause) {
            (true, Cause::TrialEnded) => {
                format!("the trial of {what} was not confirmed: rolled back to the previous config")
            }
            (true, Cause::Revert) => {
                format!("the trial of {what} was reverted: rolled back to the previous config")
            }
            (true, Cause::Try | Cause::Fleet) => format!("{what} is in effect, on trial"),
            (true, Cause::FleetReturned) => format!("{what} is in effect again"),
            (true, Cause::FleetEnded) => {
                format!("the trial of {what} is over: rolled back to the rules before")
            }
            (true, Cause::Geo) => format!("databases of [geo] put in effect in {took}"),
            (true, Cause::Lists) => format!("lists of classes put in effect in {took}"),
            (true, Cause::Protected) => {
                format!("exempt addresses of protect put in effect in {took}")
            }
            (true, Cause::Allowances) => format!("exemptions put in effect in {took}"),
            (true, _) => format!("reloaded {what} in {took}"),
            (false, Cause::TrialEnded | Cause::Revert | Cause::FleetEnded) => {
                format!(
                    "the trial of {what} is over, and rolling back failed: it stays in effect until that succeeds"
                )
            }
            (false, Cause::Geo) => {
                "databases of [geo] were not put in effect: those before stay in effect".to_owned()
            }
            (false, Cause::Lists) => {
                "lists of classes were not put in effect: those before stay in effect".to_owned()
            }
            (false, Cause::Protected) => {
                "exempt addresses of protect were not put in effect: those before stay in effect"
                    .to_owned()
            }
            (false, Cause::Allowances) => {
                "exemptions were not put in effect: those before stay in effect".to_owned()
            }
            (false, _) => format!("{what} was not applied: the previous config stays in effect"),
        };
        let in_effect = in_effect(&self.changing().live().source, self.packets().as_deref());
        if errors.is_empty() {
            tracing::info!("{line}: {in_effect}");
        } else {
            tracing::error!("{line}");
        }
        for error in &errors {
            tracing::error!("{error}");
        }
        Supervisor.ready(&format!("{in_effect}; {line}"));
        for note in &notes {
            tracing::warn!("{note}");
        }
        let ok = errors.is_empty();
        let mut live = self.changing().live();
        if cause.ends_a_trial() && ok {
            // Here, so that the end of the trial and its result become visible together.
            live.end_trial(|| self.file().and_then(|file| config::read_text(file).ok()));
        }
        let is_of_the_agent = matches!(
            cause,
            Cause::Geo | Cause::Lists | Cause::Protected | Cause::Allowances
        );
        if is_of_the_agent {
            // `status` has its problem among the notes, and the result of the last reload stays.
            return Reloaded {
                ok,
                wrong_config: is_of_the_config,
                milliseconds,
                errors,
                notes,
                changes,
            };
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
        Reloaded {
            ok,
            wrong_config: is_of_the_config,
            milliseconds,
            errors,
            notes,
            changes,
        }
    }
}
