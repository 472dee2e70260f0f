//! What a page prints, compared with what a command prints: words are the same, figures are of the same kind.

/// A part of a line.
#[derive(Debug, PartialEq, Eq)]
enum Part<'l> {
    Word(&'l str),
    /// A number with what is written before it; zero is no other number's equal.
    Number {
        before: &'l str,
        is_zero: bool,
    },
    /// A duration or a size.
    Measure,
    Instant,
}

const UNITS: [&str; 11] = [
    "µs", "ms", "s", "min", "h", "d", "days", "B", "KiB", "MiB", "GiB",
];

/// Whether the lines printed are those of the page, in which `…` is any number of lines.
pub fn matches(page: &[String], printed: &[String]) -> bool {
    match (page.split_first(), printed.split_first()) {
        (None, None) => true,
        (Some((dots, rest)), _) if dots.trim() == "…" => {
            (0..=printed.len()).any(|skipped| matches(rest, &printed[skipped..]))
        }
        (Some((line, page)), Some((first, printed))) => {
            is_same(line, first) && matches(page, printed)
        }
        _ => false,
    }
}

fn is_same(line: &str, printed: &str) -> bool {
    let is_limit = matches!(
        line.split_whitespace().nth(1),
        Some("ingress" | "egress" | "requests")
    );
    // A limit's figures are those of the page's config.
    if is_limit {
        line.split_whitespace().eq(printed.split_whitespace())
    } else {
        parts(line) == parts(printed)
    }
}

fn parts(line: &str) -> Vec<Part<'_>> {
    let mut parts = Vec::new();
    let mut words = line.split_whitespace().peekable();
    while let Some(word) = words.next() {
        let word = word.trim_matches([',', ';', ')', '(', ':', '%', '.']);
        let is_instant = word.len() >= 20 && word.ends_with('Z') && word.contains('T');
        let digits = word.find(|letter: char| letter.is_ascii_digit());
        let (before, number) = word.split_at(digits.unwrap_or(word.len()));
        let is_number = !number.is_empty()
            && !before.contains(|letter: char| letter.is_alphanumeric())
            && number.matches('.').count() <= 1
            && number
                .chars()
                .all(|letter| letter.is_ascii_digit() || matches!(letter, '.' | ','));
        let part = if is_instant {
            Part::Instant
        } else if is_number {
            let is_unit = |unit: &&str| UNITS.contains(&unit.trim_matches([',', ';', ')']));
            if words.next_if(is_unit).is_some() {
                Part::Measure
            } else {
                let is_zero = !number.contains(|digit: char| ('1'..='9').contains(&digit));
                Part::Number { before, is_zero }
            }
        } else if matches!(parts.last(), Some(Part::Number { .. })) {
            // `1 source`, `18 sources`.
            Part::Word(word.strip_suffix('s').unwrap_or(word))
        } else {
            Part::Word(word)
        };
        // `2 min 59 s` is one.
        if part != Part::Measure || parts.last() != Some(&Part::Measure) {
            parts.push(part);
        }
    }
    parts
}

/// Checks the comparison itself.
pub fn lines_are_compared_by_words_and_kinds_of_figures() {
    let same = [
        (
            "web  1,422  <=1,763  0  33 ms ago",
            "web 7 <=9 0 2 min 3.5 s ago",
        ),
        ("50.1% ±0.9 >=4,772 2.6%.", "49% ±1.2 >=3 3%."),
        (
            "2026-11-23T17:55:56.112Z throttled",
            "2026-11-27T01:02:03Z throttled",
        ),
        ("203.0.113.0/24, 163 sources", "203.0.113.0/24, 1 source"),
        (
            "web  ingress udp  50 packets/s",
            "web ingress udp 50 packets/s",
        ),
    ];
    for (page, printed) in same {
        assert!(is_same(page, printed), "{page}: {printed}");
    }
    let different = [
        ("web 1 0", "web 1 2"),
        ("web <=1", "web 1"),
        ("203.0.113.9 1", "203.0.113.8 1"),
        (
            "web ingress udp 50 packets/s",
            "web ingress udp 60 packets/s",
        ),
        ("last 3 ms ago", "last -"),
        ("a", "a b"),
    ];
    for (page, printed) in different {
        assert!(!is_same(page, printed), "{page}: {printed}");
    }
    let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
    assert!(matches(&lines("a\n…\nd"), &lines("a\nb\nc\nd")));
    assert!(!matches(&lines("a\n…\nd"), &lines("a\nb")) && !matches(&lines("a"), &lines("a\nb")));
}
