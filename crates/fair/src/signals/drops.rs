//! Drops that are an overload: those of a full queue.
//!
//! The kernel's counter of a socket's drops has other causes, too. Anybody can send datagrams with invalid checksums,
//! segments that a listener does not expect (RST, SYN with FIN) or with a wrong signature, and what a socket's filter
//! refuses. A drop counts if both signs of a full queue are there:
//!
//! - the socket's queue was long in one of the last readings;
//! - the network namespace counted an overflow, which no other cause of a drop moves. For UDP sockets these are
//!   `RcvbufErrors` and `MemErrors` (`__udp_queue_rcv_skb`), for listeners `ListenOverflows` (`tcp_conn_request`,
//!   `tcp_v4_syn_recv_sock`).
//!
//! A full queue of handshakes without SYN cookies (`TCPReqQFullDrop`) is no overload of a server.

use super::counters::{Files, overflows};
use super::reader::Kind;

/// The share of its room from which a queue is long. With stalls of 15 ms, a server at 50 % load has no such queue.
const LONG: f64 = 0.5;
/// Seconds in which a long queue makes drops count: a UDP buffer may hold 22 ms, and readings are up to 100 ms apart.
const RECENT: f64 = 0.3;
/// Seconds after which counters are read although nothing was dropped: a movement is at most that old.
const STALE: f64 = 1.0;

/// When a queue was long.
#[derive(Debug)]
pub(crate) struct LongQueue {
    at: f64,
    read_at: f64,
}

impl LongQueue {
    pub const fn new(now: f64) -> Self {
        Self {
            at: f64::NEG_INFINITY,
            read_at: now,
        }
    }

    /// Whether drops since the reading before may be those of a full queue.
    pub fn observe(&mut self, now: f64, waiting: f64, room: f64) -> bool {
        if waiting > 0.0 && waiting >= LONG * room {
            self.at = now;
        }
        // At least the reading before.
        let recent = RECENT.max(now - self.read_at);
        self.read_at = now;
        now - self.at <= recent + 1e-9
    }
}

/// The share of drops that are overflows. `overflows`: those of the namespace, if they are known.
pub(crate) fn overflowed(drops: f64, overflows: Option<f64>) -> f64 {
    overflows.map_or(1.0, |overflows| (overflows / drops.max(1.0)).min(1.0))
}

/// Overflows of a kind of queue in the network namespace of this thread.
///
/// Without these files, long queues are the only sign: it does not depend on the files that an idle server is limited for
/// drops that are no overload, and a busy one is protected without them, too.
#[derive(Debug)]
pub(super) struct Overflows {
    kind: Kind,
    last: Option<u64>,
    read_at: f64,
}

impl Overflows {
    pub fn new(kind: Kind, files: &mut Files) -> Self {
        Self {
            kind,
            last: overflows(kind, files),
            read_at: f64::NEG_INFINITY,
        }
    }

    /// Those since the last call with drops, or since at most a second before. `None`: they cannot be read.
    pub fn since(&mut self, now: f64, has_drops: bool, files: &mut Files) -> Option<f64> {
        if !has_drops && now - self.read_at < STALE {
            return None;
        }
        let before = self.last;
        (self.last, self.read_at) = (overflows(self.kind, files), now);
        Some(self.last?.saturating_sub(before?) as f64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drops_are_capped_by_overflows_where_these_are_known() {
        let counted = |drops, overflows| drops * overflowed(drops, overflows);
        assert!(counted(100.0, Some(0.0)) <= 0.0);
        assert!((counted(100.0, Some(25.0)) - 25.0).abs() < 1e-9);
        assert!((counted(100.0, Some(900.0)) - 100.0).abs() < 1e-9);
        assert!((counted(100.0, None) - 100.0).abs() < 1e-9);
    }

    #[test]
    fn drops_count_for_a_while_after_a_long_queue() {
        let mut queue = LongQueue::new(0.0);
        let mut observe = |now, waiting| queue.observe(now, waiting, 256.0);
        assert!(!observe(0.05, 0.0) && !observe(0.1, 100.0));
        assert!(observe(0.15, 200.0));
        assert!(observe(0.25, 0.0) && observe(0.45, 0.0));
        assert!(!observe(0.5, 0.0));
        // A long tick has one reading.
        assert!(observe(1.0, 256.0) && observe(1.5, 0.0) && !observe(2.0, 0.0));
    }

    #[test]
    fn this_namespace_has_both_counters() {
        let mut files = Files::default();
        for kind in [Kind::Datagrams, Kind::Listener] {
            assert!(overflows(kind, &mut files).is_some());
        }
        let mut counter = Overflows::new(Kind::Listener, &mut files);
        let mut since = |now, has_drops| counter.since(now, has_drops, &mut files);
        assert!(since(0.0, false).is_some(), "the first is due");
        assert!(since(0.9, false).is_none() && since(0.9, true).is_some());
        assert!(since(2.0, false).is_some());
    }
}
