//! Fair limits in text: `weir status` and `weir show`.

use api::fair::{FairStatus, cause};
use api::source::{SourceLimit, with_sources};

use super::table::number;

/// A fair limit as text.
pub(super) fn line(fair: &FairStatus) -> String {
    let name = &fair.limit;
    let rate = |rate: f64| number(rate.round() as u64);
    let reason = fair.reason();
    if let Some(reason) = reason.filter(|_| !fair.is_in_effect()) {
        return format!("fair limit {name}: not in effect: {reason}");
    }
    let failure = reason.map_or_else(String::new, |reason| {
        let time = match fair.failure.as_deref() {
            Some(FairStatus::UNREADABLE | FairStatus::STALLED) => "",
            _ => " for up to 30 s",
        };
        format!("; released{time}: {reason}")
    });
    let Some(level) = fair.level else {
        let offered = rate(fair.offered);
        return format!(
            "fair limit {name} ({}): {offered}/s, none refused{failure}",
            fair.state.name()
        );
    };
    let held_by = cause(fair.held_by.as_deref());
    format!(
        "fair limit {name} ({}): each source {}/s, since {held_by}; {}/s of {}/s pass, servers can {}/s, wait {:.0} ms{failure}",
        fair.state.name(),
        rate(level),
        rate(fair.passed),
        rate(fair.offered),
        rate(fair.capacity.unwrap_or_default()),
        1e3 * fair.wait_seconds
    )
}

/// The name of a limit, with the key that others share, or its level.
pub(super) fn name_of(limit: &SourceLimit) -> String {
    let name = &limit.name;
    if let Some(key) = &limit.key {
        return format!("{name} ({})", with_sources(key, limit.sources));
    }
    match limit.fair.as_ref().map(|fair| fair.level) {
        Some(Some(level)) => format!("{name} (fair: {}/s)", number(level.round() as u64)),
        Some(None) => format!("{name} (fair: off)"),
        None => name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_fair_limit_that_is_not_in_effect_has_a_line_with_the_reason() {
        let line = |failure: Option<&str>| {
            line(&FairStatus {
                limit: "web".to_owned(),
                offered: 1_234.4,
                failure: failure.map(str::to_owned),
                ..FairStatus::default()
            })
        };
        assert_eq!(line(None), "fair limit web (off): 1,234/s, none refused");
        for (failure, text) in [
            (FairStatus::STALLED, "released: servers serve nothing"),
            (
                FairStatus::WITHOUT_EFFECT,
                "released for up to 30 s: its level has no effect",
            ),
        ] {
            assert_eq!(
                line(Some(failure)),
                format!("fair limit web (off): 1,234/s, none refused; {text}")
            );
        }
        for failure in FairStatus::NOT_IN_EFFECT {
            let line = line(Some(failure));
            assert!(
                line.starts_with("fair limit web: not in effect: ") && !line.contains("1,234"),
                "{line}"
            );
        }
    }

    #[test]
    fn the_level_of_a_source_is_beside_the_name_of_its_limit() {
        let name = |fair: serde_json::Value| {
            let mut limit = json!({"name": "web", "remaining": null, "retry_after_seconds": 0.0,
                "passed_packets": 5, "throttled_packets": 0});
            if !fair.is_null() {
                limit["fair"] = fair;
            }
            name_of(&serde_json::from_value(limit).unwrap())
        };
        assert_eq!(name(json!(null)), "web");
        assert_eq!(
            name(json!({"state": "off", "level": null})),
            "web (fair: off)"
        );
        assert_eq!(
            name(json!({"state": "limiting", "level": 34.7})),
            "web (fair: 35/s)"
        );
    }
}
