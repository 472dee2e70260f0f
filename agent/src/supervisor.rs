//! What the service manager is told: systemd's notifications, over `$NOTIFY_SOCKET`. Without one, nothing.

use std::time::Duration;

use sd_notify::NotifyState;

/// Tells the service manager of the agent's life.
///
/// What cannot be told changes nothing: the limits are more important than that somebody knows of them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Supervisor;

impl Supervisor {
    /// Limits are in force. `status` is one line for people.
    pub fn ready(&self, status: &str) {
        Self::tell(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    /// The config is being read again; [`Supervisor::ready`] has to follow, whatever comes of it.
    pub fn reloading(&self) {
        // systemd takes the time stamp as proof that the reload answers its signal.
        match NotifyState::monotonic_usec_now() {
            Ok(now) => Self::tell(&[NotifyState::Reloading, now]),
            Err(_) => Self::tell(&[NotifyState::Reloading]),
        }
    }

    /// Whether a service manager listens.
    #[must_use]
    pub fn is_there(&self) -> bool {
        std::env::var_os("NOTIFY_SOCKET").is_some()
    }

    /// The start failed, and the agent is about to end.
    pub fn failed(&self, reason: &str) {
        Self::tell(&[NotifyState::Status(reason)]);
    }

    /// The agent is about to end.
    pub fn stopping(&self) {
        Self::tell(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
    }

    /// Tells that the agent is alive for as long as this is polled: on the thread that does the agent's own work, so that
    /// a loop that is stuck tells nothing. Never ends.
    pub async fn keep_alive(&self) {
        let Some(limit) = sd_notify::watchdog_enabled() else { return std::future::pending().await };
        // Twice within the time, as systemd's manual wants it.
        let mut ticks = tokio::time::interval((limit / 2).max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            Self::tell(&[NotifyState::Watchdog]);
        }
    }

    fn tell(state: &[NotifyState<'_>]) {
        // A manager that does not listen will find out in its own way.
        let _ = sd_notify::notify(state);
    }
}
