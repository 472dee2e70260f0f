//! Reported changes of a fair limit: onset, end, release where it cannot help, and queues that nobody serves.

use std::collections::BTreeMap;
use std::time::Duration;

use api::event::seconds_since_1970;
use api::fair::cause;
use api::{Event, EventKind};
use config::human;
use fair::signals::{Kind, Watched};
use fair::{Cause, Failure, Report, State};

/// Seconds in which a failure, or a queue that nobody serves, is reported once.
const AT_MOST_EVERY: f64 = 60.0;

/// A change that is reported.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Change {
    pub kind: EventKind,
    pub count: u64,
    pub reason: String,
    pub port: Option<u16>,
}

/// The last reports.
#[derive(Debug, Default)]
pub(super) struct Changes {
    /// The time of the onset.
    since: Option<f64>,
    /// The same in seconds since 1970.
    began: f64,
    onsets: u64,
    failed: Option<(Failure, f64)>,
    has_failed: bool,
    unserved: BTreeMap<(u16, bool), f64>,
}

impl Changes {
    pub(super) const fn onsets(&self) -> u64 {
        self.onsets
    }

    /// When the overload that lasts began, in seconds since 1970.
    pub(super) fn began(&self) -> Option<f64> {
        self.since.map(|_| self.began)
    }

    /// The end of an overload, if one lasts.
    pub(super) fn end(&mut self, now: f64) -> Option<Change> {
        let seconds = (now - self.since.take()?).round() as u64;
        Some(Change {
            kind: EventKind::OverloadEnded,
            count: seconds,
            reason: format!("after {}", human::time(Duration::from_secs(seconds))),
            port: None,
        })
    }

    /// The changes by a tick.
    pub(super) fn after(&mut self, now: f64, report: &Report, watched: &[Watched]) -> Vec<Change> {
        let mut changes = Vec::new();
        let change = |kind, count, reason| Change {
            kind,
            count,
            reason,
            port: None,
        };
        match (self.since, report.level) {
            (None, Some(level)) => {
                (self.since, self.began) = (Some(now), seconds_since_1970());
                self.onsets += 1;
                let (rate, cause) = (
                    level.rate.ceil() as u64,
                    cause(report.cause.map(word_of_cause)),
                );
                let capacity = human::number(report.capacity.unwrap_or_default() as u64);
                let text = human::number(rate);
                let reason = format!(
                    "{cause}; servers serve {capacity}/s, and each source may send {text}/s"
                );
                changes.push(change(EventKind::Overload, rate, reason));
            }
            (Some(_), None) if report.state == State::Off => changes.extend(self.end(now)),
            _ => {}
        }
        let is_new = report.failure.is_some_and(|failure| {
            let reported = self
                .failed
                .filter(|(last, at)| *last == failure && now - at < AT_MOST_EVERY);
            !self.has_failed && reported.is_none()
        });
        if let Some(failure) = report.failure.filter(|_| is_new) {
            self.failed = Some((failure, now));
            changes.push(change(EventKind::FairReleased, 1, why(failure).to_owned()));
        }
        self.has_failed = report.failure.is_some();
        for Watched { socket, .. } in watched.iter().filter(|watched| !watched.is_served) {
            let key = (socket.port, socket.kind == Kind::Listener);
            let last = self.unserved.entry(key).or_insert(f64::NEG_INFINITY);
            if now - *last < AT_MOST_EVERY {
                *last = now;
                continue;
            }
            *last = now;
            let (port, waiting) = (socket.port, human::number(socket.waiting.into()));
            let what = match socket.kind {
                Kind::Listener => {
                    format!("{waiting} connections wait on TCP port {port}, and none is accepted")
                }
                Kind::Datagrams => {
                    format!("{waiting} bytes wait on UDP port {port}, and none are read")
                }
            };
            changes.push(Change {
                port: Some(port),
                ..change(
                    EventKind::Unserved,
                    socket.waiting.into(),
                    format!("{what}: its queue is ignored"),
                )
            });
        }
        changes
    }
}

/// The word of a cause in documents.
pub(super) const fn word_of_cause(cause: Cause) -> &'static str {
    match cause {
        Cause::Drops => "drops",
        Cause::Wait => "wait",
        Cause::Load => "load",
        Cause::Demand => "demand",
        Cause::Recent => "recent",
    }
}

/// Why a limit is released.
pub(super) const fn why(failure: Failure) -> &'static str {
    match failure {
        Failure::Unreadable => {
            "its signals cannot be read, or nobody reports its load: it refuses nothing until that changes"
        }
        Failure::Stalled => {
            "servers have served nothing for 1 s while units wait: no rate helps until they do"
        }
        Failure::WithoutEffect => {
            "its level has no effect on the overload: it refuses nothing for up to 30 s"
        }
    }
}

impl Change {
    /// Logs it, and returns its event.
    pub(super) fn event(self, limit: &str) -> Event {
        let Self {
            kind,
            count,
            reason,
            port,
        } = self;
        match kind {
            EventKind::Overload => {
                tracing::warn!(limit, count, "overload under limit {limit:?}: {reason}");
            }
            EventKind::OverloadEnded => {
                tracing::info!(
                    limit,
                    count,
                    "limit {limit:?} refuses nothing any more, {reason}"
                );
            }
            EventKind::FairReleased => {
                tracing::error!(limit, "limit {limit:?} is released: {reason}");
            }
            _ => tracing::warn!(limit, count, "limit {limit:?}: {reason}"),
        }
        Event {
            limit: Some(limit.to_owned()),
            port,
            ..Event::now(kind, count, reason)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fair::signals::Socket;

    fn report(state: State, failure: Option<Failure>) -> Report {
        Report {
            state,
            failure,
            ..fair::Law::new(fair::Settings {
                unit: fair::Unit::Packets,
                at_least: 1.0,
                at_most: None,
                widest: fair::Tier::Sources,
            })
            .report()
        }
    }

    #[test]
    fn a_failure_is_reported_once_a_minute() {
        let mut changes = Changes::default();
        let mut reported = |now, failure| {
            let found = changes.after(now, &report(State::Off, failure), &[]);
            found.iter().map(|change| change.kind).collect::<Vec<_>>()
        };
        assert_eq!(
            reported(0.0, Some(Failure::Stalled)),
            [EventKind::FairReleased]
        );
        assert_eq!(reported(0.1, Some(Failure::Stalled)), []);
        assert_eq!(reported(0.2, None), []);
        assert_eq!(reported(0.3, Some(Failure::Stalled)), []);
        assert_eq!(reported(0.4, None), []);
        assert_eq!(
            reported(0.5, Some(Failure::Unreadable)),
            [EventKind::FairReleased]
        );
        assert_eq!(reported(61.0, None), []);
        assert_eq!(
            reported(61.1, Some(Failure::Stalled)),
            [EventKind::FairReleased]
        );
    }

    #[test]
    fn an_overload_ends_once() {
        let mut changes = Changes::default();
        let level = |rate| {
            let settings = fair::Settings {
                unit: fair::Unit::Packets,
                at_least: rate,
                at_most: None,
                widest: fair::Tier::Sources,
            };
            let mut law = fair::Law::new(settings);
            let full = fair::Queue {
                growth: 0.0,
                waiting: 100.0,
                dropped: 50.0,
                buffer: None,
                ..fair::Queue::default()
            };
            for tick in 1..=3 {
                let now = f64::from(tick) * 0.05;
                law.step(&fair::Reading {
                    now,
                    elapsed: 0.05,
                    passed: 100.0,
                    refused: 0.0,
                    queue: Some(full),
                    sources: &[fair::Source {
                        weight: 1.0,
                        since_onset: 100.0 * f64::from(tick),
                        rate: 2_000.0,
                        samples: 100.0,
                        ..fair::Source::default()
                    }],
                });
            }
            law.report()
        };
        let limiting = Report {
            state: State::Limiting,
            level: level(5.0).level,
            ..report(State::Limiting, None)
        };
        assert!(limiting.level.is_some());
        let kinds = |found: Vec<Change>| {
            found
                .into_iter()
                .map(|change| change.kind)
                .collect::<Vec<_>>()
        };
        let earliest = seconds_since_1970();
        assert_eq!(
            kinds(changes.after(1.0, &limiting, &[])),
            [EventKind::Overload]
        );
        let began = changes.began();
        let instants = earliest..=seconds_since_1970();
        assert!(began.is_some_and(|began| instants.contains(&began)));
        // Its beginning stays as it is while it lasts.
        changes.after(2.0, &limiting, &[]);
        assert_eq!(changes.began(), began);
        assert_eq!(
            changes.end(4.0).map(|change| (change.kind, change.count)),
            Some((EventKind::OverloadEnded, 3))
        );
        assert_eq!((changes.end(5.0), changes.began()), (None, None));
        assert_eq!(
            kinds(changes.after(6.0, &report(State::Off, None), &[])),
            []
        );
        assert_eq!(changes.onsets(), 1);
    }

    #[test]
    fn a_queue_that_nobody_serves_is_reported_once_while_it_lasts() {
        let watched = [Watched {
            socket: Socket {
                cookie: 1,
                port: 8080,
                kind: Kind::Listener,
                waiting: 129,
                room: 128,
                drops: 555,
            },
            is_served: false,
        }];
        let mut changes = Changes::default();
        let mut reported = |now| {
            changes
                .after(now, &report(State::Off, None), &watched)
                .len()
        };
        assert_eq!((reported(0.0), reported(50.0), reported(100.0)), (1, 0, 0));
        assert_eq!(reported(200.0), 1);
    }

    #[test]
    fn each_cause_has_its_word_in_metrics() {
        let causes = [
            Cause::Drops,
            Cause::Wait,
            Cause::Load,
            Cause::Demand,
            Cause::Recent,
        ];
        assert_eq!(causes.map(word_of_cause), api::fair::CAUSES);
    }
}
