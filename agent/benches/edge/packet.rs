//! Nanoseconds a packet, by BPF_PROG_TEST_RUN: how long a program takes, without what brings packets to it.
//!
//! A test run gives a program the same packet again and again. Where the packets come from many sources, a generator
//! in front of the program writes the next source into the packet and calls the program by a tail call; what the same
//! generator takes with a program that only drops is subtracted, and what the program that only drops takes by itself
//! is added again. What the generator leaves in the processor's caches, and what it does while the program waits for
//! memory, cannot be told apart.

mod cases;

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use aya::Ebpf;
use aya::programs::{TestRun as _, TestRunOptions};
use datapath::Entry;
use testbed::measure::{Series, pin, worked};

use crate::programs::{Harness, Order, Weir, xdp};

const PART: &str = "packet";
/// How long one sample takes, about.
const SAMPLE: Duration = Duration::from_millis(10);

/// A program that is measured.
enum Subject {
    Drop,
    DropByTc,
    Minimal(Ebpf),
    Weir(Box<Weir>, Entry),
}

/// Where packets come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sources {
    /// One, without a generator.
    One,
    /// Any of so many.
    Random(u64),
    /// Each from one that was not seen before.
    New,
}

/// One row of the table.
struct Case {
    name: String,
    by: &'static str,
    subject: Subject,
    sources: Sources,
    frame: Vec<u8>,
    /// Every packet's verdict, where it is certain.
    verdict: Option<u32>,
    harness: Harness,
    repeat: u32,
    samples: Vec<f64>,
}

impl Case {
    /// Runs the program on so many packets and returns nanoseconds a packet.
    fn measure(&self, repeat: u32) -> Result<f64> {
        let before = worked()?;
        let verdict = self.run(repeat)?;
        let time = worked()? - before;
        if let Subject::Weir(weir, _) = &self.subject {
            // Samples find room, as they do while an agent reads them.
            weir.datapath.stream().drain()?;
        }
        if let Some(expected) = self.verdict {
            ensure!(
                verdict == expected,
                "{} of {}: the verdict is {verdict} and not {expected}",
                self.name,
                self.by
            );
        }
        Ok(time.as_nanos() as f64 / f64::from(repeat))
    }

    fn run(&self, repeat: u32) -> Result<u32> {
        let mut options = TestRunOptions::new();
        options.data_in = Some(&self.frame);
        options.repeat = repeat;
        let result = match (&self.subject, self.sources) {
            (Subject::DropByTc, _) => return self.harness.run_drop_by_tc(options),
            (Subject::Weir(weir, entry), Sources::One) => {
                weir.datapath.test_run(*entry, options)?
            }
            (Subject::Drop, Sources::One) => self.harness.xdp("drop")?.test_run(options)?,
            (Subject::Minimal(ebpf), Sources::One) => xdp(ebpf, "minimal")?.test_run(options)?,
            (_, Sources::Random(_) | Sources::New) => {
                self.harness.xdp("generate")?.test_run(options)?
            }
        };
        Ok(result.return_value)
    }

    /// Puts the generator in front, lets every source be seen once, and finds out how many packets make a sample.
    fn prepare(&mut self) -> Result<()> {
        if self.sources != Sources::One {
            match &self.subject {
                Subject::Weir(weir, entry) => {
                    self.harness.aim(weir.datapath.entry_point(*entry)?)?;
                }
                Subject::Minimal(ebpf) => self.harness.aim(xdp(ebpf, "minimal")?.fd()?)?,
                Subject::Drop => {
                    let drop = self.harness.xdp("drop")?.fd()?.try_clone()?;
                    self.harness.aim(&drop)?;
                }
                Subject::DropByTc => {}
            }
        }
        match self.sources {
            Sources::One => self.run(1_000).map(drop)?,
            Sources::Random(keys) => {
                self.harness.walk(Order::Orderly, keys)?;
                // Twice, so that what refuses after the first packet does so.
                self.run(2 * u32::try_from(keys)?)?;
                self.harness.walk(Order::Random, keys)?;
            }
            Sources::New => {
                self.harness.walk(Order::New, Order::MOST_NEW)?;
                self.run(2_000_000)?;
            }
        }
        let nanoseconds = self.measure(20_000)?.max(1.0);
        self.repeat = (SAMPLE.as_nanos() as f64 / nanoseconds) as u32;
        Ok(())
    }
}

/// Measures every case whose name or owner has `only` in it, and what they are compared with.
pub fn run(rounds: usize, only: &str) -> Result<Vec<Series>> {
    pin(1).or_else(|_| pin(0))?;
    let mut cases = Vec::new();
    for mut case in cases::all(only)? {
        case.prepare()
            .with_context(|| format!("{} of {}", case.name, case.by))?;
        eprintln!("prepared   {} of {}", case.name, case.by);
        cases.push(case);
    }
    for round in 0..rounds {
        // Each round begins elsewhere, so that nobody always comes after the same neighbour's mess.
        let start = round * cases.len() / rounds;
        let (before, after) = cases.split_at_mut(start);
        for case in after.iter_mut().chain(before) {
            // Caches and predictors are this program's again before anything counts.
            case.measure(case.repeat / 8)?;
            let sample = case.measure(case.repeat)?;
            case.samples.push(sample);
        }
    }
    Ok(without_generator(cases))
}

/// Takes off what the generator took, round by round.
fn without_generator(cases: Vec<Case>) -> Vec<Series> {
    let drops = |sources: Sources| {
        cases
            .iter()
            .find(|case| matches!(case.subject, Subject::Drop) && case.sources == sources)
            .map(|case| &case.samples)
    };
    let series = |case: &Case| {
        let mut samples = case.samples.clone();
        let is_generated = case.sources != Sources::One && !matches!(case.subject, Subject::Drop);
        if is_generated
            && let (Some(generator), Some(drop)) = (drops(case.sources), drops(Sources::One))
        {
            for ((sample, generator), drop) in samples.iter_mut().zip(generator).zip(drop) {
                *sample += drop - generator;
            }
        }
        Series::new(PART, case.name.clone(), case.by, "ns").with(samples)
    };
    cases.iter().map(series).collect()
}
