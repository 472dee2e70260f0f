//! Fair limits in `weir status`.

use api::fair::{FairLoad, FairSignal, FairState, FairStatus, FairStranger};
use config::policy::Limit;
use fair::signals::{Kind, Signals, Watched};
use fair::{Failure, State, Tier};

use super::changes::word_of_cause;
use super::limited::Limited;
use super::settings::LimitSettings;

/// The most sockets of a limit in documents.
const MOST_SIGNALS: usize = 64;

pub(super) fn document(limited: &Limited) -> FairStatus {
    let report = limited.law.report();
    let settings = limited.law.settings();
    let watched = limited.signals.as_ref().map_or(&[][..], Signals::watched);
    let signals = unserved_first(watched).map(|watched| FairSignal {
        port: watched.socket.port,
        kind: kind(watched.socket.kind == Kind::Listener),
        waiting: watched.socket.waiting.into(),
        room: watched.socket.room.into(),
        drops: watched.socket.drops.into(),
        is_served: watched.is_served,
    });
    let strangers = limited.signals.iter().flat_map(Signals::strangers);
    let strangers = strangers.take(MOST_SIGNALS).map(|one| FairStranger {
        port: one.port,
        kind: kind(one.is_listener),
        user: one.user,
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
        limited_by: report
            .level
            .map(|level| word_of_tier(level.tier()).to_owned()),
        network_level: report.level.and_then(|level| level.network),
        total_level: report.level.and_then(|level| level.all),
        refused_by_networks: limited.refused_by_wider[0],
        refused_by_all: limited.refused_by_wider[1],
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
        load: limited.settings.takes_load.then(|| FairLoad {
            is_reported: limited.reported.is_some(),
            wait_seconds: limited.reported.map_or(0.0, |reported| reported.wait),
        }),
        closed_ports: closed(&limited.settings.named, watched),
        strangers: strangers.collect(),
        onsets: limited.onsets(),
        since: limited.began(),
        // The rest is added outside of the thread.
        ..FairStatus::default()
    }
}

/// The word of the widest keys that have a level.
const fn word_of_tier(tier: Tier) -> &'static str {
    match tier {
        Tier::Sources => FairStatus::SOURCES,
        Tier::Networks => FairStatus::NETWORKS,
        Tier::All => FairStatus::ALL,
    }
}

fn kind(is_listener: bool) -> String {
    if is_listener { "listener" } else { "udp" }.to_owned()
}

/// A limit of the config that is not in effect. `failure`: one of [`FairStatus::NOT_IN_EFFECT`].
pub(super) fn without_effect(limit: &Limit, failure: &str) -> Option<FairStatus> {
    let settings = LimitSettings::of(limit)?.law;
    Some(FairStatus {
        limit: limit.name.clone(),
        at_least: settings.at_least,
        at_most: settings.at_most,
        failure: Some(failure.to_owned()),
        ..FairStatus::default()
    })
}

/// The sockets of a document.
fn unserved_first(watched: &[Watched]) -> impl Iterator<Item = &Watched> {
    let unserved = watched.iter().filter(|watched| !watched.is_served);
    let served = watched.iter().filter(|watched| watched.is_served);
    unserved.chain(served).take(MOST_SIGNALS)
}

/// The ports of these on which no socket is open.
fn closed(named: &[u16], watched: &[Watched]) -> Vec<u16> {
    let is_closed = |port: &&u16| watched.iter().all(|watched| watched.socket.port != **port);
    named.iter().filter(is_closed).copied().collect()
}

const fn word(failure: Failure) -> &'static str {
    match failure {
        Failure::Unreadable => FairStatus::UNREADABLE,
        Failure::Stalled => FairStatus::STALLED,
        Failure::WithoutEffect => FairStatus::WITHOUT_EFFECT,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use fair::signals::Socket;

    fn watched(port: u16, is_served: bool) -> Watched {
        Watched {
            socket: Socket {
                cookie: port.into(),
                port,
                kind: Kind::Listener,
                waiting: 0,
                room: 128,
                drops: 0,
            },
            is_served,
        }
    }

    #[test]
    fn sockets_that_nobody_serves_are_in_documents_of_many() {
        let all: Vec<_> = (1..=100).map(|port| watched(port, port != 90)).collect();
        let ports: Vec<u16> = unserved_first(&all).map(|one| one.socket.port).collect();
        assert_eq!(ports.len(), MOST_SIGNALS);
        assert_eq!(ports[..3], [90, 1, 2]);
    }

    #[test]
    fn ports_without_a_socket_are_closed() {
        let all = [watched(80, true), watched(8080, false)];
        assert_eq!(closed(&[80, 443, 8080], &all), [443]);
        assert_eq!(closed(&[80, 443], &[]), [80, 443]);
        assert!(closed(&[], &all).is_empty());
    }

    #[test]
    fn a_limit_that_is_not_in_effect_has_its_bounds_and_the_reason() {
        let text = "[agent]\ninterfaces = [\"lo\"]\n[[limit]]\nname = \"web\"\nports = [80]\nunit = \"connections\"\n\
                    rate = \"fair\"\nfair = { at_least = \"5/s\", at_most = \"500/s\" }\n\
                    [[limit]]\nname = \"dns\"\nprotocol = \"udp\"\nrate = \"5/s\"\n";
        let config = config::parse("limits.toml".as_ref(), text).unwrap().config;
        let found = without_effect(&config.limits[0], FairStatus::NO_MAPS).unwrap();
        assert!(!found.is_in_effect());
        assert_eq!(
            (found.limit.as_str(), found.at_least, found.at_most),
            ("web", 5.0, Some(500.0))
        );
        assert_eq!(without_effect(&config.limits[1], FairStatus::NO_MAPS), None);
    }
}
