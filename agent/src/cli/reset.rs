//! `weir reset`: forgets the states of sources, of a key or of a limit.

use std::collections::BTreeMap;
use std::process::ExitCode;

use api::request::{Request, Reset};
use config::policy::Prefix;
use host::PROGRAM;
use ipnet::IpNet;

use super::ask::{ask, unknown};
use super::decide::pairs;
use super::exit::usage;
use super::table::number;
use crate::cli::arguments::Options;
use crate::stats::LimitStatus;

pub fn reset(
    sources: Option<IpNet>,
    keys: &[String],
    limit: Option<String>,
    options: &Options,
) -> anyhow::Result<ExitCode> {
    if let Some(limit) = &limit {
        let limits: Vec<LimitStatus> = options.client().ask(&Request::Limits)?;
        let names = limits.iter().map(|limit| limit.definition.name.as_str());
        if let Some(unknown) = unknown("limit", limit, names) {
            return Ok(usage(&unknown));
        }
    }
    let key: BTreeMap<String, String> = match pairs(keys, "--key user=alice") {
        Ok(key) => key,
        Err(wrong) => return Ok(usage(&wrong)),
    };
    let under = |limit: &String| format!(" under limit {limit}");
    let (request, whose) = match (sources, limit) {
        (Some(sources), limit) => {
            let sources = Prefix::from(sources);
            let under = limit.as_ref().map_or_else(String::new, under);
            let whose = format!("{}{under}", sources.short());
            let request = if sources.short() == sources.to_string() {
                let prefix = sources.to_string();
                Request::ResetPrefix { prefix, limit }
            } else {
                let source = sources.address();
                Request::Reset { source, limit }
            };
            (request, whose)
        }
        (None, limit) if !key.is_empty() => {
            let request = Request::ResetKey { key, limit };
            (request, keys.join(" "))
        }
        (None, limit) => {
            let limit = limit.unwrap_or_default();
            let whose = format!("limit {limit}");
            (Request::ResetLimit { limit }, whose)
        }
    };
    let is_of_all_limits = matches!(
        request,
        Request::Reset { limit: None, .. } | Request::ResetPrefix { limit: None, .. }
    );
    ask(options, &request, |reset: &Reset| {
        let states = if reset.forgotten == 1 {
            "state"
        } else {
            "states"
        };
        let done = format!(
            "{} {states} of {whose} forgotten{}",
            number(reset.forgotten),
            of_cluster(reset)
        );
        if !is_of_all_limits {
            return done;
        }
        let kept = match &reset.kept[..] {
            [] => "limits that sources share keep theirs".to_owned(),
            kept => format!(
                "limits that sources share keep theirs, and so do limits by more than the address ({})",
                kept.join(", ")
            ),
        };
        format!("{done}; {kept}: {PROGRAM} reset --limit NAME")
    })
}

/// The limits of a key, and the hosts on which it is reset.
fn of_cluster(reset: &Reset) -> String {
    let list = |before: &str, limits: &[String]| match limits {
        [] => String::new(),
        limits => format!("{before}{}", limits.join(", ")),
    };
    [
        list(" under ", &reset.limits),
        list(
            "; on all hosts that exchange its keys: ",
            &reset.on_all_hosts,
        ),
        list(
            "; on this host alone, not on the others: ",
            &reset.on_this_host,
        ),
    ]
    .concat()
}
