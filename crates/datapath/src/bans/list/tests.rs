use proptest::prelude::*;

use super::trie::until;
use super::*;
use crate::bans::{BanEntry, Change, Entry, Owner};

/// Prefixes of a small space, so that they often contain each other.
fn prefix() -> impl Strategy<Value = PrefixKey> {
    (0u8..=255, 0u32..=8).prop_map(|(byte, length)| {
        let mut address = [0; 16];
        address[0] = byte;
        PrefixKey { address, length }.cut(length)
    })
}

fn host(byte: u8) -> PrefixKey {
    PrefixKey {
        address: [byte; 16],
        length: 128,
    }
}

fn jail(prefix: PrefixKey, name: &str) -> BanKey {
    BanKey::new(prefix, Owner::named(By::Operator, name))
}

fn ban(list: &mut BanList, key: BanKey, held: Held) -> Vec<Change> {
    let mut touched = Touched::default();
    list.ban(key, held, &mut touched);
    list.changes(&touched)
}

fn lift(list: &mut BanList, key: &BanKey) -> bool {
    list.lift(key, &mut Touched::default())
}

#[test]
fn an_owner_shortens_no_ban_of_his_own_and_adds_to_anothers() {
    let mut list = BanList::default();
    let (short, long) = (jail(host(1), "sshd"), jail(host(1), "recidive"));
    ban(&mut list, long.clone(), until(100));
    assert!(list.kept(&long, 99, 50).is_some());
    // Equally long, longer, after the other has ended, or of another owner.
    assert!(list.kept(&long, 100, 50).is_none());
    assert!(list.kept(&long, Ban::FOREVER, 50).is_none());
    assert!(list.kept(&long, 99, 200).is_none());
    assert!(list.kept(&short, 99, 50).is_none());
    ban(&mut list, short.clone(), until(60));
    assert_eq!(list.entry(&host(1)).unwrap().until, 100);
    assert!(lift(&mut list, &short) && !lift(&mut list, &short));
    assert_eq!(list.entry(&host(1)).unwrap().until, 100);
}

#[test]
fn addresses_of_one_network_have_bans_of_their_own() {
    let network = host(1).cut(64);
    let of = |interface_id| BanKey {
        interface_id,
        ..jail(network, "root")
    };
    let mut list = BanList::default();
    ban(&mut list, of(1), until(100));
    ban(&mut list, of(2), until(200));
    assert_eq!((list.len(), list.count_of(By::Operator)), (1, 2));
    assert!(lift(&mut list, &of(2)));
    assert_eq!(list.entry(&network).unwrap().until, 100);
    assert!(lift(&mut list, &of(1)) && list.is_empty());
}

#[test]
fn a_prefix_has_a_bounded_number_of_bans_that_users_name() {
    let mut list = BanList::default();
    let nth = |nth: usize| jail(host(1), &format!("jail-{nth}"));
    for of in 0..MOST_OF_PREFIX {
        assert!(!list.is_full(&nth(of)));
        ban(&mut list, nth(of), until(100));
    }
    assert!(list.is_full(&nth(MOST_OF_PREFIX)));
    // Neither an owner who has one nor another author or prefix.
    assert!(!list.is_full(&nth(0)) && !list.is_full(&jail(host(2), "a")));
    assert!(!list.is_full(&BanKey::of(host(1), By::Limit)));
    lift(&mut list, &nth(0));
    assert!(!list.is_full(&nth(MOST_OF_PREFIX)));
}

#[test]
fn addresses_of_a_crowded_network_become_a_ban_of_the_whole() {
    let network = host(1).cut(64);
    let address = |name: &str, interface_id| BanKey {
        interface_id,
        ..jail(network, name)
    };
    let mut list = BanList::default();
    let most = MOST_OF_PREFIX as u64;
    ban(&mut list, jail(network, "recidive"), until(5));
    for id in 1..most {
        assert_eq!(list.to_merge(&address("sshd", id)), None);
        ban(&mut list, address("sshd", id), until(100 + id % 7));
    }
    // The owner with most bans makes room, for any owner's further ban.
    for key in [address("sshd", most), jail(network, "web")] {
        let merge = list.to_merge(&key).unwrap();
        assert_eq!(merge.keys.len(), MOST_OF_PREFIX - 1);
        assert_eq!(merge.whole, jail(network, "sshd"));
        assert_eq!(merge.held, until(106));
    }
    assert_eq!(list.to_merge(&address("sshd", 1)), None, "it has one");
    let merge = list.to_merge(&address("sshd", most)).unwrap();
    let before = list.entry(&network);
    for key in &merge.keys {
        assert!(lift(&mut list, key));
    }
    ban(&mut list, merge.whole, merge.held);
    assert_eq!(list.entry(&network), before);
    assert_eq!(list.count_of(By::Operator), 2);
    // The whole and more addresses are merged again; bans by as many owners are not.
    for id in 1..most {
        ban(&mut list, address("sshd", id), until(200));
    }
    let merge = list.to_merge(&address("sshd", most)).unwrap();
    assert_eq!((merge.keys.len(), merge.held), (MOST_OF_PREFIX, until(200)));
    let mut list = BanList::default();
    for nth in 0..most {
        ban(&mut list, address(&format!("jail-{nth}"), 1), until(100));
    }
    let another = address("another", 1);
    assert!(list.to_merge(&another).is_none() && list.is_full(&another));
}

#[test]
fn a_suspended_ban_is_taken_up_again_unless_it_ended_or_was_lifted() {
    let limit = |byte| BanKey::new(host(byte), Owner::named(By::Limit, "web"));
    let mut list = BanList::default();
    for byte in 1..=3 {
        ban(&mut list, limit(byte), until(100 * u64::from(byte)));
    }
    ban(&mut list, jail(host(5), "root"), until(900));
    let by_limits: Vec<_> = list
        .of(By::Limit)
        .map(|(key, held)| (key.clone(), held.clone()))
        .collect();
    for (key, held) in by_limits {
        lift(&mut list, &key);
        list.suspend(key, held);
    }
    assert_eq!(
        (list.len(), list.suspended(0), list.suspended(150)),
        (1, 3, 2)
    );
    assert_eq!(list.own_keys(&host(3)).count(), 1);
    assert!(lift(&mut list, &limit(3)));
    assert_eq!(list.take_suspended(150), [(limit(2), until(200))]);
    assert_eq!((list.len(), list.suspended(0)), (1, 0));
}

#[test]
fn each_owner_lifts_its_own_ban_and_the_latest_end_counts() {
    let mut list = BanList::default();
    let entry = |list: &BanList| {
        let Entry {
            until, own_until, ..
        } = list.entry(&host(1)).unwrap();
        (until, own_until)
    };
    let crowdsec = BanKey::of(host(1), By::CrowdSec);
    let limit = BanKey::new(host(1), Owner::named(By::Limit, "web"));
    ban(&mut list, jail(host(1), "sshd"), until(100));
    ban(&mut list, crowdsec.clone(), until(300));
    assert_eq!((entry(&list), list.len()), ((300, 100), 1));
    ban(&mut list, limit.clone(), until(200));
    assert_eq!(
        By::ALL.map(|by| list.count_of(by)),
        [1, 1, 1, 0],
        "one of each author"
    );
    let owners = |list: &BanList, now: u64| {
        let holders = list.holders(&host(1), now).into_iter();
        holders.map(|(key, _)| key.clone()).collect::<Vec<_>>()
    };
    let all = [crowdsec.clone(), limit.clone(), jail(host(1), "sshd")];
    assert_eq!(owners(&list, 50), all);
    assert_eq!(owners(&list, 150), all[..2]);
    assert!(lift(&mut list, &limit));
    assert_eq!(entry(&list), (300, 100));
    assert!(lift(&mut list, &crowdsec));
    assert_eq!((entry(&list), list.len()), ((100, 100), 1));
    let mut touched = Touched::default();
    assert!(list.lift(&jail(host(1), "sshd"), &mut touched) && list.is_empty());
    assert_eq!(
        list.changes(&touched),
        [Change {
            prefix: host(1),
            entry: None,
            is_new: false
        }]
    );
    assert!(list.lengths.is_empty());
}

/// The trie's entries after these changes.
fn written(changes: Vec<Change>) -> Vec<BanEntry> {
    let entry = |change: Change| {
        let Entry {
            until,
            own_until,
            authors,
        } = change.entry?;
        let refused = authors | 7;
        Some(BanEntry {
            prefix: change.prefix,
            ban: Ban {
                until,
                own_until,
                refused,
            },
        })
    };
    changes.into_iter().filter_map(entry).collect()
}

#[test]
fn the_trie_says_which_authors_made_an_entry() {
    for own in [None, Some(By::Operator), Some(By::Limit)] {
        for (author, elsewhere) in [
            (By::CrowdSec, None),
            (By::CrowdSec, Some(700)),
            (By::Host, Some(700)),
        ] {
            for is_exception in [false, true] {
                let mut list = BanList::default();
                let mut touched = Touched::default();
                let of = |by| BanKey::of(host(1), by);
                own.iter()
                    .for_each(|by| list.ban(of(*by), until(100), &mut touched));
                elsewhere
                    .iter()
                    .for_each(|end| list.ban(of(author), until(*end), &mut touched));
                if is_exception {
                    list.except(host(1), &mut touched);
                }
                let entries = written(list.changes(&touched));
                assert!(entries.iter().all(|entry| entry.ban.packets() == 7));
                let mut resumed = BanList::resume(entries, &BTreeMap::new());
                if is_exception && elsewhere.is_some() {
                    // With an exception the trie does not have the end of a ban from elsewhere.
                    ban(&mut resumed, of(author), until(700));
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
fn the_next_agent_has_the_owners_that_were_saved_and_the_ends_of_the_trie() {
    let (sshd, recidive) = (jail(host(1), "sshd"), jail(host(1), "recidive"));
    let unknown = BanKey::of(host(1), By::Operator);
    let saved: BTreeMap<_, _> = [(sshd.clone(), until(100)), (recidive.clone(), until(200))].into();
    let entry = |own_until| BanEntry {
        prefix: host(1),
        ban: Ban {
            until: own_until,
            own_until,
            refused: 0,
        },
    };
    let resumed = |own_until| {
        let list = BanList::resume([entry(own_until)], &saved);
        let held = list.held.into_iter();
        held.map(|(key, held)| (key, held.until))
            .collect::<Vec<_>>()
    };
    assert_eq!(resumed(200), [(recidive.clone(), 200), (sshd.clone(), 100)]);
    // The longer one was lifted after the save, and after that another one made.
    assert_eq!(resumed(100), [(sshd.clone(), 100)]);
    assert_eq!(resumed(150), [(unknown.clone(), 150), (sshd.clone(), 100)]);
    // A longer one was made after the save.
    assert_eq!(
        resumed(Ban::FOREVER),
        [(unknown, Ban::FOREVER), (recidive, 200), (sshd, 100)]
    );
    assert!(BanList::resume([], &saved).is_empty(), "all were lifted");
}

#[test]
fn a_changed_list_is_restored() {
    let mut list = BanList::default();
    ban(&mut list, BanKey::of(host(1), By::Limit), until(100));
    list.except(host(1), &mut Touched::default());
    let (before, record) = (list.clone(), list.record(&host(1)));
    ban(&mut list, jail(host(1), "sshd"), until(7));
    ban(&mut list, BanKey::of(host(1), By::CrowdSec), until(9));
    list.end_exception(&host(1), &mut Touched::default());
    list.restore(record);
    assert_eq!(list, before);
}

/// One change of the list.
#[derive(Clone, Debug)]
enum Step {
    Ban(Owner, u64),
    Lift(Owner),
    /// Ends what has ended.
    Clear(u64),
    Except,
    EndException,
}

fn owner() -> impl Strategy<Value = Owner> {
    prop::sample::select(vec![
        Owner::unnamed(By::Operator),
        Owner::named(By::Operator, "sshd"),
        Owner::named(By::Operator, "recidive"),
        Owner::named(By::Limit, "web"),
        Owner::named(By::Limit, "dns"),
        Owner::unnamed(By::CrowdSec),
        Owner::unnamed(By::Host),
    ])
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (owner(), 1u64..1_000).prop_map(|(owner, until)| Step::Ban(owner, until)),
        2 => owner().prop_map(Step::Lift),
        1 => (0u64..400).prop_map(Step::Clear),
        1 => Just(Step::Except),
        1 => Just(Step::EndException),
    ]
}

proptest! {
    /// The trie's longest entry for an address gives the verdict of all owners' bans together, after each batch, at any
    /// later time; and the next agent, with the owners saved, has the same bans.
    #[test]
    fn the_longest_entry_says_what_all_bans_say(
        batches in prop::collection::vec(prop::collection::vec((prefix(), step()), 1..10), 1..12),
        now in 400u64..1_000,
    ) {
        let mut list = BanList::default();
        let mut trie: BTreeMap<(u32, [u8; 16]), Entry> = BTreeMap::new();
        let mut model: BTreeMap<(PrefixKey, Owner), u64> = BTreeMap::new();
        let mut exceptions: BTreeSet<PrefixKey> = BTreeSet::new();
        for batch in batches {
            let mut touched = Touched::default();
            for (prefix, step) in batch {
                match step {
                    Step::Ban(owner, end) => {
                        model.insert((prefix, owner.clone()), end);
                        list.ban(BanKey::new(prefix, owner), until(end), &mut touched);
                    }
                    Step::Lift(owner) => {
                        let key = BanKey::new(prefix, owner.clone());
                        prop_assert_eq!(list.lift(&key, &mut touched), model.remove(&(prefix, owner)).is_some());
                    }
                    Step::Clear(at) => {
                        model.retain(|_, until| at < *until);
                        for key in list.ended(at) {
                            prop_assert!(list.lift(&key, &mut touched));
                        }
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
                    Some(entry) => drop(trie.insert(key, entry)),
                    None => drop(trie.remove(&key)),
                }
            }
        }
        let prefixes: BTreeSet<PrefixKey> = model.keys().map(|(prefix, _)| *prefix).collect();
        prop_assert_eq!(list.len(), prefixes.len());
        prop_assert_eq!(list.prefixes().collect::<Vec<_>>(), prefixes.into_iter().collect::<Vec<_>>());
        let refuses = |list: &BanList, whole: &PrefixKey| list.around(whole, now).is_some();
        for byte in 0..=255u8 {
            let mut address = [0; 16];
            address[0] = byte;
            let whole = PrefixKey { address, length: 128 };
            let contains = |outer: &PrefixKey| whole.cut(outer.length) == *outer;
            let longest = trie.iter().rev().find(|((length, of), _)| whole.cut(*length).address == *of);
            let by_trie = longest.is_some_and(|(_, entry)| Ban::is_in_effect(entry.until, now));
            let is_excepted = exceptions.iter().any(contains);
            let by_all = model.iter().any(|((of, owner), until)| {
                contains(of) && Ban::is_in_effect(*until, now) && !(is_excepted && owner.by.is_elsewhere())
            });
            prop_assert_eq!(by_trie, by_all);
            prop_assert_eq!(refuses(&list, &whole), by_all);
        }
        let changes = trie.iter().map(|((length, address), entry)| Change {
            prefix: PrefixKey { address: *address, length: *length },
            entry: Some(*entry),
            is_new: false,
        });
        let is_own = |key: &BanKey| key.owner.by.is_own();
        let own: BTreeMap<_, _> = list.held.iter().filter(|(key, _)| is_own(key)).map(|(key, held)| (key.clone(), held.clone())).collect();
        let resumed = BanList::resume(written(changes.collect()), &own);
        let again: BTreeMap<_, _> = resumed.held.into_iter().filter(|(key, _)| is_own(key)).collect();
        prop_assert_eq!(again, own);
    }
}
