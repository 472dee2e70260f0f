use std::collections::BTreeSet;
use std::path::Path;
use std::{env, fs};

use super::markdown::pages;
use super::*;
use crate::policy::Config;
use crate::schema::{Key, Kind, TableReference, inner_keys};
use crate::{Loaded, parse};

const UNKNOWN: &str = "a_key_that_no_table_of_this_file_has";

fn read(text: &str) -> Result<Loaded, crate::report::Report> {
    parse(Path::new("limits.toml"), text)
}

/// The keys that the predicate selects, each with its table.
fn keys(choose: fn(&Key) -> bool) -> impl Iterator<Item = (&'static TableReference, &'static Key)> {
    TABLES.iter().flat_map(move |table| {
        table
            .keys
            .iter()
            .filter(move |key| choose(key))
            .map(move |key| (table, key))
    })
}

/// The table's example with this line, which replaces the key's line if there is one.
fn example_with(table: &TableReference, key: &str, line: &str) -> String {
    let mut text = String::new();
    let mut is_inside = false;
    for existing in table.example.lines() {
        if existing.starts_with('[') {
            is_inside = existing == table.heading;
        }
        if !(is_inside && existing.starts_with(&format!("{key} = "))) {
            text.push_str(existing);
            text.push('\n');
        }
        if existing == table.heading {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

/// The keys that the parser lists in its error about an unknown one.
fn known_to_the_parser(text: &str) -> BTreeSet<String> {
    let report = read(text).map(|_| text.to_owned()).unwrap_err();
    let problem = report
        .errors
        .iter()
        .find(|error| error.message.contains(UNKNOWN));
    let problem = problem.unwrap_or_else(|| panic!("{text}\n{report}"));
    let known = problem
        .help
        .strip_prefix("write one of ")
        .unwrap_or_else(|| panic!("{}", problem.help));
    known.split(", ").map(str::to_owned).collect()
}

fn names(keys: &[&Key]) -> BTreeSet<String> {
    keys.iter().map(|key| key.name.to_owned()).collect()
}

#[test]
fn examples_are_valid() {
    for table in TABLES {
        let loaded =
            read(table.example).unwrap_or_else(|report| panic!("{}\n{report}", table.example));
        let misleads = |message: &str| !message.contains("applications cannot query");
        let warnings: Vec<_> = loaded
            .warnings
            .iter()
            .filter(|warning| misleads(&warning.message))
            .collect();
        assert!(warnings.is_empty(), "{}: {warnings:?}", table.page);
    }
}

#[test]
fn keys_are_those_of_the_parser() {
    for table in TABLES {
        let known = known_to_the_parser(&example_with(table, UNKNOWN, &format!("{UNKNOWN} = 1")));
        let listed = names(&table.keys.iter().collect::<Vec<_>>());
        assert_eq!(known, listed, "{}", table.page);
    }
}

#[test]
fn keys_of_inner_tables_are_those_of_the_parser() {
    let mut tables = 0;
    for (table, key) in keys(|key| !inner_keys(&key.kind).is_empty()) {
        let inner = inner_keys(&key.kind);
        for first in &inner {
            let content = format!("{{ {}, {UNKNOWN} = 1 }}", first.example());
            let is_list = matches!(key.kind, Kind::List(_));
            let content = if is_list {
                format!("[{content}]")
            } else {
                content
            };
            let known = known_to_the_parser(&example_with(
                table,
                key.name,
                &format!("{} = {content}", key.name),
            ));
            assert!(
                known.contains(first.name) && known.is_subset(&names(&inner)),
                "{}: {known:?}",
                key.name
            );
            tables += 1;
        }
    }
    assert!(tables > 10, "{tables}");
}

#[test]
fn a_written_default_changes_nothing() {
    let config = |text: &str| -> Config {
        read(text)
            .unwrap_or_else(|report| panic!("{text}\n{report}"))
            .config
    };
    let mut defaults = 0;
    for (table, key) in keys(|_| true) {
        if let Some(default) = key.default.toml() {
            let written = example_with(table, key.name, &format!("{} = {default}", key.name));
            assert_eq!(
                config(&written),
                config(&example_with(table, key.name, "")),
                "{} {}",
                table.page,
                key.name
            );
            defaults += 1;
        }
        for inner in inner_keys(&key.kind) {
            if let Some(default) = inner.default.toml() {
                let line = |content: String| format!("{} = {{ {content} }}", key.name);
                let written = example_with(
                    table,
                    key.name,
                    &line(format!("{} = {default}", inner.name)),
                );
                let absent = example_with(table, key.name, &line(String::new()));
                assert_eq!(
                    config(&written),
                    config(&absent),
                    "{} {}.{}",
                    table.page,
                    key.name,
                    inner.name
                );
                defaults += 1;
            }
        }
    }
    assert!(defaults > 20, "{defaults}");
}

#[test]
fn ranges_are_those_of_the_parser() {
    for (table, key) in keys(|key| matches!(key.kind, Kind::Integer(..) | Kind::Number(..))) {
        let errors = |number: String| -> Vec<String> {
            let text = example_with(table, key.name, &format!("{} = {number}", key.name));
            let report = read(&text).map_or_else(|report| report.errors, |_| Vec::new());
            // Other errors report a conflict with other keys.
            let of_range = |message: &String| message.contains("out of range");
            report
                .into_iter()
                .map(|error| error.message)
                .filter(of_range)
                .collect()
        };
        let (least, most) = key.bounds(&key.kind);
        let (inside, outside) = match key.kind {
            Kind::Integer(..) => {
                let below = (least > 0.0).then(|| (least - 1.0).to_string());
                let outside = below.into_iter().chain([(most + 1.0).to_string()]);
                (vec![least.to_string(), most.to_string()], outside.collect())
            }
            _ => (
                vec![format!("{least:?}"), format!("{most:?}")],
                vec![format!("{:?}", least / 10.0), format!("{:?}", most * 2.0)],
            ),
        };
        for number in inside {
            assert_eq!(
                errors(number.clone()),
                [""; 0],
                "{} {} = {number}",
                table.page,
                key.name
            );
        }
        for number in outside {
            assert_ne!(
                errors(number.clone()),
                [""; 0],
                "{} {} = {number}",
                table.page,
                key.name
            );
        }
    }
}

#[test]
fn the_schema_accepts_what_the_parser_accepts() {
    let schema = jsonschema::draft7::new(&schema()).unwrap();
    let instance = |text: &str| serde_json::to_value(text.parse::<toml::Table>().unwrap()).unwrap();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../config");
    let files = fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut texts: Vec<String> = files
        .filter(|path| path.extension().is_some_and(|end| end == "toml"))
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    assert!(texts.len() >= 4);
    texts.extend(TABLES.iter().map(|table| table.example.to_owned()));
    for text in texts {
        let errors: Vec<String> = schema
            .iter_errors(&instance(&text))
            .map(|error| error.to_string())
            .collect();
        assert!(errors.is_empty(), "{text}\n{errors:?}");
    }
    for text in [
        "[agent]\ninterface = [\"eth0\"]",
        "[agent]\nmode = \"enforced\"",
        "[agent]\nmax_sources = 0",
        "[[limit]]\nname = \"a\"",
        "[[limit]]\nname = \"a\"\nrate = \"1000\"",
        "[[limit]]\nname = \"a\"\nrate = \"10/s\"\nescalate = {}",
        "[[limit]]\nname = \"a\"\nrate = \"10/s\"\nscope = \"request\"\nkey = [\"user\"]\nports = [80]",
        "[[group]]\nname = \"a\"\nmatch = [{ pid = 7, user = \"b\" }]",
        "[cluster]\nstore = \"redis://one\"\nsync = 100",
    ] {
        assert!(!schema.is_valid(&instance(text)), "{text}");
    }
}

#[test]
fn the_pages_are_those_in_docs() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/config");
    for (name, text) in pages() {
        let path = folder.join(&name);
        if env::var_os("WEIR_REFERENCE").is_some_and(|value| value == "write") {
            fs::create_dir_all(&folder).unwrap();
            fs::write(&path, &text).unwrap();
        }
        let fix = "run `WEIR_REFERENCE=write cargo test -p agent -p config --lib -- in_docs`";
        assert!(
            fs::read_to_string(&path).is_ok_and(|page| page == text),
            "docs/reference/config/{name} is outdated: {fix}"
        );
    }
}
