//! The properties of a unit that Weir set: recorded, compared and restored.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::error::GroupsError;
use super::properties;
use super::units::{Properties, Units, Value};

/// The properties of a unit that Weir set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// The values before.
    pub before: Properties,
    /// The values that systemd reported afterwards.
    pub set: Properties,
    /// The properties that another program had set until the next boot: their files stay.
    #[serde(default)]
    pub at_runtime: BTreeSet<String>,
    /// The files of runtime properties as Weir's request left them. A file with another text is another program's.
    #[serde(default)]
    pub files: BTreeMap<String, String>,
}

impl Changed {
    /// Whether a property still has Weir's value.
    pub fn is_ours(&self, name: &str, now: &Properties) -> bool {
        // Earlier versions did not record the values that they set.
        self.before.contains_key(name)
            && self.set.get(name).is_none_or(|set| {
                now.get(name)
                    .is_some_and(|now| properties::is_same(name, set, now))
            })
    }

    /// Whether a property has Weir's value, and that is `value`.
    pub fn has(&self, name: &str, value: &Value, now: &Properties) -> bool {
        self.is_ours(name, now)
            && self
                .set
                .get(name)
                .is_some_and(|set| properties::is_same(name, set, value))
    }

    /// The properties as they would be without Weir.
    pub fn without(&self, now: &Properties) -> Properties {
        let value = |(name, now_set): (&String, &Value)| {
            let before = self.before.get(name).filter(|_| self.is_ours(name, now));
            (name.clone(), before.unwrap_or(now_set).clone())
        };
        now.iter().map(value).collect()
    }

    /// The properties among `files` that another program has set until the next boot.
    pub fn others(&self, files: &BTreeMap<String, String>, now: &Properties) -> BTreeSet<String> {
        let is_others = |(name, text): &(&String, &String)| match self.files.get(*name) {
            Some(ours) if ours == *text => {
                self.at_runtime.contains(*name) && self.is_ours(name, now)
            }
            Some(_) => true,
            // Earlier versions did not record their files; nor did an agent that was killed meanwhile.
            None => !self.is_ours(name, now) || self.at_runtime.contains(*name),
        };
        let files = files.iter().filter(is_others);
        files.map(|(name, _)| name.clone()).collect()
    }

    /// Restores the properties of a unit that no other program has set since.
    pub fn put_back(&self, units: &dyn Units, unit: &str) -> Result<(), GroupsError> {
        let all = names(&self.before);
        let now = units.get(unit, &all)?;
        let mut back = self.before.clone();
        back.retain(|name, _| self.is_ours(name, &now));
        // Another file of the unit decides these; Weir's would again if that one is removed.
        let hidden: Vec<String> = units
            .runtime_files(unit, &all)
            .into_iter()
            .filter(|(name, text)| !back.contains_key(name) && self.files.get(name) == Some(text))
            .map(|(name, _)| name)
            .collect();
        if !back.is_empty() {
            units.set(unit, &back)?;
            self.forget(units, unit, &back);
        }
        if !hidden.is_empty() {
            let hidden: Vec<&str> = hidden.iter().map(String::as_str).collect();
            units.forget(unit, &hidden);
        }
        Ok(())
    }

    /// Removes Weir's own files of properties that it does not limit any more: they would be taken for the unit's.
    pub fn forget_own<'n>(
        &self,
        units: &dyn Units,
        unit: &str,
        dropped: impl Iterator<Item = &'n str>,
    ) {
        let mut dropped: Vec<&str> = dropped.collect();
        if dropped.is_empty() {
            return;
        }
        let files = units.runtime_files(unit, &dropped);
        dropped.retain(|name| {
            let ours = self.files.get(*name);
            ours.is_some() && ours == files.get(*name)
        });
        if !dropped.is_empty() {
            units.forget(unit, &dropped);
        }
    }

    /// Removes the files of restored properties, except those that had one before.
    pub fn forget(&self, units: &dyn Units, unit: &str, back: &Properties) {
        let mut own = names(back);
        own.retain(|name| !self.at_runtime.contains(*name));
        if !own.is_empty() {
            units.forget(unit, &own);
        }
    }
}

pub fn names(properties: &Properties) -> Vec<&str> {
    properties.keys().map(String::as_str).collect()
}
