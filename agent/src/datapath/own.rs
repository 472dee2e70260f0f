//! The addresses of this host: the kernel programs reply to refused packets in no other's name.

use std::collections::{HashMap as Rows, HashSet};
use std::io;
use std::net::IpAddr;

use aya::maps::{HashMap, Map, MapError};
use common::own::{MOST_OWN, Own, OwnKey};
use common::packet::Address;
use netlink_packet_route::RouteNetlinkMessage;
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{InfoKind, LinkAttribute, LinkInfo, LinkMessage};

use super::device::ask;
use super::error::LoadError;

/// The addresses of a host and of its devices, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OwnAddresses(Rows<OwnKey, Own>);

impl OwnAddresses {
    /// Reads them from the kernel.
    ///
    /// # Errors
    ///
    /// When the kernel does not answer.
    pub fn read() -> io::Result<Self> {
        let mut own = Self::default();
        let mut tagged = HashSet::new();
        for answer in ask(RouteNetlinkMessage::GetLink(LinkMessage::default()))? {
            let RouteNetlinkMessage::NewLink(link) = answer else { continue };
            if is_vlan(&link) {
                tagged.insert(link.header.index);
                // A bridge or bond over it has its frames.
                tagged.extend(link.attributes.iter().find_map(|attribute| match attribute {
                    LinkAttribute::Controller(index) => Some(*index),
                    _ => None,
                }));
            }
            for attribute in link.attributes {
                let LinkAttribute::Address(address) = attribute else { continue };
                if let Ok(address) = address.try_into() {
                    own.add_device(address);
                }
            }
        }
        for answer in ask(RouteNetlinkMessage::GetAddress(AddressMessage::default()))? {
            let RouteNetlinkMessage::NewAddress(message) = answer else { continue };
            let place = if tagged.contains(&message.header.index) { Own::Tagged } else { Own::Plain };
            // Of a link between two hosts, the other attribute is the other host's.
            let local = message.attributes.iter().find_map(|attribute| match attribute {
                AddressAttribute::Local(address) => Some(*address),
                _ => None,
            });
            let any = message.attributes.iter().find_map(|attribute| match attribute {
                AddressAttribute::Address(address) => Some(*address),
                _ => None,
            });
            if let Some(address) = local.or(any) {
                own.add(address, place);
            }
        }
        Ok(own)
    }

    /// Adds an address. One that is on a VLAN device and on another counts as the latter's.
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

    /// Adds the hardware address of a device.
    pub fn add_device(&mut self, address: [u8; 6]) {
        self.0.insert(OwnKey::of_device(address), Own::Plain);
    }

    /// Writes what has changed since `before`.
    pub(super) fn write(&self, map: &mut Map, before: &Self) -> Result<(), LoadError> {
        let mut map = HashMap::<_, OwnKey, u32>::try_from(map)?;
        for key in before.0.keys().filter(|key| !self.0.contains_key(key)) {
            match map.remove(key) {
                Ok(()) | Err(MapError::KeyNotFound) => {}
                Err(error) => return Err(error.into()),
            }
        }
        for (key, own) in self.0.iter().take(MOST_OWN as usize) {
            if before.0.get(key) != Some(own) {
                map.insert(key, *own as u32, 0)?;
            }
        }
        Ok(())
    }
}

fn is_vlan(link: &LinkMessage) -> bool {
    link.attributes.iter().any(|attribute| match attribute {
        LinkAttribute::LinkInfo(infos) => infos.iter().any(|info| matches!(info, LinkInfo::Kind(InfoKind::Vlan))),
        _ => false,
    })
}
