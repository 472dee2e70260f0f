//! Alerts: what Weir's own limits banned, for CrowdSec and its other bouncers.

use std::time::{Duration, SystemTime};

use config::PrefixKey;
use http_client::{Bounds, Client};
use humantime::format_rfc3339_seconds;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::duration::write_go_duration;
use crate::lapi::{LapiError, unexpected};

/// A ban that a limit made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Alert {
    /// The limit's name.
    pub limit: String,
    /// The banned source.
    pub prefix: PrefixKey,
    /// The reason as text.
    pub message: String,
    /// The refusals that led to it.
    pub count: u64,
    /// The time in which they occurred.
    pub within: Duration,
    /// The instant of the ban.
    pub at: SystemTime,
    /// The ban's duration.
    pub ban: Duration,
}

impl Alert {
    /// The instant at which the ban ends.
    #[must_use]
    pub fn ends(&self) -> SystemTime {
        self.at + self.ban
    }

    /// The alert as the API takes it, with a decision for the rest of the ban.
    fn document(&self, origin: &str, now: SystemTime) -> Value {
        let value = self.prefix.to_string();
        let scope = if value.contains('/') { "Range" } else { "Ip" };
        let scenario = format!("weir/{}", self.limit);
        let left = self.ends().duration_since(now).unwrap_or_default();
        let nanoseconds = u64::try_from(left.as_nanos()).unwrap_or(u64::MAX);
        let source = if scope == "Ip" {
            json!({ "scope": scope, "value": value, "ip": value })
        } else {
            json!({ "scope": scope, "value": value, "range": value })
        };
        let start =
            format_rfc3339_seconds(self.at.checked_sub(self.within).unwrap_or(self.at)).to_string();
        json!({
            "scenario": scenario,
            "scenario_hash": "",
            "scenario_version": "",
            "message": format!("{value}: {}", self.message),
            "events_count": i32::try_from(self.count).unwrap_or(i32::MAX),
            "start_at": start,
            "stop_at": format_rfc3339_seconds(self.at).to_string(),
            "capacity": 0,
            "leakspeed": "0",
            "simulated": false,
            "remediation": true,
            "events": [],
            "source": source,
            "decisions": [{
                "duration": write_go_duration(nanoseconds),
                "origin": origin,
                "scenario": scenario,
                "scope": scope,
                "simulated": false,
                "type": "ban",
                "value": value,
            }],
        })
    }
}

/// A machine's requests: it logs in and sends alerts.
#[derive(Debug)]
pub struct Machine {
    client: Client,
    url: String,
    id: String,
    password: String,
    token: Option<String>,
}

#[derive(Deserialize)]
struct Login {
    #[serde(default)]
    token: String,
}

impl Machine {
    #[must_use]
    pub fn new(url: &str, id: String, password: String, timeout: Duration) -> Self {
        let client = Client::new(Bounds {
            timeout,
            ..Bounds::default()
        });
        Self {
            client,
            url: url.trim_end_matches('/').to_owned(),
            id,
            password,
            token: None,
        }
    }

    /// The origin of decisions that this machine makes.
    #[must_use]
    pub fn origin(machine: &str) -> String {
        format!("weir:{machine}")
    }

    /// Sends alerts.
    ///
    /// # Errors
    ///
    /// When the API does not accept them.
    pub fn send(&mut self, alerts: &[Alert], now: SystemTime) -> Result<(), LapiError> {
        let origin = Self::origin(&self.id);
        let body: Value = alerts
            .iter()
            .map(|alert| alert.document(&origin, now))
            .collect();
        let body = body.to_string();
        let is_old = self.token.is_some();
        match self.post_alerts(&body) {
            // The token has expired.
            Err(LapiError::Machine(_)) if is_old => {
                self.token = None;
                self.post_alerts(&body)
            }
            result => result,
        }
    }

    fn post_alerts(&mut self, body: &str) -> Result<(), LapiError> {
        let token = match &self.token {
            Some(token) => token.clone(),
            None => self.token.insert(self.log_in()?).clone(),
        };
        let authorization = format!("Bearer {token}");
        let headers = [
            ("Content-Type", "application/json"),
            ("Authorization", &*authorization),
        ];
        let response = self.client.post(
            &format!("{}/v1/alerts", self.url),
            &headers,
            body.as_bytes(),
        )?;
        match response.status {
            200..=299 => Ok(()),
            status @ (401 | 403) => {
                self.token = None;
                Err(LapiError::Machine(status))
            }
            _ => Err(unexpected(&response)),
        }
    }

    fn log_in(&self) -> Result<String, LapiError> {
        let body = json!({ "machine_id": self.id, "password": self.password, "scenarios": [] })
            .to_string();
        let url = format!("{}/v1/watchers/login", self.url);
        let response = self.client.post(
            &url,
            &[("Content-Type", "application/json")],
            body.as_bytes(),
        )?;
        match response.status {
            200 => {
                let login: Login =
                    serde_json::from_slice(&response.body).map_err(|_| LapiError::Token)?;
                let is_token = !login.token.is_empty()
                    && login.token.bytes().all(|byte| byte.is_ascii_graphic());
                if is_token {
                    Ok(login.token)
                } else {
                    Err(LapiError::Token)
                }
            }
            status @ (401 | 403) => Err(LapiError::Machine(status)),
            _ => Err(unexpected(&response)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_alert_has_the_rest_of_the_ban() {
        let prefix = |text: &str| {
            PrefixKey::from(&config::prefix::parse(text).unwrap_or_else(|_| panic!("{text}")))
        };
        let at = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let alert = Alert {
            limit: "logins".to_owned(),
            prefix: prefix("192.0.2.7"),
            message: "limit \"logins\" refused 20 requests within 1 min".to_owned(),
            count: 20,
            within: Duration::from_secs(60),
            at,
            ban: Duration::from_secs(300),
        };
        let document = alert.document("weir:web-1", at + Duration::from_secs(100));
        let decision = &document["decisions"][0];
        assert_eq!(
            (&decision["duration"], &decision["value"]),
            (&"200s".into(), &"192.0.2.7".into())
        );
        assert_eq!(
            (&decision["scope"], &decision["origin"]),
            (&"Ip".into(), &"weir:web-1".into())
        );
        assert_eq!(document["start_at"], "1970-01-12T13:45:40Z");
        let network = Alert {
            prefix: prefix("2001:db8::/64"),
            ..alert
        };
        let document = network.document("weir:web-1", at);
        assert_eq!(
            (&document["source"]["scope"], &document["source"]["range"]),
            (&"Range".into(), &"2001:db8::/64".into())
        );
    }
}
