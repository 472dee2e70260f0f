//! Bans and their reasons in the state file.

use std::collections::HashMap;

use common::ban::Ban;
use datapath::bans::{BanList, By, Held, Touched, Why};
use datapath::compile::PrefixKey;
use datapath::{BanEntry, Bans, LoadError};

use crate::daemon::state::{Restore, SavedReason};

/// The reasons and the starts of bans, for the state file.
pub(super) fn saved_reasons(bans: &[BanEntry], held: Vec<(PrefixKey, Held)>) -> Vec<SavedReason> {
    let held: HashMap<PrefixKey, Held> = held.into_iter().collect();
    let mut saved: HashMap<(Option<&Why>, u64), Vec<usize>> = HashMap::new();
    for (nth, entry) in bans.iter().enumerate().filter(|_| !held.is_empty()) {
        if let Some(held) = held.get(&entry.prefix) {
            saved
                .entry((held.why.as_ref(), held.since))
                .or_default()
                .push(nth);
        }
    }
    let saved = saved.into_iter().map(|((why, since), bans)| SavedReason {
        text: why.map(|why| why.text.to_string()).unwrap_or_default(),
        limit: why
            .and_then(|why| why.limit.as_ref())
            .map(ToString::to_string),
        since,
        bans,
    });
    saved.collect()
}

/// Restores saved bans that have not expired. Returns why some failed.
pub(super) fn restore_bans(
    trie: &mut Bans<'_>,
    bans: &mut BanList,
    restore: &Restore,
) -> Option<LoadError> {
    let mut failure = None;
    for entry in &restore.saved.bans {
        let until = match entry.ban.own_until {
            Ban::FOREVER => Ban::FOREVER,
            until if until > restore.then => restore.now.saturating_add(until - restore.then),
            _ => continue,
        };
        if bans.own(&entry.prefix).is_some() {
            continue;
        }
        let mut touched = Touched::default();
        bans.ban(
            entry.prefix,
            By::of(&entry.ban),
            Held {
                until,
                ..Held::default()
            },
            &mut touched,
        );
        for change in bans.changes(&touched) {
            let Some(written) = change.entry else {
                continue;
            };
            let result = if change.prefix == entry.prefix {
                trie.restore(&entry.prefix, &written, entry.ban.packets())
            } else {
                trie.write(&[change])
            };
            failure = failure.or(result.err());
        }
    }
    failure
}
