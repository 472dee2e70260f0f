//! The states of one address: shown, and reset.

use std::net::IpAddr;

use common::connections::Connection;
use common::key::Key;
use common::packet::Address;
use common::prefix::PrefixEntry;
use common::rule::{Enforcement, KeyKind, Rule, Subject};
use config::human::number;
use config::policy::{self, Limit, Prefix};
use config::prefix::{MOST_KEYS, mapped};
use datapath::compile::{LimitAt, PrefixKey};
use datapath::{Datapath, LoadError};
use host::PROGRAM;
use thiserror::Error;

use super::bans::ban_status;
use super::{Reader, allowance, seconds_since};
use crate::stats::samples::{LimitCounts, Samples};
use crate::stats::{BanStatus, LastRefused, OpenConnection, SourceLimit, SourceStatus};

/// The result of [`Reader::reset`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResetSources {
    /// The number of states; `None` if no limit by address has the name.
    pub forgotten: Option<u64>,
    /// The limits that keep their states, since each address of the prefix has a key for each port.
    pub kept: Vec<String>,
}

/// Sources cannot be reset.
#[derive(Debug, Error)]
pub enum ResetError {
    /// A map cannot be read.
    #[error(transparent)]
    Load(#[from] LoadError),
    /// The table has hashes of keys, so all keys of the prefix are looked up.
    #[error(
        "{prefix} has {} keys of limit {limit:?}; a reset looks up at most {}: write longer prefixes, or {PROGRAM} reset --limit {limit} for every key",
        keys_of(*keys), number(u64::from(MOST_KEYS))
    )]
    TooManyKeys {
        prefix: Prefix,
        limit: String,
        /// Saturated.
        keys: u128,
    },
}

fn keys_of(keys: u128) -> String {
    u64::try_from(keys).map_or_else(|_| "more than 2^64".to_owned(), number)
}

impl Reader<'_> {
    /// The status of one address.
    ///
    /// # Errors
    ///
    /// When a map cannot be read.
    pub fn show(&self, address: IpAddr) -> Result<SourceStatus, LoadError> {
        let nanoseconds = self.now().0;
        let octets = mapped(address);
        let Address { hi, lo } = Address::from_ipv6(octets);
        let entry = self.ingress.image().entry(Address { hi, lo });
        let is_ipv4 = u32::from(address.is_ipv4());
        let subject = Subject {
            hi,
            lo,
            is_ipv4,
            class: entry.class(),
            ..Subject::default()
        };
        let exemption = entry.exemption();
        let is_free = [PrefixEntry::NEVER_LIMIT, PrefixEntry::UNLIMITED].contains(&exemption);
        let spans = self.spans();
        let mut last: Option<(u64, LimitAt)> = None;
        let (mut limits, mut by_port) = (Vec::new(), Vec::new());
        for (nth, limit) in self.config.limits.iter().enumerate() {
            if is_free {
                continue;
            }
            for level in 0..=limit.levels.len() {
                let at = LimitAt { limit: nth, level };
                let rules = self.rules_of(at, limit, Address { hi, lo });
                let Some(first) = rules.first() else {
                    continue;
                };
                // Its state is of each port.
                if first.key == KeyKind::AddressPort as u8 {
                    if level == 0 {
                        by_port.push(limit.name.clone());
                    }
                    continue;
                }
                let datapath = self.datapath_of(limit);
                let network = datapath.image().network(Address { hi, lo });
                let interfaces: Vec<u32> = if first.key == KeyKind::Interface as u8 {
                    datapath.attached().iter().map(|on| on.index).collect()
                } else {
                    vec![0]
                };
                for interface in interfaces {
                    let key = first.key_of(&Subject {
                        network,
                        interface,
                        ..subject
                    });
                    let samples =
                        Samples::of_key(&key, &spans, |key| self.ingress.sample(self.egress, key))?;
                    let counts = self
                        .counts(&key, &samples, &spans)?
                        .into_iter()
                        .find(|counts| counts.limit == nth);
                    let counts = counts.unwrap_or_default();
                    // Another source's packet may have been the last one.
                    let is_shared = level == 0
                        && [KeyKind::All, KeyKind::Interface]
                            .map(|kind| kind as u8)
                            .contains(&first.key);
                    if counts.refused_at > 0 && !is_shared {
                        last = last.max(Some((counts.refused_at, at)));
                    }
                    let row = self.source_limit(limit, at, (&key, &rules), counts)?;
                    limits.push(row);
                }
            }
        }
        Ok(SourceStatus {
            source: address.to_string(),
            class: policy::class_name(&self.config.classes, entry.class()).to_owned(),
            class_from: None,
            never_limit: [PrefixEntry::NEVER_LIMIT, PrefixEntry::WITHIN_ALLOWANCE]
                .contains(&exemption),
            exempt: None,
            allowed: None,
            ban: self.ban(&octets, nanoseconds),
            limits,
            last_refused: last.and_then(|(instant, at)| {
                let limit = self.config.limits.get(at.limit)?;
                let (name, level) = (limit.name.clone(), limit.level_text(at.level));
                Some(LastRefused {
                    limit: name,
                    level,
                    seconds_ago: nanoseconds.saturating_sub(instant) as f64 / 1e9,
                })
            }),
            requests: Vec::new(),
            by_port,
            connections: self.connections_of(Address { hi, lo }, nanoseconds)?,
        })
    }

    /// The open connections of an address.
    fn connections_of(&self, address: Address, now: u64) -> Result<Vec<OpenConnection>, LoadError> {
        let Some(connections) = self.ingress.connections() else {
            return Ok(Vec::new());
        };
        let mut open = connections.open()?;
        open.retain(|connection| connection.tuple.remote == [address.hi, address.lo]);
        open.sort_by_key(|connection| (connection.since, connection.tuple.remote_port));
        let row = |connection: Connection| OpenConnection {
            port: connection.tuple.remote_port as u16,
            local_port: connection.tuple.local_port as u16,
            open_seconds: now.saturating_sub(connection.since) as f64 / 1e9,
        };
        Ok(open.into_iter().map(row).collect())
    }

    /// The state of a key under a limit at one of its levels.
    fn source_limit(
        &self,
        limit: &Limit,
        at: LimitAt,
        (key, rules): (&Key, &[Rule]),
        counts: LimitCounts,
    ) -> Result<SourceLimit, LoadError> {
        let ((nanoseconds, now), sources) = (self.now(), self.sources()?);
        let slot = sources.find(key);
        let (mut remaining, mut wait) = (None::<u64>, 0);
        // A fair rule whose level is off allows everything.
        let is_off = |rule: &&Rule| rule.is_fair() && rule.most == u64::from(u32::MAX);
        for rule in rules.iter().filter(|rule| !is_off(rule)) {
            let (left, ticks) = allowance(sources, rule, slot.as_ref(), now);
            remaining = Some(remaining.map_or(left, |least| least.min(left)));
            wait = wait.max(self.ingress.settings().scale.nanoseconds(ticks));
        }
        let mut open = None;
        if limit.concurrent.is_some()
            && let Some(connections) = self.ingress.connections()
        {
            let (counted, reserved) = connections.of_key(key, nanoseconds)?;
            let most = rules.first().map_or(0, |rule| rule.most);
            let left = most.saturating_sub(counted + reserved);
            (open, remaining, wait) = (Some(counted), Some(left), 0);
        }
        let level = limit.level_text(at.level);
        Ok(SourceLimit {
            open,
            name: limit.name.clone(),
            // Of other limits, the source's own.
            key: rules
                .first()
                .filter(|rule| {
                    let is_shared = |kind: KeyKind| rule.key == kind as u8;
                    level.is_some() || is_shared(KeyKind::All) || is_shared(KeyKind::Interface)
                })
                .map(|rule| self.describe(key, rule)),
            level,
            sources: counts.sources,
            remaining,
            fair: None,
            retry_after_seconds: wait as f64 / 1e9,
            passed_packets: counts.passed,
            passed_precision: counts.precision,
            throttled_packets: counts.refused,
            would_throttle_packets: counts.would_refuse,
            last_throttled_seconds_ago: seconds_since(counts.last(), nanoseconds),
        })
    }

    /// The longest banned prefix that contains an address.
    fn ban(&self, octets: &[u8; 16], now: u64) -> Option<BanStatus> {
        let whole = PrefixKey {
            address: *octets,
            length: 128,
        };
        ban_status(self.bans, &self.bans.around(&whole, now)?.prefix, now)
    }

    /// Resets the states of a prefix's addresses, under one limit or every one; all or none.
    ///
    /// # Errors
    ///
    /// When the prefix has too many keys, or the table cannot be mapped.
    pub fn reset(&self, prefix: &Prefix, limit: Option<&str>) -> Result<ResetSources, ResetError> {
        let name = |at: &LimitAt| self.config.limits.get(at.limit).map(|limit| &limit.name);
        let is_wanted =
            |at: &LimitAt| limit.is_none_or(|limit| name(at).is_some_and(|name| name == limit));
        let images = || self.datapaths().map(Datapath::image);
        let is_in_network = |address: Address| images().any(|image| image.network(address) != 0);
        let is_of = |rule: &Rule, kind: KeyKind| rule.key == kind as u8;
        let mut found = ResetSources {
            forgotten: limit.is_none().then_some(0),
            kept: Vec::new(),
        };
        let mut wanted = Vec::new();
        for group in self.groups() {
            let names = || {
                group
                    .states
                    .iter()
                    .map(|(at, _)| at)
                    .filter(|at| is_wanted(at))
                    .filter_map(name)
            };
            let rules: Vec<Rule> = group
                .states
                .iter()
                .filter(|(of, _)| is_wanted(of))
                .map(|(_, rule)| *rule)
                .collect();
            let by_port = is_of(&group.key, KeyKind::AddressPort);
            let by_address = [KeyKind::Address, KeyKind::Network]
                .iter()
                .any(|kind| is_of(&group.key, *kind));
            if rules.is_empty() || !(by_address || by_port) {
                continue;
            }
            let mask = &group.key;
            let ipv6 = mask.mask_hi.count_ones() + mask.mask_lo.count_ones();
            let keys = prefix.keys(mask.mask_ipv4.count_ones() as u8, ipv6 as u8);
            let keys: Vec<IpAddr> = match keys {
                Ok(keys) => keys.collect(),
                // Each address has a key for each port.
                Err(_) if by_port => vec![],
                Err(keys) => {
                    let limit = names().next().cloned().unwrap_or_default();
                    return Err(ResetError::TooManyKeys {
                        prefix: *prefix,
                        limit,
                        keys,
                    });
                }
            };
            if by_port && keys.len() != 1 {
                found.kept.extend(names().cloned());
                continue;
            }
            wanted.push((group, rules, keys));
        }
        let ((_, now), sources) = (self.now(), self.sources()?);
        for (group, rules, keys) in wanted {
            let forgotten = found.forgotten.get_or_insert(0);
            let ports = if is_of(&group.key, KeyKind::AddressPort) {
                0..=u32::from(u16::MAX)
            } else {
                0..=0
            };
            for address in keys {
                let Address { hi, lo } = Address::from_ipv6(mapped(address));
                // Others are in the network, too.
                if is_of(&group.key, KeyKind::Network) && is_in_network(Address { hi, lo }) {
                    continue;
                }
                for local_port in ports.clone() {
                    let key = group.key.key_of(&Subject {
                        hi,
                        lo,
                        is_ipv4: u32::from(address.is_ipv4()),
                        local_port,
                        ..Subject::default()
                    });
                    *forgotten += u64::from(sources.reset(&key, &rules, now));
                }
            }
        }
        found.kept.sort();
        found.kept.dedup();
        Ok(found)
    }

    /// Resets the states of all keys under one limit; returns their number.
    ///
    /// # Errors
    ///
    /// When there is no such limit, or the table cannot be mapped.
    pub fn reset_limit(&self, name: &str) -> Result<u64, String> {
        let names = self.config.limits.iter().map(|limit| limit.name.as_str());
        let limit = names.clone().position(|limit| limit == name);
        let limit = limit.ok_or_else(|| {
            let names = names.collect::<Vec<_>>().join(", ");
            format!("unknown limit {name:?} (available: {names})")
        })?;
        let sources = self.sources().map_err(|error| error.to_string())?;
        let (_, now) = self.now();
        let mut forgotten = 0;
        for (number, group) in (0u32..).zip(self.groups()) {
            let rules: Vec<Rule> = group
                .states
                .iter()
                .filter(|(of, _)| of.limit == limit)
                .map(|(_, rule)| *rule)
                .collect();
            if !rules.is_empty() {
                forgotten += sources.reset_all(number, &rules, now);
            }
        }
        Ok(forgotten)
    }

    /// The rules of a limit's level that decide on an address, each state once. Empty if the limit does not apply to it.
    fn rules_of(&self, at: LimitAt, limit: &Limit, address: Address) -> Vec<Rule> {
        let image = self.datapath_of(limit).image();
        let entry = image.entry(address);
        if !image.applies(at.limit, entry) {
            return Vec::new();
        }
        let offset = image.rules_of(entry);
        let mut rules: Vec<Rule> = Vec::new();
        for (row, counted) in image.catalogue.iter().enumerate() {
            let Some(rule) = self
                .datapath_of(limit)
                .rule_in_effect(offset as usize + row)
            else {
                continue;
            };
            // A soft limit refuses by its upper rule.
            let has_last_word = rule.enforcement != Enforcement::Soft as u8;
            let is_own = counted.at == at;
            if is_own && has_last_word && rules.iter().all(|known| known.position != rule.position)
            {
                rules.push(rule);
            }
        }
        rules
    }
}
