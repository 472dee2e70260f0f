//! `weir unban`: the bans that it lifts, and those that stay.

use std::collections::BTreeSet;

use api::request::{NarrowerBans, StillBanned, Unbanned};
use cluster::bans::{Order, Scope};
use config::PrefixKey;
use datapath::bans::{BanKey, BanList, By, Owner};
use host::PROGRAM;

use super::bans::{MOST_EXCEPTIONS, listed, network_of, parse_prefix};
use super::in_effect::InEffect;
use super::shared_bans::{own_ban, started};
use crate::stats::{holder, monotonic_nanoseconds, owner_text};

/// Whose bans are lifted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whose {
    Everybody,
    /// An owner's on this host. A ban without a recorded owner is everybody's.
    Owner(Owner),
    /// The same, of the user who names no owner. Without a ban here, the one that the same user made on another host; and
    /// where nobody else but CrowdSec and other hosts bans the prefix, an exception is made.
    User(Owner),
    /// Another host's.
    Host(String),
}

/// One prefix of an order, and its bans that are lifted.
struct Target {
    prefix: PrefixKey,
    /// The own bans.
    keys: Vec<BanKey>,
    /// The prefixes whose bans by another host are lifted.
    of_hosts: Vec<PrefixKey>,
    exception: Exception,
}

/// Whether a prefix becomes an exception from bans from elsewhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Exception {
    No,
    FromCrowdSec,
    FromHosts,
}

impl Whose {
    fn owner(&self) -> Option<&Owner> {
        match self {
            Self::Owner(owner) | Self::User(owner) => Some(owner),
            Self::Everybody | Self::Host(_) => None,
        }
    }

    /// The name of their owner, for the log.
    fn text(&self) -> String {
        match self {
            Self::Everybody => "an operator".to_owned(),
            Self::Owner(owner) | Self::User(owner) => owner_text(owner),
            Self::Host(host) => format!("an operator, for host {host}"),
        }
    }

    /// Whether the bans of this owner on this host are lifted.
    fn has(&self, owner: &Owner) -> bool {
        let is_unrecorded = *owner == Owner::unnamed(By::Operator);
        *self == Self::Everybody
            || self
                .owner()
                .is_some_and(|wanted| wanted == owner || is_unrecorded && wanted.by == By::Operator)
    }
}

impl InEffect {
    /// Lifts bans of these prefixes, on other hosts too.
    pub(in crate::daemon) fn lift_bans(
        &mut self,
        cidrs: &[String],
        whose: &Whose,
    ) -> Result<Unbanned, String> {
        let now = monotonic_nanoseconds();
        let targets = cidrs
            .iter()
            .map(|cidr| Ok(self.target(&PrefixKey::from(&parse_prefix(cidr)?), whose, now)))
            .collect::<Result<Vec<Target>, String>>()?;
        let excepted = |exception: Exception| {
            let of_kind = targets.iter().filter(move |of| of.exception == exception);
            of_kind.map(|of| of.prefix).collect::<Vec<_>>()
        };
        let (from_crowdsec, from_hosts) = (
            excepted(Exception::FromCrowdSec),
            excepted(Exception::FromHosts),
        );
        let exceptions = [from_crowdsec.as_slice(), &from_hosts].concat();
        let count = self.bans.exceptions().count() + exceptions.len();
        if !exceptions.is_empty() && count > MOST_EXCEPTIONS {
            return Err(format!(
                "{count} exceptions from bans by CrowdSec and other hosts exceed the most, {MOST_EXCEPTIONS}: delete the \
                 decisions in CrowdSec with cscli decisions delete, and lift the bans of other hosts with {PROGRAM} unban"
            ));
        }
        let mut unbanned = Unbanned::default();
        for target in &targets {
            unbanned.unbanned += self
                .lift_target(target, whose)
                .map_err(|error| error.to_string())?;
        }
        let places: Vec<PrefixKey> = targets.iter().flat_map(Target::places).collect();
        self.let_start_over(&places);
        self.except(&exceptions)
            .map_err(|error| error.to_string())?;
        unbanned.unbanned += exceptions.len() as u64;
        unbanned.was_banned = unbanned.unbanned > 0;
        let texts = |prefixes: &[PrefixKey]| prefixes.iter().map(ToString::to_string).collect();
        unbanned.exceptions = texts(&from_crowdsec);
        unbanned.exceptions_from_hosts = texts(&from_hosts);
        let lifted: Vec<PrefixKey> = targets
            .iter()
            .filter(|target| target.is_lifted())
            .map(|target| target.prefix)
            .collect();
        if !lifted.is_empty() {
            tracing::info!("{} lifted by {}", listed(&lifted), whose.text());
        }
        for target in &targets {
            self.report_rest(target, whose, now, &mut unbanned);
        }
        Ok(unbanned)
    }

    /// Lifts every ban by owners on this host and on others.
    pub(in crate::daemon) fn lift_all_bans(&mut self) -> Result<Unbanned, String> {
        let mut prefixes = self.bans.own_prefixes();
        prefixes.extend(self.bans.of(By::Host).map(|(key, _)| key.prefix));
        let now = monotonic_nanoseconds();
        let mut unbanned = Unbanned::default();
        for prefix in &prefixes {
            let mut target = self.target(prefix, &Whose::Everybody, now);
            target.exception = Exception::No;
            unbanned.unbanned += self
                .lift_target(&target, &Whose::Everybody)
                .map_err(|error| error.to_string())?;
        }
        unbanned.was_banned = unbanned.unbanned > 0;
        let prefixes: Vec<PrefixKey> = prefixes.into_iter().collect();
        self.let_start_over(&prefixes);
        if unbanned.was_banned {
            tracing::info!(
                "{} lifted by {}",
                listed(&prefixes),
                Whose::Everybody.text()
            );
        }
        unbanned.banned_by_crowdsec = self.bans.count_of(By::CrowdSec) as u64;
        Ok(unbanned)
    }

    fn target(&self, prefix: &PrefixKey, whose: &Whose, now: u64) -> Target {
        let network = network_of(prefix);
        let mut keys: Vec<BanKey> = self
            .bans
            .own_keys(prefix)
            .filter(|key| whose.has(&key.owner))
            .cloned()
            .collect();
        if let Some((network, interface_id)) = network {
            // An address stands for its /64, which limits and earlier versions ban as a whole.
            let is_whole = |key: &BanKey| {
                *whose == Whose::Everybody
                    || key.owner.by == By::Limit
                    || key.owner == Owner::unnamed(By::Operator)
            };
            let of_network = self.bans.own_keys(&network);
            keys.extend(
                of_network
                    .filter(|key| {
                        whose.has(&key.owner) && (key.interface_id == interface_id || is_whole(key))
                    })
                    .cloned(),
            );
        }
        let places = std::iter::once(*prefix).chain(network.map(|(network, _)| network));
        let of_hosts: Vec<PrefixKey> = places
            .filter(|place| self.is_of_host(place, whose, keys.is_empty()))
            .collect();
        let mut target = Target {
            prefix: *prefix,
            keys,
            of_hosts,
            exception: Exception::No,
        };
        target.exception = self.exception(&target, whose, now);
        target
    }

    /// Whether the ban of exactly this prefix by another host is lifted.
    fn is_of_host(&self, prefix: &PrefixKey, whose: &Whose, has_none: bool) -> bool {
        let Some(held) = self.bans.get(&BanKey::of(*prefix, By::Host)) else {
            return false;
        };
        let host = held.why.as_ref().and_then(|why| why.host.as_ref());
        match (whose, host) {
            (Whose::Everybody, _) => true,
            (Whose::Host(wanted), Some((host, _))) => **host == **wanted,
            // A program that lifts a ban of its own lifts no other host's.
            (Whose::User(_), Some((_, owner))) => has_none && whose.has(owner),
            (Whose::Owner(_), _) | (_, None) => false,
        }
    }

    fn exception(&self, target: &Target, whose: &Whose, now: u64) -> Exception {
        let prefix = &target.prefix;
        let is_alone = || {
            let network = network_of(prefix).map(|(network, _)| network);
            let mut places = std::iter::once(*prefix).chain(network);
            !target.is_lifted() && places.all(|place| self.bans.own_keys(&place).next().is_none())
        };
        let may_be = match whose {
            Whose::Everybody => true,
            Whose::User(_) => is_alone(),
            Whose::Owner(_) | Whose::Host(_) => false,
        };
        let is_banned = |by: By| self.bans.is_banned_by(by, prefix, now);
        if !may_be || self.bans.is_excepted(prefix) {
            Exception::No
        } else if is_banned(By::CrowdSec) {
            Exception::FromCrowdSec
        } else if target.of_hosts.is_empty()
            && is_banned(By::Host)
            && (*whose == Whose::Everybody
                || self.bans.get(&BanKey::of(*prefix, By::Host)).is_none())
        {
            Exception::FromHosts
        } else {
            Exception::No
        }
    }

    /// Lifts the bans of a target, and publishes it; returns 1 if there were any.
    fn lift_target(&mut self, target: &Target, whose: &Whose) -> Result<u64, datapath::LoadError> {
        let now = monotonic_nanoseconds();
        if let Some(outbox) = &self.outbox {
            for (prefix, order) in target.orders(&self.bans, whose, now) {
                outbox.push(prefix, order);
            }
        }
        let of_hosts = target
            .of_hosts
            .iter()
            .map(|prefix| BanKey::of(*prefix, By::Host));
        let keys: Vec<BanKey> = target.keys.iter().cloned().chain(of_hosts).collect();
        let count = self.lift_keys(&keys)?;
        Ok(u64::from(count > 0))
    }

    /// Lets sources start over that no limit bans any more.
    pub(super) fn let_start_over(&mut self, prefixes: &[PrefixKey]) {
        let is_free = |prefix: &PrefixKey| {
            let mut owners = self.bans.own_keys(prefix).map(|key| key.owner.by);
            !owners.any(|by| by == By::Limit)
        };
        let free: Vec<PrefixKey> = prefixes.iter().copied().filter(is_free).collect();
        self.escalation.forget(&free);
    }

    /// Reports the bans of a target that stay.
    fn report_rest(&self, target: &Target, whose: &Whose, now: u64, unbanned: &mut Unbanned) {
        let prefix = &target.prefix;
        let is_lifted = target.is_lifted();
        let is_by_crowdsec = !self.bans.is_excepted(prefix)
            && is_lifted
            && self.bans.is_banned_by(By::CrowdSec, prefix, now);
        if is_by_crowdsec {
            unbanned.still_banned_by_crowdsec.push(prefix.to_string());
        }
        let narrower = self.bans.narrower(prefix, now);
        unbanned
            .narrower
            .extend(narrower.map(|(prefixes, first)| NarrowerBans {
                cidr: prefix.to_string(),
                prefixes,
                first: first.to_string(),
            }));
        let Some(around) = self.bans.around(prefix, now) else {
            return;
        };
        let holders = self.bans.holders(&around.prefix, now);
        let is_known = |key: &BanKey| is_by_crowdsec && key.owner.by == By::CrowdSec;
        let mut owners: Vec<String> = holders
            .iter()
            .filter(|(key, _)| !is_known(key))
            .map(|(key, held)| holder(key, held, now).owner)
            .collect();
        if owners.is_empty() {
            return;
        }
        owners.dedup();
        unbanned.still_banned.push(StillBanned {
            cidr: prefix.to_string(),
            by: around.prefix.to_string(),
            wider: target.is_within(&around.prefix),
            owners,
            lifted: is_lifted,
            own: holders.iter().any(|(key, _)| whose.has(&key.owner)),
        });
    }
}

impl Target {
    fn is_lifted(&self) -> bool {
        !self.keys.is_empty() || !self.of_hosts.is_empty()
    }

    /// Whether it is part of a wider prefix than its own /64.
    fn is_within(&self, wide: &PrefixKey) -> bool {
        let network = network_of(&self.prefix).map(|(network, _)| network);
        *wide != self.prefix && Some(*wide) != network
    }

    /// The orders for other hosts, before these bans are lifted in this list: for each prefix a removal, or the ban that will
    /// end last.
    fn orders(&self, bans: &BanList, whose: &Whose, now: u64) -> Vec<(PrefixKey, Order)> {
        let places = self.places().into_iter();
        places
            .filter_map(|place| Some((place, self.order(bans, &place, whose, now)?)))
            .collect()
    }

    fn order(&self, bans: &BanList, place: &PrefixKey, whose: &Whose, now: u64) -> Option<Order> {
        let of_host = bans.get(&BanKey::of(*place, By::Host));
        let host = of_host
            .and_then(|held| held.why.as_ref())
            .and_then(|why| why.host.as_ref())
            .map(|(host, _)| host.to_string());
        let owner = whose.owner().map(owner_text);
        let removal = |scope| Order {
            at: now as i64,
            ban: None,
            scope,
        };
        if *whose == Whose::Everybody {
            return Some(removal(Scope::All));
        }
        if self.of_hosts.contains(place) {
            // This host receives the removal too, and publishes its own ban then.
            return Some(removal(Scope::Of { host: host?, owner }));
        }
        // The store has the ban that ends last, and suspended ones.
        let longest = bans.longest_own(place).map(|(key, _)| key);
        let is_published = |key: &BanKey| {
            key.prefix == *place && (Some(key) == longest || bans.get(key).is_none())
        };
        if !self.keys.iter().any(is_published) {
            return None;
        }
        let own = bans.of_prefix(place);
        let rest = own.filter(|(key, _)| key.owner.by.is_own() && !self.keys.contains(key));
        match rest.max_by_key(|(_, held)| held.until) {
            Some((key, held)) => Some(Order {
                at: started(held, now),
                ban: Some(own_ban(key, held)),
                scope: Scope::All,
            }),
            // If there is one, the store has the other host's ban.
            None => of_host.is_none().then(|| removal(Scope::Own { owner })),
        }
    }

    /// The prefixes whose bans are lifted, or the named one.
    fn places(&self) -> BTreeSet<PrefixKey> {
        let keys = self.keys.iter().map(|key| key.prefix);
        keys.chain(self.of_hosts.iter().copied())
            .chain(std::iter::once(self.prefix))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapath::bans::{Held, Touched, Why};
    use host::clock::boot_nanoseconds;

    const SECOND: u64 = 1_000_000_000;

    fn key(name: &str) -> BanKey {
        let prefix = config::policy::Prefix::of_address([192, 0, 2, 1].into());
        BanKey::new(PrefixKey::from(&prefix), Owner::named(By::Operator, name))
    }

    /// The bans of users, by name and end in seconds, and perhaps one of host b.
    fn list(own: &[(&str, u64)], is_by_host: bool) -> BanList {
        let (mut bans, mut touched) = (BanList::default(), Touched::default());
        for (name, until) in own {
            let held = Held {
                until: *until * SECOND,
                began: Some(boot_nanoseconds() as i64 - 90 * SECOND as i64),
                ..Held::default()
            };
            bans.ban(key(name), held, &mut touched);
        }
        if is_by_host {
            let why = Why {
                host: Some(("b".into(), Owner::named(By::Operator, "sshd"))),
                ..Why::default()
            };
            let held = Held {
                until: u64::MAX,
                why: Some(why),
                ..Held::default()
            };
            let of_host = BanKey::of(key("").prefix, By::Host);
            bans.ban(of_host, held, &mut touched);
        }
        bans
    }

    fn target(lifted: &[&str], is_of_host: bool) -> Target {
        let prefix = key("").prefix;
        Target {
            prefix,
            keys: lifted.iter().map(|name| key(name)).collect(),
            of_hosts: is_of_host.then_some(prefix).into_iter().collect(),
            exception: Exception::No,
        }
    }

    fn order(bans: &BanList, target: &Target, whose: &Whose) -> Option<Order> {
        let mut orders = target.orders(bans, whose, 100 * SECOND);
        assert!(orders.len() < 2);
        orders.pop().map(|(_, order)| order)
    }

    #[test]
    fn a_lifted_ban_of_another_host_is_published_despite_own_bans() {
        let bans = list(&[("recidive", 900)], true);
        let whose = Whose::Host("b".to_owned());
        let order = order(&bans, &target(&[], true), &whose).unwrap();
        let host = "b".to_owned();
        assert_eq!(order.scope, Scope::Of { host, owner: None });
        assert_eq!(order.ban, None);
    }

    #[test]
    fn an_order_lifts_what_the_store_has_and_renews_nothing() {
        let whose = Whose::Owner(Owner::named(By::Operator, "sshd"));
        let sshd = ("sshd", 600);
        // The longest ban stays, and nothing was lifted.
        let both = list(&[sshd, ("recidive", 900)], false);
        assert_eq!(order(&both, &target(&["sshd"], false), &whose), None);
        assert_eq!(order(&both, &target(&[], false), &whose), None);
        // A shorter one stays, which began 90 s ago.
        let shorter = list(&[sshd, ("recidive", 300)], false);
        let rest = order(&shorter, &target(&["sshd"], false), &whose).unwrap();
        assert!((0..=10 * SECOND as i64).contains(&rest.at), "{}", rest.at);
        let ban = rest.ban.unwrap();
        assert_eq!(ban.owner.as_deref(), Some("recidive"));
        // None stays.
        let removal = order(&list(&[sshd], false), &target(&["sshd"], false), &whose).unwrap();
        let owner = Some("sshd".to_owned());
        assert_eq!(removal.scope, Scope::Own { owner });
        // The store has another host's.
        assert_eq!(
            order(&list(&[sshd], true), &target(&["sshd"], false), &whose),
            None
        );
    }
}
