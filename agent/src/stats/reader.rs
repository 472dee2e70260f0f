//! From counters, table and sightings to the documents.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use common::counters::{BYPASS_ROWS, Bypass, Counters, Sighted, Traffic};
use common::key::Key;
use common::packet::Address;
use common::rule::{Algorithm, Enforcement, KeyKind, Rule, Subject};
use common::settings::PrefixEntry;
use common::time::{Ticks, is_alive};

use super::{BypassStatus, LastRefused, LimitStatus, SourceLimit, SourceStatus, SourcesStatus, TopRow, Totals};
use crate::compile::Image;
use crate::config::policy::Config;
use crate::datapath::{Datapath, LoadError, SlotView};

/// A policy in force, with all that is needed to read it back.
pub struct Reader<'a> {
    /// As the operator wrote it.
    pub config: &'a Config,
    /// As the kernel has it.
    pub image: &'a Image,
    /// Where it is.
    pub datapath: &'a Datapath,
}

impl Reader<'_> {
    fn now(&self) -> (u64, Ticks) {
        let nanoseconds = monotonic_nanoseconds();
        (nanoseconds, self.image.settings.scale.ticks(nanoseconds))
    }

    /// Counters and table, as `status` has them.
    ///
    /// # Errors
    ///
    /// When a map cannot be read.
    pub fn totals(&self) -> Result<(Totals, SourcesStatus, BypassStatus), LoadError> {
        let counters = self.datapath.counters()?;
        let sum = counters.iter().fold(Counters::default(), |sum, row| sum.plus(*row));
        let totals = Totals {
            passed_packets: sum.passed.packets,
            passed_bytes: sum.passed.bytes,
            throttled_packets: sum.throttled.packets,
            throttled_bytes: sum.throttled.bytes,
        };
        let row = |bypass: Bypass| counters.get(bypass as usize).copied().unwrap_or_default();
        let bypass = BypassStatus {
            unlimited: row(Bypass::Unlimited).passed.packets,
            not_ip: row(Bypass::NotIp).passed.packets,
            essential: row(Bypass::Essential).passed.packets,
            never_limit: row(Bypass::NeverLimit).passed.packets,
            malformed: row(Bypass::Malformed).throttled.packets,
        };
        let table = self.datapath.table_counters()?;
        let tracked = self.datapath.sources().tracked(self.now().1, self.image.groups.len()).iter().sum();
        let sources = SourcesStatus {
            tracked,
            capacity: u64::from(self.config.agent.max_sources),
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
        let counters = self.datapath.counters()?;
        let keys = self.keys();
        let row = |row: u32| counters.get(row as usize).copied().unwrap_or_default();
        let statuses = self.config.limits.iter().enumerate().map(|(nth, limit)| {
            let mut sum = Counters::default();
            let mut spans = std::collections::BTreeSet::new();
            for (counter, counted) in
                (BYPASS_ROWS..).zip(&self.image.catalogue).filter(|(_, counted)| counted.limit == nth)
            {
                let own = row(counter);
                sum = sum.plus(Counters { passed: Traffic::default(), ..own });
                // A limit with tiers has several rules in one span, whose packets count once.
                if spans.insert(counted.span) {
                    sum.passed = sum.passed.plus(row(counted.span).passed);
                }
            }
            LimitStatus {
                definition: limit.into(),
                passed: sum.passed.into(),
                throttled: sum.throttled.into(),
                would_throttle: sum.would_throttle.into(),
                over: sum.over.into(),
                keys: keys.get(nth).copied().unwrap_or(0),
            }
        });
        Ok(statuses.collect())
    }

    /// For each limit, the keys whose state has not decayed.
    fn keys(&self) -> Vec<u64> {
        let (_, now) = self.now();
        let mut keys = vec![0; self.config.limits.len()];
        for view in self.datapath.sources().iter() {
            let Some(group) = self.image.groups.get(view.group as usize) else { continue };
            let mut last = None;
            for (limit, rule) in &group.states {
                // Several states of one limit are one key of it.
                if last != Some(*limit) && is_alive(view.words[usize::from(rule.position)], now) {
                    keys[*limit] += 1;
                    last = Some(*limit);
                }
            }
        }
        keys
    }

    /// The most throttled and the busiest of those the kernel remembers, most throttled first.
    ///
    /// # Errors
    ///
    /// When a map cannot be read.
    pub fn top(&self) -> Result<Vec<TopRow>, LoadError> {
        let mut rows: Vec<TopRow> = self
            .datapath
            .sightings()?
            .into_iter()
            .filter_map(|(key, sighted)| {
                let group = self.image.groups.get(key.group as usize)?;
                let limit = self.limit_of(&sighted).or_else(|| group.states.first().map(|(limit, _)| *limit))?;
                let (passed_packets, throttled_packets) = self.counted(&key, &sighted);
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

    /// Whole steps of 64 as the kernel remembers them, and the rest from the slot.
    fn counted(&self, key: &Key, sighted: &Sighted) -> (u64, u64) {
        let slot = self.datapath.sources().find(key);
        let rest = |of: fn(&SlotView) -> u8| slot.as_ref().map_or(0, |slot| u64::from(of(slot)));
        (sighted.passed + rest(|slot| slot.passed), sighted.refused + rest(|slot| slot.refused))
    }

    fn limit_of(&self, sighted: &Sighted) -> Option<usize> {
        if sighted.refused_at == 0 {
            return None;
        }
        let row = sighted.refused_by.checked_sub(BYPASS_ROWS)?;
        self.image.catalogue.get(row as usize).map(|counted| counted.limit)
    }

    /// A key as a person would write it.
    fn describe(&self, key: &Key, rule: &Rule) -> String {
        match rule.key {
            kind if kind == KeyKind::Class as u8 => format!("class {}", self.class_name(key.extra)),
            kind if kind == KeyKind::Interface as u8 => format!("interface {}", key.extra),
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
        let entry = self.entry(&octets);
        let Address { hi, lo } = Address::from_ipv6(octets);
        let is_ipv4 = u32::from(address.is_ipv4());
        let subject = Subject { hi, lo, is_ipv4, class: entry.class, ..Subject::default() };
        let is_free = entry.flags != 0;
        let mut last: Option<(u64, usize)> = None;
        let mut limits = Vec::new();
        for (nth, limit) in self.config.limits.iter().enumerate() {
            let rules = self.rules_of(nth, entry.grade);
            let Some(first) = rules.first().filter(|_| !is_free && limit.key.is_of_one_address()) else { continue };
            let key = first.key_of(&subject);
            let slot = self.datapath.sources().find(&key);
            let sighted = self.datapath.sighting(&key)?.unwrap_or_default();
            if let Some(refused_by) = self.limit_of(&sighted) {
                last = last.max(Some((sighted.refused_at, refused_by)));
            }
            let (passed_packets, counted) = self.counted(&key, &sighted);
            // A slot counts the refusals of all its limits; they are told of under the one that refused last.
            let throttled_packets = if self.limit_of(&sighted).is_none_or(|limit| limit == nth) { counted } else { 0 };
            let mut remaining = u64::MAX;
            let mut wait = 0;
            for rule in &rules {
                let (left, ticks) = self.allowance(rule, slot.as_ref(), now);
                remaining = remaining.min(left);
                wait = wait.max(self.image.settings.scale.nanoseconds(ticks));
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
            class: self.class_name(entry.class),
            never_limit: entry.flags & PrefixEntry::NEVER_LIMIT != 0,
            ban: None,
            limits,
            last_refused: last.and_then(|(at, limit)| {
                let limit = self.config.limits.get(limit)?.name.clone();
                Some(LastRefused { limit, seconds_ago: nanoseconds.saturating_sub(at) as f64 / 1e9 })
            }),
        })
    }

    /// Forgets every state of an address; how many there were.
    #[must_use]
    pub fn reset(&self, address: IpAddr) -> u64 {
        let (_, now) = self.now();
        let octets = mapped(address);
        let Address { hi, lo } = Address::from_ipv6(octets);
        let subject = Subject { hi, lo, is_ipv4: u32::from(address.is_ipv4()), ..Subject::default() };
        let groups = self.image.groups.iter().filter(|group| group.key.key == KeyKind::Address as u8);
        groups.filter(|group| self.datapath.sources().reset(&group.key.key_of(&subject), now)).count() as u64
    }

    /// What the longest matching prefix says, as the kernel's trie does.
    fn entry(&self, address: &[u8; 16]) -> PrefixEntry {
        let address = u128::from_be_bytes(*address);
        let matching = self.image.prefixes.iter().filter(|(prefix, _)| {
            let mask = u128::MAX.checked_shl(128 - prefix.length).unwrap_or(0);
            address & mask == u128::from_be_bytes(prefix.address) & mask
        });
        matching.max_by_key(|(prefix, _)| prefix.length).map(|(_, entry)| *entry).unwrap_or_default()
    }

    /// The rules of a limit that have the last word, for a class's multiplier; each state once.
    fn rules_of(&self, limit: usize, grade: u16) -> Vec<Rule> {
        let offset = u32::from(grade) * self.image.settings.rules_per_grade;
        let mut rules: Vec<Rule> = Vec::new();
        for (row, counted) in self.image.catalogue.iter().enumerate() {
            let Some(rule) = self.image.rules.get(offset as usize + row) else { continue };
            let has_last_word = [Enforcement::Enforce, Enforcement::Observe, Enforcement::Elastic]
                .iter()
                .any(|e| rule.enforcement == *e as u8);
            if counted.limit == limit && has_last_word && rules.iter().all(|known| known.position != rule.position) {
                rules.push(*rule);
            }
        }
        rules
    }

    /// (units that would pass, ticks until one does) of one rule.
    fn allowance(&self, rule: &Rule, slot: Option<&SlotView>, now: Ticks) -> (u64, Ticks) {
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
            let ring = self.datapath.ring(slot.number, rule);
            (log.remaining(ring.iter().copied(), now), log.wait(ring.iter().copied(), now))
        } else {
            let bucket = rule.token_bucket();
            (bucket.remaining(state, now), bucket.wait(state, now, 1).unwrap_or(0))
        }
    }
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
