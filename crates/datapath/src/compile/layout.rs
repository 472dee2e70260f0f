//! The layout of the table of sources, stored beside it so that the next policy, of this agent or the next one, can
//! migrate the table's state.
//!
//! A key's place in the table depends on its address and the number of its group, so groups keep their numbers over
//! policies. A group of the new policy gets the number of the old group with which it shares most limits.

use std::collections::{BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use common::limiter::Rate;
use common::rule::{Enforcement, Rule};
use common::time::TickScale;
use config::policy::{Algorithm, Class, Key, Limit, Mode, Multiplier, Unit};
use serde::{Deserialize, Serialize};

use super::at::LimitAt;
use super::groups::Groups;
use super::rules::{self, RuleSource};

/// The layout of a table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Layout {
    /// [`TickScale`], left and right.
    scale: (u32, u32),
    /// In layouts of earlier versions: the factors of the classes, each of which had windows and logs of its own format.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    multipliers: Vec<String>,
    /// The classes' names, in order, if some key is a class.
    classes: Vec<String>,
    groups: Vec<GroupLayout>,
}

/// The keys of one group.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct GroupLayout {
    number: u16,
    /// Direction, key and prefixes.
    key: String,
    is_of_classes: bool,
    states: Vec<StateLayout>,
}

/// The state of one rule in a slot.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
struct StateLayout {
    limit: String,
    /// The index of the rule among the limit's; 0 of a fair one.
    part: usize,
    /// [`FAIR`], or the limit's.
    algorithm: String,
    unit: String,
    /// (units, nanoseconds); of windows and logs, those of the class with the largest multiplier, whose format all have.
    rate: (u64, u64),
    burst: u64,
    position: u8,
    ring: u16,
    /// Whether each class has windows of its own format.
    #[serde(default)]
    has_formats_of_classes: bool,
}

/// In place of the algorithm of a fair rule: the words are instants at levels that the agent found, which say nothing to a rate.
const FAIR: &str = "fair";

/// The migration of one state to another policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateCarry {
    /// The old policy's rule.
    pub from: Rule,
    /// The new policy's rule.
    pub to: Rule,
}

/// The states that are migrated from one table to another.
#[derive(Clone, Debug, Default)]
pub struct CarryPlan {
    /// The states to migrate, by the number of their group.
    pub groups: HashMap<u32, Vec<StateCarry>>,
    /// For each limit of both policies whose state is reset: a note with the reason.
    pub resets: Vec<String>,
}

impl Layout {
    /// The layout of these limits.
    pub fn of(
        limits: &[(LimitAt, &Limit)],
        classes: &[Class],
        groups: &Groups,
        scale: TickScale,
    ) -> Self {
        let mut by_number: HashMap<u16, GroupLayout> = HashMap::new();
        for (place, (_, limit)) in groups.places.iter().zip(limits) {
            let group = by_number.entry(place.group).or_insert_with(|| GroupLayout {
                number: place.group,
                key: key_of(limit),
                is_of_classes: limit.key == Key::Class,
                states: Vec::new(),
            });
            let parts = rules::parts(limit, Mode::Enforce).into_iter().enumerate();
            for (((part, (rate, burst, enforcement)), position), ring) in
                parts.zip(&place.positions).zip(&place.rings)
            {
                let algorithm = limit.rates.algorithm;
                let source = RuleSource {
                    algorithm,
                    unit: limit.unit,
                    rate,
                    burst,
                    largest: groups.largest_of(algorithm),
                    frame: Rule::EMPTY,
                };
                let rate = if algorithm.has_burst() {
                    rate
                } else {
                    source.largest.rate_of(algorithm, rate)
                };
                let (part, algorithm) = match enforcement {
                    Enforcement::Fair => (0, FAIR.to_owned()),
                    _ => (part, algorithm.to_string()),
                };
                group.states.push(StateLayout {
                    limit: limit.name.clone(),
                    part,
                    algorithm,
                    unit: limit.unit.to_string(),
                    rate: (rate.count, rate.per_nanoseconds),
                    burst,
                    position: *position,
                    ring: *ring,
                    has_formats_of_classes: !source.shares_format(scale),
                });
            }
        }
        let mut all: Vec<GroupLayout> = by_number.into_values().collect();
        all.sort_unstable_by_key(|group| group.number);
        let has_class_keys = limits.iter().any(|(_, limit)| limit.key == Key::Class);
        Self {
            scale: (scale.left, scale.right),
            multipliers: Vec::new(),
            classes: if has_class_keys {
                classes.iter().map(|class| class.name.clone()).collect()
            } else {
                Vec::new()
            },
            groups: all,
        }
    }

    /// A hash of the layout, to compare it.
    #[must_use]
    pub fn fingerprint(&self) -> u64 {
        let mut hasher = DefaultHasher::new();
        self.hash(&mut hasher);
        hasher.finish()
    }

    /// For each group of a new policy, the number that it gets from this layout.
    pub fn numbers(&self, limits: &[(LimitAt, &Limit)], groups: &Groups) -> HashMap<u16, u16> {
        let mut numbers = HashMap::new();
        let mut taken = BTreeSet::new();
        let mut members: HashMap<u16, Vec<&Limit>> = HashMap::new();
        for (place, (_, limit)) in groups.places.iter().zip(limits) {
            members.entry(place.group).or_default().push(limit);
        }
        let owner: HashMap<(&str, &str), &GroupLayout> = self
            .groups
            .iter()
            .flat_map(|group| {
                group
                    .states
                    .iter()
                    .map(move |state| ((group.key.as_str(), state.limit.as_str()), group))
            })
            .collect();
        let mut order: Vec<u16> = members.keys().copied().collect();
        order.sort_unstable();
        for group in &order {
            let mut shared: HashMap<u16, usize> = HashMap::new();
            for limit in &members[group] {
                if let Some(old) = owner.get(&(key_of(limit).as_str(), limit.name.as_str())) {
                    *shared.entry(old.number).or_default() += 1;
                }
            }
            let best = shared
                .into_iter()
                .filter(|(number, _)| !taken.contains(number));
            if let Some((number, _)) =
                best.max_by_key(|(number, count)| (*count, std::cmp::Reverse(*number)))
            {
                numbers.insert(*group, number);
                taken.insert(number);
            }
        }
        // A number of other keys is reused only after all other numbers.
        let old: BTreeSet<u16> = self.groups.iter().map(|group| group.number).collect();
        let mut free =
            (0..u16::MAX).filter(|number| !old.contains(number) && !taken.contains(number));
        for group in order {
            if let std::collections::hash_map::Entry::Vacant(entry) = numbers.entry(group)
                && let Some(number) = free.next()
            {
                entry.insert(number);
            }
        }
        numbers
    }

    /// The states that are migrated to a table with the layout `next`.
    #[must_use]
    pub fn carry(&self, next: &Self) -> CarryPlan {
        let (from_scale, to_scale) = (self.scale(), next.scale());
        let mut plan = CarryPlan::default();
        let known: BTreeSet<&str> = self
            .groups
            .iter()
            .flat_map(|group| &group.states)
            .map(|state| state.limit.as_str())
            .collect();
        let old_groups: HashMap<u16, &GroupLayout> = self
            .groups
            .iter()
            .map(|group| (group.number, group))
            .collect();
        let mut resets: BTreeSet<(&str, &str)> = BTreeSet::new();
        for group in &next.groups {
            let mut states = Vec::new();
            for to in &group.states {
                let old = old_groups
                    .get(&group.number)
                    .filter(|old| old.key == group.key);
                let from = old.and_then(|old| {
                    let is_same = |from: &&StateLayout| {
                        (&from.limit, from.part, &from.algorithm, &from.unit)
                            == (&to.limit, to.part, &to.algorithm, &to.unit)
                    };
                    old.states.iter().find(is_same)
                });
                let carried = match from {
                    None if known.contains(to.limit.as_str()) => {
                        Err("its key, unit, algorithm, tiers or kind of rate changed")
                    }
                    None => continue,
                    Some(_) if group.is_of_classes && self.classes != next.classes => {
                        Err("its key is class, and the classes changed")
                    }
                    Some(from) => carried(from, to, (self, from_scale), to_scale),
                };
                match carried {
                    Ok(carry) => states.push(carry),
                    Err(why) => {
                        resets.insert((&to.limit, why));
                    }
                }
            }
            if !states.is_empty() {
                plan.groups.insert(u32::from(group.number), states);
            }
        }
        plan.resets = resets
            .into_iter()
            .map(|(limit, why)| format!("the state of limit {limit:?} is reset: {why}"))
            .collect();
        plan
    }

    /// The same for a table with another clock, whose words must all be converted.
    #[must_use]
    pub fn carry_to_another_clock(&self, next: &Self) -> CarryPlan {
        let mut plan = self.carry(next);
        if !self.multipliers.is_empty() {
            let before: usize = plan.groups.values().map(Vec::len).sum();
            plan.groups
                .values_mut()
                .for_each(|states| states.retain(|state| state.from.is_bucket()));
            if plan.groups.values().map(Vec::len).sum::<usize>() < before {
                let why = "the state of windows and logs is reset: an earlier version wrote that of classes in another format";
                plan.resets.push(why.to_owned());
            }
        }
        plan
    }

    fn scale(&self) -> TickScale {
        TickScale {
            left: self.scale.0,
            right: self.scale.1,
        }
    }
}

/// The migration of one state, or the reason why it is reset.
fn carried(
    from: &StateLayout,
    to: &StateLayout,
    (old, old_scale): (&Layout, TickScale),
    new_scale: TickScale,
) -> Result<StateCarry, &'static str> {
    let rules = from.rule(old_scale).zip(to.rule(new_scale));
    let (old_rule, new_rule) = rules.ok_or("its algorithm is unknown to this version")?;
    if !old_rule.is_bucket() && !old.multipliers.is_empty() {
        return Err("an earlier version wrote windows and logs of classes in another format");
    }
    if from.has_formats_of_classes || to.has_formats_of_classes {
        return Err(
            "its window is too short for the count of the largest multiplier, so that each class has windows of another format",
        );
    }
    Ok(StateCarry {
        from: old_rule,
        to: new_rule,
    })
}

impl StateCarry {
    /// Whether every word stays as it is.
    #[must_use]
    pub fn is_verbatim(&self, same_scale: bool) -> bool {
        let placed = Rule {
            position: self.from.position,
            ring: self.from.ring,
            ..self.to
        };
        same_scale && placed == self.from
    }
}

impl StateLayout {
    fn rule(&self, scale: TickScale) -> Option<Rule> {
        let word = |word: &str, name: &str| word == name;
        let algorithm = if self.algorithm == FAIR {
            Algorithm::TokenBucket
        } else {
            let mut words = Algorithm::WORDS.iter();
            words.find(|(name, _)| word(name, &self.algorithm))?.1
        };
        let unit = Unit::WORDS
            .iter()
            .find(|(name, _)| word(name, &self.unit))?
            .1;
        let rate = Rate {
            count: self.rate.0,
            per_nanoseconds: self.rate.1,
        };
        let frame = Rule {
            position: self.position,
            ring: self.ring,
            algorithm: algorithm as u8,
            ..Rule::EMPTY
        };
        Some(
            RuleSource {
                algorithm,
                unit,
                rate,
                burst: self.burst,
                largest: Multiplier::ONE,
                frame,
            }
            .rule(Multiplier::ONE, scale),
        )
    }
}

/// The text of the properties that limits with a common key share.
fn key_of(limit: &Limit) -> String {
    let prefixes = if limit.key.has_prefix() {
        (limit.ipv4_prefix, limit.ipv6_prefix)
    } else {
        (0, 0)
    };
    format!(
        "{} {} {} {}",
        limit.direction_name(),
        limit.key,
        prefixes.0,
        prefixes.1
    )
}
