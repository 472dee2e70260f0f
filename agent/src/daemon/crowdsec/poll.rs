//! The thread that pulls decisions and bans what they name.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use api::event::seconds_since_1970;
use config::PrefixKey;
use config::policy::CrowdSec;
use crowdsec::{Bouncer, Decisions, Effect, LapiError, Machine, Pull, StreamPage, Update};
use datapath::bans::{Held, Why};
use datapath::memory;
use host::Moment;
use host::PROGRAM;
use host::backoff::Backoff;

use super::saved::SavedBouncer;
use super::shared::{Shared, reveal};
use crate::daemon::events::{Event, EventKind};
use crate::daemon::packets::DecisionBans;
use crate::stats::monotonic_nanoseconds;

/// The longest pause after failures, where `update` is not longer. The first is `update`.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);
/// The shortest time between two saves of decisions. Exceptions are saved at once.
const SAVE_EVERY: Duration = Duration::from_secs(5);
/// The shortest time between two full pulls that changes called for.
const SUSPECT_EVERY: Duration = Duration::from_secs(30);
/// The most new bans of one pull with separate events; one event counts the rest.
const NAMED: usize = 10;
/// A page as large as this leaves memory that is returned to the kernel.
const LARGE: usize = 1 << 20;

/// An empty set with the bounds of a config.
pub(super) fn empty(settings: &CrowdSec) -> Decisions {
    Decisions::new(
        usize::try_from(settings.max_decisions).unwrap_or(usize::MAX),
        own_origin(settings),
    )
}

fn own_origin(settings: &CrowdSec) -> Option<String> {
    settings.machine_id.as_deref().map(Machine::origin)
}

/// Takes up the decisions and exceptions that an earlier agent saved.
pub(super) fn take_up(shared: &Shared, saved: Option<&SavedBouncer>, decisions: &mut Decisions) {
    let has_settings = shared.state().settings.is_some();
    let packets = shared.parts.packets.load_full();
    if let Some(saved) = saved {
        let result = packets.as_ref().map_or(Ok(()), |packets| {
            packets.restore_exceptions(&saved.exceptions())
        });
        if let Err(error) = result {
            shared.state().notes.push(format!(
                "restoring exceptions from CrowdSec's bans failed: {error}"
            ));
        }
        let now = Moment::now();
        if has_settings {
            decisions.restore(&saved.decisions, saved.ago(&now), now.monotonic);
        }
    }
    let Some(packets) = packets else { return };
    let result = if has_settings {
        // Others that the kernel has may be newer than the file: they stay until the first pull.
        packets.apply_decisions(&bans(
            decisions
                .effects()
                .map(|(prefix, effect)| (prefix, Some(effect))),
        ))
    } else {
        packets.set_decisions(BTreeMap::new())
    };
    let mut state = shared.state();
    state.pulls.trouble = result.err().map(|error| error.to_string());
    state.pulls.decisions = decisions.len();
}

fn held(effect: Effect) -> Held {
    let why = Why {
        text: effect.scenario,
        decision: Some(effect.id),
        ..Why::default()
    };
    Held {
        until: effect.until,
        since: effect.since,
        why: Some(why),
        ..Held::default()
    }
}

fn bans(effects: impl Iterator<Item = (PrefixKey, Option<Effect>)>) -> DecisionBans {
    effects
        .map(|(prefix, effect)| (prefix, effect.map(held)))
        .collect()
}

/// Pulls until the bouncer is closed.
pub(super) fn run(shared: &Shared, decisions: Decisions) {
    let now = Instant::now();
    let mut poller = Poller {
        shared,
        decisions,
        client: None,
        generation: 0,
        next_full: now,
        last_suspect: None,
        failures: 0,
        is_synced: false,
        is_unsaved: false,
        saved: None,
        is_down: false,
        has_pulled: false,
    };
    let mut due = Some(now);
    loop {
        let generation = poller.generation;
        let state = shared.wait(due, |state| {
            state.generation != generation || state.has_new_exceptions
        });
        let (is_closed, settings, current) =
            (state.is_closed, state.settings.clone(), state.generation);
        let has_new_exceptions = state.has_new_exceptions;
        drop(state);
        if has_new_exceptions || is_closed {
            poller.save();
        }
        if is_closed {
            shared.closed();
            return;
        }
        let is_reload = current != generation;
        poller.generation = current;
        let Some(settings) = settings else {
            poller.forget();
            due = None;
            continue;
        };
        if is_reload {
            poller.reconfigure(&settings);
        }
        let is_due = due.is_none_or(|due| due <= Instant::now());
        if is_due || is_reload {
            due = Some(Instant::now() + poller.pull(&settings));
            poller.save_if_due();
        }
    }
}

struct Poller<'s> {
    shared: &'s Shared,
    decisions: Decisions,
    /// The client, and the settings it was made from.
    client: Option<(Arc<CrowdSec>, Bouncer)>,
    generation: u64,
    next_full: Instant,
    last_suspect: Option<Instant>,
    /// Failed pulls since the last that succeeded.
    failures: u32,
    /// Whether the kernel has all bans of the set.
    is_synced: bool,
    is_unsaved: bool,
    saved: Option<Instant>,
    /// Whether an event has reported that the API is unavailable.
    is_down: bool,
    has_pulled: bool,
}

impl Poller<'_> {
    /// Ends all bans by CrowdSec: the config has no `[crowdsec]` any more.
    fn forget(&mut self) {
        self.is_unsaved |= !self.decisions.is_empty();
        self.decisions.clear();
        (self.client, self.is_down, self.has_pulled) = (None, false, false);
        if let Some(packets) = self.shared.parts.packets.load_full()
            && let Err(error) = packets.set_decisions(BTreeMap::new())
        {
            tracing::error!(
                "lifting the bans by CrowdSec failed: {error}; {PROGRAM} bans lists them"
            );
        }
        self.shared.state().pulls = super::shared::Pulls::default();
        self.save();
    }

    /// Applies another config, or the same after the limits on packets were replaced.
    fn reconfigure(&mut self, settings: &Arc<CrowdSec>) {
        if self.client.as_ref().is_none_or(|(of, _)| of != settings) {
            self.client = None;
            (self.failures, self.next_full) = (0, Instant::now());
        }
        let most = usize::try_from(settings.max_decisions).unwrap_or(usize::MAX);
        self.decisions.configure(most, own_origin(settings));
        self.is_synced = false;
        self.sync();
    }

    /// Pulls once; returns the pause until the next pull.
    fn pull(&mut self, settings: &Arc<CrowdSec>) -> Duration {
        let now = Instant::now();
        let is_full = now >= self.next_full || !self.has_pulled;
        let pull = if is_full { Pull::Full } else { Pull::Changes };
        let result = self
            .request(settings, pull)
            .and_then(|body| self.take(&body, pull));
        let ended = self.decisions.prune(monotonic_nanoseconds());
        self.is_unsaved |= ended.removed > 0;
        // Before the bans are in effect, so that there are not more of these than decisions.
        let mut state = self.shared.state();
        (state.pulls.decisions, state.pulls.ignored) =
            (self.decisions.len(), self.decisions.ignored());
        drop(state);
        match result {
            Ok(update) => {
                self.failures = 0;
                if is_full {
                    (self.next_full, self.has_pulled) = (now + settings.reconcile, true);
                } else if update.is_suspect
                    && self
                        .last_suspect
                        .is_none_or(|last| last.elapsed() >= SUSPECT_EVERY)
                {
                    (self.last_suspect, self.next_full) = (Some(now), now);
                }
                self.apply(&update, is_full);
                self.succeeded(&update, is_full, settings);
            }
            Err(reason) => self.failed(reason, settings),
        }
        if self.failures == 0 {
            return settings.update.saturating_sub(now.elapsed());
        }
        let longest = LONGEST_PAUSE.max(settings.update);
        Backoff::new(settings.update, longest).pause(self.failures)
    }

    fn request(&mut self, settings: &Arc<CrowdSec>, pull: Pull) -> Result<Vec<u8>, String> {
        let bouncer = match &self.client {
            Some((_, bouncer)) => bouncer,
            None => {
                let key = reveal(settings.key().as_ref())?;
                let CrowdSec {
                    url,
                    timeout,
                    max_decisions,
                    ..
                } = &**settings;
                &self
                    .client
                    .insert((
                        Arc::clone(settings),
                        Bouncer::new(url.reveal(), key, *timeout, *max_decisions),
                    ))
                    .1
            }
        };
        bouncer.pull(pull).map_err(|error| {
            if matches!(error, LapiError::Key(_)) {
                // The key's file may be replaced.
                self.client = None;
            }
            error.to_string()
        })
    }

    fn take(&mut self, body: &[u8], pull: Pull) -> Result<Update, String> {
        let page = StreamPage::parse(body).map_err(|error| error.to_string())?;
        let (now, wall) = (monotonic_nanoseconds(), seconds_since_1970() as u64);
        let update = match pull {
            Pull::Full => self.decisions.replace(&page, now, wall),
            Pull::Changes => self.decisions.update(&page, now, wall),
        };
        drop(page);
        if body.len() >= LARGE {
            memory::trim();
        }
        Ok(update)
    }

    /// Brings the kernel up to date.
    fn apply(&mut self, update: &Update, is_full: bool) {
        if is_full || !self.is_synced {
            self.sync();
            return;
        }
        let Some(packets) = self.shared.parts.packets.load_full() else {
            return;
        };
        let effects = update
            .prefixes
            .iter()
            .map(|prefix| (*prefix, self.decisions.effect(prefix)));
        let result = packets.apply_decisions(&bans(effects));
        self.is_synced = result.is_ok();
        self.shared.state().pulls.trouble = result.err().map(|error| error.to_string());
    }

    /// Makes the kernel's bans those of the set.
    fn sync(&mut self) {
        // Before the first full pull, the kernel's may be newer than the set from the file.
        let Some(packets) = self.shared.parts.packets.load_full() else {
            return;
        };
        let result = if self.has_pulled {
            packets.set_decisions(
                self.decisions
                    .effects()
                    .map(|(prefix, effect)| (prefix, held(effect)))
                    .collect(),
            )
        } else {
            packets.apply_decisions(&bans(
                self.decisions
                    .effects()
                    .map(|(prefix, effect)| (prefix, Some(effect))),
            ))
        };
        self.is_synced = result.is_ok();
        if let Err(error) = &result {
            tracing::error!(
                "banning what CrowdSec decided failed: {error}; the next pull tries again"
            );
        }
        self.shared.state().pulls.trouble = result.err().map(|error| error.to_string());
    }

    fn succeeded(&mut self, update: &Update, is_full: bool, settings: &CrowdSec) {
        let now = Instant::now();
        let mut state = self.shared.state();
        state.pulls.pulls += 1;
        (state.pulls.failure, state.pulls.last) = (None, Some(now));
        if is_full {
            state.pulls.last_full = Some(now);
        }
        drop(state);
        if self.is_down {
            self.is_down = false;
            tracing::info!(
                "CrowdSec's local API at {} is available again",
                settings.shown_url()
            );
            let reason = format!(
                "CrowdSec's local API at {} is available again",
                settings.shown_url()
            );
            self.shared
                .parts
                .events
                .push(Event::now(EventKind::CrowdsecUp, 1, reason));
        }
        self.is_unsaved |= !update.prefixes.is_empty();
        if update.added + update.removed > 0 {
            let Update { added, removed, .. } = update;
            tracing::info!(
                "CrowdSec: {added} decisions new, {removed} ended, {} in effect",
                self.decisions.len()
            );
        }
        self.report(update);
    }

    /// Events of new bans: of the first few, and the number of the others.
    fn report(&self, update: &Update) {
        if update.added == 0 {
            return;
        }
        let mut named = 0;
        let banned = update
            .prefixes
            .iter()
            .filter_map(|prefix| Some((prefix, self.decisions.effect(prefix)?)));
        for (prefix, effect) in
            banned.take(NAMED.min(usize::try_from(update.added).unwrap_or(NAMED)))
        {
            let reason = format!(
                "banned by CrowdSec: {}, decision {}",
                effect.scenario, effect.id
            );
            let event = Event {
                source: Some(prefix.to_string()),
                owner: Some("crowdsec".to_owned()),
                ..Event::now(EventKind::Banned, 1, reason)
            };
            self.shared.parts.events.push(event);
            named += 1;
        }
        if update.added > named {
            let reason =
                format!("other decisions of CrowdSec: {PROGRAM} bans lists the banned sources");
            self.shared.parts.events.push(Event::now(
                EventKind::Banned,
                update.added - named,
                reason,
            ));
        }
    }

    fn failed(&mut self, reason: String, settings: &CrowdSec) {
        self.failures = self.failures.saturating_add(1);
        if !self.is_down {
            self.is_down = true;
            let text = format!(
                "CrowdSec's local API at {} is unavailable: {reason}",
                settings.shown_url()
            );
            tracing::error!("{text}; known decisions apply until they expire");
            self.shared
                .parts
                .events
                .push(Event::now(EventKind::CrowdsecDown, 1, text));
        }
        let mut state = self.shared.state();
        state.pulls.failures += 1;
        state.pulls.failure = Some(reason);
    }

    fn save_if_due(&mut self) {
        if self.is_unsaved && self.saved.is_none_or(|saved| saved.elapsed() >= SAVE_EVERY) {
            self.save();
        }
    }

    /// Saves decisions and exceptions.
    fn save(&mut self) {
        let had_new_exceptions = std::mem::take(&mut self.shared.state().has_new_exceptions);
        if !self.is_unsaved && !had_new_exceptions {
            return;
        }
        let at = Moment::now();
        let decisions = self.decisions.save(at.monotonic);
        let exceptions = self
            .shared
            .counts()
            .1
            .iter()
            .map(ToString::to_string)
            .collect();
        let result = SavedBouncer {
            at,
            decisions,
            exceptions,
        }
        .write(&self.shared.parts.directory);
        (self.is_unsaved, self.saved) = (result.is_err(), Some(Instant::now()));
        let mut state = self.shared.state();
        state.notes.clear();
        state.notes.extend(
            result
                .err()
                .map(|error| format!("decisions of CrowdSec are not saved: {error}")),
        );
    }
}
