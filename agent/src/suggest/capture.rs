//! Summarises captures as traffic, and evaluates a suggested config on them.

use std::cell::Cell;
use std::net::{IpAddr, Ipv6Addr};
use std::path::{Path, PathBuf};

use common::packet::{Address, Depth, Direction, parse};
use datapath::compile::{CompileError, plan};
use thiserror::Error;

use super::collect::Collector;
use super::text::Refusal;
use super::traffic::Traffic;
use crate::replay::capture::InterfaceNames;
use crate::replay::{
    CapturedFrame, Evaluation, Local, Outcome, Progress, TableMemory, read, replay,
};

/// The longest interface name.
const LONGEST_NAME: usize = 15;

/// The generated config is invalid.
#[derive(Debug, Error)]
pub enum EvaluateError {
    /// The text cannot be parsed.
    #[error("{0}")]
    Invalid(String),
    /// It cannot be compiled.
    #[error(transparent)]
    Compile(#[from] CompileError),
}

/// The result of reading captures.
#[derive(Debug)]
pub struct Summary {
    /// The captures, their interfaces and their clock.
    pub outcome: Outcome,
    /// The incoming packets.
    pub traffic: Traffic,
    /// The address at one end of most packets, if the captures do not record the direction and contain both.
    pub likely_local: Option<IpAddr>,
}

/// Reads captures and summarises the incoming packets.
pub fn summarise(
    paths: &[PathBuf],
    interfaces: InterfaceNames,
    local: &Local,
    progress: impl FnMut(Progress),
) -> Summary {
    let mut collector = Collector::default();
    let mut ends = Ends::default();
    let outcome = read(paths, interfaces, progress, |outcome, packet| {
        let known = outcome.undirected;
        let (now, direction) = outcome.place(packet, local);
        let is_cut = Cell::new(false);
        let frame = CapturedFrame::new(packet, &is_cut);
        match parse(&frame, packet.link, Depth::Requests) {
            Ok(parsed) if direction == Direction::Ingress => {
                if outcome.undirected > known {
                    ends.add(parsed.source, parsed.destination);
                }
                collector.add(now, &parsed, packet.length);
            }
            _ => collector.pass(now),
        }
    });
    Summary {
        outcome,
        traffic: collector.finish(),
        likely_local: ends.likely_local(),
    }
}

/// The address that most packets have at one end, if there is one (the majority vote of Boyer and Moore, 1981).
#[derive(Debug, Default)]
struct Ends {
    candidate: Address,
    votes: u64,
    from: u64,
    to: u64,
}

impl Ends {
    /// If more than one in this many packets comes from the address, it is not just another host in the same network.
    const FEW: u64 = 20;

    fn add(&mut self, source: Address, destination: Address) {
        if self.votes == 0 {
            *self = Self {
                candidate: destination,
                ..Self::default()
            };
        }
        let (is_from, is_to) = (source == self.candidate, destination == self.candidate);
        self.from += u64::from(is_from);
        self.to += u64::from(is_to);
        if is_from || is_to {
            self.votes += 1;
        } else {
            self.votes -= 1;
        }
    }

    /// The candidate, if packets both come from it and go to it.
    fn likely_local(&self) -> Option<IpAddr> {
        let all = self.from + self.to;
        let has_both = all > 0 && self.from.min(self.to) * Self::FEW >= all;
        has_both.then(|| IpAddr::from(Ipv6Addr::from(self.candidate.octets())).to_canonical())
    }
}

/// The interface names in captures that are valid in configs.
#[must_use]
pub fn interfaces(names: &InterfaceNames) -> Vec<String> {
    let is_usual = |name: &&str| {
        let is_usual = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-:@".contains(&byte);
        !name.is_empty()
            && name.len() <= LONGEST_NAME
            && name.bytes().all(is_usual)
            && *name != "any"
    };
    (1..=names.count() as u32)
        .filter_map(|number| names.named(number))
        .filter(is_usual)
        .map(str::to_owned)
        .collect()
}

/// Evaluates a config on captures with the enforcing code.
///
/// # Errors
///
/// When the config is not valid.
pub fn refusals(
    text: &str,
    paths: &[PathBuf],
    interfaces: InterfaceNames,
    local: &Local,
    progress: impl FnMut(Progress),
) -> Result<Vec<Refusal>, EvaluateError> {
    let config = config::parse(Path::new("limits.toml"), text)
        .map_err(|report| EvaluateError::Invalid(report.to_string()))?
        .config;
    let plan = plan(&config)?;
    let mut memory = TableMemory::new(&plan.ingress.settings);
    let mut evaluations = [Evaluation::new(&config, &plan, memory.table())];
    replay(paths, interfaces, local, &mut evaluations, progress);
    let [evaluation] = evaluations;
    let refusal = |(nth, limit): (usize, &config::policy::Limit)| {
        let counters = evaluation.counters(nth, None);
        Refusal {
            limit: limit.name.clone(),
            packets: counters.passed.packets + counters.throttled.packets,
            refused: counters.throttled.packets + counters.would_throttle.packets,
            timeline: evaluation.timeline().document(nth),
        }
    };
    Ok(config.limits.iter().enumerate().map(refusal).collect())
}
