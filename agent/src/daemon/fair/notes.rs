//! Notes on fair limits for the operator: signals, backlogs and buffers.

use api::fair::FairStatus;
use api::status::Status;
use fair::signals::DATAGRAM;
use host::PROGRAM;

/// Seconds of goodput beyond which a backlog makes connections wait for long after an onset.
const LONGEST_BACKLOG: f64 = 0.25;
/// Seconds of goodput that a UDP buffer should hold: stalls of the server are no overload.
const SHORTEST_BUFFER: f64 = 0.05;

const OPEN_A_SOCKET: &str =
    "start the server, or name the port of a backend on this host in signals";

const NO_LOAD: &str = "it has reported no load for 2 s";
const REPORT_THE_LOAD: &str = "let it send POST /v1/load on the socket of [decide] every 0.1 s, or take \"load\" out of signals";

/// A finding, and its fix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub found: String,
    pub fix: String,
    /// Whether the limit refuses nothing because of it.
    pub is_failure: bool,
}

impl Note {
    fn new(found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            found: found.into(),
            fix: fix.into(),
            is_failure: false,
        }
    }

    fn of_failure(found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self {
            is_failure: true,
            ..Self::new(found, fix)
        }
    }
}

impl std::fmt::Display for Note {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}; {}", self.found, self.fix)
    }
}

/// The notes on fair limits.
pub fn all_notes(status: &Status) -> Vec<Note> {
    let unit = |name: &str| {
        let limit = status.limits.iter().find(|limit| limit.name == name);
        limit.map_or("", |limit| limit.unit.as_str())
    };
    let fair = status.fair.iter();
    fair.flat_map(|fair| notes(fair, unit(&fair.limit)))
        .collect()
}

/// The notes on a fair limit of this unit.
fn notes(status: &FairStatus, unit: &str) -> Vec<Note> {
    let name = &status.limit;
    if let Some(note) = note_of_failure(status) {
        return vec![note];
    }
    let unreported = is_unreported(status).then(|| {
        let found = format!("limit {name:?} has no signal of its service: {NO_LOAD}");
        Note::new(found, REPORT_THE_LOAD)
    });
    if status.signals.is_empty() && status.load.is_none() {
        return vec![Note::new(
            format!("limit {name:?} has no signal: no socket of this host is open on its ports"),
            OPEN_A_SOCKET,
        )];
    }
    let closed = (!status.closed_ports.is_empty()).then(|| {
        let ports: Vec<String> = status.closed_ports.iter().map(u16::to_string).collect();
        let ports = ports.join(", ");
        Note::new(
            format!(
                "limit {name:?} has no signal of port {ports}: no socket of this host is open there"
            ),
            OPEN_A_SOCKET,
        )
    });
    let unserved = status
        .signals
        .iter()
        .filter(|signal| !signal.is_served)
        .map(|signal| {
            Note::new(
                format!(
                    "limit {name:?} ignores the queue of {} port {}: nobody takes anything from it",
                    protocol(&signal.kind),
                    signal.port
                ),
                "restart the server that opened it",
            )
        });
    let strangers = status.strangers.iter().map(|one| {
        let (protocol, port) = (protocol(&one.kind), one.port);
        Note::new(
            format!(
                "limit {name:?} ignores what user {} has opened on {protocol} port {port}, beside a server of another user",
                one.user
            ),
            format!("end the one that is not yours: ss -lntup 'sport = :{port}'"),
        )
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
        Note::new(
            format!(
                "the backlog of TCP port {} has room for {} connections, {seconds:.1} s of what its server accepts: after an onset they wait for as long",
                signal.port, signal.room
            ),
            format!("have it listen with a backlog of {wanted}"),
        )
    });
    let short = status.signals.iter().filter(|signal| {
        unit == "packets"
            && signal.kind == "udp"
            && signal.room as f64 / DATAGRAM < SHORTEST_BUFFER * capacity
    });
    let short = short.map(|signal| {
        let milliseconds = 1e3 * signal.room as f64 / DATAGRAM / capacity;
        let wanted = (SHORTEST_BUFFER * capacity * DATAGRAM / 2.0).ceil();
        Note::new(
            format!("the buffer of UDP port {} holds {milliseconds:.0} ms of what its server reads: it drops where the server pauses", signal.port),
            format!("set net.core.rmem_default={wanted} with sysctl before the server starts, or SO_RCVBUF"),
        )
    });
    let sized = long.chain(short).filter(|_| capacity > 0.0);
    let parts = unreported.into_iter().chain(closed);
    parts
        .chain(unserved)
        .chain(strangers)
        .chain(sized)
        .collect()
}

/// Whether the service should report its load, and has not for 2 s.
fn is_unreported(status: &FairStatus) -> bool {
    status.load.is_some_and(|load| !load.is_reported)
}

/// The note on a limit that refuses nothing because something fails.
fn note_of_failure(status: &FairStatus) -> Option<Note> {
    let (why, fix) = match status.failure.as_deref()? {
        FairStatus::UNREADABLE if is_unreported(status) && status.signals.is_empty() => {
            (NO_LOAD, REPORT_THE_LOAD.to_owned())
        }
        FairStatus::UNREADABLE => (
            "sockets cannot be read by sock_diag, or are too many",
            "use a kernel with CONFIG_INET_DIAG and CONFIG_INET_UDP_DIAG (modprobe tcp_diag udp_diag), and name up to four ports".to_owned(),
        ),
        FairStatus::OBSERVE_MODE => {
            // A trial of the config. Nor is at_most in effect.
            return Some(Note::new(
                format!(
                    "limit {:?} refuses nothing: {}",
                    status.limit,
                    status.reason()?
                ),
                format!("set [agent] mode = \"enforce\"; then {PROGRAM} reload"),
            ));
        }
        FairStatus::NO_MAPS => (
            status.reason()?,
            "read the agent's log for the error, and restart the agent".to_owned(),
        ),
        FairStatus::ENDED => (status.reason()?, "restart the agent".to_owned()),
        FairStatus::LATE => (
            status.reason()?,
            "give the agent CPU time (CPUWeight of its unit), and restart it if that does not help"
                .to_owned(),
        ),
        FairStatus::STARTING => {
            return Some(Note::new(
                format!("limit {:?} refuses nothing yet: {}", status.limit, status.reason()?),
                format!("{PROGRAM} status shows it within a second"),
            ));
        }
        _ => return None,
    };
    Some(Note::of_failure(
        format!(
            "limit {:?} refuses nothing below at_most: {why}",
            status.limit
        ),
        fix,
    ))
}

fn protocol(kind: &str) -> &'static str {
    if kind == "udp" { "UDP" } else { "TCP" }
}

#[cfg(test)]
mod tests {
    use super::*;
    use api::fair::{FairSignal, FairStranger};

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

    #[test]
    fn each_port_without_a_socket_is_noted() {
        let status = FairStatus {
            closed_ports: vec![443, 8080],
            ..status("listener", 128, 600.0)
        };
        let found = notes(&status, "connections");
        assert_eq!(found.len(), 1);
        assert!(found[0].found.contains("no signal of port 443, 8080"));
        assert!(!found[0].is_failure);
    }

    #[test]
    fn a_socket_of_another_user_that_is_ignored_is_noted() {
        let status = FairStatus {
            strangers: vec![FairStranger {
                port: 8080,
                kind: "listener".to_owned(),
                user: 1001,
            }],
            ..status("listener", 128, 600.0)
        };
        let found = notes(&status, "connections");
        assert_eq!(found.len(), 1);
        assert!(
            found[0]
                .found
                .contains("user 1001 has opened on TCP port 8080")
        );
        assert!(found[0].fix.contains("sport = :8080") && !found[0].is_failure);
    }

    #[test]
    fn a_limit_that_is_not_in_effect_is_a_failure_with_a_fix() {
        for (failure, fix) in [
            ("observe-mode", "set [agent] mode = \"enforce\""),
            ("no-maps", "restart the agent"),
            ("ended", "restart the agent"),
            ("late", "give the agent CPU time"),
            ("starting", "within a second"),
            ("unreadable", "use a kernel"),
        ] {
            let status = FairStatus {
                failure: Some(failure.to_owned()),
                ..FairStatus::default()
            };
            let found = notes(&status, "packets");
            assert!(found.len() == 1 && found[0].fix.contains(fix), "{found:?}");
            let is_failure = !["observe-mode", "starting"].contains(&failure);
            assert_eq!(found[0].is_failure, is_failure);
        }
    }
}
