//! Limits on requests beside each other and the rest of the config: what cannot be, and what would have no effect.

use common::limiter::Rate;
use common::rate_limiter::Policy;

use super::decide::Decide;
use super::policy::{AgentConfig, Algorithm, Class, EntryValue, Mode, Multiplier, RequestEnforcement, Service};
use super::report::{Problems, Span};
use super::request::ReadRequest;
use super::request_limit::{ReadRequestLimit, RequestLimit};
use super::table::suggestion;

/// All that such a config says.
pub struct Whole<'c> {
    pub decide: &'c Decide,
    /// Where the config says to listen.
    pub endpoint: Option<Span>,
    pub requests: &'c [ReadRequest],
    pub limits: &'c [ReadRequestLimit],
    /// Names of limits on packets.
    pub packet_limits: &'c [&'c str],
    pub classes: &'c [Class],
    pub multipliers: &'c [Multiplier],
    pub agent: &'c AgentConfig,
}

/// Looks at all of it.
pub fn check(whole: &Whole<'_>, problems: &mut Problems) {
    for read in whole.limits {
        replaces(whole, read, problems);
        rates(read, problems);
        keys(whole, read, problems);
        modes(whole, read, problems);
    }
    costs(whole, problems);
}

/// `replaces` names another limit on requests that is for more than this one.
fn replaces(whole: &Whole<'_>, read: &ReadRequestLimit, problems: &mut Problems) {
    let Some(name) = &read.limit.replaces else { return };
    let (span, own) = (read.spans.replaces.clone(), &read.limit.name);
    let find = |name: &str| whole.limits.iter().map(|read| &read.limit).find(|limit| limit.name == name);
    let Some(other) = find(name) else {
        let (message, help) = if whole.packet_limits.contains(&name.as_str()) {
            let help = "name a limit with scope = \"request\", or leave out replaces".to_owned();
            (format!("limit {name:?} is on packets, and {own:?} on requests"), help)
        } else {
            let names: Vec<&str> = whole.limits.iter().map(|read| read.limit.name.as_str()).collect();
            (format!("unknown limit {name:?} in replaces"), suggestion(name, &names))
        };
        problems.error(span, message, help);
        return;
    };
    let mut chain = vec![own.as_str()];
    let mut next = Some(other);
    while let Some(limit) = next {
        if limit.name == *own {
            chain.push(own);
            let message = format!("a circle of limits that replace each other: {}", chain.join(", "));
            problems.error(span, message, "leave out one replaces: the limit for fewer requests has it");
            return;
        }
        if chain.contains(&limit.name.as_str()) {
            break;
        }
        chain.push(&limit.name);
        next = limit.replaces.as_deref().and_then(find);
    }
    if read.limit.unit != other.unit {
        let message = format!("limit {own:?} counts {} and {name:?} counts {}", read.limit.unit, other.unit);
        problems.error(span, message, "a limit replaces one of the same unit: correct unit, or leave out replaces");
    } else if !read.limit.is_narrower_than(other) {
        let message = format!("limit {own:?} is not for fewer requests than {name:?}, which it replaces");
        let help = format!(
            "give it the same entries with a value, as in key = [\"path=/login\"] beside [\"path\"] (here: [{}] beside [{}])",
            read.limit.key_text(),
            other.key_text()
        );
        problems.error(span, message, help);
    } else if read.limit.enforcement == RequestEnforcement::Observe && other.enforcement == RequestEnforcement::Enforce
    {
        let message =
            format!("limit {own:?} only observes, and {name:?} refuses nothing where {own:?} is in its place");
        problems.warning(span, message, "leave out replaces while the limit observes");
    }
}

/// A rate that never refuses what another one of the limit passes.
fn rates(read: &ReadRequestLimit, problems: &mut Problems) {
    let limit = &read.limit;
    let tiers = limit.tiers.iter().map(|tier| (tier.rate, tier.burst, tier.text.as_str()));
    let all: Vec<(Rate, u64, &str)> =
        std::iter::once((limit.rate, limit.burst, limit.rate_text.as_str())).chain(tiers).collect();
    for (nth, (rate, burst, text)) in all.iter().enumerate() {
        // The main rate has more to refuse by: new keys begin with less, or it comes in steps.
        if nth == 0 && (limit.initial < limit.burst || limit.refill_every > 0) {
            continue;
        }
        let is_idle = |(other, (strict, strict_burst, _)): &(usize, &(Rate, u64, &str))| {
            *other != nth && never_refuses(limit.algorithm, (*rate, *burst), (*strict, *strict_burst))
        };
        if let (Some((_, (_, _, strict))), Some(span)) =
            (all.iter().enumerate().find(is_idle), read.spans.rates.get(nth))
        {
            let message = format!("{text} has no effect: it never refuses what {strict} passes");
            problems.warning(span.clone(), message, "leave it out, or write a lower one");
        }
    }
    let step = u128::from(limit.rate.count) * u128::from(limit.refill_every) / u128::from(limit.rate.per_nanoseconds);
    if step > u128::from(limit.burst) {
        let message = format!(
            "each step brings {step}, and a key never has more than its burst of {}: the rate is not reached",
            limit.burst
        );
        problems.warning(
            read.spans.refill_every.clone(),
            message,
            format!("write burst = {step} or more, or shorter steps"),
        );
    }
}

/// Whether the first rate passes whatever the second one does. Where that depends on how windows lie, no.
fn never_refuses(algorithm: Algorithm, loose: (Rate, u64), strict: (Rate, u64)) -> bool {
    let (count, period) = (u128::from(loose.0.count), u128::from(loose.0.per_nanoseconds));
    let (strict_count, strict_period) = (u128::from(strict.0.count), u128::from(strict.0.per_nanoseconds));
    if algorithm.has_burst() {
        return loose.1 >= strict.1 && count * strict_period >= strict_count * period;
    }
    // So many of the shorter windows can lie in a longer one, or have a part in it.
    let windows = period.div_ceil(strict_period)
        + match algorithm {
            Algorithm::SlidingLog => 0,
            Algorithm::SlidingWindow => 3,
            _ => 1,
        };
    count >= windows * strict_count
}

/// A key or a domain that nobody can come with.
fn keys(whole: &Whole<'_>, read: &ReadRequestLimit, problems: &mut Problems) {
    let limit = &read.limit;
    if limit.domain.is_some() && whole.decide.grpc.is_none() {
        let message = "domain has no effect: only Envoy's requests have one, and nothing listens for Envoy";
        problems.warning(
            read.spans.domain.clone(),
            message,
            "add [decide] grpc = \"127.0.0.1:8081\", or leave out domain",
        );
    }
    let addresses = limit.key.iter().filter_map(|entry| match entry.value {
        Some(EntryValue::Address(address)) => Some(address),
        _ => None,
    });
    for address in addresses {
        let class = whole.classes.iter().filter_map(|class| {
            let longest =
                class.sources.iter().filter(|prefix| prefix.contains(address)).map(|prefix| prefix.mapped_length());
            longest.max().map(|length| (length, class))
        });
        let class = class.max_by_key(|(length, _)| *length).map(|(_, class)| class);
        let reason = if whole.agent.never_limit.iter().any(|prefix| prefix.contains(address)) {
            Some("never_limit".to_owned())
        } else {
            class.filter(|class| class.service == Service::Unlimited).map(|class| format!("class {:?}", class.name))
        };
        if let Some(reason) = reason {
            let message = format!("limit {:?} has no effect: {address} is exempt by {reason}", limit.name);
            problems.warning(
                read.spans.key.clone(),
                message,
                format!("take {address} out of it, or leave out the limit"),
            );
        }
    }
}

/// What a limit that only observes does not do.
fn modes(whole: &Whole<'_>, read: &ReadRequestLimit, problems: &mut Problems) {
    let limit = &read.limit;
    if limit.enforcement != RequestEnforcement::Observe {
        return;
    }
    if limit.escalate.is_some() {
        let message = "escalate has no effect: a limit that only observes refuses nothing";
        problems.warning(read.spans.escalate.clone(), message, "leave out escalate, or action = \"observe\"");
    }
    if whole.agent.mode == Mode::Observe {
        let message = format!("limit {:?} only observes, and so does the whole agent", limit.name);
        problems.warning(read.name_span.clone(), message, "leave out one of the two");
    }
}

/// Costs that no limit notices, or none ever passes.
fn costs(whole: &Whole<'_>, problems: &mut Problems) {
    if let (Some(endpoint), true) = (&whole.endpoint, whole.limits.is_empty()) {
        let message = "nothing listens there: no limit is on requests";
        problems.warning(endpoint.clone(), message, "add a [[limit]] with scope = \"request\"");
    }
    let most = |limit: &RequestLimit| {
        let policies = whole.multipliers.iter().filter_map(|times| limit.policies(*times).ok());
        policies.filter_map(|tiers| tiers.iter().map(Policy::most).min()).max()
    };
    let Some(most) = whole.limits.iter().filter_map(|read| most(&read.limit)).max() else { return };
    for read in whole.requests {
        let name = &read.request.name;
        match read.request.cost.constant() {
            Ok(Some(0)) => {
                let message = format!("request {name:?} costs nothing: no limit ever refuses it");
                problems.warning(read.cost_span.clone(), message, "write a cost of 1 or more");
            }
            Ok(Some(cost)) if cost > most => {
                let message = format!(
                    "request {name:?} is always refused: it costs {cost}, and no key ever has more than {most}"
                );
                problems.warning(read.cost_span.clone(), message, "raise a limit's burst, or lower the cost");
            }
            _ => {}
        }
    }
}
