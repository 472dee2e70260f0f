//! `weir allow`, `weir disallow`.

use std::process::ExitCode;
use std::time::Duration;

use api::allowance::{Allowance, Allowed, Disallowed};
use api::event::seconds_since_1970;
use api::request::Request;
use config::{human, prefix};
use host::PROGRAM;

use super::ask::ask;
use super::ban;
use super::exit::usage;
use super::print::Print;
use super::table::{self, instant, number};
use crate::allowances::{self, effect};
use crate::cli::arguments::Options;

/// The terms of an exemption.
pub struct Terms {
    pub duration: Duration,
    /// The factor on limits; `None` exempts.
    pub times: Option<f64>,
    pub reason: Option<String>,
    /// The owner, unless it is the user.
    pub owner: Option<String>,
}

pub fn allow(cidrs: Vec<String>, terms: Terms, options: &Options) -> anyhow::Result<ExitCode> {
    let Terms {
        duration,
        times,
        reason,
        owner,
    } = terms;
    let owner = owner.or_else(ban::user);
    let seconds = duration.as_secs_f64();
    let (why, whose) = (reason.as_deref(), owner.as_deref());
    if let Err(error) = allowances::check(&cidrs, seconds, times, why, whose) {
        return Ok(usage(&format!("{error}; nothing was changed")));
    }
    let request = Request::Allow {
        cidrs,
        for_seconds: seconds,
        times,
        reason,
        owner,
    };
    let time = human::time(duration);
    ask(options, &request, |allowed: &Allowed| {
        let Allowed {
            allowed,
            replaced,
            notes,
        } = allowed;
        let verb = if times.is_some() { "allowed " } else { "" };
        let what = effect(times);
        let mut lines = vec![format!("{} {verb}{what} for {time}", number(*allowed))];
        lines.extend(replaced.iter().map(|before| {
            let terms = allowances::terms(before);
            let what = effect(before.times);
            format!("note: it replaces what {} had: {what} {terms}", before.cidr)
        }));
        lines.extend(notes.iter().map(|note| format!("note: {note}")));
        lines.join("\n")
    })
}

pub fn disallow(cidrs: Vec<String>, options: &Options) -> anyhow::Result<ExitCode> {
    if let Some(wrong) = cidrs.iter().find_map(|cidr| prefix::parse(cidr).err()) {
        let error = format!("{wrong}; nothing was changed");
        return Ok(usage(&error));
    }
    let all: Disallowed = options.client().ask(&Request::Disallow { cidrs })?;
    Print::from(options.json).document(&all, |all| {
        let is_raised = |ended: &Allowance| ended.times.is_some();
        let what = if all.ended.iter().any(is_raised) {
            "allowed no more"
        } else {
            "no longer exempt"
        };
        println!("{} {what}", number(all.ended.len() as u64));
        all.notes.iter().for_each(|note| println!("note: {note}"));
    })?;
    for cidr in &all.unknown {
        eprintln!("{cidr} has no exemption for a while: {PROGRAM} allow --list lists them");
    }
    Ok(if all.unknown.is_empty() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

pub fn list(options: &Options) -> anyhow::Result<ExitCode> {
    let now = seconds_since_1970();
    ask(options, &Request::Allowances, |all: &Vec<Allowance>| {
        let row = |allowance: &Allowance| {
            [
                allowance.cidr.clone(),
                effect(allowance.times),
                human::seconds((allowance.until as f64 - now).max(0.0)),
                instant(allowance.until as f64),
                allowance.owner.clone(),
                allowance.reason.clone().unwrap_or_else(|| "-".to_owned()),
            ]
        };
        table::render_or(
            "No exemptions and no raised limits for a while.",
            ["PREFIX", "ALLOWED", "ENDS IN", "UNTIL", "OWNER", "REASON"],
            6,
            all.iter().map(row),
        )
    })
}
