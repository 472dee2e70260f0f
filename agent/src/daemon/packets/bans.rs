//! Bans by operators and limits, and their results.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use api::request::{BanOrder, Banned, StillBanned, Unbanned, WithoutEffect};
use common::ban::Ban;
use common::settings::Runtime;
use config::policy::{Mode, Prefix};
use config::prefix;
use datapath::LoadError;
use datapath::bans::{By, Change, Why};
use datapath::compile::PrefixKey;

use super::in_effect::InEffect;
use crate::ban_reason;
use crate::stats::{BanStatus, BansRow, ban_status, monotonic_nanoseconds};

impl InEffect {
    /// Bans every prefix for which a ban has an effect. A longer ban by the operator stays.
    pub(super) fn order_bans(&mut self, orders: &[BanOrder]) -> Result<Banned, String> {
        let now = monotonic_nanoseconds();
        let parsed = orders.iter().map(|order| parse(order, now)).collect::<Result<Vec<_>, _>>()?;
        let reasons = reasons(orders)?;
        let (mut bans, mut why, mut banned) = (Vec::new(), Vec::new(), Banned::default());
        for ((prefix, until), reason) in parsed.into_iter().zip(reasons) {
            let key = PrefixKey::from(&prefix);
            if let Some(exempt) = self.config.agent.never_limit.iter().find(|exempt| exempt.covers(&prefix)) {
                let reason = format!("{exempt} is exempt: agent status lists never_limit and the protected addresses");
                banned.without_effect.push(WithoutEffect { cidr: key.to_string(), reason });
                continue;
            }
            if let Some(inside) = self.config.agent.never_limit.iter().find(|exempt| prefix.covers(exempt)) {
                banned.notes.push(format!("{inside} in {key} is exempt and stays reachable"));
            }
            bans.push((key, until));
            why.push(reason);
        }
        banned.kept = self.ban(&bans, By::Operator, now).map_err(|error| error.to_string())?;
        banned.banned = (bans.len() - banned.kept.len()) as u64;
        let kept: HashSet<&str> = banned.kept.iter().map(|kept| kept.cidr.as_str()).collect();
        for ((key, _), reason) in bans.iter().zip(&why) {
            if kept.is_empty() || !kept.contains(key.to_string().as_str()) {
                let why = reason.clone().map(|text| Why { text, limit: None });
                self.bans.set_reason(key, why);
            }
        }
        log_bans(&bans, why.first().and_then(Option::as_deref), now);
        if banned.banned > 0 && self.ingress.attached().is_empty() {
            let reason = "no interface is attached: agent status shows why".to_owned();
            banned.without_effect.push(WithoutEffect { cidr: "all of them".to_owned(), reason });
        }
        Ok(banned)
    }

    /// Suspends bans by limits while the agent is on `observe`, and restores the unexpired ones when it enforces again.
    /// An operator's ban is an order and stays in effect in both modes.
    pub(super) fn follow_mode(&mut self) -> Result<(), LoadError> {
        match self.config.agent.mode {
            Mode::Observe => self.bans.automatic().into_iter().try_for_each(|(prefix, until)| {
                let why = self.bans.reason(&prefix).cloned();
                self.unban(&prefix)?;
                self.bans.suspend(&prefix, until, why);
                Ok(())
            }),
            Mode::Enforce => {
                let now = monotonic_nanoseconds();
                self.bans.take_suspended(now).into_iter().try_for_each(|(prefix, until, why)| {
                    if self.ban(&[(prefix, until)], By::Limit, now)?.is_empty() {
                        self.bans.set_reason(&prefix, why);
                    }
                    Ok(())
                })
            }
        }
    }

    /// A note about suspended bans.
    pub(super) fn suspension_note(&self) -> Option<String> {
        match self.bans.suspended(monotonic_nanoseconds()) {
            0 => None,
            1 => Some("1 ban that a limit made is suspended in observe mode; agent unban discards it".to_owned()),
            count => {
                Some(format!("{count} bans that limits made are suspended in observe mode; agent unban discards them"))
            }
        }
    }

    /// Lifts the bans of exactly these prefixes.
    pub(super) fn lift_bans(&mut self, cidrs: &[String]) -> Result<Unbanned, String> {
        let prefixes: Vec<Prefix> = cidrs.iter().map(|cidr| parse_prefix(cidr)).collect::<Result<_, _>>()?;
        self.lift(&prefixes.iter().map(PrefixKey::from).collect::<Vec<_>>())
    }

    /// Lifts every ban.
    pub(super) fn lift_all_bans(&mut self) -> Result<Unbanned, String> {
        self.lift(&self.bans.prefixes())
    }

    fn lift(&mut self, prefixes: &[PrefixKey]) -> Result<Unbanned, String> {
        let mut unbanned = Unbanned::default();
        for prefix in prefixes {
            unbanned.unbanned += u64::from(self.unban(prefix).map_err(|error| error.to_string())?);
        }
        self.escalation.forget(prefixes);
        unbanned.was_banned = unbanned.unbanned > 0;
        if unbanned.was_banned {
            tracing::info!("{} lifted by an operator", listed(prefixes));
        }
        let now = monotonic_nanoseconds();
        unbanned.still_banned = prefixes
            .iter()
            .filter_map(|prefix| Some((prefix, self.bans.around(prefix, now)?.0)))
            .map(|(prefix, by)| StillBanned { cidr: prefix.to_string(), by: by.to_string() })
            .collect();
        Ok(unbanned)
    }
}

/// The most bans that one line of the log names.
const NAMED: usize = 5;

/// "the ban of 192.0.2.1", or the first few of several and their number.
pub(super) fn listed(prefixes: &[PrefixKey]) -> String {
    let named: Vec<String> = prefixes.iter().take(NAMED).map(ToString::to_string).collect();
    match prefixes.len() {
        1 => format!("ban of {}", named.concat()),
        count if count <= NAMED => format!("bans of {}", named.join(", ")),
        count => format!("{count} bans, of {} and {} others", named.join(", "), count - NAMED),
    }
}

/// All bans of one order have the same end and reason.
fn log_bans(bans: &[(PrefixKey, u64)], reason: Option<&str>, now: u64) {
    let Some((_, until)) = bans.first() else { return };
    let prefixes: Vec<PrefixKey> = bans.iter().map(|(prefix, _)| *prefix).collect();
    let time = match *until {
        Ban::FOREVER => "until it is lifted".to_owned(),
        until => {
            format!("for {}", humantime::format_duration(Duration::from_secs((until - now).div_ceil(1_000_000_000))))
        }
    };
    let reason = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
    tracing::info!("{} ordered by an operator, {time}{reason}", listed(&prefixes));
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
        reasons.push(Some(Arc::clone(known.entry(reason).or_insert_with(|| Arc::from(reason)))));
    }
    Ok(reasons)
}

fn parse_prefix(cidr: &str) -> Result<Prefix, String> {
    prefix::parse(cidr).map_err(|wrong| format!("{}: {}", wrong.message, wrong.help))
}

/// The prefix of an order, and the end of its ban.
fn parse(order: &BanOrder, now: u64) -> Result<(Prefix, u64), String> {
    let prefix = parse_prefix(&order.cidr)?;
    let until = match order.for_seconds {
        None => Ban::FOREVER,
        Some(seconds) if seconds > 0.0 && seconds.is_finite() => now.saturating_add((seconds * 1e9) as u64),
        Some(seconds) => return Err(format!("invalid time of a ban: {seconds} s; write more than 0")),
    };
    Ok((prefix, until))
}

impl InEffect {
    /// Bans prefixes; returns those whose longer bans stay.
    pub(super) fn ban(&mut self, orders: &[(PrefixKey, u64)], by: By, now: u64) -> Result<Vec<BanStatus>, LoadError> {
        let mut kept = Vec::new();
        for (prefix, until) in orders {
            if let Some(held) = self.bans.kept(prefix, *until, by, now) {
                kept.push(ban_status(&self.bans, prefix, held, now));
                continue;
            }
            let reason = self.bans.reason(prefix).cloned();
            let before = self.bans.own_end(prefix).map(|until| (until, self.bans.maker(prefix)));
            let changes = self.bans.ban(*prefix, *until, by);
            if let Err(error) = self.write(&changes) {
                // The list must match the kernel, or a repetition would report a ban that is not in effect.
                match before {
                    Some((until, by)) => drop(self.bans.ban(*prefix, until, by)),
                    None => drop(self.bans.unban(prefix)),
                }
                self.bans.set_reason(prefix, reason);
                self.count_bans()?;
                return Err(error);
            }
        }
        self.count_bans()?;
        Ok(kept)
    }

    /// Lets the kernel program look up bans if there are any.
    pub(super) fn count_bans(&mut self) -> Result<(), LoadError> {
        self.set_runtime(Runtime { bans: self.bans.len() as u32, ..self.runtime })
    }

    pub(super) fn unban(&mut self, prefix: &PrefixKey) -> Result<bool, LoadError> {
        let before = self.bans.own_end(prefix).map(|until| (until, self.bans.maker(prefix)));
        let reason = self.bans.reason(prefix).cloned();
        let Some(changes) = self.bans.unban(prefix) else { return Ok(false) };
        // Prefixes inside it first, so that no packet passes that another ban covers.
        if let Err(error) = self.write(&changes).and_then(|()| self.ingress.bans()?.lift(prefix)) {
            let _ = before.map(|(until, by)| self.bans.ban(*prefix, until, by));
            self.bans.set_reason(prefix, reason);
            return Err(error);
        }
        self.count_bans()?;
        Ok(true)
    }

    pub(super) fn write(&mut self, changes: &[Change]) -> Result<(), LoadError> {
        let mut trie = self.ingress.bans()?;
        changes.iter().try_for_each(|change| trie.write(change))
    }

    pub(super) fn clear_ended_bans(&mut self) -> Result<(), LoadError> {
        let ended = self.bans.ended(monotonic_nanoseconds());
        for prefix in &ended {
            self.unban(prefix)?;
        }
        if !ended.is_empty() {
            tracing::info!("{} expired", listed(&ended));
        }
        Ok(())
    }

    pub(super) fn list_bans(&mut self) -> Result<Vec<BansRow>, LoadError> {
        let now = monotonic_nanoseconds();
        let mut entries = self.ingress.bans()?.all()?;
        entries.retain(|entry| Ban::is_in_effect(entry.ban.own_until, now));
        entries.sort_unstable_by_key(|entry| (entry.prefix.address, entry.prefix.length));
        let row = |(prefix, ban): (PrefixKey, Ban)| BansRow {
            ban: ban_status(&self.bans, &prefix, ban.own_until, now),
            throttled_packets: ban.packets(),
        };
        Ok(entries.into_iter().map(|entry| row((entry.prefix, entry.ban))).collect())
    }
}
