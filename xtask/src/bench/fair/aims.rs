//! Aims of fair limits.

use super::tables::{
    BUSY, DOWN, FAIR, FIXED, JAIN, OFF, PART, POLITE, REFUSED, REFUSED_AFTER, SWING, UP, USED,
    cells, summary,
};
use crate::bench::aims::Aim;
use crate::bench::figures::{Figures, Summary};

enum Bound {
    AtLeast(f64),
    AtMost(f64),
}

/// The aims that were measured.
pub fn aims(figures: &Figures) -> Vec<Aim> {
    use Bound::{AtLeast, AtMost};
    let mut aims = Vec::new();
    let mut add = |what: String, bound: Bound, measured: Option<Summary>| {
        let Some(found) = measured else { return };
        let (bound, is_met) = match bound {
            AtLeast(least) => (format!("≥ {least}"), found.median >= least),
            AtMost(most) => (format!("≤ {most}"), found.median <= most),
        };
        aims.push(Aim {
            key: PART,
            what,
            bound,
            measured,
            is_met,
        });
    };
    for (case, _) in cells(figures).into_iter().filter(|cell| cell.1 == FAIR) {
        let (polite, off) = match () {
            () if case.contains(BUSY) => (95.0, None),
            () if case.contains("pulses") => (98.0, None),
            // With a long backlog.
            () if case.starts_with("nginx") => (99.0, Some(6.0)),
            () => (99.0, Some(5.0)),
        };
        let mut bounds = vec![
            (REFUSED, AtMost(0.0)),
            (REFUSED_AFTER, AtMost(0.0)),
            (JAIN, AtLeast(0.95)),
            (DOWN, AtMost(2.0)),
            (UP, AtMost(2.0)),
        ];
        if case.contains("times") || case.contains("pulses") {
            bounds.push((POLITE, AtLeast(polite)));
        }
        if off.is_some() && !case.contains("halves") {
            bounds.extend([(USED, AtLeast(95.0)), (SWING, AtMost(10.0))]);
        }
        bounds.extend(off.map(|most| (OFF, AtMost(most))));
        for (unit, bound) in bounds {
            add(
                format!("{case}: {unit}"),
                bound,
                summary(figures, (case, FAIR), unit),
            );
        }
        let polite_of = |by| figures.samples_in(PART, case, by, POLITE);
        if let (true, Some(fair), Some(fixed)) =
            (case.contains("times"), polite_of(FAIR), polite_of(FIXED))
        {
            let ahead: Vec<f64> = fair
                .iter()
                .zip(fixed)
                .map(|(one, other)| one - other)
                .collect();
            let what = format!("{case}: points of polite ahead of the best number");
            add(what, AtLeast(-1.0), Summary::of(&ahead));
        }
    }
    aims
}

#[cfg(test)]
mod tests {
    use super::super::tables::tests::{CASE, figures};
    use super::*;

    #[test]
    fn aims_are_compared_with_medians_and_with_the_best_number_by_round() {
        let aims = aims(&figures(1.0));
        let found: Vec<(&str, bool)> = aims
            .iter()
            .map(|aim| (aim.what.strip_prefix(CASE).unwrap(), aim.is_met))
            .collect();
        let expected = [
            (": % of polite served", true),
            (": % of capacity used", false),
            (": points of polite ahead of the best number", true),
        ];
        assert_eq!(found, expected);
    }
}
