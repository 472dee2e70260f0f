//! A recording's file.
//!
//! Two words (format, checksum), then a JSON document, compressed with zstd. The checksum is SipHash-1-3 of everything
//! after it: it detects damage, not forgery. What a forged file may contain is checked when it is read.

use std::hash::Hasher as _;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use api::record::RecordGap;
use config::human::{self, number};
use host::read::{self, RegularFile};
use host::{Damaged, PROGRAM, StateDirectory, StateError};
use serde::{Deserialize, Serialize};
use siphasher::sip::SipHasher13;
use thiserror::Error;

use crate::suggest::{Collector, SavedCollector, Traffic};

/// In the state directory.
const NAME: &str = "recording";
/// The recording before.
const PREVIOUS: &str = "recording.previous";
/// Changes with the format.
const FORMAT: [u8; 8] = *b"WEIRREC1";
/// The longest file and document, in bytes.
const LONGEST: [u64; 2] = [32 << 20, 128 << 20];
/// The most services of a recording, some 50 KiB each.
pub(super) const MOST_SERVICES: usize = 64;
/// The most pairs of a source and a service of a recording, some 700 bytes each.
pub(super) const MOST_SOURCES: usize = 7_168;
/// The most interfaces, and the longest name of one.
const MOST_INTERFACES: usize = 4_096;
const LONGEST_NAME: usize = 127;
/// The most gaps: further ones extend the last.
pub(super) const MOST_GAPS: usize = 100;

/// A recording cannot be read.
#[derive(Debug, Error)]
#[error("{}: {reason}", path.display())]
pub struct RecordFileError {
    path: PathBuf,
    pub reason: String,
    /// Whether there is none.
    pub is_missing: bool,
}

/// A recording.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RecordFile {
    /// The start, in seconds since 1970.
    pub started: f64,
    /// The end, in seconds since 1970.
    pub ends: f64,
    /// The instant of the last write.
    pub written: f64,
    /// Whether it has ended.
    pub is_ended: bool,
    pub gaps: Vec<RecordGap>,
    /// Seconds in which only a sample of the sources was recorded.
    pub sampled_seconds: f64,
    /// The smallest sample: one in this many.
    pub least_sample: u32,
    /// Packets of sources for which there was no room.
    pub lost: u64,
    /// The interfaces of the config in effect at the start.
    pub interfaces: Vec<String>,
    pub collected: SavedCollector,
}

impl RecordFile {
    /// A recording of this length, without packets, that starts at an instant in seconds since 1970.
    #[must_use]
    pub fn new(started: f64, length: Duration, interfaces: Vec<String>) -> Self {
        Self {
            started,
            ends: started + length.as_secs_f64(),
            written: started,
            is_ended: false,
            gaps: Vec::new(),
            sampled_seconds: 0.0,
            least_sample: 1,
            lost: 0,
            interfaces,
            collected: Collector::with_capacity(1).save(),
        }
    }

    /// The path in a state directory.
    #[must_use]
    pub fn path(directory: &StateDirectory) -> PathBuf {
        directory.file(NAME)
    }

    /// Reads a recording.
    ///
    /// # Errors
    ///
    /// When it is missing, damaged or of another version.
    pub fn read(path: &Path) -> Result<Self, RecordFileError> {
        let fail = |reason: String| RecordFileError {
            path: path.to_owned(),
            reason,
            is_missing: false,
        };
        let bytes = read::read(path, LONGEST[0]).map_err(|error| RecordFileError {
            is_missing: error.is_missing(),
            ..fail(error.reason())
        })?;
        parse(&bytes).map_err(|reason| fail(format!("the recording cannot be used: {reason}")))
    }

    /// Reads the recording of an earlier agent; `None` if there is none. A damaged one is renamed.
    pub(super) fn of_earlier_agent(directory: &StateDirectory) -> Result<Option<Self>, Damaged> {
        directory.read(NAME, LONGEST[0], parse)
    }

    /// Replaces the file atomically.
    ///
    /// # Errors
    ///
    /// When it cannot be written; the previous file stays.
    pub fn write(&self, directory: &StateDirectory) -> Result<(), StateError> {
        let fail = |source: io::Error| StateError::Write {
            path: directory.file(NAME),
            source,
        };
        let mut encoder = zstd::Encoder::new(Vec::new(), 1).map_err(fail)?;
        serde_json::to_writer(&mut encoder, self).map_err(|error| fail(error.into()))?;
        let body = encoder.finish().map_err(fail)?;
        directory.replace(NAME, &[&FORMAT, &checksum(&body).to_le_bytes(), &body])
    }

    /// Keeps the file under another name, where the next one does not replace it.
    pub(super) fn keep(directory: &StateDirectory) -> io::Result<()> {
        std::fs::rename(directory.file(NAME), directory.file(PREVIOUS))
    }

    /// The recorded traffic.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        let mut collector = Collector::with_capacity(self.collected.sources.len().max(1));
        collector.resume(self.collected.clone());
        collector.finish()
    }

    /// Notes for who reads limits suggested from it.
    #[must_use]
    pub fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let time =
            |seconds: f64| human::time(Duration::try_from_secs_f64(seconds).unwrap_or_default());
        if !self.is_ended {
            notes.push("the recording has not ended: more data may change the limits".to_owned());
        }
        if let (count @ 1.., missing) = (
            self.gaps.len(),
            self.gaps.iter().map(|gap| gap.to - gap.from).sum::<f64>(),
        ) {
            notes.push(format!(
                "the recording has {count} gaps of {} in all, in which the agent did not run",
                time(missing.max(0.0))
            ));
        }
        if self.sampled_seconds > 0.0 {
            notes.push(format!(
                "for {}, so many sources were active that only a sample of them was recorded, at least one in {}: single heavy \
                 sources of that time may be missing",
                time(self.sampled_seconds),
                number(self.least_sample.into())
            ));
        }
        if self.lost > 0 {
            notes.push(format!(
                "{} packets of further sources were not recorded, since too many sources were active",
                number(self.lost)
            ));
        }
        notes
    }
}

/// A note about suggestions from a recording: they are not replayed.
#[must_use]
pub fn note() -> String {
    format!(
        "Not replayed: a recording has the rates of sources and not their packets. What these limits would have refused, and \
         when, is known from a capture ({PROGRAM} replay), or from a day in observe mode ({PROGRAM} limits)."
    )
}

/// Whether the file begins as a recording does.
#[must_use]
pub fn is_recording(path: &Path) -> bool {
    // The last byte is the version.
    let start = &FORMAT[..FORMAT.len() - 1];
    RegularFile::open(path).is_ok_and(|file| file.starts_with(start))
}

fn checksum(body: &[u8]) -> u64 {
    let mut hasher = SipHasher13::new();
    hasher.write(body);
    hasher.finish()
}

fn parse(bytes: &[u8]) -> Result<RecordFile, String> {
    let (format, rest) = bytes
        .split_at_checked(FORMAT.len())
        .ok_or("it is incomplete")?;
    if format[..FORMAT.len() - 1] != FORMAT[..FORMAT.len() - 1] {
        return Err("it is no recording".to_owned());
    }
    if format != FORMAT {
        return Err("it is of another version".to_owned());
    }
    let (sum, body) = rest
        .split_at_checked(size_of::<u64>())
        .ok_or("it is incomplete")?;
    if sum != checksum(body).to_le_bytes() {
        return Err("its checksum is wrong".to_owned());
    }
    let decoder = zstd::Decoder::new(body).map_err(|error| error.to_string())?;
    let file: RecordFile = serde_json::from_reader(io::BufReader::new(decoder.take(LONGEST[1])))
        .map_err(|error| error.to_string())?;
    let collected = &file.collected;
    // They become a part of a config.
    let is_name = |name: &String| {
        let is_usual = |c: char| !c.is_control() && !matches!(c, '"' | '\\' | '/' | ' ');
        (1..=LONGEST_NAME).contains(&name.len()) && name.chars().all(is_usual)
    };
    let is_bounded = collected.services.len() <= MOST_SERVICES
        && file.interfaces.len() <= MOST_INTERFACES
        && file.interfaces.iter().all(is_name)
        && collected.sources.len() <= MOST_SOURCES
        && file.gaps.len() <= MOST_GAPS
        && [file.started, file.ends, file.written, file.sampled_seconds]
            .iter()
            .all(|at| (0.0..1e11).contains(at));
    if !is_bounded || !collected.is_consistent() {
        return Err("its values are impossible".to_owned());
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suggest::{Transport, Unit};
    use common::packet::Address;
    use common::record::{PART, Recorded};

    fn add(collector: &mut Collector, part: u64, source: u8, packets: u64) {
        let address = Address::from_ipv4([192, 0, 2, source]);
        let counted = Recorded {
            packets,
            bytes: packets * 100,
            squares: packets * 10_000,
            connections: 1,
            requests: 0,
        };
        collector.add_counted(part * PART, Transport::Tcp, Some(443), address, &counted);
    }

    fn file(collector: &Collector) -> RecordFile {
        RecordFile {
            gaps: vec![RecordGap { from: 1.0, to: 1.5 }],
            lost: 7,
            collected: collector.save(),
            ..RecordFile::new(1.0, Duration::from_secs(1), vec!["eth0".to_owned()])
        }
    }

    #[test]
    fn a_recording_continues_as_if_it_had_been_one() {
        let (mut whole, mut first) = (Collector::with_capacity(100), Collector::with_capacity(100));
        for source in 0..20 {
            for part in 0..40 {
                add(
                    &mut whole,
                    1_000 + part,
                    source,
                    u64::from(source) + 1 + part % 3,
                );
                add(
                    &mut first,
                    1_000 + part,
                    source,
                    u64::from(source) + 1 + part % 3,
                );
            }
        }
        let folder = tempfile::tempdir().unwrap();
        let directory = StateDirectory::at(folder.path());
        file(&first).write(&directory).unwrap();
        let read = RecordFile::read(&RecordFile::path(&directory)).unwrap();
        assert_eq!(
            (read.lost, read.gaps.len(), read.interfaces.len()),
            (7, 1, 1)
        );
        let mut second = Collector::with_capacity(100);
        second.resume(read.collected);
        // After a pause longer than the longest window, no window spans it.
        for part in 0..40 {
            add(&mut whole, 100_000 + part, 3, 500);
            add(&mut second, 100_000 + part, 3, 500);
        }
        let (whole, continued) = (whole.finish(), file(&second).traffic());
        assert_eq!(
            (whole.packets, whole.services.len()),
            (continued.packets, continued.services.len())
        );
        for (one, other) in whole.services.iter().zip(&continued.services) {
            let rows = |service: &crate::suggest::ServiceTraffic, unit: Unit| {
                service.busiest[unit as usize]
                    .iter()
                    .map(|counts| counts.rows().collect::<Vec<_>>())
                    .collect::<Vec<_>>()
            };
            for unit in Unit::ALL {
                assert_eq!(
                    rows(one, unit),
                    rows(other, unit),
                    "{} {unit:?}",
                    one.service
                );
            }
            assert_eq!(
                (one.packets, one.named.len()),
                (other.packets, other.named.len())
            );
        }
    }

    #[test]
    fn damage_of_any_byte_is_found() {
        let mut collector = Collector::with_capacity(100);
        add(&mut collector, 1, 1, 9);
        let folder = tempfile::tempdir().unwrap();
        let directory = StateDirectory::at(folder.path());
        file(&collector).write(&directory).unwrap();
        let path = RecordFile::path(&directory);
        assert!(is_recording(&path));
        let whole = std::fs::read(&path).unwrap();
        for nth in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[nth] ^= 1 << (nth % 8);
            assert!(parse(&bytes).is_err(), "byte {nth}");
            assert!(parse(&whole[..nth]).is_err(), "{nth} bytes");
        }
    }

    #[test]
    fn impossible_values_are_refused() {
        let forged = |change: &dyn Fn(&mut RecordFile)| {
            let mut collector = Collector::with_capacity(100);
            add(&mut collector, 1, 1, 9);
            let mut file = file(&collector);
            change(&mut file);
            let folder = tempfile::tempdir().unwrap();
            let directory = StateDirectory::at(folder.path());
            file.write(&directory).unwrap();
            RecordFile::read(&RecordFile::path(&directory)).is_err()
        };
        assert!(!forged(&|_| ()));
        assert!(forged(&|file| file.collected.sources[0].service = 9));
        assert!(forged(&|file| file.collected.sources[0].connections = 10));
        assert!(forged(&|file| file.collected.sources[0].packets = u64::MAX));
        assert!(forged(&|file| file.collected.seconds = 1e300));
        assert!(forged(&|file| file.started = -1.0));
        for name in [
            "",
            "eth0\"]\n[[notify]]\n#",
            "eth\u{1b}]0;x",
            &"x".repeat(128),
        ] {
            assert!(
                forged(&|file| file.interfaces = vec![name.to_owned()]),
                "{name:?}"
            );
        }
        assert!(!forged(
            &|file| file.interfaces = vec!["ens*".to_owned(), "!br-[0-9]".to_owned()]
        ));
        assert!(forged(
            &|file| file.gaps = vec![RecordGap { from: 0.0, to: 0.0 }; MOST_GAPS + 1]
        ));
    }
}
