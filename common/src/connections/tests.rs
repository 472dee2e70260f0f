use std::sync::atomic::{AtomicU64, Ordering};

use proptest::prelude::*;

use super::*;
use crate::table::Counted;

#[derive(Clone, Copy)]
struct Word<'w>(&'w AtomicU64);

impl Cell for Word<'_> {
    fn load(self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    fn compare_exchange(self, current: u64, new: u64) -> u64 {
        self.0
            .compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst)
            .unwrap_or_else(|current| current)
    }

    fn store(self, value: u64) {
        self.0.store(value, Ordering::SeqCst);
    }

    fn count(self, _byte: u32, _packets: u32, _instant: u8) -> Counted {
        unreachable!("a word of reservations has no tallies")
    }
}

#[derive(Clone, Debug)]
enum Step {
    Reserve,
    /// The nth reservation becomes an open connection, or is given up.
    End(usize),
    Wait(u32),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => Just(Step::Reserve),
        2 => (0usize..50).prop_map(Step::End),
        1 => (0u32..5).prop_map(Step::Wait),
        1 => Just(Step::Wait(40_000)),
    ]
}

proptest! {
    /// The count is that of a list of reservations with their windows, and never above the limit.
    #[test]
    fn a_word_counts_what_a_list_of_reservations_would(
        start in any::<u32>(),
        most in 1u64..20,
        steps in prop::collection::vec(step(), 0..80),
    ) {
        let word = AtomicU64::new(0);
        let mut now = start;
        let mut list: Vec<u32> = Vec::new();
        for step in steps {
            match step {
                Step::Reserve => {
                    list.retain(|made| is_in_effect(*made, now));
                    let result = reserve_one(Word(&word), || 0, most, now, false);
                    prop_assert_eq!(result == Reserved::Within, (list.len() as u64) < most);
                    if result == Reserved::Within {
                        list.push(now);
                    }
                }
                Step::End(nth) if nth < list.len() => release_one(Word(&word), list.remove(nth)),
                Step::End(_) => {}
                Step::Wait(windows) => now = now.wrapping_add(windows),
            }
            list.retain(|made| is_in_effect(*made, now));
            prop_assert_eq!(Pending(word.load(Ordering::SeqCst)).at(now).count(), list.len() as u64);
            prop_assert!(list.len() as u64 <= most);
        }
    }

    /// A CPU that reads the clock earlier neither clears what others reserved nor loses its own.
    #[test]
    fn a_late_cpu_counts_in_the_newest_window(now in any::<u32>(), behind in 0u32..2) {
        let word = AtomicU64::new(0);
        reserve_one(Word(&word), || 0, 9, now, false);
        let late = now.wrapping_sub(behind);
        reserve_one(Word(&word), || 0, 9, late, false);
        prop_assert_eq!(Pending(word.load(Ordering::SeqCst)).at(now).count(), 2);
        release_one(Word(&word), late);
        prop_assert!(Pending(word.load(Ordering::SeqCst)).at(now).count() >= 1);
    }
}

/// The number of a word's window is 0 at first, or of any time ago.
#[test]
fn a_word_without_reservations_has_no_window() {
    for window in (0..=u32::from(u16::MAX)).chain([u32::MAX - 1, u32::MAX]) {
        let word = AtomicU64::new(0);
        let count = |now| Pending(word.load(Ordering::SeqCst)).at(now).count();
        reserve_one(Word(&word), || 0, 9, window, false);
        let counts: Vec<u64> = (0..4).map(|age| count(window.wrapping_add(age))).collect();
        assert_eq!(counts, [1, 1, 1, 0], "{window}");
        release_one(Word(&word), window);
        reserve_one(Word(&word), || 0, 9, window.wrapping_add(0xfff5), false);
        assert_eq!(count(window.wrapping_add(0xfff8)), 0, "{window}");
    }
}

#[test]
fn open_connections_and_reservations_together_stay_within_the_limit() {
    let word = AtomicU64::new(0);
    let admitted = (0..100)
        .filter(|_| reserve_one(Word(&word), || 7, 10, 5, false) == Reserved::Within)
        .count();
    assert_eq!(admitted, 3);
    // On `observe` they are counted all the same.
    assert_eq!(reserve_one(Word(&word), || 7, 10, 5, true), Reserved::Over);
    assert_eq!(Pending(word.load(Ordering::SeqCst)).count(), 4);
}

#[test]
fn several_cpus_reserve_no_more_than_the_limit() {
    for _ in 0..50 {
        let (word, open) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..200 {
                        let counted = || open.load(Ordering::SeqCst);
                        if reserve_one(Word(&word), counted, 100, 5, false) == Reserved::Within {
                            let count_up = || {
                                assert!(open.fetch_add(1, Ordering::SeqCst) < 100);
                                true
                            };
                            establish(count_up, || Some(Word(&word)), 5, 5);
                        }
                    }
                });
            }
        });
        assert!(open.load(Ordering::SeqCst) <= 100);
    }
}

#[test]
fn an_admission_is_one_number() {
    assert_eq!(
        (
            Admission::admitted(3).rules(),
            Admission::admitted(3).refusing()
        ),
        (3, None)
    );
    assert_eq!(Admission::refused_by(0).refusing(), Some(0));
    assert_eq!(
        Admission::refused_by(u32::MAX - 1).refusing(),
        Some(u32::MAX - 1)
    );
}

#[test]
fn a_socket_is_missing_if_it_has_not_been_seen_since_an_instant() {
    const SECOND: u64 = 1 << 30;
    let connection = |seconds: u64| Connection {
        since: 100 * SECOND + 5,
        seen: seen_at(seconds * SECOND),
        ..Connection::default()
    };
    // It was there when its socket was established, and is not looked for before.
    assert!(
        !connection(100).is_missing_since(0) && !connection(100).is_missing_since(100 * SECOND + 5)
    );
    assert!(
        connection(100).is_missing_since(101 * SECOND)
            && !connection(130).is_missing_since(130 * SECOND + 7)
    );
    assert!(connection(130).is_missing_since(160 * SECOND));
}
