//! A validated question.

use std::net::IpAddr;
use std::time::Duration;

use super::fingerprint::Fingerprint;
use super::sources::SourceClass;

/// What becomes of a cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ChargeKind {
    /// It is charged if it conforms.
    Conforming,
    /// It is charged.
    Forced,
    /// It is returned.
    Refund,
    /// It is evaluated, and not charged.
    Peek,
}

impl Charge {
    pub(super) fn is_peek(&self) -> bool {
        self.kind == ChargeKind::Peek
    }

    /// Whether the state decides, so that requests which wait for the key are ahead of it.
    pub(super) fn may_be_refused(&self) -> bool {
        matches!(self.kind, ChargeKind::Conforming | ChargeKind::Peek)
    }
}

/// A limit, a key of it, and a cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Charge {
    pub(super) limit: usize,
    pub(super) source_class: SourceClass,
    pub(super) source: Option<IpAddr>,
    /// Of the key's current state: see [`Engine::current`](super::engine::Engine::current).
    pub(super) key: Fingerprint,
    /// Of the key itself.
    pub(super) named: Fingerprint,
    /// The time until the calendar's period and the state end.
    pub(super) left: Option<Duration>,
    pub(super) cost: u64,
    pub(super) kind: ChargeKind,
    /// A refusal does not count towards a ban.
    pub(super) bans_nobody: bool,
}
