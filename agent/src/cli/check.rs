//! `weir check`: validates a config and prints what it would enforce.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::ExitCode;

use api::interface::Placement;
use api::request::Request;
use config::group::Group;
use config::human;
use config::policy::{Config, Secret};
use config::ssh;
use datapath::compile::plan;
use datapath::host_links::HostLinks;
use datapath::memory::MemoryCheck;
use decide::LimitMemory;
use serde::Serialize;

use super::exit::USAGE;
use super::print::Print;
use super::{limits, table};
use crate::daemon::{holds_packets, lists};
use crate::doctor;
use crate::geo::Databases;
use crate::protect::{self, Detected, Protected};
use crate::server::control::Client;
use crate::stats::{LimitDefinition, Status};

/// The document of `weir check --json`.
#[derive(Serialize)]
struct Checked {
    valid: bool,
    warnings: Vec<String>,
    lacking: Vec<String>,
    protected: Vec<Protected>,
    interfaces: Vec<Placement>,
    limits: Vec<LimitDefinition>,
    groups: Vec<GroupDefinition>,
    memory: Vec<RequestMemory>,
    /// `null` without limits on packets.
    packet_memory: Option<MemoryCheck>,
    notes: Vec<String>,
}

/// The most memory for the keys of a limit on requests.
#[derive(Serialize)]
struct RequestMemory {
    limit: String,
    keys: usize,
    bytes: u64,
}

/// A process group as configured.
#[derive(Serialize)]
struct GroupDefinition {
    name: String,
    matches: Vec<String>,
    limits: Vec<String>,
}

pub fn check(file: &Path, print: Print) -> anyhow::Result<ExitCode> {
    let loaded = match config::load(file) {
        Ok(loaded) => loaded,
        Err(error) => {
            print.document(&error.document(), |_| eprintln!("{error}"))?;
            return Ok(ExitCode::from(USAGE));
        }
    };
    let (class_lists, list_notes) = lists::of_classes(&loaded.config);
    let databases = Databases::read(&loaded.config, &Databases::default(), class_lists);
    let detected = protect::now(&loaded.config);
    let lists = lists::forecast(&loaded.config, &databases, &detected);
    let problems: Vec<String> = databases
        .problems()
        .into_iter()
        .chain(lists.errors)
        .collect();
    if !problems.is_empty() {
        let messages: Vec<String> = problems
            .iter()
            .map(|problem| format!("{}: {problem}", file.display()))
            .collect();
        let errors: Vec<_> = messages
            .iter()
            .map(|message| serde_json::json!({ "message": message }))
            .collect();
        let document = serde_json::json!({ "valid": false, "errors": errors });
        print.document(&document, |_| {
            messages
                .iter()
                .for_each(|message| eprintln!("error: {message}"));
        })?;
        return Ok(ExitCode::from(USAGE));
    }
    let (applied, overlaps) = databases.applied(&loaded.config);
    let effective = protect::applied(applied, &detected);
    let plan = match plan(&effective) {
        Ok(plan) => plan,
        Err(error) => {
            let message = format!("{}: {error}", file.display());
            let document =
                serde_json::json!({ "valid": false, "errors": [{ "message": message }] });
            print.document(&document, |_| eprintln!("error: {message}"))?;
            return Ok(ExitCode::from(USAGE));
        }
    };
    let memory = holds_packets(&loaded.config).then(|| {
        let running: Option<Status> = Client::new(&loaded.config.agent.control)
            .ask(&Request::Status)
            .ok();
        MemoryCheck::of(
            &effective,
            &plan,
            running.and_then(|status| status.memory).as_ref(),
        )
    });
    let refused = memory
        .as_ref()
        .and_then(|memory| Some((memory.refused.clone()?, memory.of_running_agent)));
    // If the devices cannot be listed, there are none here; `lacking` reports the error.
    let links = HostLinks::read(&loaded.config).unwrap_or_default();
    let (gaps, awaited) = (links.gaps(&loaded.config.limits), links.awaited());
    let mut warnings: Vec<String> = loaded
        .warnings
        .iter()
        .map(ToString::to_string)
        .chain(gaps)
        .collect();
    warnings.extend(config::ssh_warning(&loaded.config, ssh::client()));
    warnings.extend(crowdsec_warnings(&loaded.config, file));
    warnings.extend(databases.notes());
    warnings.extend(list_notes);
    warnings.extend(lists.warnings);
    warnings.extend(overlaps);
    let mut lacking = doctor::lacking(&loaded.config);
    match refused {
        Some((why, true)) => warnings.push(format!(
            "a reload that requires another table is refused: {why}"
        )),
        Some((why, false)) => lacking.push(why),
        None => {}
    }
    let checked = Checked {
        valid: true,
        warnings,
        lacking,
        protected: protect::by_exemption(&detected).0,
        interfaces: links.placements,
        limits: LimitDefinition::of_config(&loaded.config),
        groups: loaded
            .config
            .groups
            .iter()
            .map(GroupDefinition::from)
            .collect(),
        memory: request_memory(&loaded.config),
        packet_memory: memory,
        notes: plan
            .note(&loaded.config)
            .into_iter()
            .chain(config::forgeable_exemptions(&loaded.config))
            .chain(databases.summaries())
            .chain(lists.notes)
            .chain(awaited)
            .collect(),
    };
    print.document(&checked, |checked| {
        show(file, &loaded.config, checked, &detected);
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Secrets of `[crowdsec]` that others than root can read, or that are missing.
fn crowdsec_warnings(config: &Config, file: &Path) -> Vec<String> {
    let Some(crowdsec) = &config.crowdsec else {
        return Vec::new();
    };
    let key = crowdsec.key().map(|key| ("api_key", key));
    let password = crowdsec
        .machine()
        .map(|machine| ("password", machine.password));
    let warning = |(key, secret): (&str, Secret)| {
        let (path, help) = match &secret {
            Secret::Text(_) => (
                file,
                format!("chmod 600 {}, or write {key}_file instead", file.display()),
            ),
            Secret::File(path) => (
                path.as_path(),
                format!("chown root {0} && chmod 600 {0}", path.display()),
            ),
        };
        let shown = path.display();
        let metadata = match fs::metadata(path) {
            Ok(metadata) => metadata,
            Err(error) => {
                return Some(format!("[crowdsec] {key}: reading {shown} failed: {error}"));
            }
        };
        let is_private = metadata.mode() & 0o077 == 0;
        (!is_private).then(|| {
            format!("[crowdsec] {key} in {shown} can be read by others than its owner: {help}")
        })
    };
    key.into_iter()
        .chain(password)
        .filter_map(warning)
        .collect()
}

/// The memory of limits on requests; all limits of a valid config have one.
fn request_memory(config: &Config) -> Vec<RequestMemory> {
    let memory = decide::memory(config).unwrap_or_default();
    let rows = memory
        .into_iter()
        .map(|LimitMemory { limit, keys, bytes }| RequestMemory { limit, keys, bytes });
    rows.collect()
}

fn show(file: &Path, config: &Config, checked: &Checked, detected: &[Detected]) {
    println!(
        "{} is valid; limits in mode {}:",
        file.display(),
        config.agent.mode
    );
    if checked.limits.is_empty() {
        println!("no limit on packets");
    } else {
        println!("{}", limits::definitions(&checked.limits));
    }
    if !checked.memory.is_empty() {
        let of_limit = |memory: &RequestMemory| {
            format!(
                "{} {} for {} keys",
                memory.limit,
                human::size(memory.bytes),
                table::number(memory.keys as u64)
            )
        };
        let all = checked.memory.iter().map(|memory| memory.bytes).sum();
        let each: Vec<String> = checked.memory.iter().map(of_limit).collect();
        println!(
            "memory of limits on requests: at most {} ({})",
            human::size(all),
            each.join(", ")
        );
    }
    for covered in checked
        .interfaces
        .iter()
        .filter(|placement| !placement.enforces())
    {
        let (name, by) = (&covered.interface, covered.enforced_by.join(", "));
        println!(
            "interface {name}: enforced by {by}: {}",
            covered.reason.as_deref().unwrap_or_default()
        );
    }
    if !checked.groups.is_empty() {
        let rows = checked.groups.iter().map(|group| {
            [
                group.name.clone(),
                group.matches.join("\n"),
                group.limits.join("\n"),
            ]
        });
        println!("\n{}", table::render(["GROUP", "MATCH", "LIMITS"], 3, rows));
    }
    protect::exempt(&config.agent.never_limit, detected)
        .iter()
        .for_each(|line| println!("{line}"));
    for notify in &config.notify {
        println!("notify {}: {}", notify.name, notify.summary());
    }
    if let Some(cluster) = &config.cluster {
        let stores: Vec<String> = cluster.store.iter().map(ToString::to_string).collect();
        let shared = checked
            .limits
            .iter()
            .filter(|limit| limit.cluster)
            .map(|limit| limit.name.as_str());
        let shared = shared.chain(cluster.share_bans.then_some("bans by operators and limits"));
        println!(
            "\nshared with other hosts as {} through {}, synchronized every {}; {} when the store is down: {}",
            cluster.node,
            stores.join(", "),
            human::time(cluster.sync),
            cluster.when_store_is_down,
            shared.collect::<Vec<_>>().join(", ")
        );
        if let Some(zone) = &cluster.zone {
            let stores: Vec<String> = zone.store.iter().map(ToString::to_string).collect();
            println!(
                "limits with cluster = \"shares\" are divided between zones every {}, and in zone {} through {}",
                human::time(zone.sync),
                zone.name,
                stores.join(", ")
            );
        }
    }
    if let Some(crowdsec) = &config.crowdsec {
        println!(
            "\nbans by CrowdSec from {}, pulled every {}, all of them every {}",
            crowdsec.shown_url(),
            human::time(crowdsec.update),
            human::time(crowdsec.reconcile)
        );
    }
    if let Some(memory) = &checked.packet_memory {
        println!("{memory}");
    }
    for note in &checked.notes {
        println!("note: {note}");
    }
    for warning in &checked.warnings {
        eprintln!("warning: {warning}");
    }
    for lacking in &checked.lacking {
        eprintln!("on this host: {lacking}");
    }
}

impl From<&Group> for GroupDefinition {
    fn from(group: &Group) -> Self {
        let matches = group.matchers().iter().map(ToString::to_string).collect();
        Self {
            name: group.name.clone(),
            matches,
            limits: group.limit_texts(),
        }
    }
}
