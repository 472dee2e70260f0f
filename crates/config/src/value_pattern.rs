//! Fixed values with `*`, such as `/api/*`.

use std::fmt;

/// The wildcard: any text in a fixed value.
const WILDCARD: char = '*';

/// A value with wildcards: `*` stands for any text, of no characters too, and `/` included. All other characters stand for
/// themselves. A literal `*` cannot be written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ValuePattern(String);

/// A fixed value that is no pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoPattern {
    /// Without `*`.
    Literal,
    /// Nothing but `*`.
    All,
    /// `**`.
    Repeated,
}

impl ValuePattern {
    /// Parses a pattern.
    ///
    /// # Errors
    ///
    /// When the text has no wildcard, only wildcards, or two in succession.
    pub fn parse(text: &str) -> Result<Self, NoPattern> {
        match () {
            () if !text.contains(WILDCARD) => Err(NoPattern::Literal),
            () if text.chars().all(|it| it == WILDCARD) => Err(NoPattern::All),
            () if text.contains("**") => Err(NoPattern::Repeated),
            () => Ok(Self(text.to_owned())),
        }
    }

    /// Whether a value matches, in time linear in its length and without allocating: clients choose values.
    #[must_use]
    pub fn matches(&self, value: &str) -> bool {
        let mut parts = self.0.split(WILDCARD);
        let (first, last) = (
            parts.next().unwrap_or_default(),
            parts.next_back().unwrap_or_default(),
        );
        let middle = value.strip_prefix(first);
        let Some(mut rest) = middle.and_then(|rest| rest.strip_suffix(last)) else {
            return false;
        };
        // The earliest place of each part leaves the most for those after it: no place is tried twice.
        for part in parts {
            match rest.split_once(part) {
                Some((_, after)) => rest = after,
                None => return false,
            }
        }
        true
    }

    /// Whether every value that the other pattern matches also matches this one.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        // No literal part has a `*`, so only a wildcard of this pattern matches one of the other.
        self.matches(&other.0)
    }

    /// The text in the config.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for ValuePattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use proptest::prelude::*;

    use super::*;

    fn pattern(text: &str) -> ValuePattern {
        ValuePattern::parse(text).unwrap()
    }

    /// The definition, in exponential time.
    fn slow(pattern: &[char], value: &[char]) -> bool {
        match (pattern, value) {
            ([], []) => true,
            (['*', rest @ ..], _) => {
                slow(rest, value) || (!value.is_empty() && slow(pattern, &value[1..]))
            }
            ([one, rest @ ..], [other, value @ ..]) => one == other && slow(rest, value),
            _ => false,
        }
    }

    fn slowly_matches(pattern: &str, value: &str) -> bool {
        let chars = |text: &str| text.chars().collect::<Vec<_>>();
        slow(&chars(pattern), &chars(value))
    }

    #[test]
    fn a_wildcard_is_any_text() {
        for (text, value, expected) in [
            ("/api/*", "/api/", true),
            ("/api/*", "/api/v1/users", true),
            ("/api/*", "/api", false),
            ("/api/*", "/API/v1", false),
            ("/api/*", "", false),
            ("*.php", "/a/b.php", true),
            ("*.php", ".php", true),
            ("*.php", "/a.php5", false),
            ("/*/users/*", "/v1/users/7", true),
            ("/*/users/*", "/v1/groups/7", false),
            ("ab*ba", "aba", false),
            ("ab*ba", "abba", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-c-b", false),
            ("a*", "a\0b", true),
            ("ü*", "über", true),
            ("ü*", "u\u{308}ber", false),
            ("ü*r", "ü\u{308}\0r", true),
            ("a*c", "a*c", true),
            (r"a\*", r"a\b", true),
        ] {
            assert_eq!(pattern(text).matches(value), expected, "{text} {value:?}");
        }
    }

    #[test]
    fn texts_without_a_single_wildcard_are_no_patterns() {
        for (text, expected) in [
            ("/api", NoPattern::Literal),
            ("", NoPattern::Literal),
            ("*", NoPattern::All),
            ("***", NoPattern::All),
            ("/api/**", NoPattern::Repeated),
        ] {
            assert_eq!(ValuePattern::parse(text), Err(expected), "{text}");
        }
    }

    /// A match that tries each place of each part again makes 10¹² steps.
    #[test]
    fn long_values_are_matched_in_linear_time() {
        const LENGTH: usize = 1 << 20;
        for text in [
            "*aaaaaaab*",
            "*aab*ab*b*a",
            "a*a*a*a*a*a*ac*",
            "*abababb*",
            "*ab*ab*ab*c*b",
        ] {
            for unit in ["a", "ab", "*"] {
                let value = unit.repeat(LENGTH);
                let begun = Instant::now();
                assert!(!pattern(text).matches(&value), "{text} {unit}");
                let passed = begun.elapsed();
                assert!(
                    passed < Duration::from_secs(60),
                    "{text} {unit}: {passed:?}"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn matches_agree_with_the_definition(text in "[ab*]{0,8}", value in "[ab*]{0,10}") {
            if let Ok(pattern) = ValuePattern::parse(&text) {
                prop_assert_eq!(pattern.matches(&value), slowly_matches(&text, &value));
            }
        }

        #[test]
        fn a_pattern_that_covers_another_matches_its_values(
            wide in "[ab*]{1,6}", narrow in "[ab*]{1,6}", value in "[abc]{0,8}"
        ) {
            if let (Ok(wide), Ok(narrow)) = (ValuePattern::parse(&wide), ValuePattern::parse(&narrow)) {
                // `c` is in no pattern: it stands for any text.
                prop_assert_eq!(wide.covers(&narrow), wide.matches(&narrow.text().replace('*', "c")));
                prop_assert!(!wide.covers(&narrow) || !narrow.matches(&value) || wide.matches(&value));
            }
        }
    }
}
