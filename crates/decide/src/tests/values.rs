//! Fixed values with wildcards, and counts over all values of an entry.

use super::*;

/// A limit with these lines.
fn limit(name: &str, lines: &str) -> String {
    format!("[[limit]]\nname = \"{name}\"\nscope = \"request\"\n{lines}\n")
}

/// The names of the limits on a descriptor.
fn limits_of(engine: &Engine, entries: &[(&str, &str)]) -> Vec<String> {
    let found = engine.limits_of("shop", || entries.iter().copied());
    let name = |nth: usize| engine.limit(nth).name.clone();
    found.into_iter().map(name).collect()
}

/// The limit that replies, and what is left.
fn ask_for(engine: &Engine, limit: &str, key: &[(&str, &str)]) -> Result<(String, i64), String> {
    let entry = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let question = Question {
        limit: limit.to_owned(),
        key: key.iter().map(entry).collect(),
        ..Question::default()
    };
    engine
        .decide(&question, SECOND)
        .map(|answer| (answer.limit, answer.remaining))
        .map_err(|error| error.to_string())
}

fn left(engine: &Engine, limit: &str, key: &[(&str, &str)]) -> i64 {
    ask_for(engine, limit, key).unwrap().1
}

fn fingerprint(engine: &Engine, limit: usize, key: &[(&str, &str)]) -> Fingerprint {
    let charge = engine.charge_of(limit, key.iter().copied(), None, 1);
    charge.unwrap().key
}

/// A host of a fleet, with a limit of these lines.
fn exchanging(lines: &str) -> Engine {
    let cluster = "[cluster]\nstore = \"redis://127.0.0.1\"\n";
    let lines = format!("rate = \"10/h\"\ncluster = \"keys\"\n{lines}");
    let engine = engine(&(cluster.to_owned() + &limit("a", &lines)));
    engine.name_keys([7, 8]);
    engine
}

#[test]
fn each_value_of_a_wildcard_has_an_allowance_of_its_own() {
    let engine = engine(&limit("api", "key = [\"path=/api/*\"]\nrate = \"10/h\""));
    for (path, remaining) in [
        ("/api/a", 9),
        ("/api/a", 8),
        ("/api/b", 9),
        ("/api/", 9),
        // The pattern's text is a value like others.
        ("/api/*", 9),
        ("/api/\0", 9),
        ("/api/ü", 9),
        ("/api/a", 7),
    ] {
        assert_eq!(
            left(&engine, "api", &[("path", path)]),
            remaining,
            "{path:?}"
        );
    }
    for path in ["", "/api", "/other/api/", "*"] {
        let error = ask_for(&engine, "api", &[("path", path)]).unwrap_err();
        assert!(error.contains("is for path=/api/* only"), "{path}: {error}");
    }
    // A wildcard fixes no value that could be omitted.
    let error = ask_for(&engine, "api", &[]).unwrap_err();
    assert!(
        error.contains("missing entry \"path\"") && error.contains("matches the limit's"),
        "{error}"
    );
}

#[test]
fn descriptors_come_under_every_wildcard_that_matches() {
    let text = [
        limit("paths", "key = [\"path\"]\nrate = \"100/h\""),
        limit(
            "api",
            "key = [\"path=/api/*\"]\nrate = \"50/h\"\nreplaces = \"paths\"",
        ),
        limit(
            "users",
            "key = [\"path=/api/*/users\"]\nrate = \"5/h\"\nreplaces = \"api\"",
        ),
        limit("all-users", "key = [\"path=*/users\"]\nrate = \"70/h\""),
        limit(
            "root",
            "key = [\"path=/api/\"]\nrate = \"7/h\"\nreplaces = \"api\"",
        ),
    ]
    .concat();
    let engine = engine(&text);
    let long = format!("/api/{}", "*/a".repeat(20_000));
    for (path, names) in [
        ("/", vec!["paths"]),
        ("", vec!["paths"]),
        ("/api/a", vec!["api"]),
        (&long, vec!["api"]),
        ("/users", vec!["paths", "all-users"]),
        ("/api/v1/users", vec!["users", "all-users"]),
        // Nothing is left for the wildcard between the slashes.
        ("/api/users", vec!["api", "all-users"]),
        ("/api/", vec!["root"]),
    ] {
        assert_eq!(limits_of(&engine, &[("path", path)]), names, "{path:.40}");
        let (name, _) = ask_for(&engine, "paths", &[("path", path)]).unwrap();
        assert_eq!(name, names[0], "{path:.40}");
    }
    assert_eq!(
        limits_of(&engine, &[("path", "/api/a"), ("user", "a")]),
        [""; 0]
    );
}

/// Neither of them is narrower than the other.
#[test]
fn of_two_limits_that_replace_one_a_question_gets_the_first() {
    let text = [
        limit("paths", "key = [\"path\"]\nrate = \"100/h\""),
        limit(
            "php",
            "key = [\"path=*.php\"]\nrate = \"5/h\"\nreplaces = \"paths\"",
        ),
        limit(
            "api",
            "key = [\"path=/api/*\"]\nrate = \"50/h\"\nreplaces = \"paths\"",
        ),
    ]
    .concat();
    let engine = engine(&text);
    let both = [("path", "/api/a.php")];
    assert_eq!(limits_of(&engine, &both), ["php", "api"]);
    assert_eq!(ask_for(&engine, "paths", &both), Ok(("php".to_owned(), 4)));
}

#[test]
fn a_reload_with_another_wildcard_resets_the_limit_and_no_other() {
    let text = |path: &str| {
        let other = limit("other", "key = [\"path=/*\"]\nrate = \"10/h\"");
        other + &limit("api", &format!("key = [\"path={path}\"]\nrate = \"10/h\""))
    };
    let config = |path: &str| {
        let loaded = config::parse(Path::new("limits.toml"), &text(path));
        loaded.unwrap_or_else(|report| panic!("{report}")).config
    };
    let mut engine = engine(&text("/api/*"));
    let key = [("path", "/api/v1/a")];
    assert_eq!(
        (left(&engine, "api", &key), left(&engine, "other", &key)),
        (9, 9)
    );
    for (path, of_api, of_other) in [("/api/*", 8, 8), ("/api/v1/*", 9, 7), ("/api/*", 9, 6)] {
        let (next, moves) = engine.after(&config(path)).unwrap();
        moves.carry_out(SECOND);
        engine = next;
        let left = (left(&engine, "api", &key), left(&engine, "other", &key));
        assert_eq!(left, (of_api, of_other), "{path}");
    }
}

/// States in files and in the fleet's store are found by it.
#[test]
fn a_key_has_the_same_fingerprint_in_every_version() {
    let entries = [
        ("user", "alice"),
        ("path", "/login"),
        ("source", "192.0.2.7"),
    ];
    let of = |key: &str| {
        let is_own = |(name, _): &&(&str, &str)| key.contains(&format!("\"{name}"));
        let own: Vec<_> = entries.iter().filter(is_own).copied().collect();
        fingerprint(&exchanging(&format!("key = {key}")), 0, &own).word()
    };
    let keys = [
        "[\"user\"]",
        "[\"user\", \"path=/login\"]",
        "[\"source\", \"path=/log*\"]",
    ];
    assert_eq!(
        keys.map(of),
        [
            8_689_588_911_414_939_786,
            8_653_400_447_811_217_371,
            7_095_757_957_483_213_311
        ]
    );
}

#[test]
fn all_values_of_an_entry_share_one_count() {
    let text = limit(
        "api",
        "key = [\"user\", \"path=/api/*\"]\nover = [\"path\"]\nrate = \"10/h\"",
    ) + &limit(
        "all",
        "key = [\"path=/api/*\"]\nover = \"path\"\nrate = \"10/h\"",
    ) + &limit(
        "any",
        "key = [\"kind\"]\nover = [\"kind\"]\nrate = \"10/h\"",
    );
    let engine = engine(&text);
    let long = format!("/api/{}", "*".repeat(64 * 1024));
    for (nth, path) in ["/api/a", "/api/b", "/api/", "/api/*", "/api/\0ü", &long]
        .into_iter()
        .enumerate()
    {
        let of_alice = left(&engine, "api", &[("user", "alice"), ("path", path)]);
        let of_all = left(&engine, "all", &[("path", path)]);
        let of_any = left(&engine, "any", &[("kind", path)]);
        assert_eq!(
            [of_alice, of_all, of_any],
            [9 - nth as i64; 3],
            "{path:.40}"
        );
    }
    assert_eq!(
        left(&engine, "api", &[("user", "bob"), ("path", "/api/a")]),
        9
    );
    assert_eq!(left(&engine, "any", &[("kind", "")]), 3);
    // One key of each user, of all paths, of all kinds.
    let keys = |nth: usize| engine.limits[nth].stores[0].keys();
    assert_eq!([0, 1, 2].map(keys), [2, 1, 1]);
    let error = ask_for(&engine, "all", &[("path", "/other")]).unwrap_err();
    assert!(error.contains("is for path=/api/* only"), "{error}");
    for (limit, key) in [
        ("all", &[][..]),
        ("any", &[]),
        ("api", &[("user", "alice")]),
    ] {
        let error = ask_for(&engine, limit, key).unwrap_err();
        assert!(error.contains("missing entry"), "{limit}: {error}");
    }
    let both = [("path", "/api/a"), ("user", "alice")];
    assert_eq!(limits_of(&engine, &both), ["api"]);
    assert_eq!(limits_of(&engine, &both[..1]), ["all"]);
    assert_eq!(limits_of(&engine, &both[1..]), [""; 0]);
}

#[test]
fn sources_that_share_one_count_keep_their_class() {
    let class = "[[class]]\nname = \"payer\"\nsources = [\"198.51.100.0/24\"]\nmultiplier = 2\n";
    let lines = "key = [\"remote_address\"]\nover = [\"remote_address\"]\nrate = \"10/h\"";
    let engine = engine(&(class.to_owned() + &limit("all", lines)));
    for (source, remaining) in [
        ("192.0.2.1", 9),
        ("192.0.2.2", 8),
        ("2001:db8::1", 7),
        ("198.51.100.1", 19),
        ("198.51.100.2", 18),
        ("web", 6),
    ] {
        let of_key = [("source", source)];
        // Over gRPC, any text can be a source.
        let charge = engine.charge_of(0, of_key.iter().copied(), source.parse().ok(), 1);
        let [outcome] = engine.decide_together(&[charge.unwrap()], SECOND)[..] else {
            panic!("one charge has one outcome");
        };
        assert_eq!(
            (outcome.allowed, outcome.remaining),
            (true, remaining),
            "{source}"
        );
    }
    // No address has a state of its own that could be shown or reset.
    let one = config::prefix::parse("192.0.2.1").unwrap_or_else(|_| panic!("an address"));
    assert_eq!(
        engine.reset_sources(&one, None),
        Ok((Some(0), vec!["all".to_owned()]))
    );
    assert!(
        engine
            .requests_of("192.0.2.1".parse().unwrap(), SECOND)
            .is_empty()
    );
}

/// All hosts of a fleet count under one key, and none that a host with an earlier config uses.
#[test]
fn the_shared_count_has_a_key_of_its_own_on_all_hosts() {
    const OVER: &str = "key = [\"user\", \"path=/api/*\"]\nover = [\"path\"]";
    let (one, other) = (exchanging(OVER), exchanging(OVER));
    let of =
        |engine: &Engine, path: &str| fingerprint(engine, 0, &[("user", "alice"), ("path", path)]);
    let shared = of(&one, "/api/a");
    assert_eq!([of(&one, "/api/b"), of(&other, "/api/c")], [shared; 2]);
    let mut all = vec![shared];
    for lines in [
        "key = [\"user\", \"path=/api/*\"]",
        "key = [\"user\", \"path\"]",
        "key = [\"user\", \"path\"]\nover = [\"path\"]",
        "key = [\"user\", \"path=/*\"]\nover = [\"path\"]",
        "key = [\"user\", \"path=/api/*\"]\nover = [\"user\"]",
        "key = [\"user\", \"path=/api/*\"]\nover = [\"user\", \"path\"]",
    ] {
        // The pattern's text is a value, too.
        all.push(of(&exchanging(lines), "/api/*"));
    }
    all.push(fingerprint(
        &exchanging("key = [\"user\"]"),
        0,
        &[("user", "alice")],
    ));
    // A wildcard without `over` counts by the value, as the entry without a value does.
    assert_eq!(all.remove(1), all[1]);
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count);
}

#[test]
fn a_state_is_kept_only_for_the_same_wildcard_and_over() {
    let text = |lines: &str| limit("api", &format!("{lines}\nrate = \"10/h\""));
    let config = |lines: &str| {
        let loaded = config::parse(Path::new("limits.toml"), &text(lines));
        loaded.unwrap_or_else(|report| panic!("{report}")).config
    };
    let key = [("path", "/api/v1/a"), ("user", "a")];
    let api = "key = [\"user\", \"path=/api/*\"]";
    let over = |entries: &str| format!("{api}\nover = [{entries}]");
    let other_path = "key = [\"user\", \"path=/api/v1/*\"]\nover = [\"path\"]".to_owned();
    let steps = [
        (over("\"path\""), 9),
        (over("\"path\""), 8),
        (other_path, 9),
        (over("\"path\""), 9),
        (over("\"user\""), 9),
        (over("\"user\", \"path\""), 9),
        (over("\"user\", \"path\""), 8),
        (api.to_owned(), 9),
        (api.to_owned(), 8),
    ];
    let mut reloaded = engine(&text(&steps[0].0));
    let mut restarted = engine(&text(&steps[0].0));
    // A state that is no longer used would take room.
    let keys = |engine: &Engine| engine.limits[0].stores[0].keys();
    for (lines, remaining) in &steps {
        let (next, moves) = reloaded.after(&config(lines)).unwrap();
        moves.carry_out(SECOND);
        reloaded = next;
        let now = (left(&reloaded, "api", &key), keys(&reloaded));
        assert_eq!(now, (*remaining, 1), "{lines}");
        let saved = restarted.save(SECOND);
        restarted = engine(&text(lines));
        restarted.resume(&saved, SECOND, SECOND);
        let now = (left(&restarted, "api", &key), keys(&restarted));
        assert_eq!(now, (*remaining, 1), "restart: {lines}");
    }
}

/// A request has up to 256 KiB.
#[test]
fn errors_repeat_no_long_text_of_a_client() {
    let limits: String = (0..200)
        .map(|nth| {
            limit(
                &format!("limit-{nth}"),
                "key = [\"user=a\"]\nrate = \"1/h\"",
            )
        })
        .collect();
    let engine = engine(&(limits + &credits("")));
    let long = "limit-1".repeat(35_000);
    let of = |limit: &str, key: &[(&str, &str)]| ask_for(&engine, limit, key).unwrap_err();
    let request = |request: &str, parameter: &str| {
        let question = Question {
            cost: None,
            request: Some(request.to_owned()),
            parameters: BTreeMap::from([(parameter.to_owned(), 1.0)]),
            ..ask("alice", 1)
        };
        engine.decide(&question, SECOND).unwrap_err().to_string()
    };
    for error in [
        of(&long, &[("user", "a")]),
        of("limit-1", &[("user", &long)]),
        of("limit-1", &[("user", "a"), (&long, "a")]),
        of("limit-1", &[("user", "a"), ("source", &long)]),
        request(&long, "messages"),
        request("publish", &long),
        engine
            .decide(&settle(&long), SECOND)
            .unwrap_err()
            .to_string(),
    ] {
        assert!(error.len() < 1_000, "{} bytes: {error:.200}", error.len());
    }
}

fn settle(id: &str) -> Question {
    Question {
        release: Some(id.to_owned()),
        ..Question::default()
    }
}

/// Else it would take the shares of all other hosts.
#[test]
fn a_cost_that_never_passes_demands_the_whole_limit_at_most() {
    const MOST: i64 = 1 << 53;
    let cluster = "[cluster]\nstore = \"redis://127.0.0.1\"\n";
    let lines = "key = [\"user\"]\nrate = \"600/h\"\ncluster = \"shares\"\nunit = \"credits\"";
    let engine = engine(&(cluster.to_owned() + &limit("credits", lines)));
    let refused = Question {
        cost: Some(MOST),
        ..ask("alice", 1)
    };
    assert!(!engine.decide(&refused, SECOND).unwrap().allowed);
    assert_eq!(engine.demand("credits"), Some((600, 600)));
    let reserve = Question {
        reserve: Some("30s".parse().unwrap()),
        ..ask("alice", 100)
    };
    let id = engine.decide(&reserve, SECOND).unwrap().reservation;
    let commit = Question {
        commit: id,
        cost: Some(MOST),
        ..Question::default()
    };
    engine.decide(&commit, SECOND).unwrap();
    assert_eq!(engine.demand("credits"), Some((1_300, 600)));
}
