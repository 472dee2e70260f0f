//! The plot of passed and refused packets over time.

use std::fmt::Write as _;

use config::human::number;

use super::axis::{compact, step, time, time_step};
use super::html::Html;
use super::{name, percent};

/// Passed and refused packets, by step of time.
#[derive(Clone, Copy, Debug)]
pub struct Timeline<'t> {
    /// Length of a step in seconds.
    pub step_seconds: u64,
    /// Packets that passed.
    pub passed: &'t [u64],
    pub refused: &'t [u64],
    /// Packets of `passed` that would be refused.
    pub would_refuse: &'t [u64],
}

/// The height of the plot in pixels, and of the lines above it and below it.
const HEIGHT: f64 = 140.0;
const ABOVE: f64 = 22.0;
const BELOW: f64 = 22.0;
/// The height in units of the area, whose width is a unit a step.
const UNITS: f64 = 1_000.0;
/// The least height of packets: 1.5 pixels.
const LEAST: f64 = 1.5 * UNITS / HEIGHT;

/// Appends a plot; `id` is unique in the page.
pub fn timeline(html: &mut Html, id: &str, title: &str, data: Timeline<'_>) {
    let sum = |counts: &[u64]| counts.iter().sum::<u64>();
    let (passed, refused, would) = (sum(data.passed), sum(data.refused), sum(data.would_refuse));
    let all = passed + refused;
    let seconds = data.step_seconds.max(1);
    let steps = data.passed.len().max(1);
    html.element("figure", &[], |html| {
        html.leaf("figcaption", &[], &name(title));
        html.element("ul", &[("class", "legend")], |html| {
            html.leaf(
                "li",
                &[("class", "passed")],
                &format!("passed {}", number(passed - would.min(passed))),
            );
            if would > 0 {
                let text = format!(
                    "would be refused {} ({:.2} %)",
                    number(would),
                    percent(would, all)
                );
                html.leaf("li", &[("class", "would")], &text);
            }
            if refused > 0 || would == 0 {
                let text = format!(
                    "refused {} ({:.2} %)",
                    number(refused),
                    percent(refused, all)
                );
                html.leaf("li", &[("class", "refused")], &text);
            }
        });
        let stacks = Stacks::of(data);
        let highest = match stacks.highest() / seconds as f64 {
            highest if highest > 0.0 => highest,
            _ => 1.0,
        };
        let (described, total) = (format!("{id}-text"), (HEIGHT + ABOVE + BELOW).to_string());
        let attributes = [
            ("class", "plot"),
            ("role", "img"),
            ("aria-labelledby", described.as_str()),
            ("width", "100%"),
        ];
        html.element(
            "svg",
            &[&attributes[..], &[("height", total.as_str())]].concat(),
            |html| {
                let text = describe(title, &stacks, (passed, refused, would), steps, seconds);
                html.leaf("title", &[("id", &described)], &text);
                draw(html, &stacks, highest, steps, seconds);
            },
        );
    });
    html.line();
}

/// The text for readers who do not see the plot.
fn describe(
    title: &str,
    stacks: &Stacks,
    (passed, refused, would): (u64, u64, u64),
    steps: usize,
    seconds: u64,
) -> String {
    let mut text = format!(
        "{}: packets a second over {}, in steps of {}. {} passed, {} refused",
        name(title),
        time(steps as u64 * seconds),
        time(seconds),
        number(passed),
        number(refused)
    );
    if would > 0 {
        let _ = write!(text, ", {} would be refused", number(would));
    }
    match stacks.worst() {
        Some((nth, count)) => {
            let after = time(nth as u64 * seconds);
            let _ = write!(
                text,
                "; most of these after {after}: {}/s.",
                compact(count / seconds as f64)
            );
        }
        None => text.push('.'),
    }
    text
}

/// Sums of a step: passed for good; with those that would be refused; with refused ones.
struct Stacks(Vec<[f64; 3]>);

impl Stacks {
    fn of(data: Timeline<'_>) -> Self {
        let stack = |(nth, passed): (usize, &u64)| {
            let at = |counts: &[u64]| counts.get(nth).copied().unwrap_or(0);
            let would = at(data.would_refuse).min(*passed);
            [*passed - would, *passed, *passed + at(data.refused)].map(|count| count as f64)
        };
        Self(data.passed.iter().enumerate().map(stack).collect())
    }

    fn highest(&self) -> f64 {
        self.0.iter().map(|stack| stack[2]).fold(0.0, f64::max)
    }

    /// The first step with the most packets that are or would be refused.
    fn worst(&self) -> Option<(usize, f64)> {
        let refused = self.0.iter().map(|stack| stack[2] - stack[0]).enumerate();
        let worst = refused.max_by(|(one, a), (other, b)| a.total_cmp(b).then(other.cmp(one)));
        worst.filter(|(_, count)| *count > 0.0)
    }

    /// The outline of one of the sums where it has packets of its own, filled to the axis.
    fn path(&self, which: usize, scale: f64) -> String {
        let mut path = format!("M0 {UNITS}");
        let mut last = UNITS;
        for (nth, stack) in self.0.iter().enumerate() {
            // Each kind of packets is visible, however few they are.
            let mut height = 0.0;
            let mut own = 0.0;
            let mut below = 0.0;
            for sum in &stack[..=which] {
                own = sum - below;
                height += if own > 0.0 {
                    (own * scale).max(LEAST)
                } else {
                    0.0
                };
                below = *sum;
            }
            let y = if own > 0.0 {
                (UNITS - height).max(0.0).round()
            } else {
                UNITS
            };
            if (y - last).abs() > 0.5 {
                let _ = write!(path, "H{nth}V{y}");
                last = y;
            }
        }
        let _ = write!(path, "H{}V{UNITS}Z", self.0.len());
        path
    }

    fn has(&self, which: usize) -> bool {
        self.0
            .iter()
            .any(|stack| stack[which] > if which == 0 { 0.0 } else { stack[which - 1] })
    }
}

fn draw(html: &mut Html, stacks: &Stacks, highest: f64, steps: usize, seconds: u64) {
    let tick = step(highest, 4);
    // Room above for bars with a least height.
    let ticks = (highest * 1.03 / tick).ceil().max(1.0);
    let y = |value: f64| ABOVE + HEIGHT * (1.0 - value / (tick * ticks));
    for nth in 1..=ticks as u32 {
        let at = y(tick * f64::from(nth)).to_string();
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
    let (above, height, view) = (
        ABOVE.to_string(),
        HEIGHT.to_string(),
        format!("0 0 {steps} {UNITS}"),
    );
    let area = [
        ("x", "0"),
        ("y", above.as_str()),
        ("width", "100%"),
        ("height", height.as_str()),
    ];
    let stretched = [("viewBox", view.as_str()), ("preserveAspectRatio", "none")];
    html.element("svg", &[&area[..], &stretched[..]].concat(), |html| {
        let scale = UNITS / (tick * ticks * seconds as f64);
        // The largest sum first: the others cover it.
        for (which, class) in [(2, "refused"), (1, "would"), (0, "passed")] {
            if stacks.has(which) {
                html.leaf(
                    "path",
                    &[("class", class), ("d", &stacks.path(which, scale))],
                    "",
                );
            }
        }
    });
    let base = y(0.0).to_string();
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
    for nth in 1..=ticks as u32 {
        let value = tick * f64::from(nth);
        let at = (y(value) - 4.0).to_string();
        let unit = if nth == ticks as u32 {
            " packets/s"
        } else {
            ""
        };
        let text = format!("{}{unit}", compact(value));
        html.leaf(
            "text",
            &[("class", "inside"), ("x", "2"), ("y", &at)],
            &text,
        );
    }
    let length = steps as u64 * seconds;
    let tick = time_step(length, 4);
    let below = (ABOVE + HEIGHT + 15.0).to_string();
    for nth in 0..=length / tick {
        let at = nth * tick;
        let share = at as f64 * 100.0 / length as f64;
        let (x, anchor) = (format!("{share:.3}%"), anchor(share));
        html.leaf(
            "text",
            &[("x", &x), ("y", &below), ("text-anchor", anchor)],
            &time(at),
        );
    }
}

/// Keeps a label within the plot.
fn anchor(share: f64) -> &'static str {
    match share {
        share if share < 8.0 => "start",
        share if share > 92.0 => "end",
        _ => "middle",
    }
}
