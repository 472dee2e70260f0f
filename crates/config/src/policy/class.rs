//! `[[class]]`.

use std::net::IpAddr;

use super::{GeoKey, Multiplier, Prefix};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Class {
    /// Unique.
    pub name: String,
    /// Its prefixes: those of `sources`, and in a policy in effect those of `geo` after them.
    pub sources: Vec<Prefix>,
    /// `asn` and `country`.
    pub geo: Vec<GeoKey>,
    /// The class's multiplier.
    pub service: Service,
}

/// The class of an address, by the longest matching prefix.
#[must_use]
pub fn class_of<'c>(
    classes: impl IntoIterator<Item = &'c Class>,
    address: IpAddr,
) -> Option<&'c Class> {
    let prefixes = classes
        .into_iter()
        .flat_map(|class| class.sources.iter().map(move |prefix| (prefix, class)));
    let around = prefixes.filter(|(prefix, _)| prefix.contains(address));
    around
        .max_by_key(|(prefix, _)| prefix.mapped_length())
        .map(|(_, class)| class)
}

/// The name of a class by its number; 0 is the default class.
#[must_use]
pub fn class_name(classes: &[Class], number: u32) -> &str {
    let class = number
        .checked_sub(1)
        .and_then(|nth| classes.get(nth as usize));
    class.map_or("default", |class| &class.name)
}

/// The multiplier of a class.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Service {
    /// A factor on every limit.
    Multiplier(Multiplier),
    /// No limit at all.
    Unlimited,
}
