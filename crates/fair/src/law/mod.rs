//! The law ("fill"): an estimate of the capacity, a regulator of the queue, water-filling over sampled sources, Newton steps
//! on the exact counters, levels of networks and of all, and a hold against pulses.

mod arrivals;
mod capacity;
mod effect;
mod failure;
mod fill;
mod pause;
mod tick;

pub use failure::Failure;

use crate::level::Level;
use crate::parameters::{
    AGAIN, BURST_SHARE_A_SECOND, FIRST_BURST_SHARE, FITS, HOLDS, LONGER, LOSS, MEAN_LOSS,
    MEAN_LOSS_GAIN, OFF, RAISE, REFUSES, RELEASE, Settings, TICK, USUAL_WINDOW, long_wait,
};
use crate::reading::Reading;
use arrivals::Arrivals;
use capacity::Capacity;
use effect::Effect;
use failure::Watch;
use fill::Fill;
use tick::Tick;

/// The state of a fair limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Nothing is refused.
    Off,
    /// There was an overload. Nothing is refused yet, or as long as no source would have to send less.
    Armed,
    /// Sources above the level are limited.
    Limiting,
    /// There is no overload any more. The level is kept for a while, against pulses.
    Holding,
    /// The level rises until the limit is off.
    Releasing,
}

/// The cause that keeps the level down.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Servers drop units.
    Drops,
    /// Units wait for long.
    Wait,
    /// The service reports that it is full.
    Load,
    /// Sources would send more than the capacity.
    Demand,
    /// An overload a short time ago.
    Recent,
}

/// The state of a law, for documents.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Report {
    pub state: State,
    pub level: Option<Level>,
    pub cause: Option<Cause>,
    pub failure: Option<Failure>,
    /// Units that the server served in the last tick, a second.
    pub goodput: f64,
    /// Units that it can serve a second. None until an overload showed it.
    pub capacity: Option<f64>,
    /// Seconds that a unit waits, and to which that is regulated.
    pub wait: f64,
    pub target: f64,
    /// The share of passed units that servers dropped.
    pub loss: f64,
}

/// Units of readings without a queue.
#[derive(Clone, Copy, Debug, Default)]
struct Missed {
    seconds: f64,
    passed: f64,
    refused: f64,
}

impl Missed {
    fn add(&mut self, reading: &Reading) {
        self.seconds += reading.elapsed;
        self.passed += reading.passed;
        self.refused += reading.refused;
    }

    /// One reading of these and the one that came after them.
    fn before<'a>(&self, reading: &Reading<'a>) -> Reading<'a> {
        Reading {
            elapsed: reading.elapsed + self.seconds,
            passed: reading.passed + self.passed,
            refused: reading.refused + self.refused,
            ..*reading
        }
    }
}

/// The state machine of one fair limit.
#[derive(Clone, Debug)]
pub struct Law {
    settings: Settings,
    state: State,
    cause: Option<Cause>,
    arrivals: Arrivals,
    capacity: Capacity,
    fill: Fill,
    watch: Watch,
    effect: Effect,
    /// Passed and refused units, and the seconds, since the last reading that had a queue: its drops and growth are
    /// since then.
    missed: Missed,
    last: Tick,
    /// The number of the last report of the service's load.
    report: Option<u64>,
    mean_loss: f64,
    /// The mean goodput while the limit is off, in units a second.
    usual: f64,
    burst_share: f64,
    /// Seconds without overload, and those until the release.
    quiet: f64,
    hold: f64,
    released: f64,
}

impl Law {
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            state: State::Off,
            cause: None,
            arrivals: Arrivals::default(),
            capacity: Capacity::default(),
            fill: Fill::default(),
            watch: Watch::default(),
            effect: Effect::default(),
            missed: Missed::default(),
            last: Tick::default(),
            report: None,
            mean_loss: 0.0,
            usual: 0.0,
            burst_share: 1.0,
            quiet: 0.0,
            hold: HOLDS[0],
            released: f64::NEG_INFINITY,
        }
    }

    /// The level after this reading. None: off, nothing is refused.
    pub fn step(&mut self, reading: &Reading) -> Option<Level> {
        let Some(queue) = reading.queue else {
            self.missed.add(reading);
            if self.watch.unreadable(reading.now, reading.elapsed) {
                self.fail(reading.now);
            }
            return self.level();
        };
        let reading = &std::mem::take(&mut self.missed).before(reading);
        let mut flow = self.arrivals.read(reading, &queue, self.settings.unit);
        let report = queue.reported.map(|reported| reported.number);
        flow.is_new_report = report != self.report;
        self.report = report;
        let unit = self.settings.unit;
        let tick = Tick::new(reading, &flow, self.capacity.value, self.is_off(), unit);
        self.advance(&tick, reading);
        self.last = tick;
        self.level()
    }

    fn advance(&mut self, tick: &Tick, reading: &Reading) {
        self.mean_loss += MEAN_LOSS_GAIN * (tick.loss.min(LOSS) - self.mean_loss);
        let long = long_wait(tick.target);
        let drops = tick.loss > LOSS || self.mean_loss > MEAN_LOSS;
        let overload = drops || tick.wait > long;
        // A reported wait may stay above the target, whatever the level.
        let is_late = overload || (tick.is_reported && tick.wait > tick.target);
        let at_least = self.is_on() && is_late && self.is_at_its_least(tick);
        let limits = self.level().is_some();
        let without_effect = self.effect.read(tick, limits, drops);
        let effect = &mut self.effect;
        let watch = &mut self.watch;
        if watch.readable(tick, overload, at_least, without_effect, effect) {
            self.fail(tick.now);
            return;
        }
        let first = !self.is_on();
        let is_onset =
            overload && self.state == State::Armed && tick.has_goodput() && !tick.is_old();
        if first && !is_onset {
            // An overload that began within this tick hides the capacity: the next tick has it.
            self.state = if overload { State::Armed } else { State::Off };
            if !overload {
                let gain = 1.0 - (-tick.elapsed / USUAL_WINDOW).exp();
                self.usual += gain * (tick.usual - self.usual);
            }
            return;
        }
        if overload && tick.now - self.released < AGAIN {
            self.hold = (self.hold * LONGER).min(HOLDS[1]);
            self.released = f64::NEG_INFINITY;
        } else if first {
            self.hold = HOLDS[0];
        }
        self.burst_share = if first {
            FIRST_BURST_SHARE
        } else {
            (self.burst_share + BURST_SHARE_A_SECOND * tick.elapsed).min(1.0)
        };
        if first {
            self.capacity.begin(tick, self.usual);
            self.fill.begin(tick.now, self.most(), self.settings.unit);
        } else if !tick.is_old() {
            self.capacity.read(tick, &self.last);
        }
        self.capacity.make_room(tick);
        let fits = tick.offered < FITS * self.capacity.room;
        let refuses = tick.refused > REFUSES * tick.offered;
        if !overload && (fits || !refuses) {
            self.cause = Some(Cause::Recent);
            self.rest(tick, fits && refuses);
        } else {
            self.cause = Some(match (drops, overload) {
                (true, _) => Cause::Drops,
                (_, true) if tick.is_reported => Cause::Load,
                (_, true) => Cause::Wait,
                _ => Cause::Demand,
            });
            self.state = State::Limiting;
            self.quiet = 0.0;
            // Reports lengthen ticks at any rate; others are longer where samples are few.
            let length = if tick.is_reported { tick.elapsed } else { TICK };
            let guess = first || self.fill.guesses(tick.now, length);
            let bounds = (self.settings.at_least, self.most());
            let widest = self.settings.widest;
            self.fill
                .step(tick, reading.sources, &self.capacity, guess, bounds, widest);
        }
    }

    /// Keeps or raises the level while nothing is late and nobody needs a limit, then releases it.
    fn rest(&mut self, tick: &Tick, raise: bool) {
        self.quiet += tick.elapsed;
        if self.quiet > self.hold {
            self.release(tick.now, tick.elapsed);
            return;
        }
        self.state = State::Holding;
        if raise {
            self.fill.multiply(RAISE.powf(tick.elapsed / TICK));
            self.end_if_high();
        }
    }

    fn release(&mut self, now: f64, elapsed: f64) {
        self.released = now;
        self.state = State::Releasing;
        self.fill.multiply(RELEASE.powf(elapsed / TICK));
        self.end_if_high();
    }

    fn end_if_high(&mut self) {
        if self.fill.level >= self.most() {
            self.effect.level_was_right();
            self.end();
        }
    }

    /// Off at once: what comes after a failure is a new onset.
    fn fail(&mut self, now: f64) {
        if self.is_on() {
            self.released = now;
        }
        self.end();
    }

    fn end(&mut self) {
        self.state = State::Off;
        self.cause = None;
        self.quiet = 0.0;
        self.fill = Fill::default();
    }

    /// The level at which the limit is off.
    fn most(&self) -> f64 {
        let most = self.settings.at_most.unwrap_or(OFF * self.capacity.largest);
        most.max(self.settings.at_least)
    }

    fn is_at_its_least(&self, tick: &Tick) -> bool {
        let Settings {
            at_least, widest, ..
        } = self.settings;
        self.fill
            .is_at_its_least(at_least, widest, tick, &self.capacity)
    }

    fn is_on(&self) -> bool {
        !matches!(self.state, State::Off | State::Armed)
    }

    /// Whether the limit refuses nothing.
    #[must_use]
    pub fn is_off(&self) -> bool {
        !self.is_on()
    }

    /// The level in effect. None: nothing is refused, since the limit is off or since no source needs one.
    #[must_use]
    pub fn level(&self) -> Option<Level> {
        let limits = self.is_on() && self.fill.level < self.most();
        limits.then_some(Level {
            rate: self.fill.level,
            network: self.fill.network,
            network_stores: self.fill.network_stores,
            all: self.fill.all,
            burst_share: self.burst_share,
            unit: self.settings.unit,
        })
    }

    /// Whether the last reading was nearer to an overload by what the service reports than by its sockets.
    #[must_use]
    pub const fn follows_reports(&self) -> bool {
        self.last.is_reported
    }

    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }

    #[must_use]
    pub fn report(&self) -> Report {
        let measured = self.capacity.value > 0.0;
        Report {
            state: if self.is_on() && self.level().is_none() {
                State::Armed
            } else {
                self.state
            },
            level: self.level(),
            cause: self.cause.filter(|_| self.level().is_some()),
            failure: self.watch.failure(),
            goodput: self.last.goodput,
            capacity: measured.then_some(self.capacity.value),
            wait: self.last.wait,
            target: self.last.target,
            loss: self.last.loss,
        }
    }
}
