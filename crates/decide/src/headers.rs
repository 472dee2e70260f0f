//! Headers of HTTP replies, and the text of a request's.
//!
//! `RateLimit-Policy` and `RateLimit` are those of draft-ietf-httpapi-ratelimit-headers-11: lists of structured fields
//! (RFC 9651), one item a policy, named after the limit. `Retry-After` is RFC 9110's, in whole seconds.

use std::borrow::Cow;

use api::decide::Answer;
use config::policy::{Multiplier, RequestLimit, RequestUnit};
use hyper::header::HeaderValue;

/// A header's value as text: UTF-8, else ISO 8859-1, as headers once were. The same text is the same key.
pub(super) fn text(bytes: &[u8]) -> Cow<'_, str> {
    match std::str::from_utf8(bytes) {
        Ok(text) => Cow::Borrowed(text),
        Err(_) => Cow::Owned(bytes.iter().map(|byte| char::from(*byte)).collect()),
    }
}

/// The largest integer of a structured field.
const LARGEST_INTEGER: u64 = 999_999_999_999_999;
/// Room for quotes, names and two integers, in bytes.
const PARAMETERS: usize = 2 + 2 * (3 + 15);

/// `RateLimit-Policy`: the quota `q` and its window `w` in seconds, for the limit and each of its tiers, with this
/// multiplier. Days and months of the calendar, which differ in length, have no `w`.
#[must_use]
pub fn policy(limit: &RequestLimit, multiplier: Multiplier) -> HeaderValue {
    let items: Vec<String> = limit
        .quotas(multiplier)
        .into_iter()
        .enumerate()
        .map(|(nth, rate)| {
            let window = if nth == 0 && limit.calendar.is_some() {
                String::new()
            } else {
                format!(";w={}", seconds(rate.per_nanoseconds as f64 / 1e9))
            };
            // "requests" is the default unit.
            let unit = if limit.unit == RequestUnit::Requests {
                ""
            } else {
                ";qu=\"credits\""
            };
            format!(
                "{};q={}{window}{unit}",
                string(&limit.name, &suffix(nth)),
                rate.count.min(LARGEST_INTEGER)
            )
        })
        .collect();
    // Printable ASCII, which is always valid.
    HeaderValue::try_from(items.join(", ")).unwrap_or(HeaderValue::from_static(""))
}

/// The end of a tier's name: `-2` of the first after the rate.
fn suffix(tier: usize) -> String {
    if tier == 0 {
        String::new()
    } else {
        format!("-{}", tier + 1)
    }
}

/// `RateLimit`: the policy that decides, the remaining units `r`, and the seconds `t` until the allowance is full; of a refusal, until the cost
/// passes, if that is sooner: `t` is not later than `Retry-After`.
#[must_use]
pub fn limit(answer: &Answer) -> String {
    let mut text = String::with_capacity(answer.limit.len() + PARAMETERS);
    push_string(&mut text, &answer.limit, &suffix(answer.tier));
    let reset = seconds(answer.tier_reset_after_seconds);
    let resets = retry_after_seconds(answer).map_or(reset, |wait| wait.min(reset));
    text.push_str(";r=");
    text.push_str(itoa::Buffer::new().format(answer.tier_remaining.min(LARGEST_INTEGER)));
    text.push_str(";t=");
    text.push_str(itoa::Buffer::new().format(resets));
    text
}

/// `Retry-After` in whole seconds, at least one and rounded up; `None` if waiting does not help.
#[must_use]
pub fn retry_after(answer: &Answer) -> Option<String> {
    retry_after_seconds(answer).map(|wait| wait.to_string())
}

fn retry_after_seconds(answer: &Answer) -> Option<u64> {
    let wait = answer.retry_after_seconds.filter(|_| !answer.allowed)?;
    Some(seconds(wait).max(1))
}

fn seconds(value: f64) -> u64 {
    (value.ceil() as u64).min(LARGEST_INTEGER)
}

/// A text and its suffix as a structured field's string: printable ASCII; other characters are left out.
fn string(text: &str, suffix: &str) -> String {
    let mut quoted = String::new();
    push_string(&mut quoted, text, suffix);
    quoted
}

fn push_string(into: &mut String, text: &str, suffix: &str) {
    into.push('"');
    if text
        .bytes()
        .all(|byte| matches!(byte, b' '..=b'~') && !matches!(byte, b'"' | b'\\'))
    {
        into.push_str(text);
    } else {
        for c in text.chars().filter(|c| (' '..='~').contains(c)) {
            if matches!(c, '"' | '\\') {
                into.push('\\');
            }
            into.push(c);
        }
    }
    into.push_str(suffix);
    into.push('"');
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn headers_are_the_drafts() {
        let text = "[[limit]]\nname = \"per \\\"user\\\"\"\nscope = \"request\"\nkey = [\"user\"]\nunit = \"credits\"\n\
                    rate = \"600/min\"\ntiers = [\"9000/h\", \"5/100ms\"]\n";
        let loaded = config::parse(Path::new("limits.toml"), text)
            .unwrap_or_else(|report| panic!("{report}"));
        assert_eq!(
            policy(&loaded.config.decide.limits[0], Multiplier::ONE),
            "\"per \\\"user\\\"\";q=600;w=60;qu=\"credits\", \"per \\\"user\\\"-2\";q=9000;w=3600;qu=\"credits\", \
             \"per \\\"user\\\"-3\";q=5;w=1;qu=\"credits\""
        );
        let of_class = |factor| {
            policy(
                &loaded.config.decide.limits[0],
                Multiplier::new(factor).unwrap(),
            )
        };
        assert_eq!(
            of_class(5.0),
            "\"per \\\"user\\\"\";q=3000;w=60;qu=\"credits\", \"per \\\"user\\\"-2\";q=45000;w=3600;qu=\"credits\", \
             \"per \\\"user\\\"-3\";q=25;w=1;qu=\"credits\""
        );
        // The class's count is not whole: one unit in a longer window.
        let slow = of_class(0.001);
        assert!(
            slow.to_str()
                .unwrap()
                .starts_with("\"per \\\"user\\\"\";q=1;w=100;"),
            "{slow:?}"
        );
        let mut answer = Answer {
            allowed: false,
            limit: "a".to_owned(),
            remaining: 7,
            retry_after_seconds: Some(0.01),
            reset_after_seconds: 59.2,
            tier: 0,
            tier_remaining: 7,
            tier_reset_after_seconds: 59.2,
            waited_seconds: None,
            reservation: None,
        };
        assert_eq!(
            (limit(&answer), retry_after(&answer)),
            ("\"a\";r=7;t=1".to_owned(), Some("1".to_owned()))
        );
        answer.retry_after_seconds = Some(2.5);
        assert_eq!(
            (limit(&answer), retry_after(&answer)),
            ("\"a\";r=7;t=3".to_owned(), Some("3".to_owned()))
        );
        answer.retry_after_seconds = None;
        assert_eq!(
            (limit(&answer), retry_after(&answer)),
            ("\"a\";r=7;t=60".to_owned(), None)
        );
        (answer.allowed, answer.tier_remaining) = (true, 0);
        assert_eq!(limit(&answer), "\"a\";r=0;t=60");
        (answer.tier, answer.tier_remaining) = (1, 3);
        answer.tier_reset_after_seconds = 0.5;
        assert_eq!(limit(&answer), "\"a-2\";r=3;t=1");
    }
}
