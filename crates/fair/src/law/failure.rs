//! Fail-safe: what a law cannot know or cannot help refuses nobody.

use super::effect::Effect;
use super::pause::{Pause, Reason};
use super::tick::Tick;
use crate::parameters::{STALLED, UNREADABLE, WITHOUT_EFFECT};

/// Why a fair limit is off, from one tick to the next, although there may be an overload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    /// The signals could not be read for 0.5 s. Until they can.
    Unreadable,
    /// Units have waited for 1 s and none was served: no rate helps. Until one is.
    Stalled,
    /// The level was at its least for 10 s without effect, or had none on drops for 2 s. For 30 s, or until one would have an
    /// effect.
    WithoutEffect,
}

/// The seconds that each of them has lasted.
#[derive(Clone, Copy, Debug, Default)]
pub struct Watch {
    failure: Option<Failure>,
    unreadable: f64,
    stalled: f64,
    at_least: f64,
    pause: Pause,
    /// The largest goodput since the last stall.
    goodput: f64,
}

impl Watch {
    pub const fn failure(&self) -> Option<Failure> {
        self.failure
    }

    /// Whether the limit has to be released after `elapsed` seconds more without signals.
    pub fn unreadable(&mut self, now: f64, elapsed: f64) -> bool {
        self.unreadable += elapsed;
        let is_pause = self.failure == Some(Failure::WithoutEffect) && !self.pause.is_over(now);
        if self.unreadable >= UNREADABLE - 1e-9 && !is_pause {
            self.failure = Some(Failure::Unreadable);
        }
        self.failure.is_some()
    }

    /// Whether the limit has to be released, or kept off. `at_least`: there is an overload, and the level cannot fall.
    /// `without_effect`: drops do not depend on the level.
    pub fn readable(
        &mut self,
        tick: &Tick,
        overload: bool,
        at_least: bool,
        without_effect: bool,
        effect: &mut Effect,
    ) -> bool {
        self.unreadable = 0.0;
        self.goodput = self.goodput.max(tick.goodput);
        let stalls = tick.is_queued && tick.serves_none_of(self.goodput);
        self.stalled = if stalls {
            self.stalled + tick.elapsed
        } else {
            0.0
        };
        // It counts down: a short end of the overload now and then does not keep the level at its least.
        self.at_least = if at_least {
            self.at_least + tick.elapsed
        } else {
            (self.at_least - tick.elapsed).max(0.0)
        };
        let lasts = match self.failure {
            Some(Failure::Unreadable) | None => false,
            Some(Failure::Stalled) => stalls,
            Some(Failure::WithoutEffect) => self.pause.lasts(tick, overload, effect),
        };
        if !lasts {
            self.failure = None;
            if self.stalled >= STALLED - 1e-9 {
                self.failure = Some(Failure::Stalled);
                self.goodput = 0.0;
            } else if without_effect || self.at_least >= WITHOUT_EFFECT - 1e-9 {
                self.failure = Some(Failure::WithoutEffect);
                let reason = if without_effect {
                    Reason::Drops
                } else {
                    Reason::AtLeast
                };
                self.pause = Pause::new(reason, tick.now, effect);
                self.at_least = 0.0;
            }
        }
        self.failure.is_some()
    }
}
