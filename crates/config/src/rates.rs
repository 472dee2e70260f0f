//! `algorithm`, `rate`, `burst` and `tiers` of `[[limit]]`, on packets and on requests.

use super::calendar::{self, CalendarUnit};
use super::escalate::Counts;
use super::human;
use super::policy::{Algorithm, Rate, Unit};
use super::report::{Problems, Span, Wrong};
use super::schema::{At, Key, Kind, Place, Text, Value};
use super::units;

/// One Ethernet frame without jumbo frames, in bytes: a smaller byte limit never passes one.
pub const FULL_FRAME: u64 = 1514;
/// The most rates of one limit.
const MOST_RATES: usize = 7;
/// The largest burst of packets.
const LARGEST_BURST: u64 = u32::MAX as u64;

/// The rates of a limit on packets or on requests, and the algorithm.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateSpec {
    /// The algorithm of all rates.
    pub algorithm: Algorithm,
    /// The main rate; `tiers` has the others.
    pub rate: Rate,
    /// The main rate as written in the config.
    pub rate_text: String,
    /// The units that pass at once after a pause; for windows and logs the rate's count.
    pub burst: u64,
    /// Further rates on the same key.
    pub tiers: Vec<Tier>,
}

impl RateSpec {
    /// Each rate with its burst and its text, the main rate first.
    pub fn all(&self) -> impl Iterator<Item = (Rate, u64, &str)> {
        let tiers = self
            .tiers
            .iter()
            .map(|tier| (tier.rate, tier.burst, tier.text.as_str()));
        std::iter::once((self.rate, self.burst, self.rate_text.as_str())).chain(tiers)
    }

    /// All rates as written in the config.
    #[must_use]
    pub fn text(&self) -> String {
        self.all()
            .map(|(_, _, text)| text)
            .collect::<Vec<_>>()
            .join(", ")
    }
}

/// A further rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tier {
    pub rate: Rate,
    /// The burst in units.
    pub burst: u64,
    /// The rate as written in the config.
    pub text: String,
}

impl RateSpec {
    /// A token bucket with a rate a second.
    #[must_use]
    pub fn per_second(count: u64, burst: u64) -> Self {
        Self {
            algorithm: Algorithm::TokenBucket,
            rate: Rate::per_second(count),
            rate_text: format!("{count}/s"),
            burst,
            tiers: Vec::new(),
        }
    }
}

/// A rate as written: its limit's unit decides how it is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateText(pub String);

impl Text for RateText {
    const KIND: Kind = Kind::Rate(&[]);

    fn parse(text: &str, _: &Key) -> Result<Self, Wrong> {
        Ok(Self(text.to_owned()))
    }

    fn text(&self) -> String {
        self.0.clone()
    }
}

/// A burst of packets or bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Burst {
    Number(u64),
    /// In bytes.
    Size(u64),
}

impl Value for Burst {
    const KIND: Kind = Kind::Either(&[Kind::Integer(1, LARGEST_BURST), Kind::Size(&[])]);

    fn read(at: At<'_>, key: &Key, problems: &mut Problems) -> Option<Self> {
        let Some(text) = at.get_ref().as_str() else {
            let number = u32::read(at, key, problems)?;
            if number == 0 {
                problems.error(
                    at.span(),
                    format!("{} is out of range: 0", key.name),
                    key.help(),
                );
                return None;
            }
            return Some(Self::Number(number.into()));
        };
        match units::size(text) {
            Ok(size) => Some(Self::Size(size)),
            Err(wrong) => {
                problems.error(at.span(), wrong.message, wrong.help);
                None
            }
        }
    }

    fn write(&self) -> Option<toml::Value> {
        None
    }

    fn shown(&self) -> String {
        match self {
            Self::Number(number) => human::number(*number),
            Self::Size(size) => human::size(*size),
        }
    }
}

impl Burst {
    /// In units of the limit; `None`, and an error, if it is of another unit.
    pub fn of(self, unit: Unit, span: Span, problems: &mut Problems) -> Option<u64> {
        let (message, help) = match (self, unit) {
            (Self::Size(number), Unit::Bytes) => return Some(number),
            (Self::Number(number), Unit::Bytes) => (
                format!("invalid burst {number}: a burst of bytes requires a unit"),
                "write burst = \"256KiB\"",
            ),
            (Self::Number(number), _) => return Some(number),
            (Self::Size(_), _) => (
                format!(
                    "invalid burst {}: for unit = \"{unit}\" it is a number",
                    self.shown()
                ),
                "write burst = 2000",
            ),
        };
        problems.error(span, message, help);
        None
    }
}

/// A rate and its span.
#[derive(Clone)]
pub struct ReadRate {
    pub rate: Rate,
    pub text: String,
    pub span: Span,
    /// Of a rate by the calendar, whose time is then how long a key's use is kept.
    pub calendar: Option<CalendarUnit>,
}

/// The rates of a limit and their spans.
pub struct ReadRates<'t> {
    place: Place<'t>,
    keys: RateKeys,
    counts: Counts,
    unit: Unit,
    algorithm: Algorithm,
    pub main: Option<ReadRate>,
    /// `None`: the default.
    pub burst: Option<u64>,
    pub tiers: Vec<ReadRate>,
}

/// The keys of the rates in a table.
#[derive(Clone, Copy)]
pub struct RateKeys {
    pub rate: &'static Key,
    pub burst: &'static Key,
    pub tiers: &'static Key,
}

impl<'t> ReadRates<'t> {
    /// Reads `rate` and `tiers`.
    pub fn read(
        place: Place<'t>,
        keys: RateKeys,
        counts: Counts,
        (unit, algorithm): (Unit, Algorithm),
        burst: Option<u64>,
        problems: &mut Problems,
    ) -> Self {
        let mut rates = |key| -> Vec<ReadRate> {
            let texts = place.elements::<RateText>(key).into_iter();
            texts
                .filter_map(|(text, span)| rate(counts, unit, text.0, span, problems))
                .collect()
        };
        let (main, tiers) = (rates(keys.rate).pop(), rates(keys.tiers));
        require_bucket(place, keys.burst, algorithm, problems);
        Self {
            place,
            keys,
            counts,
            unit,
            algorithm,
            main,
            burst,
            tiers,
        }
    }

    /// The number of a limit on open connections, or the one in place of a fair rate.
    pub const fn of_number(place: Place<'t>, keys: RateKeys, number: ReadRate, unit: Unit) -> Self {
        Self {
            place,
            keys,
            counts: Counts::Packets,
            unit,
            algorithm: Algorithm::TokenBucket,
            main: Some(number),
            burst: None,
            tiers: Vec::new(),
        }
    }

    /// All rates, the main one first.
    pub fn all(&self) -> impl Iterator<Item = &ReadRate> {
        self.main.iter().chain(&self.tiers)
    }

    /// The burst of the main rate. The default is the rate's count; for bytes, at least TCP's minimum at that rate.
    pub fn burst_of(&self, main: Rate) -> u64 {
        self.burst.unwrap_or_else(|| self.default_burst(main))
    }

    fn default_burst(&self, rate: Rate) -> u64 {
        let is_for_tcp = self.unit == Unit::Bytes && self.algorithm.has_burst();
        if is_for_tcp {
            least_burst(rate)
        } else {
            rate.count
        }
    }

    /// The burst of a tier: its rate's count; for bytes, at least TCP's minimum.
    fn tier_burst(&self, rate: Rate) -> u64 {
        rate.count.max(self.default_burst(rate))
    }

    /// Checks the rates against each other.
    pub fn check(&self, problems: &mut Problems) {
        if self.main.is_none() {
            return;
        }
        let rates: Vec<&ReadRate> = self.all().collect();
        if rates.len() > MOST_RATES {
            let span = self.place.span_of(self.keys.tiers);
            let message = format!("{} rates on one limit are too many", rates.len());
            problems.error(
                span,
                message,
                format!("write at most {MOST_RATES}, rate and tiers together"),
            );
        }
        for (nth, read) in rates.iter().enumerate() {
            let ReadRate {
                rate, text, span, ..
            } = read;
            if rates[..nth].iter().any(|other| other.rate == *rate) {
                problems.error(
                    span.clone(),
                    format!("duplicate rate {text:?}"),
                    "leave out one of them",
                );
            }
            let largest = self.algorithm.largest_count();
            if rate.count > largest {
                let (noun, what) = (self.algorithm.noun(), self.counts.noun());
                let message =
                    format!("rate {text:?} exceeds a {noun}, which holds {largest} {what}");
                let help = format!("write at most {largest}, or algorithm = \"sliding-window\"");
                problems.error(span.clone(), message, help);
            }
            if self.counts == Counts::Packets {
                self.check_packets(problems, nth == 0, read);
            }
        }
    }

    /// Checks that packets can pass at all, and that jitter does not delay them.
    fn check_packets(&self, problems: &mut Problems, is_main: bool, read: &ReadRate) {
        let ReadRate {
            rate, text, span, ..
        } = read;
        let written = self.burst.filter(|_| is_main);
        let holds = if is_main {
            self.burst_of(*rate)
        } else {
            self.tier_burst(*rate)
        };
        if self.unit == Unit::Bytes && holds < FULL_FRAME {
            let (span, help) = if written.is_some() {
                (
                    self.place.span_of(self.keys.burst),
                    "write at least burst = \"1514B\"",
                )
            } else {
                (
                    span.clone(),
                    "write a longer time, or a burst of at least \"1514B\"",
                )
            };
            problems.error(
                span,
                "a full Ethernet frame of 1514 bytes could never pass",
                help,
            );
        }
        if let Some(burst) = written
            && u128::from(burst) * u128::from(rate.per_nanoseconds)
                < u128::from(rate.count) * 100_000
            && rate.count > 1
        {
            let span = self.place.span_of(self.keys.burst);
            let message = format!(
                "a burst of {burst} is less than 0.1 ms of {text}: packets arrive in larger bursts, and are refused"
            );
            problems.warning(
                span,
                message,
                format!("leave out burst for the default, {}", rate.count),
            );
        }
    }

    /// The rates, unless the main one is missing.
    pub fn spec(self) -> Option<RateSpec> {
        let (burst, algorithm) = (self.burst_of(self.main.as_ref()?.rate), self.algorithm);
        let tier = |tier: &ReadRate| Tier {
            rate: tier.rate,
            burst: self.tier_burst(tier.rate),
            text: tier.text.clone(),
        };
        let tiers = self.tiers.iter().map(tier).collect();
        let main = self.main?;
        Some(RateSpec {
            algorithm,
            rate: main.rate,
            rate_text: main.text,
            burst,
            tiers,
        })
    }
}

/// Linux's least retransmission timeout is 0.2 s; the rest covers its rounding and the round trip.
const PAUSE_NANOSECONDS: u128 = 250_000_000;
/// Four of the largest segments that the stack hands over at once: one must fit, and so must the refill during the
/// sender's growing waits.
const FOUR_BUFFERS: u64 = 256 << 10;

/// The least burst at which TCP reaches a rate, in bytes.
pub fn least_burst(rate: Rate) -> u64 {
    let of_pause =
        (u128::from(rate.count) * PAUSE_NANOSECONDS).div_ceil(u128::from(rate.per_nanoseconds));
    u64::try_from(of_pause)
        .unwrap_or(u64::MAX)
        .max(FOUR_BUFFERS)
}

fn rate(
    counts: Counts,
    unit: Unit,
    text: String,
    span: Span,
    problems: &mut Problems,
) -> Option<ReadRate> {
    match parse(counts, unit, &text) {
        Ok((rate, text, calendar)) => Some(ReadRate {
            rate,
            text,
            span,
            calendar,
        }),
        Err(wrong) => {
            problems.error(span, wrong.message, wrong.help);
            None
        }
    }
}

/// The rate, its one form, and its calendar.
fn parse(
    counts: Counts,
    unit: Unit,
    text: &str,
) -> Result<(Rate, String, Option<CalendarUnit>), Wrong> {
    let Some((rolling, calendar)) = calendar::split(text)? else {
        return Ok((units::rate(text, unit)?, units::rate_text(text), None));
    };
    if counts == Counts::Packets {
        let message = format!("rate {text:?} is not supported for limits on packets");
        let help = format!("write {rolling:?}, or scope = \"request\"");
        return Err(Wrong::new(message, help));
    }
    let as_written = |wrong: Wrong| {
        let message = wrong
            .message
            .replace(&format!("{rolling:?}"), &format!("{text:?}"));
        Wrong::new(message, wrong.help)
    };
    let rate = units::rate(&rolling, unit).map_err(as_written)?;
    let rate = Rate {
        per_nanoseconds: calendar.kept_nanoseconds(),
        ..rate
    };
    let text = format!("{}/{}", rate.count, calendar.word());
    Ok((rate, text, Some(calendar)))
}

/// Reports a key that requires a bucket algorithm.
pub fn require_bucket(place: Place<'_>, key: &Key, algorithm: Algorithm, problems: &mut Problems) {
    if place.has(key) && !algorithm.has_burst() {
        let name = key.name;
        let message = format!("{name} is not supported with algorithm = \"{algorithm}\"");
        let help = format!("leave out {name}, or set algorithm = \"token-bucket\"");
        problems.conflict(place.span_of(key), message, help);
    }
}
