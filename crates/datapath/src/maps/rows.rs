//! Rows of rules in shared memory: the bank of the next policy, and rows in effect.
//!
//! A fair rule's row in effect changes in three words: see [`common::fair`].
//!
//! Another row in effect changes in place with this host's share of a limit with `cluster`. Each word is replaced by one atomic store: the emission interval, the largest cost, and the enforcement. The order
//! of the stores ensures that a packet in between is evaluated by the old row, the new one, or a stricter one. States
//! are instants, which are valid under either row. If a packet's charge is reverted meanwhile because another CPU was
//! faster, the refund may use the other interval.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use aya::maps::MapData;
use common::bank::Bank;
use common::fair::{Word, Words};
use common::rule::Rule;
use memmap2::{MmapOptions, MmapRaw};

use crate::error::LoadError;

/// Words of a row.
const WORDS: usize = size_of::<Rule>() / size_of::<u64>();
const INTERVAL: usize = std::mem::offset_of!(Rule, interval) / size_of::<u64>();
const MOST: usize = std::mem::offset_of!(Rule, most) / size_of::<u64>();
const TOLERANCE: usize = std::mem::offset_of!(Rule, tolerance) / size_of::<u64>();
const LAST: usize = WORDS - 1;

/// The place of a fair rule's word, as [`Rule::fair_words`] reads it.
const fn place_of(word: Word) -> usize {
    match word {
        Word::Level => INTERVAL,
        Word::Until => TOLERANCE,
        Word::Rest => MOST,
    }
}

/// How often each bank was written, for those who write levels from threads of their own: a bank that is written anew has
/// other rules in the rows that they know.
#[derive(Debug, Default)]
pub(crate) struct Writings(Mutex<[u64; Bank::COUNT as usize]>);

impl Writings {
    /// The writing of a bank that began last.
    pub(crate) fn of(&self, bank: Bank) -> u64 {
        self.numbers()[bank.number() as usize]
    }

    /// Begins to write a bank. Waits for a level that is being written.
    pub(crate) fn begin(&self, bank: Bank) {
        self.numbers()[bank.number() as usize] += 1;
    }

    /// Calls `write` if the bank was not written anew since, and does not let it be meanwhile.
    pub(crate) fn within(&self, bank: Bank, writing: u64, write: impl FnOnce()) {
        let numbers = self.numbers();
        if numbers[bank.number() as usize] == writing {
            write();
        }
    }

    fn numbers(&self) -> MutexGuard<'_, [u64; Bank::COUNT as usize]> {
        // A number is added at once.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The map of rules, mapped into memory.
#[derive(Debug)]
pub(crate) struct Rows {
    memory: MmapRaw,
    /// Rows of each bank.
    of_bank: usize,
}

impl Rows {
    pub(crate) fn map(map: &MapData, of_bank: usize) -> Result<Self, LoadError> {
        let memory = MmapOptions::new()
            .len((Bank::COUNT as usize * of_bank).max(1) * size_of::<Rule>())
            .map_raw(map.fd().as_fd().as_raw_fd())
            .map_err(LoadError::Mmap)?;
        Ok(Self { memory, of_bank })
    }

    /// Rows of each bank.
    pub(crate) const fn of_bank(&self) -> usize {
        self.of_bank
    }

    /// The first row of a bank.
    pub(crate) const fn first_of(&self, bank: Bank) -> usize {
        bank.number() as usize * self.of_bank
    }

    const fn count(&self) -> usize {
        Bank::COUNT as usize * self.of_bank
    }

    fn word(&self, row: usize, word: usize) -> &AtomicU64 {
        assert!(
            row < self.count() && word < WORDS,
            "word {word} of row {row} of {}",
            self.count()
        );
        // SAFETY: within the mapping, which is page-aligned and outlives the reference; the kernel reads aligned words.
        unsafe {
            AtomicU64::from_ptr(
                self.memory
                    .as_mut_ptr()
                    .cast::<u64>()
                    .add(row * WORDS + word),
            )
        }
    }

    /// Writes rows from `first` on, which no program reads meanwhile.
    pub(crate) fn write(&self, first: usize, rules: &[Rule]) {
        for (row, rule) in (first..).zip(rules) {
            assert!(row < self.count(), "row {row} of {}", self.count());
            // SAFETY: within the mapping, which is page-aligned; nothing else reads or writes this row.
            unsafe {
                self.memory
                    .as_mut_ptr()
                    .cast::<Rule>()
                    .add(row)
                    .write(*rule);
            };
        }
    }

    /// Replaces a row in effect by `new`, which may differ only in fields that a share changes.
    pub(crate) fn replace(&self, row: usize, new: &Rule) {
        // The last word of a row: the enforcement, and fields that never change.
        let last = [
            new.shift,
            new.share_shift,
            new.enforcement,
            new.on_full,
            new.action,
            new.opens_key,
            new.closes_key,
            new.is_fast,
        ];
        let interval = (INTERVAL, new.interval);
        let most = (MOST, new.most);
        let slows = new.interval >= self.word(row, INTERVAL).load(Ordering::Acquire);
        // The largest cost decreases first and increases last.
        let order = if slows {
            [most, interval]
        } else {
            [interval, most]
        };
        for (word, value) in order.into_iter().chain([(LAST, u64::from_ne_bytes(last))]) {
            self.word(row, word).store(value, Ordering::SeqCst);
        }
    }

    /// Replaces the words of a fair rule's row in effect.
    pub(crate) fn set_fair(&self, row: usize, words: Words) {
        for (word, value) in words.stores(self.fair(row)) {
            self.word(row, place_of(word))
                .store(value, Ordering::SeqCst);
        }
    }

    /// The words of a fair rule's row in effect.
    pub(crate) fn fair(&self, row: usize) -> Words {
        Words::read(|word| self.word(row, place_of(word)).load(Ordering::SeqCst))
    }

    #[cfg(test)]
    fn words(&self, row: usize) -> [u64; WORDS] {
        std::array::from_fn(|word| self.word(row, word).load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use common::limiter::{Costs, Rate, TokenBucket};
    use common::share::Share;
    use common::time::TickScale;

    /// A page of rows in memory instead of a map.
    fn rows() -> Rows {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        Rows {
            memory: MmapOptions::new().len(4096).map_raw(&file).unwrap(),
            of_bank: 32,
        }
    }

    #[test]
    fn a_row_is_replaced_where_a_share_changes_it_and_nowhere_else() {
        let bucket = TokenBucket::new(
            Rate::per_second(1_000),
            100,
            Costs::Single,
            TickScale::FINEST,
        );
        let whole = Rule {
            counter: 7,
            enforcement: 1,
            opens_key: 1,
            ..Rule::EMPTY.with(bucket)
        };
        let (small, large) = (
            whole.at_share(Share::of_parts(10_000_000)),
            whole.at_share(Share::of_parts(900_000_000)),
        );
        let rows = rows();
        let is_over = std::sync::atomic::AtomicBool::new(false);
        rows.replace(3, &small);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..20_000 {
                    rows.replace(3, &large);
                    rows.replace(3, &small);
                }
                is_over.store(true, Ordering::Release);
            });
            // At least once, however late this thread runs.
            loop {
                let words = rows.words(3);
                // Every word is one of the two rows', unmixed.
                assert!([small.interval, large.interval].contains(&words[INTERVAL]));
                assert!([small.most, large.most].contains(&words[MOST]));
                if is_over.load(Ordering::Acquire) {
                    break;
                }
            }
        });
        let words = rows.words(3);
        assert_eq!((words[INTERVAL], words[MOST]), (small.interval, small.most));
        assert_eq!(words[LAST].to_ne_bytes()[2], 1, "how it enforces");
        assert_eq!(
            words[LAST].to_ne_bytes()[5],
            1,
            "where it stands in its span"
        );
        assert!(
            (1..LAST)
                .filter(|word| *word != MOST)
                .all(|word| words[word] == 0),
            "{words:?}"
        );
        assert_eq!((rows.words(2), rows.words(4)), ([0; WORDS], [0; WORDS]));
    }
}
