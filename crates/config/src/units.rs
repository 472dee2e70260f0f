//! Rates, sizes and times as written in a config. Each has a unit.
//!
//! A rate is a count, a slash and a time: `1000/s`, `60/min`, `10/5s`. A byte rate's count is a size: `10MB/s`,
//! `1GiB/h`. `100Mbit/s` counts bits, eight to a byte. Sizes and bits may have decimals: `2.5MB/s`. Sizes are powers of
//! 1000 (`kB`, `MB`, `GB`, `TB`) or of 1024 (`KiB`, `MiB`, `GiB`, `TiB`). Times are `ms`, `s`, `min`, `h`, `day`,
//! `week`, `month` (30 days), with an optional number before them. The command line has the same units and further names.

use std::time::Duration;

use common::limiter::Rate;
use host::PROGRAM;

use super::policy::Unit;
use super::report::Wrong;

/// The largest count of a rate, so that no product in the limiters overflows.
pub const LARGEST_COUNT: u64 = 1 << 40;

fn wrong(message: impl Into<String>, help: impl Into<String>) -> Wrong {
    Wrong::new(message, help)
}

/// Parses the rate of a limit on `unit`.
///
/// When the text is invalid; the error suggests a correction.
///
/// With what to write instead.
pub fn rate(text: &str, unit: Unit) -> Result<Rate, Wrong> {
    let example = if unit == Unit::Bytes {
        "\"10MB/s\" or \"100Mbit/s\""
    } else {
        "\"1000/s\", \"60/min\" or \"10/5s\""
    };
    let Some((count, time)) = text.split_once('/') else {
        return Err(wrong(
            format!("invalid rate {text:?}: missing time"),
            format!("write {example}"),
        ));
    };
    let per_nanoseconds = time_nanoseconds(time)
        .map_err(|message| wrong(message, format!("write a time after the slash: {example}")))?;
    let (number, suffix) = split_number(count);
    if unit == Unit::Bytes && !suffix.is_empty() {
        return byte_rate(text, number, suffix, per_nanoseconds);
    }
    let number = whole(number).ok_or_else(|| {
        let why = if number.is_empty() {
            "missing number".to_owned()
        } else {
            format!("{number:?} is not a whole number")
        };
        wrong(
            format!("invalid rate {text:?}: {why}"),
            format!("write {example}"),
        )
    })?;
    let count = match (unit, suffix) {
        (Unit::Bytes, _) => {
            return Err(wrong(
                "a rate of bytes requires a unit",
                format!("write \"{number}B/s\", \"{number}kB/s\" or \"{number}Mbit/s\""),
            ));
        }
        (_, "") => u128::from(number),
        (_, suffix) if byte_unit(suffix).is_some() || bit_unit(suffix).is_some() => {
            return Err(wrong(
                format!("rate {text:?} is in bytes, and the limit counts {unit}"),
                format!("write \"{number}/s\", or unit = \"bytes\""),
            ));
        }
        (_, suffix) => {
            return Err(wrong(
                format!("unexpected {suffix:?} after the number"),
                format!("write {example}"),
            ));
        }
    };
    not_too_slow(text, count, per_nanoseconds)
}

/// A byte rate from a number and its unit.
fn byte_rate(text: &str, number: &str, suffix: &str, per_nanoseconds: u64) -> Result<Rate, Wrong> {
    let amount = |unit: u128| {
        let help = "write \"10MB/s\", \"2.5MB/s\" or \"100Mbit/s\"";
        decimal(number, unit).ok_or_else(|| {
            wrong(
                format!("{number:?} is not a whole number of bytes or bits"),
                help,
            )
        })
    };
    match (byte_unit(suffix), bit_unit(suffix)) {
        (Some(bytes), _) => not_too_slow(text, amount(bytes)?, per_nanoseconds),
        (_, Some(bits)) => match amount(bits)? {
            0 => Err(zero()),
            bits if bits.is_multiple_of(8) => not_too_slow(text, bits / 8, per_nanoseconds),
            // Whole bytes in eight times the period are the same rate as bits.
            bits => reduced(bits, u128::from(per_nanoseconds) * 8),
        },
        _ => Err(wrong(
            format!("unknown unit {suffix:?} of bytes or bits"),
            unit_help(number, suffix),
        )),
    }
}

/// The units that a suffix in the wrong case may mean.
fn unit_help(number: &str, suffix: &str) -> String {
    match suffix.to_ascii_uppercase().as_str() {
        unit @ ("KB" | "MB" | "GB" | "TB") => {
            let letter = &unit[..1];
            format!("write \"{number}{unit}/s\" for bytes or \"{number}{letter}bit/s\" for bits")
        }
        _ => "write \"10MB/s\" or \"100Mbit/s\"".to_owned(),
    }
}

fn not_too_slow(text: &str, count: u128, per_nanoseconds: u64) -> Result<Rate, Wrong> {
    if count == 0 {
        return Err(zero());
    }
    let count = u64::try_from(count)
        .ok()
        .filter(|count| *count <= LARGEST_COUNT)
        .ok_or_else(|| too_large(text))?;
    let rate = Rate {
        count,
        per_nanoseconds,
    };
    if rate.nanoseconds_for(1) > u128::from(time_nanoseconds("366day").unwrap_or(u64::MAX)) {
        return Err(wrong(
            format!("rate {text:?} is below 1 per 366 days"),
            "write at least \"1/day\"".to_owned(),
        ));
    }
    Ok(rate)
}

fn zero() -> Wrong {
    wrong(
        "a rate of 0 would refuse everything",
        format!("write a rate above 0; to refuse a source entirely, use `{PROGRAM} ban`"),
    )
}

fn too_large(text: &str) -> Wrong {
    wrong(
        format!("{text} is above the largest count of a limit"),
        format!("write at most {LARGEST_COUNT} in any time"),
    )
}

fn reduced(count: u128, per: u128) -> Result<Rate, Wrong> {
    let (mut a, mut b) = (count, per);
    while b != 0 {
        (a, b) = (b, a % b);
    }
    let fit = |value: u128| u64::try_from(value / a).ok();
    match (fit(count).filter(|count| *count <= LARGEST_COUNT), fit(per)) {
        (Some(count), Some(per_nanoseconds)) => Ok(Rate {
            count,
            per_nanoseconds,
        }),
        _ => Err(too_large("this rate")),
    }
}

/// Parses a burst: units for counts, a size for bytes.
///
/// When the text is invalid; the error suggests a correction.
///
/// With what to write instead.
pub fn size(text: &str) -> Result<u64, Wrong> {
    let (number, suffix) = split_number(text);
    let help = || "write a size as \"256KiB\" or \"1.5MB\"".to_owned();
    if suffix.is_empty() {
        return Err(wrong(
            "a size requires a unit",
            format!(
                "write \"{number}B\", \"{number}KiB\" or \"{number}MB\"; for packets, connections or requests {number} without quotes"
            ),
        ));
    }
    let unit = byte_unit(suffix)
        .ok_or_else(|| wrong(format!("unknown unit {suffix:?} of bytes"), help()))?;
    let bytes = decimal(number, unit).ok_or_else(|| {
        wrong(
            format!("invalid size {text:?}: not a whole number of bytes"),
            help(),
        )
    })?;
    u64::try_from(bytes)
        .ok()
        .filter(|size| *size <= LARGEST_COUNT)
        .ok_or_else(|| too_large(text))
}

fn split_number(text: &str) -> (&str, &str) {
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || matches!(c, '_' | '.')))
        .unwrap_or(text.len());
    let (number, suffix) = text.split_at(end);
    (number, suffix.trim())
}

/// A decimal number times a unit, if the product is whole, such as 2.5 million.
fn decimal(number: &str, unit: u128) -> Option<u128> {
    let (whole_part, decimals) = number.split_once('.').unwrap_or((number, "0"));
    let scale = 10u128.checked_pow(u32::try_from(decimals.len()).ok()?)?;
    let parts = u128::from(whole(whole_part)?)
        .checked_mul(scale)?
        .checked_add(decimals.parse().ok()?)?;
    let product = parts.checked_mul(unit)?;
    product.is_multiple_of(scale).then(|| product / scale)
}

fn whole(text: &str) -> Option<u64> {
    text.replace('_', "").parse().ok()
}

fn byte_unit(text: &str) -> Option<u128> {
    Some(match text {
        "B" => 1,
        "kB" | "KB" => 1_000,
        "MB" => 1_000_000,
        "GB" => 1_000_000_000,
        "TB" => 1_000_000_000_000,
        "KiB" => 1 << 10,
        "MiB" => 1 << 20,
        "GiB" => 1 << 30,
        "TiB" => 1 << 40,
        _ => return None,
    })
}

fn bit_unit(text: &str) -> Option<u128> {
    // Case-insensitive: `mbit` cannot mean a thousandth of a bit.
    Some(match text.to_ascii_lowercase().as_str() {
        "bit" => 1,
        "kbit" => 1_000,
        "mbit" => 1_000_000,
        "gbit" => 1_000_000_000,
        "tbit" => 1_000_000_000_000,
        _ => return None,
    })
}

/// Parses a time by itself, from 1 ms to 366 days, in nanoseconds.
///
/// # Errors
///
/// When the text is invalid; the error suggests a correction.
pub fn time(text: &str) -> Result<u64, Wrong> {
    if text.trim().is_empty() {
        return Err(wrong("empty time", "write a time as \"1s\" or \"5m\""));
    }
    time_nanoseconds(text).map_err(|message| wrong(message, "write a time as \"1s\" or \"5m\""))
}

/// A time as it is written in limits.toml, for [`time`]: in the largest unit of which it is a whole number.
#[must_use]
pub fn time_text(nanoseconds: u64) -> String {
    let units = [
        (DAY, "d"),
        (3_600_000_000_000, "h"),
        (60_000_000_000, "min"),
        (1_000_000_000, "s"),
    ];
    let is_whole = |(unit, _): &(u64, &str)| nanoseconds != 0 && nanoseconds.is_multiple_of(*unit);
    match units.into_iter().find(is_whole) {
        Some((unit, name)) => format!("{}{name}", nanoseconds / unit),
        None => format!("{}ms", nanoseconds / 1_000_000),
    }
}

/// The time of a rate as it is written after the slash: `s`, `min`, `5s`.
#[must_use]
pub fn period_text(nanoseconds: u64) -> String {
    let name = match nanoseconds {
        1_000_000_000 => "s",
        60_000_000_000 => "min",
        3_600_000_000_000 => "h",
        DAY => "day",
        nanoseconds if nanoseconds == 7 * DAY => "week",
        nanoseconds if nanoseconds == 30 * DAY => "month",
        days if days.is_multiple_of(DAY) => return format!("{}day", days / DAY),
        other => return time_text(other),
    };
    name.to_owned()
}

/// The one form of a valid rate, in the unit in which it is written: `1000/s` for `1_000 / 1second`, `100Mbit/min` for
/// `100mbit/60s`.
#[must_use]
pub fn rate_text(text: &str) -> String {
    let normalized = || {
        let (count, time) = text.split_once('/')?;
        let (number, suffix) = split_number(count);
        let bits = suffix.to_ascii_lowercase();
        let unit = match bits.as_str() {
            _ if bit_unit(suffix).is_none() => suffix,
            "mbit" => "Mbit",
            "gbit" => "Gbit",
            "tbit" => "Tbit",
            lower => lower,
        };
        let number: String = number.chars().filter(|digit| *digit != '_').collect();
        let period = period_text(time_nanoseconds(time).ok()?);
        Some(format!("{number}{unit}/{period}"))
    };
    normalized().unwrap_or_else(|| text.to_owned())
}

/// A unit of time.
struct TimeUnit {
    nanoseconds: u64,
    /// Its names in a config and on the command line.
    names: &'static [&'static str],
    /// Further names on the command line.
    others: &'static [&'static str],
}

const DAY: u64 = 86_400_000_000_000;

/// The units of times. Months have 30 days, and years 365, wherever they are written.
const TIME_UNITS: [TimeUnit; 10] = {
    const fn unit(
        nanoseconds: u64,
        names: &'static [&'static str],
        others: &'static [&'static str],
    ) -> TimeUnit {
        TimeUnit {
            nanoseconds,
            names,
            others,
        }
    }
    [
        unit(1, &[], &["ns", "nsec"]),
        unit(1_000, &[], &["us", "µs", "usec"]),
        unit(1_000_000, &["ms"], &["msec"]),
        unit(1_000_000_000, &["s", "sec", "second"], &["secs", "seconds"]),
        unit(
            60_000_000_000,
            &["m", "min", "minute"],
            &["mins", "minutes"],
        ),
        unit(3_600_000_000_000, &["h", "hour"], &["hr", "hrs", "hours"]),
        unit(DAY, &["d", "day"], &["days"]),
        unit(7 * DAY, &["week"], &["w", "weeks"]),
        unit(30 * DAY, &["month"], &["M", "months"]),
        unit(365 * DAY, &[], &["y", "year", "years"]),
    ]
};

/// Parses a time on the command line: numbers with their units, such as `2h30m` or `1h 30min`.
#[must_use]
pub fn span(text: &str) -> Option<Duration> {
    let mut rest = text.trim();
    let mut sum = Duration::ZERO;
    while !rest.is_empty() {
        let split = |of: fn(&char) -> bool, text: &'_ str| {
            text.chars()
                .take_while(of)
                .map(char::len_utf8)
                .sum::<usize>()
        };
        let (number, after) = rest.split_at(split(char::is_ascii_digit, rest));
        let after = after.trim_start();
        let (name, after) = after.split_at(split(|letter| letter.is_alphabetic(), after));
        let unit = TIME_UNITS
            .iter()
            .find(|unit| unit.names.contains(&name) || unit.others.contains(&name))?;
        let part = u128::from(number.parse::<u64>().ok()?) * u128::from(unit.nanoseconds);
        let seconds = u64::try_from(part / 1_000_000_000).ok()?;
        let part = Duration::new(seconds, (part % 1_000_000_000) as u32);
        sum = sum.checked_add(part)?;
        rest = after.trim_start();
    }
    (!text.trim().is_empty()).then_some(sum)
}

fn time_nanoseconds(text: &str) -> Result<u64, String> {
    let (number, suffix) = split_number(text.trim());
    let number = if number.is_empty() {
        1
    } else {
        whole(number).ok_or_else(|| format!("{number:?} is not a whole number"))?
    };
    if suffix.is_empty() {
        return Err("missing unit of time".to_owned());
    }
    let unit = TIME_UNITS
        .iter()
        .find(|unit| unit.names.contains(&suffix))
        .ok_or_else(|| format!("unknown unit of time {suffix:?}"))?
        .nanoseconds;
    let longest = 366 * 86_400_000_000_000;
    number
        .checked_mul(unit)
        .filter(|time| (1_000_000..=longest).contains(time))
        .ok_or_else(|| format!("time {text:?} is out of range: 1 ms to 366 days"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn rates_are_what_they_say() {
        let seconds = |count, seconds: u64| Rate {
            count,
            per_nanoseconds: seconds * 1_000_000_000,
        };
        for (text, unit, expected) in [
            ("1000/s", Unit::Packets, seconds(1_000, 1)),
            ("1_000/s", Unit::Packets, seconds(1_000, 1)),
            ("60/min", Unit::Connections, seconds(60, 60)),
            ("60/h", Unit::Requests, seconds(60, 3_600)),
            ("1/day", Unit::Packets, seconds(1, 86_400)),
            ("5/week", Unit::Packets, seconds(5, 604_800)),
            ("1000/month", Unit::Requests, seconds(1_000, 2_592_000)),
            (
                "1TB/month",
                Unit::Bytes,
                seconds(1_000_000_000_000, 2_592_000),
            ),
            ("10/5s", Unit::Packets, seconds(10, 5)),
            ("10MB/s", Unit::Bytes, seconds(10_000_000, 1)),
            ("1GiB/h", Unit::Bytes, seconds(1 << 30, 3_600)),
            ("2.5MB/s", Unit::Bytes, seconds(2_500_000, 1)),
            ("12345Mbit/s", Unit::Bytes, seconds(1_543_125_000, 1)),
            ("20mbit/s", Unit::Bytes, seconds(2_500_000, 1)),
            ("1.5Gbit/min", Unit::Bytes, seconds(187_500_000, 60)),
        ] {
            assert_eq!(rate(text, unit), Ok(expected), "{text}");
        }
        // 12,345 bits are not a whole number of bytes.
        let rate = rate("12345bit/s", Unit::Bytes).unwrap();
        assert_eq!(
            u128::from(rate.count) * 8_000_000_000,
            12_345 * u128::from(rate.per_nanoseconds)
        );
    }

    #[test]
    fn errors_of_units_have_a_fix() {
        for (text, unit, message, help) in [
            ("1000", Unit::Packets, "missing time", "1000/s"),
            ("1000/", Unit::Packets, "missing unit of time", "1000/s"),
            (
                "1000/fortnight",
                Unit::Packets,
                "unknown unit of time",
                "1000/s",
            ),
            ("0/s", Unit::Packets, "rate of 0", "above 0"),
            ("0Mbit/s", Unit::Bytes, "rate of 0", "above 0"),
            (
                "10MB/s",
                Unit::Packets,
                "counts packets",
                "unit = \"bytes\"",
            ),
            ("10/s", Unit::Bytes, "requires a unit", "10kB/s"),
            (
                "10MX/s",
                Unit::Bytes,
                "unknown unit \"MX\" of bytes",
                "10MB/s",
            ),
            (
                "10mb/s",
                Unit::Bytes,
                "unknown unit \"mb\" of bytes",
                "10Mbit/s",
            ),
            (
                "1.23456789kB/s",
                Unit::Bytes,
                "whole number of bytes",
                "2.5MB/s",
            ),
            ("1.5/s", Unit::Packets, "not a whole number", "60/min"),
            (
                "99999999999999999999/s",
                Unit::Packets,
                "whole number",
                "1000/s",
            ),
            (
                "9999999999999/s",
                Unit::Packets,
                "above the largest count",
                "at most",
            ),
        ] {
            let wrong = rate(text, unit).unwrap_err();
            assert!(wrong.message.contains(message), "{text}: {}", wrong.message);
            assert!(wrong.help.contains(help), "{text}: {}", wrong.help);
        }
        assert_eq!(size("256KiB"), Ok(256 << 10));
        assert!(size("256").unwrap_err().help.contains("256KiB"));
    }

    #[test]
    fn a_rate_has_one_form() {
        for (text, unit, form) in [
            ("1000/s", Unit::Packets, "1000/s"),
            ("1_000/1second", Unit::Packets, "1000/s"),
            ("60 / minute", Unit::Packets, "60/min"),
            ("10/60s", Unit::Packets, "10/min"),
            ("10/5s", Unit::Packets, "10/5s"),
            ("5/90min", Unit::Packets, "5/90min"),
            ("1/24h", Unit::Packets, "1/day"),
            ("1/365day", Unit::Packets, "1/365day"),
            ("1000/30d", Unit::Packets, "1000/month"),
            ("2.5MB/s", Unit::Bytes, "2.5MB/s"),
            ("100mbit/m", Unit::Bytes, "100Mbit/min"),
            ("64KBIT/s", Unit::Bytes, "64kbit/s"),
        ] {
            let read = rate(text, unit).unwrap_or_else(|wrong| panic!("{text}: {wrong:?}"));
            assert_eq!(rate_text(text), form);
            assert_eq!(rate(form, unit), Ok(read), "{text}");
        }
    }

    #[test]
    fn a_time_on_the_command_line_has_the_units_of_a_config() {
        const DAY: u64 = 86_400;
        for (text, seconds) in [
            ("10m", 600),
            ("2h30m", 9_000),
            ("1h 30 min", 5_400),
            ("7d", 7 * DAY),
            ("2weeks 1d", 15 * DAY),
            ("1M", 30 * DAY),
            ("1month", 30 * DAY),
            ("100years", 36_500 * DAY),
            ("0s", 0),
        ] {
            assert_eq!(span(text), Some(Duration::from_secs(seconds)), "{text}");
        }
        assert_eq!(span("1500ms"), Some(Duration::from_millis(1_500)));
        for unit in &TIME_UNITS {
            for name in unit.names {
                let text = format!("3{name}");
                assert_eq!(
                    span(&text).map(|span| span.as_nanos()),
                    time(&text).ok().map(u128::from),
                    "{text}"
                );
            }
        }
        for text in [
            "",
            " ",
            "soon",
            "10",
            "m",
            "1.5h",
            "1h30",
            "1 fortnight",
            "99999999999999999999s",
            "-1s",
            "1hé",
        ] {
            assert_eq!(span(text), None, "{text}");
        }
        // The longest number of the largest unit.
        assert!(span(&format!("{}y", u64::MAX)).is_none_or(|span| span.as_secs() > DAY));
    }

    proptest! {
        #[test]
        fn a_time_is_read_as_it_was_written(milliseconds in 1u64..366 * 86_400_000, scale in prop_oneof![Just(1u64), Just(1_000), Just(60_000), Just(3_600_000), Just(86_400_000)]) {
            // In many of them a whole number of a larger unit.
            let milliseconds = (milliseconds / scale * scale).max(1);
            let text = time_text(milliseconds * 1_000_000);
            prop_assert_eq!(time(&text).ok(), Some(milliseconds * 1_000_000), "{}", text);
        }

        #[test]
        fn units_are_written_as_they_are_read(count in 1u64..LARGEST_COUNT, time in 1u64..60, unit in prop_oneof![Just(("s", 1u64)), Just(("min", 60)), Just(("h", 3_600))]) {
            let read = rate(&format!("{count}/{time}{}", unit.0), Unit::Packets);
            prop_assert_eq!(read, Ok(Rate { count, per_nanoseconds: time * unit.1 * 1_000_000_000 }));
        }

        #[test]
        fn no_text_is_too_much(text in ".{0,40}") {
            let _ = (span(&text), rate(&text, Unit::Packets), rate(&text, Unit::Bytes), size(&text));
        }
    }
}
