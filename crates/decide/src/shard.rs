//! A part of a store's keys, under its own lock.

use std::collections::{HashMap, HashSet};

use spinning_top::RawSpinlock;
use spinning_top::lock_api::{Mutex, MutexGuard};
use spinning_top::relax::Relax;

use super::account::Account;
use super::fingerprint::Fingerprint;
use super::table::Table;

/// Decayed keys are removed only from shards with at least this many keys.
pub const FIRST_SWEEP: usize = 64;

/// The states of a shard, stored inline if they are one or two words.
#[derive(Debug)]
enum States {
    One(Table<[u64; 1]>),
    Two(Table<[u64; 2]>),
    Many(Table<Box<[u64]>>),
}

/// Expands to the same code for each kind of state.
macro_rules! each_kind {
    ($states:expr, $keys:ident => $do:expr) => {
        match $states {
            States::One($keys) => $do,
            States::Two($keys) => $do,
            States::Many($keys) => $do,
        }
    };
}

/// One shard, under its lock.
#[derive(Debug)]
pub struct Shard {
    states: States,
    /// The number of keys at which decayed states are removed.
    pub sweep_at: usize,
    /// The instant of the last removal, in nanoseconds.
    pub swept: u64,
    is_closed: bool,
    /// Keys used since the last exchange with other hosts, and exchanged keys.
    pub accounts: HashMap<Fingerprint, Account>,
    /// Keys whose consumption other hosts have received.
    pub received: HashSet<Fingerprint>,
}

impl Shard {
    /// For states of `words` words.
    pub fn new(words: usize) -> Self {
        let states = match words {
            1 => States::One(Table::default()),
            2 => States::Two(Table::default()),
            _ => States::Many(Table::default()),
        };
        Self {
            states,
            sweep_at: FIRST_SWEEP,
            swept: 0,
            is_closed: false,
            accounts: HashMap::new(),
            received: HashSet::new(),
        }
    }

    /// The most bytes of a shard's table with this many keys.
    pub fn most_bytes(words: usize, keys: usize) -> usize {
        match words {
            1 => Table::<[u64; 1]>::most_bytes(keys),
            2 => Table::<[u64; 2]>::most_bytes(keys),
            _ => Table::<Box<[u64]>>::most_bytes(keys),
        }
    }

    /// Bytes of a key's state outside the table.
    pub const fn state_bytes(words: usize) -> usize {
        /// The allocator's overhead per block, and its granularity.
        const OVERHEAD: usize = 16;
        if words <= 2 {
            0
        } else {
            (8 * words).next_multiple_of(OVERHEAD) + OVERHEAD
        }
    }

    /// Whether its keys have been moved to another store.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Takes the keys out for another store.
    pub fn close(&mut self) -> Forgotten {
        self.is_closed = true;
        self.accounts.clear();
        self.received.clear();
        Forgotten(Some(std::mem::replace(
            &mut self.states,
            States::One(Table::default()),
        )))
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        each_kind!(&self.states, keys => keys.len())
    }

    /// A key's state.
    pub fn get(&self, key: Fingerprint) -> Option<&[u64]> {
        each_kind!(&self.states, keys => keys.get(key).map(|state| &state[..]))
    }

    /// A key's state, to be changed.
    #[inline]
    pub fn get_mut(&mut self, key: Fingerprint) -> Option<&mut [u64]> {
        each_kind!(&mut self.states, keys => keys.get_mut(key).map(|state| &mut state[..]))
    }

    /// Visits every key and its state.
    pub fn each(&self, look: impl FnMut(Fingerprint, &[u64])) {
        let mut look = look;
        each_kind!(&self.states, keys => keys.each(|key, state| look(key, &state[..])));
    }

    /// Sets a key's state.
    pub fn insert(&mut self, key: Fingerprint, words: &[u64]) {
        match &mut self.states {
            States::One(keys) => keys.insert(key, [words[0]]),
            States::Two(keys) => keys.insert(key, [words[0], words[1]]),
            States::Many(keys) => keys.insert(key, words.into()),
        }
    }

    /// Removes a key.
    pub fn remove(&mut self, key: Fingerprint) {
        each_kind!(&mut self.states, keys => keys.remove(key));
        self.accounts.remove(&key);
        self.received.remove(&key);
    }

    /// Replaces every state by one of the same length.
    pub fn replace_each(&mut self, other: impl Fn(&[u64]) -> Vec<u64>) {
        each_kind!(&mut self.states, keys => keys.each_mut(|state| {
            let other = other(&state[..]);
            state.copy_from_slice(&other);
        }));
    }

    /// Removes the keys whose states `keep` rejects.
    pub fn retain(&mut self, keep: impl Fn(&[u64]) -> bool) {
        each_kind!(&mut self.states, keys => keys.retain(|state| keep(&state[..])));
        let Self {
            states, received, ..
        } = self;
        received.retain(|key| each_kind!(states, keys => keys.get(*key).is_some()));
    }

    /// Shrinks the table if much less memory suffices; returns the rest.
    pub fn shrink(&mut self) -> Forgotten {
        Forgotten(each_kind!(&mut self.states, keys => {
            let needed = keys.len().max(FIRST_SWEEP);
            (keys.places() > 8 * needed).then(|| keys.fit(needed).into())
        }))
    }
}

/// Memory that a shard no longer needs. Freeing it can take longer than a decision may wait, so the caller drops it
/// after unlocking the shard.
#[derive(Debug, Default)]
#[must_use]
pub struct Forgotten(#[expect(dead_code, reason = "it is there to be dropped")] Option<States>);

impl From<Table<[u64; 1]>> for States {
    fn from(keys: Table<[u64; 1]>) -> Self {
        Self::One(keys)
    }
}

impl From<Table<[u64; 2]>> for States {
    fn from(keys: Table<[u64; 2]>) -> Self {
        Self::Two(keys)
    }
}

impl From<Table<Box<[u64]>>> for States {
    fn from(keys: Table<Box<[u64]>>) -> Self {
        Self::Many(keys)
    }
}

/// A lock for work that is shorter than a system call: an atomic operation locks it, a plain store unlocks it.
pub type Lock<T> = Mutex<RawSpinlock<Patience>, T>;

/// The guard of a [`Lock`].
pub type Guard<'s, T> = MutexGuard<'s, RawSpinlock<Patience>, T>;

/// The wait for a [`Lock`]: spinning first; then yielding the processor, which the lock's owner may need; then
/// sleeping, so that a thread of higher priority does not starve the owner.
#[derive(Debug, Default)]
pub struct Patience {
    looks: u32,
}

impl Patience {
    /// Attempts before yielding: some tens of microseconds in total.
    const LOOKS: u32 = 10;
    /// Pauses before the first attempt: some hundred nanoseconds, or a few tens of decisions.
    const FIRST_PAUSES: u32 = 16;
    const MOST_DOUBLINGS: u32 = 2;
    const YIELDS: u32 = 64;
    const NAP: std::time::Duration = std::time::Duration::from_micros(20);
}

impl Relax for Patience {
    #[cold]
    fn relax(&mut self) {
        self.looks = self.looks.saturating_add(1);
        if self.looks < Self::LOOKS {
            // With exponential backoff: each attempt takes the cache line from the owner and delays it.
            (0..Self::FIRST_PAUSES << (self.looks - 1).min(Self::MOST_DOUBLINGS))
                .for_each(|_| std::hint::spin_loop());
        } else if self.looks < Self::LOOKS + Self::YIELDS {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Self::NAP);
        }
    }
}

/// A lock in its own cache line, so that threads on neighbouring shards do not share one.
#[derive(Debug)]
#[repr(align(64))]
pub struct Padded<T>(pub Lock<T>);
