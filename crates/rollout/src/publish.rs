//! The next release of a stream, from what the store has.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

use thiserror::Error;

use crate::board::Report;
use crate::canary::{Canary, NoHosts, Share};
use crate::document::{Object, Release};
use crate::refusal::Refusal;
use crate::rules::{self, Rights};

/// How far a version may be above the others of a stream.
const MOST_SKIPPED: u64 = 1_000;
/// The most canaries, whose reports the index has: a larger one takes hosts too much memory to read.
const MOST_CANARIES: u64 = 2_000;
/// The longest time for which hosts may begin with a release: ten years.
const LONGEST_LIFETIME: Duration = Duration::from_secs(3_650 * 86_400);

/// The publisher's choices.
#[derive(Clone, Debug)]
pub struct Draft {
    pub stream: String,
    pub publisher: String,
    pub share: Share,
    pub bake: Duration,
    /// How long hosts may begin with it.
    pub lifetime: Duration,
    pub select: BTreeMap<String, String>,
    /// The shares that limits are predicted to refuse, by name.
    pub predicted: BTreeMap<String, Share>,
    pub objects: Vec<Object>,
}

/// A release cannot be published.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum PublishError {
    #[error(transparent)]
    NoHosts(#[from] NoHosts),
    #[error(
        "hosts may begin with a release for ten years at most; name a shorter time with --expires"
    )]
    Lifetime,
    #[error(
        "{0} hosts would be canaries, of at most {MOST_CANARIES}; name a smaller share with --canary"
    )]
    Canaries(u64),
    /// Hosts would refuse it.
    #[error("hosts would refuse the release: {0}")]
    Refused(#[from] Refusal),
}

/// The newest of the versions that a store names; 0 for none. Its index, the names of its objects and its reports are not
/// signed. A version that is more than 1,000 above all lower ones is ignored: after version 2⁶³ no other could follow.
#[must_use]
pub fn newest(versions: impl IntoIterator<Item = u64>) -> u64 {
    let mut versions: Vec<u64> = (versions.into_iter())
        .filter(|version| *version > 0)
        .collect();
    versions.sort_unstable();
    let follow = |pair: &&[u64]| pair[1] - pair[0] <= MOST_SKIPPED;
    let following = versions.windows(2).take_while(follow).count();
    versions.get(following).copied().unwrap_or(0)
}

/// The release of a draft. Its version follows those that the store has and that hosts have accepted: a store that lost its
/// newest release would be given a version that hosts take for a replay. `published` are the versions in the store.
///
/// # Errors
///
/// When no host would be a canary, or hosts would refuse it.
pub fn next(
    draft: Draft,
    published: &[u64],
    reports: &[Report],
    now: SystemTime,
) -> Result<Release, PublishError> {
    let of_stream = || {
        reports
            .iter()
            .filter(|report| report.stream == draft.stream)
    };
    if draft.lifetime > LONGEST_LIFETIME {
        return Err(PublishError::Lifetime);
    }
    let accepted = of_stream().map(|report| report.version);
    let previous = newest(published.iter().copied().chain(accepted));
    let mut release = Release {
        version: previous.saturating_add(1),
        previous,
        published: now,
        expires: now + draft.lifetime,
        bake: draft.bake,
        canary: Canary::everywhere(),
        select: draft.select,
        predicted: draft.predicted,
        objects: draft.objects,
        publisher: draft.publisher,
        stream: draft.stream.clone(),
    };
    release.check().map_err(Refusal::Malformed)?;
    // Hosts know what a team may set.
    rules::check(Path::new(""), &release.texts(), &Rights::all()).map_err(Refusal::Rules)?;
    let selected = of_stream().filter(|report| release.is_for(&report.labels));
    let hosts = selected.map(|report| report.host.as_str());
    release.canary = Canary::among(hosts, draft.share, &release.stream, release.version)?;
    match release.canary.share.of(release.canary.hosts) {
        canaries if canaries > MOST_CANARIES => Err(PublishError::Canaries(canaries)),
        _ => Ok(release),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::board::Progress;
    use crate::testing::{DAY, limit, start};

    fn draft() -> Draft {
        Draft {
            stream: "web".into(),
            publisher: "ops".into(),
            share: "1%".parse().unwrap(),
            bake: Duration::from_secs(600),
            lifetime: DAY,
            select: BTreeMap::new(),
            predicted: BTreeMap::new(),
            objects: vec![Object::new("rules.toml", limit("web", "1/s"))],
        }
    }

    fn report(host: &str, role: &str, version: u64) -> Report {
        Report {
            host: host.into(),
            labels: BTreeMap::from([("role".into(), role.into())]),
            stream: "web".into(),
            version,
            digest: String::new(),
            progress: Progress::Waiting,
            effective: version,
            refused: None,
            counts: false,
        }
    }

    fn published(
        draft: Draft,
        versions: &[u64],
        reports: &[Report],
    ) -> Result<Release, PublishError> {
        next(draft, versions, reports, start())
    }

    #[test]
    fn a_version_follows_the_store_and_what_hosts_have_accepted() {
        for (versions, accepted, expected) in [
            (&[][..], 0, 1),
            (&[4], 3, 5),
            (&[4], 4, 5),
            // The publisher ended before the index named release 5.
            (&[4, 1, 5, 3], 4, 6),
            // The store was restored, or lost.
            (&[4], 9, 10),
            (&[], 5_000, 5_001),
        ] {
            let next = published(draft(), versions, &[report("a", "web", accepted)]).unwrap();
            assert_eq!((next.version, next.previous), (expected, expected - 1));
        }
    }

    #[test]
    fn a_version_far_above_the_others_is_ignored() {
        let forged = i64::MAX as u64;
        let reports = [report("a", "web", 4), report("b", "web", forged)];
        let next = published(draft(), &[3, 4, forged - 1], &reports).unwrap();
        assert_eq!((next.version, next.previous), (5, 4));
        assert_eq!(newest([4, 1_004, 2_005]), 1_004);
        // Nothing shows that the only one is forged; nothing follows it.
        for alone in [forged, u64::MAX] {
            let refused = published(draft(), &[alone], &[report("a", "web", 0)]);
            assert!(
                matches!(refused, Err(PublishError::Refused(Refusal::Malformed(_)))),
                "{refused:?}"
            );
        }
    }

    #[test]
    fn a_release_has_a_bounded_number_of_canaries() {
        let reports: Vec<Report> = (0..2_001)
            .map(|host| report(&format!("web-{host}"), "web", 1))
            .collect();
        let mut draft = draft();
        assert!(published(draft.clone(), &[], &reports).is_ok());
        draft.share = Share::ALL;
        assert!(published(draft.clone(), &[], &reports[1..]).is_ok());
        let refused = published(draft, &[], &reports);
        assert_eq!(refused, Err(PublishError::Canaries(2_001)));
    }

    #[test]
    fn a_release_cannot_last_longer_than_ten_years() {
        let mut draft = draft();
        draft.lifetime = Duration::MAX;
        let refused = published(draft, &[], &[report("a", "web", 0)]);
        assert_eq!(refused, Err(PublishError::Lifetime));
    }

    #[test]
    fn canaries_are_among_the_selected_hosts_of_the_stream() {
        let mut reports: Vec<Report> = (0..100)
            .map(|host| report(&format!("db-{host}"), "db", 1))
            .collect();
        reports.push(report("web-1", "web", 1));
        let mut other = report("web-2", "web", 7);
        other.stream = "other".into();
        reports.push(other);
        let mut draft = draft();
        draft.select.insert("role".into(), "web".into());
        let next = published(draft.clone(), &[], &reports).unwrap();
        assert_eq!((next.version, next.canary.hosts), (2, 1));
        assert!(next.canary.includes("web-1", "web", 2));
        draft.select.insert("zone".into(), "a".into());
        assert_eq!(published(draft, &[], &reports), Err(NoHosts.into()));
    }

    #[test]
    fn what_hosts_would_refuse_is_not_published() {
        let reports = [report("a", "web", 0)];
        let mut short = draft();
        short.bake = Duration::from_secs(1);
        let mut forbidden = draft();
        forbidden.objects = vec![Object::new("rules.toml", "[agent]\nmode = \"observe\"\n")];
        let mut other = draft();
        other.objects = vec![Object::new("limits/a.toml", "")];
        for refused in [short, forbidden, other] {
            let outcome = published(refused, &[], &reports);
            assert!(
                matches!(outcome, Err(PublishError::Refused(_))),
                "{outcome:?}"
            );
        }
    }
}
