//! A program on a hook, and whether the kernel still reports it there.

use std::time::Instant;

use api::interface::AttachMode;
use bpf::link::Link as BpfLink;
use common::packet::Link;

use crate::devices::sent;
use crate::hooks::hook::HookOf;
use crate::hooks::pins::PinDirectory;
use crate::hooks::traffic_control;

/// A hook with a program of this policy.
#[derive(Debug)]
pub struct Attached {
    /// The interface's name at the last reading.
    pub interface: String,
    /// All of its names then, with the alternative ones.
    pub(crate) names: Vec<String>,
    pub index: u32,
    /// The hook's kind.
    pub mode: AttachMode,
    /// The header of its frames when it was attached.
    pub(crate) frames: Link,
    pub(crate) of: HookOf,
    /// The ID of its program.
    pub(crate) program: u32,
    pub(crate) note: Option<String>,
    /// `None` for a filter. The pin keeps the link after this is dropped.
    pub(crate) link: Option<BpfLink>,
    /// When its program was first found detached.
    pub(crate) lost: Option<Instant>,
    /// [`sent::lost`] when it was attached.
    pub(crate) unsent: u64,
}

/// An interface that was attached or detached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Its name, or the pattern.
    pub interface: String,
    /// Whether it is attached now.
    pub is_attached: bool,
    pub reason: String,
}

impl Attached {
    /// Whether the kernel reports its program on its hook.
    #[must_use]
    pub fn is_in_effect(&self, pins: &PinDirectory) -> bool {
        match &self.link {
            Some(link) => link
                .info()
                .is_ok_and(|now| now.interface == self.index && now.program == self.program),
            None => traffic_control::filter(pins, self.of)
                .is_ok_and(|program| program == Some(self.program)),
        }
    }

    /// A note on replies that the driver has lost since the program was attached.
    #[must_use]
    pub(crate) fn unsent_note(&self) -> Option<String> {
        let unsent = sent::lost(&self.interface).saturating_sub(self.unsent);
        (unsent > 0).then(|| {
            format!(
                "replies are lost: the driver of {} did not send {unsent} frames for XDP; set attach = \"tc\"",
                self.interface
            )
        })
    }

    /// A note for the operator.
    #[must_use]
    pub fn note(&self) -> Option<&str> {
        self.note.as_deref()
    }
}
