//! Traces: the verdicts on packets of single sources, for clients of `weir trace`.
//!
//! A trace lasts as long as its client. The kernel programs log only sources that are traced.

use std::net::IpAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::trace::{TraceLine, TraceVerdict};
use common::packet::Address;
use common::trace::{MOST_TRACED, TracedSources};
use config::prefix::mapped;
use host::PROGRAM;
use tokio::sync::{Notify, mpsc};

use super::packets::Packets;
use crate::daemon::events::seconds_since_1970;

/// The interval at which the kernel's rings are read during a trace.
const PERIOD: Duration = Duration::from_millis(100);
/// The most verdicts by which a client may lag behind: some 300 bytes each.
const MOST_BEHIND: usize = 4_096;

/// The traces that clients follow.
pub struct Tracer {
    packets: Packets,
    traces: Mutex<Vec<Trace>>,
    begun: Notify,
}

struct Trace {
    source: IpAddr,
    lines: mpsc::Sender<Arc<TraceLine>>,
    lost: u64,
}

impl Trace {
    fn send(&mut self, line: &Arc<TraceLine>) {
        if self.lost > 0 {
            let lost = TraceLine::lost(
                line.time,
                self.lost,
                "this client reads more slowly than packets come",
            );
            if self.lines.try_send(Arc::new(lost)).is_ok() {
                self.lost = 0;
            }
        }
        if self.lost > 0 || self.lines.try_send(Arc::clone(line)).is_err() {
            self.lost += if line.verdict == TraceVerdict::Lost {
                line.packets
            } else {
                1
            };
        }
    }
}

pub struct Verdicts(mpsc::Receiver<Arc<TraceLine>>);

impl Verdicts {
    /// Waits for the next verdict; `None` once there will be no more.
    pub async fn next(&mut self) -> Option<Arc<TraceLine>> {
        self.0.recv().await
    }

    /// The next verdict, if it is there.
    pub fn try_next(&mut self) -> Option<Arc<TraceLine>> {
        self.0.try_recv().ok()
    }
}

impl Tracer {
    /// For the programs of `packets`.
    #[must_use]
    pub fn new(packets: Packets) -> Self {
        Self {
            packets,
            traces: Mutex::default(),
            begun: Notify::new(),
        }
    }

    /// Starts a trace: verdicts from this instant on.
    ///
    /// # Errors
    ///
    /// The error for the client: the programs log no verdicts, or there are [`MOST_TRACED`] traces.
    pub fn follow(&self, source: IpAddr) -> Result<Verdicts, String> {
        let source = source.to_canonical();
        let mut traces = self.lock();
        traces.retain(|trace| !trace.lines.is_closed());
        if traces.len() >= MOST_TRACED {
            return Err(format!(
                "{MOST_TRACED} traces already run, which is the maximum: end one of them ({PROGRAM} trace) first"
            ));
        }
        let (lines, verdicts) = mpsc::channel(MOST_BEHIND);
        traces.push(Trace {
            source,
            lines,
            lost: 0,
        });
        if let Err(error) = self.apply(&traces) {
            traces.pop();
            return Err(error);
        }
        if let ([_], Some(packets)) = (traces.as_slice(), self.packets.load_full()) {
            // Drops the records of an earlier trace.
            let _ = packets.lock().reader().drain_trace();
        }
        self.begun.notify_one();
        Ok(Verdicts(verdicts))
    }

    /// Distributes verdicts until it is dropped. Without a trace it waits for one.
    pub async fn run(&self) {
        loop {
            if self.turn() {
                tokio::time::sleep(PERIOD).await;
            } else {
                self.begun.notified().await;
            }
        }
    }

    /// Distributes the logged verdicts; returns whether there is a trace.
    fn turn(&self) -> bool {
        let mut traces = self.lock();
        traces.retain(|trace| !trace.lines.is_closed());
        let is_begun = !traces.is_empty();
        // Another policy may be in effect by now, whose programs log nothing yet.
        if let (Err(error), true) = (self.apply(&traces), is_begun) {
            tracing::warn!("traces ended: {error}");
            traces.clear();
            return false;
        }
        let Some(packets) = self.packets.load_full().filter(|_| is_begun) else {
            return is_begun;
        };
        let (lines, lost) = packets.lock().reader().drain_trace();
        let lost = (lost > 0).then(|| {
            let reason = "packets come faster than verdicts are logged";
            Arc::new(TraceLine::lost(seconds_since_1970(), lost, reason))
        });
        for trace in traces.iter_mut() {
            lost.iter().for_each(|lost| trace.send(lost));
        }
        for line in lines {
            let line = Arc::new(line);
            let is_of = |trace: &&mut Trace| {
                line.source.as_deref() == Some(trace.source.to_string().as_str())
            };
            traces
                .iter_mut()
                .filter(is_of)
                .for_each(|trace| trace.send(&line));
        }
        true
    }

    /// Lets the kernel programs log these sources.
    fn apply(&self, traces: &[Trace]) -> Result<(), String> {
        let Some(packets) = self.packets.load_full() else {
            return Err(
                "this command requires a limit on packets, and the config in effect has none"
                    .to_owned(),
            );
        };
        let sources = traces
            .iter()
            .map(|trace| Address::from_ipv6(mapped(trace.source)));
        match packets.trace(TracedSources::of(sources)) {
            Ok(true) => Ok(()),
            Ok(false) => Err(format!(
                "the kernel programs of this agent log no verdicts: run an agent of a trace build (cargo xtask build \
                     --trace) in its place; {PROGRAM} show, {PROGRAM} events and {PROGRAM} replay report refusals in every build"
            )),
            Err(error) => Err(error.to_string()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Trace>> {
        // A panic elsewhere cannot leave the list half changed.
        self.traces.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
