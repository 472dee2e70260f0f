//! The section of docs/guides/fair.md.

use std::path::Path;
use std::{fs, thread};

use anyhow::{Context as _, Result};
use serde::Serialize;

use super::tables::{BUSY, CAPACITY, FAIR, PAUSED, beside, fair_rows, of_part};
use crate::bench::figures::{Figures, Summary};
use crate::bench::over_time::{self, Line};
use crate::bench::{document, machine};

/// Around the section.
pub const MARKS: [&str; 2] = ["<!-- fair: begin -->\n", "<!-- fair: end -->"];
const TEMPLATE: &str = include_str!("section.md.jinja");
/// As in `agent/benches/fair/main.rs`.
const CALM: f64 = 40.0;
/// Of all runs, those that pauses may have disturbed in figures for a document.
const DISTURBED: f64 = 0.1;
/// Plots: file names, titles and cases.
const PICTURES: [(&str, &str, &str); 3] = [
    (
        "fair-udp.svg",
        "A UDP server, five sources at ten times its capacity",
        "UDP, 5 sources, 10 times",
    ),
    (
        "fair-nginx.svg",
        "nginx, five sources at ten times its capacity",
        "nginx, 5 sources, 10 times",
    ),
    (
        "fair-capacity.svg",
        "A UDP server whose capacity halves and returns",
        "UDP, capacity halves and returns",
    ),
];

/// The section of the guide.
pub struct Section {
    pub text: String,
    /// File names and contents.
    pub pictures: Vec<(&'static str, String)>,
    /// Whether few runs were disturbed, and how many in words.
    pub is_quiet: bool,
    pub pauses: String,
}

/// The context of the template.
#[derive(Serialize)]
struct Page<'p> {
    commit: &'p str,
    cpus: usize,
    kind: String,
    pauses: &'p str,
    rounds: usize,
    nginx: Option<String>,
    fair: Vec<Vec<String>>,
    beside: Vec<Vec<String>>,
    pictures: Vec<Picture>,
}

#[derive(Serialize)]
struct Picture {
    name: &'static str,
    title: &'static str,
}

impl Section {
    /// Of figures, and of the runs over time in a file.
    pub fn of(figures: &Figures, lines: &Path, commit: &str) -> Result<Self> {
        let text = fs::read(lines).with_context(|| format!("reading {}", lines.display()))?;
        let lines: Vec<Line> = serde_json::from_slice(&text)
            .with_context(|| format!("reading the runs over time in {}", lines.display()))?;
        let measured = of_part(figures).filter(|series| series.unit == PAUSED);
        let quiet = measured.filter(|series| !series.case.contains(BUSY));
        let delays: Vec<f64> = quiet
            .flat_map(|series| series.samples.iter().copied())
            .collect();
        let disturbed = delays.iter().filter(|delay| **delay >= CALM).count();
        let pauses = format!(
            "In {disturbed} of {} runs, senders or the UDP server paused for {CALM} ms or more.",
            delays.len()
        );
        let capacity = of_part(figures)
            .filter(|series| series.unit == CAPACITY && series.case.starts_with("nginx"))
            .filter(|series| !series.case.contains(BUSY))
            .flat_map(|series| series.samples.iter().copied())
            .collect::<Vec<_>>();
        let of_case =
            |case: &str| -> Vec<&Line> { lines.iter().filter(|line| line.case == case).collect() };
        let mut pictures = Vec::new();
        let mut titles = Vec::new();
        for (name, title, case) in PICTURES {
            let lines = of_case(case);
            if lines.iter().any(|line| line.by == FAIR) {
                pictures.push((name, over_time::picture(title, &lines, FAIR)?));
                titles.push(Picture { name, title });
            }
        }
        let samples = of_part(figures).map(|series| series.samples.len());
        let page = Page {
            commit,
            cpus: thread::available_parallelism().map_or(1, usize::from),
            kind: machine::kind(),
            pauses: &pauses,
            rounds: samples.max().unwrap_or(0),
            nginx: Summary::of(&capacity).map(|summary| format!("{:.0}", summary.median)),
            fair: fair_rows(figures),
            beside: beside(figures),
            pictures: titles,
        };
        Ok(Self {
            text: document::rendered(TEMPLATE, "section.md.jinja", &page)?,
            pictures,
            is_quiet: disturbed as f64 <= DISTURBED * delays.len() as f64,
            pauses,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::tables::tests::figures;
    use super::*;

    #[test]
    fn a_section_says_how_many_runs_were_disturbed() {
        let folder = tempfile::tempdir().unwrap();
        let lines = folder.path().join("lines.json");
        fs::write(&lines, "[]").unwrap();
        let quiet = Section::of(&figures(1.0), &lines, "abc").unwrap();
        assert!(quiet.is_quiet && quiet.pauses.starts_with("In 0 of 3 runs"));
        assert!(
            quiet
                .text
                .contains("| UDP, 5 sources, 10 times | 99.5 | 94.5 |"),
            "{}",
            quiet.text
        );
        assert!(quiet.text.contains("| 99.5 | 99.9 | – |"), "{}", quiet.text);
        let disturbed = Section::of(&figures(80.0), &lines, "abc").unwrap();
        assert!(!disturbed.is_quiet && disturbed.text.contains("In 1 of 3 runs"));
    }
}
