//! Any order of inputs: what must hold after each of them.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;
use crate::board::{Failure, Report};
use crate::health::Unhealthy;

/// An input, or what happens to the host.
#[derive(Clone, Debug)]
enum Happening {
    /// A release of a version, as a canary or not, of one of two documents.
    Reads {
        version: u64,
        is_canary: bool,
        is_twin: bool,
        held: u32,
        is_failed: bool,
    },
    Empty,
    StoreFailed,
    Aborted(u64),
    Tried(bool),
    Checked {
        seconds: u8,
        is_healthy: bool,
    },
    FileChanged,
    Restarts,
    Wall(i32),
}

fn happening() -> impl Strategy<Value = Happening> {
    let reads = (1..5_u64, any::<bool>(), 0..6_u8, 0..3_u32, 0..8_u8);
    prop_oneof![
        6 => reads.prop_map(|(version, is_canary, twin, held, failed)| Happening::Reads {
            version,
            is_canary,
            is_twin: twin == 0,
            held,
            is_failed: failed == 0,
        }),
        1 => Just(Happening::Empty),
        1 => Just(Happening::StoreFailed),
        1 => (1..5_u64).prop_map(Happening::Aborted),
        3 => (0..9_u8).prop_map(|nth| Happening::Tried(nth > 0)),
        6 => (1..90_u8, 0..9_u8).prop_map(|(seconds, nth)| Happening::Checked {
            seconds,
            is_healthy: nth > 0,
        }),
        1 => Just(Happening::FileChanged),
        1 => Just(Happening::Restarts),
        1 => any::<i32>().prop_map(Happening::Wall),
    ]
}

/// A host with what is on disk and in effect beside it.
struct Watched {
    bench: Bench,
    disk: Saved,
    effective: Option<u64>,
    highest: u64,
    stopped: BTreeSet<u64>,
    attempts: u32,
}

impl Watched {
    fn does(&mut self, happening: &Happening) {
        let bench = &mut self.bench;
        let out = match *happening {
            Happening::Reads {
                version,
                is_canary,
                is_twin,
                held,
                is_failed,
            } => {
                let mut document = if is_canary {
                    release(version)
                } else {
                    followed(version)
                };
                document.bake += SECOND * u32::from(is_twin);
                let failure = Failure {
                    host: "other".into(),
                    reason: "r".into(),
                };
                let board = Board {
                    failed: is_failed.then_some(failure),
                    ..board(0, held)
                };
                bench.after(EVERY);
                bench.reads_release(&document, board)
            }
            Happening::Empty => bench.reads(Head::Missing, Vec::new(), Board::default()),
            Happening::StoreFailed => bench.step(Input::StoreFailed("timeout".into())),
            Happening::Aborted(version) => {
                let abort = bench.key.abort(version);
                bench.reads(Head::Unchanged, vec![abort], Board::default())
            }
            Happening::Tried(is_done) => {
                let outcome = if is_done { Ok(()) } else { Err("r".into()) };
                bench.step(Input::Tried(outcome))
            }
            Happening::Checked {
                seconds,
                is_healthy,
            } => {
                for _ in 0..seconds {
                    self.bench.after(SECOND);
                    let health = is_healthy
                        .then_some(())
                        .ok_or(Unhealthy::Application("r".into()));
                    let out = self.bench.step(Input::Health(health));
                    self.sees(&out);
                }
                return;
            }
            Happening::FileChanged => bench.step(Input::FileChanged),
            Happening::Restarts => {
                bench.host = Host::new(settings(), self.disk.clone(), bench.clock);
                self.effective = self.disk.confirmed().map(|rules| rules.version);
                // Recorded as interrupted with the next change.
                self.disk = bench.host.saved().clone();
                return;
            }
            Happening::Wall(step) => {
                let step = Duration::from_secs(step.unsigned_abs().into());
                bench.clock.wall = start() + step;
                return;
            }
        };
        self.sees(&out);
    }

    fn sees(&mut self, out: &[Output]) {
        for output in out {
            match output {
                Output::Save | Output::Confirm => self.disk = self.bench.host.saved().clone(),
                Output::Try(rules) => {
                    let version = rules.version;
                    assert!(version >= self.highest, "{version} after {}", self.highest);
                    assert!(!self.stopped.contains(&version), "{version} was stopped");
                    self.attempts = if version > self.highest {
                        1
                    } else {
                        self.attempts + 1
                    };
                    assert!(self.attempts <= crate::host::MOST_ATTEMPTS);
                    self.highest = version;
                    self.effective = Some(version);
                }
                Output::RollBack(rules) => {
                    self.effective = rules.as_ref().map(|rules| rules.version);
                }
                Output::Event(Event::Stopped { version, .. }) => {
                    self.stopped.insert(*version);
                }
                Output::Merge | Output::Event(_) => {}
            }
        }
        let host = &self.bench.host;
        assert_eq!(&self.disk, host.saved(), "a change is not saved");
        assert_eq!(self.effective, self.bench.effective());
        let text = toml::to_string(&host.report()).unwrap();
        assert_eq!(toml::from_str::<Report>(&text).unwrap(), host.report());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    #[test]
    fn in_any_order_changes_are_saved_and_stopped_versions_stay_stopped(
        happenings in prop::collection::vec(happening(), 1..40)
    ) {
        let mut watched = Watched {
            bench: Bench::new(),
            disk: Saved::default(),
            effective: None,
            highest: 0,
            stopped: BTreeSet::new(),
            attempts: 0,
        };
        for happening in &happenings {
            watched.does(happening);
        }
    }
}
