//! Documents, keys, rules and the merge; the state machine has tests of its own.

mod documents;
mod keys;
mod merging;
mod rules;
