//! Reads what the kernel tells, as it comes.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use tokio::io::unix::AsyncFd;

use super::{Event, EventLog, What};
use crate::applications::Packets;
use crate::datapath::EventRing;
use crate::groups::Keeper;

/// How long to leave the ring alone after a look at it. With a ring's size this bounds what a flood of made-up sources
/// can make the agent do: 11,700 records a second and direction.
const PAUSE: Duration = Duration::from_millis(100);
/// How often to look whether another policy is in force, with rings of its own, and what became of groups.
const LOOK: Duration = Duration::from_secs(1);

/// What is read, and where it goes.
pub struct Feed {
    log: Arc<EventLog>,
    packets: Packets,
    groups: Keeper,
    rings: Vec<(Arc<EventRing>, AsyncFd<OwnedFd>)>,
    lost: u64,
    lost_told: Option<Instant>,
    killed: HashMap<String, u64>,
}

impl Feed {
    /// Reads what is told of packets, if any are held, and of groups.
    #[must_use]
    pub fn new(log: Arc<EventLog>, packets: Packets, groups: Keeper) -> Self {
        let killed = groups.oom_kills().into_iter().collect();
        Self { log, packets, groups, rings: Vec::new(), lost: 0, lost_told: None, killed }
    }

    /// Reads until it is dropped.
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
                }
            }
            self.read();
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Watches the rings of the policy in force, and no others.
    fn watch_rings(&mut self) {
        let Some(packets) = self.packets.load_full() else { return };
        let in_force = packets.event_rings();
        self.rings.retain(|(ring, _)| in_force.iter().any(|kept| Arc::ptr_eq(kept, ring)));
        for ring in in_force {
            if self.rings.iter().any(|(known, _)| Arc::ptr_eq(known, &ring)) {
                continue;
            }
            // Without a descriptor it is read at every look.
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
        events.into_iter().for_each(|event| self.log.push(event));
        self.lost += lost;
        // In a flood there is always something lost: that is told once a second, like everything else.
        if self.lost > 0 && self.lost_told.is_none_or(|told| told.elapsed() >= LOOK) {
            self.lost_told = Some(Instant::now());
            self.log.push(Event::lost(std::mem::take(&mut self.lost), "the kernel's ring of events was full"));
        }
    }

    fn look_at_groups(&mut self) {
        for (group, kills) in self.groups.oom_kills() {
            let before = self.killed.insert(group.clone(), kills).unwrap_or(kills);
            if kills > before {
                let reason = format!("out of memory: {kills} killed since its cgroup was made");
                self.log.push(Event { group: Some(group), ..Event::now(What::OomKill, kills - before, reason) });
            }
        }
    }
}

#[expect(deprecated, reason = "its successor is unsafe; the descriptor is owned by what is returned")]
fn watched(descriptor: OwnedFd) -> std::io::Result<AsyncFd<OwnedFd>> {
    AsyncFd::with_interest(descriptor, tokio::io::Interest::READABLE)
}

/// Waits until a ring has something; for ever if there is none.
async fn readable(rings: &[(Arc<EventRing>, AsyncFd<OwnedFd>)]) {
    std::future::poll_fn(|context| {
        let mut is_ready = Poll::Pending;
        for (_, descriptor) in rings {
            if let Poll::Ready(Ok(mut guard)) = descriptor.poll_read_ready(context) {
                // Before the ring is read, so that what comes meanwhile is heard of again.
                guard.clear_ready();
                is_ready = Poll::Ready(());
            }
        }
        is_ready
    })
    .await;
}
