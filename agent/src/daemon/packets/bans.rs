//! Bans by users, programs and limits, and their results.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use api::event::seconds_since_1970;
use api::request::{BanOrder, Banned, WithoutEffect};
use common::ban::Ban;
use common::settings::Runtime;
use config::policy::{Mode, Prefix};
use config::{human, prefix};
use datapath::LoadError;
use datapath::bans::{
    BanKey, BanList, By, Held, MOST_OF_PREFIX, MOST_OWN, Merge, Owner, Touched, Why,
};
use datapath::compile::PrefixKey;
use host::PROGRAM;
use host::clock::boot_nanoseconds;

use super::in_effect::InEffect;
use super::saved_bans::AT_ONCE;
use crate::stats::{BanStatus, BansRow, holder, monotonic_nanoseconds, owner_text};
use crate::{ban_owner, ban_reason};

impl InEffect {
    /// Bans every prefix for which a ban has an effect. A longer ban by the same owner stays.
    pub(in crate::daemon) fn order_bans(&mut self, orders: &[BanOrder]) -> Result<Banned, String> {
        let now = monotonic_nanoseconds();
        let parsed = orders
            .iter()
            .map(|order| parse(order, now))
            .collect::<Result<Vec<_>, _>>()?;
        let (reasons, owners) = (reasons(orders)?, owners(orders)?);
        let (since, began) = (seconds_since_1970() as u64, Some(boot_nanoseconds() as i64));
        let (mut bans, mut banned) = (Vec::new(), Banned::default());
        for ((((prefix, until), reason), owner), order) in
            parsed.into_iter().zip(reasons).zip(owners).zip(orders)
        {
            let mut key = BanKey::new(PrefixKey::from(&prefix), owner);
            key.interface_id = interface_id(order, &prefix)?;
            let agent = &self.config.agent;
            if let Some(exempt) = agent.never_banned().find(|exempt| exempt.covers(&prefix)) {
                let reason = if agent.never_banned_only.contains(exempt) {
                    format!("{exempt} is an address of this host, which is never banned")
                } else {
                    format!(
                        "{exempt} is exempt: {PROGRAM} status lists never_limit, the protected addresses and exemptions by {PROGRAM} allow"
                    )
                };
                banned.without_effect.push(WithoutEffect {
                    cidr: key.prefix.to_string(),
                    reason,
                });
                continue;
            }
            if let Some(inside) = agent.never_banned().find(|exempt| prefix.covers(exempt)) {
                banned.notes.push(format!(
                    "{inside} in {} is exempt and stays reachable",
                    key.prefix
                ));
            }
            let why = reason.map(|text| Why {
                text,
                ..Why::default()
            });
            let held = Held {
                until,
                since,
                began,
                why,
            };
            bans.push((key, held));
        }
        let Ordered { kept, full, merged } =
            self.ban(&bans, now).map_err(|error| error.to_string())?;
        banned.banned = (bans.len() - kept.len() - full.len()) as u64;
        banned.kept = kept;
        merged.iter().for_each(|note| tracing::info!("{note}"));
        banned.notes.extend(merged);
        banned
            .without_effect
            .extend(full.iter().map(|prefix| WithoutEffect {
                cidr: prefix.to_string(),
                reason: format!(
                    "there is no room for another ban: a prefix has at most {MOST_OF_PREFIX} by users, and the host \
                     {MOST_OWN}; {PROGRAM} bans lists them"
                ),
            }));
        log_bans(&bans, now);
        if banned.banned > 0 && self.ingress.attached().is_empty() {
            let reason = format!("no interface is attached: {PROGRAM} status shows why");
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
                    let of_author: Vec<BanKey> =
                        self.bans.of(author).map(|(key, _)| key.clone()).collect();
                    for some in of_author.chunks(AT_ONCE) {
                        self.lift_keys(some)?;
                    }
                }
                let by_limits: Vec<_> = self
                    .bans
                    .of(By::Limit)
                    .map(|(key, held)| (key.clone(), held.clone()))
                    .collect();
                by_limits.into_iter().try_for_each(|(key, held)| {
                    self.lift_keys(std::slice::from_ref(&key))?;
                    self.bans.suspend(key, held);
                    Ok(())
                })
            }
            Mode::Enforce => {
                let now = monotonic_nanoseconds();
                let suspended = self.bans.take_suspended(now);
                // Other hosts have them already, or the next comparison publishes them.
                let outbox = self.outbox.take();
                let result = self.ban(&suspended, now);
                self.outbox = outbox;
                result.map(drop)
            }
        }
    }

    /// A note about suspended bans.
    pub(super) fn suspension_note(&self) -> Option<String> {
        match self.bans.suspended(monotonic_nanoseconds()) {
            0 => None,
            1 => Some(format!(
                "1 ban that a limit made is suspended in observe mode; {PROGRAM} unban CIDR --all discards it"
            )),
            count => Some(format!(
                "{count} bans that limits made are suspended in observe mode; {PROGRAM} unban CIDR --all discards them"
            )),
        }
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

/// The length of the IPv6 network that is banned for an address.
const NETWORK: u32 = 64;

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

/// All bans of one order have the same owner, end and reason.
fn log_bans(bans: &[(BanKey, Held)], now: u64) {
    let Some((key, first)) = bans.first() else {
        return;
    };
    let prefixes: Vec<PrefixKey> = bans.iter().map(|(key, _)| key.prefix).collect();
    let time = match first.until {
        Ban::FOREVER => "until it is lifted".to_owned(),
        until => {
            let seconds = (until - now).div_ceil(1_000_000_000);
            format!("for {}", human::time(Duration::from_secs(seconds)))
        }
    };
    let reason = first
        .why
        .as_ref()
        .map(|why| format!(": {}", why.text))
        .unwrap_or_default();
    tracing::info!(
        "{} ordered by {}, {time}{reason}",
        listed(&prefixes),
        owner_text(&key.owner)
    );
}

/// The owner of each order; equal ones share memory.
fn owners(orders: &[BanOrder]) -> Result<Vec<Owner>, String> {
    let mut known: HashMap<&str, Owner> = HashMap::new();
    let mut owners = Vec::with_capacity(orders.len());
    for order in orders {
        let name = order.owner.as_deref().unwrap_or(ban_owner::ROOT);
        ban_owner::check(name).map_err(|error| error.to_string())?;
        let owner = known
            .entry(name)
            .or_insert_with(|| Owner::named(By::Operator, name));
        owners.push(owner.clone());
    }
    Ok(owners)
}

/// [`BanKey::interface_id`] of an order.
fn interface_id(order: &BanOrder, prefix: &Prefix) -> Result<u64, String> {
    let Some(address) = order.address else {
        return Ok(0);
    };
    let address = PrefixKey {
        address: address.octets(),
        length: 128,
    };
    match network_of(&address) {
        Some((network, interface_id)) if network == PrefixKey::from(prefix) => Ok(interface_id),
        _ => Err(format!(
            "invalid address {address} of a ban of {prefix}: it is not in this /64"
        )),
    }
}

/// The /64 of an IPv6 address, and its last 64 bits.
pub(super) fn network_of(prefix: &PrefixKey) -> Option<(PrefixKey, u64)> {
    let is_address = prefix.length == 128 && !prefix.is_ipv4();
    let interface_id = u128::from_be_bytes(prefix.address) as u64;
    is_address.then(|| (prefix.cut(NETWORK), interface_id))
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

pub(super) fn parse_prefix(cidr: &str) -> Result<Prefix, String> {
    prefix::parse(cidr).map_err(|wrong| wrong.to_string())
}

/// The prefix of an order, and the end of its ban.
fn parse(order: &BanOrder, now: u64) -> Result<(Prefix, u64), String> {
    let prefix = parse_prefix(&order.cidr)?;
    if let Some(obstacle) = PrefixKey::from(&prefix).ban_obstacle() {
        return Err(obstacle);
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

/// The bans of orders that are not as ordered.
#[derive(Debug, Default)]
pub(super) struct Ordered {
    /// The owners' longer bans, which stay.
    pub(super) kept: Vec<BanStatus>,
    /// The prefixes without room for another ban.
    pub(super) full: Vec<PrefixKey>,
    /// Notes about bans that became one.
    merged: Vec<String>,
}

/// A note about bans that became one.
fn merged(merge: &Merge) -> String {
    let Merge { keys, whole, .. } = merge;
    format!(
        "{} has {} bans of {}: one ban of the whole prefix takes their place, until the last of them ends",
        owner_text(&whole.owner),
        keys.len(),
        whole.prefix
    )
}

impl InEffect {
    /// Bans prefixes. A user's ban ends the exceptions within it.
    pub(super) fn ban(
        &mut self,
        orders: &[(BanKey, Held)],
        now: u64,
    ) -> Result<Ordered, LoadError> {
        let mut ordered = Ordered::default();
        for (key, held) in orders {
            if let Some(held) = self.bans.kept(key, held.until, now) {
                let kept = holder(key, held, now).of(key.prefix.to_string());
                ordered.kept.push(kept);
                continue;
            }
            if let Some(merge) = self.bans.to_merge(key) {
                ordered.merged.push(merged(&merge));
                self.merge(merge)?;
            }
            if self.bans.is_full(key) {
                ordered.full.push(key.prefix);
                continue;
            }
            let exceptions = if key.owner.by == By::Operator {
                self.bans.exceptions_within(&key.prefix)
            } else {
                Vec::new()
            };
            let changed: Vec<PrefixKey> = std::iter::once(key.prefix)
                .chain(exceptions.iter().copied())
                .collect();
            self.change_bans(&changed, |bans, touched| {
                exceptions.iter().for_each(|exception| {
                    bans.end_exception(exception, touched);
                });
                bans.ban(key.clone(), held.clone(), touched);
            })?;
            self.record(key, Some(held));
            // Other hosts need the ban that ends last.
            if self
                .bans
                .longest_own(&key.prefix)
                .is_some_and(|(longest, _)| longest == key)
            {
                self.publish_ban(&key.prefix, now);
            }
        }
        Ok(ordered)
    }

    /// Lets one ban of a whole prefix take the place of several.
    fn merge(&mut self, Merge { keys, whole, held }: Merge) -> Result<(), LoadError> {
        self.change_bans(&[whole.prefix], |bans, touched| {
            keys.iter().for_each(|key| {
                bans.lift(key, touched);
            });
            bans.ban(whole.clone(), held.clone(), touched);
        })?;
        // First, so that a kill between the two loses no owner.
        self.record(&whole, Some(&held));
        let replaced = keys.iter().filter(|key| **key != whole);
        replaced.for_each(|key| self.record(key, None));
        Ok(())
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

    /// Records a change in the journal.
    fn record(&self, key: &BanKey, held: Option<&Held>) {
        if let Some(journal) = &self.journal {
            journal.record(key, held);
        }
    }

    /// Lifts these bans, and returns their number.
    pub(super) fn lift_keys(&mut self, keys: &[BanKey]) -> Result<usize, LoadError> {
        let prefixes: Vec<PrefixKey> = keys.iter().map(|key| key.prefix).collect();
        let mut lifted = 0;
        self.change_bans(&prefixes, |bans, touched| {
            lifted = keys.iter().filter(|key| bans.lift(key, touched)).count();
        })?;
        keys.iter().for_each(|key| self.record(key, None));
        Ok(lifted)
    }

    pub(super) fn clear_ended_bans(&mut self) -> Result<(), LoadError> {
        let ended = self.bans.ended(monotonic_nanoseconds());
        for some in ended.chunks(AT_ONCE) {
            self.lift_keys(some)?;
        }
        let prefixes: Vec<PrefixKey> = ended.into_iter().map(|key| key.prefix).collect();
        if !prefixes.is_empty() {
            tracing::info!("{} expired", listed(&prefixes));
        }
        Ok(())
    }

    /// `weir bans`.
    pub(in crate::daemon) fn list_bans(&mut self) -> Result<Vec<BansRow>, LoadError> {
        let now = monotonic_nanoseconds();
        let refused = self
            .ingress
            .bans()?
            .all()?
            .into_iter()
            .map(|entry| (entry.prefix, entry.ban.packets()));
        let refused: HashMap<PrefixKey, u64> = refused.collect();
        let rows = |prefix: PrefixKey| {
            let holders = self.bans.holders(&prefix, now).into_iter();
            let (cidr, throttled_packets) = (
                prefix.to_string(),
                refused.get(&prefix).copied().unwrap_or_default(),
            );
            holders.map(move |(key, held)| BansRow {
                ban: holder(key, held, now).of(cidr.clone()),
                throttled_packets,
            })
        };
        Ok(self.bans.prefixes().flat_map(rows).collect())
    }
}
