//! Forced charges, refunds and reservations.

use std::sync::atomic::AtomicI64;

use common::limiter::Refund;

use super::*;
use crate::tiers::Charges;

fn limit(algorithm: &str) -> String {
    format!(
        "[[request]]\nname = \"publish\"\ncost = \"10 * messages\"\n\
         [[limit]]\nname = \"credits\"\nscope = \"request\"\nkey = [\"user\"]\nunit = \"credits\"\nrate = \"100/h\"\n\
         algorithm = \"{algorithm}\"\n"
    )
}

fn reserve(cost: u64, time: &str) -> Question {
    Question {
        reserve: Some(time.parse().unwrap()),
        ..ask("alice", cost)
    }
}

fn commit(id: &str, cost: Option<i64>) -> Question {
    Question {
        commit: Some(id.to_owned()),
        cost,
        ..Question::default()
    }
}

fn release(id: &str) -> Question {
    Question {
        release: Some(id.to_owned()),
        ..Question::default()
    }
}

fn force(cost: u64) -> Question {
    Question {
        charge: Some(ChargeMode::Force),
        ..ask("alice", cost)
    }
}

fn remaining(engine: &Engine, now: u64) -> i64 {
    let peek = Question {
        peek: true,
        ..ask("alice", 1)
    };
    engine.decide(&peek, now).unwrap().remaining
}

#[test]
fn a_forced_charge_goes_below_zero_and_later_requests_are_refused() {
    for algorithm in ALGORITHMS {
        let engine = engine(&limit(algorithm));
        let answer = engine.decide(&force(5_000), SECOND).unwrap();
        // A log does not count beyond its instants.
        let left = if algorithm == "sliding-log" {
            0
        } else {
            -4_900
        };
        assert_eq!(
            (answer.allowed, answer.remaining),
            (true, left),
            "{algorithm}"
        );
        let refused = engine.decide(&ask("alice", 1), SECOND).unwrap();
        assert_eq!((refused.allowed, refused.remaining), (false, left));
        // Exactly until the reply promises.
        let wait = (refused.retry_after_seconds.unwrap() * 1e9) as u64;
        let late = SECOND + wait + 1_000;
        assert!(
            !engine
                .decide(&ask("alice", 1), SECOND + wait - 1_000)
                .unwrap()
                .allowed
        );
        assert!(
            engine.decide(&ask("alice", 1), late).unwrap().allowed,
            "{algorithm}"
        );
        // By the definition: the window ends, or each credit of the debt takes 36 s.
        let hours = wait as f64 / 3.6e12;
        let expected = match algorithm {
            "fixed-window" | "sliding-log" => 1.0..1.001,
            // Of the next window, 98 % have to pass, too.
            "sliding-window" => 1.97..1.99,
            _ => 49.0..49.02,
        };
        assert!(expected.contains(&hours), "{algorithm}: {hours} h");
        // Others are not concerned.
        assert!(engine.decide(&ask("bob", 100), SECOND).unwrap().allowed);
    }
}

#[test]
fn a_reservation_is_settled_by_less_by_more_or_returned() {
    for algorithm in ALGORITHMS {
        let engine = engine(&limit(algorithm));
        let reserved = |cost| {
            let answer = engine.decide(&reserve(cost, "30s"), SECOND).unwrap();
            assert!(answer.allowed);
            answer.reservation.unwrap()
        };
        let (less, more, none, same) = (reserved(30), reserved(20), reserved(40), reserved(5));
        assert_eq!(remaining(&engine, SECOND), 5, "{algorithm}");
        let settle = |question: &Question| engine.decide(question, SECOND).unwrap().remaining;
        assert_eq!(settle(&commit(&less, Some(10))), 25, "{algorithm}");
        assert_eq!(settle(&release(&none)), 65, "{algorithm}");
        assert_eq!(settle(&commit(&same, None)), 65, "{algorithm}");
        // A formula gives the cost as well: 40.
        let publish = Question {
            request: Some("publish".to_owned()),
            parameters: BTreeMap::from([("messages".to_owned(), 4.0)]),
            ..commit(&more, None)
        };
        assert_eq!(settle(&publish), 45, "{algorithm}");
        assert_eq!(engine.open_reservations(), 0);
        // What does not conform is not reserved.
        let refused = engine.decide(&reserve(46, "30s"), SECOND).unwrap();
        assert_eq!((refused.allowed, refused.reservation), (false, None));
        assert_eq!(
            (engine.open_reservations(), remaining(&engine, SECOND)),
            (0, 45)
        );
    }
}

/// For work whose use is not known at all beforehand.
#[test]
fn a_commit_of_a_reservation_of_nothing_is_charged() {
    for algorithm in ALGORITHMS {
        let engine = engine(&limit(algorithm));
        let answer = engine.decide(&reserve(0, "30s"), SECOND).unwrap();
        let id = answer.reservation.unwrap();
        let committed = engine.decide(&commit(&id, Some(60)), SECOND).unwrap();
        assert_eq!(committed.remaining, 40, "{algorithm}");
        assert_eq!(remaining(&engine, SECOND), 40, "{algorithm}");
    }
}

#[test]
fn a_cost_has_a_bound() {
    let engine = engine(&limit("token-bucket"));
    for cost in [(1 << 53) + 1, i64::MAX, -(1 << 53) - 1, i64::MIN] {
        let question = Question {
            cost: Some(cost),
            ..ask("alice", 1)
        };
        let error = engine.decide(&question, SECOND).unwrap_err().to_string();
        assert!(error.contains("at most 9007199254740992"), "{error}");
    }
    assert_eq!(remaining(&engine, SECOND), 100);
}

/// A refund is for units of the state of now: those of a window that has ended are no more.
#[test]
fn a_refund_returns_no_more_than_the_whole_and_nothing_of_a_window_that_has_ended() {
    for algorithm in ALGORITHMS {
        let engine = engine(&limit(algorithm));
        let refund = Question {
            cost: Some(-30),
            ..ask("alice", 0)
        };
        assert_eq!(engine.decide(&refund, SECOND).unwrap().remaining, 100);
        assert_eq!(
            engine.limits[0].stores[0].keys(),
            0,
            "no state for a full key"
        );
        engine.decide(&ask("alice", 50), SECOND).unwrap();
        let answer = engine.decide(&refund, SECOND).unwrap();
        assert_eq!(
            (answer.allowed, answer.remaining),
            (true, 80),
            "{algorithm}"
        );
        let counters = &engine.limits[0].counters;
        assert_eq!(counters.passed.load(Ordering::Relaxed), 1);

        let id = engine
            .decide(&reserve(40, "1d"), SECOND)
            .unwrap()
            .reservation;
        let late = 4 * 3_600 * SECOND;
        engine.decide(&ask("alice", 60), late).unwrap();
        let answer = engine.decide(&release(&id.unwrap()), late).unwrap();
        assert_eq!(answer.remaining, 40, "{algorithm}");
    }
}

#[test]
fn an_id_is_used_once_and_cannot_be_guessed() {
    let engine = engine(&limit("fixed-window"));
    let id = || {
        engine
            .decide(&reserve(10, "30s"), SECOND)
            .unwrap()
            .reservation
            .unwrap()
    };
    let (one, other) = (id(), id());
    assert_eq!((one.len(), one == other), (32, false));
    let guesses = [
        "",
        "0",
        "00000000000000000000000000000000",
        &other.to_uppercase(),
        &other[1..],
    ];
    for guess in guesses.iter().filter(|guess| **guess != other) {
        let error = engine.decide(&release(guess), SECOND).unwrap_err();
        assert_eq!(error, DecideError::UnknownReservation((*guess).to_owned()));
    }
    engine.decide(&commit(&one, Some(1)), SECOND).unwrap();
    for again in [commit(&one, Some(0)), release(&one)] {
        let error = engine.decide(&again, SECOND).unwrap_err();
        assert_eq!(error, DecideError::UnknownReservation(one.clone()));
    }
    assert_eq!(remaining(&engine, SECOND), 89);
    // A cost that is invalid leaves it open, and so does an invalid request of the same array.
    for cost in [
        commit(&other, Some(-1)),
        Question {
            request: Some("x".to_owned()),
            ..commit(&other, None)
        },
    ] {
        assert!(engine.decide(&cost, SECOND).is_err());
    }
    let batch = [release(&other), release(&other)];
    assert_eq!(engine.decide_each(&batch, SECOND).unwrap_err().0, 1);
    let batch = [release(&other), ask("alice", 1), ask("alice", 100)];
    let answers = engine.decide_each(&batch, SECOND).unwrap();
    let answers = answers
        .iter()
        .map(|one| (one.answer.allowed, one.answer.remaining));
    assert_eq!(
        answers.collect::<Vec<_>>(),
        [(true, 99), (true, 98), (false, 98)]
    );
}

#[test]
fn one_key_does_not_take_all_reservations() {
    let engine = engine(&format!(
        "[decide]\nhttp = \"127.0.0.1:0\"\nmax_reservations = 4\nmax_reservations_per_key = 2\n{}",
        limit("token-bucket")
    ));
    let of = |user: &str| {
        let question = Question {
            key: [("user".to_owned(), user.to_owned())].into(),
            ..reserve(1, "30s")
        };
        engine.decide(&question, SECOND)
    };
    let first = of("mallory").unwrap().reservation.unwrap();
    of("mallory").unwrap();
    let full = DecideError::ReservationsOfKeyFull { most: 2 };
    assert_eq!(of("mallory").unwrap_err(), full);
    of("alice").unwrap();
    // One that is settled, one that is over, and a refused request make room.
    engine.decide(&release(&first), SECOND).unwrap();
    of("mallory").unwrap();
    engine.expire(40 * SECOND);
    assert_eq!(engine.open_reservations(), 0);
    let refused = Question {
        cost: Some(1_000),
        ..reserve(1, "30s")
    };
    for _ in 0..5 {
        assert!(!engine.decide(&refused, SECOND).unwrap().allowed);
    }
    let status = engine.reservations_status().unwrap();
    assert_eq!((status.open, status.without_room), (0, 1));
}

#[test]
fn a_client_that_may_not_force_commits_at_most_the_reservation() {
    let engine = engine(&limit("token-bucket"));
    let id = engine.decide(&reserve(10, "30s"), SECOND).unwrap();
    let id = id.reservation.unwrap();
    let commit = |cost| Question {
        limit: String::new(),
        key: Default::default(),
        cost: Some(cost),
        commit: Some(id.clone()),
        forces_nothing: true,
        ..Question::default()
    };
    let error = engine.decide(&commit(11), SECOND).unwrap_err();
    assert!(error.to_string().contains("requires root"), "{error}");
    assert_eq!(remaining(&engine, SECOND), 90);
    engine.decide(&commit(4), SECOND).unwrap();
    assert_eq!(remaining(&engine, SECOND), 96);
}

#[test]
fn a_commit_charges_nothing_that_a_limit_that_observes_did_not() {
    let engine = engine(&(limit("token-bucket") + "action = \"observe\"\n"));
    let reserved = engine.decide(&reserve(500, "30s"), SECOND).unwrap();
    assert!(reserved.allowed && reserved.remaining == 100);
    let id = reserved.reservation.unwrap();
    let settled = engine.decide(&commit(&id, Some(500)), SECOND).unwrap();
    assert_eq!(settled.remaining, 100);
    assert_eq!(remaining(&engine, SECOND), 100);
}

/// A bucket of 100 that refills in 100 s.
#[test]
fn a_reservation_that_is_released_late_is_no_second_burst() {
    let engine = engine(&limit("token-bucket").replace("100/h", "100/100s"));
    let question = Question {
        on_expiry: Some(OnExpiry::Release),
        ..reserve(100, "1h")
    };
    let id = engine.decide(&question, SECOND).unwrap().reservation;
    let filled = engine.decide(&ask("alice", 0), SECOND).unwrap();
    let later = SECOND + (filled.reset_after_seconds * 1e9) as u64 + 1;
    assert!(engine.decide(&ask("alice", 100), later).unwrap().allowed);
    engine.decide(&release(&id.unwrap()), later).unwrap();
    assert_eq!(remaining(&engine, later), 0);
}

#[test]
fn a_full_store_of_reservations_is_an_error_that_charges_nothing() {
    let engine = engine(&format!(
        "[decide]\nhttp = \"127.0.0.1:0\"\nmax_reservations = 3\n{}",
        limit("token-bucket")
    ));
    let ids: Vec<_> = (0..3)
        .map(|_| {
            engine
                .decide(&reserve(10, "30s"), SECOND)
                .unwrap()
                .reservation
                .unwrap()
        })
        .collect();
    let full = DecideError::ReservationsFull { most: 3 };
    assert_eq!(engine.decide(&reserve(1, "30s"), SECOND).unwrap_err(), full);
    let batch = [ask("alice", 1), reserve(1, "30s")];
    assert_eq!(
        engine.decide_each(&batch, SECOND).unwrap_err(),
        (1, full.clone())
    );
    assert_eq!(remaining(&engine, SECOND), 70);
    let notes: Vec<String> = engine.notes().collect();
    assert!(
        notes.len() == 1 && notes[0].starts_with("no room for 2 reservations so far"),
        "{notes:?}"
    );
    // Places of a refused and of an invalid request are free again.
    engine.decide(&release(&ids[0]), SECOND).unwrap();
    assert!(!engine.decide(&reserve(90, "30s"), SECOND).unwrap().allowed);
    let invalid = [
        reserve(1, "30s"),
        Question {
            limit: "x".to_owned(),
            ..ask("a", 1)
        },
    ];
    assert_eq!(engine.decide_each(&invalid, SECOND).unwrap_err().0, 1);
    assert!(engine.decide(&reserve(1, "30s"), SECOND).unwrap().allowed);
    assert_eq!(engine.decide(&reserve(1, "30s"), SECOND).unwrap_err(), full);
    // And those whose time is over.
    assert!(
        engine
            .decide(&reserve(1, "30s"), 31 * SECOND)
            .unwrap()
            .allowed
    );
    assert_eq!(engine.open_reservations(), 1);
}

#[test]
fn a_reservation_whose_time_is_over_is_settled_as_its_request_says() {
    for (on_expiry, left) in [
        (None, 60),
        (Some(OnExpiry::Commit), 60),
        (Some(OnExpiry::Release), 100),
    ] {
        let engine = engine(&limit("fixed-window"));
        let question = Question {
            on_expiry,
            ..reserve(40, "30s")
        };
        let id = engine
            .decide(&question, SECOND)
            .unwrap()
            .reservation
            .unwrap();
        assert_eq!(remaining(&engine, 31 * SECOND - 1), 60);
        assert_eq!(remaining(&engine, 31 * SECOND), left, "{on_expiry:?}");
        let error = engine
            .decide(&commit(&id, Some(1)), 31 * SECOND)
            .unwrap_err();
        assert_eq!(error, DecideError::UnknownReservation(id));
    }
}

#[test]
fn fields_that_do_not_go_together_are_an_error() {
    let engine = engine(&limit("token-bucket"));
    let id = "00000000000000000000000000000000";
    let peek = |question| Question {
        peek: true,
        ..question
    };
    let wait = |question| Question {
        wait: "1s".parse().ok(),
        ..question
    };
    let refund = || Question {
        cost: Some(-1),
        ..ask("alice", 0)
    };
    for (question, reason) in [
        (Question::default(), "missing limit"),
        (
            Question {
                release: Some(id.to_owned()),
                ..commit(id, None)
            },
            "commit conflicts with release",
        ),
        (
            Question {
                limit: "credits".to_owned(),
                ..commit(id, None)
            },
            "leave out the other fields",
        ),
        (
            Question {
                cost: Some(3),
                ..release(id)
            },
            "release returns the whole",
        ),
        (
            Question {
                on_expiry: Some(OnExpiry::Release),
                ..ask("alice", 1)
            },
            "on_expiry requires reserve",
        ),
        (peek(reserve(1, "1s")), "peek conflicts with reserve"),
        (peek(force(1)), "peek conflicts with reserve"),
        (peek(refund()), "peek conflicts with reserve"),
        (wait(reserve(1, "1s")), "wait conflicts with reserve"),
        (wait(force(1)), "wait conflicts with reserve"),
        (wait(refund()), "wait conflicts with reserve"),
        (
            Question {
                reserve: "1s".parse().ok(),
                ..force(1)
            },
            "reserve conflicts with charge",
        ),
        (
            Question {
                charge: Some(ChargeMode::Force),
                ..refund()
            },
            "charge conflicts with a negative cost",
        ),
    ] {
        let error = engine.decide(&question, SECOND).unwrap_err().to_string();
        assert!(error.contains(reason), "{question:?}: {error}");
    }
    assert_eq!(remaining(&engine, SECOND), 100);
}

/// Whom no limit concerns has reservations as well, and a limit that observes charges what conforms.
#[test]
fn exempt_clients_and_limits_that_observe_settle_what_was_charged() {
    let exempt = engine(&format!(
        "[agent]\nnever_limit = [\"203.0.113.7\"]\n{}",
        limit("token-bucket")
    ));
    let id = exempt
        .decide(&from("203.0.113.7", reserve(1_000, "30s")), SECOND)
        .unwrap()
        .reservation
        .unwrap();
    assert!(
        exempt
            .decide(&commit(&id, Some(5_000)), SECOND)
            .unwrap()
            .allowed
    );
    assert_eq!(remaining(&exempt, SECOND), 100);

    let observes = engine(&format!("{}action = \"observe\"\n", limit("token-bucket")));
    let id = observes
        .decide(&reserve(90, "30s"), SECOND)
        .unwrap()
        .reservation
        .unwrap();
    let beyond = observes.decide(&reserve(90, "30s"), SECOND).unwrap();
    assert!(beyond.allowed);
    assert_eq!(remaining(&observes, SECOND), 10);
    observes
        .decide(&release(&beyond.reservation.unwrap()), SECOND)
        .unwrap();
    assert_eq!(remaining(&observes, SECOND), 10, "it was not charged");
    observes.decide(&release(&id), SECOND).unwrap();
    assert_eq!(remaining(&observes, SECOND), 100);
}

#[test]
fn a_formula_of_a_commit_has_the_allowance_of_the_class() {
    let engine = engine(&format!(
        "[[class]]\nname = \"payer\"\nsources = [\"198.51.100.0/24\"]\nmultiplier = 5\n{}",
        credits("burst = 100")
    ));
    for (source, left) in [("198.51.100.7", 450), ("192.0.2.1", 90)] {
        let reserve = from(source, reserve(1, "30s"));
        let id = engine
            .decide(&reserve, SECOND)
            .unwrap()
            .reservation
            .unwrap();
        let query = Question {
            request: Some("query".to_owned()),
            ..commit(&id, None)
        };
        assert_eq!(engine.decide(&query, SECOND).unwrap().remaining, left);
    }
}

/// The key's state moves to another store meanwhile.
#[test]
fn a_reservation_survives_a_reload() {
    let config = |most: u64| {
        let text = limit("fixed-window").replace("100/h", &format!("{most}/h"));
        config::parse(Path::new("limits.toml"), &text)
            .unwrap()
            .config
    };
    let before = Engine::new(&config(100), Arc::new(Recorder::default())).unwrap();
    let ids = [40, 30].map(|cost| {
        before
            .decide(&reserve(cost, "30s"), SECOND)
            .unwrap()
            .reservation
            .unwrap()
    });
    let (engine, moves) = before.after(&config(200)).unwrap();
    moves.carry_out(SECOND);
    let at_reload = remaining(&engine, SECOND);
    assert_eq!(
        engine.decide(&release(&ids[0]), SECOND).unwrap().remaining,
        at_reload + 40
    );
    assert_eq!(
        engine
            .decide(&commit(&ids[1], Some(35)), SECOND)
            .unwrap()
            .remaining,
        at_reload + 35
    );
}

/// A key without room shares an allowance: what is returned would be others'.
#[test]
fn a_key_without_room_is_charged_and_given_nothing_back() {
    let engine = engine(&format!(
        "[decide]\nhttp = \"127.0.0.1:0\"\nmax_keys = 1\n{}on_full = \"share\"\n",
        limit("fixed-window")
    ));
    engine.decide(&ask("bob", 1), SECOND).unwrap();
    let id = engine
        .decide(&reserve(40, "30s"), SECOND)
        .unwrap()
        .reservation
        .unwrap();
    assert_eq!(remaining(&engine, SECOND), 60);
    assert_eq!(engine.decide(&release(&id), SECOND).unwrap().remaining, 60);
    assert_eq!(engine.decide(&force(100), SECOND).unwrap().remaining, -40);
    assert!(!engine.decide(&ask("carol", 1), SECOND).unwrap().allowed);
    assert_eq!(engine.decide(&ask("bob", 0), SECOND).unwrap().remaining, 99);
}

/// Threads charge, force, reserve, commit, release and refund one key at one instant, while others look for reservations
/// that are over: each unit is charged and returned once.
#[test]
fn many_threads_settle_each_unit_once() {
    const MOST: i64 = 1_000_000;
    for algorithm in ["token-bucket", "fixed-window", "sliding-window"] {
        let text = format!(
            "[decide]\nhttp = \"127.0.0.1:0\"\nmax_reservations_per_key = 10_000\n{}",
            limit(algorithm).replace("100/h", &format!("{MOST}/h"))
        );
        let engine = engine(&text);
        let net = AtomicI64::new(0);
        // Reservations that any thread may settle, to be found used up by some.
        let open = Mutex::new(Vec::new());
        let settled = AtomicU64::new(0);
        let reserved = AtomicU64::new(0);
        thread::scope(|scope| {
            for thread in 0..4u64 {
                let (engine, net, open, settled, reserved) =
                    (&engine, &net, &open, &settled, &reserved);
                scope.spawn(move || {
                    for turn in 0..1_500u64 {
                        let cost = 1 + (turn * 7 + thread) % 20;
                        match (turn + thread) % 6 {
                            0 => {
                                assert!(
                                    engine.decide(&ask("alice", cost), SECOND).unwrap().allowed
                                );
                                net.fetch_add(cost as i64, Ordering::Relaxed);
                            }
                            1 => {
                                engine.decide(&force(cost), SECOND).unwrap();
                                net.fetch_add(cost as i64, Ordering::Relaxed);
                            }
                            2 | 3 => {
                                let id = engine
                                    .decide(&reserve(cost, "30s"), SECOND)
                                    .unwrap()
                                    .reservation
                                    .unwrap();
                                reserved.fetch_add(1, Ordering::Relaxed);
                                net.fetch_add(cost as i64, Ordering::Relaxed);
                                open.lock().unwrap().push((id, cost));
                            }
                            _ => {
                                // Copied, not taken: two threads may settle one reservation.
                                let found = {
                                    let open = open.lock().unwrap();
                                    let nth = (turn as usize * 13) % open.len().max(1);
                                    open.get(nth).cloned()
                                };
                                let Some((id, cost)) = found else { continue };
                                let used = (turn % 3) * cost / 2 * 2;
                                let question = if used == 0 {
                                    release(&id)
                                } else {
                                    commit(&id, Some(used as i64))
                                };
                                match engine.decide(&question, SECOND) {
                                    Ok(_) => {
                                        settled.fetch_add(1, Ordering::Relaxed);
                                        net.fetch_add(used as i64 - cost as i64, Ordering::Relaxed);
                                    }
                                    Err(error) => {
                                        assert_eq!(error, DecideError::UnknownReservation(id));
                                    }
                                }
                            }
                        }
                        engine.expire(SECOND + turn % 2);
                    }
                });
            }
        });
        let (settled, reserved) = (settled.into_inner(), reserved.into_inner());
        assert!(settled > 100, "{settled}");
        assert_eq!(
            engine.open_reservations() as u64,
            reserved - settled,
            "{algorithm}"
        );
        assert_eq!(
            remaining(&engine, SECOND),
            MOST - net.into_inner(),
            "{algorithm}"
        );
    }
}

/// Hosts exchange the use of a key: a forced charge is published as any other, and every host refuses. What the others
/// have received stays charged there.
#[test]
fn forced_charges_of_exchanged_keys_are_published_and_refunds_before_it_are_not() {
    let rate = Rate {
        count: 100,
        per_nanoseconds: 3_600 * SECOND,
    };
    let now = 1_790_000_000 * SECOND;
    let key = Fingerprint::of_word(7);
    for algorithm in Algorithm::ALL {
        let store = || {
            let policy = Policy::new(*algorithm, rate, 100).unwrap();
            StateStore::new(vec![policy], 100, OnFull::Throttle).keyed(Duration::from_millis(100))
        };
        let (one, other) = (store(), store());
        assert!(one.decide(key, now, 20).allowed && other.decide(key, now, 10).allowed);
        // Units that are returned before the exchange were never used.
        one.refund(
            key,
            now,
            Refund {
                at: now,
                charged: 20,
                used: 5,
                ends: None,
            },
            &Charges::default(),
        );
        assert_eq!(
            one.force(key, now, 200).debt,
            if algorithm.has_ring() { 0 } else { 105 }
        );
        let cuts = one.cut(now, 1.0);
        assert_eq!(
            cuts.iter().map(|cut| cut.spent).collect::<Vec<_>>(),
            [205],
            "{algorithm}"
        );
        let peers = PeerConsumption::new(1.0, 0);
        other.adjust(
            &Adjustment {
                charge: cuts[0].spent,
                is_parted: false,
                ..Adjustment::parted(7, peers)
            },
            now,
        );
        assert!(!other.decide(key, now, 1).allowed, "{algorithm}");
        assert_eq!(
            other.peek(key, now, 1).debt,
            if algorithm.has_ring() { 0 } else { 115 }
        );
        // The other host returns its own; it is still beyond the limit.
        let outcome = other.refund(key, now, Refund::newest(10, now), &Charges::default());
        assert!(
            !other.decide(key, now, 1).allowed,
            "{algorithm}: {outcome:?}"
        );
    }
}

/// A host of a shared limit is charged by its own share: others go on with theirs.
#[test]
fn a_forced_charge_under_a_share_is_this_hosts() {
    let rate = Rate {
        count: 100,
        per_nanoseconds: 100 * SECOND,
    };
    let key = Fingerprint::of_word(7);
    let store = || {
        let store =
            StateStore::new(vec![Policy::token_bucket(rate, 100)], 100, OnFull::Throttle).shared();
        store.set_share(common::share::Share::one_of(2));
        store
    };
    let (one, other) = (store(), store());
    one.force(key, SECOND, 150);
    assert_eq!(one.peek(key, SECOND, 1).debt, 100);
    // Half of the rate: 100 units and the next one take 202 s.
    let wait = one.peek(key, SECOND, 1).retry_after.unwrap();
    assert!((wait.as_secs_f64() - 202.0).abs() < 0.01, "{wait:?}");
    assert!(other.decide(key, SECOND, 50).allowed);
    assert!(!other.decide(key, SECOND, 1).allowed);
}

/// 10 a day become 20: 10 more at once. 10 become 5: whoever used more is refused at once.
#[test]
fn a_raised_limit_gives_the_difference_at_once_and_a_lowered_one_refuses() {
    for algorithm in ALGORITHMS {
        let config = |most: u64| {
            let text = limit(algorithm).replace("100/h", &format!("{most}/day"));
            config::parse(Path::new("limits.toml"), &text)
                .unwrap()
                .config
        };
        let reload = |engine: &Engine, most: u64| {
            let (next, moves) = engine.after(&config(most)).unwrap();
            moves.carry_out(SECOND);
            next
        };
        let engine = Engine::new(&config(10), Arc::new(Recorder::default())).unwrap();
        assert!(engine.decide(&ask("alice", 10), SECOND).unwrap().allowed);
        assert!(engine.decide(&ask("bob", 3), SECOND).unwrap().allowed);
        let engine = reload(&engine, 20);
        assert_eq!(remaining(&engine, SECOND), 10, "{algorithm}");
        assert!(engine.decide(&ask("alice", 8), SECOND).unwrap().allowed);
        let engine = reload(&engine, 15);
        // 18 of 15. A log keeps the newest 15.
        let left = if algorithm == "sliding-log" { 0 } else { -3 };
        let refused = engine.decide(&ask("alice", 1), SECOND).unwrap();
        assert_eq!(
            (refused.allowed, refused.remaining),
            (false, left),
            "{algorithm}"
        );
        let bob = engine.decide(&ask("bob", 0), SECOND).unwrap();
        assert_eq!(bob.remaining, 12, "{algorithm}");
        let engine = reload(&engine, 30);
        let left = if algorithm == "sliding-log" { 15 } else { 12 };
        assert_eq!(remaining(&engine, SECOND), left, "{algorithm}");
    }
}
