//! Fair limits in text: `weir status`, `weir limits` and `weir show`.

use api::fair::{FairHistory, FairLevel, FairSource, FairStatus, cause};
use api::source::{SourceLimit, with_sources};
use config::human;

use super::table::{instant, number};
use crate::tui::{self, Glyphs, whole};

/// Columns of the level over time.
const CELLS: usize = 60;

/// A fair limit in `weir status`: its state, its level over time, and the sources above it.
pub(super) fn lines(fair: &FairStatus, glyphs: Glyphs) -> Vec<String> {
    let over_time = over_time(&fair.history, glyphs);
    let heaviest = heaviest(fair);
    let more = over_time.into_iter().chain(heaviest);
    let more = more.map(|line| format!("  {line}"));
    std::iter::once(line(fair)).chain(more).collect()
}

/// The level of the last minutes; nothing if there was none.
fn over_time(history: &FairHistory, glyphs: Glyphs) -> Option<String> {
    let bounds = tui::bounds_text(history)?;
    let seconds = history.level.len() as u64 * history.step_seconds;
    let length = human::time(std::time::Duration::from_secs(seconds));
    Some(match glyphs {
        Glyphs::Blocks => {
            let cells = CELLS.min(history.level.len());
            let shown = tui::sparkline(history, cells);
            format!("level of the last {length}: {shown} {bounds}")
        }
        Glyphs::Letters => format!("level of the last {length}: {bounds}"),
    })
}

/// Since when there is a level, and the sources above it.
fn heaviest(fair: &FairStatus) -> Option<String> {
    let since = instant(fair.since.filter(|_| fair.level.is_some())?);
    let of = |source: &FairSource| {
        let [offered, refused] = [source.offered, source.refused].map(whole);
        format!("{} ({refused}/s of {offered}/s refused)", source.source)
    };
    let named: Vec<String> = fair.heaviest.iter().map(of).collect();
    let most = if named.is_empty() {
        String::new()
    } else {
        format!(": {}", named.join(", "))
    };
    Some(format!(
        "since {since}; at least {} of {} sampled sources are above the level{most}",
        number(fair.sources_above),
        number(fair.sources)
    ))
}

/// The level of a fair limit in `weir limits`.
pub(super) fn level_line(limit: &str, level: &FairLevel) -> String {
    let failure = level.failure.as_deref().map(FairStatus::reason_of);
    match (level.rate, failure) {
        (Some(rate), _) => {
            let since = level
                .since
                .map_or_else(String::new, |since| format!(" since {}", instant(since)));
            let held_by = cause(level.held_by.as_deref());
            format!(
                "fair limit {limit}: each source {}/s{since}: {held_by}",
                whole(rate)
            )
        }
        (None, reason) => {
            let below = level
                .at_most
                .map_or_else(String::new, |most| format!(" below {}/s", whole(most)));
            let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
            format!("fair limit {limit}: refuses nothing{below}{reason}")
        }
    }
}

/// A fair limit as text.
fn line(fair: &FairStatus) -> String {
    let name = &fair.limit;
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
        let offered = whole(fair.offered);
        return format!(
            "fair limit {name} ({}): {offered}/s, none refused{failure}",
            fair.state.name()
        );
    };
    let held_by = cause(fair.held_by.as_deref());
    let wider = match (fair.network_level, fair.total_level) {
        (Some(network), Some(all)) => {
            format!(
                ", each network {}/s, all together {}/s",
                whole(network),
                whole(all)
            )
        }
        (Some(network), None) => format!(", each network {}/s", whole(network)),
        (None, _) => String::new(),
    };
    format!(
        "fair limit {name} ({}): each source {}/s{wider}, since {held_by}; {}/s of {}/s pass, servers can {}/s, wait {:.0} ms{failure}",
        fair.state.name(),
        whole(level),
        whole(fair.passed),
        whole(fair.offered),
        whole(fair.capacity.unwrap_or_default()),
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
        Some(Some(level)) => format!("{name} (fair: {}/s)", whole(level)),
        Some(None) => format!("{name} (fair: off)"),
        None => name.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::fair::FairState;
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
    fn a_level_has_its_history_and_the_sources_above_it() {
        let mut fair = FairStatus {
            limit: "web".to_owned(),
            offered: 9_000.4,
            history: FairHistory {
                level: [vec![None; 30], vec![Some(1_000.0); 5], vec![Some(34.2); 25]].concat(),
                passed: vec![Some(1.0); 60],
                step_seconds: 1,
                ..FairHistory::default()
            },
            ..FairStatus::default()
        };
        let first = "fair limit web (off): 9,000/s, none refused";
        let over_time = format!(
            "  level of the last 1 min: {}{}{} 34 to 1,000/s",
            "·".repeat(30),
            "█".repeat(5),
            "▁".repeat(25)
        );
        assert_eq!(lines(&fair, Glyphs::Blocks), [first, &over_time]);
        assert_eq!(
            lines(&fair, Glyphs::Letters),
            [first, "  level of the last 1 min: 34 to 1,000/s"]
        );
        (fair.level, fair.since) = (Some(34.2), Some(1_774_980_000.25));
        (fair.sources, fair.sources_above) = (55, 5);
        let above =
            "  since 2026-03-31T18:00:00Z; at least 5 of 55 sampled sources are above the level";
        assert_eq!(lines(&fair, Glyphs::Letters)[2], above);
        fair.heaviest = ["192.0.2.1", "192.0.2.7"]
            .map(|source| FairSource {
                source: source.to_owned(),
                offered: 4_000.4,
                refused: 3_966.2,
            })
            .to_vec();
        let refused = "(3,966/s of 4,000/s refused)";
        let expected = format!("{above}: 192.0.2.1 {refused}, 192.0.2.7 {refused}");
        assert_eq!(lines(&fair, Glyphs::Letters)[2], expected);
        fair.history = FairHistory::default();
        assert_eq!(lines(&fair, Glyphs::Blocks).len(), 2);
    }

    #[test]
    fn weir_limits_has_a_fair_limits_level_cause_and_beginning() {
        let mut level = FairLevel::default();
        let line = |level: &FairLevel| level_line("web", level);
        assert_eq!(line(&level), "fair limit web: refuses nothing");
        level.at_most = Some(300.0);
        assert_eq!(line(&level), "fair limit web: refuses nothing below 300/s");
        level.at_most = None;
        level.failure = Some(FairStatus::STALLED.to_owned());
        assert_eq!(
            line(&level),
            "fair limit web: refuses nothing: servers serve nothing"
        );
        level = FairLevel {
            rate: Some(34.2),
            since: Some(1_774_980_000.25),
            held_by: Some("drops".to_owned()),
            ..FairLevel::default()
        };
        assert_eq!(
            line(&level),
            "fair limit web: each source 34/s since 2026-03-31T18:00:00Z: servers drop"
        );
    }

    #[test]
    fn the_levels_of_networks_and_of_all_are_in_the_line() {
        let line = |network_level, total_level| {
            line(&FairStatus {
                limit: "dns".to_owned(),
                state: FairState::Limiting,
                level: Some(25.0),
                network_level,
                total_level,
                ..FairStatus::default()
            })
        };
        let levels = |line: String| line.split(", since").next().unwrap().to_owned();
        assert_eq!(
            levels(line(None, None)),
            "fair limit dns (limiting): each source 25/s"
        );
        assert_eq!(
            levels(line(Some(25.0), None)),
            "fair limit dns (limiting): each source 25/s, each network 25/s"
        );
        assert_eq!(
            levels(line(Some(1.0), Some(9_876.0))),
            "fair limit dns (limiting): each source 25/s, each network 1/s, all together 9,876/s"
        );
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
