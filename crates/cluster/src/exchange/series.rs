//! The busy keys of one limit: this host's publications of each, and the other hosts'.

use std::collections::{BTreeMap, HashMap};

use decide::{Adjustment, Cut, PeerConsumption};

use super::claim::Claim;
use super::wire::Entry;

/// A key is published for this many syncs after its last use, so that a reader that misses one has the next.
const LINGER: u32 = 5;
/// A host that has passed no unit of a key for this many syncs takes a full part only after all have received it again.
const FORGOTTEN: u32 = 3;
/// A host that starts with a window that is busy elsewhere takes an even share divided by this until the others receive
/// it: all of them together exceed the window by at most a tenth of the rest.
const NEWCOMERS: f64 = 10.0;
/// The least part of a window for a host with little demand, relative to a busy host's.
const LEAST_PART: f64 = 0.02;
/// The largest factor, so that a host with little demand passes a few units.
const LARGEST_PART: f64 = 100.0;
/// The ratio above which one host's demand is much more than another's.
const LARGER: f64 = 4.0;
/// The approximate number of syncs until other hosts receive a host's use.
const UNRECEIVED_SYNCS: f64 = 2.0;
/// The weight of the newest value in averages: of few units, and of many in a bucket.
const NEWEST: f64 = 0.5;
const NEWEST_OF_MANY: f64 = 0.9;
/// Thousandths of a unit a second, in units a microsecond.
const RATE_UNITS: f64 = 1e9;
/// The number of units in a sync that determines its rate to a seventh.
const MANY_UNITS: f64 = 50.0;

/// The number of another host.
pub type HostNumber = u32;

/// Another host's last publication.
#[derive(Clone, Copy, Debug)]
pub struct Newest {
    /// Its number among the host's publications.
    pub sequence: u64,
    /// See [`super::wire::Publication::read`].
    pub read: u64,
    /// The store's clock when the host was last seen, in microseconds.
    pub seen: u64,
    /// When the publication was made, in nanoseconds of the cluster's clock.
    pub at: u64,
    /// This host's time between two exchanges, in microseconds.
    pub sync: u64,
    /// The same relative to that host's.
    pub syncs: f64,
}

/// One exchange.
#[derive(Clone, Copy, Debug)]
pub struct Round {
    /// The instant of this publication by the store's clock, in microseconds.
    pub now: u64,
    /// Every other host has charged its keys with everything published by this instant, and has published since.
    pub received: u64,
    /// Every other host that publishes on time has published since this instant.
    pub received_soon: u64,
    /// Hosts that take part, this one included.
    pub hosts: u64,
    /// Of them, those of lower rank.
    pub rank: u64,
}

#[derive(Clone, Copy, Debug)]
struct Pending {
    /// The first instant at which the others could read it; `None` until the store has replied.
    published: Option<u64>,
    spent: u64,
    /// Units charged on behalf of the others that they have not published yet.
    over: u64,
}

#[derive(Clone, Copy, Debug)]
struct Other {
    sum: u64,
    born: u64,
    /// As published, in units a sync of this host.
    demand: f64,
    /// Units until its next publication: it may sync less often.
    unreceived: f64,
    sequence: u64,
    /// Whether its host's newest publication has the key, and the host publishes on time.
    is_current: bool,
    /// Whether its host was there at the last read, and may still write the use of the key.
    is_open: bool,
}

#[derive(Debug, Default)]
struct Key {
    /// Units published here since the key was first published, by publication `born`.
    sum: u64,
    born: Option<u64>,
    spent: u64,
    used: u64,
    refused: u64,
    /// The demand in units a sync, averaged.
    demand: f64,
    /// Syncs since its last use here.
    idle: u32,
    pending: Vec<Pending>,
    /// Windows: the demand by which this host takes its part.
    claim: Claim,
    /// Whether all other hosts have received that this host uses the key.
    is_received: bool,
    /// Whether it has no room in publications: each host passes its part.
    is_parted: bool,
    others: BTreeMap<HostNumber, Other>,
    charge: u64,
    /// Units that all hosts have used at least, by those that this host has read for the first time.
    at_least: u64,
    /// The instant of the charged units: of the last unit for windows, the first for buckets.
    charged_at: Option<u64>,
    last_peers: Option<PeerConsumption>,
    was_hot: bool,
}

/// The busy keys of one limit.
#[derive(Debug)]
pub struct Series {
    has_windows: bool,
    keys: HashMap<u64, Key>,
    /// The sequence of the first publication that was read of each host.
    met: HashMap<HostNumber, u64>,
    published: u64,
    local: usize,
    /// Keys without room in the last publication.
    parted: Vec<Adjustment>,
}

impl Series {
    /// For a limit of windows, or of buckets.
    #[must_use]
    pub fn new(has_windows: bool) -> Self {
        Self {
            has_windows,
            keys: HashMap::new(),
            met: HashMap::new(),
            published: 0,
            local: 0,
            parted: Vec::new(),
        }
    }

    /// Whether the limit's algorithm is a window.
    #[must_use]
    pub const fn has_windows(&self) -> bool {
        self.has_windows
    }

    /// Keys in all publications.
    #[must_use]
    pub const fn published(&self) -> u64 {
        self.published
    }

    /// Busy keys without room in the last publication.
    #[must_use]
    pub const fn local(&self) -> usize {
        self.local
    }

    /// The adjustments of keys without room in the last publication, which need no reply.
    pub fn take_parted(&mut self) -> Vec<Adjustment> {
        std::mem::take(&mut self.parted)
    }

    /// Keys with a record.
    #[cfg(test)]
    pub fn keys(&self) -> usize {
        self.keys.len()
    }

    /// Removes keys that are not in use.
    pub fn retain(&mut self, is_used: impl Fn(u64) -> bool) {
        self.keys.retain(|key, _| is_used(*key));
    }

    /// Adds what was cut off.
    pub fn cut(&mut self, cuts: &[Cut]) {
        for key in self.keys.values_mut() {
            key.idle = key.idle.saturating_add(1);
            (key.spent, key.refused) = (0, 0);
        }
        for cut in cuts {
            let key = self.keys.entry(cut.key).or_default();
            key.idle = 0;
            // Without room, units of windows have not been published before.
            let spent = if self.has_windows && key.born.is_none() && key.pending.is_empty() {
                cut.open.max(cut.spent)
            } else {
                cut.spent
            };
            key.sum = key.sum.saturating_add(spent);
            (key.spent, key.used, key.refused) = (spent, cut.used, cut.refused);
            // Units that no reply has acknowledged yet share their fate: without a store, they would be without number.
            match key.pending.last_mut() {
                Some(last) if last.published.is_none() => {
                    last.spent = last.spent.saturating_add(spent);
                    last.over = last.over.saturating_add(cut.over);
                }
                _ => key.pending.push(Pending {
                    published: None,
                    spent,
                    over: cut.over,
                }),
            }
        }
        for key in self.keys.values_mut() {
            key.demand = averaged(
                self.has_windows,
                key.demand,
                key.spent.saturating_add(key.refused) as f64,
            );
        }
    }

    /// Ends all publications of buckets, since this host is without the others. Returns the units of each key that they may have
    /// passed, out of `hosts`, and that were not charged for them.
    pub fn part(&mut self, hosts: u64) -> Vec<(u64, u64)> {
        let keys = std::mem::take(&mut self.keys);
        let parts = keys
            .iter()
            .map(|(number, key)| (*number, key.others_part(hosts)));
        parts.filter(|(_, units)| *units > 0).collect()
    }

    /// The demand of each key to publish, in units a sync, and its number.
    pub fn busy(&self) -> impl Iterator<Item = (f64, u64)> + '_ {
        self.keys
            .iter()
            .filter(|(_, key)| key.is_published())
            .map(|(number, key)| (key.demand, *number))
    }

    /// The entries of keys that have room, by their demand and number; of the others, each host passes its part.
    /// `sequence` is the publication's, and `sync` is this host's, in microseconds.
    pub fn publish(
        &mut self,
        has_room: impl Fn(f64, u64) -> bool,
        sequence: u64,
        sync: u64,
        (hosts, rank): (u64, u64),
    ) -> Vec<Entry> {
        let (has_windows, mut entries) = (self.has_windows, Vec::new());
        self.parted.clear();
        self.keys.retain(|number, key| {
            if !key.is_published() {
                // All hosts have received its units, and forget it as well.
                key.end();
                return true;
            }
            key.is_parted = !has_room(key.demand, *number);
            if key.is_parted {
                let charge = if has_windows {
                    0
                } else {
                    key.others_part(hosts)
                };
                self.parted.push(Adjustment {
                    charge,
                    ..Adjustment::parted(*number, PeerConsumption::new(hosts as f64, rank))
                });
                // Only the store of states keeps it, unless others publish it.
                key.end();
                key.idle = u32::MAX;
                return !key.others.is_empty();
            }
            let demand = if has_windows {
                key.claim.publish(key.demand)
            } else {
                key.demand
            };
            let born = *key.born.get_or_insert(sequence);
            entries.push(Entry {
                key: *number,
                sum: key.sum,
                born,
                spent: key.spent,
                used: key.used,
                demand: rate_of(demand, sync),
            });
            true
        });
        self.published += entries.len() as u64;
        self.local = self.parted.len();
        entries
    }

    /// Records that a host's publication is read, with or without keys of this limit.
    pub fn meet(&mut self, host: HostNumber, sequence: u64) {
        self.met.entry(host).or_insert(sequence);
    }

    /// Whether another host with a lower number publishes the key.
    #[must_use]
    pub fn is_published_before(&self, key: u64, me: HostNumber) -> bool {
        let key = self.keys.get(&key);
        key.is_some_and(|key| key.others().any(|(host, _)| *host < me))
    }

    /// Adds another host's publication. Its units passed between two instants of the cluster's clock, in nanoseconds.
    pub fn receive(
        &mut self,
        host: HostNumber,
        newest: Newest,
        (since, until): (u64, u64),
        entries: &[Entry],
    ) {
        let first = self.met.get(&host).copied().unwrap_or(newest.sequence);
        for entry in entries {
            let key = self.keys.entry(entry.key).or_insert_with(|| Key {
                idle: u32::MAX,
                ..Key::default()
            });
            let before = key.others.get(&host);
            let news = match before {
                Some(before) if entry.born == before.born => entry.sum.saturating_sub(before.sum),
                // All units are new to a host that has been there.
                _ if entry.born >= first => entry.sum,
                // This host is new, or was away: what all have used counts here as well. The first of several counts
                // the others' units, except the newest.
                _ => {
                    let is_first = key.at_least == 0;
                    key.at_least = key.at_least.max(entry.used);
                    if is_first && entry.used > 0 {
                        0
                    } else {
                        entry.spent
                    }
                }
            };
            // Units of windows that have ended count no more.
            let news = if self.has_windows {
                news.min(entry.used)
            } else {
                news
            };
            let demand = entry.demand as f64 * newest.sync as f64 / RATE_UNITS;
            let unreceived = demand / newest.syncs.min(1.0);
            let Entry { sum, born, .. } = *entry;
            key.others.insert(
                host,
                Other {
                    sum,
                    born,
                    demand,
                    unreceived,
                    sequence: newest.sequence,
                    is_current: true,
                    is_open: true,
                },
            );
            if news == 0 && key.at_least == 0 {
                continue;
            }
            key.charge = key.charge.saturating_add(news);
            // The refill since then has paid for some of the units. Charged later, the bucket would have been too full
            // to take that up.
            let at = if self.has_windows {
                key.charged_at.unwrap_or(0).max(until)
            } else {
                key.charged_at.unwrap_or(since).min(since)
            };
            key.charged_at = Some(at);
        }
    }

    /// Records that the other hosts no longer have this one's keys.
    pub fn return_from_absence(&mut self) {
        for key in self.keys.values_mut() {
            (key.is_received, key.last_peers) = (false, None);
        }
    }

    /// Removes hosts that have left, and resets the demand of keys that they no longer publish. Returns the keys that a
    /// host published last before it ended: it may not have written their use. `newest` is each host's last publication;
    /// `known` are the hosts that take part, `present` those that count, both in order.
    pub fn forget(
        &mut self,
        newest: &HashMap<HostNumber, Newest>,
        known: &[HostNumber],
        present: &[HostNumber],
    ) -> Vec<u64> {
        let mut orphaned = Vec::new();
        self.met.retain(|host, _| newest.contains_key(host));
        for (number, key) in &mut self.keys {
            let mut is_orphaned = false;
            key.others.retain(|host, other| {
                let Some(newest) = newest.get(host) else {
                    return false;
                };
                let is_last = newest.sequence == other.sequence;
                let is_known = known.binary_search(host).is_ok();
                is_orphaned |= is_last && other.is_open && !is_known;
                other.is_open = is_last && is_known;
                other.is_current = is_last && present.binary_search(host).is_ok();
                // A host that no longer publishes the key has had all its units received.
                is_last
            });
            if is_orphaned {
                orphaned.push(*number);
            }
        }
        orphaned
    }

    /// The adjustments of the keys whose peers' consumption has changed.
    pub fn adjust(&mut self, me: HostNumber, round: Round) -> Vec<Adjustment> {
        let has_windows = self.has_windows;
        let mut adjustments = Vec::new();
        self.keys.retain(|number, key| {
            let received = if has_windows {
                round.received
            } else {
                round.received_soon
            };
            let charge = key.offset();
            let (release, give_back, was_received) = key.acknowledge(round.now, received);
            if has_windows {
                key.claim.update(key.demand, round.now, round.received);
            }
            key.is_received =
                (key.is_received || was_received) && key.idle < FORGOTTEN && !key.is_parted;
            let is_hot = key.is_published() || key.others().next().is_some();
            let peers = key.peers(has_windows, me, round);
            let is_same = key.last_peers == Some(peers) && (is_hot || !key.was_hot);
            key.was_hot = is_hot;
            let charged_at = key.charged_at.take();
            let at_least = std::mem::take(&mut key.at_least);
            if is_same && charge == 0 && give_back == 0 && release == 0 && at_least == 0 {
                return is_hot || !key.others.is_empty();
            }
            key.last_peers = Some(peers);
            adjustments.push(Adjustment {
                key: *number,
                charge,
                give_back,
                at_least,
                charged_at,
                release,
                peers,
                is_hot,
                is_parted: key.is_parted,
                is_new: has_windows && !key.is_received && key.others().next().is_none(),
            });
            is_hot || !key.others.is_empty()
        });
        adjustments
    }
}

/// A demand in units a sync as it is published, in thousandths of a unit a second. `sync` is in microseconds.
fn rate_of(demand: f64, sync: u64) -> u64 {
    (demand * RATE_UNITS / sync.max(1) as f64).ceil() as u64
}

/// The demand in units a sync: an average of the previous one and the newest.
fn averaged(has_windows: bool, before: f64, newest_demand: f64) -> f64 {
    // Demand that moves to other hosts is detected sooner the larger it is. Windows return nothing, so they average.
    let many = if has_windows {
        0.0
    } else {
        1.0 - (-newest_demand.max(before) / MANY_UNITS).exp()
    };
    let newest = NEWEST + (NEWEST_OF_MANY - NEWEST) * many;
    newest * newest_demand + (1.0 - newest) * before
}

impl Key {
    /// Whether it is published: for some syncs, and until all hosts have received all units.
    fn is_published(&self) -> bool {
        self.idle <= LINGER || !self.pending.is_empty()
    }

    /// Ends its publication: the next one starts with a new sum.
    fn end(&mut self) {
        (self.sum, self.born, self.claim) = (0, None, Claim::default());
        self.pending.clear();
    }

    /// The other hosts' entries of the key.
    fn others(&self) -> impl Iterator<Item = (&HostNumber, &Other)> {
        self.others.iter().filter(|(_, other)| other.is_current)
    }

    /// Subtracts the others' units that were charged on their behalf; the oldest first. Returns the rest.
    fn offset(&mut self) -> u64 {
        let mut charge = std::mem::take(&mut self.charge);
        for pending in &mut self.pending {
            let known = pending.over.min(charge);
            pending.over -= known;
            charge -= known;
        }
        charge
    }

    /// Units to be charged to a bucket for the others: all that has passed without their publications could pass on each
    /// host.
    fn others_part(&self, hosts: u64) -> u64 {
        let missing = self.pending.iter().map(|pending| {
            let others = pending.spent.saturating_mul(hosts - 1);
            others.saturating_sub(pending.over)
        });
        missing.sum()
    }

    /// (units that all have received, other units charged on behalf of the others, whether there were any).
    fn acknowledge(&mut self, now: u64, received: u64) -> (u64, u64, bool) {
        let (mut release, mut over, mut was_received) = (0, 0, false);
        self.pending.retain_mut(|pending| {
            let published = *pending.published.get_or_insert(now);
            if published > received {
                return true;
            }
            was_received = true;
            release += pending.spent;
            over += pending.over;
            false
        });
        (release, over, was_received)
    }

    fn peers(&self, has_windows: bool, me: HostNumber, round: Round) -> PeerConsumption {
        if self.is_parted {
            return PeerConsumption::new(round.hosts as f64, round.rank);
        }
        let own = if has_windows {
            self.claim.demand()
        } else {
            self.demand
        };
        // A host with much more demand spends what remains: a host with little demand takes none of the last units.
        let is_larger = |other: &&Other| other.demand > LARGER * own;
        let larger: f64 = self
            .others()
            .map(|(_, other)| other)
            .filter(is_larger)
            .map(|other| UNRECEIVED_SYNCS * other.unreceived)
            .sum();
        if has_windows && !self.is_received {
            let part = if self.others().next().is_none() {
                1.0
            } else {
                NEWCOMERS
            };
            return PeerConsumption::new(part * round.hosts as f64, round.rank.max(larger as u64));
        }
        // In proportion to demand.
        let least = if has_windows { LEAST_PART } else { 0.0 };
        let part = |other: &Other| {
            if own > 0.0 {
                (other.demand / own).clamp(least, LARGEST_PART)
            } else if has_windows && other.demand > 0.0 {
                LARGEST_PART
            } else {
                1.0
            }
        };
        let factor = 1.0 + self.others().map(|(_, other)| part(other)).sum::<f64>();
        let before = |(host, other): &(&HostNumber, &Other)| **host < me && part(other) >= 0.5;
        let reserve = if has_windows {
            (self.others().filter(before).count() as u64).max(larger as u64)
        } else {
            0
        };
        // Averages change slightly with every sync; such changes are not worth a write.
        let factor = (factor * 16.0).round() / 16.0;
        if has_windows {
            return PeerConsumption::new(factor, reserve);
        }
        // Where this host's demand has grown, the others' has not. Each may pass one unit, however small its demand.
        let demand = UNRECEIVED_SYNCS
            * self
                .others()
                .map(|(_, other)| other.unreceived)
                .sum::<f64>();
        let most_others = (demand.ceil() as u64).max(self.others().count() as u64);
        // Small changes are not worth a write, either.
        PeerConsumption {
            most_others: most_others.checked_next_power_of_two().unwrap_or(u64::MAX),
            ..PeerConsumption::new(factor, reserve)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The memory that the agent predicts for each published key.
    #[test]
    fn a_key_fits_into_two_kibibytes() {
        // A hash map is at least 7/16 full. Vectors have room for four, and a tree for eleven.
        let record = (size_of::<(u64, Key)>() + 1) * 16 / 7;
        let publications = 4 * (size_of::<Pending>() + Claim::EACH);
        let others = 12 * (size_of::<HostNumber>() + size_of::<Other>());
        let all = record + publications + others;
        assert!(all <= 2048, "{all}");
    }
}
