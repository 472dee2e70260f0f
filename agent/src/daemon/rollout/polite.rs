//! Sources that no limit refused before a trial, and what limits refuse of them under it.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use common::packet::Address;
use host::monotonic_nanoseconds;

use crate::daemon::Agent;
use crate::daemon::packets::PacketEngine;

/// The most sources, which bounds the cost of a check.
const MOST: usize = 256;

/// The pause after a reading, as a multiple of the time that it took: readings take at most one part in so many of a CPU.
const PAUSE: u32 = 20;

/// Passed and refused packets by the limits' names.
type Counts = BTreeMap<String, (u64, u64)>;

/// Chooses a sample of sources that no limit on packets has refused for `time`; none if they cannot be read.
pub(super) fn sample(agent: &Agent, time: Duration) -> Vec<Address> {
    let since = monotonic_nanoseconds().saturating_sub(time.as_nanos() as u64);
    let sample = |packets: &PacketEngine| {
        let sample = packets.for_client(|in_effect| in_effect.reader().polite(MOST, since));
        sample.inspect_err(|error| tracing::warn!("reading sources failed: {error}"))
    };
    let packets = agent.packets();
    let sampled = packets.and_then(|packets| sample(&packets).ok());
    sampled.unwrap_or_default()
}

/// The counts of a sample at the beginning of a trial.
pub(super) struct Polite {
    sources: Vec<Address>,
    before: Vec<Counts>,
    /// The last reading, and when the next one is due.
    last: Counts,
    next: Instant,
}

impl Polite {
    pub(super) fn begin(agent: &Agent, sources: Vec<Address>) -> Result<Self, String> {
        let before = counts(agent, &sources)?;
        Ok(Self {
            sources,
            before,
            last: Counts::new(),
            next: Instant::now(),
        })
    }

    /// The packets of the sample that each limit has passed and refused since. With a great many limits, those of a reading
    /// some checks ago.
    pub(super) fn since(&mut self, agent: &Agent) -> Result<Counts, String> {
        let began = Instant::now();
        if began >= self.next {
            self.last = sums(&self.before, counts(agent, &self.sources)?);
            self.next = Instant::now() + began.elapsed() * PAUSE;
        }
        Ok(self.last.clone())
    }
}

fn counts(agent: &Agent, sources: &[Address]) -> Result<Vec<Counts>, String> {
    match agent.packets() {
        Some(packets) if !sources.is_empty() => packets
            .for_client(|in_effect| in_effect.reader().counts_of(sources))
            .map_err(|error| error.to_string()),
        _ => Ok(Vec::new()),
    }
}

/// The sums over sources. The kernel may forget the sample of a source, whose counts fall then: it counts from what it had.
fn sums(before: &[Counts], now: Vec<Counts>) -> Counts {
    let none = Counts::new();
    let before = before.iter().chain(std::iter::repeat(&none));
    let mut sums = Counts::new();
    for (now, before) in now.into_iter().zip(before) {
        for (limit, (passed, refused)) in now {
            let (passed_before, refused_before) = before.get(&limit).copied().unwrap_or_default();
            let (all_passed, all_refused) = sums.entry(limit).or_default();
            *all_passed += passed.saturating_sub(passed_before);
            *all_refused += refused.saturating_sub(refused_before);
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(passed: u64, refused: u64) -> Counts {
        Counts::from([("web".to_owned(), (passed, refused))])
    }

    #[test]
    fn sums_have_what_sources_gained() {
        let before = [counts(100, 0), counts(50, 7)];
        // One more packet of the first; the second is forgotten, and refused again.
        let now = vec![counts(100, 1), counts(10, 9)];
        assert_eq!(sums(&before, now), counts(0, 3));
        assert_eq!(sums(&[], vec![counts(2, 1)]), counts(2, 1));
        assert_eq!(sums(&before, Vec::new()), Counts::new());
    }
}
