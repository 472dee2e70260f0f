//! docs/BENCHMARKS.md: the figures of a run by the templates beside this file, and plots.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use minijinja::{AutoEscape, Environment, UndefinedBehavior};
use serde::{Deserialize, Serialize};

use super::aims::{self, Aim};
use super::figures::Figures;
use super::machines::{self, Machine};
use super::{plot, table};
use crate::cargo_tools::THROTTLECRAB;

const PAGE: &str = include_str!("BENCHMARKS.md.jinja");
const DECISIONS: &str = include_str!("decisions.md.jinja");

/// One run: its figures, and what they are of. The benchmark leaves it as JSON, of which the document can be made again.
#[derive(Debug, Deserialize, Serialize)]
pub struct Run {
    pub commit: String,
    /// Its rounds were too few to be quoted.
    pub is_quick: bool,
    /// The kind of machine; runs on others are shown beside it.
    pub kind: String,
    /// Rows of what the machine is.
    pub machine: Vec<Vec<String>>,
    pub figures: Figures,
    /// The output of the benchmark of decisions.
    pub decisions: Option<String>,
    /// The output of the measurement of an agent at rest.
    pub rest: Option<String>,
}

/// Rows of cells, of which the first is the head.
type Rows = Vec<Vec<String>>;

/// The context of the page's template.
#[derive(Serialize)]
struct Page<'r> {
    run: &'r Run,
    aims: Rows,
    /// The medians of each kind of machine, if there are several.
    machines: Option<Rows>,
    reasons: Vec<Reason>,
    /// The tables of each part, one for each unit.
    parts: BTreeMap<&'r str, Vec<Rows>>,
    decisions: Option<Decisions>,
    marks: [&'static str; 2],
}

/// Why aims are met or not.
#[derive(Serialize)]
struct Reason {
    aims: String,
    why: String,
}

#[derive(Serialize)]
struct Decisions {
    commit: String,
    peer: String,
    tables: Vec<Rows>,
    aims: Rows,
}

const XDP_SIDE: [&str; 3] = ["weir", "minimal, LRU hash", "drop only"];
const ALL: [&str; 8] = [
    "weir",
    "minimal, LRU hash",
    "drop only",
    "weir by TC",
    "nftables at ingress",
    "nftables at input",
    "hashlimit in raw",
    "hashlimit at input",
];

/// Around the table of decisions, which may be measured alone.
pub const MARKS: [&str; 2] = ["<!-- decisions: begin -->\n", "<!-- decisions: end -->"];

/// Writes the document, its plots and what this kind of machine reached into a folder; `notes` says why aims are met or not.
/// Returns all kinds of machines that were measured.
pub fn write(folder: &Path, run: &Run, notes: &str) -> Result<Vec<Machine>> {
    let plots = folder.join("benchmarks");
    fs::create_dir_all(&plots).with_context(|| format!("creating {}", plots.display()))?;
    let figures = &run.figures;
    let parts: BTreeMap<&str, Vec<Rows>> = figures
        .0
        .iter()
        .map(|series| (series.part.as_str(), tables(figures, &series.part)))
        .collect();
    for part in parts.keys() {
        if let Some((name, svg)) = picture(figures, part)? {
            let path = plots.join(name);
            fs::write(&path, svg).with_context(|| format!("writing {}", path.display()))?;
        }
    }
    let aims = aims::all(figures);
    let kinds = plots.join("machines");
    Machine::new(&run.kind, &run.commit, &aims).write(&kinds)?;
    let machines = machines::read(&kinds)?;
    let page = Page {
        run,
        aims: aims::rows(&aims),
        machines: (machines.len() > 1).then(|| machines::rows(&machines)),
        reasons: reasons(&aims, notes),
        decisions: parts
            .contains_key(aims::DECISIONS)
            .then(|| Decisions::of(figures, &run.commit)),
        parts,
        marks: MARKS,
    };
    let text = templates()?
        .get_template("page")
        .and_then(|template| template.render(page));
    let path = folder.join("BENCHMARKS.md");
    fs::write(&path, text.context("rendering BENCHMARKS.md.jinja")?)
        .with_context(|| format!("writing {}", path.display()))?;
    Ok(machines)
}

/// The text between [`MARKS`].
pub fn decisions(figures: &Figures, commit: &str) -> Result<String> {
    let context = BTreeMap::from([("decisions", Decisions::of(figures, commit))]);
    let text = templates()?
        .get_template("decisions")
        .and_then(|template| template.render(context));
    text.context("rendering decisions.md.jinja")
}

impl Decisions {
    fn of(figures: &Figures, commit: &str) -> Self {
        Self {
            commit: commit.to_owned(),
            peer: THROTTLECRAB.title(),
            tables: tables(figures, aims::DECISIONS),
            aims: aims::rows(&aims::of_decisions(figures)),
        }
    }
}

/// A template without others, filled in.
pub fn rendered(template: &str, name: &str, context: &impl Serialize) -> Result<String> {
    let text = environment().render_named_str(name, template, context);
    text.with_context(|| format!("rendering {name}"))
}

fn environment() -> Environment<'static> {
    let mut templates = Environment::new();
    templates.set_undefined_behavior(UndefinedBehavior::SemiStrict);
    templates.set_auto_escape_callback(|_| AutoEscape::None);
    templates.set_keep_trailing_newline(true);
    templates.add_function("table", |rows: Rows| table::markdown(&rows));
    templates
}

fn templates() -> Result<Environment<'static>> {
    let mut templates = environment();
    templates
        .add_template("page", PAGE)
        .context("BENCHMARKS.md.jinja")?;
    templates
        .add_template("decisions", DECISIONS)
        .context("decisions.md.jinja")?;
    Ok(templates)
}

fn tables(figures: &Figures, part: &str) -> Vec<Rows> {
    table::units(figures, part)
        .iter()
        .map(|unit| table::rows(figures, part, unit))
        .collect()
}

fn picture(figures: &Figures, part: &str) -> Result<Option<(&'static str, String)>> {
    Ok(match part {
        "packet" => Some((
            "packet.svg",
            plot::bars(figures, part, "ns", "A packet", &XDP_SIDE)?,
        )),
        "flood" => {
            let case = |sources: u64| format!("all refused, {sources} sources");
            Some((
                "flood.svg",
                plot::lines(figures, part, "Over veth, all refused", &ALL, case)?,
            ))
        }
        "memory" => Some((
            "memory.svg",
            plot::bars(figures, part, "bytes a key", "Memory", &ALL)?,
        )),
        _ => None,
    })
}

/// The notes on each aim: a heading `## key`, and what follows it.
fn reasons(aims: &[Aim], notes: &str) -> Vec<Reason> {
    let sections = notes.split("\n## ").skip(1);
    let reason = |section: &str| {
        let (key, why) = section.split_once('\n').unwrap_or((section, ""));
        let named: Vec<&str> = aims
            .iter()
            .filter(|aim| aim.key == key.trim())
            .map(|aim| aim.what.as_str())
            .collect();
        let is_said = !named.is_empty() && !why.trim().is_empty();
        is_said.then(|| Reason {
            aims: named.join("; "),
            why: why.trim().to_owned(),
        })
    };
    sections.filter_map(reason).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figures::Series;

    #[test]
    fn a_run_becomes_a_document_with_its_machine_its_tables_and_the_reasons_for_its_aims() {
        let folder = tempfile::tempdir().unwrap();
        let series = |case: &str, by: &str, sample: f64| Series {
            part: "packet".to_owned(),
            case: case.to_owned(),
            by: by.to_owned(),
            unit: "ns".to_owned(),
            samples: vec![sample; 3],
            note: None,
        };
        let figures = Figures(vec![
            series("one limit, hot key", "weir", 30.0),
            series("one limit, hot key", "minimal, LRU hash", 40.0),
        ]);
        let machine = vec![
            vec!["machine".to_owned(), String::new()],
            vec!["CPU".to_owned(), "one".to_owned()],
        ];
        let run = Run {
            commit: "abc".to_owned(),
            is_quick: false,
            kind: "AMD".to_owned(),
            machine,
            figures,
            decisions: None,
            rest: None,
        };
        let notes = "# Notes\n\n## hot\n\nOne cache line.\n";
        assert_eq!(write(folder.path(), &run, notes).unwrap().len(), 1);
        let text = fs::read_to_string(folder.path().join("BENCHMARKS.md")).unwrap();
        assert!(text.contains("| CPU | one |"), "{text}");
        assert!(
            text.contains(
                "| one limit, hot key: of the minimal limiter | ≤ 1× | 0.75 (0.75–0.75) | yes |"
            ),
            "{text}"
        );
        assert!(text.contains("One cache line."), "{text}");
        assert!(!text.contains("## Over veth"), "{text}");
        assert!(!text.contains("## Machines"), "{text}");
        assert!(folder.path().join("benchmarks/packet.svg").exists());

        let other = Run {
            kind: "Intel".to_owned(),
            ..run
        };
        assert_eq!(write(folder.path(), &other, notes).unwrap().len(), 2);
        let text = fs::read_to_string(folder.path().join("BENCHMARKS.md")).unwrap();
        assert!(
            text.contains("| aim | bound | AMD (abc) | Intel (abc) |"),
            "{text}"
        );
    }
}
