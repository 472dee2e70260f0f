//! `notifications` of `weir status --json`.

use serde::{Deserialize, Serialize};

/// The deliveries of one `[[notify]]` since the config was put in effect.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NotificationStatus {
    pub name: String,
    /// The events that it reports.
    pub on: Vec<String>,
    /// `command PATH` or `webhook https://HOST/…`.
    pub to: String,
    /// Delivered notifications.
    pub delivered: u64,
    /// Notifications that could not be delivered in time.
    pub dropped: u64,
    /// Attempts that failed.
    pub failed_attempts: u64,
    /// Events in delivered notifications.
    pub events_delivered: u64,
    /// Events in dropped notifications.
    pub events_dropped: u64,
    /// Events that wait for a notification, or are in one that is not delivered yet.
    pub events_waiting: u64,
    /// Events and bans that notifications counted without naming them.
    pub left_out: u64,
    /// The failure of the last attempt; `null` if it succeeded.
    pub failing: Option<NotificationFailing>,
}

/// A receiver whose last attempt failed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NotificationFailing {
    /// Seconds since the first of these failures.
    pub for_seconds: f64,
    /// Failures since the last success.
    pub attempts: u64,
    /// The last failure as text.
    pub error: String,
    /// `null` if the notification was dropped.
    pub next_attempt_in_seconds: Option<f64>,
}

/// The result of one attempt of `weir notify test`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NotificationTest {
    pub name: String,
    /// `command PATH` or `webhook https://HOST/…`.
    pub to: String,
    /// Why it was not delivered; `null` if it was.
    pub error: Option<String>,
}
