//! `weir top`: the live view, or one table.

use std::io::{self, IsTerminal};
use std::process::ExitCode;

use api::request::Request;
use host::PROGRAM;

use super::ask::print;
use super::exit::USAGE;
use super::heavy_prefixes;
use super::table::{self, ago, number, passed};
use crate::cli::arguments::{Options, TopOrder};
use crate::stats::{Sort, TopRow};
use crate::tui::{self, App};

/// The mode of the view.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Looks {
    /// Live.
    Many,
    /// One table.
    One,
}

impl From<bool> for Looks {
    fn from(once: bool) -> Self {
        if once { Self::One } else { Self::Many }
    }
}

/// The rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rows {
    /// In this order.
    Sources(Option<TopOrder>),
    /// An order that conflicts with them, and the least share of a prefix.
    Prefixes(Option<TopOrder>, f64),
}

pub fn top(
    looks: Looks,
    count: Option<usize>,
    rows: Rows,
    options: &Options,
) -> anyhow::Result<ExitCode> {
    let (sort, share) = match rows {
        Rows::Sources(sort) => (sort, None),
        Rows::Prefixes(None, share) => (None, Some(share)),
        Rows::Prefixes(Some(_), _) => {
            eprintln!("--sort conflicts with --by prefix, whose rows have the largest share first");
            return Ok(ExitCode::from(USAGE));
        }
    };
    let is_rate = matches!(sort, Some(TopOrder::ThrottledRate | TopOrder::PassedRate));
    if looks == Looks::One && is_rate {
        eprintln!(
            "a rate requires two samples: use --sort throttled or passed with --once, or leave out --once"
        );
        return Ok(ExitCode::from(USAGE));
    }
    if looks == Looks::One {
        return match share {
            Some(share) => heavy_prefixes::once(count, share, options),
            None => once(count, sort, options),
        };
    }
    if count.is_some() {
        eprintln!(
            "-n conflicts with the live view, which has as many rows as the terminal: use {PROGRAM} top --once -n N"
        );
        return Ok(ExitCode::from(USAGE));
    }
    if options.json {
        eprintln!("the live view has no JSON: use {PROGRAM} top --once --json");
        return Ok(ExitCode::from(USAGE));
    }
    if !io::stdin().is_terminal() || !io::stdout().is_terminal() {
        eprintln!("the live view requires a terminal: use {PROGRAM} top --once for one table");
        return Ok(ExitCode::from(USAGE));
    }
    let sort = sort.map_or_else(Sort::default, |order| match order {
        TopOrder::Throttled => Sort::Throttled,
        TopOrder::Passed => Sort::Passed,
        TopOrder::ThrottledRate => Sort::ThrottledRate,
        TopOrder::PassedRate => Sort::PassedRate,
    });
    let app = App::sorted(sort).by_prefix(share);
    tui::run(
        options.client(),
        (tui::Theme::of_environment(), tui::Glyphs::of_environment()),
        app,
    )?;
    Ok(ExitCode::SUCCESS)
}

/// One table of sources.
fn once(
    count: Option<usize>,
    sort: Option<TopOrder>,
    options: &Options,
) -> anyhow::Result<ExitCode> {
    let mut rows: Vec<TopRow> = options.client().ask(&Request::Top)?;
    if sort == Some(TopOrder::Passed) {
        rows.sort_by_key(|row| std::cmp::Reverse(row.passed_packets));
    }
    rows.truncate(count.unwrap_or(usize::MAX));
    print(options, &rows, |rows: &Vec<TopRow>| {
        table::render_or(
            "No sources.",
            [
                "SOURCE",
                "LIMIT",
                "PASSED",
                "THROTTLED",
                "WOULD THR",
                "LAST",
            ],
            2,
            rows.iter().map(|row| {
                [
                    row.source_text(),
                    row.limit_text(),
                    passed(row.passed_packets, row.passed_precision),
                    number(row.throttled_packets),
                    number(row.would_throttle_packets),
                    ago(row.last_throttled_seconds_ago),
                ]
            }),
        )
    })
}
