//! A part of a store's keys, under a lock of its own.

use spinning_top::RawSpinlock;
use spinning_top::lock_api::{Mutex, MutexGuard};
use spinning_top::relax::Relax;

use super::fingerprint::Fingerprint;
use super::table::Table;

/// A shard is not gone through before it has so many keys.
pub const FIRST_SWEEP: usize = 64;

/// The states of a shard, in place where they are one word or two.
#[derive(Debug)]
enum States {
    One(Table<[u64; 1]>),
    Two(Table<[u64; 2]>),
    Many(Table<Box<[u64]>>),
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

/// One shard, under its lock.
#[derive(Debug)]
pub struct Shard {
    states: States,
    /// Decayed states are looked for when there are so many keys.
    pub sweep_at: usize,
    /// When that was done last, in nanoseconds.
    pub swept: u64,
    is_closed: bool,
}

impl Shard {
    /// For states of so many words.
    pub fn new(words: usize) -> Self {
        let states = match words {
            1 => States::One(Table::default()),
            2 => States::Two(Table::default()),
            _ => States::Many(Table::default()),
        };
        Self { states, sweep_at: FIRST_SWEEP, swept: 0, is_closed: false }
    }

    /// Bytes of the table of a shard that holds at most so many keys, at the most.
    pub fn most_bytes(words: usize, keys: usize) -> usize {
        match words {
            1 => Table::<[u64; 1]>::most_bytes(keys),
            2 => Table::<[u64; 2]>::most_bytes(keys),
            _ => Table::<Box<[u64]>>::most_bytes(keys),
        }
    }

    /// Bytes of a key's state outside the table.
    pub const fn state_bytes(words: usize) -> usize {
        /// What the allocator adds to a block, and rounds it up to.
        const OVERHEAD: usize = 16;
        if words <= 2 { 0 } else { (8 * words).next_multiple_of(OVERHEAD) + OVERHEAD }
    }

    /// Whether its keys are elsewhere.
    pub fn is_closed(&self) -> bool {
        self.is_closed
    }

    /// Hands over the keys, which are elsewhere from now on.
    pub fn close(&mut self) -> Forgotten {
        self.is_closed = true;
        Forgotten(Some(std::mem::replace(&mut self.states, States::One(Table::default()))))
    }

    /// How many keys it holds.
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

    /// Looks at every key and its state.
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

    /// Forgets a key.
    pub fn remove(&mut self, key: Fingerprint) {
        each_kind!(&mut self.states, keys => keys.remove(key));
    }

    /// Forgets the keys whose states are not to be kept.
    pub fn retain(&mut self, keep: impl Fn(&[u64]) -> bool) {
        each_kind!(&mut self.states, keys => keys.retain(|state| keep(&state[..])));
    }

    /// Moves to as little memory as what is left needs, if that is much less, and hands over the rest.
    pub fn shrink(&mut self) -> Forgotten {
        Forgotten(each_kind!(&mut self.states, keys => {
            let needed = keys.len().max(FIRST_SWEEP);
            (keys.places() > 8 * needed).then(|| keys.fit(needed).into())
        }))
    }
}

/// Memory that a shard needs no more. Giving it back can take the system longer than a decision may wait, so it is
/// dropped when the shard is held no longer.
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

/// A lock for work that is shorter than a system call: one atomic operation to take it, a plain write to let go.
pub type Lock<T> = Mutex<RawSpinlock<Patience>, T>;

/// What a [`Lock`] gives.
pub type Guard<'s, T> = MutexGuard<'s, RawSpinlock<Patience>, T>;

/// How one waits for a [`Lock`]: by looking again while it can only be a moment; then by leaving the processor to
/// others, since the holder may be waiting for it; then by sleeping, lest a thread of a higher priority keep the holder
/// from it for good.
#[derive(Debug, Default)]
pub struct Patience {
    looks: u32,
}

impl Patience {
    /// Looks before the processor is left to others: some tens of microseconds in all.
    const LOOKS: u32 = 10;
    /// Pauses before the first look, some hundred nanoseconds or a few tens of decisions.
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
            // Long, and ever longer: each look takes the cache line from the holder, who then waits for it to let go, where
            // it could decide on a few more keys meanwhile.
            (0..Self::FIRST_PAUSES << (self.looks - 1).min(Self::MOST_DOUBLINGS)).for_each(|_| std::hint::spin_loop());
        } else if self.looks < Self::LOOKS + Self::YIELDS {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Self::NAP);
        }
    }
}

/// A lock in a cache line of its own, so that threads on neighbouring shards do not wait for each other's writes.
#[derive(Debug)]
#[repr(align(64))]
pub struct Padded<T>(pub Lock<T>);
