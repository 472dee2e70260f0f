//! Reads the kernel's event rings.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use cgroup::GroupManager;
use datapath::EventRing;
use decide::Current;
use tokio::io::unix::AsyncFd;

use super::attack::{Attacks, Turn};
use super::{Event, EventKind, EventLog};
use crate::daemon::packets::Packets;
use crate::stats::monotonic_nanoseconds;

/// The pause after reading a ring. With the ring's size it bounds the agent's work in a flood of forged sources: 11,700
/// records per second and direction.
const PAUSE: Duration = Duration::from_millis(100);
/// The interval at which a change of policy, with new rings, and the state of groups are checked.
const LOOK: Duration = Duration::from_secs(1);

/// The sources of events and their log.
pub struct Feed {
    log: Arc<EventLog>,
    packets: Packets,
    requests: Arc<Current>,
    groups: GroupManager,
    rings: Vec<(Arc<EventRing>, AsyncFd<OwnedFd>)>,
    lost: u64,
    lost_told: Option<Instant>,
    killed: HashMap<String, u64>,
    refused: HashMap<String, u64>,
    attacks: Attacks,
}

impl Feed {
    /// Reads events of packets, requests and groups.
    #[must_use]
    pub fn new(log: Arc<EventLog>, packets: Packets, requests: Arc<Current>, groups: GroupManager) -> Self {
        let killed = groups.oom_kills().into_iter().collect();
        let refused = groups.refusals().into_iter().map(|(group, network)| (group, network.refused())).collect();
        Self {
            log,
            packets,
            requests,
            groups,
            rings: Vec::new(),
            lost: 0,
            lost_told: None,
            killed,
            refused,
            attacks: Attacks::default(),
        }
    }

    /// Runs until it is dropped.
    pub async fn run(mut self) {
        let mut looked = Instant::now();
        self.watch_rings();
        loop {
            let left = LOOK.saturating_sub(looked.elapsed());
            tokio::select! {
                () = readable(&self.rings) => {}
                () = tokio::time::sleep(left) => {
                    looked = Instant::now();
                    self.watch_rings();
                    self.look_at_groups();
                    self.look_at_attacks();
                    let requests = self.requests.load_full();
                    requests.refusal_events(monotonic_nanoseconds()).into_iter().for_each(|event| self.log.push(event));
                }
            }
            self.read();
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Watches exactly the rings of the policy in effect.
    fn watch_rings(&mut self) {
        let Some(packets) = self.packets.load_full() else { return };
        let in_effect = packets.event_rings();
        self.rings.retain(|(ring, _)| in_effect.iter().any(|kept| Arc::ptr_eq(kept, ring)));
        for ring in in_effect {
            if self.rings.iter().any(|(known, _)| Arc::ptr_eq(known, &ring)) {
                continue;
            }
            // Without a descriptor it is read at every interval.
            if let Ok(descriptor) = ring.descriptor()
                && let Ok(descriptor) = watched(descriptor)
            {
                self.rings.push((ring, descriptor));
            }
        }
    }

    fn read(&mut self) {
        let Some(packets) = self.packets.load_full() else { return };
        let (events, lost) = packets.drain_events();
        for event in events {
            if let (EventKind::Throttled, Some(limit)) = (event.verdict, &event.limit)
                && !self.attacks.follows(limit)
            {
                self.attacks.follow(limit, packets.refused_packets(limit).unwrap_or(0), Instant::now());
            }
            self.log.push(event);
        }
        self.lost += lost;
        // In a flood, losses are constant: they are reported once a second.
        if self.lost > 0 && self.lost_told.is_none_or(|told| told.elapsed() >= LOOK) {
            self.lost_told = Some(Instant::now());
            self.log.push(Event::lost(std::mem::take(&mut self.lost), "the kernel's ring of events was full"));
        }
    }

    /// Logs the start and end of attacks. Costs nothing while no limit refuses.
    fn look_at_attacks(&mut self) {
        let packets = self.packets.load_full();
        for limit in self.attacks.limits() {
            let refused = packets.as_ref().and_then(|packets| packets.refused_packets(&limit));
            let Some(turn) = self.attacks.look(&limit, refused, Instant::now()) else { continue };
            let (what, count, reason) = match turn {
                Turn::Began(rate) => {
                    (EventKind::Attack, rate, format!("{rate} packets/s are refused; agent top lists the sources"))
                }
                Turn::Ended { lasted, refused } => {
                    let lasted = humantime::format_duration(Duration::from_secs(lasted.as_secs()));
                    (EventKind::AttackEnded, refused, format!("{refused} packets were refused in {lasted}"))
                }
            };
            match what {
                EventKind::Attack => tracing::warn!(limit, count, "attack on limit {limit:?} began: {reason}"),
                _ => tracing::info!(limit, count, "attack on limit {limit:?} ended: {reason}"),
            }
            self.log.push(Event { limit: Some(limit), ..Event::now(what, count, reason) });
        }
    }

    fn look_at_groups(&mut self) {
        for (group, kills) in self.groups.oom_kills() {
            let before = self.killed.insert(group.clone(), kills).unwrap_or(kills);
            if kills > before {
                let reason = format!("out of memory: {kills} killed since its cgroup was made");
                self.log.push(Event { group: Some(group), ..Event::now(EventKind::OomKill, kills - before, reason) });
            }
        }
        for (group, network) in self.groups.refusals() {
            let refused = network.refused();
            let before = self.refused.insert(group.clone(), refused).unwrap_or(refused);
            if let Some(last) = network.last_refusal.filter(|_| refused > before) {
                let reason = format!("{} refused in the last second, {last}", refused - before);
                self.log.push(Event {
                    source: Some(last.destination.to_string()),
                    limit: Some(last.limit),
                    group: Some(group),
                    port: Some(last.port),
                    direction: Some("egress".to_owned()),
                    ..Event::now(EventKind::Throttled, refused - before, reason)
                });
            }
        }
    }
}

#[expect(deprecated, reason = "its successor is unsafe; the descriptor is owned by what is returned")]
fn watched(descriptor: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(descriptor, tokio::io::Interest::READABLE)
}

/// Waits until a ring has records; for ever if there is none.
async fn readable(rings: &[(Arc<EventRing>, AsyncFd<OwnedFd>)]) {
    std::future::poll_fn(|context| {
        let mut is_ready = Poll::Pending;
        for (_, descriptor) in rings {
            if let Poll::Ready(Ok(mut guard)) = descriptor.poll_read_ready(context) {
                // Before reading the ring, so that later records wake it again.
                guard.clear_ready();
                is_ready = Poll::Ready(());
            }
        }
        is_ready
    })
    .await;
}
