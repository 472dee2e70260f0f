//! Connections whose source has proven its address by a cookie, and that the kernel does not open all the same.
//!
//! Weir answers a SYN before netfilter, which sees such a connection from its first ACK on. A rule can drop that ACK, as invalid
//! or as no SYN, or send it to another host, which does not know the cookie. The client then waits for a server that knows nothing.

use std::fmt;

/// So many proven connections are compared at a time: a few are lost on any network.
const COMPARED: u64 = 10;

/// Proven connections of which the kernel opened less than half.
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
            "of {proven} connections whose source proved its address, the kernel opened {opened}: netfilter drops their first \
             ACK, as invalid or as no SYN, or sends it elsewhere; use prove = \"reset\", or change its rules"
        )
    }
}

/// Compares the connections that Weir passed with those that the kernel opened.
#[derive(Debug, Default)]
pub struct Openings {
    /// Both counters at the last comparison.
    compared: Option<(u64, u64)>,
    result: Option<Unopened>,
}

impl Openings {
    /// Processes both counters, of which `opened` was read last; returns the last comparison, if there is something to say.
    pub fn look(&mut self, proven: u64, opened: u64) -> Option<Unopened> {
        let (proven_before, opened_before) = *self.compared.get_or_insert((proven, opened));
        let (Some(more_proven), Some(more_opened)) = (
            proven.checked_sub(proven_before),
            opened.checked_sub(opened_before),
        ) else {
            // The counters of another policy.
            self.compared = Some((proven, opened));
            return self.result;
        };
        if more_proven >= COMPARED {
            self.compared = Some((proven, opened));
            self.result = (more_opened < more_proven / 2).then_some(Unopened {
                proven: more_proven,
                opened: more_opened,
            });
        }
        self.result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn half_of_ten_proven_connections_have_to_open() {
        let mut openings = Openings::default();
        assert_eq!(openings.look(100, 7), None);
        // Too few to say something.
        assert_eq!(openings.look(109, 7), None);
        let unopened = |proven, opened| Some(Unopened { proven, opened });
        assert_eq!(openings.look(112, 8), unopened(12, 1));
        assert_eq!(openings.look(121, 17), unopened(12, 1));
        // The kernel also opens those that Weir has not answered.
        assert_eq!(openings.look(122, 90), None);
        assert_eq!(openings.look(132, 95), None);
        assert_eq!(openings.look(142, 99), unopened(10, 4));
    }

    #[test]
    fn counters_that_begin_anew_are_compared_from_there_on() {
        let mut openings = Openings::default();
        assert_eq!(openings.look(100, 100), None);
        assert_eq!(openings.look(3, 103), None);
        assert_eq!(openings.look(12, 103), None);
        assert!(openings.look(13, 103).is_some());
    }
}
