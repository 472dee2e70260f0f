//! Network devices of the host.

pub(crate) mod device;
pub(crate) mod features;
pub(crate) mod gateways;
pub mod host_links;
pub(crate) mod names;
pub(crate) mod netlink;
pub(crate) mod sent;
pub mod topology;
