//! Bans of the state file, in the list of bans and in the kernel.

use std::collections::{BTreeMap, HashMap};

use config::PrefixKey;
use datapath::bans::{BanList, Touched};
use datapath::{BanEntry, Bans, LoadError};
use host::Moment;

use crate::daemon::state::{Restore, SavedBan};

/// The most bans changed under one lock or in one call of the kernel.
pub(super) const AT_ONCE: usize = 2_000;

/// The bans that an earlier agent of this boot left in the kernel, with the owners that were saved; `restored` is when an
/// agent of this boot restored the state file, if one did.
pub(super) fn resume_bans(
    entries: Vec<BanEntry>,
    saved: Option<&Restore>,
    restored: Option<&Moment>,
) -> BanList {
    let owners = saved
        .map(|saved| saved.owners(restored))
        .unwrap_or_default();
    BanList::resume(entries, &owners)
}

/// Restores saved bans that have not expired, in place of those that a part of an earlier restoration left. Returns why
/// some failed.
pub(super) fn restore_bans(
    trie: &mut Bans<'_>,
    entries: Vec<BanEntry>,
    restore: &Restore,
) -> (BanList, Option<LoadError>) {
    let elsewhere = entries.into_iter().filter_map(|mut entry| {
        let ban = &mut entry.ban;
        ban.own_until = 0;
        (ban.is_by_crowdsec() || ban.is_by_host() || ban.is_exception()).then_some(entry)
    });
    let mut bans = BanList::resume(elsewhere, &BTreeMap::new());
    let (mut touched, mut packets) = (Touched::default(), HashMap::<PrefixKey, u64>::new());
    for SavedBan {
        key,
        held,
        packets: of_prefix,
    } in restore.bans()
    {
        packets.insert(key.prefix, of_prefix);
        bans.ban(key, held, &mut touched);
    }
    let mut failure = None;
    for some in bans.changes(&touched).chunks(AT_ONCE) {
        failure = failure.or(trie.write(some).err());
        for change in some {
            let counted = packets.get(&change.prefix).filter(|packets| **packets > 0);
            if let (Some(entry), Some(packets)) = (&change.entry, counted) {
                let result = trie.restore(&change.prefix, entry, *packets);
                failure = failure.or(result.err());
            }
        }
    }
    (bans, failure)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::state::Saved;
    use common::ban::Ban;
    use datapath::bans::{BanKey, By, Held, Owner};

    const HOUR: u64 = 3_600_000_000_000;

    #[test]
    fn owners_that_a_killed_start_restored_are_known_to_the_next_one() {
        let prefix = config::policy::Prefix::of_address([192, 0, 2, 1].into());
        let prefix = PrefixKey::from(&prefix);
        let ban = |name: &str, until: u64| SavedBan {
            key: BanKey::new(prefix, Owner::named(By::Operator, name)),
            held: Held {
                until,
                ..Held::default()
            },
            packets: 0,
        };
        let present = Moment::now();
        let at = Moment {
            boot: "before".to_owned(),
            monotonic: 70 * HOUR,
            wall: present.wall - HOUR,
        };
        let saved = Saved {
            bans: vec![ban("recidive", 90 * HOUR), ban("sshd", 72 * HOUR)],
            at: Some(at),
            ..Saved::default()
        };
        let first = Restore::new(Some(saved.clone()), Vec::new(), present.clone()).unwrap();
        let restored = first.bans();
        let own_until = restored[0].held.until;
        let entry = BanEntry {
            prefix,
            ban: Ban {
                until: own_until,
                own_until,
                refused: 0,
            },
        };
        // The wall clock is set meanwhile.
        let later = Moment {
            wall: present.wall + 5 * HOUR,
            ..present
        };
        let next = Restore::new(Some(saved), Vec::new(), later).unwrap();
        let bans = resume_bans(vec![entry], Some(&next), Some(&first.present));
        let held = bans.own().into_iter();
        let ends: Vec<_> = held.map(|(key, held)| (key.clone(), held.until)).collect();
        let expected = restored.into_iter().map(|ban| (ban.key, ban.held.until));
        assert_eq!(ends, expected.collect::<Vec<_>>());
    }
}
