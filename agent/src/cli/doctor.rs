//! `weir doctor`: what this host supports, with fixes.

use std::path::Path;
use std::process::ExitCode;

use config::policy::Config;
use datapath::{DeviceFacts, default_route_interfaces};

use super::exit::invalid;
use super::print::Print;
use super::table;
use crate::doctor::{self, Check, Report, Verdict};

pub fn doctor(file: Option<&Path>, print: Print) -> anyhow::Result<ExitCode> {
    let config = match file {
        // The config of an agent without a file.
        None => Config::built_in(&default_route_interfaces().unwrap_or_default()),
        Some(file) => match config::load(file) {
            Ok(loaded) => loaded.config,
            Err(error) => return Ok(invalid(&error)),
        },
    };
    let report = doctor::examine(&config);
    print.document(&report, |report| show(file, report))?;
    Ok(if report.ok {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

fn show(file: Option<&Path>, report: &Report) {
    report.host.iter().for_each(print_check);
    for interface in &report.interfaces {
        println!("\n{}: {}", interface.name, described(&interface.facts));
        interface.checks.iter().for_each(print_check);
    }
    let what = file.map_or_else(
        || "the built-in limits".to_owned(),
        |file| file.display().to_string(),
    );
    if report.ok {
        println!("\nthis host has everything that {what} requires");
    } else {
        println!("\nthis host lacks what is marked MISSING, which {what} requires");
    }
}

/// Prints a check and its fix.
fn print_check(check: &Check) {
    let mark = match check.verdict {
        Verdict::Good => "ok     ",
        Verdict::Limited => "limited",
        Verdict::Missing => "MISSING",
    };
    println!("{mark}  {:<13} {}", check.name, check.found);
    if let Some(fix) = &check.fix {
        println!("{:24}fix: {fix}", "");
    }
}

fn described(facts: &DeviceFacts) -> String {
    let mut parts = Vec::new();
    parts.push(facts.driver.as_ref().map_or_else(
        || "driver unknown".to_owned(),
        |driver| format!("driver {driver}"),
    ));
    parts.extend(facts.mtu.map(|mtu| format!("MTU {mtu}")));
    parts.extend(facts.queues.map(|(receiving, sending)| {
        let most = facts
            .most_queues
            .map(|(receiving, sending)| format!(" of {receiving}/{sending}"));
        format!(
            "{}/{} queues in/out{}",
            table::number(receiving.into()),
            sending,
            most.unwrap_or_default()
        )
    }));
    let switch = |name: &str, is_on: Option<bool>| {
        Some(format!("{name} {}", if is_on? { "on" } else { "off" }))
    };
    parts.extend(switch("LRO", facts.lro));
    parts.extend(switch("GRO-HW", facts.gro_hardware));
    if !facts.queueing.is_empty() {
        parts.push(format!("queueing {}", facts.queueing.join(", ")));
    }
    parts.join(", ")
}
