//! The contents of lists whose prefixes belong to classes.

use std::net::IpAddr;
use std::sync::Arc;

use config::policy::{BanList, Config, Prefix};
use config::{PrefixKey, prefix};
use geo::ClassPrefixes;
use lists::{Listed, find};

/// The lists with `action = "class:NAME"`, in the config's order. Copies share the contents.
#[derive(Clone, Debug, Default)]
pub struct ClassLists(Vec<ClassList>);

/// One list.
#[derive(Clone, Debug)]
struct ClassList {
    name: String,
    class: String,
    /// In order.
    prefixes: Arc<Vec<Listed>>,
    /// A newer content that could not be put in effect, and why.
    refused: Option<(Arc<Vec<Listed>>, String)>,
}

impl ClassList {
    /// The content that was last to be put in effect.
    fn last(&self) -> &Arc<Vec<Listed>> {
        self.refused
            .as_ref()
            .map_or(&self.prefixes, |(prefixes, _)| prefixes)
    }

    fn note(&self) -> Option<String> {
        let (_, why) = self.refused.as_ref()?;
        let kept = config::human::number(self.prefixes.len() as u64);
        Some(format!(
            "ban list {:?} could not be put in effect: {why}; {kept} prefixes of it stay in class {:?}",
            self.name, self.class
        ))
    }
}

impl ClassLists {
    /// The lists of a config; `content` returns that of a list by its name.
    pub fn of(config: &Config, mut content: impl FnMut(&BanList) -> Arc<Vec<Listed>>) -> Self {
        let list = |list: &BanList| {
            Some(ClassList {
                name: list.name.clone(),
                class: list.class()?.to_owned(),
                prefixes: content(list),
                refused: None,
            })
        };
        Self(config.ban_lists.iter().filter_map(list).collect())
    }

    /// The prefixes of each list.
    pub(super) fn prefixes(
        &self,
    ) -> impl Iterator<Item = ClassPrefixes<'_, impl Iterator<Item = Prefix> + '_>> {
        self.0.iter().map(|list| ClassPrefixes {
            list: &list.name,
            class: &list.class,
            prefixes: list
                .prefixes
                .iter()
                .map(|listed| Prefix::from(&listed.prefix())),
        })
    }

    /// Whether these contents have been put in effect, or could not.
    #[must_use]
    pub fn are(&self, contents: &Self) -> bool {
        self.0.len() == contents.0.len()
            && self.0.iter().zip(&contents.0).all(|(known, list)| {
                known.name == list.name
                    && known.class == list.class
                    && has_same(known.last(), list.last())
            })
    }

    /// These contents, after those of `next` could not be put in effect.
    pub(super) fn kept(&self, next: &Self, why: &str) -> Self {
        let keep = |next: &ClassList| {
            let before = self
                .0
                .iter()
                .find(|list| list.name == next.name && list.class == next.class);
            match before.filter(|before| !has_same(&before.prefixes, &next.prefixes)) {
                Some(before) => ClassList {
                    prefixes: Arc::clone(&before.prefixes),
                    refused: Some((Arc::clone(&next.prefixes), why.to_owned())),
                    ..next.clone()
                },
                None => next.clone(),
            }
        };
        Self(next.0.iter().map(keep).collect())
    }

    /// No contents, after these could not be put in effect.
    pub(super) fn left_out(&self, why: &str) -> Self {
        let leave = |list: &ClassList| ClassList {
            prefixes: Arc::default(),
            refused: Some((Arc::clone(&list.prefixes), why.to_owned())),
            ..list.clone()
        };
        Self(self.0.iter().map(leave).collect())
    }

    /// A note for each list whose newest content is not in effect.
    pub(super) fn notes(&self) -> impl Iterator<Item = String> + '_ {
        self.0.iter().filter_map(ClassList::note)
    }

    /// The notes that the contents `before` had not, with their lists.
    pub(super) fn failures(&self, before: &Self) -> Vec<(String, u64, String)> {
        let known: Vec<String> = before.notes().collect();
        let failure =
            |list: &ClassList| Some((list.name.clone(), list.prefixes.len() as u64, list.note()?));
        self.0
            .iter()
            .filter_map(failure)
            .filter(|(_, _, note)| !known.contains(note))
            .collect()
    }

    /// The prefixes in effect of a list, and why its newest content is not.
    #[must_use]
    pub fn in_effect(&self, name: &str) -> Option<(u64, Option<&str>)> {
        let list = self.0.iter().find(|list| list.name == name)?;
        Some((
            list.prefixes.len() as u64,
            list.refused.as_ref().map(|(_, why)| why.as_str()),
        ))
    }

    /// The list that put an address into its class, with the prefix; `None` if `sources` did, or databases.
    #[must_use]
    pub fn of_address(&self, config: &Config, address: IpAddr) -> Option<(&str, Listed)> {
        let whole = PrefixKey {
            address: prefix::mapped(address),
            length: 128,
        };
        let literal = config.classes.iter().flat_map(|class| &class.sources);
        let literal = literal
            .filter(|prefix| prefix.contains(address))
            .map(Prefix::mapped_length)
            .max();
        let found = self
            .0
            .iter()
            .filter_map(|list| Some((list.name.as_str(), *find(&list.prefixes, &whole)?)));
        // The first of the longest.
        let longest = found.reduce(|best, next| {
            if next.1.prefix().length > best.1.prefix().length {
                next
            } else {
                best
            }
        });
        longest.filter(|(_, listed)| literal.is_none_or(|literal| listed.prefix().length > literal))
    }
}

/// Whether two contents have the same prefixes.
fn has_same(one: &Arc<Vec<Listed>>, other: &Arc<Vec<Listed>>) -> bool {
    Arc::ptr_eq(one, other)
        || one
            .iter()
            .map(Listed::prefix)
            .eq(other.iter().map(Listed::prefix))
}
