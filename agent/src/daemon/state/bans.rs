//! Bans in the state file when no agent runs.

use std::collections::HashMap;

use common::ban::Ban;
use datapath::PinDirectory;
use datapath::bans::BanList;
use datapath::compile::PrefixKey;
use host::{Moment, StateDirectory};

use super::file::{Saved, SavedBan};
use super::journal;
use super::restore::Restore;

/// Replaces the bans in the state file with those in the kernel, which a stopped agent left in effect: it may have been
/// killed before it saved them. `restored_at` returns the moment of this boot at which an agent restored the file with a
/// checksum. Returns the number of banned prefixes.
///
/// # Errors
///
/// When they cannot be read or saved.
pub fn save_bans(
    directory: &StateDirectory,
    pins: &PinDirectory,
    restored_at: impl FnOnce(u64) -> Option<Moment>,
) -> anyhow::Result<usize> {
    let now = Moment::now();
    let mut bans = pins.bans()?;
    bans.retain(|entry| Ban::is_in_effect(entry.ban.own_until, now.monotonic));
    let saved = Saved::read(directory)?;
    let known = Restore::new(saved, journal::read(directory), now.clone());
    if bans.is_empty() && known.is_none() {
        return Ok(0);
    }
    let restore = known.unwrap_or_else(|| {
        Restore::of_this_boot(Saved {
            at: Some(now.clone()),
            ..Saved::default()
        })
    });
    let restored = restored_at(restore.saved.id).filter(|at| at.boot == now.boot);
    // Of another boot, its clock is not that of the kernel's bans.
    if restore.is_reboot && restored.is_none() {
        anyhow::ensure!(
            bans.is_empty(),
            "the state file is from before the reboot; start the agent once, so that it saves {} bans",
            bans.len()
        );
        return Ok(0);
    }
    let packets = bans.iter().map(|entry| (entry.prefix, entry.ban.packets()));
    let packets: HashMap<PrefixKey, u64> = packets.collect();
    let list = BanList::resume(bans, &restore.owners(restored.as_ref()));
    let bans = SavedBan::all(&list, &packets);
    restore.with_bans(bans).write(directory)?;
    journal::clear(directory)?;
    Ok(packets.len())
}
