//! Counters that never go down while the agent runs, whatever becomes of what they are read from.

use std::collections::HashMap;

/// For each series, what was told of it so far.
#[derive(Debug, Default)]
pub struct Ledger {
    series: HashMap<String, Entry>,
    round: u64,
}

#[derive(Debug, Default)]
struct Entry {
    /// What was counted by what has been replaced since.
    before: u64,
    /// What was read last.
    last: u64,
    /// When.
    round: u64,
}

impl Ledger {
    /// What to tell of a series whose counter is at `now`: a counter that went down has begun anew, in another policy or
    /// another cgroup, and its count comes on top of the one before.
    pub fn total(&mut self, series: &str, now: u64) -> u64 {
        let round = self.round;
        if !self.series.contains_key(series) {
            self.series.insert(series.to_owned(), Entry::default());
        }
        // It was put there if it was not: the default is never told.
        let Some(entry) = self.series.get_mut(series) else { return now };
        if now < entry.last {
            entry.before += entry.last;
        }
        (entry.last, entry.round) = (now, round);
        entry.before + now
    }

    /// Forgets the series that were not asked for since the last call: limits and groups that are no more.
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
        let told: Vec<u64> = [3, 10, 10, 4, 5, 0, 7].map(|now| ledger.total("a", now)).to_vec();
        assert_eq!(told, [3, 10, 10, 14, 15, 15, 22]);
        assert_eq!(ledger.total("b", 1), 1);
    }

    #[test]
    fn what_is_no_more_is_forgotten() {
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
