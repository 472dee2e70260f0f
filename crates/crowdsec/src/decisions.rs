//! The set of decisions in effect.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::net::IpAddr;
use std::sync::Arc;

use config::PrefixKey;
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::duration::go_duration;
use crate::stream::{Decision, StreamPage};
use crate::text::plain;

/// Two ends of one decision that differ by less are equal: the API reports the remaining time, and each reply takes
/// another time to arrive.
const SAME: u64 = 2_000_000_000;

/// The decisions in effect, by their IDs and by prefix.
#[derive(Debug, Default)]
pub struct Decisions {
    by_id: HashMap<u64, Known>,
    by_prefix: BTreeMap<PrefixKey, Vec<u64>>,
    /// Texts of scenarios: many decisions share one.
    scenarios: HashSet<Arc<str>>,
    ignored: Ignored,
    /// The most decisions.
    most: usize,
    /// The origin of this host's own alerts, whose bans its limits already make.
    own: Option<String>,
}

#[derive(Clone, Debug)]
struct Known {
    prefix: PrefixKey,
    until: u64,
    since: u64,
    scenario: Arc<str>,
}

/// The ban that the decisions on a prefix amount to: the one that ends last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Effect {
    /// Its end, on the caller's clock.
    pub until: u64,
    /// When it was received, in seconds since 1970.
    pub since: u64,
    /// The scenario and, unless it is CrowdSec itself, the origin.
    pub scenario: Arc<str>,
    /// The decision's ID.
    pub id: u64,
}

/// The number of decisions that are not enforced, by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Ignored {
    /// The scope is neither an address nor a range: `Country`, `AS`, `Username`, …
    pub scope: u64,
    /// The type is not `ban`: `captcha`, `throttle`, …
    pub kind: u64,
    /// Value, duration or ID are invalid.
    pub invalid: u64,
    /// The range is wider than /8, or /16 for IPv6.
    pub wide: u64,
    /// Simulated decisions.
    pub simulated: u64,
    /// This host's own alerts.
    pub own: u64,
    /// More decisions than `max_decisions`.
    pub excess: u64,
}

/// A page's changes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Update {
    /// The prefixes whose effect changed.
    pub prefixes: BTreeSet<PrefixKey>,
    /// Decisions that are new here.
    pub added: u64,
    /// Decisions that ended.
    pub removed: u64,
    /// Whether the page mentions what is not known here, so that the set may have drifted.
    pub is_suspect: bool,
}

/// A decision in the state file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SavedDecision {
    pub id: u64,
    /// The address or range.
    pub value: String,
    /// The remaining nanoseconds.
    pub left: u64,
    /// When it was received, in seconds since 1970.
    pub since: u64,
    /// [`Effect::scenario`].
    pub scenario: String,
}

/// Why a decision is ignored.
enum Reason {
    Scope,
    Kind,
    Invalid,
    Wide,
    Simulated,
    Own,
}

impl Ignored {
    /// The sum.
    #[must_use]
    pub const fn total(&self) -> u64 {
        self.scope + self.kind + self.invalid + self.wide + self.simulated + self.own + self.excess
    }

    const fn count(&mut self, reason: &Reason) -> &mut u64 {
        match reason {
            Reason::Scope => &mut self.scope,
            Reason::Kind => &mut self.kind,
            Reason::Invalid => &mut self.invalid,
            Reason::Wide => &mut self.wide,
            Reason::Simulated => &mut self.simulated,
            Reason::Own => &mut self.own,
        }
    }
}

impl Decisions {
    /// An empty set of at most `most` decisions, which ignores those of the origin `own`.
    #[must_use]
    pub fn new(most: usize, own: Option<String>) -> Self {
        Self {
            most,
            own,
            ..Self::default()
        }
    }

    /// Changes the bounds; the decisions stay until the next full pull.
    pub fn configure(&mut self, most: usize, own: Option<String>) {
        (self.most, self.own) = (most, own);
    }

    /// The number of decisions.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    /// The decisions that are not enforced.
    #[must_use]
    pub const fn ignored(&self) -> Ignored {
        self.ignored
    }

    /// Every prefix with its effect.
    pub fn effects(&self) -> impl Iterator<Item = (PrefixKey, Effect)> + '_ {
        self.by_prefix
            .keys()
            .filter_map(|prefix| Some((*prefix, self.effect(prefix)?)))
    }

    /// The effect on exactly this prefix.
    #[must_use]
    pub fn effect(&self, prefix: &PrefixKey) -> Option<Effect> {
        let known = self
            .by_prefix
            .get(prefix)?
            .iter()
            .filter_map(|id| Some((*id, self.by_id.get(id)?)));
        let (id, last) = known.max_by_key(|(id, known)| (known.until, *id))?;
        let Known {
            until,
            since,
            scenario,
            ..
        } = last;
        Some(Effect {
            until: *until,
            since: *since,
            scenario: Arc::clone(scenario),
            id,
        })
    }

    /// Replaces the set by a full page. `now` is on the clock of [`Effect::until`], `wall` in seconds since 1970.
    pub fn replace(&mut self, page: &StreamPage<'_>, now: u64, wall: u64) -> Update {
        self.ignored = Ignored::default();
        let mut update = Update::default();
        let mut seen = HashSet::with_capacity(page.new_decisions().len());
        for decision in page.new_decisions() {
            if self.add(decision, now, wall, &mut update) {
                seen.insert(decision.id);
            }
        }
        let gone: Vec<u64> = self
            .by_id
            .keys()
            .filter(|id| !seen.contains(id))
            .copied()
            .collect();
        gone.into_iter().for_each(|id| self.remove(id, &mut update));
        update.is_suspect = false;
        update
    }

    /// Applies a page of changes.
    pub fn update(&mut self, page: &StreamPage<'_>, now: u64, wall: u64) -> Update {
        let mut update = Update::default();
        for decision in page.deleted() {
            if self.by_id.contains_key(&decision.id) {
                self.remove(decision.id, &mut update);
                continue;
            }
            match self.read(decision) {
                // Banned by another decision, which the API may have merged with this one.
                Ok((prefix, _)) if self.by_prefix.contains_key(&prefix) => update.is_suspect = true,
                Ok(_) => {}
                Err(reason) => {
                    let count = self.ignored.count(&reason);
                    *count = count.saturating_sub(1);
                }
            }
        }
        for decision in page.new_decisions() {
            self.add(decision, now, wall, &mut update);
        }
        update
    }

    /// Removes decisions that have ended.
    pub fn prune(&mut self, now: u64) -> Update {
        let mut update = Update::default();
        let ended: Vec<u64> = self
            .by_id
            .iter()
            .filter(|(_, known)| known.until <= now)
            .map(|(id, _)| *id)
            .collect();
        ended
            .into_iter()
            .for_each(|id| self.remove(id, &mut update));
        update
    }

    /// Removes every decision.
    pub fn clear(&mut self) {
        self.by_id.clear();
        self.by_prefix.clear();
        self.scenarios.clear();
        self.ignored = Ignored::default();
    }

    /// The set for the state file.
    #[must_use]
    pub fn save(&self, now: u64) -> Vec<SavedDecision> {
        let saved = |(id, known): (&u64, &Known)| SavedDecision {
            id: *id,
            value: known.prefix.to_string(),
            left: known.until.saturating_sub(now),
            since: known.since,
            scenario: known.scenario.to_string(),
        };
        self.by_id.iter().map(saved).collect()
    }

    /// Adds decisions of a state file that was written `ago` nanoseconds ago, unless they have ended.
    pub fn restore(&mut self, saved: &[SavedDecision], ago: u64, now: u64) {
        for decision in saved
            .iter()
            .filter(|decision| decision.left > ago)
            .take(self.most)
        {
            if let Some(prefix) = prefix(&decision.value) {
                let scenario = self.scenario(plain(&decision.scenario));
                let until = now.saturating_add(decision.left - ago);
                self.put(
                    decision.id,
                    Known {
                        prefix,
                        until,
                        since: decision.since,
                        scenario,
                    },
                );
            }
        }
    }

    /// Returns whether the decision is in the set now.
    fn add(&mut self, decision: &Decision<'_>, now: u64, wall: u64, update: &mut Update) -> bool {
        let (prefix, left) = match self.read(decision) {
            Ok(read) => read,
            Err(reason) => {
                *self.ignored.count(&reason) += 1;
                return false;
            }
        };
        let known = self.by_id.get(&decision.id);
        if left == 0 {
            return false;
        }
        let until = now.saturating_add(left);
        if known.is_some_and(|known| known.prefix == prefix && known.until.abs_diff(until) < SAME) {
            return true;
        }
        if known.is_none() && self.by_id.len() >= self.most {
            self.ignored.excess += 1;
            return false;
        }
        let since = known.map_or(wall, |known| known.since);
        update.added += u64::from(known.is_none());
        if let Some(known) = known.filter(|known| known.prefix != prefix) {
            update.prefixes.insert(known.prefix);
        }
        let origin = match &*decision.origin {
            "" | "crowdsec" | "cscli" => String::new(),
            origin => format!(" ({})", plain(origin)),
        };
        let text = if decision.scenario.is_empty() {
            "no scenario"
        } else {
            &*decision.scenario
        };
        let scenario = self.scenario(format!("{}{origin}", plain(text)));
        update.prefixes.insert(prefix);
        self.put(
            decision.id,
            Known {
                prefix,
                until,
                since,
                scenario,
            },
        );
        true
    }

    fn put(&mut self, id: u64, known: Known) {
        let prefix = known.prefix;
        if let Some(before) = self.by_id.insert(id, known) {
            self.forget_id(&before.prefix, id);
        }
        self.by_prefix.entry(prefix).or_default().push(id);
    }

    fn remove(&mut self, id: u64, update: &mut Update) {
        if let Some(known) = self.by_id.remove(&id) {
            self.forget_id(&known.prefix, id);
            update.prefixes.insert(known.prefix);
            update.removed += 1;
        }
    }

    fn forget_id(&mut self, prefix: &PrefixKey, id: u64) {
        if let Some(ids) = self.by_prefix.get_mut(prefix) {
            ids.retain(|other| *other != id);
            if ids.is_empty() {
                self.by_prefix.remove(prefix);
            }
        }
    }

    fn scenario(&mut self, text: String) -> Arc<str> {
        if let Some(known) = self.scenarios.get(text.as_str()) {
            return Arc::clone(known);
        }
        let text: Arc<str> = text.into();
        // Every decision may have its own: then sharing gains nothing.
        if self.scenarios.len() < 10_000 {
            self.scenarios.insert(Arc::clone(&text));
        }
        text
    }

    /// The prefix and the remaining nanoseconds of a decision that is enforced.
    fn read(&self, decision: &Decision<'_>) -> Result<(PrefixKey, u64), Reason> {
        if !decision.scope.eq_ignore_ascii_case("ip")
            && !decision.scope.eq_ignore_ascii_case("range")
        {
            return Err(Reason::Scope);
        }
        if !decision.kind.eq_ignore_ascii_case("ban") {
            return Err(Reason::Kind);
        }
        if decision.simulated == Some(true) {
            return Err(Reason::Simulated);
        }
        if self.own.as_deref() == Some(&*decision.origin) {
            return Err(Reason::Own);
        }
        let prefix = prefix(&decision.value)
            .filter(|_| decision.id != 0)
            .ok_or(Reason::Invalid)?;
        if prefix.is_wide() {
            return Err(Reason::Wide);
        }
        let left = go_duration(&decision.duration).ok_or(Reason::Invalid)?;
        Ok((prefix, left))
    }
}

/// An address or a range; bits of the host in a range are ignored.
fn prefix(value: &str) -> Option<PrefixKey> {
    let value = value.trim();
    let net = match value.parse::<IpAddr>() {
        Ok(address) => IpNet::from(address.to_canonical()),
        Err(_) => value.parse::<IpNet>().ok()?.trunc(),
    };
    Some(PrefixKey::from(net))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const SECOND: u64 = 1_000_000_000;

    fn decision(id: u64, value: &str, seconds: u64) -> String {
        format!(
            r#"{{"duration":"{seconds}s","id":{id},"origin":"cscli","scenario":"s","scope":"Ip","type":"ban","value":"{value}"}}"#
        )
    }

    fn page(new: &[String], deleted: &[String]) -> String {
        format!(
            r#"{{"new":[{}],"deleted":[{}]}}"#,
            new.join(","),
            deleted.join(",")
        )
    }

    fn key(text: &str) -> PrefixKey {
        prefix(text).unwrap()
    }

    #[test]
    fn a_prefix_is_banned_until_its_last_decision_ends() {
        let mut set = Decisions::new(100, None);
        let apply = |set: &mut Decisions, text: String, now| {
            set.update(&StreamPage::parse(text.as_bytes()).unwrap(), now, 7)
        };
        let text = page(
            &[
                decision(1, "192.0.2.1", 100),
                decision(2, "192.0.2.1", 50),
                decision(3, "192.0.2.2", 50),
            ],
            &[],
        );
        let update = apply(&mut set, text, 0);
        assert_eq!((update.added, update.prefixes.len(), set.len()), (3, 2, 3));
        assert_eq!(
            set.effect(&key("192.0.2.1"))
                .map(|effect| (effect.id, effect.until)),
            Some((1, 100 * SECOND))
        );
        let update = apply(&mut set, page(&[], &[decision(1, "192.0.2.1", 0)]), 0);
        assert_eq!((update.removed, update.is_suspect), (1, false));
        assert_eq!(
            set.effect(&key("192.0.2.1")).map(|effect| effect.id),
            Some(2)
        );
        // An ID that was never reported, of an address that is banned.
        assert!(apply(&mut set, page(&[], &[decision(9, "192.0.2.1", 0)]), 0).is_suspect);
        assert_eq!(set.prune(60 * SECOND).prefixes.len(), 2);
        assert!(set.is_empty() && set.effects().count() == 0);
    }

    #[test]
    fn a_full_page_replaces_the_set_and_leaves_equal_ends_alone() {
        let mut set = Decisions::new(100, None);
        let first = page(
            &[decision(1, "192.0.2.1", 100), decision(2, "192.0.2.2", 100)],
            &[],
        );
        set.replace(&StreamPage::parse(first.as_bytes()).unwrap(), 0, 7);
        let second = page(
            &[
                decision(2, "192.0.2.2", 91),
                decision(3, "2001:db8::/32", 100),
            ],
            &[],
        );
        let update = set.replace(
            &StreamPage::parse(second.as_bytes()).unwrap(),
            10 * SECOND,
            17,
        );
        assert_eq!((update.added, update.removed), (1, 1));
        assert_eq!(
            update.prefixes,
            BTreeSet::from([key("192.0.2.1"), key("2001:db8::/32")])
        );
        assert_eq!(
            set.effect(&key("192.0.2.2"))
                .map(|effect| (effect.until, effect.since)),
            Some((100 * SECOND, 7))
        );
        // A decision that was extended keeps its start.
        let third = page(&[decision(2, "192.0.2.2", 500)], &[]);
        set.replace(
            &StreamPage::parse(third.as_bytes()).unwrap(),
            10 * SECOND,
            17,
        );
        assert_eq!(
            set.effect(&key("192.0.2.2"))
                .map(|effect| (effect.until, effect.since)),
            Some((510 * SECOND, 7))
        );
    }

    #[test]
    fn decisions_that_are_not_enforced_are_counted() {
        let mut set = Decisions::new(2, Some("weir:me".to_owned()));
        let of = |from: &str, to: &str| decision(9, "192.0.2.9", 50).replace(from, to);
        let mut all = vec![
            of("\"Ip\"", "\"Country\""),
            of("\"ban\"", "\"captcha\""),
            of("\"id\":9", "\"id\":0"),
            of("192.0.2.9", "nobody"),
            of("50s", "soon"),
            of("192.0.2.9", "0.0.0.0/0"),
            of("192.0.2.9", "::/0"),
            of("192.0.2.9", "::/64"),
            of("\"type\"", "\"simulated\":true,\"type\""),
            of("cscli", "weir:me"),
            of("50s", "-3s"),
        ];
        all.extend((1..=3).map(|id| decision(id, &format!("192.0.2.{id}"), 50)));
        let text = page(&all, &[]);
        set.replace(&StreamPage::parse(text.as_bytes()).unwrap(), 0, 7);
        let expected = Ignored {
            scope: 1,
            kind: 1,
            invalid: 3,
            wide: 3,
            simulated: 1,
            own: 1,
            excess: 1,
        };
        assert_eq!((set.ignored(), set.len()), (expected, 2));
        assert_eq!(set.ignored().total(), 11);
    }

    #[test]
    fn a_saved_set_goes_on_without_what_ended() {
        let mut set = Decisions::new(100, None);
        let text = page(
            &[
                decision(1, "192.0.2.1", 100),
                decision(2, "192.0.2.0/24", 20),
            ],
            &[],
        );
        set.replace(&StreamPage::parse(text.as_bytes()).unwrap(), 0, 7);
        let saved = set.save(10 * SECOND);
        let mut next = Decisions::new(100, None);
        next.restore(&saved, 15 * SECOND, 1_000 * SECOND);
        assert_eq!(
            (
                next.len(),
                next.effect(&key("192.0.2.1")).map(|effect| effect.until)
            ),
            (1, Some(1_075 * SECOND))
        );
    }

    proptest! {
        /// After any pages, a full page leaves exactly its decisions.
        #[test]
        fn no_drift_outlives_a_full_page(
            steps in prop::collection::vec((prop::collection::vec((1u64..20, 0u8..8, 1u64..100), 0..8), any::<bool>()), 0..8),
            last in prop::collection::btree_map(1u64..20, (0u8..8, 1u64..100), 0..10),
        ) {
            let mut set = Decisions::new(1_000, None);
            let list = |of: &[(u64, u8, u64)]| -> Vec<String> {
                of.iter().map(|(id, byte, end)| decision(*id, &format!("192.0.2.{byte}"), *end)).collect()
            };
            for (decisions, is_new) in &steps {
                let all = list(decisions);
                let text = if *is_new { page(&all, &[]) } else { page(&[], &all) };
                set.update(&StreamPage::parse(text.as_bytes()).unwrap(), 0, 7);
            }
            let whole: Vec<_> = last.iter().map(|(id, (byte, end))| (*id, *byte, *end)).collect();
            let text = page(&list(&whole), &[]);
            set.replace(&StreamPage::parse(text.as_bytes()).unwrap(), 0, 7);
            prop_assert_eq!(set.len(), last.len());
            let prefixes: BTreeSet<u8> = last.values().map(|(byte, _)| *byte).collect();
            prop_assert_eq!(set.effects().count(), prefixes.len());
            for byte in prefixes {
                let latest = last.values().filter(|(of, _)| *of == byte).map(|(_, end)| *end * SECOND).max();
                let effect = set.effect(&key(&format!("192.0.2.{byte}"))).map(|effect| effect.until);
                prop_assert!(effect.unwrap().abs_diff(latest.unwrap()) < SAME);
            }
        }
    }
}
