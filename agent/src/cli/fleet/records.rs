//! Records of the canaries' traffic, evaluated under new rules and under the newest version.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::slice;
use std::time::Duration;

use api::capture::CaptureOf;
use config::human;
use config::policy::{Config, Key, Limit};
use datapath::compile::Plan;
use host::PROGRAM;
use rollout::canary::Share;
use rollout::health::Bounds;

use super::place::{FleetError, wrong};
use crate::cli::arguments::FleetRecords;
use crate::cli::progress::{advance, progress_bar};
use crate::cli::replay::applied;
use crate::cli::table::{number, render};
use crate::daemon::record::is_recording;
use crate::replay::capture::InterfaceNames;
use crate::replay::{ConfigReport, Evaluation, LimitReport, Local, Report, TableMemory, replay};

/// The result for a limit: a share to expect, or the reason for its absence.
type Expected = Result<Share, &'static str>;

/// The rules of a version with their plan.
struct Rules {
    name: String,
    config: Config,
    plan: Plan,
}

impl Rules {
    fn of(name: String, config: &Config) -> Result<Self, FleetError> {
        let (config, plan) = applied(&name, config).map_err(|error| {
            wrong(format!(
                "{error}; rules by networks or countries cannot be replayed: use --expect instead of --record"
            ))
        })?;
        Ok(Self { name, config, plan })
    }
}

/// Prints what limits refuse of each record under new rules, and under those of the version `before`. Returns the largest
/// share of each limit on packets, as far as the records show it.
pub(super) fn expected(
    question: &FleetRecords,
    before: Option<(u64, Config)>,
    after: &Config,
) -> Result<BTreeMap<String, Share>, FleetError> {
    if after.limits.is_empty() {
        return Err(wrong(
            "the rules have no [[limit]] on packets, and records have nothing else: leave out --record",
        ));
    }
    let mut rules = vec![Rules::of("new".to_owned(), after)?];
    if let Some((version, before)) = before.filter(|(_, before)| !before.limits.is_empty()) {
        rules.push(Rules::of(format!("version {version}"), &before)?);
    }
    let limits = after.limits.iter();
    let mut expected: BTreeMap<String, Expected> = limits
        .map(|limit| (limit.name.clone(), Err(TOO_FEW)))
        .collect();
    let mut notes = vec!["evaluated by the rules alone, without the hosts' own files".to_owned()];
    if !after.groups.is_empty() {
        notes.push("groups are not evaluated: records have packets, and no processes".to_owned());
    }
    for file in &question.record {
        let report = evaluated(file, question, &rules)?;
        println!("{}\n", shown(&report));
        let one_in = report.captures.iter().filter_map(|capture| capture.one_in);
        let one_in = one_in.max().unwrap_or(1);
        for (limit, counted) in after.limits.iter().zip(&report.configs[0].limits) {
            let found = expected_of(limit, one_in, counted);
            if let Some(known) = expected.get_mut(&limit.name) {
                *known = larger(*known, found);
            }
        }
        for note in report.notes {
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
    }
    for (limit, reason) in &expected {
        if let Err(reason) = reason {
            notes.push(format!("limit {limit:?} has no share to expect: {reason}"));
        }
    }
    notes.iter().for_each(|note| println!("note: {note}"));
    let known = expected.into_iter();
    Ok(known
        .filter_map(|(limit, share)| Some((limit, share.ok()?)))
        .collect())
}

const TOO_FEW: &str = "the records have fewer than 100 packets for it";

/// Evaluates a record under each of the rules.
fn evaluated(
    file: &PathBuf,
    question: &FleetRecords,
    rules: &[Rules],
) -> Result<Report, FleetError> {
    let path = file.display();
    let capture = format!("capture packets with {PROGRAM} record --capture FILE --of all");
    if is_recording(file) {
        return Err(wrong(format!(
            "{path} has rates of sources, and no packets: {capture}"
        )));
    }
    let mut memories: Vec<TableMemory> = rules
        .iter()
        .map(|rules| TableMemory::new(&rules.plan.ingress.settings))
        .collect();
    let mut evaluations: Vec<Evaluation<'_>> = (rules.iter().zip(&mut memories))
        .map(|(rules, memory)| Evaluation::new(&rules.config, &rules.plan, memory.table()))
        .collect();
    let files = slice::from_ref(file);
    let bar = progress_bar(files);
    let outcome = replay(
        files,
        InterfaceNames::with_unnamed(question.interface.as_deref()),
        &Local::new(&question.local),
        &mut evaluations,
        |progress| advance(&bar, progress),
    );
    bar.finish_and_clear();
    let names: Vec<String> = rules.iter().map(|rules| rules.name.clone()).collect();
    let report = Report::of(&outcome, &evaluations, &names);
    if let Some(error) = report.captures.iter().find_map(|read| read.error.as_ref()) {
        return Err(wrong(error));
    }
    if (report.captures.iter()).any(|read| read.of == Some(CaptureOf::Refused)) {
        return Err(wrong(format!(
            "{path} has only refused packets, without those that passed: {capture}"
        )));
    }
    if report.undirected_packets > 0 {
        return Err(wrong(format!(
            "{path} does not record which packets came in: name the addresses of its host with --local PREFIX"
        )));
    }
    Ok(report)
}

/// The share to expect of a limit from a record, of which one in `one_in` sources was captured.
fn expected_of(limit: &Limit, one_in: u32, counted: &LimitReport) -> Expected {
    let is_of_source = matches!(limit.key, Key::Source | Key::SourcePort);
    let is_own = is_of_source && limit.ipv4_prefix == 32 && limit.levels.is_empty();
    if limit.is_fair() {
        return Err("the load of servers decides what it refuses");
    }
    if limit.concurrent.is_some() {
        return Err("records have no open connections");
    }
    if limit.cluster.is_some() {
        return Err("hosts share it");
    }
    if one_in > 1 && !is_own {
        return Err("sources share its keys, and a record is a sample of sources");
    }
    let refused = counted.throttled.packets;
    let all = counted.passed.packets + refused;
    if all < Bounds::default().least {
        return Err(TOO_FEW);
    }
    Ok(Share::covering(refused, all))
}

/// The result of two records for a limit. Hosts compare their own shares with the larger one. Where one of them cannot show it,
/// the other is not enough, unless it only has too few packets.
fn larger(one: Expected, other: Expected) -> Expected {
    match (one, other) {
        (Ok(one), Ok(other)) => Ok(one.max(other)),
        (Err(TOO_FEW), other) => other,
        (one, Err(TOO_FEW)) => one,
        (Err(reason), _) | (_, Err(reason)) => Err(reason),
    }
}

/// A record, and what limits refuse of it.
fn shown(report: &Report) -> String {
    let files = report.captures.iter().map(|capture| capture.file.clone());
    let (new, before) = (&report.configs[0], report.configs.get(1));
    let heading = format!(
        "{}: {} packets in {}",
        human::listed(files.collect::<Vec<_>>().into_iter(), 1),
        number(report.packets),
        human::time(Duration::from_secs_f64(report.seconds))
    );
    let rows = new.limits.iter().map(|limit| {
        let name = &limit.definition.name;
        let same = before.and_then(|before| named(before, name));
        [
            name.clone(),
            number(limit.passed.packets + limit.throttled.packets),
            number(limit.throttled.packets),
            share(limit),
            same.map_or_else(|| "-".to_owned(), share),
        ]
    });
    let before = before.map_or("before", |before| &before.config);
    let table = render(["limit", "packets", "refused", "share", before], 1, rows);
    format!("{heading}\n{table}")
}

fn named<'r>(config: &'r ConfigReport, name: &str) -> Option<&'r LimitReport> {
    let mut limits = config.limits.iter();
    limits.find(|limit| limit.definition.name == name)
}

/// The refused share of a limit's packets.
fn share(limit: &LimitReport) -> String {
    match limit.passed.packets + limit.throttled.packets {
        0 => "-".to_owned(),
        all => {
            let share = limit.throttled.packets as f64 * 100.0 / all as f64;
            format!("{share:.2} %")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_larger_share_of_records_is_expected() {
        let share = |percent: &str| percent.parse::<Share>().unwrap();
        let (few, shared) = (Err(TOO_FEW), Err("hosts share it"));
        for (one, other, expected) in [
            (Ok(share("1%")), Ok(share("2%")), Ok(share("2%"))),
            (few, Ok(share("2%")), Ok(share("2%"))),
            (Ok(share("2%")), few, Ok(share("2%"))),
            (Ok(share("2%")), shared, shared),
            (few, shared, shared),
            (few, few, few),
        ] {
            assert_eq!(larger(one, other), expected);
        }
    }
}
