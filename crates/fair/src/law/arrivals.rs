//! The passed units that reached queues of servers. Others say nothing of an overload: packets to closed ports, with
//! invalid checksums, or of handshakes that never end. An attacker could hide one behind them.

use crate::parameters::{
    ARRIVALS_WINDOW, CONNECTIONS_WINDOW, FEW_ARRIVE, FEWEST_ARRIVALS, FEWEST_WAITING, OUTSIDE,
    OUTSIDE_UNITS, PACKETS_OF_A_CONNECTION, SERVED_BESIDE, Unit,
};
use crate::reading::{Connections, Queue, Reading, Reported};

/// Queues in units of the limit, and what reached them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Flow {
    /// Units that passed, without those that reached no queue.
    pub passed: f64,
    pub waiting: f64,
    pub growth: f64,
    pub dropped: f64,
    pub buffer: Option<f64>,
    /// No less than what programs took from these queues. None: not known.
    pub taken: Option<f64>,
    /// The units of a connection, if nothing else arrives. Else 1.
    pub each: f64,
    pub reported: Reported,
    /// Whether that has not been read before.
    pub is_new_report: bool,
    /// Whether queues are counted in units of the limit, not in connections of a measured number of units.
    pub is_exact: bool,
}

/// Sums of the last readings.
#[derive(Clone, Copy, Debug, Default)]
pub struct Arrivals {
    /// Since the last reading with counters.
    passed: f64,
    seconds: f64,
    units: f64,
    connections: f64,
    /// The units of one, as last measured.
    each: Option<f64>,
    of_units: Sums,
    of_connections: Sums,
}

#[derive(Clone, Copy, Debug, Default)]
struct Sums {
    passed: f64,
    arrived: f64,
}

impl Sums {
    fn add(&mut self, passed: f64, arrived: f64, seconds: f64, window: f64) {
        let kept = (-seconds / window).exp();
        self.passed = self.passed * kept + passed;
        self.arrived = self.arrived * kept + arrived;
    }
}

impl Arrivals {
    pub fn read(&mut self, reading: &Reading, queue: &Queue, unit: Unit) -> Flow {
        let connections = &queue.connections;
        self.passed += reading.passed;
        self.seconds += reading.elapsed;
        self.units += queue.growth + queue.dropped;
        self.connections += connections.growth + connections.dropped;
        let counted = Counts {
            passed: self.passed,
            seconds: self.seconds,
            units: queue.taken.map(|taken| (taken + self.units).max(0.0)),
            connections: connections
                .taken
                .map(|taken| (taken + self.connections).max(0.0)),
        };
        if counted.units.is_some() || counted.connections.is_some() {
            (self.passed, self.seconds, self.units, self.connections) = (0.0, 0.0, 0.0, 0.0);
        }
        let mut flow = Flow {
            passed: reading.passed,
            waiting: queue.waiting,
            growth: queue.growth,
            dropped: queue.dropped,
            buffer: queue.buffer,
            taken: queue.taken,
            each: 1.0,
            reported: queue.reported.unwrap_or_default(),
            is_new_report: false,
            is_exact: *connections == Connections::default(),
        };
        if flow.is_exact {
            // What arrives beside connections is not known.
            if let Some(arrived) = counted.units {
                let (passed, seconds) = (counted.passed, counted.seconds);
                self.of_units.add(passed, arrived, seconds, ARRIVALS_WINDOW);
                let share = self.of_units.arrived / self.of_units.passed.max(1.0);
                if share < FEW_ARRIVE {
                    // The growth of memory is a rough measure of datagrams, and its errors cancel out.
                    flow.passed *= share;
                    flow.passed = flow.passed.max(arrived).min(reading.passed);
                }
            }
        } else {
            let units = self.units_of_a_connection(&counted, unit);
            if counted.connections.is_some() {
                // Beside datagrams, most units are not those of connections.
                let are_alone = counted.units.is_none();
                self.each = units.or(self.each).filter(|_| are_alone);
            }
            flow.each = self.each.unwrap_or(1.0);
            flow.add(connections, units);
        }
        flow
    }

    /// None: no connection has come.
    fn units_of_a_connection(&mut self, counted: &Counts, unit: Unit) -> Option<f64> {
        let arrived = counted.connections?;
        let passed = (counted.passed - counted.units.unwrap_or(0.0)).max(0.0);
        let sums = &mut self.of_connections;
        sums.add(passed, arrived, counted.seconds, CONNECTIONS_WINDOW);
        let units = if arrived >= FEWEST_ARRIVALS {
            passed / arrived
        } else if sums.arrived >= 1.0 {
            sums.passed / sums.arrived
        } else {
            return None;
        };
        let least = match unit {
            Unit::Packets | Unit::Connections => 1.0,
            Unit::Bytes => 64.0,
        };
        Some(units.max(least))
    }
}

/// Counters since the last reading that had them.
struct Counts {
    passed: f64,
    seconds: f64,
    units: Option<f64>,
    connections: Option<f64>,
}

impl Flow {
    /// Units that servers served.
    pub fn served(&self, granule: f64) -> f64 {
        let growth = self.growth.max(0.0);
        let rest = self.passed - self.dropped - self.growth;
        let fits = self.dropped + growth <= OUTSIDE * self.passed + OUTSIDE_UNITS * granule;
        // Nothing is left of it: counters tell a server that hangs from one beside which more is dropped than passes.
        if fits && (rest > 0.0 || self.taken.is_none()) {
            return rest;
        }
        // Others fill the queues, too, or drops are those of repeated acknowledgments.
        let taken = self.taken.unwrap_or(SERVED_BESIDE * self.passed);
        if taken + growth <= self.passed {
            return taken;
        }
        self.passed * taken / (taken + growth + self.dropped)
    }

    fn add(&mut self, connections: &Connections, units: Option<f64>) {
        let packet = connections.packet;
        let each = units.unwrap_or(PACKETS_OF_A_CONNECTION * packet);
        self.waiting += if units.is_some() && connections.waiting < FEWEST_WAITING {
            connections.waiting * packet
        } else {
            connections.waiting * each
        };
        self.growth += connections.growth * each;
        self.dropped += connections.dropped * units.unwrap_or(packet);
        let taken = connections.taken.map(|taken| taken * each);
        self.taken = match (self.taken, taken) {
            (Some(units), Some(taken)) => Some(units + taken),
            (units, taken) => units.or(taken),
        };
    }
}
