//! Reads all captures, ordered by their packets' times.

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::collections::binary_heap::PeekMut;
use std::path::PathBuf;

use common::packet::Direction;

use super::capture::{Capture, CaptureError, CapturedPacket, InterfaceNames, Origin, Skipped};
use super::clock::Clock;
use super::comparison::Comparison;
use super::copies::Copies;
use super::direction::Local;
use super::evaluation::Evaluation;
use super::frame::CapturedFrame;

/// The number of packets between two progress reports.
const PROGRESS_STEP: u64 = 1 << 16;
/// Frames longer than on any link: merged by offloads, which a capture does not record.
const MERGED: u32 = 9_216;

/// The progress of a replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    pub packets: u64,
    /// Bytes of all captures read, before decompression.
    pub bytes: u64,
    /// Their length, if all have one.
    pub length: Option<u64>,
}

#[derive(Debug)]
pub struct ReadCapture {
    /// The path as given.
    pub path: PathBuf,
    /// `pcap` or `pcapng`; `None` if it could not be opened.
    pub format: Option<&'static str>,
    /// `none`, `gzip` or `zstd`.
    pub compression: Option<&'static str>,
    /// Packets read.
    pub packets: u64,
    pub skipped: Skipped,
    pub origin: Origin,
    /// Why it could not be read, or not to its end.
    pub error: Option<CaptureError>,
}

/// The result of reading all captures.
#[derive(Debug, Default)]
pub struct Outcome {
    /// In the order given.
    pub captures: Vec<ReadCapture>,
    /// The clock at the end.
    pub clock: Clock,
    /// Packets with an unknown direction: evaluated as ingress.
    pub undirected: u64,
    /// Packets with an unknown interface, although a limit is for certain interfaces: evaluated without such limits.
    pub unnamed: u64,
    /// Frames longer than on any link.
    pub merged: u64,
    /// Packets that captures of all interfaces have several times; each is evaluated once.
    pub copies: Copies,
    pub interfaces: InterfaceNames,
    /// The differences of the evaluations, if there are two.
    pub comparison: Option<Comparison>,
}

/// Reads all captures, ordered by their packets' times, and evaluates each packet. `interfaces` has the name for
/// captures that do not name theirs.
pub fn replay(
    paths: &[PathBuf],
    interfaces: InterfaceNames,
    local: &Local,
    evaluations: &mut [Evaluation<'_>],
    progress: impl FnMut(Progress),
) -> Outcome {
    let mut comparison = Comparison::of(evaluations);
    let mut outcome = read(paths, interfaces, progress, |outcome, packet| {
        outcome.evaluate(packet, local, evaluations, &mut comparison);
    });
    for evaluation in evaluations {
        evaluation.finish();
    }
    outcome.comparison = comparison;
    outcome
}

/// Reads all captures, ordered by their packets' times, and calls `each` for every packet.
pub fn read(
    paths: &[PathBuf],
    interfaces: InterfaceNames,
    mut progress: impl FnMut(Progress),
    mut each: impl FnMut(&mut Outcome, &CapturedPacket<'_>),
) -> Outcome {
    let mut outcome = Outcome {
        interfaces,
        ..Outcome::default()
    };
    let mut open = Vec::new();
    let mut next = BinaryHeap::new();
    for path in paths {
        let mut read = ReadCapture {
            path: path.clone(),
            format: None,
            compression: None,
            packets: 0,
            skipped: Skipped::default(),
            origin: Origin::default(),
            error: None,
        };
        match Capture::open(path, &mut outcome.interfaces) {
            Ok(mut capture) => {
                (read.format, read.compression) =
                    (Some(capture.format()), Some(capture.compression().name()));
                match capture.advance(&mut outcome.interfaces) {
                    Ok(true) => next.push(Reverse((capture.time(), open.len()))),
                    Ok(false) => {}
                    Err(error) => read.error = Some(error),
                }
                open.push((outcome.captures.len(), capture));
            }
            Err(error) => read.error = Some(error),
        }
        outcome.captures.push(read);
    }
    let mut packets = 0u64;
    while let Some(mut earliest) = next.peek_mut() {
        if packets.is_multiple_of(PROGRESS_STEP) {
            progress(Progress::of(packets, &open));
        }
        let Reverse((time, nth)) = &mut *earliest;
        let (place, capture) = &mut open[*nth];
        if let Some(packet) = capture.packet()
            && !(packet.is_of_all_interfaces && outcome.copies.is_copy(&packet))
        {
            each(&mut outcome, &packet);
        }
        packets += 1;
        match capture.advance(&mut outcome.interfaces) {
            Ok(true) => *time = capture.time(),
            Ok(false) => {
                PeekMut::pop(earliest);
            }
            Err(error) => {
                outcome.captures[*place].error = Some(error);
                PeekMut::pop(earliest);
            }
        }
    }
    for (place, capture) in &open {
        let read = &mut outcome.captures[*place];
        (read.packets, read.skipped) = (capture.packets(), capture.skipped().clone());
        read.origin = capture.origin();
    }
    outcome
}

impl Progress {
    fn of(packets: u64, open: &[(usize, Capture)]) -> Self {
        let mut sum = Self {
            packets,
            bytes: 0,
            length: Some(0),
        };
        for (read, length) in open.iter().map(|(_, capture)| capture.progress()) {
            sum.bytes += read;
            sum.length = sum.length.zip(length).map(|(sum, length)| sum + length);
        }
        sum
    }
}

impl Outcome {
    /// Advances the clock to a packet; returns its instant and its direction.
    #[inline]
    pub fn place(&mut self, packet: &CapturedPacket<'_>, local: &Local) -> (u64, Direction) {
        let now = self.clock.advance(packet.nanoseconds);
        self.merged += u64::from(packet.length > MERGED);
        let is_cut = Cell::new(false);
        let direction = local
            .direction(packet, &CapturedFrame::new(packet, &is_cut))
            .unwrap_or_else(|| {
                self.undirected += 1;
                Direction::Ingress
            });
        (now, direction)
    }

    /// Evaluates a packet under each config.
    #[inline]
    fn evaluate(
        &mut self,
        packet: &CapturedPacket<'_>,
        local: &Local,
        evaluations: &mut [Evaluation<'_>],
        comparison: &mut Option<Comparison>,
    ) {
        let (now, direction) = self.place(packet, local);
        let captured = self.clock.captured();
        evaluations
            .iter()
            .for_each(|evaluation| evaluation.name_interfaces(&self.interfaces));
        let needs_name = evaluations.iter().any(Evaluation::needs_interface);
        self.unnamed += u64::from(needs_name && self.interfaces.named(packet.interface).is_none());
        match (evaluations, comparison) {
            ([one, other], Some(comparison)) => {
                let verdicts = [one, other]
                    .map(|evaluation| evaluation.evaluate(packet, direction, now, captured));
                comparison.add(&verdicts, captured);
            }
            (evaluations, _) => {
                for evaluation in evaluations {
                    evaluation.evaluate(packet, direction, now, captured);
                }
            }
        }
    }
}
