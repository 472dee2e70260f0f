//! Counters that never decrease while the agent runs, even if their sources restart.

use std::collections::HashMap;

/// The reported value of each series.
#[derive(Debug, Default)]
pub struct Ledger {
    series: HashMap<String, Entry>,
    round: u64,
}

#[derive(Debug, Default)]
struct Entry {
    /// The counts of sources that have been replaced.
    before: u64,
    /// The last value.
    last: u64,
    /// The round of the last value.
    round: u64,
}

impl Ledger {
    /// The value to report for a series whose counter is at `now`: a counter that decreased has restarted, in another
    /// policy or cgroup, and its value is added to the previous total.
    pub fn total(&mut self, series: &str, now: u64) -> u64 {
        let round = self.round;
        if !self.series.contains_key(series) {
            self.series.insert(series.to_owned(), Entry::default());
        }
        // It was just inserted if it was missing: the default is never used.
        let Some(entry) = self.series.get_mut(series) else {
            return now;
        };
        if now < entry.last {
            entry.before += entry.last;
        }
        (entry.last, entry.round) = (now, round);
        entry.before + now
    }

    /// Restarts series whose counters the operator has reset.
    pub fn restart(&mut self, is_reset: impl Fn(&str) -> bool) {
        self.series.retain(|series, _| !is_reset(series));
    }

    /// Removes the series that were not reported since the last call: their limits or groups no longer exist.
    pub fn end_round(&mut self) {
        let round = self.round;
        self.series.retain(|_, entry| entry.round == round);
        self.round += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_that_begins_anew_goes_on() {
        let mut ledger = Ledger::default();
        let told: Vec<u64> = [3, 10, 10, 4, 5, 0, 7]
            .map(|now| ledger.total("a", now))
            .to_vec();
        assert_eq!(told, [3, 10, 10, 14, 15, 15, 22]);
        assert_eq!(ledger.total("b", 1), 1);
    }

    #[test]
    fn a_counter_that_the_operator_reset_begins_at_0() {
        let mut ledger = Ledger::default();
        ledger.total("limit_a", 5);
        ledger.total("b", 5);
        ledger.restart(|series| series.starts_with("limit_"));
        // Less than before in one case, more in the other: neither is added to the count before the reset.
        assert_eq!((ledger.total("limit_a", 9), ledger.total("b", 4)), (9, 9));
    }

    #[test]
    fn ended_series_are_forgotten() {
        let mut ledger = Ledger::default();
        ledger.total("a", 3);
        ledger.total("b", 3);
        ledger.end_round();
        ledger.total("b", 4);
        ledger.end_round();
        assert_eq!(ledger.series.len(), 1);
        assert_eq!(ledger.total("b", 1), 5);
    }
}
