//! Exemptions and raised limits for a while: ordered, ended by an operator, and ended by themselves.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::allowance::{Allowance, Allowed, Disallowed};
use api::event::seconds_since_1970;
use config::policy::Prefix;
use config::{human, prefix};
use host::PROGRAM;
use host::StateDirectory;

use super::live::Cause;
use crate::allowances::{self, LAST_INSTANT, MOST, terms};
use crate::ban_owner;
use crate::daemon::Agent;
use crate::daemon::events::{Event, EventKind};

/// The longest pause between two looks at the clock, which may be set.
const PERIOD: Duration = Duration::from_secs(60);
/// The pause after an end that failed.
const RETRY: Duration = Duration::from_secs(10);
/// The most exemptions that one event names.
const MOST_NAMED: usize = 5;

/// The terms of new exemptions.
#[derive(Clone, Debug)]
pub struct AllowanceTerms {
    pub for_seconds: f64,
    pub times: Option<f64>,
    pub reason: Option<String>,
    pub owner: Option<String>,
}

/// Ends exemptions when their time has come, until it is dropped.
pub async fn follow_allowances(agent: Arc<Agent>) {
    loop {
        let ends = {
            let live = agent.changing().live();
            live.allowances
                .iter()
                .map(|allowance| allowance.until)
                .min()
        };
        let left = |until: u64| {
            Duration::try_from_secs_f64(until as f64 - seconds_since_1970()).unwrap_or_default()
        };
        let pause = ends.map_or(PERIOD, left).min(PERIOD);
        tokio::select! {
            () = agent.changing().allowances_changed.notified() => continue,
            () = tokio::time::sleep(pause) => {}
        }
        let ending = Arc::clone(&agent);
        let is_done = tokio::task::spawn_blocking(move || ending.end_allowances())
            .await
            .unwrap_or(false);
        if !is_done {
            tokio::time::sleep(RETRY).await;
        }
    }
}

impl Agent {
    /// Exempts prefixes for a while: all or none.
    pub(crate) fn allow(&self, cidrs: &[String], order: AllowanceTerms) -> Result<Allowed, String> {
        let AllowanceTerms {
            for_seconds,
            times,
            reason,
            owner,
        } = order;
        let (why, whose) = (reason.as_deref(), owner.as_deref());
        let prefixes = allowances::check(cidrs, for_seconds, times, why, whose)?;
        let owner = owner.unwrap_or_else(|| ban_owner::ROOT.to_owned());
        let since = seconds_since_1970() as u64;
        // Not shorter than ordered.
        let until = (seconds_since_1970() + for_seconds).ceil() as u64;
        let until = until.min(LAST_INSTANT);
        let _one = self.changing().lock().map_err(|error| error.to_string())?;
        let mut next = self.changing().live().allowances.clone();
        let (mut replaced, mut new) = (Vec::new(), Vec::new());
        let cidrs: BTreeSet<String> = prefixes.iter().map(Prefix::short).collect();
        for cidr in cidrs {
            if let Some(nth) = next.iter().position(|known| known.cidr == cidr) {
                replaced.push(next.remove(nth));
            }
            new.push(Allowance {
                cidr,
                times,
                owner: owner.clone(),
                reason: reason.clone(),
                since,
                until,
            });
        }
        next.extend(new.iter().cloned());
        if next.len() > MOST {
            return Err(format!(
                "there may be {MOST} exemptions for a while: {PROGRAM} allow --list lists those in effect; write the others into [agent] never_limit"
            ));
        }
        let of_raised = match times {
            Some(_) => self.check_raised(&next, &new)?,
            None => Vec::new(),
        };
        let mut notes = self.put_allowances(next)?;
        notes.extend(of_raised);
        self.report_allowances(&allowances::effect(times), &new);
        Ok(Allowed {
            allowed: new.len() as u64,
            replaced,
            notes,
        })
    }

    /// Checks whether limits can be raised by `next`, of which some are new. Returns notes.
    fn check_raised(&self, next: &[Allowance], new: &[Allowance]) -> Result<Vec<String>, String> {
        let (source, databases) = {
            let live = self.changing().live();
            (live.source.clone(), live.databases().clone())
        };
        let raised = allowances::applied(databases.applied(&source.config).0, next);
        let on_logs = allowances::check_raised(&raised)?;
        let mut notes = allowances::without_effect(&raised, new);
        notes.extend(on_logs);
        Ok(notes)
    }

    /// Ends the exemptions of prefixes, as they were ordered.
    pub(crate) fn disallow(&self, cidrs: &[String]) -> Result<Disallowed, String> {
        let wanted = cidrs
            .iter()
            .map(|cidr| parse(cidr).map(|prefix| prefix.short()))
            .collect::<Result<Vec<_>, _>>()?;
        let _one = self.changing().lock().map_err(|error| error.to_string())?;
        let before = self.changing().live().allowances.clone();
        let is_named = |allowance: &Allowance| wanted.contains(&allowance.cidr);
        let (ended, next): (Vec<_>, Vec<_>) = before.into_iter().partition(is_named);
        let is_known = |cidr: &String| ended.iter().any(|allowance| allowance.cidr == *cidr);
        let unknown = wanted
            .iter()
            .filter(|cidr| !is_known(cidr))
            .cloned()
            .collect();
        let notes = if ended.is_empty() {
            Vec::new()
        } else {
            self.put_allowances(next)?
        };
        self.report_ended(&ended);
        Ok(Disallowed {
            ended,
            unknown,
            notes,
        })
    }

    /// Ends the exemptions whose time has come; returns whether none is left.
    fn end_allowances(&self) -> bool {
        let Ok(_one) = self.changing().lock() else {
            return true;
        };
        let now = seconds_since_1970() as u64;
        let before = self.changing().live().allowances.clone();
        let (next, ended): (Vec<_>, Vec<_>) = before
            .into_iter()
            .partition(|allowance| allowance.until > now);
        if ended.is_empty() {
            return true;
        }
        // An error has been logged.
        let is_done = self.put_allowances(next).is_ok();
        if is_done {
            self.report_ended(&ended);
        }
        is_done
    }

    /// Puts the config in effect with these exemptions, and saves them; the caller has locked changes. Returns notes.
    fn put_allowances(&self, next: Vec<Allowance>) -> Result<Vec<String>, String> {
        let (source, databases, purpose) = {
            let mut live = self.changing().live();
            live.ordered_allowances.clone_from(&next);
            let (source, databases) = (live.source.clone(), live.databases().clone());
            (source, databases, live.purpose())
        };
        let directory = StateDirectory::at(&source.config.agent.state_dir);
        let began = Instant::now();
        let result = self.apply(&source, databases, None, purpose);
        let result = self.conclude(Cause::Allowances, self.file(), began, result);
        if !result.ok {
            let mut live = self.changing().live();
            live.ordered_allowances = live.allowances.clone();
            return Err(result.errors.join("; "));
        }
        self.changing().allowances_changed.notify_one();
        let saved = allowances::write(&directory, &next);
        let notes = saved.err().into_iter().map(|error| {
            let note = format!("{error}; a restart loses this change of exemptions");
            tracing::warn!("{note}");
            note
        });
        Ok(notes.collect())
    }

    fn report_ended(&self, ended: &[Allowance]) {
        let (raised, exempt): (Vec<Allowance>, Vec<Allowance>) = ended
            .iter()
            .cloned()
            .partition(|allowance| allowance.times.is_some());
        self.report_allowances("no longer exempt", &exempt);
        self.report_allowances("limits no longer raised", &raised);
    }

    fn report_allowances(&self, what: &str, some: &[Allowance]) {
        if some.is_empty() {
            return;
        }
        let named = some
            .iter()
            .map(|allowance| format!("{} ({})", allowance.cidr, terms(allowance)));
        let reason = format!("{what}: {}", human::listed(named, MOST_NAMED));
        tracing::info!("{reason}");
        let source = match some {
            [only] => Some(only.cidr.clone()),
            _ => None,
        };
        self.events().push(Event {
            source,
            ..Event::now(EventKind::Protected, some.len() as u64, reason)
        });
    }
}

fn parse(cidr: &str) -> Result<Prefix, String> {
    prefix::parse(cidr).map_err(|wrong| wrong.to_string())
}
