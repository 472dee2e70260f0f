//! The buckets of all proxies: the demand of each proxy, and the memory of all.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The most bytes of all buckets.
const MOST_BYTES: usize = 64 << 20;
/// The bytes of a bucket besides its name: its place in two tables, and the reservations of two grants.
const BUCKET_BYTES: usize = 1_024;
/// The bytes of an entry besides its text.
const ENTRY_BYTES: usize = 96;
/// The most streams: each may have a message that is being received.
const MOST_STREAMS: usize = 64;

/// The identity of a bucket: its domain and its entries by name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Name(Arc<(String, Entries)>);

/// Sorted.
type Entries = Vec<(String, Vec<u8>)>;

impl Name {
    pub fn new(domain: &str, entries: &HashMap<String, Vec<u8>>) -> Self {
        let pairs = entries.iter();
        let mut entries: Entries = pairs
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        entries.sort_unstable();
        Self(Arc::new((domain.to_owned(), entries)))
    }

    fn bytes(&self) -> usize {
        let (domain, entries) = &*self.0;
        let entries = entries.iter();
        let entries = entries.map(|(name, value)| ENTRY_BYTES + name.len() + value.len());
        BUCKET_BYTES + domain.len() + entries.sum::<usize>()
    }
}

/// The units for all proxies of a bucket.
#[derive(Clone, Copy, Debug)]
pub struct Pool {
    /// The most that they are granted.
    pub units: u64,
    /// Those of the limit.
    pub remaining: u64,
    pub now: u64,
}

/// A proxy: the number of its stream.
pub type Proxy = u64;

/// The last report of a proxy, until its assignment ends: also of one whose stream has ended.
#[derive(Clone, Copy, Debug, Default)]
pub struct Demand {
    pub requests: u64,
    /// The units that the proxy may have.
    pub held: u64,
    pub until: u64,
    pub has_ended: bool,
}

#[derive(Debug, Default)]
struct Open {
    demands: HashMap<Name, HashMap<Proxy, Demand>>,
    bytes: usize,
    streams: usize,
}

/// Shared by all streams and successive engines.
#[derive(Debug, Default)]
pub struct Buckets {
    open: Mutex<Open>,
    proxies: AtomicU64,
    without_room: AtomicU64,
    refused_streams: AtomicU64,
}

impl Buckets {
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of one more stream; `None` if there are too many.
    pub fn open(&self) -> Option<Proxy> {
        let mut open = self.lock();
        if open.streams == MOST_STREAMS {
            self.refuse_stream();
            return None;
        }
        open.streams += 1;
        Some(self.proxies.fetch_add(1, Ordering::Relaxed))
    }

    /// Counts a stream that is one too many.
    pub fn refuse_stream(&self) {
        self.refused_streams.fetch_add(1, Ordering::Relaxed);
    }

    /// Ends a stream.
    pub fn close(&self) {
        self.lock().streams -= 1;
    }

    /// Adds a proxy to a bucket. Returns whether there is room.
    pub fn enter(&self, name: &Name, proxy: Proxy) -> bool {
        let mut open = self.lock();
        let bytes = open.bytes + name.bytes();
        if bytes > MOST_BYTES {
            self.without_room.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        open.bytes = bytes;
        let demands = open.demands.entry(name.clone()).or_default();
        let demand = Demand {
            until: u64::MAX,
            ..Demand::default()
        };
        demands.insert(proxy, demand);
        true
    }

    /// Removes a proxy that has no units of the bucket.
    pub fn leave(&self, name: &Name, proxy: Proxy) {
        let mut open = self.lock();
        let Open { demands, bytes, .. } = &mut *open;
        if let Entry::Occupied(mut proxies) = demands.entry(name.clone())
            && proxies.get_mut().remove(&proxy).is_some()
        {
            *bytes -= name.bytes();
            if proxies.get().is_empty() {
                proxies.remove();
            }
        }
    }

    /// Ends a stream's bucket. Units that its proxy may have count until the assignment ends.
    pub fn end(&self, name: &Name, proxy: Proxy) {
        let mut open = self.lock();
        let proxies = open.demands.get_mut(name);
        match proxies.and_then(|proxies| proxies.get_mut(&proxy)) {
            Some(demand) if demand.held > 0 => {
                (demand.requests, demand.has_ended) = (0, true);
            }
            _ => {
                drop(open);
                self.leave(name, proxy);
            }
        }
    }

    /// Removes the demands of ended streams whose assignment has ended.
    pub fn sweep(&self, now: u64) {
        let mut open = self.lock();
        let Open { demands, bytes, .. } = &mut *open;
        demands.retain(|name, proxies| {
            let before = proxies.len();
            proxies.retain(|_, demand| !demand.has_ended || now < demand.until);
            *bytes -= (before - proxies.len()) * name.bytes();
            !proxies.is_empty()
        });
    }

    /// Sets the demand of a proxy.
    pub fn set_demand(&self, name: &Name, proxy: Proxy, demand: Demand) {
        if let Some(demands) = self.lock().demands.get_mut(name)
            && let Some(present) = demands.get_mut(&proxy)
        {
            *present = demand;
        }
    }

    /// The most that a proxy may be granted, at least one: its max-min fair part if it takes all that it can have. All proxies
    /// together have up to `units` of those that remain, and no more than twice `units`, with the `own` ones of this proxy.
    pub fn part(&self, name: &Name, proxy: Proxy, own: u64, pool: Pool) -> u64 {
        let Pool {
            units,
            remaining,
            now,
        } = pool;
        let open = self.lock();
        let demands = open.demands.get(name).into_iter().flatten();
        let others: Vec<Demand> = demands
            .filter(|(other, demand)| **other != proxy && now < demand.until)
            .map(|(_, demand)| *demand)
            .collect();
        let held: u64 = others.iter().map(|other| other.held).sum();
        let mut demands: Vec<u64> = others
            .iter()
            .map(|other| other.requests.max(other.held))
            .collect();
        demands.sort_unstable();
        let in_all = units
            .saturating_mul(2)
            .saturating_sub(held.saturating_add(own));
        // The others have some of what remained a moment ago.
        let units = units.min(remaining.saturating_add(held));
        fair_part(&demands, units).min(in_all).max(1)
    }

    /// Notes for the operator, if there was no room.
    pub fn full_notes(&self) -> impl Iterator<Item = String> {
        let count =
            |counter: &AtomicU64| Some(counter.load(Ordering::Relaxed)).filter(|count| *count > 0);
        let buckets = count(&self.without_room).map(|count| {
            format!(
                "no room for {count} buckets of quota streams so far: their requests are charged, and no_assignment_behavior of Envoy decides while their limit has units; use fewer entries in bucket_id_builder"
            )
        });
        let streams = count(&self.refused_streams).map(|count| {
            format!(
                "refused {count} quota streams so far: {MOST_STREAMS} are open, or too many on one connection; no_assignment_behavior of Envoy decides without one"
            )
        });
        buckets.into_iter().chain(streams)
    }
}

/// The max-min fair part of a proxy without bound beside these demands, in ascending order; rounded up, so that each has
/// some.
fn fair_part(others: &[u64], units: u64) -> u64 {
    let (mut left, mut proxies) = (units, others.len() as u64 + 1);
    for demand in others {
        if *demand > left / proxies {
            break;
        }
        (left, proxies) = (left - demand, proxies - 1);
    }
    left.div_ceil(proxies)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_max_min_fair() {
        for (others, units, part) in [
            (&[][..], 100, 100),
            (&[0], 100, 100),
            (&[30], 100, 70),
            (&[1_000], 100, 50),
            (&[10, 1_000], 100, 45),
            (&[10, 20, 1_000, 2_000], 100, 24),
            (&[1_000; 9], 5, 1),
        ] {
            assert_eq!(fair_part(others, units), part, "{others:?} of {units}");
        }
    }
}
