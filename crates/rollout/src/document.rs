//! Signed documents: releases of rules, and aborts. TOML, so that people can read them in the store.

use std::collections::BTreeMap;
use std::time::{Duration, SystemTime};

use serde::{Deserialize, Serialize};

use crate::canary::{Canary, Share};
use crate::refusal::Refusal;
use crate::text::{self, is_plain};

/// The shortest bake: a host has checked its health several times by then.
pub const SHORTEST_BAKE: Duration = Duration::from_secs(10);
/// The longest bake.
pub const LONGEST_BAKE: Duration = Duration::from_secs(7 * 86_400);
/// The longest bake of a team: releases of the fleet and of other teams wait for it.
pub const LONGEST_BAKE_OF_TEAM: Duration = Duration::from_secs(3_600);

/// Any signed document. The kind is signed, so that none passes for another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Document {
    Release(Release),
    Abort(Abort),
}

/// Rules of a stream. A stream is the place in the store that a host follows, such as `web`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Release {
    pub stream: String,
    /// Only grows, from 1.
    pub version: u64,
    /// The version that the publisher replaced; 0 for the first.
    pub previous: u64,
    /// The publisher's name, for people.
    pub publisher: String,
    /// For people: hosts do not compute with it.
    #[serde(with = "text::time")]
    pub published: SystemTime,
    /// Until when hosts begin with it. It stays in effect after that.
    #[serde(with = "text::time")]
    pub expires: SystemTime,
    /// How long each host checks its health before it keeps the rules.
    #[serde(with = "text::period")]
    pub bake: Duration,
    pub canary: Canary,
    /// The labels of the hosts that it is for; empty: all.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub select: BTreeMap<String, String>,
    /// The most that limits are predicted to refuse, by name: a share of their units. Of a limit without one, hosts predict
    /// what it refused before.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub predicted: BTreeMap<String, Share>,
    #[serde(rename = "object")]
    pub objects: Vec<Object>,
}

/// A file of rules: `rules.toml`, or `limits/NAME.toml` with one limit.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Object {
    pub name: String,
    pub text: String,
}

impl Object {
    #[must_use]
    pub fn new(name: impl Into<String>, text: impl Into<String>) -> Self {
        Self {
            name: name.into(),
            text: text.into(),
        }
    }
}

/// Ends a release: hosts that have it in effect return to the rules before it, others do not begin with it. It is
/// bound to a version, so that a replay repeats only what the publisher decided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Abort {
    pub stream: String,
    pub version: u64,
    pub publisher: String,
    #[serde(with = "text::time")]
    pub published: SystemTime,
    pub reason: String,
}

impl Document {
    /// Reads the text of a verified object.
    ///
    /// # Errors
    ///
    /// When it is not such a document.
    pub fn parse(text: &str) -> Result<Self, Refusal> {
        let malformed =
            |error: toml::de::Error| Refusal::Malformed(error.to_string().trim_end().to_owned());
        let document: Self = toml::from_str(text).map_err(malformed)?;
        if let Self::Release(release) = &document {
            release.check().map_err(Refusal::Malformed)?;
        }
        Ok(document)
    }

    pub(crate) fn to_text(&self) -> Result<String, toml::ser::Error> {
        toml::to_string_pretty(self)
    }

    /// Its kind, for messages.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Release(_) => "a release",
            Self::Abort(_) => "an abort",
        }
    }

    /// A line about it for its signature.
    pub(crate) fn title(&self) -> String {
        match self {
            Self::Release(Release {
                stream, version, ..
            }) => format!("release {stream} {version}"),
            Self::Abort(Abort {
                stream, version, ..
            }) => format!("abort {stream} {version}"),
        }
    }
}

impl Release {
    /// Checks what does not depend on host, keys or objects.
    pub(crate) fn check(&self) -> Result<(), String> {
        for (what, name) in [("stream", &self.stream), ("publisher", &self.publisher)] {
            if !is_plain(name) {
                return Err(format!("invalid {what} {name:?}"));
            }
        }
        // Numbers of TOML have no more bits.
        if self.version > i64::MAX as u64 {
            return Err(format!("version {} is above 2⁶³ - 1", self.version));
        }
        if self.version <= self.previous {
            return Err(format!(
                "version {} does not follow version {}",
                self.version, self.previous
            ));
        }
        if !(SHORTEST_BAKE..=LONGEST_BAKE).contains(&self.bake) {
            let [bake, shortest, longest] =
                [self.bake, SHORTEST_BAKE, LONGEST_BAKE].map(humantime::format_duration);
            return Err(format!(
                "bake is {bake}, and may be {shortest} to {longest}"
            ));
        }
        if self.objects.is_empty() {
            return Err("it has no object".to_owned());
        }
        let mut names = std::collections::BTreeSet::new();
        for Object { name, .. } in &self.objects {
            let is_known = name == "rules.toml" || limit_of(name).is_some();
            if !is_known {
                return Err(format!(
                    "invalid object {name:?}: names are rules.toml and limits/NAME.toml"
                ));
            }
            if !names.insert(name) {
                return Err(format!("duplicate object {name:?}"));
            }
        }
        Ok(())
    }

    /// Whether a host with these labels is selected.
    #[must_use]
    pub fn is_for(&self, labels: &BTreeMap<String, String>) -> bool {
        let has = |(key, value): (&String, &String)| labels.get(key) == Some(value);
        self.select.iter().all(has)
    }

    /// The selected labels, for messages: `role=web, zone=a`.
    #[must_use]
    pub fn selection(&self) -> String {
        let pairs = self.select.iter();
        let pairs: Vec<String> = pairs.map(|(key, value)| format!("{key}={value}")).collect();
        pairs.join(", ")
    }

    /// The texts of all objects by name.
    #[must_use]
    pub fn texts(&self) -> BTreeMap<String, String> {
        let objects = self.objects.iter();
        objects
            .map(|object| (object.name.clone(), object.text.clone()))
            .collect()
    }
}

/// The limit that an object of a name has: `limits/NAME.toml`.
#[must_use]
pub fn limit_of(object: &str) -> Option<&str> {
    let name = object.strip_prefix("limits/")?.strip_suffix(".toml")?;
    is_plain(name).then_some(name)
}
