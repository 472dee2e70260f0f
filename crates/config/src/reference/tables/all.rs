//! Every table, in the order of the book.

use super::{
    agent, ban_list, class, cluster, crowdsec, decide, geo, group, limit, notify, request,
};
use crate::reference::TableReference;

/// All tables of limits.toml.
pub static TABLES: &[TableReference] = &[
    agent::AGENT,
    class::CLASS,
    ban_list::BAN_LIST,
    geo::GEO,
    limit::LIMIT,
    request::REQUEST_LIMIT,
    group::GROUP,
    decide::DECIDE,
    request::REQUEST,
    cluster::CLUSTER,
    notify::NOTIFY,
    crowdsec::CROWDSEC,
];
