//! One host's part in the shared bans, without a clock and a store: callers pass instants and replies.
//!
//! The store orders all bans and removals of a prefix: the later one counts. An order that reaches the store within a
//! second counts from its arrival, one that waited longer from when it was given. Of two bans by different hosts, the
//! store has the one that ends last.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use config::PrefixKey;

use super::entry::{Detail, Entry, Kind, MOST, prefix_of};
use super::outbox::{Order, OwnBan, Scope};

/// The most entries of one reply.
pub const PAGE: usize = 500;
/// The most orders of one request.
pub const ORDERS: usize = 200;
/// An order that waited no longer than this counts from its arrival.
const PROMPT: i64 = 1_000_000_000;
/// Two ends that differ by no more than this are the same: each host counts by its own clock.
const SAME_END: u64 = 2_000_000_000;
/// How long a host repeats its removals to a store that may have lost them, and how many.
const REPEAT_FOR: i64 = 600_000_000_000;
const MOST_REPEATED: usize = 10_000;
/// The age of a ban whose start is not known: any removal is later.
const UNKNOWN_AGE: i64 = 7 * 86_400_000_000_000;
/// How long a ban of another host stays that the store has no more: its host publishes it again after the store has lost
/// it. A removal is an entry of its own.
const MISSING_FOR: u64 = 50_000_000_000;
const MILLISECOND: i64 = 1_000_000;

/// A ban of another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedBan {
    /// Its end, in nanoseconds of this host's monotonic clock; [`u64::MAX`] if it does not end.
    pub until: u64,
    pub entry: Entry,
}

/// A request to the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Request {
    /// The epoch of the last reply; empty before the first.
    pub epoch: String,
    /// The version up to which this host has read.
    pub read: u64,
    pub changes: Vec<Change>,
}

/// A change that a host publishes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    pub prefix: PrefixKey,
    pub kind: Kind,
    /// Milliseconds since it was ordered; 0 for a prompt order.
    pub age: u64,
    /// Milliseconds until the ban ends; 0 if it does not.
    pub lasts: u64,
    pub detail: Detail,
}

/// The store's verdict on a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Stored,
    /// A later ban or removal stays.
    Late,
    /// Another host's longer ban stays.
    Shorter,
    /// The store has as many entries as it may have.
    NoRoom,
}

impl Verdict {
    /// All, in the order of the script's numbers.
    pub const ALL: [Self; 4] = [Self::Stored, Self::Late, Self::Shorter, Self::NoRoom];
}

/// The store's reply.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reply {
    /// The store's clock, in milliseconds.
    pub now: u64,
    /// Differs after the store was emptied.
    pub epoch: String,
    pub version: u64,
    /// The version from which it read; 0 if it returns everything.
    pub from: u64,
    pub verdicts: Vec<Verdict>,
    /// Prefix, version and text of each changed entry, in the order of versions.
    pub entries: Vec<(String, u64, String)>,
}

/// The own bans of a prefix that a removal on another host lifts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lift {
    /// Their owner; `None` for all.
    pub owner: Option<String>,
    /// Whether it lifts other hosts' bans alone: then own bans are published again.
    pub is_elsewhere: bool,
    /// Milliseconds since the removal was ordered. It does not lift later bans.
    pub age: u64,
}

/// The changes by a reply on this host.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Update {
    /// Bans of other hosts, by prefix; `None` where there is none any more.
    pub bans: BTreeMap<PrefixKey, Option<SharedBan>>,
    /// Own bans that were removed on another host.
    pub lifted: BTreeMap<PrefixKey, Lift>,
    /// Orders to publish again, unless later ones wait.
    pub orders: Vec<(PrefixKey, Order)>,
    /// Whether another request must follow at once.
    pub is_more: bool,
    /// Whether everything has been read: then [`KnownBans::compare`] follows.
    pub is_whole: bool,
}

/// Everything in the store, while it is being read.
#[derive(Clone, Debug, Default)]
struct Whole {
    bans: BTreeMap<PrefixKey, SharedBan>,
    /// The removals, and when each was ordered.
    removals: BTreeMap<PrefixKey, (u64, Lift)>,
    /// Invalid entries.
    ignored: u64,
}

/// The bans of all hosts as one host knows them.
#[derive(Clone, Debug)]
pub struct KnownBans {
    host: String,
    epoch: String,
    read: u64,
    /// The store's clock in the last reply, and the instant of that reply.
    clock: (u64, u64),
    whole: Option<Whole>,
    others: BTreeMap<PrefixKey, SharedBan>,
    /// Those that the store had no more when everything was compared, and since when.
    missing: BTreeMap<PrefixKey, u64>,
    /// When each ban of this host was ordered, by the store's clock.
    published: BTreeMap<PrefixKey, u64>,
    /// Bans of this host for which the store has no room.
    left_out: BTreeSet<PrefixKey>,
    /// The last removals by this host.
    removals: VecDeque<(PrefixKey, Order)>,
    in_flight: Vec<(PrefixKey, Order)>,
    /// Invalid entries since everything was read last.
    ignored: u64,
}

impl KnownBans {
    #[must_use]
    pub fn new(host: String) -> Self {
        Self {
            host,
            epoch: String::new(),
            read: 0,
            clock: (0, 0),
            whole: Some(Whole::default()),
            others: BTreeMap::new(),
            missing: BTreeMap::new(),
            published: BTreeMap::new(),
            left_out: BTreeSet::new(),
            removals: VecDeque::new(),
            in_flight: Vec::new(),
            ignored: 0,
        }
    }

    /// The bans of other hosts.
    #[must_use]
    pub const fn others(&self) -> &BTreeMap<PrefixKey, SharedBan> {
        &self.others
    }

    /// The number of this host's bans in the store.
    #[must_use]
    pub fn published(&self) -> usize {
        self.published.len()
    }

    /// The number of this host's bans for which the store has no room.
    #[must_use]
    pub fn left_out(&self) -> usize {
        self.left_out.len()
    }

    /// The number of invalid entries.
    #[must_use]
    pub const fn ignored(&self) -> u64 {
        self.ignored
    }

    /// Reads everything with the next requests.
    pub fn read_all(&mut self) {
        self.read = 0;
        self.whole = Some(Whole::default());
    }

    /// The last removals, for a store that may have lost them.
    pub fn recent_removals(&mut self, now: u64) -> Vec<(PrefixKey, Order)> {
        self.removals
            .retain(|(_, order)| now as i64 - order.at < REPEAT_FOR);
        self.removals.iter().cloned().collect()
    }

    /// Forgets bans that have ended.
    pub fn prune(&mut self, now: u64) {
        self.others.retain(|_, ban| now < ban.until);
    }

    /// The request at `now`, with at most [`ORDERS`] orders.
    pub fn request(&mut self, orders: Vec<(PrefixKey, Order)>, now: u64) -> Request {
        let change = |(prefix, order): &(PrefixKey, Order)| {
            let detail = |ban: &OwnBan| Detail {
                limit: ban.limit.as_ref().map(ToString::to_string),
                reason: ban.reason.as_ref().map(ToString::to_string),
                owner: ban.owner.as_ref().map(ToString::to_string),
                host: None,
            };
            let kind = match &order.ban {
                None => Kind::Removal,
                Some(ban) if ban.is_by_limit => Kind::Limit,
                Some(_) => Kind::Operator,
            };
            let until = order.ban.as_ref().map_or(u64::MAX, |ban| ban.until);
            let lasts = if until == u64::MAX {
                0
            } else {
                until.saturating_sub(now).div_ceil(1_000_000)
            };
            let age = age(order, now);
            Change {
                prefix: *prefix,
                kind,
                age,
                lasts,
                detail: order
                    .ban
                    .as_ref()
                    .map_or_else(|| self.removal(&order.scope), detail),
            }
        };
        // A ban that has ended while it waited is no news.
        let is_alive =
            |(_, order): &(PrefixKey, Order)| order.ban.as_ref().is_none_or(|ban| now < ban.until);
        let orders: Vec<_> = orders.into_iter().filter(is_alive).collect();
        let changes = orders.iter().map(change).collect();
        self.in_flight = orders;
        Request {
            epoch: self.epoch.clone(),
            read: self.read,
            changes,
        }
    }

    /// The detail of a removal by this host.
    fn removal(&self, scope: &Scope) -> Detail {
        let (host, owner) = match scope {
            Scope::All => (None, None),
            Scope::Own { owner } => (Some(&self.host), owner.clone()),
            Scope::Of { host, owner } => (Some(host), owner.clone()),
        };
        Detail {
            owner,
            host: host.cloned(),
            ..Detail::default()
        }
    }

    /// The bans on this host that a removal lifts.
    fn lift(&self, entry: &Entry, clock: u64) -> Lift {
        let host = entry.detail.host.as_ref();
        Lift {
            owner: entry.detail.owner.clone(),
            is_elsewhere: host.is_some_and(|host| *host != self.host),
            age: clock.saturating_sub(entry.made),
        }
    }

    /// Records a request without a reply; returns its orders.
    pub fn failed(&mut self) -> Vec<(PrefixKey, Order)> {
        std::mem::take(&mut self.in_flight)
    }

    /// Applies the reply to the last request.
    pub fn replied(&mut self, reply: &Reply, now: u64) -> Update {
        let mut update = Update::default();
        self.clock = (reply.now, now);
        let is_late = self.record_verdicts(reply, now);
        if self.epoch != reply.epoch || reply.from != self.read {
            if !self.epoch.is_empty() {
                update.orders = self.recent_removals(now);
            }
            if reply.from == 0 {
                self.read_all();
            }
        }
        self.epoch.clone_from(&reply.epoch);
        for (prefix, _, text) in &reply.entries {
            match (prefix_of(prefix), Entry::parse(text)) {
                (Some(prefix), Some(entry)) => {
                    self.take(prefix, entry, reply.now, now, &mut update);
                }
                // It ended while the store replied.
                _ if text.is_empty() => {}
                _ => self.ignore(),
            }
        }
        update.is_more = reply.entries.len() >= PAGE;
        let last = reply.entries.last().map(|(_, version, _)| *version);
        self.read = last.filter(|_| update.is_more).unwrap_or(reply.version);
        update.is_whole = !update.is_more && self.whole.is_some();
        if is_late && self.whole.is_none() {
            self.read_all();
            update.is_more = true;
        }
        update
    }

    /// Records the verdicts on the orders in flight. Returns whether a ban came later than a removal: which bans that
    /// lifts is in the store, and may have been read before.
    fn record_verdicts(&mut self, reply: &Reply, now: u64) -> bool {
        let mut is_late = false;
        let orders = std::mem::take(&mut self.in_flight);
        for ((prefix, order), verdict) in orders.into_iter().zip(&reply.verdicts) {
            self.left_out.remove(&prefix);
            if order.ban.is_none() {
                self.published.remove(&prefix);
                if self.removals.len() >= MOST_REPEATED {
                    self.removals.pop_front();
                }
                self.removals.push_back((prefix, order));
                continue;
            }
            match verdict {
                Verdict::Stored => {
                    self.published
                        .insert(prefix, reply.now.saturating_sub(age(&order, now)));
                    self.removals.retain(|(removed, _)| *removed != prefix);
                    continue;
                }
                Verdict::Late => {
                    is_late = true;
                    // The comparison finds that the removal is later.
                    self.published
                        .insert(prefix, reply.now.saturating_sub(age(&order, now)));
                    continue;
                }
                Verdict::Shorter => {}
                Verdict::NoRoom => drop(self.left_out.insert(prefix)),
            }
            self.published.remove(&prefix);
        }
        is_late
    }

    fn ignore(&mut self) {
        match &mut self.whole {
            Some(whole) => whole.ignored += 1,
            None => self.ignored += 1,
        }
    }

    fn take(&mut self, prefix: PrefixKey, entry: Entry, clock: u64, now: u64, update: &mut Update) {
        if entry.kind == Kind::Removal {
            let lift = self.lift(&entry, clock);
            match &mut self.whole {
                Some(whole) => {
                    whole.bans.remove(&prefix);
                    whole.removals.insert(prefix, (entry.made, lift));
                }
                None => {
                    if self.others.remove(&prefix).is_some() {
                        update.bans.insert(prefix, None);
                    }
                    // A ban that this host published later stays.
                    if self
                        .published
                        .get(&prefix)
                        .is_none_or(|made| *made <= entry.made)
                    {
                        self.published.remove(&prefix);
                        update.lifted.insert(prefix, lift);
                    }
                }
            }
            return;
        }
        let until = match entry.ends {
            0 => u64::MAX,
            ends => now.saturating_add(ends.saturating_sub(clock).saturating_mul(1_000_000)),
        };
        // The same ban keeps its end: the delay of replies differs.
        let known = self
            .others
            .get(&prefix)
            .filter(|known| known.entry == entry)
            .map(|known| known.until);
        let ban = SharedBan {
            until: known.unwrap_or(until),
            entry,
        };
        let is_full = |bans: &BTreeMap<PrefixKey, SharedBan>| {
            bans.len() >= MOST && !bans.contains_key(&prefix)
        };
        match &mut self.whole {
            Some(whole) if is_full(&whole.bans) => whole.ignored += 1,
            Some(whole) => {
                whole.removals.remove(&prefix);
                whole.bans.insert(prefix, ban);
            }
            None if ban.entry.host == self.host => {
                update.lifted.remove(&prefix);
                if self.others.remove(&prefix).is_some() {
                    update.bans.insert(prefix, None);
                }
            }
            None if is_full(&self.others) => self.ignored += 1,
            None => {
                self.published.remove(&prefix);
                update.lifted.remove(&prefix);
                if known.is_none() {
                    update.bans.insert(prefix, Some(ban.clone()));
                }
                self.others.insert(prefix, ban);
            }
        }
    }

    /// Compares everything in the store with this host's bans, each with its start in seconds since 1970, and returns
    /// what must be published or lifted, and the bans of other hosts that are new. Afterwards [`Self::others`] has all of
    /// them. `wall` is this host's clock in seconds since 1970; `is_waiting` says of which prefixes orders wait.
    pub fn compare(
        &mut self,
        own: &[(PrefixKey, OwnBan, u64)],
        is_waiting: impl Fn(&PrefixKey) -> bool,
        now: u64,
        wall: u64,
    ) -> Update {
        let mut update = Update::default();
        let Some(mut whole) = self.whole.take() else {
            return update;
        };
        let store_now = self.clock.0 + now.saturating_sub(self.clock.1) / 1_000_000;
        let mut published = BTreeMap::new();
        for (prefix, ban, since) in own {
            if prefix.is_wide() || now >= ban.until {
                continue;
            }
            if is_waiting(prefix) {
                published.extend(self.published.get(prefix).map(|made| (*prefix, *made)));
                continue;
            }
            let age = match (self.published.get(prefix), since) {
                (Some(made), _) => store_now.saturating_sub(*made) as i64 * MILLISECOND,
                (None, 0) => UNKNOWN_AGE,
                (None, since) => {
                    wall.saturating_sub(*since).min(u64::from(u32::MAX)) as i64
                        * 1_000
                        * MILLISECOND
                }
            };
            let made = store_now.saturating_sub((age / MILLISECOND) as u64);
            let order = Order {
                at: now as i64 - age,
                ban: Some(ban.clone()),
                scope: Scope::default(),
            };
            let removal = whole.removals.get(prefix);
            if let Some((removed, lift)) = removal.filter(|(removed, _)| *removed >= made) {
                let lift = Lift {
                    age: store_now.saturating_sub(*removed),
                    ..lift.clone()
                };
                update.lifted.insert(*prefix, lift);
                continue;
            }
            let is_missing = match whole.bans.get(prefix) {
                None => true,
                Some(shared) => {
                    if shared.entry.host == self.host {
                        published.insert(*prefix, shared.entry.made);
                    }
                    ban.until > shared.until.saturating_add(SAME_END)
                }
            };
            // Of one host's name in the store, this host's own ban applies.
            if whole
                .bans
                .get(prefix)
                .is_some_and(|shared| shared.entry.host == self.host)
            {
                whole.bans.remove(prefix);
            }
            if is_missing {
                update.orders.push((*prefix, order));
            }
        }
        self.published = published;
        let own: BTreeSet<&PrefixKey> = own.iter().map(|(prefix, ..)| prefix).collect();
        self.left_out.retain(|prefix| own.contains(prefix));
        let others = std::mem::take(&mut self.others);
        let mut missing = BTreeMap::new();
        for (prefix, ban) in &others {
            let is_gone = whole.bans.contains_key(prefix)
                || whole.removals.contains_key(prefix)
                || now >= ban.until;
            if is_gone || (ban.entry.host == self.host && own.contains(prefix)) {
                continue;
            }
            let since = self.missing.get(prefix).copied().unwrap_or(now);
            if now.saturating_sub(since) < MISSING_FOR {
                missing.insert(*prefix, since);
                whole.bans.insert(*prefix, ban.clone());
            }
        }
        self.missing = missing;
        let is_new = |(prefix, ban): &(&PrefixKey, &SharedBan)| {
            others
                .get(prefix)
                .is_none_or(|known| known.entry != ban.entry)
        };
        update.bans = whole
            .bans
            .iter()
            .filter(is_new)
            .map(|(prefix, ban)| (*prefix, Some(ban.clone())))
            .collect();
        (self.others, self.ignored) = (whole.bans, whole.ignored);
        update
    }
}

/// The age of an order in milliseconds; 0 if it is prompt.
fn age(order: &Order, now: u64) -> u64 {
    let age = now as i64 - order.at;
    if age < PROMPT {
        0
    } else {
        (age / MILLISECOND) as u64
    }
}
