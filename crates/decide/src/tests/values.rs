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
