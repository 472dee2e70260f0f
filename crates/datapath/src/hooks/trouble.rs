//! Interfaces that could not be attached.

use std::time::{Duration, Instant};

use crate::devices::device::Interface;
use crate::error::AttachError;
use crate::hooks::follow::Turn;

/// The time between two attempts on an interface that could not be attached.
pub(crate) const RETRY: Duration = Duration::from_secs(5);

/// An interface that could not be attached.
#[derive(Debug)]
pub struct Trouble {
    pub(crate) device: Interface,
    pub(crate) reason: String,
    pub(crate) is_down: bool,
    pub(crate) tried: Instant,
}

impl Trouble {
    pub(crate) fn new(device: &Interface, error: &AttachError) -> Self {
        Self {
            device: device.clone(),
            reason: error.to_string(),
            is_down: matches!(error, AttachError::Down { .. }),
            tried: Instant::now(),
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

    /// Whether to retry: the interface has changed, or [`RETRY`] has passed.
    pub(crate) fn is_due(&self, now: &Interface) -> bool {
        let (before, now) = (
            (self.device.is_up, &self.device.link),
            (now.is_up, &now.link),
        );
        before != now || self.tried.elapsed() >= RETRY
    }
}
