//! The addresses of this host from which the kernel programs reply to refused packets.

use std::collections::{HashMap as Rows, HashSet};
use std::io;
use std::net::IpAddr;

use aya::maps::{HashMap, Map};
use common::own::{MOST_OWN, Own, OwnKey};
use common::packet::Address;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::AddressMessage;
use netlink_packet_route::link::{LinkAttribute, LinkMessage};

use super::access::unless_missing;
use crate::devices::netlink::{dump, local};
use crate::devices::topology;
use crate::error::LoadError;

/// The addresses of a host and of its devices, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnAddresses(Rows<OwnKey, Own>);

impl OwnAddresses {
    /// Reads them from the kernel.
    ///
    /// # Errors
    ///
    /// When netlink fails.
    pub fn read() -> io::Result<Self> {
        let mut own = Self::default();
        let mut tagged = HashSet::new();
        for reply in dump(RouteNetlinkMessage::GetLink(LinkMessage::default()))? {
            let RouteNetlinkMessage::NewLink(link) = reply else {
                continue;
            };
            let device = topology::device(&link);
            let place = if device.kind == "vlan" {
                Own::Tagged
            } else {
                Own::Plain
            };
            if place == Own::Tagged {
                tagged.insert(device.index);
                // A bridge or bond above it has the same frames.
                tagged.extend(device.master);
            }
            for attribute in link.attributes {
                let LinkAttribute::Address(address) = attribute else {
                    continue;
                };
                if let Ok(address) = address.try_into() {
                    own.add_device(address, place);
                }
            }
        }
        for reply in dump(RouteNetlinkMessage::GetAddress(AddressMessage::default()))? {
            let RouteNetlinkMessage::NewAddress(message) = reply else {
                continue;
            };
            let place = if tagged.contains(&message.header.index) {
                Own::Tagged
            } else {
                Own::Plain
            };
            if let Some(address) = local(&message) {
                own.add(address, place);
            }
        }
        Ok(own)
    }

    /// Adds an address. If it is on a VLAN device and on another, the latter counts.
    pub fn add(&mut self, address: IpAddr, place: Own) {
        let address = match address {
            IpAddr::V4(address) => Address::from_ipv4(address.octets()),
            IpAddr::V6(address) => Address::from_ipv6(address.octets()),
        };
        let known = self.0.entry(OwnKey::of_address(address)).or_insert(place);
        if place == Own::Plain {
            *known = place;
        }
    }

    /// Adds the hardware address of a device. If a VLAN device has it, too, frames to it may lack their tag.
    pub fn add_device(&mut self, address: [u8; 6], place: Own) {
        let known = self.0.entry(OwnKey::of_device(address)).or_insert(place);
        if place == Own::Tagged {
            *known = place;
        }
    }

    /// Whether a VLAN device has a hardware address.
    pub(crate) fn have_tagged_device(&self) -> bool {
        self.0
            .iter()
            .any(|(key, place)| key.is_device() && *place == Own::Tagged)
    }

    /// Writes the changes since `before`.
    pub(crate) fn write(&self, map: &mut Map, before: &Self) -> Result<(), LoadError> {
        let mut map = HashMap::<_, OwnKey, u32>::try_from(map)?;
        for key in before.0.keys().filter(|key| !self.0.contains_key(key)) {
            unless_missing(map.remove(key))?;
        }
        for (key, own) in self.0.iter().take(MOST_OWN as usize) {
            if before.0.get(key) != Some(own) {
                map.insert(key, *own as u32, 0)?;
            }
        }
        Ok(())
    }
}
