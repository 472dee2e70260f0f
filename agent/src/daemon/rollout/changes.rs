//! A follower's changes of the rules in effect: trials, their confirmation, and returns to earlier rules.

use std::sync::Arc;
use std::time::{Duration, Instant};

use config::human;
use host::backoff::Backoff;
use rollout::host::{CHECK, Input, Rules};

use super::follower::{Common, Follower, PAUSE, Returning, Trying};
use super::handle::{Returned, RulesError, RulesTrial};
use super::health::{Baseline, Before};
use crate::daemon::Agent;

/// The pauses before rules that the kernel refuses are put in effect again.
const PAUSES: Backoff = Backoff::new(PAUSE, Duration::from_secs(30));
/// A trial that nobody ends is rolled back so long after twice its bake: the thread that decides may have ended.
const GRACE: Duration = Duration::from_secs(60);

impl Follower {
    /// The bake is over.
    pub(super) fn confirm(&mut self, agent: &Arc<Agent>, common: &Common) {
        let Some(version) = self.host.on_trial().map(|rules| rules.version) else {
            return;
        };
        let saved = self.host.if_confirmed();
        if !saved.is_some_and(|saved| self.write(common, &saved)) {
            return;
        }
        let input = match agent.confirm_rules(self.stream(), version, self.trial_ends) {
            Ok(()) => Input::Confirmed,
            Err(RulesError::Later) => {
                // They are still on trial.
                self.save(common);
                return;
            }
            Err(RulesError::Failed(reason)) => Input::Tried(Err(reason)),
        };
        self.baseline = None;
        self.step(agent, common, input);
    }

    pub(super) fn try_rules(&mut self, agent: &Arc<Agent>, common: &Common, trying: Trying) {
        let is_on_trial = agent.changing().live().trial().is_some();
        // Without a saved state, the next start would not know of the trial.
        if is_on_trial || self.returning.is_some() || self.not_saved.is_some() {
            self.wait(agent, common, trying);
            return;
        }
        let before = Before::read(agent);
        let longest = self.host.bake().unwrap_or_default() * 2 + GRACE;
        let began = match agent.try_rules(self.stream(), &trying.rules, longest) {
            // The bake begins when they are in effect.
            Err(RulesError::Later) => {
                self.wait(agent, common, trying);
                return;
            }
            Err(RulesError::Failed(reason)) => Err(reason),
            Ok(()) => {
                let (fleet, history) = (&common.fleet, &common.history);
                Baseline::begin(agent, fleet, &trying.rules, history, before)
            }
        };
        self.begun(agent, common, began);
    }

    pub(super) fn wait(&mut self, agent: &Arc<Agent>, common: &Common, trying: Trying) {
        let due = Instant::now() + PAUSE;
        self.trying = Some(Trying { due, ..trying });
        self.step(agent, common, Input::Waits);
    }

    /// A reload has merged the rules on trial into another file, which may name other addresses of `management` or another
    /// health endpoint.
    pub(super) fn merged(&mut self, agent: &Arc<Agent>, common: &Common) {
        let rules = self.host.in_effect().cloned();
        let (Some(rules), Some(baseline)) = (rules, self.baseline.take()) else {
            return;
        };
        match agent.rules_trial(self.stream(), rules.version) {
            RulesTrial::Lasts => {}
            // Its signal follows.
            RulesTrial::Ended => return,
            // A reload removed the stream, and another one added it again.
            RulesTrial::Removed => {
                self.trying = Some(Trying::now(rules));
                return;
            }
        }
        let before = baseline.before;
        let began = Baseline::begin(agent, &common.fleet, &rules, &common.history, before);
        self.begun(agent, common, began);
    }

    fn begun(&mut self, agent: &Arc<Agent>, common: &Common, began: Result<Baseline, String>) {
        self.next_check = Instant::now() + CHECK;
        let version = self.host.on_trial().map_or(0, |rules| rules.version);
        self.trial_ends = agent.rules_trial_ends(self.stream(), version);
        let (baseline, tried) = match began {
            Ok(baseline) => (Some(baseline), Ok(())),
            Err(reason) => (None, Err(reason)),
        };
        self.baseline = baseline;
        self.step(agent, common, Input::Tried(tried));
    }

    /// Returns to earlier rules, after so many failures.
    pub(super) fn return_to(&mut self, agent: &Arc<Agent>, rules: Option<Rules>, failures: u32) {
        self.returning = match agent.return_to_rules(self.stream(), rules.as_ref()) {
            Ok(Returned::Unchanged) => None,
            Ok(change) => {
                self.change = change;
                None
            }
            Err(RulesError::Later) => Some(Returning {
                rules,
                due: Instant::now() + PAUSE,
                failures,
                reason: None,
            }),
            Err(RulesError::Failed(reason)) => {
                let failures = failures.saturating_add(1);
                let pause = PAUSES.pause(failures);
                tracing::error!(
                    "returning to the rules before failed, and is tried again in {}: {reason}",
                    human::time(pause)
                );
                Some(Returning {
                    rules,
                    due: Instant::now() + pause,
                    failures,
                    reason: Some(reason),
                })
            }
        };
    }

    /// Puts confirmed rules in effect that did not go with the file, or with the rules of others, before.
    pub(super) fn confirmed_again(&mut self, agent: &Arc<Agent>) {
        let confirmed = self.host.saved().confirmed();
        let is_idle = !self.host.is_baking() && !self.is_waiting();
        if is_idle && agent.rules_in_effect(self.stream()).as_deref() != confirmed {
            self.return_to(agent, confirmed.cloned(), 0);
        }
    }
}
