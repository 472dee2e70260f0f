//! The level: water-filling over sampled sources, then Newton steps on the exact counters.

use std::collections::BTreeMap;

use super::capacity::Capacity;
use super::tick::Tick;
use crate::parameters::{
    BURST, DEEPEST, DEEPEST_SHORT_QUEUE, DEEPEST_SLOW, EASY, FEW_STRANGERS, FEWEST_SAMPLES,
    FOLLOWS_LEVEL, FULL_TIMES_A_NETWORK, GATHERED, GUESSES, KAPPA, LAST_GUESS, LEAST_BURST,
    LEAST_ROOM, MANY_STRANGERS, PAYS, REFUSES, REFUSES_MANY, SAMPLED, SAMPLED_IDLE,
    SAMPLES_OF_STRANGERS, SHORT_QUEUE, SLOW_BURSTS, STEP_AHEAD, STEP_DOWN, STEP_ERROR, STEP_UP,
    TICK, TICKS_BACK, TICKS_TO_ALL, TICKS_TO_NETWORKS, TOO_MANY, Tier, Unit,
};
use crate::reading::Source;
use crate::water::water_level;

/// Seconds after the onset in which samples since the onset count, instead of those of a window.
const SINCE_ONSET: f64 = 2.0;

/// Levels of sources, of networks and of all.
#[derive(Clone, Debug, Default)]
pub struct Fill {
    pub level: f64,
    pub network: Option<f64>,
    /// Seconds of a network's level that pass at once.
    pub network_stores: f64,
    pub all: Option<f64>,
    tier: Tier,
    /// The level of sources when networks began to have one.
    alone: f64,
    /// The time of the onset.
    since: f64,
    /// Ticks in which the tier's level was at its least and too much passed, and those in which sources alone would do.
    high_ticks: u32,
    easy_ticks: u32,
    unit: Unit,
}

/// Rates of the sampled sources, in units a second.
struct Rates<'a> {
    sources: &'a [Source],
    /// Seconds since the onset while samples since then count.
    gathered: Option<f64>,
}

impl Rates<'_> {
    fn each(&self) -> impl Iterator<Item = (f64, &Source)> {
        self.sources.iter().map(|source| {
            let rate = self
                .gathered
                .map_or(source.rate, |gathered| source.since_onset / gathered);
            (rate, source)
        })
    }

    fn level(&self, room: f64) -> f64 {
        water_level(
            self.each().map(|(rate, source)| (rate, source.weight)),
            room,
        )
    }

    /// The rate of all sources with too few samples for a rate of their own.
    fn strangers(&self) -> f64 {
        let few = self
            .each()
            .filter(|(_, source)| source.samples < FEWEST_SAMPLES);
        few.map(|(rate, _)| rate).sum()
    }

    /// The weight of the sources that pay at this level.
    fn paying(&self, level: f64) -> f64 {
        let paying = self
            .each()
            .filter(|(rate, source)| *rate > PAYS * level * source.weight);
        paying.map(|(_, source)| source.weight).sum()
    }

    /// The rate that each network may have while its sources have this level.
    fn networks(&self, level: f64) -> Vec<f64> {
        let mut networks = BTreeMap::new();
        for (rate, source) in self.each() {
            *networks.entry(source.network).or_insert(0.0) += rate.min(level * source.weight);
        }
        networks.into_values().filter(|rate| *rate > 0.0).collect()
    }
}

impl Fill {
    /// At an onset.
    pub fn begin(&mut self, now: f64, level: f64, unit: Unit) {
        *self = Self {
            level,
            since: now,
            unit,
            ..Self::default()
        };
    }

    /// Whether the level of a tick of this length is guessed from samples.
    pub fn guesses(&self, now: f64, length: f64) -> bool {
        let ticks = ((now - self.since) / TICK).round() + 1.0;
        let length = (length / TICK).round().max(1.0);
        let is = |tick: &u32| (0.0..length).contains(&(ticks - f64::from(*tick)));
        GUESSES.iter().any(is) || is(&LAST_GUESS)
    }

    pub fn multiply(&mut self, factor: f64) {
        self.level *= factor;
        self.network = self.network.map(|level| level * factor);
        self.all = self.all.map(|rate| rate * factor);
    }

    pub fn step(
        &mut self,
        tick: &Tick,
        sources: &[Source],
        capacity: &Capacity,
        guess: bool,
        (least, most): (f64, f64),
        widest: Tier,
    ) {
        let elapsed = tick.now - self.since;
        let gathered = (elapsed < SINCE_ONSET).then_some(elapsed + TICK);
        let rates = Rates { sources, gathered };
        // The level of the whole capacity bounds what a full queue and stored bursts may demand. A bucket's state is a time:
        // what a deep cut charges at a low level excludes a source for long, so low levels are not cut deeply.
        let whole = rates.level(capacity.value);
        let strangers = rates.strangers();
        match self.tier {
            Tier::Sources => {
                self.step_sources(tick, &rates, capacity, guess, whole, strangers);
                let is_high = self.level <= least && passes_too_much(tick, capacity);
                self.high_ticks = if is_high { self.high_ticks + 1 } else { 0 };
                self.level = self.level.clamp(least, most);
                let samples: f64 = sources.iter().map(|source| source.samples).sum();
                let are_made_up =
                    samples > SAMPLES_OF_STRANGERS && strangers > MANY_STRANGERS * capacity.value;
                let are_too_many = are_made_up || self.high_ticks > TICKS_TO_NETWORKS;
                if widest > Tier::Sources && are_too_many {
                    self.limit_networks(&rates, capacity, least);
                }
            }
            Tier::Networks => self.step_networks(tick, &rates, capacity, least, widest),
            Tier::All => {}
        }
        if self.tier == Tier::All {
            self.all = Some(capacity.room);
        }
        // Samples overestimate the rates of made-up sources, and so this level.
        let is_easy = self.tier != Tier::Sources
            && whole > EASY * least
            && strangers < FEW_STRANGERS * capacity.value;
        self.easy_ticks = if is_easy { self.easy_ticks + 1 } else { 0 };
        if self.easy_ticks > TICKS_BACK {
            self.tier = Tier::Sources;
            (self.network, self.all) = (None, None);
            (self.high_ticks, self.easy_ticks) = (0, 0);
            self.level = self.level.min(whole);
        }
    }

    fn step_sources(
        &mut self,
        tick: &Tick,
        rates: &Rates,
        capacity: &Capacity,
        guess: bool,
        whole: f64,
        strangers: f64,
    ) {
        let is_slow = whole * BURST <= SLOW_BURSTS * LEAST_BURST * self.unit.granule();
        let deepest = if is_slow { DEEPEST_SLOW } else { DEEPEST };
        let wanted = rates.level(capacity.room).max(deepest * whole);
        if guess && wanted.is_finite() {
            self.level = wanted;
            return;
        }
        let mut level = self.newton(self.level, rates.paying(self.level), tick, capacity);
        if level < self.level {
            let is_short = tick.wait < SHORT_QUEUE * tick.target;
            let deepest = if is_short {
                deepest.max(DEEPEST_SHORT_QUEUE)
            } else {
                deepest
            };
            level = level.max((deepest * whole).min(self.level));
        }
        let is_sampled = strangers < FEW_STRANGERS * capacity.value;
        if is_sampled && tick.refused > REFUSES_MANY * tick.offered && wanted.is_finite() {
            let share = if capacity.is_idle() {
                SAMPLED_IDLE
            } else {
                SAMPLED
            };
            level = level.max(share * wanted);
        }
        self.level = level;
    }

    fn limit_networks(&mut self, rates: &Rates, capacity: &Capacity, least: f64) {
        self.tier = Tier::Networks;
        self.high_ticks = 0;
        self.alone = self.level.max(2.0 * least);
        let networks = rates.networks(self.alone);
        let heaviest = networks.iter().copied().fold(0.0, f64::max);
        let level = level_of(&networks, capacity.value);
        self.set_network(level.min(heaviest).max(least));
        self.network_stores = self.wanted_stores();
    }

    /// The seconds of a network's level that pass at once, by the level: with a packet, of which each network lacks another part.
    fn wanted_stores(&self) -> f64 {
        let level = self.network.unwrap_or(f64::INFINITY);
        let most = FULL_TIMES_A_NETWORK * self.unit.most_burst();
        let packet = self.unit.granule();
        let stores = BURST.min(most / level).max(LEAST_BURST * packet / level);
        stores.max(GATHERED) + packet / level
    }

    /// A source may have what its network may have: alone in it, it would otherwise pay for those of other networks.
    fn set_network(&mut self, level: f64) {
        self.network = Some(level);
        self.level = self.alone.max(level);
    }

    fn step_networks(
        &mut self,
        tick: &Tick,
        rates: &Rates,
        capacity: &Capacity,
        least: f64,
        widest: Tier,
    ) {
        let before = self.network.unwrap_or(f64::INFINITY);
        let networks = rates.networks(self.level);
        let paying = networks
            .iter()
            .filter(|rate| **rate > PAYS * before)
            .count();
        let level = self.newton(before, paying as f64, tick, capacity);
        let deepest = DEEPEST * level_of(&networks, capacity.value);
        let level = level.max(deepest.min(before));
        let is_high = level <= least && passes_too_much(tick, capacity);
        self.high_ticks = if is_high { self.high_ticks + 1 } else { 0 };
        self.set_network(level.max(least));
        let part = 1.0 - (-tick.elapsed / FOLLOWS_LEVEL).exp();
        self.network_stores += part * (self.wanted_stores() - self.network_stores);
        if widest > Tier::Networks && self.high_ticks > TICKS_TO_ALL {
            self.tier = Tier::All;
        }
    }

    /// Whether no level can fall any more, and those of wider keys would not help: too little passes for that.
    pub fn is_at_its_least(
        &self,
        least: f64,
        widest: Tier,
        tick: &Tick,
        capacity: &Capacity,
    ) -> bool {
        let is_least = match self.tier {
            Tier::Sources => self.level <= least,
            Tier::Networks => self.network.is_some_and(|level| level <= least),
            Tier::All => self
                .all
                .is_some_and(|rate| rate <= LEAST_ROOM * capacity.value),
        };
        is_least && (self.tier >= widest || !passes_too_much(tick, capacity))
    }

    /// A Newton step: the derivative of what passes is the weight of those who pay. A change of the room goes in ahead.
    fn newton(&self, level: f64, paying: f64, tick: &Tick, capacity: &Capacity) -> f64 {
        let ahead = capacity.room - capacity.room_before;
        let error = capacity.room_before - tick.passed;
        // Slower where stored bursts last longer.
        let kappa = KAPPA * (level * BURST / (LEAST_BURST * self.unit.granule())).min(1.0);
        let change = (ahead + kappa * error) / paying.max(1.0);
        if change > 0.0 && tick.refused <= REFUSES * tick.offered {
            return level;
        }
        // No more than the relative error warrants: with costly requests the capacity depends on the level.
        let relative = STEP_AHEAD * ahead.abs() / capacity.room_before
            + STEP_ERROR * error.abs() / tick.passed.max(self.unit.granule());
        let most = level * relative;
        let down = (-most).max(-STEP_DOWN * level);
        let up = (STEP_UP.powf(tick.elapsed / TICK) - 1.0) * level;
        level + change.max(down).min(most).min(up)
    }
}

/// Whether more passes than a tier at its least level should let pass.
fn passes_too_much(tick: &Tick, capacity: &Capacity) -> bool {
    tick.passed > TOO_MANY * capacity.value
}

fn level_of(networks: &[f64], room: f64) -> f64 {
    water_level(networks.iter().map(|rate| (*rate, 1.0)), room)
}
