//! The thread that bans sources which limits keep refusing.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use decide::{Edge, Offence};
use host::PROGRAM;

use super::crowdsec::Bouncer;
use super::escalation::{Escalated, event};
use super::events::{Event, EventKind, EventLog};
use super::packets::Packets;

/// The interval at which refused packets are read.
const LOOK: Duration = Duration::from_millis(250);
/// The most queued offences.
const WAITING: usize = 1_024;
/// The most bans made at once, to bound the time under the lock.
const AT_ONCE: usize = 256;
/// The most bans of one reading with separate events; one event counts the rest.
const NAMED: usize = 10;

/// Queues offences, so that no decision waits for the kernel's maps.
pub struct BanQueue(SyncSender<Offence>);

/// The receiving end of the queue.
pub struct Orders(Receiver<Offence>);

/// A queue of offences: its sending and its receiving end.
#[must_use]
pub fn queue() -> (BanQueue, Orders) {
    let (sender, receiver) = sync_channel(WAITING);
    (BanQueue(sender), Orders(receiver))
}

impl Edge for BanQueue {
    fn escalate(&self, offence: Offence) {
        // A source that is not banned now is still refused, and its next refusals ban it.
        if let Err(TrySendError::Full(offence)) = self.0.try_send(offence) {
            let prefix = offence.prefix;
            tracing::error!(
                "banning {prefix} failed: the queue of {WAITING} bans is full; its next refusals ban it"
            );
        }
    }
}

impl Orders {
    /// Bans the sources of offences and counts refused packets, on a separate thread until all senders are dropped.
    pub fn carry_out(self, packets: Packets, events: Arc<EventLog>, crowdsec: Arc<Bouncer>) {
        let work = move || self.work(&packets, &events, &crowdsec);
        if let Err(error) = thread::Builder::new()
            .name("weir-bans".to_owned())
            .spawn(work)
        {
            tracing::error!(
                "starting the thread that bans addresses failed: {error}; no limit bans sources: restart the agent"
            );
        }
    }

    fn work(&self, packets: &Packets, events: &EventLog, crowdsec: &Bouncer) {
        let (mut looked, mut is_failing) = (Instant::now(), false);
        let mut failures = Failures::default();
        loop {
            let mut offences = match self.0.recv_timeout(LOOK.saturating_sub(looked.elapsed())) {
                Ok(first) => std::iter::once(first)
                    .chain(self.0.try_iter().take(WAITING))
                    .collect(),
                Err(RecvTimeoutError::Timeout) => Vec::new(),
                Err(RecvTimeoutError::Disconnected) => return,
            };
            let is_due = looked.elapsed() >= LOOK;
            if is_due {
                looked = Instant::now();
            }
            // Without limits on packets no source can be banned.
            let Some(packets) = packets.load_full() else {
                continue;
            };
            if is_due {
                let found = packets.lock().offences();
                match found {
                    Ok(found) => {
                        offences.extend(found);
                        is_failing = false;
                    }
                    // Logged once: the limits stay in effect.
                    Err(error) if !is_failing => {
                        tracing::error!(
                            "counting refused packets for escalate failed: {error}; the agent tries again"
                        );
                        is_failing = true;
                    }
                    Err(_) => {}
                }
            }
            let mut outcomes = Vec::with_capacity(offences.len());
            for some in offences.chunks(AT_ONCE) {
                outcomes.extend(packets.escalate(some));
            }
            report(&offences, &outcomes, events);
            for (offence, outcome) in offences.iter().zip(&outcomes) {
                if let Escalated::Banned(time) = outcome {
                    crowdsec.report(offence, *time);
                }
            }
            failures.log(&offences, &outcomes);
        }
    }
}

/// Logs the first few of each kind, and the number of the others.
fn report(offences: &[Offence], outcomes: &[Escalated], events: &EventLog) {
    for what in [EventKind::Banned, EventKind::WouldBan] {
        let all = offences
            .iter()
            .zip(outcomes)
            .filter_map(|(offence, outcome)| event(offence, outcome));
        let mut all = all.filter(|event| event.verdict == what);
        for event in all.by_ref().take(NAMED) {
            tracing::info!(
                "{} {}",
                event.source.as_deref().unwrap_or_default(),
                event.reason
            );
            events.push(event);
        }
        let others = all.count() as u64;
        if others > 0 {
            let reason = format!(
                "other sources exceeded limits as often; {PROGRAM} bans lists the banned sources"
            );
            tracing::info!("{others} {reason}");
            events.push(Event::now(what, others, reason));
        }
    }
}

/// Failed bans, logged at intervals: a full table fails for each further one.
#[derive(Debug, Default)]
struct Failures {
    count: u64,
    logged: Option<Instant>,
}

impl Failures {
    const EVERY: Duration = Duration::from_secs(10);

    fn log(&mut self, offences: &[Offence], outcomes: &[Escalated]) {
        let mut failed =
            offences
                .iter()
                .zip(outcomes)
                .filter_map(|(offence, outcome)| match outcome {
                    Escalated::Failed(reason) => Some((offence.prefix, reason)),
                    _ => None,
                });
        self.count += failed.clone().count() as u64;
        let Some((prefix, reason)) = failed.next_back() else {
            return;
        };
        if self
            .logged
            .is_none_or(|logged| logged.elapsed() >= Self::EVERY)
        {
            let others = match self.count {
                1 => String::new(),
                count => format!(" and {} others", count - 1),
            };
            tracing::error!(
                "banning {prefix}{others} failed: {reason}; limits still refuse what exceeds them"
            );
            (self.count, self.logged) = (0, Some(Instant::now()));
        }
    }
}
