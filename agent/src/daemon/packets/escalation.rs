//! Turns refused packets into offences, and offences into bans.

use std::collections::HashMap;
use std::net::Ipv6Addr;
use std::sync::Arc;
use std::time::Duration;

use api::event::seconds_since_1970;
use common::counters::SampleKey;
use common::key::Key;
use config::policy::{Escalate, Level, LevelKey, Mode};
use datapath::bans::{BanKey, By, Held, MOST_OWN, Owner, Why};
use datapath::compile::PrefixKey;
use datapath::{LoadError, MOST_BANS};
use host::PROGRAM;
use host::clock::boot_nanoseconds;

use super::engine::PacketEngine;
use super::in_effect::InEffect;
use super::refusal_counts::{Escalation, Followed};
use crate::daemon::escalation::{Escalated, History, Offence};
use crate::daemon::state::Restore;
use crate::stats::monotonic_nanoseconds;

/// A state without refusals for this long has nothing beyond its sample that an earlier reading has missed: two changes
/// of [`common::time::TickScale::coarse`], and the time between two readings.
const RECENT: u64 = 5_000_000_000;

/// The most bans by limits, which leaves room for operators' bans: senders may forge any number of sources.
const MOST_AUTOMATIC: usize = MOST_BANS as usize / 2;

impl PacketEngine {
    /// Bans the sources of offences; returns the result of each.
    pub(crate) fn escalate(&self, offences: &[Offence]) -> Vec<Escalated> {
        let mut in_effect = self.lock();
        offences
            .iter()
            .map(|offence| in_effect.escalate(offence))
            .collect()
    }

    /// Restores the durations of bans by limits that an earlier agent saved.
    pub fn take_up_escalations(&self, restore: &Restore) {
        let clocks = (restore.then, restore.now);
        self.lock()
            .escalation
            .history
            .restore(&restore.saved.escalations, clocks);
    }
}

impl InEffect {
    /// Starts to count refusals. If it fails, the next reading starts from its values.
    pub(super) fn begin_escalation(&mut self) {
        drop(self.count_refusals());
    }

    /// Counts the refusals under the policy that is being replaced.
    pub(super) fn end_escalation(&mut self) {
        let offences = self.count_refusals().unwrap_or_default();
        self.escalation.due.extend(offences);
    }

    /// Continues with another policy. Its counters are new, but earlier refusals still count.
    pub(super) fn follow_escalation(&mut self, before: Mode) {
        let escalation = &mut self.escalation;
        escalation.table = None;
        escalation.refusals.begin_anew();
        if before != self.config.agent.mode {
            // Refusals and would-be refusals are not comparable.
            escalation.refusals.clear();
            escalation.observed = History::default();
            escalation.due.clear();
        }
        self.begin_escalation();
    }

    /// The sources with enough refused packets for a ban.
    pub(in crate::daemon) fn offences(&mut self) -> Result<Vec<Offence>, LoadError> {
        let mut offences = std::mem::take(&mut self.escalation.due);
        let limits = &self.config.limits;
        offences.retain(|due| {
            limits
                .iter()
                .any(|limit| limit.escalate.is_some() && *limit.name == *due.limit)
        });
        offences.extend(self.count_refusals()?);
        Ok(offences)
    }

    fn count_refusals(&mut self) -> Result<Vec<Offence>, LoadError> {
        let limits: Vec<(usize, Escalate)> = self.config.bans().collect();
        if limits.is_empty() {
            return Ok(Vec::new());
        }
        let now = monotonic_nanoseconds();
        let refused = limits
            .iter()
            .map(|(nth, _)| {
                let counters = self.ingress.counters_of(*nth)?;
                Ok(counters.throttled.plus(counters.would_throttle).packets)
            })
            .sum::<Result<u64, LoadError>>()?;
        if refused == self.escalation.refused && !self.escalation.refusals.is_new() {
            self.escalation.refusals.nothing_refused(now);
            return Ok(Vec::new());
        }
        if self.escalation.table.is_none() {
            self.escalation.table = Some(self.ingress.sources()?);
        }
        let samples = self.ingress.samples()?;
        self.escalation.refused = refused;
        let states = self.followed(&limits);
        let is_observing = self.config.agent.mode == Mode::Observe;
        let Escalation {
            refusals,
            table: Some(table),
            ..
        } = &mut self.escalation
        else {
            return Ok(Vec::new());
        };
        let since = if refusals.is_new() {
            0
        } else {
            now.saturating_sub(RECENT)
        };
        let mut look = refusals.look(samples.iter().map(|(key, _)| key), now);
        let mut offences = Vec::new();
        for (key, sample) in &samples {
            let entry = SampleKey(key.group);
            let Some(state) = states.get(&(entry.group(), entry.position())) else {
                continue;
            };
            if sample.refused_at.max(sample.would_refuse_at) < since {
                continue;
            }
            let source = Key {
                group: entry.group(),
                ..*key
            };
            let beyond = table.find(&source).map_or(0, |slot| {
                table.refused(&slot)[usize::from(entry.position())]
            });
            let counter = if is_observing {
                sample.would_refuse
            } else {
                sample.refused
            };
            let is_observed = sample.would_refuse_at > sample.refused_at;
            let counter = counter
                + if is_observed == is_observing {
                    u64::from(beyond)
                } else {
                    0
                };
            let more = look.since(key, counter);
            let more = look.counting(key, more, sample.unconnected);
            if more > 0 {
                offences.extend(state.count(&mut look, &source, more, |prefix| {
                    self.bans.around(prefix, now).is_some()
                }));
            }
        }
        Ok(offences)
    }

    /// The states of limits with `escalate`, by group and word.
    fn followed(&self, limits: &[(usize, Escalate)]) -> HashMap<(u32, u8), Followed> {
        let mut states = HashMap::new();
        for (number, group) in (0u32..).zip(&self.ingress.image().groups) {
            for (at, rule) in &group.states {
                let Some((_, escalate)) = limits.iter().find(|(of, _)| *of == at.limit) else {
                    continue;
                };
                let limit = &self.config.limits[at.limit];
                // A level bans its prefix, after as many times the refusals. No other key is banned.
                let escalate = match at
                    .level
                    .checked_sub(1)
                    .and_then(|nth| limit.levels.get(nth))
                {
                    None => *escalate,
                    Some(Level {
                        key: LevelKey::Prefix { .. },
                        factor,
                    }) => escalate.times(*factor),
                    Some(_) => continue,
                };
                let limit = limit.name.as_str().into();
                states.insert(
                    (number, rule.position),
                    Followed {
                        limit,
                        escalate,
                        rule: *rule,
                    },
                );
            }
        }
        states
    }

    fn escalate(&mut self, offence: &Offence) -> Escalated {
        let now = monotonic_nanoseconds();
        let Offence {
            limit,
            prefix,
            escalate,
            ..
        } = offence;
        let is_exempt = |exempt: PrefixKey| {
            exempt.length <= prefix.length && prefix.cut(exempt.length) == exempt
        };
        if is_of_all_neighbours(prefix) {
            return Escalated::Unchanged;
        }
        if self
            .config
            .agent
            .never_banned()
            .map(PrefixKey::from)
            .any(is_exempt)
        {
            return Escalated::Unchanged;
        }
        if self.config.agent.mode == Mode::Observe {
            let observed = &mut self.escalation.observed;
            if observed.is_banned(limit, prefix, now) {
                return Escalated::Unchanged;
            }
            let time = observed.time(limit, prefix, escalate, now);
            observed.record(limit, prefix, escalate, (now, time));
            return Escalated::Observed(Duration::from_nanos(time));
        }
        let key = BanKey::new(
            *prefix,
            Owner {
                by: By::Limit,
                name: Some(Arc::clone(limit)),
            },
        );
        if self.bans.count_of(By::Limit) >= MOST_AUTOMATIC && self.bans.get(&key).is_none() {
            return Escalated::Failed(format!(
                "limits have banned {MOST_AUTOMATIC} sources, the most that they may: {PROGRAM} unban CIDR --all lifts bans"
            ));
        }
        let time = self.escalation.history.time(limit, prefix, escalate, now);
        let why = Why {
            text: offence.reason().into(),
            ..Why::default()
        };
        let held = Held {
            until: now.saturating_add(time),
            since: seconds_since_1970() as u64,
            began: Some(boot_nanoseconds() as i64),
            why: Some(why),
        };
        match self.ban(&[(key, held)], now) {
            Ok(ordered) if !ordered.full.is_empty() => {
                Escalated::Failed(format!("this host has {MOST_OWN} bans, the most"))
            }
            Ok(ordered) if ordered.kept.is_empty() => {
                self.escalation
                    .history
                    .record(limit, prefix, escalate, (now, time));
                Escalated::Banned(Duration::from_nanos(time))
            }
            Ok(_) => Escalated::Unchanged,
            Err(error) => Escalated::Failed(error.to_string()),
        }
    }
}
/// Whether a prefix has link-local addresses of many hosts: one neighbour would have all of them banned, with their neighbour
/// discovery.
fn is_of_all_neighbours(prefix: &PrefixKey) -> bool {
    prefix.length < 128 && Ipv6Addr::from(prefix.address).is_unicast_link_local()
}
