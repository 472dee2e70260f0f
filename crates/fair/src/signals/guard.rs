//! Queues that nobody serves: anybody can fill them, and they say nothing of an overload.
//!
//! A full queue alone proves nothing: of a busy server's, 48 of 56 readings were equal. A queue is served if it became
//! shorter, if a program accepted a connection, or if one more came into a full queue. What happened to connections says
//! nothing of one of several listeners with the same address and port: only its own queue does.

use super::looks::Change;
use super::reader::Kind;

/// Seconds without a sign of service after which a queue is ignored. A program frees the memory of datagrams in quarters of
/// the buffer, which readings may miss. Likewise of a full queue whose connections cannot be compared.
const PATIENCE: f64 = 1.0;
const PATIENCE_DATAGRAMS: f64 = 2.0;
const PATIENCE_UNKNOWN: f64 = 3.0;
/// Seconds without a sign after which connections are compared.
const LOOK: f64 = 0.4;

/// One queue, and its last sign of service.
#[derive(Debug)]
pub(super) struct Guard {
    kind: Kind,
    waiting: u32,
    /// The time of the last sign of service.
    served: f64,
    /// Whether it may be served although no connection has shown it.
    is_unknown: bool,
    /// The time at which all connections were last compared, without a sign of service.
    compared: f64,
    /// Whether the queue was full at the last look. Otherwise connections that wait since then may have filled it.
    was_full: bool,
}

/// Signs of service on the connections of a listener.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Signs {
    /// Since when. `None`: it is not known.
    pub since: Option<f64>,
    pub change: Change,
    /// Whether they may be those of another listener.
    pub are_shared: bool,
    /// Whether all were seen.
    pub are_all: bool,
}

impl Guard {
    pub const fn new(kind: Kind, now: f64) -> Self {
        Self {
            kind,
            waiting: 0,
            served: now,
            is_unknown: false,
            compared: f64::NEG_INFINITY,
            was_full: false,
        }
    }

    /// Takes the length of the queue into account. True: [`Self::look`] wants signs.
    pub fn observe(&mut self, now: f64, waiting: u32) -> bool {
        if waiting == 0 || waiting < self.waiting {
            self.serve(now);
        }
        self.waiting = waiting;
        now - self.served >= LOOK - 1e-9 && self.kind == Kind::Listener
    }

    /// `None`: nobody looked.
    pub fn look(&mut self, now: f64, is_full: bool, signs: Option<Signs>) {
        let Some(signs) = signs else {
            self.is_unknown |= now - self.served >= LOOK - 1e-9 && !self.was_compared();
            return;
        };
        let Change {
            accepted,
            more_wait,
        } = signs.change;
        // A sign from before the last one says nothing of what came after it.
        let is_new = signs.since.is_some_and(|since| since >= self.served);
        let is_sign = accepted || (is_full && self.was_full && more_wait);
        self.was_full = is_full;
        if is_new && is_sign && !signs.are_shared {
            self.serve(now);
        } else {
            let is_partial = !signs.are_all && !self.was_compared();
            self.is_unknown = is_partial || (is_sign && signs.are_shared);
            if is_new && signs.are_all && !is_sign {
                self.compared = now;
            }
        }
    }

    /// Whether the last comparison before [`PATIENCE`] showed no service. A later look that finds nothing out does not change
    /// that.
    fn was_compared(&self) -> bool {
        !self.is_unknown && self.compared - self.served >= PATIENCE - LOOK - 1e-9
    }

    pub fn is_served(&self, now: f64) -> bool {
        let patience = match self.kind {
            Kind::Listener if self.was_compared() => PATIENCE,
            Kind::Listener => PATIENCE_UNKNOWN,
            Kind::Datagrams => PATIENCE_DATAGRAMS,
        };
        now - self.served < patience
    }

    fn serve(&mut self, now: f64) {
        self.served = now;
        self.is_unknown = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sign of service, or none.
    #[derive(Clone, Copy, PartialEq)]
    enum Sign {
        None,
        Accepted,
        OneMore,
    }

    /// Whether a queue counts as served, by tick of 50 ms, while `queue` gives its length and what a look every 0.4 s finds.
    fn served(ticks: u32, signs: Signs, queue: impl Fn(u32) -> (u32, Sign)) -> Vec<bool> {
        let mut guard = Guard::new(Kind::Listener, 0.0);
        let mut looked = None;
        let tick = |tick| {
            let now = f64::from(tick) * 0.05;
            let (waiting, sign) = queue(tick);
            let is_due = looked.is_none_or(|looked| now - looked >= 0.4);
            if guard.observe(now, waiting) && is_due {
                let change = Change {
                    accepted: sign == Sign::Accepted,
                    more_wait: sign == Sign::OneMore,
                };
                let signs = Signs {
                    since: looked,
                    change,
                    ..signs
                };
                guard.look(now, waiting > 128, Some(signs));
                looked = Some(now);
            }
            guard.is_served(now)
        };
        (0..ticks).map(tick).collect()
    }

    const OWN: Signs = Signs {
        since: None,
        change: Change {
            accepted: false,
            more_wait: false,
        },
        are_shared: false,
        are_all: true,
    };
    const SHARED: Signs = Signs {
        are_shared: true,
        ..OWN
    };
    const PART: Signs = Signs {
        are_all: false,
        ..OWN
    };

    #[test]
    fn a_full_queue_that_nobody_serves_is_ignored_after_a_second() {
        let served = served(60, OWN, |_| (129, Sign::None));
        assert!(served[..20].iter().all(|served| *served));
        assert!(served[20..].iter().all(|served| !served));
    }

    #[test]
    fn a_queue_that_only_grows_is_ignored() {
        assert!(!served(60, OWN, |tick| (2 * tick, Sign::OneMore))[59]);
    }

    #[test]
    fn a_queue_that_became_full_since_the_last_look_is_ignored() {
        let queue = |tick| match tick {
            0..10 => (100, Sign::None),
            10..18 => (129, Sign::OneMore),
            _ => (129, Sign::None),
        };
        let served = served(60, OWN, queue);
        assert!(served[19] && served[20..].iter().all(|served| !served));
    }

    /// The first look came so late that the second one is not due.
    #[test]
    fn a_queue_is_not_ignored_before_its_connections_were_compared() {
        let mut guard = Guard::new(Kind::Listener, 0.0);
        for (now, since) in [(0.7, None), (1.05, None), (1.1, Some(0.7))] {
            guard.observe(now, 129);
            assert!(guard.is_served(now), "{now}");
            if now != 1.05 {
                guard.look(now, true, Some(Signs { since, ..OWN }));
            }
        }
        assert!(!guard.is_served(1.1));
    }

    #[test]
    fn a_full_queue_with_new_connections_is_served() {
        let served = served(200, OWN, |_| (129, Sign::OneMore));
        assert!(served.iter().all(|served| *served));
    }

    #[test]
    fn a_queue_whose_connections_are_accepted_is_served() {
        let served = served(200, OWN, |tick| (60 + tick / 10, Sign::Accepted));
        assert!(served.iter().all(|served| *served));
    }

    #[test]
    fn a_queue_that_becomes_shorter_is_served_again() {
        let queue = |tick| if tick < 50 { 129 } else { 128 };
        let served = served(100, OWN, |tick| (queue(tick), Sign::None));
        assert!(!served[49] && served[50] && !served[99]);
    }

    /// The worker that accepts is the other one.
    #[test]
    fn connections_of_several_listeners_prove_nothing_for_one() {
        for sign in [Sign::Accepted, Sign::OneMore] {
            let served = served(100, SHARED, |_| (129, sign));
            assert!(served[..60].iter().all(|served| *served));
            assert!(served[60..].iter().all(|served| !served));
        }
    }

    #[test]
    fn a_listener_beside_others_is_served_if_its_queue_becomes_shorter() {
        // Two readings in three seconds.
        let queue = |tick: u32| 129 - u32::from(tick.is_multiple_of(30));
        let served = served(200, SHARED, |tick| (queue(tick), Sign::Accepted));
        assert!(served.iter().all(|served| *served));
    }

    #[test]
    fn several_listeners_that_nobody_serves_are_ignored_after_a_second() {
        let served = served(60, SHARED, |_| (129, Sign::None));
        assert!(served[19] && served[20..].iter().all(|served| !served));
    }

    #[test]
    fn a_queue_whose_connections_are_too_many_is_ignored_after_three_seconds() {
        let served = served(100, PART, |_| (129, Sign::None));
        assert!(served[..60].iter().all(|served| *served));
        assert!(served[60..].iter().all(|served| !served));
    }

    #[test]
    fn an_accepted_connection_of_too_many_is_a_sign_of_service() {
        let served = served(200, PART, |_| (129, Sign::Accepted));
        assert!(served.iter().all(|served| *served));
    }

    #[test]
    fn a_queue_at_which_nobody_looks_is_ignored_after_three_seconds() {
        let mut guard = Guard::new(Kind::Listener, 0.0);
        let mut served = |tick: u32| {
            let now = f64::from(tick) * 0.05;
            if guard.observe(now, 129) {
                guard.look(now, true, None);
            }
            guard.is_served(now)
        };
        assert!((0..60).all(&mut served) && !(60..100).any(served));
    }

    /// Looks rest after one in which the agent was paused.
    #[test]
    fn a_queue_that_nobody_serves_stays_ignored_without_looks() {
        for late in [None, Some(PART)] {
            let mut guard = Guard::new(Kind::Listener, 0.0);
            let mut looked = 0.0;
            let mut served = |tick: u32| {
                let now = f64::from(tick) * 0.05;
                if guard.observe(now, 129) && now - looked >= 0.4 {
                    let since = Some(looked);
                    let signs = if tick < 20 { Some(OWN) } else { late };
                    guard.look(now, true, signs.map(|signs| Signs { since, ..signs }));
                    looked = now;
                }
                guard.is_served(now)
            };
            assert!((0..20).all(&mut served) && !(20..100).any(served));
        }
    }

    #[test]
    fn datagrams_that_nobody_reads_are_ignored_after_two_seconds() {
        let mut guard = Guard::new(Kind::Datagrams, 0.0);
        let served = |tick: u32| {
            let now = f64::from(tick) * 0.05;
            assert!(
                !guard.observe(now, 200_000),
                "datagrams have no connections"
            );
            guard.is_served(now)
        };
        let served: Vec<bool> = (0..60).map(served).collect();
        assert!(
            served[..39].iter().all(|served| *served) && served[41..].iter().all(|served| !served)
        );
    }
}
