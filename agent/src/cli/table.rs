//! Tables for people, rendered by `tabled`: it measures non-ASCII text, and is maintained.

use std::time::{Duration, UNIX_EPOCH};

use tabled::builder::Builder;
use tabled::settings::object::Columns;
use tabled::settings::{Alignment, Padding, Style};

pub use config::human::number;
use config::human::{self, columns, cut};

use crate::stats::Precision;

/// The least number of characters to which a name is cut.
const SHORTEST: usize = 12;
/// The columns between two table columns.
const GAP: usize = 2;

/// A table with a heading. The columns from `numbers` on are numbers, right-aligned and never cut. On a narrow
/// terminal, names are cut in the middle, the longest first.
pub fn render<const N: usize>(
    heading: [&str; N],
    numbers: usize,
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    fitted(heading, numbers, rows.into_iter().collect(), width())
}

/// The same, or a sentence if there are no rows.
pub fn render_or<const N: usize>(
    empty: &str,
    heading: [&str; N],
    numbers: usize,
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let rows: Vec<[String; N]> = rows.into_iter().collect();
    if rows.is_empty() {
        empty.to_owned()
    } else {
        fitted(heading, numbers, rows, width())
    }
}

/// [`render`] for this many columns.
pub fn fitted<const N: usize>(
    heading: [&str; N],
    numbers: usize,
    mut rows: Vec<[String; N]>,
    room: Option<usize>,
) -> String {
    let mut widths = heading.map(columns);
    for (nth, width) in widths.iter_mut().enumerate() {
        let cells = rows.iter().flat_map(|row| row[nth].lines()).map(columns);
        *width = cells.max().unwrap_or(0).max(*width);
    }
    while let Some(room) = room
        && widths.iter().sum::<usize>() + GAP * N.saturating_sub(1) > room
    {
        let longest = (0..numbers.min(N))
            .max_by_key(|nth| widths[*nth])
            .filter(|nth| widths[*nth] > SHORTEST);
        let Some(longest) = longest else { break };
        widths[longest] -= 1;
    }
    for row in &mut rows {
        for (cell, width) in row.iter_mut().zip(widths).take(numbers) {
            *cell = cell
                .lines()
                .map(|line| cut(line, width))
                .collect::<Vec<_>>()
                .join("\n");
        }
    }
    let mut builder = Builder::default();
    builder.push_record(heading);
    for row in rows {
        builder.push_record(row);
    }
    let mut table = builder.build();
    table.with(Style::empty()).with(Padding::new(0, GAP, 0, 0));
    if numbers < N {
        table.modify(Columns::new(numbers..), Alignment::right());
    }
    table
        .to_string()
        .lines()
        .map(str::trim_end)
        .collect::<Vec<_>>()
        .join("\n")
}

/// The columns of the terminal, or COLUMNS; `None` if the output is not a terminal, and nothing is cut.
pub fn width() -> Option<usize> {
    if let Some(columns @ 1..) = std::env::var("COLUMNS")
        .ok()
        .and_then(|columns| columns.parse().ok())
    {
        return Some(columns);
    }
    let is_terminal = std::io::IsTerminal::is_terminal(&std::io::stdout());
    is_terminal.then(|| known_width(crossterm::terminal::size().ok()))
}

/// The columns of a terminal of this size. A serial console reports 0 × 0.
fn known_width(size: Option<(u16, u16)>) -> usize {
    match size {
        Some((columns @ 1.., _)) => usize::from(columns),
        _ => 80,
    }
}

/// Names and their definitions, one a line; long ones continue below, indented.
pub fn definitions<'d>(rows: impl IntoIterator<Item = (&'d str, &'d str)>) -> String {
    defined(rows.into_iter().collect(), width())
}

/// [`definitions`] for this many columns.
pub fn defined(rows: Vec<(&str, &str)>, room: Option<usize>) -> String {
    let longest = rows
        .iter()
        .map(|(name, _)| columns(name))
        .max()
        .unwrap_or(0);
    let names = room.map_or(longest, |room| longest.min((room / 3).max(SHORTEST)));
    let mut lines = Vec::new();
    for (name, text) in rows {
        let name = cut(name, names);
        let mut line = format!("{name}{}", " ".repeat(names - columns(&name) + GAP));
        let mut is_first = true;
        for word in text.split(' ') {
            if !is_first && room.is_some_and(|room| columns(&line) + 1 + columns(word) > room) {
                lines.push(std::mem::replace(&mut line, " ".repeat(names + 2 * GAP)));
                is_first = true;
            }
            if !is_first {
                line.push(' ');
            }
            line.push_str(word);
            is_first = false;
        }
        lines.push(line);
    }
    lines
        .iter()
        .map(|line| line.trim_end())
        .collect::<Vec<_>>()
        .join("\n")
}

/// Two columns: names and values.
pub fn pairs<'n>(rows: impl AsRef<[(&'n str, String)]>) -> String {
    let rows = rows.as_ref();
    let width = rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    rows.iter()
        .map(|(name, value)| format!("{name:width$}  {value}"))
        .collect::<Vec<_>>()
        .join("\n")
}

/// Passed packets: with `~` where scaled up from a sample, with `<=` for an upper bound.
pub fn passed(packets: u64, precision: Precision) -> String {
    format!("{}{}", precision.mark(), number(packets))
}

/// A time before now, or `-`.
pub fn ago(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "-".to_owned(), human::ago)
}

/// A time in seconds since 1970, as `2026-03-31T18:00:00Z`.
pub fn instant(seconds: f64) -> String {
    let since = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    humantime::format_rfc3339_seconds(UNIX_EPOCH + since).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_terminal_of_no_columns_counts_as_eighty_columns() {
        assert_eq!(known_width(Some((0, 0))), 80);
        assert_eq!(known_width(None), 80);
        assert_eq!(known_width(Some((132, 0))), 132);
    }

    #[test]
    fn a_table_fits_the_terminal_and_names_lose_their_middle() {
        let row = |name: &str| {
            [
                name.to_owned(),
                "2001:db8:1234:5678::/64".to_owned(),
                number(1_234_567),
            ]
        };
        let rows = || {
            vec![
                row("a-limit-with-a-name-that-is-much-longer-than-any-name-needs-to-be-really"),
                row("ssh"),
            ]
        };
        let table = fitted(["LIMIT", "SOURCE", "PASSED"], 2, rows(), Some(80));
        assert!(table.lines().all(|line| columns(line) <= 80), "{table}");
        assert!(
            table.contains("a-limit-with") && table.contains("…") && table.contains("be-really"),
            "{table}"
        );
        assert!(
            table.contains("2001:db8:1234:5678::/64") && table.contains("1,234,567"),
            "{table}"
        );
        assert!(!fitted(["LIMIT", "SOURCE", "PASSED"], 2, rows(), None).contains('…'));
        assert!(!fitted(["LIMIT", "SOURCE", "PASSED"], 2, rows(), Some(200)).contains('…'));
    }

    #[test]
    fn a_definition_goes_on_below_its_name() {
        let text = "ingress tcp/22  5 connections/min per address (IPv6 /64), burst 5, reject";
        assert_eq!(
            defined(vec![("ssh", text)], Some(80)),
            format!("ssh  {text}")
        );
        let narrow = defined(vec![("ssh", text), ("a", "b")], Some(40));
        assert!(
            narrow.lines().all(|line| columns(line) <= 40) && narrow.lines().count() > 2,
            "{narrow}"
        );
    }
}
