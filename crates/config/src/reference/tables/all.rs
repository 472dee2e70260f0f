//! Every table, in the order of the book.

use super::{agent, class, cluster, decide, group, limit, notify, request};
use crate::reference::TableReference;

/// All tables of limits.toml.
pub static TABLES: &[TableReference] = &[
    agent::AGENT,
    class::CLASS,
    limit::LIMIT,
    request::REQUEST_LIMIT,
    group::GROUP,
    decide::DECIDE,
    request::REQUEST,
    cluster::CLUSTER,
    notify::NOTIFY,
];
