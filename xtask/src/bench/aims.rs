//! Weir's aims: ratios within one run, and absolute bounds for memory and for commands.

use super::figures::{Figures, Series, Summary};

/// An aim and its result.
pub struct Aim {
    /// Its key in the notes.
    pub key: &'static str,
    /// The compared things.
    pub what: String,
    /// The bound as text.
    pub bound: String,
    /// The measurement; `None` if it was not possible.
    pub measured: Option<Summary>,
    /// Whether the median is within the bound.
    pub is_met: bool,
}

enum Bound {
    /// At most this ratio.
    AtMost(f64),
    /// At least this ratio.
    AtLeast(f64),
    /// At least this percentage.
    PercentAtLeast(f64),
    /// At most this percentage.
    PercentAtMost(f64),
    /// At most this many bytes.
    Bytes(f64),
    /// At most this many milliseconds.
    Milliseconds(f64),
    /// At most this many nanoseconds.
    Nanoseconds(f64),
}

const PACKET: &str = "packet";
const FLOOD: &str = "flood";
const PROOFS: &str = "proofs";
pub const DECISIONS: &str = "decisions";
const WEIR: &str = "weir";
const MINIMAL: &str = "minimal, LRU hash";
const OVERFLOW: &str = "a table full of made-up requests";
const HOT: &str = "one limit, hot key";

fn aim(key: &'static str, what: impl Into<String>, bound: Bound, measured: Option<Summary>) -> Aim {
    let median = measured.map(|measured| measured.median);
    let (bound, is_met) = match bound {
        Bound::AtMost(most) => (
            format!("≤ {most}×"),
            median.is_some_and(|median| median <= most),
        ),
        Bound::AtLeast(least) => (
            format!("≥ {least}×"),
            median.is_some_and(|median| median >= least),
        ),
        Bound::PercentAtLeast(least) => (
            format!("≥ {least} %"),
            median.is_some_and(|median| median >= least),
        ),
        Bound::PercentAtMost(most) => (
            format!("≤ {most} %"),
            median.is_some_and(|median| median <= most),
        ),
        Bound::Bytes(most) => (
            format!("≤ {most} bytes"),
            median.is_some_and(|median| median <= most),
        ),
        Bound::Milliseconds(most) => (
            format!("≤ {most} ms"),
            median.is_some_and(|median| median <= most),
        ),
        Bound::Nanoseconds(most) => (
            format!("≤ {most} ns"),
            median.is_some_and(|median| median <= most),
        ),
    };
    Aim {
        key,
        what: what.into(),
        bound,
        measured,
        is_met,
    }
}

/// All aims, except those on decisions over HTTP, which may be measured separately.
pub fn all(figures: &Figures) -> Vec<Aim> {
    let mut aims = of_packets(figures);
    aims.extend(of_floods(figures));
    aims.extend(of_a_full_table(figures));
    aims.extend(of_proofs(figures));
    aims.push(of_connections(figures));
    aims.extend(of_lists(figures));
    aims.extend(of_memory(figures));
    aims.extend(of_the_agent(figures));
    aims
}

/// Aims on the time of a packet.
fn of_packets(figures: &Figures) -> Vec<Aim> {
    let weir = |case: &str, of: (&str, &str)| figures.ratio(PACKET, (case, WEIR), of);
    let ipv6 = "one limit, hot key, IPv6";
    let mut aims = vec![
        aim(
            "hot",
            "one limit, hot key: of the minimal limiter",
            Bound::AtMost(1.0),
            weir(HOT, (HOT, MINIMAL)),
        ),
        aim(
            "hot",
            "one limit, hot key, IPv6: of the minimal limiter",
            Bound::AtMost(1.0),
            weir(ipv6, (ipv6, MINIMAL)),
        ),
    ];
    for count in [2, 4, 8] {
        let what =
            format!("each further of {count} limits: of the first one's cost over a bare drop");
        let measured = further(figures, &format!("{count} limits, hot key"), count);
        aims.push(aim("further", what, Bound::AtMost(0.4), measured));
    }
    for rates in [2, 4, 7] {
        let what =
            format!("each further of {rates} tiers: of the first one's cost over a bare drop");
        let measured = further(
            figures,
            &format!("one limit of {rates} tiers, hot key"),
            rates,
        );
        aims.push(aim("further", what, Bound::AtMost(0.4), measured));
    }
    for levels in [1, 2, 3] {
        let what =
            format!("each of {levels} levels of a limit: of the limit's cost over a bare drop");
        let measured = further(
            figures,
            &format!("one limit, hot key, levels: {levels}"),
            levels + 1,
        );
        aims.push(aim("levels", what, Bound::AtMost(0.4), measured));
    }
    for (key, case, what, most) in [
        (
            "refused",
            "one limit, hot key, refused",
            "a refused packet: of a passed one",
            1.0,
        ),
        (
            "limits",
            "one of 10000 limits, hot key",
            "10,000 configured limits: of one",
            1.2,
        ),
        (
            "prefixes",
            "100000 prefixes, hot key",
            "100,000 class prefixes: of none",
            1.2,
        ),
    ] {
        aims.push(aim(key, what, Bound::AtMost(most), weir(case, (HOT, WEIR))));
    }
    for (key, case, under, what, most) in [
        (
            "concurrent",
            "SYN of a new source, concurrent",
            "SYN of a new source, a rate",
            "a SYN of a new source under `concurrent`: over one under a rate",
            1_000.0,
        ),
        (
            "concurrent",
            "SYN of a new source, refused, concurrent",
            "SYN of a new source, refused, a rate",
            "a SYN that `concurrent` refuses: over one that a rate refuses",
            200.0,
        ),
        (
            "sampled",
            "one limit, hot key, one packet in 250 sampled",
            HOT,
            "a packet while `weir top --by prefix` samples: over one without",
            50.0,
        ),
    ] {
        let over = figures.differences(PACKET, (case, WEIR), (under, WEIR));
        aims.push(aim(
            key,
            what,
            Bound::Nanoseconds(most),
            over.and_then(|over| Summary::of(&over)),
        ));
    }
    aims
}

/// The cost of each further limit of a case, as a share of the first one's cost over a program that only drops.
fn further(figures: &Figures, case: &str, count: u32) -> Option<Summary> {
    let drop = figures.samples(PACKET, "hot key", "drop only")?;
    let one = figures.samples(PACKET, HOT, WEIR)?;
    let many = figures.samples(PACKET, case, WEIR)?;
    let share = |((many, one), drop): ((&f64, &f64), &f64)| {
        (many - one) / f64::from(count - 1) / (one - drop)
    };
    Summary::of(
        &many
            .iter()
            .zip(one)
            .zip(drop)
            .map(share)
            .collect::<Vec<_>>(),
    )
}

/// Aims on packets per second over veth.
fn of_floods(figures: &Figures) -> Vec<Aim> {
    let over = |case: &str, rival: &str| figures.ratio(FLOOD, (case, WEIR), (case, rival));
    let one = "all refused, 1 sources";
    let mut aims: Vec<Aim> = [
        ("hashlimit at input", 3.3),
        ("nftables at input", 3.3),
        ("nftables at ingress", 2.5),
    ]
    .into_iter()
    .map(|(rival, least)| {
        let what = format!("all refused, one source: packets a second, of {rival}");
        aim("stack", what, Bound::AtLeast(least), over(one, rival))
    })
    .collect();
    for (case, how) in [
        ("all refused, 1000000 sources", "at random"),
        ("all refused, 1000000 sources in order", "in order"),
    ] {
        let what = format!(
            "all refused, a million sources {how}: packets a second, of the minimal limiter"
        );
        aims.push(aim(
            "million",
            what,
            Bound::AtLeast(1.3),
            over(case, MINIMAL),
        ));
    }
    let what = "every packet a new source: packets a second, of the minimal limiter, without what passing costs";
    aims.push(aim("new", what, Bound::AtLeast(1.6), new_sources(figures)));
    aims
}

/// Passing a packet costs more than any limiter and is the same for all: it is replaced by the cost of dropping one.
fn new_sources(figures: &Figures) -> Option<Summary> {
    let case = "every packet a new source";
    let of = |by: &str| figures.samples(FLOOD, case, by);
    let (weir, minimal, pass, drop) = (of(WEIR)?, of(MINIMAL)?, of("pass only")?, of("drop only")?);
    let ratio = |nth: usize| {
        let time = |samples: &[f64]| Some(1.0 / samples.get(nth)?);
        let passing = time(pass)? - time(drop)?;
        Some((time(minimal)? - passing) / (time(weir)? - passing))
    };
    Summary::of(&(0..weir.len()).filter_map(ratio).collect::<Vec<_>>())
}

/// Aims on a table that an attacker has filled.
fn of_a_full_table(figures: &Figures) -> [Aim; 2] {
    let of = |unit: &str| Summary::of(figures.samples_in("overflow", OVERFLOW, WEIR, unit)?);
    let polite = "a table full of made-up requests: packets of polite new sources that pass";
    let greedy =
        "a table full of made-up requests: what the greediest new source gets, of its limit";
    [
        aim(
            "overflow",
            polite,
            Bound::PercentAtLeast(99.0),
            of("% of polite packets passed"),
        ),
        aim(
            "overflow",
            greedy,
            Bound::PercentAtMost(110.0),
            of("% of its limit, the greediest"),
        ),
    ]
}

/// Aims on forged SYNs and ACKs where sources prove their address.
fn of_proofs(figures: &Figures) -> Vec<Aim> {
    const BY_TC: &str = "weir by TC";
    const DROP: &str = "drop only";
    const SYNS: &str = "forged SYNs";
    // Over a drop at the same hook.
    let over = |by: &str, drop: &str| figures.differences(PROOFS, (SYNS, by), (SYNS, drop));
    let mut aims: Vec<Aim> = [
        ("native XDP", WEIR, DROP),
        ("traffic control", BY_TC, "drop only, by TC"),
    ]
    .into_iter()
    .map(|(hook, by, drop)| {
        let what = format!("a forged SYN, answered in {hook}: over a bare drop there");
        aim(
            "proofs",
            what,
            Bound::Nanoseconds(1_000.0),
            over(by, drop).and_then(|over| Summary::of(&over)),
        )
    })
    .collect();
    for rival in ["the kernel's cookies", "nftables' synproxy"] {
        let ratios = over(WEIR, DROP)
            .zip(over(rival, DROP))
            .map(|(weir, rival)| {
                weir.iter()
                    .zip(rival)
                    .map(|(weir, rival)| weir / rival)
                    .collect::<Vec<_>>()
            });
        let what = format!("a forged SYN, answered in native XDP: over a bare drop, of {rival}");
        aims.push(aim(
            "proofs",
            what,
            Bound::AtMost(0.5),
            ratios.and_then(|ratios| Summary::of(&ratios)),
        ));
    }
    for (hook, by) in [("native XDP", WEIR), ("traffic control", BY_TC)] {
        let what = format!("a forged ACK, refused in {hook}: of a packet above a limit");
        let measured = figures.ratio(PROOFS, ("forged ACKs", by), ("ACKs above a limit", by));
        aims.push(aim("proofs-acks", what, Bound::AtMost(1.0), measured));
    }
    aims
}

/// The aim on connections that are opened and closed.
fn of_connections(figures: &Figures) -> Aim {
    const CASE: &str = "opened and closed";
    let measured = figures.ratio(
        "connections",
        (CASE, "weir, concurrent"),
        (CASE, "weir, a rate"),
    );
    let what = "a connection under `concurrent`, opened and closed: of one under a rate";
    aim("concurrent", what, Bound::AtMost(1.1), measured)
}

/// Aims on a list of a million banned prefixes.
fn of_lists(figures: &Figures) -> [Aim; 4] {
    const NFTABLES: &str = "nftables at ingress";
    let of = |case: &str| Summary::of(figures.samples("lists", case, WEIR)?);
    let (load, memory) = (
        "a million prefixes, from text to in effect",
        "a million prefixes",
    );
    let cost = "1000 sources, the list's part";
    let spread = "every packet a new source, the list's part";
    let of_nftables = |case: &str| figures.ratio("lists", (case, WEIR), (case, NFTABLES));
    [
        aim(
            "lists",
            "a million banned prefixes, from text to in effect",
            Bound::Milliseconds(3_000.0),
            of(load),
        ),
        aim(
            "lists",
            "a million banned prefixes, 1,000 sources: a packet over none",
            Bound::Nanoseconds(20.0),
            of(cost),
        ),
        aim(
            "lists",
            "a million banned prefixes, every packet a new source: over none, of a set of nftables",
            Bound::AtMost(0.25),
            of_nftables(spread),
        ),
        aim(
            "lists",
            "memory a banned prefix: of a set of nftables",
            Bound::AtMost(0.5),
            of_nftables(memory),
        ),
    ]
}

/// Aims on memory.
fn of_memory(figures: &Figures) -> Vec<Aim> {
    let table = |case: &str| Summary::of(figures.samples("memory", case, WEIR)?);
    [("one limit", 32.0), ("3 limits", 64.0), ("7 limits", 64.0)]
        .into_iter()
        .map(|(limits, most)| {
            let what = format!("memory a key with {limits}");
            aim(
                "memory",
                what,
                Bound::Bytes(most),
                table(&format!("table, {limits}")),
            )
        })
        .collect()
}

/// Aims on commands' durations.
fn of_the_agent(figures: &Figures) -> Vec<Aim> {
    let replay = ["1000", "100000"].map(|sources| {
        let measured = figures
            .samples("agent", &format!("replay, sources: {sources}"), WEIR)
            .and_then(Summary::of);
        aim(
            "replay",
            format!("replay of a capture, {sources} sources: a packet"),
            Bound::Nanoseconds(200.0),
            measured,
        )
    });
    let commands = [
        (
            "start",
            "start, limits: 1",
            "start of the agent, one limit",
            250.0,
        ),
        (
            "reload",
            "reload, limits: 10000, prefixes: 100000",
            "reload of 10,000 limits and 100,000 prefixes",
            2_000.0,
        ),
        (
            "reload-in-place",
            "reload of a class, limits: 1",
            "reload of a class, one limit",
            15.0,
        ),
        (
            "reload-in-place-of-many",
            "reload of a class, limits: 10000, prefixes: 100000",
            "reload of a class, 10,000 limits and 100,000 prefixes",
            150.0,
        ),
        (
            "top",
            "top of a million sources",
            "weir top --once with a million sources",
            200.0,
        ),
    ]
    .into_iter()
    .map(|(key, case, what, most)| {
        let measured = figures.samples("agent", case, WEIR).and_then(Summary::of);
        aim(key, what, Bound::Milliseconds(most), measured)
    });
    commands.chain(replay).collect()
}

/// Aims on decisions over HTTP.
pub fn of_decisions(figures: &Figures) -> Vec<Aim> {
    const PEER: &str = "throttlecrab-server";
    let of_both = |series: &&Series| figures.samples(DECISIONS, &series.case, PEER).is_some();
    let cases = figures
        .0
        .iter()
        .filter(|series| series.part == DECISIONS && series.by == WEIR)
        .filter(of_both);
    let bounds = cases.filter_map(|series| {
        let bound = match series.unit.as_str() {
            "decisions a second" => Bound::AtLeast(1.0),
            "µs a decision"
                if series.case.ends_with("32 connections")
                    || series.case.ends_with("512 connections") =>
            {
                Bound::AtMost(0.75)
            }
            "MB resident" => Bound::AtMost(0.25),
            "bytes" => return None,
            _ => Bound::AtMost(1.0),
        };
        Some((series.case.as_str(), bound))
    });
    bounds
        .map(|(case, bound)| {
            let measured = figures.ratio(DECISIONS, (case, WEIR), (case, PEER));
            aim(
                DECISIONS,
                format!("decisions over HTTP, {case}: of {PEER}"),
                bound,
                measured,
            )
        })
        .collect()
}

/// Aims on the static program: of the one with the system's C library.
pub fn of_builds(figures: &Figures) -> Vec<Aim> {
    const PART: &str = "static";
    let cases = figures
        .0
        .iter()
        .filter(|series| series.part == PART && series.by == WEIR);
    let bounds = cases.filter_map(|series| {
        let bound = match series.unit.as_str() {
            "decisions a second" => Bound::AtLeast(0.97),
            // Of one start, and of what waits for a timer.
            "bytes" | "µs to the answer" => return None,
            _ => Bound::AtMost(1.03),
        };
        Some((series.case.as_str(), bound))
    });
    bounds
        .map(|(case, bound)| {
            aim(
                PART,
                format!("static program, {case}: of the one with the system's C library"),
                bound,
                figures.ratio(PART, (case, "static"), (case, WEIR)),
            )
        })
        .collect()
}

/// The rows of a table.
pub fn rows(aims: &[Aim]) -> Vec<Vec<String>> {
    let mut rows = vec![
        ["aim", "bound", "measured", "met"]
            .map(str::to_owned)
            .to_vec(),
    ];
    for aim in aims {
        let measured = aim.measured.map_or_else(
            || "not measured".to_owned(),
            |summary| {
                format!(
                    "{:.2} ({:.2}–{:.2})",
                    summary.median, summary.lower, summary.upper
                )
            },
        );
        let met = match (aim.measured, aim.is_met) {
            (None, _) => "",
            (_, true) => "yes",
            (_, false) => "no",
        };
        rows.push(vec![
            aim.what.clone(),
            aim.bound.clone(),
            measured,
            met.to_owned(),
        ]);
    }
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    fn series(part: &str, case: &str, by: &str, samples: &[f64]) -> Series {
        let [part, case, by, unit] = [part, case, by, "unit"].map(str::to_owned);
        Series {
            part,
            case,
            by,
            unit,
            samples: samples.to_vec(),
            note: None,
        }
    }

    #[test]
    fn an_aim_is_met_by_the_median_of_its_rounds_and_not_measured_without_them() {
        let figures = Figures(vec![
            series(PACKET, HOT, WEIR, &[30.0, 99.0, 31.0]),
            series(PACKET, HOT, MINIMAL, &[40.0; 3]),
        ]);
        let aims = all(&figures);
        assert!(aims[0].is_met && aims[0].measured.is_some());
        assert!(!aims[1].is_met && aims[1].measured.is_none());
        assert_eq!(rows(&aims)[2][2], "not measured");
    }

    #[test]
    fn a_further_limit_is_compared_with_the_first_ones_cost_over_a_bare_drop() {
        let figures = Figures(vec![
            series(PACKET, "hot key", "drop only", &[10.0]),
            series(PACKET, HOT, WEIR, &[30.0]),
            series(PACKET, "4 limits, hot key", WEIR, &[60.0]),
        ]);
        assert_eq!(
            further(&figures, "4 limits, hot key", 4).unwrap().median,
            0.5
        );
    }

    #[test]
    fn a_full_table_is_evaluated_by_the_share_that_passes() {
        let of = |unit: &str, sample: f64| Series {
            unit: unit.to_owned(),
            ..series("overflow", OVERFLOW, WEIR, &[sample])
        };
        let figures = Figures(vec![
            of("ns a made-up packet", 300.0),
            of("% of polite packets passed", 98.9),
            of("% of its limit, the greediest", 110.0),
        ]);
        assert_eq!(
            of_a_full_table(&figures).map(|aim| aim.is_met),
            [false, true]
        );
    }

    #[test]
    fn an_answered_syn_is_compared_over_a_drop_at_its_hook() {
        let syns = |by: &str, time: f64| series(PROOFS, "forged SYNs", by, &[time]);
        let figures = Figures(vec![
            syns("drop only", 200.0),
            syns("drop only, by TC", 500.0),
            syns(WEIR, 900.0),
            syns("weir by TC", 1_600.0),
            syns("the kernel's cookies", 3_000.0),
            series(PROOFS, "forged ACKs", WEIR, &[600.0]),
            series(PROOFS, "ACKs above a limit", WEIR, &[400.0]),
        ]);
        let medians: Vec<Option<f64>> = of_proofs(&figures)
            .iter()
            .map(|aim| aim.measured.map(|measured| measured.median))
            .collect();
        assert_eq!(
            medians,
            [
                Some(700.0),
                Some(1_100.0),
                Some(0.25),
                None,
                Some(1.5),
                None
            ]
        );
    }

    #[test]
    fn the_cost_of_passing_is_replaced_by_that_of_dropping() {
        let case = "every packet a new source";
        // 0.5 µs to pass, 0.1 to drop; Weir takes 0.1 and the minimal limiter 0.3 of themselves.
        let time = |microseconds: f64| [1.0 / microseconds];
        let figures = Figures(vec![
            series(FLOOD, case, "pass only", &time(0.5)),
            series(FLOOD, case, "drop only", &time(0.1)),
            series(FLOOD, case, WEIR, &time(0.6)),
            series(FLOOD, case, MINIMAL, &time(0.8)),
        ]);
        let ratio = new_sources(&figures).unwrap().median;
        assert!((ratio - 2.0).abs() < 1e-9, "{ratio}");
    }
}
