//! Metrics of the fleet's rules, by stream.

use api::rules::RulesStatus;
use prometheus::Error;

use super::page::Page;

/// The states of the newest accepted version.
const STATES: [&str; 6] = ["none", "waiting", "trying", "held", "failed", "stopped"];

impl Page<'_> {
    pub(super) fn rules(&mut self, streams: &[RulesStatus]) -> Result<(), Error> {
        let of = |value: fn(&RulesStatus) -> u64| {
            let samples = streams.iter();
            samples.map(move |rules| ([rules.stream.as_str()], value(rules)))
        };
        self.gauge(
            "weir_rules_version",
            "The version of the stream's rules in effect; 0: none.",
            ["stream"],
            of(|rules| rules.version),
        )?;
        self.gauge(
            "weir_rules_accepted_version",
            "The newest version that this host has accepted.",
            ["stream"],
            of(|rules| rules.accepted),
        )?;
        let states = streams.iter().flat_map(|rules| {
            let sample = |state| {
                (
                    [rules.stream.as_str(), state],
                    u64::from(state == rules.state),
                )
            };
            STATES.map(sample)
        });
        self.gauge(
            "weir_rules_state",
            "1 for the state of the accepted version.",
            ["stream", "state"],
            states,
        )?;
        self.counter(
            "weir_rules_refused_total",
            "Documents of the store that were refused.",
            ["stream"],
            of(|rules| rules.refusals),
        )?;
        self.counter(
            "weir_rules_stopped_total",
            "Versions that were stopped on this host.",
            ["stream"],
            of(|rules| rules.stops),
        )?;
        let up = streams.iter().filter_map(|rules| {
            let is_up = rules.store_up?;
            Some(([rules.stream.as_str()], u64::from(is_up)))
        });
        self.gauge(
            "weir_rules_store_up",
            "1 while requests to the store succeed.",
            ["stream"],
            up,
        )
    }
}
