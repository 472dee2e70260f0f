//! Bans of the state file, in the list of bans and in the kernel.

use std::collections::{BTreeMap, HashMap};

use config::PrefixKey;
use datapath::bans::{BanKey, BanList, Held, Touched};
use datapath::{BanEntry, Bans, LoadError};

use crate::daemon::state::{Restore, SavedBan};

/// The most bans changed under one lock or in one call of the kernel.
pub(super) const AT_ONCE: usize = 2_000;

/// The bans that an earlier agent of this boot left in the kernel, with the owners that it saved.
pub(super) fn resume_bans(entries: Vec<BanEntry>, saved: Option<&Restore>) -> BanList {
    let saved = saved.filter(|saved| !saved.is_reboot);
    let owners: BTreeMap<BanKey, Held> = saved
        .map(|restore| restore.saved.owners())
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
