//! Limits with a common key.

use common::rule::Rule;

/// The limits that share a slot of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// A rule of the group, whose masks apply to its keys.
    pub key: Rule,
    /// Each state of the slot: (the limit's index in the config, the rule for the default class).
    pub states: Vec<(usize, Rule)>,
}

impl Group {
    /// The rules of the states, in their order.
    pub fn rules(&self) -> impl Iterator<Item = &Rule> {
        self.states.iter().map(|(_, rule)| rule)
    }
}
