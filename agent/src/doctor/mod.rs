//! What this host can and cannot do for a config, with the fix: the document behind `agent doctor`.

mod host;
mod interfaces;
#[cfg(test)]
mod tests;

use serde::Serialize;

use crate::config::policy::{Action, Config};
use crate::datapath::{interface_names, lacking_for_shape};
use crate::groups;

/// How something stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// As it should be.
    Good,
    /// Works, but not as well as it could, or not all of it; or it matters only for what this config does not use.
    Limited,
    /// The config cannot be put in force without.
    Missing,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What.
    pub name: String,
    /// How it stands.
    pub verdict: Verdict,
    /// What was found.
    pub found: String,
    /// What to do; a command where one does it.
    pub fix: Option<String>,
}

impl Check {
    fn good(name: impl Into<String>, found: impl Into<String>) -> Self {
        Self { name: name.into(), verdict: Verdict::Good, found: found.into(), fix: None }
    }

    fn limited(name: impl Into<String>, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name: name.into(), verdict: Verdict::Limited, found: found.into(), fix: Some(fix.into()) }
    }

    fn missing(name: impl Into<String>, found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self { name: name.into(), verdict: Verdict::Missing, found: found.into(), fix: Some(fix.into()) }
    }

    /// Missing if it is needed, and limited otherwise.
    fn lacking(is_needed: Needed, name: &str, found: impl Into<String>, fix: impl Into<String>) -> Self {
        match is_needed {
            Needed::Yes => Self::missing(name, found, fix),
            Needed::No => Self::limited(name, found, fix),
        }
    }
}

/// Whether the config needs something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Needed {
    Yes,
    No,
}

impl From<bool> for Needed {
    fn from(is_needed: bool) -> Self {
        if is_needed { Self::Yes } else { Self::No }
    }
}

/// All that was looked at.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Whether everything that the config needs is there.
    pub ok: bool,
    /// Of the host.
    pub host: Vec<Check>,
    /// Of each interface.
    pub interfaces: Vec<interfaces::Interface>,
}

/// Looks at this host for a config. Changes nothing.
#[must_use]
pub fn examine(config: &Config) -> Report {
    let host = host::checks(config);
    let interfaces = interfaces::examine(config);
    let all = host.iter().chain(interfaces.iter().flat_map(|interface| &interface.checks));
    let ok = all.into_iter().all(|check| check.verdict != Verdict::Missing);
    Report { ok, host, interfaces }
}

/// What this host lacks for the config, as far as anybody may see; for `check`.
#[must_use]
pub fn lacking(config: &Config) -> Vec<String> {
    let mut lacking = Vec::new();
    let names = interface_names();
    for pattern in &config.agent.interfaces {
        if !names.iter().any(|name| pattern.matches(name)) {
            lacking.push(format!("an interface {pattern}: it has {}", names.join(", ")));
        }
    }
    if !config.limits.is_empty() && !std::path::Path::new("/sys/fs/bpf").exists() {
        lacking.push("BPF: there is no /sys/fs/bpf".to_owned());
    }
    if shapes(config) {
        let held = names.iter().filter(|name| config.agent.interfaces.iter().any(|pattern| pattern.matches(name)));
        lacking.extend(
            held.filter_map(|name| lacking_for_shape(name, &config.limits)).map(|why| format!("spacing: {why}")),
        );
    }
    lacking.extend(groups::lacking(config));
    lacking
}

fn shapes(config: &Config) -> bool {
    config.limits.iter().any(|limit| limit.action == Action::Shape)
}
