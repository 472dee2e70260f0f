//! What Weir is to reach, as ratios within one run.

use super::figures::{Figures, Summary};

/// An aim, and what came of it.
pub struct Aim {
    /// What is compared.
    pub what: String,
    /// The bound, as a person writes it.
    pub bound: String,
    /// What was measured; none if it could not be.
    pub measured: Option<Summary>,
    /// Whether the median is within the bound.
    pub is_met: bool,
}

enum Bound {
    AtMost(f64),
}

const PACKET: &str = "packet";
const WEIR: &str = "weir";
const MINIMAL: &str = "minimal, LRU hash";

fn aim(what: impl Into<String>, bound: Bound, unit: &str, measured: Option<Summary>) -> Aim {
    let (bound, is_met) = match bound {
        Bound::AtMost(most) => (format!("≤ {most}{unit}"), measured.is_some_and(|measured| measured.median <= most)),
    };
    Aim { what: what.into(), bound, measured, is_met }
}

/// Those on the time a packet takes.
pub fn of_packets(figures: &Figures) -> Vec<Aim> {
    const HOT: &str = "one limit, hot key";
    let weir = |case: &str, of: (&str, &str)| figures.ratio(PACKET, (case, WEIR), of);
    let mut aims = vec![
        aim("one limit, hot key: of the minimal limiter", Bound::AtMost(1.0), "×", weir(HOT, (HOT, MINIMAL))),
        aim("the same with IPv6", Bound::AtMost(1.0), "×", {
            let case = "one limit, hot key, IPv6";
            weir(case, (case, MINIMAL))
        }),
    ];
    for count in [2, 4, 8] {
        let what = format!("each further of {count} limits: of the first one's cost over a bare drop");
        aims.push(aim(what, Bound::AtMost(0.4), "×", further(figures, &format!("{count} limits, hot key"), count)));
    }
    for rates in [2, 4, 7] {
        let what = format!("each further of {rates} tiers: of the first one's cost over a bare drop");
        let case = format!("one limit of {rates} tiers, hot key");
        aims.push(aim(what, Bound::AtMost(0.4), "×", further(figures, &case, rates)));
    }
    let refused = weir("one limit, hot key, refused", (HOT, WEIR));
    aims.push(aim("a refused packet: of a passed one", Bound::AtMost(1.0), "×", refused));
    let many = weir("one of 10000 limits, hot key", (HOT, WEIR));
    aims.push(aim("10,000 configured limits: of one", Bound::AtMost(1.2), "×", many));
    let prefixes = weir("100000 prefixes, hot key", (HOT, WEIR));
    aims.push(aim("100,000 class prefixes: of none", Bound::AtMost(1.2), "×", prefixes));
    aims
}

/// What each further limit of a case takes, as a share of what the first takes over a program that only drops.
fn further(figures: &Figures, case: &str, count: u32) -> Option<Summary> {
    let drop = figures.samples(PACKET, "hot key", "drop only")?;
    let one = figures.samples(PACKET, "one limit, hot key", WEIR)?;
    let many = figures.samples(PACKET, case, WEIR)?;
    let share = |((many, one), drop): ((&f64, &f64), &f64)| (many - one) / f64::from(count - 1) / (one - drop);
    Summary::of(&many.iter().zip(one).zip(drop).map(share).collect::<Vec<_>>())
}

/// As rows of a table.
pub fn rows(aims: &[Aim]) -> Vec<Vec<String>> {
    let mut rows = vec![["aim", "bound", "measured", "met"].map(str::to_owned).to_vec()];
    for aim in aims {
        let measured = aim.measured.map_or_else(
            || "not measured".to_owned(),
            |summary| format!("{:.2} ({:.2}–{:.2})", summary.median, summary.lower, summary.upper),
        );
        let met = match (aim.measured, aim.is_met) {
            (None, _) => "",
            (_, true) => "yes",
            (_, false) => "no",
        };
        rows.push(vec![aim.what.clone(), aim.bound.clone(), measured, met.to_owned()]);
    }
    rows
}
