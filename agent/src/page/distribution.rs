//! The plot of sources by their count, with a limit drawn in.

use config::human::number;

use super::axis::compact;
use super::html::Html;

/// Sources by their count in their busiest window of one length.
#[derive(Clone, Debug)]
pub struct Distribution {
    /// Below the axis: the meaning of a count.
    pub counted: String,
    /// Each count and its number of sources, the lowest first.
    pub rows: Vec<(u64, u64)>,
    /// The highest count that the limit allows.
    pub limit: f64,
    /// A share of the sources, such as `99.9 %`, and the count that it does not exceed.
    pub quantile: (String, u64),
}

/// The height of the plot in pixels, and of the lines above it and below it.
const HEIGHT: f64 = 110.0;
const ABOVE: f64 = 34.0;
const BELOW: f64 = 38.0;
/// Bars for each power of ten: the counts 1, 2 and 3 have one each.
const BARS: f64 = 5.0;
/// The height of one source, in powers of ten.
const ONE: f64 = 0.3;
/// The most labels of an axis.
const LABELS: u32 = 5;

/// Appends a plot; `id` is unique in the page.
pub fn distribution(html: &mut Html, id: &str, title: &str, of: &Distribution) {
    let sources: u64 = of.rows.iter().map(|(_, sources)| sources).sum();
    let above: u64 = of
        .rows
        .iter()
        .filter(|(count, _)| *count as f64 > of.limit)
        .map(|(_, sources)| sources)
        .sum();
    html.element("figure", &[], |html| {
        html.leaf("figcaption", &[], title);
        html.element("ul", &[("class", "legend")], |html| {
            html.leaf("li", &[("class", "passed")], &format!("within the limit {}", number(sources - above)));
            html.leaf("li", &[("class", "refused")], &format!("above it {}", number(above)));
        });
        let (described, total) = (format!("{id}-text"), (HEIGHT + ABOVE + BELOW).to_string());
        let attributes = [("class", "plot"), ("role", "img"), ("aria-labelledby", described.as_str()), ("width", "100%")];
        html.element("svg", &[&attributes[..], &[("height", total.as_str())]].concat(), |html| {
            let text = format!(
                "{title}: {} sources by {}. The limit allows {}; {} sources are above it. {} of sources stay at or below {}.",
                number(sources),
                of.counted,
                compact(of.limit.floor()),
                number(above),
                of.quantile.0,
                number(of.quantile.1)
            );
            html.leaf("title", &[("id", &described)], &text);
            Scale::of(of).draw(html, of);
        });
    });
    html.line();
}

/// Logarithmic axes.
struct Scale {
    /// Powers of ten of counts.
    width: f64,
    /// Bars: from, to (powers of ten), sources, and whether they are above the limit.
    bars: Vec<(f64, f64, u64, bool)>,
    /// Powers of ten of sources.
    height: f64,
}

impl Scale {
    fn of(of: &Distribution) -> Self {
        let highest = of
            .rows
            .last()
            .map_or(1, |(count, _)| *count)
            .max(of.quantile.1) as f64;
        // Room for the label of the limit, at the right of it.
        let width = ((highest.max(of.limit).max(9.0).log10() * 1.05 * BARS).floor() + 1.0) / BARS;
        let limit = of.limit.max(1.0).log10();
        let mut bars: Vec<(f64, f64, u64, bool)> = Vec::new();
        for (count, sources) in &of.rows {
            let at = (*count).max(1) as f64;
            let power = at.log10();
            let nth = (power * BARS + 1e-9).floor();
            let is_above = *count as f64 > of.limit;
            let (mut from, mut to) = (nth / BARS, (nth + 1.0) / BARS);
            // The limit divides its bar.
            if from < limit && limit < to {
                (from, to) = if is_above { (limit, to) } else { (from, limit) };
            }
            match bars
                .last_mut()
                .filter(|bar| bar.0.to_bits() == from.to_bits() && bar.3 == is_above)
            {
                Some(bar) => bar.2 += sources,
                None => bars.push((from, to, *sources, is_above)),
            }
        }
        let most = bars.iter().map(|bar| bar.2).max().unwrap_or(1).max(9);
        // Room above for labels.
        Self {
            width,
            bars,
            height: (most as f64).log10() + ONE + 0.25,
        }
    }

    fn x(&self, power: f64) -> f64 {
        100.0 * (power / self.width).clamp(0.0, 1.0)
    }

    fn y(&self, sources: f64) -> f64 {
        let power = if sources < 1.0 {
            0.0
        } else {
            sources.log10() + ONE
        };
        ABOVE + HEIGHT * (1.0 - power / self.height)
    }

    fn draw(&self, html: &mut Html, of: &Distribution) {
        let powers = powers(self.height - ONE);
        for power in &powers {
            let at = self.y(10f64.powi(*power)).to_string();
            html.leaf(
                "line",
                &[
                    ("class", "grid"),
                    ("x1", "0"),
                    ("x2", "100%"),
                    ("y1", &at),
                    ("y2", &at),
                ],
                "",
            );
        }
        for (from, to, sources, is_above) in &self.bars {
            let top = self.y(*sources as f64);
            let (x, width) = (
                self.x(*from),
                (self.x(*to) - self.x(*from) - 0.25).max(0.25),
            );
            let class = if *is_above { "refused" } else { "passed" };
            let [x, width] = [x, width].map(|percent| format!("{percent:.2}%"));
            let [y, height] = [top, ABOVE + HEIGHT - top].map(|pixels| format!("{pixels:.1}"));
            html.leaf(
                "rect",
                &[
                    ("class", class),
                    ("x", &x),
                    ("width", &width),
                    ("y", &y),
                    ("height", &height),
                ],
                "",
            );
        }
        let base = (ABOVE + HEIGHT).to_string();
        html.leaf(
            "line",
            &[
                ("class", "base"),
                ("x1", "0"),
                ("x2", "100%"),
                ("y1", &base),
                ("y2", &base),
            ],
            "",
        );
        for power in powers {
            let value = 10f64.powi(power);
            let at = format!("{:.1}", self.y(value) - 3.0);
            let text = if power == 0 {
                "1 source".to_owned()
            } else {
                compact(value)
            };
            html.leaf(
                "text",
                &[("class", "inside"), ("x", "2"), ("y", &at)],
                &text,
            );
        }
        self.axis(html, &of.counted);
        let (share, quantile) = &of.quantile;
        let within = format!("{share} ≤ {}", compact(*quantile as f64));
        self.mark(html, "quantile", (*quantile).max(1) as f64, 28.0, &within);
        self.mark(
            html,
            "limit",
            of.limit.max(1.0),
            12.0,
            &format!("limit {}", compact(of.limit.floor())),
        );
    }

    /// A vertical line with a label at a height.
    fn mark(&self, html: &mut Html, class: &'static str, count: f64, height: f64, label: &str) {
        let share = self.x(count.log10());
        let (x, top, bottom) = (
            format!("{share:.2}%"),
            (height - 10.0).to_string(),
            (ABOVE + HEIGHT).to_string(),
        );
        html.leaf(
            "line",
            &[
                ("class", class),
                ("x1", &x),
                ("x2", &x),
                ("y1", &top),
                ("y2", &bottom),
            ],
            "",
        );
        let (anchor, shift) = if share > 55.0 {
            ("end", "-5")
        } else {
            ("start", "5")
        };
        let y = height.to_string();
        html.leaf(
            "text",
            &[
                ("class", "inside"),
                ("x", &x),
                ("dx", shift),
                ("y", &y),
                ("text-anchor", anchor),
            ],
            label,
        );
    }

    fn axis(&self, html: &mut Html, counted: &str) {
        let (labels, below) = (
            (ABOVE + HEIGHT + 14.0).to_string(),
            (ABOVE + HEIGHT + 31.0).to_string(),
        );
        for power in powers(self.width) {
            let share = self.x(f64::from(power));
            let anchor = match power {
                0 => "start",
                _ if share > 95.0 => "end",
                _ => "middle",
            };
            let x = format!("{share:.2}%");
            let text = compact(10f64.powi(power));
            html.leaf(
                "text",
                &[("x", &x), ("y", &labels), ("text-anchor", anchor)],
                &text,
            );
        }
        html.leaf(
            "text",
            &[("x", "50%"), ("y", &below), ("text-anchor", "middle")],
            counted,
        );
    }
}

/// The powers of ten up to one, at most [`LABELS`].
fn powers(highest: f64) -> Vec<i32> {
    let highest = (highest + 1e-9).floor().max(0.0) as u32;
    (0..=highest)
        .step_by((highest / LABELS + 1) as usize)
        .map(|power| power as i32)
        .collect()
}
