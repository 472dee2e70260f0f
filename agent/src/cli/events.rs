//! `weir events`: refusals by source and limit.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::Context as _;
use api::request::Request;
use api::source::with_sources;
use config::human;

use super::ask::unknown;
use super::exit::usage;
use super::print::{self, Print, append};
use super::table::number;
use crate::cli::arguments::Options;
use crate::daemon::events::{Event, REMEMBERED, seconds_since_1970};
use crate::follower::{self, Watched};
use crate::server::control::Client;
use crate::stats::LimitStatus;

/// The number of remembered events that a follower is shown first.
const FIRST: usize = 10;

/// Whether to print new events as they happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// Only the remembered ones.
    No,
    /// Remembered and new ones.
    Yes,
}

impl From<bool> for Follow {
    fn from(follow: bool) -> Self {
        if follow { Self::Yes } else { Self::No }
    }
}

/// The filter of events.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    pub source: Option<String>,
    pub limit: Option<String>,
    pub since: Option<Duration>,
}

impl Wanted {
    /// `now` in seconds since 1970.
    fn has(&self, event: &Event, now: f64) -> bool {
        self.source
            .as_deref()
            .is_none_or(|source| event.is_about(source))
            && self
                .limit
                .as_ref()
                .is_none_or(|limit| event.limit.as_ref() == Some(limit))
            && self
                .since
                .is_none_or(|since| event.time >= now - since.as_secs_f64())
    }
}

pub fn events(
    follow: Follow,
    last: Option<usize>,
    wanted: &Wanted,
    options: &Options,
) -> anyhow::Result<ExitCode> {
    let now = seconds_since_1970();
    let client = options.client();
    if let Some(unknown) = unknown_limit(&client, wanted)? {
        return Ok(usage(&unknown));
    }
    let print = Print::from(options.json);
    let mut out = io::stdout().lock();
    let written = match follow {
        Follow::No => {
            let mut events: Vec<Event> = client.ask(&Request::Events)?;
            events.retain(|event| wanted.has(event, now));
            if events.is_empty() && print == Print::Table {
                println!("No events.");
            }
            let skipped = events.len().saturating_sub(last.unwrap_or(usize::MAX));
            events[skipped..]
                .iter()
                .try_for_each(|event| print.line(&mut out, event, line))
                .and_then(|()| out.flush())
        }
        Follow::Yes => {
            end_with_the_reader()?;
            let first = last.unwrap_or(FIRST);
            let is_some =
                wanted.source.is_some() || wanted.limit.is_some() || wanted.since.is_some();
            // With a filter, all remembered events are read and the last matching ones are printed.
            let mut skip = 0;
            if is_some {
                let remembered: Vec<Event> = client.ask(&Request::Events)?;
                skip = remembered
                    .iter()
                    .filter(|event| wanted.has(event, now))
                    .count()
                    .saturating_sub(first);
            }
            client.follow(if is_some { REMEMBERED } else { first }, |event| {
                if !wanted.has(&event, now) {
                    return ControlFlow::Continue(());
                }
                if skip > 0 {
                    skip -= 1;
                    return ControlFlow::Continue(());
                }
                // Flushed one by one, since a person may be watching.
                match print
                    .line(&mut out, &event, line)
                    .and_then(|()| out.flush())
                {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(error) => ControlFlow::Break(Err(error)),
                }
            })?
        }
    };
    print::written(written)
}

/// The error for a limit that neither the agent nor a remembered event has.
fn unknown_limit(client: &Client, wanted: &Wanted) -> anyhow::Result<Option<String>> {
    let Some(name) = &wanted.limit else {
        return Ok(None);
    };
    let limits: Vec<LimitStatus> = client.ask(&Request::Limits)?;
    let known = limits.iter().map(|limit| limit.definition.name.as_str());
    let Some(unknown) = unknown("limit", name, known) else {
        return Ok(None);
    };
    // A reload may have removed it since.
    let events: Vec<Event> = client.ask(&Request::Events)?;
    let is_remembered = events
        .iter()
        .any(|event| event.limit.as_ref() == Some(name));
    Ok((!is_remembered).then_some(unknown))
}

/// Ends the process when the reader closes the pipe: the next write, at the next event, may be hours away.
pub(super) fn end_with_the_reader() -> anyhow::Result<()> {
    let end = |_| std::process::exit(0);
    follower::watch(Watched::default(), end).context("starting a thread")
}

/// An event as text. Not a table, whose column widths would depend on later events.
fn line(event: &Event) -> String {
    let time = UNIX_EPOCH + Duration::try_from_secs_f64(event.time).unwrap_or_default();
    let time = humantime::format_rfc3339_millis(time);
    let whom = event
        .source
        .as_deref()
        .or(event.group.as_deref())
        .unwrap_or("-");
    let whom = with_sources(whom, event.sources);
    let limit = event.limit.as_deref().unwrap_or("-");
    let mut text = format!(
        "{time}  {:<14}  {whom:<20}  {limit:<18}  {:>9}  {}",
        event.verdict.name(),
        number(event.count),
        event.reason
    );
    let port = event.port.map(|port| format!("port {port}"));
    // Most limits are on ingress, so only the other directions are printed.
    let direction = event
        .direction
        .as_ref()
        .filter(|direction| *direction == "egress");
    append(
        &mut text,
        event.protocol.iter().chain(&port).chain(direction),
    );
    human::printable(&text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::events::EventKind;

    #[test]
    fn a_line_has_time_source_limit_count_and_reason() {
        let event = Event {
            time: 1_763_718_281.5,
            source: Some("10.77.0.7".to_owned()),
            limit: Some("dns".to_owned()),
            protocol: Some("udp".to_owned()),
            port: Some(53),
            direction: Some("ingress".to_owned()),
            ..Event::now(
                EventKind::WouldThrottle,
                1_024,
                "more than 5/s packets, burst 5".to_owned(),
            )
        };
        assert_eq!(
            line(&event),
            "2025-11-21T09:44:41.500Z  would-throttle  10.77.0.7             dns                     1,024  \
             more than 5/s packets, burst 5, udp, port 53"
        );
    }
}
