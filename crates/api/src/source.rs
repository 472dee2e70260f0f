//! Sources: `weir top --json`, `weir show IP --json` and `weir bans --json`.

use std::net::Ipv6Addr;

use serde::{Deserialize, Serialize};

use crate::allowance::Allowance;
use crate::fair::FairState;

/// One element of `weir top --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TopRow {
    /// The address, or the prefix that shares one key.
    pub source: String,
    /// A limit that counts it.
    pub limit: String,
    /// The level whose key it is; absent for the limit's own key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// Under a level: an estimate of the sources whose packets it refused, from samples, since the last minute without a
    /// refusal; absent without refusals.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sources: Option<u64>,
    /// Passed packets to which the limit applied.
    pub passed_packets: u64,
    #[serde(default)]
    pub passed_precision: Precision,
    pub throttled_packets: u64,
    /// Packets that the limit would have refused if it were not on `observe`.
    #[serde(default)]
    pub would_throttle_packets: u64,
    /// Seconds since the last packet that it refused or would have refused.
    #[serde(default)]
    pub last_throttled_seconds_ago: Option<f64>,
}

impl TopRow {
    /// The source as text: `203.0.113.0/24, 212 sources`.
    #[must_use]
    pub fn source_text(&self) -> String {
        with_sources(&self.source, self.sources)
    }

    /// The limit as text: `web`, `web at 24/48`.
    #[must_use]
    pub fn limit_text(&self) -> String {
        at_level(&self.limit, self.level.as_deref())
    }
}

/// A key and the number of its sources as text: `203.0.113.0/24, 212 sources`.
#[must_use]
pub fn with_sources(key: &str, sources: Option<u64>) -> String {
    match sources {
        Some(1) => format!("{key}, 1 source"),
        Some(sources) => format!("{key}, {} sources", config::human::number(sources)),
        None => key.to_owned(),
    }
}

/// A limit and its level as text: `web`, `web at 24/48`.
#[must_use]
pub fn at_level(limit: &str, level: Option<&str>) -> String {
    level.map_or_else(|| limit.to_owned(), |level| format!("{limit} at {level}"))
}

/// How exact a count is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Precision {
    /// Every packet was counted.
    #[default]
    Exact,
    /// Scaled up from a sample of one packet in 64.
    Sampled,
    /// Too few packets for a sample: an upper bound.
    AtMost,
}

impl Precision {
    /// The sign printed before the count.
    #[must_use]
    pub const fn mark(self) -> &'static str {
        match self {
            Self::Exact => "",
            Self::Sampled => "~",
            Self::AtMost => "<=",
        }
    }
}

/// `weir show IP --json`.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SourceStatus {
    /// The address in the request.
    pub source: String,
    pub class: String,
    /// The list that put it into the class; `null` if `sources`, networks or countries did.
    #[serde(default)]
    pub class_from: Option<ClassOrigin>,
    /// Whether the address is exempt.
    pub never_limit: bool,
    /// Why no limit applies to it; `null` if limits apply.
    #[serde(default)]
    pub exempt: Option<String>,
    /// The exemption for a while that covers it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allowed: Option<Allowance>,
    /// The ban that covers it.
    pub ban: Option<BanStatus>,
    /// The limits that apply to it.
    pub limits: Vec<SourceLimit>,
    /// The refusal of its last refused packet.
    pub last_refused: Option<LastRefused>,
    /// Limits on requests whose key is the address alone, or that refused it recently.
    #[serde(default)]
    pub requests: Vec<SourceRequests>,
    /// Its open connections, as far as a limit counts them, the oldest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub connections: Vec<OpenConnection>,
    /// The limits with a state for each of its ports, which are not in `limits`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub by_port: Vec<String>,
}

/// An open connection of a source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpenConnection {
    /// The source's port.
    pub port: u16,
    /// The port on this host.
    pub local_port: u16,
    /// Seconds since it was established, or found when counting began.
    pub open_seconds: f64,
}

/// The list from which an address has its class.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClassOrigin {
    /// `list:NAME`.
    pub origin: String,
    /// The prefix in the list.
    pub cidr: String,
    /// When the list contained it first, in seconds since 1970.
    pub since: u64,
}

/// The state of one limit on requests for a source.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SourceRequests {
    pub name: String,
    /// Units that would pass now; `null` where the key has other entries than the address.
    pub remaining: Option<u64>,
    /// Seconds until one unit passes; `null` where the key has other entries, or if it never passes.
    pub retry_after_seconds: Option<f64>,
    /// Refused requests, as far as the agent remembers.
    pub throttled_requests: u64,
    /// Requests that would have been refused if the limit were not on `observe`.
    pub would_throttle_requests: u64,
    /// Seconds since the last of them.
    pub last_throttled_seconds_ago: Option<f64>,
}

/// A ban of a prefix. Several owners may ban it; in `weir show`, this is the ban that ends last.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BanStatus {
    pub cidr: String,
    #[serde(flatten)]
    pub holder: BanHolder,
    /// In `weir show`: the bans of the same prefix by others, which end earlier. Each has its own element in `weir bans`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub also: Vec<BanHolder>,
}

/// One owner's ban.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BanHolder {
    /// Seconds until the ban ends; `null` if it does not end.
    pub expires_in_seconds: Option<f64>,
    /// The ban's origin: `operator`, `list:NAME`, `limit:NAME`, `limit` if the name was lost in a crash of the agent,
    /// `crowdsec`, `host:NAME` for a ban that another host of the cluster made, or `host` until the store has replied.
    #[serde(default)]
    pub origin: String,
    /// The operator's reason, the limit's, or the scenario and the ID of CrowdSec's decision; `null` without one.
    #[serde(default)]
    pub reason: Option<String>,
    /// The ban's start, or when the list contained it first, in seconds since 1970; `null` if it is not known.
    #[serde(default)]
    pub since: Option<u64>,
    /// The origin on the host that made it; absent for bans of this host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub origin_on_host: Option<String>,
    /// The ban's owner: the user or program that ordered it, `operator` if an earlier version did not record which,
    /// else as `origin`.
    #[serde(default)]
    pub owner: String,
    /// The owner on the host that made it; absent for bans of this host, and if that host did not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub owner_on_host: Option<String>,
    /// The IPv6 address that was named instead of its /64.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<Ipv6Addr>,
}

impl BanHolder {
    /// The ban as one of a prefix.
    #[must_use]
    pub fn of(self, cidr: String) -> BanStatus {
        BanStatus {
            cidr,
            holder: self,
            also: Vec::new(),
        }
    }
}

/// One element of `weir bans --json`: one owner's ban of one prefix.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BansRow {
    #[serde(flatten)]
    pub ban: BanStatus,
    /// Packets that all bans of the prefix refused.
    pub throttled_packets: u64,
}

/// The share of a source under a fair limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FairShare {
    pub state: FairState,
    /// Units a second that the source may send; `null` while nothing is refused.
    pub level: Option<f64>,
}

/// The state of one limit for a source.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SourceLimit {
    pub name: String,
    /// The level, whose key others share; absent for the limit's own key, which is listed before its levels.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    /// The level's key: a prefix, or `all`; absent for the limit's own key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// As [`TopRow::sources`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sources: Option<u64>,
    /// Open connections of the key, where the limit counts these; absent for limits on rates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub open: Option<u64>,
    /// Units that would pass now; `null` with `rate = "fair"` while neither a level nor `at_most` is in effect.
    pub remaining: Option<u64>,
    /// What a limit with `rate = "fair"` does; absent for others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fair: Option<FairShare>,
    /// Seconds until one unit passes; 0 if one passes now.
    pub retry_after_seconds: f64,
    /// Passed packets to which the limit applied.
    pub passed_packets: u64,
    #[serde(default)]
    pub passed_precision: Precision,
    pub throttled_packets: u64,
    /// Packets that the limit would have refused if it were not on `observe`.
    #[serde(default)]
    pub would_throttle_packets: u64,
    /// Seconds since the last packet that it refused or would have refused.
    #[serde(default)]
    pub last_throttled_seconds_ago: Option<f64>,
}

/// The last refusal.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct LastRefused {
    pub limit: String,
    /// The level that refused it; absent for the limit's own key. Its key is shared: the packet may have been of another
    /// source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub level: Option<String>,
    pub seconds_ago: f64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// The documents are those of the versions in which each struct had all fields.
    #[test]
    fn a_ban_is_one_flat_document() {
        let whole = json!({
            "cidr": "2001:db8::/64", "expires_in_seconds": 1.5, "origin": "host:b", "reason": "scan", "since": 7,
            "origin_on_host": "operator", "owner": "host:b", "owner_on_host": "sshd", "address": "2001:db8::1",
            "also": [{
                "expires_in_seconds": null, "origin": "limit:web", "reason": null, "since": null, "owner": "limit:web",
            }],
            "throttled_packets": 3,
        });
        let least = json!({
            "cidr": "192.0.2.1", "expires_in_seconds": null, "origin": "operator", "reason": null, "since": null,
            "owner": "root", "throttled_packets": 0,
        });
        for document in [whole, least] {
            let row: BansRow = serde_json::from_value(document.clone()).unwrap();
            assert_eq!(serde_json::to_value(&row).unwrap(), document);
            assert_eq!(row.ban.cidr, document["cidr"]);
            assert_eq!(row.ban.holder.owner, document["owner"]);
        }
        // A row of an earlier agent, with fewer fields.
        let row: BansRow = serde_json::from_value(json!({
            "cidr": "192.0.2.1", "expires_in_seconds": 60, "throttled_packets": 1,
        }))
        .unwrap();
        let expected = BanHolder {
            expires_in_seconds: Some(60.0),
            ..BanHolder::default()
        };
        assert_eq!(row.ban.holder, expected);
    }
}
