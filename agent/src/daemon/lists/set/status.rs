//! Lists in documents and notes.

use std::collections::HashMap;
use std::net::IpAddr;

use api::list::{ListStatus, ListsStatus};
use api::source::{BanHolder, BanStatus};
use config::{PrefixKey, human, prefix};

use super::{BanLists, Set};
use crate::daemon::lists::effect::listed;
use crate::daemon::lists::one::One;

impl BanLists {
    /// The first list that contains an address, unless it is excepted or lists are suspended.
    #[must_use]
    pub fn ban_of(&self, address: IpAddr) -> Option<BanStatus> {
        let set = self.set();
        let whole = PrefixKey {
            address: prefix::mapped(address),
            length: 128,
        };
        if set.is_suspended {
            return None;
        }
        let (name, listed) = match &set.in_effect {
            Some(effect) => listed(effect.lists(), &effect.exceptions, &whole)?,
            // Those of an earlier agent may still be in effect.
            None => listed(set.contents(), &set.exceptions, &whole)?,
        };
        let origin = format!("list:{name}");
        let holder = BanHolder {
            owner: origin.clone(),
            origin,
            since: Some(u64::from(listed.since)),
            ..BanHolder::default()
        };
        Some(holder.of(listed.prefix().to_string()))
    }

    /// The part of `weir status`, and notes for the operator, of one reading.
    #[must_use]
    pub fn status(&self) -> (ListsStatus, Vec<String>) {
        let has_packets = self.packets.load().is_some();
        let set = self.set();
        (set.status(has_packets), set.notes())
    }
}

impl Set {
    fn status(&self, has_packets: bool) -> ListsStatus {
        let mut refused = self.refused.clone();
        let mut in_effect = HashMap::new();
        if let Some(effect) = &self.in_effect {
            for ((name, content), packets) in effect.lists().zip(effect.map.refused()) {
                *refused.entry(name.to_owned()).or_default() += packets;
                in_effect.insert(name, content.len() as u64);
            }
        }
        let status = |one: &One| {
            let name = one.list.name.as_str();
            let is_enforced = has_packets && one.list.class().is_none();
            let prefixes = match in_effect.get(name) {
                Some(prefixes) => *prefixes,
                None if is_enforced => 0,
                None => one.prefixes.len() as u64,
            };
            let status = one.status(prefixes, refused.get(name).copied().unwrap_or(0));
            let of_all = self.problem.as_ref().filter(|_| one.list.class().is_none());
            ListStatus {
                problem: status
                    .problem
                    .clone()
                    .or_else(|| self.shortened.get(name).or(of_all).cloned()),
                ..status
            }
        };
        ListsStatus {
            lists: self.lists.iter().map(status).collect(),
            exceptions: self.exceptions.iter().map(ToString::to_string).collect(),
            memory_bytes: self
                .in_effect
                .as_ref()
                .map_or(0, |in_effect| in_effect.map.bytes()),
        }
    }

    fn notes(&self) -> Vec<String> {
        let problem = |one: &One| {
            let kept = human::number(one.prefixes.len() as u64);
            let problem = one.problem.as_ref()?;
            Some(format!(
                "ban list {:?}: {problem}; its {kept} prefixes stay in effect",
                one.list.name
            ))
        };
        let note = |one: &One| {
            Some(format!(
                "ban list {:?}: {}",
                one.list.name,
                one.note.as_ref()?
            ))
        };
        let suspended = (self.is_suspended && self.banning().next().is_some())
            .then(|| "ban lists are suspended in observe mode".to_owned());
        let of_lists = self
            .lists
            .iter()
            .flat_map(|one| problem(one).into_iter().chain(note(one)));
        let shortened = self
            .shortened
            .iter()
            .map(|(name, problem)| format!("ban list {name:?}: {problem}"));
        self.problem
            .iter()
            .cloned()
            .chain(shortened)
            .chain(suspended)
            .chain(of_lists)
            .chain(self.of_own_network.iter().cloned())
            .collect()
    }
}
