//! Plots, as SVG.

use anyhow::{Result, anyhow};
use plotters::coord::Shift;
use plotters::prelude::*;

use super::figures::{Figures, Summary};
use super::table::shown;

pub(super) const COLOURS: [RGBColor; 8] = [
    RGBColor(0x1b, 0x6c, 0xa8),
    RGBColor(0xd9, 0x82, 0x2b),
    RGBColor(0x6b, 0x6b, 0x6b),
    RGBColor(0x3a, 0x9d, 0x5d),
    RGBColor(0x9b, 0x59, 0xb6),
    RGBColor(0xc0, 0x39, 0x2b),
    RGBColor(0x16, 0xa0, 0x85),
    RGBColor(0x7f, 0x8c, 0x1d),
];
const FONT: &str = "sans-serif";
const WIDTH: i32 = 900;
/// The position where bars start, and the room for the longest bar's figure.
const LEFT: i32 = 280;
const RIGHT: i32 = 130;
const BAR: i32 = 14;
const GAP: i32 = 10;
const TOP: i32 = 64;

/// One bar for each case and limiter, with the middle half as a line at its end.
pub fn bars(
    figures: &Figures,
    part: &str,
    unit: &str,
    title: &str,
    owners: &[&str],
) -> Result<String> {
    let mut cases: Vec<(&str, Vec<(usize, Summary)>)> = Vec::new();
    for series in figures
        .0
        .iter()
        .filter(|series| series.part == part && series.unit == unit)
    {
        let Some(owner) = owners.iter().position(|owner| *owner == series.by) else {
            continue;
        };
        let Some(summary) = Summary::of(&series.samples) else {
            continue;
        };
        match cases.iter_mut().find(|(case, _)| *case == series.case) {
            Some((_, bars)) => bars.push((owner, summary)),
            None => cases.push((&series.case, vec![(owner, summary)])),
        }
    }
    let longest = cases
        .iter()
        .flat_map(|(_, bars)| bars)
        .map(|(_, summary)| summary.upper)
        .fold(1e-9, f64::max);
    let count: usize = cases.iter().map(|(_, bars)| bars.len()).sum();
    let height = TOP + count as i32 * BAR + cases.len() as i32 * GAP + GAP;
    draw(WIDTH, height, |area| {
        heading(area, title, unit, owners)?;
        let place = |value: f64| LEFT + (value / longest * f64::from(WIDTH - LEFT - RIGHT)) as i32;
        let mut y = TOP;
        for (case, bars) in &cases {
            area.draw(&Text::new((*case).to_owned(), (8, y), (FONT, 13)))?;
            for (owner, summary) in bars {
                let end = place(summary.median);
                area.draw(&Rectangle::new(
                    [(LEFT, y), (end, y + BAR - 2)],
                    COLOURS[owner % COLOURS.len()].filled(),
                ))?;
                let middle = y + BAR / 2 - 1;
                area.draw(&PathElement::new(
                    vec![
                        (place(summary.lower), middle),
                        (place(summary.upper), middle),
                    ],
                    BLACK,
                ))?;
                area.draw(&Text::new(
                    shown(summary.median),
                    (place(summary.upper) + 6, y),
                    (FONT, 12),
                ))?;
                y += BAR;
            }
            y += GAP;
        }
        Ok(())
    })
}

/// One line for each limiter by the number of sources; `case` returns the name of a case for that number.
pub fn lines(
    figures: &Figures,
    part: &str,
    title: &str,
    owners: &[&str],
    case: fn(u64) -> String,
) -> Result<String> {
    const SOURCES: [u64; 4] = [1, 1_000, 100_000, 1_000_000];
    const HEIGHT: i32 = 420;
    let line = |owner: &str| -> Vec<(f64, f64)> {
        let median = |sources: u64| Summary::of(figures.samples(part, &case(sources), owner)?);
        SOURCES
            .iter()
            .filter_map(|sources| Some(((*sources as f64).log10(), median(*sources)?.median)))
            .collect()
    };
    let highest = owners
        .iter()
        .flat_map(|owner| line(owner))
        .map(|(_, y)| y)
        .fold(1e-9, f64::max);
    draw(WIDTH, HEIGHT, |area| {
        heading(area, title, "million packets/s", owners)?;
        let area = area.margin(TOP, 10, 10, 20);
        let mut chart = ChartBuilder::on(&area)
            .x_label_area_size(34)
            .y_label_area_size(40)
            .build_cartesian_2d(0.0..6.0, 0.0..highest * 1.05)?;
        chart
            .configure_mesh()
            .x_labels(7)
            .x_label_formatter(&|exponent| {
                shown(10f64.powf(*exponent))
                    .trim_end_matches(".00")
                    .to_owned()
            })
            .x_desc("sources")
            .draw()?;
        for (nth, owner) in owners.iter().enumerate() {
            let colour = COLOURS[nth % COLOURS.len()];
            chart
                .draw_series(LineSeries::new(line(owner), colour.stroke_width(2)).point_size(3))?;
        }
        Ok(())
    })
}

pub(super) type Area<'s> = DrawingArea<SVGBackend<'s>, Shift>;
pub(super) type Drawn<'s> =
    Result<(), DrawingAreaErrorKind<<SVGBackend<'s> as DrawingBackend>::ErrorType>>;

pub(super) fn draw(
    width: i32,
    height: i32,
    paint: impl for<'s> Fn(&Area<'s>) -> Drawn<'s>,
) -> Result<String> {
    let mut text = String::new();
    {
        let area =
            SVGBackend::with_string(&mut text, (width as u32, height as u32)).into_drawing_area();
        let painted = area
            .fill(&WHITE)
            .and_then(|()| paint(&area))
            .and_then(|()| area.present());
        painted.map_err(|error| anyhow!("drawing a plot: {error}"))?;
    }
    Ok(text)
}

pub(super) fn heading<'s>(area: &Area<'s>, title: &str, unit: &str, owners: &[&str]) -> Drawn<'s> {
    area.draw(&Text::new(format!("{title} ({unit})"), (8, 8), (FONT, 17)))?;
    let mut x = 8;
    for (nth, owner) in owners.iter().enumerate() {
        area.draw(&Rectangle::new(
            [(x, 36), (x + 10, 46)],
            COLOURS[nth % COLOURS.len()].filled(),
        ))?;
        area.draw(&Text::new((*owner).to_owned(), (x + 14, 34), (FONT, 12)))?;
        x += 28 + 7 * owner.len() as i32;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::figures::Series;

    #[test]
    fn every_case_and_owner_has_a_bar_with_its_figure() {
        let series = |by: &str, sample: f64| Series {
            part: "packet".to_owned(),
            case: "hot".to_owned(),
            by: by.to_owned(),
            unit: "ns".to_owned(),
            samples: vec![sample],
            note: None,
        };
        let figures = Figures(vec![
            series("weir", 31.0),
            series("minimal", 42.0),
            series("other", 7.5),
        ]);
        let svg = bars(&figures, "packet", "ns", "A packet", &["weir", "minimal"]).unwrap();
        assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"));
        assert!(svg.contains("31.0") && svg.contains("42.0") && !svg.contains("7.50"));
    }
}
