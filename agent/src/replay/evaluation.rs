//! Evaluates a capture under one config, with the programs of both directions.

use common::counters::{BYPASS_ROWS, Bypass, Counters, Traffic};
use common::key::HashSeed;
use common::packet::Direction;
use common::rule::{Rule, Subject};
use common::source_sketch;
use config::policy::Config;
use datapath::compile::{Image, LimitAt, Plan};
use datapath::counters::by_limit;

use super::capture::{CapturedPacket, InterfaceNames};
use super::program::{MemoryProgram, Verdict};
use super::refused::{Refused, SourceKey};
use super::table::Table;
use super::timeline::{Step, Timeline};
use crate::stats::of_limit;

/// The seed of the table of sources: fixed, so that every replay of a capture gives the same result.
const SEED: HashSeed = HashSeed::of_number(1);

/// The result of one packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Evaluated {
    pub verdict: Verdict,
    /// The subject that the refusing rule evaluated, if a rule refused it.
    pub subject: Option<Subject>,
    /// Whether the program read beyond the captured part.
    pub is_cut: bool,
}

/// Packets by direction, and packets that were not evaluated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Evaluated as ingress.
    pub ingress: u64,
    /// Evaluated as egress.
    pub egress: u64,
    /// Egress packets where the config has no egress limits: passed.
    pub egress_unlimited: Traffic,
    /// Passed, and above a rule on `observe`; each packet once.
    pub would_refuse: Traffic,
    /// Not evaluated because too little was captured.
    pub unknown: u64,
    /// Evaluated, although the program read beyond the captured part.
    pub cut: u64,
}

/// The evaluation of packets under a config.
pub struct Evaluation<'m> {
    config: &'m Config,
    ingress: MemoryProgram<'m>,
    egress: Option<MemoryProgram<'m>>,
    refused: Refused,
    would_refuse: Refused,
    timeline: Timeline,
    tally: Tally,
}

impl<'m> Evaluation<'m> {
    /// Evaluates `plan`, the compiled `config`, with an empty table.
    #[must_use]
    pub fn new(config: &'m Config, plan: &'m Plan, table: Table<'m>) -> Self {
        Self::with_seed(config, plan, table, SEED)
    }

    /// The same with another seed.
    #[must_use]
    pub fn with_seed(config: &'m Config, plan: &'m Plan, table: Table<'m>, seed: HashSeed) -> Self {
        let program =
            |image: &'m Image| MemoryProgram::new(image, table, seed, config.classes.len());
        Self {
            config,
            ingress: program(&plan.ingress),
            egress: plan.egress.as_ref().map(program),
            refused: Refused::new(plan.ingress.max_sources),
            would_refuse: Refused::new(plan.ingress.max_sources),
            timeline: Timeline::new(config.limits.len()),
            tally: Tally::default(),
        }
    }

    /// Applies limits for certain interfaces by the names in the captures.
    #[inline]
    pub fn name_interfaces(&self, names: &InterfaceNames) {
        self.programs()
            .for_each(|program| program.name_interfaces(names));
    }

    /// Whether a limit is for certain interfaces.
    #[must_use]
    pub fn needs_interface(&self) -> bool {
        self.programs()
            .any(|program| program.image().interfaces.are_in_use())
    }

    /// Evaluates a packet at an instant of the clock; `captured` is the time for reports.
    #[inline]
    pub fn evaluate(
        &mut self,
        packet: &CapturedPacket<'_>,
        direction: Direction,
        nanoseconds: u64,
        captured: u64,
    ) -> Evaluated {
        if self.timeline.is_over(nanoseconds) {
            let steps = self.steps();
            self.timeline.advance(nanoseconds, steps);
        }
        let program = match (direction, &self.egress) {
            (Direction::Ingress, _) => {
                self.tally.ingress += 1;
                &self.ingress
            }
            (Direction::Egress, Some(egress)) => {
                self.tally.egress += 1;
                egress
            }
            (Direction::Egress, None) => {
                self.tally.egress_unlimited.packets += 1;
                self.tally.egress_unlimited.bytes += u64::from(packet.length);
                return Evaluated {
                    verdict: Verdict::Pass,
                    subject: None,
                    is_cut: false,
                };
            }
        };
        let mut subject = None;
        let verdict = program.evaluate(packet, direction, nanoseconds, |rule, looked_at| {
            subject = Some(*looked_at);
            let source = SourceKey::of(
                limit_of(program.image(), rule.counter),
                rule.key_of(looked_at),
            );
            let sender = rule.is_of_level().then(|| source_sketch::number(looked_at));
            self.refused.add(
                source,
                (1, looked_at.size.bytes.into()),
                looked_at.class,
                captured,
                sender,
            );
        });
        program.take_sampled(|sampled| {
            let source = SourceKey::of(limit_of(program.image(), sampled.counter), sampled.key);
            if sampled.would_refuse {
                let bytes = u64::from(sampled.packets) * u64::from(packet.length);
                self.would_refuse.add(
                    source,
                    (u64::from(sampled.packets), bytes),
                    program.class(),
                    captured,
                    None,
                );
            } else {
                self.refused.passed(&source, sampled.packets.into());
            }
        });
        if verdict == Verdict::Pass && program.would_refuse() {
            self.tally.would_refuse.packets += 1;
            self.tally.would_refuse.bytes += u64::from(packet.length);
        }
        let is_cut = program.is_cut();
        if is_cut {
            match verdict {
                Verdict::Unknown => self.tally.unknown += 1,
                _ => self.tally.cut += 1,
            }
        }
        Evaluated {
            verdict,
            subject,
            is_cut,
        }
    }

    /// Ends the evaluation: adds the last counts to the timeline.
    pub fn finish(&mut self) {
        let steps = self.steps();
        self.timeline.note(steps);
    }

    fn steps(&self) -> Vec<Step> {
        let read = |program: &MemoryProgram<'_>| by_limit(program.image(), &program.counters());
        let ingress = read(&self.ingress);
        let egress = self.egress.as_ref().map(read);
        let limits = self.config.limits.iter().enumerate();
        let counted = limits.map(|(nth, limit)| match (limit.direction, &egress) {
            (Direction::Egress, Some(egress)) => of_limit(nth, limit, egress),
            _ => of_limit(nth, limit, &ingress),
        });
        counted.map(|counters| Step::of(&counters)).collect()
    }

    fn program_of(&self, direction: Direction) -> &MemoryProgram<'m> {
        match (direction, &self.egress) {
            (Direction::Egress, Some(egress)) => egress,
            _ => &self.ingress,
        }
    }

    /// The programs, ingress first.
    pub fn programs(&self) -> impl Iterator<Item = &MemoryProgram<'m>> {
        std::iter::once(&self.ingress).chain(&self.egress)
    }

    /// The counters of the nth limit for one class (0 is the default one), or for all.
    #[must_use]
    pub fn counters(&self, limit: usize, class: Option<usize>) -> Counters {
        let program = self.program_of(self.config.limits[limit].direction);
        let rows = class.map_or_else(|| program.counters(), |class| program.counters_of(class));
        let at = by_limit(program.image(), &rows);
        of_limit(limit, &self.config.limits[limit], at)
    }

    /// The counters of one level of the nth limit, for all classes.
    #[must_use]
    pub fn level_counters(&self, at: LimitAt) -> Counters {
        let program = self.program_of(self.config.limits[at.limit].direction);
        by_limit(program.image(), &program.counters())(at)
    }

    /// The counters of packets without any rule, by reason.
    #[must_use]
    pub fn bypass(&self, bypass: Bypass) -> Counters {
        let rows = self
            .programs()
            .map(|program| program.counters_of(0)[bypass as usize]);
        rows.fold(Counters::default(), Counters::plus)
    }

    /// The counters of all packets.
    #[must_use]
    pub fn totals(&self) -> Counters {
        let unlimited = Counters {
            passed: self.tally.egress_unlimited,
            ..Counters::default()
        };
        self.programs()
            .flat_map(MemoryProgram::counters)
            .fold(unlimited, Counters::plus)
    }

    /// A rule with the key of a limit's level.
    #[must_use]
    pub fn rule_of(&self, at: LimitAt) -> Option<&'m Rule> {
        let image = self
            .program_of(self.config.limits[at.limit].direction)
            .image();
        let row = image
            .catalogue
            .iter()
            .position(|counted| counted.at == at)?;
        image.rules.get(row)
    }

    /// Keys whose allowance is not full at the end.
    #[must_use]
    pub fn tracked(&self) -> u64 {
        self.programs()
            .map(MemoryProgram::tracked)
            .max()
            .unwrap_or(0)
    }

    #[must_use]
    pub const fn config(&self) -> &'m Config {
        self.config
    }

    /// The sources with the most refusals.
    #[must_use]
    pub const fn refused(&self) -> &Refused {
        &self.refused
    }

    /// The sources with the most refusals under rules on `observe`.
    #[must_use]
    pub const fn would_refuse(&self) -> &Refused {
        &self.would_refuse
    }

    /// The counts over time.
    #[must_use]
    pub const fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// The number of packets, by direction.
    #[must_use]
    pub const fn tally(&self) -> Tally {
        self.tally
    }
}

/// The limit of a row of counters.
fn limit_of(image: &Image, counter: u32) -> LimitAt {
    let counted = counter
        .checked_sub(BYPASS_ROWS)
        .and_then(|row| image.catalogue.get(row as usize));
    counted.map_or_else(LimitAt::default, |counted| counted.at)
}
