//! Resolves the names in matchers again, as the host changes.

use std::time::{Duration, Instant};

use super::groups::Groups;

/// The interval at which symbolic links are followed again.
const LINKS: Duration = Duration::from_secs(5);

/// The last resolution of names.
#[derive(Clone, Copy, Debug)]
pub struct Resolution {
    followed: Instant,
}

impl Default for Resolution {
    fn default() -> Self {
        Self {
            followed: Instant::now(),
        }
    }
}

impl Groups {
    /// Resolves names again if the interval has passed.
    pub(super) fn resolve_again(&mut self) {
        if self.resolution.followed.elapsed() >= LINKS {
            self.matchers.follow_links();
            self.resolution.followed = Instant::now();
        }
    }
}
