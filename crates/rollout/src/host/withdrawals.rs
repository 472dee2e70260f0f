//! Withdrawals by publishers and operators: of releases by an abort, and of keys.

use super::machine::Host;
use super::saved::Rules;
use super::{Event, Output, Stop, taking};
use crate::keyring::Keyring;
use crate::refusal::Refusal;
use crate::text::digest;

impl Host {
    /// Verifies an abort, and carries it out.
    pub(super) fn abort(
        &mut self,
        object: &str,
        keys: &Keyring,
        out: &mut Vec<Output>,
    ) -> Result<(), Refusal> {
        let name = digest(object);
        if self.aborts.contains(&name) {
            return Ok(());
        }
        let abort = taking::accept_abort(object, &self.settings, keys)?;
        let version = abort.version;
        if version > self.saved.highest() {
            // Its release may follow.
            return Ok(());
        }
        self.aborts.insert(name);
        let reason = Stop::Aborted {
            publisher: abort.publisher,
            reason: abort.reason,
        };
        let is_of_version = |rules: &Rules| rules.version == version;
        let before = &mut self.saved.before;
        if before.take_if(|rules| is_of_version(rules)).is_some() {
            out.push(Output::Save);
        }
        let is_good = self.saved.good.as_ref().is_some_and(is_of_version);
        let known = self.known.as_ref().map(|known| &known.accepted.rules);
        if self
            .trial
            .as_ref()
            .is_some_and(|trial| is_of_version(&trial.rules))
        {
            self.stop_trial(reason, out);
        } else if is_good {
            self.saved.good = self.saved.before.take();
            if version == self.saved.highest() {
                self.saved.stop(reason.clone());
            }
            out.push(Output::Save);
            // A newer version on trial has replaced it already, unless it waits for another trial.
            if !self.is_baking() {
                out.push(Output::RollBack(self.saved.good.clone()));
                let waits = self.trial.as_ref();
                out.extend(waits.map(|trial| Output::Try(trial.rules.clone())));
            }
            out.push(Output::Event(Event::Stopped { version, reason }));
        } else if known.is_some_and(is_of_version) && self.saved.is_open() {
            self.stop(reason, out);
        }
        Ok(())
    }

    pub(super) fn trust_changed(&mut self, keys: &Keyring, out: &mut Vec<Output>) {
        let counts = |rules: &Rules| keys.has(rules.key);
        if self
            .trial
            .as_ref()
            .is_some_and(|trial| !counts(&trial.rules))
        {
            self.stop_trial(Stop::KeyRemoved, out);
        }
        // Verified anew when it is read again.
        self.known = None;
        self.aborts.clear();
    }
}
