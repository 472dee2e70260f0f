//! Every table, in the order of the book, and the secrets that they declare.

use crate::group::Group;
use crate::policy::{
    AgentConfig, BanList, Class, Cluster, CrowdSec, Decide, FleetRules, Geo, Limit, Notify,
    RequestCost, RequestLimit,
};
use crate::schema::{Key, Mask, Table as _, TableReference, inner_keys};

/// All tables of limits.toml.
pub static TABLES: &[TableReference] = &[
    AgentConfig::REFERENCE,
    Class::REFERENCE,
    BanList::REFERENCE,
    Geo::REFERENCE,
    Limit::REFERENCE,
    RequestLimit::REFERENCE,
    Group::REFERENCE,
    Decide::REFERENCE,
    RequestCost::REFERENCE,
    Cluster::REFERENCE,
    Notify::REFERENCE,
    CrowdSec::REFERENCE,
    FleetRules::REFERENCE,
];

/// A config's text without secrets, with the same length.
#[must_use]
pub fn without_secrets(text: &str) -> String {
    fn masks(keys: &mut dyn Iterator<Item = &Key>, all: &mut Vec<(Mask, &'static str)>) {
        for key in keys {
            all.extend(key.mask.map(|mask| (mask, key.name)));
            masks(&mut inner_keys(&key.kind).into_iter(), all);
        }
    }
    let mut all = Vec::new();
    masks(&mut TABLES.iter().flat_map(|table| table.keys), &mut all);
    all.into_iter()
        .fold(text.to_owned(), |text, (mask, key)| mask(&text, key))
}
