//! The current CPU share of an elastic group: a pure function of samples of the host's load.

use config::group::CpuShare;
use host::load::{RoomDecision, Sample};

/// The share of the host that stays idle, so that other processes get a CPU at once and are noticed.
const RESERVE: f64 = 0.10;

/// One group's share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elastic {
    promised: CpuShare,
    current: CpuShare,
    room: RoomDecision,
}

/// Whether a group needed more than its share since the last sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// It was throttled.
    Throttled,
    /// Its share was sufficient.
    Satisfied,
}

impl Elastic {
    /// A group with this `max`.
    #[must_use]
    pub const fn new(promised: CpuShare) -> Self {
        Self {
            promised,
            current: promised,
            room: RoomDecision::new(),
        }
    }

    /// The current share.
    #[must_use]
    pub const fn current(&self) -> CpuShare {
        self.current
    }

    /// Returns the group's new share if it changes. While the host has spare CPU time, that is all idle time beyond the
    /// reserve; otherwise the configured `max`. `sharing`, at least 1, is the number of groups that need more now;
    /// `host_percent` is the total of all CPUs.
    ///
    /// A throttled group causes pressure itself, which does not show demand of others: it is ignored while the group is
    /// throttled.
    pub fn adjust(
        &mut self,
        sample: &Sample,
        demand: Demand,
        sharing: usize,
        host_percent: u64,
    ) -> Option<CpuShare> {
        let pressure = sample.pressure.filter(|_| demand == Demand::Satisfied);
        let host = host_percent as f64;
        let spare = (sample.idle - RESERVE) * host / sharing.max(1) as f64;
        let next = if !self.room.decide(&Sample {
            pressure,
            ..*sample
        }) {
            self.promised
        } else if demand == Demand::Throttled && spare > 0.0 {
            CpuShare::from_percent((self.current.percent() + spare).min(host)).max(self.promised)
        } else {
            self.current
        };
        let changed = next != self.current;
        self.current = next;
        changed.then_some(next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn idle(idle: f64) -> Sample {
        Sample {
            idle,
            pressure: None,
        }
    }

    #[test]
    fn idle_cpu_time_is_granted_and_withdrawn_at_once() {
        let promised = CpuShare::from_percent(50.0);
        let mut elastic = Elastic::new(promised);
        let mut step = |sample, demand| {
            elastic
                .adjust(&sample, demand, 1, 200)
                .map(CpuShare::percent)
        };
        // One CPU of two is idle; a fifth of a CPU stays idle.
        assert_eq!(step(idle(0.5), Demand::Throttled), Some(130.0));
        assert_eq!(step(idle(0.10), Demand::Throttled), None);
        // Other processes need the CPUs.
        assert_eq!(step(idle(0.02), Demand::Throttled), Some(50.0));
        // Too little is idle to count as spare.
        assert_eq!(step(idle(0.15), Demand::Throttled), None);
        assert_eq!(step(idle(0.90), Demand::Satisfied), None);
        assert_eq!(step(idle(0.90), Demand::Throttled), Some(200.0));
    }

    #[test]
    fn pressure_of_others_takes_back_and_its_own_does_not() {
        let mut elastic = Elastic::new(CpuShare::from_percent(50.0));
        let pressed = Sample {
            idle: 0.5,
            pressure: Some(90.0),
        };
        assert!(
            elastic
                .adjust(&pressed, Demand::Throttled, 1, 200)
                .is_some()
        );
        assert_eq!(
            elastic
                .adjust(&pressed, Demand::Satisfied, 1, 200)
                .map(CpuShare::percent),
            Some(50.0)
        );
    }

    #[test]
    fn groups_that_want_more_share_what_is_idle() {
        let mut elastic = Elastic::new(CpuShare::from_percent(10.0));
        assert_eq!(
            elastic
                .adjust(&idle(0.5), Demand::Throttled, 2, 200)
                .map(CpuShare::percent),
            Some(50.0)
        );
    }
}
