//! Derives limits from summarised traffic, each with its basis.
//!
//! For each service and unit, sources are divided at a gap ([`super::gap`]). A token bucket is fitted to the busiest
//! windows of those below it, with a margin of [`MARGIN`]. docs/guides/suggest.md has the method, its units and its
//! bounds.

use std::time::Duration;

use config::human::{self, number};
use host::PROGRAM;
use thiserror::Error;

use super::classes::{self, Bulk, SuggestedClass};
use super::gap::{Split, split};
use super::limit::{
    Basis, LEAST_SOURCES, Lacking, Pace, SuggestedLimit, Together, WindowBasis, two_digits,
};
use super::traffic::{
    ByWindow, Counts, ServiceTraffic, SourceTraffic, Traffic, Transport, Unit, WINDOWS,
};

/// The shortest capture, in seconds: ten times a minute, the longest window that is used then.
pub const LEAST_SECONDS: u64 = 600;
/// The number of sources from which the quantile is 99.9 % instead of 99 %.
const MANY_SOURCES: u64 = 1_000;
/// The factor between the needs of a capture's sources and the limit, for at least [`MANY_SOURCES`]. With fewer
/// sources, their maximum says less about future ones: for a Pareto tail with exponent 2, the margin grows with the
/// root of the ratio.
const MARGIN: f64 = 1.5;
/// If one in this many sources is busy all the time, that is usual.
const BULK: usize = 5;
/// How many times a window must fit into the capture to be used.
const TIMES: u64 = 3;
/// The ratio of the busiest source to the quantile from which a note reports it.
const LONG_TAIL: u64 = 20;
/// The ratio of opened to completed connections in a flood of forged sources …
const FLOODED: u64 = 10;
/// … and the fewest of them in 10 s.
const FEWEST_OPENED: u64 = 1_000;
/// The packets per minute from which equal sources are an attack rather than light.
const BUSY: u64 = 600;

/// Why there is no suggestion.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum SuggestError {
    /// No packets that a limit would count.
    #[error(
        "no incoming packets that a limit would count (IP: TCP, UDP or ICMP) among {others} packets. Of a capture: name the host's addresses with --local PREFIX, or capture on its interface. Of a recording: it is written every 5 minutes and by {PROGRAM} record --stop"
    )]
    Empty {
        /// Other packets.
        others: u64,
    },
    /// The capture is too short.
    #[error(
        "too little data: packets in {} of {}, at least {} required: capture a day with its busiest hour",
        human::time(Duration::from_secs_f64((*active_seconds as f64).min(*seconds))),
        human::time(Duration::from_secs_f64(*seconds)),
        human::time(Duration::from_secs(LEAST_SECONDS))
    )]
    Short {
        /// From the first packet to the last.
        seconds: f64,
        /// Seconds with packets, in steps of 10.
        active_seconds: u64,
    },
    /// No service has enough sources.
    #[error("too little data: no protocol or port has enough sources{}", .lacking.iter().map(|lacking| format!("\n  {lacking}")).collect::<String>())]
    Sources { lacking: Vec<Lacking> },
}

/// The suggestions.
#[derive(Clone, Debug, PartialEq)]
pub struct Decision {
    /// Limits by source.
    pub limits: Vec<SuggestedLimit>,
    /// Classes of sources that need more than the limits, and otherwise resemble most.
    pub classes: Vec<SuggestedClass>,
    /// Limits for all sources together.
    pub together: Vec<Together>,
    /// Services without a limit.
    pub lacking: Vec<Lacking>,
    /// Notes for the operator.
    pub notes: Vec<String>,
}

/// Suggests limits.
///
/// # Errors
///
/// When there is too little data; the error has the required amount.
pub fn decide(traffic: &Traffic) -> Result<Decision, SuggestError> {
    if traffic.packets == 0 {
        return Err(SuggestError::Empty {
            others: traffic.others,
        });
    }
    if traffic.active_seconds < LEAST_SECONDS {
        return Err(SuggestError::Short {
            seconds: traffic.seconds,
            active_seconds: traffic.active_seconds,
        });
    }
    let usable = WINDOWS
        .iter()
        .take_while(|window| traffic.active_seconds >= **window * TIMES)
        .count();
    let (mut limits, mut lacking) = (Vec::new(), Vec::new());
    for service in &traffic.services {
        for found in limits_of(service, usable, traffic.active_seconds) {
            match found {
                Ok(limit) => limits.push(limit),
                Err(too_few) => lacking.push(too_few),
            }
        }
    }
    if limits.is_empty() {
        return Err(SuggestError::Sources { lacking });
    }
    let mut notes = Vec::new();
    let classes = classes::classes(traffic, &mut limits, &mut notes);
    let together: Vec<Together> = traffic
        .services
        .iter()
        .filter_map(|service| together(service, usable))
        .collect();
    notes.extend(limits.iter().filter_map(uniform));
    notes.extend(limits.iter().filter_map(long_tail));
    notes.extend(traffic.services.iter().filter_map(light));
    if traffic.early > 0 {
        notes.push(format!(
            "{} sources were summarised before the end to make room for busier ones; those that came back are counted again",
            number(traffic.early)
        ));
    }
    Ok(Decision {
        limits,
        classes,
        together,
        lacking,
        notes,
    })
}

/// The units of limits on a service.
fn units(service: &ServiceTraffic) -> Vec<Unit> {
    let sources = |unit: Unit| service.busiest[unit as usize][0].sources();
    let has_requests = service.service.port.is_some() && sources(Unit::Requests) >= LEAST_SOURCES;
    match service.service.protocol {
        // A connection is also a packet: the limit on connections covers it.
        Transport::Tcp if has_requests => vec![Unit::Packets, Unit::Connections, Unit::Requests],
        Transport::Tcp => vec![Unit::Packets, Unit::Connections],
        // For a name server, each packet is a request.
        Transport::Udp | Transport::Icmp => vec![Unit::Packets],
    }
}

/// The limits of a service.
///
/// Named sources that are outliers in one window are excluded from all: a slow attack is inconspicuous in a second and
/// an outlier in ten minutes. So are the few that are busy all the time and otherwise resemble most: limits are for the
/// others, and these may get a class.
fn limits_of(
    service: &ServiceTraffic,
    usable: usize,
    active_seconds: u64,
) -> Vec<Result<SuggestedLimit, Lacking>> {
    let units = units(service);
    let mut excluded = vec![false; service.named.len()];
    exclude_apart(service, &units, usable, &mut excluded);
    let find = |excluded: &[bool]| -> Vec<_> {
        units
            .iter()
            .map(|unit| limit(service, *unit, usable, excluded))
            .collect()
    };
    let first = find(&excluded);
    let limits: Vec<&SuggestedLimit> = first
        .iter()
        .filter_map(|limit| limit.as_ref().ok())
        .collect();
    let lasting = service
        .sample
        .iter()
        .filter(|(_, source)| source.is_lasting(active_seconds))
        .count();
    if limits.is_empty() || lasting * BULK >= service.sample.len() {
        return first;
    }
    let bulk = Bulk::of(service, &limits);
    for (source, is_excluded) in service.named.iter().zip(&mut excluded) {
        *is_excluded |= bulk
            .unlike(source, service.service.protocol, active_seconds)
            .is_none();
    }
    exclude_apart(service, &units, usable, &mut excluded);
    find(&excluded)
}

/// Marks the named sources that are beyond a gap of some unit and window.
fn exclude_apart(service: &ServiceTraffic, units: &[Unit], usable: usize, excluded: &mut [bool]) {
    const ROUNDS: usize = 4;
    for _ in 0..ROUNDS {
        let mut is_changed = false;
        for unit in units {
            for (window, split) in splits(service, *unit, usable, excluded)
                .into_iter()
                .enumerate()
            {
                if split.beyond == 0 || split.below < LEAST_SOURCES {
                    continue;
                }
                for (source, is_excluded) in service.named.iter().zip(&mut *excluded) {
                    if !*is_excluded && source.busiest[*unit as usize][window] > split.highest {
                        (*is_excluded, is_changed) = (true, true);
                    }
                }
            }
        }
        if !is_changed {
            break;
        }
    }
}

/// The division of the sources that are not excluded, for each window.
fn splits(service: &ServiceTraffic, unit: Unit, usable: usize, excluded: &[bool]) -> Vec<Split> {
    // The lowest counts between which there may be a gap.
    let least = if unit == Unit::Packets { 8 } else { 3 };
    counts(service, unit, usable, excluded)
        .iter()
        .map(|counts| split(counts, least))
        .collect()
}

/// The counts of the sources that are not excluded.
fn counts(service: &ServiceTraffic, unit: Unit, usable: usize, excluded: &[bool]) -> Vec<Counts> {
    let is_counted =
        |source: &SourceTraffic| !source.only_opens() && source.busiest[unit as usize][0] > 0;
    let without = |(window, counts): (usize, &Counts)| {
        let out = service
            .named
            .iter()
            .zip(excluded)
            .filter(|(source, is_out)| **is_out && is_counted(source));
        counts.without(out.map(|(source, _)| source.busiest[unit as usize][window]))
    };
    service.busiest[unit as usize][..usable]
        .iter()
        .enumerate()
        .map(without)
        .collect()
}

fn limit(
    service: &ServiceTraffic,
    unit: Unit,
    usable: usize,
    excluded: &[bool],
) -> Result<SuggestedLimit, Lacking> {
    let all = splits(service, unit, usable, &[]);
    let splits = splits(service, unit, usable, excluded);
    let sources = splits.iter().map(|split| split.below).min().unwrap_or(0);
    let only_open = service.only_open[0].sources();
    if sources < LEAST_SOURCES {
        return Err(Lacking {
            service: service.service,
            unit,
            sources,
            only_open,
        });
    }
    let quantile = if sources >= MANY_SOURCES { 0.999 } else { 0.99 };
    let counts = counts(service, unit, usable, excluded);
    let window = |nth: usize| WindowBasis {
        seconds: WINDOWS[nth],
        median: counts[nth].quantile(0.5, splits[nth].highest),
        value: counts[nth].quantile(quantile, splits[nth].highest),
        highest: splits[nth].highest,
        beyond: all[nth].beyond,
        next: all[nth].next,
    };
    let windows: Vec<WindowBasis> = (0..usable).map(window).collect();
    let needs: Vec<(u64, u64)> = windows
        .iter()
        .map(|window| (window.seconds, window.highest))
        .collect();
    let margin = MARGIN * (MANY_SOURCES as f64 / sources as f64).max(1.0).sqrt();
    let (rate, burst) = bucket(&needs, margin, if unit == Unit::Packets { 50 } else { 10 });
    let value = windows.first().map_or(0, |window| window.value);
    let basis = Basis {
        sources,
        quantile,
        value,
        margin,
        windows,
        exceeding: 0,
        only_open: 0,
        busiest: Vec::new(),
    };
    let mut limit = SuggestedLimit {
        service: service.service,
        unit,
        rate,
        burst,
        basis,
    };
    let above = |counts: &ByWindow<Counts>| {
        let by_window = counts
            .iter()
            .zip(WINDOWS)
            .map(|(counts, seconds)| counts.above(limit.allows(seconds) as u64));
        by_window.max().unwrap_or(0)
    };
    let opening = if matches!(unit, Unit::Requests | Unit::Bytes) {
        0
    } else {
        above(&service.only_open)
    };
    let exceeding = above(&service.busiest[unit as usize]) + opening;
    (limit.basis.exceeding, limit.basis.only_open) = (exceeding, opening);
    Ok(limit)
}

/// The token bucket with the lowest rate that allows `margin` times the need in each window.
///
/// The rate is that of the longest window: beyond it, sources are assumed to continue likewise. The burst covers the
/// others.
fn bucket(needs: &[(u64, u64)], margin: f64, least_burst: u64) -> (Pace, u64) {
    let rate = needs.last().map_or(0.0, |(seconds, count)| {
        margin * *count as f64 / *seconds as f64
    });
    let rate = Pace::at_least(rate);
    let beyond = |(seconds, count): &(u64, u64)| {
        margin * *count as f64 - rate.per_second() * *seconds as f64
    };
    let burst = needs.iter().map(beyond).fold(least_burst as f64, f64::max);
    (rate, two_digits(burst))
}

/// A limit for all sources together, if there was a flood of connections that no limit by source refuses.
fn together(service: &ServiceTraffic, usable: usize) -> Option<Together> {
    const TEN_SECONDS: usize = 1;
    service.service.port?;
    let (unanswered, completed) = (
        service.unanswered[TEN_SECONDS],
        service.completed[TEN_SECONDS],
    );
    if unanswered < FEWEST_OPENED || unanswered < completed.saturating_mul(FLOODED) {
        return None;
    }
    let needs: Vec<(u64, u64)> = WINDOWS
        .iter()
        .zip(service.completed)
        .map(|(seconds, count)| (*seconds, count))
        .take(usable)
        .collect();
    let (rate, burst) = bucket(&needs, MARGIN, 100);
    // In a long flood, the burst is used up.
    let allowed = rate.per_second() * WINDOWS[TEN_SECONDS] as f64;
    let refused_share = (1.0 - allowed / unanswered.saturating_add(completed) as f64).max(0.0);
    Some(Together {
        service: service.service,
        rate: rate.to_string(),
        burst,
        unanswered,
        completed,
        refused_share,
    })
}

/// A note about sources that are all busy and equal.
fn uniform(limit: &SuggestedLimit) -> Option<String> {
    let minute = limit
        .basis
        .windows
        .iter()
        .find(|window| window.seconds == 60)?;
    let is_uniform =
        limit.unit == Unit::Packets && minute.median >= BUSY && minute.median * 3 >= minute.highest;
    is_uniform.then(|| {
        format!(
            "{}: half of the sources send {} packets or more in a minute, and none sends three times as much: if this is an \
             attack, the limit allows it; capture ordinary traffic instead",
            limit.name(),
            number(minute.median)
        )
    })
}

/// A note about a limit that depends on a few sources without a gap to the others.
fn long_tail(limit: &SuggestedLimit) -> Option<String> {
    let window = limit
        .basis
        .windows
        .iter()
        .find(|window| window.highest > window.value * LONG_TAIL)?;
    Some(format!(
        "{}: the busiest source sends {} in {}, and {} % of the sources at most {}, with no gap between them: the limit allows \
         the busiest, also if it is part of an attack",
        limit.name(),
        number(window.highest),
        human::time(Duration::from_secs(window.seconds)),
        limit.basis.quantile * 100.0,
        number(window.value)
    ))
}

/// A note about sources that no limit by source can refuse.
fn light(service: &ServiceTraffic) -> Option<String> {
    let is_flood = service.light_sources >= 10_000 && service.light_packets * 2 > service.packets;
    (is_flood && service.service.port.is_some()).then(|| {
        format!(
            "{}: {} of {} packets are of {} sources with at most 3 each: no limit by source can refuse them",
            service.service,
            number(service.light_packets),
            number(service.packets),
            number(service.light_sources)
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    use crate::suggest::Service;

    #[test]
    fn rates_have_two_digits_and_are_never_too_low() {
        for (per_second, text) in [
            (38.0, "38/s"),
            (1_234.0, "1300/s"),
            (9.9, "600/min"),
            (0.2, "12/min"),
            (0.1, "360/h"),
            (0.0, "1/h"),
        ] {
            let pace = Pace::at_least(per_second);
            assert_eq!(pace.to_string(), text);
            assert!(pace.per_second() >= per_second * 0.999_999);
        }
    }

    proptest! {
        #[test]
        fn a_bucket_allows_the_margin_on_what_was_needed_in_each_window(
            counts in proptest::collection::vec(0u64..10_000_000, 1..5),
        ) {
            let mut counts = counts;
            counts.sort_unstable();
            let needs: Vec<(u64, u64)> = WINDOWS.into_iter().zip(counts).collect();
            let (rate, burst) = bucket(&needs, MARGIN, 10);
            for (seconds, count) in needs {
                let allowed = burst as f64 + rate.per_second() * seconds as f64;
                prop_assert!(allowed >= MARGIN * count as f64 * 0.999_999, "{rate} {burst}: {count} in {seconds} s");
            }
        }
    }

    #[test]
    fn too_little_data_says_how_much_is_needed() {
        let mut traffic = Traffic {
            packets: 1,
            seconds: 86_458.0,
            active_seconds: 60,
            ..Traffic::default()
        };
        let said = decide(&traffic).unwrap_err().to_string();
        assert!(
            said.contains("in 1 min of 1 d") && said.contains("10 min"),
            "{said}"
        );
        traffic.active_seconds = 3_600;
        let service = Service {
            protocol: Transport::Tcp,
            port: Some(443),
        };
        let mut web = ServiceTraffic::new(service);
        (0..14).for_each(|_| web.busiest[0].iter_mut().for_each(|counts| counts.add(3)));
        traffic.services.push(web);
        let said = decide(&traffic).unwrap_err().to_string();
        assert!(
            said.contains("TCP port 443, packets: 14 of at least 100 sources"),
            "{said}"
        );
        traffic.packets = 0;
        assert!(
            decide(&traffic)
                .unwrap_err()
                .to_string()
                .contains("--local")
        );
    }
}
