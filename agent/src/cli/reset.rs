//! `weir reset`: forgets the states of sources or of a limit.

use std::process::ExitCode;

use api::request::{Request, Reset};
use config::policy::Prefix;
use host::PROGRAM;
use ipnet::IpNet;

use super::ask::{ask, unknown};
use super::exit::usage;
use super::table::number;
use crate::cli::arguments::Options;
use crate::stats::LimitStatus;

pub fn reset(
    sources: Option<IpNet>,
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
        let done = format!("{} {states} of {whose} forgotten", number(reset.forgotten));
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
