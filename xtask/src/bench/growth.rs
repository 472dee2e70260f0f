//! The model of growth: what the measured costs come to with more CPUs, packets and sources than this machine has.
//!
//! docs/explanation/growth.md explains it, and has the table of one run.

use super::figures::{Figures, Summary};
use super::table::shown;

const PART: &str = "growth";
const WEIR: &str = "weir";
/// What delivers a packet to XDP and drops it there, in nanoseconds: "drop only" over veth. A driver takes 20 to 60.
const DELIVERY: f64 = 58.0;
/// Ethernet at 100 Gbit/s: frames of 64 bytes, with preamble and gap, a second.
const LINE_RATE: f64 = 148.8e6;
const CPUS: [usize; 3] = [2, 16, 64];
const MILLION: f64 = 1e6;
/// The measured costs, in nanoseconds unless they say otherwise.
#[derive(Clone, Copy, Debug)]
struct Costs {
    /// A test run with a program that drops.
    bare: f64,
    /// A packet that passes, of one key on one CPU.
    alone: f64,
    /// A packet of random sources, over a bare drop: 10,000, a million, ten million.
    sources: [f64; 3],
}

/// The costs of a run; `None` if it lacks some.
fn costs(figures: &Figures) -> Option<Costs> {
    let of =
        |case: &str, by: &str| Some(Summary::of(figures.samples_in(PART, case, by, "ns")?)?.median);
    let of_sources = |sources: &str| of(&format!("sources: {sources}"), WEIR);
    Some(Costs {
        bare: of("hot key", "drop only")?,
        alone: of("keys apart, passed, CPUs: 1", WEIR)?,
        sources: [
            of_sources("10000")?,
            of_sources("1000000")?,
            of_sources("10000000")?,
        ],
    })
}

/// The model as rows of a table; `None` without the figures.
pub fn rows(figures: &Figures) -> Option<Vec<Vec<String>>> {
    let costs = costs(figures)?;
    let mut rows = vec![
        std::iter::once(String::new())
            .chain(CPUS.map(|cpus| format!("{cpus} CPUs")))
            .collect(),
    ];
    let mut row = |what: &str, of: &dyn Fn(usize) -> String| {
        rows.push(
            std::iter::once(what.to_owned())
                .chain(CPUS.map(of))
                .collect::<Vec<_>>(),
        );
    };
    row("ns that a CPU has for a packet at 100 Gbit/s", &|cpus| {
        shown(cpus as f64 / LINE_RATE * 1e9)
    });
    let hot = costs.alone - costs.bare;
    for (what, program) in [
        ("one source for each CPU", hot),
        ("10,000 sources", costs.sources[0]),
        ("a million sources", costs.sources[1]),
        ("10 million sources", costs.sources[2]),
    ] {
        let million_packets = |cpus: usize| cpus as f64 / (DELIVERY + program) * 1e9 / MILLION;
        row(&format!("million packets/s, {what}"), &|cpus| {
            shown(million_packets(cpus))
        });
        row(&format!("% of 100 Gbit/s, {what}"), &|cpus| {
            shown(million_packets(cpus) * MILLION / LINE_RATE * 100.0)
        });
    }
    let read =
        Summary::of(figures.samples_in(PART, "counters, limits: 10000", WEIR, "ms of a read")?)?
            .median;
    let bytes = Summary::of(figures.samples_in(
        PART,
        "counters, limits: 10000",
        WEIR,
        "bytes of a CPU",
    )?)?
    .median;
    let here =
        Summary::of(figures.samples_in(PART, "counters, limits: 10000", WEIR, "CPUs")?)?.median;
    row("MB of counters, 10,000 limits", &|cpus| {
        shown(bytes * cpus as f64 / MILLION)
    });
    row("ms to read them, at most", &|cpus| {
        shown(read * (cpus as f64 / here).max(1.0))
    });
    for sources in ["1000000", "10000000"] {
        let case = format!("sources: {sources}");
        let scan = Summary::of(figures.samples_in(PART, &case, WEIR, "ms of a scan")?)?.median;
        let bytes = Summary::of(figures.samples_in(PART, &case, WEIR, "bytes")?)?.median;
        row(&format!("ms to scan a table of {sources} sources"), &|_| {
            shown(scan)
        });
        row(&format!("MB of a table of {sources} sources"), &|_| {
            shown(bytes / MILLION)
        });
    }
    Some(rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figures::Series;

    #[test]
    fn a_run_without_its_figures_has_no_model() {
        assert!(rows(&Figures::default()).is_none());
        let series = |case: &str, by: &str, unit: &str, sample: f64| Series {
            part: PART.to_owned(),
            case: case.to_owned(),
            by: by.to_owned(),
            unit: unit.to_owned(),
            samples: vec![sample],
            note: None,
        };
        let mut all = vec![
            series("hot key", "drop only", "ns", 20.0),
            series("keys apart, passed, CPUs: 1", WEIR, "ns", 80.0),
        ];
        for sources in ["10000", "1000000", "10000000"] {
            let case = format!("sources: {sources}");
            all.extend(
                ["ns", "ms of a scan", "bytes"].map(|unit| series(&case, WEIR, unit, 100.0)),
            );
        }
        let counters = ["ms of a read", "bytes of a CPU", "CPUs"];
        all.extend(counters.map(|unit| series("counters, limits: 10000", WEIR, unit, 2.0)));
        let figures = Figures(all);
        let rows = rows(&figures).unwrap();
        assert!(
            rows.iter().all(|row| row.len() == 1 + CPUS.len()),
            "{rows:?}"
        );
        assert_eq!(rows[1][2], "107.5");
    }
}
