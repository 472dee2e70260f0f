//! The resources of a group: CPU time, memory, disks and network.

use std::fmt;
use std::path::PathBuf;

use common::limiter::Rate;

use super::human;
use super::policy::Unit;
use super::report::{Problems, Wrong};
use super::schema::{At, Key, Kind, Located, Table, Text, Value};
use super::units;

/// The largest number of destinations; the kernel's table has four times as many entries.
const MOST_DESTINATIONS: u64 = 100_000;
/// The most CPUs that a kernel supports.
const MOST_CPUS: u32 = 8_192;
const NO_LIMIT: &str = "no limit";

/// A share of CPU time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Table)]
#[table(inner, since = "0.1.0", check = check_cpu)]
pub struct Cpu {
    /// CPU time, in percent of one CPU: `150%` is one CPU and a half. At least 1 %.
    #[key(absent = NO_LIMIT, examples = ["150%"])]
    pub max: Option<CpuShare>,
    /// Share of CPU time among cgroups while the CPUs are busy.
    #[key(absent = "the kernel's, 100", range = (1.0, 10_000.0))]
    pub weight: Option<u32>,
    /// Whether `max` may be exceeded while the host has idle CPU time.
    #[key(default = false)]
    pub elastic: bool,
}

/// Memory, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Table)]
#[table(inner, since = "0.1.0", check = check_memory)]
pub struct Memory {
    /// Above it the kernel slows the group down and reclaims its memory. Requires cgroup v2.
    #[key(absent = NO_LIMIT, examples = ["1GiB"], check = check_size)]
    pub high: Option<Size>,
    /// Above it the kernel kills a process of the group.
    #[key(absent = NO_LIMIT, examples = ["1536MiB"], check = check_size)]
    pub max: Option<Size>,
    /// The most swap that the group uses.
    #[key(absent = NO_LIMIT, examples = ["0B"])]
    pub swap_max: Option<Size>,
}

/// One disk.
#[derive(Clone, Debug, PartialEq, Eq, Table)]
#[table(inner, since = "0.1.0", check = check_disk)]
pub struct Io {
    /// A block device, or a path on it.
    #[key(examples = ["/dev/vda"])]
    pub device: PathBuf,
    /// Bytes read.
    #[key(absent = NO_LIMIT, examples = ["50MB/s"])]
    pub read: Option<BytesPerSecond>,
    /// Bytes written.
    #[key(absent = NO_LIMIT, examples = ["20MB/s"])]
    pub write: Option<BytesPerSecond>,
    /// Read operations.
    #[key(absent = NO_LIMIT, examples = ["500/s"])]
    pub read_ops: Option<OperationsPerSecond>,
    /// Write operations.
    #[key(absent = NO_LIMIT, examples = ["500/s"])]
    pub write_ops: Option<OperationsPerSecond>,
}

/// Network limits: bytes as the IP layer counts them, connections, destinations and packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Table)]
#[table(inner, since = "0.1.0")]
pub struct Network {
    /// Bytes sent.
    #[key(absent = NO_LIMIT, examples = ["100Mbit/s"])]
    pub egress: Option<ByteRate>,
    /// Bytes received.
    #[key(absent = NO_LIMIT, examples = ["200Mbit/s"])]
    pub ingress: Option<ByteRate>,
    /// Connections begun with TCP and UDP. Above it connect() fails with EPERM.
    #[key(absent = NO_LIMIT, examples = ["20/s"], check = check_connections)]
    pub connects: Option<Rate>,
    /// Distinct addresses that are connected or sent to: each counts once in the rate's period. At most 100000.
    #[key(absent = NO_LIMIT, examples = ["100/min"], check = check_destinations)]
    pub destinations: Option<Rate>,
    /// Packets sent.
    #[key(absent = NO_LIMIT, examples = ["10000/s"])]
    pub packets: Option<Rate>,
}

impl Cpu {
    /// Its limits, each as text.
    pub(super) fn texts(&self) -> Vec<String> {
        let elastic = if self.elastic {
            ", more while the host is idle"
        } else {
            ""
        };
        texts([
            ("cpu", self.max.map(|share| format!("{share}{elastic}"))),
            ("cpu weight", self.weight.map(|weight| weight.to_string())),
        ])
    }
}

impl Memory {
    /// Its limits, each as text.
    pub(super) fn texts(&self) -> Vec<String> {
        let [high, max, swap] =
            [self.high, self.max, self.swap_max].map(|size| size.map(|size| size.shown()));
        texts([("memory high", high), ("memory", max), ("swap", swap)])
    }
}

impl Network {
    /// Its limits, each as text.
    pub(super) fn texts(&self) -> Vec<String> {
        texts([
            ("egress", self.egress.map(|rate| rate.to_string())),
            ("ingress", self.ingress.map(|rate| rate.to_string())),
            ("connects", self.connects.map(count_rate)),
            ("destinations", self.destinations.map(count_rate)),
            ("packets", self.packets.map(count_rate)),
        ])
    }
}

/// The values that there are, with their names.
pub fn texts<const N: usize>(all: [(&str, Option<String>); N]) -> Vec<String> {
    let all = all.into_iter();
    all.filter_map(|(name, value)| Some(format!("{name} {}", value?)))
        .collect()
}

impl Io {
    /// Its limits, each as text.
    pub(super) fn texts(&self) -> Vec<String> {
        let device = self.device.display();
        let (read, write) = (format!("{device} read"), format!("{device} write"));
        texts([
            (&*read, self.read.map(|rate| rate.text())),
            (&*write, self.write.map(|rate| rate.text())),
            (&*read, self.read_ops.map(|rate| rate.text())),
            (&*write, self.write_ops.map(|rate| rate.text())),
        ])
    }

    /// Bytes read and written, then operations, a second.
    #[must_use]
    pub fn rates(&self) -> [Option<u64>; 4] {
        let bytes = [self.read, self.write].map(|rate| rate.map(|rate| rate.0));
        let operations = [self.read_ops, self.write_ops].map(|rate| rate.map(|rate| rate.0));
        [bytes[0], bytes[1], operations[0], operations[1]]
    }
}

/// A share of CPU time in hundredths of a percent of one CPU, at least 100 (1 %).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CpuShare(u32);

impl CpuShare {
    /// The CPU time in microseconds per [`CpuShare::PERIOD_MICROSECONDS`].
    #[must_use]
    pub const fn quota_microseconds(self) -> u64 {
        self.0 as u64 * Self::PERIOD_MICROSECONDS / 10_000
    }

    /// The kernel's own default period.
    pub const PERIOD_MICROSECONDS: u64 = 100_000;

    /// The share in percent of one CPU.
    #[must_use]
    pub fn percent(self) -> f64 {
        f64::from(self.0) / 100.0
    }

    /// From percent of one CPU, rounded to hundredths; at least 1 %.
    #[must_use]
    pub fn from_percent(percent: f64) -> Self {
        Self((percent * 100.0).round().clamp(100.0, f64::from(u32::MAX)) as u32)
    }
}

impl fmt::Display for CpuShare {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}%", self.percent())
    }
}

impl Text for CpuShare {
    const KIND: Kind = Kind::Percent(&[]);

    fn parse(text: &str, key: &Key) -> Result<Self, Wrong> {
        let number = text
            .strip_suffix('%')
            .and_then(|number| number.trim().parse::<f64>().ok());
        let most = f64::from(MOST_CPUS) * 100.0;
        let number = number.filter(|percent| (1.0..=most).contains(percent));
        number.map(Self::from_percent).ok_or_else(|| {
            let help = format!(
                "write percent of one CPU, at least 1: {} is one CPU and a half",
                key.example()
            );
            Wrong::new(format!("invalid share of CPU time {text:?}"), help)
        })
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

/// CPUs in the kernel's list format, as "0-1,4".
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuList(String);

impl CpuList {
    /// One bit per CPU, starting with the lowest bit of the first byte.
    #[must_use]
    pub fn bits(&self) -> Vec<u8> {
        let mut bits = Vec::new();
        for (first, last) in self.0.split(',').filter_map(cpus) {
            for cpu in first as usize..=last as usize {
                if bits.len() <= cpu / 8 {
                    bits.resize(cpu / 8 + 1, 0);
                }
                bits[cpu / 8] |= 1 << (cpu % 8);
            }
        }
        bits
    }
}

/// The first and the last CPU of `0-1` or `4`.
fn cpus(part: &str) -> Option<(u32, u32)> {
    let cpu = |text: &str| text.trim().parse().ok().filter(|cpu| *cpu < MOST_CPUS);
    let (first, last) = part.split_once('-').unwrap_or((part, part));
    Some((cpu(first)?, cpu(last)?)).filter(|(first, last)| first <= last)
}

impl fmt::Display for CpuList {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl Text for CpuList {
    const KIND: Kind = Kind::Text(&[]);

    fn parse(text: &str, key: &Key) -> Result<Self, Wrong> {
        let parts: Vec<&str> = text.split(',').map(str::trim).collect();
        if parts.iter().all(|part| cpus(part).is_some()) {
            return Ok(Self(parts.join(",")));
        }
        let help = format!(
            "write CPUs and ranges of them, the lower first: {}",
            key.example()
        );
        Err(Wrong::new(format!("invalid CPU list {text:?}"), help))
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Size(pub u64);

impl Value for Size {
    const KIND: Kind = Kind::Size(&[]);

    fn read(at: At<'_>, key: &Key, problems: &mut Problems) -> Option<Self> {
        let read = match at.get_ref().as_str() {
            Some(text) => key
                .check
                .map_or(Ok(()), |check| check(text, key))
                .and_then(|()| units::size(text)),
            None => Err(Wrong::new(
                format!("{} requires a unit", key.name),
                format!("write {} = \"512MiB\"", key.name),
            )),
        };
        read.map(Self)
            .map_err(|wrong| problems.error(at.span(), wrong.message, wrong.help))
            .ok()
    }

    fn write(&self) -> Option<toml::Value> {
        Some(format!("{}B", self.0).into())
    }

    fn shown(&self) -> String {
        human::size(self.0)
    }
}

/// A rate of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRate(pub Rate);

impl fmt::Display for ByteRate {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Rate {
            count,
            per_nanoseconds,
        } = self.0;
        formatter.write_str(&human::bit_rate(
            count as f64 * 1e9 / per_nanoseconds as f64,
        ))
    }
}

impl Text for ByteRate {
    const KIND: Kind = Kind::Rate(&[]);

    fn parse(text: &str, _: &Key) -> Result<Self, Wrong> {
        units::rate(text, Unit::Bytes).map(Self)
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

/// Bytes a second, which the kernel enforces per second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BytesPerSecond(pub u64);

/// Operations a second, likewise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationsPerSecond(pub u64);

impl Text for BytesPerSecond {
    const KIND: Kind = Kind::Rate(&[]);

    fn parse(text: &str, key: &Key) -> Result<Self, Wrong> {
        per_second(text, Unit::Bytes, key).map(Self)
    }

    fn text(&self) -> String {
        human::byte_rate(self.0)
    }
}

impl Text for OperationsPerSecond {
    const KIND: Kind = Kind::Rate(&[]);

    fn parse(text: &str, key: &Key) -> Result<Self, Wrong> {
        per_second(text, Unit::Requests, key).map(Self)
    }

    fn text(&self) -> String {
        format!("{} operations/s", self.0)
    }
}

fn per_second(text: &str, unit: Unit, key: &Key) -> Result<u64, Wrong> {
    let rate = units::rate(text, unit)?;
    let each = u128::from(rate.count) * 1_000_000_000 / u128::from(rate.per_nanoseconds);
    let each = u64::try_from(each).ok().filter(|each| *each > 0);
    each.ok_or_else(|| {
        let message = format!(
            "{} is below 1 per second, or too large for the kernel",
            key.name
        );
        Wrong::new(message, format!("write {}", key.example()))
    })
}

fn check_cpu(read: &Located<'_, Cpu>, problems: &mut Problems) {
    if read.table.elastic && read.table.max.is_none() {
        problems.error(
            read.span_of(&Cpu::ELASTIC),
            "elastic requires max",
            "add max = \"150%\", or leave out elastic",
        );
    }
}

fn check_size(text: &str, key: &Key) -> Result<(), Wrong> {
    if units::size(text) == Ok(0) {
        let message = format!("{} = {text:?} leaves no memory", key.name);
        let help = format!("write {} = \"512MiB\"", key.name);
        return Err(Wrong::new(message, help));
    }
    Ok(())
}

fn check_memory(read: &Located<'_, Memory>, problems: &mut Problems) {
    if let (Some(high), Some(max)) = (read.table.high, read.table.max)
        && high > max
    {
        problems.error(
            read.span_of(&Memory::HIGH),
            "high is above max, and would have no effect",
            "write a high below max",
        );
    }
}

fn check_disk(read: &Located<'_, Io>, problems: &mut Problems) {
    let limits = [Io::READ, Io::WRITE, Io::READ_OPS, Io::WRITE_OPS];
    if !limits.iter().any(|key| read.has(key)) {
        let help = "write io = [{ device = \"/dev/vda\", read = \"50MB/s\" }]";
        problems.error(read.span(), "missing limit of a device in io", help);
    }
}

fn check_connections(text: &str, _: &Key) -> Result<(), Wrong> {
    units::rate(text, Unit::Connections).map(|_| ())
}

fn check_destinations(text: &str, _: &Key) -> Result<(), Wrong> {
    if units::rate(text, Unit::Connections)?.count > MOST_DESTINATIONS {
        let message = format!("more than {MOST_DESTINATIONS} destinations are not supported");
        let help = "write a shorter period, as in \"1000/s\"";
        return Err(Wrong::new(message, help));
    }
    Ok(())
}

/// A rate of whole units as written in the config.
fn count_rate(rate: Rate) -> String {
    let period = units::period_text(rate.per_nanoseconds);
    format!("{}/{period}", human::number(rate.count))
}
