//! `agent decide` and `/v1/decide`: a question about a limit on requests, and the reply.

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
    /// The limit's name.
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
    /// The cost in units; 1 if neither a cost nor a request is given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<u64>,
    /// Evaluate without charging.
    #[serde(default)]
    pub peek: bool,
    /// How long the request may wait in the key's queue until it conforms; without it, it is refused at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait: Option<Wait>,
    /// Set by the server for clients that may not cause bans: a refusal does not count towards a ban of the source by `escalate`.
    #[serde(skip)]
    pub bans_nobody: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// Whether the request may go on.
    pub allowed: bool,
    pub limit: String,
    /// The largest cost that would pass now.
    pub remaining: u64,
    /// Seconds until this cost conforms if nothing else passes; 0 if it passed; `null` if it never can.
    pub retry_after_seconds: Option<f64>,
    /// Seconds until the whole allowance is available again if nothing else passes.
    pub reset_after_seconds: f64,
    /// Seconds in the queue, if it waited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waited_seconds: Option<f64>,
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
        let nanoseconds = units::time(text)
            .map_err(|wrong| format!("invalid wait: {}; write \"500ms\"", wrong.message))?;
        let time = Duration::from_nanos(nanoseconds);
        if time > LONGEST_WAIT {
            return Err(format!(
                "invalid wait {text:?}: a request waits {} at most",
                human::time(LONGEST_WAIT)
            ));
        }
        Ok(Self(time))
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
