//! Warnings of a slow limit that makes others inexact. All limits on packets share one clock, whose tick grows with the longest time that a
//! state lasts ([`TickScale`]): of buckets, the time in which the burst refills.

use common::limiter::{Costs, TokenBucket};
use common::time::{HORIZON, TickScale};

use super::class;
use super::human;
use super::policy::{Class, Limit, Multiplier, Rate, Unit};
use super::rates::FULL_FRAME;
use super::report::Problems;
use super::schema::Located;

/// The share of a rate, or of a window, by which it may be inexact.
const TOLERANCE: f64 = 0.01;

/// A rate of a limit, for a class or a level.
struct Part {
    limit: String,
    unit: Unit,
    has_burst: bool,
    rate: Rate,
    /// The count of the rate as written, times the class's factor.
    count: f64,
    burst: u64,
    text: String,
    life: u128,
}

impl Part {
    /// The rates of a limit whose states have a time.
    fn all(limit: &Limit, multipliers: &[Multiplier]) -> Vec<Self> {
        if limit.concurrent.is_some() {
            return Vec::new();
        }
        let mut parts = Vec::new();
        for at_level in limit.at_levels() {
            let algorithm = at_level.rates.algorithm;
            for (rate, burst, text) in at_level.rates.all() {
                parts.extend(multipliers.iter().map(|multiplier| Self {
                    limit: at_level.name.clone(),
                    unit: limit.unit,
                    has_burst: algorithm.has_burst(),
                    rate: multiplier.rate_of(algorithm, rate),
                    count: rate.count as f64 * multiplier.factor(),
                    burst: multiplier.units(burst).max(1),
                    text: if *multiplier == Multiplier::ONE {
                        text.to_owned()
                    } else {
                        format!("{} × {text}", multiplier.factor())
                    },
                    life: algorithm.longest_life(rate, burst),
                }));
            }
        }
        parts
    }

    /// By which share of the rate less passes, or the window's length differs.
    fn error(&self, scale: TickScale) -> f64 {
        let tick = tick(scale);
        let per = self.rate.per_nanoseconds as f64;
        if !self.has_burst {
            return tick / per;
        }
        let (costs, cost) = match self.unit {
            Unit::Bytes => (Costs::Many, FULL_FRAME.min(self.burst)),
            Unit::Packets | Unit::Connections | Unit::Requests => (Costs::Single, 1),
        };
        let exact = per * cost as f64 / self.rate.count as f64 / tick;
        let charged = TokenBucket::new(self.rate, self.burst, costs, scale).charge(cost);
        1.0 - exact / charged as f64
    }

    /// Whether the clock is too coarse for it, and would not be if it were the only one.
    fn is_inexact(&self, scale: TickScale) -> bool {
        let own = TickScale::for_longest_life(self.life);
        self.error(scale).abs() > TOLERANCE && self.error(own).abs() <= TOLERANCE
    }

    fn consequence(&self, scale: TickScale) -> String {
        let Self {
            limit, text, count, ..
        } = self;
        if !self.has_burst {
            let tick = nanoseconds(tick(scale));
            return format!("the windows of limit {limit:?} ({text}) are exact to {tick} only");
        }
        let passes = count * (1.0 - self.error(scale));
        let passes = if self.unit == Unit::Bytes {
            human::size(passes as u64)
        } else {
            human::number(passes as u64)
        };
        format!("limit {limit:?} passes only some {passes} of its {text}")
    }
}

/// Warns of the slowest limit if it makes others inexact.
pub fn check(
    limits: &[Located<'_, Limit>],
    classes: &[Located<'_, Class>],
    problems: &mut Problems,
) {
    let multipliers = class::multipliers(classes);
    let parts: Vec<(usize, Part)> = limits
        .iter()
        .enumerate()
        .flat_map(|(nth, read)| {
            let parts = Part::all(&read.table, &multipliers).into_iter();
            parts.map(move |part| (nth, part))
        })
        .collect();
    // Of several that are as slow, the first: not that of a class or a level.
    let Some((nth, slowest)) = parts.iter().rev().max_by_key(|(_, part)| part.life) else {
        return;
    };
    let scale = TickScale::for_longest_life(slowest.life);
    let inexact = |scale: TickScale| {
        parts
            .iter()
            .map(|(_, part)| part)
            .filter(move |part| part.is_inexact(scale))
    };
    let error = |part: &&Part| part.error(scale).abs();
    let Some(worst) = inexact(scale).max_by(|a, b| error(a).total_cmp(&error(b))) else {
        return;
    };
    // The longest life with which no other is inexact.
    let fits = (0..scale.right)
        .rev()
        .map(|right| TickScale { left: 0, right })
        .find(|scale| inexact(*scale).next().is_none())
        .unwrap_or(TickScale::FINEST);
    let longest = (HORIZON / 2) as f64 * tick(fits) / slowest.rate.per_nanoseconds as f64;
    let burst = (longest * slowest.rate.count as f64) as u64;
    let read = &limits[*nth];
    let message = format!(
        "{}: limit {:?} makes the clock of all limits on packets tick every {}, since its burst of {} at {} takes so long to refill",
        worst.consequence(scale),
        slowest.limit,
        nanoseconds(tick(scale)),
        human::number(slowest.burst),
        slowest.text,
    );
    let help = format!(
        "lower that burst to at most {}, or write a faster rate there",
        human::number(burst.max(1))
    );
    let place = read.find(&Limit::BURST).map(|at| at.span());
    problems.warning(
        place.unwrap_or_else(|| read.span_of(&Limit::RATE)),
        message,
        help,
    );
}

/// The length of a tick in nanoseconds.
fn tick(scale: TickScale) -> f64 {
    f64::from(scale.right).exp2() / f64::from(scale.left).exp2()
}

fn nanoseconds(time: f64) -> String {
    match time {
        ..1e3 => format!("{time:.1} ns"),
        ..1e6 => format!("{:.1} µs", time / 1e3),
        ..1e9 => format!("{:.1} ms", time / 1e6),
        _ => format!("{:.1} s", time / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::parse;
    use crate::report::Placed;

    const RARE: &str = "[[limit]]\nname = \"rare\"\nrate = \"1/365day\"\nburst = 100_000_000\n";

    fn warnings(limits: &str) -> Vec<Placed> {
        let text = format!("[agent]\ninterfaces = [\"eth0\"]\n{limits}");
        parse(Path::new("limits.toml"), &text)
            .unwrap_or_else(|report| panic!("{report}"))
            .warnings
    }

    fn limit(lines: &str) -> String {
        format!("[[limit]]\nname = \"web\"\n{lines}\n")
    }

    #[test]
    fn a_burst_that_takes_millions_of_years_is_reported_with_what_it_costs_others() {
        let web = limit("rate = \"2000/s\"\nburst = 20");
        let found = warnings(&format!("{web}{RARE}"));
        let [warning] = &found[..] else {
            panic!("{found:?}");
        };
        // In the order of the file, at the slow limit's burst.
        assert_eq!((warning.line, warning.column), (10, 9), "{warning:?}");
        for words in [
            "\"web\" passes only some 476 of its 2000/s",
            "limit \"rare\"",
            "every 2.1 ms",
            "burst of 100,000,000 at 1/365day",
        ] {
            assert!(warning.message.contains(words), "{}", warning.message);
        }
        // The help is right to a factor of two, the step of the scale.
        let most: u64 = warning
            .help
            .split_once("at most ")
            .unwrap()
            .1
            .split_once(", or")
            .unwrap()
            .0
            .replace(',', "")
            .parse()
            .unwrap();
        let with = |burst: u64| {
            warnings(&format!(
                "{web}{}",
                RARE.replace("100_000_000", &burst.to_string())
            ))
        };
        assert_eq!(with(most), [], "{most}");
        assert_eq!(with(2 * most + 2).len(), 1, "{most}");
    }

    /// What the function passes on this clock: 3 s of 2,007 packets a second.
    #[test]
    fn the_figures_are_those_of_the_limiter() {
        let rate = Rate::per_second(2_000);
        let life = 100_000_000 * 365 * 86_400 * 1_000_000_000_u128;
        let scale = TickScale::for_longest_life(life);
        let passed = |scale: TickScale| {
            let bucket = TokenBucket::new(rate, 20, Costs::Single, scale);
            let mut state = 0;
            (0..6_021_u64)
                .filter(|nth| {
                    let now = scale.ticks(1 << 40) + scale.ticks(nth * 1_000_000_000 / 2_007);
                    let decision = bucket.decide(state, now, 1);
                    matches!(decision, common::limiter::Decision::Pass(next) if { state = next; true })
                })
                .count()
        };
        let part = |rate| Part {
            limit: "web".to_owned(),
            unit: Unit::Packets,
            has_burst: true,
            rate,
            count: 2_000.0,
            burst: 20,
            text: "2000/s".to_owned(),
            life: 0,
        };
        let expected = 3.0 * 2_000.0 * (1.0 - part(rate).error(scale)) + 20.0;
        let found = passed(scale) as f64;
        assert!((found - expected).abs() <= 2.0, "{found} {expected}");
        let found = passed(TickScale::FINEST);
        assert!((6_010..=6_021).contains(&found), "{found}");
    }

    #[test]
    fn limits_of_every_kind_are_compared_with_the_clock() {
        for (lines, is_inexact) in [
            ("rate = \"1/s\"", false),
            ("rate = \"1000/min\"\nalgorithm = \"sliding-window\"", false),
            ("rate = \"5/20ms\"\nalgorithm = \"fixed-window\"", true),
            ("rate = \"50/h\"\ntiers = [\"1500/s\"]", true),
            (
                "rate = \"50/s\"\nlevels = [{ prefix = \"24/48\", factor = 100 }]",
                true,
            ),
            (
                "unit = \"bytes\"\nrate = \"1GB/s\"\nburst = \"300MB\"",
                true,
            ),
            ("unit = \"connections\"\nconcurrent = 5", false),
        ] {
            let inexact = |warning: &Placed| warning.message.contains("the clock of all limits");
            let found = warnings(&format!("{}{RARE}", limit(lines)));
            assert_eq!(found.iter().any(inexact), is_inexact, "{lines}: {found:?}");
            // Beside slow limits of use, and for itself, nothing is inexact.
            let slow = "[[limit]]\nname = \"slow\"\nrate = \"1/365day\"\nburst = 3\n\
                        [[limit]]\nname = \"daily\"\nrate = \"1000/day\"\nburst = 10_000_000\n";
            let found = warnings(&format!("{}{slow}", limit(lines)));
            assert!(!found.iter().any(inexact), "{lines}: {found:?}");
        }
        assert_eq!(warnings(RARE), []);
        // A class with 200 times the rate.
        let class = "[[class]]\nname = \"c\"\nsources = [\"192.0.2.0/24\"]\nmultiplier = 200\n";
        let found = warnings(&format!("{class}{}{RARE}", limit("rate = \"4/s\"")));
        assert!(
            found
                .iter()
                .any(|warning| warning.message.contains("200 × 4/s")),
            "{found:?}"
        );
    }
}
