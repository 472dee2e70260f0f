//! The reply to each request. Documents are serialised only here.

use std::time::Duration;

use api::request::Request;
use config::policy::Prefix;

use crate::daemon::reload::{AllowanceTerms, Cause};
use crate::daemon::{Agent, AgentDocuments, text, whose};
use crate::stats::Extent;

/// Carries out a request; returns the document for the client, or the error.
pub(super) fn reply_to(agent: &Agent, request: Request) -> Result<serde_json::Value, String> {
    match request {
        Request::Status => json(agent.status(Extent::Whole)?),
        Request::Limits => json(agent.limits(Extent::Whole)?),
        Request::Top => json(agent.top()?),
        Request::HeavyPrefixes { share } => json(agent.prefixes.summary(share)?),
        Request::View { query } => json(agent.view(&query)?),
        Request::Show { source } => json(agent.show(source.to_canonical())?),
        Request::TestNotifications { name } => json(agent.notifier().test(name.as_deref())?),
        Request::Reset { source, limit } => {
            json(agent.reset(&Prefix::of_address(source.to_canonical()), limit.as_deref())?)
        }
        Request::ResetPrefix { prefix, limit } => {
            let prefix = config::prefix::parse(&prefix).map_err(text)?;
            json(agent.reset(&prefix, limit.as_deref())?)
        }
        Request::ResetLimit { limit } => json(agent.reset_limit(&limit)?),
        Request::ResetCounters => json(agent.reset_counters()?),
        Request::Ban { orders } => json(agent.order_bans(&orders)?),
        Request::Unban {
            cidrs,
            owner,
            user,
            all,
        } => json(agent.unban(&cidrs, &whose(owner.as_deref(), user.as_deref(), all)?)?),
        Request::UnbanAll => json(agent.unban_all()?),
        Request::Allow {
            cidrs,
            for_seconds,
            times,
            reason,
            owner,
        } => {
            let terms = AllowanceTerms {
                for_seconds,
                times,
                reason,
                owner,
            };
            json(agent.allow(&cidrs, terms)?)
        }
        Request::Disallow { cidrs } => json(agent.disallow(&cidrs)?),
        Request::Allowances => json(agent.changing().live().allowances()),
        Request::Bans => json(agent.bans()?),
        Request::Decide { question } => {
            let requests = agent.requests();
            let answer = requests.engine().decide(&question, requests.now());
            json(answer.map_err(text)?)
        }
        Request::Reload { operator, file } => {
            let other = file.and_then(|named| agent.other_file(&named));
            json(other.unwrap_or_else(|| agent.reload(Cause::Command, operator)))
        }
        Request::Try {
            file,
            text,
            for_seconds,
            operator,
        } => {
            let time = Duration::try_from_secs_f64(for_seconds).unwrap_or_default();
            json(agent.try_config(&file, text, time, operator))
        }
        Request::Compare {
            file,
            text,
            operator,
        } => json(agent.compare(file.as_deref(), text, operator)),
        Request::Confirm => json(agent.confirm()?),
        Request::Revert => json(agent.revert()),
        Request::Record { for_seconds } => json(agent.record(for_seconds)?),
        Request::StopRecording => json(agent.recorder().stop()?),
        Request::Recording => json(agent.recorder().status()),
        Request::Events => {
            let events = agent.events().recent();
            json(events.iter().map(|event| &**event).collect::<Vec<_>>())
        }
        Request::Follow { .. } | Request::Trace { .. } | Request::Capture { .. } => Err(
            "events, verdicts and captures are followed line by line, which needs another connection"
                .to_owned(),
        ),
        Request::Groups => json(agent.groups()),
        Request::Usage { group, from, to } => {
            let (group, from, to) = (group.as_deref(), from.as_deref(), to.as_deref());
            json(agent.groups.usage(group, from, to))
        }
        Request::Emergency { group, what } => json(agent.groups.emergency(group, what)?),
    }
}

/// Serialises a document.
pub(super) fn json(document: impl serde::Serialize) -> Result<serde_json::Value, String> {
    serde_json::to_value(document).map_err(text)
}
