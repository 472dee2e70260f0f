//! Counted outcomes of packets, and events of the table.

/// The counters of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Passed all rules of its span; counted at the span's first rule only.
    Passed,
    /// Refused by this rule.
    Throttled,
    /// Would have been refused by this rule if it were not on `observe`.
    WouldThrottle,
    /// Passed above the limit, because it is soft, marks packets, or is elastic while the host has spare CPU time.
    Over,
    /// Refused by this rule because other CPUs locked the set or kept changing the state; counted in addition to
    /// [`Outcome::Throttled`].
    Contended,
}

/// Events of the table of sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableEvent {
    /// A key whose state had not decayed was evicted for one that is as busy.
    Evicted,
    /// A new key found no room and passed uncounted.
    FullPassed,
    /// A new key found no room and was refused.
    FullThrottled,
    /// A new key found no room and was counted in the shared bucket.
    FullShared,
    /// A packet was refused because other CPUs locked its set or kept changing its state.
    Contended,
}
