//! Bans by operators and limits, and their results.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::event::seconds_since_1970;
use api::request::{BanOrder, Banned, StillBanned, Unbanned, WithoutEffect};
use common::ban::Ban;
use common::settings::Runtime;
use config::policy::{Mode, Prefix};
use config::prefix;
use datapath::LoadError;
use datapath::bans::{BanList, By, Held, Touched, Why};
use datapath::compile::PrefixKey;

use super::in_effect::InEffect;
use crate::ban_reason;
use crate::stats::{BanStatus, BansRow, ban_status, monotonic_nanoseconds, own_status};

impl InEffect {
    /// Bans every prefix for which a ban has an effect. A longer ban by the operator stays.
    pub(super) fn order_bans(&mut self, orders: &[BanOrder]) -> Result<Banned, String> {
        let now = monotonic_nanoseconds();
        let parsed = orders
            .iter()
            .map(|order| parse(order, now))
            .collect::<Result<Vec<_>, _>>()?;
        let reasons = reasons(orders)?;
        let since = seconds_since_1970() as u64;
        let (mut bans, mut banned) = (Vec::new(), Banned::default());
        for ((prefix, until), reason) in parsed.into_iter().zip(reasons) {
            let key = PrefixKey::from(&prefix);
            if let Some(exempt) = self
                .config
                .agent
                .never_limit
                .iter()
                .find(|exempt| exempt.covers(&prefix))
            {
                let reason = format!(
                    "{exempt} is exempt: agent status lists never_limit and the protected addresses"
                );
                banned.without_effect.push(WithoutEffect {
                    cidr: key.to_string(),
                    reason,
                });
                continue;
            }
            if let Some(inside) = self
                .config
                .agent
                .never_limit
                .iter()
                .find(|exempt| prefix.covers(exempt))
            {
                banned
                    .notes
                    .push(format!("{inside} in {key} is exempt and stays reachable"));
            }
            let why = reason.map(|text| Why {
                text,
                ..Why::default()
            });
            bans.push((key, Held { until, since, why }));
        }
        banned.kept = self
            .ban(&bans, By::Operator, now)
            .map_err(|error| error.to_string())?;
        banned.banned = (bans.len() - banned.kept.len()) as u64;
        log_bans(&bans, now);
        if banned.banned > 0 && self.ingress.attached().is_empty() {
            let reason = "no interface is attached: agent status shows why".to_owned();
            banned.without_effect.push(WithoutEffect {
                cidr: "all of them".to_owned(),
                reason,
            });
        }
        Ok(banned)
    }

    /// Suspends bans by limits while the agent is on `observe`, and restores the unexpired ones when it enforces again;
    /// lifts bans from elsewhere, which their threads apply again. An operator's ban is an order and stays in
    /// effect in both modes.
    pub(super) fn follow_mode(&mut self) -> Result<(), LoadError> {
        match self.config.agent.mode {
            Mode::Observe => {
                for author in By::ELSEWHERE {
                    let of_author: Vec<PrefixKey> =
                        self.bans.of(author).map(|(prefix, _)| prefix).collect();
                    for some in of_author.chunks(AT_ONCE) {
                        self.change_bans(some, |bans, touched| {
                            some.iter().for_each(|prefix| {
                                bans.lift(prefix, author, touched);
                            });
                        })?;
                    }
                }
                let by_limits: Vec<_> = self
                    .bans
                    .of(By::Limit)
                    .map(|(prefix, held)| (prefix, held.clone()))
                    .collect();
                by_limits.into_iter().try_for_each(|(prefix, held)| {
                    self.lift_by(&prefix, By::Limit)?;
                    self.bans.suspend(prefix, held);
                    Ok(())
                })
            }
            Mode::Enforce => {
                let now = monotonic_nanoseconds();
                let suspended = self.bans.take_suspended(now);
                // Other hosts have them already, or the next comparison publishes them.
                let outbox = self.outbox.take();
                let result = self.ban(&suspended, By::Limit, now);
                self.outbox = outbox;
                result.map(drop)
            }
        }
    }

    /// A note about suspended bans.
    pub(super) fn suspension_note(&self) -> Option<String> {
        match self.bans.suspended(monotonic_nanoseconds()) {
            0 => None,
            1 => Some(
                "1 ban that a limit made is suspended in observe mode; agent unban discards it"
                    .to_owned(),
            ),
            count => Some(format!(
                "{count} bans that limits made are suspended in observe mode; agent unban discards them"
            )),
        }
    }

    /// Lifts the bans of exactly these prefixes.
    pub(super) fn lift_bans(&mut self, cidrs: &[String]) -> Result<Unbanned, String> {
        let prefixes: Vec<Prefix> = cidrs
            .iter()
            .map(|cidr| parse_prefix(cidr))
            .collect::<Result<_, _>>()?;
        self.lift(&prefixes.iter().map(PrefixKey::from).collect::<Vec<_>>())
    }

    /// Lifts every ban by the operator or a limit, on this host and on others.
    pub(super) fn lift_all_bans(&mut self) -> Result<Unbanned, String> {
        let mut prefixes = self.bans.own_prefixes();
        prefixes.extend(self.bans.of(By::Host).map(|(prefix, _)| prefix));
        prefixes.sort_unstable();
        prefixes.dedup();
        let mut unbanned = self.lift_own(&prefixes)?;
        unbanned.banned_by_crowdsec = self.bans.count_of(By::CrowdSec) as u64;
        Ok(unbanned)
    }

    /// Lifts the bans of these prefixes, on other hosts too. Of a prefix that only CrowdSec bans, whole or in part, or
    /// that other hosts ban as part of another prefix, an exception keeps bans from elsewhere from applying. Where the
    /// operator, a limit or another host bans it too, their ban alone is lifted: a program that lifts its own bans must not
    /// overrule CrowdSec.
    fn lift(&mut self, prefixes: &[PrefixKey]) -> Result<Unbanned, String> {
        let now = monotonic_nanoseconds();
        let banned = |prefix: &PrefixKey, by: By| {
            !self.bans.is_excepted(prefix) && self.bans.is_banned_by(by, prefix, now)
        };
        let is_lifted = |prefix: &PrefixKey| {
            self.bans.own(prefix).is_some() || self.bans.by(prefix, By::Host).is_some()
        };
        let of_crowdsec = prefixes
            .iter()
            .filter(|prefix| banned(prefix, By::CrowdSec))
            .copied();
        let (both, mut alone): (Vec<PrefixKey>, Vec<PrefixKey>) = of_crowdsec.partition(is_lifted);
        let is_of_hosts = |prefix: &&PrefixKey| {
            banned(prefix, By::Host) && !banned(prefix, By::CrowdSec) && !is_lifted(prefix)
        };
        let of_hosts: Vec<PrefixKey> = prefixes.iter().filter(is_of_hosts).copied().collect();
        let exceptions = alone.iter().map(ToString::to_string).collect();
        alone.extend(&of_hosts);
        let count = self.bans.exceptions().count() + alone.len();
        if count > MOST_EXCEPTIONS {
            return Err(format!(
                "{count} exceptions from bans by CrowdSec and other hosts exceed the most, {MOST_EXCEPTIONS}: delete the \
                 decisions in CrowdSec with cscli decisions delete, and lift the bans of other hosts with agent unban"
            ));
        }
        let mut unbanned = self.lift_own(prefixes)?;
        self.except(&alone).map_err(|error| error.to_string())?;
        unbanned.exceptions_from_hosts = of_hosts.iter().map(ToString::to_string).collect();
        unbanned.exceptions = exceptions;
        unbanned.still_banned_by_crowdsec = both.iter().map(ToString::to_string).collect();
        unbanned.unbanned += alone.len() as u64;
        unbanned.was_banned = unbanned.unbanned > 0;
        unbanned.still_banned = prefixes
            .iter()
            .filter(|prefix| !both.contains(prefix))
            .filter_map(|prefix| Some((prefix, self.bans.around(prefix, now)?.prefix)))
            .map(|(prefix, by)| StillBanned {
                cidr: prefix.to_string(),
                by: by.to_string(),
            })
            .collect();
        Ok(unbanned)
    }

    fn lift_own(&mut self, prefixes: &[PrefixKey]) -> Result<Unbanned, String> {
        let mut unbanned = Unbanned::default();
        self.publish_removals(prefixes);
        for prefix in prefixes {
            unbanned.unbanned += u64::from(
                self.unban(prefix).map_err(|error| error.to_string())?
                    | self.unban_of_host(prefix)?,
            );
        }
        self.escalation.forget(prefixes);
        unbanned.was_banned = unbanned.unbanned > 0;
        if unbanned.was_banned {
            tracing::info!("{} lifted by an operator", listed(prefixes));
        }
        Ok(unbanned)
    }

    /// Lifts another host's ban of exactly this prefix; `false` if there is none.
    fn unban_of_host(&mut self, prefix: &PrefixKey) -> Result<bool, String> {
        let is_banned = self.bans.by(prefix, By::Host).is_some();
        if is_banned {
            self.lift_by(prefix, By::Host)
                .map_err(|error| error.to_string())?;
        }
        Ok(is_banned)
    }

    /// Lets no ban from elsewhere apply to these prefixes.
    pub(super) fn except(&mut self, prefixes: &[PrefixKey]) -> Result<(), LoadError> {
        self.change_bans(prefixes, |bans, touched| {
            prefixes
                .iter()
                .for_each(|prefix| bans.except(*prefix, touched));
        })
    }
}

/// The most exceptions to bans from elsewhere.
pub(super) const MOST_EXCEPTIONS: usize = 10_000;
/// The most bans changed under one lock.
pub(super) const AT_ONCE: usize = 2_000;

/// The most bans that one line of the log names.
const NAMED: usize = 5;

/// "the ban of 192.0.2.1", or the first few of several and their number.
pub(super) fn listed(prefixes: &[PrefixKey]) -> String {
    let named: Vec<String> = prefixes
        .iter()
        .take(NAMED)
        .map(ToString::to_string)
        .collect();
    match prefixes.len() {
        1 => format!("ban of {}", named.concat()),
        count if count <= NAMED => format!("bans of {}", named.join(", ")),
        count => format!(
            "{count} bans, of {} and {} others",
            named.join(", "),
            count - NAMED
        ),
    }
}

/// All bans of one order have the same end and reason.
fn log_bans(bans: &[(PrefixKey, Held)], now: u64) {
    let Some((_, first)) = bans.first() else {
        return;
    };
    let prefixes: Vec<PrefixKey> = bans.iter().map(|(prefix, _)| *prefix).collect();
    let time = match first.until {
        Ban::FOREVER => "until it is lifted".to_owned(),
        until => {
            format!(
                "for {}",
                humantime::format_duration(Duration::from_secs(
                    (until - now).div_ceil(1_000_000_000)
                ))
            )
        }
    };
    let reason = first
        .why
        .as_ref()
        .map(|why| format!(": {}", why.text))
        .unwrap_or_default();
    tracing::info!(
        "{} ordered by an operator, {time}{reason}",
        listed(&prefixes)
    );
}

/// The reason of each order; equal ones share memory.
fn reasons(orders: &[BanOrder]) -> Result<Vec<Option<Arc<str>>>, String> {
    let mut known: HashMap<&str, Arc<str>> = HashMap::new();
    let mut reasons = Vec::with_capacity(orders.len());
    for order in orders {
        let Some(reason) = order.reason.as_deref() else {
            reasons.push(None);
            continue;
        };
        ban_reason::check(reason).map_err(|error| error.to_string())?;
        reasons.push(Some(Arc::clone(
            known.entry(reason).or_insert_with(|| Arc::from(reason)),
        )));
    }
    Ok(reasons)
}

fn parse_prefix(cidr: &str) -> Result<Prefix, String> {
    prefix::parse(cidr).map_err(|wrong| format!("{}: {}", wrong.message, wrong.help))
}

/// The prefix of an order, and the end of its ban.
fn parse(order: &BanOrder, now: u64) -> Result<(Prefix, u64), String> {
    let prefix = parse_prefix(&order.cidr)?;
    if PrefixKey::from(&prefix).covers_ipv4() {
        return Err(format!(
            "invalid prefix {prefix}: it contains the IPv6 forms of all IPv4 addresses; ban 2000::/3, the public IPv6 addresses, \
             or 0.0.0.0/0"
        ));
    }
    let until = match order.for_seconds {
        None => Ban::FOREVER,
        Some(seconds) if seconds > 0.0 && seconds.is_finite() => {
            now.saturating_add((seconds * 1e9) as u64)
        }
        Some(seconds) => {
            return Err(format!(
                "invalid time of a ban: {seconds} s; write more than 0"
            ));
        }
    };
    Ok((prefix, until))
}

impl InEffect {
    /// Bans prefixes by the operator or a limit; returns those whose longer bans stay. An operator's ban ends the
    /// exceptions within it.
    pub(super) fn ban(
        &mut self,
        orders: &[(PrefixKey, Held)],
        by: By,
        now: u64,
    ) -> Result<Vec<BanStatus>, LoadError> {
        let mut kept = Vec::new();
        for (prefix, held) in orders {
            if let Some(until) = self.bans.kept(prefix, held.until, by, now) {
                kept.push(own_status(&self.bans, prefix, until, now));
                continue;
            }
            let exceptions = if by == By::Operator {
                self.bans.exceptions_within(prefix)
            } else {
                Vec::new()
            };
            let changed: Vec<PrefixKey> = std::iter::once(*prefix)
                .chain(exceptions.iter().copied())
                .collect();
            self.change_bans(&changed, |bans, touched| {
                exceptions.iter().for_each(|exception| {
                    bans.end_exception(exception, touched);
                });
                bans.ban(*prefix, by, held.clone(), touched);
            })?;
            self.publish_ban(prefix, by, held, now);
        }
        Ok(kept)
    }

    /// Changes the bans of these prefixes, in the list and in the kernel; if the kernel refuses, in neither.
    pub(super) fn change_bans(
        &mut self,
        prefixes: &[PrefixKey],
        change: impl FnOnce(&mut BanList, &mut Touched),
    ) -> Result<(), LoadError> {
        let records: Vec<_> = prefixes
            .iter()
            .map(|prefix| self.bans.record(prefix))
            .collect();
        let mut touched = Touched::default();
        change(&mut self.bans, &mut touched);
        let written = self
            .ingress
            .bans()
            .and_then(|mut trie| trie.write(&self.bans.changes(&touched)));
        if let Err(error) = written {
            // The list must match the kernel, or a repetition would report a ban that is not in effect.
            records
                .into_iter()
                .for_each(|record| self.bans.restore(record));
            let undone = self
                .ingress
                .bans()
                .and_then(|mut trie| trie.write(&self.bans.changes(&touched)));
            if let Err(error) = undone {
                tracing::error!("restoring bans after a failed change failed: {error}");
            }
            self.count_bans()?;
            return Err(error);
        }
        self.count_bans()
    }

    /// Lets the kernel program look up bans if there are any.
    fn count_bans(&mut self) -> Result<(), LoadError> {
        self.set_runtime(Runtime {
            bans: self.bans.len() as u32,
            ..self.runtime
        })
    }

    /// Lifts the operator's or a limit's ban of exactly this prefix.
    pub(super) fn unban(&mut self, prefix: &PrefixKey) -> Result<bool, LoadError> {
        let mut was_banned = false;
        self.change_bans(&[*prefix], |bans, touched| {
            was_banned = bans.lift_own(prefix, touched);
        })?;
        Ok(was_banned)
    }

    fn lift_by(&mut self, prefix: &PrefixKey, by: By) -> Result<(), LoadError> {
        self.change_bans(&[*prefix], |bans, touched| {
            bans.lift(prefix, by, touched);
        })
    }

    pub(super) fn clear_ended_bans(&mut self) -> Result<(), LoadError> {
        let ended = self.bans.ended(monotonic_nanoseconds());
        for some in ended.chunks(AT_ONCE) {
            let prefixes: Vec<PrefixKey> = some.iter().map(|(prefix, _)| *prefix).collect();
            self.change_bans(&prefixes, |bans, touched| {
                some.iter().for_each(|(prefix, by)| {
                    bans.lift(prefix, *by, touched);
                });
            })?;
        }
        let prefixes: Vec<PrefixKey> = ended.into_iter().map(|(prefix, _)| prefix).collect();
        if !prefixes.is_empty() {
            tracing::info!("{} expired", listed(&prefixes));
        }
        Ok(())
    }

    pub(super) fn list_bans(&mut self) -> Result<Vec<BansRow>, LoadError> {
        let now = monotonic_nanoseconds();
        let refused = self
            .ingress
            .bans()?
            .all()?
            .into_iter()
            .map(|entry| (entry.prefix, entry.ban.packets()));
        let refused: HashMap<PrefixKey, u64> = refused.collect();
        let row = |prefix: PrefixKey| {
            let ban = ban_status(&self.bans, &prefix, now)?;
            Some(BansRow {
                ban,
                throttled_packets: refused.get(&prefix).copied().unwrap_or_default(),
            })
        };
        Ok(self.bans.prefixes().filter_map(row).collect())
    }
}
