//! One fair limit: its law, what it reads, and what it writes.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Instant;

use datapath::{FairCounts, FairHandle, FairLevel, FairLevels};
use fair::signals::{Scale, Signals};
use fair::{Law, Loads, Queue, Reading, Reported, Samples, State, Step, Unit, period};

use super::changes::{Change, Changes};
use super::recent::{Recent, SharedRecent};
use super::settings::LimitSettings;

/// Sampled packets a second from an onset on.
const SAMPLES: f64 = 4000.0;
/// The coarsest sample: one in so many packets.
const COARSEST: u32 = 1 << 20;
/// Sources that are remembered of samples.
const MOST_SOURCES: usize = 50_000;
/// The length of a packet before one was sampled, and the part of a new one in the mean.
const FIRST_LENGTH: f64 = 500.0;
const LENGTH_GAIN: f64 = 0.01;

/// A fair limit in effect.
pub(super) struct Limited {
    pub name: String,
    pub settings: LimitSettings,
    handle: FairHandle,
    pub law: Law,
    /// `None`: sockets are no signal, or the kernel cannot read them.
    pub signals: Option<Signals>,
    loads: Arc<Loads>,
    /// The load of the last reading.
    pub reported: Option<Reported>,
    samples: Samples<(u64, u64)>,
    one_in: u32,
    /// The mean length of packets, in bytes.
    length: f64,
    /// The last counts, and the time of the last reading; `None` after a change of the policy.
    counts: Option<FairCounts>,
    read_at: f64,
    changes: Changes,
    // For documents.
    pub offered: f64,
    pub passed: f64,
    /// Refused by the levels of networks, and of all sources together, in units a second.
    pub refused_by_wider: [f64; 2],
    pub sources: usize,
    recent: Recent,
    /// The part of `recent` in documents.
    pub shared: SharedRecent,
}

impl Limited {
    pub(super) fn new(
        mut handle: FairHandle,
        settings: LimitSettings,
        loads: Arc<Loads>,
        now: f64,
    ) -> Self {
        // An earlier agent's level is not this one's.
        handle.set(None);
        let law = Law::new(settings.law);
        let name = handle.limit().name.clone();
        let open = || {
            let (listeners, datagrams) = (settings.listeners, settings.datagrams);
            let signals = Signals::new(settings.ports.clone(), listeners, datagrams);
            let signals = signals.inspect_err(|error| {
                tracing::error!(
                    limit = name,
                    "reading sockets by sock_diag failed: {error}; limit {name:?} refuses nothing below at_most"
                );
            });
            signals.ok()
        };
        let signals = settings.reads_sockets().then(open).flatten();
        Self {
            name,
            settings,
            handle,
            law,
            signals,
            loads,
            reported: None,
            samples: Samples::new(MOST_SOURCES),
            one_in: 0,
            length: FIRST_LENGTH,
            counts: None,
            read_at: now,
            changes: Changes::default(),
            offered: 0.0,
            passed: 0.0,
            refused_by_wider: [0.0; 2],
            sources: 0,
            recent: Recent::default(),
            shared: SharedRecent::default(),
        }
    }

    /// The same limit under another policy.
    pub(super) fn with(mut self, handle: FairHandle, now: f64) -> Self {
        self.handle = handle;
        self.counts = None;
        self.read_at = now;
        // Always: a level that was copied to this policy may be one that is no longer in effect.
        self.write();
        self.handle.sample(self.one_in);
        self
    }

    /// The same limit after other settings, of which an overload may last.
    pub(super) fn after(self, before: Option<Self>) -> Self {
        let Some(before) = before else {
            return self;
        };
        let changes = before.changes;
        if before.settings.law.unit != self.settings.law.unit {
            return Self { changes, ..self };
        }
        let (recent, shared) = (before.recent.after(), before.shared);
        Self {
            changes,
            recent,
            shared,
            ..self
        }
    }

    /// The end of an overload that lasts, since the limit is no longer in effect.
    pub(super) fn end(&mut self, now: f64) -> Option<Change> {
        self.changes.end(now)
    }

    /// Reads and writes if it is time. Returns what has changed.
    pub(super) fn tick(&mut self, now: f64) -> Vec<Change> {
        let elapsed = now - self.read_at;
        // The counters are exact: reading them is the cheapest part.
        let counts = self.handle.counts();
        let (passed, refused) = match (&counts, &self.counts) {
            (Ok(now), Some(before)) => (
                now.passed.saturating_sub(before.passed) as f64,
                now.refused.saturating_sub(before.refused) as f64,
            ),
            _ => (0.0, 0.0),
        };
        let is_off = self.law.is_off();
        let load = self.load();
        let number = |reported: Option<Reported>| reported.map(|reported| reported.number);
        let lacks_report = self.law.follows_reports() && number(load) == number(self.reported);
        let unit = self.settings.law.unit;
        // Half a millisecond early is on time.
        if elapsed + 5e-4 < period(is_off, unit, passed + refused, lacks_report) {
            return Vec::new();
        }
        self.reported = load;
        let has_base = self.counts.is_some();
        self.read_at = now;
        self.refused_by_wider = match (&counts, &self.counts) {
            (Ok(now), Some(before)) => std::array::from_fn(|nth| {
                let of = |counts: &FairCounts| counts.refused_by_wider[nth];
                of(now).saturating_sub(of(before)) as f64 / elapsed
            }),
            _ => [0.0; 2],
        };
        self.counts = counts.ok();
        self.take_samples();
        let scale = Scale {
            unit,
            bytes: self.length,
        };
        let queue = match &mut self.signals {
            Some(signals) => signals.read(now, scale).ok(),
            None => (!self.settings.reads_sockets()).then(Queue::default),
        };
        let queue = self.with_load(queue);
        if !has_base && self.counts.is_some() {
            // Counters of this policy begin now.
            return Vec::new();
        }
        (self.offered, self.passed) = ((passed + refused) / elapsed, passed / elapsed);
        let sources = self.samples.read(elapsed, is_off);
        self.sources = sources.len();
        let reading = Reading {
            now,
            elapsed,
            passed,
            refused,
            queue: queue.filter(|_| self.counts.is_some()),
            sources: &sources,
        };
        let before = self.law.level();
        let level = self.law.step(&reading);
        if level.is_some() || before.is_some() {
            self.write();
        }
        self.adjust_sample(passed + refused, elapsed);
        let step = Step {
            from: now - elapsed,
            to: now,
            units: self.counts.is_some().then_some((passed, refused)),
            level: level.map(|level| level.rate),
            cause: self.law.report().cause,
        };
        self.recent.add(&step, |level| self.samples.above(level));
        self.recent.publish(now, &self.shared);
        let watched = self.signals.as_ref().map_or(&[][..], Signals::watched);
        self.changes.after(now, &self.law.report(), watched)
    }

    /// The last report of the service, if that is a signal.
    fn load(&self) -> Option<Reported> {
        if !self.settings.takes_load {
            return None;
        }
        self.loads.read(&self.name, Instant::now())
    }

    /// The queue with the load of this reading. Without a report, nothing is known where no socket is a signal.
    fn with_load(&self, queue: Option<Queue>) -> Option<Queue> {
        let is_known = self.settings.reads_sockets() || self.reported.is_some();
        queue.filter(|_| is_known).map(|queue| Queue {
            reported: self.reported,
            ..queue
        })
    }

    /// Writes the levels, which are in effect for two seconds.
    fn write(&mut self) {
        let level = self.law.level();
        let wider = |rate: Option<f64>, burst: Option<f64>| {
            let (rate, burst) = rate.zip(burst)?;
            Some(FairLevel { rate, burst })
        };
        let levels = level.map(|level| FairLevels {
            source: Some(FairLevel {
                rate: level.rate,
                burst: level.burst(1.0),
            }),
            wider: [
                wider(level.network, level.network_burst()),
                wider(level.all, level.all_burst()),
            ],
        });
        self.handle.set_levels(levels.unwrap_or_default());
    }

    fn take_samples(&mut self) {
        let (samples, length) = (&mut self.samples, &mut self.length);
        let are_bytes = self.settings.law.unit == Unit::Bytes;
        self.handle.samples(&mut |sample| {
            let units = f64::from(sample.units);
            if are_bytes {
                *length += LENGTH_GAIN * (units - *length);
            }
            samples.add(
                (sample.hi, sample.lo),
                1.0,
                number_of(sample.network),
                units * f64::from(sample.one_in),
            );
        });
    }

    /// Samples from the first sign of an overload until the limit is off.
    fn adjust_sample(&mut self, units: f64, elapsed: f64) {
        let state = self.law.report().state;
        if state == State::Off {
            if self.one_in > 0 {
                self.one_in = 0;
                self.handle.sample(0);
                self.samples.clear();
            }
            return;
        }
        let length = if self.settings.law.unit == Unit::Bytes {
            self.length
        } else {
            1.0
        };
        let packets = units / length.max(1.0) / elapsed;
        let wanted = (packets / SAMPLES).clamp(1.0, f64::from(COARSEST)) as u32;
        // Powers of two do not follow every change of the rate.
        self.one_in = wanted.next_power_of_two();
        self.handle.sample(self.one_in);
    }

    /// Refuses nothing from now on.
    pub(super) fn release(&mut self) {
        self.handle.set(None);
        self.handle.sample(0);
    }

    /// When the overload that lasts began, in seconds since 1970.
    pub(super) fn began(&self) -> Option<f64> {
        self.changes.began()
    }

    /// Onsets so far.
    pub(super) const fn onsets(&self) -> u64 {
        self.changes.onsets()
    }
}

/// The number of a network, by the words of its key. Two of them share one with a probability of 2⁻⁶⁴.
fn number_of((hi, lo): (u64, u64)) -> u64 {
    let mut hasher = DefaultHasher::new();
    (hi, lo).hash(&mut hasher);
    hasher.finish()
}
