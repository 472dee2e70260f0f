//! Metrics of the agent and its config.

use prometheus::Error;

use super::page::Page;
use crate::stats::{InterfaceState, Status};

impl Page<'_> {
    pub(super) fn agent(&mut self, status: &Status) -> Result<(), Error> {
        self.gauge(
            "weir_build_info",
            "The agent's version.",
            ["version"],
            [([status.version.as_str()], 1)],
        )?;
        self.gauge(
            "weir_mode_info",
            "Whether it throttles or only counts.",
            ["mode"],
            [([status.mode.as_str()], 1)],
        )?;
        self.gauge(
            "weir_uptime_seconds",
            "Since this agent started.",
            [],
            [([], status.uptime_seconds)],
        )?;
        self.gauge(
            "weir_notes",
            "Notes in the status.",
            [],
            [([], status.notes.len() as u64)],
        )?;
        self.gauge(
            "weir_limits_left_out",
            "Limits of the config that are not in effect, since the kernel cannot enforce them.",
            [],
            [([], status.left_out.len() as u64)],
        )?;
        let attached: Vec<_> = status
            .interfaces
            .iter()
            .filter_map(|on| Some((on.name.as_str(), on.attach?.to_string())))
            .collect();
        self.gauge(
            "weir_interface_info",
            "How an interface is attached.",
            ["interface", "attach"],
            attached
                .iter()
                .map(|(name, attach)| ([*name, attach.as_str()], 1)),
        )?;
        self.gauge(
            "weir_interface_attached",
            "1 while limits are in effect on an interface of the config, 0 while they are not.",
            ["interface"],
            // A pattern is no interface.
            status
                .interfaces
                .iter()
                .filter(|on| on.state != InterfaceState::Unmatched)
                .map(|on| {
                    (
                        [on.name.as_str()],
                        u64::from(on.state == InterfaceState::Attached),
                    )
                }),
        )?;
        if let Some(has_room) = status.has_room {
            self.gauge(
                "weir_elastic_has_room",
                "1 while elastic limits allow more than their rate, since the host has spare resources.",
                [],
                [([], u64::from(has_room))],
            )?;
        }
        if let Some(reservations) = &status.reservations {
            self.gauge(
                "weir_reservations_open",
                "Reservations that are neither committed nor released.",
                [],
                [([], reservations.open)],
            )?;
            self.counter(
                "weir_reservations_without_room_total",
                "Requests to reserve for which there was no room.",
                [],
                [([], reservations.without_room)],
            )?;
        }
        self.config(status)
    }

    fn config(&mut self, status: &Status) -> Result<(), Error> {
        let last = status.last_reload.as_ref();
        self.gauge(
            "weir_config_last_reload_successful",
            "Whether the last config that was to take another's place did: 1 also before any was.",
            [],
            [([], u64::from(last.is_none_or(|last| last.ok)))],
        )?;
        if let Some(last) = last {
            self.ratio(
                "weir_config_last_reload_timestamp_seconds",
                "When that was, in seconds since 1970.",
                [],
                [([], last.at)],
            )?;
        }
        self.gauge(
            "weir_config_on_trial",
            "Whether the config in effect is on trial and not yet confirmed.",
            [],
            [([], u64::from(status.trial.is_some()))],
        )?;
        self.gauge(
            "weir_trial_rollback_failing",
            "1 while a trial is over and rolling back from it fails.",
            [],
            [(
                [],
                u64::from(
                    status
                        .trial
                        .as_ref()
                        .is_some_and(|trial| trial.rollback_failing),
                ),
            )],
        )
    }
}
