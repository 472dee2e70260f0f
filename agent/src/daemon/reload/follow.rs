//! Follows changes of the host's interfaces.

use std::sync::Arc;
use std::time::Duration;

use netlink_sys::protocols::NETLINK_ROUTE;

use crate::daemon::Agent;
use crate::daemon::watcher::Watcher;

/// The time between two checks for programs that others detached.
const PERIOD: Duration = Duration::from_millis(500);
/// How long changes are collected: a host with constant changes takes ten updates a second.
const PAUSE: Duration = Duration::from_millis(100);
/// `RTNLGRP_LINK`, `RTNLGRP_IPV4_IFADDR`, `RTNLGRP_IPV6_IFADDR`: interfaces and their addresses.
const GROUPS: [u32; 3] = [1, 5, 9];

/// Follows the host until it is dropped: reacts to the kernel's messages about interfaces and addresses, and checks
/// every [`PERIOD`] for detached programs.
pub async fn follow_interfaces(agent: Arc<Agent>) {
    let watcher = Watcher::start(NETLINK_ROUTE, &GROUPS, "interfaces", PERIOD);
    // Whether interfaces may have changed since they were attached.
    let mut is_changed = true;
    loop {
        let agent = Arc::clone(&agent);
        // Programs may have to be verified. A panic in the task has been reported, and must not stop this loop.
        let is_followed = tokio::task::spawn_blocking(move || agent.follow_host(is_changed))
            .await
            .unwrap_or(false);
        if is_changed {
            tokio::time::sleep(PAUSE).await;
        }
        let is_reported = match &watcher {
            Some(watcher) => tokio::time::timeout(PERIOD, watcher.changed(|_| true))
                .await
                .is_ok(),
            None => {
                tokio::time::sleep(PERIOD).await;
                true
            }
        };
        is_changed = is_reported || !is_followed;
    }
}
