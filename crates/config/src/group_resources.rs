//! The resources of a group: CPU time, memory, network and disks.

use std::path::{Path, PathBuf};

use common::limiter::Rate;
use toml::de::DeValue;

use super::policy::Unit;
use super::policy_group::{Cpu, CpuList, CpuShare, Io, Memory, Network};
use super::table::Table;
use super::units;

/// The largest number of destinations; the kernel's table has four times as many entries.
const MOST_DESTINATIONS: u64 = 100_000;

/// The most CPUs that a kernel supports.
const MOST_CPUS: u32 = 8_192;

/// Reads a table inside the group's.
pub fn inner<T>(
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

pub fn cpu(table: &mut Table<'_, '_>) -> Cpu {
    let max = table.string("max", "\"150%\"").and_then(|(text, span)| {
        let number = text
            .strip_suffix('%')
            .and_then(|number| number.trim().parse::<f64>().ok());
        let number =
            number.filter(|percent| (1.0..=f64::from(MOST_CPUS) * 100.0).contains(percent));
        if number.is_none() {
            let help = "write percent of one CPU, at least 1: max = \"150%\" is one CPU and a half";
            table
                .problems
                .error(span, format!("invalid share of CPU time {text:?}"), help);
        }
        number.map(CpuShare::from_percent)
    });
    let weight = table
        .number("weight", 1, 10_000)
        .and_then(|weight| u32::try_from(weight).ok());
    let elastic = table
        .value("elastic")
        .is_some_and(|value| match value.get_ref().as_bool() {
            Some(elastic) => elastic,
            None => {
                table.wrong_type("elastic", value, "true or false");
                false
            }
        });
    if elastic && max.is_none() {
        let span = table.span_of("elastic");
        table.problems.error(
            span,
            "elastic requires max",
            "add max = \"150%\", or leave out elastic",
        );
    }
    Cpu {
        max,
        weight,
        elastic,
    }
}

pub fn memory(table: &mut Table<'_, '_>) -> Memory {
    let high = size(table, "high", 1);
    let max = size(table, "max", 1);
    let swap_max = size(table, "swap_max", 0);
    if let (Some(high), Some(max)) = (high, max)
        && high > max
    {
        let span = table.span_of("high");
        table.problems.error(
            span,
            "high is above max, and would have no effect",
            "write a high below max",
        );
    }
    Memory {
        high,
        max,
        swap_max,
    }
}

pub fn size(table: &mut Table<'_, '_>, key: &'static str, least: u64) -> Option<u64> {
    let value = table.value(key)?;
    let Some(text) = value.get_ref().as_str() else {
        table.problems.error(
            value.span(),
            format!("{key} requires a unit"),
            format!("write {key} = \"512MiB\""),
        );
        return None;
    };
    match units::size(text) {
        Ok(size) if size >= least => Some(size),
        Ok(_) => {
            table.problems.error(
                value.span(),
                format!("{key} = {text:?} leaves no memory"),
                format!("write {key} = \"512MiB\""),
            );
            None
        }
        Err(wrong) => {
            table
                .problems
                .error(value.span(), wrong.message, wrong.help);
            None
        }
    }
}

pub fn network(table: &mut Table<'_, '_>) -> Network {
    let destinations = rate(table, "destinations", Unit::Connections, "\"100/min\"");
    if destinations.is_some_and(|rate| rate.count > MOST_DESTINATIONS) {
        let span = table.span_of("destinations");
        let message = format!("more than {MOST_DESTINATIONS} destinations are not supported");
        table
            .problems
            .error(span, message, "write a shorter period, as in \"1000/s\"");
    }
    Network {
        egress: rate(table, "egress", Unit::Bytes, "\"100Mbit/s\""),
        ingress: rate(table, "ingress", Unit::Bytes, "\"200Mbit/s\""),
        connects: rate(table, "connects", Unit::Connections, "\"20/s\""),
        destinations,
        packets: rate(table, "packets", Unit::Packets, "\"10000/s\""),
    }
}

pub fn rate(
    table: &mut Table<'_, '_>,
    key: &'static str,
    unit: Unit,
    example: &str,
) -> Option<Rate> {
    let (text, span) = table.string(key, example)?;
    match units::rate(text, unit) {
        Ok(rate) => Some(rate),
        Err(wrong) => {
            table.problems.error(span, wrong.message, wrong.help);
            None
        }
    }
}

/// A rate that the kernel enforces per second.
pub fn per_second(
    table: &mut Table<'_, '_>,
    key: &'static str,
    unit: Unit,
    example: &str,
) -> Option<u64> {
    let rate = rate(table, key, unit, example)?;
    let each = u128::from(rate.count) * 1_000_000_000 / u128::from(rate.per_nanoseconds);
    let each = u64::try_from(each).ok().filter(|each| *each > 0);
    if each.is_none() {
        let span = table.span_of(key);
        table.problems.error(
            span,
            format!("{key} is below 1 per second, or too large for the kernel"),
            format!("write {key} = {example}"),
        );
    }
    each
}

pub fn disks(table: &mut Table<'_, '_>) -> Vec<Io> {
    const EXAMPLE: &str = "[{ device = \"/dev/vda\", read = \"50MB/s\" }]";
    let mut disks: Vec<Io> = Vec::new();
    for value in table.array("io", EXAMPLE).unwrap_or_default() {
        let DeValue::Table(content) = value.get_ref() else {
            table.wrong_type(
                "io",
                value,
                &format!("a table for each disk: io = {EXAMPLE}"),
            );
            continue;
        };
        let mut inside = Table::new(content, value.span(), "io", table.problems);
        inside.required("device", "\"/dev/vda\"");
        let device = inside.string("device", "\"/dev/vda\"").map(|(text, span)| {
            if !text.starts_with('/') {
                inside.problems.error(
                    span.clone(),
                    format!("{text:?} is not an absolute path"),
                    "begin it with /",
                );
            } else if disks.iter().any(|disk| disk.device == Path::new(text)) {
                inside.problems.error(
                    span,
                    format!("duplicate device {text:?}"),
                    "write all of its limits in one table",
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
            table.problems.error(
                value.span(),
                "missing limit of a device in io",
                format!("write io = {EXAMPLE}"),
            );
        }
        disks.extend(device.map(|_| disk));
    }
    disks
}

pub fn cpu_list(text: &str) -> Option<CpuList> {
    let cpu = |text: &str| {
        text.trim()
            .parse::<u32>()
            .ok()
            .filter(|cpu| *cpu < MOST_CPUS)
    };
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        if cpu(first)? > cpu(last)? {
            return None;
        }
    }
    Some(CpuList(
        text.split(',').map(str::trim).collect::<Vec<_>>().join(","),
    ))
}
