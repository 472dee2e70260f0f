//! What an operator can do for a fair limit: its signals, backlogs and buffers.

use api::fair::{FairSignal, FairStatus};
use api::status::Status;

/// Seconds of goodput beyond which a backlog makes connections wait for long after an onset.
const LONGEST_BACKLOG: f64 = 0.25;
/// Seconds of goodput that a UDP buffer should hold: stalls of the server are no overload.
const SHORTEST_BUFFER: f64 = 0.05;
/// What the kernel charges a UDP socket for a small datagram, in bytes.
const DATAGRAM: f64 = 832.0;

/// A finding, and its fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub found: String,
    pub fix: String,
}

impl std::fmt::Display for Note {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}; {}", self.found, self.fix)
    }
}

/// What concerns the operator of fair limits.
pub fn all_notes(status: &Status) -> Vec<Note> {
    let unit = |name: &str| {
        let limit = status.limits.iter().find(|limit| limit.name == name);
        limit.map_or("", |limit| limit.unit.as_str())
    };
    let fair = status.fair.iter();
    fair.flat_map(|fair| notes(fair, unit(&fair.limit)))
        .collect()
}

/// What concerns the operator of a fair limit of this unit.
fn notes(status: &FairStatus, unit: &str) -> Vec<Note> {
    let name = &status.limit;
    if status.failure.as_deref() == Some("unreadable") {
        return vec![Note {
            found: format!("limit {name:?} refuses nothing below at_most: sockets cannot be read by sock_diag"),
            fix: "use a kernel with CONFIG_INET_DIAG and CONFIG_INET_UDP_DIAG (modprobe tcp_diag udp_diag)".to_owned(),
        }];
    }
    if status.signals.is_empty() {
        return vec![Note {
            found: format!(
                "limit {name:?} has no signal: no socket of this host is open on its ports"
            ),
            fix: "start the server, or name the port of a backend on this host in signals"
                .to_owned(),
        }];
    }
    let unserved = status
        .signals
        .iter()
        .filter(|signal| !signal.is_served)
        .map(|signal| Note {
            found: format!(
                "limit {name:?} ignores the queue of {} port {}: nobody takes anything from it",
                kind(signal),
                signal.port
            ),
            fix: "restart the server that opened it".to_owned(),
        });
    // Requests and bytes do not say how many connections or datagrams a server takes.
    let capacity = status.capacity.unwrap_or_default();
    let long = status.signals.iter().filter(|signal| {
        unit == "connections"
            && signal.kind == "listener"
            && signal.room as f64 > LONGEST_BACKLOG * capacity
    });
    let long = long.map(|signal| {
        let (seconds, wanted) = (signal.room as f64 / capacity, (LONGEST_BACKLOG * capacity).ceil());
        Note {
            found: format!(
                "the backlog of TCP port {} has room for {} connections, {seconds:.1} s of what its server accepts: after an onset they wait for as long",
                signal.port, signal.room
            ),
            fix: format!("have it listen with a backlog of {wanted}"),
        }
    });
    let short = status.signals.iter().filter(|signal| {
        unit == "packets"
            && signal.kind == "udp"
            && signal.room as f64 / DATAGRAM < SHORTEST_BUFFER * capacity
    });
    let short = short.map(|signal| {
        let milliseconds = 1e3 * signal.room as f64 / DATAGRAM / capacity;
        let wanted = (SHORTEST_BUFFER * capacity * DATAGRAM / 2.0).ceil();
        Note {
            found: format!("the buffer of UDP port {} holds {milliseconds:.0} ms of what its server reads: it drops where the server pauses", signal.port),
            fix: format!("set net.core.rmem_default={wanted} with sysctl before the server starts, or SO_RCVBUF"),
        }
    });
    let sized = long.chain(short).filter(|_| capacity > 0.0);
    unserved.chain(sized).collect()
}

fn kind(signal: &FairSignal) -> &'static str {
    if signal.kind == "udp" { "UDP" } else { "TCP" }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn status(kind: &str, room: u64, capacity: f64) -> FairStatus {
        FairStatus {
            limit: "web".to_owned(),
            capacity: Some(capacity),
            signals: vec![FairSignal {
                port: 80,
                kind: kind.to_owned(),
                room,
                is_served: true,
                ..FairSignal::default()
            }],
            ..FairStatus::default()
        }
    }

    #[test]
    fn long_backlogs_and_short_buffers_are_noted() {
        let fixes = |status: &FairStatus, unit| {
            let notes = notes(status, unit);
            notes.into_iter().map(|note| note.fix).collect::<Vec<_>>()
        };
        assert_eq!(
            fixes(&status("listener", 511, 600.0), "connections"),
            ["have it listen with a backlog of 150"]
        );
        assert!(fixes(&status("listener", 128, 600.0), "connections").is_empty());
        assert!(fixes(&status("listener", 511, 600.0), "bytes").is_empty());
        let short = fixes(&status("udp", 212_992, 10_000.0), "packets");
        assert!(
            short[0].contains("net.core.rmem_default=208000"),
            "{short:?}"
        );
        assert!(fixes(&status("udp", 425_984, 10_000.0), "packets").is_empty());
        let none = FairStatus {
            signals: Vec::new(),
            ..status("udp", 1, 1.0)
        };
        assert!(fixes(&none, "packets")[0].starts_with("start the server"));
    }
}
