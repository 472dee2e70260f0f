//! What an operator believes of the host.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::support::Agent;

/// The sources that send packets.
pub const SOURCES: [&str; 3] = ["10.77.0.7", "10.77.0.8", "10.77.0.10"];

/// When a ban ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    ByItself,
    WhenLifted,
}

/// The host's state, as far as tasks of the tour change it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct State {
    /// The rate of the limit `web`.
    pub rate: String,
    /// The file on trial.
    pub trial: Option<String>,
    /// By prefix and owner.
    pub bans: BTreeMap<(String, String), Ends>,
    /// The prefixes that `weir allow` exempts.
    pub exempt: BTreeSet<String>,
    /// What is left to [`SOURCES`] under `web`.
    pub left: [u64; 3],
    /// Packets that `web` has passed and refused.
    pub counted: (u64, u64),
    /// The state of the recording.
    pub recording: String,
}

impl State {
    /// Reads it from the running agent.
    pub fn read(agent: &Agent<'_>) -> Self {
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let status = agent.json(&["status"]);
        let limits = status["limits"].as_array().unwrap();
        let web = limits.iter().find(|limit| limit["name"] == "web").unwrap();
        let file = |trial: &Value| {
            let path = trial["file"].as_str()?;
            path.rsplit('/').next().map(str::to_owned)
        };
        let bans = agent.json(&["bans"]);
        let ban = |row: &Value| {
            let ends = if row["expires_in_seconds"].is_null() {
                Ends::WhenLifted
            } else {
                Ends::ByItself
            };
            ((text(&row["cidr"]), text(&row["owner"])), ends)
        };
        let exempt = agent.json(&["allow", "--list"]);
        let exempt = exempt.as_array().unwrap().iter();
        Self {
            rate: text(&web["rate"]),
            trial: file(&status["trial"]),
            bans: bans.as_array().unwrap().iter().map(ban).collect(),
            exempt: exempt.map(|row| text(&row["cidr"])).collect(),
            left: SOURCES.map(|source| agent.remaining(source, "web")),
            counted: agent.counts("web"),
            recording: text(&agent.json(&["record", "--status"])["state"]),
        }
    }

    pub fn ban(&mut self, cidr: &str, owner: &str, ends: Ends) {
        self.bans.insert((cidr.to_owned(), owner.to_owned()), ends);
    }

    pub fn unban(&mut self, cidr: &str, owner: &str) {
        self.bans.remove(&(cidr.to_owned(), owner.to_owned()));
    }

    /// A file is on trial, by which all sources have this whole allowance.
    pub fn tries(&mut self, file: &str, rate: &str, left: u64) {
        self.trial = Some(file.to_owned());
        self.is_limited_by(rate, left);
    }

    /// No file is on trial; the rate and allowance are those of before.
    pub fn ends_trial(&mut self, rate: &str, left: u64) {
        self.trial = None;
        self.is_limited_by(rate, left);
    }

    fn is_limited_by(&mut self, rate: &str, left: u64) {
        rate.clone_into(&mut self.rate);
        self.left = [left; 3];
    }
}
