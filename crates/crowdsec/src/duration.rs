//! Durations as Go writes them: `3h59m54.3s`, `-12m`, `250ms`.

/// The longest time that a decision lasts here, in nanoseconds: 100 years. Longer ones are cut.
pub const LONGEST: u64 = 100 * 365 * 86_400 * 1_000_000_000;

/// The units, in nanoseconds. `m` is a prefix of `ms`, so the longer comes first.
const UNITS: [(&str, f64); 7] = [
    ("ns", 1.0),
    ("us", 1e3),
    ("µs", 1e3),
    ("ms", 1e6),
    ("s", 1e9),
    ("m", 60e9),
    ("h", 3_600e9),
];

/// Parses a duration to nanoseconds, at most [`LONGEST`]. A negative one is 0. `None` if it is not a duration.
#[must_use]
pub fn go_duration(text: &str) -> Option<u64> {
    let (is_negative, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (true, rest),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    if rest == "0" {
        return Some(0);
    }
    let mut nanoseconds = 0.0;
    if rest.is_empty() {
        return None;
    }
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (number, after) = rest.split_at(end);
        let number: f64 = number.parse().ok()?;
        let (unit, scale) = UNITS.iter().find(|(unit, _)| after.starts_with(unit))?;
        nanoseconds += number * scale;
        rest = &after[unit.len()..];
    }
    // The cast saturates.
    Some(if is_negative {
        0
    } else {
        (nanoseconds as u64).min(LONGEST)
    })
}

/// Writes a duration as Go reads it, in whole seconds, at least one.
#[must_use]
pub fn write_go_duration(nanoseconds: u64) -> String {
    format!("{}s", nanoseconds.div_ceil(1_000_000_000).max(1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn durations_are_those_of_go() {
        const SECOND: u64 = 1_000_000_000;
        for (text, nanoseconds) in [
            ("4h", Some(4 * 3_600 * SECOND)),
            ("3h59m54.5s", Some(14_394 * SECOND + SECOND / 2)),
            ("250ms", Some(SECOND / 4)),
            ("1.5m", Some(90 * SECOND)),
            ("10µs", Some(10_000)),
            ("-1h2m", Some(0)),
            ("0", Some(0)),
            ("0s", Some(0)),
            ("9999999999999999999h", Some(LONGEST)),
            ("", None),
            ("-", None),
            ("4", None),
            ("h", None),
            ("4d", None),
            ("1..5s", None),
            ("4h ", None),
            ("forever", None),
            ("NaNs", None),
        ] {
            assert_eq!(go_duration(text), nanoseconds, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn a_written_duration_is_read(seconds in 1u64..1_000_000) {
            prop_assert_eq!(go_duration(&write_go_duration(seconds * 1_000_000_000)), Some(seconds * 1_000_000_000));
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,20}") {
            let _ = go_duration(&text);
        }
    }
}
