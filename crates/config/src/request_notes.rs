//! Checks that combine limits on requests with the rest of the config: conflicts, and settings without effect.

use common::limiter::Rate;
use common::rate_limiter::Policy;

use super::policy::{
    AgentConfig, Algorithm, Class, Decide, EntryValue, Mode, Multiplier, RequestCost,
    RequestEnforcement, RequestLimit, class_of,
};
use super::rates::RateText;
use super::report::{Problems, Span};
use super::schema::Located;
use super::suggestion::suggestion;

/// The tables that the checks combine.
pub struct Whole<'c> {
    pub decide: &'c Decide,
    /// The span of the endpoint.
    pub endpoint: Option<Span>,
    pub requests: &'c [Located<'c, RequestCost>],
    pub limits: &'c [Located<'c, RequestLimit>],
    /// The names of limits on packets.
    pub packet_limits: &'c [&'c str],
    pub classes: &'c [Located<'c, Class>],
    pub multipliers: &'c [Multiplier],
    pub agent: &'c AgentConfig,
}

/// Runs all checks.
pub fn check(whole: &Whole<'_>, problems: &mut Problems) {
    for read in whole.limits {
        replaces(whole, read, problems);
        rates(read, problems);
        keys(whole, read, problems);
        modes(whole, read, problems);
        bans(whole, read, problems);
    }
    costs(whole, problems);
    headers(whole, problems);
}

/// `replaces` must name another, wider limit on requests.
fn replaces(whole: &Whole<'_>, read: &Located<'_, RequestLimit>, problems: &mut Problems) {
    let Some(name) = &read.table.replaces else {
        return;
    };
    let (span, own) = (read.span_of(&RequestLimit::REPLACES), &read.table.name);
    let find = |name: &str| {
        whole
            .limits
            .iter()
            .map(|read| &read.table)
            .find(|limit| limit.name == name)
    };
    let Some(other) = find(name) else {
        let (message, help) = if whole.packet_limits.contains(&name.as_str()) {
            let help = "name a limit with scope = \"request\", or leave out replaces".to_owned();
            (
                format!("limit {name:?} is on packets, and {own:?} on requests"),
                help,
            )
        } else {
            let names: Vec<&str> = whole
                .limits
                .iter()
                .map(|read| read.table.name.as_str())
                .collect();
            (
                format!("unknown limit {name:?} in replaces"),
                suggestion(name, &names),
            )
        };
        problems.error(span, message, help);
        return;
    };
    let mut chain = vec![own.as_str()];
    let mut next = Some(other);
    while let Some(limit) = next {
        if limit.name == *own {
            chain.push(own);
            let message = format!("circular replaces: {}", chain.join(", "));
            problems.error(
                span,
                message,
                "leave out one replaces: the limit for fewer requests has it",
            );
            return;
        }
        if chain.contains(&limit.name.as_str()) {
            break;
        }
        chain.push(&limit.name);
        next = limit.replaces.as_deref().and_then(find);
    }
    if read.table.unit != other.unit {
        let message = format!(
            "limit {own:?} counts {} and {name:?} counts {}",
            read.table.unit, other.unit
        );
        problems.error(
            span,
            message,
            "a limit replaces one of the same unit: correct unit, or leave out replaces",
        );
    } else if !read.table.is_narrower_than(other) {
        let message =
            format!("limit {own:?} is not for fewer requests than {name:?}, which it replaces");
        let help = format!(
            "give it the same entries with a value, as in key = [\"path=/login\"] beside [\"path\"] (here: [{}] beside [{}])",
            read.table.key_text(),
            other.key_text()
        );
        problems.error(span, message, help);
    } else if read.table.enforcement == RequestEnforcement::Observe
        && other.enforcement == RequestEnforcement::Enforce
    {
        let message = format!(
            "limit {own:?} only observes, and {name:?} refuses nothing where {own:?} replaces it"
        );
        problems.warning(span, message, "leave out replaces while the limit observes");
    }
}

/// Warns of a rate that never refuses anything which another rate of the limit passes.
fn rates(read: &Located<'_, RequestLimit>, problems: &mut Problems) {
    let limit = &read.table;
    let all: Vec<(Rate, u64, &str)> = limit.rates.all().collect();
    let tiers = read.elements::<RateText>(&RequestLimit::TIERS).into_iter();
    let main = std::iter::once(read.span_of(&RequestLimit::RATE));
    let spans: Vec<Span> = main.chain(tiers.map(|(_, span)| span)).collect();
    for (nth, (rate, burst, text)) in all.iter().enumerate() {
        // The main rate can be stricter: new keys start with less, or it refills in steps.
        if nth == 0 && (limit.initial < limit.rates.burst || !limit.refill_every.is_zero()) {
            continue;
        }
        let is_idle = |(other, (strict, strict_burst, _)): &(usize, &(Rate, u64, &str))| {
            *other != nth
                && never_refuses(
                    limit.rates.algorithm,
                    (*rate, *burst),
                    (*strict, *strict_burst),
                )
        };
        if let (Some((_, (_, _, strict))), Some(span)) =
            (all.iter().enumerate().find(is_idle), spans.get(nth))
        {
            let message = format!("{text} has no effect: it never refuses what {strict} passes");
            problems.warning(span.clone(), message, "leave it out, or write a lower one");
        }
    }
    let step = u128::from(limit.rates.rate.count) * limit.refill_every.as_nanos()
        / u128::from(limit.rates.rate.per_nanoseconds);
    if step > u128::from(limit.rates.burst) {
        let message = format!(
            "each step brings {step}, and a key never has more than its burst of {}: the rate is not reached",
            limit.rates.burst
        );
        problems.warning(
            read.span_of(&RequestLimit::REFILL_EVERY),
            message,
            format!("write burst = {step} or more, or shorter steps"),
        );
    }
}

/// Whether the first rate passes everything that the second one passes; `false` if that depends on the alignment of
/// windows.
fn never_refuses(algorithm: Algorithm, loose: (Rate, u64), strict: (Rate, u64)) -> bool {
    let (count, period) = (
        u128::from(loose.0.count),
        u128::from(loose.0.per_nanoseconds),
    );
    let (strict_count, strict_period) = (
        u128::from(strict.0.count),
        u128::from(strict.0.per_nanoseconds),
    );
    if algorithm.has_burst() {
        return loose.1 >= strict.1 && count * strict_period >= strict_count * period;
    }
    // The number of shorter windows that can overlap a longer one.
    let windows = period.div_ceil(strict_period) + u128::from(algorithm.partial_windows());
    count >= windows * strict_count
}

/// Reports a key or a domain that no request can have.
fn keys(whole: &Whole<'_>, read: &Located<'_, RequestLimit>, problems: &mut Problems) {
    let limit = &read.table;
    if limit.domain.is_some() && whole.decide.grpc.is_none() {
        let message =
            "domain has no effect: only Envoy's requests have one, and [decide] grpc is not set";
        problems.warning(
            read.span_of(&RequestLimit::DOMAIN),
            message,
            "add [decide] grpc = \"127.0.0.1:8081\", or leave out domain",
        );
    }
    let addresses = limit.key.iter().filter_map(|entry| match entry.value {
        Some(EntryValue::Address(address)) => Some(address),
        _ => None,
    });
    for address in addresses {
        let class = class_of(whole.classes.iter().map(|read| &read.table), address);
        let reason = if whole
            .agent
            .never_limit
            .iter()
            .any(|prefix| prefix.contains(address))
        {
            Some("never_limit".to_owned())
        } else {
            class
                .filter(|class| class.unlimited)
                .map(|class| format!("class {:?}", class.name))
        };
        if let Some(reason) = reason {
            let message = format!(
                "limit {:?} has no effect: {address} is exempt by {reason}",
                limit.name
            );
            problems.warning(
                read.span_of(&RequestLimit::KEY),
                message,
                format!("take {address} out of it, or leave out the limit"),
            );
        }
    }
}

/// Warns of settings that have no effect while the limit is on `observe`.
fn modes(whole: &Whole<'_>, read: &Located<'_, RequestLimit>, problems: &mut Problems) {
    let limit = &read.table;
    if limit.enforcement != RequestEnforcement::Observe {
        return;
    }
    if limit.escalate.is_some() {
        let message = "escalate has no effect: a limit that only observes refuses nothing";
        problems.warning(
            read.span_of(&RequestLimit::ESCALATE),
            message,
            "leave out escalate, or action = \"observe\"",
        );
    }
    if whole.agent.mode == Mode::Observe {
        let message = format!(
            "action = \"observe\" of limit {:?} has no effect: the agent's mode is observe",
            limit.name
        );
        problems.warning(
            read.span_of(&RequestLimit::NAME),
            message,
            "leave out one of them",
        );
    }
}

/// Warns of an `escalate` that no client of `[decide]` may cause.
fn bans(whole: &Whole<'_>, read: &Located<'_, RequestLimit>, problems: &mut Problems) {
    let (limit, decide) = (&read.table, whole.decide);
    let served: Vec<String> = decide.served().map(|served| served.to_string()).collect();
    let refuses = limit.enforcement == RequestEnforcement::Enforce;
    let is_listed = || {
        decide
            .served()
            .any(|served| decide.escalate_from.contains(&served))
    };
    let is_shared = limit
        .key
        .iter()
        .any(|entry| entry.is_source() && limit.over.has(entry));
    if limit.escalate.is_some() && is_shared {
        let message = format!(
            "escalate of limit {:?} conflicts with over: sources share its allowance, and one of them would have the others banned",
            limit.name
        );
        let help = "leave out escalate, or take \"source\" out of over";
        problems.error(read.span_of(&RequestLimit::ESCALATE), message, help);
        return;
    }
    if limit.escalate.is_none() || !refuses || served.is_empty() || is_listed() {
        return;
    }
    let message = format!(
        "escalate of limit {:?} bans nobody for requests over {}: [decide] escalate_from does not list {}",
        limit.name,
        served.join(" and "),
        if served.len() == 1 { "it" } else { "them" },
    );
    let help = format!(
        "add escalate_from = [\"{}\"] to [decide] if every client there may have any source banned, or leave out escalate",
        served.join("\", \"")
    );
    problems.warning(read.span_of(&RequestLimit::ESCALATE), message, help);
}

/// Warns of headers of `/v1/check` that no limit needs: most likely their entry is misspelt.
fn headers(whole: &Whole<'_>, problems: &mut Problems) {
    let (Some(endpoint), Some(check)) = (&whole.endpoint, &whole.decide.check) else {
        return;
    };
    let limits = || whole.limits.iter().map(|read| &read.table);
    for (entry, header) in &check.key {
        let is_counted = |limit: &RequestLimit| limit.key.iter().any(|known| known.name == *entry);
        if !limits().any(is_counted) {
            let message = format!(
                "header {} of check has no effect: no limit counts by {entry:?}",
                header.as_str()
            );
            let names: Vec<&str> = limits()
                .flat_map(|limit| limit.key.iter())
                .map(|entry| entry.name.as_str())
                .collect();
            problems.warning(endpoint.clone(), message, suggestion(entry, &names));
        }
    }
}

/// Reports costs that a limit never refuses, or never passes.
fn costs(whole: &Whole<'_>, problems: &mut Problems) {
    let is_idle =
        whole.limits.is_empty() && !whole.decide.takes_loads && !whole.decide.follows_fleet;
    if let (Some(endpoint), true) = (&whole.endpoint, is_idle) {
        let message = "[decide] serves nothing: no limit has scope = \"request\"";
        problems.warning(
            endpoint.clone(),
            message,
            "add a [[limit]] with scope = \"request\"",
        );
    }
    let most = |limit: &RequestLimit| {
        let policies = whole
            .multipliers
            .iter()
            .flat_map(|times| [limit.policies(*times), limit.policies_above(*times)])
            .flatten();
        policies
            .filter_map(|tiers| tiers.iter().map(Policy::most).min())
            .max()
    };
    let Some(most) = whole
        .limits
        .iter()
        .filter_map(|read| most(&read.table))
        .max()
    else {
        return;
    };
    for read in whole.requests {
        let name = &read.table.name;
        match read.table.cost.constant() {
            Ok(Some(0)) => {
                let message = format!("request {name:?} costs nothing: no limit ever refuses it");
                problems.warning(
                    read.span_of(&RequestCost::COST),
                    message,
                    "write a cost of 1 or more",
                );
            }
            Ok(Some(cost)) if cost > most => {
                let message = format!(
                    "request {name:?} is always refused: it costs {cost}, and no key ever has more than {most}"
                );
                problems.warning(
                    read.span_of(&RequestCost::COST),
                    message,
                    "raise a limit's burst, or lower the cost",
                );
            }
            _ => {}
        }
    }
}
