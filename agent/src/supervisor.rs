//! Notifications to the service manager, by systemd's protocol on `$NOTIFY_SOCKET`. No-ops without one.

use std::time::Duration;

use sd_notify::NotifyState;

/// Notifies the service manager of the agent's state.
///
/// Errors are ignored: limits are more important than notifications.
#[derive(Clone, Copy, Debug, Default)]
pub struct Supervisor;

impl Supervisor {
    /// Limits are in effect. `status` is one line for people.
    pub fn ready(&self, status: &str) {
        Self::notify(&[NotifyState::Ready, NotifyState::Status(status)]);
    }

    /// The config is being reloaded; [`Supervisor::ready`] must follow, also after a failure.
    pub fn reloading(&self) {
        // systemd uses the time stamp to recognise that the reload belongs to its signal.
        match NotifyState::monotonic_usec_now() {
            Ok(now) => Self::notify(&[NotifyState::Reloading, now]),
            Err(_) => Self::notify(&[NotifyState::Reloading]),
        }
    }

    /// Whether the service manager expects notifications.
    #[must_use]
    pub fn is_there(&self) -> bool {
        std::env::var_os("NOTIFY_SOCKET").is_some()
    }

    /// The start failed, and the agent is about to exit.
    pub fn failed(&self, reason: &str) {
        Self::notify(&[NotifyState::Status(reason)]);
    }

    /// The agent is about to exit.
    pub fn stopping(&self) {
        Self::notify(&[NotifyState::Stopping, NotifyState::Status("stopping")]);
    }

    /// Sends watchdog notifications for as long as this is polled: on the thread of the agent's own work, so that a
    /// blocked loop stops them. Never completes.
    pub async fn keep_alive(&self) {
        let Some(limit) = sd_notify::watchdog_enabled() else {
            return std::future::pending().await;
        };
        // Twice within the timeout, as systemd's manual recommends.
        let mut ticks = tokio::time::interval((limit / 2).max(Duration::from_millis(1)));
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            Self::notify(&[NotifyState::Watchdog]);
        }
    }

    fn notify(state: &[NotifyState<'_>]) {
        // Without notifications, the manager times out.
        let _ = sd_notify::notify(state);
    }
}
