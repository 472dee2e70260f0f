//! Classes with the prefixes of their networks and countries.
//!
//! The longest prefix decides in the policy. Where two classes overlap, the prefixes of databases have arbitrary lengths,
//! so a class's prefix is left out if others take precedence over it: `sources` of any class over databases, and among
//! those the first class. A prefix of theirs within a later class's prefix is longer, and decides by itself.

use config::policy::{Class, GeoKey, Prefix};

use crate::ranges::Addresses;

/// Classes with all their prefixes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Classes {
    pub classes: Vec<Class>,
    /// For each class that shares addresses with classes before it, a warning.
    pub overlaps: Vec<String>,
}

/// Adds each class's prefixes from databases to its `sources`. `find` returns those of a key.
#[must_use]
pub fn with_prefixes<'p>(classes: &[Class], find: impl Fn(GeoKey) -> &'p [Prefix]) -> Classes {
    let mut literal = Addresses::default();
    classes.iter().for_each(|class| literal.add(&class.sources));
    let mut before = Addresses::default();
    let mut result = Classes { classes: classes.to_vec(), overlaps: Vec::new() };
    for class in result.classes.iter_mut().filter(|class| !class.geo.is_empty()) {
        let mut own: Vec<Prefix> = Vec::new();
        for key in &class.geo {
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
