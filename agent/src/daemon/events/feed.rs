//! Reads the kernel's event rings.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::Poll;
use std::time::{Duration, Instant};

use api::group::Refusal;
use cgroup::GroupManager;
use config::human;
use datapath::EventRing;
use decide::{Current, FullStores};
use host::PROGRAM;
use tokio::io::unix::AsyncFd;

use super::attack::{Attacks, CurrentAttacks, Turn};
use super::lifted;
use super::{Event, EventKind, EventLog, seconds_since_1970};
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
    lost_reported: Option<Instant>,
    counts: Counts,
    attacks: Attacks,
    full_stores: FullStores,
}

/// The kernel's counts of a group.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Counted {
    OomKills,
    /// Processes and threads above `pids`.
    PidsRefused,
    /// Connections and packets above a limit of its network.
    NetworkRefused,
}

/// A count of a group since its cgroup was created.
struct GroupCount {
    group: String,
    counted: Counted,
    count: u64,
    /// Of `NetworkRefused`.
    last: Option<Refusal>,
}

impl GroupCount {
    /// All counts of all groups.
    fn all(groups: &GroupManager) -> impl Iterator<Item = Self> {
        let of = |counted| {
            move |(group, count)| Self {
                group,
                counted,
                count,
                last: None,
            }
        };
        let network = groups.refusals().into_iter().map(|(group, network)| Self {
            group,
            counted: Counted::NetworkRefused,
            count: network.refused(),
            last: network.last_refusal,
        });
        let killed = groups.oom_kills().into_iter().map(of(Counted::OomKills));
        let pids = groups.pids_refused().into_iter();
        killed
            .chain(pids.map(of(Counted::PidsRefused)))
            .chain(network)
    }

    /// The event of a rise of the count; `None` if nothing is known of a refusal.
    fn event(self, rise: u64) -> Option<Event> {
        let group = Some(self.group);
        Some(match self.counted {
            Counted::OomKills => {
                let kills = self.count;
                let reason = format!("out of memory: {kills} killed since its cgroup was made");
                Event {
                    group,
                    ..Event::now(EventKind::OomKill, rise, reason)
                }
            }
            Counted::PidsRefused => {
                let reason = format!("{rise} new processes and threads refused in the last second");
                Event {
                    limit: Some("pids".to_owned()),
                    group,
                    ..Event::now(EventKind::Throttled, rise, reason)
                }
            }
            Counted::NetworkRefused => {
                let last = self.last?;
                let reason = format!("{rise} refused in the last second, {last}");
                Event {
                    source: Some(last.destination.to_string()),
                    limit: Some(last.limit),
                    group,
                    port: Some(last.port),
                    direction: Some("egress".to_owned()),
                    ..Event::now(EventKind::Throttled, rise, reason)
                }
            }
        })
    }
}

/// Counts of groups at the last check.
struct Counts(HashMap<(Counted, String), u64>);

impl Counts {
    fn of(groups: &GroupManager) -> Self {
        let at = |count: GroupCount| ((count.counted, count.group), count.count);
        Self(GroupCount::all(groups).map(at).collect())
    }

    /// How much a count has risen; `None` if it has not, or is new or restarted.
    fn rise(&mut self, new: &GroupCount) -> Option<u64> {
        let before = self.0.insert((new.counted, new.group.clone()), new.count)?;
        new.count.checked_sub(before).filter(|rise| *rise > 0)
    }
}

impl Feed {
    /// Reads events of packets, requests and groups.
    #[must_use]
    pub fn new(
        log: Arc<EventLog>,
        packets: Packets,
        requests: Arc<Current>,
        groups: GroupManager,
    ) -> Self {
        let counts = Counts::of(&groups);
        Self {
            log,
            packets,
            requests,
            groups,
            rings: Vec::new(),
            lost: 0,
            lost_reported: None,
            counts,
            attacks: Attacks::default(),
            full_stores: FullStores::default(),
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
                    lifted::report(&self.log, self.groups.take_lifted());
                    self.look_at_attacks();
                    let requests = self.requests.load_full();
                    let now = monotonic_nanoseconds();
                    let refusals = requests.refusal_events(now);
                    let full = self.full_stores.events(&requests, now);
                    refusals.into_iter().chain(full).for_each(|event| self.log.push(event));
                }
            }
            self.read();
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// Watches exactly the rings of the policy in effect.
    fn watch_rings(&mut self) {
        let Some(packets) = self.packets.load_full() else {
            return;
        };
        let in_effect = packets.event_rings();
        self.rings
            .retain(|(ring, _)| in_effect.iter().any(|kept| Arc::ptr_eq(kept, ring)));
        for ring in in_effect {
            if self
                .rings
                .iter()
                .any(|(known, _)| Arc::ptr_eq(known, &ring))
            {
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
        let Some(packets) = self.packets.load_full() else {
            return;
        };
        let (events, lost) = packets.lock().reader().drain_events();
        for event in events {
            if let (EventKind::Throttled, Some(limit)) = (event.verdict, &event.limit) {
                if !self.attacks.follows(limit) {
                    self.attacks.follow(
                        limit,
                        packets.evaluated(limit).unwrap_or_default(),
                        Instant::now(),
                    );
                }
                if let Some(source) = &event.source {
                    self.attacks.refused(limit, source, event.count);
                }
            }
            self.log.push(event);
        }
        self.lost += lost;
        // In a flood, losses are constant: they are reported once a second.
        if self.lost > 0 && self.lost_reported.is_none_or(|at| at.elapsed() >= LOOK) {
            self.lost_reported = Some(Instant::now());
            self.log.push(Event::lost(
                std::mem::take(&mut self.lost),
                "the kernel's ring of events was full",
            ));
        }
    }

    /// The attacks that last now, for other threads.
    #[must_use]
    pub fn attacks(&self) -> Arc<CurrentAttacks> {
        self.attacks.current()
    }

    /// Reports the start and end of attacks. Costs nothing while no limit refuses.
    fn look_at_attacks(&mut self) {
        let packets = self.packets.load_full();
        let limits = self.attacks.limits();
        if limits.is_empty() {
            return;
        }
        let mut began = 0;
        for limit in limits {
            let evaluated = packets
                .as_ref()
                .and_then(|packets| packets.evaluated(&limit));
            let turn = self
                .attacks
                .look(&limit, evaluated, Instant::now(), seconds_since_1970());
            began += u64::from(matches!(turn, Some(Turn::Began(_))));
            if let Some(event) = turn.map(attack_event) {
                self.log.push(event);
            }
        }
        self.attacks
            .publish(began, Instant::now(), seconds_since_1970());
    }

    fn look_at_groups(&mut self) {
        for count in GroupCount::all(&self.groups) {
            if let Some(rise) = self.counts.rise(&count)
                && let Some(event) = count.event(rise)
            {
                self.log.push(event);
            }
        }
    }
}

/// The event of an attack's start or end, which is also logged.
fn attack_event(turn: Turn) -> Event {
    let (kind, count, reason, attack) = match turn {
        Turn::Began(attack) => {
            let rate = attack.refused_per_second;
            let percent = (100.0 * attack.refused_share).round();
            let reason = format!(
                "{rate} packets/s are refused, {percent} % of the limit's traffic; {PROGRAM} top lists the sources"
            );
            (EventKind::Attack, rate, reason, attack)
        }
        Turn::Ended(attack) => {
            let lasted = Duration::from_secs(
                (attack.ended.unwrap_or_default() - attack.started).max(0.0) as u64,
            );
            let (refused, peak) = (attack.refused_packets, attack.peak_per_second);
            let lasted = human::time(lasted);
            let reason =
                format!("{refused} packets were refused in {lasted}, at most {peak} packets/s");
            (EventKind::AttackEnded, refused, reason, attack)
        }
    };
    let limit = attack.limit.clone();
    match kind {
        EventKind::Attack => {
            tracing::warn!(limit, count, "attack on limit {limit:?} began: {reason}");
        }
        _ => tracing::info!(limit, count, "attack on limit {limit:?} ended: {reason}"),
    }
    Event {
        limit: Some(limit),
        attack: Some(Box::new(attack)),
        ..Event::now(kind, count, reason)
    }
}

#[expect(
    deprecated,
    reason = "its successor is unsafe; the descriptor is owned by what is returned"
)]
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
