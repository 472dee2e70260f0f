//! A running recording, on its thread.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use api::event::seconds_since_1970;
use api::record::{RecordState, RecordStatus};
use common::packet::Address;
use common::record::{PART, RecordKey, Recorded};
use datapath::{LoadError, RecordMaps};
use host::{StateDirectory, monotonic_nanoseconds};
use nix::time::{ClockId, clock_gettime};

use super::super::packets::Packets;
use super::file::{MOST_SERVICES, MOST_SOURCES, RecordFile};
use super::sampling::Sampling;
use crate::suggest::{Collector, Transport};

/// The interval of writes. What was recorded since the last one is lost when the agent is killed.
const WRITE_EVERY: Duration = Duration::from_secs(300);
/// The interval of attempts to write a recording that has ended.
pub(super) const RETRY_EVERY: Duration = Duration::from_secs(10);
/// After the end of a part, programs that began before it may still count in it.
const GRACE: u64 = 10_000_000;

/// Shared by the thread of a recording and by commands.
pub(super) struct Shared {
    pub(super) order: Mutex<Order>,
    pub(super) ordered: Condvar,
    pub(super) status: Mutex<RecordStatus>,
}

/// An order to the thread.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Order {
    Continue,
    /// The next agent continues.
    Pause,
    End,
}

pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves no value half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The status of a recording with the content of this file.
pub(super) fn status_of(file: &RecordFile, path: &str, state: RecordState) -> RecordStatus {
    RecordStatus {
        state,
        file: path.to_owned(),
        started: file.started,
        ends: file.ends,
        seconds: file.collected.seconds,
        packets: file.collected.packets,
        sources: file.collected.sources.len() as u64,
        services: file.collected.services.len() as u64,
        one_in: 1,
        sampled_seconds: file.sampled_seconds,
        lost: file.lost,
        gaps: file.gaps.clone(),
        error: None,
    }
}

/// A running recording, on its thread.
pub(super) struct Recording {
    /// Without the collected traffic, which `collector` has.
    file: RecordFile,
    collector: Collector,
    sampling: Sampling,
    packets: Packets,
    directory: StateDirectory,
    /// The maps of the policy in effect, and the packets that they had no room for.
    maps: Option<(Arc<RecordMaps>, u64)>,
    /// The part in which they were last emptied.
    emptied: u32,
    emptied_at: u64,
    /// Why the maps cannot be read; logged once.
    failure: Option<String>,
}

impl Recording {
    pub(super) fn new(mut file: RecordFile, packets: Packets, directory: StateDirectory) -> Self {
        let mut collector = Collector::with_capacity(MOST_SOURCES).reserved(MOST_SERVICES);
        let none = Collector::with_capacity(1).save();
        collector.resume(std::mem::replace(&mut file.collected, none));
        let now = monotonic_nanoseconds();
        Self {
            file,
            collector,
            sampling: Sampling::default(),
            packets,
            directory,
            maps: None,
            emptied: RecordKey::part_at(now),
            emptied_at: now,
            failure: None,
        }
    }

    pub(super) fn status(&self, state: RecordState, error: Option<String>) -> RecordStatus {
        let (packets, sources, services) = self.collector.sizes();
        let path = RecordFile::path(&self.directory).display().to_string();
        RecordStatus {
            seconds: self.collector.seconds(),
            packets,
            sources,
            services,
            one_in: self.sampling.one_in(),
            error,
            ..status_of(&self.file, &path, state)
        }
    }

    /// Lets the kernel programs count from now on.
    pub(super) fn prepare(&mut self) {
        // The counters that an earlier recording left are dropped.
        if let Some(packets) = self.packets.load_full()
            && let Ok(maps) = packets.record(0)
        {
            let _ = [0, 1].map(|part| maps.drain(part));
        }
        self.turn();
    }

    pub(super) fn run(mut self, shared: &Shared) {
        let mut written = Instant::now();
        let mut error = None;
        let order = loop {
            self.turn();
            // Until the next part is over.
            let order = wait(shared, (u64::from(self.emptied) + 1) * PART + GRACE);
            if order != Order::Continue {
                break order;
            }
            if seconds_since_1970() >= self.file.ends {
                break Order::End;
            }
            if written.elapsed() >= WRITE_EVERY {
                error = self.write(error.as_ref());
                written = Instant::now();
            }
            *lock(&shared.status) = self.status(RecordState::Recording, error.clone());
        };
        self.finish();
        self.file.is_ended = order == Order::End;
        let mut state = RecordState::Recording;
        if self.file.is_ended {
            self.file.ends = self.file.ends.min(seconds_since_1970());
            state = RecordState::Ended;
        }
        let mut order = order;
        loop {
            error = self.write(error.as_ref());
            *lock(&shared.status) = self.status(state, error.clone());
            if error.is_none() || order == Order::Pause {
                return;
            }
            *lock(&shared.order) = Order::Continue;
            order = wait(
                shared,
                monotonic_nanoseconds() + RETRY_EVERY.as_nanos() as u64,
            );
        }
    }

    /// Takes the parts that are over.
    fn turn(&mut self) {
        let Some(packets) = self.packets.load_full() else {
            return self.take_rest();
        };
        let maps = match packets.record(self.sampling.one_in()) {
            Ok(maps) => maps,
            Err(error) => return self.fail(&error),
        };
        self.follow(&maps);
        let now = monotonic_nanoseconds();
        let part = RecordKey::part_at(now);
        let passed = part.saturating_sub(self.emptied);
        if passed == 0 {
            return;
        }
        let cpu = cpu_time();
        // Late: parts of both kinds are over, and are added in their order.
        let kinds: &[u32] = if passed > 1 { &[1, 0] } else { &[1] };
        let counters = kinds
            .iter()
            .map(|kind| maps.drain(part.wrapping_sub(*kind)))
            .collect::<Result<Vec<_>, _>>();
        let counters = match counters {
            Ok(counters) => counters.concat(),
            Err(error) => return self.fail(&error),
        };
        let count = counters.len();
        self.add(counters);
        let lost = maps.lost().unwrap_or_default();
        let new = self.maps.as_mut().map_or(0, |(_, noted)| {
            lost.saturating_sub(std::mem::replace(noted, lost))
        });
        self.file.lost = self.file.lost.saturating_add(new);
        let elapsed = now.saturating_sub(self.emptied_at);
        if self.sampling.one_in() > 1 {
            self.file.sampled_seconds += elapsed as f64 / 1e9;
        }
        self.sampling.follow(
            count,
            passed,
            new > 0,
            cpu_time().saturating_sub(cpu),
            elapsed,
        );
        self.file.least_sample = self.file.least_sample.max(self.sampling.one_in());
        (self.emptied, self.emptied_at, self.failure) = (part, now, None);
    }

    /// Changes to these maps, if another policy is in effect.
    fn follow(&mut self, maps: &Arc<RecordMaps>) {
        if self
            .maps
            .as_ref()
            .is_none_or(|(current, _)| !Arc::ptr_eq(current, maps))
        {
            self.take_rest();
            self.maps = Some((Arc::clone(maps), 0));
        }
    }

    /// Takes all counters of the current maps.
    fn take_rest(&mut self) {
        let Some((maps, noted)) = self.maps.take() else {
            return;
        };
        let counters = [1, 0]
            .map(|kind| maps.drain(kind).unwrap_or_default())
            .concat();
        self.add(counters);
        self.file.lost = self
            .file
            .lost
            .saturating_add(maps.lost().unwrap_or(noted).saturating_sub(noted));
    }

    fn finish(&mut self) {
        match self.packets.load_full().map(|packets| packets.record(0)) {
            Some(Ok(maps)) => self.follow(&maps),
            Some(Err(error)) => {
                tracing::warn!("ending the recording in the kernel failed: {error}");
            }
            None => {}
        }
        self.take_rest();
    }

    fn add(&mut self, mut counters: Vec<(RecordKey, Recorded)>) {
        // In the order of time; a port is one of a service once somebody connects to it.
        counters.sort_unstable_by_key(|(key, counted)| (key.part, counted.connections == 0));
        for (key, counted) in counters {
            let protocol = match key.protocol {
                0 => Transport::Tcp,
                1 => Transport::Udp,
                _ => Transport::Icmp,
            };
            let port =
                Some(key.local_port).filter(|port| *port != 0 && protocol != Transport::Icmp);
            let address = Address {
                hi: key.hi,
                lo: key.lo,
            };
            self.collector.add_counted(
                u64::from(key.part) * PART,
                protocol,
                port,
                address,
                &counted,
            );
        }
    }

    /// Logs it once.
    fn fail(&mut self, error: &LoadError) {
        let error = error.to_string();
        if self.failure.as_ref() != Some(&error) {
            tracing::warn!("{error}; it is tried again");
            self.failure = Some(error);
        }
    }

    /// Writes the file; returns why that failed. `before` is what the last write returned.
    fn write(&mut self, before: Option<&String>) -> Option<String> {
        self.file.written = seconds_since_1970();
        let file = RecordFile {
            collected: self.collector.save(),
            ..self.file.clone()
        };
        let error = file
            .write(&self.directory)
            .err()
            .map(|error| error.to_string());
        if let (Some(error), None) = (&error, before) {
            tracing::warn!(
                "the recording is not written: {error}; it is tried again every 5 min, and every 10 s after its end"
            );
        }
        error
    }
}

/// Waits until an instant of the monotonic clock, or for an order.
fn wait(shared: &Shared, until: u64) -> Order {
    let mut order = lock(&shared.order);
    loop {
        let left = until.saturating_sub(monotonic_nanoseconds());
        if left == 0 || *order != Order::Continue {
            return *order;
        }
        let waited = shared
            .ordered
            .wait_timeout(order, Duration::from_nanos(left));
        order = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// The CPU time of this thread in nanoseconds.
fn cpu_time() -> u64 {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(0, |time| {
        time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64
    })
}
