//! Resets of keys, on one host and on all.

use super::*;

fn limit(name: &str, lines: &str) -> String {
    format!(
        "[[limit]]\nname = {name:?}\nscope = \"request\"\nrate = \"10/h\"\nburst = 10\n{lines}\n"
    )
}

/// A host of a fleet, with limits that are exchanged.
fn host() -> Engine {
    host_at("10/h")
}

fn host_at(rate: &str) -> Engine {
    let text = [
        "[cluster]\nstore = \"redis://127.0.0.1\"\n".to_owned(),
        limit("a", "key = [\"user\"]\ncluster = \"keys\""),
        limit("address", "key = [\"source\"]\ncluster = \"keys\""),
    ];
    let engine = engine(&text.concat().replace("10/h", rate));
    engine.name_keys([7, 8]);
    engine
}

fn key<'k>(entries: &'k [(&'k str, &'k str)]) -> impl Iterator<Item = (&'k str, &'k str)> + Clone {
    entries.iter().copied()
}

/// Requests units of a key until one is refused; returns how many passed.
fn exhaust(engine: &Engine, limit: &str, entries: &[(&str, &str)], now: u64) -> u64 {
    let question = Question {
        limit: limit.to_owned(),
        key: entries
            .iter()
            .map(|(entry, value)| ((*entry).to_owned(), (*value).to_owned()))
            .collect(),
        ..Question::default()
    };
    let mut passed = 0;
    while engine.decide(&question, now).unwrap().allowed {
        passed += 1;
    }
    passed
}

const ALICE: &[(&str, &str)] = &[("user", "alice")];
const BOB: &[(&str, &str)] = &[("user", "bob")];

fn resets(engine: &Engine) -> Vec<(ResetKey, LastReset)> {
    let last = engine.last_resets();
    last.iter().map(|(key, reset)| (*key, *reset)).collect()
}

#[test]
fn a_key_is_reset_on_hosts_that_receive_it() {
    let (one, other) = (host(), host());
    for engine in [&one, &other] {
        assert_eq!(exhaust(engine, "a", ALICE, SECOND), 10);
        assert_eq!(exhaust(engine, "a", BOB, SECOND), 10);
    }
    let reset = one.reset_key(key(ALICE), None).unwrap();
    let names = vec!["a".to_owned()];
    let expected = KeyReset {
        forgotten: 1,
        limits: names.clone(),
        on_all_hosts: names,
        on_this_host: Vec::new(),
    };
    assert_eq!(reset, expected);
    assert_eq!(exhaust(&one, "a", ALICE, SECOND), 10);
    assert_eq!(exhaust(&one, "a", BOB, SECOND), 0);
    // The other has not received it. Then as often as replies have it.
    assert_eq!(exhaust(&other, "a", ALICE, SECOND), 0);
    for passed in [10, 0, 0] {
        other.receive_resets(&resets(&one));
        assert_eq!(exhaust(&other, "a", ALICE, SECOND), passed);
    }
    assert_eq!(exhaust(&other, "a", BOB, SECOND), 0);
    assert_eq!(one.last_resets(), other.last_resets());
    // Once more, from the other host.
    other.reset_key(key(ALICE), Some("a")).unwrap();
    one.receive_resets(&resets(&other));
    assert_eq!(exhaust(&one, "a", ALICE, SECOND), 10);
}

/// Three hosts with the same demand would each pass a burst.
#[test]
fn a_busy_key_starts_with_the_demand_of_the_other_hosts() {
    let (one, other) = (host(), host());
    for engine in [&one, &other] {
        let charge = engine.charge_of(0, key(ALICE), None, 1).unwrap();
        let adjustment = Adjustment {
            peers: PeerConsumption::new(3.0, 0),
            is_parted: false,
            ..Adjustment::parted(charge.key.word(), PeerConsumption::new(1.0, 0))
        };
        engine
            .store_of(&charge)
            .unwrap()
            .adjust(&adjustment, SECOND);
        assert!(exhaust(engine, "a", ALICE, SECOND) <= 4);
    }
    one.reset_key(key(ALICE), None).unwrap();
    other.receive_resets(&resets(&one));
    for engine in [&one, &other] {
        let passed = exhaust(engine, "a", ALICE, SECOND);
        assert!((3..=4).contains(&passed), "{passed}");
    }
}

/// Others, which have received the reset later or return after it, publish what they used before.
#[test]
fn units_of_before_are_not_charged_after_a_reset() {
    let (one, late) = (host(), host());
    exhaust(&late, "a", ALICE, SECOND);
    let charge = late.charge_of(0, key(ALICE), None, 1).unwrap();
    let written = late.store_of(&charge).unwrap();
    let written = written.key_use(charge.key.word(), SECOND, 1).unwrap();
    one.reset_key(key(ALICE), None).unwrap();
    let store = one.store_of(&charge).unwrap();
    store.adopt_use(written.key, &written.words, SECOND);
    assert_eq!(exhaust(&one, "a", ALICE, SECOND), 10);
}

#[test]
fn a_whole_limit_is_reset_with_keys_that_this_host_has_not_seen() {
    let (one, other) = (host(), host());
    exhaust(&other, "a", ALICE, SECOND);
    exhaust(&other, "address", &[("source", "192.0.2.1")], SECOND);
    assert_eq!(one.reset("a"), Ok(Some(0)));
    other.receive_resets(&resets(&one));
    assert_eq!(exhaust(&other, "a", ALICE, SECOND), 10);
    let source = &[("source", "192.0.2.1")];
    assert_eq!(exhaust(&other, "address", source, SECOND), 0);
    let prefix = config::prefix::parse("192.0.2.0/30").unwrap_or_else(|_| panic!("valid"));
    assert_eq!(
        other.reset_sources(&prefix, None),
        Ok((Some(1), vec!["a".to_owned()]))
    );
    assert_eq!(exhaust(&other, "address", source, SECOND), 10);
    assert_eq!(resets(&other).len(), 1 + 4, "each address of the prefix");
    let wide = config::prefix::parse("198.51.0.0/17").unwrap_or_else(|_| panic!("valid"));
    let full = ResetsFull { keys: 1 << 15 };
    assert_eq!(other.check_reset(&prefix, None), Ok(()));
    assert_eq!(other.check_reset(&wide, None), Err(full.into()));
    assert_eq!(other.reset_sources(&wide, None), Err(full));
    // Hosts that were apart have each reset the key.
    one.reset_key(key(ALICE), None).unwrap();
    assert_eq!(exhaust(&one, "a", ALICE, SECOND), 10);
    let last = |engine: &Engine| resets(engine).into_iter().map(|(_, reset)| reset.at).max();
    while last(&other) <= last(&one) {
        other.reset_key(key(ALICE), None).unwrap();
    }
    one.receive_resets(&resets(&other));
    assert_eq!(exhaust(&one, "a", ALICE, SECOND), 10, "the later one");
}

/// Its publications and states are of the other fingerprints, and no host reads the store's states of before.
#[test]
fn states_of_before_a_reset_of_the_limit_are_of_another_definition() {
    let (one, other) = (host(), host());
    let definition = |engine: &Engine| {
        let exchanged = engine
            .exchanged()
            .map(|(name, _, store)| engine.definition(name, store));
        exchanged.collect::<Vec<u64>>()
    };
    let before = definition(&one);
    let of_store: Vec<u64> = one
        .exchanged()
        .map(|(.., store)| store.definition())
        .collect();
    assert_eq!(before, of_store, "as in earlier versions");
    one.reset_key(key(ALICE), None).unwrap();
    assert_eq!(definition(&one), before);
    one.reset("a").unwrap();
    assert_ne!(definition(&one)[0], before[0]);
    assert_eq!(definition(&one)[1], before[1]);
    other.receive_resets(&resets(&one));
    assert_eq!(definition(&other), definition(&one));
}

/// Which have no units of it: the first reply of the store leads to other fingerprints.
#[test]
fn hosts_that_have_not_joined_reset_no_key() {
    let text = "[cluster]\nstore = \"redis://127.0.0.1\"\n".to_owned()
        + &limit("a", "key = [\"user\"]\ncluster = \"keys\"");
    let engine = engine(&text);
    assert_eq!(
        engine.reset_key(key(ALICE), None),
        Err(ResetError::NotJoined)
    );
    assert_eq!(engine.reset("a"), Err(ResetError::NotJoined));
    engine.name_keys([7, 8]);
    engine.reset_key(key(ALICE), None).unwrap();
    engine.reset("a").unwrap();
}

/// Requests that wait when a host receives the reset.
#[tokio::test]
async fn waiting_requests_pass_after_a_reset() {
    // Six seconds a unit.
    let current = Arc::new(Current::from_pointee(host_at("10/min")));
    let handle = EngineHandle::new(Arc::clone(&current), || SECOND);
    let question = |wait: &str| Question {
        limit: "a".to_owned(),
        wait: Some(wait.parse().unwrap()),
        ..ask("alice", 1)
    };
    assert_eq!(exhaust(&current.load(), "a", ALICE, SECOND), 10);
    let waiting: Vec<_> = (0..3)
        .map(|_| handle.ask(&question("60s")).unwrap().answer())
        .collect();
    let other = host();
    other.reset_key(key(ALICE), None).unwrap();
    current.load().receive_resets(&resets(&other));
    for answer in waiting {
        assert!(answer.await.unwrap().answer.allowed);
    }
    assert_eq!(exhaust(&current.load(), "a", ALICE, SECOND), 7);
}

#[test]
fn a_successor_continues_after_the_resets() {
    let (before, mut after) = (host(), host());
    exhaust(&before, "a", ALICE, SECOND);
    before.reset_key(key(ALICE), None).unwrap();
    before.reset("address").unwrap();
    assert_eq!(exhaust(&before, "a", ALICE, SECOND), 10);
    let saved = serde_json::to_string(&before.save(SECOND)).unwrap();
    let mut saved: SavedRequests = serde_json::from_str(&saved).unwrap();
    saved.words = before.save(SECOND).words;
    after.resume(&saved, SECOND, SECOND);
    assert_eq!(after.last_resets(), before.last_resets());
    assert_eq!(exhaust(&after, "a", ALICE, SECOND), 0);
    // The fleet of another secret has not reset anything.
    after.name_keys([9, 9]);
    assert!(after.last_resets().is_empty());
}

#[test]
fn keys_of_this_host_alone_are_reset_under_all_their_limits() {
    let text = [
        "[cluster]\nstore = \"redis://127.0.0.1\"\n".to_owned(),
        limit("local", "key = [\"user\"]"),
        limit("share", "key = [\"user\"]\ncluster = true"),
        limit("both", "key = [\"user\", \"path\"]"),
        limit("gold", "key = [\"user=gold-*\"]"),
        limit("all", "key = [\"user\"]\nover = [\"user\"]"),
    ]
    .concat();
    let engine = engine(&text);
    exhaust(&engine, "local", ALICE, SECOND);
    exhaust(&engine, "both", &[("user", "alice"), ("path", "/")], SECOND);
    let reset = |entries, only| {
        let reset = engine.reset_key(key(entries), only);
        reset.map(|reset| (reset.forgotten, reset.limits.join(" "), reset.on_this_host))
    };
    let share = vec!["share".to_owned()];
    assert_eq!(
        reset(ALICE, None),
        Ok((1, "local share".to_owned(), share.clone()))
    );
    assert_eq!(exhaust(&engine, "local", ALICE, SECOND), 10);
    assert_eq!(
        reset(ALICE, Some("local")),
        Ok((1, "local".to_owned(), Vec::new()))
    );
    assert_eq!(
        reset(&[("path", "/"), ("user", "alice")], None),
        Ok((1, "both".to_owned(), Vec::new()))
    );
    let gold = "local share gold".to_owned();
    assert_eq!(reset(&[("user", "gold-1")], None), Ok((0, gold, share)));
    exhaust(&engine, "all", ALICE, SECOND);
    assert_eq!(
        reset(ALICE, Some("all")),
        Ok((1, "all".to_owned(), Vec::new())),
        "which all users share"
    );
    for (entries, only, reason) in [
        (
            &[("team", "a")][..],
            None,
            "no limit on requests has keys of team alone",
        ),
        (&[("path", "/")], None, "\"both\" has user, path"),
        (ALICE, Some("both"), "missing entry \"path\""),
        (ALICE, Some("gold"), "is for user=gold-* only"),
        (
            &[("user", "a"), ("team", "a")],
            Some("local"),
            "unknown entry \"team\"",
        ),
        (ALICE, Some("lokal"), "unknown limit on requests \"lokal\""),
    ] {
        let error = reset(entries, only).unwrap_err().to_string();
        assert!(error.contains(reason), "{entries:?} {only:?}: {error}");
    }
}
