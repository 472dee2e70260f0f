//! A limit per key, for many keys and many threads, bounded in memory.
//!
//! Keys are spread over shards, each behind a lock of its own and small enough that going through all of it takes well
//! under a millisecond. A key is kept as a fingerprint of 128 bits under a secret of the process, so that its memory
//! does not depend on its length and nobody can aim at one shard. A state that has decayed is no state: it is forgotten
//! when its shard would otherwise grow, and by [`Store::sweep`], one shard at a time.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use common::rate_limiter::{Outcome, Policy};
use siphasher::sip128::{Hasher128, SipHasher13};

use super::tiers;
use crate::config::policy::OnFull;

/// Keys in a shard at the most, or about: going through them takes some tens of microseconds.
const SHARD_KEYS: usize = 4096;
/// A shard is not gone through before it has so many keys …
const FIRST_SWEEP: usize = 64;
/// … nor, when it is full of keys that live, again within this time.
const SWEEP_AGAIN_NANOSECONDS: u64 = 10_000_000;
/// A key that would begin with less than it has got back is remembered for this long after it is whole again.
const REMEMBERED_NANOSECONDS: u64 = 86_400_000_000_000;
/// When to come again if there is no room for a key.
const WHEN_FULL: Duration = Duration::from_secs(1);

/// A key's fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(u128);

/// Makes fingerprints: SipHash-1-3 of 128 bits under a secret.
///
/// A million keys collide, any two of them, with a probability of 10⁻²⁷.
#[derive(Clone, Debug)]
pub struct Fingerprints {
    empty: SipHasher13,
}

impl Fingerprints {
    /// Under a secret from the system.
    ///
    /// # Errors
    ///
    /// When the system has no randomness to give.
    pub fn new() -> Result<Self, getrandom::Error> {
        let (first, second) = (getrandom::u64()?, getrandom::u64()?);
        Ok(Self { empty: SipHasher13::new_with_keys(first, second) })
    }

    /// Of anything that can be hashed.
    #[must_use]
    pub fn of<T: Hash + ?Sized>(&self, key: &T) -> Fingerprint {
        let mut hasher = self.empty;
        key.hash(&mut hasher);
        Fingerprint(hasher.finish128().as_u128())
    }
}

/// A fingerprint as a map's key: two words, so that it is aligned as the states are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Halves([u64; 2]);

impl From<Fingerprint> for Halves {
    fn from(Fingerprint(key): Fingerprint) -> Self {
        Self([key as u64, (key >> 64) as u64])
    }
}

impl Hash for Halves {
    fn hash<H: Hasher>(&self, hasher: &mut H) {
        hasher.write_u64(self.0[0]);
    }
}

/// The hash of a fingerprint: half of itself.
#[derive(Clone, Copy, Debug, Default)]
struct Identity(u64);

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, half: u64) {
        self.0 = half;
    }
}

type Keys<S> = HashMap<Halves, S, BuildHasherDefault<Identity>>;

/// The states of a shard, in place where they are one word or two.
#[derive(Debug)]
enum States {
    One(Keys<[u64; 1]>),
    Two(Keys<[u64; 2]>),
    Many(Keys<Box<[u64]>>),
}

/// One shard, under its lock.
#[derive(Debug)]
struct Shard {
    states: States,
    /// Decayed states are looked for when there are so many keys.
    sweep_at: usize,
    swept: u64,
}

/// Runs the same for each kind of state.
macro_rules! each_kind {
    ($states:expr, $keys:ident => $do:expr) => {
        match $states {
            States::One($keys) => $do,
            States::Two($keys) => $do,
            States::Many($keys) => $do,
        }
    };
}

impl Shard {
    fn len(&self) -> usize {
        each_kind!(&self.states, keys => keys.len())
    }

    fn get(&self, key: Fingerprint) -> Option<&[u64]> {
        each_kind!(&self.states, keys => keys.get(&key.into()).map(|state| &state[..]))
    }

    fn get_mut(&mut self, key: Fingerprint) -> Option<&mut [u64]> {
        each_kind!(&mut self.states, keys => keys.get_mut(&key.into()).map(|state| &mut state[..]))
    }

    fn insert(&mut self, key: Fingerprint, words: &[u64]) {
        let key = Halves::from(key);
        match &mut self.states {
            States::One(keys) => drop(keys.insert(key, [words[0]])),
            States::Two(keys) => drop(keys.insert(key, [words[0], words[1]])),
            States::Many(keys) => drop(keys.insert(key, words.into())),
        }
    }

    fn remove(&mut self, key: Fingerprint) {
        each_kind!(&mut self.states, keys => drop(keys.remove(&key.into())));
    }

    fn retain(&mut self, keep: impl Fn(&[u64]) -> bool) {
        each_kind!(&mut self.states, keys => keys.retain(|_, state| keep(&state[..])));
    }

    /// Moves to as little memory as what is left needs, if that is much less, and hands over the rest.
    fn shrink(&mut self) -> Forgotten {
        Forgotten(each_kind!(&mut self.states, keys => {
            if keys.capacity() > 4 * keys.len().max(FIRST_SWEEP) {
                let mut larger = std::mem::take(keys);
                keys.extend(larger.drain());
                Some(larger.into())
            } else {
                None
            }
        }))
    }
}

/// Memory that a shard needs no more. Giving it back can take the system longer than a decision may wait, so it is
/// dropped when the shard is held no longer.
#[derive(Debug)]
#[must_use]
pub struct Forgotten(#[expect(dead_code, reason = "it is there to be dropped")] Option<States>);

impl From<Keys<[u64; 1]>> for States {
    fn from(keys: Keys<[u64; 1]>) -> Self {
        Self::One(keys)
    }
}

impl From<Keys<[u64; 2]>> for States {
    fn from(keys: Keys<[u64; 2]>) -> Self {
        Self::Two(keys)
    }
}

impl From<Keys<Box<[u64]>>> for States {
    fn from(keys: Keys<Box<[u64]>>) -> Self {
        Self::Many(keys)
    }
}

/// A limit with its tiers, for each of many keys.
#[derive(Debug)]
pub struct Store {
    tiers: Box<[Policy]>,
    words: usize,
    shards: Box<[Mutex<Shard>]>,
    shard_capacity: usize,
    on_full: OnFull,
    overflow: Mutex<Box<[u64]>>,
}

impl Store {
    /// For at most `capacity` keys at a time, or as many more as there are shards.
    #[must_use]
    pub fn new(tiers: Vec<Policy>, capacity: usize, on_full: OnFull) -> Self {
        let words = tiers.iter().map(Policy::words).sum();
        let (shards, shard_capacity) = Self::cut(capacity);
        let shard = || Shard {
            states: match words {
                1 => States::One(Keys::default()),
                2 => States::Two(Keys::default()),
                _ => States::Many(Keys::default()),
            },
            sweep_at: FIRST_SWEEP,
            swept: 0,
        };
        Self {
            tiers: tiers.into(),
            words,
            shards: (0..shards).map(|_| Mutex::new(shard())).collect(),
            shard_capacity,
            on_full,
            overflow: Mutex::new(vec![0; words].into()),
        }
    }

    /// Whether a store that is made so would be the same.
    #[must_use]
    pub fn is_as(&self, tiers: &[Policy], capacity: usize, on_full: OnFull) -> bool {
        let made = Self::cut(capacity);
        *self.tiers == *tiers && (self.shards.len(), self.shard_capacity, self.on_full) == (made.0, made.1, on_full)
    }

    /// A store of its own for other rates, with every key of this one: what it has used stays used, in proportion.
    #[must_use]
    pub fn carried(&self, tiers: Vec<Policy>, capacity: usize, on_full: OnFull, now: u64) -> Self {
        let new = Self::new(tiers, capacity, on_full);
        for shard in &self.shards {
            let each = |Halves([low, high]): &Halves, words: &[u64]| {
                let key = Fingerprint(u128::from(*high) << 64 | u128::from(*low));
                let carried = tiers::carried(&self.tiers, words, &new.tiers, now);
                let mut held = new.hold(key);
                if held.shard.len() < new.shard_capacity {
                    held.shard.insert(key, &carried);
                }
            };
            let shard = lock(shard);
            each_kind!(&shard.states, keys => keys.iter().for_each(|(key, words)| each(key, &words[..])));
        }
        new
    }

    /// (shards, keys in each) of a store for so many keys.
    fn cut(capacity: usize) -> (usize, usize) {
        let capacity = capacity.max(1);
        let shards = capacity.div_ceil(SHARD_KEYS).next_power_of_two().max(capacity.min(64 * 64) / 64).max(1);
        let shards = shards.next_power_of_two();
        (shards, capacity.div_ceil(shards))
    }

    /// The rates that a cost has to conform to.
    #[must_use]
    pub fn tiers(&self) -> &[Policy] {
        &self.tiers
    }

    /// Keys that are remembered.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.shards.iter().map(|shard| lock(shard).len()).sum()
    }

    /// Charges `cost` if it passes, without asking what is left: the fastest way.
    #[inline]
    pub fn allowed(&self, key: Fingerprint, now: u64, cost: u64) -> bool {
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
        self.hold(key).shard.remove(key);
    }

    /// Forgets every key; how many there were.
    pub fn clear(&self) -> usize {
        let clear = |shard: &Mutex<Shard>| {
            let mut shard = lock(shard);
            let keys = shard.len();
            shard.retain(|_| false);
            keys
        };
        self.shards.iter().map(clear).sum()
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
        let Some(shard) = self.shards.get(shard) else { return Forgotten(None) };
        let mut shard = lock(shard);
        self.forget_decayed(&mut shard, now);
        shard.shrink()
    }

    /// Which shard a key is in; shards of several stores are held in the order of (store, shard).
    #[must_use]
    pub fn shard_of(&self, Fingerprint(key): Fingerprint) -> usize {
        // The map inside takes the low bits and the highest of the first half.
        (key >> 64) as usize & (self.shards.len() - 1)
    }

    /// Holds the shard of a key, for several steps that belong together.
    #[must_use]
    pub fn hold(&self, key: Fingerprint) -> Held<'_> {
        Held { store: self, shard: lock(&self.shards[self.shard_of(key)]) }
    }

    fn forget_decayed(&self, shard: &mut Shard, now: u64) {
        let opens_short = self.tiers.iter().any(Policy::opens_short);
        // Such a key would begin anew with less than it has.
        let since = if opens_short { now.saturating_sub(REMEMBERED_NANOSECONDS) } else { now };
        shard.retain(|words| tiers::is_alive(&self.tiers, words, since));
        if shard.len() >= self.shard_capacity {
            shard.retain(|words| tiers::is_alive(&self.tiers, words, now));
        }
        shard.sweep_at = (2 * shard.len()).max(FIRST_SWEEP).min(self.shard_capacity);
        shard.swept = now;
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // Every change under these locks is one assignment: a panic elsewhere left nothing half done.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A shard that is held: nobody else decides on its keys meanwhile.
#[derive(Debug)]
pub struct Held<'s> {
    store: &'s Store,
    shard: MutexGuard<'s, Shard>,
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
        let tiers = &self.store.tiers;
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

    /// Puts a copy back.
    pub fn restore(&mut self, key: Fingerprint, saved: Option<&[u64]>) {
        match saved {
            Some(words) => self.shard.insert(key, words),
            None => self.shard.remove(key),
        }
    }

    /// Works on a key's state, a new one if need be; `None` if there is no room for it.
    fn with_state<T>(
        &mut self,
        key: Fingerprint,
        now: u64,
        work: impl FnOnce(&[Policy], &mut [u64]) -> T,
    ) -> Option<T> {
        let tiers = &self.store.tiers;
        if let Some(words) = self.shard.get_mut(key) {
            return Some(work(tiers, words));
        }
        let is_full = self.shard.len() >= self.store.shard_capacity;
        let may_sweep = !is_full || now.saturating_sub(self.shard.swept) >= SWEEP_AGAIN_NANOSECONDS;
        if self.shard.len() >= self.shard.sweep_at.min(self.store.shard_capacity) && may_sweep {
            self.store.forget_decayed(&mut self.shard, now);
        }
        if self.shard.len() >= self.store.shard_capacity {
            return None;
        }
        let mut short = [0; 2];
        let mut long = Vec::new();
        let words = match short.get_mut(..self.store.words) {
            Some(words) => words,
            None => {
                long.resize(self.store.words, 0);
                &mut long[..]
            }
        };
        tiers::open(tiers, words, now);
        let done = work(tiers, words);
        self.shard.insert(key, words);
        Some(done)
    }

    fn when_full(&self, now: u64, cost: u64) -> Outcome {
        let most = tiers::most(&self.store.tiers);
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
                let mut words = lock(&self.store.overflow);
                if !tiers::is_alive(&self.store.tiers, &words, now) {
                    tiers::open(&self.store.tiers, &mut words, now);
                }
                tiers::decide(&self.store.tiers, &mut words, now, cost)
            }
        }
    }
}
