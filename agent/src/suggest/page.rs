//! The page of `weir suggest --html`.

use std::time::Duration;

use config::human::{self, number};

use super::decide::Decision;
use super::limit::{SuggestedLimit, WindowBasis};
use super::report::{LimitRow, SuggestReport};
use super::traffic::{Traffic, Unit};
use crate::page::{
    Cell, Column, Distribution, Html, MOST_PLOTTED, Timeline, config, distribution, error, figures,
    name, notes, page, section, table, timeline,
};
use crate::replay::{TimelineDocument, captured, captures};

/// The data of a suggested limit's plots.
#[derive(Clone, Debug)]
pub struct LimitPlots {
    /// One for each window: its length in seconds, and the sources.
    distributions: Vec<(u64, Distribution)>,
    /// Of a replay, if there was one.
    timeline: Option<TimelineDocument>,
}

/// The plots of the limits of a decision on this traffic, in their order. `refusals` are those of a replay.
#[must_use]
pub fn limit_plots(
    traffic: &Traffic,
    decision: &Decision,
    refusals: Option<&[super::Refusal]>,
) -> Vec<LimitPlots> {
    let plots = |limit: &SuggestedLimit| {
        let own = limit.name();
        let refusal = refusals
            .into_iter()
            .flatten()
            .find(|refusal| refusal.limit == own);
        let windows = limit.basis.windows.iter().enumerate();
        LimitPlots {
            distributions: windows
                .filter_map(|(nth, window)| {
                    Some((window.seconds, sources(traffic, limit, nth, window)?))
                })
                .collect(),
            timeline: refusal.map(|refusal| refusal.timeline.clone()),
        }
    };
    decision
        .limits
        .iter()
        .take(MOST_PLOTTED)
        .map(plots)
        .collect()
}

/// The sources of a limit's service by their busiest window of a length.
fn sources(
    traffic: &Traffic,
    limit: &SuggestedLimit,
    nth: usize,
    window: &WindowBasis,
) -> Option<Distribution> {
    let service = traffic
        .services
        .iter()
        .find(|service| service.service == limit.service)?;
    let mut rows: Vec<(u64, u64)> = service
        .busiest
        .get(limit.unit as usize)?
        .get(nth)?
        .rows()
        .collect();
    // Sources that only open connections are apart in the statistics; a limit applies to them as well.
    if matches!(limit.unit, Unit::Packets | Unit::Connections) {
        rows.extend(service.only_open.get(nth)?.rows());
        rows.sort_unstable();
    }
    Some(Distribution {
        counted: format!(
            "{} of a source in its busiest {}",
            limit.unit.name(),
            time(window.seconds)
        ),
        rows,
        limit: limit.allows(window.seconds),
        quantile: (percentage(limit.basis.quantile), window.value),
    })
}

/// The page of a report, with the plots of its limits.
#[must_use]
pub fn suggest_page(report: &SuggestReport, plots: &[LimitPlots]) -> String {
    page(
        &format!("Limits for {}", captured(&report.captures)),
        |html| {
            if let Some(reason) = &report.error {
                error(html, reason);
            }
            figures(
                html,
                &[
                    ("incoming packets", number(report.packets)),
                    (
                        "time",
                        human::time(Duration::from_secs_f64(report.seconds.max(0.0))),
                    ),
                    ("suggested limits", number(report.limits.len() as u64)),
                ],
            );
            if !report.limits.is_empty() {
                section(html, "Suggested limits", |html| limits(html, report));
            }
            for (nth, (limit, plots)) in report.limits.iter().zip(plots).enumerate() {
                section(html, &limit.name, |html| of_limit(html, nth, limit, plots));
            }
            others(html, report);
            if let Some(text) = &report.config {
                section(html, "Config", |html| {
                    config(html, "limits.toml, in observe mode", text);
                });
            }
            captures(html, &report.captures);
            notes(html, &report.notes);
        },
    )
}

fn limits(html: &mut Html, report: &SuggestReport) {
    let columns = [
        Column::Text("limit"),
        Column::Text("service"),
        Column::Text("unit"),
        Column::Text("rate"),
        Column::Number("burst"),
        Column::Number("sources"),
        Column::Number("exceed it"),
        Column::Number("packets"),
        Column::Number("would be refused"),
        Column::Number("share"),
    ];
    let rows = report.limits.iter().map(|limit| {
        let replayed = limit.replayed.as_ref();
        vec![
            Cell::text(&limit.name),
            Cell::text(limit.service.to_string()),
            Cell::text(limit.unit.name()),
            Cell::text(&limit.rate),
            Cell::count(limit.burst),
            Cell::count(limit.basis.sources),
            Cell::count(limit.basis.exceeding),
            Cell::count_or_none(replayed.map(|replayed| replayed.packets)),
            Cell::count_or_none(replayed.map(|replayed| replayed.refused)),
            replayed.map_or_else(Cell::none, |replayed| {
                Cell::share(replayed.refused, replayed.packets)
            }),
        ]
    });
    table(
        html,
        "Limits by source, with what a replay of this traffic refuses",
        &columns,
        rows,
    );
    if report.limits.len() > MOST_PLOTTED {
        let text = format!("The first {MOST_PLOTTED} limits have plots.");
        html.leaf("p", &[("class", "note")], &text);
    }
    let columns = [
        Column::Text("source"),
        Column::Text("limit"),
        Column::Number("count"),
        Column::Number("in"),
        Column::Number("times the limit"),
        Column::Text("remark"),
    ];
    let rows = report.limits.iter().flat_map(|limit| {
        limit.basis.busiest.iter().map(|source| {
            vec![
                Cell::text(source.address.to_string()),
                Cell::text(&limit.name),
                Cell::count(source.value),
                Cell::Number(time(source.window_seconds), source.window_seconds as f64),
                Cell::Number(format!("{:.1}", source.factor), source.factor),
                Cell::text(source.unlike.unwrap_or_default()),
            ]
        })
    });
    table(
        html,
        "The busiest sources that exceed a limit",
        &columns,
        rows,
    );
}

fn of_limit(html: &mut Html, nth: usize, limit: &LimitRow, plots: &LimitPlots) {
    let basis = &limit.basis;
    let unit = limit.unit.name();
    let text = format!(
        "A limit on {unit} of {}: {} with a burst of {}. {} of {} sources stay at or below {} in their busiest second. \
         The limit allows {:.1} times the busiest of them. Sources that exceed it: {}.",
        limit.service,
        limit.rate,
        number(limit.burst),
        percentage(basis.quantile),
        number(basis.sources),
        number(basis.value),
        basis.margin,
        number(basis.exceeding)
    );
    html.leaf("p", &[], &text);
    html.element("div", &[("class", "plots")], |html| {
        for (window, (seconds, of)) in plots.distributions.iter().enumerate() {
            distribution(
                html,
                &format!("sources-{nth}-{window}"),
                &format!("Busiest {}", time(*seconds)),
                of,
            );
        }
    });
    if let Some(of) = &plots.timeline {
        let data = Timeline {
            step_seconds: of.step_seconds,
            passed: &of.passed,
            refused: &of.throttled,
            would_refuse: &of.would_throttle,
        };
        let title = format!(
            "{}: packets over time, in steps of {}",
            name(&limit.name),
            time(of.step_seconds)
        );
        timeline(html, &format!("plot-{nth}"), &title, data);
    }
}

fn others(html: &mut Html, report: &SuggestReport) {
    if report.classes.is_empty() && report.together.is_empty() && report.lacking.is_empty() {
        return;
    }
    section(html, "Classes and services without a limit", |html| {
        let columns = [
            Column::Text("class"),
            Column::Number("multiplier"),
            Column::Text("source"),
            Column::Text("limit"),
            Column::Number("count"),
            Column::Number("in"),
            Column::Number("active"),
        ];
        let rows = report.classes.iter().flat_map(|class| {
            class.sources.iter().map(|source| {
                vec![
                    Cell::text(&class.name),
                    Cell::count(class.multiplier.into()),
                    Cell::text(source.address.to_string()),
                    Cell::text(&source.limit),
                    Cell::count(source.value),
                    Cell::Number(time(source.window_seconds), source.window_seconds as f64),
                    Cell::Number(format!("{:.0} %", source.active * 100.0), source.active),
                ]
            })
        });
        table(
            html,
            "Classes: heavy sources that otherwise resemble most",
            &columns,
            rows,
        );
        let columns = [
            Column::Text("service"),
            Column::Text("rate"),
            Column::Number("burst"),
            Column::Number("unanswered in 10 s"),
            Column::Number("completed in 10 s"),
            Column::Number("would refuse"),
        ];
        let rows = report.together.iter().map(|together| {
            vec![
                Cell::text(together.service.to_string()),
                Cell::text(&together.rate),
                Cell::count(together.burst),
                Cell::count(together.unanswered),
                Cell::count(together.completed),
                Cell::Number(
                    format!("{:.1} %", together.refused_share * 100.0),
                    together.refused_share,
                ),
            ]
        });
        table(
            html,
            "Limits on all sources together, as comments in the config",
            &columns,
            rows,
        );
        let columns = [
            Column::Text("service"),
            Column::Text("unit"),
            Column::Number("sources"),
            Column::Number("only open connections"),
        ];
        let rows = report.lacking.iter().map(|lacking| {
            vec![
                Cell::text(lacking.service.to_string()),
                Cell::text(lacking.unit.name()),
                Cell::count(lacking.sources),
                Cell::count(lacking.only_open),
            ]
        });
        table(html, "Without a limit: too few sources", &columns, rows);
    });
}

/// `99.9 %`.
fn percentage(share: f64) -> String {
    format!("{} %", (share * 1_000.0).round() / 10.0)
}

fn time(seconds: u64) -> String {
    human::time(Duration::from_secs(seconds))
}
