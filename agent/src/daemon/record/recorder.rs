//! Records sources while the agent runs.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use api::event::seconds_since_1970;
use api::record::{LENGTHS, RecordGap, RecordState, RecordStatus, WRONG_LENGTH};
use common::packet::Address;
use common::record::{PART, RecordKey, Recorded};
use datapath::{LoadError, RecordMaps};
use host::{StateDirectory, monotonic_nanoseconds};
use nix::time::{ClockId, clock_gettime};

use super::super::packets::Packets;
use super::file::{MOST_GAPS, MOST_SERVICES, MOST_SOURCES, RecordFile};
use super::sampling::Sampling;
use crate::suggest::{Collector, Transport};

/// The interval of writes. What was recorded since the last one is lost when the agent is killed.
const WRITE_EVERY: Duration = Duration::from_secs(300);
/// The interval of attempts to write a recording that has ended.
const RETRY_EVERY: Duration = Duration::from_secs(10);
/// After the end of a part, programs that began before it may still count in it.
const GRACE: u64 = 10_000_000;
/// A shorter time without the agent is no gap in the file.
const LEAST_GAP: f64 = 1.0;

/// Starts and ends recordings.
pub struct Recorder {
    packets: Packets,
    directory: StateDirectory,
    running: Mutex<Option<Running>>,
    notes: Mutex<Vec<String>>,
}

struct Running {
    shared: Arc<Shared>,
    thread: JoinHandle<()>,
}

/// Shared by the thread of a recording and by commands.
struct Shared {
    order: Mutex<Order>,
    ordered: Condvar,
    status: Mutex<RecordStatus>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Continue,
    /// The next agent continues.
    Pause,
    End,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // A panic elsewhere leaves no value half changed.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Recorder {
    /// For the programs of `packets`; continues a recording that an earlier agent has begun.
    #[must_use]
    pub fn new(packets: Packets, directory: StateDirectory) -> Self {
        let recorder = Self { packets, directory, running: Mutex::default(), notes: Mutex::default() };
        recorder.resume();
        recorder
    }

    fn resume(&self) {
        let file = match RecordFile::read(&RecordFile::path(&self.directory)) {
            Ok(file) => file,
            Err(error) if error.is_missing => return,
            Err(error) => {
                let note = match RecordFile::set_aside(&self.directory, Some("recording.damaged")) {
                    Ok(()) => format!("{error}; it was renamed to recording.damaged"),
                    Err(_) => error.to_string(),
                };
                tracing::warn!("{note}");
                lock(&self.notes).push(note);
                return;
            }
        };
        if file.is_ended {
            return;
        }
        let now = seconds_since_1970();
        let mut file = file;
        if now - file.written >= LEAST_GAP {
            let gap = RecordGap { from: file.written, to: now.min(file.ends).max(file.written) };
            let is_full = file.gaps.len() >= MOST_GAPS;
            match file.gaps.last_mut().filter(|_| is_full) {
                Some(last) => last.to = gap.to,
                None => file.gaps.push(gap),
            }
        }
        if let Err(error) = self.begin(file) {
            tracing::warn!("{error}");
            lock(&self.notes).push(error);
        }
    }

    /// Starts a recording of this length; `interfaces` are those of the config.
    ///
    /// # Errors
    ///
    /// When one is running, the length is invalid, or the file cannot be written.
    pub fn start(&self, length: Duration, interfaces: Vec<String>) -> Result<RecordStatus, String> {
        if !LENGTHS.contains(&length) {
            return Err(WRONG_LENGTH.to_owned());
        }
        if self.packets.load().is_none() {
            return Err("this command requires a limit on packets, and the config in effect has none".to_owned());
        }
        let mut running = lock(&self.running);
        if let Some(of) = running.as_ref().filter(|of| !of.thread.is_finished()) {
            let status = lock(&of.shared.status);
            if status.state == RecordState::Ended {
                return Err(not_written(&status));
            }
            let until = status.ends;
            let until = SystemTime::UNIX_EPOCH + Duration::from_secs_f64(until.max(0.0));
            return Err(format!(
                "a recording is running until {}: end it with agent record --stop first",
                humantime::format_rfc3339_seconds(until)
            ));
        }
        *running = None;
        drop(running);
        let path = RecordFile::path(&self.directory);
        if path.exists() {
            RecordFile::set_aside(&self.directory, None)
                .map_err(|error| format!("keeping the previous recording as recording.previous failed: {error}"))?;
        }
        lock(&self.notes).clear();
        self.begin(RecordFile::new(seconds_since_1970(), length, interfaces))?;
        Ok(self.status())
    }

    fn begin(&self, file: RecordFile) -> Result<(), String> {
        // The first write reports a directory that cannot be written.
        let result = self.directory.prepare().and_then(|()| file.write(&self.directory));
        result.map_err(|error| format!("nothing is recorded: {error}"))?;
        let mut recording = Recording::new(file, Arc::clone(&self.packets), self.directory.clone());
        recording.prepare();
        let shared = Arc::new(Shared {
            order: Mutex::new(Order::Continue),
            ordered: Condvar::new(),
            status: Mutex::new(recording.status(RecordState::Recording, None)),
        });
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("weir-record".to_owned())
            .spawn(move || recording.run(&of_thread))
            .map_err(|error| format!("nothing is recorded: starting a thread failed: {error}"))?;
        *lock(&self.running) = Some(Running { shared, thread });
        Ok(())
    }

    /// Ends the recording, and completes its file.
    ///
    /// # Errors
    ///
    /// When none is running, or the file cannot be written.
    pub fn stop(&self) -> Result<RecordStatus, String> {
        self.end(Order::End).ok_or("no recording is running: agent record --for TIME starts one")?;
        let status = self.status();
        if status.error.is_some() { Err(not_written(&status)) } else { Ok(status) }
    }

    /// Writes the file before the agent stops; the next agent continues.
    pub fn close(&self) {
        self.end(Order::Pause);
    }

    fn end(&self, order: Order) -> Option<()> {
        let running = |of: &&Running| !of.thread.is_finished();
        {
            let of = lock(&self.running);
            let shared = &of.as_ref().filter(running)?.shared;
            *lock(&shared.order) = order;
            shared.ordered.notify_all();
        }
        // Without the lock: a disk may take seconds, and the notes must stay readable.
        let is_executed = || {
            let of = lock(&self.running);
            of.as_ref().filter(running).is_none_or(|of| *lock(&of.shared.order) == Order::Continue)
        };
        while !is_executed() {
            thread::sleep(Duration::from_millis(5));
        }
        Some(())
    }

    /// The state of the last recording.
    #[must_use]
    pub fn status(&self) -> RecordStatus {
        if let Some(of) = lock(&self.running).as_ref() {
            return lock(&of.shared.status).clone();
        }
        let path = RecordFile::path(&self.directory);
        let none = RecordStatus { file: path.display().to_string(), ..RecordStatus::default() };
        match RecordFile::read(&path) {
            Ok(file) => status_of(&file, &path.display().to_string(), RecordState::Ended),
            Err(error) if error.is_missing => none,
            Err(error) => RecordStatus { error: Some(error.to_string()), ..none },
        }
    }

    /// Notes for the operator.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let mut notes = lock(&self.notes).clone();
        if let Some(of) = lock(&self.running).as_ref() {
            let status = lock(&of.shared.status);
            notes.extend(status.error.as_ref().map(|error| format!("the recording is not written: {error}")));
        }
        notes
    }
}

/// The error for a recording that has ended, and is in memory only.
fn not_written(status: &RecordStatus) -> String {
    let error = status.error.as_deref().unwrap_or("it is being written");
    format!(
        "the recording has ended and is not written yet: {error}; it is tried again every {} s, and at once by agent record \
         --stop",
        RETRY_EVERY.as_secs()
    )
}

fn status_of(file: &RecordFile, path: &str, state: RecordState) -> RecordStatus {
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
struct Recording {
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
    fn new(mut file: RecordFile, packets: Packets, directory: StateDirectory) -> Self {
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

    fn status(&self, state: RecordState, error: Option<String>) -> RecordStatus {
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
    fn prepare(&mut self) {
        // The counters that an earlier recording left are dropped.
        if let Some(packets) = self.packets.load_full()
            && let Ok(maps) = packets.record(0)
        {
            let _ = [0, 1].map(|part| maps.drain(part));
        }
        self.turn();
    }

    fn run(mut self, shared: &Shared) {
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
            order = wait(shared, monotonic_nanoseconds() + RETRY_EVERY.as_nanos() as u64);
        }
    }

    /// Takes the parts that are over.
    fn turn(&mut self) {
        let Some(packets) = self.packets.load_full() else { return self.take_rest() };
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
        let counters = kinds.iter().map(|kind| maps.drain(part.wrapping_sub(*kind))).collect::<Result<Vec<_>, _>>();
        let counters = match counters {
            Ok(counters) => counters.concat(),
            Err(error) => return self.fail(&error),
        };
        let count = counters.len();
        self.add(counters);
        let lost = maps.lost().unwrap_or_default();
        let new = self.maps.as_mut().map_or(0, |(_, noted)| lost.saturating_sub(std::mem::replace(noted, lost)));
        self.file.lost = self.file.lost.saturating_add(new);
        let elapsed = now.saturating_sub(self.emptied_at);
        if self.sampling.one_in() > 1 {
            self.file.sampled_seconds += elapsed as f64 / 1e9;
        }
        self.sampling.follow(count, passed, new > 0, cpu_time().saturating_sub(cpu), elapsed);
        self.file.least_sample = self.file.least_sample.max(self.sampling.one_in());
        (self.emptied, self.emptied_at, self.failure) = (part, now, None);
    }

    /// Changes to these maps, if another policy is in effect.
    fn follow(&mut self, maps: &Arc<RecordMaps>) {
        if self.maps.as_ref().is_none_or(|(current, _)| !Arc::ptr_eq(current, maps)) {
            self.take_rest();
            self.maps = Some((Arc::clone(maps), 0));
        }
    }

    /// Takes all counters of the current maps.
    fn take_rest(&mut self) {
        let Some((maps, noted)) = self.maps.take() else { return };
        let counters = [1, 0].map(|kind| maps.drain(kind).unwrap_or_default()).concat();
        self.add(counters);
        self.file.lost = self.file.lost.saturating_add(maps.lost().unwrap_or(noted).saturating_sub(noted));
    }

    fn finish(&mut self) {
        match self.packets.load_full().map(|packets| packets.record(0)) {
            Some(Ok(maps)) => self.follow(&maps),
            Some(Err(error)) => tracing::warn!("ending the recording in the kernel failed: {error}"),
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
            let port = Some(key.local_port).filter(|port| *port != 0 && protocol != Transport::Icmp);
            let address = Address { hi: key.hi, lo: key.lo };
            self.collector.add_counted(u64::from(key.part) * PART, protocol, port, address, &counted);
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
        let file = RecordFile { collected: self.collector.save(), ..self.file.clone() };
        let error = file.write(&self.directory).err().map(|error| error.to_string());
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
        let waited = shared.ordered.wait_timeout(order, Duration::from_nanos(left));
        order = waited.unwrap_or_else(PoisonError::into_inner).0;
    }
}

/// The CPU time of this thread in nanoseconds.
fn cpu_time() -> u64 {
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID)
        .map_or(0, |time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}
