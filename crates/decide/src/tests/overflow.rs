//! The allowance that keys without room share.

use super::*;

/// A limit with room for one key, and one that passes a unit.
fn text(algorithm: &str, lines: &str) -> String {
    format!(
        "[decide]\nmax_keys = 1\n[[limit]]\nname = \"credits\"\nscope = \"request\"\nkey = [\"user\"]\nrate = \"100/h\"\n\
         algorithm = \"{algorithm}\"\non_full = \"share\"\n{lines}\n\
         [[limit]]\nname = \"once\"\nscope = \"request\"\nkey = [\"team\"]\nrate = \"1/h\"\n"
    )
}

/// An engine without room for more keys.
fn full(algorithm: &str, lines: &str) -> Engine {
    let engine = engine(&text(algorithm, lines));
    engine.decide(&ask("bob", 9), SECOND).unwrap();
    engine
}

fn charge(engine: &Engine, limit: usize, value: &str, cost: u64) -> charge::Charge {
    let entry = ["user", "team"][limit];
    let entries = [(entry, value)].into_iter();
    engine.charge_of(limit, entries, None, cost).unwrap()
}

fn remaining(engine: &Engine, now: u64) -> i64 {
    let peek = Question {
        peek: true,
        ..ask("carol", 1)
    };
    engine.decide(&peek, now).unwrap().remaining
}

fn passed(engine: &Engine, user: &str, cost: u64) -> bool {
    engine.decide(&ask(user, cost), SECOND).unwrap().allowed
}

fn reloaded(engine: &Engine, text: &str) -> Engine {
    let config = config::parse(Path::new("limits.toml"), text).unwrap();
    let (next, moves) = engine.after(&config.config).unwrap();
    moves.carry_out(SECOND);
    next
}

#[test]
fn a_refused_request_charges_no_key_without_room() {
    for algorithm in ALGORITHMS {
        for lines in ["", "throttle = { soft = \"50%\" }"] {
            let engine = full(algorithm, lines);
            let whole = remaining(&engine, SECOND);
            for costs in [(5, 3), (70, 20)] {
                let charges = [
                    charge(&engine, 0, "alice", costs.0),
                    charge(&engine, 0, "dave", costs.1),
                    charge(&engine, 1, "red", 2),
                ];
                let outcomes = engine.decide_together(&charges, SECOND);
                let allowed: Vec<bool> = outcomes.iter().map(|outcome| outcome.allowed).collect();
                assert_eq!(allowed, [true, true, false], "{algorithm} {lines}");
                assert_eq!(remaining(&engine, SECOND), whole, "{algorithm} {lines}");
            }
        }
    }
}

/// Charges of other threads meanwhile stay.
#[test]
fn undoing_a_charge_without_room_returns_no_others() {
    for algorithm in ALGORITHMS {
        let engine = full(algorithm, "");
        let passed = AtomicU64::new(0);
        thread::scope(|scope| {
            for thread in 0..2 {
                let (engine, passed) = (&engine, &passed);
                scope.spawn(move || {
                    for turn in 0..200 {
                        let user = format!("{thread}-{turn}");
                        let is_passed = self::passed(engine, &user, 1);
                        passed.fetch_add(u64::from(is_passed), Ordering::Relaxed);
                    }
                });
            }
            for _ in 0..2_000 {
                let charges = [charge(&engine, 0, "alice", 3), charge(&engine, 1, "red", 2)];
                engine.decide_together(&charges, SECOND);
            }
        });
        let passed = passed.into_inner() as i64;
        assert_eq!(remaining(&engine, SECOND), 100 - passed, "{algorithm}");
    }
}

#[test]
fn a_reload_gives_keys_without_room_no_second_allowance() {
    for algorithm in ALGORITHMS {
        let mut engine = full(algorithm, "");
        assert!(passed(&engine, "alice", 90));
        for rate in ["101/h", "102/h", "103/h"] {
            let text = text(algorithm, "").replace("100/h", rate);
            engine = reloaded(&engine, &text);
        }
        assert!(passed(&engine, "dave", 10), "{algorithm}");
        assert!(!passed(&engine, "erin", 10), "{algorithm}");
    }
}

/// A decision of the previous engine while it is replaced.
#[test]
fn the_previous_engine_charges_the_allowance_of_the_next() {
    let engine = full("fixed-window", "");
    let next = reloaded(&engine, &text("fixed-window", "").replace("100/h", "101/h"));
    let store = &engine.limits[0].stores[0];
    store.with_overflow(SECOND, |tiers, words| {
        tiers::force(tiers, words, SECOND, 60);
    });
    assert_eq!(remaining(&next, SECOND), 41);
}

#[test]
fn use_without_room_survives_a_restart() {
    for algorithm in ALGORITHMS {
        let text = text(algorithm, "");
        let before = full(algorithm, "");
        assert!(passed(&before, "alice", 90));
        let saved = before.save(SECOND);
        let document = serde_json::to_string(&saved).unwrap();
        let mut read: SavedRequests = serde_json::from_str(&document).unwrap();
        read.words = saved.words;
        let mut after = engine(&text);
        after.resume(&read, SECOND, 9 * SECOND);
        assert_eq!(remaining(&after, 9 * SECOND), 10, "{algorithm}");
    }
}

#[test]
fn use_without_room_stays_when_the_clusters_clock_is_set() {
    const DAY: u64 = 86_400 * SECOND;
    let rate = Rate {
        count: 100,
        per_nanoseconds: 3_600 * SECOND,
    };
    for algorithm in [Algorithm::TokenBucket, Algorithm::FixedWindow] {
        let policy = Policy::new(algorithm, rate, 100).unwrap();
        let store = StateStore::new(vec![policy], 1, OnFull::Share).keyed(Duration::from_secs(1));
        store.set_clock(DAY, SECOND);
        let passed = |word: u64| {
            let key = Fingerprint::of_word(word);
            store.decide(key, SECOND, 1).allowed
        };
        assert!(passed(1));
        // A tenth of the limit.
        assert_eq!((2..50).filter(|key| passed(*key)).count(), 10);
        for ahead in [3 * DAY, DAY] {
            store.set_clock(ahead, SECOND);
            assert!(!passed(60), "{algorithm:?}");
        }
    }
}
