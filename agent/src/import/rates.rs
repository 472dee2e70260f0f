//! Rates and bursts that refuse no more than the rule's.

use config::units;

use super::rule::{Forgets, Limit, Protocol, Unit};

/// A rate and a burst in limits.toml, with what they differ by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Allowed {
    pub rate: String,
    pub burst: String,
    pub notes: Vec<String>,
}

/// The rate and burst of a limit on packets of a protocol; `None` if a number is too large.
pub fn allowed(limit: &Limit, protocol: Option<Protocol>) -> Option<Allowed> {
    let mut notes = Vec::new();
    let mut burst = u128::from(limit.burst.max(1));
    let mut count = u128::from(limit.count);
    let mut milliseconds = u128::from(limit.seconds) * 1000;
    let (rule_rate, rule_burst) = (
        rate(count, milliseconds, limit.unit)?,
        size(burst, limit.unit)?,
    );
    if limit.is_rounded_up {
        notes.push("The kernel rounds the rule's rate: it is one more here.".to_owned());
    }
    match limit.forgets {
        // A source may pause for this long, and then have the burst again: the burst in this time is another rate.
        Some(Forgets::Idle(time))
            if time > 0 && burst * milliseconds > count * u128::from(time) =>
        {
            (count, milliseconds) = (burst, time.into());
            notes.push(format!(
                "The rule has {rule_rate}, and forgets a source that pauses for {}, which then has the burst of {rule_burst} \
                 again. Weir does not; hence the higher rate.",
                duration(time)
            ));
        }
        Some(Forgets::Always(time)) if time > 0 => {
            count = (count * u128::from(time)).div_ceil(milliseconds) + burst;
            milliseconds = time.into();
            burst *= 2;
            notes.push(format!(
                "The rule has {rule_rate}, and forgets each source after {}, which then has the burst of {rule_burst} again \
                 (`add`; `update` forgets idle ones). Weir does not; hence the higher rate and burst.",
                duration(time)
            ));
        }
        _ => {}
    }
    if limit.unit == Unit::Bytes {
        // The smallest IP packets of a protocol, in Ethernet's smallest frame of 60 bytes.
        let smallest = match protocol {
            Some(Protocol::Tcp) => 40,
            Some(Protocol::Udp | Protocol::Icmp) => 28,
            None => 20,
        };
        (count, burst) = (
            (count * 60).div_ceil(smallest),
            (burst * 60).div_ceil(smallest),
        );
        notes.push(format!(
            "The rule has {rule_rate} of IP packets, and Weir counts whole frames: the rate and burst are rounded up for \
             packets of {smallest} bytes in frames of 60. For packets of 1,500 bytes, 1 % more than the rule's is enough."
        ));
    }
    Some(Allowed {
        rate: rate(count, milliseconds, limit.unit)?,
        burst: size(burst, limit.unit)?,
        notes,
    })
}

/// A rate as in limits.toml.
fn rate(count: u128, milliseconds: u128, unit: Unit) -> Option<String> {
    let (mut count, mut milliseconds) = (count, milliseconds);
    // A whole number of units a second, where it is one.
    let seconds = milliseconds / 1000;
    if milliseconds.is_multiple_of(1000)
        && seconds < 60
        && count.is_multiple_of(seconds.max(1))
        && seconds > 1
    {
        (count, milliseconds) = (count / seconds, 1000);
    }
    let nanoseconds = milliseconds.checked_mul(1_000_000)?;
    let time = units::period_text(u64::try_from(nanoseconds).ok()?);
    let count = match unit {
        Unit::Packets | Unit::Open => count.to_string(),
        Unit::Bytes => bytes(count),
    };
    Some(format!("{count}/{time}"))
}

/// A burst as in limits.toml.
fn size(burst: u128, unit: Unit) -> Option<String> {
    let burst = u64::try_from(burst).ok()?.into();
    Some(if unit == Unit::Bytes {
        bytes(burst)
    } else {
        burst.to_string()
    })
}

fn bytes(count: u128) -> String {
    match count {
        _ if count.is_multiple_of(1 << 20) => format!("{}MiB", count >> 20),
        _ if count.is_multiple_of(1 << 10) => format!("{}KiB", count >> 10),
        _ => format!("{count}B"),
    }
}

fn duration(milliseconds: u64) -> String {
    config::human::time(std::time::Duration::from_millis(milliseconds))
}
