//! Follows the addresses that `protect` exempts: at boot, routes and names appear after the agent.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::status::Protected;

use super::follow::Watcher;
use super::live::Cause;
use crate::daemon::Agent;
use crate::daemon::events::{Event, EventKind};
use crate::protect;

/// How often names are resolved again, and the longest pause after changes.
const PERIOD: Duration = Duration::from_secs(60);
/// The pause after a change. While changes go on, such as a neighbour that announces routers, it doubles.
const PAUSE: Duration = Duration::from_secs(1);
/// `RTNLGRP_IPV4_ROUTE`, `RTNLGRP_IPV6_ROUTE`.
const GROUPS: [u32; 2] = [7, 11];

/// Follows default routes and the names of stores until it is dropped.
pub async fn follow_protected(agent: Arc<Agent>) {
    tokio::join!(follow_gateways(Arc::clone(&agent)), follow_names(agent));
}

async fn follow_gateways(agent: Arc<Agent>) {
    let watcher = Watcher::start(&GROUPS, "routes", PERIOD);
    let mut pause = PAUSE;
    loop {
        let agent = Arc::clone(&agent);
        // A panic in the task has been reported, and has changed nothing here.
        let is_done = tokio::task::spawn_blocking(move || agent.protect_again(BTreeMap::new()))
            .await
            .unwrap_or(false);
        tokio::time::sleep(pause).await;
        let since = Instant::now();
        let are_lost = match &watcher {
            // Looked for again.
            _ if !is_done => false,
            Some(watcher) => watcher.changed(is_of_a_default_route).await,
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

async fn follow_names(agent: Arc<Agent>) {
    loop {
        let followed = Arc::clone(&agent);
        let _ = tokio::task::spawn_blocking(move || {
            let config = Arc::clone(&followed.changing().live().source.config);
            let names = protect::resolve(&config);
            names.is_empty() || followed.protect_again(names)
        })
        .await;
        tokio::select! {
            () = agent.changing().stores_replaced.notified() => {}
            () = tokio::time::sleep(PERIOD) => {}
        }
    }
}

/// Whether a message of the kernel is about a default route: a router's other routes change all the time.
fn is_of_a_default_route(message: &[u8]) -> bool {
    /// The length of `nlmsghdr`; `rtm_dst_len` is the second byte behind it.
    const HEADER: usize = 16;
    message
        .get(HEADER + 1)
        .is_some_and(|destination_length| *destination_length == 0)
}

impl Agent {
    /// Puts the config in effect with the addresses that `protect` exempts now, if they have changed; returns whether they are
    /// in effect.
    fn protect_again(&self, names: BTreeMap<String, BTreeSet<IpAddr>>) -> bool {
        let _one = self.changing().one();
        let (source, databases, lasting, before) = {
            let found = self.changing().live().found.clone();
            let found = found.with_names(names).with_gateways();
            let mut live = self.changing().live();
            live.found = found;
            let next = protect::of(&live.source.config, &live.operators, &live.found);
            if next == live.protected {
                return true;
            }
            (
                live.source.clone(),
                live.databases().clone(),
                live.lasting(),
                live.protected.clone(),
            )
        };
        let began = Instant::now();
        let result = self.apply(&source, databases, None, lasting);
        let is_applied = result.is_ok();
        self.told(Cause::Protected, self.file(), began, result);
        if is_applied {
            self.report_protected(&before);
        }
        is_applied
    }

    fn report_protected(&self, before: &[Protected]) {
        let now = self.changing().live().protected();
        let list = |what: &str, some: &[Protected], others: &[Protected]| {
            let named: Vec<String> = some
                .iter()
                .filter(|one| !others.contains(one))
                .map(|one| format!("{} ({})", one.address, one.why))
                .collect();
            (!named.is_empty()).then(|| format!("{what}: {}", named.join(", ")))
        };
        let parts = [
            list("exempt", &now, before),
            list("no longer exempt", before, &now),
        ];
        let reason = parts.into_iter().flatten().collect::<Vec<_>>().join("; ");
        tracing::info!("{reason}");
        self.events()
            .push(Event::now(EventKind::Protected, now.len() as u64, reason));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_messages_of_default_routes_concern() {
        // nlmsghdr, then rtmsg: its family and the length of its destination.
        let message = |length: u8| [&[0; 16][..], &[2, length, 0, 0]].concat();
        assert!(is_of_a_default_route(&message(0)));
        assert!(!is_of_a_default_route(&message(24)));
        assert!(!is_of_a_default_route(&[0; 16]));
    }
}
