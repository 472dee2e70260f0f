//! The operations of a store of rules.

use std::time::Duration;

use thiserror::Error;

/// The most bytes of an object: a signed release with its signature.
pub(super) const MOST_BYTES: u64 = 8 << 20;

/// A store cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum StoreError {
    #[error("{0}")]
    Unavailable(String),
    /// It replies, and refuses the request, such as to write.
    #[error("{0}")]
    ReadOnly(String),
    /// An object is not what it should be.
    #[error("{name} in the store is invalid: {reason}")]
    Invalid { name: String, reason: String },
    #[error("{0} is missing in the store; publish the rules again")]
    Missing(String),
    #[error("another writer changed {0} at the same time; try again")]
    Contended(String),
}

/// An object, and what identifies its content in a later request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Object {
    pub(super) text: String,
    pub(super) tag: Option<String>,
}

/// The result of a request for an object.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Found {
    Missing,
    /// It still has the tag of the request.
    Unchanged,
    Object(Object),
}

impl Found {
    /// The result for a text whose tag is the text itself.
    pub(super) fn of_text(text: Option<String>, tag: Option<&str>) -> Self {
        match text {
            None => Self::Missing,
            Some(text) if tag == Some(&text) => Self::Unchanged,
            Some(text) => Self::Object(Object {
                tag: Some(text.clone()),
                text,
            }),
        }
    }
}

/// The pause between two checks of a store that may lose changes.
pub(super) const SETTLES: Duration = Duration::from_millis(500);

/// A store's operations. Names are paths, such as `web/index`.
pub(super) trait Store: Send {
    /// Reads an object, unless it has this tag.
    fn read(&mut self, name: &str, tag: Option<&str>) -> Result<Found, StoreError>;

    /// Replaces an object in one step.
    fn write(&mut self, name: &str, text: &str) -> Result<(), StoreError>;

    /// Replaces an object by what `change` makes of its text, `None` for a missing one. The store does it on the condition
    /// that nobody else has changed the object meanwhile, if it can.
    fn change(
        &mut self,
        name: &str,
        change: &mut dyn FnMut(Option<&str>) -> Result<String, StoreError>,
    ) -> Result<(), StoreError>;

    /// The time between two checks that a change has not been lost to a writer that had read the object before it; `None` for
    /// a store that loses no change.
    fn settles(&self) -> Option<Duration>;

    /// The names of the objects in a folder.
    fn list(&mut self, folder: &str) -> Result<Vec<String>, StoreError>;
}
