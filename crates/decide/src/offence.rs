//! Offences: a source that a limit on packets or requests keeps refusing.

use std::sync::Arc;
use std::time::Duration;

use config::policy::Escalate;
use config::{PrefixKey, human};

/// A source whose refusals lead to a ban.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offence {
    /// The limit's name.
    pub limit: Arc<str>,
    pub scope: Scope,
    /// The source's address or prefix.
    pub prefix: PrefixKey,
    /// The limit's `escalate`.
    pub escalate: Escalate,
}

/// The kind of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Packet,
    Request,
}

impl Offence {
    /// The reason of the ban.
    #[must_use]
    pub fn reason(&self) -> String {
        let unit = match self.scope {
            Scope::Packet => "packets",
            Scope::Request => "requests",
        };
        let within = human::time(Duration::from_nanos(self.escalate.within));
        format!(
            "limit {:?} refused {} {unit} within {within}",
            &*self.limit, self.escalate.after
        )
    }
}
