//! ACKs that proved their source's address by a cookie, and that the kernel never received.
//!
//! Weir answers a SYN before netfilter, which sees such a connection from its first ACK on. A rule can drop that ACK, as invalid
//! or as no SYN, or send it to another host, which does not know the cookie. The client then waits for a server that knows nothing.
//!
//! The kernel counts cookies for all ports together, so that connections to other ports can hide those that do not open.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

use host::syn_cookies;

use super::events::{Event, EventKind, EventLog};
use super::packets::Proving;

/// So many proven ACKs are compared at a time: a few are lost on any network.
const COMPARED: u64 = 10;
/// How long a comparison is of use.
const KEPT: Duration = Duration::from_secs(600);
/// How often it is reported at most.
const REPORTED_EVERY: Duration = Duration::from_secs(600);

/// Proven ACKs of which the kernel received less than half.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unopened {
    pub proven: u64,
    pub opened: u64,
}

impl fmt::Display for Unopened {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { proven, opened } = self;
        write!(
            formatter,
            "of {proven} ACKs that proved their source's address, {opened} opened a connection: rules of netfilter may drop \
             others, as invalid or as no SYN, or send them elsewhere; use prove = \"reset\", or change the rules"
        )
    }
}

/// Compares the ACKs that Weir passed with those that the kernel received.
#[derive(Debug, Default)]
struct Openings {
    /// Both counters at the last comparison.
    compared: Option<(u64, u64)>,
    result: Option<(Unopened, Instant)>,
}

impl Openings {
    /// Processes both counters, of which `opened` was read last; returns the last comparison, if there is something to say.
    fn look(&mut self, proven: u64, opened: u64, now: Instant) -> Option<Unopened> {
        let (proven_before, opened_before) = *self.compared.get_or_insert((proven, opened));
        let is_too_old = |(_, at): &(_, Instant)| now.saturating_duration_since(*at) >= KEPT;
        self.result = self.result.filter(|result| !is_too_old(result));
        if proven < proven_before {
            // The counters of another policy.
            *self = Self::default();
        } else if proven == proven_before {
            self.compared = Some((proven, opened));
        } else if proven - proven_before >= COMPARED {
            self.compared = Some((proven, opened));
            let unopened = Unopened {
                proven: proven - proven_before,
                opened: opened.saturating_sub(opened_before),
            };
            self.result = (unopened.opened < unopened.proven / 2).then_some((unopened, now));
        }
        self.result.map(|(unopened, _)| unopened)
    }
}

/// Compares while sources prove their address, and reports.
pub struct Watch {
    openings: Openings,
    events: Arc<EventLog>,
    reported: Option<Instant>,
}

impl Watch {
    pub fn new(events: Arc<EventLog>) -> Self {
        Self {
            openings: Openings::default(),
            events,
            reported: None,
        }
    }

    /// Compares the counters of proofs with the kernel's; returns the last comparison, if there is something to say.
    pub fn look(&mut self, proving: Option<&Proving>) -> Option<Unopened> {
        let Some(proving) = proving else {
            self.openings = Openings::default();
            return None;
        };
        let (opened, now) = (syn_cookies::received()?, Instant::now());
        let unopened = self.openings.look(proving.passed, opened, now)?;
        if self
            .reported
            .is_none_or(|at| now.saturating_duration_since(at) >= REPORTED_EVERY)
        {
            self.reported = Some(now);
            tracing::warn!("{unopened}");
            let count = unopened.proven - unopened.opened;
            self.events
                .push(Event::now(EventKind::Unopened, count, unopened.to_string()));
        }
        Some(unopened)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn unopened(proven: u64, opened: u64) -> Option<Unopened> {
        Some(Unopened { proven, opened })
    }

    #[test]
    fn half_of_ten_proven_acks_have_to_open_a_connection() {
        let (mut openings, now) = (Openings::default(), Instant::now());
        let mut look = |proven, opened| openings.look(proven, opened, now);
        assert_eq!(look(100, 7), None);
        // Too few to say something.
        assert_eq!(look(109, 7), None);
        assert_eq!(look(112, 8), unopened(12, 1));
        assert_eq!(look(121, 17), unopened(12, 1));
        // The kernel also opens those that Weir has not answered.
        assert_eq!(look(122, 90), None);
        assert_eq!(look(132, 95), None);
        assert_eq!(look(142, 99), unopened(10, 4));
    }

    #[test]
    fn what_opens_while_nothing_is_proven_hides_nothing() {
        let (mut openings, now) = (Openings::default(), Instant::now());
        assert_eq!(openings.look(100, 7, now), None);
        assert_eq!(openings.look(100, 900, now), None);
        assert_eq!(openings.look(110, 901, now), unopened(10, 1));
    }

    #[test]
    fn a_comparison_ends_with_its_policy_and_after_ten_minutes() {
        let (mut openings, now) = (Openings::default(), Instant::now());
        assert_eq!(openings.look(0, 0, now), None);
        assert_eq!(openings.look(10, 0, now), unopened(10, 0));
        assert_eq!(openings.look(10, 0, now + KEPT / 2), unopened(10, 0));
        assert_eq!(openings.look(10, 0, now + KEPT), None);
        assert_eq!(openings.look(20, 0, now + KEPT), unopened(10, 0));
        assert_eq!(openings.look(3, 0, now + KEPT), None);
        // From there on.
        assert_eq!(openings.look(3, 100, now + KEPT), None);
        assert_eq!(openings.look(13, 103, now + KEPT), unopened(10, 3));
    }
}
