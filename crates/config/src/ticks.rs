//! The error of a slow limit that makes others inexact. All limits on packets share one clock, whose tick grows with the longest time that a
//! state lasts ([`TickScale`]): of buckets, the time in which the burst refills.

use std::collections::BTreeSet;

use common::essential::PacketBucket;
use common::limiter::{Costs, TokenBucket};
use common::time::{HORIZON, TickScale};

use super::class;
use super::human;
use super::limit_action::Throttle;
use super::policy::{Class, Limit, Multiplier, Rate, Unit};
use super::rates::FULL_FRAME;
use super::report::Problems;
use super::schema::Located;

/// The share of a rate, or of a window, by which another limit may make it inexact.
const TOLERANCE: f64 = 0.01;

/// A rate of a limit, for a class or a level, or one of Weir's own.
struct Part {
    /// The limit in messages.
    subject: String,
    unit: Unit,
    has_burst: bool,
    rate: Rate,
    /// The count of the rate as written, times the factor.
    count: f64,
    burst: u64,
    text: String,
    life: u128,
}

impl Part {
    /// The rates of a limit whose states have a time.
    fn all(limit: &Limit, classes: &[Multiplier]) -> Vec<Self> {
        if limit.concurrent.is_some() {
            return Vec::new();
        }
        let mut parts = Vec::new();
        for at_level in limit.at_levels() {
            let algorithm = at_level.rates.algorithm;
            let share = match at_level.throttle {
                Throttle::Hard => None,
                Throttle::Soft(share) | Throttle::Elastic(share) => Some(share),
            };
            for class in classes {
                for (rate, burst, text) in at_level.rates.all() {
                    // As the compiler does: the share first, then the class.
                    let own = (rate, burst, class.factor());
                    let shared = share.map(|share| {
                        let factor = class.factor() * share.factor();
                        (share.rate(rate), share.units(burst), factor)
                    });
                    parts.extend(std::iter::once(own).chain(shared).map(
                        |(base, burst, factor)| {
                            let base = class.rate_of(algorithm, base);
                            let burst = class.units(burst).max(1);
                            Self {
                                subject: format!("limit {:?}", at_level.name),
                                unit: limit.unit,
                                has_burst: algorithm.has_burst(),
                                rate: base,
                                count: rate.count as f64 * factor,
                                burst,
                                text: if factor.to_bits() == 1_f64.to_bits() {
                                    text.to_owned()
                                } else {
                                    format!("{factor} × {text}")
                                },
                                life: algorithm.longest_life(base, burst),
                            }
                        },
                    ));
                }
            }
        }
        parts
    }

    /// The limits that every policy has.
    fn own(proves_by_cookies: bool) -> Vec<Self> {
        type Of = fn(TickScale) -> PacketBucket;
        let essential: [(&str, Of); 2] = [
            (
                "each limit on ARP, neighbour discovery, DHCP, gateways and resolvers",
                PacketBucket::of_essential,
            ),
            (
                "the limit on frames that are not IP",
                PacketBucket::of_not_ip,
            ),
        ];
        let cookies: (&str, Of) = ("the limit on answers to SYNs", PacketBucket::of_cookies);
        essential
            .into_iter()
            .chain(proves_by_cookies.then_some(cookies))
            .map(|(subject, bucket)| {
                let bucket = bucket(TickScale::FINEST);
                let second = TickScale::FINEST.ticks(1_000_000_000);
                let count = second / bucket.emission;
                Self {
                    subject: subject.to_owned(),
                    unit: Unit::Packets,
                    has_burst: true,
                    rate: Rate::per_second(count),
                    count: count as f64,
                    burst: bucket.burst,
                    text: format!("{count}/s"),
                    life: 0,
                }
            })
            .collect()
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

    /// By how much more than if it were the only one.
    fn added_error(&self, scale: TickScale) -> f64 {
        self.error(scale) - self.error(TickScale::for_longest_life(self.life))
    }

    fn is_inexact(&self, scale: TickScale) -> bool {
        self.added_error(scale) > TOLERANCE
    }

    fn consequence(&self, scale: TickScale) -> String {
        let Self {
            subject,
            text,
            count,
            ..
        } = self;
        if !self.has_burst {
            let tick = nanoseconds(tick(scale));
            return format!("the windows of {subject} ({text}) would be exact to {tick} only");
        }
        let passes = count * (1.0 - self.error(scale));
        let passes = if self.unit == Unit::Bytes {
            human::size(passes as u64)
        } else {
            human::number(passes as u64)
        };
        format!("{subject} would pass only some {passes} of its {text}")
    }
}

/// The error of the slowest limit if it makes others inexact.
pub fn check(
    limits: &[Located<'_, Limit>],
    classes: &[Located<'_, Class>],
    problems: &mut Problems,
) {
    let multipliers = class::multipliers(classes);
    let of_limits: Vec<(usize, Part)> = limits
        .iter()
        .enumerate()
        .flat_map(|(nth, read)| {
            let parts = Part::all(&read.table, &multipliers).into_iter();
            parts.map(move |part| (nth, part))
        })
        .collect();
    // Of several that are as slow, the first: not that of a class or a level.
    let Some((nth, slowest)) = of_limits.iter().rev().max_by_key(|(_, part)| part.life) else {
        return;
    };
    let own = Part::own(limits.iter().any(|read| read.table.proves_by_cookies()));
    let scale = TickScale::for_longest_life(slowest.life);
    let inexact = |scale: TickScale| {
        let of_limits = of_limits.iter().map(|(_, part)| part);
        of_limits
            .chain(&own)
            .filter(move |part| part.is_inexact(scale))
    };
    let error = |part: &&Part| part.added_error(scale);
    // One of Weir's own only if no limit of the file is inexact.
    let Some(worst) = inexact(scale)
        .filter(|part| part.life > 0)
        .max_by(|a, b| error(a).total_cmp(&error(b)))
        .or_else(|| inexact(scale).next())
    else {
        return;
    };
    let others = inexact(scale)
        .map(|part| part.subject.as_str())
        .filter(|subject| *subject != worst.subject)
        .collect::<BTreeSet<_>>()
        .len();
    let others = match others {
        0 => String::new(),
        1 => " (and 1 more limit less than its rate)".to_owned(),
        _ => format!(" (and {others} more limits less than their rates)"),
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
        "{}{others}: {} makes the clock of all limits on packets tick every {}, since its burst of {} at {} takes {} to refill",
        worst.consequence(scale),
        slowest.subject,
        nanoseconds(tick(scale)),
        human::number(slowest.burst),
        slowest.text,
        years(slowest.life),
    );
    let help = format!(
        "lower that burst to at most {}, or write a faster rate there",
        human::number(burst.max(1))
    );
    let place = read.find(&Limit::BURST).map(|at| at.span());
    problems.conflict(
        place.unwrap_or_else(|| read.span_of(&Limit::RATE)),
        message,
        help,
    );
}

fn years(nanoseconds: u128) -> String {
    let years = nanoseconds / (365 * 86_400 * 1_000_000_000);
    format!(
        "{} years",
        human::number(u64::try_from(years).unwrap_or(u64::MAX))
    )
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

    fn errors(limits: &str) -> Vec<Placed> {
        let text = format!("[agent]\ninterfaces = [\"eth0\"]\n{limits}");
        match parse(Path::new("limits.toml"), &text) {
            Ok(_) => Vec::new(),
            Err(report) => report.errors,
        }
    }

    fn limit(lines: &str) -> String {
        format!("[[limit]]\nname = \"web\"\n{lines}\n")
    }

    #[test]
    fn a_burst_that_takes_millions_of_years_is_refused_with_what_it_costs_others() {
        let web = limit("rate = \"2000/s\"\nburst = 20");
        let found = errors(&format!("{web}{RARE}"));
        let [error] = &found[..] else {
            panic!("{found:?}");
        };
        // In the order of the file, at the slow limit's burst.
        assert_eq!((error.line, error.column), (10, 9), "{error:?}");
        for words in [
            "\"web\" would pass only some 476 of its 2000/s",
            "limit \"rare\" makes",
            "every 2.1 ms",
            "burst of 100,000,000 at 1/365day takes 100,000,000 years",
            "(and 2 more limits less than their rates)",
        ] {
            assert!(error.message.contains(words), "{}", error.message);
        }
        // The help is right to a factor of two, the step of the scale.
        let most: u64 = error
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
            errors(&format!(
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
            subject: "limit \"web\"".to_owned(),
            unit: Unit::Packets,
            has_burst: true,
            rate,
            count: 2_000.0,
            burst: 20,
            text: "2000/s".to_owned(),
            life: 1,
        };
        let expected = 3.0 * 2_000.0 * (1.0 - part(rate).error(scale)) + 20.0;
        let found = passed(scale) as f64;
        assert!((found - expected).abs() <= 2.0, "{found} {expected}");
        assert!((1_446.0..=1_450.0).contains(&found), "{found}");
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
            let inexact = |error: &Placed| error.message.contains("limit \"web");
            let found = errors(&format!("{}{RARE}", limit(lines)));
            assert_eq!(found.iter().any(inexact), is_inexact, "{lines}: {found:?}");
            // Beside slow limits of use, and for itself, nothing is inexact.
            let slow = "[[limit]]\nname = \"slow\"\nrate = \"1/365day\"\nburst = 3\n\
                        [[limit]]\nname = \"daily\"\nrate = \"1000/day\"\nburst = 10_000_000\n";
            let found = errors(&format!("{}{slow}", limit(lines)));
            assert_eq!(found, [], "{lines}");
        }
        // Beside no other limit it is one of Weir's own that passes too little.
        let alone = errors(RARE);
        let own = "DHCP, gateways and resolvers would pass only some 476 of its 10000/s";
        assert!(alone[0].message.contains(own), "{alone:?}");
        // A class with 200 times the rate.
        let class = "[[class]]\nname = \"c\"\nsources = [\"192.0.2.0/24\"]\nmultiplier = 200\n";
        let found = errors(&format!("{class}{}{RARE}", limit("rate = \"4/s\"")));
        assert!(
            found
                .iter()
                .any(|error| error.message.contains("200 × 4/s")),
            "{found:?}"
        );
    }
}
