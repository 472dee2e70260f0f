//! The capacity of the servers behind a limit. While they are never idle, it is their goodput.

use super::tick::Tick;
use crate::parameters::{
    BEYOND, BUSY, DRAIN, FALLEN, GAIN, GAIN_FALLEN, KNOWN_TICKS, LEAST_PULL, LOSS_PULL,
    MOST_LOSS_PULL, MOST_PULL, NEAR_ROOM, PROBE, PROBE_DOUBLINGS, PROBE_TICKS, SPARE, USUAL_HOLDS,
};

/// An estimate of the capacity, and the room for what may pass.
#[derive(Clone, Copy, Debug, Default)]
pub struct Capacity {
    /// In units a second. 0: not measured yet.
    pub value: f64,
    /// The goodput of busy servers.
    measured: f64,
    /// Their goodput before the onset, and the time until which the capacity is no less.
    usual: f64,
    usual_until: f64,
    /// The largest one.
    pub largest: f64,
    /// The rate that may pass: the capacity, corrected by the queue and losses. And that of the tick before.
    pub room: f64,
    pub room_before: f64,
    /// The value when servers were busy last.
    known: f64,
    busy_ticks: u32,
    idle_ticks: u32,
    /// Idle ticks beyond the known capacity.
    ticks_beyond: u32,
}

impl Capacity {
    /// At an onset. `usual`: what was served before.
    pub fn begin(&mut self, tick: &Tick, usual: f64) {
        *self = Self {
            measured: tick.goodput,
            usual,
            usual_until: tick.now + USUAL_HOLDS,
            known: tick.goodput.max(usual * tick.each),
            busy_ticks: 1,
            ..Self::default()
        };
        self.set(tick);
    }

    /// Takes a tick into account; `before` is the one before it.
    pub fn read(&mut self, tick: &Tick, before: &Tick) {
        if tick.drops > 0.0 || tick.wait.min(before.wait) > BUSY * tick.target {
            (self.idle_ticks, self.ticks_beyond) = (0, 0);
            let has_fallen = tick.goodput.max(before.goodput) < FALLEN * self.measured;
            let gain = if has_fallen {
                GAIN_FALLEN
            } else {
                GAIN.max(1.0 / f64::from(self.busy_ticks))
            };
            self.busy_ticks += 1;
            self.measured += gain * (tick.goodput - self.measured);
            self.known = self.measured;
        } else if tick.passed > NEAR_ROOM * self.room {
            self.idle_ticks += 1;
            let is_beyond = tick.goodput > BEYOND * self.known || self.busy_ticks < KNOWN_TICKS;
            self.ticks_beyond += u32::from(is_beyond);
            self.measured = self.measured.max(tick.least_goodput);
        }
        self.set(tick);
    }

    /// A pause of servers is no measure of them: at first they can serve what they served before.
    fn set(&mut self, tick: &Tick) {
        self.value = self.measured;
        if tick.now < self.usual_until {
            self.value = self.value.max(self.usual * tick.each);
        }
        self.largest = self.largest.max(self.value);
    }

    /// Sets the room from the capacity, the wait and the loss.
    pub fn make_room(&mut self, tick: &Tick) {
        let mut pull = (tick.target - tick.wait) / DRAIN;
        if self.is_idle() {
            // The capacity is out of sight: slowly up to what it was, then ever faster.
            let doublings = (f64::from(self.ticks_beyond) / PROBE_TICKS).min(PROBE_DOUBLINGS);
            pull = pull.max(PROBE * doublings.exp2() + SPARE);
        }
        let pull = (pull - LOSS_PULL * tick.loss.min(MOST_LOSS_PULL)).clamp(LEAST_PULL, MOST_PULL);
        let room = self.value * (1.0 - SPARE + pull);
        self.room_before = if self.room > 0.0 { self.room } else { room };
        self.room = room;
    }

    /// Whether the servers were idle in the last ticks.
    pub fn is_idle(&self) -> bool {
        self.idle_ticks > 0
    }
}
