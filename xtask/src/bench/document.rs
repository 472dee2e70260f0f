//! docs/BENCHMARKS.md: tables, plots and aims of one run, and the machine it was on.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};

use super::aims::{self, Aim};
use super::figures::Figures;
use super::{plot, table};
use crate::cargo_tools::THROTTLECRAB;

/// What a run gave besides figures.
pub struct Run {
    /// What it was of.
    pub commit: String,
    /// Whether its rounds were too few to be quoted.
    pub is_quick: bool,
    /// Rows of what the machine is.
    pub machine: Vec<Vec<String>>,
    /// What the benchmark of decisions printed.
    pub decisions: Option<String>,
    /// What the measurement of an agent at rest printed.
    pub rest: Option<String>,
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

/// Writes the document and its plots into a folder; `notes` says why aims are met or not.
pub fn write(folder: &Path, figures: &Figures, run: &Run, notes: &str) -> Result<()> {
    let plots = folder.join("benchmarks");
    fs::create_dir_all(&plots).with_context(|| format!("creating {}", plots.display()))?;
    let has = |part: &str| figures.0.iter().any(|series| series.part == part);
    let mut text = head(run);
    let aims = aims::all(figures);
    let _ = write!(text, "\n## Aims\n\n{AIMS}");
    text.push_str(&table::markdown(&aims::rows(&aims)));
    text.push_str(&reasons(&aims, notes));
    for (part, title, about) in SECTIONS {
        if !has(part) {
            continue;
        }
        let _ = write!(text, "\n## {title}\n\n{about}");
        if let Some((name, svg)) = picture(figures, part)? {
            let path = plots.join(name);
            fs::write(&path, svg).with_context(|| format!("writing {}", path.display()))?;
            let _ = write!(text, "\n![{title}](benchmarks/{name})\n");
        }
        for unit in table::units(figures, part) {
            let _ = write!(text, "\n{}", table::markdown(&table::rows(figures, part, &unit)));
        }
    }
    if has(aims::DECISIONS) {
        let [begin, end] = DECISIONS;
        let content = decisions(figures, &run.commit);
        let _ = write!(text, "\n## Decisions beside a peer\n\n{ABOUT_DECISIONS}{begin}{content}{end}\n");
    }
    for (title, said) in [("Decisions in user space", &run.decisions), ("At rest", &run.rest)] {
        if let Some(said) = said {
            let _ = write!(text, "\n## {title}\n\n```\n{}\n```\n", said.trim_end());
        }
    }
    let path = folder.join("BENCHMARKS.md");
    fs::write(&path, text).with_context(|| format!("writing {}", path.display()))
}

fn head(run: &Run) -> String {
    let again = if run.is_quick { "cargo xtask bench --quick" } else { "cargo xtask bench" };
    let warning =
        if run.is_quick { "This run was a quick one, to see that everything works: quote none of it.\n\n" } else { "" };
    format!(
        "# Benchmarks\n\n{warning}Written by `{again}` at commit {}. Everything below is from one run, in which everybody took turns round by \
         round; a figure is a median, and in brackets is where the middle half of the rounds lies. Figures drift with the \
         machine: compare within a run, and run it again on yours.\n\n{}",
        run.commit,
        table::markdown(&run.machine)
    )
}

const AIMS: &str =
    "A ratio is taken in every round, between neighbours in time; what is shown is the median of those ratios.\n\n";

/// Where decisions beside a peer stand, between two marks: they may be measured alone.
pub const DECISIONS: [&str; 2] = ["<!-- decisions: begin -->\n", "<!-- decisions: end -->"];

/// What stands between these marks.
pub fn decisions(figures: &Figures, commit: &str) -> String {
    let mut text =
        format!("Measured at commit {commit}, by `cargo xtask bench decisions`, beside {}.\n", THROTTLECRAB.title());
    for unit in table::units(figures, aims::DECISIONS) {
        let _ = write!(text, "\n{}", table::markdown(&table::rows(figures, aims::DECISIONS, &unit)));
    }
    let _ = write!(text, "\n{}", table::markdown(&aims::rows(&aims::of_decisions(figures))));
    text
}

const ABOUT_DECISIONS: &str = "Each server answers JSON over HTTP on loopback about the same 10,000 keys, all of which \
     pass; both run, and take turns. *As many as it makes*: 16 connections, of which each has one request outstanding, so \
     that the clients take a part of the machine's CPUs. *CPU time*: of all threads of the server meanwhile. *At half load*: \
     two connections, at half of what the slower server made in that round, from a request's sending to its answer. \
     *Memory*: of a new process after one decision on each key, all of them still in use.\n\n";

/// Titles and what a reader has to know, by part.
const SECTIONS: [(&str, &str, &str); 6] = [
    (
        "packet",
        "A packet, by test run",
        "How long a program takes for a packet, by BPF_PROG_TEST_RUN, in time of its CPU: Weir as the agent loads it, a \
         limiter in C that does the least that a limiter must (`agent/benches/edge/bpf/minimal.c`: parse, look-up in the \
         kernel's LRU hash, one compare-and-swap, one counter), and a program that only drops, which is the floor. A test \
         run repeats one packet. Where there are many sources, a generator in front writes the next source into the \
         packet and calls the program by a tail call; what it takes with a program that only drops is subtracted, and \
         the floor added again. Keys are taken at random, states are alive, and every packet passes unless it says \
         refused.\n",
    ),
    (
        "flood",
        "Over veth",
        "An XDP program sends as fast as it can (live frames, batches of 64) into a veth pair, at whose other end somebody \
         holds each source to a limit. Sending, delivery and limiting share one CPU, and the figures are packets per \
         second of that CPU's time. *All refused*: every source has had its one packet an hour. *20 times the limit*: a \
         million packets a second are offered and a twentieth is within the limits; of a hundred thousand sources or more, \
         none is due again before the run ends. *Every packet a new source*: nothing \
         is refused, so what is measured is remembering and passing; the aim is on what remains when passing, measured \
         with a program that only passes, is taken off. Passed packets go to a closed port, which costs far more than \
         refusing: see how many did. hashlimit is that of iptables-legacy.\n",
    ),
    (
        "overflow",
        "A full table",
        "An attacker fills the table of a million sources: each made-up source sends one HTTP request, which a limit of ten \
         an hour remembers for minutes, and no source comes twice. Meanwhile sources that nobody has seen before send \
         packets under a limit of 100/s with a burst of 200: polite ones ten each, greedy ones without end. The minimal \
         limiter has the packet limit alone. By BPF_PROG_TEST_RUN; nanoseconds are those of a made-up packet with the \
         generator in front, which is the same for both.\n",
    ),
    (
        "served",
        "A server behind it",
        "One CPU does it all, as that of a small server does: it receives, limits, and runs a UDP server. 100 sources send \
         a million packets a second, 20 times their limit of 500/s each, with polite requests of 50 further sources among \
         them; of these a few in a hundred are lost even where the CPU has time to spare, while it is the server's turn. \
         *Taken* are packets that the CPU came to before a ring of 4,096 was full; what is lost is lost whoever it is from. \
         *To receive* is the flood's own sending too, the same for all, of the packets that were taken: who is slower \
         takes fewer for it.\n",
    ),
    (
        "memory",
        "Memory",
        "*Table* is what each further source takes of the BPF map that remembers them, by what the kernel says; below it, \
         all maps of a policy for a million sources. *Whole kernel* is how much the kernel's slabs, own mappings and per-CPU memory grew from before a limiter was there \
         until it had seen a million sources.\n",
    ),
    (
        "agent",
        "The agent",
        "How long a command takes, from its start to its end. Each reload is of another policy than the one in force.\n",
    ),
];

fn picture(figures: &Figures, part: &str) -> Result<Option<(&'static str, String)>> {
    Ok(match part {
        "packet" => Some(("packet.svg", plot::bars(figures, part, "ns", "A packet", &XDP_SIDE)?)),
        "flood" => {
            let case = |sources: u64| format!("all refused, {sources} sources");
            Some(("flood.svg", plot::lines(figures, part, "Over veth, all refused", &ALL, case)?))
        }
        "memory" => Some(("memory.svg", plot::bars(figures, part, "bytes a key", "Memory", &ALL)?)),
        _ => None,
    })
}

/// What the notes say of each aim: a heading `## key`, and what follows it.
fn reasons(aims: &[Aim], notes: &str) -> String {
    let mut text = String::new();
    for section in notes.split("\n## ").skip(1) {
        let (key, why) = section.split_once('\n').unwrap_or((section, ""));
        let named: Vec<&str> = aims.iter().filter(|aim| aim.key == key.trim()).map(|aim| aim.what.as_str()).collect();
        if !named.is_empty() && !why.trim().is_empty() {
            let _ = write!(text, "\n**{}.** {}\n", named.join("; "), why.trim());
        }
    }
    text
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
        let machine = vec![vec!["machine".to_owned(), String::new()], vec!["CPU".to_owned(), "one".to_owned()]];
        let run = Run { commit: "abc".to_owned(), is_quick: false, machine, decisions: None, rest: None };
        write(folder.path(), &figures, &run, "# Notes\n\n## hot\n\nOne cache line.\n").unwrap();
        let text = fs::read_to_string(folder.path().join("BENCHMARKS.md")).unwrap();
        assert!(text.contains("| CPU | one |"), "{text}");
        assert!(
            text.contains("| one limit, hot key: of the minimal limiter | ≤ 1× | 0.75 (0.75–0.75) | yes |"),
            "{text}"
        );
        assert!(text.contains("One cache line."), "{text}");
        assert!(!text.contains("## Over veth"), "{text}");
        assert!(folder.path().join("benchmarks/packet.svg").exists());
    }
}
