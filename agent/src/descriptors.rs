//! How many clients each listener serves at a time: none may use up the file descriptors of the others.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Descriptors of the agent's own: maps, programs, links, rings, listeners, files that are read for an instant.
const OWN: u64 = 96;
/// Places of the control socket are of three kinds: root's, everybody else's, and those of requests that wait.
const KINDS_OF_CONTROL: usize = 3;

/// The most clients at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// Of the control socket, of each kind.
    pub control: usize,
    /// Scrapers.
    pub metrics: usize,
    /// Applications over HTTP.
    pub http: usize,
    /// Applications over gRPC.
    pub grpc: usize,
}

impl Places {
    /// With as many descriptors as anybody could want.
    const ALL: Self = Self { control: 128, metrics: 64, http: 4_096, grpc: 4_096 };

    /// With so many descriptors in all.
    const fn within(descriptors: u64) -> Self {
        let rest = descriptors.saturating_sub(OWN) as usize;
        let control = within(rest / 12, 4, Self::ALL.control);
        let metrics = within(rest / 16, 2, Self::ALL.metrics);
        let taken = KINDS_OF_CONTROL * control + crate::events::MOST_FOLLOWERS + metrics;
        let each = rest.saturating_sub(taken) / 2;
        Self { control, metrics, http: within(each, 4, Self::ALL.http), grpc: within(each, 4, Self::ALL.grpc) }
    }
}

const fn within(value: usize, least: usize, most: usize) -> usize {
    if value < least {
        least
    } else if value > most {
        most
    } else {
        value
    }
}

/// The places of this process, whose limit of descriptors is raised as far as it may be.
pub fn places() -> Places {
    static PLACES: OnceLock<Places> = OnceLock::new();
    *PLACES.get_or_init(|| {
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        // Where it is refused, the limit stays what it is.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum });
        getrlimit(Resource::Nofile).current.map_or(Places::ALL, Places::within)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_listeners_together_leave_the_agent_its_own_descriptors() {
        for descriptors in [256, 300, 512, 1_024, 4_096, 10_000, 524_288] {
            let Places { control, metrics, http, grpc } = Places::within(descriptors);
            let taken = KINDS_OF_CONTROL * control + crate::events::MOST_FOLLOWERS + metrics + http + grpc;
            assert!(taken as u64 + OWN <= descriptors, "{taken} of {descriptors}");
            assert!(control >= 8 && metrics >= 8 && http >= 16 && grpc >= 16, "too few places of {descriptors}");
        }
        assert_eq!(Places::within(524_288), Places::ALL);
    }
}
