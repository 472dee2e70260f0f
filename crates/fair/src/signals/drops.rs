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

use std::fs;

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
    pub fn new(kind: Kind) -> Self {
        Self {
            kind,
            last: read(kind),
            read_at: f64::NEG_INFINITY,
        }
    }

    pub const fn kind(&self) -> Kind {
        self.kind
    }

    /// Those since the last call with drops, or since at most a second before. `None`: they cannot be read.
    pub fn since(&mut self, now: f64, has_drops: bool) -> Option<f64> {
        if !has_drops && now - self.read_at < STALE {
            return None;
        }
        let before = self.last;
        (self.last, self.read_at) = (read(self.kind), now);
        Some(self.last?.saturating_sub(before?) as f64)
    }
}

fn read(kind: Kind) -> Option<u64> {
    let file = |name| fs::read_to_string(format!("/proc/thread-self/net/{name}"));
    match kind {
        Kind::Listener => in_table(&file("netstat").ok()?, "TcpExt:", &["ListenOverflows"]),
        Kind::Datagrams => {
            let first = in_table(&file("snmp").ok()?, "Udp:", &["RcvbufErrors", "MemErrors"])?;
            // Without IPv6 there is no such file.
            let second = file("snmp6").unwrap_or_default();
            let names = ["Udp6RcvbufErrors", "Udp6MemErrors"];
            Some(first.wrapping_add(in_list(&second, &names)))
        }
    }
}

/// The sum of the counters with these names, in a file with lines of names, each before a line of values. `None` without
/// the first of them.
fn in_table(text: &str, table: &str, names: &[&str]) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix(table));
    let header = lines.next()?.split_whitespace();
    let values: Vec<u64> = lines
        .next()?
        .split_whitespace()
        .map(|value| value.parse().unwrap_or(0))
        .collect();
    let header: Vec<&str> = header.collect();
    let value = |name: &&str| {
        let place = header.iter().position(|other| other == name)?;
        values.get(place).copied()
    };
    value(names.first()?)?;
    Some(names.iter().filter_map(value).fold(0, u64::wrapping_add))
}

/// The sum of the counters with these names, in a file with lines of a name and a value.
fn in_list(text: &str, names: &[&str]) -> u64 {
    let values = text.lines().filter_map(|line| {
        let (name, value) = line.split_once(char::is_whitespace)?;
        let value: u64 = value.trim().parse().ok()?;
        names.contains(&name).then_some(value)
    });
    values.fold(0, u64::wrapping_add)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SNMP: &str = "Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors IgnoredMulti MemErrors\n\
        Udp: 3203 565092 5632 576746 5000 969258 600 0 32\n\
        UdpLite: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors InCsumErrors IgnoredMulti MemErrors\n\
        UdpLite: 0 0 0 0 7 0 0 0 0\n";

    #[test]
    fn counters_are_found_by_name() {
        let names = ["RcvbufErrors", "MemErrors"];
        assert_eq!(in_table(SNMP, "Udp:", &names), Some(5032));
        assert_eq!(in_table(SNMP, "Udp:", &["InCsumErrors"]), Some(600));
        let list = "Udp6InErrors                    \t9\nUdp6RcvbufErrors                \t4\nUdp6MemErrors\t1\n";
        assert_eq!(in_list(list, &["Udp6RcvbufErrors", "Udp6MemErrors"]), 5);
    }

    #[test]
    fn a_counter_that_an_older_kernel_lacks_is_zero_or_unknown() {
        let old = "Udp: InDatagrams InErrors RcvbufErrors\nUdp: 1 2 3\n";
        let names = ["RcvbufErrors", "MemErrors"];
        assert_eq!(in_table(old, "Udp:", &names), Some(3));
        assert_eq!(in_table("Udp: InErrors\nUdp: 1\n", "Udp:", &names), None);
        assert_eq!(
            in_table("Udp: InErrors RcvbufErrors\n", "Udp:", &names),
            None
        );
        assert_eq!(in_table("", "Udp:", &names), None);
    }

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
        assert!(read(Kind::Datagrams).is_some() && read(Kind::Listener).is_some());
        let mut overflows = Overflows::new(Kind::Listener);
        assert!(overflows.since(0.0, false).is_some(), "the first is due");
        assert!(overflows.since(0.9, false).is_none());
        assert!(overflows.since(0.9, true).is_some());
        assert!(overflows.since(2.0, false).is_some());
    }
}
