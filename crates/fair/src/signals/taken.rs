//! Units that programs of the network namespace took from queues: an upper bound of those from queues of a limit.
//! Units that reach no queue do not raise it, but packets that the kernel merges do, of TCP as well.
//!
//! For UDP these are datagrams that programs read (`InDatagrams`), for listeners connections that entered a queue
//! (`PassiveOpens`, `tcp_create_openreq_child`) and left it since.

use super::counters::{Files, taken};
use super::reader::Kind;

/// Fewer connections or datagrams that wait are noise.
const FEW: f64 = 5.0;
/// Seconds in which each reading has the counters after something waited or was dropped: longer than a hold.
const CLOSELY: f64 = 40.0;
/// Seconds after which they are read otherwise: a movement is at most that old.
const STALE: f64 = 1.0;

/// When counters are read, for all kinds of a limit.
#[derive(Debug)]
pub(super) struct Due {
    closely_until: f64,
    read_at: f64,
}

impl Due {
    pub const fn new() -> Self {
        Self {
            closely_until: f64::NEG_INFINITY,
            read_at: f64::NEG_INFINITY,
        }
    }

    /// Whether they are read now. `waiting`: connections or datagrams.
    pub fn is_now(&mut self, now: f64, waiting: f64, has_drops: bool) -> bool {
        if waiting >= FEW || has_drops {
            self.closely_until = now + CLOSELY;
        }
        let is_due = now < self.closely_until || now - self.read_at >= STALE - 1e-9;
        if is_due {
            self.read_at = now;
        }
        is_due
    }
}

/// A counter of what was taken from a kind of queue.
#[derive(Debug)]
pub(super) struct Taken {
    kind: Kind,
    last: Option<u64>,
    /// The growth of queues since it was read: a connection is counted when it enters one.
    growth: f64,
}

impl Taken {
    pub fn new(kind: Kind, files: &mut Files) -> Self {
        Self {
            kind,
            last: taken(kind, files),
            growth: 0.0,
        }
    }

    /// Connections or datagrams since the last call that had it. `None`: it is not read, or cannot be.
    pub fn since(&mut self, growth: f64, files: Option<&mut Files>) -> Option<f64> {
        self.growth += growth;
        let now = taken(self.kind, files?);
        let moved = now
            .zip(self.last)
            .map(|(now, last)| now.wrapping_sub(last) as i64);
        self.last = now;
        let growth = std::mem::take(&mut self.growth);
        let growth = match self.kind {
            Kind::Listener => growth,
            Kind::Datagrams => 0.0,
        };
        Some((moved? as f64 - growth).max(0.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_read_once_a_second_until_something_waits() {
        let mut due = Due::new();
        assert!(due.is_now(0.0, 0.0, false) && !due.is_now(0.95, 4.0, false));
        assert!(due.is_now(1.0, 0.0, false) && due.is_now(1.05, 5.0, false));
        assert!(due.is_now(41.0, 0.0, false) && !due.is_now(41.1, 0.0, false));
        assert!(due.is_now(41.15, 0.0, true) && due.is_now(41.2, 0.0, false));
    }
}
