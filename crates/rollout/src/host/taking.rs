//! Verification of the store's head on a host, in an order in which each refusal has its true reason.

use std::path::Path;
use std::time::SystemTime;

use super::Settings;
use super::saved::{Rules, Seen};
use crate::document::{Abort, Document, LONGEST_BAKE_OF_TEAM, Release};
use crate::keyring::Keyring;
use crate::refusal::Refusal;
use crate::rules::{self, Rights};
use crate::text::digest;

/// A verified release for this host.
#[derive(Clone, Debug)]
pub(super) struct Accepted {
    pub release: Release,
    pub rules: Rules,
}

/// Verifies a release. `seen` is the highest accepted one, and `in_effect` the digest of the confirmed one, which does not
/// expire.
pub(super) fn accept(
    object: &str,
    settings: &Settings,
    keys: &Keyring,
    seen: Option<&Seen>,
    in_effect: Option<&str>,
    now: SystemTime,
) -> Result<Accepted, Refusal> {
    let (text, key) = keys.verify(object)?;
    let release = match Document::parse(text)? {
        Document::Release(release) => release,
        other => {
            return Err(Refusal::WrongKind {
                found: other.kind(),
                expected: "a release",
            });
        }
    };
    check_stream(&release.stream, settings)?;
    let (version, digest) = (release.version, digest(text));
    if let Some(seen) = seen {
        if version < seen.version {
            return Err(Refusal::Replayed {
                found: version,
                seen: seen.version,
            });
        }
        if version == seen.version && digest != seen.digest {
            return Err(Refusal::Conflict { version });
        }
    }
    if !release.is_for(&settings.labels) {
        return Err(Refusal::NotForThisHost {
            version,
            wanted: release.selection(),
        });
    }
    if release.expires <= now && in_effect != Some(digest.as_str()) {
        return Err(Refusal::Expired {
            version,
            expired: release.expires,
        });
    }
    let texts = release.texts();
    rules::check(Path::new(""), &texts, &settings.rights).map_err(Refusal::Rules)?;
    let predicted = release.predicted.clone();
    check_predictions(predicted.keys(), &settings.rights)?;
    if matches!(settings.rights, Rights::Team { .. }) && release.bake > LONGEST_BAKE_OF_TEAM {
        return Err(Refusal::LongBake {
            bake: release.bake,
            longest: LONGEST_BAKE_OF_TEAM,
        });
    }
    Ok(Accepted {
        release,
        rules: Rules {
            version,
            digest,
            key,
            texts,
            predicted,
        },
    })
}

/// Verifies an abort.
pub(super) fn accept_abort(
    object: &str,
    settings: &Settings,
    keys: &Keyring,
) -> Result<Abort, Refusal> {
    let (text, _) = keys.verify(object)?;
    let abort = match Document::parse(text)? {
        Document::Abort(abort) => abort,
        other => {
            return Err(Refusal::WrongKind {
                found: other.kind(),
                expected: "an abort",
            });
        }
    };
    check_stream(&abort.stream, settings)?;
    Ok(abort)
}

/// A key may sign for several streams; a document is for one.
fn check_stream(stream: &str, settings: &Settings) -> Result<(), Refusal> {
    if stream == settings.stream {
        return Ok(());
    }
    Err(Refusal::WrongStream {
        found: stream.to_owned(),
        expected: settings.stream.clone(),
    })
}

/// A team predicts refusals of its own limits: another prediction would hide what its rules do to the limits of others.
fn check_predictions<'p>(
    mut limits: impl Iterator<Item = &'p String>,
    rights: &Rights,
) -> Result<(), Refusal> {
    let Rights::Team { prefix, .. } = rights else {
        return Ok(());
    };
    match limits.find(|limit| !limit.starts_with(prefix.as_str())) {
        None => Ok(()),
        Some(limit) => Err(Refusal::ForeignPrediction {
            limit: limit.clone(),
            prefix: prefix.clone(),
        }),
    }
}
