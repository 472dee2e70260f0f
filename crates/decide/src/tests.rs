mod calendar;
mod exchange;
mod memory;
mod overflow;
mod resets;
mod settling;
mod throttle;
mod values;

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use api::event::EventKind;
use common::limiter::{Algorithm, Rate};
use common::rate_limiter::Policy;
use config::policy::OnFull;

use super::*;

const SECOND: u64 = 1_000_000_000;

/// An edge that records its requests.
#[derive(Default)]
struct Recorder(Mutex<Vec<Offence>>);

impl Edge for Recorder {
    fn escalate(&self, offence: Offence) {
        self.0.lock().unwrap().push(offence);
    }
}

impl Recorder {
    fn bans(&self) -> Vec<String> {
        let bans = self.0.lock().unwrap();
        bans.iter()
            .map(|ban| format!("{} {}s", ban.prefix, ban.escalate.ban / SECOND))
            .collect()
    }
}

const ALGORITHMS: [&str; 5] = [
    "token-bucket",
    "leaky-bucket",
    "fixed-window",
    "sliding-window",
    "sliding-log",
];

fn engine_at(text: &str, edge: Arc<dyn Edge>) -> Engine {
    let loaded =
        config::parse(Path::new("limits.toml"), text).unwrap_or_else(|report| panic!("{report}"));
    Engine::new(&loaded.config, edge).unwrap()
}

pub fn engine(text: &str) -> Engine {
    engine_at(text, Arc::new(Recorder::default()))
}

/// A limit on a user's credits, with more lines.
fn credits(lines: &str) -> String {
    format!(
        "[[request]]\nname = \"publish\"\ncost = \"100 * messages\"\n[[request]]\nname = \"query\"\ncost = \"allowance / 10\"\n\
         [[limit]]\nname = \"credits\"\nscope = \"request\"\nkey = [\"user\"]\nunit = \"credits\"\nrate = \"600/min\"\n{lines}\n"
    )
}

#[test]
fn a_reply_names_the_tier_that_decides() {
    let engine = engine(&credits("burst = 600\ntiers = [\"50/h\", \"700/d\"]"));
    let decide = |cost, now| {
        let answer = engine.decide(&ask("alice", cost), now).unwrap();
        (answer.allowed, answer.tier)
    };
    assert_eq!(decide(20, SECOND), (true, 1));
    assert_eq!(decide(40, SECOND), (false, 1));
    // Two tiers never pass it: the one with fewer units left decides.
    assert_eq!(decide(620, SECOND), (false, 1));
    assert_eq!(decide(60, SECOND), (false, 1));
    assert_eq!(decide(30, SECOND), (true, 1));
    // Refused by each for a time: the hour's is the longest.
    assert_eq!(decide(0, SECOND), (true, 1));
    assert_eq!(decide(1, SECOND), (false, 1));
    // The header is of the deciding tier alone.
    let answer = engine.decide(&ask("bob", 2), SECOND).unwrap();
    assert_eq!((answer.tier, answer.tier_remaining), (1, 48));
    let day = engine.decide(&ask("bob", 0), SECOND).unwrap();
    assert!((answer.tier_reset_after_seconds - 144.0).abs() < 1.0);
    assert!(day.reset_after_seconds > 200.0, "of the day's tier");
}

fn ask(user: &str, cost: u64) -> Question {
    Question {
        limit: "credits".to_owned(),
        key: BTreeMap::from([("user".to_owned(), user.to_owned())]),
        cost: Some(cost as i64),
        ..Question::default()
    }
}

fn from(source: &str, question: Question) -> Question {
    Question {
        source: Some(source.parse().unwrap()),
        ..question
    }
}

fn bucket(count: u64, burst: u64) -> Vec<Policy> {
    vec![Policy::token_bucket(Rate::per_second(count), burst)]
}

#[test]
fn many_threads_on_one_key_get_exactly_the_burst() {
    let rate = Rate {
        count: 1_000,
        per_nanoseconds: 3_600 * SECOND,
    };
    let of_each = Algorithm::ALL
        .iter()
        .map(|algorithm| vec![Policy::new(*algorithm, rate, 1_000).unwrap()]);
    let both = vec![
        Policy::token_bucket(rate, 1_000),
        Policy::sliding_log(rate).unwrap(),
    ];
    for tiers in of_each.chain([both]) {
        let store = StateStore::new(tiers, 100_000, OnFull::Throttle);
        let fingerprints = Fingerprints::under([1, 2]);
        let passed: [AtomicU64; 7] = Default::default();
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for turn in 0..3_500u64 {
                        let key = turn % 7;
                        if store.allowed(fingerprints.of(&key), SECOND, 1 + turn % 3) {
                            passed[key as usize].fetch_add(1 + turn % 3, Ordering::Relaxed);
                        }
                    }
                });
            }
        });
        for passed in &passed {
            // Costs are up to 3: the rest may be too little for the next.
            let passed = passed.load(Ordering::Relaxed);
            assert!((998..=1_000).contains(&passed), "{passed}");
        }
        assert_eq!(store.keys(), 7);
    }
}

#[test]
fn a_request_costs_the_value_of_its_formula() {
    let engine = engine(&credits("burst = 1000"));
    let request = |name: &str, parameters: &[(&str, f64)]| Question {
        request: Some(name.to_owned()),
        parameters: parameters
            .iter()
            .map(|(name, value)| ((*name).to_owned(), *value))
            .collect(),
        cost: None,
        ..ask("alice", 0)
    };
    let remaining = || {
        engine
            .decide(
                &Question {
                    peek: true,
                    ..ask("alice", 1)
                },
                SECOND,
            )
            .unwrap()
            .remaining
    };
    assert_eq!(
        engine
            .decide(&request("publish", &[("messages", 3.0)]), SECOND)
            .unwrap()
            .remaining,
        700
    );
    assert_eq!(
        engine
            .decide(&request("query", &[]), SECOND)
            .unwrap()
            .remaining,
        600
    );
    for (question, reason) in [
        (
            request("publish", &[]),
            "requires the parameter \"messages\"",
        ),
        (request("publish", &[("messages", -1.0)]), "negative"),
        (
            request("publish", &[("messages", 1e300)]),
            "above the largest cost",
        ),
        (
            request("publish", &[("messages", 1.0), ("x", 1.0)]),
            "no parameter \"x\"",
        ),
        (request("publsh", &[]), "did you mean \"publish\"?"),
        (
            Question {
                cost: Some(1),
                ..request("query", &[])
            },
            "request conflicts with cost",
        ),
        (
            Question {
                request: None,
                ..request("query", &[("x", 1.0)])
            },
            "parameters requires request",
        ),
        (
            Question {
                limit: "credit".to_owned(),
                ..ask("alice", 1)
            },
            "did you mean \"credits\"?",
        ),
        (
            Question {
                key: BTreeMap::new(),
                ..ask("alice", 1)
            },
            "missing entry \"user\"",
        ),
        (
            Question {
                key: [("user", "a"), ("ip", "b")]
                    .map(|(k, v)| (k.into(), v.into()))
                    .into(),
                ..ask("", 1)
            },
            "unknown entry \"ip\"",
        ),
        (
            Question {
                key: [("user", "a"), ("source", "b")]
                    .map(|(k, v)| (k.into(), v.into()))
                    .into(),
                ..ask("", 1)
            },
            "invalid source",
        ),
    ] {
        let error = engine.decide(&question, SECOND).unwrap_err().to_string();
        assert!(error.contains(reason), "{question:?}: {error}");
        let batch = [ask("alice", 1), question];
        assert_eq!(engine.decide_each(&batch, SECOND).unwrap_err().0, 1);
    }
    assert_eq!(remaining(), 600);
    let never = engine.decide(&ask("alice", 1_001), SECOND).unwrap();
    assert_eq!((never.allowed, never.retry_after_seconds), (false, None));
    let late = engine.decide(&ask("alice", 601), SECOND).unwrap();
    assert_eq!(
        (late.allowed, late.remaining, late.retry_after_seconds),
        (false, 600, Some(0.1))
    );
    assert_eq!(late.reset_after_seconds, 40.0);
}

#[test]
fn credits_begin_with_the_initial_ones_and_come_in_steps() {
    let engine = engine(&credits("burst = 100\ninitial = 30\nrefill_every = \"1s\""));
    let spent = engine.decide(&ask("alice", 30), 5 * SECOND + 1).unwrap();
    assert_eq!((spent.allowed, spent.remaining), (true, 0));
    let early = engine.decide(&ask("alice", 1), 6 * SECOND - 1).unwrap();
    assert!(!early.allowed && (early.retry_after_seconds.unwrap() - 1e-9).abs() < 1e-12);
    assert_eq!(
        engine
            .decide(&ask("alice", 0), 6 * SECOND)
            .unwrap()
            .remaining,
        10
    );
    assert_eq!(
        engine
            .decide(&ask("alice", 0), 60 * SECOND)
            .unwrap()
            .remaining,
        100
    );
    assert_eq!(
        engine
            .decide(&ask("bob", 0), 60 * SECOND)
            .unwrap()
            .remaining,
        30
    );
}

#[test]
fn a_source_gives_its_class() {
    let engine = engine(&format!(
        "[agent]\nnever_limit = [\"203.0.113.7\"]\n\
         [[class]]\nname = \"payer\"\nsources = [\"198.51.100.0/24\", \"2001:db8:1::/48\"]\nmultiplier = 5\n\
         [[class]]\nname = \"slow\"\nsources = [\"198.51.100.64/26\"]\nmultiplier = 0.5\n\
         [[class]]\nname = \"node\"\nsources = [\"203.0.113.0/28\"]\nunlimited = true\n{}",
        credits("burst = 100")
    ));
    for (source, most) in [
        ("192.0.2.1", 100),
        ("198.51.100.1", 500),
        ("::ffff:198.51.100.2", 500),
        ("2001:db8:1::7", 500),
        ("198.51.100.65", 50),
    ] {
        let outcome = engine
            .decide(&from(source, ask(source, most)), SECOND)
            .unwrap();
        assert!(
            outcome.allowed && outcome.remaining == 0,
            "{source}: {outcome:?}"
        );
        assert!(
            !engine
                .decide(&from(source, ask(source, 1)), SECOND)
                .unwrap()
                .allowed,
            "{source}"
        );
    }
    for free in ["203.0.113.1", "203.0.113.7"] {
        for _ in 0..3 {
            assert!(
                engine
                    .decide(&from(free, ask("x", 1_000)), SECOND)
                    .unwrap()
                    .allowed,
                "{free}"
            );
        }
    }
    // The formula's allowance is that of the class.
    let query = Question {
        request: Some("query".to_owned()),
        cost: None,
        ..from("198.51.100.9", ask("q", 0))
    };
    assert_eq!(engine.decide(&query, SECOND).unwrap().remaining, 450);
}

#[test]
fn a_key_by_source_takes_the_prefix() {
    let engine = engine(
        "[[limit]]\nname = \"credits\"\nscope = \"request\"\nkey = [\"source\", \"path\"]\nrate = \"5/min\"\nipv4_prefix = 24\n",
    );
    let ask = |source: &str, path: &str| Question {
        limit: "credits".to_owned(),
        key: BTreeMap::from([("path".to_owned(), path.to_owned())]),
        source: source.parse().ok(),
        ..Question::default()
    };
    let remaining = |source, path| engine.decide(&ask(source, path), SECOND).unwrap().remaining;
    assert_eq!(
        (
            remaining("192.0.2.1", "/a"),
            remaining("192.0.2.200", "/a"),
            remaining("192.0.3.1", "/a")
        ),
        (4, 3, 4)
    );
    assert_eq!(
        (
            remaining("192.0.2.1", "/b"),
            remaining("2001:db8::1", "/a"),
            remaining("2001:db8::2", "/a")
        ),
        (4, 4, 3)
    );
    let without = engine
        .decide(
            &Question {
                source: None,
                ..ask("192.0.2.1", "/a")
            },
            SECOND,
        )
        .unwrap_err();
    assert!(
        without.to_string().contains("client's address"),
        "{without}"
    );
    // The address may be in the key, too.
    let mut inside = ask("192.0.2.9", "/a");
    inside.key.insert(
        "source".to_owned(),
        inside.source.take().unwrap().to_string(),
    );
    assert_eq!(engine.decide(&inside, SECOND).unwrap().remaining, 2);
}

/// Limits on paths: on each path, one that replaces it for logins, and one on logins of a network.
const PATHS: &str = "[[limit]]\nname = \"paths\"\nscope = \"request\"\nkey = [\"path\"]\nrate = \"100/h\"\n\
     [[limit]]\nname = \"login\"\nscope = \"request\"\nkey = [\"path=/login\"]\nrate = \"5/h\"\nreplaces = \"paths\"\n\
     [[limit]]\nname = \"all\"\nscope = \"request\"\nkey = [\"path=/login\"]\nrate = \"50/h\"\n\
     [[limit]]\nname = \"net\"\nscope = \"request\"\nkey = [\"source=192.0.2.7\", \"path\"]\nrate = \"3/h\"\nipv4_prefix = 24\n";

#[test]
fn an_entrys_value_has_a_limit_of_its_own_beside_or_in_place_of_the_general_one() {
    let engine = engine(PATHS);
    let limits = |entries: &'static [(&'static str, &'static str)]| {
        let found = engine.limits_of("envoy", || entries.iter().copied());
        found
            .into_iter()
            .map(|nth| engine.limit(nth).name.as_str())
            .collect::<Vec<_>>()
    };
    assert_eq!(limits(&[("path", "/")]), ["paths"]);
    assert_eq!(limits(&[("path", "/login")]), ["login", "all"]);
    assert_eq!(
        limits(&[("path", "/login"), ("source", "192.0.2.200")]),
        ["net"]
    );
    assert_eq!(
        limits(&[("path", "/login"), ("source", "::ffff:192.0.2.200")]),
        ["net"]
    );
    assert_eq!(
        limits(&[("path", "/login"), ("source", "192.0.3.7")]),
        [""; 0]
    );
    assert_eq!(limits(&[("path", "/login"), ("source", "web")]), [""; 0]);

    let ask = |limit: &str, key: &[(&str, &str)]| {
        let key = key
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        let answer = engine.decide(
            &Question {
                limit: limit.to_owned(),
                key,
                ..Question::default()
            },
            SECOND,
        );
        answer
            .map(|answer| (answer.limit, answer.remaining))
            .map_err(|error| error.to_string())
    };
    let is = |limit: &str, remaining| Ok((limit.to_owned(), remaining));
    assert_eq!(ask("paths", &[("path", "/")]), is("paths", 99));
    // The limit that replaces it replies under its own name, and its fixed value may be omitted.
    assert_eq!(ask("paths", &[("path", "/login")]), is("login", 4));
    assert_eq!(ask("login", &[]), is("login", 3));
    assert_eq!(ask("all", &[("path", "/login")]), is("all", 49));
    assert_eq!(
        ask("net", &[("path", "/a"), ("remote_address", "192.0.2.1")]),
        is("net", 2)
    );
    assert_eq!(ask("net", &[("path", "/a")]), is("net", 1));
    let error = ask("login", &[("path", "/logout")]).unwrap_err();
    assert!(
        error.contains("path=/login only") && error.contains("/logout"),
        "{error}"
    );
    let error = ask("net", &[("path", "/a"), ("source", "10.0.0.1")]).unwrap_err();
    assert!(error.contains("source=192.0.2.7 only"), "{error}");
    let error = ask(
        "net",
        &[
            ("path", "/a"),
            ("source", "192.0.2.1"),
            ("remote_address", "192.0.2.2"),
        ],
    )
    .unwrap_err();
    assert!(error.contains("192.0.2.2"), "{error}");
}

#[test]
fn limits_replace_each_other_one_after_another() {
    let text = PATHS.replace(
        "name = \"all\"\nscope = \"request\"\nkey = [\"path=/login\"]",
        "name = \"shop\"\nscope = \"request\"\nkey = [\"path=/login\"]\ndomain = \"shop\"\nreplaces = \"login\"",
    );
    let engine = engine(&text);
    let limits = |domain| engine.limits_of(domain, || [("path", "/login")].into_iter());
    assert_eq!((limits("envoy"), limits("shop")), (vec![1], vec![2]));
    // A question has no domain.
    let key = BTreeMap::from([("path".to_owned(), "/login".to_owned())]);
    let answer = engine.decide(
        &Question {
            limit: "paths".to_owned(),
            key,
            ..Question::default()
        },
        SECOND,
    );
    assert_eq!(answer.unwrap().limit, "login");
}

#[test]
fn observing_refuses_nothing_and_counts() {
    for text in [
        credits("burst = 2\naction = \"observe\""),
        format!("[agent]\nmode = \"observe\"\n{}", credits("burst = 2")),
    ] {
        let engine = engine(&text);
        for _ in 0..5 {
            assert!(engine.decide(&ask("alice", 1), SECOND).unwrap().allowed);
        }
        let counters = &engine.limits[0].counters;
        let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        assert_eq!(
            (
                of(&counters.passed),
                of(&counters.would_refuse),
                of(&counters.refused)
            ),
            (2, 3, 0)
        );
    }
}

#[test]
fn a_source_refused_often_is_banned_once_unless_it_is_exempt() {
    let text = format!(
        "[agent]\ninterfaces = [\"eth0\"]\nnever_limit = [\"203.0.113.7\"]\n{}",
        credits(
            "burst = 1\nrate = \"1/h\"\nescalate = { after = 20, within = \"1m\", ban = \"5m\" }"
        )
        .replace("rate = \"600/min\"\n", "")
    );
    let edge = Arc::new(Recorder::default());
    let engine = engine_at(&text, edge.clone());
    let refuse =
        |source: &str, now: u64| engine.decide(&from(source, ask("alice", 2)), now).unwrap();
    for _ in 0..19 {
        assert!(!refuse("192.0.2.1", SECOND).allowed);
    }
    // Peeks do not count, nor do questions of who may not ban, other sources' refusals, nor refusals without an address.
    let of_victim = || from("192.0.2.1", ask("alice", 2));
    for question in [
        Question {
            peek: true,
            ..of_victim()
        },
        Question {
            bans_nobody: true,
            ..of_victim()
        },
    ] {
        assert!(!engine.decide(&question, SECOND).unwrap().allowed);
    }
    refuse("192.0.2.2", SECOND);
    engine.decide(&ask("alice", 2), SECOND).unwrap();
    assert_eq!(edge.bans(), [""; 0]);
    refuse("192.0.2.1", SECOND);
    assert_eq!(edge.bans(), ["192.0.2.1 300s"]);
    // An IPv6 client with other addresses of its network is the same source.
    for host in 0..20 {
        refuse(&format!("2001:db8::{host:x}"), SECOND);
    }
    assert_eq!(edge.bans()[1..], ["2001:db8::/64 300s"]);
    // 19 in a minute, repeatedly, stays below 20.
    for refusal in 0..60 {
        refuse("192.0.2.3", (refusal / 19) * 61 * SECOND + SECOND);
    }
    for _ in 0..40 {
        assert!(refuse("203.0.113.7", SECOND).allowed);
    }
    assert_eq!(edge.bans().len(), 2);
}

#[test]
fn an_agent_that_observes_finds_offences_and_a_limit_that_observes_none() {
    let limit =
        "burst = 1\nrate = \"1/h\"\nescalate = { after = 5, within = \"1m\", ban = \"5m\" }\n";
    for (agent, lines, bans) in [
        ("mode = \"observe\"", "", 1),
        ("", "action = \"observe\"", 0),
    ] {
        let limit = credits(&format!("{limit}{lines}")).replace("rate = \"600/min\"\n", "");
        let edge = Arc::new(Recorder::default());
        let engine = engine_at(
            &format!("[agent]\ninterfaces = [\"eth0\"]\n{agent}\n{limit}"),
            edge.clone(),
        );
        for _ in 0..9 {
            assert!(
                engine
                    .decide(&from("192.0.2.1", ask("alice", 1)), SECOND)
                    .unwrap()
                    .allowed
            );
        }
        assert_eq!(edge.bans().len(), bans, "{agent}{lines}");
    }
}

#[test]
fn charges_that_belong_together_are_made_all_or_not_at_all() {
    let text = "[[limit]]\nname = \"a\"\nscope = \"request\"\nkey = [\"user\"]\nrate = \"10/h\"\n\
                [[limit]]\nname = \"b\"\nscope = \"request\"\nkey = [\"team\"]\nrate = \"15/h\"\n";
    let engine = engine(text);
    let charge = |limit: usize, value: &'static str, cost| {
        let entry = if limit == 0 { "user" } else { "team" };
        engine
            .charge_of(limit, [(entry, value)].into_iter(), None, cost)
            .unwrap()
    };
    let remaining =
        |limit, value| engine.decide_together(&[charge(limit, value, 0)], SECOND)[0].remaining;
    let all = |charges: &[charge::Charge]| engine.decide_together(charges, SECOND);
    assert!(
        all(&[charge(0, "alice", 8), charge(1, "red", 8)])
            .iter()
            .all(|outcome| outcome.allowed)
    );
    let refused = all(&[charge(1, "red", 5), charge(0, "alice", 5)]);
    assert_eq!(
        (refused[0].allowed, refused[0].remaining, refused[1].allowed),
        (true, 7, false)
    );
    assert_eq!((remaining(0, "alice"), remaining(1, "red")), (2, 7));
    // A key that occurs twice is charged twice or not at all.
    assert!(!all(&[charge(0, "alice", 1), charge(0, "alice", 2)])[1].allowed);
    assert_eq!(remaining(0, "alice"), 2);
    assert!(all(&[charge(0, "alice", 1), charge(0, "alice", 1)])[1].allowed);
    assert_eq!(remaining(0, "alice"), 0);
}

#[test]
fn threads_that_take_the_same_keys_in_other_orders_do_not_wait_for_each_other() {
    let text = "[[limit]]\nname = \"a\"\nscope = \"request\"\nkey = [\"user\"]\nrate = \"4000/h\"\n\
                [[limit]]\nname = \"b\"\nscope = \"request\"\nkey = [\"user\"]\nrate = \"3000/h\"\n";
    let engine = engine(text);
    let passed = AtomicU64::new(0);
    thread::scope(|scope| {
        for turned in [false, true, false, true] {
            let (engine, passed) = (&engine, &passed);
            scope.spawn(move || {
                for turn in 0..2_000u32 {
                    let user = if turn % 2 == 0 { "alice" } else { "bob" };
                    let mut charges: Vec<_> = (0..2)
                        .map(|limit| {
                            engine
                                .charge_of(limit, [("user", user)].into_iter(), None, 1)
                                .unwrap()
                        })
                        .collect();
                    if turned {
                        charges.reverse();
                    }
                    if engine
                        .decide_together(&charges, SECOND)
                        .iter()
                        .all(|outcome| outcome.allowed)
                    {
                        passed.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    assert_eq!(passed.load(Ordering::Relaxed), 6_000);
    for user in ["alice", "bob"] {
        let left = engine
            .charge_of(0, [("user", user)].into_iter(), None, 0)
            .unwrap();
        assert_eq!(engine.decide_together(&[left], SECOND)[0].remaining, 1_000);
    }
}

#[test]
fn resetting_a_limit_forgets_every_key() {
    let engine = engine(&credits("burst = 1"));
    engine.decide(&ask("alice", 1), SECOND).unwrap();
    engine.decide(&ask("bob", 1), SECOND).unwrap();
    assert_eq!(
        (engine.reset("credits"), engine.reset("other")),
        (Ok(Some(2)), Ok(None))
    );
    assert!(engine.decide(&ask("alice", 1), SECOND).unwrap().allowed);
}

#[test]
fn resetting_a_source_forgets_its_limits_by_address_alone() {
    let limit = |name: &str, key: &str| {
        format!(
            "[[limit]]\nname = {name:?}\nscope = \"request\"\nkey = {key}\nrate = \"1/h\"\nburst = 1\nipv4_prefix = 24\n"
        )
    };
    let engine = engine(
        &[
            limit("address", "[\"source\"]"),
            limit("both", "[\"source\", \"user\"]"),
        ]
        .concat(),
    );
    let ask = |name: &str, source: &str| {
        let mut question = Question {
            limit: name.to_owned(),
            ..ask("alice", 1)
        };
        if name == "address" {
            question.key.clear();
        }
        let answer = engine.decide(&from(source, question), SECOND);
        answer.unwrap().allowed
    };
    let (first, same, other) = ("192.0.2.1", "192.0.2.9", "198.51.100.1");
    for (name, source) in [("address", first), ("address", other), ("both", first)] {
        assert!(ask(name, source) && !ask(name, source), "{name} {source}");
    }
    let prefix = |text: &str| config::prefix::parse(text).unwrap_or_else(|_| panic!("{text}"));
    let reset = |text: &str, only| engine.reset_sources(&prefix(text), only).unwrap();
    let others = vec!["both".to_owned()];
    assert_eq!(reset("::ffff:192.0.2.9", None), (Some(1), others.clone()));
    assert_eq!(reset(same, None), (Some(0), others.clone()));
    let only = |limit| reset(same, Some(limit));
    assert_eq!(only("address"), (Some(0), Vec::new()));
    assert_eq!(only("both"), (None, others.clone()));
    assert_eq!(only("of packets"), (None, Vec::new()));
    assert!(ask("address", first) && !ask("address", first));
    assert!(!ask("address", other) && !ask("both", first));
    // Keys are /24: of two in a /23, one has a state.
    assert_eq!(reset("192.0.2.0/23", None), (Some(1), others));
    assert!(ask("address", first) && !ask("address", other));
    let check = |text, only| engine.check_reset(&prefix(text), only);
    assert_eq!(check("128.0.0.0/8", None), Ok(()));
    let found = check("128.0.0.0/7", Some("address")).unwrap_err();
    let too_wide = ResetError::TooWide {
        limit: "address".to_owned(),
        keys: 1 << 17,
    };
    assert_eq!(found, too_wide);
    assert_eq!(check("128.0.0.0/7", Some("of packets")), Ok(()));
}

#[test]
fn an_address_is_the_same_however_it_is_written() {
    let question: Question = serde_json::from_str(
        "{\"limit\":\"credits\",\"key\":{\"user\":\"a\"},\"source\":\"::ffff:192.0.2.1\"}",
    )
    .unwrap();
    assert_eq!(question.source, "::ffff:192.0.2.1".parse::<IpAddr>().ok());
    let wrong = [
        "{\"limit\":1}",
        "{\"limit\":\"a\",\"cost\":1e30}",
        "{\"limit\":\"a\",\"reserve\":\"0s\"}",
        "{\"limit\":\"a\",\"reserve\":\"2d\"}",
        "{\"limit\":\"a\",\"charge\":\"gently\"}",
        "{\"limit\":\"a\",\"costs\":1}",
    ];
    for text in wrong {
        assert!(serde_json::from_str::<Question>(text).is_err(), "{text}");
    }
}

#[test]
fn a_full_store_is_a_note_an_event_and_a_count_over_reloads() {
    let text = |more: &str| {
        format!(
            "[decide]\nmax_keys = 1000\n[[limit]]\nname = \"logins\"\nscope = \"request\"\nkey = [\"user\"]\nrate = \"5/h\"\n{more}"
        )
    };
    let before = engine_at(&text("on_full = \"pass\"\n"), Arc::new(Recorder::default()));
    let ask = |engine: &Engine, user: usize| {
        let question = Question {
            limit: "logins".to_owned(),
            ..ask(&user.to_string(), 1)
        };
        engine.decide(&question, SECOND).unwrap()
    };
    let mut full = FullStores::default();
    (0..800).for_each(|user| drop(ask(&before, user)));
    assert_eq!(
        (before.notes().count(), full.events(&before, SECOND)),
        (0, vec![])
    );
    (800..2_000).for_each(|user| drop(ask(&before, user)));
    let without_room = before.statuses()[0].without_room.unwrap();
    assert!((900..=1_200).contains(&without_room), "{without_room}");
    let note = before.notes().next().unwrap();
    assert!(
        note.contains("pass without a limit") && note.contains("raise [decide] max_keys"),
        "{note}"
    );
    let events = full.events(&before, SECOND);
    assert_eq!((events.len(), events[0].count), (1, without_room));
    assert_eq!(events[0].verdict, EventKind::KeysFull);
    // One event, while it goes on; and a new one after a minute of quiet.
    ask(&before, 5_000);
    assert_eq!(full.events(&before, 30 * SECOND), []);
    ask(&before, 5_001);
    assert_eq!(full.events(&before, 89 * SECOND), []);
    ask(&before, 5_002);
    assert_eq!(full.events(&before, 150 * SECOND).len(), 1);
    before.reset_counters();
    assert_eq!(before.statuses()[0].without_room, Some(0));
    ask(&before, 5_003);
    assert_eq!(full.events(&before, 250 * SECOND)[0].count, 1);
}

/// Reloads configs while threads decide: no charge is lost.
#[test]
fn charges_during_a_reload_stay_charged() {
    for limit in [
        "rate = \"600/h\"\nburst = 600",
        "algorithm = \"sliding-log\"\nrate = \"600/h\"",
    ] {
        let config = |keys: u64| {
            let text = format!(
                "[decide]\nmax_keys = {keys}\n[[limit]]\nname = \"credits\"\nscope = \"request\"\nkey = [\"user\"]\n{limit}\n\
                 [[limit]]\nname = \"other\"\nscope = \"request\"\nkey = [\"user\"]\nrate = \"1000000/h\"\n"
            );
            config::parse(Path::new("limits.toml"), &text)
                .unwrap_or_else(|report| panic!("{report}"))
                .config
        };
        let current = Current::from_pointee(
            Engine::new(&config(1_000), Arc::new(Recorder::default())).unwrap(),
        );
        let passed: [AtomicU64; 8] = Default::default();
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            for thread in 0..4u64 {
                let (current, passed, is_done) = (&current, &passed, &is_done);
                scope.spawn(move || {
                    let mut turn = thread;
                    while !is_done.load(Ordering::Relaxed) {
                        let (engine, key) = (current.load_full(), turn as usize % passed.len());
                        let user = key.to_string();
                        // Alternates between single decisions and decisions with another limit, in either order.
                        let allowed = match turn % 3 {
                            0 => engine.decide(&ask(&user, 1), SECOND).unwrap().allowed,
                            by => {
                                let mut limits = [0, 1];
                                limits.rotate_left(by as usize - 1);
                                let charge = |limit| {
                                    engine.charge_of(
                                        limit,
                                        [("user", user.as_str())].into_iter(),
                                        None,
                                        1,
                                    )
                                };
                                let charges = limits.map(|limit| charge(limit).unwrap());
                                engine
                                    .decide_together(&charges, SECOND)
                                    .iter()
                                    .all(|outcome| outcome.allowed)
                            }
                        };
                        passed[key].fetch_add(u64::from(allowed), Ordering::Relaxed);
                        turn += 5;
                    }
                });
            }
            let is_used = |passed: &AtomicU64| passed.load(Ordering::Relaxed) > 0;
            let mut reloads = 0;
            while reloads < 200 || !passed.iter().all(is_used) {
                let (engine, moves) = current.load().after(&config(1_000 + reloads % 2)).unwrap();
                moves.carry_out(SECOND);
                current.store(Arc::new(engine));
                reloads += 1;
                thread::sleep(Duration::from_millis(1));
            }
            is_done.store(true, Ordering::Relaxed);
        });
        let passed = passed.map(AtomicU64::into_inner);
        assert!(
            passed.iter().all(|passed| *passed <= 600),
            "{limit}: {passed:?}"
        );
        let engine = current.load_full();
        for (key, passed) in passed.iter().enumerate() {
            let left = engine
                .decide(
                    &Question {
                        peek: true,
                        ..ask(&key.to_string(), 1)
                    },
                    SECOND,
                )
                .unwrap()
                .remaining;
            assert_eq!(*passed as i64 + left, 600, "{limit}");
        }
        assert_eq!(engine.limits[0].stores[0].keys(), 8);
    }
}
