//! Metrics of notifications.

use api::notification::NotificationStatus;
use prometheus::Error;

use super::page::Page;

impl Page<'_> {
    pub(super) fn notifications(&mut self, all: &[NotificationStatus]) -> Result<(), Error> {
        let each = |value: fn(&NotificationStatus) -> u64| {
            all.iter().map(move |one| ([one.name.as_str()], value(one)))
        };
        self.counter(
            "weir_notifications_total",
            "Notifications, by whether they were delivered in time.",
            ["notify", "outcome"],
            all.iter().flat_map(|one| {
                let name = one.name.as_str();
                [
                    ([name, "delivered"], one.delivered),
                    ([name, "dropped"], one.dropped),
                ]
            }),
        )?;
        self.counter(
            "weir_notification_failures_total",
            "Attempts to deliver a notification that failed.",
            ["notify"],
            each(|one| one.failed_attempts),
        )?;
        self.counter(
            "weir_notification_events_total",
            "Events in notifications, by what became of them; left_out: only counted there, among the other two.",
            ["notify", "outcome"],
            all.iter().flat_map(|one| {
                let name = one.name.as_str();
                [
                    ([name, "delivered"], one.events_delivered),
                    ([name, "dropped"], one.events_dropped),
                    ([name, "left_out"], one.left_out),
                ]
            }),
        )?;
        self.gauge(
            "weir_notification_events_waiting",
            "Events that are not delivered yet.",
            ["notify"],
            each(|one| one.events_waiting),
        )?;
        self.gauge(
            "weir_notification_failing",
            "1 while the last attempt failed.",
            ["notify"],
            each(|one| u64::from(one.failing.is_some())),
        )
    }
}
