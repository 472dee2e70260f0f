//! The ring in which the kernel programs of a trace build log their verdicts, through aya-log.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use aya::Ebpf;
use aya::maps::{Array, MapData};
use aya_log::EbpfLogger;
use common::throttle::{Outcome, TableEvent};
use common::trace::{Reason, TracedSources};
use log::{Log, Metadata, Record};
use tracing::level_filters::LevelFilter;

use crate::error::LoadError;

/// The most records of one read.
const MOST_LINES: usize = 8_192;
/// Room for 2,048 records between two reads.
pub(crate) const RING_BYTES: u32 = 1 << 20;

/// The least important verdicts that the programs log, by the level of the agent's log: refusals are warnings, other
/// verdicts are information.
pub(crate) fn level() -> u8 {
    let level = match LevelFilter::current() {
        LevelFilter::ERROR | LevelFilter::WARN => aya_log::Level::Warn,
        _ => aya_log::Level::Info,
    };
    level as u8
}

/// A verdict as the kernel logs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceRecord {
    /// The remote address.
    pub source: IpAddr,
    /// Whether the packet was refused.
    pub is_refused: bool,
    /// The row of counters that identifies the verdict's limit or reason.
    pub counter: u32,
    /// The outcome that was counted there; `None` if none was.
    pub outcome: Option<Outcome>,
    /// The event in the table of sources, if any.
    pub event: Option<TableEvent>,
    /// `common::packet::Protocol`, as a number.
    pub protocol: u32,
    /// The local port; 0 without one.
    pub port: u16,
    /// Packets on the wire.
    pub packets: u32,
    pub bytes: u32,
    /// The interface's index.
    pub interface: u32,
    /// The instant in nanoseconds of the monotonic clock.
    pub at: u64,
    cpu: u32,
    /// This CPU's verdicts of this kind on traced sources so far, this one included.
    number: u64,
}

impl TraceRecord {
    /// Parses a line of the kernel programs: alternating names and values.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let mut value = |name: &str| (words.next()? == name).then(|| words.next())?;
        let listed = |number: &str| number.parse::<usize>().ok()?.checked_sub(1);
        Some(Self {
            source: value("source")?.parse::<Ipv6Addr>().ok()?.to_canonical(),
            is_refused: value("refused")? != "0",
            counter: value("counter")?.parse().ok()?,
            outcome: listed(value("outcome")?).and_then(|nth| Reason::OUTCOMES.get(nth).copied()),
            event: listed(value("event")?).and_then(|nth| Reason::EVENTS.get(nth).copied()),
            protocol: value("protocol")?.parse().ok()?,
            port: value("port")?.parse().ok()?,
            packets: value("packets")?.parse().ok()?,
            bytes: value("bytes")?.parse().ok()?,
            interface: value("interface")?.parse().ok()?,
            at: value("at")?.parse().ok()?,
            cpu: value("cpu")?.parse().ok()?,
            number: value("number")?.parse().ok()?,
        })
    }
}

/// The lines that aya-log has read.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl Lines {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Log for Lines {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &Record<'_>) {
        let mut lines = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Bounds the memory in a flood; the numbers of records show how many are missing.
        if lines.len() < MOST_LINES {
            lines.push(record.args().to_string());
        }
    }

    fn flush(&self) {}
}

/// The ring of a policy whose programs log verdicts.
pub struct TraceRing(Mutex<Inner>);

struct Inner {
    /// Keeps the ring's descriptor open, without which the programs do not load.
    logger: EbpfLogger<Lines>,
    lines: Lines,
    filter: Array<MapData, TracedSources>,
    /// The content of the filter map.
    traced: TracedSources,
    /// The last number by CPU and whether packets were refused.
    numbers: HashMap<(u32, bool), u64>,
}

impl TraceRing {
    /// Takes the maps of a trace build; `None` if the object is an ordinary one.
    pub(crate) fn take(ebpf: &mut Ebpf) -> Result<Option<Self>, LoadError> {
        let lines = Lines::default();
        let logger = match EbpfLogger::init_with_logger(ebpf, lines.clone()) {
            Ok(logger) => logger,
            Err(aya_log::Error::MapNotFound) => return Ok(None),
            Err(aya_log::Error::MapError(error)) => return Err(error.into()),
            Err(_) => return Err(LoadError::ForeignObject),
        };
        let filter = Array::try_from(ebpf.take_map("TRACED").ok_or(LoadError::ForeignObject)?)?;
        let traced = TracedSources::default();
        Ok(Some(Self(Mutex::new(Inner {
            logger,
            lines,
            filter,
            traced,
            numbers: HashMap::new(),
        }))))
    }

    /// Lets the programs log verdicts on these sources, and on no others.
    ///
    /// # Errors
    ///
    /// When the map cannot be written.
    pub fn trace(&self, sources: TracedSources) -> Result<(), LoadError> {
        let mut inner = self.lock();
        if inner.traced != sources {
            inner.filter.set(0, sources, 0)?;
            inner.traced = sources;
        }
        Ok(())
    }

    /// Takes the verdicts since the last call, and the number of lost ones before them. The programs log at most 2,048
    /// in 134 ms on each CPU.
    #[must_use]
    pub fn drain(&self) -> (Vec<TraceRecord>, u64) {
        let mut inner = self.lock();
        inner.logger.flush();
        let records: Vec<TraceRecord> = inner
            .lines
            .take()
            .iter()
            .filter_map(|line| TraceRecord::parse(line))
            .collect();
        let lost = records
            .iter()
            .map(|record| gap(&mut inner.numbers, record))
            .sum();
        (records, lost)
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        // After a panic elsewhere, the next call writes the filter again.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The number of records of a CPU that are missing before this one.
fn gap(numbers: &mut HashMap<(u32, bool), u64>, record: &TraceRecord) -> u64 {
    let before = numbers
        .insert((record.cpu, record.is_refused), record.number)
        .unwrap_or(0);
    record.number.saturating_sub(before + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = "source ::ffff:192.0.2.7 refused 1 counter 9 outcome 4 event 0 protocol 1 port 53 packets 1 \
                        bytes 64 interface 3 at 123456789 cpu 1 number 8";

    #[test]
    fn a_record_is_read_as_the_kernel_writes_it() {
        let record = TraceRecord::parse(LINE).unwrap();
        assert_eq!(record.source, IpAddr::from([192, 0, 2, 7]));
        assert_eq!(
            (record.is_refused, record.counter, record.outcome),
            (true, 9, Some(Outcome::Throttled))
        );
        assert_eq!(
            (record.event, record.protocol, record.port, record.bytes),
            (None, 1, 53, 64)
        );
        assert_eq!(
            (record.interface, record.at, record.cpu, record.number),
            (3, 123_456_789, 1, 8)
        );
        let of_six = TraceRecord::parse(
            &LINE
                .replace("::ffff:192.0.2.7", "2001:db8::7")
                .replace("event 0", "event 2"),
        );
        let of_six = of_six.unwrap();
        assert_eq!(
            (of_six.source, of_six.event),
            ("2001:db8::7".parse().unwrap(), Some(TableEvent::FullPassed))
        );
        for wrong in [
            "",
            "source",
            &LINE.replace("port 53", "port x"),
            &LINE.replace("counter", "row"),
            &LINE[..80],
        ] {
            assert_eq!(TraceRecord::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn lost_records_are_the_gaps_of_each_cpu_and_verdict() {
        let mut numbers = HashMap::new();
        let record = |cpu, is_refused, number| TraceRecord {
            cpu,
            is_refused,
            number,
            ..TraceRecord::parse(LINE).unwrap()
        };
        for (cpu, is_refused, number, lost) in [
            (0, true, 1, 0),
            (1, true, 3, 2),
            (0, true, 2, 0),
            (0, false, 1, 0),
            (0, true, 7, 4),
            (1, true, 4, 0),
        ] {
            assert_eq!(
                gap(&mut numbers, &record(cpu, is_refused, number)),
                lost,
                "CPU {cpu}, number {number}"
            );
        }
    }
}
