//! Tables of the figures that `agent/benches/fair` writes.

use crate::bench::figures::{Figures, Series, Summary};

pub const PART: &str = "fair";

/// The limiters, as in `agent/benches/fair/limiter.rs`.
pub const FAIR: &str = "Weir, fair";
pub const FIXED: &str = "Weir, best number";
/// The units, as in `agent/benches/fair/figures.rs`.
pub const POLITE: &str = "% of polite served";
pub const USED: &str = "% of capacity used";
pub const REFUSED: &str = "refused";
pub const OFF: &str = "s until off";
pub const REFUSED_AFTER: &str = "refused once off";
pub const SWING: &str = "% of level swing";
pub const JAIN: &str = "Jain's index";
pub const DOWN: &str = "s to follow down";
pub const UP: &str = "s to follow up";
pub const CAPACITY: &str = "units/s of capacity";
pub const PAUSED: &str = "ms of pauses";
/// Columns: their heads and units.
pub const COLUMNS: [(&str, &str); 9] = [
    ("polite %", POLITE),
    ("used %", USED),
    ("refused", REFUSED),
    ("off after", OFF),
    ("refused once off", REFUSED_AFTER),
    ("swing %", SWING),
    ("Jain", JAIN),
    ("follows down", DOWN),
    ("up", UP),
];

pub const BUSY: &str = "busy processes";

/// A case and a limiter.
pub type Cell<'f> = (&'f str, &'f str);

/// Each case with each of its limiters, in the order of measurement.
pub fn cells(figures: &Figures) -> Vec<Cell<'_>> {
    let mut cells: Vec<Cell<'_>> = Vec::new();
    for series in of_part(figures) {
        let cell = (series.case.as_str(), series.by.as_str());
        if !cells.contains(&cell) {
            cells.push(cell);
        }
    }
    // Later rounds may have added cells.
    let place = |cell: &Cell<'_>| cells.iter().position(|other| other.0 == cell.0);
    let mut sorted = cells.clone();
    sorted.sort_by_key(place);
    sorted
}

pub fn of_part(figures: &Figures) -> impl Iterator<Item = &Series> {
    figures.0.iter().filter(|series| series.part == PART)
}

pub fn summary(figures: &Figures, (case, by): Cell<'_>, unit: &str) -> Option<Summary> {
    let samples = figures.samples_in(PART, case, by, unit)?;
    match unit {
        // That nothing is refused is so in each round, or not.
        REFUSED | REFUSED_AFTER => {
            let most = samples.iter().copied().max_by(f64::total_cmp);
            Summary::of(most.as_slice())
        }
        _ => Summary::of(samples),
    }
}

pub fn shown(figures: &Figures, cell: Cell<'_>, unit: &str) -> String {
    let Some(median) = summary(figures, cell, unit).map(|summary| summary.median) else {
        return String::new();
    };
    match unit {
        JAIN => format!("{median:.3}"),
        REFUSED | REFUSED_AFTER => format!("{median:.0}"),
        _ => format!("{median:.1}"),
    }
}

/// Why a cell has no figures.
pub fn note<'f>(figures: &'f Figures, cell: Cell<'_>) -> Option<&'f str> {
    let mut series = of_part(figures);
    let of_cell = series.find(|series| (series.case.as_str(), series.by.as_str()) == cell);
    of_cell?.note.as_deref()
}

/// The whole table.
pub fn rows(figures: &Figures) -> Vec<Vec<String>> {
    let heads = COLUMNS.map(|(head, _)| head.to_owned());
    let mut rows = vec![
        ["overload", "limit"]
            .map(str::to_owned)
            .into_iter()
            .chain(heads)
            .collect::<Vec<_>>(),
    ];
    for cell in cells(figures) {
        let mut row = vec![cell.0.to_owned(), cell.1.to_owned()];
        match note(figures, cell) {
            Some(note) => row.push(format!("skipped: {note}")),
            None => row.extend(COLUMNS.map(|(_, unit)| shown(figures, cell, unit))),
        }
        rows.push(row);
    }
    rows
}

/// The rows of the fair limit alone.
pub fn fair_rows(figures: &Figures) -> Vec<Vec<String>> {
    let mut rows = rows(figures);
    let body = rows.split_off(1);
    rows.extend(body.into_iter().filter(|row| row[1] == FAIR));
    for row in &mut rows {
        row.remove(1);
    }
    rows
}

/// Polite and refused units by limiter.
pub fn beside(figures: &Figures) -> Vec<Vec<String>> {
    let cells = cells(figures);
    let mut limiters: Vec<&str> = Vec::new();
    let mut cases: Vec<&str> = Vec::new();
    for (case, by) in &cells {
        if !limiters.contains(by) {
            limiters.push(by);
        }
        if !cases.contains(case) {
            cases.push(case);
        }
    }
    let head = ["overload"].iter().chain(&limiters);
    let mut rows = vec![head.map(|name| (*name).to_owned()).collect::<Vec<_>>()];
    for case in cases {
        let mut row = vec![case.to_owned()];
        row.extend(limiters.iter().map(|by| {
            let cell = (case, *by);
            let (polite, refused) = (shown(figures, cell, POLITE), shown(figures, cell, REFUSED));
            match (polite.is_empty(), refused.is_empty()) {
                (true, _) => "–".to_owned(),
                (false, true) => polite,
                (false, false) => format!("{polite}; {refused} refused"),
            }
        }));
        rows.push(row);
    }
    rows
}

#[cfg(test)]
pub mod tests {
    use super::*;

    pub const CASE: &str = "UDP, 5 sources, 10 times";

    fn series(by: &str, unit: &str, samples: &[f64]) -> Series {
        Series {
            part: PART.to_owned(),
            case: CASE.to_owned(),
            by: by.to_owned(),
            unit: unit.to_owned(),
            samples: samples.to_vec(),
            note: None,
        }
    }

    /// Figures of one row, with a pause in the first round.
    pub fn figures(pause: f64) -> Figures {
        let skipped = Series {
            note: Some("Envoy limits HTTP".to_owned()),
            ..series("Envoy, adaptive concurrency", POLITE, &[])
        };
        Figures(vec![
            series(FAIR, POLITE, &[99.5, 99.0, 99.7]),
            series(FAIR, USED, &[97.0, 94.0, 94.5]),
            series(FAIR, PAUSED, &[pause, 2.0, 3.0]),
            series(FIXED, POLITE, &[99.9, 99.9, 99.9]),
            skipped,
        ])
    }

    #[test]
    fn the_table_has_medians_and_why_others_are_skipped() {
        let rows = rows(&figures(1.0));
        assert_eq!(rows[1][..4], [CASE, FAIR, "99.5", "94.5"]);
        assert_eq!(rows[2][..4], [CASE, FIXED, "99.9", ""]);
        assert_eq!(rows[3][2], "skipped: Envoy limits HTTP");
    }
}
