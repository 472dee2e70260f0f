//! From counters, table and sightings to the documents.

mod events;
mod live;

pub use live::Live;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::OnceLock;

use common::ban::Ban;
use common::counters::{BYPASS_ROWS, Bypass, Sighted};
use common::key::Key;
use common::packet::{Address, Direction};
use common::prefix::PrefixEntry;
use common::rule::{Algorithm, Enforcement, KeyKind, Rule, Subject};
use common::time::{Ticks, is_alive};

use super::counted::{Counted, of_limit};
use super::{
    BanStatus, BypassStatus, LastRefused, LimitStatus, SourceLimit, SourceStatus, SourcesStatus, TopRow, Totals,
};
use crate::bans::BanList;
use crate::compile::{Group, PrefixKey};
use crate::config::policy::{Config, Limit};
use crate::datapath::{Datapath, LoadError, SlotView, Sources};

/// A policy in force, with all that is needed to read it back.
pub struct Reader<'a> {
    config: &'a Config,
    ingress: &'a Datapath,
    egress: Option<&'a Datapath>,
    bans: &'a BanList,
    counted: &'a Counted,
    /// Mapped by the first that reads it.
    table: OnceLock<Sources>,
}

impl<'a> Reader<'a> {
    /// Reads what `ingress` and `egress` enforce of a config; `counted` is what policies before them counted.
    #[must_use]
    pub const fn new(
        config: &'a Config,
        (ingress, egress): (&'a Datapath, Option<&'a Datapath>),
        bans: &'a BanList,
        counted: &'a Counted,
    ) -> Self {
        Self { config, ingress, egress, bans, counted, table: OnceLock::new() }
    }
}

impl Reader<'_> {
    fn now(&self) -> (u64, Ticks) {
        let nanoseconds = monotonic_nanoseconds();
        (nanoseconds, self.ingress.settings().scale.ticks(nanoseconds))
    }

    fn datapaths(&self) -> impl Iterator<Item = &Datapath> {
        std::iter::once(self.ingress).chain(self.egress)
    }

    /// What holds the packets that a limit is on.
    fn datapath_of(&self, limit: &Limit) -> &Datapath {
        match (limit.direction, self.egress) {
            (Direction::Egress, Some(egress)) => egress,
            _ => self.ingress,
        }
    }

    /// The table of sources, which both directions share.
    fn sources(&self) -> Result<&Sources, LoadError> {
        if let Some(table) = self.table.get() {
            return Ok(table);
        }
        let table = self.ingress.sources()?;
        Ok(self.table.get_or_init(|| table))
    }

    /// The groups of keys, of both directions.
    fn groups(&self) -> &[Group] {
        &self.ingress.image().groups
    }

    /// Counters and table, as `status` has them.
    ///
    /// # Errors
    ///
    /// When a map cannot be read.
    pub fn totals(&self) -> Result<(Totals, SourcesStatus, BypassStatus), LoadError> {
        let mut counters = Vec::new();
        let mut table = self.counted.table;
        let mut bypassing = self.counted.bypass;
        for datapath in self.datapaths() {
            let rows = datapath.counters()?;
            for (sum, row) in bypassing.iter_mut().zip(&rows) {
                *sum = sum.plus(*row);
            }
            counters.extend(rows);
            table = table.plus(datapath.table_counters()?);
        }
        let sum = counters.iter().fold(self.counted.total, |sum, row| sum.plus(*row));
        let totals = Totals {
            passed_packets: sum.passed.packets,
            passed_bytes: sum.passed.bytes,
            throttled_packets: sum.throttled.packets,
            throttled_bytes: sum.throttled.bytes,
        };
        let row = |bypass: Bypass| bypassing[bypass as usize];
        // In observe mode they pass, and are counted as what would be refused.
        let refused = |bypass: Bypass| row(bypass).throttled.packets + row(bypass).would_throttle.packets;
        let bypass = BypassStatus {
            unlimited: row(Bypass::Unlimited).passed.packets,
            not_ip: row(Bypass::NotIp).passed.packets,
            essential: row(Bypass::Essential).passed.packets,
            never_limit: row(Bypass::NeverLimit).passed.packets,
            malformed: refused(Bypass::Malformed),
            banned: refused(Bypass::Banned),
            essential_throttled: refused(Bypass::EssentialThrottled),
            not_ip_throttled: refused(Bypass::NotIpThrottled),
        };
        let tracked = self.sources()?.tracked(self.now().1, self.groups().len()).iter().sum();
        let sources = SourcesStatus {
            tracked,
            capacity: u64::from(self.ingress.image().max_sources),
            evicted: table.evicted,
            full_passed: table.full_passed,
            full_throttled: table.full_throttled,
            full_shared: table.full_shared,
            contended: table.contended,
        };
        Ok((totals, sources, bypass))
    }

    /// Every limit's counters.
    ///
    /// # Errors
    ///
    /// When a map cannot be read.
    pub fn limits(&self) -> Result<Vec<LimitStatus>, LoadError> {
        let ingress = self.ingress.counters()?;
        let egress = self.egress.map(Datapath::counters).transpose()?.unwrap_or_default();
        let keys = self.keys()?;
        let statuses = self.config.limits.iter().enumerate().map(|(nth, limit)| {
            let counters = if limit.direction == Direction::Egress { &egress } else { &ingress };
            let before = self.counted.limits.get(&limit.name).copied().unwrap_or_default();
            let sum = before.plus(of_limit(nth, self.datapath_of(limit).image(), counters));
            LimitStatus {
                definition: limit.into(),
                passed: sum.passed.into(),
                throttled: sum.throttled.into(),
                would_throttle: sum.would_throttle.into(),
                over: sum.over.into(),
                keys: keys.get(nth).copied().unwrap_or(0),
                waiting: None,
            }
        });
        Ok(statuses.collect())
    }

    /// For each limit, the keys whose state has not decayed.
    fn keys(&self) -> Result<Vec<u64>, LoadError> {
        let (_, now) = self.now();
        let mut keys = vec![0; self.config.limits.len()];
        for view in self.sources()?.iter() {
            let Some(group) = self.groups().get(view.group as usize) else { continue };
            let mut last = None;
            for (limit, rule) in &group.states {
                // Several states of one limit are one key of it.
                if last != Some(*limit) && is_alive(view.words[usize::from(rule.position)], now) {
                    keys[*limit] += 1;
                    last = Some(*limit);
                }
            }
        }
        Ok(keys)
    }

    /// The most throttled and the busiest of those the kernel remembers, most throttled first.
    ///
    /// # Errors
    ///
    /// When a map cannot be read.
    pub fn top(&self) -> Result<Vec<TopRow>, LoadError> {
        let sources = self.sources()?;
        let mut rows: Vec<TopRow> = self
            .ingress
            .sightings()?
            .into_iter()
            .filter_map(|(key, sighted)| {
                let group = self.groups().get(key.group as usize)?;
                let limit = self.limit_of(&key, &sighted).or_else(|| group.states.first().map(|(limit, _)| *limit))?;
                let (passed_packets, throttled_packets) = counted(sources, &key, &sighted);
                Some(TopRow {
                    source: self.describe(&key, &group.key),
                    limit: self.config.limits.get(limit)?.name.clone(),
                    passed_packets,
                    throttled_packets,
                })
            })
            .collect();
        rows.sort_by(|a, b| {
            (b.throttled_packets, b.passed_packets, &a.source).cmp(&(a.throttled_packets, a.passed_packets, &b.source))
        });
        Ok(rows)
    }

    /// The limit that refused a key last.
    fn limit_of(&self, key: &Key, sighted: &Sighted) -> Option<usize> {
        if sighted.refused_at == 0 {
            return None;
        }
        let row = sighted.refused_by.checked_sub(BYPASS_ROWS)?;
        // A group is of one direction.
        let (limit, _) = self.groups().get(key.group as usize)?.states.first()?;
        let datapath = self.datapath_of(self.config.limits.get(*limit)?);
        datapath.image().catalogue.get(row as usize).map(|counted| counted.limit)
    }

    /// A key as a person would write it.
    fn describe(&self, key: &Key, rule: &Rule) -> String {
        match rule.key {
            kind if kind == KeyKind::Class as u8 => format!("class {}", self.class_name(key.extra)),
            kind if kind == KeyKind::Interface as u8 => format!("interface {}", interface_name(key.extra)),
            kind => {
                let address = prefix_text(key, rule);
                if kind == KeyKind::AddressPort as u8 { format!("{address} port {}", key.extra) } else { address }
            }
        }
    }

    fn class_name(&self, class: u32) -> String {
        let class = class.checked_sub(1).and_then(|nth| self.config.classes.get(nth as usize));
        class.map_or_else(|| "default".to_owned(), |class| class.name.clone())
    }

    /// Everything known of one address.
    ///
    /// # Errors
    ///
    /// When a map cannot be read.
    pub fn show(&self, address: IpAddr) -> Result<SourceStatus, LoadError> {
        let (nanoseconds, now) = self.now();
        let octets = mapped(address);
        let Address { hi, lo } = Address::from_ipv6(octets);
        let image = self.ingress.image();
        let entry = image.settings.prefixes.look_up(image.prefixes.as_slice(), Address { hi, lo });
        let is_ipv4 = u32::from(address.is_ipv4());
        let subject = Subject { hi, lo, is_ipv4, class: entry.class(), ..Subject::default() };
        let is_free = entry.has(PrefixEntry::NEVER_LIMIT | PrefixEntry::UNLIMITED);
        let sources = self.sources()?;
        let mut last: Option<(u64, usize)> = None;
        let mut limits = Vec::new();
        for (nth, limit) in self.config.limits.iter().enumerate() {
            let rules = self.rules_of(nth, limit, entry.grade());
            let Some(first) = rules.first().filter(|_| !is_free && limit.key.is_of_one_address()) else { continue };
            let key = first.key_of(&subject);
            let slot = sources.find(&key);
            let sighted = self.ingress.sighting(&key)?.unwrap_or_default();
            if let Some(refused_by) = self.limit_of(&key, &sighted) {
                last = last.max(Some((sighted.refused_at, refused_by)));
            }
            let (passed_packets, refused) = counted(sources, &key, &sighted);
            // A slot counts the refusals of all its limits; they are told of under the one that refused last.
            let throttled_packets =
                if self.limit_of(&key, &sighted).is_none_or(|limit| limit == nth) { refused } else { 0 };
            let mut remaining = u64::MAX;
            let mut wait = 0;
            for rule in &rules {
                let (left, ticks) = allowance(sources, rule, slot.as_ref(), now);
                remaining = remaining.min(left);
                wait = wait.max(self.ingress.settings().scale.nanoseconds(ticks));
            }
            limits.push(SourceLimit {
                name: limit.name.clone(),
                remaining,
                retry_after_seconds: wait as f64 / 1e9,
                passed_packets,
                throttled_packets,
            });
        }
        Ok(SourceStatus {
            source: address.to_string(),
            class: self.class_name(entry.class()),
            never_limit: entry.has(PrefixEntry::NEVER_LIMIT),
            ban: self.ban(&octets, nanoseconds),
            limits,
            last_refused: last.and_then(|(at, limit)| {
                let limit = self.config.limits.get(limit)?.name.clone();
                Some(LastRefused { limit, seconds_ago: nanoseconds.saturating_sub(at) as f64 / 1e9 })
            }),
        })
    }

    /// The longest ban that holds an address.
    fn ban(&self, octets: &[u8; 16], now: u64) -> Option<BanStatus> {
        let whole = PrefixKey { address: *octets, length: 128 };
        let (prefix, until) = self.bans.around(&whole, now)?;
        Some(BanStatus { cidr: prefix.to_string(), expires_in_seconds: seconds_until(until, now) })
    }

    /// Forgets every state of an address; how many there were.
    ///
    /// # Errors
    ///
    /// When the table cannot be mapped.
    pub fn reset(&self, address: IpAddr) -> Result<u64, LoadError> {
        let ((_, now), sources) = (self.now(), self.sources()?);
        let octets = mapped(address);
        let Address { hi, lo } = Address::from_ipv6(octets);
        let whole = Subject { hi, lo, is_ipv4: u32::from(address.is_ipv4()), ..Subject::default() };
        let mut forgotten = 0;
        for group in self.groups() {
            let ports = match group.key.key {
                kind if kind == KeyKind::Address as u8 => 0..=0,
                kind if kind == KeyKind::AddressPort as u8 => 0..=u32::from(u16::MAX),
                _ => continue,
            };
            let rules: Vec<Rule> = group.rules().copied().collect();
            for local_port in ports {
                let key = group.key.key_of(&Subject { local_port, ..whole });
                forgotten += u64::from(sources.reset(&key, &rules, now));
            }
        }
        Ok(forgotten)
    }

    /// Forgets the states of all keys under one limit; how many there were, `None` if there is no such limit.
    ///
    /// # Errors
    ///
    /// When the table cannot be mapped.
    pub fn reset_limit(&self, name: &str) -> Result<Option<u64>, LoadError> {
        let Some(limit) = self.config.limits.iter().position(|limit| limit.name == name) else { return Ok(None) };
        let (_, now) = self.now();
        let mut forgotten = 0;
        for (number, group) in (0u32..).zip(self.groups()) {
            let rules: Vec<Rule> = group.states.iter().filter(|(of, _)| *of == limit).map(|(_, rule)| *rule).collect();
            if !rules.is_empty() {
                forgotten += self.sources()?.reset_all(number, &rules, now);
            }
        }
        Ok(Some(forgotten))
    }

    /// The rules of a limit that have the last word, for a class's multiplier; each state once.
    fn rules_of(&self, nth: usize, limit: &Limit, grade: u32) -> Vec<Rule> {
        let image = self.datapath_of(limit).image();
        let offset = grade * image.settings.rules_per_grade;
        let mut rules: Vec<Rule> = Vec::new();
        for (row, counted) in image.catalogue.iter().enumerate() {
            let Some(rule) = self.datapath_of(limit).rule_in_force(offset as usize + row) else { continue };
            // Of a soft limit, what it passes above is what it refuses by.
            let has_last_word = rule.enforcement != Enforcement::Soft as u8;
            if counted.limit == nth && has_last_word && rules.iter().all(|known| known.position != rule.position) {
                rules.push(rule);
            }
        }
        rules
    }
}

/// Whole steps of 64 as the kernel remembers them, and the rest from the slot: (passed, refused).
fn counted(sources: &Sources, key: &Key, sighted: &Sighted) -> (u64, u64) {
    let slot = sources.find(key);
    let rest = |of: fn(&SlotView) -> u8| slot.as_ref().map_or(0, |slot| u64::from(of(slot)));
    (sighted.passed + rest(|slot| slot.passed), sighted.refused + rest(|slot| slot.refused))
}

/// (units that would pass, ticks until one does) of one rule.
fn allowance(sources: &Sources, rule: &Rule, slot: Option<&SlotView>, now: Ticks) -> (u64, Ticks) {
    let Some(slot) = slot else { return (rule.most, 0) };
    let state = slot.words[usize::from(rule.position)];
    if rule.is(Algorithm::FixedWindow) {
        let limiter = rule.fixed_window();
        (limiter.remaining(state, now), limiter.wait(state, now, 1).unwrap_or(0))
    } else if rule.is(Algorithm::SlidingWindow) {
        let limiter = rule.sliding_window();
        let odd = slot.words[usize::from(rule.position) + 1];
        (limiter.remaining(state, odd, now), limiter.wait(state, odd, now, 1).unwrap_or(0))
    } else if rule.is(Algorithm::SlidingLog) {
        let log = rule.sliding_log();
        let ring = sources.log(slot.number, rule);
        (log.remaining(ring.iter().copied(), now), log.wait(ring.iter().copied(), now))
    } else {
        let bucket = rule.token_bucket();
        (bucket.remaining(state, now), bucket.wait(state, now, 1).unwrap_or(0))
    }
}

/// Until an instant of the monotonic clock; `None` if it never comes.
#[must_use]
pub fn seconds_until(until: u64, now: u64) -> Option<f64> {
    (until != Ban::FOREVER).then(|| until.saturating_sub(now) as f64 / 1e9)
}

fn interface_name(index: u32) -> String {
    nix::net::if_::if_indextoname(index).map_or_else(|_| index.to_string(), |name| name.to_string_lossy().into_owned())
}

/// The clock that the kernel's programs read.
#[must_use]
pub fn monotonic_nanoseconds() -> u64 {
    nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC)
        .map_or(0, |time| time.tv_sec() as u64 * 1_000_000_000 + time.tv_nsec() as u64)
}

/// An address as 16 bytes, IPv4 as IPv4-mapped.
#[must_use]
pub fn mapped(address: IpAddr) -> [u8; 16] {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

/// The address of a key, with the limit's prefix where that is not the whole address.
fn prefix_text(key: &Key, rule: &Rule) -> String {
    let octets = Address { hi: key.hi, lo: key.lo }.octets();
    let address = Ipv6Addr::from(octets);
    match address.to_ipv4_mapped() {
        Some(address) => with_length(&address, Ipv4Addr::BITS, rule.mask_ipv4.count_ones()),
        None => with_length(&address, Ipv6Addr::BITS, rule.mask_hi.count_ones() + rule.mask_lo.count_ones()),
    }
}

fn with_length(address: &dyn std::fmt::Display, whole: u32, length: u32) -> String {
    if length == whole { address.to_string() } else { format!("{address}/{length}") }
}
