//! Ports that netfilter translates, while sources prove their address by the kernel's cookies, or connections are counted.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use datapath::translations::{self, Translations};

use super::events::{Event, EventKind, EventLog};
use super::packets::Packets;

/// The shortest time between two readings of connections, and of rules.
const CONNECTIONS_EVERY: Duration = Duration::from_secs(1);
const RULES_EVERY: Duration = Duration::from_secs(10);
/// A reading is followed by a pause of so many times what it took: large rule sets and tables of connections take long.
const REST: u32 = 20;
/// How long a port stays translated after its last connection. Its rule may be one that cannot be read.
const KEPT: Duration = Duration::from_secs(600);

/// A reading that is repeated.
struct Repeated {
    every: Duration,
    next: Instant,
}

impl Repeated {
    fn new(every: Duration) -> Self {
        Self {
            every,
            next: Instant::now(),
        }
    }

    /// Reads on a blocking thread if it is time; `None` if not.
    async fn read<T: Send + 'static>(&mut self, read: fn() -> T) -> Option<T> {
        let start = Instant::now();
        if start < self.next {
            return None;
        }
        let read = tokio::task::spawn_blocking(read).await;
        self.next = Instant::now() + self.every.max(start.elapsed() * REST);
        read.ok()
    }
}

/// Tells the packet engine of translated ports while the agent runs.
pub async fn run(packets: &Packets, events: Arc<EventLog>) {
    let mut ticks = tokio::time::interval(CONNECTIONS_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut of_rules = Repeated::new(RULES_EVERY);
    let mut of_connections = Repeated::new(CONNECTIONS_EVERY);
    let (mut by_rules, mut by_connections) = (Translations::new(), BTreeMap::new());
    let (mut reported, mut unread) = (Vec::new(), Vec::new());
    loop {
        ticks.tick().await;
        let Some(engine) = packets
            .load_full()
            .filter(|engine| engine.follows_translations())
        else {
            continue;
        };
        if let Some(read) = of_rules.read(translations::by_rules).await {
            if read.unread.is_empty() {
                by_rules.clear();
            }
            // Rules that cannot be read may still be in effect.
            by_rules.extend(read.translations);
            if read.unread != unread {
                report_unread(&read.unread);
                unread = read.unread;
            }
        }
        let now = Instant::now();
        // Without connection tracking, nothing is translated.
        if let Some(Ok(ports)) = of_connections.read(translations::by_connections).await {
            by_connections.extend(
                ports
                    .into_iter()
                    .map(|(port, target)| (port, (target, now))),
            );
        }
        by_connections.retain(|_, (_, seen)| now.saturating_duration_since(*seen) < KEPT);
        let mut ports = by_rules.clone();
        let tracked = by_connections
            .iter()
            .map(|(port, (target, _))| (*port, *target));
        translations::unite(&mut ports, tracked);
        match engine.set_translated(&ports) {
            Ok(unproven) => {
                let is_new = |port: &&u16| !reported.contains(*port);
                unproven
                    .iter()
                    .filter(is_new)
                    .for_each(|port| report(*port, &events));
                reported = unproven;
            }
            Err(error) => {
                tracing::error!("updating the ports that prove leaves alone failed: {error}");
            }
        }
    }
}

fn report_unread(unread: &[&str]) {
    if unread.is_empty() {
        tracing::info!("the rules of netfilter can be read again");
    } else {
        tracing::warn!(
            "{} failed: ports that its rules send elsewhere are known from their first connection only",
            unread.join(", ")
        );
    }
}

fn report(port: u16, events: &EventLog) {
    let reason = format!(
        "prove leaves port {port} alone: netfilter sends its connections elsewhere; use prove = \"reset\" for it"
    );
    tracing::warn!("{reason}");
    events.push(Event {
        port: Some(port),
        ..Event::now(EventKind::Unproven, 1, reason)
    });
}
