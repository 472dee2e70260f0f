//! Self-contained HTML pages for `--html`, and the live page ([`live`]).
//!
//! A page needs neither the network nor scripts: plots are SVG, and the only script sorts tables. Its content security
//! policy allows its own style and script, by their hashes, and nothing else. All texts are escaped ([`Html`]), tables
//! and plots have a maximum size, and equal documents give equal pages.

mod axis;
mod destination;
mod distribution;
mod html;
pub mod live;
mod table;
mod timeline;

use config::human::{cut, number};

pub use destination::{Destination, PageError};
pub use distribution::{Distribution, distribution};
pub use html::{Attributes, Html};
pub use table::{Cell, Column, MOST_ROWS, table};
pub use timeline::{Timeline, timeline};

/// The most limits with plots.
pub const MOST_PLOTTED: usize = 16;
/// The most bytes of a config.
const MOST_CONFIG: usize = 256 << 10;
/// The most notes.
const MOST_NOTES: usize = 50;
/// The most columns of a name, and of a note.
const LONGEST: (usize, usize) = (120, 1_000);

const STYLE: &str = include_str!("style.css");
const SCRIPT: &str = include_str!("script.js");
/// Hashes of both; a test prints those that a change requires.
const POLICY: &str = "default-src 'none'; style-src 'sha256-nKBqSielgyOh/npdN1xNMiH2Se0v+nCw8CqCx9Rms00='; script-src 'sha256-b8DS0bbMTw7En1KR0A07IhXV5O8ACOb7dryrPjrPioY='; base-uri 'none'; form-action 'none'";

/// A page with this title, as heading too, and this content.
pub fn page(title: &str, content: impl FnOnce(&mut Html)) -> String {
    shell(
        title,
        &Shell {
            policy: Some(POLICY),
            styles: &[STYLE],
            scripts: &[SCRIPT],
        },
        content,
    )
}

/// The parts of a page around its content.
struct Shell<'s> {
    /// The content security policy, unless it is a header.
    policy: Option<&'s str>,
    styles: &'s [&'static str],
    scripts: &'s [&'static str],
}

fn shell(title: &str, shell: &Shell<'_>, content: impl FnOnce(&mut Html)) -> String {
    let title = name(title);
    let mut html = Html::default();
    html.verbatim("<!DOCTYPE html>\n");
    html.element("html", &[("lang", "en")], |html| {
        html.element("head", &[], |html| {
            html.open("meta", &[("charset", "utf-8")]);
            if let Some(policy) = shell.policy {
                html.open(
                    "meta",
                    &[
                        ("http-equiv", "Content-Security-Policy"),
                        ("content", policy),
                    ],
                );
            }
            html.open(
                "meta",
                &[
                    ("name", "viewport"),
                    ("content", "width=device-width, initial-scale=1"),
                ],
            );
            html.open(
                "meta",
                &[("name", "color-scheme"), ("content", "light dark")],
            );
            html.open("meta", &[("name", "referrer"), ("content", "no-referrer")]);
            html.leaf("title", &[], &title);
            shell
                .styles
                .iter()
                .for_each(|style| html.element("style", &[], |html| html.verbatim(style)));
        });
        html.line();
        html.element("body", &[], |html| {
            html.element("main", &[], |html| {
                html.leaf("h1", &[], &title);
                content(html);
            });
            html.leaf(
                "footer",
                &[],
                concat!("Made by Weir ", env!("CARGO_PKG_VERSION"), "."),
            );
            shell
                .scripts
                .iter()
                .for_each(|script| html.element("script", &[], |html| html.verbatim(script)));
        });
    });
    html.line();
    html.finish()
}

/// A name in one line: its middle is left out if it is long.
#[must_use]
pub fn name(text: &str) -> String {
    cut(text, LONGEST.0)
}

/// Appends figures with their names.
pub fn figures(html: &mut Html, figures: &[(&str, String)]) {
    html.element("dl", &[("class", "figures")], |html| {
        for (name, value) in figures {
            html.element("div", &[], |html| {
                html.leaf("dt", &[], name);
                html.leaf("dd", &[], value);
            });
        }
    });
    html.line();
}

/// Appends a section with this heading.
pub fn section(html: &mut Html, heading: &str, content: impl FnOnce(&mut Html)) {
    html.element("section", &[], |html| {
        html.leaf("h2", &[], &name(heading));
        html.line();
        content(html);
    });
    html.line();
}

/// Appends a section with notes, if there are any.
pub fn notes(html: &mut Html, notes: &[String]) {
    if notes.is_empty() {
        return;
    }
    section(html, "Notes", |html| {
        html.element("ul", &[], |html| {
            notes
                .iter()
                .take(MOST_NOTES)
                .for_each(|note| html.leaf("li", &[], &cut(note, LONGEST.1)));
        });
        if let Some(more) = notes.len().checked_sub(MOST_NOTES).filter(|more| *more > 0) {
            html.leaf(
                "p",
                &[("class", "note")],
                &format!("And {} more.", number(more as u64)),
            );
        }
    });
}

/// Appends an error.
pub fn error(html: &mut Html, error: &str) {
    html.leaf(
        "p",
        &[("class", "error"), ("role", "alert")],
        &cut_text(error, LONGEST.1).0,
    );
}

/// Appends a config's text, which can be folded away.
pub fn config(html: &mut Html, title: &str, text: &str) {
    let (shown, is_cut) = cut_text(text, MOST_CONFIG);
    html.element("details", &[("open", "")], |html| {
        html.leaf("summary", &[], &name(title));
        html.leaf("pre", &[("tabindex", "0")], &shown);
        if is_cut {
            let text = format!(
                "The first {} of {}.",
                config::human::size(shown.len() as u64),
                config::human::size(text.len() as u64)
            );
            html.leaf("p", &[("class", "note")], &text);
        }
    });
    html.line();
}

/// The first `most` bytes of a text, and whether it has more.
fn cut_text(text: &str, most: usize) -> (String, bool) {
    let end = (0..=most.min(text.len()))
        .rev()
        .find(|end| text.is_char_boundary(*end))
        .unwrap_or(0);
    (text[..end].to_owned(), end < text.len())
}

/// The percentage `part` of `all`; 0 of nothing.
#[must_use]
pub fn percent(part: u64, all: u64) -> f64 {
    if all == 0 {
        0.0
    } else {
        part as f64 * 100.0 / all as f64
    }
}

#[cfg(test)]
mod tests;
