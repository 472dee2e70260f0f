//! Ports that netfilter translates, while sources prove their address by the kernel's cookies, or connections are counted.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use datapath::translations::{self, NewConnections, ReadRules, Translations, Unknown};
use netlink_sys::protocols::NETLINK_NETFILTER;
use tokio::time::Interval;

use super::events::{Event, EventKind, EventLog};
use super::packets::Packets;
use super::watcher::Watcher;

/// The shortest time between two readings of connections, and of rules.
const CONNECTIONS_EVERY: Duration = Duration::from_secs(1);
const RULES_EVERY: Duration = Duration::from_secs(10);
/// A reading is followed by a pause of so many times what it took: large rule sets and tables of connections take long.
const REST: u32 = 20;
/// The same before what has changed is read again; twice as much each time while changes go on.
const REST_AFTER_CHANGE: u32 = 4;
/// How long a port stays translated after its last connection: where all rules are known, and where its rule may be one that is
/// not.
const KEPT: [Duration; 2] = [Duration::from_secs(600), Duration::from_secs(24 * 3_600)];
/// The most ports that are reported at a time: others send to all of them where a rule names none.
const MOST_REPORTED: usize = 20;

/// `NFNLGRP_NFTABLES`: changes of the rules of nftables, also by newer iptables.
const GROUPS: [u32; 1] = [7];

/// A reading that is repeated.
struct Repeated {
    every: Duration,
    next: Instant,
    /// The earliest next reading.
    soonest: Instant,
    /// Its pause, as [`REST_AFTER_CHANGE`].
    rest: u32,
    is_changed: bool,
}

impl Repeated {
    fn new(every: Duration) -> Self {
        Self {
            every,
            next: Instant::now(),
            soonest: Instant::now(),
            rest: REST_AFTER_CHANGE,
            is_changed: false,
        }
    }

    /// Reads on a blocking thread if it is time; `None` if not.
    async fn read<T: Send + 'static>(&mut self, read: fn() -> T) -> Option<T> {
        let start = Instant::now();
        if start < self.next {
            return None;
        }
        let read = tokio::task::spawn_blocking(read).await;
        let (now, took) = (Instant::now(), start.elapsed());
        self.next = now + self.every.max(took * REST);
        self.rest = if self.is_changed {
            REST.min(2 * self.rest)
        } else {
            REST_AFTER_CHANGE
        };
        self.soonest = now + took * self.rest;
        self.is_changed = false;
        read.ok()
    }

    /// After a change of the rules.
    fn read_soon(&mut self) {
        self.is_changed = true;
        self.next = self.next.min(self.soonest);
    }
}

/// Tells the packet engine of translated ports while the agent runs.
pub async fn run(packets: &Packets, events: Arc<EventLog>) {
    let mut ticks = tokio::time::interval(CONNECTIONS_EVERY);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut of_rules = Repeated::new(RULES_EVERY);
    let mut of_connections = Repeated::new(CONNECTIONS_EVERY);
    let watcher = OnceCell::new();
    let (mut by_rules, mut by_connections) = (ReadRules::default(), BTreeMap::new());
    let mut new_connections: Option<NewConnections> = None;
    let mut reported = BTreeSet::new();
    loop {
        if is_changed(watcher.get().and_then(Option::as_ref), &mut ticks).await {
            of_rules.read_soon();
            ticks.tick().await;
        }
        let Some(engine) = packets
            .load_full()
            .filter(|engine| translations::matter(&engine.lock().config))
        else {
            continue;
        };
        watcher.get_or_init(|| {
            Watcher::start(
                NETLINK_NETFILTER,
                &GROUPS,
                "rules of netfilter",
                RULES_EVERY,
            )
        });
        if let Some(read) = of_rules.read(translations::by_rules).await {
            if read.unknown != by_rules.unknown {
                report_unknown(&read.unknown);
            }
            by_rules = read.after(by_rules);
        }
        let is_unknown = by_rules.unknown.why().is_some();
        let now = Instant::now();
        // Without connection tracking, nothing is translated.
        let listed = of_connections.read(translations::by_connections).await;
        let mut seen = listed.and_then(Result::ok).unwrap_or_default();
        let is_followed = is_unknown && engine.lock().config.proves_by_cookies();
        let new = new_ports(&mut new_connections, is_followed).await;
        translations::unite(&mut seen, new);
        by_connections.extend(seen.into_iter().map(|(port, target)| (port, (target, now))));
        let kept = KEPT[usize::from(is_unknown)];
        by_connections.retain(|_, (_, seen)| now.saturating_duration_since(*seen) < kept);
        let mut ports = by_rules.translations();
        let tracked = by_connections
            .iter()
            .map(|(port, (target, _))| (*port, *target));
        translations::unite(&mut ports, tracked);
        if let Some(followed) = &mut new_connections
            && let Err(error) = followed.leave_out(ports.keys().copied())
        {
            tracing::error!("leaving out known ports of new connections failed: {error}");
        }
        match engine.set_translated(&ports, &by_rules.unknown) {
            Ok(unproven) => {
                let unproven = BTreeSet::from_iter(unproven);
                let new = unproven.difference(&reported).take(MOST_REPORTED);
                new.for_each(|port| report(*port, &events));
                reported = unproven;
            }
            Err(error) => {
                tracing::error!("updating the ports that prove leaves alone failed: {error}");
            }
        }
    }
}

/// The ports of connections that are new since the last call, followed where rules are unknown. By a cookie that is not the
/// destination's, a connection ends at once.
async fn new_ports(followed: &mut Option<NewConnections>, is_followed: bool) -> Translations {
    *followed = match followed.take() {
        _ if !is_followed => None,
        None => NewConnections::follow().ok(),
        followed => followed,
    };
    let found = followed.as_ref().map(NewConnections::read);
    let Some(found) = found.filter(|found| !found.is_empty()) else {
        return Translations::new();
    };
    let read = tokio::task::spawn_blocking(|| translations::of_connections(found)).await;
    read.ok().and_then(Result::ok).unwrap_or_default()
}

/// Waits for the next tick, or until netfilter's rules change; returns whether they did.
async fn is_changed(watcher: Option<&Watcher>, ticks: &mut Interval) -> bool {
    let Some(watcher) = watcher else {
        ticks.tick().await;
        return false;
    };
    tokio::select! {
        _ = ticks.tick() => false,
        _ = watcher.changed(|_| true) => true,
    }
}

fn report_unknown(unknown: &Unknown) {
    match unknown.why() {
        None => tracing::info!("all ports that netfilter sends elsewhere are known again"),
        Some(why) => tracing::warn!("{why}"),
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
