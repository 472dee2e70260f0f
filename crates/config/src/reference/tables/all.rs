//! Every table, in the order of the book.

use super::{limit, request};
use crate::group::Group;
use crate::policy::{
    AgentConfig, BanList, Class, Cluster, CrowdSec, Decide, Geo, Notify, RequestCost,
};
use crate::schema::{Table as _, TableReference};

/// All tables of limits.toml.
pub static TABLES: &[TableReference] = &[
    AgentConfig::REFERENCE,
    Class::REFERENCE,
    BanList::REFERENCE,
    Geo::REFERENCE,
    limit::LIMIT,
    request::REQUEST_LIMIT,
    Group::REFERENCE,
    Decide::REFERENCE,
    RequestCost::REFERENCE,
    Cluster::REFERENCE,
    Notify::REFERENCE,
    CrowdSec::REFERENCE,
];
