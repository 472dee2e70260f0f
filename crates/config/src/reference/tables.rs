//! Every table, in the order of the book.

use crate::group::Group;
use crate::policy::{
    AgentConfig, BanList, Class, Cluster, CrowdSec, Decide, Geo, Limit, Notify, RequestCost,
    RequestLimit,
};
use crate::schema::{Table as _, TableReference};

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
];
