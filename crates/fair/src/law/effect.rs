//! Drops on which the level has no effect: less passes, the queue is short, and as much is dropped as before.

use super::tick::Tick;
use crate::parameters::{
    EFFECT_WINDOW, FEWER_DROPS, FEWER_PASS, LEAST_EFFECT, WITHOUT_EFFECT_ON_DROPS,
};

/// What passes and what is dropped, now and when most passed since the onset.
#[derive(Clone, Copy, Debug, Default)]
pub struct Effect {
    now: Means,
    at_most: Means,
    /// Seconds without effect.
    without: f64,
}

/// Means over about a second, in units a second.
#[derive(Clone, Copy, Debug, Default)]
struct Means {
    passed: f64,
    drops: f64,
}

impl Effect {
    /// Whether the level has had no effect on drops for 2 s. `overload`: there are as many as in an overload.
    pub fn read(&mut self, tick: &Tick, limits: bool, overload: bool) -> bool {
        let gain = 1.0 - (-tick.elapsed / EFFECT_WINDOW).exp();
        self.now.passed += gain * (tick.passed - self.now.passed);
        self.now.drops += gain * (tick.drops - self.now.drops);
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
        self.without >= WITHOUT_EFFECT_ON_DROPS - 1e-9
    }
}
