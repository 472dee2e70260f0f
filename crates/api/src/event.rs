//! `weir events --json`.

use std::time::SystemTime;

use config::policy::{Limit, RateSpec};
use serde::{Deserialize, Serialize};

use crate::attack::Attack;

/// The kind of an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum EventKind {
    /// Its packets are refused.
    Throttled,
    /// Its packets would be refused if the limit were not on `observe`.
    WouldThrottle,
    /// It was banned: it kept being refused by a limit on requests, or an operator ordered it.
    Banned,
    /// It would have been banned if the agent were not on `observe`.
    WouldBan,
    /// The kernel killed processes of a group that ran out of memory.
    OomKill,
    /// Another program lifted a limit of a group.
    LimitLifted,
    /// A trial was not confirmed in time, and the previous config is in effect again.
    TrialRolledBack,
    /// The rollback of a trial failed.
    TrialRollbackFailed,
    /// Limits are in effect on an interface.
    Attached,
    /// Limits are not in effect on an interface.
    Detached,
    /// The cluster's store grants no shares.
    StoreDown,
    /// The cluster's store grants shares again.
    StoreUp,
    /// CrowdSec's local API is unavailable.
    CrowdsecDown,
    /// CrowdSec's local API is available again.
    CrowdsecUp,
    /// Refusals of a limit have risen.
    Attack,
    /// Refusals of the limit are low again.
    AttackEnded,
    /// A ban list has new content.
    ListUpdated,
    /// A ban list could not be read or put in effect.
    ListFailed,
    /// A database of `[geo]` has new content.
    GeoUpdated,
    /// A database of `[geo]` cannot be used.
    GeoFailed,
    /// The store of a limit on requests has no room for new keys.
    KeysFull,
    /// The sources of a port do not prove their address, since netfilter sends its connections elsewhere.
    Unproven,
    /// Sources proved their address, and the kernel did not receive their ACKs.
    Unopened,
    /// The addresses that `protect` exempts have changed.
    Protected,
    /// The kernel cannot enforce a limit, which a start left out.
    LeftOut,
    /// Servers have more than they can serve: a fair limit refuses sources above its level.
    Overload,
    /// A fair limit refuses nothing any more.
    OverloadEnded,
    /// A fair limit is released although there may be an overload, since it cannot help.
    FairReleased,
    /// Nobody takes anything from the queue of a socket on a fair limit's ports.
    Unserved,
    /// Rules of the fleet are on trial.
    RulesTried,
    /// Rules of the fleet are confirmed: this host was healthy under them.
    RulesConfirmed,
    /// Rules of the fleet are not in effect: this host rolled them back, or another host or their publisher stopped them.
    RulesStopped,
    /// A document of the store of the fleet's rules is refused.
    RulesRefused,
    /// No canary has begun with the newest rules of the fleet.
    RulesStalled,
    /// The store of the fleet's rules is unavailable.
    RulesStoreDown,
    /// The store of the fleet's rules is available again.
    RulesStoreUp,
    /// Events were lost because there were too many.
    Lost,
}

impl EventKind {
    /// The name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Throttled => "throttled",
            Self::WouldThrottle => "would-throttle",
            Self::Banned => "banned",
            Self::WouldBan => "would-ban",
            Self::OomKill => "oom-kill",
            Self::LimitLifted => "limit-lifted",
            Self::TrialRolledBack => "trial-rolled-back",
            Self::TrialRollbackFailed => "trial-rollback-failed",
            Self::Attached => "attached",
            Self::Detached => "detached",
            Self::StoreDown => "store-down",
            Self::StoreUp => "store-up",
            Self::CrowdsecDown => "crowdsec-down",
            Self::CrowdsecUp => "crowdsec-up",
            Self::Attack => "attack",
            Self::AttackEnded => "attack-ended",
            Self::ListUpdated => "list-updated",
            Self::ListFailed => "list-failed",
            Self::GeoUpdated => "geo-updated",
            Self::GeoFailed => "geo-failed",
            Self::KeysFull => "keys-full",
            Self::Unproven => "unproven",
            Self::Unopened => "unopened",
            Self::Protected => "protected",
            Self::LeftOut => "left-out",
            Self::Overload => "overload",
            Self::OverloadEnded => "overload-ended",
            Self::FairReleased => "fair-released",
            Self::Unserved => "unserved",
            Self::RulesTried => "rules-tried",
            Self::RulesConfirmed => "rules-confirmed",
            Self::RulesStopped => "rules-stopped",
            Self::RulesRefused => "rules-refused",
            Self::RulesStalled => "rules-stalled",
            Self::RulesStoreDown => "rules-store-down",
            Self::RulesStoreUp => "rules-store-up",
            Self::Lost => "lost",
        }
    }
}

/// One line of `weir events --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Event {
    /// Seconds since 1970.
    pub time: f64,
    /// The subject: an address, a prefix, a class or an interface; `None` for requests without a client's address.
    pub source: Option<String>,
    pub limit: Option<String>,
    /// The limit's level, if the subject is a level's key; absent otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// Under a level: an estimate of the subject's refused sources, from samples, since the last minute without a refusal.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sources: Option<u64>,
    /// The process group's name.
    pub group: Option<String>,
    pub verdict: EventKind,
    /// For a source: its packets or requests so far with this verdict, as far as the agent remembers. For a group:
    /// killed processes, or times that a limit was lifted. For `lost`: events, or refused requests of sources without an event.
    pub count: u64,
    /// The reason as text.
    pub reason: String,
    /// `tcp`, `udp` or `icmp`, if the limit is on one of them.
    pub protocol: Option<String>,
    /// The local port, if the limit counts by it.
    pub port: Option<u16>,
    /// `ingress` or `egress`, for limits on packets; `request` for those on requests.
    pub direction: Option<String>,
    /// The owner of a ban, as in `weir bans`; absent in other events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// The attack of an `attack` or `attack-ended`; absent in other events.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attack: Option<Box<Attack>>,
}

impl Event {
    /// An event with the current time and no subject.
    #[must_use]
    pub fn now(verdict: EventKind, count: u64, reason: String) -> Self {
        Self {
            time: seconds_since_1970(),
            source: None,
            limit: None,
            level: None,
            sources: None,
            group: None,
            verdict,
            count,
            reason,
            protocol: None,
            port: None,
            direction: None,
            owner: None,
            attack: None,
        }
    }

    /// The event that reports `count` lost events.
    #[must_use]
    pub fn lost(count: u64, reason: &str) -> Self {
        Self::now(EventKind::Lost, count, reason.to_owned())
    }
}

impl Event {
    /// Whether the event concerns the source `wanted`: the same address or prefix, one that contains it, or one within
    /// it.
    #[must_use]
    pub fn is_about(&self, wanted: &str) -> bool {
        let Some(source) = self.source.as_deref() else {
            return self.group.as_deref() == Some(wanted);
        };
        let prefix = |text: &str| config::prefix::parse(text).ok();
        let address = source.split(" port ").next().unwrap_or(source);
        source == wanted
            || prefix(wanted)
                .zip(prefix(address))
                .is_some_and(|(wanted, source)| wanted.covers(&source) || source.covers(&wanted))
    }
}

/// The reason of a refusal, such as `more than 5/s packets, burst 5`.
#[must_use]
pub fn exceeded(rates: &RateSpec, unit: &dyn std::fmt::Display) -> String {
    let burst = if rates.algorithm.has_burst() {
        format!(", burst {}", rates.burst)
    } else {
        String::new()
    };
    format!("more than {} {unit}{burst}", rates.text())
}

/// The same for a limit at its nth level: `at 24/48, more than 20 × 10/s packets, burst 200`.
#[must_use]
pub fn exceeded_at(limit: &Limit, level: usize) -> String {
    let levels = limit.at_levels();
    let at = levels.get(level).unwrap_or(limit);
    let exceeded = if limit.is_fair() {
        format!("more than a fair share of {}", limit.unit)
    } else {
        exceeded(&at.rates, &at.unit)
    };
    limit
        .level_text(level)
        .map_or(exceeded.clone(), |level| format!("at {level}, {exceeded}"))
}

/// The wall-clock time in seconds since 1970.
#[must_use]
pub fn seconds_since_1970() -> f64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0.0, |time| time.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::EventKind;

    const ALL: [EventKind; 37] = [
        EventKind::Throttled,
        EventKind::WouldThrottle,
        EventKind::Banned,
        EventKind::WouldBan,
        EventKind::OomKill,
        EventKind::LimitLifted,
        EventKind::TrialRolledBack,
        EventKind::TrialRollbackFailed,
        EventKind::Attached,
        EventKind::Detached,
        EventKind::StoreDown,
        EventKind::StoreUp,
        EventKind::CrowdsecDown,
        EventKind::CrowdsecUp,
        EventKind::Attack,
        EventKind::AttackEnded,
        EventKind::ListUpdated,
        EventKind::ListFailed,
        EventKind::GeoUpdated,
        EventKind::GeoFailed,
        EventKind::KeysFull,
        EventKind::Unproven,
        EventKind::Unopened,
        EventKind::Protected,
        EventKind::LeftOut,
        EventKind::Overload,
        EventKind::OverloadEnded,
        EventKind::FairReleased,
        EventKind::Unserved,
        EventKind::RulesTried,
        EventKind::RulesConfirmed,
        EventKind::RulesStopped,
        EventKind::RulesRefused,
        EventKind::RulesStalled,
        EventKind::RulesStoreDown,
        EventKind::RulesStoreUp,
        EventKind::Lost,
    ];

    #[test]
    fn each_kind_is_in_docs_and_each_of_the_docs_is_a_kind() {
        let code = include_str!("event.rs");
        let kinds = code
            .split("pub enum EventKind {")
            .nth(1)
            .and_then(|rest| rest.split('}').next())
            .unwrap();
        let count = kinds
            .lines()
            .filter(|line| line.trim().ends_with(','))
            .count();
        assert_eq!(count, ALL.len(), "this test does not know every kind");
        let page = include_str!("../../../docs/reference/events.md");
        let verdicts = page
            .split("## Verdicts")
            .nth(1)
            .and_then(|rest| rest.split("\n## ").next())
            .unwrap();
        let rows = verdicts
            .lines()
            .filter(|line| line.starts_with("| `") && !line.starts_with("| `verdict`"));
        let names =
            rows.flat_map(|row| row.split('|').nth(1).unwrap().split('`').skip(1).step_by(2));
        let documented: BTreeSet<&str> = names.collect();
        let known: BTreeSet<&str> = ALL.iter().map(|kind| kind.name()).collect();
        assert_eq!(documented, known);
    }
}
