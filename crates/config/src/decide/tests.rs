use std::path::Path;
use std::time::Duration;

use crate::calendar::CalendarUnit;
use crate::policy::{
    Algorithm, Decide, Endpoint, EntryValue, Escalate, KeyEntry, Multiplier, RequestUnit,
};
use crate::report::Report;
use crate::{Loaded, parse};

fn check(text: &str) -> Result<Loaded, Report> {
    parse(Path::new("limits.toml"), text)
}

/// A limit on requests with these lines.
fn limit(lines: &str) -> String {
    format!(
        "[decide]\nhttp = \"127.0.0.1:9465\"\n[[limit]]\nscope = \"request\"\nname = \"a\"\n{lines}\n"
    )
}

/// Two limits, "a" and "b" that replaces it, with these keys.
fn two(general: &str, narrow: &str, lines: &str) -> String {
    let second = format!(
        "[[limit]]\nscope = \"request\"\nname = \"b\"\nkey = {narrow}\nrate = \"5/min\"\n{lines}"
    );
    let text = limit(&format!("key = {general}\nrate = \"600/min\""));
    format!(
        "{text}{}\n",
        second.replacen("\nname", "\nreplaces = \"a\"\nname", 1)
    )
}

const BASE: &str = "key = [\"user\"]\nrate = \"600/min\"\n";

#[test]
fn the_scope_is_case_insensitive_as_other_words_are() {
    let text = limit(BASE).replace("\"request\"", "\"Request\"");
    let config = check(&text).unwrap().config;
    assert_eq!((config.limits.len(), config.decide.limits.len()), (0, 1));
}

#[test]
fn a_key_of_packets_conflicts_with_the_scope_of_requests() {
    for line in ["prove = true", "concurrent = 5", "asn = [7]", "levels = []"] {
        let errors = check(&limit(&format!("{BASE}{line}"))).unwrap_err().errors;
        let key = line.split(' ').next().unwrap();
        let message = format!("{key} conflicts with scope = \"request\"");
        assert!(
            errors.len() == 1 && errors[0].message.starts_with(&message),
            "{errors:?}"
        );
    }
}

#[test]
fn every_error_says_where_it_is_and_what_to_write() {
    let base = |line: &str| limit(&format!("{BASE}{line}"));
    let calendar = |line: &str| base(line).replace("600/min", "600/calendar-day");
    for (text, line, column, message, help) in [
        ("decide = 5", 1, 10, "decide is an integer", "[decide]"),
        (
            "[decide]\nhtpp = \"127.0.0.1:1\"",
            2,
            1,
            "unknown key \"htpp\"",
            "did you mean \"http\"?",
        ),
        (
            "[decide]\nhttp = \"localhost\"",
            2,
            8,
            "invalid address",
            "127.0.0.1:9465",
        ),
        (
            "[decide]\nhttp = \"unix:decide.sock\"",
            2,
            8,
            "not an absolute path",
            "unix:/run",
        ),
        (
            "[decide]\ngrpc = \"8081\"",
            2,
            8,
            "invalid address",
            "grpc =",
        ),
        ("[decide]\nmax_keys = 0", 2, 12, "out of range", "from 1"),
        (
            "[[request]]\ncost = \"1\"",
            1,
            1,
            "missing key \"name\"",
            "name = \"publish\"",
        ),
        (
            "[[request]]\nname = \"a\"",
            1,
            1,
            "missing key \"cost\"",
            "cost = ",
        ),
        (
            "[[request]]\nname = \"a\"\ncost = \"1 +\"",
            3,
            8,
            "invalid formula",
            "100 * messages",
        ),
        (
            "[[request]]\nname = \"a\"\ncost = \"f(1)\"",
            3,
            8,
            "invalid formula",
            "100 * messages",
        ),
        (
            "[[request]]\nname = \"a\"\ncost = [1]",
            3,
            8,
            "cost is an array",
            "a formula",
        ),
        (
            "[[request]]\nname = \"a\"\ncost = -1",
            3,
            8,
            "cost is out of range",
            "from 0 to 2^53",
        ),
        (
            "[[request]]\nname = \"a\"\ncost = 1\n[[request]]\nname = \"a\"\ncost = 2",
            5,
            8,
            "duplicate request name",
            "another name",
        ),
        (
            &limit("rate = \"1/s\""),
            3,
            1,
            "missing key \"key\" in [[limit]]",
            "key = [\"user\"]",
        ),
        (
            &limit("key = [\"user\"]"),
            3,
            1,
            "missing key \"rate\"",
            "600/min",
        ),
        (
            &limit("key = []\nrate = \"1/s\""),
            6,
            7,
            "0 entries",
            "name 1 to",
        ),
        (
            &limit("key = [\"user\", \"user\"]\nrate = \"1/s\""),
            6,
            16,
            "duplicate entry",
            "leave it out",
        ),
        (
            &limit("key = [\"source\", \"remote_address\"]\nrate = \"1/s\""),
            6,
            18,
            "duplicate entry",
            "remote_address is source",
        ),
        (
            &limit("key = [\"\"]\nrate = \"1/s\""),
            6,
            8,
            "has no name",
            "key = ",
        ),
        (
            &limit("key = [\"=a\"]\nrate = \"1/s\""),
            6,
            8,
            "has no name",
            "key = ",
        ),
        (
            &limit("key = \"path=\"\nrate = \"1/s\""),
            6,
            7,
            "empty value",
            "path=VALUE",
        ),
        (
            &limit("key = [\"user\", \"path=*\"]\nrate = \"1/s\""),
            6,
            16,
            "\"path=*\" matches each value of \"path\"",
            "write \"path\"",
        ),
        (
            &limit("key = [\"path=/api/***/a**\"]\nrate = \"1/s\""),
            6,
            8,
            "repeated wildcard in the entry \"path=/api/***/a**\"",
            "write \"path=/api/*/a*\"",
        ),
        (
            &limit("key = [\"source=192.0.2.*\"]\nrate = \"1/s\""),
            6,
            8,
            "invalid address",
            "ipv4_prefix",
        ),
        (
            &limit("key = [\"path = /login\"]\nrate = \"1/s\""),
            6,
            8,
            "spaces around",
            "\"path=/login\"",
        ),
        (
            &limit("key = [\"source=10.0.0.0/8\"]\nrate = \"1/s\""),
            6,
            8,
            "invalid address",
            "source=192.0.2.1",
        ),
        (
            &limit("key = [\"remote_address=web\"]\nrate = \"1/s\""),
            6,
            8,
            "invalid address",
            "source=192.0.2.1",
        ),
        (
            &base("time_zone = \"Europe/Berlin\""),
            8,
            13,
            "time_zone requires a rate by the calendar",
            "write a rate as \"1000/calendar-day\"",
        ),
        (
            &calendar("time_zone = \"Europe/Berln\""),
            8,
            13,
            "unknown time zone \"Europe/Berln\"",
            "did you mean \"Europe/Berlin\"?",
        ),
        (
            &calendar("time_zone = \"+02:00\""),
            8,
            13,
            "unknown time zone \"+02:00\"",
            "as \"Europe/Berlin\"",
        ),
        (
            &calendar("time_zone = 2"),
            8,
            13,
            "time_zone is an integer",
            "time_zone = \"Europe/Berlin\"",
        ),
        (
            &calendar("algorithm = \"sliding-log\""),
            8,
            13,
            "algorithm = \"sliding-log\" is not supported with rate \"600/calendar-day\"",
            "leave out algorithm, or write a rate per day",
        ),
        (
            &calendar("burst = 5"),
            8,
            9,
            "burst is not supported with rate \"600/calendar-day\"",
            "leave out burst",
        ),
        (
            &calendar("initial = 5"),
            8,
            11,
            "initial is not supported with rate",
            "leave out initial",
        ),
        (
            &calendar("refill_every = \"1h\""),
            8,
            16,
            "refill_every is not supported with rate",
            "leave out refill_every",
        ),
        (
            &calendar("cluster = \"keys\""),
            8,
            11,
            "cluster is not supported with rate \"600/calendar-day\"",
            "midnight in UTC on all hosts",
        ),
        (
            &calendar("cluster = \"shares\"").replace("-day", "-month"),
            8,
            11,
            "cluster is not supported with rate \"600/calendar-month\"",
            "each host counts alone",
        ),
        (
            &calendar("tiers = [\"90/h\", \"5000/calendar-month\"]"),
            8,
            18,
            "tier \"5000/calendar-month\" is not shorter than the calendar-day",
            "write a second [[limit]]",
        ),
        (
            &calendar("tiers = [\"5000/week\"]"),
            8,
            10,
            "tier \"5000/week\" is not shorter than the calendar-day",
            "write a second [[limit]]",
        ),
        (
            &calendar("").replace("calendar-day", "calendar-week"),
            7,
            8,
            "unknown time \"calendar-week\"",
            "\"1000/calendar-day\" or",
        ),
        (
            &calendar("").replace("calendar-day", "2calendar-day"),
            7,
            8,
            "unknown time \"2calendar-day\"",
            "\"1000/calendar-day\" or",
        ),
        (
            &calendar("").replace("600/", "0/"),
            7,
            8,
            "a rate of 0",
            "above 0",
        ),
        (
            &calendar("").replace("600/", "x/"),
            7,
            8,
            "invalid rate \"x/calendar-day\"",
            "write \"1000/s\"",
        ),
        (
            &calendar("").replace("600/", "5MB/"),
            7,
            8,
            "rate \"5MB/calendar-day\" is in bytes",
            "write",
        ),
        (
            "[agent]\ninterfaces = [\"eth0\"]\n[[limit]]\nname = \"a\"\nrate = \"5/calendar-day\"",
            5,
            8,
            "rate \"5/calendar-day\" is not supported for limits on packets",
            "write \"5/day\", or scope = \"request\"",
        ),
        (
            "[agent]\ninterfaces = [\"eth0\"]\n[[limit]]\nname = \"a\"\nrate = \"5/s\"\ntime_zone = \"UTC\"",
            6,
            1,
            "unknown key \"time_zone\"",
            "write one of",
        ),
        (
            &base("over = []"),
            8,
            8,
            "over is empty",
            "leave it out, or write over = [\"path\"]",
        ),
        (
            &base("over = [\"usr\"]"),
            8,
            9,
            "\"usr\" in over is no entry of the key",
            "did you mean \"user\"?",
        ),
        (
            &base("over = \"source\""),
            8,
            8,
            "\"source\" in over is no entry of the key",
            "write one of user",
        ),
        (
            &base("over = [\"user=a*\"]"),
            8,
            9,
            "\"user=a*\" in over has a value",
            "write \"user\": the key has its value",
        ),
        (
            &base("over = [\"user\", \"user\"]"),
            8,
            17,
            "duplicate entry \"user\" in over",
            "leave it out here",
        ),
        (
            &base("over = [\"source\", \"remote_address\"]").replace("\"user\"", "\"source\""),
            8,
            19,
            "duplicate entry \"source\" in over",
            "remote_address is source",
        ),
        (&base("over = 5"), 8, 8, "over is an integer", "over = "),
        (
            &(String::from("[agent]\ninterfaces = [\"lo\"]\n")
                + &base(
                    "over = \"source\"\nescalate = { after = 20, within = \"1m\", ban = \"5m\" }",
                )
                .replace("\"user\"", "\"source\"")),
            11,
            12,
            "escalate of limit \"a\" conflicts with over",
            "take \"source\" out of over",
        ),
        (
            &base("domain = \"\""),
            8,
            10,
            "empty domain",
            "leave out domain",
        ),
        (
            &base("replaces = \"bcdef\""),
            8,
            12,
            "unknown limit \"bcdef\"",
            "write one of a",
        ),
        (
            &base("replaces = \"a\""),
            8,
            12,
            "circular replaces: a, a",
            "leave out one",
        ),
        (
            &two("[\"user\"]", "[\"user\"]", ""),
            10,
            12,
            "not for fewer requests",
            "path=/login",
        ),
        (
            &two("[\"user\"]", "[\"path=/login\"]", ""),
            10,
            12,
            "not for fewer requests",
            "path=/login",
        ),
        (
            &two("[\"user=a\"]", "[\"user\"]", ""),
            10,
            12,
            "not for fewer requests",
            "path=/login",
        ),
        (
            &two("[\"user=a\"]", "[\"user=b\"]", ""),
            10,
            12,
            "not for fewer requests",
            "path=/login",
        ),
        (
            &two("[\"path=/api/v1\"]", "[\"path=/api/*\"]", ""),
            10,
            12,
            "not for fewer requests",
            "path=/login",
        ),
        (
            &two("[\"path=/api/*\"]", "[\"path=*/api/v1/*\"]", ""),
            10,
            12,
            "not for fewer requests",
            "path=/login",
        ),
        (
            &two("[\"user\"]", "[\"user=b\"]", "unit = \"credits\""),
            10,
            12,
            "counts credits",
            "same unit",
        ),
        (
            &two("[\"user\"]\nreplaces = \"b\"", "[\"user=b\"]", ""),
            7,
            12,
            "circular replaces: a, b, a",
            "leave out one",
        ),
        (
            &format!(
                "[agent]\ninterfaces = [\"eth0\"]\n[[limit]]\nname = \"p\"\nrate = \"1/s\"\n{}",
                base("replaces = \"p\"")
            ),
            13,
            12,
            "is on packets",
            "scope = \"request\"",
        ),
        (
            "[[request]]\nname = \"a\"\ncost = \"-5\"",
            3,
            8,
            "invalid cost",
            "from 0",
        ),
        (
            &limit("key = [\"user\"]\nrate = \"10MB/s\""),
            7,
            8,
            "counts requests",
            "10/s",
        ),
        (
            &base("unit = \"packets\""),
            8,
            8,
            "invalid unit \"packets\"",
            "credits",
        ),
        (
            &base("scop = 1"),
            8,
            1,
            "unknown key \"scop\"",
            "did you mean \"scope\"?",
        ),
        (
            &base("ports = [80]"),
            8,
            9,
            "ports conflicts with scope",
            "leave out ports",
        ),
        (
            &base("ipv4_prefix = 24"),
            8,
            15,
            "requires \"source\" in the key",
            "add \"source\"",
        ),
        (
            &base("initial = 601"),
            8,
            11,
            "initial is above the burst",
            "at most 600",
        ),
        (&base("burst = 0"), 8, 9, "out of range", "from 1"),
        (
            &base("algorithm = \"fixed-window\"\nburst = 5"),
            9,
            9,
            "burst is not supported",
            "leave out burst",
        ),
        (
            &base("algorithm = \"fixed-window\"\ninitial = 5"),
            9,
            11,
            "initial is not supported",
            "leave out initial",
        ),
        (
            &base("algorithm = \"fixed-window\"\nrefill_every = \"1s\""),
            9,
            16,
            "refill_every is not supported",
            "token-bucket",
        ),
        (
            &base("refill_every = \"1\""),
            8,
            16,
            "missing unit of time",
            "refill_every = \"1s\"",
        ),
        (
            &base("refill_every = 1"),
            8,
            16,
            "refill_every is an integer",
            "\"1s\"",
        ),
        (
            &base("tiers = [\"600/min\"]"),
            8,
            10,
            "duplicate rate",
            "leave out one",
        ),
        (
            &base("escalate = 5"),
            8,
            12,
            "escalate is an integer",
            "after = 20",
        ),
        (
            &base("escalate = { within = \"1m\", ban = \"5m\" }"),
            8,
            12,
            "missing key \"after\"",
            "after = 20",
        ),
        (
            &base("escalate = { after = 0, within = \"1m\", ban = \"5m\" }"),
            8,
            22,
            "out of range",
            "from 1 to 1024",
        ),
        (
            &base("escalate = { after = 20, within = \"1m\", ban = \"5m\" }"),
            5,
            8,
            "escalate requires an interface",
            "interfaces =",
        ),
        (
            &base("cluster = 1"),
            8,
            11,
            "cluster is an integer",
            "cluster = true",
        ),
        (
            &base("cluster = \"key\""),
            8,
            11,
            "invalid cluster \"key\"",
            "keys",
        ),
        (
            &limit(
                "key = [\"user\"]\nrate = \"100/h\"\nalgorithm = \"sliding-window\"\ncluster = true",
            ),
            9,
            11,
            "\"shares\" is not supported with algorithm = \"sliding-window\"",
            "cluster = \"keys\"",
        ),
        (
            &base("throttle = { soft = \"10%\" }\ncluster = true"),
            8,
            12,
            "throttle is not supported with cluster",
            "leave out throttle",
        ),
        (
            &base("throttle = \"loose\""),
            8,
            12,
            "invalid throttle \"loose\"",
            "write \"hard\"",
        ),
        (
            &limit(
                "key = [\"user\"]\nrate = \"9/h\"\nalgorithm = \"fixed-window\"\nthrottle = { soft = \"10%\" }",
            ),
            9,
            12,
            "throttle has no effect: its share of 9 is less than one unit",
            "write a larger share",
        ),
        (
            &limit(
                "key = [\"user\"]\nrate = \"600/h\"\nalgorithm = \"sliding-log\"\nthrottle = { soft = \"100%\" }",
            ),
            5,
            8,
            "cannot be enforced for every class",
            "lower the rate",
        ),
        (
            &limit("key = [\"user\"]\nrate = \"1025/min\"\nalgorithm = \"sliding-log\""),
            7,
            8,
            "exceeds a sliding log",
            "1024",
        ),
        (
            &format!(
                "[[class]]\nname = \"c\"\nsources = [\"10.0.0.0/8\"]\nmultiplier = 2\n{}",
                limit("key = [\"user\"]\nrate = \"1000/min\"\nalgorithm = \"sliding-log\"")
            ),
            9,
            8,
            "cannot be enforced for every class",
            "multiplier",
        ),
        (
            &limit("key = [\"user\"]\nrate = \"1024/min\"\nalgorithm = \"sliding-log\"")
                .replace("[[limit]]", "max_keys = 10_000_000\n[[limit]]"),
            6,
            8,
            "GiB",
            "lower [decide] max_keys",
        ),
        (
            &format!("{}[[limit]]\nname = \"a\"\nrate = \"1/s\"", limit(BASE)),
            5,
            8,
            "duplicate limit name",
            "another name",
        ),
    ] {
        let report = check(text)
            .err()
            .unwrap_or_else(|| panic!("{text} is not wrong"));
        let found = report.errors.iter().any(|error| {
            error.line == line
                && error.column == column
                && error.message.contains(message)
                && error.help.contains(help)
        });
        assert!(
            found,
            "{text}\nwanted {line}:{column} {message} / {help}, got\n{:#?}",
            report.errors
        );
    }
}

/// A request with these lines, and a limit of 600 at once.
fn request(lines: &str) -> String {
    format!("[[request]]\nname = \"r\"\n{lines}\n{}", limit(BASE))
}

#[test]
fn probable_mistakes_are_warnings() {
    let base = |line: &str| limit(&format!("{BASE}{line}"));
    for (text, message) in [
        (limit(BASE).replace("127.0.0.1:9465", "0.0.0.0:9465"), "from other hosts"),
        (limit(BASE).replace("[decide]\nhttp = \"127.0.0.1:9465\"\n", ""), "applications cannot query this limit"),
        ("[[request]]\nname = \"a\"\ncost = 1".to_owned(), "no limit has scope"),
        ("[decide]\ngrpc = \"127.0.0.1:8081\"".to_owned(), "[decide] serves nothing"),
        (request("cost = \"limit / 10\""), "`limit` is a parameter that each request must give"),
        (request("cost = 0"), "costs nothing"),
        (request("cost = \"6 * 101\""), "always refused: it costs 606, and no key ever has more than 600"),
        (base("domain = \"shop\""), "domain has no effect"),
        (
            limit("key = [\"user\", \"path=/login\"]\nrate = \"1/s\"\nover = [\"path\"]"),
            "\"path\" in over has no effect: path=/login is a single value",
        ),
        (
            limit("key = [\"source=192.0.2.7\"]\nrate = \"1/s\"\nipv4_prefix = 24\nover = [\"remote_address\"]"),
            "\"source\" in over has no effect: source=192.0.2.7 is a single value",
        ),
        (base("tiers = [\"20/s\"]\nburst = 10"), "20/s has no effect: it never refuses what 600/min passes"),
        (base("tiers = [\"5/s\"]\nalgorithm = \"sliding-log\"").replace("600", "300"), "300/min has no effect"),
        (base("tiers = [\"1200/min\"]\nalgorithm = \"fixed-window\""), "1200/min has no effect"),
        (base("burst = 5\nrefill_every = \"1s\""), "each step brings 10"),
        (
            format!("[agent]\nmode = \"observe\"\n{}", base("action = \"observe\"")),
            "has no effect: the agent's mode is observe",
        ),
        (
            format!(
                "[agent]\ninterfaces = [\"eth0\"]\n{}",
                base("action = \"observe\"\nescalate = { after = 20, within = \"1m\", ban = \"5m\" }")
            ),
            "escalate has no effect",
        ),
        (two("[\"user\"]", "[\"user=b\"]", "action = \"observe\""), "\"a\" refuses nothing where \"b\""),
        (
            format!(
                "[agent]\nnever_limit = [\"192.0.2.0/24\"]\n{}",
                limit("key = \"source=192.0.2.7\"\nrate = \"1/s\"")
            ),
            "192.0.2.7 is exempt by never_limit",
        ),
        (
            format!(
                "[[class]]\nname = \"c\"\nsources = [\"192.0.2.0/24\"]\nunlimited = true\n{}",
                limit("key = \"source=192.0.2.7\"\nrate = \"1/s\"")
            ),
            "192.0.2.7 is exempt by class \"c\"",
        ),
        (
            "[agent]\nnever_limit = [\"10.0.0.0/9\"]\n[[class]]\nname = \"a\"\nsources = [\"10.0.0.0/8\"]\n\
             [[class]]\nname = \"b\"\nsources = [\"10.128.0.0/10\", \"10.192.0.0/10\"]"
                .to_owned(),
            "class \"a\" has no effect",
        ),
        ("[[class]]\nname = \"a\"\nsources = []".to_owned(), "sources is empty"),
    ] {
        let text = match text.contains("[[limit]]") {
            true => text,
            false => format!("[agent]\nallow_empty = true\n{}", text.replacen("[agent]\n", "", 1)),
        };
        let loaded = check(&text).unwrap_or_else(|report| panic!("{text}: {report}"));
        assert!(
            loaded.warnings.iter().any(|warning| warning.message.contains(message)),
            "{text}: {:?}",
            loaded.warnings
        );
    }
}

#[test]
fn keys_with_an_effect_are_no_warnings() {
    let base = |line: &str| limit(&format!("{BASE}{line}"));
    for text in [
        request("cost = \"allowance / 10\""),
        request("cost = \"min(limit, allowance) / 10\""),
        request("cost = 600"),
        base("tiers = [\"9000/h\", \"20/s\"]"),
        base("burst = 5\ntiers = [\"10/5s\"]"),
        base("burst = 700\ntiers = [\"650/min\"]\ninitial = 5"),
        base("tiers = [\"1199/2min\"]\nalgorithm = \"sliding-window\""),
        base("tiers = [\"1000/90s\"]\nalgorithm = \"fixed-window\""),
        base("burst = 10\nrefill_every = \"1s\""),
        base("domain = \"shop\"").replace("[[limit]]", "grpc = \"127.0.0.1:8081\"\n[[limit]]"),
        two("[\"user\"]", "[\"user=b\"]", ""),
        two("[\"path\"]", "[\"path=/api/*\"]", ""),
        two("[\"path\"]", "[\"path=/api/*\"]", "over = [\"path\"]"),
        limit("key = [\"path=/api/*\", \"user\", \"remote_address\"]\nrate = \"1/s\"\nover = [\"path\", \"source\"]"),
        two("[\"path=/api/*\"]", "[\"path=/api/*/users\"]", ""),
        two("[\"path=/api/*\"]", "[\"path=/api/\"]", ""),
        format!("[agent]\nnever_limit = [\"192.0.2.8\"]\n{}", limit("key = \"source=192.0.2.7\"\nrate = \"1/s\"")),
        "[agent]\nallow_empty = true\nnever_limit = [\"10.0.0.0/9\"]\n[[class]]\nname = \"a\"\nsources = [\"10.0.0.0/8\"]\n\
         [[class]]\nname = \"b\"\nsources = [\"10.128.0.0/10\", \"10.192.0.0/11\"]"
            .to_owned(),
    ] {
        let loaded = check(&text).unwrap_or_else(|report| panic!("{text}: {report}"));
        assert_eq!(loaded.warnings, [], "{text}");
    }
}

#[test]
fn envoys_word_for_the_source_is_the_same_and_an_entry_may_have_one_value() {
    let text = limit("key = [\"remote_address\", \"path=/a=b\"]\nrate = \"1/s\"\nipv4_prefix = 24");
    let limit = check(&text)
        .unwrap_or_else(|report| panic!("{report}"))
        .config
        .decide
        .limits
        .remove(0);
    assert_eq!(
        (limit.key_text(), limit.has_source()),
        ("source, path=/a=b".to_owned(), true)
    );
    let entry = |name: &str, value: Option<EntryValue>| KeyEntry {
        name: name.to_owned(),
        value,
    };
    assert_eq!(
        limit.key[..],
        [
            entry("source", None),
            entry("path", Some(EntryValue::Text("/a=b".to_owned())))
        ]
    );
}

#[test]
fn limits_on_requests_alone_need_no_interface_and_have_the_documented_defaults() {
    let loaded = check(&limit(BASE)).unwrap();
    assert_eq!(loaded.warnings, []);
    assert_eq!(
        (
            loaded.config.limits.len(),
            loaded.config.agent.interfaces.len()
        ),
        (0, 0)
    );
    let Decide {
        http,
        grpc,
        check,
        escalate_from,
        max_keys,
        max_waiting,
        max_waiting_per_key,
        max_reservations,
        max_reservations_per_key,
        requests,
        limits,
        takes_loads,
        follows_fleet,
    } = loaded.config.decide;
    assert_eq!(http, Some(Endpoint::Tcp("127.0.0.1:9465".parse().unwrap())));
    assert_eq!((grpc, check, max_keys), (None, None, None));
    assert_eq!(requests, Vec::new());
    assert_eq!((max_waiting, max_waiting_per_key), (1_024, 64));
    assert_eq!(
        (max_reservations, max_reservations_per_key),
        (10_000, 1_000)
    );
    assert_eq!((escalate_from, takes_loads), (Vec::new(), false));
    assert!(!follows_fleet);
    let limit = &limits[0];
    assert_eq!(
        (limit.rates.burst, limit.initial, limit.refill_every),
        (600, 600, Duration::ZERO)
    );
    assert_eq!(
        (limit.rates.algorithm, limit.unit),
        (Algorithm::TokenBucket, RequestUnit::Requests)
    );
    assert_eq!((&limit.domain, limit.escalate), (&None, None));
}

#[test]
fn a_rate_by_the_calendar_has_a_time_zone_and_is_a_fixed_window() {
    let read = |lines: &str| {
        let text = limit(&format!("key = [\"user\"]\n{lines}"));
        let loaded = check(&text).unwrap_or_else(|report| panic!("{report}"));
        assert_eq!(loaded.warnings, [], "{lines}");
        loaded.config.decide.limits[0].clone()
    };
    for (lines, unit, zone, text) in [
        (
            "rate = \"1_000 / calendar-day\"",
            CalendarUnit::Day,
            "UTC",
            "1000/calendar-day",
        ),
        (
            "rate = \"9/calendar-month\"\ntime_zone = \"europe/berlin\"\nalgorithm = \"fixed-window\"\ntiers = [\"2/week\"]",
            CalendarUnit::Month,
            "Europe/Berlin",
            "9/calendar-month, 2/week",
        ),
    ] {
        let limit = read(lines);
        let calendar = limit.calendar.clone().unwrap();
        assert_eq!(
            (calendar.unit, calendar.zone.name()),
            (unit, zone),
            "{lines}"
        );
        assert_eq!(limit.rates.algorithm, Algorithm::FixedWindow, "{lines}");
        assert_eq!(limit.rate_text(), text);
    }
    assert_eq!(read("rate = \"9/day\"").calendar, None);
    // Of a misspelt period, its zone is no second error.
    let text = limit("key = \"user\"\nrate = \"9/calendar-year\"\ntime_zone = \"Asia/Tokyo\"");
    assert_eq!(check(&text).unwrap_err().errors.len(), 1);
}

#[test]
fn everything_that_can_be_written_is_read() {
    let text = limit(&format!(
        "{BASE}unit = \"credits\"\nburst = 100\ninitial = 50\nrefill_every = \"1s\"\ntiers = [\"9000/h\"]\ndomain = \"shop\"\n\
         on_full = \"share\"\nescalate = {{ after = 20, within = \"1m\", ban = \"5m\" }}"
    ))
    .replace("127.0.0.1:9465", "unix:/run/weir/decide.sock")
    .replace("[decide]", "[agent]\ninterfaces = [\"eth0\"]\n[decide]");
    let decide = check(&text)
        .unwrap_or_else(|report| panic!("{report}"))
        .config
        .decide;
    assert_eq!(
        decide.http,
        Some(Endpoint::Unix("/run/weir/decide.sock".into()))
    );
    let limit = &decide.limits[0];
    assert_eq!(
        (limit.rates.burst, limit.initial, limit.refill_every),
        (100, 50, Duration::from_secs(1))
    );
    let minutes = 60_000_000_000;
    assert_eq!(
        limit.escalate,
        Some(Escalate {
            after: 20,
            within: minutes,
            ban: 5 * minutes,
            grow: Multiplier::ONE,
            max: 5 * minutes
        })
    );
    assert_eq!(
        (limit.rate_text(), limit.domain.as_deref()),
        ("600/min, 9000/h".to_owned(), Some("shop"))
    );
}

/// `escalate` bans nobody over an endpoint that `escalate_from` does not list: a config from before this key is told so.
#[test]
fn an_escalate_that_no_client_may_cause_is_a_warning() {
    const HTTP: &str = "http = \"127.0.0.1:9465\"\n";
    const GRPC: &str = "grpc = \"127.0.0.1:8081\"\n";
    const ESCALATE: &str = "escalate = { after = 20, within = \"1m\", ban = \"5m\" }\n";
    let warnings = |decide: &str, more: &str| {
        let text = limit(&format!("{BASE}{more}"))
            .replace(HTTP, decide)
            .replace("[decide]", "[agent]\ninterfaces = [\"eth0\"]\n[decide]");
        let loaded = check(&text).unwrap_or_else(|report| panic!("{text}: {report}"));
        let words =
            |warning: &crate::report::Placed| format!("{}; {}", warning.message, warning.help);
        loaded.warnings.iter().map(words).collect::<Vec<_>>()
    };
    let from = |list: &str| format!("escalate_from = {list}\n");
    for (decide, named, help) in [
        (HTTP.to_owned(), "over http:", "[\"http\"]"),
        (GRPC.to_owned(), "over grpc:", "[\"grpc\"]"),
        (
            [HTTP, GRPC].concat(),
            "over http and grpc:",
            "[\"http\", \"grpc\"]",
        ),
        ([HTTP, &from("[]")].concat(), "over http:", "[\"http\"]"),
    ] {
        let found = warnings(&decide, ESCALATE);
        assert!(
            matches!(&found[..], [one] if one.contains("bans nobody") && one.contains(named)
                && one.contains(&format!("add escalate_from = {help} to [decide]"))),
            "{decide}: {found:?}"
        );
        // Without a ban there is nothing to permit.
        assert_eq!(warnings(&decide, ""), [""; 0], "{decide}");
    }
    for decide in [
        [HTTP, &from("[\"http\"]")].concat(),
        [HTTP, GRPC, &from("[\"grpc\"]")].concat(),
    ] {
        assert_eq!(warnings(&decide, ESCALATE), [""; 0], "{decide}");
    }
    let unset = warnings(&[HTTP, &from("[\"http\", \"grpc\"]")].concat(), ESCALATE);
    assert!(
        matches!(&unset[..], [one] if one.contains("\"grpc\" in escalate_from has no effect")),
        "{unset:?}"
    );
    let reachable = HTTP.replace("127.0.0.1", "0.0.0.0");
    for (decide, bans) in [
        (reachable.clone(), false),
        ([reachable, from("[\"http\"]")].concat(), true),
    ] {
        let found = warnings(&decide, "");
        let said = "use up allowances, and have any source banned by escalate;";
        assert!(
            matches!(&found[..], [one] if one.contains(said) == bans),
            "{found:?}"
        );
    }
}
