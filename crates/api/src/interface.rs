//! Interfaces and how a policy is attached to them.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How a program is attached to an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum AttachMode {
    /// In the driver.
    Native,
    /// By the kernel for any driver, after it has allocated a buffer.
    Generic,
    /// In the network stack, by traffic control.
    Tc,
}

impl fmt::Display for AttachMode {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Native => "native",
            Self::Generic => "generic",
            Self::Tc => "tc",
        })
    }
}

/// The interface that charges the packets of a configured interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    #[serde(rename = "name")]
    pub interface: String,
    /// The interfaces that charge its packets instead; empty if it charges them itself.
    pub enforced_by: Vec<String>,
    /// Why other interfaces charge them.
    pub reason: Option<String>,
    /// Packets of the interface that are not limited, and the fix.
    pub gap: Option<String>,
}

impl Placement {
    /// Whether the interface charges its packets itself.
    #[must_use]
    pub fn enforces(&self) -> bool {
        self.enforced_by.is_empty()
    }
}
