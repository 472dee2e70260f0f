//! The page of `weir replay --html`.

use std::time::{Duration, UNIX_EPOCH};

use api::source::{at_level, with_sources};
use config::human::{self, number};

use super::report::{
    CaptureReport, ComparisonReport, ConfigReport, DifferingSource, LimitReport, Report,
};
use crate::page::{
    Cell, Column, Html, MOST_PLOTTED, Timeline, config as config_text, figures, name, notes, page,
    percent, section, table, timeline,
};

/// The page of a report; `configs` are the texts of its configs.
#[must_use]
pub fn replay_page(report: &Report, configs: &[String]) -> String {
    page(
        &format!("Replay of {}", captured(&report.captures)),
        |html| {
            summary(html, report);
            if let (Some(comparison), [one, other]) =
                (&report.comparison, report.configs.as_slice())
            {
                section(html, "Differences", |html| {
                    differences(html, comparison, one, other);
                });
            }
            for (nth, (config, text)) in report.configs.iter().zip(configs).enumerate() {
                section(html, &config.config, |html| {
                    of_config(html, nth, config, text);
                });
            }
            captures(html, &report.captures);
            notes(html, &report.notes);
        },
    )
}

/// The captures, for a title.
pub(crate) fn captured(captures: &[CaptureReport]) -> String {
    match captures {
        [one] if one.file == "-" => "standard input".to_owned(),
        [one] => one.file.clone(),
        several => format!("{} captures", number(several.len() as u64)),
    }
}

/// Appends a table of captures.
pub(crate) fn captures(html: &mut Html, captures: &[CaptureReport]) {
    section(html, "Captures", |html| {
        let columns = [
            Column::Text("file"),
            Column::Text("format"),
            Column::Number("packets"),
            Column::Number("skipped"),
            Column::Text("error"),
        ];
        let rows = captures.iter().map(|capture| {
            let compressed = capture
                .compression
                .as_deref()
                .filter(|compression| *compression != "none");
            let format = capture
                .format
                .as_deref()
                .into_iter()
                .chain(compressed)
                .collect::<Vec<_>>()
                .join(", ");
            vec![
                Cell::text(&capture.file),
                Cell::text(format),
                Cell::count(capture.packets),
                Cell::count(capture.skipped),
                Cell::text(capture.error.clone().unwrap_or_default()),
            ]
        });
        table(html, "Captures that were read", &columns, rows);
    });
}

fn summary(html: &mut Html, report: &Report) {
    let Some(from) = report.from else {
        html.leaf("p", &[], "No packets.");
        return;
    };
    figures(
        html,
        &[
            ("packets", number(report.packets)),
            ("from", instant(from)),
            ("time", human::time(Duration::from_secs_f64(report.seconds))),
        ],
    );
}

fn of_config(html: &mut Html, nth: usize, config: &ConfigReport, text: &str) {
    let all = config.passed.packets + config.throttled.packets;
    let share = |packets: u64| format!("{} ({:.2} %)", number(packets), percent(packets, all));
    let would = config.would_throttle.packets;
    let mut parts = vec![
        ("mode", config.mode.clone()),
        ("passed", share(config.passed.packets)),
    ];
    parts.push(("refused", share(config.throttled.packets)));
    if would > 0 {
        parts.push(("would be refused", share(would)));
    }
    figures(html, &parts);
    // Those that refuse most come first; the sort is stable.
    let mut order: Vec<&LimitReport> = config.limits.iter().collect();
    order.sort_by_key(|limit| std::cmp::Reverse(refused(limit)));
    let hidden = order.len().saturating_sub(MOST_PLOTTED);
    let step = config
        .limits
        .first()
        .map_or(1, |limit| limit.timeline.step_seconds);
    let step = human::time(Duration::from_secs(step));
    let mut text_of_plots =
        format!("Packets a second under each limit, since the first packet, in steps of {step}.");
    if hidden > 0 {
        let more = number(hidden as u64);
        text_of_plots += &format!(
            " The {MOST_PLOTTED} limits that refuse most have a plot; {more} more are in the table."
        );
    }
    html.leaf("p", &[("class", "note")], &text_of_plots);
    html.element("div", &[("class", "plots")], |html| {
        for (limit, place) in order.iter().take(MOST_PLOTTED).zip(1..) {
            let of = &limit.timeline;
            let data = Timeline {
                step_seconds: of.step_seconds,
                passed: &of.passed,
                refused: &of.throttled,
                would_refuse: &of.would_throttle,
            };
            timeline(
                html,
                &format!("plot-{nth}-{place}"),
                &limit.definition.name,
                data,
            );
        }
    });
    limits(html, config);
    sources(html, config);
    config_text(html, &format!("The config: {}", config.config), text);
}

fn refused(limit: &LimitReport) -> u64 {
    limit.throttled.packets + limit.would_throttle.packets
}

fn limits(html: &mut Html, config: &ConfigReport) {
    let columns = [
        Column::Text("limit"),
        Column::Text("class"),
        Column::Number("passed"),
        Column::Number("refused"),
        Column::Number("would be refused"),
        Column::Number("share"),
        Column::Text("definition"),
    ];
    let rows = config.limits.iter().flat_map(|limit| {
        let row = |class: &str, [passed, refused, would]: [u64; 3], definition: &str| {
            vec![
                Cell::text(&limit.definition.name),
                Cell::text(class),
                Cell::count(passed),
                Cell::count(refused),
                Cell::count(would),
                Cell::share(refused + would, passed + refused),
                Cell::text(definition),
            ]
        };
        let all = [limit.passed, limit.throttled, limit.would_throttle].map(|count| count.packets);
        let classes = limit
            .classes
            .iter()
            .filter(|_| limit.classes.len() > 1)
            .map(move |class| {
                let counts = [class.passed, class.throttled, class.would_throttle]
                    .map(|count| count.packets);
                row(&class.class, counts, "")
            });
        std::iter::once(row("all", all, &limit.definition.summary))
            .chain(classes)
            .collect::<Vec<_>>()
    });
    table(
        html,
        "Limits, with the share of packets that are or would be refused",
        &columns,
        rows,
    );
}

fn sources(html: &mut Html, config: &ConfigReport) {
    let columns = [
        Column::Text("source"),
        Column::Text("limit"),
        Column::Text("class"),
        Column::Text("first refused"),
        Column::Number("for"),
        Column::Number("refused"),
        Column::Number("bytes"),
        Column::Number("at most"),
        Column::Number("passed since"),
    ];
    let rows = config.sources.iter().map(|source| {
        let limit = at_level(&name(&source.limit), source.level.as_deref());
        let limit = if source.observed {
            format!("{limit} (observed)")
        } else {
            limit
        };
        vec![
            Cell::text(with_sources(&source.source, source.sources)),
            Cell::text(limit),
            Cell::text(&source.class),
            Cell::text(instant(source.first)),
            lasted(source.first, source.last),
            Cell::count(source.throttled_packets),
            Cell::Number(
                human::size(source.throttled_bytes),
                source.throttled_bytes as f64,
            ),
            Cell::Number(
                format!("{}/s", number(source.peak_per_second)),
                source.peak_per_second as f64,
            ),
            Cell::count(source.passed_packets),
        ]
    });
    table(
        html,
        "Sources with the most refused packets",
        &columns,
        rows,
    );
    if config.sources_error > 0 {
        let text = format!(
            "Each may have up to {} more: the smallest sources were dropped.",
            number(config.sources_error)
        );
        html.leaf("p", &[("class", "note")], &text);
    }
}

fn differences(
    html: &mut Html,
    comparison: &ComparisonReport,
    one: &ConfigReport,
    other: &ConfigReport,
) {
    let all = comparison.both_pass
        + comparison.both_refuse
        + comparison.only_first_refuses
        + comparison.only_second_refuses;
    let row = |what: String, count: u64| {
        vec![
            Cell::text(what),
            Cell::count(count),
            Cell::share(count, all),
        ]
    };
    let verdicts = [
        row("both pass".to_owned(), comparison.both_pass),
        row("both refuse".to_owned(), comparison.both_refuse),
        row(
            format!("only {} refuses", name(&one.config)),
            comparison.only_first_refuses,
        ),
        row(
            format!("only {} refuses", name(&other.config)),
            comparison.only_second_refuses,
        ),
    ];
    let columns = [
        Column::Text("verdicts"),
        Column::Number("packets"),
        Column::Number("share"),
    ];
    table(html, "Verdicts of both configs", &columns, verdicts);
    for (config, sources) in [
        (one, &comparison.first_sources),
        (other, &comparison.second_sources),
    ] {
        let title = format!("Sources that only {} refuses", name(&config.config));
        let columns = [
            Column::Text("source"),
            Column::Text("first"),
            Column::Number("for"),
            Column::Number("packets"),
        ];
        table(html, &title, &columns, sources.iter().map(differing));
    }
}

fn differing(source: &DifferingSource) -> Vec<Cell> {
    vec![
        Cell::text(&source.source),
        Cell::text(instant(source.first)),
        lasted(source.first, source.last),
        Cell::count(source.packets),
    ]
}

fn lasted(first: f64, last: f64) -> Cell {
    let seconds = (last - first).max(0.0);
    Cell::Number(human::time(Duration::from_secs_f64(seconds)), seconds)
}

/// A captured time as text.
fn instant(seconds: f64) -> String {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs_f64(seconds.max(0.0)))
        .to_string()
}
