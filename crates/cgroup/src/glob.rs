//! Patterns with `*` and `?`.

/// Whether a text matches a pattern: `*` stands for any characters including slashes, `?` for one.
#[must_use]
pub fn fits(glob: &str, text: &str) -> bool {
    let (glob, text): (Vec<char>, Vec<char>) = (glob.chars().collect(), text.chars().collect());
    let (mut in_glob, mut in_text) = (0, 0);
    let mut last_star: Option<(usize, usize)> = None;
    while in_text < text.len() {
        match glob.get(in_glob) {
            Some('*') => {
                last_star = Some((in_glob, in_text));
                in_glob += 1;
            }
            Some(c) if *c == '?' || *c == text[in_text] => {
                in_glob += 1;
                in_text += 1;
            }
            // Backtrack: the last star takes one more character. Earlier stars need no backtracking.
            _ => match last_star {
                Some((star, taken)) => {
                    last_star = Some((star, taken + 1));
                    (in_glob, in_text) = (star + 1, taken + 1);
                }
                None => return false,
            },
        }
    }
    glob[in_glob..].iter().all(|c| *c == '*')
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn globs_reach_over_slashes() {
        for (glob, text, expected) in [
            (
                "/user.slice/*",
                "/user.slice/user-1000.slice/session-2.scope",
                true,
            ),
            ("/user.slice/*", "/system.slice/a.service", false),
            ("*encode*", "/usr/bin/ffmpeg -encode x", true),
            ("a?c", "abc", true),
            ("a?c", "ac", false),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "a-b-b", false),
            ("", "", true),
            ("*", "", true),
        ] {
            assert_eq!(fits(glob, text), expected, "{glob} {text}");
        }
    }

    proptest! {
        #[test]
        fn a_glob_is_what_its_recursive_definition_says(glob in "[ab*?]{0,8}", text in "[ab]{0,8}") {
            fn slow(glob: &[u8], text: &[u8]) -> bool {
                match (glob, text) {
                    ([], []) => true,
                    ([b'*', rest @ ..], _) => slow(rest, text) || (!text.is_empty() && slow(glob, &text[1..])),
                    ([b'?', rest @ ..], [_, text @ ..]) => slow(rest, text),
                    ([c, rest @ ..], [d, text @ ..]) => c == d && slow(rest, text),
                    _ => false,
                }
            }
            prop_assert_eq!(fits(&glob, &text), slow(glob.as_bytes(), text.as_bytes()));
        }
    }
}
