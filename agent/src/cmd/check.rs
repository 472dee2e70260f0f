//! `agent check`: validates, and tells what would be enforced.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;

use serde::Serialize;

use super::{Print, USAGE, table};
use crate::applications::holds_packets;
use crate::compile::plan;
use crate::config;
use crate::config::policy::Config;
use crate::config::policy_group::Group;
use crate::control::{Client, Request};
use crate::datapath::topology::Placement;
use crate::decide::{self, LimitMemory};
use crate::doctor;
use crate::human;
use crate::memory::MemoryCheck;
use crate::protect::{self, Protected};
use crate::stacking;
use crate::stats::{LimitDefinition, Status};

/// The document of `agent check --json`.
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
    /// `null` where no limit is on packets.
    packet_memory: Option<MemoryCheck>,
    notes: Vec<String>,
}

/// What the keys of a limit on requests take at the most.
#[derive(Serialize)]
struct RequestMemory {
    limit: String,
    keys: usize,
    bytes: u64,
}

/// A process group as the operator defined it.
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
            if print == Print::Json {
                println!("{}", serde_json::to_string_pretty(&error.document())?);
            } else {
                eprintln!("{error}");
            }
            return Ok(ExitCode::from(USAGE));
        }
    };
    let plan = match plan(&loaded.config) {
        Ok(plan) => plan,
        Err(error) => {
            eprintln!("{}: {error}", file.display());
            return Ok(ExitCode::from(USAGE));
        }
    };
    let memory = holds_packets(&loaded.config).then(|| {
        let running: Option<Status> = Client::new(&loaded.config.agent.control).ask(&Request::Status).ok();
        MemoryCheck::of(&loaded.config, &plan, running.and_then(|status| status.memory).as_ref())
    });
    let refused = memory.as_ref().and_then(|memory| Some((memory.refused.clone()?, memory.of_running_agent)));
    // Where the devices cannot be listed, none is: what is missing is in `lacking`.
    let interfaces = stacking::placements(&loaded.config).unwrap_or_default();
    let gaps = interfaces.iter().filter_map(|placement| placement.gap.clone());
    let mut warnings: Vec<String> = loaded.warnings.iter().map(ToString::to_string).chain(gaps).collect();
    let mut lacking = doctor::lacking(&loaded.config);
    match refused {
        Some((why, true)) => warnings.push(format!("a reload that needs another table is refused: {why}")),
        Some((why, false)) => lacking.push(why),
        None => {}
    }
    let checked = Checked {
        valid: true,
        warnings,
        lacking,
        protected: protect::of(&loaded.config, &BTreeSet::new()),
        interfaces,
        limits: definitions(&loaded.config),
        groups: loaded.config.groups.iter().map(GroupDefinition::from).collect(),
        memory: request_memory(&loaded.config),
        packet_memory: memory,
        notes: plan.note(&loaded.config).into_iter().collect(),
    };
    match print {
        Print::Json => println!("{}", serde_json::to_string_pretty(&checked)?),
        Print::Table => show(file, &loaded.config, &checked),
    }
    Ok(ExitCode::SUCCESS)
}

/// Of the limits on requests; a config that is valid has all of them.
fn request_memory(config: &Config) -> Vec<RequestMemory> {
    let memory = decide::memory(config).unwrap_or_default();
    let rows = memory.into_iter().map(|LimitMemory { limit, keys, bytes }| RequestMemory { limit, keys, bytes });
    rows.collect()
}

/// Of all limits: those on packets, then those on requests.
fn definitions(config: &Config) -> Vec<LimitDefinition> {
    let packets = config.limits.iter().map(LimitDefinition::from);
    packets.chain(config.decide.limits.iter().map(LimitDefinition::from)).collect()
}

fn show(file: &Path, config: &Config, checked: &Checked) {
    println!("{} is valid; in mode {} it would hold", file.display(), config.agent.mode);
    if checked.limits.is_empty() {
        println!("no limit on packets");
    } else {
        println!(
            "{}",
            table::render(
                ["LIMIT", "DIRECTION", "KEY", "RATE", "ALGORITHM", "BURST"],
                5,
                checked.limits.iter().map(|limit| {
                    [
                        limit.name.clone(),
                        limit.direction.clone(),
                        limit.key.clone(),
                        format!("{} {}", limit.rate, limit.unit),
                        limit.algorithm.clone(),
                        table::number(limit.burst),
                    ]
                })
            )
        );
    }
    if !checked.memory.is_empty() {
        let of_limit = |memory: &RequestMemory| {
            format!("{} {} for {} keys", memory.limit, human::size(memory.bytes), table::number(memory.keys as u64))
        };
        let all = checked.memory.iter().map(|memory| memory.bytes).sum();
        let each: Vec<String> = checked.memory.iter().map(of_limit).collect();
        println!("memory of limits on requests: at most {} ({})", human::size(all), each.join(", "));
    }
    for covered in checked.interfaces.iter().filter(|placement| !placement.enforces()) {
        let (name, by) = (&covered.interface, covered.enforced_by.join(", "));
        println!("interface {name}: enforced by {by}: {}", covered.reason.as_deref().unwrap_or_default());
    }
    if !checked.groups.is_empty() {
        let rows =
            checked.groups.iter().map(|group| [group.name.clone(), group.matches.join("\n"), group.limits.join("\n")]);
        println!("\n{}", table::render(["GROUP", "MATCH", "LIMITS"], 3, rows));
    }
    for protected in &checked.protected {
        println!("never throttled: {}, {}", protected.address, protected.why);
    }
    if let Some(cluster) = &config.cluster {
        let stores: Vec<String> = cluster.store.iter().map(ToString::to_string).collect();
        let shared = checked.limits.iter().filter(|limit| limit.cluster).map(|limit| limit.name.as_str());
        println!(
            "\nwith other hosts, as {} through {}, asked every {} ms, {} when it is down: {}",
            cluster.node,
            stores.join(", "),
            cluster.sync.as_millis(),
            cluster.when_store_is_down,
            shared.collect::<Vec<_>>().join(", ")
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
        eprintln!("this host lacks: {lacking}");
    }
}

impl From<&Group> for GroupDefinition {
    fn from(group: &Group) -> Self {
        let matches = group.matchers.iter().map(ToString::to_string).collect();
        Self { name: group.name.clone(), matches, limits: group.limit_texts() }
    }
}
