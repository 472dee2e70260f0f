//! A validated question.

use std::net::IpAddr;

use super::fingerprint::Fingerprint;
use super::sources::SourceClass;

/// A limit, a key of it, and a cost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Charge {
    pub(super) limit: usize,
    pub(super) source_class: SourceClass,
    pub(super) source: Option<IpAddr>,
    pub(super) key: Fingerprint,
    pub(super) cost: u64,
    pub(super) peek: bool,
    /// A refusal does not count towards a ban.
    pub(super) bans_nobody: bool,
}
