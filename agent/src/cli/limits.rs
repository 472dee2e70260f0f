//! `weir limits`.

use std::process::ExitCode;

use api::request::{CountersReset, Request};

use super::ask::ask;
use super::fair;
use super::table::{self, number};
use crate::cli::arguments::Options;
use crate::stats::{LimitDefinition, LimitStatus};

pub fn limits(options: &Options) -> anyhow::Result<ExitCode> {
    ask(options, &Request::Limits, |limits: &Vec<LimitStatus>| {
        if limits.is_empty() {
            return "No limits.".to_owned();
        }
        let counts = table::render(
            ["LIMIT", "PASSED", "THROTTLED", "WOULD THROTTLE", "KEYS"],
            1,
            limits.iter().flat_map(|limit| {
                let own = [
                    limit.definition.name.clone(),
                    number(limit.passed.packets),
                    number(limit.throttled.packets),
                    number(limit.would_throttle.packets),
                    number(limit.keys),
                ];
                let levels = limit.levels.iter().map(|level| {
                    [
                        format!("  at {}", level.level),
                        "-".to_owned(),
                        number(level.throttled.packets),
                        number(level.would_throttle.packets),
                        number(level.keys),
                    ]
                });
                std::iter::once(own).chain(levels)
            }),
        );
        let mut text = format!(
            "{}\n\n{counts}",
            definitions(limits.iter().map(|limit| &limit.definition))
        );
        let levels: Vec<String> = limits
            .iter()
            .filter_map(|limit| {
                let level = limit.level.as_ref()?;
                Some(fair::level_line(&limit.definition.name, level))
            })
            .collect();
        if !levels.is_empty() {
            text.push_str("\n\n");
            text.push_str(&levels.join("\n"));
        }
        text
    })
}

pub fn reset_counters(options: &Options) -> anyhow::Result<ExitCode> {
    ask(options, &Request::ResetCounters, |reset: &CountersReset| {
        let limits = if reset.limits == 1 { "limit" } else { "limits" };
        format!(
            "counters of {} {limits} are 0 now, in top, show and metrics too",
            number(reset.limits)
        )
    })
}

/// Each limit in one line.
pub(super) fn definitions<'d>(limits: impl IntoIterator<Item = &'d LimitDefinition>) -> String {
    table::definitions(
        limits
            .into_iter()
            .map(|limit| (limit.name.as_str(), limit.summary.as_str())),
    )
}
