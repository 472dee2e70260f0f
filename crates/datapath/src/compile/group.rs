//! Limits with a common key.

use common::rule::Rule;

use super::at::LimitAt;

/// The limits that share a slot of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// A rule of the group, whose masks apply to its keys.
    pub key: Rule,
    /// Each state of the slot, with the rule for the default class. A group has a limit at one of its keys only.
    pub states: Vec<(LimitAt, Rule)>,
}

impl Group {
    /// The rules of the states, in their order.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.states.iter().map(|(_, rule)| rule)
    }
}
