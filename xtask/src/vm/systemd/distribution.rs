//! The Debian releases.

use anyhow::{Context as _, Result};

/// A Debian release that Weir's package is tested on.
pub struct Distribution {
    /// The name in its archive.
    pub name: &'static str,
    /// Its kernel.
    pub kernel: &'static str,
}

/// Debian 12 with systemd 252, and Debian 13 with systemd 257.
pub const DISTRIBUTIONS: [Distribution; 2] = [
    Distribution {
        name: "bookworm",
        kernel: "6.1",
    },
    Distribution {
        name: "trixie",
        kernel: "6.12",
    },
];

impl Distribution {
    /// The release of this name.
    pub fn find(name: &str) -> Result<&'static Self> {
        DISTRIBUTIONS
            .iter()
            .find(|known| known.name == name)
            .with_context(|| {
                let known: Vec<&str> = DISTRIBUTIONS.iter().map(|known| known.name).collect();
                format!("unknown guest {name:?}: it is one of {}", known.join(", "))
            })
    }
}
