//! Waits for the kernel's messages about changes.

use std::io;
use std::time::Duration;

use config::human;
use netlink_sys::Socket;
use nix::errno::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// The size of a kernel message.
const MESSAGE: usize = 32 << 10;
/// How many messages are read before others have their turn.
const AT_A_TIME: usize = 64;

/// Receives the kernel's messages of some groups in the agent's network namespace.
pub struct Watcher(AsyncFd<Socket>);

impl Watcher {
    /// The messages of these groups of a netlink protocol, about changes of `what`. `None` if the kernel lacks the protocol, so
    /// that nothing changes, or with an error in the log: then it is read every `period`.
    pub fn start(protocol: isize, groups: &[u32], what: &str, period: Duration) -> Option<Self> {
        match Self::new(protocol, groups) {
            Ok(started) => Some(started),
            Err(error) if error.raw_os_error() == Some(Errno::EPROTONOSUPPORT as i32) => None,
            Err(error) => {
                let period = human::time(period);
                tracing::error!(
                    "waiting for changes of {what} failed: {error}; they are read every {period} instead"
                );
                None
            }
        }
    }

    #[expect(
        deprecated,
        reason = "its successor is unsafe; the socket is owned by what is returned"
    )]
    fn new(protocol: isize, groups: &[u32]) -> io::Result<Self> {
        let mut socket = Socket::new(protocol)?;
        socket.bind_auto()?;
        groups
            .iter()
            .try_for_each(|group| socket.add_membership(*group))?;
        socket.set_non_blocking(true)?;
        Ok(Self(AsyncFd::with_interest(socket, Interest::READABLE)?))
    }

    /// Waits for a message that `concerns` the caller, or for lost ones, and returns whether some were lost. The state is then
    /// read completely from the kernel instead of from messages. It may be dropped at any time: it returns what it has read
    /// without waiting again.
    pub async fn changed(&self, concerns: impl Fn(&[u8]) -> bool) -> bool {
        let (mut is_changed, mut are_lost) = (false, false);
        loop {
            let Ok(mut ready) = self.0.readable().await else {
                // Waiting failed: the state is read every period.
                return true;
            };
            let mut message = Vec::with_capacity(MESSAGE);
            for _ in 0..AT_A_TIME {
                message.clear();
                match self.0.get_ref().recv(&mut message, 0) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        ready.clear_ready();
                        break;
                    }
                    Ok(_) => is_changed |= concerns(&message),
                    // ENOBUFS.
                    Err(_) => (is_changed, are_lost) = (true, true),
                }
            }
            if is_changed {
                return are_lost;
            }
            // A router that changes its routes must not keep other tasks waiting.
            tokio::task::yield_now().await;
        }
    }
}

#[cfg(test)]
mod tests {
    use netlink_sys::protocols::NETLINK_ROUTE;

    use super::*;

    /// The kernel acknowledges it.
    fn no_operation() -> [u8; 16] {
        const NLMSG_NOOP: u16 = 1;
        const NLM_F_REQUEST_AND_ACK: u16 = 5;
        let mut header = [0; 16];
        header[..4].copy_from_slice(&16_u32.to_ne_bytes());
        header[4..6].copy_from_slice(&NLMSG_NOOP.to_ne_bytes());
        header[6..8].copy_from_slice(&NLM_F_REQUEST_AND_ACK.to_ne_bytes());
        header
    }

    #[tokio::test]
    async fn a_message_at_the_end_of_the_period_is_not_lost() {
        let watcher = Watcher::new(NETLINK_ROUTE, &[]).unwrap();
        watcher.0.get_ref().send(&no_operation(), 0).unwrap();
        // Its period has ended at each call.
        let mut calls = 0;
        while tokio::time::timeout(Duration::ZERO, watcher.changed(|_| true))
            .await
            .is_err()
        {
            calls += 1;
            assert!(calls < 10_000, "the message was read and forgotten");
            tokio::task::yield_now().await;
        }
    }
}
