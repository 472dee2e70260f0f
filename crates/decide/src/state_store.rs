//! A limit per key, for many keys and threads, with bounded memory.
//!
//! Keys are spread over shards, each with its own lock and small enough to scan in well under a millisecond. A key is
//! stored as a 64-bit fingerprint with a secret: its memory does not depend on its length, and clients cannot aim at
//! one shard. A decayed state equals no state: it is removed when its shard would otherwise grow, and by
//! [`StateStore::sweep`], one shard at a time.

use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock};

use common::rate_limiter::{Outcome, Policy};
use common::share::Share;
use config::policy::OnFull;

use super::account::Account;
use super::fingerprint::Fingerprint;
use super::keyed::Keyed;
use super::overflow::Overflow;
use super::shard::{FIRST_SWEEP, Forgotten, Guard, Lock, Padded, Shard};
use super::tiers::{self, Tiers};

/// The approximate maximum of keys in a shard: scanning them takes some tens of microseconds.
const SHARD_KEYS: usize = 4096;
/// The shortest time between two scans of a shard that is full of live keys.
pub(super) const SWEEP_AGAIN_NANOSECONDS: u64 = 10_000_000;
/// A key that would start with less than it has is kept for this long after it is full again.
const REMEMBERED_NANOSECONDS: u64 = 86_400_000_000_000;
/// The allocator may lose 1/`ALLOCATOR` of the memory between blocks.
const ALLOCATOR: usize = 32;

/// The next store's [`StateStore::id`].
static STORES: AtomicU64 = AtomicU64::new(0);

/// A limit with its tiers, for each of many keys.
#[derive(Debug)]
pub struct StateStore {
    /// Increases with each store. Shards of several stores are locked in the order of (id, shard).
    id: u64,
    tiers: Tiers,
    /// The tiers for this host's share, if several hosts share the limit.
    shared: Option<RwLock<(Share, Arc<Tiers>)>>,
    /// Of an elastic limit.
    elastic: Option<Elastic>,
    /// The other hosts, for a limit with `cluster = "keys"`.
    pub(super) keyed: Option<Keyed>,
    pub(super) words: usize,
    shards: Box<[Padded<Shard>]>,
    capacity: usize,
    pub(super) shard_capacity: usize,
    /// The number of keys in all shards.
    pub(super) keys: AtomicUsize,
    /// The next shard to scan when a full store needs room.
    next_sweep: AtomicUsize,
    pub(super) on_full: OnFull,
    pub(super) overflow: Overflow,
    /// Decisions about new keys without room.
    pub(super) without_room: AtomicU64,
    /// The store that replaces this one: it has the keys of closed shards.
    pub(super) successor: OnceLock<Arc<StateStore>>,
}

impl StateStore {
    /// For at most `capacity` keys.
    #[must_use]
    pub fn new(tiers: impl Into<Tiers>, capacity: usize, on_full: OnFull) -> Self {
        let tiers = tiers.into();
        let words = tiers.iter().map(Policy::words).sum();
        let capacity = capacity.max(1);
        let (shards, shard_capacity) = Self::split(capacity);
        Self {
            id: STORES.fetch_add(1, Ordering::Relaxed),
            tiers,
            shared: None,
            elastic: None,
            keyed: None,
            words,
            shards: (0..shards)
                .map(|_| Padded(Lock::new(Shard::new(words))))
                .collect(),
            capacity,
            shard_capacity,
            keys: AtomicUsize::new(0),
            next_sweep: AtomicUsize::new(0),
            on_full,
            overflow: Overflow::new(words),
            without_room: AtomicU64::new(0),
            successor: OnceLock::new(),
        }
    }

    /// The most bytes of a store with this capacity.
    #[must_use]
    pub fn most_bytes(tiers: &[Policy], capacity: usize) -> u64 {
        let words = tiers.iter().map(Policy::words).sum();
        let (shards, shard_capacity) = Self::split(capacity);
        let tables =
            shards * (size_of::<Padded<Shard>>() + Shard::most_bytes(words, shard_capacity));
        // One shard at a time may be growing into a larger table.
        let moving = Shard::most_bytes(words, shard_capacity) / 5 * 4;
        let bytes = tables + moving + capacity * Shard::state_bytes(words);
        (bytes + bytes / ALLOCATOR) as u64
    }

    /// The most bytes of the accounts, if hosts exchange the keys' consumption.
    #[must_use]
    pub const fn most_account_bytes(capacity: usize) -> u64 {
        // A hash map is at least 7/16 full after it has grown, and has one extra byte per entry.
        let entries = (size_of::<(Fingerprint, Account)>() + 1) + (size_of::<Fingerprint>() + 1);
        (capacity * entries * 16 / 7) as u64
    }

    /// Whether another store is equal except for its keys.
    #[must_use]
    pub fn has_same_settings(&self, other: &Self) -> bool {
        let rest = |store: &Self| {
            let together = (
                store.shared.is_some(),
                store.keyed.as_ref().map(|keyed| keyed.sync),
            );
            (
                store.capacity,
                store.on_full,
                store.elastic.is_some(),
                together,
            )
        };
        self.tiers == other.tiers && rest(self) == rest(other)
    }

    /// Moves every key to the store that replaces this one, with its used units. Callers that still use this store
    /// are redirected shard by shard, so that every charge is in exactly one of the two.
    pub fn move_to(&self, next: &Arc<Self>, now: u64) {
        let without_room = self.without_room.load(Ordering::Relaxed);
        next.without_room.fetch_add(without_room, Ordering::Relaxed);
        if let (Some(new), Some(old)) = (&next.keyed, &self.keyed) {
            new.follow(old);
        }
        let now = next.instant(now);
        if let (Some(new), Some(old)) = (&next.shared, &self.shared) {
            // The previous policy's share applies until the next grant.
            let share = old.read().unwrap_or_else(PoisonError::into_inner).0;
            *new.write().unwrap_or_else(PoisonError::into_inner) = (share, next.at(share));
        }
        if self.successor.set(Arc::clone(next)).is_err() {
            // The store has been moved already.
            return;
        }
        self.move_overflow(next, now);
        for shard in &self.shards {
            let mut shard = shard.0.lock();
            shard.each(|key, words| {
                let carried = tiers::carried(&self.tiers, words, &next.tiers, now);
                // The later store's shards are locked after this one's, as everywhere.
                let mut held = next.lock(key);
                held.put(key, &carried);
                if shard.received.contains(&key) {
                    held.shard.received.insert(key);
                }
                if let Some(account) = shard.accounts.get(&key) {
                    held.shard.accounts.insert(key, *account);
                }
            });
            self.keys.fetch_sub(shard.len(), Ordering::Relaxed);
            let moved = shard.close();
            drop(shard);
            drop(moved);
        }
    }

    /// (shards, the most keys in each). Keys are spread randomly: a shard has room for six standard deviations more
    /// than its part, so that the store fills up before a shard does.
    fn split(capacity: usize) -> (usize, usize) {
        let capacity = capacity.max(1);
        let shards = capacity
            .div_ceil(SHARD_KEYS)
            .next_power_of_two()
            .max(capacity.min(64 * 64) / 64)
            .max(1);
        let shards = shards.next_power_of_two();
        let part = capacity.div_ceil(shards);
        (shards, (part + 6 * (part.isqrt() + 1)).min(capacity))
    }

    /// For a shared limit; this host has the whole limit until its first share.
    #[must_use]
    pub fn shared(mut self) -> Self {
        self.shared = Some(RwLock::new((Share::WHOLE, self.at(Share::WHOLE))));
        self
    }

    /// For an elastic limit, of which nothing passes above it while the host has no room.
    #[must_use]
    pub fn elastic(mut self, has_room: Arc<AtomicBool>) -> Self {
        self.elastic = Some(Elastic {
            without_room: self.tiers.hard(),
            has_room,
        });
        self
    }

    /// Sets this host's share of a shared limit; states stay.
    pub fn set_share(&self, share: Share) {
        if let Some(shared) = &self.shared {
            let tiers = self.at(share);
            *shared.write().unwrap_or_else(PoisonError::into_inner) = (share, tiers);
        }
    }

    /// This host's share, if the limit is shared.
    #[must_use]
    pub fn share(&self) -> Option<Share> {
        Some(
            self.shared
                .as_ref()?
                .read()
                .unwrap_or_else(PoisonError::into_inner)
                .0,
        )
    }

    /// The tiers for a share.
    fn at(&self, share: Share) -> Arc<Tiers> {
        Arc::new(self.tiers.map(|tier| tier.at_share(share)))
    }

    /// The rates in effect on this host.
    #[inline]
    pub(super) fn in_effect(&self) -> Rates<'_> {
        match &self.shared {
            None => Rates::Own(match &self.elastic {
                Some(elastic) if !elastic.has_room.load(Ordering::Relaxed) => &elastic.without_room,
                _ => &self.tiers,
            }),
            Some(shared) => Rates::Shared(Arc::clone(
                &shared.read().unwrap_or_else(PoisonError::into_inner).1,
            )),
        }
    }

    /// Visits every key whose allowance is not full within `least` nanoseconds, with its state and that time. Each
    /// shard is locked while its keys are copied, for some tens of microseconds.
    pub(super) fn each_slow(
        &self,
        now: u64,
        least: u64,
        mut look: impl FnMut(Fingerprint, &[u64], u64),
    ) {
        let each = 1 + self.words;
        let mut copied = Vec::new();
        for shard in &self.shards {
            let keys = shard.0.lock().len();
            copied.clear();
            copied.reserve(keys * each);
            // No allocation under the lock: a key that is added meanwhile is in the next pass.
            shard.0.lock().each(|key, words| {
                if copied.capacity() - copied.len() >= each {
                    copied.push(key.word());
                    copied.extend(words);
                }
            });
            let now = self.instant(now);
            for key in copied.chunks_exact(each) {
                let Some((fingerprint, words)) = key.split_first() else {
                    continue;
                };
                let life = tiers::reset(&self.tiers, words, now);
                if life >= least {
                    look(Fingerprint::of_word(*fingerprint), words, life);
                }
            }
        }
    }

    /// Sets the state of a key from an earlier agent, if there is room for it. `then` is the present on the clock of
    /// `words`.
    pub(super) fn take_up(&self, key: Fingerprint, words: &[u64], then: u64, now: u64) {
        if then == now {
            self.lock(key).put(key, words);
        } else {
            self.lock(key)
                .put(key, &tiers::rebased(&self.tiers, words, then, now));
        }
    }

    /// The same for a key of the cluster whose use the other hosts have received, if `is_received`. `ahead` is how far
    /// the cluster's clock is ahead of this host's.
    pub(super) fn take_up_exchanged(
        &self,
        key: Fingerprint,
        words: &[u64],
        ahead: u64,
        is_received: bool,
    ) {
        let Some(keyed) = &self.keyed else { return };
        keyed.ahead.store(ahead, Ordering::Relaxed);
        let mut held = self.lock(key);
        held.put(key, words);
        if is_received {
            held.shard.received.insert(key);
        }
    }

    /// The number of words of a key's state.
    pub(super) const fn words(&self) -> usize {
        self.words
    }

    /// The tiers of the whole limit, for all hosts together.
    #[must_use]
    pub fn tiers(&self) -> &Tiers {
        &self.tiers
    }

    /// The number of keys.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed) + self.successor.get().map_or(0, |next| next.keys())
    }

    /// Charges `cost` if it passes, without computing what remains: the fast path.
    #[inline]
    pub fn allowed(&self, key: Fingerprint, now: u64, cost: u64) -> bool {
        if self.keyed.is_some() {
            return self.decide(key, now, cost).allowed;
        }
        let tiers = self.in_effect();
        if let Some(words) = self.shards[self.shard_of(key)].0.lock().get_mut(key) {
            return tiers::charge(&tiers, words, now, cost);
        }
        self.allowed_anew(key, now, cost)
    }

    /// The same for a key that may have no state yet.
    #[cold]
    fn allowed_anew(&self, key: Fingerprint, now: u64, cost: u64) -> bool {
        let mut held = self.lock(key);
        let charged = held.with_state(key, now, |tiers, words| {
            tiers::charge(tiers, words, now, cost)
        });
        charged.unwrap_or_else(|| held.when_full(now, cost).allowed)
    }

    /// Charges `cost` if it conforms. Returns the verdict with the remaining allowance.
    pub fn decide(&self, key: Fingerprint, now: u64, cost: u64) -> Outcome {
        self.lock(key).decide(key, now, cost)
    }

    /// The verdict of `decide`, without charging.
    #[must_use]
    pub fn peek(&self, key: Fingerprint, now: u64, cost: u64) -> Outcome {
        self.lock(key).peek(key, now, cost)
    }

    /// The keys that it has.
    pub(super) fn known_keys(&self) -> impl Iterator<Item = Fingerprint> {
        self.shards.iter().flat_map(|shard| {
            // No allocation under the lock, but for keys that are added meanwhile.
            let mut keys = Vec::with_capacity(shard.0.lock().len() + 16);
            shard.0.lock().each(|key, _| keys.push(key));
            keys
        })
    }

    /// Another key starts with the demand of the other hosts for this one.
    pub(super) fn inherit_peers(&self, key: Fingerprint, other: Fingerprint) {
        let Some(account) = self.lock(key).save(key).account else {
            return;
        };
        let mut held = self.lock(other);
        let accounts = &mut held.shard.accounts;
        accounts
            .entry(other)
            .or_insert_with(|| Account::new(account.peers));
    }

    /// Removes one key, which starts again with its initial allowance. Returns whether it had a state.
    pub fn forget(&self, key: Fingerprint) -> bool {
        let mut held = self.lock(key);
        let is_known = held.knows(key);
        held.restore(key, &Saved::default());
        is_known
    }

    /// Removes every key; returns their number.
    pub fn clear(&self) -> usize {
        let clear = |shard: &Padded<Shard>| {
            let mut shard = shard.0.lock();
            let keys = shard.len();
            shard.retain(|_| false);
            self.keys.fetch_sub(keys, Ordering::Relaxed);
            shard.accounts.clear();
            keys
        };
        // Keys that are being moved to the next store are found here or there.
        self.shards.iter().map(clear).sum::<usize>()
            + self.successor.get().map_or(0, |next| next.clear())
    }

    /// Removes decayed keys, one shard after another; each is locked for some tens of microseconds.
    pub fn sweep(&self, now: u64) {
        for shard in 0..self.shards() {
            drop(self.sweep_shard(shard, now));
        }
    }

    /// The number of shards.
    #[must_use]
    pub fn shards(&self) -> usize {
        self.shards.len()
    }

    /// Removes decayed keys of one shard. The caller drops the result outside of the lock.
    pub fn sweep_shard(&self, shard: usize, now: u64) -> Forgotten {
        let Some(shard) = self.shards.get(shard) else {
            return Forgotten::default();
        };
        let mut shard = shard.0.lock();
        self.forget_decayed(&mut shard, self.instant(now));
        shard.shrink()
    }

    #[inline]
    #[must_use]
    pub fn shard_of(&self, key: Fingerprint) -> usize {
        // The table uses the lower half.
        (key.word() >> 32) as usize & (self.shards.len() - 1)
    }

    /// Locks the shard of a key, for several steps.
    #[must_use]
    pub fn lock(&self, key: Fingerprint) -> LockedShard<'_> {
        let mut store = self;
        loop {
            match store.hold_here(key) {
                Ok(held) => return held,
                Err(next) => store = next,
            }
        }
    }

    /// The place of a key's shard in the order of locks, in the key's current store.
    pub(super) fn place(&self, key: Fingerprint) -> (Place, &Self) {
        let store = self.lock(key).store;
        (
            Place {
                store: store.id,
                shard: store.shard_of(key),
            },
            store,
        )
    }

    /// Like `hold`, in this store only; `Err`: the store to which the key has been moved.
    pub(super) fn hold_here(&self, key: Fingerprint) -> Result<LockedShard<'_>, &Self> {
        let shard = self.shards[self.shard_of(key)].0.lock();
        match self.successor.get() {
            Some(next) if shard.is_closed() => Err(next),
            _ => Ok(LockedShard {
                store: self,
                tiers: self.in_effect(),
                shard,
            }),
        }
    }

    /// Each shard in turn, locked during the call.
    pub(super) fn all_shards(&self) -> impl Iterator<Item = Guard<'_, Shard>> {
        self.shards.iter().map(|shard| shard.0.lock())
    }

    pub(super) fn forget_decayed(&self, shard: &mut Shard, now: u64) {
        let opens_short = self.tiers.iter().any(Policy::opens_short);
        // Such a key would start with less than it has.
        let since = if opens_short {
            now.saturating_sub(REMEMBERED_NANOSECONDS)
        } else {
            now
        };
        let before = shard.len();
        shard.retain(|words| tiers::is_alive(&self.tiers, words, since));
        if shard.len() >= self.shard_capacity || self.is_full() {
            shard.retain(|words| tiers::is_alive(&self.tiers, words, now));
        }
        self.keys.fetch_sub(before - shard.len(), Ordering::Relaxed);
        shard.sweep_at = (2 * shard.len()).max(FIRST_SWEEP).min(self.shard_capacity);
        shard.swept = now;
    }

    pub(super) fn is_full(&self) -> bool {
        self.keys.load(Ordering::Relaxed) >= self.capacity
    }

    /// Reserves a place for one more key, if there is one.
    pub(super) fn take_place(&self) -> bool {
        let is_free = self.keys.fetch_add(1, Ordering::Relaxed) < self.capacity;
        if !is_free {
            self.keys.fetch_sub(1, Ordering::Relaxed);
        }
        is_free
    }

    /// Removes decayed keys of another shard, unless it is locked.
    pub(super) fn forget_elsewhere(&self, now: u64) {
        let shard = self.next_sweep.fetch_add(1, Ordering::Relaxed) & (self.shards.len() - 1);
        // Without waiting, since the caller owns a lock already.
        if let Some(mut shard) = self.shards[shard].0.try_lock()
            && now.saturating_sub(shard.swept) >= SWEEP_AGAIN_NANOSECONDS
        {
            self.forget_decayed(&mut shard, now);
        }
    }
}

/// A shard's place in the order of locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place {
    store: u64,
    shard: usize,
}

/// An elastic limit's rates while the host has no room.
#[derive(Debug)]
struct Elastic {
    without_room: Tiers,
    has_room: Arc<AtomicBool>,
}

/// The rates in effect: the store's own, or those of this host's share.
#[derive(Debug)]
pub(super) enum Rates<'s> {
    Own(&'s Tiers),
    Shared(Arc<Tiers>),
}

impl std::ops::Deref for Rates<'_> {
    type Target = Tiers;

    #[inline]
    fn deref(&self) -> &Tiers {
        match self {
            Self::Own(tiers) => tiers,
            Self::Shared(tiers) => tiers,
        }
    }
}

/// A locked shard.
#[derive(Debug)]
pub struct LockedShard<'s> {
    pub(super) store: &'s StateStore,
    pub(super) tiers: Rates<'s>,
    pub(super) shard: Guard<'s, Shard>,
}

/// A copy of a key's state.
#[derive(Clone, Debug, Default)]
pub struct Saved {
    pub(super) words: Option<Box<[u64]>>,
    pub(super) account: Option<Account>,
}
