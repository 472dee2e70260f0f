//! The pause after a release without effect, and what ends it early: a level would have an effect after all.
//!
//! An attacker may cause the release, by drops that do not depend on the level or by a flood outside of the limit, and then
//! flood a limit that is off.

use super::effect::{Effect, Means};
use super::tick::Tick;
use crate::parameters::{EVIDENT, FEWER_DROPS, FEWER_PASS, LEAST_EFFECT, MOSTLY, PAUSE, TWICE};

/// Why the level had no effect.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reason {
    /// There was an overload at the least level.
    #[default]
    AtLeast,
    /// Drops did not depend on it.
    Drops,
}

/// A time in which nobody is limited.
#[derive(Clone, Copy, Debug, Default)]
pub struct Pause {
    reason: Reason,
    until: f64,
    /// At the release, and when most passed since the onset before it.
    at_release: Means,
    at_most: Means,
    /// Seconds in which a level would have had an effect: certainly, and probably.
    certain: f64,
    probable: f64,
}

impl Pause {
    pub fn new(reason: Reason, now: f64, effect: &Effect) -> Self {
        Self {
            reason,
            until: now + PAUSE,
            at_release: effect.now(),
            at_most: effect.at_most(),
            certain: 0.0,
            probable: 0.0,
        }
    }

    pub fn is_over(&self, now: f64) -> bool {
        now >= self.until
    }

    /// Whether nobody is limited in this tick.
    pub fn lasts(&mut self, tick: &Tick, overload: bool, effect: &mut Effect) -> bool {
        if overload && self.is_alone(tick) {
            self.certain += tick.elapsed;
        } else if overload && self.would_help(tick, effect.now()) {
            self.probable += tick.elapsed;
        }
        let was_wrong = self.certain >= EVIDENT - 1e-9
            || self.certain + self.probable >= effect.longer(EVIDENT) - 1e-9;
        if was_wrong {
            effect.release_was_wrong();
        }
        !was_wrong && !self.is_over(tick.now)
    }

    /// Whether a level would probably have an effect on the overload.
    fn would_help(&self, tick: &Tick, now: Means) -> bool {
        match self.reason {
            Reason::Drops => self.rises(now, 1.0 + FEWER_PASS),
            // Servers that are never idle serve more of what passes than passed at the least level.
            Reason::AtLeast if tick.is_exact && now.long > MOSTLY => {
                now.passed - now.unserved > self.at_release.passed && self.has_changed(now)
            }
            Reason::AtLeast => self.rises(now, TWICE),
        }
    }

    /// Whether drops have risen with what passes since the release, or half of them have gone.
    fn has_changed(&self, now: Means) -> bool {
        let before = self.at_release;
        now.unserved - before.unserved >= LEAST_EFFECT * (now.passed - before.passed)
            || now.unserved < FEWER_DROPS * before.unserved
    }

    /// Whether so many times as much passes as when most passed, and drops rise with it.
    fn rises(&self, now: Means, times: f64) -> bool {
        let more = now.passed - self.at_most.passed;
        now.passed >= times * self.at_most.passed
            && now.unserved - self.at_most.unserved >= LEAST_EFFECT * more
    }

    /// Whether what passes is an overload by itself, of which a level would leave little.
    fn is_alone(&self, tick: &Tick) -> bool {
        tick.passed >= TWICE * tick.entered.max(self.at_release.passed)
    }
}
