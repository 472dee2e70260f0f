//! Starts captures.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use api::capture::{CaptureOf, CapturePart, LENGTHS, SAMPLES, wrong_length, wrong_sample};
use common::capture::CaptureSettings;
use datapath::new_capture;
use host::PROGRAM;
use host::monotonic_nanoseconds;
use tokio::sync::mpsc;

use super::super::packets::Packets;
use super::running::{MOST_BEHIND, Running, Shared};
use crate::pcapng::Sample;

/// Starts captures, one at a time.
pub struct Capturer {
    packets: Packets,
    last: Mutex<Option<Last>>,
}

/// The last capture.
struct Last {
    parts: mpsc::WeakSender<Arc<CapturePart>>,
    thread: JoinHandle<()>,
}

/// The parts of a capture, for its client. The capture ends when it is dropped.
pub struct CaptureParts {
    parts: mpsc::Receiver<Arc<CapturePart>>,
    shared: Arc<Shared>,
}

impl CaptureParts {
    /// Waits for the next part; `None` after the last.
    pub async fn next(&mut self) -> Option<Arc<CapturePart>> {
        match self.parts.recv().await {
            Some(part) => Some(part),
            None => self
                .shared
                .end
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take(),
        }
    }

    /// Ends the capture: the parts until now follow.
    pub fn end(&self) {
        self.shared.is_ended.store(true, Ordering::Relaxed);
    }
}

impl Capturer {
    /// For the programs of `packets`.
    #[must_use]
    pub fn new(packets: Packets) -> Self {
        Self {
            packets,
            last: Mutex::default(),
        }
    }

    /// Starts a capture: packets from this instant on. `notes` are for the operator.
    ///
    /// # Errors
    ///
    /// When one is running, an argument is invalid, or the kernel refuses it.
    pub fn start(
        &self,
        sample: Sample,
        length: Duration,
        notes: Vec<String>,
    ) -> Result<CaptureParts, String> {
        if !LENGTHS.contains(&length) {
            return Err(wrong_length(length));
        }
        if !SAMPLES.contains(&sample.one_in) {
            return Err(wrong_sample(sample.one_in));
        }
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = last.take_if(|last| last.thread.is_finished() || last.is_left()) {
            // It ends in a moment.
            let _ = last.thread.join();
        }
        if last.is_some() {
            return Err(format!(
                "a capture is running: end that {PROGRAM} record --capture first"
            ));
        }
        let packets = self.packets.load_full();
        let packets = packets
            .ok_or("this command requires a limit on packets, and the config in effect has none")?;
        let until = monotonic_nanoseconds() + length.as_nanos() as u64;
        let settings = new_capture(until, sample.one_in, sample.of == CaptureOf::Refused)
            .map_err(|error| error.to_string())?;
        let (sender, parts) = mpsc::channel(MOST_BEHIND);
        let shared = Arc::new(Shared::default());
        let weak = sender.downgrade();
        let mut running = Running::new(
            Arc::clone(&self.packets),
            settings,
            sender,
            Arc::clone(&shared),
        );
        running.begin(sample, notes);
        let rings = packets
            .capture(settings)
            .map_err(|error| error.to_string())?;
        running.follow(rings);
        let thread = thread::Builder::new()
            .name("weir-capture".to_owned())
            .spawn(move || running.run());
        let thread = thread.map_err(|error| {
            // If this fails, too, the kernel programs end at the capture's time.
            let rings = packets
                .capture(CaptureSettings::default())
                .unwrap_or_default();
            rings.iter().for_each(|rings| rings.close());
            format!("nothing is captured: starting a thread failed: {error}")
        })?;
        *last = Some(Last {
            parts: weak,
            thread,
        });
        Ok(CaptureParts { parts, shared })
    }
}

impl Last {
    /// Whether its client has disconnected.
    fn is_left(&self) -> bool {
        self.parts.upgrade().is_none_or(|parts| parts.is_closed())
    }
}
