//! The level of a fair limit over time, in characters.

use api::fair::FairHistory;
use config::human;

/// A cell in which nothing was refused.
const OFF: char = '·';
/// Cells from the lowest level to the highest.
const LEVELS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// The scale has at least this ratio of its ends, so that a steady level is a line.
const LEAST_RATIO: f64 = 10.0;

/// The levels in so many cells, each with the lowest level of its part, on a logarithmic scale. Parts that were not measured
/// are empty.
#[must_use]
pub fn sparkline(history: &FairHistory, cells: usize) -> String {
    let steps = history.level.len();
    let (lowest, highest) = history.bounds().unwrap_or((1.0, 1.0));
    let bottom = lowest.min(highest / LEAST_RATIO);
    let cells = cells.min(steps);
    let part = |nth: usize| nth * steps / cells.max(1);
    let cell = |nth: usize| {
        let part = part(nth)..part(nth + 1).max(part(nth) + 1);
        let levels = history.level.get(part.clone()).unwrap_or_default();
        let passed = history.passed.get(part).unwrap_or_default();
        match levels.iter().copied().flatten().reduce(f64::min) {
            Some(level) => glyph(level, bottom, highest),
            None if passed.iter().all(Option::is_none) => ' ',
            None => OFF,
        }
    };
    (0..cells).map(cell).collect()
}

fn glyph(level: f64, bottom: f64, highest: f64) -> char {
    let share = (level / bottom).ln() / (highest / bottom).ln();
    let nth = (share * LEVELS.len() as f64) as usize;
    LEVELS[nth.min(LEVELS.len() - 1)]
}

/// The lowest and the highest level: `34 to 1,000/s`; `None` if nothing was refused.
#[must_use]
pub fn bounds_text(history: &FairHistory) -> Option<String> {
    let (lowest, highest) = history.bounds()?;
    let [lowest, highest] = [lowest, highest].map(whole);
    Some(if lowest == highest {
        format!("{lowest}/s")
    } else {
        format!("{lowest} to {highest}/s")
    })
}

/// A rate in whole units: `1,000`.
#[must_use]
pub fn whole(rate: f64) -> String {
    human::number(rate.round() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn history(level: Vec<Option<f64>>) -> FairHistory {
        FairHistory {
            passed: vec![Some(1.0); level.len()],
            level,
            step_seconds: 1,
            ..FairHistory::default()
        }
    }

    #[test]
    fn levels_are_on_a_logarithmic_scale() {
        let levels = [
            None,
            Some(10.0),
            Some(100.0),
            Some(999.0),
            Some(1_000.0),
            None,
        ];
        let history = history(levels.to_vec());
        assert_eq!(sparkline(&history, 6), "·▁▅██·");
        assert_eq!(bounds_text(&history).as_deref(), Some("10 to 1,000/s"));
        // The lowest level of each part.
        assert_eq!(sparkline(&history, 3), "▁▅█");
        // No more cells than steps.
        assert_eq!(sparkline(&history, 60).chars().count(), 6);
    }

    #[test]
    fn a_steady_level_is_a_line_at_the_top() {
        let steady = history(vec![Some(400.0), Some(380.0), Some(410.0), Some(300.0)]);
        assert_eq!(sparkline(&steady, 4), "███▇");
        let same = history(vec![Some(4.4); 3]);
        assert_eq!(sparkline(&same, 3), "███");
        assert_eq!(bounds_text(&same).as_deref(), Some("4/s"));
    }

    #[test]
    fn what_was_not_measured_is_empty_and_what_is_off_is_not() {
        let mut history = history(vec![None, None, Some(5.0), None]);
        history.passed[0] = None;
        assert_eq!(sparkline(&history, 4), " ·█·");
        assert_eq!(sparkline(&history, 2), "·█");
        assert_eq!(sparkline(&FairHistory::default(), 4), "");
        assert_eq!(bounds_text(&FairHistory::default()), None);
    }
}
