//! The default gateways.

use std::io;
use std::net::IpAddr;

use netlink_packet_route::route::{
    RouteAddress, RouteAttribute, RouteMessage, RouteType, RouteVia,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};

use crate::devices::netlink::dump_of;

/// The gateways of the default routes, IPv4 and IPv6.
///
/// # Errors
///
/// When netlink fails.
pub fn default_gateways() -> io::Result<Vec<IpAddr>> {
    let mut gateways = Vec::new();
    for family in [AddressFamily::Inet, AddressFamily::Inet6] {
        let mut question = RouteMessage::default();
        question.header.address_family = family;
        let is_default = |reply: &RouteNetlinkMessage| {
            matches!(reply, RouteNetlinkMessage::NewRoute(route)
                if route.header.destination_prefix_length == 0
                    && route.header.kind == RouteType::Unicast)
        };
        for reply in dump_of(RouteNetlinkMessage::GetRoute(question), is_default)? {
            if let RouteNetlinkMessage::NewRoute(route) = reply {
                gateways.extend(of(&route.attributes));
            }
        }
    }
    gateways.sort_unstable();
    gateways.dedup();
    Ok(gateways)
}

/// The gateways of a route or next hop.
fn of(attributes: &[RouteAttribute]) -> Vec<IpAddr> {
    let address = |address: &RouteAddress| match address {
        RouteAddress::Inet(address) => Some(IpAddr::from(*address)),
        RouteAddress::Inet6(address) => Some(IpAddr::from(*address)),
        _ => None,
    };
    let each = |attribute: &RouteAttribute| match attribute {
        RouteAttribute::Gateway(gateway) => address(gateway).into_iter().collect(),
        RouteAttribute::Via(RouteVia::Inet(address)) => vec![IpAddr::from(*address)],
        RouteAttribute::Via(RouteVia::Inet6(address)) => vec![IpAddr::from(*address)],
        RouteAttribute::MultiPath(ways) => {
            ways.iter().flat_map(|way| of(&way.attributes)).collect()
        }
        _ => Vec::new(),
    };
    attributes.iter().flat_map(each).collect()
}
