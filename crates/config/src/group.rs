//! `[[group]]`.

use std::collections::HashMap;
use std::path::PathBuf;

use toml::de::DeValue;

use super::group_resources::{cpu, cpu_list, disks, inner, memory, network};
use super::policy_group::{Group, Matcher, Moving};
use super::report::{Problems, Span};
use super::table::{Table, Value};

/// A group and its name's span.
pub struct ReadGroup {
    pub group: Group,
    pub name_span: Span,
}

/// The longest name, in bytes: it is part of file names in bpffs.
const LONGEST_NAME: usize = 64;
const MATCH_EXAMPLE: &str = "[{ exe = \"/usr/bin/ffmpeg\" }]";

pub fn read(mut table: Table<'_, '_>) -> Option<ReadGroup> {
    table.required("name", "\"batch\"");
    let name = table.string("name", "\"batch\"");
    if let Some((text, span)) = &name {
        check_name(text, span.clone(), table.problems);
    }
    let matchers = matchers(&mut table);
    let moving = moving(&mut table);
    let cpu = inner(&mut table, "cpu", "{ max = \"150%\", weight = 50 }", cpu).unwrap_or_default();
    let memory = inner(&mut table, "memory", "{ max = \"1GiB\" }", memory).unwrap_or_default();
    let network =
        inner(&mut table, "network", "{ egress = \"100Mbit/s\" }", network).unwrap_or_default();
    let io = disks(&mut table);
    let pids = table.number("pids", 1, 4_194_304);
    let cpus = table.string("cpus", "\"0-1\"").and_then(|(text, span)| {
        let list = cpu_list(text);
        if list.is_none() {
            let help = "write CPUs and ranges of them, the lower first: cpus = \"0-1,4\"";
            table
                .problems
                .error(span, format!("invalid CPU list {text:?}"), help);
        }
        list
    });
    let span = table.span();
    let (name, name_span) = match name {
        Some((name, span)) => (name.to_owned(), span),
        None => (String::new(), span),
    };
    let group = Group {
        name,
        matchers,
        moving,
        cpu,
        memory,
        io,
        pids,
        cpus,
        network,
    };
    if group.limit_texts().is_empty() {
        let help = "add cpu, memory, io, pids, cpus or network; without a limit its processes are only counted";
        table
            .problems
            .warning(name_span.clone(), "this group has no limit", help);
    }
    table.finish();
    (!group.name.is_empty()).then_some(ReadGroup { group, name_span })
}

/// Reports duplicate names: both groups would use one cgroup.
pub fn check(groups: &[ReadGroup], problems: &mut Problems) {
    let mut names = HashMap::new();
    for read in groups {
        if names.insert(&read.group.name, ()).is_some() {
            let message = format!("duplicate group name {:?}", read.group.name);
            problems.error(
                read.name_span.clone(),
                message,
                "give one of them another name: the cgroup has it too",
            );
        }
    }
}

fn check_name(text: &str, span: Span, problems: &mut Problems) {
    if text.is_empty() {
        problems.error(span, "empty name of a group", "write name = \"batch\"");
        return;
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if text.len() > LONGEST_NAME || !text.chars().all(is_plain) {
        let help = format!("write at most {LONGEST_NAME} letters, digits, dashes and underscores");
        problems.error(span, format!("invalid group name {text:?}"), help);
    }
}

/// The conditions in `match` and directly in the group's table.
fn matchers(table: &mut Table<'_, '_>) -> Vec<Matcher> {
    let mut found = conditions(table);
    if found.is_empty() {
        table.required("match", MATCH_EXAMPLE);
    }
    let Some(values) = table.array("match", MATCH_EXAMPLE) else {
        return found;
    };
    if values.is_empty() {
        let span = table.span_of("match");
        table.problems.error(
            span,
            "match is empty, so that nothing would be limited",
            format!("write {MATCH_EXAMPLE}"),
        );
    }
    found.extend(values.into_iter().filter_map(|value| matcher(table, value)));
    found
}

/// Makes a matcher from its text.
type MakeMatcher = fn(String) -> Matcher;

fn matcher(table: &mut Table<'_, '_>, value: Value<'_>) -> Option<Matcher> {
    let DeValue::Table(content) = value.get_ref() else {
        table.wrong_type(
            "match",
            value,
            &format!("tables of one key each: match = {MATCH_EXAMPLE}"),
        );
        return None;
    };
    let mut inside = Table::new(content, value.span(), "match", table.problems);
    let mut found = conditions(&mut inside);
    let one = if found.len() == 1 { found.pop() } else { None };
    if !found.is_empty() {
        let help = "write each as a table of its own; a process that meets any of them is a member";
        inside.problems.error(
            value.span(),
            "several conditions in one table of match",
            help,
        );
    } else if content.is_empty() {
        inside.problems.error(
            value.span(),
            "empty condition in match",
            format!("write {MATCH_EXAMPLE}"),
        );
    }
    inside.finish();
    one
}

fn conditions(table: &mut Table<'_, '_>) -> Vec<Matcher> {
    let mut found = Vec::new();
    if let Some((text, span)) = table.string("exe", "\"/usr/bin/ffmpeg\"") {
        if text.starts_with('/') {
            found.push(Matcher::Exe(PathBuf::from(text)));
        } else {
            table.problems.error(
                span,
                format!("{text:?} is not an absolute path"),
                "begin it with /",
            );
        }
    }
    let texts: [(&'static str, &str, MakeMatcher); 6] = [
        ("user", "\"batch\"", Matcher::User),
        ("command", "\"*encode*\"", Matcher::Command),
        ("unit", "\"nightly.service\"", Matcher::Unit),
        ("slice", "\"machine.slice\"", Matcher::Slice),
        ("container", "\"web*\"", Matcher::Container),
        ("cgroup", "\"/user.slice/*\"", Matcher::Cgroup),
    ];
    for (key, example, make) in texts {
        let Some((text, span)) = table.string(key, example) else {
            continue;
        };
        let help = match key {
            "slice" if !text.ends_with(".slice") => {
                "a slice's name ends with .slice: write slice = \"machine.slice\""
            }
            "cgroup" if !text.starts_with(['/', '*']) => {
                "a cgroup's path begins with /: write cgroup = \"/user.slice/*\""
            }
            _ if text.is_empty() => "write a name, or a pattern with * and ?",
            _ => {
                found.push(make(text.to_owned()));
                continue;
            }
        };
        table.problems.error(
            span,
            format!("invalid {key} {text:?}: it matches nothing"),
            help,
        );
    }
    if let Some(pid) = table.number("pid", 2, 4_194_304) {
        found.push(Matcher::Pid(u32::try_from(pid).unwrap_or(u32::MAX)));
    }
    found
}

/// `move`: true, false or "force".
fn moving(table: &mut Table<'_, '_>) -> Moving {
    let Some(value) = table.value("move") else {
        return Moving::Never;
    };
    match (value.get_ref().as_bool(), value.get_ref().as_str()) {
        (Some(false), _) => Moving::Never,
        (Some(true), _) => Moving::Unrestricted,
        (None, Some("force")) => Moving::Force,
        (None, Some(text)) => {
            let help = "write true, false or \"force\"";
            table
                .problems
                .error(value.span(), format!("invalid move {text:?}"), help);
            Moving::Never
        }
        (None, None) => {
            table.wrong_type("move", value, "true, false or \"force\"");
            Moving::Never
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::parse;
    use crate::policy_group::Memory;

    /// A limits.toml of one group with these lines.
    fn group(lines: &str) -> String {
        format!("[[group]]\nname = \"a\"\nmatch = [{{ pid = 7 }}]\n{lines}\n")
    }

    #[test]
    fn a_whole_group_is_read() {
        let text = group(
            "cpu = { max = \"150%\", weight = 50, elastic = true }\n\
             memory = { high = \"1GiB\", max = \"1536MiB\", swap_max = \"0B\" }\n\
             io = [{ device = \"/dev/vda\", read = \"50MB/s\", write_ops = \"500/s\" }]\n\
             pids = 200\ncpus = \"0-1, 3\"\nnetwork = { egress = \"100Mbit/s\" }",
        );
        let config = parse(Path::new("limits.toml"), &text).unwrap().config;
        let [group] = config.groups.as_slice() else {
            panic!("{config:?}")
        };
        assert_eq!(group.matchers, [Matcher::Pid(7)]);
        assert_eq!(group.cpu.max.unwrap().quota_microseconds(), 150_000);
        assert_eq!((group.cpu.weight, group.cpu.elastic), (Some(50), true));
        assert_eq!(
            group.memory,
            Memory {
                high: Some(1 << 30),
                max: Some(1536 << 20),
                swap_max: Some(0)
            }
        );
        assert_eq!(
            (group.io[0].read, group.io[0].write_ops, group.io[0].write),
            (Some(50_000_000), Some(500), None)
        );
        assert_eq!(
            (group.pids, group.cpus.as_ref().unwrap().to_string()),
            (Some(200), "0-1,3".to_owned())
        );
        let egress = group.network.egress.unwrap();
        assert_eq!(
            u128::from(egress.count) * 1_000_000_000,
            12_500_000 * u128::from(egress.per_nanoseconds)
        );
    }

    #[test]
    fn conditions_stand_in_match_or_in_the_group_itself() {
        for (line, expected) in [
            (
                "container = \"web*\"",
                vec![Matcher::Container("web*".to_owned())],
            ),
            (
                "unit = \"a.service\"",
                vec![Matcher::Unit("a.service".to_owned())],
            ),
            (
                "slice = \"machine.slice\"\nmatch = [{ container = \"app=web\" }]",
                vec![
                    Matcher::Slice("machine.slice".to_owned()),
                    Matcher::Container("app=web".to_owned()),
                ],
            ),
        ] {
            let text = format!("[[group]]\nname = \"a\"\npids = 5\n{line}\n");
            let config = parse(Path::new("limits.toml"), &text).unwrap().config;
            assert_eq!(config.groups[0].matchers, expected, "{line}");
        }
        for (word, expected) in [
            ("false", Moving::Never),
            ("true", Moving::Unrestricted),
            ("\"force\"", Moving::Force),
        ] {
            let config = parse(
                Path::new("limits.toml"),
                &group(&format!("pids = 5\nmove = {word}")),
            )
            .unwrap()
            .config;
            assert_eq!(config.groups[0].moving, expected);
        }
    }

    #[test]
    fn what_is_wrong_with_a_group_is_told_with_its_place_and_what_to_write() {
        for (text, line, message, help) in [
            (
                "[[group]]\nmatch = [{ pid = 7 }]\npids = 5".to_owned(),
                1,
                "missing key \"name\"",
                "name = \"batch\"",
            ),
            (
                "[[group]]\nname = \"a\"\npids = 5".to_owned(),
                1,
                "missing key \"match\"",
                "ffmpeg",
            ),
            (group("move = \"yes\""), 4, "invalid move", "\"force\""),
            (group("move = 1"), 4, "move is an integer", "\"force\""),
            (group("slice = \"machine\""), 4, "matches nothing", ".slice"),
            (
                group("cgroup = \"user.slice\""),
                4,
                "matches nothing",
                "begins with /",
            ),
            (group("container = \"\""), 4, "matches nothing", "pattern"),
            (
                "[[group]]\nname = \"a/b\"\nmatch = [{ pid = 7 }]".to_owned(),
                2,
                "invalid group name \"a/b\"",
                "letters",
            ),
            (
                "[[group]]\nname = \"a\"\nmatch = []".to_owned(),
                3,
                "match is empty",
                "ffmpeg",
            ),
            (
                "[[group]]\nname = \"a\"\nmatch = [{}]".to_owned(),
                3,
                "empty condition",
                "ffmpeg",
            ),
            (
                "[[group]]\nname = \"a\"\nmatch = [{ exe = \"a\" }]".to_owned(),
                3,
                "absolute path",
                "begin it with /",
            ),
            (
                "[[group]]\nname = \"a\"\nmatch = [{ pid = 7, user = \"b\" }]".to_owned(),
                3,
                "several conditions",
                "table of its own",
            ),
            (
                format!("{}{}", group("pids = 5"), group("pids = 5")),
                6,
                "duplicate group name \"a\"",
                "another name",
            ),
            (
                group("cpu = { max = 150 }"),
                4,
                "max is an integer",
                "\"150%\"",
            ),
            (
                group("cpu = { max = \"0%\" }"),
                4,
                "invalid share of CPU time",
                "at least 1",
            ),
            (
                group("cpu = { elastic = true }"),
                4,
                "elastic requires max",
                "add max",
            ),
            (
                group("cpu = { maximum = \"5%\" }"),
                4,
                "unknown key \"maximum\" in cpu",
                "write one of",
            ),
            (
                group("memory = { max = 5 }"),
                4,
                "requires a unit",
                "512MiB",
            ),
            (
                group("memory = { max = \"0B\" }"),
                4,
                "leaves no memory",
                "512MiB",
            ),
            (
                group("memory = { high = \"2GiB\", max = \"1GiB\" }"),
                4,
                "high is above max",
                "below max",
            ),
            (
                group("io = [{ device = \"vda\", read = \"1MB/s\" }]"),
                4,
                "absolute path",
                "begin it with /",
            ),
            (
                group("io = [{ device = \"/dev/vda\" }]"),
                4,
                "missing limit",
                "read = \"50MB/s\"",
            ),
            (
                group("io = [{ device = \"/dev/vda\", read = \"50/s\" }]"),
                4,
                "requires a unit",
                "50kB/s",
            ),
            (
                group("io = [{ device = \"/dev/vda\", read_ops = \"1/h\" }]"),
                4,
                "below 1 per second",
                "500/s",
            ),
            (group("pids = 0"), 4, "out of range", "from 1"),
            (group("cpus = \"1-0\""), 4, "invalid CPU list", "0-1,4"),
            (
                group("network = { egress = \"0Mbit/s\" }"),
                4,
                "rate of 0",
                "above 0",
            ),
        ] {
            let report = parse(Path::new("limits.toml"), &text).unwrap_err();
            let found = report.errors.iter().any(|error| {
                error.line == line && error.message.contains(message) && error.help.contains(help)
            });
            assert!(found, "{text}\n{report}");
        }
    }
}
