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
/// Attempts on a state that other CPUs keep changing, as in `common::limiter::CHARGE_TRIES`.
const TRIES: u32 = 16;
/// From the read of a state to its compare-and-swap: some 30 instructions.
const DECIDING: f64 = 8.0;
/// How much longer a line takes to a CPU of another socket.
const FAR: f64 = 3.0;
/// Packets of a simulation.
const SIMULATED: u64 = 20_000;

/// The measured costs, in nanoseconds unless they say otherwise.
#[derive(Clone, Copy, Debug)]
struct Costs {
    /// A test run with a program that drops.
    bare: f64,
    /// A packet that passes, of one key: on one CPU, and on each of two at once.
    alone: f64,
    both: f64,
    /// A refused packet of one key, on each of two CPUs at once.
    both_refused: f64,
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
        alone: of("one key, passed, CPUs: 1", WEIR)?,
        both: of("one key, passed, CPUs: 2", WEIR)?,
        both_refused: of("one key, refused, CPUs: 2", WEIR)?,
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
    let line = line_of(&costs);
    let of_one_key = |cpus, conforming| simulate(cpus, DELIVERY + hot, line, conforming);
    row("million packets/s, one key, all pass", &|cpus| {
        shown(of_one_key(cpus, 1.0).per_second / MILLION)
    });
    row("% refused as contended, one key, all pass", &|cpus| {
        shown(of_one_key(cpus, 1.0).contended * 100.0)
    });
    for limit in [1.0, 10.0] {
        let conforming =
            |cpus: usize| (limit * MILLION * (DELIVERY + hot) / 1e9 / cpus as f64).min(1.0);
        row(
            &format!("% refused as contended, one key limited to {limit} million/s"),
            &|cpus| shown(of_one_key(cpus, conforming(cpus)).contended * 100.0),
        );
    }
    row("million packets/s, one key, all refused", &|cpus| {
        shown(of_one_key(cpus, 0.0).per_second / MILLION)
    });
    row("the same between sockets", &|cpus| {
        shown(simulate(cpus, DELIVERY + hot, line * FAR, 0.0).per_second / MILLION)
    });
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

/// What the simulation is fitted to, and what it predicts of it: two CPUs that refuse packets of one key.
pub struct Check {
    /// Nanoseconds for a cache line to move to another CPU, from packets that pass.
    pub line: f64,
    /// Nanoseconds of a refused packet.
    pub measured: f64,
    pub predicted: f64,
}

/// The prediction that this machine can test; `None` without the figures.
pub fn check(figures: &Figures) -> Option<Check> {
    let costs = costs(figures)?;
    let line = line_of(&costs);
    let predicted = 2e9 / simulate(2, costs.alone, line, 0.0).per_second;
    Some(Check {
        line,
        measured: costs.both_refused,
        predicted,
    })
}

/// The time for a cache line to move to another CPU: that with which two simulated CPUs take as long as the measured ones.
fn line_of(costs: &Costs) -> f64 {
    let (mut least, mut most) = (0.0, 1_000.0);
    for _ in 0..40 {
        let line = f64::midpoint(least, most);
        let time = 2e9 / simulate(2, costs.alone, line, 1.0).per_second;
        if time < costs.both {
            least = line;
        } else {
            most = line;
        }
    }
    f64::midpoint(least, most)
}

/// The result of a simulation.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Simulated {
    /// Packets a second, of all CPUs.
    per_second: f64,
    /// The share of conforming packets that are refused because the state changed at every attempt.
    contended: f64,
}

/// A CPU in the simulation.
#[derive(Clone, Copy)]
struct Cpu {
    /// When it does its next step.
    at: f64,
    /// The state that it has read; `None` between packets.
    read: Option<u64>,
    tries: u32,
}

/// CPUs that charge one key: each packet takes `alone` nanoseconds of a CPU and reads the state, a conforming one replaces it.
/// The state's line is with one CPU at a time, and takes `line` nanoseconds to move to another.
fn simulate(cpus: usize, alone: f64, line: f64, conforming: f64) -> Simulated {
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut share = move || {
        // Marsaglia's xorshift64.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random >> 11) as f64 / (1u64 << 53) as f64
    };
    // Half to one and a half times the mean, so that CPUs do not march in step.
    let elsewhere = (alone - DECIDING).max(1.0);
    let mut all: Vec<Cpu> = (0..cpus)
        .map(|_| Cpu {
            at: share() * elsewhere,
            read: None,
            tries: 0,
        })
        .collect();
    let (mut state, mut owner, mut free) = (0u64, usize::MAX, 0.0f64);
    let (mut done, mut charged, mut contended, mut now) = (0u64, 0u64, 0u64, 0.0f64);
    while done < SIMULATED {
        let Some(nth) = (0..cpus).min_by(|a, b| all[*a].at.total_cmp(&all[*b].at)) else {
            break;
        };
        let cpu = &mut all[nth];
        now = cpu.at;
        let mut next = elsewhere * (0.5 + share());
        // Both a read and a compare-and-swap take the line from its owner, one CPU after the other.
        let begin = now.max(free);
        let end = if owner == nth { begin } else { begin + line };
        (owner, free) = (nth, end);
        match cpu.read {
            None if share() >= conforming => {
                // Refused: the key's tally is stored without a wait.
                done += 1;
                cpu.at = end + DECIDING + next;
                continue;
            }
            None => {
                (cpu.read, cpu.at) = (Some(state), end + DECIDING);
                continue;
            }
            Some(read) if read == state => {
                state += 1;
                charged += 1;
            }
            Some(_) => {
                cpu.tries += 1;
                if cpu.tries < TRIES {
                    // The failed exchange has read it.
                    (cpu.read, cpu.at) = (Some(state), end + DECIDING);
                    continue;
                }
                contended += 1;
            }
        }
        done += 1;
        next += end;
        *cpu = Cpu {
            at: next,
            read: None,
            tries: 0,
        };
    }
    Simulated {
        per_second: done as f64 / now * 1e9,
        contended: contended as f64 / (charged + contended).max(1) as f64,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figures::Series;

    #[test]
    fn one_cpu_takes_the_time_it_was_given_and_meets_nobody() {
        let one = simulate(1, 100.0, 50.0, 1.0);
        assert!((1e9 / one.per_second - 100.0).abs() < 1.0, "{one:?}");
        assert_eq!(one.contended, 0.0);
    }

    #[test]
    fn a_line_limits_what_many_cpus_do_and_refusals_move_it_once() {
        let of = |cpus, conforming| simulate(cpus, 100.0, 50.0, conforming);
        // No more than one move for each packet.
        assert!(of(64, 1.0).per_second < 1.01e9 / 50.0);
        assert!(of(64, 1.0).contended > of(2, 1.0).contended);
        assert!(
            of(64, 0.0).per_second > 1.5 * of(64, 1.0).per_second
                && of(64, 0.0).per_second < 1.01e9 / 50.0
        );
        // A second CPU helps if the line moves in less time than the rest of a packet takes, and else not.
        assert!(simulate(2, 100.0, 10.0, 1.0).per_second > 1.5 * of(1, 1.0).per_second);
        assert!(simulate(2, 100.0, 100.0, 1.0).per_second < of(1, 1.0).per_second);
    }

    #[test]
    fn a_run_without_its_figures_has_no_model_and_one_with_them_fits_what_was_measured() {
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
            series("one key, passed, CPUs: 1", WEIR, "ns", 80.0),
            series("one key, passed, CPUs: 2", WEIR, "ns", 160.0),
            series("one key, refused, CPUs: 2", WEIR, "ns", 120.0),
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
        let Check {
            line,
            measured,
            predicted,
        } = check(&figures).unwrap();
        let fitted = 2e9 / simulate(2, 80.0, line, 1.0).per_second;
        assert!((fitted - 160.0).abs() < 8.0, "{line} {fitted}");
        assert!(
            measured == 120.0 && (80.0..160.0).contains(&predicted),
            "{predicted}"
        );
        let rows = rows(&figures).unwrap();
        assert!(
            rows.iter().all(|row| row.len() == 1 + CPUS.len()),
            "{rows:?}"
        );
        assert_eq!(rows[1][2], "107.5");
    }
}
