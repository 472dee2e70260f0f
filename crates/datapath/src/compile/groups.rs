//! Assigns limits to slots of the table of sources: limits of a group share a slot.

use std::collections::{BTreeMap, HashMap};

use common::limiter::Moves;
use common::rule::{Enforcement, Rule};
use common::time::TickScale;
use config::policy::{Algorithm, Class, Direction, Key, Limit, Mode, Multiplier, Service, Unit};

use super::at::LimitAt;
use super::error::CompileError;
use super::group::Group;
use super::rules::{self, RuleSource};

/// Words of state in the widest slot.
const WIDEST: u32 = 7;

/// Limits on connections and requests have a separate slot if their states live this many times as long as those of
/// limits on packets. Groups whose states live this many times as long as others' leave some slots to these.
const MUCH_LONGER: u128 = 16;

/// The group of a limit, and the places of its states in a slot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub group: u16,
    /// How the kernel program may move states of its group.
    pub moves: Moves,
    /// Whether its group leaves some slots to groups whose states decay sooner.
    pub is_slow: bool,
    /// The first word of each of its rules.
    pub positions: Vec<u8>,
    /// The first ring word of each; unused without a log.
    pub rings: Vec<u16>,
}

/// The places of all limits, in the order of the limits.
#[derive(Clone, Debug)]
pub struct Groups {
    pub places: Vec<Place>,
    /// The most words of state of any group.
    pub widest: u32,
    /// The most ring words of any group.
    pub ring_words: u32,
    /// The largest multiplier of a class.
    largest: Multiplier,
    /// The largest that sliding logs have places for.
    pub logs: Multiplier,
    count: u16,
}

/// Direction, key and prefix lengths: limits that agree in them have the same keys. A limit on open connections has its
/// own, since its keys are in another map.
type KeySpec = (Direction, Key, u8, u8, Option<usize>);

/// Groups limits with the same key: all of them if they fit into one slot, else those on the same packets, as many as
/// fit. Limits on connections and requests whose states live [`MUCH_LONGER`] are separate: otherwise every source with
/// a connection would occupy a slot of the limits on packets.
pub fn assign(
    limits: &[(LimitAt, &Limit)],
    largest: Multiplier,
    logs: Multiplier,
) -> Result<Groups, CompileError> {
    let mut by_key: BTreeMap<KeySpec, Vec<usize>> = BTreeMap::new();
    for (nth, (_, limit)) in limits.iter().enumerate() {
        let needed = needed(limit);
        if needed > WIDEST {
            return Err(CompileError::TooWide {
                limit: limit.name.clone(),
                words: needed,
            });
        }
        let prefixes = if limit.key.has_prefix() {
            (limit.ipv4_prefix, limit.ipv6_prefix)
        } else {
            (0, 0)
        };
        by_key
            .entry((
                limit.direction,
                limit.key,
                prefixes.0,
                prefixes.1,
                (limit.concurrent.is_some() || limit.is_fair()).then_some(nth),
            ))
            .or_default()
            .push(nth);
    }
    let empty = Place {
        group: 0,
        moves: Moves::Anywhere,
        is_slow: false,
        positions: Vec::new(),
        rings: Vec::new(),
    };
    let mut groups = Groups {
        places: vec![empty; limits.len()],
        widest: 0,
        ring_words: 0,
        largest,
        logs,
        count: 0,
    };
    for members in by_key
        .into_values()
        .flat_map(|members| by_life(limits, members))
    {
        if members
            .iter()
            .map(|nth| needed(limits[*nth].1))
            .sum::<u32>()
            <= WIDEST
        {
            groups.add(limits, &members);
            continue;
        }
        let mut by_packets: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for nth in members {
            let limit = limits[nth].1;
            by_packets
                .entry((limit.protocol, limit.ports.clone(), limit.unit))
                .or_default()
                .push(nth);
        }
        for members in by_packets.into_values() {
            let mut fitting = Vec::new();
            for nth in members {
                let words: u32 = fitting
                    .iter()
                    .chain([&nth])
                    .map(|nth: &usize| needed(limits[*nth].1))
                    .sum();
                if words > WIDEST {
                    groups.add(limits, &fitting);
                    fitting.clear();
                }
                fitting.push(nth);
            }
            groups.add(limits, &fitting);
        }
    }
    groups.place_refusals();
    groups.note_when_full(limits);
    Ok(groups)
}

/// The largest multiplier of the classes, and of sources in none.
pub fn largest_of_classes(classes: &[Class]) -> Multiplier {
    let multiplier = |class: &Class| match class.service() {
        Service::Multiplier(multiplier) => multiplier,
        Service::Unlimited => Multiplier::ONE,
    };
    let of_classes = classes.iter().map(multiplier);
    largest(&of_classes.chain([Multiplier::ONE]).collect::<Vec<_>>())
}

/// The largest multiplier.
pub fn largest(multipliers: &[Multiplier]) -> Multiplier {
    let all = multipliers.iter().copied();
    all.max_by(|one, other| one.factor().total_cmp(&other.factor()))
        .unwrap_or(Multiplier::ONE)
}

/// Splits the limits of one key in two if some live [`MUCH_LONGER`].
fn by_life(limits: &[(LimitAt, &Limit)], members: Vec<usize>) -> Vec<Vec<usize>> {
    let is_rare = |nth: &usize| matches!(limits[*nth].1.unit, Unit::Connections | Unit::Requests);
    let (rare, frequent): (Vec<usize>, Vec<usize>) = members.iter().partition(|nth| is_rare(nth));
    let longest = |part: &[usize]| {
        part.iter()
            .map(|nth| rules::longest_life(limits[*nth].1))
            .max()
    };
    match (longest(&frequent), longest(&rare)) {
        (Some(short), Some(long)) if long >= short.saturating_mul(MUCH_LONGER) => {
            vec![frequent, rare]
        }
        _ => vec![members],
    }
}

/// Words of state that all rules of a limit take.
fn needed(limit: &Limit) -> u32 {
    rules::parts(limit, Mode::Enforce).len() as u32 * rules::words(limit)
}

impl Groups {
    fn add(&mut self, limits: &[(LimitAt, &Limit)], members: &[usize]) {
        let (mut position, mut ring) = (1u32, 0u32);
        for nth in members {
            let limit = limits[*nth].1;
            let algorithm = limit.rates.algorithm;
            let largest = self.largest_of(algorithm);
            let place = &mut self.places[*nth];
            place.group = self.count;
            for (rate, _, _) in rules::parts(limit, Mode::Enforce) {
                place.positions.push(position as u8);
                place.rings.push(ring as u16);
                position += rules::words(limit);
                ring += algorithm.ring_words(largest.rate_of(algorithm, rate).count) as u32;
            }
        }
        self.widest = self.widest.max(position - 1);
        self.ring_words = self.ring_words.max(ring);
        self.count += 1;
    }

    /// The largest multiplier that states of an algorithm have room for.
    pub const fn largest_of(&self, algorithm: Algorithm) -> Multiplier {
        if algorithm.has_ring() {
            self.logs
        } else {
            self.largest
        }
    }

    /// Reserves the first ring word of each slot for refusal counts, where slots have several states.
    fn place_refusals(&mut self) {
        if self.slot_words() > 2 {
            self.ring_words += 1;
            self.places
                .iter_mut()
                .flat_map(|place| &mut place.rings)
                .for_each(|ring| *ring += 1);
        }
    }

    /// Words of a slot: the head, and the states of the widest group.
    pub const fn slot_words(&self) -> u32 {
        match self.widest + 1 {
            0..=2 => 2,
            3 | 4 => 4,
            _ => 8,
        }
    }

    fn note_when_full(&mut self, limits: &[(LimitAt, &Limit)]) {
        let mut groups: BTreeMap<u16, (Moves, u128)> = BTreeMap::new();
        for (place, (_, limit)) in self.places.iter().zip(limits) {
            let (all, life) = groups.entry(place.group).or_insert((Moves::Anywhere, 0));
            *all = limit.rates.algorithm.moves().max(*all);
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

    /// The highest group number in use, plus one.
    pub fn numbers(&self) -> u32 {
        u32::from(self.count).max(1)
    }

    /// Replaces group numbers by those in `numbers`.
    pub fn renumber(&mut self, numbers: &HashMap<u16, u16>) {
        for place in &mut self.places {
            place.group = numbers.get(&place.group).copied().unwrap_or(place.group);
        }
        self.count = self
            .places
            .iter()
            .map(|place| place.group + 1)
            .max()
            .unwrap_or(0);
    }

    /// The groups, for readers of the table.
    pub fn describe(&self, limits: &[(LimitAt, &Limit)], scale: TickScale) -> Vec<Group> {
        let mut described: Vec<Group> = (0..self.count)
            .map(|group| Group {
                key: Rule {
                    group,
                    ..Rule::EMPTY
                },
                states: Vec::new(),
            })
            .collect();
        for (place, (at, limit)) in self.places.iter().zip(limits) {
            let group = &mut described[usize::from(place.group)];
            let parts = rules::parts(limit, Mode::Enforce);
            for (((rate, burst, _), position), ring) in
                parts.into_iter().zip(&place.positions).zip(&place.rings)
            {
                let frame = Rule {
                    group: place.group,
                    position: *position,
                    ring: *ring,
                    ..rules::frame(limit, Enforcement::Enforce)
                };
                let frame = frame.when_full(rules::on_full(limit), place.moves, place.is_slow);
                let source = RuleSource {
                    algorithm: limit.rates.algorithm,
                    unit: limit.unit,
                    rate,
                    burst,
                    largest: self.largest_of(limit.rates.algorithm),
                    frame,
                };
                let rule = source.rule(Multiplier::ONE, scale);
                group.key = rule;
                group.states.push((*at, rule));
            }
        }
        described
    }
}
