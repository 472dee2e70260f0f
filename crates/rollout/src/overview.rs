//! A stream in one document: which hosts have which version in effect, and what keeps the others from the head.

use std::collections::BTreeMap;

use serde::Serialize;

use crate::board::{Progress, Report};

/// A host that does not have the head in effect, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Obstacle {
    pub host: String,
    pub reason: String,
}

/// All hosts of a stream.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Overview {
    /// The number of hosts by the version in effect; 0 is the host's file alone.
    pub effective: BTreeMap<u64, u64>,
    /// Of the hosts that have accepted the head:
    pub waiting: u64,
    pub trying: u64,
    pub held: u64,
    /// Hosts that rolled the head back or refuse it, by name.
    pub obstacles: Vec<Obstacle>,
    /// Hosts that have not read the head yet.
    pub behind: u64,
}

impl Overview {
    /// Counts the reports of a stream whose head has this version.
    #[must_use]
    pub fn of<'r>(reports: impl IntoIterator<Item = &'r Report>, head: u64) -> Self {
        let mut overview = Self::default();
        for report in reports {
            *overview.effective.entry(report.effective).or_default() += 1;
            let obstacle = match &report.progress {
                // Refusals of the present head, which the host has not accepted.
                Progress::Held if report.version == head && report.effective == head => {
                    overview.held += 1;
                    None
                }
                _ if report.refused.is_some() => report.refused.clone(),
                _ if report.version < head => {
                    overview.behind += 1;
                    None
                }
                Progress::Waiting => {
                    overview.waiting += 1;
                    None
                }
                Progress::Trying { .. } => {
                    overview.trying += 1;
                    None
                }
                Progress::Held => {
                    overview.held += 1;
                    None
                }
                Progress::Failed { reason } | Progress::Stopped { reason } => Some(reason.clone()),
            };
            overview.obstacles.extend(obstacle.map(|reason| Obstacle {
                host: report.host.clone(),
                reason,
            }));
        }
        overview.obstacles.sort_by(|a, b| a.host.cmp(&b.host));
        overview
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::start;

    #[test]
    fn every_host_is_counted_once() {
        let report = |host: &str, version, progress, effective, refused: Option<&str>| Report {
            host: host.into(),
            labels: BTreeMap::new(),
            stream: "web".into(),
            version,
            digest: String::new(),
            progress,
            effective,
            refused: refused.map(str::to_owned),
            counts: false,
        };
        let failed = |reason: &str| Progress::Failed {
            reason: reason.into(),
        };
        let trying = Progress::Trying { ends: start() };
        let reports = [
            report("h", 3, failed("503"), 2, None),
            // A document beside the release that is in effect.
            report("g", 3, Progress::Held, 3, Some("unsigned")),
            report("f", 3, trying, 3, None),
            report("e", 3, Progress::Waiting, 2, None),
            report("d", 2, Progress::Held, 2, None),
            report("c", 2, Progress::Held, 2, Some("expired")),
            report("b", 0, Progress::Waiting, 0, None),
            report("a", 2, failed("of before"), 1, None),
        ];
        let overview = Overview::of(&reports, 3);
        let obstacle = |host: &str, reason: &str| Obstacle {
            host: host.into(),
            reason: reason.into(),
        };
        let expected = Overview {
            effective: BTreeMap::from([(0, 1), (1, 1), (2, 4), (3, 2)]),
            waiting: 1,
            trying: 1,
            held: 1,
            obstacles: vec![obstacle("c", "expired"), obstacle("h", "503")],
            behind: 3,
        };
        assert_eq!(overview, expected);
    }
}
