//! Sizes, rates and times in units for people. JSON has plain numbers.

use std::time::Duration;

use unicode_width::UnicodeWidthStr as _;

/// The most bytes of a text per column: a letter with accents.
const COLUMN: usize = 16;

/// Bytes in binary multiples, as memory is measured: `200 MiB`.
#[must_use]
pub fn size(bytes: u64) -> String {
    scaled(
        bytes as f64,
        1_024.0,
        &["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"],
    )
}

/// Bits per second, as links are measured: `20 Mbit/s`.
#[must_use]
pub fn bit_rate(bytes_per_second: f64) -> String {
    scaled(
        bytes_per_second * 8.0,
        1_000.0,
        &["bit/s", "kbit/s", "Mbit/s", "Gbit/s", "Tbit/s"],
    )
}

/// Bytes per second by powers of 1000, as disks are measured: `50 MB/s`.
#[must_use]
pub fn byte_rate(bytes_per_second: u64) -> String {
    scaled(
        bytes_per_second as f64,
        1_000.0,
        &["B/s", "kB/s", "MB/s", "GB/s", "TB/s"],
    )
}

/// The two largest units of a time: `6 d 23 h`, `2 min 5 s`, `12.5 s`, `40 ms`. Days are the largest unit: months and years
/// differ in length.
#[must_use]
pub fn time(time: Duration) -> String {
    let milliseconds = time.as_nanos().saturating_add(500_000) / 1_000_000;
    // A value that would be rounded up to the next unit uses that unit.
    let tenths = (milliseconds + 50) / 100;
    let seconds = time.as_secs().max(60);
    let two = |large: u64, large_unit: &str, small: u64, small_unit: &str| match small {
        0 => format!("{} {large_unit}", number(large)),
        _ => format!("{} {large_unit} {small} {small_unit}", number(large)),
    };
    match seconds {
        _ if milliseconds < 1_000 => format!("{milliseconds} ms"),
        _ if tenths < 600 && tenths.is_multiple_of(10) => format!("{} s", tenths / 10),
        _ if tenths < 600 => format!("{}.{} s", tenths / 10, tenths % 10),
        60..3_600 => two(seconds / 60, "min", seconds % 60, "s"),
        3_600..86_400 => two(seconds / 3_600, "h", seconds % 3_600 / 60, "min"),
        _ => two(seconds / 86_400, "d", seconds % 86_400 / 3_600, "h"),
    }
}

/// Seconds as a time; `-` if there are none.
#[must_use]
pub fn seconds(value: f64) -> String {
    match Duration::try_from_secs_f64(value) {
        Ok(value) if !value.is_zero() => time(value),
        _ => "-".to_owned(),
    }
}

/// A time before now: `2 min 5 s ago`.
#[must_use]
pub fn ago(seconds: f64) -> String {
    let time_ago = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    format!("{} ago", time(time_ago))
}

/// A number with thousands separators.
#[must_use]
pub fn number(value: u64) -> String {
    let digits = value.to_string();
    let mut out = String::new();
    for (nth, digit) in digits.chars().enumerate() {
        if nth > 0 && (digits.len() - nth).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// The first `most` of these, and the number of the others: `a, b and 3 others`.
#[must_use]
pub fn listed(texts: impl ExactSizeIterator<Item = String>, most: usize) -> String {
    let others = texts.len().saturating_sub(most);
    let named = texts.take(most).collect::<Vec<_>>().join(", ");
    match others {
        0 => named,
        _ => format!("{named} and {others} others"),
    }
}

/// The number of terminal columns of a text.
#[must_use]
pub fn columns(text: &str) -> usize {
    text.width()
}

/// Shortens a text to `width` columns by removing its middle: names differ at both ends. Also to [`COLUMN`] bytes a
/// column, since letters may have no width.
#[must_use]
pub fn cut(text: &str, width: usize) -> String {
    if text.len() <= width.saturating_mul(COLUMN) && columns(text) <= width {
        return text.to_owned();
    }
    let half = width.saturating_sub(1) / 2;
    let take = |letters: &mut dyn Iterator<Item = char>, room: usize| {
        let mut taken = String::new();
        for letter in letters {
            let is_long = taken.len() + letter.len_utf8() > room * COLUMN;
            if is_long || columns(&taken) + columns(letter.encode_utf8(&mut [0; 4])) > room {
                break;
            }
            taken.push(letter);
        }
        taken
    };
    let end: String = take(&mut text.chars().rev(), half).chars().rev().collect();
    let start = take(&mut text.chars(), width.saturating_sub(1 + columns(&end)));
    format!("{start}…{end}")
}

/// Removes control characters, which a terminal would interpret: users choose the names of their processes.
#[must_use]
pub fn printable(text: &str) -> String {
    text.chars()
        .map(|letter| {
            if letter.is_control() && letter != '\n' {
                '\u{fffd}'
            } else {
                letter
            }
        })
        .collect()
}

/// At most three significant digits; integer digits are all kept.
fn scaled(value: f64, step: f64, units: &[&str]) -> String {
    let mut value = value;
    let mut nth = 0;
    // A value that would be rounded up to the step uses the next unit.
    while value >= step - 0.5 && nth + 1 < units.len() {
        value /= step;
        nth += 1;
    }
    let decimals = if value >= 100.0 || nth == 0 { 0 } else { 1 };
    let text = format!("{value:.decimals$}");
    let text = text.strip_suffix(".0").unwrap_or(&text);
    format!("{text} {}", units[nth])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_rates_and_times_read_as_people_write_them() {
        for (bytes, text) in [
            (0, "0 B"),
            (1_023, "1023 B"),
            (1_024, "1 KiB"),
            (200 << 20, "200 MiB"),
            (1_500_000, "1.4 MiB"),
            ((1 << 30) - 1, "1 GiB"),
            (u64::MAX, "16 EiB"),
        ] {
            assert_eq!(size(bytes), text);
        }
        for (rate, text) in [
            (2_500_000.0, "20 Mbit/s"),
            (0.0, "0 bit/s"),
            (187_500.0, "1.5 Mbit/s"),
            (125e6, "1 Gbit/s"),
        ] {
            assert_eq!(bit_rate(rate), text);
        }
        assert_eq!(byte_rate(50_000_000), "50 MB/s");
        assert_eq!(
            (ago(0.0), ago(125.0)),
            ("0 ms ago".to_owned(), "2 min 5 s ago".to_owned())
        );
        for (seconds, text) in [
            (0.04, "40 ms"),
            (1.0, "1 s"),
            (12.5, "12.5 s"),
            (125.0, "2 min 5 s"),
            (7_200.0, "2 h"),
            (601_200.0, "6 d 23 h"),
            (0.0, "0 ms"),
            (0.000_4, "0 ms"),
            (0.999_4, "999 ms"),
            (0.999_6, "1 s"),
            (9.999_95, "10 s"),
            (59.94, "59.9 s"),
            (59.96, "1 min"),
            (119.9, "1 min 59 s"),
            (3_155_760_000.0, "36,525 d"),
        ] {
            assert_eq!(time(Duration::from_secs_f64(seconds)), text);
        }
        let texts = [-1.0, 0.0, f64::NAN, 0.5].map(seconds);
        assert_eq!(texts, ["-", "-", "-", "500 ms"]);
        assert_eq!(number(1_234_567), "1,234,567");
        assert_eq!(
            (cut("äöüäöüäöü", 5).as_str(), cut("ssh", 3).as_str()),
            ("äö…öü", "ssh")
        );
    }

    #[test]
    fn a_long_list_ends_with_the_number_of_the_others() {
        let list = |count: usize, most| listed((0..count).map(|nth| nth.to_string()), most);
        assert_eq!([list(0, 2), list(2, 2)], ["", "0, 1"]);
        assert_eq!(list(5, 2), "0, 1 and 3 others");
    }

    #[test]
    fn letters_without_width_are_cut_as_well() {
        let accents = "\u{301}".repeat(100_000);
        assert!(cut(&accents, 64).len() < 2 * 64 * COLUMN);
        let accented = "e\u{301}".repeat(64);
        assert_eq!(cut(&accented, 64), accented);
    }
}
