//! Which limits share a slot of the table of sources, and where in it each has its state.

use std::collections::{BTreeMap, HashMap};

use common::rule::{Enforcement, Moves, Rule};
use common::time::TickScale;

use super::CompileError;
use super::image::Group;
use super::rules::{self, RuleSource};
use crate::config::policy::{Algorithm, Direction, Key, Limit, Mode, Multiplier, Unit};

/// States that fit into the widest slot.
const WIDEST: u32 = 7;

/// States of limits on some packets only have a slot of their own if they live so many times as long as those of limits on
/// every packet; and groups that live so many times as long as others leave some slots to them.
const MUCH_LONGER: u128 = 16;

/// Where the states of one limit are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub group: u16,
    /// How the states of its group may be moved.
    pub moves: Moves,
    /// Whether its group leaves some slots to groups of shorter lives.
    pub is_slow: bool,
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
/// packets, as many as fit. Connections and requests that are remembered for much longer than packets are not put with
/// them, or every source that has made one would keep a slot that limits on packets need.
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
    let empty = Place { group: 0, moves: Moves::Anywhere, is_slow: false, positions: Vec::new(), rings: Vec::new() };
    let mut groups = Groups { places: vec![empty; limits.len()], ..Groups::default() };
    for members in by_key.into_values().flat_map(|members| by_life(limits, members)) {
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
    groups.note_when_full(limits);
    Ok(groups)
}

/// Limits of one key, in one part or in two.
fn by_life(limits: &[(usize, &Limit)], members: Vec<usize>) -> Vec<Vec<usize>> {
    let is_rare = |nth: &usize| matches!(limits[*nth].1.unit, Unit::Connections | Unit::Requests);
    let (rare, frequent): (Vec<usize>, Vec<usize>) = members.iter().partition(|nth| is_rare(nth));
    let longest = |part: &[usize]| part.iter().map(|nth| rules::longest_life(limits[*nth].1)).max();
    match (longest(&frequent), longest(&rare)) {
        (Some(short), Some(long)) if long >= short.saturating_mul(MUCH_LONGER) => vec![frequent, rare],
        _ => vec![members],
    }
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

    fn note_when_full(&mut self, limits: &[(usize, &Limit)]) {
        let mut groups: BTreeMap<u16, (Moves, u128)> = BTreeMap::new();
        for (place, (_, limit)) in self.places.iter().zip(limits) {
            let moves = match limit.algorithm {
                Algorithm::TokenBucket | Algorithm::LeakyBucket => Moves::Anywhere,
                Algorithm::SlidingWindow => Moves::Inherit,
                Algorithm::FixedWindow | Algorithm::SlidingLog => Moves::Nowhere,
            };
            let (all, life) = groups.entry(place.group).or_insert((Moves::Anywhere, 0));
            *all = if moves as u8 > *all as u8 { moves } else { *all };
            *life = rules::longest_life(limit).max(*life);
        }
        let shortest = groups.values().map(|(_, life)| *life).min().unwrap_or(0);
        for place in &mut self.places {
            if let Some((moves, life)) = groups.get(&place.group) {
                place.moves = *moves;
                place.is_slow = *life >= shortest.saturating_mul(MUCH_LONGER) && *life > shortest;
            }
        }
    }

    /// How many numbers of groups there are, up to the highest that is in use.
    pub fn numbers(&self) -> u32 {
        u32::from(self.count).max(1)
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
                let frame = frame.when_full(rules::on_full(limit), place.moves, place.is_slow);
                let source = RuleSource { algorithm: limit.algorithm, unit: limit.unit, rate, burst, frame };
                let rule = source.rule(Multiplier::ONE, scale);
                group.key = rule;
                group.states.push((*index, rule));
            }
        }
        described
    }
}
