//! Steps and labels of axes.

use std::time::Duration;

use config::human;

/// Steps of time, in seconds.
const TIMES: [u64; 21] = [
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 10_800, 21_600, 43_200,
    86_400, 172_800, 604_800, 2_592_000,
];

/// The least 1, 2 or 5 times a power of ten of which `most` steps reach `highest`.
pub(super) fn step(highest: f64, most: u32) -> f64 {
    let least = (highest / f64::from(most)).max(1e-3);
    let power = 10f64.powf(least.log10().floor());
    let factor = [1.0, 2.0, 5.0]
        .into_iter()
        .find(|factor| factor * power >= least * 0.999_999)
        .unwrap_or(10.0);
    factor * power
}

/// The step of time, in seconds, of which at most `most` fit into `seconds`.
pub(super) fn time_step(seconds: u64, most: u64) -> u64 {
    let longest = TIMES[TIMES.len() - 1];
    let found = TIMES.into_iter().find(|step| seconds / step <= most);
    found.unwrap_or_else(|| (seconds / most).div_ceil(longest) * longest)
}

/// A label of a time axis.
pub(super) fn time(seconds: u64) -> String {
    if seconds == 0 {
        "0".to_owned()
    } else {
        human::time(Duration::from_secs(seconds))
    }
}

/// A number in about five characters: `0.5`, `250`, `12k`, `1.5M`.
pub(super) fn compact(value: f64) -> String {
    let (value, unit) = match value {
        value if value >= 1e12 => (value / 1e12, "T"),
        value if value >= 1e9 => (value / 1e9, "G"),
        value if value >= 1e6 => (value / 1e6, "M"),
        value if value >= 1e4 => (value / 1e3, "k"),
        value => (value, ""),
    };
    let digits = if value < 1.0 {
        3
    } else {
        usize::from(value < 100.0)
    };
    let text = format!("{value:.digits$}");
    let text = if text.contains('.') {
        text.trim_end_matches('0').trim_end_matches('.')
    } else {
        &text
    };
    format!("{text}{unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round_and_reach_the_highest_value() {
        for (highest, wanted) in [
            (0.0, 0.001),
            (1.0, 0.5),
            (3.9, 1.0),
            (4.0, 1.0),
            (4.1, 2.0),
            (959.0, 500.0),
            (1e6, 5e5),
        ] {
            let found = step(highest, 4);
            assert!((found - wanted).abs() < wanted * 1e-6, "{highest}: {found}");
        }
        for highest in [0.07, 1.3, 17.0, 99.9, 123_456.0, 8.8e15] {
            assert!(step(highest, 4) * 4.0 >= highest * 0.999_99, "{highest}");
        }
    }

    #[test]
    fn time_steps_are_of_clocks_and_few() {
        for (seconds, wanted) in [
            (3, 1),
            (58, 15),
            (302, 120),
            (86_400, 21_600),
            (604_800, 172_800),
        ] {
            assert_eq!(time_step(seconds, 4), wanted, "{seconds}");
        }
        for seconds in [1, 59, 3_599, 1_000_000, 100_000_000, 10_000_000_000] {
            assert!(seconds / time_step(seconds, 4) <= 4, "{seconds}");
        }
    }

    #[test]
    fn numbers_are_short() {
        for (value, text) in [
            (0.0, "0"),
            (0.05, "0.05"),
            (2.5, "2.5"),
            (100.0, "100"),
            (9_999.0, "9999"),
            (12_500.0, "12.5k"),
            (2e6, "2M"),
        ] {
            assert_eq!(compact(value), text);
        }
    }
}
