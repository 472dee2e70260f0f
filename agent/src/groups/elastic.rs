//! How much CPU time an elastic group has at this moment: a pure function of samples of the host's load.

use crate::config::policy_group::CpuShare;
use crate::host_load::{RoomDecision, Sample};

/// This share of the host stays idle, so that somebody new finds a CPU at once and is noticed.
const RESERVE: f64 = 0.10;

/// One group's share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Elastic {
    promised: CpuShare,
    current: CpuShare,
    room: RoomDecision,
}

/// Whether a group wanted more than it had since the last sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Demand {
    /// It was held back.
    Throttled,
    /// It had enough.
    Satisfied,
}

impl Elastic {
    /// A group that is promised so much.
    #[must_use]
    pub const fn new(promised: CpuShare) -> Self {
        Self { promised, current: promised, room: RoomDecision::new() }
    }

    /// What the group has from now on, if that is not what it had: all that is idle beyond the reserve while the host
    /// has room, what it was promised as soon as it has not. `sharing` groups, at least 1, want more at this moment;
    /// `host_percent` is what all CPUs have together.
    ///
    /// The pressure that holding back a group causes is its own, and says nothing of whether others want CPUs: it is
    /// left out of account while the group is held back.
    pub fn adjust(&mut self, sample: &Sample, demand: Demand, sharing: usize, host_percent: u64) -> Option<CpuShare> {
        let pressure = sample.pressure.filter(|_| demand == Demand::Satisfied);
        let host = host_percent as f64;
        let spare = (sample.idle - RESERVE) * host / sharing.max(1) as f64;
        let next = if !self.room.decide(&Sample { pressure, ..*sample }) {
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
        Sample { idle, pressure: None }
    }

    #[test]
    fn what_is_idle_is_given_and_taken_back_at_once() {
        let promised = CpuShare::from_percent(50.0);
        let mut elastic = Elastic::new(promised);
        let mut step = |sample, demand| elastic.adjust(&sample, demand, 1, 200).map(CpuShare::percent);
        // One CPU of two is idle; a fifth of a CPU stays so.
        assert_eq!(step(idle(0.5), Demand::Throttled), Some(130.0));
        assert_eq!(step(idle(0.10), Demand::Throttled), None);
        // Somebody else came.
        assert_eq!(step(idle(0.02), Demand::Throttled), Some(50.0));
        // Little room is no room yet.
        assert_eq!(step(idle(0.15), Demand::Throttled), None);
        assert_eq!(step(idle(0.90), Demand::Satisfied), None);
        assert_eq!(step(idle(0.90), Demand::Throttled), Some(200.0));
    }

    #[test]
    fn pressure_of_others_takes_back_and_its_own_does_not() {
        let mut elastic = Elastic::new(CpuShare::from_percent(50.0));
        let pressed = Sample { idle: 0.5, pressure: Some(90.0) };
        assert!(elastic.adjust(&pressed, Demand::Throttled, 1, 200).is_some());
        assert_eq!(elastic.adjust(&pressed, Demand::Satisfied, 1, 200).map(CpuShare::percent), Some(50.0));
    }

    #[test]
    fn groups_that_want_more_share_what_is_idle() {
        let mut elastic = Elastic::new(CpuShare::from_percent(10.0));
        assert_eq!(elastic.adjust(&idle(0.5), Demand::Throttled, 2, 200).map(CpuShare::percent), Some(50.0));
    }
}
