//! A limit per key, for many keys and many threads, bounded in memory.
//!
//! Keys are spread over shards, each behind a lock of its own and small enough that going through all of it takes well
//! under a millisecond. A key is kept as a fingerprint of 64 bits under a secret of the process, so that its memory
//! does not depend on its length and nobody can aim at one shard. A state that has decayed is no state: it is forgotten
//! when its shard would otherwise grow, and by [`Store::sweep`], one shard at a time.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};
use std::time::Duration;

use common::rate_limiter::{Outcome, Policy};
use common::share::Share;

use super::fingerprint::Fingerprint;
use super::shard::{FIRST_SWEEP, Forgotten, Guard, Lock, Padded, Shard};
use super::tiers;
use crate::config::policy::OnFull;

/// Keys in a shard at the most, or about: going through them takes some tens of microseconds.
const SHARD_KEYS: usize = 4096;
/// A shard that is full of keys that live is not gone through again within this time.
const SWEEP_AGAIN_NANOSECONDS: u64 = 10_000_000;
/// A key that would begin with less than it has got back is remembered for this long after it is whole again.
const REMEMBERED_NANOSECONDS: u64 = 86_400_000_000_000;
/// When to come again if there is no room for a key.
const WHEN_FULL: Duration = Duration::from_secs(1);

/// One part in so many that the allocator may lose between blocks.
const ALLOCATOR: usize = 32;

/// Makes the next store's [`Store::id`].
static STORES: AtomicU64 = AtomicU64::new(0);

/// A limit with its tiers, for each of many keys.
#[derive(Debug)]
pub struct Store {
    /// Later stores have larger ones. Shards of several stores are held in the order of (id, shard).
    id: u64,
    tiers: Box<[Policy]>,
    /// The same for this host's share, if many hosts keep the limit together.
    shared: Option<RwLock<(Share, Arc<[Policy]>)>>,
    words: usize,
    shards: Box<[Padded<Shard>]>,
    capacity: usize,
    shard_capacity: usize,
    /// Keys in all shards.
    keys: AtomicUsize,
    /// The shard that is looked through next for a full store's newcomers.
    next_sweep: AtomicUsize,
    on_full: OnFull,
    overflow: Lock<Box<[u64]>>,
    /// The store that takes this one's place: the keys of shards that are closed are there.
    successor: OnceLock<Arc<Store>>,
}

impl Store {
    /// For at most `capacity` keys at a time.
    #[must_use]
    pub fn new(tiers: Vec<Policy>, capacity: usize, on_full: OnFull) -> Self {
        let words = tiers.iter().map(Policy::words).sum();
        let capacity = capacity.max(1);
        let (shards, shard_capacity) = Self::cut(capacity);
        Self {
            id: STORES.fetch_add(1, Ordering::Relaxed),
            tiers: tiers.into(),
            shared: None,
            words,
            shards: (0..shards).map(|_| Padded(Lock::new(Shard::new(words)))).collect(),
            capacity,
            shard_capacity,
            keys: AtomicUsize::new(0),
            next_sweep: AtomicUsize::new(0),
            on_full,
            overflow: Lock::new(vec![0; words].into()),
            successor: OnceLock::new(),
        }
    }

    /// Bytes that a store for so many keys never exceeds.
    #[must_use]
    pub fn most_bytes(tiers: &[Policy], capacity: usize) -> u64 {
        let words = tiers.iter().map(Policy::words).sum();
        let (shards, shard_capacity) = Self::cut(capacity);
        let tables = shards * (size_of::<Padded<Shard>>() + Shard::most_bytes(words, shard_capacity));
        // One shard at a time may be about to move into a larger table.
        let moving = Shard::most_bytes(words, shard_capacity) / 2;
        let bytes = tables + moving + capacity * Shard::state_bytes(words);
        (bytes + bytes / ALLOCATOR) as u64
    }

    /// Whether another store would be the same, but for the keys in it.
    #[must_use]
    pub fn is_as(&self, other: &Self) -> bool {
        let rest = |store: &Self| (store.capacity, store.on_full, store.shared.is_some());
        self.tiers == other.tiers && rest(self) == rest(other)
    }

    /// Moves every key to the store that takes this one's place: what it has used stays used, in proportion. Whoever
    /// decides by this store from then on decides by that one, a shard after another, so that every charge is in one of
    /// them.
    pub fn move_to(&self, next: &Arc<Self>, now: u64) {
        if let (Some(new), Some(old)) = (&next.shared, &self.shared) {
            // The share of the policy before holds until there is another.
            let share = old.read().unwrap_or_else(PoisonError::into_inner).0;
            *new.write().unwrap_or_else(PoisonError::into_inner) = (share, next.at(share));
        }
        if self.successor.set(Arc::clone(next)).is_err() {
            // It has been moved before.
            return;
        }
        for shard in &self.shards {
            let mut shard = shard.0.lock();
            shard.each(|key, words| {
                let carried = tiers::carried(&self.tiers, words, &next.tiers, now);
                // The later store's shards are held after this one's, as everywhere.
                next.hold(key).put(key, &carried);
            });
            self.keys.fetch_sub(shard.len(), Ordering::Relaxed);
            let moved = shard.close();
            drop(shard);
            drop(moved);
        }
    }

    /// (shards, the most keys in each) of a store for so many keys. Keys are spread by chance: a shard has room for six
    /// deviations more than its part, so that a store is full before a shard is.
    fn cut(capacity: usize) -> (usize, usize) {
        let capacity = capacity.max(1);
        let shards = capacity.div_ceil(SHARD_KEYS).next_power_of_two().max(capacity.min(64 * 64) / 64).max(1);
        let shards = shards.next_power_of_two();
        let part = capacity.div_ceil(shards);
        (shards, (part + 6 * (part.isqrt() + 1)).min(capacity))
    }

    /// For a limit that many hosts keep together, of which this one has all until it is told of its share.
    #[must_use]
    pub fn shared(mut self) -> Self {
        self.shared = Some(RwLock::new((Share::WHOLE, self.at(Share::WHOLE))));
        self
    }

    /// What this host has of the limit from now on; states go on. For stores that are shared.
    pub fn set_share(&self, share: Share) {
        if let Some(shared) = &self.shared {
            let tiers = self.at(share);
            *shared.write().unwrap_or_else(PoisonError::into_inner) = (share, tiers);
        }
    }

    /// What this host has of the limit, if it is shared.
    #[must_use]
    pub fn share(&self) -> Option<Share> {
        Some(self.shared.as_ref()?.read().unwrap_or_else(PoisonError::into_inner).0)
    }

    /// The rates of a host that has this share.
    fn at(&self, share: Share) -> Arc<[Policy]> {
        self.tiers.iter().map(|tier| tier.at_share(share)).collect()
    }

    /// The rates in force on this host.
    #[inline]
    fn in_force(&self) -> InForce<'_> {
        match &self.shared {
            None => InForce::Own(&self.tiers),
            Some(shared) => InForce::Shared(Arc::clone(&shared.read().unwrap_or_else(PoisonError::into_inner).1)),
        }
    }

    /// The rates that a cost has to conform to, all hosts together.
    #[must_use]
    pub fn tiers(&self) -> &[Policy] {
        &self.tiers
    }

    /// Keys that are remembered.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed) + self.successor.get().map_or(0, |next| next.keys())
    }

    /// Charges `cost` if it passes, without asking what is left: the fastest way.
    #[inline]
    pub fn allowed(&self, key: Fingerprint, now: u64, cost: u64) -> bool {
        let tiers = self.in_force();
        if let Some(words) = self.shards[self.shard_of(key)].0.lock().get_mut(key) {
            return tiers::charge(&tiers, words, now, cost);
        }
        self.allowed_anew(key, now, cost)
    }

    /// The same for a key that may have no state yet.
    #[cold]
    fn allowed_anew(&self, key: Fingerprint, now: u64, cost: u64) -> bool {
        let mut held = self.hold(key);
        let charged = held.with_state(key, now, |tiers, words| tiers::charge(tiers, words, now, cost));
        charged.unwrap_or_else(|| held.when_full(now, cost).allowed)
    }

    /// Charges `cost` if it passes, and tells what is left.
    pub fn decide(&self, key: Fingerprint, now: u64, cost: u64) -> Outcome {
        self.hold(key).decide(key, now, cost)
    }

    /// What `decide` would say, charging nothing.
    #[must_use]
    pub fn peek(&self, key: Fingerprint, now: u64, cost: u64) -> Outcome {
        self.hold(key).peek(key, now, cost)
    }

    /// Forgets one key: it begins anew.
    pub fn forget(&self, key: Fingerprint) {
        self.hold(key).restore(key, None);
    }

    /// Forgets every key; how many there were.
    pub fn clear(&self) -> usize {
        let clear = |shard: &Padded<Shard>| {
            let mut shard = shard.0.lock();
            let keys = shard.len();
            shard.retain(|_| false);
            self.keys.fetch_sub(keys, Ordering::Relaxed);
            keys
        };
        // Keys that are on their way to the next store are found here or there.
        self.shards.iter().map(clear).sum::<usize>() + self.successor.get().map_or(0, |next| next.clear())
    }

    /// Forgets what has decayed, a shard after another, each held for some tens of microseconds.
    pub fn sweep(&self, now: u64) {
        for shard in 0..self.shards() {
            drop(self.sweep_shard(shard, now));
        }
    }

    /// How many shards there are.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Forgets what has decayed in one shard; what is handed over is dropped when nobody waits.
    pub fn sweep_shard(&self, shard: usize, now: u64) -> Forgotten {
        let Some(shard) = self.shards.get(shard) else { return Forgotten::default() };
        let mut shard = shard.0.lock();
        self.forget_decayed(&mut shard, now);
        shard.shrink()
    }

    /// Which shard a key is in.
    #[inline]
    #[must_use]
    pub fn shard_of(&self, key: Fingerprint) -> usize {
        // The table inside takes the lower half.
        (key.word() >> 32) as usize & (self.shards.len() - 1)
    }

    /// Holds the shard of a key, for several steps that belong together.
    #[must_use]
    pub fn hold(&self, key: Fingerprint) -> Held<'_> {
        let mut store = self;
        loop {
            match store.hold_here(key) {
                Ok(held) => return held,
                Err(next) => store = next,
            }
        }
    }

    /// The place of a key's shard in the order in which shards are held, in the store where the key is by now.
    pub(super) fn place(&self, key: Fingerprint) -> (Place, &Self) {
        let store = self.hold(key).store;
        (Place { store: store.id, shard: store.shard_of(key) }, store)
    }

    /// As `hold`, in this store alone; or the store that the key has been moved to.
    pub(super) fn hold_here(&self, key: Fingerprint) -> Result<Held<'_>, &Self> {
        let shard = self.shards[self.shard_of(key)].0.lock();
        match self.successor.get() {
            Some(next) if shard.is_closed() => Err(next),
            _ => Ok(Held { store: self, tiers: self.in_force(), shard }),
        }
    }

    fn forget_decayed(&self, shard: &mut Shard, now: u64) {
        let opens_short = self.tiers.iter().any(Policy::opens_short);
        // Such a key would begin anew with less than it has.
        let since = if opens_short { now.saturating_sub(REMEMBERED_NANOSECONDS) } else { now };
        let before = shard.len();
        shard.retain(|words| tiers::is_alive(&self.tiers, words, since));
        if shard.len() >= self.shard_capacity || self.is_full() {
            shard.retain(|words| tiers::is_alive(&self.tiers, words, now));
        }
        self.keys.fetch_sub(before - shard.len(), Ordering::Relaxed);
        shard.sweep_at = (2 * shard.len()).max(FIRST_SWEEP).min(self.shard_capacity);
        shard.swept = now;
    }

    fn is_full(&self) -> bool {
        self.keys.load(Ordering::Relaxed) >= self.capacity
    }

    /// Takes a place for one key more, if there is one.
    fn take_place(&self) -> bool {
        let is_free = self.keys.fetch_add(1, Ordering::Relaxed) < self.capacity;
        if !is_free {
            self.keys.fetch_sub(1, Ordering::Relaxed);
        }
        is_free
    }

    /// Looks for decayed keys in some other shard, unless somebody holds it.
    fn forget_elsewhere(&self, now: u64) {
        let shard = self.next_sweep.fetch_add(1, Ordering::Relaxed) & (self.shards.len() - 1);
        // Not waited for: whoever calls holds a shard already.
        if let Some(mut shard) = self.shards[shard].0.try_lock()
            && now.saturating_sub(shard.swept) >= SWEEP_AGAIN_NANOSECONDS
        {
            self.forget_decayed(&mut shard, now);
        }
    }
}

/// A shard's place in the order in which shards are held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    store: u64,
    shard: usize,
}

/// The rates in force: the store's own, or those of this host's share.
#[derive(Debug)]
enum InForce<'s> {
    Own(&'s [Policy]),
    Shared(Arc<[Policy]>),
}

impl std::ops::Deref for InForce<'_> {
    type Target = [Policy];

    #[inline]
    fn deref(&self) -> &[Policy] {
        match self {
            Self::Own(tiers) => tiers,
            Self::Shared(tiers) => tiers,
        }
    }
}

/// What will become of a key if nothing is charged but the costs that are given.
#[derive(Debug)]
pub struct Forecast {
    tiers: Vec<Policy>,
    words: Box<[u64]>,
    at: u64,
}

impl Forecast {
    /// Charges a cost as soon as it conforms, by `until` at the latest, and returns when. Otherwise returns when it
    /// would have conformed, and charges nothing.
    ///
    /// # Errors
    ///
    /// When that is too late, or never.
    pub fn passes_at(&mut self, cost: u64, until: u64) -> Result<u64, Option<u64>> {
        let wait = tiers::wait(&self.tiers, &self.words, self.at, cost).ok_or(None)?;
        let at = self.at.saturating_add(wait.as_nanos() as u64);
        if at > until {
            return Err(Some(at));
        }
        if !tiers::charge(&self.tiers, &mut self.words, at, cost) {
            return Err(None);
        }
        self.at = at;
        Ok(at)
    }
}

/// A shard that is held: nobody else decides on its keys meanwhile.
#[derive(Debug)]
pub struct Held<'s> {
    store: &'s Store,
    tiers: InForce<'s>,
    shard: Guard<'s, Shard>,
}

impl Held<'_> {
    /// As [`Store::decide`].
    pub fn decide(&mut self, key: Fingerprint, now: u64, cost: u64) -> Outcome {
        let decided = self.with_state(key, now, |tiers, words| tiers::decide(tiers, words, now, cost));
        decided.unwrap_or_else(|| self.when_full(now, cost))
    }

    /// As [`Store::peek`].
    #[must_use]
    pub fn peek(&self, key: Fingerprint, now: u64, cost: u64) -> Outcome {
        let tiers: &[Policy] = &self.tiers;
        match self.shard.get(key) {
            Some(words) => tiers::peek(tiers, words, now, cost),
            None => {
                let mut words = vec![0; self.store.words];
                tiers::open(tiers, &mut words, now);
                tiers::peek(tiers, &words, now, cost)
            }
        }
    }

    /// A copy of a key's state.
    #[must_use]
    pub fn save(&self, key: Fingerprint) -> Option<Box<[u64]>> {
        self.shard.get(key).map(Into::into)
    }

    /// When costs will pass, one after another and nothing else; `None` if the key has no state.
    #[must_use]
    pub fn forecast(&self, key: Fingerprint, now: u64) -> Option<Forecast> {
        Some(Forecast { tiers: self.tiers.to_vec(), words: self.save(key)?, at: now })
    }

    /// Puts a copy back.
    pub fn restore(&mut self, key: Fingerprint, saved: Option<&[u64]>) {
        let before = self.shard.len();
        match saved {
            Some(words) => self.shard.insert(key, words),
            None => self.shard.remove(key),
        }
        let (after, keys) = (self.shard.len(), &self.store.keys);
        if after > before {
            keys.fetch_add(after - before, Ordering::Relaxed);
        } else {
            keys.fetch_sub(before - after, Ordering::Relaxed);
        }
    }

    /// Sets the state of a key that comes from elsewhere, if there is room for it.
    fn put(&mut self, key: Fingerprint, words: &[u64]) {
        if self.shard.get(key).is_none() && self.shard.len() < self.store.shard_capacity && self.store.take_place() {
            self.shard.insert(key, words);
        }
    }

    /// Works on a key's state, a new one if need be; `None` if there is no room for it.
    fn with_state<T>(
        &mut self,
        key: Fingerprint,
        now: u64,
        work: impl FnOnce(&[Policy], &mut [u64]) -> T,
    ) -> Option<T> {
        let (tiers, store): (&[Policy], _) = (&self.tiers, self.store);
        if let Some(words) = self.shard.get_mut(key) {
            return Some(work(tiers, words));
        }
        let is_full = self.shard.len() >= store.shard_capacity || store.is_full();
        let may_sweep = !is_full || now.saturating_sub(self.shard.swept) >= SWEEP_AGAIN_NANOSECONDS;
        if (is_full || self.shard.len() >= self.shard.sweep_at) && may_sweep {
            store.forget_decayed(&mut self.shard, now);
        }
        if store.is_full() {
            store.forget_elsewhere(now);
        }
        if self.shard.len() >= store.shard_capacity || !store.take_place() {
            return None;
        }
        let mut short = [0; 2];
        let mut long = Vec::new();
        let words = match short.get_mut(..store.words) {
            Some(words) => words,
            None => {
                long.resize(store.words, 0);
                &mut long[..]
            }
        };
        tiers::open(tiers, words, now);
        let done = work(tiers, words);
        self.shard.insert(key, words);
        Some(done)
    }

    fn when_full(&self, now: u64, cost: u64) -> Outcome {
        let most = tiers::most(&self.tiers);
        match self.store.on_full {
            OnFull::Pass => Outcome {
                allowed: true,
                remaining: most,
                retry_after: Some(Duration::ZERO),
                reset_after: Duration::ZERO,
            },
            OnFull::Throttle => {
                Outcome { allowed: false, remaining: 0, retry_after: Some(WHEN_FULL), reset_after: WHEN_FULL }
            }
            OnFull::Share => {
                let mut words = self.store.overflow.lock();
                if !tiers::is_alive(&self.tiers, &words, now) {
                    tiers::open(&self.tiers, &mut words, now);
                }
                tiers::decide(&self.tiers, &mut words, now, cost)
            }
        }
    }
}
