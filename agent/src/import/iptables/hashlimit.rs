//! The matches hashlimit and limit.

use super::super::names::cut;
use super::super::rule::{Conditions, Forgets, Key, Limit, Unit};

/// hashlimit's and limit's options.
#[derive(Default)]
pub struct Hashlimit {
    name: Option<String>,
    rate: Option<(u64, u64, Unit)>,
    is_over: bool,
    burst: Option<u64>,
    mode: String,
    mask: Option<u8>,
    expire: Option<u64>,
    size: Option<u64>,
    is_invalid: bool,
    /// Whether it is the match `limit`, which forgets nothing.
    is_plain: bool,
}

/// Reads an option of hashlimit or limit; `false` if it is none that Weir has.
pub fn read(option: &str, value: &str, limit: &mut Hashlimit) -> bool {
    let number = |into: &mut Option<u64>| {
        *into = value.parse().ok();
        into.is_some()
    };
    match option {
        "--hashlimit-above" | "--hashlimit-upto" | "--hashlimit" | "--limit" => {
            limit.is_over = option == "--hashlimit-above";
            limit.is_plain = option == "--limit";
            // Two limits in one rule.
            limit.is_invalid |= limit.rate.is_some();
            limit.rate = rate(value);
            limit.rate.is_some()
        }
        "--hashlimit-burst" | "--limit-burst" => {
            limit.burst = burst(value);
            limit.burst.is_some()
        }
        "--hashlimit-mode" => {
            value.clone_into(&mut limit.mode);
            true
        }
        "--hashlimit-name" => {
            limit.name = Some(cut(value));
            true
        }
        "--hashlimit-srcmask" => {
            limit.mask = value.parse().ok();
            limit.mask.is_some()
        }
        "--hashlimit-htable-expire" => number(&mut limit.expire),
        "--hashlimit-htable-max" => number(&mut limit.size),
        "--hashlimit-htable-size" | "--hashlimit-htable-gcinterval" => true,
        _ => false,
    }
}

/// A rate such as `10/sec` or `1mb/s`: units, seconds.
fn rate(text: &str) -> Option<(u64, u64, Unit)> {
    let (count, time) = text.split_once('/')?;
    let end = count
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(count.len());
    let (number, unit) = (count[..end].parse::<u64>().ok()?, &count[end..]);
    if !unit.is_empty() {
        return Some((number.checked_mul(scale(unit)?)?, 1, Unit::Bytes))
            .filter(|_| time.starts_with('s'));
    }
    let seconds = match time {
        "s" | "sec" | "second" => 1,
        "m" | "min" | "minute" => 60,
        "h" | "hour" => 3600,
        "d" | "day" => 86_400,
        _ => return None,
    };
    Some((number, seconds, Unit::Packets))
}

/// Bytes in a unit: those of hashlimit are powers of 1024.
fn scale(unit: &str) -> Option<u64> {
    Some(match unit {
        "b" => 1,
        "kb" => 1 << 10,
        "mb" => 1 << 20,
        "gb" => 1 << 30,
        _ => return None,
    })
}

fn burst(text: &str) -> Option<u64> {
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let number: u64 = text[..end].parse().ok()?;
    if end == text.len() {
        Some(number)
    } else {
        number.checked_mul(scale(&text[end..])?)
    }
}

pub fn limit(options: Hashlimit, conditions: &mut Conditions) -> Option<Limit> {
    let (count, seconds, unit) = options.rate?;
    let modes: Vec<&str> = options
        .mode
        .split(',')
        .filter(|mode| !mode.is_empty())
        .collect();
    let key = match modes.as_slice() {
        [] => Key::All,
        ["srcip"] => Key::Source {
            prefix: options.mask,
            has_port: false,
        },
        ["srcip", "dstport"] | ["dstport", "srcip"] => Key::Source {
            prefix: options.mask,
            has_port: true,
        },
        _ => {
            conditions.other(format!("--hashlimit-mode {}", cut(&options.mode)));
            Key::All
        }
    };
    if options.is_invalid {
        conditions.other("several limits in one rule");
    }
    let burst = match unit {
        Unit::Packets | Unit::Open => options.burst.unwrap_or(5),
        // A second's bytes, and the burst in whole seconds above it.
        Unit::Bytes => {
            let further = options
                .burst
                .map_or(0, |burst| burst.div_ceil(count.max(1)));
            count.saturating_mul(further.saturating_add(1))
        }
    };
    // The kernel counts in these parts of the rate's time, and `iptables-save` rounds down what comes of it.
    let parts = if options.is_plain { 10_000 } else { 1_000_000 } * seconds;
    let is_rounded_up = unit == Unit::Packets
        && count > 0
        && !parts.is_multiple_of(count)
        && u128::from(count) * u128::from(count) > u128::from(parts / 100);
    let count = count.saturating_add(is_rounded_up.into());
    // hashlimit's default is one period of the rate.
    let idle = options.expire.unwrap_or(seconds * 1000);
    Some(Limit {
        name: options.name,
        count,
        seconds,
        burst,
        unit,
        key,
        is_over: options.is_over,
        forgets: (!options.is_plain).then_some(Forgets::Idle(idle)),
        size: options.size,
        is_rounded_up,
        is_open_when_full: false,
    })
}
