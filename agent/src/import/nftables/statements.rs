//! Statements of an nftables rule.

use std::collections::BTreeMap;

use super::super::json::Json;
use super::super::rule::{
    Conditions, Connection, Family, Forgets, Key, Limit, Rule, Unit, Verdict,
};
use super::conditions;

/// When sets forget their elements, in seconds, by key.
pub type Timeouts = BTreeMap<String, u64>;

/// Where a rule is.
pub struct Place<'t> {
    pub origin: String,
    pub table: &'t str,
    pub timeouts: &'t Timeouts,
}

/// The rules that statements amount to.
pub fn rules(statements: &[Json], place: &Place<'_>) -> Vec<Rule> {
    let mut of = Conditions::default();
    match place.table.split(' ').next() {
        Some("ip") => of.family = Some(Family::V4),
        Some("ip6") => of.family = Some(Family::V6),
        _ => {}
    }
    let mut limit = None;
    let mut verdict = Verdict::Continue;
    for statement in statements {
        let Some((kind, value)) = statement.entry() else {
            continue;
        };
        match kind {
            "match" => conditions::add(value, place.table, &mut of),
            "limit" if limit.is_none() => limit = read_limit(value, &mut of),
            "set" | "meter" if limit.is_none() => limit = keyed(value, place, &mut of),
            "ct count" if limit.is_none() => limit = open(value, &mut of),
            "limit" | "set" | "meter" | "ct count" => of.other("several limits in one rule"),
            "drop" => verdict = Verdict::Drop,
            "accept" => verdict = Verdict::Accept,
            "return" => verdict = Verdict::Return,
            "reject" => verdict = Verdict::Reject,
            "jump" => verdict = target(value).map_or(Verdict::Continue, Verdict::Jump),
            "goto" => verdict = target(value).map_or(Verdict::Continue, Verdict::Goto),
            "mangle" => {
                if let Some(mark) = mark(value) {
                    verdict = Verdict::Mark(mark);
                }
            }
            "vmap" => return verdicts(value, &of, place),
            "counter" | "log" | "notrack" | "comment" => {}
            "xt" => {
                of.other(
                    "an extension of iptables, which nft does not print: import the output of iptables-save instead",
                );
            }
            "quota" => of.other("a quota"),
            "queue" | "dup" | "fwd" | "tproxy" | "synproxy" | "snat" | "dnat" | "masquerade"
            | "redirect" => {
                verdict = Verdict::Other(kind.to_owned());
            }
            other => of.other(other.chars().take(20).collect::<String>()),
        }
    }
    vec![Rule {
        origin: place.origin.clone(),
        conditions: of,
        limit,
        verdict,
    }]
}

fn target(value: &Json) -> Option<String> {
    value.text_of("target").map(str::to_owned)
}

/// `meta mark set NUMBER`.
fn mark(value: &Json) -> Option<u32> {
    let key = value.get("key")?.get("meta")?.text_of("key")?;
    let number = value.get("value")?.number()?;
    u32::try_from(number).ok().filter(|_| key == "mark")
}

/// `ct state vmap { established : accept, … }` as rules; other maps are opaque.
fn verdicts(value: &Json, of: &Conditions, place: &Place<'_>) -> Vec<Rule> {
    let rule = |conditions: Conditions, verdict: Verdict| Rule {
        origin: place.origin.clone(),
        conditions,
        limit: None,
        verdict,
    };
    let is_of_state = value
        .get("key")
        .and_then(|key| key.get("ct")?.text_of("key"))
        == Some("state");
    let pairs = value
        .get("data")
        .and_then(|data| data.get("set"))
        .map(Json::elements)
        .unwrap_or_default();
    let accepts =
        |pair: &&Json| matches!(pair.elements(), [_, verdict] if verdict.get("drop").is_none());
    let is_established = |pair: &Json| {
        let [state, verdict] = pair.elements() else {
            return false;
        };
        matches!(state.text(), Some("established" | "related")) && verdict.get("accept").is_some()
    };
    if is_of_state && !pairs.is_empty() && pairs.iter().filter(accepts).all(is_established) {
        let connection = Connection::Established;
        return vec![rule(
            Conditions {
                connection,
                ..of.clone()
            },
            Verdict::Accept,
        )];
    }
    vec![rule(
        of.clone(),
        Verdict::Other("a map of verdicts".to_owned()),
    )]
}

/// `limit`: all packets of the rule together.
fn read_limit(value: &Json, of: &mut Conditions) -> Option<Limit> {
    let read = read(value);
    if read.is_none() {
        of.other("a limit with a name or an unknown unit");
    }
    read
}

/// `ct count`: open connections of all sources together.
fn open(value: &Json, of: &mut Conditions) -> Option<Limit> {
    let count = value.get("val").and_then(Json::number);
    if count.is_none() {
        of.other("open connections of an unknown number");
    }
    let is_over = value.get("inv") == Some(&Json::Bool(true));
    Some(Limit::on_open(count?, Key::All, is_over))
}

fn read(value: &Json) -> Option<Limit> {
    let seconds = match value.text_of("per")? {
        "second" => 1,
        "minute" => 60,
        "hour" => 3600,
        "day" => 86_400,
        "week" => 604_800,
        _ => return None,
    };
    let scale = |key: &str| match value.text_of(key) {
        None | Some("bytes" | "packets") => Some(1),
        Some("kbytes") => Some(1 << 10),
        Some("mbytes") => Some(1 << 20),
        _ => None,
    };
    let is_bytes = value
        .text_of("rate_unit")
        .is_some_and(|unit| unit != "packets");
    let count = value
        .get("rate")?
        .number()?
        .checked_mul(scale("rate_unit")?)?;
    let written = value
        .get("burst")
        .and_then(Json::number)
        .unwrap_or(0)
        .checked_mul(scale("burst_unit")?)?;
    // nftables' bucket has the burst in packets, by default 5; in bytes it has the rate's count and the burst.
    let burst = match (is_bytes, written) {
        (true, burst) => count.checked_add(burst)?,
        (false, 0) => 5,
        (false, burst) => burst,
    };
    Some(Limit {
        name: None,
        count,
        seconds,
        burst,
        unit: if is_bytes { Unit::Bytes } else { Unit::Packets },
        key: Key::All,
        is_over: value.get("inv") == Some(&Json::Bool(true)),
        forgets: None,
        size: None,
        is_rounded_up: false,
        is_open_when_full: false,
    })
}

/// `update @SET { KEY limit … }` and `meter`: a limit for each key.
fn keyed(value: &Json, place: &Place<'_>, of: &mut Conditions) -> Option<Limit> {
    let name = value
        .text_of("name")
        .or_else(|| value.text_of("set")?.strip_prefix('@'))
        .unwrap_or("limit");
    let statements = value.get("stmt").map(Json::elements).unwrap_or_default();
    let limit = statements
        .iter()
        .filter_map(Json::entry)
        .find(|(kind, _)| matches!(*kind, "limit" | "ct count"));
    let limit = limit.and_then(|(kind, value)| match kind {
        "limit" => read_limit(value, of),
        "ct count" => open(value, of),
        _ => None,
    });
    let Some(mut limit) = limit else {
        of.other(format!("changes of set {name}"));
        return None;
    };
    let element = value.get("elem").or_else(|| value.get("key"));
    let timeout = element.and_then(|element| element.get("elem")?.get("timeout")?.number());
    let element = element.map(|element| {
        element
            .get("elem")
            .and_then(|inner| inner.get("val"))
            .unwrap_or(element)
    });
    match element.and_then(|element| key(element, of)) {
        Some(key) => limit.key = key,
        None => of.other("a key that is not the source"),
    }
    let timeout = timeout.or_else(|| {
        place
            .timeouts
            .get(&format!("{} {name}", place.table))
            .copied()
    });
    limit.name = Some(name.to_owned());
    if limit.unit == Unit::Open {
        return Some(limit);
    }
    let is_renewed = value.text_of("op") == Some("update");
    limit.forgets = timeout.map(|seconds| {
        let milliseconds = seconds.saturating_mul(1000);
        if is_renewed {
            Forgets::Idle(milliseconds)
        } else {
            Forgets::Always(milliseconds)
        }
    });
    limit.is_open_when_full = true;
    Some(limit)
}

/// The source, its prefix, or one of them with the local port.
fn key(element: &Json, of: &mut Conditions) -> Option<Key> {
    let mut source = None;
    let mut has_port = false;
    for part in element.get("concat").unwrap_or(element).elements() {
        let (payload, mask) = match part.get("&").map(Json::elements) {
            Some([payload, mask]) => (payload, Some(mask.text()?)),
            _ => (part, None),
        };
        let payload = payload.get("payload")?;
        let family = match (payload.text_of("protocol")?, payload.text_of("field")?) {
            ("ip", "saddr") => Family::V4,
            ("ip6", "saddr") => Family::V6,
            ("tcp" | "udp" | "th", "dport") if mask.is_none() => {
                has_port = true;
                continue;
            }
            _ => return None,
        };
        if source.is_some() || !of.restrict_family(family) {
            return None;
        }
        source = Some(
            mask.map(length)
                .map_or(Some(None), |length| length.map(Some))?,
        );
    }
    Some(Key::Source {
        prefix: source?,
        has_port,
    })
}

/// The length of a netmask; `None` if it is none.
fn length(mask: &str) -> Option<u8> {
    match mask.parse().ok()? {
        std::net::IpAddr::V4(mask) => {
            let bits = u32::from(mask);
            (bits.leading_ones() == bits.count_ones()).then(|| bits.leading_ones() as u8)
        }
        std::net::IpAddr::V6(mask) => {
            let bits = u128::from(mask);
            (bits.leading_ones() == bits.count_ones()).then(|| bits.leading_ones() as u8)
        }
    }
}
