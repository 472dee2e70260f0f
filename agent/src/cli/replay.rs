//! `weir replay`: what a config would have passed and refused of captured traffic.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use api::source::{at_level, with_sources};
use config::policy::Config;
use config::{excerpt, human};
use datapath::compile::{Plan, plan};

use super::exit::invalid;
use super::html::{destination, is_instead};
use super::print::Print;
use super::progress::{advance, progress_bar};
use super::table::{instant, number, render};
use crate::cli::arguments::Replay;
use crate::daemon::lists;
use crate::geo::Databases;
use crate::replay::capture::InterfaceNames;
use crate::replay::{
    ComparisonReport, ConfigReport, DifferingSource, Evaluation, LimitReport, Local, Report,
    TableMemory, replay as evaluate, replay_page,
};
use crate::stats::Count;

/// The tables of a config that a replay uses. Others may have secrets, and are not in its page.
const REPLAYED: [&str; 4] = ["agent", "geo", "class", "limit"];
/// Rows of the tables of sources.
const SHOWN: usize = 10;

pub fn replay(file: &Path, question: &Replay, print: Print) -> anyhow::Result<ExitCode> {
    let files: Vec<PathBuf> = std::iter::once(file.to_owned())
        .chain(question.compare.clone())
        .collect();
    let mut configs = Vec::new();
    let mut texts = Vec::new();
    for file in &files {
        match compiled(file) {
            Ok((compiled, text)) => {
                configs.push(compiled);
                texts.push(excerpt(&text, &REPLAYED));
            }
            Err(error) => return Ok(invalid(&error)),
        }
    }
    let read: Vec<&PathBuf> = files.iter().chain(&question.captures).collect();
    let page = match destination(question.html.as_deref(), &read, print)? {
        Ok(page) => page,
        Err(status) => return Ok(status),
    };
    let mut memories: Vec<TableMemory> = configs
        .iter()
        .map(|(_, plan)| TableMemory::new(&plan.ingress.settings))
        .collect();
    let mut evaluations: Vec<Evaluation<'_>> = configs
        .iter()
        .zip(&mut memories)
        .map(|((config, plan), memory)| Evaluation::new(config, plan, memory.table()))
        .collect();
    let bar = progress_bar(&question.captures);
    let names = InterfaceNames::with_unnamed(question.interface.as_deref());
    let outcome = evaluate(
        &question.captures,
        names,
        &Local::new(&question.local),
        &mut evaluations,
        |progress| {
            advance(&bar, progress);
        },
    );
    bar.finish_and_clear();
    let names: Vec<String> = files
        .iter()
        .map(|file| file.display().to_string())
        .collect();
    let report = Report::of(&outcome, &evaluations, &names);
    // A page that cannot be written leaves the text.
    let written = page
        .as_ref()
        .map_or(Ok(()), |page| page.write(&replay_page(&report, &texts)));
    if !is_instead(page.as_ref()) {
        print.document(&report, print_tables)?;
    }
    for error in report
        .captures
        .iter()
        .filter_map(|capture| capture.error.as_ref())
    {
        eprintln!("error: {error}");
    }
    written?;
    Ok(if report.is_complete() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

/// A config and its text, which may be from a pipe: it is read once.
fn compiled(file: &Path) -> Result<((Config, Plan), String), String> {
    let text = config::read_argument(file).map_err(|error| error.to_string())?;
    let config = config::parse(file, &text)
        .map_err(|error| error.to_string())?
        .config;
    if config.limits.is_empty() {
        return Err(format!(
            "error: {}: no [[limit]] on packets, so there is nothing to replay",
            file.display()
        ));
    }
    let name = file.display().to_string();
    let applied = applied(&name, &config).map_err(|error| format!("error: {error}"))?;
    Ok((applied, text))
}

/// The plan of a config, and the config with the prefixes of its lists and databases. `name` is that of the config in
/// warnings and errors.
pub(super) fn applied(name: &str, config: &Config) -> Result<(Config, Plan), String> {
    let (lists, notes) = lists::of_classes(config);
    notes
        .iter()
        .for_each(|note| eprintln!("warning: {name}: {note}"));
    let databases = Databases::read(config, &Databases::default(), lists);
    if let Some(problem) = databases.problems().first() {
        return Err(format!("{name}: {problem}"));
    }
    let (config, _) = databases.applied(config);
    let plan = plan(&config).map_err(|error| format!("{name}: {error}"))?;
    Ok((config, plan))
}

fn print_tables(report: &Report) {
    println!("{}", heading(report));
    for config in &report.configs {
        println!("\n{}", config_heading(config));
        println!("\n{}", limits(config));
        if !config.sources.is_empty() {
            println!("\n{}", sources(config));
        }
    }
    if let (Some(comparison), [one, other]) = (&report.comparison, report.configs.as_slice()) {
        println!("\n{}", differences(comparison, one, other));
    }
    for note in &report.notes {
        println!("note: {note}");
    }
}

fn heading(report: &Report) -> String {
    let captures = match report.captures.as_slice() {
        [one] => one.file.clone(),
        several => format!("{} captures", several.len()),
    };
    match report.from {
        None => format!("{captures}: no packets"),
        Some(from) => format!(
            "{captures}: {} packets from {} in {}",
            number(report.packets),
            instant(from),
            human::time(Duration::from_secs_f64(report.seconds))
        ),
    }
}

fn config_heading(config: &ConfigReport) -> String {
    let bypass = &config.bypass;
    let mut parts = vec![format!("passed {}", share(config.passed, config))];
    parts.push(format!("refused {}", share(config.throttled, config)));
    if config.would_throttle.packets > 0 {
        parts.push(format!(
            "would refuse {}",
            share(config.would_throttle, config)
        ));
    }
    for (count, what) in [
        (bypass.unlimited, "without a limit"),
        (bypass.never_limit, "exempt"),
        (
            bypass.not_ip + bypass.essential,
            "ARP, neighbour discovery, DHCP, not IP",
        ),
        (bypass.malformed, "malformed and refused"),
        (
            bypass.essential_throttled + bypass.not_ip_throttled,
            "not IP or essential, refused",
        ),
    ] {
        if count > 0 {
            parts.push(format!("{} {what}", number(count)));
        }
    }
    if config.table.evicted
        + config.table.full_passed
        + config.table.full_throttled
        + config.table.full_shared
        > 0
    {
        parts.push(format!(
            "the table of {} sources was full",
            number(config.table.capacity)
        ));
    }
    format!("{} ({}): {}", config.config, config.mode, parts.join(", "))
}

fn share(count: Count, config: &ConfigReport) -> String {
    let all = config.passed.packets + config.throttled.packets;
    format!(
        "{} ({:.2} %)",
        number(count.packets),
        percent(count.packets, all)
    )
}

fn percent(part: u64, all: u64) -> f64 {
    if all == 0 {
        0.0
    } else {
        part as f64 * 100.0 / all as f64
    }
}

fn limits(config: &ConfigReport) -> String {
    let mut rows = Vec::new();
    for limit in &config.limits {
        let row = |name: String, passed: Count, refused: Count, would: Count, when: String| {
            let refused_percent = percent(
                refused.packets + would.packets,
                passed.packets + refused.packets,
            );
            let numbers = [passed.packets, refused.packets, would.packets].map(number);
            let [passed, refused, would] = numbers;
            [
                name,
                passed,
                refused,
                would,
                format!("{refused_percent:.2} %"),
                when,
            ]
        };
        let when = when(limit);
        rows.push(row(
            limit.definition.name.clone(),
            limit.passed,
            limit.throttled,
            limit.would_throttle,
            when,
        ));
        if limit.classes.len() > 1 {
            rows.extend(limit.classes.iter().map(|class| {
                let name = format!("  class {}", class.class);
                row(
                    name,
                    class.passed,
                    class.throttled,
                    class.would_throttle,
                    String::new(),
                )
            }));
        }
    }
    render(
        [
            "limit",
            "passed",
            "refused",
            "would refuse",
            "share",
            "most refused",
        ],
        1,
        rows,
    )
}

/// The step with the most refusals.
fn when(limit: &LimitReport) -> String {
    let timeline = &limit.timeline;
    let refused = timeline
        .throttled
        .iter()
        .zip(&timeline.would_throttle)
        .map(|(refused, would)| refused + would);
    let worst = refused
        .enumerate()
        .max_by_key(|(nth, count)| (*count, std::cmp::Reverse(*nth)));
    match worst {
        Some((nth, count)) if count > 0 => format!(
            "{}/s after {}",
            number(count.div_ceil(timeline.step_seconds)),
            human::time(Duration::from_secs(nth as u64 * timeline.step_seconds))
        ),
        _ => "-".to_owned(),
    }
}

fn sources(config: &ConfigReport) -> String {
    let rows = config.sources.iter().take(SHOWN).map(|source| {
        let limit = at_level(&source.limit, source.level.as_deref());
        let limit = if source.observed {
            format!("{limit} (observed)")
        } else {
            limit
        };
        let lasted = Duration::from_secs_f64((source.last - source.first).max(0.0));
        [
            with_sources(&source.source, source.sources),
            limit,
            source.class.clone(),
            instant(source.first),
            human::time(lasted),
            number(source.throttled_packets),
            human::size(source.throttled_bytes),
            format!("{}/s", number(source.peak_per_second)),
            number(source.passed_packets),
        ]
    });
    let table = render(
        [
            "source",
            "limit",
            "class",
            "first refused",
            "for",
            "refused",
            "bytes",
            "at most",
            "passed since",
        ],
        4,
        rows,
    );
    match config.sources_error {
        0 => table,
        error => format!(
            "{table}\neach may have up to {} more: the smallest sources were dropped",
            number(error)
        ),
    }
}

fn differences(comparison: &ComparisonReport, one: &ConfigReport, other: &ConfigReport) -> String {
    let all = comparison.both_pass
        + comparison.both_refuse
        + comparison.only_first_refuses
        + comparison.only_second_refuses;
    let row =
        |what: String, count: u64| [what, number(count), format!("{:.2} %", percent(count, all))];
    let mut text = render(
        ["verdicts", "packets", "share"],
        1,
        [
            row("both pass".to_owned(), comparison.both_pass),
            row("both refuse".to_owned(), comparison.both_refuse),
            row(
                format!("only {} refuses", one.config),
                comparison.only_first_refuses,
            ),
            row(
                format!("only {} refuses", other.config),
                comparison.only_second_refuses,
            ),
        ],
    );
    for (config, sources) in [
        (one, &comparison.first_sources),
        (other, &comparison.second_sources),
    ] {
        if !sources.is_empty() {
            text += &format!("\n\nonly {} refuses\n{}", config.config, differing(sources));
        }
    }
    let limits = limit_differences(one, other);
    if limits.is_empty() {
        text
    } else {
        format!("{text}\n\n{limits}")
    }
}

/// The limits that refuse differently in the two configs, and those that only one has.
fn limit_differences(one: &ConfigReport, other: &ConfigReport) -> String {
    let refused = |config: &ConfigReport, name: &str| {
        let limit = config
            .limits
            .iter()
            .find(|limit| limit.definition.name == name)?;
        Some(limit.throttled.packets + limit.would_throttle.packets)
    };
    let new = other
        .limits
        .iter()
        .filter(|limit| refused(one, &limit.definition.name).is_none());
    let rows: Vec<[String; 4]> = one
        .limits
        .iter()
        .chain(new)
        .map(|limit| limit.definition.name.as_str())
        .filter_map(|name| {
            let counts = (refused(one, name), refused(other, name));
            if counts.0 == counts.1 {
                return None;
            }
            let text = |count: Option<u64>| count.map_or_else(|| "-".to_owned(), number);
            let difference = i128::from(counts.1.unwrap_or(0)) - i128::from(counts.0.unwrap_or(0));
            let sign = if difference < 0 { "-" } else { "+" };
            let size = u64::try_from(difference.unsigned_abs()).unwrap_or(u64::MAX);
            Some([
                name.to_owned(),
                text(counts.0),
                text(counts.1),
                format!("{sign}{}", number(size)),
            ])
        })
        .collect();
    if rows.is_empty() {
        return String::new();
    }
    render(
        [
            "limit: refused by",
            &one.config,
            &other.config,
            "difference",
        ],
        1,
        rows,
    )
}

fn differing(sources: &[DifferingSource]) -> String {
    let rows = sources.iter().take(SHOWN).map(|source| {
        let lasted = Duration::from_secs_f64((source.last - source.first).max(0.0));
        [
            source.source.clone(),
            instant(source.first),
            human::time(lasted),
            number(source.packets),
        ]
    });
    render(["source", "first", "for", "packets"], 2, rows)
}
