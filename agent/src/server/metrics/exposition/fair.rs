//! Metrics of fair limits.

use api::fair::{CAUSES, FairStatus};
use prometheus::Error;

use super::page::Page;

impl Page<'_> {
    pub(super) fn fair(&mut self, limits: &[FairStatus]) -> Result<(), Error> {
        let each = |of: fn(&FairStatus) -> Option<f64>| {
            let limits = limits.iter();
            limits.filter_map(move |limit| Some(([limit.limit.as_str()], of(limit)?)))
        };
        // Of a limit that is not in effect, nothing is known.
        let measured = |of: fn(&FairStatus) -> f64| {
            let limits = limits.iter().filter(|limit| limit.is_in_effect());
            limits.map(move |limit| ([limit.limit.as_str()], of(limit)))
        };
        self.ratio(
            "weir_fair_level",
            "Units a second that each source may have; absent while nothing is refused.",
            ["limit"],
            each(|limit| limit.level),
        )?;
        self.ratio(
            "weir_fair_network_level",
            "Units a second that each network may have; absent while networks have no level.",
            ["limit"],
            each(|limit| limit.network_level),
        )?;
        self.ratio(
            "weir_fair_total_level",
            "Units a second that all sources together may have; absent while they have no level.",
            ["limit"],
            each(|limit| limit.total_level),
        )?;
        self.ratio(
            "weir_fair_offered",
            "Units a second that sources send.",
            ["limit"],
            measured(|limit| limit.offered),
        )?;
        self.ratio(
            "weir_fair_passed",
            "Units a second that pass.",
            ["limit"],
            measured(|limit| limit.passed),
        )?;
        self.ratio(
            "weir_fair_capacity",
            "Units a second that servers can serve, once an overload has shown it.",
            ["limit"],
            each(|limit| limit.capacity),
        )?;
        self.ratio(
            "weir_fair_wait_seconds",
            "How long units wait in the queues of servers.",
            ["limit"],
            measured(|limit| limit.wait_seconds),
        )?;
        self.ratio(
            "weir_fair_loss_ratio",
            "Passed units that servers drop.",
            ["limit"],
            measured(|limit| limit.loss),
        )?;
        self.ratio(
            "weir_fair_released",
            "1 while the limit refuses nothing because it cannot help, or is not in effect.",
            ["limit"],
            each(|limit| Some(f64::from(u8::from(limit.failure.is_some())))),
        )?;
        let sources = limits.iter().filter(|limit| limit.is_in_effect());
        let sources = sources.map(|limit| ([limit.limit.as_str()], limit.sources_above));
        self.gauge(
            "weir_fair_sources_above",
            "Sampled sources that send more than the level, of those with enough samples for a rate.",
            ["limit"],
            sources,
        )?;
        let causes = limits.iter().filter(|limit| limit.is_in_effect());
        let causes = causes.flat_map(|limit| {
            CAUSES.map(|cause| {
                let is_held = limit.held_by.as_deref() == Some(cause);
                ([limit.limit.as_str(), cause], u64::from(is_held))
            })
        });
        self.gauge(
            "weir_fair_held_by",
            "1 for what keeps the level down: drops, wait, load, demand or recent; otherwise 0.",
            ["limit", "cause"],
            causes,
        )?;
        let in_effect = limits.iter().filter(|limit| limit.is_in_effect());
        let onsets = in_effect.map(|limit| ([limit.limit.as_str()], limit.onsets));
        self.counter(
            "weir_fair_overloads_total",
            "Overloads since the agent started.",
            ["limit"],
            onsets,
        )
    }
}
