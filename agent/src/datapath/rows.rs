//! The rows of rules while they are in force: what changes of a limit at run time, without a packet's seeing half of it.
//!
//! A row is changed in place, word by word, each by one atomic store. What changes is the emission interval and the
//! largest cost, or how the rule enforces. In the order they are written, any packet in between sees the old row, the
//! new one, or one that is stricter than the looser of them: never one that passes more. A state is an instant that no
//! row changes the meaning of, so the next packet simply goes on from it. A packet whose charge is taken back at that
//! very instant, since another CPU was faster, may get back what it was charged by the other interval.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use aya::maps::MapData;
use common::rule::Rule;
use memmap2::{MmapOptions, MmapRaw};

use super::error::LoadError;

/// Words of a row.
const WORDS: usize = size_of::<Rule>() / size_of::<u64>();
const INTERVAL: usize = std::mem::offset_of!(Rule, interval) / size_of::<u64>();
const MOST: usize = std::mem::offset_of!(Rule, most) / size_of::<u64>();
const LAST: usize = WORDS - 1;

/// The map of rules, mapped into memory.
#[derive(Debug)]
pub(super) struct Rows {
    memory: MmapRaw,
    count: usize,
}

impl Rows {
    pub(super) fn map(map: &MapData, count: usize) -> Result<Self, LoadError> {
        let memory = MmapOptions::new()
            .len(count.max(1) * size_of::<Rule>())
            .map_raw(map.fd().as_fd().as_raw_fd())
            .map_err(LoadError::Mmap)?;
        Ok(Self { memory, count })
    }

    fn word(&self, row: usize, word: usize) -> &AtomicU64 {
        assert!(row < self.count && word < WORDS, "word {word} of row {row} of {}", self.count);
        // SAFETY: within the mapping, which is page-aligned and lives as long as `self`; the kernel reads aligned words.
        unsafe { AtomicU64::from_ptr(self.memory.as_mut_ptr().cast::<u64>().add(row * WORDS + word)) }
    }

    /// Puts `new` in the place of what is in force; the two may differ in what a share changes.
    pub(super) fn replace(&self, row: usize, new: &Rule) {
        // The last word of a row: enforcement, and what beside it never changes.
        let last = [
            new.shift,
            new.share_shift,
            new.enforcement,
            new.on_full,
            new.action,
            new.opens_key,
            new.closes_key,
            new.is_swift,
        ];
        let interval = (INTERVAL, new.interval);
        let most = (MOST, new.most);
        let slows = new.interval >= self.word(row, INTERVAL).load(Ordering::Acquire);
        // The largest cost shrinks first and grows last.
        let order = if slows { [most, interval] } else { [interval, most] };
        for (word, value) in order.into_iter().chain([(LAST, u64::from_ne_bytes(last))]) {
            self.word(row, word).store(value, Ordering::SeqCst);
        }
    }

    /// A row as it is in force.
    #[cfg(test)]
    fn words(&self, row: usize) -> [u64; WORDS] {
        std::array::from_fn(|word| self.word(row, word).load(Ordering::Acquire))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use common::limiter::token_bucket::Costs;
    use common::limiter::{Rate, TokenBucket};
    use common::share::Share;
    use common::time::TickScale;

    /// Memory instead of a map: a page of rows.
    fn rows() -> Rows {
        let file = tempfile::tempfile().unwrap();
        file.set_len(4096).unwrap();
        Rows { memory: MmapOptions::new().len(4096).map_raw(&file).unwrap(), count: 64 }
    }

    #[test]
    fn a_row_is_replaced_where_a_share_changes_it_and_nowhere_else() {
        let bucket = TokenBucket::new(Rate::per_second(1_000), 100, Costs::Single, TickScale::FINEST);
        let whole = Rule { counter: 7, enforcement: 1, opens_key: 1, ..Rule::EMPTY.with_token_bucket(bucket) };
        let (small, large) =
            (whole.at_share(Share::of_parts(10_000_000)), whole.at_share(Share::of_parts(900_000_000)));
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
            let mut seen = 0u64;
            while !is_over.load(Ordering::Acquire) {
                let words = rows.words(3);
                // Every word is one of the two rows', whole.
                assert!([small.interval, large.interval].contains(&words[INTERVAL]));
                assert!([small.most, large.most].contains(&words[MOST]));
                seen += 1;
            }
            assert!(seen > 0);
        });
        let words = rows.words(3);
        assert_eq!((words[INTERVAL], words[MOST]), (small.interval, small.most));
        assert_eq!(words[LAST].to_ne_bytes()[2], 1, "how it enforces");
        assert_eq!(words[LAST].to_ne_bytes()[5], 1, "where it stands in its span");
        assert!((1..LAST).filter(|word| *word != MOST).all(|word| words[word] == 0), "{words:?}");
        assert_eq!((rows.words(2), rows.words(4)), ([0; WORDS], [0; WORDS]));
    }
}
