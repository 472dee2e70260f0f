//! Bans in the state file when no agent runs.

use std::collections::HashMap;

use common::ban::Ban;
use datapath::compile::PrefixKey;
use datapath::{BanEntry, PinDirectory};
use host::{Moment, StateDirectory};

use super::file::{Saved, SavedReason};

/// Replaces the bans in the state file with those in the kernel, which a stopped agent left in effect: it may have been
/// killed before it saved them. Returns their number.
///
/// # Errors
///
/// When they cannot be read or saved.
pub fn save_bans(directory: &StateDirectory, pins: &PinDirectory) -> anyhow::Result<usize> {
    let now = Moment::now();
    let mut bans = pins.bans()?;
    bans.retain(|entry| Ban::is_in_effect(entry.ban.own_until, now.monotonic));
    let saved = Saved::read(directory)?;
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
    let count = bans.len();
    with_bans(saved, bans).write(directory)?;
    Ok(count)
}

/// The same state with other bans. Those that it had keep their reasons.
fn with_bans(saved: Saved, bans: Vec<BanEntry>) -> Saved {
    let place: HashMap<(PrefixKey, u64), usize> = bans
        .iter()
        .enumerate()
        .map(|(nth, entry)| ((entry.prefix, entry.ban.own_until), nth))
        .collect();
    let moved = |nth: &usize| {
        let entry = saved.bans.get(*nth)?;
        place.get(&(entry.prefix, entry.ban.own_until)).copied()
    };
    let reasons = saved
        .reasons
        .iter()
        .map(|reason| SavedReason {
            bans: reason.bans.iter().filter_map(moved).collect(),
            ..reason.clone()
        })
        .filter(|reason| !reason.bans.is_empty())
        .collect();
    Saved {
        bans,
        reasons,
        ..saved
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(last: u8, own_until: u64) -> BanEntry {
        let prefix = config::policy::Prefix::of_address([192, 0, 2, last].into());
        BanEntry {
            prefix: PrefixKey::from(&prefix),
            ban: Ban {
                until: own_until,
                own_until,
                refused: 0,
            },
        }
    }

    #[test]
    fn bans_that_stay_keep_their_reasons() {
        let reason = |text: &str, bans: &[usize]| SavedReason {
            text: text.to_owned(),
            since: 0,
            limit: None,
            bans: bans.to_vec(),
        };
        let saved = Saved {
            bans: vec![entry(1, 50), entry(2, 50), entry(3, 50)],
            reasons: vec![reason("scan", &[0, 2]), reason("flood", &[1])],
            ..Saved::default()
        };
        // The second was lifted and made again with another end.
        let next = with_bans(saved, vec![entry(3, 50), entry(2, 99), entry(1, 50)]);
        assert_eq!(next.reasons, [reason("scan", &[2, 0])]);
        assert_eq!(next.bans.len(), 3);
    }
}
