//! Refused packets that count towards a ban. A TCP segment can be forged as easily as a datagram, so it counts only if this host
//! has its connection, whose port a forger must guess.

use crate::key::Key;
use crate::packet::{Direction, Kind, Packet, Protocol};
use crate::rule::{Rule, Size, Subject};

/// Whether a refused packet counts towards a ban of its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Counts {
    /// It does. `weir check` warns of limits on such packets.
    Always = 0,
    /// It does not.
    Never = 1,
    /// It does if this host has its connection.
    IfConnected = 2,
}

impl Counts {
    /// For a packet that the rule has refused.
    #[inline(always)]
    #[must_use]
    pub fn of(rule: &Rule, packet: &Packet) -> Self {
        match packet.protocol {
            // It may be one of TCP.
            Protocol::Hidden => Self::Never,
            Protocol::Tcp if packet.kind == Kind::Connection => {
                if rule.bans_by_syns() {
                    Self::Always
                } else {
                    Self::Never
                }
            }
            // A later fragment has no ports.
            Protocol::Tcp if !packet.has_ports() => Self::Never,
            Protocol::Tcp => Self::IfConnected,
            _ => Self::Always,
        }
    }
}

/// The key of a received packet under a rule that may ban its source, which has an address.
#[inline(always)]
#[must_use]
pub fn key_of(rule: &Rule, packet: &Packet) -> Key {
    rule.key_of(&Subject {
        hi: packet.source.hi,
        lo: packet.source.lo,
        is_ipv4: u32::from(packet.is_ipv4),
        local_port: u32::from(packet.local_port_or_0(Direction::Ingress)),
        class: 0,
        interface: 0,
        network: 0,
        size: Size::of_one(0),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::build::{Frame, MoreFragments};
    use crate::packet::{Depth, Link, parse};

    #[test]
    fn single_segments_of_tcp_ban_nobody() {
        let by_syns = Rule::EMPTY.escalating(true, true);
        let other = Rule::EMPTY.escalating(true, false);
        let frame = || Frame::ethernet().ipv4([192, 0, 2, 1], [192, 0, 2, 2]);
        let of = |rule: &Rule, frame: Frame| {
            let bytes = frame.build();
            Counts::of(
                rule,
                &parse(&bytes[..], Link::Ethernet, Depth::Ports).unwrap(),
            )
        };
        let later = || frame().fragment(9, MoreFragments::No).payload(6, &[0; 24]);
        for (name, frame, counts) in [
            ("a datagram", frame().udp(1, 2, b"x"), [Counts::Always; 2]),
            ("ICMP", frame().icmp(8), [Counts::Always; 2]),
            (
                "a SYN",
                frame().tcp(1, 2, 2, b""),
                [Counts::Always, Counts::Never],
            ),
            (
                "an ACK",
                frame().tcp(1, 2, 16, b"GET / "),
                [Counts::IfConnected; 2],
            ),
            ("a later fragment", later(), [Counts::Never; 2]),
        ] {
            assert_eq!(
                [of(&by_syns, frame.clone()), of(&other, frame)],
                counts,
                "{name}"
            );
        }
        assert!(by_syns.escalates() && other.escalates() && !Rule::EMPTY.escalates());
    }
}
