//! Soft and elastic limits.

use common::limiter::Refund;
use config::policy::Config;
use proptest::prelude::*;

use super::*;
use crate::tiers::{self, Charges, Tiers};

const SOFT: &str = "throttle = { soft = \"50%\" }";
const ELASTIC: &str = "throttle = { elastic = { up_to = 1.5 } }";

/// Ten an hour.
fn limit(algorithm: &str, lines: &str) -> String {
    format!(
        "[[limit]]\nname = \"credits\"\nscope = \"request\"\nkey = [\"user\"]\nrate = \"10/h\"\n\
         algorithm = \"{algorithm}\"\n{lines}\n"
    )
}

fn config(text: &str) -> Config {
    let loaded =
        config::parse(Path::new("limits.toml"), text).unwrap_or_else(|report| panic!("{report}"));
    loaded.config
}

/// How many of 40 requests pass, one after another at one instant.
fn passed(engine: &Engine, user: &str) -> u64 {
    let passes = |_: &u64| engine.decide(&ask(user, 1), SECOND).unwrap().allowed;
    (0..40).filter(passes).count() as u64
}

/// (passed, refused, over).
fn counts(engine: &Engine) -> (u64, u64, u64) {
    let status = &engine.statuses()[0];
    let [passed, refused, over] =
        [&status.passed, &status.throttled, &status.over].map(|count| count.packets);
    (passed, refused, over)
}

fn reloaded(engine: &Engine, text: &str) -> Engine {
    let (next, moves) = engine.after(&config(text)).unwrap();
    moves.carry_out(SECOND);
    next
}

#[test]
fn a_soft_limit_passes_its_share_and_counts_it() {
    for algorithm in ALGORITHMS {
        let engine = engine(&limit(algorithm, SOFT));
        assert_eq!(passed(&engine, "alice"), 15, "{algorithm}");
        assert_eq!(counts(&engine), (15, 25, 5), "{algorithm}");
    }
}

#[test]
fn replies_above_a_soft_limit_have_nothing_left() {
    for algorithm in ALGORITHMS {
        let engine = engine(&limit(algorithm, SOFT));
        let decide = |cost| engine.decide(&ask("alice", cost), SECOND).unwrap();
        let within = decide(10);
        assert_eq!((within.allowed, within.remaining), (true, 0), "{algorithm}");
        let over = decide(3);
        assert_eq!((over.allowed, over.remaining), (true, 0), "{algorithm}");
        assert_eq!(over.retry_after_seconds, Some(0.0), "{algorithm}");
        // Two of the share are left.
        let refused = decide(3);
        assert_eq!((refused.allowed, refused.tier), (false, 0), "{algorithm}");
        let wait = refused.retry_after_seconds.unwrap();
        assert!(wait > 0.0, "{algorithm}");
        let at = SECOND + (wait * 1e9).ceil() as u64 + 1_000_000;
        assert!(
            engine.decide(&ask("alice", 3), at).unwrap().allowed,
            "{algorithm}"
        );
    }
}

/// As if only its own rates had passed: of each, what the limit had left.
#[test]
fn a_cost_above_one_rate_takes_of_the_others_what_the_limit_has_left() {
    let engine = engine(&limit(
        "token-bucket",
        "throttle = { elastic = { up_to = 3.0 } }\ntiers = [\"12/day\"]",
    ));
    engine.set_room(true);
    assert_eq!(passed(&engine, "alice"), 30);
    engine.set_room(false);
    // Of the day's twelve, the hour's ten are used.
    let later = SECOND + 3_600 * SECOND;
    let passes = |_: &u64| engine.decide(&ask("alice", 1), later).unwrap().allowed;
    assert_eq!((0..40).filter(passes).count(), 2);
}

#[test]
fn a_limit_on_observe_counts_what_is_above_its_share() {
    let engine = engine(&limit(
        "fixed-window",
        &format!("action = \"observe\"\n{SOFT}"),
    ));
    assert_eq!(passed(&engine, "alice"), 40);
    assert_eq!(counts(&engine), (15, 0, 5));
    assert_eq!(engine.statuses()[0].would_throttle.packets, 25);
}

#[test]
fn an_elastic_limit_passes_more_only_while_the_host_has_room() {
    for algorithm in ALGORITHMS {
        let engine = engine(&limit(algorithm, ELASTIC));
        assert_eq!(engine.has_room(), Some(false));
        assert_eq!(passed(&engine, "alice"), 10, "{algorithm}");
        engine.set_room(true);
        assert_eq!(passed(&engine, "alice"), 5, "{algorithm}");
        assert_eq!(passed(&engine, "bob"), 15, "{algorithm}");
        assert_eq!(counts(&engine), (30, 90, 10), "{algorithm}");
        // After an hour the limit itself has its whole allowance, whatever passed above it.
        engine.set_room(false);
        let later = SECOND + 2 * 3_600 * SECOND;
        let passes = |_: &u64| engine.decide(&ask("bob", 1), later).unwrap().allowed;
        assert_eq!((0..40).filter(passes).count(), 10, "{algorithm}");
    }
}

#[test]
fn room_survives_a_reload() {
    let engine = engine(&limit("token-bucket", ELASTIC));
    engine.set_room(true);
    let next = reloaded(
        &engine,
        &limit("token-bucket", "throttle = { elastic = { up_to = 2.0 } }"),
    );
    assert_eq!(passed(&next, "alice"), 20);
    assert_eq!(engine.has_room(), next.has_room());
}

/// Otherwise a reload would be a new quota.
#[test]
fn a_share_that_a_reload_adds_begins_with_the_limits_use() {
    for algorithm in ALGORITHMS {
        let engine = engine(&limit(algorithm, ""));
        assert_eq!(passed(&engine, "alice"), 10, "{algorithm}");
        let soft = reloaded(&engine, &limit(algorithm, SOFT));
        assert_eq!(passed(&soft, "alice"), 5, "{algorithm}");
        let wider = reloaded(&soft, &limit(algorithm, "throttle = { soft = \"100%\" }"));
        assert_eq!(passed(&wider, "alice"), 5, "{algorithm}");
        let tiered = reloaded(
            &wider,
            &limit(
                algorithm,
                "throttle = { soft = \"100%\" }\ntiers = [\"100/day\"]",
            ),
        );
        assert_eq!(passed(&tiered, "alice"), 0, "{algorithm}");
        let hard = reloaded(&tiered, &limit(algorithm, ""));
        assert_eq!(passed(&hard, "alice"), 0, "{algorithm}");
    }
}

/// Units that were not charged to the limit itself are not returned to it.
#[test]
fn refunds_of_what_passed_above_a_limit_free_nothing_of_it() {
    for algorithm in ALGORITHMS {
        let engine = engine(&limit(algorithm, ELASTIC));
        engine.set_room(true);
        assert!(engine.decide(&ask("alice", 10), SECOND).unwrap().allowed);
        let reserve = Question {
            reserve: Some("30s".parse().unwrap()),
            ..ask("alice", 5)
        };
        for refund in [true, false] {
            let reserved = engine.decide(&reserve, SECOND).unwrap();
            assert!(reserved.allowed, "{algorithm}");
            let back = match refund {
                true => Question {
                    cost: Some(-5),
                    ..ask("alice", 0)
                },
                false => Question {
                    release: reserved.reservation,
                    ..Question::default()
                },
            };
            engine.decide(&back, SECOND).unwrap();
            engine.set_room(false);
            let again = engine.decide(&ask("alice", 1), SECOND).unwrap();
            assert!(!again.allowed, "{algorithm}, refund {refund}");
            engine.set_room(true);
        }
        assert_eq!(passed(&engine, "alice"), 5, "{algorithm}");
    }
}

/// Also if it was charged to the limit in part, after a reload that changes the number of rates.
#[test]
fn a_reservation_above_a_limit_is_released_as_it_was_charged() {
    for algorithm in ALGORITHMS {
        for (reload, left) in [(SOFT, 7), ("", 7), ("throttle = { soft = \"100%\" }", 7)] {
            let before = engine(&limit(algorithm, SOFT));
            assert!(before.decide(&ask("alice", 3), SECOND).unwrap().allowed);
            let reserve = Question {
                reserve: Some("30s".parse().unwrap()),
                ..ask("alice", 11)
            };
            let reserved = before.decide(&reserve, SECOND).unwrap();
            assert_eq!(
                (reserved.allowed, reserved.remaining),
                (true, 0),
                "{algorithm}"
            );
            let engine = reloaded(&before, &limit(algorithm, reload));
            let release = Question {
                release: reserved.reservation,
                ..Question::default()
            };
            let released = engine.decide(&release, SECOND).unwrap();
            assert_eq!(released.remaining, left, "{algorithm}, {reload}");
        }
    }
}

/// The part of its burst that a new key lacks has not passed above the limit.
#[test]
fn refunds_under_a_limit_with_an_initial_allowance_are_whole() {
    for lines in [SOFT, ELASTIC] {
        let engine = engine(&limit(
            "token-bucket",
            &format!("burst = 10\ninitial = 4\n{lines}"),
        ));
        let refund = Question {
            cost: Some(-2),
            ..ask("alice", 0)
        };
        assert_eq!(
            engine.decide(&ask("alice", 2), SECOND).unwrap().remaining,
            2
        );
        assert_eq!(engine.decide(&refund, SECOND).unwrap().remaining, 4);
    }
}

/// Its peek would pass above the limit.
#[test]
fn a_request_that_is_refused_behind_others_is_not_above_the_limit() {
    let engine = engine(&limit("token-bucket", SOFT));
    assert!(engine.decide(&ask("alice", 10), SECOND).unwrap().allowed);
    let charge = engine
        .charge_of(0, [("user", "alice")].into_iter(), None, 1)
        .unwrap();
    let refused = engine.refusal(&charge, Some(2 * SECOND), SECOND);
    assert_eq!((refused.allowed, refused.over), (false, false));
}

#[test]
fn charges_that_are_made_together_count_above_the_limit_only_if_made() {
    let text = format!(
        "{}{}",
        limit("fixed-window", SOFT),
        "[[limit]]\nname = \"other\"\nscope = \"request\"\nkey = [\"tenant\"]\nrate = \"12/h\"\n"
    );
    let engine = engine(&text);
    let charge = |limit: usize, entry: &str| {
        let entries = [(entry, "a")].into_iter();
        engine.charge_of(limit, entries, None, 1).unwrap()
    };
    for nth in 1..=20 {
        let both = [charge(0, "user"), charge(1, "tenant")];
        let outcomes = engine.decide_together(&both, SECOND);
        let all_pass = outcomes.iter().all(|outcome| outcome.allowed);
        assert_eq!(all_pass, nth <= 12, "{nth}");
    }
    assert_eq!(counts(&engine), (12, 0, 2));
}

#[test]
fn use_above_a_limit_survives_a_restart() {
    for algorithm in ALGORITHMS {
        let text = limit(algorithm, SOFT);
        let before = engine(&text);
        assert!(before.decide(&ask("alice", 10), SECOND).unwrap().allowed);
        assert!(before.decide(&ask("alice", 3), SECOND).unwrap().allowed);
        let saved = before.save(SECOND);
        let mut after = engine(&text);
        after.resume(&saved, SECOND, SECOND);
        assert_eq!(passed(&after, "alice"), 2, "{algorithm}");
        assert_eq!(counts(&after).2, 3, "{algorithm}");
    }
}

fn policy(algorithm: Algorithm, count: u64) -> Policy {
    let rate = Rate {
        count,
        per_nanoseconds: 10 * SECOND,
    };
    Policy::new(algorithm, rate, count).unwrap()
}

proptest! {
    /// A limit with a share above it is two hard limits: one that refuses, and one that only counts, up to its count.
    #[test]
    fn a_soft_limit_is_two_limits(
        algorithm in prop::sample::select(Algorithm::ALL.to_vec()),
        count in 1u64..20,
        above in 1u64..20,
        steps in prop::collection::vec((0u64..3 * SECOND, 0u64..8), 1..80),
    ) {
        let (own, wider) = (policy(algorithm, count), policy(algorithm, count + above));
        let soft = Tiers::new(vec![own], vec![wider]);
        let mut words = vec![0; own.words() + wider.words()];
        let (mut of_own, mut of_wider) = (vec![0; own.words()], vec![0; wider.words()]);
        let mut now = SECOND;
        tiers::open(&soft, &mut words, now);
        own.open(&mut of_own, now);
        wider.open(&mut of_wider, now);
        for (pause, cost) in steps {
            now += pause;
            let is_over = !own.conforms(&of_own, now, cost);
            let peeked = tiers::peek(&soft, &words, now, cost);
            let outcome = tiers::decide(&soft, &mut words, now, cost);
            prop_assert_eq!(outcome.allowed, wider.charge(&mut of_wider, now, cost));
            prop_assert_eq!(outcome.over, outcome.allowed && is_over);
            prop_assert_eq!((peeked.allowed, peeked.over), (outcome.allowed, outcome.over));
            if outcome.allowed && !own.charge(&mut of_own, now, cost) {
                let left = own.remaining(&of_own, now);
                own.charge(&mut of_own, now, left);
            }
            let left = own.remaining(&of_own, now);
            let wider_left = wider.remaining(&of_wider, now);
            prop_assert!(left <= wider_left + 1, "{} {}", left, wider_left);
            prop_assert_eq!(outcome.remaining, left.min(wider_left));
        }
    }

    /// Units that passed above the limit are refunded first, so that the limit itself always counts the others.
    #[test]
    fn a_limit_counts_what_did_not_pass_above_it_whatever_is_refunded(
        algorithm in prop::sample::select(Algorithm::ALL.to_vec()),
        steps in prop::collection::vec((any::<bool>(), 1u64..6), 1..60),
    ) {
        let room = Tiers::new(vec![policy(algorithm, 10)], vec![policy(algorithm, 20)]);
        let mut words = vec![0; room.iter().map(Policy::words).sum()];
        tiers::open(&room, &mut words, SECOND);
        let (mut used, mut of_own) = (0u64, 0u64);
        for (is_refund, cost) in steps {
            if is_refund {
                let cost = cost.min(used);
                tiers::refund(&room, &mut words, SECOND, Refund::newest(cost, SECOND), &Charges::default());
                of_own -= cost.saturating_sub(used - of_own);
                used -= cost;
            } else if tiers::charge(&room, &mut words, SECOND, cost) {
                used += cost;
                of_own = (of_own + cost).min(10);
            }
            prop_assert!(used <= 20);
            prop_assert_eq!(tiers::remaining(&room, &words, SECOND), 10 - of_own);
        }
    }
}
