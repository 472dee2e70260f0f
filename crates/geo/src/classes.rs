//! Classes with the prefixes of their lists, networks and countries.
//!
//! The longest prefix decides in the policy. Where two classes overlap, the prefixes of databases have arbitrary lengths,
//! so a class's prefix is left out if others take precedence over it: `sources` of any class over databases, and among
//! those the first class. A prefix of theirs within a later class's prefix is longer, and decides by itself.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use config::policy::{Class, GeoKey, Prefix};

use crate::ranges::Addresses;

/// Classes with all their prefixes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classes {
    pub classes: Vec<Class>,
    /// For each list and class that shares addresses with others that take precedence, a warning.
    pub overlaps: Vec<String>,
}

/// A list whose prefixes belong to a class.
#[derive(Clone, Copy, Debug)]
pub struct ClassPrefixes<'p, P> {
    /// The list's name.
    pub list: &'p str,
    /// The class's name.
    pub class: &'p str,
    pub prefixes: P,
}

/// Adds the prefixes of lists to the `sources` of classes. A prefix belongs to one class: `sources` take precedence, then
/// the first list.
pub fn with_lists<'p, P: Iterator<Item = Prefix>>(
    classes: Vec<Class>,
    lists: impl Iterator<Item = ClassPrefixes<'p, P>>,
) -> Classes {
    let mut result = Classes {
        classes,
        overlaps: Vec::new(),
    };
    let mut lists = lists.peekable();
    if lists.peek().is_none() {
        return result;
    }
    let of_class = |(nth, class): (usize, &Class)| {
        class
            .sources
            .iter()
            .map(move |prefix| (*prefix, nth))
            .collect()
    };
    let mut owners: HashMap<Prefix, usize> = result
        .classes
        .iter()
        .enumerate()
        .flat_map::<Vec<_>, _>(of_class)
        .collect();
    for ClassPrefixes {
        list,
        class,
        prefixes,
    } in lists
    {
        let Some(nth) = result.classes.iter().position(|known| known.name == class) else {
            continue;
        };
        let (mut all, mut of_others) = (0, 0);
        for prefix in prefixes {
            all += 1;
            match owners.entry(prefix) {
                Entry::Vacant(vacant) => {
                    vacant.insert(nth);
                    result.classes[nth].sources.push(prefix);
                }
                Entry::Occupied(owner) => of_others += usize::from(*owner.get() != nth),
            }
        }
        if of_others > 0 {
            result.overlaps.push(format!(
                "{of_others} of {all} prefixes of list {list:?} are in other classes by their sources or by lists before it, \
                 which take precedence"
            ));
        }
    }
    result
}

/// Adds each class's prefixes from databases to its `sources`. `find` returns those of a key.
#[must_use]
pub fn with_prefixes<'p>(classes: Vec<Class>, find: impl Fn(GeoKey) -> &'p [Prefix]) -> Classes {
    let mut result = Classes {
        classes,
        overlaps: Vec::new(),
    };
    if result.classes.iter().all(|class| class.geo().is_empty()) {
        return result;
    }
    let mut literal = Addresses::default();
    result
        .classes
        .iter()
        .for_each(|class| literal.add(&class.sources));
    let mut before = Addresses::default();
    for class in result
        .classes
        .iter_mut()
        .filter(|class| !class.geo().is_empty())
    {
        let mut own: Vec<Prefix> = Vec::new();
        for key in &class.geo() {
            own.extend(find(*key));
        }
        own.sort_unstable();
        own.dedup();
        let overlapping = own.iter().filter(|prefix| before.overlaps(prefix)).count();
        if overlapping > 0 {
            let (name, all) = (&class.name, own.len());
            result.overlaps.push(format!(
                "{overlapping} of {all} prefixes of class {name:?} overlap with networks or countries of classes before \
                 it, which take precedence"
            ));
        }
        let is_own = |prefix: &&Prefix| !literal.contains(prefix) && !before.contains(prefix);
        class.sources.extend(own.iter().filter(is_own));
        before.add(&own);
    }
    result
}
