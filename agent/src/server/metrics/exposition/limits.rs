//! Metrics of limits and attacks on them.

use prometheus::Error;

use super::page::{Page, Row};
use crate::stats::{Count, LevelStatus, LimitStatus, Status};

impl Page<'_> {
    pub(super) fn limits(&mut self, limits: &[LimitStatus]) -> Result<(), Error> {
        let on_packets = || limits.iter().filter(|limit| !is_on_requests(limit));
        let on_requests = || limits.iter().filter(|limit| is_on_requests(limit));
        self.gauge(
            "weir_limit_info",
            "A limit as its config defines it.",
            ["limit", "direction", "key", "unit", "algorithm", "rate"],
            limits.iter().map(|limit| {
                let it = &limit.definition;
                let labels: [&str; 6] = [
                    &it.name,
                    &it.direction,
                    &it.key,
                    &it.unit,
                    &it.algorithm,
                    &it.rate,
                ];
                (labels, 1)
            }),
        )?;
        self.counter(
            "weir_limit_packets_total",
            "Packets by a limit's verdict. Those that were over it, or would have been throttled, are among the passed too.",
            ["limit", "verdict"],
            on_packets().flat_map(|limit| verdicts(limit, |count| count.packets)),
        )?;
        self.counter(
            "weir_limit_bytes_total",
            "Their bytes.",
            ["limit", "verdict"],
            on_packets().flat_map(|limit| verdicts(limit, |count| count.bytes)),
        )?;
        let levels =
            || on_packets().flat_map(|limit| limit.levels.iter().map(move |level| (limit, level)));
        if levels().next().is_some() {
            self.counter(
                "weir_limit_level_packets_total",
                "Packets by the verdict of a limit's level; among those of the limit.",
                ["limit", "level", "verdict"],
                levels().flat_map(|(limit, level)| level_verdicts(limit, level)),
            )?;
            self.gauge(
                "weir_limit_level_keys",
                "Keys of a level whose allowance is not whole.",
                ["limit", "level"],
                levels().map(|(limit, level)| {
                    (
                        [limit.definition.name.as_str(), level.level.as_str()],
                        level.keys,
                    )
                }),
            )?;
        }
        self.counter(
            "weir_limit_contended_packets_total",
            "Packets that a limit refused since other CPUs kept changing the state of their key; among the throttled.",
            ["limit"],
            on_packets().map(|limit| ([limit.definition.name.as_str()], limit.contended.packets)),
        )?;
        self.gauge(
            "weir_limit_keys",
            "Keys whose allowance under a limit is not whole at this moment.",
            ["limit"],
            limits
                .iter()
                .map(|limit| ([limit.definition.name.as_str()], limit.keys)),
        )?;
        self.counter(
            "weir_decisions_total",
            "Decisions for applications, by outcome.",
            ["limit", "verdict"],
            on_requests().flat_map(|limit| {
                let name = limit.definition.name.as_str();
                [
                    ([name, "allowed"], limit.passed.packets),
                    ([name, "refused"], limit.throttled.packets),
                    ([name, "would_refuse"], limit.would_throttle.packets),
                ]
            }),
        )?;
        self.counter(
            "weir_requests_without_room_total",
            "Requests of new keys while max_keys keys of their limit were in use.",
            ["limit"],
            limits
                .iter()
                .filter_map(|limit| Some(([limit.definition.name.as_str()], limit.without_room?))),
        )?;
        let waiting = || {
            limits
                .iter()
                .filter_map(|limit| Some((limit.definition.name.as_str(), limit.waiting?)))
        };
        self.gauge(
            "weir_waiting_requests",
            "Requests that wait in line for a limit at this moment.",
            ["limit"],
            waiting().map(|(name, line)| ([name], line.waiting)),
        )?;
        self.counter(
            "weir_waited_requests_total",
            "Requests that waited in line, by what became of them; full: refused at once, since the line was full.",
            ["limit", "outcome"],
            waiting().flat_map(|(name, line)| {
                [
                    ([name, "passed"], line.passed),
                    ([name, "refused"], line.refused),
                    ([name, "left"], line.left),
                    ([name, "full"], line.full),
                ]
            }),
        )
    }

    pub(super) fn attacks(&mut self, status: &Status, limits: &[LimitStatus]) -> Result<(), Error> {
        let is_attacked = |name: &str| status.attacks.iter().any(|attack| attack.limit == name);
        self.gauge(
            "weir_limit_attacked",
            "1 while an attack on a limit lasts.",
            ["limit"],
            limits
                .iter()
                .filter(|limit| !is_on_requests(limit))
                .map(|limit| {
                    let name = limit.definition.name.as_str();
                    ([name], u64::from(is_attacked(name)))
                }),
        )?;
        self.counter(
            "weir_attacks_total",
            "Attacks on limits that have started.",
            [],
            [([], status.attacks_total)],
        )
    }
}

fn is_on_requests(limit: &LimitStatus) -> bool {
    limit.definition.direction == "request"
}

fn level_verdicts<'a>(limit: &'a LimitStatus, level: &'a LevelStatus) -> [Row<'a, u64, 3>; 3] {
    let (name, at) = (limit.definition.name.as_str(), level.level.as_str());
    [
        ([name, at, "throttled"], level.throttled.packets),
        ([name, at, "would_throttle"], level.would_throttle.packets),
        ([name, at, "over"], level.over.packets),
    ]
}

fn verdicts(limit: &LimitStatus, of: fn(&Count) -> u64) -> [Row<'_, u64, 2>; 4] {
    let name = limit.definition.name.as_str();
    [
        ([name, "passed"], of(&limit.passed)),
        ([name, "throttled"], of(&limit.throttled)),
        ([name, "would_throttle"], of(&limit.would_throttle)),
        ([name, "over"], of(&limit.over)),
    ]
}
