//! Changes of what is attached, for events.

/// An interface that was attached or detached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Its name, or the pattern.
    pub interface: String,
    /// Whether it is attached now.
    pub is_attached: bool,
    pub reason: String,
}
