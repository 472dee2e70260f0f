//! The input of the law at each tick.

use crate::parameters::{TARGET, long_wait};

/// A reading of the counters and signals of one fair limit.
#[derive(Clone, Copy, Debug)]
pub struct Reading<'a> {
    /// The time of the reading, in seconds on a clock that only goes forward.
    pub now: f64,
    /// Seconds since the reading before.
    pub elapsed: f64,
    /// Units that the limit let pass since the reading before.
    pub passed: f64,
    /// Units that the limit refused since the reading before.
    pub refused: f64,
    /// The queues of the servers behind the limit. None: they could not be read.
    pub queue: Option<Queue>,
    /// The sampled sources.
    pub sources: &'a [Source],
}

/// Queues and drops of the sockets behind a limit, in units of the limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Queue {
    /// Units that wait now.
    pub waiting: f64,
    /// Their growth since the reading before, of sockets that were served at both.
    pub growth: f64,
    /// Units that were dropped since the reading before.
    pub dropped: f64,
    /// The room in the buffers of UDP sockets. None while connections wait, too: they have more room than time.
    pub buffer: Option<f64>,
    /// Units that programs of the network namespace took from queues since the last reading that had it: at least those taken
    /// from these. None: it was not read.
    pub taken: Option<f64>,
    /// Connections that wait, in a limit on packets or bytes: only what passes shows how many units they are.
    pub connections: Connections,
    /// The last report of the service. None: there is none of late.
    pub reported: Option<Reported>,
}

/// Requests that wait inside of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reported {
    /// For so many seconds.
    pub wait: f64,
    /// By how many more in each second. 0: not known.
    pub growth: f64,
    /// The load from which the wait was estimated. None: the wait was measured.
    pub load: Option<f64>,
    /// The number of the report.
    pub number: u64,
}

impl Reported {
    /// The part that the service served of the units that came to it, in units a second. `capacity`: what it serves while it is never idle.
    #[must_use]
    pub fn served_of(&self, came: f64, capacity: f64) -> f64 {
        let is_growing = self.growth >= 0.0;
        match self.load {
            Some(load) if is_growing => came / load.max(1.0),
            Some(load) if load > 1.0 => came.max(capacity),
            Some(_) => came,
            // A full queue does not grow, and what it drops is not known.
            None if is_growing && self.wait > long_wait(TARGET) => {
                came / (1.0 + self.growth).max(2.0)
            }
            // In seconds, a queue grows by what is not served in parts of what is.
            None if is_growing => came / (1.0 + self.growth),
            // While little comes, how fast it shrinks says nothing of the capacity.
            None => came + self.growth.max(-1.0).abs() * capacity,
        }
    }
}

/// Connections of a limit on packets or bytes. Numbers of connections, as the same fields of [`Queue`].
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Connections {
    pub waiting: f64,
    pub growth: f64,
    pub dropped: f64,
    pub taken: Option<f64>,
    /// The units of a packet.
    pub packet: f64,
}

/// A source of sampled units.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Source {
    /// Its weight in shares of the level.
    pub weight: f64,
    /// The number of its network.
    pub network: u64,
    /// Units since the onset.
    pub since_onset: f64,
    /// Units a second, over the last two seconds.
    pub rate: f64,
    /// The number of its samples in about the last second.
    pub samples: f64,
}
