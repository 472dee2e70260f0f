//! The direction of a packet.

use common::packet::{Address, Depth, Direction, parse};
use config::prefix::mapped;
use ipnet::IpNet;

use super::capture::CapturedPacket;
use super::frame::CapturedFrame;

/// The addresses of the captured host.
#[derive(Clone, Debug, Default)]
pub struct Local(Vec<(u128, u128)>);

impl Local {
    /// All addresses in these prefixes.
    #[must_use]
    pub fn new(prefixes: &[IpNet]) -> Self {
        let bits = |prefix: &IpNet| {
            let network = u128::from_be_bytes(mapped(prefix.network()));
            let length =
                u32::from(prefix.prefix_len()) + if prefix.addr().is_ipv4() { 96 } else { 0 };
            (network, u128::MAX.checked_shl(128 - length).unwrap_or(0))
        };
        Self(prefixes.iter().map(bits).collect())
    }

    fn holds(&self, address: Address) -> bool {
        let address = u128::from_be_bytes(address.octets());
        self.0
            .iter()
            .any(|(network, mask)| address & mask == *network)
    }

    /// The direction of a packet: by addresses if they are known, else as in the capture. `None` if unknown.
    #[must_use]
    pub fn direction(
        &self,
        packet: &CapturedPacket<'_>,
        frame: &CapturedFrame<'_>,
    ) -> Option<Direction> {
        if self.0.is_empty() {
            return packet.direction;
        }
        // From the host to itself, or neither: a broadcast, another host's packet, no addresses.
        let otherwise = packet.direction.or(Some(Direction::Ingress));
        let Ok(parsed) = parse(frame, packet.link, Depth::Addresses) else {
            return otherwise;
        };
        match (self.holds(parsed.source), self.holds(parsed.destination)) {
            (true, false) => Some(Direction::Egress),
            (false, true) => Some(Direction::Ingress),
            _ => otherwise,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use common::packet::Link;
    use common::packet::build::Frame;
    use std::cell::Cell;

    #[test]
    fn addresses_take_precedence_over_the_captures_direction() {
        let local = Local::new(&[
            "192.0.2.0/24".parse().unwrap(),
            "2001:db8::/64".parse().unwrap(),
        ]);
        let v6 = |last| [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
        let other = [0xfe, 0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        let (ours, theirs) = ([192, 0, 2, 1], [198, 51, 100, 1]);
        let ingress = Some(Direction::Ingress);
        let egress = Some(Direction::Egress);
        for (frame, said, expected) in [
            (
                Frame::ethernet().ipv4(theirs, ours).udp(1, 2, b""),
                egress,
                ingress,
            ),
            (
                Frame::ethernet().vlan(5).ipv4(ours, theirs).udp(1, 2, b""),
                ingress,
                egress,
            ),
            (
                Frame::ethernet().ipv6(other, v6(1)).udp(1, 2, b""),
                None,
                ingress,
            ),
            (
                Frame::ethernet().ipv6(v6(1), other).udp(1, 2, b""),
                None,
                egress,
            ),
            (
                Frame::ethernet().ipv4(ours, ours).udp(1, 2, b""),
                egress,
                egress,
            ),
            (
                Frame::ethernet().ipv4(theirs, theirs).udp(1, 2, b""),
                None,
                ingress,
            ),
            (Frame::ethernet().other(0x0806, &[0; 46]), egress, egress),
        ] {
            let bytes = frame.build();
            let packet = CapturedPacket {
                nanoseconds: None,
                link: Link::Ethernet,
                frame: &bytes,
                length: bytes.len() as u32,
                interface: 1,
                is_of_all_interfaces: false,
                direction: said,
            };
            let is_cut = Cell::new(false);
            let frame = CapturedFrame::new(&packet, &is_cut);
            assert_eq!(local.direction(&packet, &frame), expected, "{bytes:x?}");
            // Without addresses, the capture's direction applies.
            assert_eq!(Local::default().direction(&packet, &frame), said);
        }
    }
}
