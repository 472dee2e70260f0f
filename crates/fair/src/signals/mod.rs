//! What the sockets on a limit's ports have queued and dropped, read by `sock_diag`: accept queues and drops of listeners,
//! queues, buffers and drops of UDP sockets. Two dumps take 31 to 50 µs.
//!
//! Only sockets of the agent's network namespace can be read.

mod drops;
mod guard;
mod looks;
mod owner;
mod ports;
mod reader;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use crate::parameters::Unit;
use crate::reading::Queue;
use drops::Overflows;
pub(crate) use drops::{LongQueue, overflowed};
use guard::{Guard, Signs};
use looks::{Findings, Looks};
use owner::{Local, owners};
pub use ports::Ports;
use reader::{Found, Reader};
pub use reader::{Kind, Socket};

/// What the kernel charges a UDP socket for a small datagram: a buffer of 212,992 bytes holds 256. Drivers that receive
/// into pages have it charge up to five times as much: the queue then seems longer, and the loop that regulates it is that
/// much faster, with a margin of 6.
const DATAGRAM: f64 = 832.0;
/// Packets of a short connection: what a waiting one stands for in a limit on packets or bytes.
const PACKETS_OF_A_CONNECTION: f64 = 8.0;

/// What a limit counts, and what is known of its packets.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    pub unit: Unit,
    /// The mean length of a packet, in bytes.
    pub bytes: f64,
}

/// A socket, and whether its queue says something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Watched {
    pub socket: Socket,
    /// Whether something is taken from its queue. If not, the queue is ignored: anybody can fill it.
    pub is_served: bool,
}

/// The signals of one limit.
#[derive(Debug)]
pub struct Signals {
    reader: Reader,
    ports: Ports,
    /// Of each kind of socket that is read.
    overflows: Vec<Overflows>,
    looks: Looks,
    known: BTreeMap<u64, Known>,
    watched: Vec<Watched>,
}

/// A socket of earlier readings.
#[derive(Debug)]
struct Known {
    drops: u32,
    /// Drops since the reading before, after its queue was long.
    dropped: f64,
    /// What waited at the reading before, if it was served then.
    waited: Option<u32>,
    long: LongQueue,
    guard: Guard,
    seen: bool,
}

impl Signals {
    /// Of sockets on these ports: listeners, UDP sockets, or both.
    ///
    /// # Errors
    ///
    /// When the kernel has no `sock_diag`.
    pub fn new(ports: Ports, listeners: bool, datagrams: bool) -> io::Result<Self> {
        let kinds = [(Kind::Listener, listeners), (Kind::Datagrams, datagrams)];
        let kinds = kinds.into_iter().filter(|(_, is_read)| *is_read);
        Ok(Self {
            reader: Reader::new()?,
            ports: ports.merged(),
            overflows: kinds.map(|(kind, _)| Overflows::new(kind)).collect(),
            looks: Looks::new(),
            known: BTreeMap::new(),
            watched: Vec::new(),
        })
    }

    /// What waits at `now`, in seconds, and what was dropped since the last call.
    ///
    /// # Errors
    ///
    /// When the kernel's reply is late or is not understood.
    pub fn read(&mut self, now: f64, scale: Scale) -> io::Result<Queue> {
        let mut found = Vec::new();
        for overflows in &self.overflows {
            self.reader
                .sockets(overflows.kind(), &self.ports, &mut found)?;
        }
        // A dump may meet a socket twice: its second observation would have no drops.
        let mut cookies = BTreeSet::new();
        found.retain(|found| cookies.insert(found.socket.cookie));
        self.known.values_mut().for_each(|known| known.seen = false);
        let mut without_sign = BTreeSet::new();
        for Found { socket, .. } in &found {
            let known = self.known.entry(socket.cookie);
            let known = known.or_insert_with(|| Known::new(socket, now));
            if known.observe(socket, now) {
                without_sign.insert(socket.port);
            }
        }
        self.known.retain(|_, known| known.seen);
        let ports = without_sign.into_iter();
        for (port, findings) in self.looks.take(now, ports, &mut self.reader) {
            self.look(now, port, &found, findings.as_ref());
        }
        self.watched.clear();
        for Found { socket, .. } in found {
            let known = self.known.get(&socket.cookie);
            let is_served = known.is_some_and(|known| known.guard.is_served(now));
            self.watched.push(Watched { socket, is_served });
        }
        Ok(self.sum(now, scale))
    }

    /// Gives each listener of a port the signs of its own connections.
    fn look(&mut self, now: f64, port: u16, found: &[Found], findings: Option<&Findings>) {
        let of_port = |one: &&Found| one.socket.kind == Kind::Listener && one.socket.port == port;
        let listeners: Vec<&Found> = found.iter().filter(of_port).collect();
        let locals: Vec<Local> = listeners.iter().map(|one| one.local).collect();
        let signs = findings.map(|findings| {
            let none = Signs {
                since: findings.since,
                are_all: findings.are_all,
                ..Signs::default()
            };
            let mut signs = vec![none; listeners.len()];
            for (local, change) in &findings.changes {
                let owners = owners(&locals, local);
                for place in &owners {
                    signs[*place].change.accepted |= change.accepted;
                    signs[*place].change.more_wait |= change.more_wait;
                    signs[*place].are_shared |= owners.len() > 1;
                }
            }
            signs
        });
        for (place, Found { socket, .. }) in listeners.iter().enumerate() {
            if let Some(known) = self.known.get_mut(&socket.cookie) {
                let is_full = socket.waiting > socket.room;
                let signs = signs.as_ref().map(|signs| signs[place]);
                known.guard.look(now, is_full, signs);
            }
        }
    }

    /// What waits at the sockets that are served, and what their full queues dropped.
    fn sum(&mut self, now: f64, scale: Scale) -> Queue {
        let mut queue = Queue::default();
        let (mut buffer, mut listeners_wait) = (0.0, false);
        for overflows in &mut self.overflows {
            let kind = overflows.kind();
            let of_kind = self
                .watched
                .iter()
                .filter(|watched| watched.socket.kind == kind);
            // The namespace counts those of queues that nobody serves, too.
            let drops = of_kind
                .clone()
                .filter_map(|watched| self.known.get(&watched.socket.cookie))
                .map(|known| known.dropped)
                .sum();
            let share = overflowed(drops, overflows.since(now, drops > 0.0));
            let (waiting, drop) = scale.units(kind);
            for Watched { socket, is_served } in of_kind {
                let Some(known) = self.known.get_mut(&socket.cookie) else {
                    continue;
                };
                let waited = known.waited.take();
                if !is_served {
                    continue;
                }
                known.waited = Some(socket.waiting);
                let waits = f64::from(socket.waiting);
                queue.waiting += waits * waiting;
                queue.growth += waited.map_or(0.0, |waited| waits - f64::from(waited)) * waiting;
                queue.dropped += known.dropped * share * drop;
                match kind {
                    Kind::Listener => listeners_wait |= socket.waiting > 0,
                    Kind::Datagrams => buffer += f64::from(socket.room) * waiting,
                }
            }
        }
        queue.buffer = (!listeners_wait && buffer > 0.0).then_some(buffer);
        queue
    }

    /// The sockets of the last reading.
    #[must_use]
    pub fn watched(&self) -> &[Watched] {
        &self.watched
    }
}

impl Known {
    const fn new(socket: &Socket, now: f64) -> Self {
        Self {
            drops: socket.drops,
            dropped: 0.0,
            waited: None,
            long: LongQueue::new(now),
            guard: Guard::new(socket.kind, now),
            seen: true,
        }
    }

    /// True: the guard wants the connections.
    fn observe(&mut self, socket: &Socket, now: f64) -> bool {
        self.seen = true;
        let (waiting, room) = (socket.waiting.into(), socket.room.into());
        let is_evident = self.long.observe(now, waiting, room);
        let moved = socket.drops.wrapping_sub(self.drops);
        self.dropped = if is_evident { moved.into() } else { 0.0 };
        self.drops = socket.drops;
        self.guard.observe(now, socket.waiting)
    }
}

impl Scale {
    /// Units of what a socket reports as waiting, and of a drop.
    fn units(self, kind: Kind) -> (f64, f64) {
        let packet = match self.unit {
            Unit::Packets | Unit::Connections => 1.0,
            Unit::Bytes => self.bytes.max(1.0),
        };
        match (kind, self.unit) {
            (Kind::Datagrams, _) => (packet / DATAGRAM, packet),
            (Kind::Listener, Unit::Connections) => (1.0, 1.0),
            (Kind::Listener, _) => (PACKETS_OF_A_CONNECTION * packet, packet),
        }
    }
}
