//! `weir decide` and `/v1/decide`: a question about a limit on requests, and the reply.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

use config::{human, units};
use serde::{Deserialize, Serialize};

/// A request: one limit, one key, one cost.
#[derive(Clone, Debug, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Question {
    /// The limit's name; empty to commit or release.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub limit: String,
    /// Its entries and their values.
    #[serde(default)]
    pub key: BTreeMap<String, String>,
    /// The client's address, for its class and for limits by source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<IpAddr>,
    /// The kind of request, whose formula gives the cost.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<String>,
    /// The values of the formula's variables.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub parameters: BTreeMap<String, f64>,
    /// The cost in units; 1 if neither a cost nor a request is given. A negative cost is a refund.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<i64>,
    /// How the cost is charged; without it, if it conforms.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub charge: Option<ChargeMode>,
    /// Evaluate without charging.
    #[serde(default)]
    pub peek: bool,
    /// How long the request may wait in the key's queue until it conforms; without it, it is refused at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<Wait>,
    /// Charges the cost for this time at most: it is committed or released by the ID in the reply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve: Option<ReserveTime>,
    /// What happens to a reservation when its time is over; without it, it is committed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_expiry: Option<OnExpiry>,
    /// The ID of a reservation to settle by the cost; without a cost, by what was reserved.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The ID of a reservation to return.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
    /// Set by the server for clients that may not cause bans: a refusal does not count towards a ban of the source by `escalate`.
    #[serde(skip)]
    pub bans_nobody: bool,
    /// Set by the server for clients that may not force charges: a commit has at most the reserved units.
    #[serde(skip)]
    pub forces_nothing: bool,
}

impl Question {
    /// Whether it returns units by a negative cost.
    #[must_use]
    pub fn is_refund(&self) -> bool {
        self.cost.is_some_and(|cost| cost < 0)
    }

    /// Whether it charges units that may not conform.
    #[must_use]
    pub fn is_forced(&self) -> bool {
        self.charge == Some(ChargeMode::Force)
    }
}

/// How a cost is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ChargeMode {
    /// Whether it conforms or not: use that is reported after the work.
    Force,
}

/// The end of a reservation that nobody settles.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum OnExpiry {
    /// The reserved cost stays charged.
    #[default]
    Commit,
    /// The reserved cost is returned.
    Release,
}

impl FromStr for OnExpiry {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "commit" => Ok(Self::Commit),
            "release" => Ok(Self::Release),
            _ => Err("write commit or release".to_owned()),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Whether the request may go on.
    pub allowed: bool,
    pub limit: String,
    /// The largest cost that would pass now; below zero after forced charges.
    pub remaining: i64,
    /// Seconds until this cost conforms if nothing else passes; 0 if it passed; `null` if it never can.
    pub retry_after_seconds: Option<f64>,
    /// Seconds until the whole allowance is available again if nothing else passes.
    pub reset_after_seconds: f64,
    /// The rate that decides: 0 is `rate`, then `tiers` in their order. Of a refusal the one with the longest wait, else the one
    /// with the fewest units left.
    #[serde(default, skip_serializing_if = "is_first")]
    pub tier: usize,
    /// The largest cost that this rate would pass; for the headers.
    #[serde(skip)]
    pub tier_remaining: u64,
    /// Seconds until the whole allowance of this rate is available; for the headers.
    #[serde(skip)]
    pub tier_reset_after_seconds: f64,
    /// Seconds in the queue, if it waited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_seconds: Option<f64>,
    /// The ID of the reservation, if one was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reservation: Option<String>,
}

const fn is_first(tier: &usize) -> bool {
    *tier == 0
}

/// The longest that a request may wait.
pub const LONGEST_WAIT: Duration = Duration::from_secs(60);

/// How long a request may wait: `500ms` or `2s`, at most a minute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Wait(Duration);

impl Wait {
    #[must_use]
    pub const fn time(self) -> Duration {
        self.0
    }
}

impl FromStr for Wait {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let time = time(text, "wait", "500ms")?;
        if time > LONGEST_WAIT {
            return Err(format!(
                "invalid wait {text:?}: a request waits {} at most",
                human::time(LONGEST_WAIT)
            ));
        }
        Ok(Self(time))
    }
}

fn time(text: &str, name: &str, example: &str) -> Result<Duration, String> {
    let nanoseconds = units::time(text)
        .map_err(|wrong| format!("invalid {name}: {}; write {example:?}", wrong.message))?;
    Ok(Duration::from_nanos(nanoseconds))
}

/// The longest time of a reservation.
pub const LONGEST_RESERVATION: Duration = Duration::from_secs(86_400);

/// How long a reservation may stay open: `30s` or `10min`, at most a day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ReserveTime(Duration);

impl ReserveTime {
    #[must_use]
    pub const fn time(self) -> Duration {
        self.0
    }
}

impl FromStr for ReserveTime {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let time = time(text, "reserve", "30s")?;
        if time.is_zero() || time > LONGEST_RESERVATION {
            return Err(format!(
                "invalid reserve {text:?}: a reservation lasts more than nothing and {} at most",
                human::time(LONGEST_RESERVATION)
            ));
        }
        Ok(Self(time))
    }
}

impl TryFrom<String> for ReserveTime {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<ReserveTime> for String {
    fn from(ReserveTime(time): ReserveTime) -> Self {
        format!("{}ms", time.as_millis().max(1))
    }
}

impl TryFrom<String> for Wait {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Wait> for String {
    fn from(Wait(time): Wait) -> Self {
        format!("{}ms", time.as_millis())
    }
}
