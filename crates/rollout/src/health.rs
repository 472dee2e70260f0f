//! Whether a host is healthy under rules on trial: pure functions over what was counted since the trial began.

use std::collections::BTreeMap;
use std::time::Duration;

use thiserror::Error;

/// The time between two checks of a host's health during a bake.
pub const CHECK: Duration = Duration::from_secs(1);

/// Counts of one limit since the trial began, in its unit.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LimitCounts {
    pub name: String,
    pub passed: u64,
    pub refused: u64,
    /// Those of a sample of sources that no limit refused in the hour before the trial. Exempt sources have none: they are
    /// exempt before limits.
    pub polite_passed: u64,
    pub polite_refused: u64,
}

/// The state of something that must work under the rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Probe {
    /// The config has none.
    Unused,
    /// No result yet.
    Running,
    Works,
    Fails(String),
}

/// The readings of a check.
#[derive(Clone, Debug, PartialEq)]
pub struct Readings {
    pub limits: Vec<LimitCounts>,
    /// Whether the management address has reached this host since the trial began.
    pub management: Probe,
    /// Whether the application's health endpoint replies with success.
    pub application: Probe,
}

/// The bounds of a healthy host.
#[derive(Clone, Debug, PartialEq)]
pub struct Bounds {
    /// The share of refused units that is predicted, by limit: what the publisher signed, or what the limit refused in the last
    /// hour. Limits without a prediction may refuse any share.
    pub predicted: BTreeMap<String, f64>,
    /// How far above its prediction a limit may be, as a share of all units.
    pub slack: f64,
    /// The greatest refused share of polite sources' units.
    pub polite: f64,
    /// The units from which on shares are compared: few are no sample.
    pub least: u64,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            predicted: BTreeMap::new(),
            slack: 0.02,
            polite: 0.01,
            least: 100,
        }
    }
}

/// Why a host is not healthy.
#[derive(Clone, Debug, PartialEq, Error)]
pub enum Unhealthy {
    #[error(
        "limit {limit:?} refuses {found:.1} % of its units, and at most {most:.1} % were predicted"
    )]
    MoreThanPredicted {
        limit: String,
        found: f64,
        most: f64,
    },
    #[error(
        "limit {limit:?} refuses {found:.1} % of the units of sources that no limit refused before; the bound is {most:.1} %"
    )]
    RefusesPolite {
        limit: String,
        found: f64,
        most: f64,
    },
    #[error("the limits cannot be read: {0}")]
    Unreadable(String),
    #[error("the management address does not reach this host: {0}")]
    Unreachable(String),
    #[error("the application's health endpoint fails: {0}")]
    Application(String),
}

/// Checks readings against bounds. The first fault found is the result: lost management before all others.
///
/// # Errors
///
/// When the host is not healthy.
pub fn check(readings: &Readings, bounds: &Bounds) -> Result<(), Unhealthy> {
    if let Probe::Fails(reason) = &readings.management {
        return Err(Unhealthy::Unreachable(reason.clone()));
    }
    if let Probe::Fails(reason) = &readings.application {
        return Err(Unhealthy::Application(reason.clone()));
    }
    readings
        .limits
        .iter()
        .try_for_each(|limit| check_limit(limit, bounds))
}

fn check_limit(counts: &LimitCounts, bounds: &Bounds) -> Result<(), Unhealthy> {
    let limit = || counts.name.clone();
    let polite = share(counts.polite_passed, counts.polite_refused, bounds.least);
    if let Some(found) = polite.filter(|found| *found > bounds.polite) {
        return Err(Unhealthy::RefusesPolite {
            limit: limit(),
            found: found * 100.0,
            most: bounds.polite * 100.0,
        });
    }
    let Some(predicted) = bounds.predicted.get(&counts.name) else {
        return Ok(());
    };
    let most = predicted + bounds.slack;
    match share(counts.passed, counts.refused, bounds.least) {
        Some(found) if found > most => Err(Unhealthy::MoreThanPredicted {
            limit: limit(),
            found: found * 100.0,
            most: most * 100.0,
        }),
        _ => Ok(()),
    }
}

/// The refused share; `None` of fewer than `least` units.
fn share(passed: u64, refused: u64, least: u64) -> Option<f64> {
    let all = passed.saturating_add(refused);
    (all >= least.max(1)).then(|| refused as f64 / all as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn readings(counts: LimitCounts) -> Readings {
        Readings {
            limits: vec![LimitCounts {
                name: "web".into(),
                ..counts
            }],
            management: Probe::Running,
            application: Probe::Unused,
        }
    }

    fn bounds() -> Bounds {
        Bounds {
            predicted: BTreeMap::from([("web".to_owned(), 0.1)]),
            ..Bounds::default()
        }
    }

    fn counts(passed: u64, refused: u64) -> LimitCounts {
        LimitCounts {
            passed,
            refused,
            ..LimitCounts::default()
        }
    }

    #[test]
    fn refusals_within_the_prediction_and_its_slack_are_healthy() {
        for (passed, refused, is_healthy) in [
            (0, 0, true),
            (880, 120, true),
            (879, 121, false),
            (1_000, 0, true),
            (0, 99, true),
            (0, 100, false),
            (0, u64::MAX, false),
        ] {
            let result = check(&readings(counts(passed, refused)), &bounds());
            assert_eq!(result.is_ok(), is_healthy, "{passed} {refused} {result:?}");
        }
    }

    #[test]
    fn a_limit_without_a_prediction_may_refuse_any_share_of_rude_sources() {
        let unpredicted = Bounds::default();
        assert_eq!(check(&readings(counts(0, 1_000)), &unpredicted), Ok(()));
    }

    #[test]
    fn polite_sources_are_compared_by_themselves() {
        let polite = |polite_passed, polite_refused| LimitCounts {
            polite_passed,
            polite_refused,
            ..counts(1_000_000, polite_refused)
        };
        assert_eq!(check(&readings(polite(990, 10)), &bounds()), Ok(()));
        let error = check(&readings(polite(980, 20)), &bounds()).unwrap_err();
        assert!(
            matches!(error, Unhealthy::RefusesPolite { .. }),
            "{error:?}"
        );
    }

    #[test]
    fn management_and_application_are_faults_when_they_fail() {
        for probe in [Probe::Unused, Probe::Running, Probe::Works] {
            let mut healthy = readings(counts(0, 0));
            (healthy.management, healthy.application) = (probe.clone(), probe);
            assert_eq!(check(&healthy, &bounds()), Ok(()));
        }
        let mut lost = readings(counts(0, 0));
        lost.application = Probe::Fails("503".into());
        assert_eq!(
            check(&lost, &bounds()),
            Err(Unhealthy::Application("503".into()))
        );
        lost.management = Probe::Fails("timeout".into());
        assert_eq!(
            check(&lost, &bounds()),
            Err(Unhealthy::Unreachable("timeout".into()))
        );
    }
}
