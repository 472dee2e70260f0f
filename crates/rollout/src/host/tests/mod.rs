//! One host, step by step.

mod any;
mod store;
mod trials;

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Clock, Event, Head, Host, Input, Output, Reply, Request, Saved, Settings, Stop};
use crate::board::{Board, Failure, Progress};
use crate::canary::{Canary, Share};
use crate::document::Release;
use crate::health::Unhealthy;
use crate::keyring::Keyring;
use crate::refusal::Refusal;
use crate::rules::Rights;
use crate::testing::{DAY, Key, release, start};

const EVERY: Duration = Duration::from_secs(10);
const SECOND: Duration = Duration::from_secs(1);

/// A host with its clock and key; the store is the test.
struct Bench {
    key: Key,
    keyring: Keyring,
    host: Host,
    clock: Clock,
}

fn settings() -> Settings {
    Settings {
        host: "h".into(),
        labels: BTreeMap::from([("role".to_owned(), "web".to_owned())]),
        stream: "web".into(),
        every: EVERY,
        rights: Rights::all(),
    }
}

/// A release whose canary is another host.
fn followed(version: u64) -> Release {
    let mut followed = release(version);
    // Host `h` is among those with the greater positions.
    let others: Vec<String> = (0..1_000).map(|host| format!("other-{host}")).collect();
    let others = others.iter().map(String::as_str);
    followed.canary =
        Canary::among(others, "0.1%".parse::<Share>().unwrap(), "web", version).unwrap();
    assert!(!followed.canary.includes("h", "web", version));
    followed
}

fn board(trying: u32, held: u32) -> Board {
    Board {
        trying,
        held,
        ..Board::default()
    }
}

impl Bench {
    fn new() -> Self {
        let key = Key::new();
        let clock = Clock {
            wall: start(),
            monotonic: Duration::from_secs(1_000),
        };
        Self {
            keyring: key.keyring(),
            key,
            host: Host::new(settings(), Saved::default(), clock),
            clock,
        }
    }

    /// Confirms at once if the host requests it.
    fn step(&mut self, input: Input) -> Vec<Output> {
        let mut out = self.host.step(input, &self.keyring, self.clock);
        if out.contains(&Output::Confirm) {
            let saved = self.host.if_confirmed();
            out.extend(self.host.step(Input::Confirmed, &self.keyring, self.clock));
            assert_eq!(saved.as_ref(), Some(self.host.saved()));
        }
        out
    }

    fn reads(&mut self, head: Head, aborts: Vec<String>, board: Board) -> Vec<Output> {
        let reply = Reply {
            head,
            aborts,
            board,
        };
        self.step(Input::Replied(Box::new(reply)))
    }

    fn reads_release(&mut self, release: &Release, board: Board) -> Vec<Output> {
        let head = Head::Is(self.key.release(release));
        self.reads(head, Vec::new(), board)
    }

    fn after(&mut self, time: Duration) {
        self.clock.monotonic += time;
        self.clock.wall += time;
    }

    /// Checks once a second. Returns the outputs of the last check.
    fn bakes(&mut self, seconds: u64) -> Vec<Output> {
        let mut out = Vec::new();
        for _ in 0..seconds {
            assert_eq!(out, []);
            self.after(SECOND);
            out = self.step(Input::Health(Ok(())));
        }
        out
    }

    /// Takes a release as a canary, and confirms it.
    fn confirms(&mut self, version: u64) {
        self.begins(version);
        let out = self.bakes(60);
        assert!(out.contains(&Output::Confirm), "{out:?}");
    }

    fn begins(&mut self, version: u64) {
        let out = self.reads_release(&release(version), Board::default());
        assert!(is_trying(&out, version), "{out:?}");
        let begun = Output::Event(Event::Begun { version });
        assert_eq!(self.step(Input::Tried(Ok(()))), [begun]);
    }

    fn effective(&self) -> Option<u64> {
        self.host.in_effect().map(|rules| rules.version)
    }

    /// The agent ends and starts again, after the state was on disk.
    fn restarts(&mut self) {
        let text = toml::to_string(self.host.saved()).unwrap();
        let saved = toml::from_str(&text).unwrap();
        assert_eq!(&saved, self.host.saved());
        self.host = Host::new(settings(), saved, self.clock);
    }
}

fn is_trying(out: &[Output], version: u64) -> bool {
    let tried = |output: &Output| matches!(output, Output::Try(rules) if rules.version == version);
    let trial = out.iter().position(tried);
    let saved = out.iter().position(|output| *output == Output::Save);
    // Recorded before it begins.
    trial.is_some() && saved < trial
}

fn refused(out: &[Output]) -> Option<&Refusal> {
    out.iter().find_map(|output| match output {
        Output::Event(Event::Refused(refusal)) => Some(refusal),
        _ => None,
    })
}

fn stopped(out: &[Output]) -> Option<&Stop> {
    out.iter().find_map(|output| match output {
        Output::Event(Event::Stopped { reason, .. }) => Some(reason),
        _ => None,
    })
}

fn rolls_back_to(out: &[Output]) -> Option<u64> {
    out.iter().find_map(|output| match output {
        Output::RollBack(rules) => Some(rules.as_ref().map_or(0, |rules| rules.version)),
        _ => None,
    })
}

impl Bench {
    fn refuses_abort(&mut self, object: String) {
        let out = self.reads(Head::Unchanged, vec![object], Board::default());
        assert!(refused(&out).is_some(), "{out:?}");
        assert_eq!(rolls_back_to(&out), None);
    }
}
