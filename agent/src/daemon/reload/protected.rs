//! Follows the addresses that `protect` exempts: at boot, routes, resolvers, addresses and names appear after the agent.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::event::seconds_since_1970;
use config::policy::Config;
use netlink_sys::protocols::NETLINK_ROUTE;
use notify::RecommendedWatcher;
use tokio::sync::Notify;

use super::live::Cause;
use crate::daemon::Agent;
use crate::daemon::events::{Event, EventKind};
use crate::daemon::watcher::Watcher;
use crate::files;
use crate::protect::{self, Detected, Exemption, Found};

/// How often names are resolved again, and the longest pause after changes.
const PERIOD: Duration = Duration::from_secs(60);
/// The pause after a change. While changes go on, such as a neighbour that announces routers or resolvers, it doubles.
const PAUSE: Duration = Duration::from_secs(1);
/// `RTNLGRP_IPV4_IFADDR`, `RTNLGRP_IPV4_ROUTE`, `RTNLGRP_IPV6_IFADDR`, `RTNLGRP_IPV6_ROUTE`.
const GROUPS: [u32; 4] = [5, 7, 9, 11];

/// Follows default routes, the host's addresses, its resolvers and the names of stores until it is dropped.
pub async fn follow_protected(agent: Arc<Agent>) {
    tokio::join!(
        follow_routes(Arc::clone(&agent)),
        follow_resolvers(Arc::clone(&agent)),
        follow_names(agent)
    );
}

async fn follow_routes(agent: Arc<Agent>) {
    let watcher = Watcher::start(NETLINK_ROUTE, &GROUPS, "routes and addresses", PERIOD);
    let mut pause = PAUSE;
    loop {
        let agent = Arc::clone(&agent);
        // A panic in the task has been reported, and has changed nothing here.
        let is_done = tokio::task::spawn_blocking(move || {
            // An address may be that of a new interface, which is attached first: other exempt addresses take a reload.
            agent.follow_host(true);
            agent.protect_again(|found, _| found.with_gateways().with_own_addresses())
        })
        .await
        .unwrap_or(false);
        tokio::time::sleep(pause).await;
        let since = Instant::now();
        let are_lost = match &watcher {
            // Looked for again.
            _ if !is_done => false,
            Some(watcher) => watcher.changed(is_followed).await,
            None => {
                tokio::time::sleep(PERIOD).await;
                false
            }
        };
        pause = if are_lost {
            // Too many routes change to read all of them each time.
            PERIOD
        } else if since.elapsed() > pause {
            PAUSE
        } else {
            PERIOD.min(pause * 2)
        };
    }
}

async fn follow_resolvers(agent: Arc<Agent>) {
    let changed = Arc::new(Notify::new());
    let mut watched: Option<(BTreeSet<PathBuf>, Option<RecommendedWatcher>)> = None;
    let mut pause = PAUSE;
    loop {
        let config = Arc::clone(&agent.changing().live().source.config);
        let folders = files::folders(config.agent.resolv_conf.iter().map(PathBuf::as_path));
        if watched.as_ref().is_none_or(|(known, _)| *known != folders) {
            let notify = Arc::clone(&changed);
            let watcher =
                files::watch(&folders, move || notify.notify_one()).inspect_err(|error| {
                    tracing::warn!(
                        "watching files with resolvers failed: {error}; they are read every minute"
                    );
                });
            watched = Some((folders, watcher.ok()));
        }
        let followed = Arc::clone(&agent);
        let _ = tokio::task::spawn_blocking(move || {
            followed.protect_again(|found, config| found.with_resolvers(config))
        })
        .await;
        tokio::time::sleep(pause).await;
        let since = Instant::now();
        tokio::select! {
            () = files::quiet(&changed) => {}
            () = agent.changing().resolvers_replaced.notified() => {}
            () = tokio::time::sleep(PERIOD) => {}
        }
        // Servers of DHCP, which a neighbour may pretend to be, have the file written.
        pause = if since.elapsed() > pause {
            PAUSE
        } else {
            PERIOD.min(pause * 2)
        };
    }
}

async fn follow_names(agent: Arc<Agent>) {
    loop {
        let followed = Arc::clone(&agent);
        let _ = tokio::task::spawn_blocking(move || {
            let config = Arc::clone(&followed.changing().live().source.config);
            let names = protect::resolve(&config);
            names.is_empty() || followed.protect_again(|found, _| found.with_names(names))
        })
        .await;
        tokio::select! {
            () = agent.changing().stores_replaced.notified() => {}
            () = tokio::time::sleep(PERIOD) => {}
        }
    }
}

/// Whether a message of the kernel is about an address or a default route: a router's other routes change all the time.
fn is_followed(message: &[u8]) -> bool {
    /// The length of `nlmsghdr`; `rtm_dst_len` is the second byte behind it.
    const HEADER: usize = 16;
    const RTM_NEWADDR: u16 = 20;
    const RTM_DELADDR: u16 = 21;
    let kind = message
        .get(4..)
        .and_then(|rest| rest.first_chunk().copied())
        .map(u16::from_ne_bytes);
    let is_of_an_address = kind.is_some_and(|kind| [RTM_NEWADDR, RTM_DELADDR].contains(&kind));
    is_of_an_address
        || message
            .get(HEADER + 1)
            .is_some_and(|destination_length| *destination_length == 0)
}

impl Agent {
    /// Reads some of the addresses that `protect` exempts, and puts the config in effect with them if they have changed; returns
    /// whether they are in effect.
    fn protect_again(&self, read: impl FnOnce(Found, &Config) -> Found) -> bool {
        let Ok(_one) = self.changing().lock() else {
            return true;
        };
        let (source, databases, purpose, before) = {
            let found = self.changing().live().found.clone();
            let config = Arc::clone(&self.changing().live().source.config);
            let found = read(found, &config);
            let mut live = self.changing().live();
            live.found = found;
            let operators = live.operators.addresses(seconds_since_1970() as u64);
            let next = protect::of(&live.source.config, &operators, &live.found);
            if next == live.detected {
                return true;
            }
            (
                live.source.clone(),
                live.databases().clone(),
                live.purpose(),
                live.detected.clone(),
            )
        };
        let began = Instant::now();
        let result = self.apply(&source, databases, None, purpose);
        let is_applied = result.is_ok();
        self.conclude(Cause::Protected, self.file(), began, result);
        if is_applied {
            self.report_protected(&before);
        }
        is_applied
    }

    /// Reports changes of the addresses that are exempt from limits.
    fn report_protected(&self, before: &[Detected]) {
        let now = self.changing().live().detected().to_vec();
        let list = |what: &str, some: &[Detected], others: &[Detected]| {
            let named: Vec<String> = some
                .iter()
                .filter(|one| one.exemption() != Exemption::FromBans && !others.contains(one))
                .map(|one| format!("{} ({})", one.address, one.why))
                .collect();
            (!named.is_empty()).then(|| format!("{what}: {}", named.join(", ")))
        };
        let parts = [
            list("exempt", &now, before),
            list("no longer exempt", before, &now),
        ];
        let reason = parts.into_iter().flatten().collect::<Vec<_>>().join("; ");
        if reason.is_empty() {
            return;
        }
        tracing::info!("{reason}");
        let count = protect::by_exemption(&now).0.len() as u64;
        self.events()
            .push(Event::now(EventKind::Protected, count, reason));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_messages_of_addresses_and_default_routes_concern() {
        // nlmsghdr with its type, then rtmsg or ifaddrmsg: the family and the length of the destination or prefix.
        let message = |kind: u16, length: u8| {
            let mut message = [&[0; 16][..], &[2, length, 0, 0]].concat();
            message[4..6].copy_from_slice(&kind.to_ne_bytes());
            message
        };
        const RTM_NEWROUTE: u16 = 24;
        assert!(is_followed(&message(RTM_NEWROUTE, 0)));
        assert!(!is_followed(&message(RTM_NEWROUTE, 24)));
        assert!(is_followed(&message(20, 24)) && is_followed(&message(21, 64)));
        assert!(!is_followed(&[0; 16]));
    }
}
