//! The readings of a check of this host's health, and their bounds.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use common::packet::Address;
use config::policy::FleetRules;
use rollout::health::{self, Bounds, LimitCounts, Probe, Readings, Unhealthy};
use rollout::host::Rules;

use super::application::Application;
use super::polite::{self, Polite};
use crate::daemon::{Agent, AgentDocuments as _};
use crate::stats::Extent;

/// How far back the refusals before a trial are compared.
const HISTORY: Duration = Duration::from_secs(3_600);
/// The time between two samples of the history.
const STEP: Duration = Duration::from_secs(60);

/// Passed and refused packets or requests of each limit.
type Counts = BTreeMap<String, (u64, u64)>;

/// Counts of the last hour, for predictions.
#[derive(Default)]
pub(super) struct History(VecDeque<(Instant, Counts)>);

impl History {
    /// Adds a sample, if one is due.
    pub(super) fn sample(&mut self, agent: &Agent) {
        let now = Instant::now();
        let is_due = (self.0.back()).is_none_or(|(last, _)| now >= *last + STEP);
        if !is_due {
            return;
        }
        if let Ok(counts) = counts(agent) {
            self.add(now, counts);
        }
    }

    /// Keeps the newest sample that is an hour old: there are none during a trial, which may last longer.
    fn add(&mut self, now: Instant, counts: Counts) {
        while (self.0.get(1)).is_some_and(|(second, _)| *second + HISTORY <= now) {
            self.0.pop_front();
        }
        self.0.push_back((now, counts));
    }

    /// The share that each limit has refused since the oldest sample; a limit with fewer than `least` units has refused none.
    fn shares(&self, now: &Counts, least: u64) -> BTreeMap<String, f64> {
        let none = Counts::new();
        let oldest = self.0.front().map_or(&none, |(_, counts)| counts);
        let share = |(name, now): (&String, &(u64, u64))| {
            let (passed, refused) = since(oldest.get(name), *now);
            let all = passed.saturating_add(refused);
            let share = if all >= least {
                refused as f64 / all as f64
            } else {
                0.0
            };
            (name.clone(), share)
        };
        now.iter().map(share).collect()
    }
}

/// Readings before rules are put in effect.
pub(super) struct Before {
    counts: Counts,
    polite: Vec<Address>,
}

impl Before {
    pub(super) fn read(agent: &Agent) -> Self {
        Self {
            counts: counts(agent).unwrap_or_default(),
            polite: polite::sample(agent, HISTORY),
        }
    }
}

/// The health under rules on trial.
pub(super) struct Baseline {
    pub(super) before: Before,
    counts: Counts,
    polite: Polite,
    /// Refused packets of each address from which the host is managed.
    management: BTreeMap<String, u64>,
    bounds: Bounds,
    application: Application,
}

impl Baseline {
    /// Begins; the rules have just been put in effect, or merged into another file. `before` was read before they were put
    /// in effect.
    pub(super) fn begin(
        agent: &Agent,
        fleet: &FleetRules,
        rules: &Rules,
        history: &History,
        before: Before,
    ) -> Result<Self, String> {
        let mut bounds = Bounds::default();
        let counts = counts(agent)?;
        // A new limit has refused nothing.
        let new = counts.keys().map(|name| (name.clone(), 0.0));
        bounds.predicted.extend(new);
        bounds
            .predicted
            .extend(history.shares(&before.counts, bounds.least));
        let signed = rules.predicted.iter();
        let signed = signed.map(|(name, share)| (name.clone(), share.fraction()));
        bounds.predicted.extend(signed);
        let management = managers(fleet)
            .map(|address| (address.to_string(), refused_of(agent, address).unwrap_or(0)));
        Ok(Self {
            polite: Polite::begin(agent, before.polite.clone())?,
            before,
            counts,
            management: management.collect(),
            bounds,
            application: Application::start(fleet),
        })
    }

    /// Checks the health since the beginning.
    ///
    /// # Errors
    ///
    /// When the host is not healthy, or the kernel's counts cannot be read.
    pub(super) fn check(&mut self, agent: &Agent, fleet: &FleetRules) -> Result<(), Unhealthy> {
        let now = counts(agent).map_err(Unhealthy::Unreadable)?;
        let polite = self.polite.since(agent).map_err(Unhealthy::Unreadable)?;
        let limits = now.into_iter().map(|(name, now)| {
            let (passed, refused) = since(self.counts.get(&name), now);
            let (polite_passed, polite_refused) = polite.get(&name).copied().unwrap_or_default();
            LimitCounts {
                name,
                passed,
                refused,
                polite_passed,
                polite_refused,
            }
        });
        let readings = Readings {
            limits: limits.collect(),
            management: self.management(agent, fleet),
            application: self.application.probe(),
        };
        health::check(&readings, &self.bounds)
    }

    fn management(&self, agent: &Agent, fleet: &FleetRules) -> Probe {
        let mut probe = Probe::Unused;
        for address in managers(fleet) {
            let refused = match refused_of(agent, address) {
                Ok(refused) => refused,
                Err(reason) => return Probe::Fails(format!("{address}: {reason}")),
            };
            let before = self.management.get(&address.to_string());
            let more = refused.saturating_sub(before.copied().unwrap_or(0));
            if more > 0 {
                return Probe::Fails(format!("{more} packets of {address} were refused"));
            }
            probe = Probe::Works;
        }
        probe
    }
}

fn managers(fleet: &FleetRules) -> impl Iterator<Item = std::net::IpAddr> {
    fleet.management.iter().copied()
}

/// The packets of an address that limits refused. A ban is an error.
fn refused_of(agent: &Agent, address: std::net::IpAddr) -> Result<u64, String> {
    let status = agent.show(address)?;
    if status.ban.is_some() {
        return Err("it is banned".to_owned());
    }
    Ok((status.limits.iter())
        .map(|limit| limit.throttled_packets)
        .sum())
}

/// The counts of all limits, on packets and on requests.
pub(super) fn counts(agent: &Agent) -> Result<Counts, String> {
    let limits = agent.limits(Extent::Counters)?;
    let of = |limit: crate::stats::LimitStatus| {
        let counts = (limit.passed.packets, limit.throttled.packets);
        (limit.definition.name, counts)
    };
    Ok(limits.into_iter().map(of).collect())
}

/// The counts since; counters may have been reset.
fn since(before: Option<&(u64, u64)>, (passed, refused): (u64, u64)) -> (u64, u64) {
    match before {
        Some((p, r)) if *p <= passed && *r <= refused => (passed - p, refused - r),
        _ => (passed, refused),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(passed: u64, refused: u64) -> Counts {
        Counts::from([("web".to_owned(), (passed, refused))])
    }

    #[test]
    fn the_prediction_is_what_a_limit_refused_in_the_last_hour() {
        let history = History(VecDeque::from([(Instant::now(), counts(1_000, 500))]));
        let share = |passed, refused| history.shares(&counts(passed, refused), 100)["web"];
        assert_eq!(share(1_900, 600), 0.1);
        // After a trial of two hours.
        let mut history = History::default();
        let began = Instant::now();
        for (minutes, refused) in [(0, 0), (1, 100), (121, 200), (122, 300)] {
            history.add(began + STEP * minutes, counts(1_000, refused));
        }
        assert_eq!(history.0.len(), 3);
        assert_eq!(history.shares(&counts(1_600, 500), 100)["web"], 0.4);
        // Too few units, and counters that were reset.
        assert_eq!(share(1_000, 599), 0.0);
        assert_eq!(share(500, 500), 0.5);
    }
}
