//! Every table, in the order of the book.

use super::{ban_list, class, group, limit, request};
use crate::policy::{AgentConfig, Cluster, CrowdSec, Decide, Geo, Notify};
use crate::schema::{Table as _, TableReference};

/// All tables of limits.toml.
pub static TABLES: &[TableReference] = &[
    AgentConfig::REFERENCE,
    class::CLASS,
    ban_list::BAN_LIST,
    Geo::REFERENCE,
    limit::LIMIT,
    request::REQUEST_LIMIT,
    group::GROUP,
    Decide::REFERENCE,
    request::REQUEST,
    Cluster::REFERENCE,
    Notify::REFERENCE,
    CrowdSec::REFERENCE,
];
