//! `agent events`: who was throttled, by which limit.

use std::io::{self, Write};
use std::ops::ControlFlow;
use std::process::ExitCode;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::Context as _;

use super::Print;
use super::table::number;
use crate::cli::Options;
use crate::control::Request;
use crate::events::Event;
use crate::follower::{self, Watched};

/// How many of those that are remembered a follower is shown first.
const FIRST: usize = 10;

/// Whether to go on with the events that come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// Those that are remembered.
    No,
    /// And all that come.
    Yes,
}

impl From<bool> for Follow {
    fn from(follow: bool) -> Self {
        if follow { Self::Yes } else { Self::No }
    }
}

pub fn events(follow: Follow, last: Option<usize>, options: &Options) -> anyhow::Result<ExitCode> {
    let client = options.client();
    let print = Print::from(options.json);
    let mut out = io::stdout().lock();
    let written = match follow {
        Follow::No => {
            let events: Vec<Event> = client.ask(&Request::Events)?;
            let skipped = events.len().saturating_sub(last.unwrap_or(usize::MAX));
            events[skipped..].iter().try_for_each(|event| write(&mut out, event, print)).and_then(|()| out.flush())
        }
        Follow::Yes => {
            end_with_the_reader()?;
            client.follow(last.unwrap_or(FIRST), |event| {
                // Each at once: somebody is watching.
                match write(&mut out, &event, print).and_then(|()| out.flush()) {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(error) => ControlFlow::Break(Err(error)),
                }
            })?
        }
    };
    match written {
        // `head` has seen enough.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(error.into()),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Ends the process once nobody reads on: until the next event, which may be hours away, no write would notice.
fn end_with_the_reader() -> anyhow::Result<()> {
    let end = |_| std::process::exit(0);
    follower::watch(Watched::default(), end).context("starting a thread")
}

fn write(out: &mut impl Write, event: &Event, print: Print) -> io::Result<()> {
    match print {
        Print::Json => writeln!(out, "{}", serde_json::to_string(event)?),
        Print::Table => writeln!(out, "{}", line(event)),
    }
}

/// An event as a person reads it. Not a table: its width would have to be known before the first line.
fn line(event: &Event) -> String {
    let time = UNIX_EPOCH + Duration::try_from_secs_f64(event.time).unwrap_or_default();
    let time = humantime::format_rfc3339_millis(time);
    let whom = event.source.as_deref().or(event.group.as_deref()).unwrap_or("-");
    let limit = event.limit.as_deref().unwrap_or("-");
    let mut text = format!(
        "{time}  {:<14}  {whom:<20}  {limit:<18}  {:>9}  {}",
        event.verdict.name(),
        number(event.count),
        event.reason
    );
    let port = event.port.map(|port| format!("port {port}"));
    // Most limits are on what comes in: only the other way is worth a word.
    let direction = event.direction.as_ref().filter(|direction| *direction == "egress");
    for more in event.protocol.iter().chain(&port).chain(direction) {
        text.push_str(", ");
        text.push_str(more);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::What;

    #[test]
    fn a_line_says_when_who_by_what_how_often_and_why() {
        let event = Event {
            time: 1_763_718_281.5,
            source: Some("10.77.0.7".to_owned()),
            limit: Some("dns".to_owned()),
            protocol: Some("udp".to_owned()),
            port: Some(53),
            direction: Some("ingress".to_owned()),
            ..Event::now(What::WouldThrottle, 1_024, "more than 5/s packets, burst 5".to_owned())
        };
        assert_eq!(
            line(&event),
            "2025-11-21T09:44:41.500Z  would-throttle  10.77.0.7             dns                     1,024  \
             more than 5/s packets, burst 5, udp, port 53"
        );
    }
}
