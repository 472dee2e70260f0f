//! Converts the agent's documents to metrics.

mod bans;
mod cluster;
mod fair;
mod groups;
#[cfg(test)]
pub(super) mod tests;

use api::notification::NotificationStatus;
use cgroup::GroupStatus;
use prometheus::process_collector::ProcessCollector;
use prometheus::{CounterVec, Error};
use prometheus::{GaugeVec, IntCounterVec, IntGaugeVec, Opts, Registry, TextEncoder};

use super::ledger::Ledger;
use crate::stats::{Count, InterfaceState, LevelStatus, LimitStatus, Status};

/// The documents from which metrics are made.
#[derive(Clone, Debug, Default)]
pub struct Documents {
    /// The agent's status.
    pub status: Status,
    /// All limits, on packets and on requests.
    pub limits: Vec<LimitStatus>,
    /// All process groups.
    pub groups: Vec<GroupStatus>,
}

/// Families of counters that `agent limits --reset-counters` sets to 0.
const OF_LIMITS: [&str; 3] = ["weir_limit_", "weir_decisions_", "weir_waited_"];

/// Writes the text. Keeps values between scrapes, so that counters never decrease.
pub struct Exposition {
    ledger: Ledger,
    /// The number of resets of the limits' counters at the last scrape.
    resets: u64,
    process: Registry,
}

impl Exposition {
    /// With the metrics of this process.
    ///
    /// # Errors
    ///
    /// When the process's own metrics are not available.
    pub fn new() -> Result<Self, Error> {
        let process = Registry::new();
        process.register(Box::new(ProcessCollector::for_self()))?;
        Ok(Self {
            ledger: Ledger::default(),
            resets: 0,
            process,
        })
    }

    /// The text.
    ///
    /// # Errors
    ///
    /// When a value is not a valid metric, which is a bug in Weir.
    pub fn text(&mut self, documents: &Documents) -> Result<String, Error> {
        if self.resets != documents.status.counter_resets {
            self.resets = documents.status.counter_resets;
            self.ledger
                .restart(|series| OF_LIMITS.iter().any(|family| series.starts_with(family)));
        }
        let mut page = Page {
            registry: Registry::new(),
            ledger: &mut self.ledger,
        };
        page.agent(&documents.status)?;
        page.packets(&documents.status)?;
        page.limits(&documents.limits)?;
        page.groups(&documents.groups)?;
        page.notifications(&documents.status.notifications)?;
        page.attacks(&documents.status, &documents.limits)?;
        page.fair(&documents.status.fair)?;
        if let Some(cluster) = &documents.status.cluster {
            page.cluster(cluster)?;
        }
        if let Some(crowdsec) = &documents.status.crowdsec {
            page.crowdsec(crowdsec)?;
        }
        let mut families = page.registry.gather();
        families.extend(self.process.gather());
        self.ledger.end_round();
        TextEncoder::new().encode_to_string(&families)
    }
}

/// One scrape in progress.
struct Page<'a> {
    registry: Registry,
    ledger: &'a mut Ledger,
}

/// The values of a metric's labels, and its value.
type Row<'a, T, const LABELS: usize> = ([&'a str; LABELS], T);

/// Seconds are counted in these parts, since sums of floats accumulate rounding errors.
const PARTS: f64 = 1e6;

impl Page<'_> {
    fn series(name: &str, labels: &[&str]) -> String {
        // No label value has this byte: names in a config are printable.
        format!("{name}\u{1f}{}", labels.join("\u{1f}"))
    }

    fn counter<'r, const LABELS: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&str; LABELS],
        rows: impl IntoIterator<Item = Row<'r, u64, LABELS>>,
    ) -> Result<(), Error> {
        let family = IntCounterVec::new(Opts::new(name, help), &labels)?;
        for (values, now) in rows {
            let total = self.ledger.total(&Self::series(name, &values), now);
            family.get_metric_with_label_values(&values)?.inc_by(total);
        }
        self.registry.register(Box::new(family))
    }

    fn seconds<'r, const LABELS: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&str; LABELS],
        rows: impl IntoIterator<Item = Row<'r, f64, LABELS>>,
    ) -> Result<(), Error> {
        let family = CounterVec::new(Opts::new(name, help), &labels)?;
        for (values, now) in rows {
            let total = self
                .ledger
                .total(&Self::series(name, &values), (now * PARTS) as u64);
            family
                .get_metric_with_label_values(&values)?
                .inc_by(total as f64 / PARTS);
        }
        self.registry.register(Box::new(family))
    }

    fn gauge<'r, const LABELS: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&str; LABELS],
        rows: impl IntoIterator<Item = Row<'r, u64, LABELS>>,
    ) -> Result<(), Error> {
        let family = IntGaugeVec::new(Opts::new(name, help), &labels)?;
        for (values, now) in rows {
            family
                .get_metric_with_label_values(&values)?
                .set(i64::try_from(now).unwrap_or(i64::MAX));
        }
        self.registry.register(Box::new(family))
    }

    fn ratio<'r, const LABELS: usize>(
        &mut self,
        name: &str,
        help: &str,
        labels: [&str; LABELS],
        rows: impl IntoIterator<Item = Row<'r, f64, LABELS>>,
    ) -> Result<(), Error> {
        let family = GaugeVec::new(Opts::new(name, help), &labels)?;
        for (values, now) in rows {
            family.get_metric_with_label_values(&values)?.set(now);
        }
        self.registry.register(Box::new(family))
    }

    fn agent(&mut self, status: &Status) -> Result<(), Error> {
        self.gauge(
            "weir_build_info",
            "The agent's version.",
            ["version"],
            [([status.version.as_str()], 1)],
        )?;
        self.gauge(
            "weir_mode_info",
            "Whether it throttles or only counts.",
            ["mode"],
            [([status.mode.as_str()], 1)],
        )?;
        self.gauge(
            "weir_uptime_seconds",
            "Since this agent started.",
            [],
            [([], status.uptime_seconds)],
        )?;
        self.gauge(
            "weir_notes",
            "Notes in the status.",
            [],
            [([], status.notes.len() as u64)],
        )?;
        self.gauge(
            "weir_limits_left_out",
            "Limits of the config that are not in effect, since the kernel cannot enforce them.",
            [],
            [([], status.left_out.len() as u64)],
        )?;
        let attached: Vec<_> = status
            .interfaces
            .iter()
            .filter_map(|on| Some((on.name.as_str(), on.attach?.to_string())))
            .collect();
        self.gauge(
            "weir_interface_info",
            "How an interface is attached.",
            ["interface", "attach"],
            attached
                .iter()
                .map(|(name, attach)| ([*name, attach.as_str()], 1)),
        )?;
        self.gauge(
            "weir_interface_attached",
            "1 while limits are in effect on an interface of the config, 0 while they are not.",
            ["interface"],
            // A pattern is no interface.
            status
                .interfaces
                .iter()
                .filter(|on| on.state != InterfaceState::Unmatched)
                .map(|on| {
                    (
                        [on.name.as_str()],
                        u64::from(on.state == InterfaceState::Attached),
                    )
                }),
        )?;
        if let Some(has_room) = status.has_room {
            self.gauge(
                "weir_elastic_has_room",
                "1 while elastic limits allow more than their rate, since the host has spare resources.",
                [],
                [([], u64::from(has_room))],
            )?;
        }
        if let Some(reservations) = &status.reservations {
            self.gauge(
                "weir_reservations_open",
                "Reservations that are neither committed nor released.",
                [],
                [([], reservations.open)],
            )?;
            self.counter(
                "weir_reservations_without_room_total",
                "Requests to reserve for which there was no room.",
                [],
                [([], reservations.without_room)],
            )?;
        }
        self.config(status)
    }

    fn config(&mut self, status: &Status) -> Result<(), Error> {
        let last = status.last_reload.as_ref();
        self.gauge(
            "weir_config_last_reload_successful",
            "Whether the last config that was to take another's place did: 1 also before any was.",
            [],
            [([], u64::from(last.is_none_or(|last| last.ok)))],
        )?;
        if let Some(last) = last {
            self.ratio(
                "weir_config_last_reload_timestamp_seconds",
                "When that was, in seconds since 1970.",
                [],
                [([], last.at)],
            )?;
        }
        self.gauge(
            "weir_config_on_trial",
            "Whether the config in effect is on trial and not yet confirmed.",
            [],
            [([], u64::from(status.trial.is_some()))],
        )?;
        self.gauge(
            "weir_trial_rollback_failing",
            "1 while a trial is over and rolling back from it fails.",
            [],
            [(
                [],
                u64::from(
                    status
                        .trial
                        .as_ref()
                        .is_some_and(|trial| trial.rollback_failing),
                ),
            )],
        )
    }

    fn packets(&mut self, status: &Status) -> Result<(), Error> {
        let (totals, sources, bypass) = (&status.totals, &status.sources, &status.bypass);
        self.counter(
            "weir_packets_total",
            "All packets, by what became of them.",
            ["verdict"],
            [
                (["passed"], totals.passed_packets),
                (["throttled"], totals.throttled_packets),
            ],
        )?;
        self.counter(
            "weir_bytes_total",
            "Their bytes.",
            ["verdict"],
            [
                (["passed"], totals.passed_bytes),
                (["throttled"], totals.throttled_bytes),
            ],
        )?;
        self.counter(
            "weir_bypass_packets_total",
            "Packets that came to no limit: malformed, banned and throttled ones are refused, all others pass.",
            ["reason"],
            [
                (["unlimited"], bypass.unlimited),
                (["not_ip"], bypass.not_ip),
                (["essential"], bypass.essential),
                (["never_limit"], bypass.never_limit),
                (["malformed"], bypass.malformed),
                (["banned"], bypass.banned),
                (["essential_throttled"], bypass.essential_throttled),
                (["not_ip_throttled"], bypass.not_ip_throttled),
            ],
        )?;
        if let Some(proofs) = &status.proofs {
            self.counter(
                "weir_proof_packets_total",
                "SYNs, ACKs and resets of sources that prove their address, by outcome.",
                ["packet", "outcome"],
                [
                    (["syn", "answered"], proofs.syns_answered),
                    (["syn", "challenged"], proofs.syns_challenged),
                    (["syn", "refused"], proofs.syns_refused),
                    (["syn", "passed"], proofs.syns_passed),
                    (["syn", "closed_port"], proofs.syns_to_closed_ports),
                    (["ack", "accepted"], proofs.acks_accepted),
                    (["ack", "limited"], proofs.acks_limited),
                    (["ack", "refused"], proofs.acks_refused),
                    (["reset", "accepted"], proofs.resets_accepted),
                ],
            )?;
        }
        self.gauge(
            "weir_bans",
            "Prefixes that are banned.",
            [],
            [([], status.bans)],
        )?;
        if let Some(lists) = &status.ban_lists {
            self.ban_lists(lists)?;
        }
        if !status.geo.is_empty() {
            self.databases(&status.geo)?;
        }
        self.gauge(
            "weir_sources_tracked",
            "Keys whose allowance is not whole at this moment, of all limits together.",
            [],
            [([], sources.tracked)],
        )?;
        self.gauge(
            "weir_sources_capacity",
            "Capacity of the table in keys.",
            [],
            [([], sources.capacity)],
        )?;
        self.counter(
            "weir_sources_evicted_total",
            "Keys evicted by other busy keys.",
            [],
            [([], sources.evicted)],
        )?;
        self.counter(
            "weir_sources_full_packets_total",
            "Packets of new keys in a full table, by the outcome of on_full.",
            ["outcome"],
            [
                (["passed"], sources.full_passed),
                (["throttled"], sources.full_throttled),
                (["shared"], sources.full_shared),
            ],
        )?;
        self.counter(
            "weir_contended_packets_total",
            "Packets refused since other CPUs kept changing their state.",
            [],
            [([], sources.contended)],
        )
    }

    fn limits(&mut self, limits: &[LimitStatus]) -> Result<(), Error> {
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

    fn notifications(&mut self, all: &[NotificationStatus]) -> Result<(), Error> {
        let each = |value: fn(&NotificationStatus) -> u64| {
            all.iter().map(move |one| ([one.name.as_str()], value(one)))
        };
        self.counter(
            "weir_notifications_total",
            "Notifications, by whether they were delivered in time.",
            ["notify", "outcome"],
            all.iter().flat_map(|one| {
                let name = one.name.as_str();
                [
                    ([name, "delivered"], one.delivered),
                    ([name, "dropped"], one.dropped),
                ]
            }),
        )?;
        self.counter(
            "weir_notification_failures_total",
            "Attempts to deliver a notification that failed.",
            ["notify"],
            each(|one| one.failed_attempts),
        )?;
        self.counter(
            "weir_notification_events_total",
            "Events in notifications, by what became of them; left_out: only counted there, among the other two.",
            ["notify", "outcome"],
            all.iter().flat_map(|one| {
                let name = one.name.as_str();
                [
                    ([name, "delivered"], one.events_delivered),
                    ([name, "dropped"], one.events_dropped),
                    ([name, "left_out"], one.left_out),
                ]
            }),
        )?;
        self.gauge(
            "weir_notification_events_waiting",
            "Events that are not delivered yet.",
            ["notify"],
            each(|one| one.events_waiting),
        )?;
        self.gauge(
            "weir_notification_failing",
            "1 while the last attempt failed.",
            ["notify"],
            each(|one| u64::from(one.failing.is_some())),
        )
    }

    fn attacks(&mut self, status: &Status, limits: &[LimitStatus]) -> Result<(), Error> {
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
