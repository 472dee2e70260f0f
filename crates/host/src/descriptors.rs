//! The number of clients that each listener serves at a time, so that none uses up the file descriptors of the others.

use std::sync::OnceLock;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// The agent's own descriptors: maps, programs, links, rings, listeners, clients of `weir trace`, files that are open
/// briefly.
const OWN: u64 = 104;
/// The control socket has three kinds of places: root's, other users', and those of waiting requests.
const KINDS_OF_CONTROL: usize = 3;
/// The most followers of events at a time: this many of root's, and as many of other users'.
pub const MOST_FOLLOWERS: usize = 16;

/// The most clients of each listener at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Places {
    /// Clients of the control socket, of each kind.
    pub control: usize,
    pub metrics: usize,
    pub http: usize,
    pub grpc: usize,
}

impl Places {
    /// The maximum, where descriptors do not limit it.
    const ALL: Self = Self {
        control: 128,
        metrics: 64,
        http: 4_096,
        grpc: 4_096,
    };

    /// The places for a limit of `descriptors` in total.
    const fn within(descriptors: u64) -> Self {
        let rest = descriptors.saturating_sub(OWN) as usize;
        let control = within(rest / 12, 4, Self::ALL.control);
        let metrics = within(rest / 16, 2, Self::ALL.metrics);
        let taken = KINDS_OF_CONTROL * control + 2 * MOST_FOLLOWERS + metrics;
        let each = rest.saturating_sub(taken) / 2;
        Self {
            control,
            metrics,
            http: within(each, 4, Self::ALL.http),
            grpc: within(each, 4, Self::ALL.grpc),
        }
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

/// The places of this process, after raising its limit of descriptors to the maximum.
pub fn places() -> Places {
    static PLACES: OnceLock<Places> = OnceLock::new();
    *PLACES.get_or_init(|| {
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        // If this fails, the present limit stays.
        let _ = setrlimit(
            Resource::Nofile,
            Rlimit {
                current: maximum,
                maximum,
            },
        );
        getrlimit(Resource::Nofile)
            .current
            .map_or(Places::ALL, Places::within)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_listeners_together_leave_the_agent_its_own_descriptors() {
        for descriptors in [256, 300, 512, 1_024, 4_096, 10_000, 524_288] {
            let Places {
                control,
                metrics,
                http,
                grpc,
            } = Places::within(descriptors);
            let taken = KINDS_OF_CONTROL * control + 2 * MOST_FOLLOWERS + metrics + http + grpc;
            assert!(
                taken as u64 + OWN <= descriptors,
                "{taken} of {descriptors}"
            );
            assert!(
                control >= 8 && metrics >= 8 && http >= 16 && grpc >= 16,
                "too few places of {descriptors}"
            );
        }
        assert_eq!(Places::within(524_288), Places::ALL);
    }
}
