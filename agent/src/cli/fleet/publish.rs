//! `weir fleet publish` and `weir fleet abort`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::SystemTime;

use config::policy::Config;
use host::PROGRAM;
use rollout::board::Report;
use rollout::canary::{NoHosts, Share};
use rollout::document::{Abort, Document, Release};
use rollout::envelope::{Envelope, unverified};
use rollout::key::KeyId;
use rollout::publish::{Draft, PublishError, newest, next};

use super::keys::{publisher, signer};
use super::objects::{alone, read};
use super::place::{FleetError, stream, wrong};
use super::records;
use crate::cli::arguments::{FleetKey, FleetPlace, FleetRelease, Options};
use crate::rules_store::{StoreError, Stream};

/// The most bytes of a reason: hosts read no abort of more than 64 KiB.
const LONGEST_REASON: usize = 1_000;

pub(super) fn publish(release: &FleetRelease, options: &Options) -> Result<(), FleetError> {
    let objects = read(&release.file)?;
    // Hosts have tables of their own, but a fault in the rules themselves would stop them on each one.
    let rules = alone(&release.file, &objects)?;
    let signer = signer(&release.key)?;
    let (address, mut stream) = stream(&release.place, options)?;
    let predicted = predicted(release, &rules, &mut stream)?;
    let draft = Draft {
        stream: address.stream.clone(),
        publisher: publisher(&release.key)?,
        share: release.canary,
        bake: release.bake,
        lifetime: release.expires,
        select: release.select.iter().cloned().collect(),
        predicted,
        objects,
    };
    let published = versions(&mut stream)?;
    let reports = reports(&mut stream)?;
    let next = match next(draft, &published, &reports, SystemTime::now()) {
        Err(PublishError::NoHosts(NoHosts)) => {
            return Err(anyhow::anyhow!("{NoHosts} {address}, or correct --to").into());
        }
        next => next.map_err(wrong)?,
    };
    let is_ignored =
        |report: &&Report| report.stream == next.stream && report.version >= next.version;
    for report in reports.iter().filter(is_ignored) {
        eprintln!(
            "the report of {} is ignored: its version {} is far above all others; check who can write to the store",
            report.host, report.version
        );
    }
    warn_of_key(signer.key()?, &mut stream)?;
    if rules.limits.is_empty()
        && next
            .objects
            .iter()
            .all(|object| object.text.trim().is_empty())
    {
        eprintln!("warning: the release has no rules; hosts drop those of the version before");
    }
    let plan = plan(&next, &reports);
    if release.dry_run {
        println!("would publish {plan}");
        return Ok(());
    }
    let version = next.version;
    let object = signer.sign(&Document::Release(next))?;
    stream.publish(version, &object)?;
    println!("published {plan}");
    println!("{PROGRAM} fleet status shows its hosts, {PROGRAM} fleet abort ends it");
    Ok(())
}

/// Warns if another key signed the newest release: hosts may not have this one.
fn warn_of_key(own: KeyId, stream: &mut Stream) -> Result<(), FleetError> {
    let version = stream.head()?;
    if version == 0 {
        return Ok(());
    }
    let object = stream.release(version).unwrap_or_default();
    if let Ok(newest) = Envelope::open(&object)
        && newest.key() != own
    {
        eprintln!(
            "warning: version {version} was signed by key {}, and this one is {}; hosts refuse it without that in public_keys",
            newest.key(),
            own
        );
    }
    Ok(())
}

/// The shares that limits are expected to refuse: those of the records, and of `--expect` before them.
fn predicted(
    release: &FleetRelease,
    rules: &Config,
    stream: &mut Stream,
) -> Result<BTreeMap<String, Share>, FleetError> {
    let of_packets = rules.limits.iter().map(|limit| &limit.name);
    let of_requests = rules.decide.limits.iter().map(|limit| &limit.name);
    let limits: BTreeSet<&String> = of_packets.chain(of_requests).collect();
    for (unknown, _) in release
        .expect
        .iter()
        .filter(|(name, _)| !limits.contains(name))
    {
        eprintln!(
            "warning: --expect {unknown}: the rules have no limit of this name, so that it applies to one of the hosts' own files"
        );
    }
    let expect = release.expect.iter().cloned();
    if release.records.record.is_empty() {
        return Ok(expect.collect());
    }
    let before = match newest_rules(stream) {
        Err(FleetError::Usage(reason)) => {
            eprintln!("the newest version is not compared: {reason}");
            None
        }
        before => before?,
    };
    let mut predicted = records::expected(&release.records, before, rules)?;
    predicted.extend(expect);
    let shares = predicted.iter();
    let shares = shares.map(|(limit, share)| format!("{limit} {share}"));
    let shares: Vec<String> = shares.collect();
    if !shares.is_empty() {
        println!("expected to refuse at most: {}", shares.join(", "));
    }
    Ok(predicted)
}

/// The newest version and its rules; `None` if there is none.
fn newest_rules(stream: &mut Stream) -> Result<Option<(u64, Config)>, FleetError> {
    let Some(head) = head(stream)? else {
        return Ok(None);
    };
    let config = alone(Path::new("the newest version"), &head.objects)?;
    Ok(Some((head.version, config)))
}

/// A release and its canaries, in one line.
fn plan(release: &Release, reports: &[Report]) -> String {
    let is_canary = |report: &&Report| {
        let canary = &release.canary;
        report.stream == release.stream
            && release.is_for(&report.labels)
            && canary.includes(&report.host, &release.stream, release.version)
    };
    let canaries = reports.iter().filter(is_canary);
    let names: Vec<String> = canaries.map(|report| report.host.clone()).collect();
    let names = config::human::listed(names.into_iter(), 10);
    format!(
        "version {} of {}: {} hosts; canaries for {}: {names}",
        release.version,
        release.stream,
        release.canary.hosts,
        config::human::time(release.bake)
    )
}

pub(super) fn abort(
    version: Option<u64>,
    place: &FleetPlace,
    key: &FleetKey,
    reason: String,
    options: &Options,
) -> Result<(), FleetError> {
    let signer = signer(key)?;
    let (address, mut stream) = stream(place, options)?;
    if reason.len() > LONGEST_REASON {
        return Err(wrong(format!(
            "--reason has {} bytes; it may have {LONGEST_REASON}",
            reason.len()
        )));
    }
    let own = signer.key()?;
    let versions = versions(&mut stream)?;
    let newest = newest(versions.iter().copied());
    let version = match version {
        _ if newest == 0 => {
            return Err(wrong(format!("stream {:?} has no release", address.stream)));
        }
        Some(version) if version == 0 || version > newest => {
            return Err(wrong(format!(
                "version {version} is not published; the newest is {newest}"
            )));
        }
        Some(version) => version,
        None => {
            let (head, aborted) = (stream.head()?, stream.aborted()?);
            let is_aborted =
                |version| aborted.contains(&version) && counts(&mut stream, version, own);
            newest_in_effect(&versions, head, is_aborted).ok_or_else(|| {
                wrong(format!(
                    "every version is aborted; where hosts have not returned, name it to abort it again: {PROGRAM} fleet abort {newest}"
                ))
            })?
        }
    };
    warn_of_key(own, &mut stream)?;
    let abort = Abort {
        stream: address.stream.clone(),
        version,
        publisher: publisher(key)?,
        published: SystemTime::now(),
        reason,
    };
    let object = signer.sign(&Document::Abort(abort))?;
    stream.abort(version, &object)?;
    println!(
        "aborted version {version} of {}; {PROGRAM} fleet status shows when hosts have returned to an older one",
        address.stream
    );
    Ok(())
}

/// The newest version that hosts read and that is not aborted. Those above the head have a publisher that ended early.
fn newest_in_effect(
    versions: &[u64],
    head: u64,
    mut is_aborted: impl FnMut(u64) -> bool,
) -> Option<u64> {
    let mut versions = versions.to_vec();
    versions.sort_unstable_by(|one, other| other.cmp(one));
    let read = versions
        .into_iter()
        .filter(|version| (1..=head).contains(version));
    read.into_iter().find(|version| !is_aborted(*version))
}

/// Whether an abort in the store has a key that hosts may have: this publisher's, or that of the release.
fn counts(stream: &mut Stream, version: u64, own: KeyId) -> bool {
    let key = |object: Result<String, StoreError>| {
        let object = object.ok()?;
        Envelope::open(&object).ok().map(|envelope| envelope.key())
    };
    let of_abort = key(stream.abort_of(version));
    of_abort.is_some() && (of_abort == Some(own) || of_abort == key(stream.release(version)))
}

/// The versions that the store names: releases that it lists, and the head. The head alone has to do where it lists none.
fn versions(stream: &mut Stream) -> Result<Vec<u64>, FleetError> {
    let head = stream.head()?;
    let mut versions = match stream.versions() {
        Err(_) if head > 0 => Vec::new(),
        versions => versions?,
    };
    versions.push(head);
    Ok(versions)
}

/// The reports of all hosts. Prints how many objects are none.
pub(super) fn reports(stream: &mut Stream) -> Result<Vec<Report>, FleetError> {
    let reports = stream.reports()?;
    if reports.skipped > 0 {
        eprintln!(
            "{} objects among the reports are skipped: they are no reports of the hosts that they name",
            reports.skipped
        );
    }
    Ok(reports.of_hosts)
}

/// The newest release; `None` if there is none. A publisher's signature is checked by hosts.
pub(super) fn head(stream: &mut Stream) -> Result<Option<Release>, FleetError> {
    let version = stream.head()?;
    if version == 0 {
        return Ok(None);
    }
    match unverified(&stream.release(version)?)? {
        Document::Release(release) => Ok(Some(release)),
        other => Err(FleetError::Failed(anyhow::anyhow!(
            "version {version} in the store is {}, not a release",
            other.kind()
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_version_the_newest_that_hosts_have_is_aborted() {
        for (versions, head, aborted, expected) in [
            (&[5, 4, 5][..], 5, &[][..], Some(5)),
            // Its publisher was killed before the index had it.
            (&[6, 5, 4, 5], 5, &[], Some(5)),
            (&[6, 5, 4, 6], 6, &[6], Some(5)),
            (&[6, 5, 4, 6], 6, &[6, 5, 4], None),
            // The store lists none.
            (&[6], 6, &[], Some(6)),
            (&[0], 0, &[], None),
        ] {
            let is_aborted = |version| aborted.contains(&version);
            let newest = newest_in_effect(versions, head, is_aborted);
            assert_eq!(newest, expected, "{versions:?}, {aborted:?}");
        }
    }
}
