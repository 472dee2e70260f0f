//! Queues and drops of the sockets on a limit's ports, read by `sock_diag`: accept queues and drops of listeners,
//! queues, buffers and drops of UDP sockets. Two dumps take 31 to 50 µs.
//!
//! Only sockets of the agent's network namespace can be read.

mod counters;
mod drops;
mod dumps;
mod guard;
mod looks;
mod owner;
mod ports;
mod reader;
mod strangers;
mod taken;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use crate::parameters::Unit;
use crate::reading::{Connections, Queue};
use counters::Files;
use drops::Overflows;
pub(crate) use drops::{LongQueue, overflowed};
use dumps::Dumps;
use guard::{Guard, Signs};
use looks::{Findings, Looks};
use owner::{Local, owners};
pub use ports::Ports;
use reader::{Found, Reader};
pub use reader::{Kind, Socket};
pub use strangers::Stranger;
use strangers::{reported, strangers};
use taken::{Due, Taken};

/// The bytes that the kernel charges a UDP socket for a small datagram: a buffer of 212,992 bytes holds 256. Drivers that receive
/// into pages have it charge up to five times as much: the queue then seems longer, and the loop that regulates it is that
/// much faster, with a margin of 6.
pub const DATAGRAM: f64 = 832.0;

/// The unit of a limit, and the known properties of its packets.
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
    dumps: Dumps,
    kinds: Vec<Counted>,
    due: Due,
    looks: Looks,
    known: BTreeMap<u64, Known>,
    watched: Vec<Watched>,
    strangers: BTreeSet<Stranger>,
}

/// A kind of socket that is read, and its counters of the namespace.
#[derive(Debug)]
struct Counted {
    kind: Kind,
    overflows: Overflows,
    taken: Taken,
}

/// A socket of earlier readings.
#[derive(Debug)]
struct Known {
    /// The time of its first reading.
    since: f64,
    drops: u32,
    /// Drops since the reading before, after its queue was long.
    dropped: f64,
    /// The queue at the reading before, if it was served then.
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
            dumps: Dumps::new(),
            kinds: kinds.map(|(kind, _)| Counted::new(kind)).collect(),
            due: Due::new(),
            looks: Looks::new(),
            known: BTreeMap::new(),
            watched: Vec::new(),
            strangers: BTreeSet::new(),
        })
    }

    /// The queue at `now`, in seconds, and its drops since the last call.
    ///
    /// # Errors
    ///
    /// When the kernel's reply is late or is not understood; after a reading that took long, for 20 times as long
    /// (`WouldBlock`); and when there are too many sockets for one (`QuotaExceeded`).
    pub fn read(&mut self, now: f64, scale: Scale) -> io::Result<Queue> {
        let mut left = self.dumps.begin(now).ok_or(io::ErrorKind::WouldBlock)?;
        let mut found = Vec::new();
        for Counted { kind, .. } in &self.kinds {
            let ports = &self.ports;
            self.reader.sockets(*kind, ports, &mut left, &mut found)?;
        }
        self.dumps.end(now, &left);
        if left.is_cut {
            // A part of the sockets says nothing of the others.
            return Err(io::ErrorKind::QuotaExceeded.into());
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
        let since = |cookie: u64| self.known.get(&cookie).map_or(now, |known| known.since);
        let ignored = strangers(&found, &self.ports, since);
        self.strangers = reported(&found, &ignored, &self.ports);
        found.retain(|found| !ignored.contains(&found.socket.cookie));
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

    /// The queues of the sockets that are served, and the drops of full ones.
    fn sum(&mut self, now: f64, scale: Scale) -> Queue {
        let mut files = Files::default();
        let mut parts = Vec::new();
        for Counted {
            kind, overflows, ..
        } in &mut self.kinds
        {
            let of_kind = |watched: &&Watched| watched.socket.kind == *kind;
            // The namespace counts those of queues that nobody serves, too.
            let of_kind = self.watched.iter().filter(of_kind);
            let drops = of_kind
                .clone()
                .filter_map(|watched| self.known.get(&watched.socket.cookie))
                .map(|known| known.dropped)
                .sum();
            let share = overflowed(drops, overflows.since(now, drops > 0.0, &mut files));
            let mut part = Part::new(*kind, of_kind.clone().next().is_some());
            for Watched { socket, is_served } in of_kind {
                if let Some(known) = self.known.get_mut(&socket.cookie) {
                    part.add(socket, known, *is_served, share);
                }
            }
            parts.push(part);
        }
        let waiting = |part: &Part| match part.kind {
            Kind::Listener => part.waiting,
            Kind::Datagrams => part.waiting / DATAGRAM,
        };
        let waiting = parts.iter().map(waiting).sum();
        let has_drops = parts.iter().any(|part| part.dropped > 0.0);
        let is_due = self.due.is_now(now, waiting, has_drops);
        let mut queue = Queue::default();
        for (part, Counted { taken, .. }) in parts.iter().zip(&mut self.kinds) {
            let taken = taken.since(part.growth, is_due.then_some(&mut files));
            // Without a socket of a kind, what others took says nothing.
            part.join(&mut queue, taken.filter(|_| part.has_sockets), scale);
        }
        queue
    }

    /// Whether there were too many sockets for the last reading: 10,000, or more than 20 ms of processor time.
    #[cfg(test)]
    pub(crate) const fn is_cut(&self) -> bool {
        self.dumps.is_cut
    }

    /// The sockets of the last reading.
    #[must_use]
    pub fn watched(&self) -> &[Watched] {
        &self.watched
    }

    /// Sockets of other users that do not count, in the last reading.
    #[must_use]
    pub const fn strangers(&self) -> &BTreeSet<Stranger> {
        &self.strangers
    }
}

impl Known {
    const fn new(socket: &Socket, now: f64) -> Self {
        Self {
            since: now,
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

impl Counted {
    fn new(kind: Kind) -> Self {
        let mut files = Files::default();
        Self {
            kind,
            overflows: Overflows::new(kind, &mut files),
            taken: Taken::new(kind, &mut files),
        }
    }
}

/// The queues of a kind of socket: connections, or bytes of memory and dropped datagrams.
#[derive(Debug)]
struct Part {
    kind: Kind,
    has_sockets: bool,
    waiting: f64,
    growth: f64,
    dropped: f64,
    room: f64,
}

impl Part {
    const fn new(kind: Kind, has_sockets: bool) -> Self {
        Self {
            kind,
            has_sockets,
            waiting: 0.0,
            growth: 0.0,
            dropped: 0.0,
            room: 0.0,
        }
    }

    fn add(&mut self, socket: &Socket, known: &mut Known, is_served: bool, share: f64) {
        let waited = known.waited.take();
        if !is_served {
            return;
        }
        known.waited = Some(socket.waiting);
        let waits = f64::from(socket.waiting);
        self.waiting += waits;
        self.growth += waited.map_or(0.0, |waited| waits - f64::from(waited));
        self.dropped += known.dropped * share;
        self.room += f64::from(socket.room);
    }

    /// Adds this to what a limit gets.
    fn join(&self, queue: &mut Queue, taken: Option<f64>, scale: Scale) {
        let packet = match scale.unit {
            Unit::Packets | Unit::Connections => 1.0,
            Unit::Bytes => scale.bytes.max(1.0),
        };
        match (self.kind, scale.unit) {
            (Kind::Datagrams, _) => {
                queue.waiting += self.waiting * packet / DATAGRAM;
                queue.growth += self.growth * packet / DATAGRAM;
                queue.dropped += self.dropped * packet;
                queue.taken = taken.map(|taken| taken * packet);
                let room = self.room * packet / DATAGRAM;
                queue.buffer = (room > 0.0 && queue.connections.waiting <= 0.0).then_some(room);
            }
            (Kind::Listener, Unit::Connections) => {
                queue.waiting += self.waiting;
                queue.growth += self.growth;
                queue.dropped += self.dropped;
                queue.taken = taken;
            }
            (Kind::Listener, _) if self.has_sockets => {
                queue.connections = Connections {
                    waiting: self.waiting,
                    growth: self.growth,
                    dropped: self.dropped,
                    taken,
                    packet,
                };
            }
            (Kind::Listener, _) => {}
        }
    }
}
