//! Tables. With scripts, a click on a heading sorts the rows.

use config::human::{columns, cut, number};

use super::html::Html;

/// The most rows: a page is of bounded size.
pub const MOST_ROWS: usize = 200;
/// The most columns of text in a cell.
const LONGEST: usize = 120;

/// The columns of text above which a cell has several lines.
const WRAPPED: usize = 40;

/// A heading.
#[derive(Clone, Copy, Debug)]
pub enum Column {
    Text(&'static str),
    Number(&'static str),
}

/// A cell.
#[derive(Clone, Debug)]
pub enum Cell {
    Text(String),
    /// A text and the value by which it is sorted.
    Number(String, f64),
}

impl Cell {
    /// A text.
    pub fn text(text: impl Into<String>) -> Self {
        Self::Text(text.into())
    }

    /// A number of things.
    #[must_use]
    pub fn count(count: u64) -> Self {
        Self::Number(number(count), count as f64)
    }

    /// A number of things, or a dash.
    #[must_use]
    pub fn count_or_none(count: Option<u64>) -> Self {
        count.map_or_else(Self::none, Self::count)
    }

    /// The share `part` of `all`.
    #[must_use]
    pub fn share(part: u64, all: u64) -> Self {
        let percent = super::percent(part, all);
        Self::Number(format!("{percent:.2} %"), percent)
    }

    /// A dash, sorted below numbers.
    #[must_use]
    pub fn none() -> Self {
        Self::Number("-".to_owned(), -1.0)
    }
}

/// Appends a table, with at most [`MOST_ROWS`] rows, or nothing without rows.
pub fn table(
    html: &mut Html,
    title: &str,
    headings: &[Column],
    rows: impl IntoIterator<Item = Vec<Cell>>,
) {
    let mut rows = rows.into_iter();
    let shown: Vec<Vec<Cell>> = rows.by_ref().take(MOST_ROWS).collect();
    let hidden = rows.count();
    if shown.is_empty() {
        return;
    }
    html.leaf("p", &[("class", "title")], title);
    frame(html, title, headings, |html| {
        for row in &shown {
            html.line();
            html.element("tr", &[], |html| row.iter().for_each(|of| cell(html, of)));
        }
    });
    if hidden > 0 {
        let text = format!(
            "The first {} of {} rows.",
            number(shown.len() as u64),
            number((shown.len() + hidden) as u64)
        );
        html.leaf("p", &[("class", "note")], &text);
    }
    html.line();
}

/// Appends a table with these rows.
pub(super) fn frame(
    html: &mut Html,
    title: &str,
    headings: &[Column],
    rows: impl FnOnce(&mut Html),
) {
    // A box of its own that scrolls, also by keys: the page does not scroll sideways.
    html.element(
        "div",
        &[
            ("class", "box"),
            ("tabindex", "0"),
            ("role", "region"),
            ("aria-label", title),
        ],
        |html| {
            html.element("table", &[("aria-label", title)], |html| {
                html.element("thead", &[], |html| {
                    html.element("tr", &[], |html| {
                        headings.iter().for_each(|column| heading(html, *column));
                    });
                });
                html.element("tbody", &[], rows);
            });
        },
    );
}

fn heading(html: &mut Html, column: Column) {
    match column {
        Column::Text(title) => html.leaf("th", &[("scope", "col")], title),
        Column::Number(title) => html.leaf("th", &[("scope", "col"), ("class", "number")], title),
    }
}

fn cell(html: &mut Html, cell: &Cell) {
    match cell {
        Cell::Text(text) if columns(text) > WRAPPED => {
            html.leaf("td", &[("class", "long")], &cut(text, LONGEST));
        }
        Cell::Text(text) => html.leaf("td", &[], text),
        Cell::Number(text, value) => {
            html.leaf(
                "td",
                &[("class", "number"), ("data-value", &value.to_string())],
                text,
            );
        }
    }
}
