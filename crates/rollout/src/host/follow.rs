//! A host that follows the reports of others: it begins, waits, or stops.

use std::time::{Duration, SystemTime};

use super::machine::Host;
use super::{Clock, Event, Output, Stop};
use crate::board::{Board, Failure, Gate};
use crate::text::brief;

/// After so many requests without a report of the canaries, the stall is reported.
const STALLED: u32 = 6;
/// How many requests a host waits before it follows: by then the canaries that have begun have reported it.
const SETTLING: u32 = 3;

impl Host {
    /// Follows the reports on the head.
    pub(super) fn follow(&mut self, board: &Board, clock: Clock, out: &mut Vec<Output>) {
        let Some(known) = &mut self.known else {
            return;
        };
        if let Some(failure) = &board.failed {
            // It is not signed, and is saved.
            let (host, reason) = (brief(&failure.host), brief(&failure.reason));
            let reason = Stop::CanaryFailed(Failure { host, reason });
            if self.trial.is_some() {
                self.stop_trial(reason, out);
            } else if self.saved.is_open() {
                self.stop(reason, out);
            }
            return;
        }
        if self.trial.is_some() || !self.saved.is_open() {
            known.ends = None;
            return;
        }
        if known.is_canary {
            self.begin(clock, out);
            return;
        }
        let ends = board.ends.map(|ends| {
            let left = ends.duration_since(clock.wall).unwrap_or_default();
            clock.monotonic + left
        });
        known.ends = ends;
        let waited = clock.monotonic.saturating_sub(known.since);
        let every = self.settings.every;
        let held_for = if board.held == 0 {
            known.held_since = None;
            Duration::ZERO
        } else {
            let since = *known.held_since.get_or_insert(clock.monotonic);
            clock.monotonic.saturating_sub(since)
        };
        if board.gate(held_for, every) == Gate::Open {
            if waited >= every * SETTLING {
                self.begin(clock, out);
            }
        } else if waited >= every * STALLED
            && is_silent(board, clock.wall, every * STALLED)
            && !known.is_stalled
        {
            known.is_stalled = true;
            let version = known.accepted.rules.version;
            out.push(Output::Event(Event::Stalled { version }));
        }
    }
}

/// Whether no canary is on trial, or the bake of each has been over for so long: a canary that ended meanwhile cannot report it.
fn is_silent(board: &Board, now: SystemTime, long: Duration) -> bool {
    board.ends.is_none_or(|ends| ends + long <= now)
}
