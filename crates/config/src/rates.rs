//! `algorithm`, `rate`, `burst` and `tiers` of `[[limit]]`, on packets and on requests.

use super::escalate::Counts;
use super::policy::{Algorithm, Rate, RateSpec, Tier, Unit};
use super::report::Span;
use super::table::Table;
use super::{tcp, units};

/// One Ethernet frame without jumbo frames, in bytes: a smaller byte limit never passes one.
const FULL_FRAME: u64 = 1514;
/// The most rates of one limit.
const MOST_RATES: usize = 7;
/// The largest burst of packets.
const LARGEST_BURST: u64 = u32::MAX as u64;

/// A rate and its span.
#[derive(Clone)]
pub struct ReadRate {
    pub rate: Rate,
    pub text: String,
    pub span: Span,
}

/// The rates of a limit and their spans.
pub struct ReadRates {
    counts: Counts,
    unit: Unit,
    algorithm: Algorithm,
    pub main: Option<ReadRate>,
    /// `None`: the default.
    pub burst: Option<u64>,
    pub tiers: Vec<ReadRate>,
}

impl ReadRates {
    /// Reads `rate`, `burst` and `tiers`. `example` is a rate for the unit.
    pub fn read(
        table: &mut Table<'_, '_>,
        counts: Counts,
        unit: Unit,
        algorithm: Algorithm,
        example: &'static str,
    ) -> Self {
        table.required("rate", example);
        let main = table
            .string("rate", example)
            .and_then(|(text, span)| rate(table, unit, text, span));
        let burst = burst(table, counts, unit, algorithm);
        let mut tiers = Vec::new();
        for (text, span) in table.strings("tiers", "[\"60/h\", \"10/5s\"]") {
            tiers.extend(rate(table, unit, text, span));
        }
        Self {
            counts,
            unit,
            algorithm,
            main,
            burst,
            tiers,
        }
    }

    /// The number of a limit on open connections, in place of rates.
    pub const fn of_connections(number: ReadRate) -> Self {
        let (counts, unit, algorithm) =
            (Counts::Packets, Unit::Connections, Algorithm::TokenBucket);
        Self {
            counts,
            unit,
            algorithm,
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
            tcp::least_burst(rate)
        } else {
            rate.count
        }
    }

    /// The burst of a tier: its rate's count; for bytes, at least TCP's minimum.
    fn tier_burst(&self, rate: Rate) -> u64 {
        rate.count.max(self.default_burst(rate))
    }

    /// Checks the rates against each other.
    pub fn check(&self, table: &mut Table<'_, '_>) {
        if self.main.is_none() {
            return;
        }
        let rates: Vec<&ReadRate> = self.all().collect();
        if rates.len() > MOST_RATES {
            let span = table.span_of("tiers");
            let message = format!("{} rates on one limit are too many", rates.len());
            table.problems.error(
                span,
                message,
                format!("write at most {MOST_RATES}, rate and tiers together"),
            );
        }
        for (nth, read) in rates.iter().enumerate() {
            let ReadRate { rate, text, span } = read;
            if rates[..nth].iter().any(|other| other.rate == *rate) {
                table.problems.error(
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
                table.problems.error(span.clone(), message, help);
            }
            if self.counts == Counts::Packets {
                self.check_packets(table, nth == 0, read);
            }
        }
    }

    /// Checks that packets can pass at all, and that jitter does not delay them.
    fn check_packets(&self, table: &mut Table<'_, '_>, is_main: bool, read: &ReadRate) {
        let ReadRate { rate, text, span } = read;
        let written = self.burst.filter(|_| is_main);
        let holds = if is_main {
            self.burst_of(*rate)
        } else {
            self.tier_burst(*rate)
        };
        if self.unit == Unit::Bytes && holds < FULL_FRAME {
            let (span, help) = if written.is_some() {
                (table.span_of("burst"), "write at least burst = \"1514B\"")
            } else {
                (
                    span.clone(),
                    "write a longer time, or a burst of at least \"1514B\"",
                )
            };
            table.problems.error(
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
            let span = table.span_of("burst");
            let message = format!(
                "a burst of {burst} is less than 0.1 ms of {text}: packets arrive in larger bursts, and are refused"
            );
            table.problems.warning(
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

fn rate(table: &mut Table<'_, '_>, unit: Unit, text: &str, span: Span) -> Option<ReadRate> {
    match units::rate(text, unit) {
        Ok(rate) => Some(ReadRate {
            rate,
            text: text.to_owned(),
            span,
        }),
        Err(wrong) => {
            table.problems.error(span, wrong.message, wrong.help);
            None
        }
    }
}

fn burst(
    table: &mut Table<'_, '_>,
    counts: Counts,
    unit: Unit,
    algorithm: Algorithm,
) -> Option<u64> {
    let value = table.value("burst")?;
    let burst = match (unit, value.get_ref().as_str()) {
        _ if counts == Counts::Requests => table.number("burst", 1, units::LARGEST_COUNT),
        (Unit::Bytes, Some(text)) => match units::size(text) {
            Ok(size) => Some(size),
            Err(wrong) => {
                table
                    .problems
                    .error(value.span(), wrong.message, wrong.help);
                None
            }
        },
        (Unit::Bytes, None) => {
            table.problems.error(
                value.span(),
                "a burst of bytes requires a unit",
                "write burst = \"256KiB\"",
            );
            None
        }
        (_, Some(_)) => {
            let message = format!("invalid burst: for unit = \"{unit}\" it is a number");
            table
                .problems
                .error(value.span(), message, "write burst = 2000");
            None
        }
        (_, None) => table.number("burst", 1, LARGEST_BURST),
    };
    require_bucket(table, "burst", algorithm);
    burst
}

/// Reports a key that requires a bucket algorithm.
pub fn require_bucket(table: &mut Table<'_, '_>, key: &'static str, algorithm: Algorithm) {
    if table.value(key).is_some() && !algorithm.has_burst() {
        let span = table.span_of(key);
        let message = format!("{key} is not supported with algorithm = \"{algorithm}\"");
        let help = format!("leave out {key}, or set algorithm = \"token-bucket\"");
        table.problems.error(span, message, help);
    }
}
