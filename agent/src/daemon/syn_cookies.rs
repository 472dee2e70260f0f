//! The kernel's SYN cookies while sources have to prove their address: for every connection during attacks, and with
//! `prove = "always"`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use config::policy::OnExit;
use host::{StateDirectory, syn_cookies};

use super::events::{BEGINS_AT, BEGINS_AT_SHARE, CurrentAttacks, EventLog};
use super::packets::{Packets, Proving};
use super::unopened::Watch;

/// How often the setting is reconsidered.
const PERIOD: Duration = Duration::from_secs(1);
/// As for attacks on limits.
const BEGINS_AFTER: Duration = Duration::from_secs(2);
const ENDS_AFTER: Duration = Duration::from_secs(10);
const ENDS_BELOW: f64 = 10.0;
const ENDS_BELOW_SHARE: f64 = 0.05;

/// Detects the start and end of floods of forged SYNs: by answered SYNs whose source never proves its address.
#[derive(Debug, Default)]
struct ForgedSyns {
    last: Option<(u64, u64, Instant)>,
    /// Since when they are many or, during a flood, few.
    since: Option<Instant>,
    is_flood: bool,
}

impl ForgedSyns {
    /// Processes the counters; returns whether there is a flood.
    fn look(&mut self, answered: u64, accepted: u64, now: Instant) -> bool {
        let Some((answered_before, accepted_before, then)) =
            self.last.replace((answered, accepted, now))
        else {
            return false;
        };
        let seconds = now.saturating_duration_since(then).as_secs_f64().max(1e-3);
        let answered = answered.saturating_sub(answered_before) as f64;
        let forged = (answered - accepted.saturating_sub(accepted_before) as f64).max(0.0);
        let share = if answered > 0.0 {
            forged / answered
        } else {
            0.0
        };
        let is_turning = if self.is_flood {
            forged / seconds < ENDS_BELOW || share < ENDS_BELOW_SHARE
        } else {
            forged / seconds >= BEGINS_AT as f64 && share >= BEGINS_AT_SHARE
        };
        if !is_turning {
            self.since = None;
            return self.is_flood;
        }
        let since = *self.since.get_or_insert(then);
        if now.saturating_duration_since(since)
            >= if self.is_flood {
                ENDS_AFTER
            } else {
                BEGINS_AFTER
            }
        {
            (self.is_flood, self.since) = (!self.is_flood, None);
        }
        self.is_flood
    }
}

/// Sets and restores the kernel's setting while the agent runs; first of all, restores what an earlier agent left. Compares
/// proven connections with those that the kernel opens.
pub async fn run(
    packets: &Packets,
    attacks: Arc<CurrentAttacks>,
    events: Arc<EventLog>,
    directory: StateDirectory,
) {
    let mut ticks = tokio::time::interval(PERIOD);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let (mut forged, mut is_failing) = (ForgedSyns::default(), false);
    let mut openings = Watch::new(events);
    loop {
        ticks.tick().await;
        let engine = packets.load_full();
        let proving = engine.as_ref().and_then(|engine| engine.proving());
        let unopened = openings.look(proving.as_ref());
        if let Some(engine) = engine {
            engine.lock().unopened = unopened;
        }
        let wanted = proving.is_some_and(|proving| {
            let is_flood = forged.look(proving.answered, proving.accepted, Instant::now());
            let (attacks, _) = attacks.get();
            proving.always
                || is_flood
                || attacks
                    .iter()
                    .any(|attack| proving.limits.contains(&attack.limit))
        });
        let result = if wanted {
            set(&directory)
        } else {
            restore(&directory)
        };
        // Logged once: it is tried again every second.
        if let (Err(error), false) = (&result, is_failing) {
            let setting = syn_cookies::SETTING;
            tracing::warn!(
                "changing {setting} failed: {error}; forged SYNs take sockets until a listener's queue is full"
            );
        }
        is_failing = result.is_err();
    }
}

fn set(directory: &StateDirectory) -> std::io::Result<()> {
    if syn_cookies::current() != Some(syn_cookies::ALWAYS) {
        syn_cookies::set_always(directory)?;
        tracing::info!(
            "{} is set to 2: SYN cookies for every connection",
            syn_cookies::SETTING
        );
    }
    Ok(())
}

fn restore(directory: &StateDirectory) -> std::io::Result<()> {
    if let Some(value) = syn_cookies::restore(directory)? {
        tracing::info!("{} is {value} again", syn_cookies::SETTING);
    }
    Ok(())
}

/// At the agent's end: the setting stays with limits that stay in effect and have `prove = "always"`.
pub fn leave(directory: &StateDirectory, proving: Option<&Proving>, on_exit: OnExit) {
    let stays = on_exit == OnExit::Keep && proving.is_some_and(|proving| proving.always);
    if !stays && let Err(error) = restore(directory) {
        tracing::warn!(
            "restoring {} failed: {error}; the next agent tries again",
            syn_cookies::SETTING
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flood_begins_after_two_seconds_and_ends_after_ten() {
        let (mut forged, start) = (ForgedSyns::default(), Instant::now());
        let (mut answered, mut accepted) = (0, 0);
        let mut look = |second: u64, more: u64, proven: u64| {
            (answered, accepted) = (answered + more, accepted + proven);
            forged.look(answered, accepted, start + Duration::from_secs(second))
        };
        assert!(!look(0, 0, 0) && !look(1, 50_000, 10));
        assert!(look(2, 50_000, 10) && look(3, 50_000, 10));
        // Clients that connect are no flood, however many.
        assert!((4..13).all(|second| look(second, 5_000, 4_990)));
        assert!(!look(13, 5_000, 4_990) && !look(14, 5_000, 4_990));
        assert!(!look(15, 90, 0) && !look(16, 90, 0) && !look(17, 90, 0));
    }
}
