//! Plots of runs over time, as SVG.

use anyhow::Result;
use plotters::prelude::*;
use serde::Deserialize;

use super::plot::{Area, COLOURS, Drawn, draw, heading};
use super::table::shown;

const WIDTH: i32 = 900;
const HEIGHT: i32 = 640;
/// The heights of the upper plot, and of each heading.
const UPPER: i32 = 380;
const TOP: i32 = 64;
/// The least rate that is drawn, in capacities.
const LEAST: f64 = 0.01;

/// A run over time; as in `agent/benches/fair/figures.rs`. Each value is of a tenth of a second.
#[derive(Debug, Deserialize)]
pub struct Line {
    pub case: String,
    pub by: String,
    /// Seconds of the onset and of the end.
    onset: f64,
    end: f64,
    capacity: f64,
    seconds: Vec<f64>,
    /// Units a second.
    offered: Vec<f64>,
    served: Vec<f64>,
    passed: Vec<Option<f64>>,
    level: Vec<Option<f64>>,
    /// The share of polite units that was served.
    polite: Vec<Option<f64>>,
}

/// Points of a curve; gaps divide it.
type Curve = Vec<Vec<(f64, f64)>>;

/// The rates of one limiter above what polite sources get with each.
pub fn picture(title: &str, lines: &[&Line], limiter: &str) -> Result<String> {
    let Some(of_limiter) = lines.iter().find(|line| line.by == limiter) else {
        anyhow::bail!("no run of {limiter}");
    };
    let until = of_limiter.until();
    let highest = of_limiter.offered.iter().copied().fold(0.0, f64::max);
    let highest = highest.max(of_limiter.capacity) * 1.5;
    draw(WIDTH, HEIGHT, |area| {
        let (upper, lower) = area.split_vertically(UPPER);
        let curves = of_limiter.rates();
        let names = curves.each_ref().map(|(name, _)| *name);
        let unit = format!("a second, {limiter}; the line is the capacity");
        heading(&upper, title, &unit, &names)?;
        rates(&upper, of_limiter, until, highest)?;
        let names: Vec<&str> = lines.iter().map(|line| line.by.as_str()).collect();
        heading(&lower, "Polite sources", "% served", &names)?;
        polite(&lower, lines, until)
    })
}

fn rates<'s>(area: &Area<'s>, line: &Line, until: f64, highest: f64) -> Drawn<'s> {
    let area = area.margin(TOP, 10, 10, 20);
    let mut chart = ChartBuilder::on(&area)
        .x_label_area_size(34)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..until, (LEAST * line.capacity..highest).log_scale())?;
    chart
        .configure_mesh()
        .x_desc("seconds")
        .y_label_formatter(&|rate| shown(*rate).trim_end_matches(".00").to_owned())
        .draw()?;
    let capacity = vec![(0.0, line.capacity), (until, line.capacity)];
    chart.draw_series(LineSeries::new(capacity, BLACK.mix(0.4)))?;
    for (nth, (_, curve)) in line.rates().into_iter().enumerate() {
        for part in curve {
            chart.draw_series(LineSeries::new(part, COLOURS[nth].stroke_width(2)))?;
        }
    }
    Ok(())
}

fn polite<'s>(area: &Area<'s>, lines: &[&Line], until: f64) -> Drawn<'s> {
    let area = area.margin(TOP, 10, 10, 20);
    let mut chart = ChartBuilder::on(&area)
        .x_label_area_size(34)
        .y_label_area_size(60)
        .build_cartesian_2d(0.0..until, 0.0..105.0)?;
    chart.configure_mesh().x_desc("seconds").draw()?;
    for (nth, line) in lines.iter().enumerate() {
        let colour = COLOURS[nth % COLOURS.len()];
        for part in line.curve(&line.polite, 100.0, 0.0) {
            chart.draw_series(LineSeries::new(part, colour.stroke_width(2)))?;
        }
    }
    Ok(())
}

impl Line {
    /// Some seconds after the end, as far as it was measured.
    fn until(&self) -> f64 {
        let last = self.seconds.last().copied().unwrap_or_default();
        last.min(self.end + 5.0).max(self.onset + 1.0)
    }

    fn rates(&self) -> [(&'static str, Curve); 4] {
        let all = |values: &[f64]| values.iter().copied().map(Some).collect::<Vec<_>>();
        let least = LEAST * self.capacity;
        [
            ("offered", self.curve(&all(&self.offered), 1.0, least)),
            ("passed", self.curve(&self.passed, 1.0, least)),
            ("served", self.curve(&all(&self.served), 1.0, least)),
            ("level of a source", self.curve(&self.level, 1.0, least)),
        ]
    }

    /// The points of these values, times a factor, without those below `least`.
    fn curve(&self, values: &[Option<f64>], factor: f64, least: f64) -> Curve {
        let points = self.seconds.iter().zip(values);
        let points: Vec<Option<(f64, f64)>> = points
            .map(|(second, value)| Some((*second, (*value)? * factor)))
            .map(|point| point.filter(|(_, value)| *value >= least))
            .collect();
        let parts = points
            .split(Option::is_none)
            .filter(|part| !part.is_empty());
        parts
            .map(|part| part.iter().flatten().copied().collect())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(by: &str, level: Vec<Option<f64>>) -> Line {
        let count = level.len();
        Line {
            case: "UDP".to_owned(),
            by: by.to_owned(),
            onset: 0.1,
            end: 0.3,
            capacity: 100.0,
            seconds: (0..count).map(|nth| nth as f64 * 0.1).collect(),
            offered: vec![1_000.0; count],
            served: vec![100.0; count],
            passed: vec![Some(110.0); count],
            polite: vec![Some(0.99); count],
            level,
        }
    }

    #[test]
    fn a_level_is_drawn_where_there_is_one() {
        let line = line("fair", vec![None, Some(20.0), Some(0.5), Some(19.0), None]);
        let parts = line.curve(&line.level, 1.0, LEAST * line.capacity);
        assert_eq!(parts, [[(0.1, 20.0)], [(line.seconds[3], 19.0)]]);
    }

    #[test]
    fn a_picture_has_the_rates_of_one_limiter_and_the_polite_units_of_all() {
        let lines = [
            line("fair", vec![Some(20.0); 30]),
            line("none", vec![None; 30]),
        ];
        let lines: Vec<&Line> = lines.iter().collect();
        let svg = picture("A server", &lines, "fair").unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        for text in ["offered", "level of a source", "Polite sources", "none"] {
            assert!(svg.contains(text), "{text}");
        }
        assert!(picture("A server", &lines, "other").is_err());
    }
}
