//! `agent unban`: the bans that it lifts, and those that stay.

use std::collections::BTreeSet;

use api::request::{StillBanned, Unbanned};
use cluster::bans::Scope;
use config::PrefixKey;
use datapath::bans::{BanKey, By, Owner};

use super::bans::{MOST_EXCEPTIONS, NETWORK, listed, parse_prefix};
use super::in_effect::InEffect;
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
    pub(super) fn lift_bans(
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
                 decisions in CrowdSec with cscli decisions delete, and lift the bans of other hosts with agent unban"
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
    pub(super) fn lift_all_bans(&mut self) -> Result<Unbanned, String> {
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
            tracing::info!("{} lifted by an operator", listed(&prefixes));
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
        self.publish_removals(target, whose);
        let of_hosts = target
            .of_hosts
            .iter()
            .map(|prefix| BanKey::of(*prefix, By::Host));
        let keys: Vec<BanKey> = target.keys.iter().cloned().chain(of_hosts).collect();
        let count = self.lift_keys(&keys)?;
        for prefix in target.places() {
            self.publish_ban(&prefix, monotonic_nanoseconds());
        }
        Ok(u64::from(count > 0))
    }

    /// Publishes that the bans of a target are lifted. A ban that stays is published afterwards.
    fn publish_removals(&self, target: &Target, whose: &Whose) {
        for place in target.places() {
            let of_host = self.bans.get(&BanKey::of(place, By::Host));
            let host = of_host
                .and_then(|held| held.why.as_ref())
                .and_then(|why| why.host.as_ref())
                .map(|(host, _)| host.to_string());
            let owner = whose.owner().map(owner_text);
            let scope = if *whose == Whose::Everybody {
                Some(Scope::All)
            } else if target.of_hosts.contains(&place) {
                host.map(|host| Scope::Of { host, owner })
            } else {
                // The store has the other host's ban.
                let is_published = of_host.is_none();
                let is_lifted = target.keys.iter().any(|key| key.prefix == place);
                (is_lifted && is_published).then_some(Scope::Own { owner })
            };
            if let Some(scope) = scope {
                self.publish_removal(&place, scope);
            }
        }
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

    /// The prefixes whose bans are lifted, or the named one.
    fn places(&self) -> BTreeSet<PrefixKey> {
        let keys = self.keys.iter().map(|key| key.prefix);
        keys.chain(self.of_hosts.iter().copied())
            .chain(std::iter::once(self.prefix))
            .collect()
    }
}

impl Whose {
    fn text(&self) -> String {
        match self {
            Self::Everybody => "an operator".to_owned(),
            Self::Owner(owner) | Self::User(owner) => owner_text(owner),
            Self::Host(host) => format!("an operator, for host {host}"),
        }
    }
}

/// The /64 of an IPv6 address, and its last 64 bits.
fn network_of(prefix: &PrefixKey) -> Option<(PrefixKey, u64)> {
    let is_address = prefix.length == 128 && !prefix.is_ipv4();
    let interface_id = u128::from_be_bytes(prefix.address) as u64;
    is_address.then(|| (prefix.cut(NETWORK), interface_id))
}
