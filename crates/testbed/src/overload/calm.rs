//! Whether the machine was calm enough for figures.

use std::path::Path;
use std::time::{Duration, Instant};

use super::MADE_UP;
use crate::groups::run_delay;
use crate::network::Agent;
use crate::stalls::{Gaps, Stalls};

/// Delays of this machine's threads below which figures are compared.
pub const CALM: Duration = Duration::from_millis(40);
/// Less time than the agent's threads together may wait for a CPU: twice as much ends a level.
pub const LATE: Duration = Duration::from_secs(1);

/// Since when, and the threads on which figures of that time depend.
pub struct Watch<'t> {
    since: Instant,
    stalls: Stalls,
    /// Its process, and how long it had waited.
    agent: Option<(u32, Duration)>,
    threads: Vec<&'t Gaps>,
}

impl<'t> Watch<'t> {
    /// Begins to watch these threads, of the server and of senders, and the agent.
    pub fn begin(agent: &Agent<'_>, threads: &[&'t Gaps]) -> Self {
        Self {
            agent: Some((agent.process(), run_delay(agent.process()))),
            ..Self::without_agent(threads)
        }
    }

    /// The same where there is no agent.
    pub fn without_agent(threads: &[&'t Gaps]) -> Self {
        Self {
            since: Instant::now(),
            stalls: Stalls::watch(),
            agent: None,
            threads: threads.to_vec(),
        }
    }

    /// For how long threads stalled so far, and the agent's waited for a CPU.
    pub fn delays(&self) -> (Duration, Duration) {
        let threads = self.threads.iter();
        let gaps = threads.map(|gaps| gaps.since(self.since, MADE_UP));
        let stalled = self.stalls.so_far() + gaps.sum::<Duration>();
        let waited = match self.agent {
            Some((process, before)) if Path::new(&format!("/proc/{process}/task")).exists() => {
                run_delay(process).saturating_sub(before)
            }
            _ => Duration::ZERO,
        };
        (stalled, waited)
    }

    /// Whether figures so far say something: a server that stalls has another capacity and may be overloaded by nobody, and
    /// senders that stall send less.
    pub fn is_calm(&self) -> bool {
        let (stalled, waited) = self.delays();
        let is_calm = stalled < CALM && waited < LATE;
        if !is_calm {
            println!(
                "threads stalled for {stalled:?}, the agent for {waited:?}: figures are not compared"
            );
        }
        is_calm
    }
}
