//! A running capture, on its thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use api::capture::{CaptureEnd, CapturePart};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use common::capture::{CaptureSettings, Captured};
use datapath::{CaptureRings, CapturedPacket, LoadError};
use host::backoff::Backoff;
use host::monotonic_nanoseconds;
use nix::time::{ClockId, clock_gettime};
use tokio::sync::mpsc;

use super::super::packets::Packets;
use crate::pcapng::{self, Sample};

/// The interval at which the rings are read. A ring of 256 KiB has room for 1,638 packets.
const PERIOD: Duration = Duration::from_millis(10);
/// The pause after rings could not be made, during which changes of the policy do not wait for the next try.
const RETRY: Backoff = Backoff::steady(Duration::from_secs(1));
/// The bytes of a part, before base64.
const PART: usize = 46 * 1024;

/// The most parts by which a client may lag behind: at most 64 KiB each.
pub(super) const MOST_BEHIND: usize = 64;

/// Shared by the thread of a capture and its client.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) is_ended: AtomicBool,
    /// The last part, which has a place even if the client lags behind.
    pub(super) end: Mutex<Option<Arc<CapturePart>>>,
}

/// A running capture, on its thread.
pub(super) struct Running {
    packets: Packets,
    settings: CaptureSettings,
    parts: mpsc::Sender<Arc<CapturePart>>,
    shared: Arc<Shared>,
    /// Those of the policy in effect.
    rings: Vec<Arc<CaptureRings>>,
    /// Read, but younger than some that other CPUs may still write.
    waiting: Vec<CapturedPacket>,
    /// What is added to the monotonic clock for that since 1970.
    since_1970: i128,
    /// Index and kind of the interfaces in the capture.
    interfaces: Vec<(u32, bool)>,
    /// Those that the client has received.
    sent_interfaces: usize,
    blocks: Vec<u8>,
    /// The packets in `blocks`.
    in_blocks: u64,
    sent: u64,
    lost: u64,
    merged: u64,
    notes: Vec<String>,
    /// Why the rings cannot be read; logged once.
    failure: Option<String>,
    /// When the rings of a new policy are tried next, after a failure.
    retry_at: Option<Instant>,
}

impl Running {
    pub(super) fn new(
        packets: Packets,
        settings: CaptureSettings,
        parts: mpsc::Sender<Arc<CapturePart>>,
        shared: Arc<Shared>,
    ) -> Self {
        let since_1970 = clock_gettime(ClockId::CLOCK_REALTIME).map_or(0, |now| {
            i128::from(now.tv_sec()) * 1_000_000_000 + i128::from(now.tv_nsec())
        }) - i128::from(monotonic_nanoseconds());
        Self {
            packets,
            settings,
            parts,
            shared,
            rings: Vec::new(),
            waiting: Vec::new(),
            since_1970,
            interfaces: Vec::new(),
            sent_interfaces: 0,
            blocks: Vec::new(),
            in_blocks: 0,
            sent: 0,
            lost: 0,
            merged: 0,
            notes: Vec::new(),
            failure: None,
            retry_at: None,
        }
    }

    /// Sends the section's header, before the first packet.
    pub(super) fn begin(&mut self, sample: Sample, notes: Vec<String>) {
        pcapng::section(&mut self.blocks, sample);
        self.notes = notes;
        self.flush();
    }

    /// Changes to these rings, if another policy is in effect.
    pub(super) fn follow(&mut self, rings: Vec<Arc<CaptureRings>>) {
        let is_same = |(one, other): (&Arc<_>, &Arc<_>)| Arc::ptr_eq(one, other);
        if self.rings.len() != rings.len() || !self.rings.iter().zip(&rings).all(is_same) {
            self.read();
            let is_new =
                |old: &&Arc<CaptureRings>| !rings.iter().any(|ring| Arc::ptr_eq(ring, old));
            self.rings.iter().filter(is_new).for_each(|old| old.close());
            self.rings = rings;
        }
    }

    /// Changes to the rings of the policy in effect.
    fn follow_policy(&mut self) {
        self.retry_at = None;
        match self
            .packets
            .load_full()
            .map(|packets| packets.try_capture(self.settings))
        {
            Some(Some(Ok(rings))) => self.follow(rings),
            Some(Some(Err(error))) => {
                self.retry_at = Some(Instant::now() + RETRY.pause(1));
                self.fail(&error);
            }
            // The policy is being changed: its rings stay.
            Some(None) => {}
            None => self.follow(Vec::new()),
        }
    }

    pub(super) fn run(mut self) {
        let end = loop {
            thread::sleep(PERIOD);
            if self.retry_at.is_none_or(|at| at <= Instant::now()) {
                self.follow_policy();
            }
            self.turn();
            if self.shared.is_ended.load(Ordering::Relaxed) || self.parts.is_closed() {
                break CaptureEnd::Client;
            }
            if monotonic_nanoseconds() >= self.settings.until {
                break CaptureEnd::Time;
            }
        };
        if let Some(packets) = self.packets.load_full() {
            match packets.capture(CaptureSettings::default()) {
                Ok(rings) => self.follow(rings),
                Err(error) => tracing::warn!(
                    "ending the capture in the kernel failed: {error}; it ends at its time"
                ),
            }
        }
        self.read();
        self.rings.iter().for_each(|rings| rings.close());
        self.write(u64::MAX);
        self.flush();
        if self.merged > 0 {
            self.notes.push(format!(
                "{} of the packets stand for several that the kernel had merged: a replay counts each as one packet",
                self.merged
            ));
        }
        let part = self.part(Some(end));
        *self
            .shared
            .end
            .lock()
            .unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(part));
    }

    /// Takes what is in the rings, and sends it.
    fn turn(&mut self) {
        let before = monotonic_nanoseconds();
        self.read();
        // Packets of this instant may be missing in rings that were read first.
        self.write(before);
        // A client that lags behind is sent large parts, so that it may lag behind by more packets.
        if self.parts.capacity() > MOST_BEHIND / 2 {
            self.flush();
        }
    }

    fn read(&mut self) {
        for rings in self.rings.clone() {
            match rings.drain() {
                Ok((packets, lost)) => {
                    self.waiting.extend(packets);
                    self.lost += lost;
                }
                Err(error) => self.fail(&error),
            }
        }
    }

    /// Adds the packets before an instant as blocks.
    fn write(&mut self, before: u64) {
        self.waiting.sort_by_key(|packet| packet.record.at);
        let count = self
            .waiting
            .partition_point(|packet| packet.record.at < before);
        let ready: Vec<_> = self.waiting.drain(..count).collect();
        for packet in &ready {
            let interface = self.interface(&packet.record);
            let time = i128::from(packet.record.at) + self.since_1970;
            let time = u64::try_from(time).unwrap_or_default();
            pcapng::packet(
                &mut self.blocks,
                interface,
                time,
                &packet.record,
                packet.bytes(),
            );
            self.in_blocks += 1;
            self.merged += u64::from(packet.record.flags & Captured::MERGED != 0);
            if self.blocks.len() >= PART {
                self.flush();
            }
        }
    }

    /// The number of a packet's interface, which is added if it is new.
    fn interface(&mut self, record: &Captured) -> u32 {
        let wanted = (record.interface, record.flags & Captured::RAW_IP != 0);
        let known = self
            .interfaces
            .iter()
            .position(|interface| *interface == wanted);
        let nth = known.unwrap_or_else(|| {
            let name = nix::net::if_::if_indextoname(record.interface).ok();
            let name = name.and_then(|name| name.into_string().ok());
            let name = name.unwrap_or_else(|| format!("index {}", record.interface));
            pcapng::interface(&mut self.blocks, &name, wanted.1);
            self.interfaces.push(wanted);
            self.interfaces.len() - 1
        });
        nth as u32
    }

    /// Sends the blocks. If the client lags behind too far, their packets are lost.
    fn flush(&mut self) {
        if self.blocks.is_empty() {
            return;
        }
        let part = Arc::new(self.part(None));
        if self.parts.try_send(part).is_ok() {
            self.sent += self.in_blocks;
            self.sent_interfaces = self.interfaces.len();
            self.notes.clear();
        } else {
            self.lost += self.in_blocks;
            self.interfaces.truncate(self.sent_interfaces);
        }
        self.blocks.clear();
        self.in_blocks = 0;
    }

    fn part(&self, end: Option<CaptureEnd>) -> CapturePart {
        CapturePart {
            blocks: STANDARD.encode(&self.blocks),
            packets: self.sent + self.in_blocks,
            lost: self.lost,
            notes: self.notes.clone(),
            end,
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
}
