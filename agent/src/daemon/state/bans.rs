//! Bans in the state file when no agent runs.

use std::collections::HashMap;

use common::ban::Ban;
use datapath::PinDirectory;
use datapath::bans::BanList;
use datapath::compile::PrefixKey;
use host::{Moment, StateDirectory};

use super::file::{Saved, SavedBan};
use super::journal;

/// Replaces the bans in the state file with those in the kernel, which a stopped agent left in effect: it may have been
/// killed before it saved them. Returns the number of banned prefixes.
///
/// # Errors
///
/// When they cannot be read or saved.
pub fn save_bans(directory: &StateDirectory, pins: &PinDirectory) -> anyhow::Result<usize> {
    let now = Moment::now();
    let mut bans = pins.bans()?;
    bans.retain(|entry| Ban::is_in_effect(entry.ban.own_until, now.monotonic));
    let mut saved = Saved::read(directory)?;
    if let Some(saved) = &mut saved {
        journal::replay(directory, saved);
    }
    if bans.is_empty() && saved.is_none() {
        return Ok(0);
    }
    let saved = saved.unwrap_or_else(|| Saved {
        at: Some(now.clone()),
        ..Saved::default()
    });
    // Of another boot, its clock is not that of the kernel's bans.
    if saved.at.as_ref().is_some_and(|at| at.boot != now.boot) {
        anyhow::ensure!(
            bans.is_empty(),
            "the state file is from before the reboot; start the agent once, so that it saves {} bans",
            bans.len()
        );
        return Ok(0);
    }
    let packets = bans.iter().map(|entry| (entry.prefix, entry.ban.packets()));
    let packets: HashMap<PrefixKey, u64> = packets.collect();
    let list = BanList::resume(bans, &saved.owners());
    let bans = SavedBan::all(&list, &packets);
    Saved { bans, ..saved }.write(directory)?;
    journal::clear(directory)?;
    Ok(packets.len())
}
