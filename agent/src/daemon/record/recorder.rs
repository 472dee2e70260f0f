//! Records sources while the agent runs.

use std::sync::{Arc, Condvar, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use api::event::seconds_since_1970;
use api::record::{LENGTHS, RecordGap, RecordState, RecordStatus, wrong_length};
use config::human;
use host::PROGRAM;
use host::StateDirectory;

use super::super::packets::Packets;
use super::file::{MOST_GAPS, RecordFile};
use super::recording::{Order, RETRY_EVERY, Recording, Shared, lock, status_of};

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

impl Recorder {
    /// For the programs of `packets`; continues a recording that an earlier agent has begun.
    #[must_use]
    pub fn new(packets: Packets, directory: StateDirectory) -> Self {
        let recorder = Self {
            packets,
            directory,
            running: Mutex::default(),
            notes: Mutex::default(),
        };
        recorder.resume();
        recorder
    }

    fn resume(&self) {
        let file = match RecordFile::of_earlier_agent(&self.directory) {
            Ok(Some(file)) => file,
            Ok(None) => return,
            Err(damaged) => {
                let note = format!("the recording does not go on: {damaged}");
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
            let gap = RecordGap {
                from: file.written,
                to: now.min(file.ends).max(file.written),
            };
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
            return Err(wrong_length(length));
        }
        if self.packets.load().is_none() {
            return Err(
                "this command requires a limit on packets, and the config in effect has none"
                    .to_owned(),
            );
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
                "a recording is running until {}: end it with {PROGRAM} record --stop first",
                humantime::format_rfc3339_seconds(until)
            ));
        }
        *running = None;
        drop(running);
        let path = RecordFile::path(&self.directory);
        if path.exists() {
            RecordFile::keep(&self.directory).map_err(|error| {
                format!("keeping the previous recording as recording.previous failed: {error}")
            })?;
        }
        lock(&self.notes).clear();
        self.begin(RecordFile::new(seconds_since_1970(), length, interfaces))?;
        Ok(self.status())
    }

    fn begin(&self, file: RecordFile) -> Result<(), String> {
        // The first write reports a directory that cannot be written.
        let result = self
            .directory
            .prepare()
            .and_then(|()| file.write(&self.directory));
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
        self.end(Order::End).ok_or_else(|| {
            format!("no recording is running: {PROGRAM} record --for TIME starts one")
        })?;
        let status = self.status();
        if status.error.is_some() {
            Err(not_written(&status))
        } else {
            Ok(status)
        }
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
            of.as_ref()
                .filter(running)
                .is_none_or(|of| *lock(&of.shared.order) == Order::Continue)
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
        let none = RecordStatus {
            file: path.display().to_string(),
            ..RecordStatus::default()
        };
        match RecordFile::read(&path) {
            Ok(file) => status_of(&file, &path.display().to_string(), RecordState::Ended),
            Err(error) if error.is_missing => none,
            Err(error) => RecordStatus {
                error: Some(error.to_string()),
                ..none
            },
        }
    }

    /// Notes for the operator.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let mut notes = lock(&self.notes).clone();
        if let Some(of) = lock(&self.running).as_ref() {
            let status = lock(&of.shared.status);
            notes.extend(
                status
                    .error
                    .as_ref()
                    .map(|error| format!("the recording is not written: {error}")),
            );
        }
        notes
    }
}

/// The error for a recording that has ended, and is in memory only.
fn not_written(status: &RecordStatus) -> String {
    let error = status.error.as_deref().unwrap_or("it is being written");
    format!(
        "the recording has ended and is not written yet: {error}; it is tried again every {}, and at once by {PROGRAM} record \
         --stop",
        human::time(RETRY_EVERY)
    )
}
