//! `weir fleet status`, `history` and `diff`.

use std::path::Path;
use std::time::SystemTime;

use config::{Changes, human};
use rollout::document::{Document, Release};
use rollout::envelope::unverified;
use rollout::overview::Overview;
use serde::Serialize;

use super::objects::{alone, read};
use super::place::{FleetError, stream};
use super::publish::{head, reports};
use crate::cli::arguments::{FleetPlace, Options};
use crate::cli::print::Print;
use crate::cli::table;
use crate::rules_store::StoreError;

/// The most hosts that are printed with a reason.
const MOST_OBSTACLES: usize = 20;

/// `weir fleet status --json`.
#[derive(Serialize)]
struct FleetStatus {
    store: String,
    stream: String,
    /// The newest version; 0 for none.
    head: u64,
    /// Whether it is aborted.
    aborted: bool,
    hosts: usize,
    #[serde(flatten)]
    overview: Overview,
}

pub(super) fn status(place: &FleetPlace, options: &Options) -> Result<(), FleetError> {
    let (address, mut stream) = stream(place, options)?;
    let head = stream.head()?;
    let reports = reports(&mut stream)?;
    let status = FleetStatus {
        store: address.to_string(),
        stream: address.stream.clone(),
        head,
        aborted: stream.aborted()?.contains(&head),
        hosts: reports.len(),
        overview: Overview::of(&reports, head),
    };
    Ok(Print::from(options.json).document(&status, |status| println!("{}", text(status)))?)
}

fn text(status: &FleetStatus) -> String {
    let overview = &status.overview;
    let versions = overview.effective.iter().rev();
    let versions: Vec<String> = versions
        .map(|(version, hosts)| match version {
            0 => format!("own file alone: {hosts}"),
            version => format!("version {version}: {hosts}"),
        })
        .collect();
    let aborted = if status.aborted { ", aborted" } else { "" };
    let Overview {
        waiting,
        trying,
        held,
        behind,
        obstacles,
        ..
    } = overview;
    let mut text = table::pairs([
        ("store", status.store.clone()),
        ("newest", format!("version {}{aborted}", status.head)),
        ("hosts", status.hosts.to_string()),
        ("in effect", versions.join(", ")),
        (
            "newest on hosts",
            format!(
                "{held} held, {trying} on trial, {waiting} waiting, {} not, {behind} behind",
                obstacles.len()
            ),
        ),
    ]);
    for obstacle in obstacles.iter().take(MOST_OBSTACLES) {
        let line = format!("\n{}: {}", obstacle.host, obstacle.reason);
        // Reports are not signed.
        text.push_str(&human::printable(&line));
    }
    if let Some(more @ 1..) = obstacles.len().checked_sub(MOST_OBSTACLES) {
        text.push_str(&format!("\nand {more} more"));
    }
    text
}

/// An element of `weir fleet history --json`.
#[derive(Serialize)]
struct Published {
    version: u64,
    publisher: String,
    /// Seconds since 1970.
    published: u64,
    bake_seconds: u64,
    canaries: String,
    /// The hosts that had reported.
    hosts: u64,
    /// The labels of its hosts; empty: all.
    select: String,
    aborted: bool,
}

pub(super) fn history(place: &FleetPlace, options: &Options) -> Result<(), FleetError> {
    let (_, mut stream) = stream(place, options)?;
    let aborted = stream.aborted()?;
    let mut history = Vec::new();
    for version in stream.versions()? {
        let object = match stream.release(version) {
            Err(error @ (StoreError::Invalid { .. } | StoreError::Missing(_))) => {
                Err(error.to_string())
            }
            object => Ok(object?),
        };
        let document =
            object.and_then(|object| unverified(&object).map_err(|refusal| refusal.to_string()));
        match document {
            Ok(Document::Release(release)) if release.version == version => {
                history.push(published(&release, aborted.contains(&version)));
            }
            Ok(_) => eprintln!("version {version} is left out: it is no release of this version"),
            Err(reason) => eprintln!("version {version} is left out: {reason}"),
        }
    }
    Ok(Print::from(options.json).document(&history, |history| {
        let heading = [
            "VERSION",
            "PUBLISHED",
            "PUBLISHER",
            "CANARIES",
            "BAKE",
            "HOSTS",
            "STATE",
        ];
        println!("{}", table::render(heading, 0, history.iter().map(row)));
    })?)
}

fn published(release: &Release, aborted: bool) -> Published {
    let since = release.published.duration_since(SystemTime::UNIX_EPOCH);
    Published {
        version: release.version,
        publisher: release.publisher.clone(),
        published: since.unwrap_or_default().as_secs(),
        bake_seconds: release.bake.as_secs(),
        canaries: release.canary.share.to_string(),
        hosts: release.canary.hosts,
        select: release.selection(),
        aborted,
    }
}

fn row(published: &Published) -> [String; 7] {
    let hosts = match published.select.as_str() {
        "" => published.hosts.to_string(),
        select => format!("{} with {select}", published.hosts),
    };
    let bake = std::time::Duration::from_secs(published.bake_seconds);
    [
        published.version.to_string(),
        table::instant(published.published as f64),
        published.publisher.clone(),
        published.canaries.clone(),
        human::time(bake),
        hosts,
        if published.aborted { "aborted" } else { "" }.to_owned(),
    ]
}

pub(super) fn diff(file: &Path, place: &FleetPlace, options: &Options) -> Result<(), FleetError> {
    let after = alone(file, &read(file)?)?;
    let (_, mut stream) = stream(place, options)?;
    let before = match head(&mut stream)? {
        None => alone(file, &[])?,
        Some(head) => alone(Path::new("the newest version"), &head.objects)?,
    };
    let changes = Changes::between(&before, &after);
    Ok(Print::from(options.json).document(&changes, |changes| {
        if changes.is_empty() {
            println!("no differences");
        }
        for line in changes.lines() {
            println!("{line}");
        }
    })?)
}
