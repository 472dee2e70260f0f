//! Tables: one row per measurement, one column per limiter.

use std::fmt::Write as _;

use super::figures::{Figures, Series, Summary};

/// A figure with its significant digits.
pub fn shown(value: f64) -> String {
    match value.abs() {
        0.0..10.0 => format!("{value:.2}"),
        10.0..1_000.0 => format!("{value:.1}"),
        _ => grouped(value),
    }
}

/// A whole number with thousands separators.
fn grouped(value: f64) -> String {
    let digits = format!("{:.0}", value.abs());
    let mut text = if value < 0.0 {
        "-".to_owned()
    } else {
        String::new()
    };
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Median and middle half, or the reason for their absence.
fn cell(series: Option<&Series>) -> String {
    let Some(series) = series else {
        return String::new();
    };
    match Summary::of(&series.samples) {
        Some(summary) if summary.lower == summary.upper => shown(summary.median),
        Some(summary) => format!(
            "{} ({}–{})",
            shown(summary.median),
            shown(summary.lower),
            shown(summary.upper)
        ),
        None => series.note.clone().unwrap_or_else(|| "not here".to_owned()),
    }
}

/// The measurements of one part and unit, in order: rows of cells, the first of which is the heading.
pub fn rows(figures: &Figures, part: &str, unit: &str) -> Vec<Vec<String>> {
    let of_part = || {
        figures
            .0
            .iter()
            .filter(|series| series.part == part && series.unit == unit)
    };
    let distinct = |names: Vec<&str>| {
        let mut distinct: Vec<String> = Vec::new();
        for name in names {
            if !distinct.iter().any(|seen| seen == name) {
                distinct.push(name.to_owned());
            }
        }
        distinct
    };
    let cases = distinct(of_part().map(|series| series.case.as_str()).collect());
    let owners = distinct(of_part().map(|series| series.by.as_str()).collect());
    let mut table = vec![
        std::iter::once(unit.to_owned())
            .chain(owners.iter().cloned())
            .collect::<Vec<_>>(),
    ];
    for case in &cases {
        let mut row = vec![case.clone()];
        row.extend(
            owners
                .iter()
                .map(|by| cell(of_part().find(|series| series.case == *case && series.by == *by))),
        );
        table.push(row);
    }
    table
}

/// The units of a part, in the order of measurement.
pub fn units(figures: &Figures, part: &str) -> Vec<String> {
    let mut units: Vec<String> = Vec::new();
    for series in figures.0.iter().filter(|series| series.part == part) {
        if !units.contains(&series.unit) {
            units.push(series.unit.clone());
        }
    }
    units
}

/// For a terminal.
pub fn text(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns)
        .map(|column| {
            rows.iter()
                .filter_map(|row| row.get(column))
                .map(|cell| cell.chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut text = String::new();
    for row in rows {
        let cells: Vec<String> = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{cell:width$}"))
            .collect();
        let _ = writeln!(text, "{}", cells.join("  ").trim_end());
    }
    text
}

/// For a document.
pub fn markdown(rows: &[Vec<String>]) -> String {
    let Some((head, body)) = rows.split_first() else {
        return String::new();
    };
    let mut text = format!("| {} |\n|{}\n", head.join(" | "), "---|".repeat(head.len()));
    for row in body {
        let _ = writeln!(text, "| {} |", row.join(" | "));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_shown_with_the_digits_that_mean_something() {
        let expected = ["0.80", "31.4", "1,234,568", "-1,000"];
        assert_eq!([0.8, 31.41, 1_234_567.8, -1_000.0].map(shown), expected);
    }

    #[test]
    fn a_measured_case_is_a_row_and_each_program_a_column() {
        let series = |case: &str, by: &str, samples: Vec<f64>| Series {
            part: "packet".to_owned(),
            case: case.to_owned(),
            by: by.to_owned(),
            unit: "ns".to_owned(),
            samples,
            note: None,
        };
        let figures = Figures(vec![
            series("hot", "weir", vec![30.0, 32.0, 31.0]),
            series("hot", "minimal", vec![40.0]),
            series("cold", "weir", vec![]),
        ]);
        let rows = rows(&figures, "packet", "ns");
        assert_eq!(rows[0], ["ns", "weir", "minimal"]);
        assert_eq!(rows[1], ["hot", "31.0 (30.5–31.5)", "40.0"]);
        assert_eq!(rows[2], ["cold", "not here", ""]);
        assert_eq!(markdown(&rows).lines().nth(1), Some("|---|---|---|"));
        assert_eq!(text(&rows).lines().count(), 3);
    }
}
