//! Puts the content of all lists in effect.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use config::{PrefixKey, human};
use datapath::{ListMap, memory};
use host::backoff::Backoff;

use super::BanLists;
use crate::daemon::events::{Event, EventKind};
use crate::daemon::lists::effect::{Choice, InEffect};
use crate::daemon::lists::one::One;
use crate::daemon::lists::own::OwnNetwork;
use crate::daemon::lists::watch::Message;

/// The pause before lists are put in effect again for which there was no room.
const AGAIN: Backoff = Backoff::new(Duration::from_secs(5), Duration::from_secs(300));

impl BanLists {
    /// Puts the content of all lists in effect, as a whole. A failure is reported, and the worker tries again.
    pub(super) fn apply(&self) -> Result<(), String> {
        let result = self.try_to_apply();
        memory::trim_soon();
        let mut set = self.set();
        let (problem, shortened) = match &result {
            Ok(shortened) => (None, shortened.clone()),
            Err(problem) => (Some(problem.clone()), BTreeMap::new()),
        };
        let failures = set.again.map_or(1, |(_, failures)| failures + 1);
        set.again = (problem.is_some() || !shortened.is_empty())
            .then(|| (Instant::now() + AGAIN.pause(failures), failures));
        let report = |source: String, problem: &str| {
            tracing::error!("{problem}");
            self.events.push(Event {
                source: Some(source),
                ..Event::now(EventKind::ListFailed, 0, problem.to_owned())
            });
        };
        // The texts have figures of the moment.
        if let Some(problem) = problem.as_ref().filter(|_| set.problem.is_none()) {
            report("lists".to_owned(), problem);
        }
        for (name, problem) in &shortened {
            if !set.shortened.contains_key(name) {
                report(
                    format!("list {name}"),
                    &format!("ban list {name:?}: {problem}"),
                );
            }
        }
        (set.problem, set.shortened) = (problem, shortened);
        if set.again.is_some() {
            // The worker may wait for a later instant.
            let _ = self.wake.send(Message::Replaced);
        }
        drop(set);
        self.check_own_network();
        result.map(drop)
    }

    /// Looks again for lists that refuse addresses that this host needs.
    pub fn check_own_network(&self) {
        if self.set().banning().next().is_none() {
            self.set().of_own_network.clear();
            return;
        }
        let files = self.set().resolv_conf.clone();
        let own = OwnNetwork::of_host(&files);
        let mut set = self.set();
        let warning =
            |one: &One| own.warning(&one.list.name, &one.prefixes, &set.exempt, &set.exceptions);
        let warnings: Vec<String> = set.banning().filter_map(warning).collect();
        for warning in &warnings {
            if !set.of_own_network.contains(warning) {
                tracing::warn!("{warning}");
            }
        }
        set.of_own_network = warnings;
    }

    /// Returns the lists for whose content there is no room, and why.
    fn try_to_apply(&self) -> Result<BTreeMap<String, String>, String> {
        let fail = |why: String| {
            format!("putting ban lists in effect failed: {why}; those before stay in effect")
        };
        let Some(packets) = self.packets.load_full() else {
            return Ok(BTreeMap::new());
        };
        let (mut choice, exceptions, is_first) = {
            let set = self.set();
            let choice = Choice::new(set.contents(), set.in_effect.as_ref());
            let exceptions: Vec<PrefixKey> = set.exceptions.iter().copied().collect();
            (choice, exceptions, set.in_effect.is_none())
        };
        // Those of an earlier agent stay in effect rather than a part of these.
        let keeps_others = is_first && packets.has_lists().unwrap_or(false);
        let mut shortened = BTreeMap::new();
        let next = if choice.is_empty() {
            None
        } else {
            let (trees, why) = choice.trees(&exceptions, keeps_others).map_err(fail)?;
            let reasons = choice.shortened().map(|(name, prefixes, kept)| {
                let prefixes = human::number(prefixes as u64);
                let effect = match kept {
                    0 => "none of them is in effect".to_owned(),
                    kept => format!("its earlier {} stay in effect", human::number(kept as u64)),
                };
                (
                    name.to_owned(),
                    format!("no room for its {prefixes} prefixes: {why}; {effect}"),
                )
            });
            shortened = reasons.collect();
            let map = ListMap::create(&trees).map_err(|error| fail(error.to_string()))?;
            let (names, contents) = choice.into_parts();
            Some(InEffect {
                map,
                names,
                contents,
                exceptions,
            })
        };
        packets
            .put_lists(next.as_ref().map(|next| &next.map))
            .map_err(|error| fail(error.to_string()))?;
        let mut set = self.set();
        // No packet uses it any more.
        if let Some(before) = std::mem::replace(&mut set.in_effect, next) {
            for (name, refused) in before.names.into_iter().zip(before.map.refused()) {
                if set.lists.iter().any(|one| one.list.name == name) {
                    *set.refused.entry(name).or_default() += refused;
                }
            }
        }
        Ok(shortened)
    }
}
