//! `[[group]]`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use common::limiter::Rate;
use toml::de::DeValue;

use super::policy::Unit;
use super::policy_group::{Cpu, CpuList, CpuShare, Group, Io, Matcher, Memory, Network};
use super::report::{Problems, Span};
use super::table::{Table, Value};
use super::units;

/// A group, and where its name stands.
pub struct ReadGroup {
    pub group: Group,
    pub name_span: Span,
}

/// The longest name: it is part of file names in bpffs, too.
const LONGEST_NAME: usize = 64;
const MATCH_EXAMPLE: &str = "[{ exe = \"/usr/bin/ffmpeg\" }]";
/// The most CPUs a kernel can have.
const MOST_CPUS: u32 = 8_192;

pub fn read(mut table: Table<'_, '_>) -> Option<ReadGroup> {
    table.required("name", "\"batch\"");
    let name = table.string("name", "\"batch\"");
    if let Some((text, span)) = &name {
        check_name(text, span.clone(), table.problems);
    }
    let matchers = matchers(&mut table);
    let cpu = inner(&mut table, "cpu", "{ max = \"150%\", weight = 50 }", cpu).unwrap_or_default();
    let memory = inner(&mut table, "memory", "{ max = \"1GiB\" }", memory).unwrap_or_default();
    let network = inner(&mut table, "network", "{ egress = \"100Mbit/s\" }", network).unwrap_or_default();
    let io = disks(&mut table);
    let pids = table.number("pids", 1, 4_194_304);
    let cpus = table.string("cpus", "\"0-1\"").and_then(|(text, span)| {
        let list = cpu_list(text);
        if list.is_none() {
            let help = "write CPUs and ranges of them, the lower first: cpus = \"0-1,4\"";
            table.problems.error(span, format!("{text:?} is no list of CPUs"), help);
        }
        list
    });
    let span = table.span();
    let (name, name_span) = match name {
        Some((name, span)) => (name.to_owned(), span),
        None => (String::new(), span),
    };
    let group = Group { name, matchers, cpu, memory, io, pids, cpus, network };
    if group.limit_texts().is_empty() {
        let help = "without one its processes are only counted: add cpu, memory, io, pids, cpus or network";
        table.problems.warning(name_span.clone(), "this group has no limit", help);
    }
    table.finish();
    (!group.name.is_empty()).then_some(ReadGroup { group, name_span })
}

/// One name twice would be one cgroup with two sets of limits.
pub fn check(groups: &[ReadGroup], problems: &mut Problems) {
    let mut names = HashMap::new();
    for read in groups {
        if names.insert(&read.group.name, ()).is_some() {
            let message = format!("there are two groups named {:?}", read.group.name);
            problems.error(read.name_span.clone(), message, "give one of them another name: it is that of its cgroup");
        }
    }
}

fn check_name(text: &str, span: Span, problems: &mut Problems) {
    if text.is_empty() {
        problems.error(span, "a group needs a name", "write name = \"batch\"");
        return;
    }
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if text.len() > LONGEST_NAME || !text.chars().all(is_plain) {
        let help = format!("write at most {LONGEST_NAME} letters, digits, dashes and underscores");
        problems.error(span, format!("{text:?} cannot be the name of a cgroup of Weir's"), help);
    }
}

/// Reads a table inside the group's.
fn inner<T>(
    table: &mut Table<'_, '_>,
    key: &'static str,
    example: &str,
    read: impl FnOnce(&mut Table<'_, '_>) -> T,
) -> Option<T> {
    let value = table.value(key)?;
    let DeValue::Table(content) = value.get_ref() else {
        table.wrong_type(key, value, &format!("a table: {key} = {example}"));
        return None;
    };
    let mut inside = Table::new(content, value.span(), key, table.problems);
    let read = read(&mut inside);
    inside.finish();
    Some(read)
}

fn matchers(table: &mut Table<'_, '_>) -> Vec<Matcher> {
    table.required("match", MATCH_EXAMPLE);
    let Some(values) = table.array("match", MATCH_EXAMPLE) else { return Vec::new() };
    if values.is_empty() {
        let span = table.span_of("match");
        table.problems.error(span, "nothing is matched, so nothing would be limited", format!("write {MATCH_EXAMPLE}"));
    }
    values.into_iter().filter_map(|value| matcher(table, value)).collect()
}

/// A kind of matcher, of its text.
type MakeMatcher = fn(String) -> Matcher;

fn matcher(table: &mut Table<'_, '_>, value: Value<'_>) -> Option<Matcher> {
    let DeValue::Table(content) = value.get_ref() else {
        table.wrong_type("match", value, &format!("tables of one key each: match = {MATCH_EXAMPLE}"));
        return None;
    };
    let mut inside = Table::new(content, value.span(), "match", table.problems);
    let mut found = Vec::new();
    if let Some((text, span)) = inside.string("exe", "\"/usr/bin/ffmpeg\"") {
        if text.starts_with('/') {
            found.push(Matcher::Exe(PathBuf::from(text)));
        } else {
            inside.problems.error(span, format!("{text:?} is not an absolute path"), "begin it with /");
        }
    }
    let texts: [(&'static str, &str, MakeMatcher); 4] = [
        ("user", "\"batch\"", Matcher::User),
        ("command", "\"*encode*\"", Matcher::Command),
        ("unit", "\"nightly.service\"", Matcher::Unit),
        ("cgroup", "\"/user.slice/*\"", Matcher::Cgroup),
    ];
    for (key, example, make) in texts {
        if let Some((text, span)) = inside.string(key, example) {
            if text.is_empty() {
                inside.problems.error(
                    span,
                    format!("an empty {key} matches nothing"),
                    format!("write {key} = {example}"),
                );
            } else {
                found.push(make(text.to_owned()));
            }
        }
    }
    if let Some(pid) = inside.number("pid", 2, 4_194_304) {
        found.push(Matcher::Pid(u32::try_from(pid).unwrap_or(u32::MAX)));
    }
    let one = if found.len() == 1 { found.pop() } else { None };
    if !found.is_empty() {
        let help = "write each in braces of its own: any one of them is enough";
        inside.problems.error(value.span(), "two conditions in one pair of braces", help);
    } else if content.is_empty() {
        inside.problems.error(value.span(), "this matches nothing", format!("write {MATCH_EXAMPLE}"));
    }
    inside.finish();
    one
}

fn cpu(table: &mut Table<'_, '_>) -> Cpu {
    let max = table.string("max", "\"150%\"").and_then(|(text, span)| {
        let number = text.strip_suffix('%').and_then(|number| number.trim().parse::<f64>().ok());
        let number = number.filter(|percent| (1.0..=f64::from(MOST_CPUS) * 100.0).contains(percent));
        if number.is_none() {
            let help = "write percent of one CPU, at least 1: max = \"150%\" is one CPU and a half";
            table.problems.error(span, format!("{text:?} is no share of CPU time"), help);
        }
        number.map(CpuShare::from_percent)
    });
    let weight = table.number("weight", 1, 10_000).and_then(|weight| u32::try_from(weight).ok());
    let elastic = table.value("elastic").is_some_and(|value| match value.get_ref().as_bool() {
        Some(elastic) => elastic,
        None => {
            table.wrong_type("elastic", value, "true or false");
            false
        }
    });
    if elastic && max.is_none() {
        let span = table.span_of("elastic");
        table.problems.error(span, "there is no max that could be elastic", "add max = \"150%\", or leave out elastic");
    }
    Cpu { max, weight, elastic }
}

fn memory(table: &mut Table<'_, '_>) -> Memory {
    let high = size(table, "high", 1);
    let max = size(table, "max", 1);
    let swap_max = size(table, "swap_max", 0);
    if let (Some(high), Some(max)) = (high, max)
        && high > max
    {
        let span = table.span_of("high");
        table.problems.error(span, "high is above max, and could never be reached", "write a high below max");
    }
    Memory { high, max, swap_max }
}

fn size(table: &mut Table<'_, '_>, key: &'static str, least: u64) -> Option<u64> {
    let value = table.value(key)?;
    let Some(text) = value.get_ref().as_str() else {
        table.problems.error(value.span(), format!("{key} needs a unit"), format!("write {key} = \"512MiB\""));
        return None;
    };
    match units::size(text) {
        Ok(size) if size >= least => Some(size),
        Ok(_) => {
            table.problems.error(value.span(), format!("no process lives with {key} = {text:?}"), "write more");
            None
        }
        Err(wrong) => {
            table.problems.error(value.span(), wrong.message, wrong.help);
            None
        }
    }
}

fn network(table: &mut Table<'_, '_>) -> Network {
    let egress = rate(table, "egress", Unit::Bytes, "\"100Mbit/s\"");
    Network { egress, ingress: rate(table, "ingress", Unit::Bytes, "\"200Mbit/s\"") }
}

fn rate(table: &mut Table<'_, '_>, key: &'static str, unit: Unit, example: &str) -> Option<Rate> {
    let (text, span) = table.string(key, example)?;
    match units::rate(text, unit) {
        Ok(rate) => Some(rate),
        Err(wrong) => {
            table.problems.error(span, wrong.message, wrong.help);
            None
        }
    }
}

/// A rate that the kernel takes by the second.
fn per_second(table: &mut Table<'_, '_>, key: &'static str, unit: Unit, example: &str) -> Option<u64> {
    let rate = rate(table, key, unit, example)?;
    let each = u128::from(rate.count) * 1_000_000_000 / u128::from(rate.per_nanoseconds);
    let each = u64::try_from(each).ok().filter(|each| *each > 0);
    if each.is_none() {
        let span = table.span_of(key);
        table.problems.error(
            span,
            "the kernel holds disks to whole numbers a second",
            format!("write {key} = {example}"),
        );
    }
    each
}

fn disks(table: &mut Table<'_, '_>) -> Vec<Io> {
    const EXAMPLE: &str = "[{ device = \"/dev/vda\", read = \"50MB/s\" }]";
    let mut disks: Vec<Io> = Vec::new();
    for value in table.array("io", EXAMPLE).unwrap_or_default() {
        let DeValue::Table(content) = value.get_ref() else {
            table.wrong_type("io", value, &format!("a table for each disk: io = {EXAMPLE}"));
            continue;
        };
        let mut inside = Table::new(content, value.span(), "io", table.problems);
        inside.required("device", "\"/dev/vda\"");
        let device = inside.string("device", "\"/dev/vda\"").map(|(text, span)| {
            if !text.starts_with('/') {
                inside.problems.error(span.clone(), format!("{text:?} is not an absolute path"), "begin it with /");
            } else if disks.iter().any(|disk| disk.device == Path::new(text)) {
                inside.problems.error(
                    span,
                    format!("{text} is said twice"),
                    "put all its limits into one pair of braces",
                );
            }
            PathBuf::from(text)
        });
        let disk = Io {
            device: device.clone().unwrap_or_default(),
            read: per_second(&mut inside, "read", Unit::Bytes, "\"50MB/s\""),
            write: per_second(&mut inside, "write", Unit::Bytes, "\"20MB/s\""),
            read_ops: per_second(&mut inside, "read_ops", Unit::Requests, "\"500/s\""),
            write_ops: per_second(&mut inside, "write_ops", Unit::Requests, "\"500/s\""),
        };
        inside.finish();
        if content.len() < 2 {
            table.problems.error(value.span(), "this disk has no limit", format!("write io = {EXAMPLE}"));
        }
        disks.extend(device.map(|_| disk));
    }
    disks
}

fn cpu_list(text: &str) -> Option<CpuList> {
    let cpu = |text: &str| text.trim().parse::<u32>().ok().filter(|cpu| *cpu < MOST_CPUS);
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if cpu(first)? > cpu(last)? {
            return None;
        }
    }
    Some(CpuList(text.split(',').map(str::trim).collect::<Vec<_>>().join(",")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::parse;

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
        let [group] = config.groups.as_slice() else { panic!("{config:?}") };
        assert_eq!(group.matchers, [Matcher::Pid(7)]);
        assert_eq!(group.cpu.max.unwrap().quota_microseconds(), 150_000);
        assert_eq!((group.cpu.weight, group.cpu.elastic), (Some(50), true));
        assert_eq!(group.memory, Memory { high: Some(1 << 30), max: Some(1536 << 20), swap_max: Some(0) });
        assert_eq!((group.io[0].read, group.io[0].write_ops, group.io[0].write), (Some(50_000_000), Some(500), None));
        assert_eq!((group.pids, group.cpus.as_ref().unwrap().to_string()), (Some(200), "0-1,3".to_owned()));
        let egress = group.network.egress.unwrap();
        assert_eq!(u128::from(egress.count) * 1_000_000_000, 12_500_000 * u128::from(egress.per_nanoseconds));
    }

    #[test]
    fn what_is_wrong_with_a_group_is_told_with_its_place_and_what_to_write() {
        for (text, line, message, help) in [
            ("[[group]]\nmatch = [{ pid = 7 }]\npids = 5".to_owned(), 1, "has no name", "name = \"batch\""),
            ("[[group]]\nname = \"a\"\npids = 5".to_owned(), 1, "has no match", "ffmpeg"),
            ("[[group]]\nname = \"a/b\"\nmatch = [{ pid = 7 }]".to_owned(), 2, "cannot be the name", "letters"),
            ("[[group]]\nname = \"a\"\nmatch = []".to_owned(), 3, "nothing is matched", "ffmpeg"),
            ("[[group]]\nname = \"a\"\nmatch = [{}]".to_owned(), 3, "matches nothing", "ffmpeg"),
            ("[[group]]\nname = \"a\"\nmatch = [{ exe = \"a\" }]".to_owned(), 3, "absolute path", "begin it with /"),
            (
                "[[group]]\nname = \"a\"\nmatch = [{ pid = 7, user = \"b\" }]".to_owned(),
                3,
                "two conditions",
                "braces of its own",
            ),
            (format!("{}{}", group("pids = 5"), group("pids = 5")), 6, "two groups named \"a\"", "another name"),
            (group("cpu = { max = 150 }"), 4, "max is an integer", "\"150%\""),
            (group("cpu = { max = \"0%\" }"), 4, "no share of CPU time", "at least 1"),
            (group("cpu = { elastic = true }"), 4, "no max that could be elastic", "add max"),
            (group("cpu = { maximum = \"5%\" }"), 4, "no key \"maximum\"", "write one of"),
            (group("memory = { max = 5 }"), 4, "needs a unit", "512MiB"),
            (group("memory = { max = \"0B\" }"), 4, "no process lives", "write more"),
            (group("memory = { high = \"2GiB\", max = \"1GiB\" }"), 4, "high is above max", "below max"),
            (group("io = [{ device = \"vda\", read = \"1MB/s\" }]"), 4, "absolute path", "begin it with /"),
            (group("io = [{ device = \"/dev/vda\" }]"), 4, "no limit", "read = \"50MB/s\""),
            (group("io = [{ device = \"/dev/vda\", read = \"50/s\" }]"), 4, "needs a unit", "50kB/s"),
            (group("io = [{ device = \"/dev/vda\", read_ops = \"1/h\" }]"), 4, "whole numbers a second", "500/s"),
            (group("pids = 0"), 4, "out of range", "from 1"),
            (group("cpus = \"1-0\""), 4, "no list of CPUs", "0-1,4"),
            (group("network = { egress = \"0Mbit/s\" }"), 4, "rate of 0", "above 0"),
        ] {
            let report = parse(Path::new("limits.toml"), &text).unwrap_err();
            let found = report
                .errors
                .iter()
                .any(|error| error.line == line && error.message.contains(message) && error.help.contains(help));
            assert!(found, "{text}\n{report}");
        }
    }
}
