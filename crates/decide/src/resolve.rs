//! Validation of questions: the limit, the key and the cost.

use std::net::IpAddr;

use api::decide::{ChargeMode, Question};
use config::policy::{EntryValue, KeyEntry, RequestLimit};
use config::request_key::{SOURCE, entry_name, masked};
use config::suggestion;

use super::charge::{Charge, ChargeKind};
use super::engine::Engine;
use super::error::DecideError;
use super::limit::Limit;
use super::sources::SourceClass;
use super::tiers;

/// The largest cost: up to here, all numbers of JSON are exact.
pub(super) const MOST_COST: u64 = 1 << 53;

impl Engine {
    /// Validates a question.
    pub(super) fn charge(&self, question: &Question) -> Result<Charge, DecideError> {
        let nth = self.named(&question.limit)?;
        let source = address(question)?;
        let entries = question
            .key
            .iter()
            .map(|(entry, value)| (entry_name(entry), value.as_str()));
        let nth = self.replacement(nth, entries.clone(), source);
        let limit = &self.limits[nth];
        let is_known = |entry: &str| {
            entry == SOURCE || limit.policy.key.iter().any(|known| known.name == entry)
        };
        if let Some((entry, _)) = entries.clone().find(|(entry, _)| !is_known(entry)) {
            return Err(DecideError::UnknownEntry {
                limit: limit.policy.name.clone(),
                entry: entry.to_owned(),
            });
        }
        let (cost, kind) = self.cost(self.most_of_source(limit, source), question)?;
        let charge = self.charge_of(nth, entries, source, cost)?;
        Ok(Charge {
            kind: if question.peek {
                ChargeKind::Peek
            } else {
                kind
            },
            bans_nobody: question.bans_nobody,
            ..charge
        })
    }

    /// Validates a request for a limit, some of whose entries may concern other limits.
    pub(super) fn charge_of_any<'q>(
        &self,
        limit: &str,
        entries: impl Iterator<Item = (&'q str, &'q str)> + Clone,
        source: Option<IpAddr>,
        cost: u64,
    ) -> Result<Charge, DecideError> {
        let nth = self.replacement(self.named(limit)?, entries.clone(), source);
        self.charge_of(nth, entries, source, cost)
    }

    fn named(&self, limit: &str) -> Result<usize, DecideError> {
        let names = || self.limits.iter().map(|limit| limit.policy.name.as_str());
        let unknown = || DecideError::UnknownLimit {
            name: limit.to_owned(),
            help: suggest(limit, &names().collect::<Vec<_>>()),
        };
        self.by_name.get(limit).copied().ok_or_else(unknown)
    }

    /// The limit that replaces the named one for this key, if there is one.
    fn replacement<'q>(
        &self,
        mut nth: usize,
        entries: impl Iterator<Item = (&'q str, &'q str)> + Clone,
        source: Option<IpAddr>,
    ) -> usize {
        // A valid config has no cycles of them; this ends in any case.
        for _ in &self.limits {
            let is_for = |limit: &Limit| {
                limit.replaces == Some(nth)
                    && limit.policy.domain == self.limits[nth].policy.domain
                    && limit
                        .policy
                        .key
                        .iter()
                        .filter(|entry| entry.value.is_some())
                        .all(|entry| {
                            let value = value_of(entry, entries.clone(), source, &limit.policy);
                            value.is_some_and(|value| is_wanted(entry, &value, &limit.policy))
                        })
            };
            match self.limits.iter().position(is_for) {
                Some(other) => nth = other,
                None => break,
            }
        }
        nth
    }

    /// Validates the entries of a key, under their names in limits.
    pub(super) fn charge_of<'q>(
        &self,
        nth: usize,
        entries: impl Iterator<Item = (&'q str, &'q str)> + Clone,
        source: Option<IpAddr>,
        cost: u64,
    ) -> Result<Charge, DecideError> {
        let limit = &self.limits[nth];
        let mut values = Vec::with_capacity(limit.policy.key.len());
        for entry in limit.policy.key.iter() {
            let name = || limit.policy.name.clone();
            let value = match (
                value_of(entry, entries.clone(), source, &limit.policy),
                &entry.value,
            ) {
                (Some(value), _) if is_wanted(entry, &value, &limit.policy) => value,
                (Some(value), _) => {
                    let (entry, value) = (entry.to_string(), value.to_string());
                    return Err(DecideError::OtherValue {
                        limit: name(),
                        entry,
                        value,
                    });
                }
                // The limit fixes the only possible value.
                (None, Some(EntryValue::Text(text))) => Value::Text(text),
                (None, Some(EntryValue::Address(address))) => {
                    Value::of_address(*address, &limit.policy)
                }
                (None, value) => {
                    let help = match value {
                        _ if entry.is_source() => "send the client's address as source",
                        Some(_) => "add it with a value that matches the limit's",
                        None => "add it with a value",
                    };
                    return Err(DecideError::MissingEntry {
                        limit: name(),
                        entry: entry.name.clone(),
                        help,
                    });
                }
            };
            values.push(match limit.policy.over.has(entry) {
                true => Value::all_of(entry),
                false => value,
            });
        }
        let source_class = self.sources.source_class(source);
        let key = if limit.is_exchanged() {
            self.together.load().of(&values)
        } else {
            self.fingerprints.of(&values)
        };
        Ok(self.current(Charge {
            limit: nth,
            source_class,
            source,
            key,
            named: key,
            left: None,
            cost,
            kind: ChargeKind::Conforming,
            bans_nobody: false,
        }))
    }

    /// The charge on the current state of its key: in the calendar's period, after the last reset.
    pub(super) fn current(&self, charge: Charge) -> Charge {
        let limit = &self.limits[charge.limit];
        if limit.is_exchanged() {
            let together = || self.together.load_full();
            let key = self.resets.current(limit.name_hash, charge.named, together);
            return Charge { key, ..charge };
        }
        let Some(periods) = &limit.periods else {
            return charge;
        };
        let now = periods.now(charge.named, &self.fingerprints);
        if let Some(store) = self.store_of(&charge) {
            store.overflow.set_period(now.number);
        }
        Charge {
            key: now.key,
            left: Some(now.left),
            ..charge
        }
    }

    /// The whole allowance of the client's class.
    fn most_of_source(&self, limit: &Limit, source: Option<IpAddr>) -> u64 {
        let multiplier = match self.sources.source_class(source) {
            SourceClass::Multiplier(multiplier) => multiplier,
            SourceClass::NeverLimited | SourceClass::Unlimited => 0,
        };
        let store = limit.stores.get(multiplier);
        store.map_or(0, |store| tiers::most(store.tiers()))
    }

    /// The units of a question where the whole allowance is `most`, and what becomes of them.
    pub(super) fn cost(
        &self,
        most: u64,
        question: &Question,
    ) -> Result<(u64, ChargeKind), DecideError> {
        let kind = match question.charge {
            None => ChargeKind::Conforming,
            Some(ChargeMode::Force) => ChargeKind::Forced,
        };
        let Some(name) = &question.request else {
            if !question.parameters.is_empty() {
                return Err(DecideError::Cost(
                    "parameters requires request: add request, or send cost instead",
                ));
            }
            let cost = question.cost.unwrap_or(1);
            let kind = if cost < 0 { ChargeKind::Refund } else { kind };
            if cost.unsigned_abs() > MOST_COST {
                return Err(DecideError::Cost(
                    "cost is at most 9007199254740992 (2^53) units, as the result of a formula is",
                ));
            }
            return Ok((cost.unsigned_abs(), kind));
        };
        if question.cost.is_some() {
            return Err(DecideError::Cost(
                "request conflicts with cost: leave out one of them",
            ));
        }
        let Some(formula) = self.requests.get(name) else {
            let names: Vec<&str> = self.requests.keys().map(String::as_str).collect();
            return Err(DecideError::UnknownRequest {
                name: name.clone(),
                help: suggest(name, &names),
            });
        };
        let cost = formula.cost(most, &question.parameters);
        cost.map(|cost| (cost, kind))
            .map_err(|error| DecideError::Formula {
                request: name.clone(),
                error,
            })
    }

    /// The limits on a descriptor with these entries: those with exactly these entries in any order, without the limits
    /// that another one replaces.
    pub(super) fn limits_of<'q, I: Iterator<Item = (&'q str, &'q str)> + Clone>(
        &self,
        domain: &str,
        entries: impl Fn() -> I,
    ) -> Vec<usize> {
        let is_for = |limit: &Limit| {
            let policy = &limit.policy;
            policy.domain.as_ref().is_none_or(|wanted| wanted == domain)
                && policy.key.len() == entries().count()
                && policy.key.iter().all(|entry| {
                    let value = value_of(entry, entries(), None, policy);
                    value.is_some_and(|value| is_wanted(entry, &value, policy))
                })
        };
        let matching: Vec<usize> = (0..self.limits.len())
            .filter(|nth| is_for(&self.limits[*nth]))
            .collect();
        let is_replaced = |nth: &usize| {
            matching
                .iter()
                .any(|other| self.limits[*other].replaces == Some(*nth))
        };
        matching
            .iter()
            .copied()
            .filter(|nth| !is_replaced(nth))
            .collect()
    }
}

/// The client's address from `source` or the key; IPv4-mapped as IPv4.
fn address(question: &Question) -> Result<Option<IpAddr>, DecideError> {
    let mut in_key = None;
    for (_, text) in question
        .key
        .iter()
        .filter(|(entry, _)| entry_name(entry) == SOURCE)
    {
        let address = text
            .parse::<IpAddr>()
            .map_err(|_| DecideError::Source(text.clone()))?
            .to_canonical();
        match in_key.replace(address) {
            Some(other) if other != address => {
                return Err(DecideError::Source(format!("{other}, {address}")));
            }
            _ => {}
        }
    }
    let apart = question.source.map(|address| address.to_canonical());
    match (in_key, apart) {
        (Some(one), Some(other)) if one != other => {
            Err(DecideError::Source(format!("{one}, {other}")))
        }
        (one, other) => Ok(one.or(other)),
    }
}

/// The parts of a key. Hashing includes their lengths, so that adjacent values cannot run together.
#[derive(Hash, PartialEq, Eq)]
enum Value<'q> {
    Text(&'q str),
    Address(IpAddr),
    /// All values that match this pattern. Hosts of a fleet with another pattern, while the config changes, count apart.
    All(&'q str),
}

impl<'q> Value<'q> {
    fn all_of(entry: &'q KeyEntry) -> Self {
        Self::All(match &entry.value {
            Some(EntryValue::Pattern(pattern)) => pattern.text(),
            Some(EntryValue::Text(text)) => text,
            Some(EntryValue::Address(_)) | None => "",
        })
    }

    fn of_address(address: IpAddr, policy: &RequestLimit) -> Self {
        Self::Address(masked(address, policy.ipv4_prefix, policy.ipv6_prefix))
    }
}

impl std::fmt::Display for Value<'_> {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(text) | Self::All(text) => text.fmt(formatter),
            Self::Address(address) => address.fmt(formatter),
        }
    }
}

/// An entry's value in a question or descriptor. `source` may be given separately; a `source` that is not an address is
/// kept as text, so that the limit applies to it like to any other value.
fn value_of<'q>(
    entry: &KeyEntry,
    mut entries: impl Iterator<Item = (&'q str, &'q str)>,
    source: Option<IpAddr>,
    policy: &RequestLimit,
) -> Option<Value<'q>> {
    let text = entries
        .find(|(name, _)| *name == entry.name)
        .map(|(_, value)| value);
    if !entry.is_source() {
        return text.map(Value::Text);
    }
    match text {
        Some(text) => Some(match text.parse::<IpAddr>() {
            Ok(address) => Value::of_address(address.to_canonical(), policy),
            Err(_) => Value::Text(text),
        }),
        None => source.map(|source| Value::of_address(source, policy)),
    }
}

/// Whether the value is one that the entry permits.
fn is_wanted(entry: &KeyEntry, value: &Value<'_>, policy: &RequestLimit) -> bool {
    match &entry.value {
        None => true,
        Some(EntryValue::Text(text)) => *value == Value::Text(text),
        Some(EntryValue::Pattern(pattern)) => {
            matches!(value, Value::Text(text) if pattern.matches(text))
        }
        Some(EntryValue::Address(address)) => *value == Value::of_address(*address, policy),
    }
}

fn suggest(written: &str, known: &[&str]) -> String {
    if known.is_empty() {
        "the config has none".to_owned()
    } else {
        suggestion(written, known)
    }
}
