//! Every table, in the order of the book.

use super::{ban_list, class, cluster, crowdsec, decide, geo, group, limit, notify, request};
use crate::policy::AgentConfig;
use crate::schema::{Table as _, TableReference};

/// All tables of limits.toml.
pub static TABLES: &[TableReference] = &[
    AgentConfig::REFERENCE,
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
