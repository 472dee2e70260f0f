//! Bans and their reasons in the state file.

use std::collections::HashMap;

use common::ban::Ban;
use datapath::bans::{BanList, By, Why};
use datapath::compile::PrefixKey;
use datapath::{BanEntry, Bans, LoadError};

use crate::daemon::state::{Restore, SavedReason};

/// The reasons of bans, for the state file.
pub(super) fn saved_reasons(bans: &[BanEntry], reasons: Vec<(PrefixKey, Why)>) -> Vec<SavedReason> {
    let reasons: HashMap<_, _> =
        reasons.into_iter().map(|(prefix, why)| ((prefix.address, prefix.length), why)).collect();
    let mut saved: HashMap<&Why, Vec<usize>> = HashMap::new();
    for (nth, entry) in bans.iter().enumerate().filter(|_| !reasons.is_empty()) {
        if let Some(why) = reasons.get(&(entry.prefix.address, entry.prefix.length)) {
            saved.entry(why).or_default().push(nth);
        }
    }
    let saved = saved.into_iter().map(|(why, bans)| SavedReason {
        text: why.text.to_string(),
        limit: why.limit.as_ref().map(ToString::to_string),
        bans,
    });
    saved.collect()
}

/// Restores saved bans that have not expired. Returns why some failed.
pub(super) fn restore_bans(trie: &mut Bans<'_>, bans: &mut BanList, restore: &Restore) -> Option<LoadError> {
    let mut failure = None;
    for entry in &restore.saved.bans {
        let until = match entry.ban.own_until {
            Ban::FOREVER => Ban::FOREVER,
            until if until > restore.then => restore.now.saturating_add(until - restore.then),
            _ => continue,
        };
        if bans.holds(&entry.prefix) {
            continue;
        }
        for change in bans.ban(entry.prefix, until, By::of(&entry.ban)) {
            let refused = if change.prefix == entry.prefix { Some(entry.ban.packets()) } else { None };
            failure = failure.or(trie.restore(&change, refused).err());
        }
    }
    failure
}
