//! A suggested limit and its basis.

use std::fmt;
use std::net::IpAddr;

use config::human::number;
use config::units;
use serde::Serialize;

use super::traffic::{ByWindow, Service, Unit, WINDOWS};

/// The fewest sources of a service for a limit: below, a quantile of 99 % has no meaning.
pub const LEAST_SOURCES: u64 = 100;

/// A service with too few sources for a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Lacking {
    #[serde(flatten)]
    pub service: Service,
    /// The unit of the missing limit.
    pub unit: Unit,
    /// Its sources, without those beyond a gap and those that only open connections.
    pub sources: u64,
    /// Sources that only open connections.
    pub only_open: u64,
}

impl fmt::Display for Lacking {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            service,
            unit,
            sources,
            only_open,
        } = self;
        let sources = number(*sources);
        write!(
            out,
            "{service}, {}: {sources} of at least {LEAST_SOURCES} sources",
            unit.name()
        )?;
        match only_open {
            0 => Ok(()),
            only_open => write!(
                out,
                "; {} more only open connections and are not counted",
                number(*only_open)
            ),
        }
    }
}

/// A rate in the units of configs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pace {
    /// The count.
    pub count: u64,
    /// Its period in seconds: 1, 60 or 3,600.
    pub seconds: u64,
}

impl Pace {
    /// At least this rate per second, with two significant digits.
    pub(super) fn at_least(per_second: f64) -> Self {
        let seconds = match per_second {
            rate if rate >= 10.0 => 1,
            rate if rate >= 0.17 => 60,
            _ => 3_600,
        };
        Self {
            count: two_digits(per_second * seconds as f64).max(1),
            seconds,
        }
    }

    /// The rate per second.
    #[must_use]
    pub fn per_second(self) -> f64 {
        self.count as f64 / self.seconds as f64
    }
}

impl fmt::Display for Pace {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let period = units::period_text(self.seconds * 1_000_000_000);
        write!(out, "{}/{period}", self.count)
    }
}

/// Rounds up to two significant digits.
pub(super) fn two_digits(value: f64) -> u64 {
    let mut step = 1;
    while value / step as f64 > 99.0 {
        step *= 10;
    }
    (value / step as f64).ceil() as u64 * step
}

/// The sources' packets in their busiest window of one length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct WindowBasis {
    /// The length in seconds.
    pub seconds: u64,
    /// The median of the sources below the gap.
    pub median: u64,
    /// Their quantile.
    pub value: u64,
    /// Their maximum.
    pub highest: u64,
    /// Sources beyond the gap; 0 without a gap.
    pub beyond: u64,
    /// Their least value.
    pub next: u64,
}

/// The basis of a limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Basis {
    /// Sources below the gap.
    pub sources: u64,
    /// The quantile of `value`.
    pub quantile: f64,
    /// The quantile of the sources' busiest second.
    pub value: u64,
    /// The factor between their busiest windows and the limit.
    pub margin: f64,
    pub windows: Vec<WindowBasis>,
    /// Sources of which the limit would refuse packets.
    pub exceeding: u64,
    /// Those of them that only open connections.
    pub only_open: u64,
    /// The busiest of them, by how far they exceed the limit.
    pub busiest: Vec<Exceeding>,
}

/// A source that exceeds a limit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Exceeding {
    /// The address; of IPv6 the first of the /64.
    pub address: IpAddr,
    /// Its packets in the window in which it exceeds the limit most.
    pub value: u64,
    /// The length of that window.
    pub window_seconds: u64,
    /// The factor by which it exceeds the limit in that window.
    pub factor: f64,
    /// Why it gets no class; `null` if it may have one.
    pub unlike: Option<&'static str>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct SuggestedLimit {
    pub service: Service,
    pub unit: Unit,
    pub rate: Pace,
    pub burst: u64,
    pub basis: Basis,
}

impl SuggestedLimit {
    /// The name in the config.
    #[must_use]
    pub fn name(&self) -> String {
        let Service { protocol, port } = self.service;
        let (protocol, unit) = (protocol.name(), self.unit.name());
        port.map_or_else(
            || format!("{protocol}-{unit}"),
            |port| format!("{protocol}-{port}-{unit}"),
        )
    }

    /// The most that passes in this many seconds.
    #[must_use]
    pub fn allows(&self, seconds: u64) -> f64 {
        self.burst as f64 + self.rate.per_second() * seconds as f64
    }

    /// The factor by which these counts exceed the limit, and the window in which it is highest; above 1 if they exceed
    /// it.
    pub(super) fn factor(&self, counts: &ByWindow<u64>) -> (f64, usize) {
        let factors = counts
            .iter()
            .zip(WINDOWS)
            .map(|(count, seconds)| *count as f64 / self.allows(seconds));
        let most = factors
            .enumerate()
            .max_by(|(_, one), (_, other)| one.total_cmp(other));
        most.map_or((0.0, 0), |(window, factor)| (factor, window))
    }
}

/// A limit on the connections of all sources together, for a flood in which each source is light.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Together {
    #[serde(flatten)]
    pub service: Service,
    /// The rate as in configs.
    pub rate: String,
    pub burst: u64,
    /// Connections of the flood in its busiest 10 s.
    pub unanswered: u64,
    /// Completed connections in their busiest 10 s.
    pub completed: u64,
    /// The share of all connections that it would refuse during the flood.
    pub refused_share: f64,
}
