//! Checks of queueing disciplines for limits with `action = "shape"`.

use common::rule::{Action, Cost, Rule};
use config::policy::{self, Limit, Unit};

use crate::datapath::Datapath;
use crate::devices::device::{self, Queueing};

impl Datapath {
    /// Notes about queueing disciplines that do not support limits with `action = "shape"`.
    #[must_use]
    pub fn queueing_notes(&self) -> Vec<String> {
        if self.settings.shape_in_use == 0 {
            return Vec::new();
        }
        let longest = self
            .image
            .rules
            .iter()
            .map(longest_queue)
            .max()
            .unwrap_or(0);
        self.attached
            .iter()
            .filter_map(|attached| spacing_obstacle(&attached.interface, attached.index, longest))
            .collect()
    }
}

/// Bytes of a full Ethernet frame.
const FULL_FRAME: u64 = 1_514;

/// The most packets that a rule with `action = "shape"` delays.
fn longest_queue(rule: &Rule) -> u64 {
    match rule.action {
        action if action != Action::Shape as u8 => 0,
        _ if rule.cost == Cost::Bytes as u8 => rule.most.div_ceil(FULL_FRAME),
        _ => rule.most,
    }
}

/// Why an interface does not delay packets; `None` if it does.
fn spacing_obstacle(interface: &str, index: u32, longest_queue: u64) -> Option<String> {
    let queueing = device::queueing(index).unwrap_or_default();
    let kinds: Vec<&str> = queueing
        .iter()
        .map(|queueing| queueing.kind.as_str())
        .collect();
    let is_fair = kinds.contains(&"fq") && kinds.iter().all(|kind| matches!(*kind, "fq" | "mq"));
    if is_fair {
        return flow_obstacle(interface, &queueing, longest_queue);
    }
    let present = if kinds.is_empty() {
        "none".to_owned()
    } else {
        kinds.join(", ")
    };
    Some(format!(
        "{interface} does not delay packets, since its queueing discipline is {present} and not fq: packets above a limit \
         with action = \"shape\" are dropped; run tc qdisc replace dev {interface} root fq"
    ))
}

/// Why `fq` drops packets that a limit delays; `None` if it does not. The limit has counted these packets as passed.
fn flow_obstacle(interface: &str, queueing: &[Queueing], longest_queue: u64) -> Option<String> {
    let least = queueing
        .iter()
        .filter_map(|queueing| queueing.flow_limit)
        .min()?;
    (u64::from(least) < longest_queue).then(|| {
        let is_multiqueue = queueing.iter().any(|queueing| queueing.kind == "mq");
        let place = if is_multiqueue { "parent MQ:QUEUE" } else { "root" };
        format!(
            "fq on {interface} queues at most {least} packets of a flow, and a limit with action = \"shape\" delays \
             {longest_queue}: lower its burst, or run tc qdisc replace dev {interface} {place} fq flow_limit {longest_queue} limit {}",
            longest_queue.saturating_mul(10).max(10_000)
        )
    })
}

/// Why an interface does not support limits with `action = "shape"`; `None` if it does.
#[must_use]
pub fn lacking_for_shape(interface: &str, limits: &[Limit]) -> Option<String> {
    let index = nix::net::if_::if_nametoindex(interface).ok()?;
    let shaped = limits
        .iter()
        .filter(|limit| limit.action == policy::Action::Shape);
    let longest = shaped.map(|limit| match limit.unit {
        Unit::Bytes => limit.rates.burst.div_ceil(FULL_FRAME),
        _ => limit.rates.burst,
    });
    spacing_obstacle(interface, index, longest.max().unwrap_or(0))
}
