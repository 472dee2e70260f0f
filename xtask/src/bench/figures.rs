//! The measured figures, and their medians, spreads, and ratios round by round.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, Result};
use serde::{Deserialize, Serialize};

/// All samples of one measurement; as in crates/testbed/src/measure.rs.
#[derive(Clone, Debug, Deserialize, Serialize)]
pub struct Series {
    pub part: String,
    pub case: String,
    pub by: String,
    pub unit: String,
    pub samples: Vec<f64>,
    #[serde(default)]
    pub note: Option<String>,
}

/// A median and the middle half.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Summary {
    pub median: f64,
    pub lower: f64,
    pub upper: f64,
}

impl Summary {
    /// `None` without samples.
    pub fn of(samples: &[f64]) -> Option<Self> {
        let mut sorted = samples.to_vec();
        sorted.sort_by(f64::total_cmp);
        Some(Self {
            median: quantile(&sorted, 0.5)?,
            lower: quantile(&sorted, 0.25)?,
            upper: quantile(&sorted, 0.75)?,
        })
    }
}

/// A quantile of sorted samples, interpolated.
fn quantile(sorted: &[f64], share: f64) -> Option<f64> {
    let place = share * (sorted.len().checked_sub(1)?) as f64;
    let (below, above) = (
        sorted[place.floor() as usize],
        sorted[place.ceil() as usize],
    );
    Some(below + (above - below) * place.fract())
}

/// All figures of one run.
#[derive(Clone, Debug, Default, Deserialize, Serialize)]
pub struct Figures(pub Vec<Series>);

impl Figures {
    /// Adds the figures that a part of the benchmark wrote.
    pub fn read(&mut self, path: &Path) -> Result<()> {
        let text =
            fs::read_to_string(path).with_context(|| format!("reading {}", path.display()))?;
        let series: Vec<Series> = serde_json::from_str(&text)
            .with_context(|| format!("reading the figures in {}", path.display()))?;
        self.0.extend(series);
        Ok(())
    }

    /// The samples of one measurement.
    pub fn samples(&self, part: &str, case: &str, by: &str) -> Option<&[f64]> {
        let series = self
            .0
            .iter()
            .find(|series| series.part == part && series.case == case && series.by == by)?;
        Some(&series.samples)
            .filter(|samples| !samples.is_empty())
            .map(Vec::as_slice)
    }

    /// The samples of one measurement in one of several units.
    pub fn samples_in(&self, part: &str, case: &str, by: &str, unit: &str) -> Option<&[f64]> {
        let is_it = |series: &&Series| {
            series.part == part && series.case == case && series.by == by && series.unit == unit
        };
        self.0
            .iter()
            .find(is_it)
            .map(|series| series.samples.as_slice())
    }

    /// The difference of two measurements, in every round.
    pub fn differences(
        &self,
        part: &str,
        over: (&str, &str),
        under: (&str, &str),
    ) -> Option<Vec<f64>> {
        let over = self.samples(part, over.0, over.1)?;
        let under = self.samples(part, under.0, under.1)?;
        Some(
            over.iter()
                .zip(under)
                .map(|(over, under)| over - under)
                .collect(),
        )
    }

    /// The ratio of two measurements, in every round.
    pub fn ratio(&self, part: &str, over: (&str, &str), under: (&str, &str)) -> Option<Summary> {
        let over = self.samples(part, over.0, over.1)?;
        let under = self.samples(part, under.0, under.1)?;
        let ratios: Vec<f64> = over
            .iter()
            .zip(under)
            .map(|(over, under)| over / under)
            .collect();
        Summary::of(&ratios)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(by: &str, samples: &[f64]) -> Series {
        let (part, case) = ("packet".to_owned(), "hot".to_owned());
        Series {
            part,
            case,
            by: by.to_owned(),
            unit: "ns".to_owned(),
            samples: samples.to_vec(),
            note: None,
        }
    }

    #[test]
    fn a_median_lies_in_the_middle_and_the_quartiles_around_it() {
        let summary = Summary::of(&[40.0, 10.0, 30.0, 20.0, 50.0]).unwrap();
        assert_eq!(
            summary,
            Summary {
                median: 30.0,
                lower: 20.0,
                upper: 40.0
            }
        );
        assert_eq!(Summary::of(&[1.0, 2.0]).unwrap().median, 1.5);
        assert_eq!(Summary::of(&[]), None);
    }

    #[test]
    fn ratios_are_those_of_each_round_so_that_a_slow_round_is_slow_for_both() {
        let figures = Figures(vec![
            series("a", &[10.0, 90.0, 10.0]),
            series("b", &[20.0, 180.0, 20.0]),
        ]);
        assert_eq!(
            figures
                .ratio("packet", ("hot", "a"), ("hot", "b"))
                .unwrap()
                .median,
            0.5
        );
        assert_eq!(figures.ratio("packet", ("hot", "a"), ("hot", "c")), None);
    }
}
