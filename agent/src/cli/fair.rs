//! Fair limits in text: `agent status` and `agent show`.

use api::fair::{FairStatus, cause};
use api::source::{SourceLimit, with_sources};

use super::table::number;

/// A fair limit as text.
pub(super) fn line(fair: &FairStatus) -> String {
    let name = &fair.limit;
    let rate = |rate: f64| number(rate.round() as u64);
    let without_effect = match fair.failure.as_deref() {
        Some(FairStatus::OBSERVE_MODE) => Some("fair limits are off in mode \"observe\""),
        Some(FairStatus::NO_MAPS) => Some("its maps in the kernel cannot be opened"),
        Some(FairStatus::ENDED) => Some("the agent's thread of fair limits has ended"),
        Some(FairStatus::LATE) => Some("the agent's thread of fair limits has not run for 2 s"),
        Some(FairStatus::STARTING) => Some("its policy is new"),
        _ => None,
    };
    if let Some(why) = without_effect {
        return format!("fair limit {name}: not in effect: {why}");
    }
    let failure = fair.failure.as_deref().map(|failure| match failure {
        "unreadable" => "; released: its signals cannot be read",
        "stalled" => "; released: servers serve nothing",
        _ => "; released for 30 s: its level has no effect",
    });
    let failure = failure.unwrap_or_default();
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
        assert_eq!(
            line(Some("stalled")),
            "fair limit web (off): 1,234/s, none refused; released: servers serve nothing"
        );
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
