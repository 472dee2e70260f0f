//! The state machine.

use std::collections::BTreeSet;
use std::mem;
use std::time::Duration;

use super::pace::{Pace, RENEWAL};
use super::saved::{Rules, Saved, Seen};
use super::taking::{self, Accepted};
use super::trial::Trial;
use super::{Clock, Event, Head, Input, MOST_ATTEMPTS, Output, Reply, Settings, Stop};
use crate::board::Report;
use crate::canary::position;
use crate::keyring::Keyring;
use crate::refusal::Refusal;
use crate::rules::Rights;
use crate::text::brief;

/// One of so many requests is a report, if the store refuses them.
const SPACED: u32 = 10;

/// The store's head, verified.
pub(super) struct Known {
    pub(super) accepted: Accepted,
    pub(super) is_canary: bool,
    /// When the host accepted it.
    pub(super) since: Duration,
    /// When the host first read that a canary has held.
    pub(super) held_since: Option<Duration>,
    /// When the canaries' bake ends, by this host's monotonic clock.
    pub(super) ends: Option<Duration>,
    /// Whether the stall was reported.
    pub(super) is_stalled: bool,
}

/// One stream on one host.
pub struct Host {
    pub(super) settings: Settings,
    pub(super) saved: Saved,
    pub(super) known: Option<Known>,
    pub(super) trial: Option<Trial>,
    pub(super) pace: Pace,
    /// Whether the next request reads, although a report is due: at first, and after a failed report.
    pub(super) reads_next: bool,
    pub(super) is_store_down: bool,
    /// Why the present head does not count.
    pub(super) refused: Option<Refusal>,
    /// The aborts that were carried out or concern older versions, by their digests.
    pub(super) aborts: BTreeSet<String>,
    /// The store's report of this host.
    pub(super) reported: Option<Report>,
    /// When it is sent again.
    pub(super) renewed_at: Option<Duration>,
    /// The version that the agent has in effect, if it is another one.
    pub(super) effective: Option<u64>,
    /// Outputs of the start; carried out with the first input.
    first: Vec<Output>,
}

impl Host {
    /// A host whose agent starts with [`Saved::confirmed`] in effect.
    #[must_use]
    pub fn new(settings: Settings, mut saved: Saved, clock: Clock) -> Self {
        let mut first = Vec::new();
        if saved.is_trying {
            saved.is_trying = false;
            let attempts = saved.seen.as_ref().map_or(0, |seen| seen.attempts);
            if attempts >= MOST_ATTEMPTS {
                let (version, reason) = (saved.highest(), Stop::Interrupted);
                saved.stop(reason.clone());
                first.push(Output::Save);
                first.push(Output::Event(Event::Stopped { version, reason }));
            }
        }
        let place = position(&settings.host, &settings.stream, 0);
        Self {
            pace: Pace::new(settings.every, place, clock.monotonic),
            settings,
            saved,
            known: None,
            trial: None,
            reads_next: true,
            is_store_down: false,
            refused: None,
            aborts: BTreeSet::new(),
            reported: None,
            renewed_at: None,
            effective: None,
            first,
        }
    }

    /// Changes what releases may set; [`Input::TrustChanged`] follows.
    pub fn set_rights(&mut self, rights: Rights) {
        self.settings.rights = rights;
    }

    /// The state that [`Output::Save`] saves.
    #[must_use]
    pub const fn saved(&self) -> &Saved {
        &self.saved
    }

    /// The rules in effect: on trial or confirmed. `None`: the host's file alone.
    #[must_use]
    pub fn in_effect(&self) -> Option<&Rules> {
        let trial = self.trial.as_ref().map(|trial| &trial.rules);
        trial.or(self.saved.good.as_ref())
    }

    /// Whether rules are on trial, so that health is checked.
    #[must_use]
    pub fn is_baking(&self) -> bool {
        self.trial.as_ref().is_some_and(Trial::is_in_effect)
    }

    /// The rules on trial, also before they are in effect.
    #[must_use]
    pub fn on_trial(&self) -> Option<&Rules> {
        self.trial.as_ref().map(|trial| &trial.rules)
    }

    /// The state to save before the rules on trial are confirmed; `None` without a trial.
    #[must_use]
    pub fn if_confirmed(&self) -> Option<Saved> {
        let rules = self.on_trial()?.clone();
        let mut saved = self.saved.clone();
        saved.keep(rules);
        Some(saved)
    }

    /// Takes the version that the agent has in effect: reports have this version, also where the rules do not go with the host's file.
    pub fn has_in_effect(&mut self, version: u64) {
        let expected = self.in_effect().map_or(0, |rules| rules.version);
        self.effective = Some(version).filter(|version| *version != expected);
    }

    /// The agent ends in order: the bake begins again with the next one, and this was no attempt. Returns whether there is
    /// something to save.
    pub fn ends(&mut self) -> bool {
        let seen = self.saved.seen.as_mut().filter(|_| self.trial.is_some());
        let attempts = seen.map(|seen| seen.attempts = seen.attempts.saturating_sub(1));
        attempts.is_some()
    }

    /// How long the rules on trial are checked.
    #[must_use]
    pub fn bake(&self) -> Option<Duration> {
        self.trial.as_ref().map(Trial::bake)
    }

    /// The digest of the head that the host has; [`Head::Unchanged`] means this one.
    #[must_use]
    pub fn known(&self) -> Option<&str> {
        let known = self.known.as_ref()?;
        Some(&known.accepted.rules.digest)
    }

    /// Processes an input.
    pub fn step(&mut self, input: Input, keys: &Keyring, clock: Clock) -> Vec<Output> {
        let mut out = mem::take(&mut self.first);
        match input {
            Input::Replied(reply) => self.replied(*reply, keys, clock, &mut out),
            Input::Reported(report) => {
                self.store_up(&mut out);
                self.reported = Some(*report);
                self.renewed_at = Some(clock.monotonic + RENEWAL);
            }
            Input::NotWritten(report) => {
                self.store_up(&mut out);
                self.reported = Some(*report);
                self.renewed_at = Some(clock.monotonic + self.settings.every * SPACED);
            }
            Input::StoreFailed(reason) => {
                self.reads_next = true;
                if !self.is_store_down {
                    self.is_store_down = true;
                    out.push(Output::Event(Event::StoreDown(reason)));
                }
            }
            Input::Tried(Ok(())) => {
                if let Some(trial) = &mut self.trial
                    && trial.in_effect(clock)
                {
                    let version = trial.rules.version;
                    out.push(Output::Event(Event::Begun { version }));
                }
            }
            Input::Waits => {
                if let Some(trial) = &mut self.trial {
                    trial.waits(clock);
                }
            }
            Input::Confirmed => {
                if let Some(trial) = self.trial.take() {
                    let version = trial.rules.version;
                    self.saved.keep(trial.rules);
                    out.push(Output::Event(Event::Confirmed { version }));
                }
            }
            Input::Tried(Err(reason)) => {
                let reason = brief(&reason);
                self.stop_trial(Stop::NotApplied { reason }, &mut out);
            }
            Input::Health(Err(unhealthy)) if self.is_baking() => {
                let reason = unhealthy.to_string();
                self.stop_trial(Stop::Unhealthy { reason }, &mut out);
            }
            Input::Health(Ok(())) => self.healthy(clock, &mut out),
            Input::Health(Err(_)) => {}
            Input::FileChanged => {
                // Rules that are not in effect yet are merged into the changed file when they are.
                if let Some(trial) = self.trial.as_mut().filter(|trial| trial.is_in_effect()) {
                    trial.pause();
                    out.push(Output::Merge);
                }
            }
            Input::TrustChanged => self.trust_changed(keys, &mut out),
        }
        out
    }

    fn replied(&mut self, reply: Reply, keys: &Keyring, clock: Clock, out: &mut Vec<Output>) {
        self.store_up(out);
        let is_current = match reply.head {
            Head::Unchanged => self.check_expiry(clock),
            Head::Missing if self.saved.seen.is_some() => {
                Err(Refusal::StoreEmpty(self.settings.stream.clone()))
            }
            Head::Missing => Ok(()),
            Head::Is(object) => self.take(&object, keys, clock, out),
        };
        let mut refused = is_current.err();
        // The board is that of the head, and counts for nothing else.
        let counts = refused.is_none();
        let is_of_version = counts || matches!(refused, Some(Refusal::Conflict { .. }));
        if is_of_version && self.report().counts && reply.board.mine != self.reported {
            // The store lost the report, or has an older one.
            self.reported = None;
        }
        for abort in &reply.aborts {
            if let Err(refusal) = self.abort(abort, keys, out) {
                refused = refused.or(Some(refusal));
            }
        }
        if counts {
            self.follow(&reply.board, clock, out);
        }
        if refused != self.refused {
            // A release for other hosts is no fault.
            let is_fault = |refusal: &Refusal| !matches!(refusal, Refusal::NotForThisHost { .. });
            let event = refused.clone().filter(is_fault).map(Event::Refused);
            out.extend(event.map(Output::Event));
            self.refused = refused;
        }
    }

    /// Accepts the store's head, unless it is the one that the host has.
    fn take(
        &mut self,
        object: &str,
        keys: &Keyring,
        clock: Clock,
        out: &mut Vec<Output>,
    ) -> Result<(), Refusal> {
        let seen = self.saved.seen.as_ref();
        let in_effect = self.saved.good.as_ref().map(|good| good.digest.as_str());
        let accepted = taking::accept(object, &self.settings, keys, seen, in_effect, clock.wall);
        let accepted = match accepted {
            Err(Refusal::Conflict { version }) => {
                self.conflict(out);
                return Err(Refusal::Conflict { version });
            }
            outcome => outcome?,
        };
        if self.known() == Some(&accepted.rules.digest) {
            return Ok(());
        }
        let (version, stream) = (accepted.rules.version, &self.settings.stream);
        let canary = &accepted.release.canary;
        let is_canary = canary.includes(&self.settings.host, stream, version);
        if version > self.saved.highest() {
            if self.trial.is_some() {
                self.stop_trial(Stop::Superseded, out);
            }
            self.saved.seen = Some(Seen {
                version,
                digest: accepted.rules.digest.clone(),
                is_canary,
                is_in_conflict: false,
                attempts: 0,
                stopped: None,
            });
            out.push(Output::Save);
        }
        self.known = Some(Known {
            accepted,
            is_canary,
            since: clock.monotonic,
            held_since: None,
            ends: None,
            is_stalled: false,
        });
        Ok(())
    }

    /// A release that the host has read before it expired, and has not begun with.
    fn check_expiry(&self, clock: Clock) -> Result<(), Refusal> {
        let waits = self
            .known
            .as_ref()
            .filter(|_| self.trial.is_none() && self.saved.is_open());
        match waits.map(|known| &known.accepted.release) {
            Some(release) if release.expires <= clock.wall => Err(Refusal::Expired {
                version: release.version,
                expired: release.expires,
            }),
            _ => Ok(()),
        }
    }

    /// Two documents have the highest version: it is not begun, and not kept unless it is confirmed. The report stops it for
    /// hosts that read only one of them.
    fn conflict(&mut self, out: &mut Vec<Output>) {
        let seen = self.saved.seen.as_mut().filter(|seen| !seen.is_in_conflict);
        let Some(seen) = seen else {
            return;
        };
        seen.is_in_conflict = true;
        if self.trial.is_some() {
            self.stop_trial(Stop::Conflict, out);
        } else if self.saved.is_open() {
            self.stop(Stop::Conflict, out);
        } else {
            out.push(Output::Save);
        }
    }

    pub(super) fn begin(&mut self, clock: Clock, out: &mut Vec<Output>) {
        let (Some(known), Some(seen)) = (&mut self.known, &mut self.saved.seen) else {
            return;
        };
        known.ends = None;
        seen.attempts += 1;
        self.saved.is_trying = true;
        let Accepted { release, rules } = &known.accepted;
        let trial = Trial::new(rules.clone(), known.is_canary, release.bake, clock);
        self.trial = Some(trial);
        out.push(Output::Save);
        out.push(Output::Try(rules.clone()));
    }

    fn healthy(&mut self, clock: Clock, out: &mut Vec<Output>) {
        let trial = self.trial.as_mut();
        if trial.is_some_and(|trial| trial.checked(clock)) {
            out.push(Output::Confirm);
        }
    }

    /// Ends the trial, and returns to the confirmed rules.
    pub(super) fn stop_trial(&mut self, reason: Stop, out: &mut Vec<Output>) {
        if self.trial.take().is_none() {
            return;
        }
        let version = self.saved.highest();
        self.saved.stop(reason.clone());
        out.push(Output::Save);
        out.push(Output::RollBack(self.saved.good.clone()));
        out.push(Output::Event(Event::Stopped { version, reason }));
    }

    /// Does not begin with the highest version.
    pub(super) fn stop(&mut self, reason: Stop, out: &mut Vec<Output>) {
        let version = self.saved.highest();
        self.saved.stop(reason.clone());
        out.push(Output::Save);
        out.push(Output::Event(Event::Stopped { version, reason }));
    }

    fn store_up(&mut self, out: &mut Vec<Output>) {
        if self.is_store_down {
            self.is_store_down = false;
            out.push(Output::Event(Event::StoreUp));
        }
    }
}
