//! Interfaces that could not be attached.

use std::time::{Duration, Instant};

use crate::devices::device::Interface;
use crate::error::AttachError;
use crate::hooks::attached::Turn;

/// The time between two attempts on an interface that could not be attached.
pub(crate) const RETRY: Duration = Duration::from_secs(5);

/// An interface that could not be attached.
#[derive(Debug)]
pub struct Trouble {
    pub(crate) device: Interface,
    pub(crate) reason: String,
    is_down: bool,
    /// Whether the kernel may accept the same attempt later, with nothing changed on the host.
    is_temporary: bool,
    /// The last attempt; `None` if the next one is due.
    pub(crate) tried: Option<Instant>,
}

impl Trouble {
    pub(crate) fn new(device: &Interface, error: &AttachError, tried: Option<Instant>) -> Self {
        Self {
            device: device.clone(),
            reason: error.to_string(),
            is_down: matches!(error, AttachError::Down { .. }),
            is_temporary: !error.is_of_the_interface() && !error.is_of_the_hook(),
            tried,
        }
    }

    pub(crate) fn turn(&self) -> Turn {
        Turn {
            interface: self.device.name.clone(),
            is_attached: false,
            reason: self.reason.clone(),
        }
    }

    /// The reason, for the operator.
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }

    /// Whether the reason is that the interface is down.
    #[must_use]
    pub const fn is_down(&self) -> bool {
        self.is_down
    }

    pub(crate) const fn is_temporary(&self) -> bool {
        self.is_temporary
    }

    /// Whether [`RETRY`] has passed since the last attempt.
    pub(crate) fn is_old(&self) -> bool {
        self.tried.is_none_or(|tried| tried.elapsed() >= RETRY)
    }

    /// Whether to retry: the interface has changed, or [`RETRY`] has passed.
    pub(crate) fn is_due(&self, now: &Interface) -> bool {
        let (before, now) = (
            (self.device.is_up, &self.device.link),
            (now.is_up, &now.link),
        );
        before != now || self.is_old()
    }
}
