//! Drops on which the level has no effect: less passes, the queue is short, and as much is dropped as before.

use super::tick::Tick;
use crate::parameters::{
    EFFECT_WINDOW, FEWER_DROPS, FEWER_PASS, HOLDS, LEAST_EFFECT, LONGER, WITHOUT_EFFECT_ON_DROPS,
};

/// What passes and what is dropped, now and when most passed since the onset.
#[derive(Clone, Copy, Debug, Default)]
pub struct Effect {
    now: Means,
    at_most: Means,
    /// Seconds without effect.
    without: f64,
    /// Releases since the last overload that a level ended, after which a level would have had an effect.
    wrong: i32,
}

/// Means over about a second, in units a second.
#[derive(Clone, Copy, Debug, Default)]
pub struct Means {
    pub passed: f64,
    pub drops: f64,
    /// What was dropped, or has begun to wait.
    pub unserved: f64,
    /// The share of time in which a queue was long.
    pub long: f64,
}

impl Effect {
    /// Whether the level has had no effect on drops for 2 s. `overload`: there are as many as in an overload.
    pub fn read(&mut self, tick: &Tick, limits: bool, overload: bool) -> bool {
        let gain = 1.0 - (-tick.elapsed / EFFECT_WINDOW).exp();
        self.now.approach(tick, gain);
        if !limits || self.now.passed >= self.at_most.passed {
            self.at_most = self.now;
        }
        let (fewer_pass, fewer_drops) = (
            self.at_most.passed - self.now.passed,
            self.at_most.drops - self.now.drops,
        );
        // A full queue drops one unit less for each that does not come.
        let has_none = overload
            && tick.wait < tick.target
            && fewer_pass >= FEWER_PASS * self.at_most.passed
            && fewer_drops.abs() < FEWER_DROPS * self.at_most.drops
            && fewer_drops < LEAST_EFFECT * fewer_pass;
        self.without = if limits && has_none {
            self.without + tick.elapsed
        } else {
            0.0
        };
        self.without >= self.longer(WITHOUT_EFFECT_ON_DROPS) - 1e-9
    }

    pub const fn now(&self) -> Means {
        self.now
    }

    /// When most passed since the onset.
    pub const fn at_most(&self) -> Means {
        self.at_most
    }

    /// So many seconds, four times as many after each release that was wrong, up to 30.
    pub fn longer(&self, seconds: f64) -> f64 {
        (seconds * LONGER.powi(self.wrong)).min(HOLDS[1])
    }

    pub const fn release_was_wrong(&mut self) {
        self.wrong = self.wrong.saturating_add(1);
    }

    /// A level has ended an overload.
    pub const fn level_was_right(&mut self) {
        self.wrong = 0;
    }
}

impl Means {
    fn approach(&mut self, tick: &Tick, gain: f64) {
        self.passed += gain * (tick.passed - self.passed);
        self.drops += gain * (tick.drops - self.drops);
        self.unserved += gain * (tick.drops + tick.growth - self.unserved);
        self.long += gain * (f64::from(u8::from(tick.wait >= tick.target)) - self.long);
    }
}
