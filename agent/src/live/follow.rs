//! The policy in effect follows the host's interfaces.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use netlink_sys::Socket;
use netlink_sys::protocols::NETLINK_ROUTE;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use crate::applications::Agent;

/// How often programs are looked for that somebody else has taken off.
const PERIOD: Duration = Duration::from_millis(500);
/// How long changes are collected: a host whose interfaces change without end costs ten looks a second.
const PAUSE: Duration = Duration::from_millis(100);
/// `RTNLGRP_LINK`.
const LINKS: u32 = 1;
/// Room for one message of the kernel's.
const MESSAGE: usize = 32 << 10;

/// Follows the host until it is dropped: reacts to changes of interfaces as the kernel reports them, and looks every
/// [`PERIOD`] whether a program was taken off.
pub async fn follow_interfaces(agent: Arc<Agent>) {
    let watcher = match Watcher::new() {
        Ok(watcher) => Some(watcher),
        Err(error) => {
            let period = humantime::format_duration(PERIOD);
            eprintln!("waiting for changes of interfaces failed: {error}; they are read every {period} instead");
            None
        }
    };
    // What has changed since the interfaces were attached.
    let mut is_changed = true;
    loop {
        let agent = Arc::clone(&agent);
        // Programs may have to be verified. A panic in there has been reported, and is no reason to stop.
        let _ = tokio::task::spawn_blocking(move || agent.follow_host(is_changed)).await;
        tokio::time::sleep(PAUSE).await;
        is_changed = match &watcher {
            Some(watcher) => tokio::time::timeout(PERIOD - PAUSE, watcher.changed()).await.is_ok(),
            None => {
                tokio::time::sleep(PERIOD - PAUSE).await;
                true
            }
        };
    }
}

/// Hears from the kernel that interfaces have changed, in the network namespace of the agent.
struct Watcher(AsyncFd<Socket>);

impl Watcher {
    #[expect(deprecated, reason = "its successor is unsafe; the socket is owned by what is returned")]
    fn new() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.add_membership(LINKS)?;
        socket.set_non_blocking(true)?;
        Ok(Self(AsyncFd::with_interest(socket, Interest::READABLE)?))
    }

    /// Waits for a change. What has changed is not read from the messages but from the kernel, all of it, so that nothing
    /// is missed when more messages come than the socket takes.
    async fn changed(&self) {
        let Ok(mut ready) = self.0.readable().await else {
            // It cannot be waited for: the interfaces are read every period.
            return;
        };
        let mut message = Vec::with_capacity(MESSAGE);
        loop {
            message.clear();
            match self.0.get_ref().recv(&mut message, 0) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // Messages, or that some were lost (ENOBUFS).
                _ => {}
            }
        }
        ready.clear_ready();
    }
}
