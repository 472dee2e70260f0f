use super::*;
use proptest::prelude::*;

/// Prefixes of a small space, so that they often contain each other.
fn prefix() -> impl Strategy<Value = PrefixKey> {
    (0u8..=255, 0u32..=8).prop_map(|(byte, length)| {
        let mut address = [0; 16];
        address[0] = byte;
        PrefixKey { address, length }.cut(length)
    })
}

fn until(until: u64) -> Held {
    Held {
        until,
        ..Held::default()
    }
}

fn ban(list: &mut BanList, prefix: PrefixKey, by: By, held: Held) -> Vec<Change> {
    let mut touched = Touched::default();
    list.ban(prefix, by, held, &mut touched);
    list.changes(&touched)
}

#[test]
fn only_the_operator_shortens_a_ban_and_not_one_of_his_own() {
    let prefix = PrefixKey {
        address: [1; 16],
        length: 128,
    };
    for (held_by, by, is_kept) in [
        (By::Operator, By::Operator, true),
        (By::Operator, By::Limit, true),
        (By::Limit, By::Operator, false),
        (By::Limit, By::Limit, true),
    ] {
        let mut list = BanList::default();
        ban(&mut list, prefix, held_by, until(100));
        assert_eq!(
            list.kept(&prefix, 99, by, 50).is_some(),
            is_kept,
            "{by:?} after {held_by:?}"
        );
        // Equally long, longer, or after the other has ended.
        assert_eq!(list.kept(&prefix, 100, by, 50), None);
        assert_eq!(list.kept(&prefix, Ban::FOREVER, by, 50), None);
        assert_eq!(list.kept(&prefix, 99, by, 200), None);
        ban(&mut list, prefix, held_by, until(Ban::FOREVER));
        assert_eq!(list.kept(&prefix, u64::MAX - 1, by, 50).is_some(), is_kept);
    }
}

#[test]
fn a_suspended_ban_is_taken_up_again_unless_it_ended_or_was_lifted() {
    let prefix = |byte| PrefixKey {
        address: [byte; 16],
        length: 128,
    };
    let mut list = BanList::default();
    for byte in 1..=4 {
        ban(
            &mut list,
            prefix(byte),
            By::Limit,
            until(100 * u64::from(byte)),
        );
    }
    ban(&mut list, prefix(5), By::Operator, until(900));
    let by_limits: Vec<_> = list
        .of(By::Limit)
        .map(|(prefix, held)| (prefix, held.clone()))
        .collect();
    for (prefix, held) in by_limits {
        list.lift_own(&prefix, &mut Touched::default());
        list.suspend(prefix, held);
    }
    assert_eq!(
        (list.len(), list.suspended(0), list.suspended(150)),
        (1, 4, 3)
    );
    assert!(list.lift_own(&prefix(3), &mut Touched::default()));
    ban(&mut list, prefix(4), By::Operator, until(50));
    assert_eq!(list.take_suspended(150), [(prefix(2), until(200))]);
    assert_eq!((list.len(), list.suspended(0)), (2, 0));
}

#[test]
fn each_author_lifts_its_own_ban_and_the_latest_end_counts() {
    let prefix = PrefixKey {
        address: [1; 16],
        length: 128,
    };
    let mut list = BanList::default();
    let entry = |list: &BanList| list.entry(&prefix).unwrap();
    ban(&mut list, prefix, By::Operator, until(100));
    ban(&mut list, prefix, By::CrowdSec, until(300));
    assert_eq!(
        (entry(&list).until, entry(&list).own_until, list.len()),
        (300, 100, 1)
    );
    ban(&mut list, prefix, By::Limit, until(200));
    assert_eq!(
        (
            list.count_of(By::Operator),
            list.count_of(By::Limit),
            list.count_of(By::CrowdSec)
        ),
        (0, 1, 1)
    );
    assert_eq!(
        list.holders(&prefix, 50)
            .iter()
            .map(|(by, _)| *by)
            .collect::<Vec<_>>(),
        [By::CrowdSec, By::Limit]
    );
    assert!(list.lift_own(&prefix, &mut Touched::default()));
    assert_eq!((entry(&list).until, entry(&list).own_until), (300, 0));
    ban(&mut list, prefix, By::Operator, until(400));
    assert!(list.lift(&prefix, By::CrowdSec, &mut Touched::default()));
    assert_eq!((entry(&list).until, list.len()), (400, 1));
    let mut touched = Touched::default();
    assert!(list.lift_own(&prefix, &mut touched) && list.is_empty());
    assert_eq!(
        list.changes(&touched),
        [Change {
            prefix,
            entry: None,
            is_new: false
        }]
    );
    assert!(list.lengths.is_empty());
}

#[test]
fn the_trie_says_who_made_an_entry() {
    let prefix = PrefixKey {
        address: [1; 16],
        length: 128,
    };
    for own in [None, Some(By::Operator), Some(By::Limit)] {
        for (author, elsewhere) in [
            (By::CrowdSec, None),
            (By::CrowdSec, Some(700)),
            (By::Host, Some(700)),
        ] {
            for is_exception in [false, true] {
                let mut list = BanList::default();
                let mut touched = Touched::default();
                own.iter()
                    .for_each(|by| list.ban(prefix, *by, until(100), &mut touched));
                elsewhere
                    .iter()
                    .for_each(|end| list.ban(prefix, author, until(*end), &mut touched));
                if is_exception {
                    list.except(prefix, &mut touched);
                }
                let written = list.changes(&touched).into_iter().filter_map(|change| {
                    let Entry {
                        until,
                        own_until,
                        authors,
                    } = change.entry?;
                    Some(BanEntry {
                        prefix,
                        ban: Ban {
                            until,
                            own_until,
                            refused: authors | 7,
                        },
                    })
                });
                let written: Vec<BanEntry> = written.collect();
                assert!(written.iter().all(|entry| entry.ban.packets() == 7));
                let mut resumed = BanList::resume(written);
                if is_exception && elsewhere.is_some() {
                    // With an exception the trie does not have the end of a ban from elsewhere.
                    ban(&mut resumed, prefix, author, until(700));
                }
                assert_eq!(
                    resumed, list,
                    "{own:?} {author:?} {elsewhere:?} {is_exception}"
                );
            }
        }
    }
}

#[test]
fn what_was_changed_is_restored() {
    let mut list = BanList::default();
    let prefix = PrefixKey {
        address: [1; 16],
        length: 128,
    };
    ban(&mut list, prefix, By::Limit, until(100));
    list.except(prefix, &mut Touched::default());
    let (before, record) = (list.clone(), list.record(&prefix));
    ban(&mut list, prefix, By::Operator, until(7));
    ban(&mut list, prefix, By::CrowdSec, until(9));
    list.end_exception(&prefix, &mut Touched::default());
    list.restore(record);
    assert_eq!(list, before);
}

/// One change of the list.
#[derive(Clone, Copy, Debug)]
enum Step {
    Ban(By, u64),
    Lift(By),
    Except,
    EndException,
}

fn step() -> impl Strategy<Value = Step> {
    let by = || prop::sample::select(By::ALL.to_vec());
    prop_oneof![
        6 => (by(), 1u64..1_000).prop_map(|(by, until)| Step::Ban(by, until)),
        2 => by().prop_map(Step::Lift),
        1 => Just(Step::Except),
        1 => Just(Step::EndException),
    ]
}

proptest! {
    /// The trie's longest entry for an address gives the verdict of all bans together, after each batch.
    #[test]
    fn the_longest_entry_says_what_all_bans_say(
        batches in prop::collection::vec(prop::collection::vec((prefix(), step()), 1..10), 1..12),
        now in 0u64..1_000,
    ) {
        let mut list = BanList::default();
        let mut trie: BTreeMap<(u32, [u8; 16]), u64> = BTreeMap::new();
        let mut model: BTreeMap<(PrefixKey, By), u64> = BTreeMap::new();
        let mut exceptions: BTreeSet<PrefixKey> = BTreeSet::new();
        for batch in batches {
            let mut touched = Touched::default();
            for (prefix, step) in batch {
                match step {
                    Step::Ban(by, end) => {
                        if !by.is_elsewhere() {
                            By::OWN.iter().for_each(|own| { model.remove(&(prefix, *own)); });
                        }
                        model.insert((prefix, by), end);
                        list.ban(prefix, by, until(end), &mut touched);
                    }
                    Step::Lift(by) => {
                        prop_assert_eq!(list.lift(&prefix, by, &mut touched), model.remove(&(prefix, by)).is_some());
                    }
                    Step::Except => {
                        exceptions.insert(prefix);
                        list.except(prefix, &mut touched);
                    }
                    Step::EndException => {
                        prop_assert_eq!(list.end_exception(&prefix, &mut touched), exceptions.remove(&prefix));
                    }
                }
            }
            for change in list.changes(&touched) {
                let key = (change.prefix.length, change.prefix.address);
                prop_assert_eq!(change.is_new, !trie.contains_key(&key), "{:?}", change);
                match change.entry {
                    Some(entry) => drop(trie.insert(key, entry.until)),
                    None => drop(trie.remove(&key)),
                }
            }
        }
        let prefixes: BTreeSet<PrefixKey> = model.keys().map(|(prefix, _)| *prefix).collect();
        prop_assert_eq!(list.len(), prefixes.len());
        prop_assert_eq!(list.prefixes().collect::<Vec<_>>(), prefixes.into_iter().collect::<Vec<_>>());
        for byte in 0..=255u8 {
            let mut address = [0; 16];
            address[0] = byte;
            let whole = PrefixKey { address, length: 128 };
            let contains = |outer: &PrefixKey| whole.cut(outer.length) == *outer;
            let longest = trie.iter().rev().find(|((length, of), _)| whole.cut(*length).address == *of);
            let by_trie = longest.is_some_and(|(_, until)| Ban::is_in_effect(*until, now));
            let is_excepted = exceptions.iter().any(contains);
            let by_all = model.iter().any(|((of, by), until)| {
                contains(of) && Ban::is_in_effect(*until, now) && !(is_excepted && by.is_elsewhere())
            });
            prop_assert_eq!(by_trie, by_all);
            prop_assert_eq!(list.around(&whole, now).is_some(), by_all);
        }
    }
}
