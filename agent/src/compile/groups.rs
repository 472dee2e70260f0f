//! Which limits share a slot of the table of sources, and where in it each has its state.

use std::collections::{BTreeMap, HashMap};

use common::rule::{Enforcement, Rule};
use common::time::TickScale;

use super::CompileError;
use super::image::Group;
use super::rules::{self, RuleSource};
use crate::config::policy::{Algorithm, Direction, Key, Limit, Mode, Multiplier};

/// States that fit into the widest slot.
const WIDEST: u32 = 7;

/// Where the states of one limit are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub group: u16,
    /// The first word of each of its rules.
    pub positions: Vec<u8>,
    /// The first ring word of each, 0 for those without a log.
    pub rings: Vec<u16>,
}

/// The places of all limits, in the order of the limits.
#[derive(Clone, Debug, Default)]
pub struct Groups {
    pub places: Vec<Place>,
    /// The most words of state of any group.
    pub widest: u32,
    /// The most ring words of any group.
    pub ring_words: u32,
    count: u16,
}

/// What limits have to have in common to count by the same key.
type KeySpec = (Direction, Key, u8, u8);

/// Puts limits of the same key together: all of them if they fit into one slot, else those that apply to the same
/// packets, as many as fit.
pub fn assign(limits: &[(usize, &Limit)]) -> Result<Groups, CompileError> {
    let mut by_key: BTreeMap<KeySpec, Vec<usize>> = BTreeMap::new();
    for (nth, (_, limit)) in limits.iter().enumerate() {
        let needed = needed(limit);
        if needed > WIDEST {
            return Err(CompileError::TooWide { limit: limit.name.clone(), words: needed });
        }
        let prefixes = if limit.key.has_address() { (limit.ipv4_prefix, limit.ipv6_prefix) } else { (0, 0) };
        by_key.entry((limit.direction, limit.key, prefixes.0, prefixes.1)).or_default().push(nth);
    }
    let empty = Place { group: 0, positions: Vec::new(), rings: Vec::new() };
    let mut groups = Groups { places: vec![empty; limits.len()], ..Groups::default() };
    for members in by_key.into_values() {
        if members.iter().map(|nth| needed(limits[*nth].1)).sum::<u32>() <= WIDEST {
            groups.add(limits, &members);
            continue;
        }
        let mut by_packets: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for nth in members {
            let limit = limits[nth].1;
            by_packets.entry((limit.protocol, limit.ports.clone(), limit.unit)).or_default().push(nth);
        }
        for members in by_packets.into_values() {
            let mut fitting = Vec::new();
            for nth in members {
                let words: u32 = fitting.iter().chain([&nth]).map(|nth: &usize| needed(limits[*nth].1)).sum();
                if words > WIDEST {
                    groups.add(limits, &fitting);
                    fitting.clear();
                }
                fitting.push(nth);
            }
            groups.add(limits, &fitting);
        }
    }
    Ok(groups)
}

/// Words of state of all rules of a limit.
fn needed(limit: &Limit) -> u32 {
    rules::parts(limit, Mode::Enforce).len() as u32 * rules::words(limit)
}

impl Groups {
    fn add(&mut self, limits: &[(usize, &Limit)], members: &[usize]) {
        let (mut position, mut ring) = (1u32, 0u32);
        for nth in members {
            let limit = limits[*nth].1;
            let place = &mut self.places[*nth];
            place.group = self.count;
            for (rate, _, _) in rules::parts(limit, Mode::Enforce) {
                place.positions.push(position as u8);
                place.rings.push(ring as u16);
                position += rules::words(limit);
                if limit.algorithm == Algorithm::SlidingLog {
                    ring += rate.count.min(common::limiter::sliding_log::LARGEST_LOG) as u32;
                }
            }
        }
        self.widest = self.widest.max(position - 1);
        self.ring_words = self.ring_words.max(ring);
        self.count += 1;
    }

    /// Gives each group the number that `numbers` has for it.
    pub fn renumber(&mut self, numbers: &HashMap<u16, u16>) {
        for place in &mut self.places {
            place.group = numbers.get(&place.group).copied().unwrap_or(place.group);
        }
        self.count = self.places.iter().map(|place| place.group + 1).max().unwrap_or(0);
    }

    /// The groups as the readers of the table want them.
    pub fn describe(&self, limits: &[(usize, &Limit)], scale: TickScale) -> Vec<Group> {
        let mut described: Vec<Group> =
            (0..self.count).map(|group| Group { key: Rule { group, ..Rule::EMPTY }, states: Vec::new() }).collect();
        for (place, (index, limit)) in self.places.iter().zip(limits) {
            let group = &mut described[usize::from(place.group)];
            let parts = rules::parts(limit, Mode::Enforce);
            for (((rate, burst, _), position), ring) in parts.into_iter().zip(&place.positions).zip(&place.rings) {
                let frame = Rule {
                    group: place.group,
                    position: *position,
                    ring: *ring,
                    ..rules::frame(limit, Enforcement::Enforce)
                };
                let source = RuleSource { algorithm: limit.algorithm, unit: limit.unit, rate, burst, frame };
                let rule = source.rule(Multiplier::ONE, scale);
                group.key = rule;
                group.states.push((*index, rule));
            }
        }
        described
    }
}
