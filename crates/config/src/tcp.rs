//! Warnings of byte limits with less than the least burst at which TCP reaches their rate.
//!
//! A sender that loses all packets in flight waits for its retransmission timeout, at least 0.2 s. A bucket that fills
//! sooner loses the rest of that time. docs/TCP.md has the measurements.

use super::policy::{Action, Class, Limit, ProtocolFilter, Service, Unit};
use super::rates::least_burst;
use super::report::Problems;
use super::schema::Located;

/// Warns of byte limits that keep TCP far below their rate.
pub fn check(
    limits: &[Located<'_, Limit>],
    classes: &[Located<'_, Class>],
    problems: &mut Problems,
) {
    for read in limits.iter().filter(|read| refuses_tcp(&read.table)) {
        let limit = &read.table;
        if limit.rates.burst < least_burst(limit.rates.rate) {
            let message = format!(
                "TCP stays below {}: a burst of {} is used up before a sender that lost packets sends again",
                limit.rates.rate_text,
                bytes(limit.rates.burst)
            );
            let burst = read.find(&Limit::BURST).map(|at| at.span());
            let span = burst.unwrap_or_else(|| read.span_of(&Limit::RATE));
            problems.warning(span, message, help(limit));
        }
        for class in classes {
            let Service::Multiplier(multiplier) = class.table.service() else {
                continue;
            };
            let (rate, burst) = (
                multiplier.rate(limit.rates.rate),
                multiplier.units(limit.rates.burst),
            );
            if burst < least_burst(rate) && limit.rates.burst >= least_burst(limit.rates.rate) {
                let message = format!(
                    "TCP of class {:?} stays below limit {:?}: the class's burst is {}",
                    class.table.name,
                    limit.name,
                    bytes(burst)
                );
                let help = format!(
                    "raise the limit's burst such that this class has {}",
                    bytes(least_burst(rate))
                );
                problems.warning(class.span_of(&Class::NAME), message, help);
            }
        }
    }
}

/// Whether the limit drops bytes, and its packets may be TCP.
fn refuses_tcp(limit: &Limit) -> bool {
    limit.unit == Unit::Bytes
        && matches!(limit.protocol, ProtocolFilter::Any | ProtocolFilter::Tcp)
        && matches!(limit.action, Action::Drop | Action::Reject)
}

fn help(limit: &Limit) -> String {
    if limit.rates.algorithm.has_burst() {
        format!(
            "set burst = \"{}\" or more, or protocol = \"udp\"",
            bytes(least_burst(limit.rates.rate))
        )
    } else {
        format!(
            "give the rate a longer time, so that it holds {} or more",
            bytes(least_burst(limit.rates.rate))
        )
    }
}

/// A number of bytes as written in limits.toml, rounded up if it is not exact.
fn bytes(count: u64) -> String {
    match count {
        _ if count < 10_000 => format!("{count}B"),
        _ if count.is_multiple_of(1_024) && count < 1 << 20 => format!("{}KiB", count / 1_024),
        _ if count.is_multiple_of(1_000_000) => format!("{}MB", count / 1_000_000),
        _ => format!("{}kB", count.div_ceil(1_000)),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use crate::parse;

    fn warnings(lines: &str) -> Vec<String> {
        let text = format!(
            "[agent]\ninterfaces = [\"eth0\"]\n[[limit]]\nname = \"a\"\nunit = \"bytes\"\n{lines}\n"
        );
        let loaded =
            parse(Path::new("limits.toml"), &text).unwrap_or_else(|report| panic!("{report}"));
        loaded
            .warnings
            .iter()
            .map(|warning| format!("{} {}", warning.message, warning.help))
            .collect()
    }

    #[test]
    fn a_burst_that_tcp_uses_up_within_its_timer_is_warned_of() {
        for (lines, wanted) in [
            ("rate = \"20MB/s\"\nburst = \"64KiB\"", "burst = \"5MB\""),
            ("rate = \"20MB/s\"\nburst = \"4999kB\"", "burst = \"5MB\""),
            (
                "rate = \"100kB/s\"\nburst = \"100kB\"",
                "burst = \"256KiB\"",
            ),
            (
                "rate = \"7MB/s\"\nburst = \"1MB\"\nalgorithm = \"leaky-bucket\"",
                "burst = \"1750kB\"",
            ),
            (
                "rate = \"200kB/s\"\nalgorithm = \"sliding-window\"",
                "256KiB or more",
            ),
        ] {
            let warnings = warnings(lines);
            assert_eq!(warnings.len(), 1, "{lines}: {warnings:?}");
            assert!(
                warnings[0].contains("TCP stays below") && warnings[0].contains(wanted),
                "{lines}: {warnings:?}"
            );
        }
        for lines in [
            "rate = \"20MB/s\"",
            "rate = \"100kB/s\"",
            "rate = \"100B/s\"",
            "rate = \"12345Mbit/s\"",
            "rate = \"1GB/day\"",
            "rate = \"20MB/s\"\nburst = \"5MB\"",
            "rate = \"1MB/s\"\nburst = \"256KiB\"",
            "rate = \"20MB/s\"\nburst = \"64KiB\"\nprotocol = \"udp\"",
            "rate = \"20MB/s\"\nburst = \"64KiB\"\naction = \"observe\"",
        ] {
            assert_eq!(warnings(lines), [""; 0], "{lines}");
        }
    }

    #[test]
    fn a_class_whose_share_is_too_small_for_tcp_is_warned_of() {
        let class = |multiplier: &str| {
            format!(
                "rate = \"4MB/s\"\n[[class]]\nname = \"slow\"\nsources = [\"192.0.2.0/24\"]\nmultiplier = {multiplier}"
            )
        };
        assert_eq!(warnings(&class("0.5")), [""; 0]);
        let warnings = warnings(&class("0.1"));
        assert!(
            warnings.len() == 1 && warnings[0].contains("class \"slow\""),
            "{warnings:?}"
        );
    }
}
