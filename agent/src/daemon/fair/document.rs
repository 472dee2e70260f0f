//! Fair limits in `agent status`.

use api::fair::{FairSignal, FairState, FairStatus};
use fair::signals::{Kind, Signals};
use fair::{Cause, Failure, State};

use super::limited::Limited;

/// The most sockets of a limit in documents.
const MOST_SIGNALS: usize = 64;

pub(super) fn document(limited: &Limited) -> FairStatus {
    let report = limited.law.report();
    let settings = limited.law.settings();
    let watched = limited.signals.as_ref().map_or(&[][..], Signals::watched);
    let signals = watched.iter().take(MOST_SIGNALS).map(|watched| FairSignal {
        port: watched.socket.port,
        kind: match watched.socket.kind {
            Kind::Listener => "listener",
            Kind::Datagrams => "udp",
        }
        .to_owned(),
        waiting: watched.socket.waiting.into(),
        room: watched.socket.room.into(),
        drops: watched.socket.drops.into(),
        is_served: watched.is_served,
    });
    FairStatus {
        limit: limited.name.clone(),
        state: match report.state {
            State::Off => FairState::Off,
            State::Armed => FairState::Armed,
            State::Limiting => FairState::Limiting,
            State::Holding => FairState::Holding,
            State::Releasing => FairState::Releasing,
        },
        level: report.level.map(|level| level.rate),
        at_least: settings.at_least,
        at_most: settings.at_most,
        held_by: report.cause.map(|cause| word_of_cause(cause).to_owned()),
        failure: report.failure.map(|failure| word(failure).to_owned()),
        offered: limited.offered,
        passed: limited.passed,
        goodput: report.goodput,
        capacity: report.capacity,
        wait_seconds: report.wait,
        target_seconds: report.target,
        loss: report.loss,
        sources: limited.sources as u64,
        signals: signals.collect(),
        onsets: limited.onsets(),
        levels: limited.levels.iter().copied().collect(),
    }
}

const fn word_of_cause(cause: Cause) -> &'static str {
    match cause {
        Cause::Drops => "drops",
        Cause::Wait => "wait",
        Cause::Demand => "demand",
        Cause::Recent => "recent",
    }
}

const fn word(failure: Failure) -> &'static str {
    match failure {
        Failure::Unreadable => "unreadable",
        Failure::Stalled => "stalled",
        Failure::WithoutEffect => "without-effect",
    }
}
