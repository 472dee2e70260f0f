//! `agent doctor`: what this host can and cannot do, with the fix.

use std::path::Path;
use std::process::ExitCode;

use super::{Print, USAGE, table};
use crate::config;
use crate::config::policy::Config;
use crate::datapath::{DeviceFacts, default_route_interfaces};
use crate::doctor::{self, Check, Report, Verdict};

pub fn doctor(file: Option<&Path>, print: Print) -> anyhow::Result<ExitCode> {
    let config = match file {
        // What an agent without a config would do.
        None => Config::built_in(&default_route_interfaces().unwrap_or_default()),
        Some(file) => match config::load(file) {
            Ok(loaded) => loaded.config,
            Err(error) => {
                eprintln!("{error}");
                return Ok(ExitCode::from(USAGE));
            }
        },
    };
    let report = doctor::examine(&config);
    match print {
        Print::Json => println!("{}", serde_json::to_string_pretty(&report)?),
        Print::Table => show(file, &report),
    }
    Ok(if report.ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn show(file: Option<&Path>, report: &Report) {
    report.host.iter().for_each(tell);
    for interface in &report.interfaces {
        println!("\n{}: {}", interface.name, described(&interface.facts));
        interface.checks.iter().for_each(tell);
    }
    let what = file.map_or_else(|| "the built-in limits".to_owned(), |file| file.display().to_string());
    if report.ok {
        println!("\nthis host has all that {what} needs");
    } else {
        println!("\nthis host lacks something that {what} needs: what is marked MISSING");
    }
}

/// One check, and below it what to do.
fn tell(check: &Check) {
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
    parts.push(facts.driver.as_ref().map_or_else(|| "driver unknown".to_owned(), |driver| format!("driver {driver}")));
    parts.extend(facts.mtu.map(|mtu| format!("MTU {mtu}")));
    parts.extend(facts.queues.map(|(receiving, sending)| {
        let most = facts.most_queues.map(|(receiving, sending)| format!(" of {receiving}/{sending}"));
        format!("{}/{} queues in/out{}", table::number(receiving.into()), sending, most.unwrap_or_default())
    }));
    let switch = |name: &str, is_on: Option<bool>| Some(format!("{name} {}", if is_on? { "on" } else { "off" }));
    parts.extend(switch("LRO", facts.lro));
    parts.extend(switch("GRO-HW", facts.gro_hardware));
    if !facts.queueing.is_empty() {
        parts.push(format!("queueing {}", facts.queueing.join(", ")));
    }
    parts.join(", ")
}
