//! A stream of rules in `weir status`.

use api::rules::RulesStatus;
use config::human;

use crate::cli::table;

/// The most names of replaced rules that are printed.
const MOST_REPLACED: usize = 10;

pub fn text(rules: &RulesStatus) -> String {
    let version = |version| match version {
        0 => "none in effect".to_owned(),
        version => format!("version {version}"),
    };
    let stream = match &rules.prefix {
        None => ("fleet", format!("{} as {}", rules.store, rules.node)),
        Some(prefix) => (
            "team",
            format!("{prefix} by {} as {}", rules.store, rules.node),
        ),
    };
    let RulesStatus {
        accepted, state, ..
    } = rules;
    let newest = match (state.as_str(), &rules.reason) {
        ("none", _) => "none".to_owned(),
        (state, None) => format!("version {accepted}, {state}"),
        (state, Some(reason)) => format!("version {accepted}, {state}: {reason}"),
    };
    let mut pairs = vec![
        stream,
        ("rules", version(rules.version)),
        ("newest rules", newest),
    ];
    pairs.extend(rules.refused.clone().map(|refused| ("refused", refused)));
    if rules.refused.is_none() {
        let last = rules.last_refusal.clone();
        pairs.extend(last.map(|refusal| ("last refusal", refusal)));
    }
    if !rules.replaced.is_empty() {
        let replaced = rules.replaced.iter().cloned();
        let names = human::listed(replaced, MOST_REPLACED);
        pairs.push(("replaced by file", names));
    }
    for (_, text) in &mut pairs {
        // Reports of other hosts are not signed.
        *text = human::printable(text);
    }
    table::pairs(pairs)
}
