use etherparse::{Icmpv4Type, Icmpv6Type, NetSlice, SlicedPacket, TransportSlice, icmpv4, icmpv6};
use std::vec::Vec;

use super::super::build::{Frame, MoreFragments};
use super::super::{Depth, Link, parse};
use super::*;

const V4: [u8; 4] = [192, 0, 2, 1];
const V4_TO: [u8; 4] = [198, 51, 100, 7];
const V6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3];
const V6_TO: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 9, 0, 9, 0, 0, 0, 0, 0, 0, 0, 9];
const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;
const ACK: u8 = 16;

fn answer(frame: &[u8]) -> Vec<u8> {
    let packet = parse(frame, Link::Ethernet, Depth::Ports).unwrap();
    let mut reply = Reply::EMPTY;
    let words = reply.answer(frame, &packet);
    (0..words)
        .flat_map(|nth| reply.word(nth).to_ne_bytes())
        .collect()
}

/// The same segment in both IP versions.
fn segments(flags: u8, payload: &[u8]) -> [Vec<u8>; 5] {
    let tcp = |frame: Frame| frame.tcp(4000, 443, flags, payload).build();
    [
        tcp(Frame::ethernet().ipv4(V4, V4_TO)),
        tcp(Frame::ethernet().vlan(5).ipv4(V4, V4_TO)),
        tcp(Frame::ethernet().ipv4_with_options(V4, V4_TO, 3)),
        tcp(Frame::ethernet().ipv6(V6, V6_TO)),
        tcp(Frame::ethernet().ipv6(V6, V6_TO).empty_extension(60)),
    ]
}

/// Checks a reply with an independent parser: lengths, checksums, swapped addresses.
fn checked(reply: &[u8]) -> SlicedPacket<'_> {
    let sliced = SlicedPacket::from_ip(reply).unwrap();
    match sliced.net.as_ref().unwrap() {
        NetSlice::Ipv4(ip) => {
            let header = ip.header();
            assert_eq!((header.source(), header.destination()), (V4_TO, V4));
            assert_eq!(usize::from(header.total_len()), reply.len());
            assert_eq!(
                header.header_checksum(),
                header.to_header().calc_header_checksum()
            );
            match sliced.transport.as_ref().unwrap() {
                TransportSlice::Tcp(tcp) => {
                    assert_eq!(tcp.checksum(), tcp.calc_checksum_ipv4(V4_TO, V4).unwrap());
                }
                TransportSlice::Icmpv4(icmp) => {
                    assert_eq!(
                        icmp.checksum(),
                        icmp.icmp_type().calc_checksum(icmp.payload())
                    );
                }
                other => panic!("{other:?}"),
            }
        }
        NetSlice::Ipv6(ip) => {
            let header = ip.header();
            assert_eq!((header.source(), header.destination()), (V6_TO, V6));
            assert_eq!(usize::from(header.payload_length()) + 40, reply.len());
            match sliced.transport.as_ref().unwrap() {
                TransportSlice::Tcp(tcp) => {
                    assert_eq!(tcp.checksum(), tcp.calc_checksum_ipv6(V6_TO, V6).unwrap());
                }
                TransportSlice::Icmpv6(icmp) => assert!(icmp.is_checksum_valid(V6_TO, V6)),
                other => panic!("{other:?}"),
            }
        }
        NetSlice::Arp(_) => panic!("an ARP packet"),
    }
    sliced
}

#[test]
fn a_segment_is_answered_by_the_reset_that_its_sender_accepts() {
    // Frames are built with the sequence number 1 and no acknowledgment.
    for (flags, payload, sequence, acknowledgment) in [
        (SYN, &b""[..], 0, Some(2)),
        (SYN, b"early", 0, Some(7)),
        (FIN, b"", 0, Some(2)),
        (0, b"data", 0, Some(5)),
        (ACK, b"data", 0, None),
        (SYN | ACK, b"", 0, None),
    ] {
        for frame in segments(flags, payload) {
            let reply = answer(&frame);
            let sliced = checked(&reply);
            let Some(TransportSlice::Tcp(tcp)) = &sliced.transport else {
                panic!("{sliced:?}")
            };
            assert_eq!((tcp.source_port(), tcp.destination_port()), (443, 4000));
            assert!(tcp.rst() && !tcp.syn() && !tcp.fin());
            assert_eq!(tcp.sequence_number(), sequence);
            assert_eq!(
                tcp.ack().then(|| tcp.acknowledgment_number()),
                acknowledgment,
                "{flags}"
            );
        }
    }
    // A reset takes the number that the sender expects next.
    let mut frame = segments(ACK, b"")[0].clone();
    frame[14 + 20 + 8..][..4].copy_from_slice(&77_000u32.to_be_bytes());
    let reply = answer(&frame);
    let Some(TransportSlice::Tcp(tcp)) = checked(&reply).transport else {
        panic!()
    };
    assert_eq!((tcp.sequence_number(), tcp.ack()), (77_000, false));
}

#[test]
fn other_packets_get_an_icmp_error_that_quotes_them() {
    for frame in [
        Frame::ethernet().ipv4(V4, V4_TO).udp(4000, 53, b"hello"),
        Frame::ethernet().ipv4(V4, V4_TO).udp(4000, 53, b""),
        Frame::ethernet()
            .ipv4(V4, V4_TO)
            .fragment(0, MoreFragments::Yes)
            .udp(4000, 53, b"hello"),
        Frame::ethernet()
            .vlan(5)
            .vlan(6)
            .ipv4(V4, V4_TO)
            .payload(47, &[9; 30]),
        Frame::ethernet().ipv4(V4, V4_TO).icmp(8),
    ] {
        let frame = frame.build();
        let reply = answer(&frame);
        let sliced = checked(&reply);
        let Some(TransportSlice::Icmpv4(icmp)) = &sliced.transport else {
            panic!("{sliced:?}")
        };
        let prohibited = icmpv4::DestUnreachableHeader::FilterProhibited;
        assert_eq!(
            icmp.icmp_type(),
            Icmpv4Type::DestinationUnreachable(prohibited)
        );
        let network = frame
            .windows(2)
            .position(|pair| pair == [0x08, 0x00])
            .unwrap()
            + 2;
        assert_eq!(icmp.payload(), &frame[network..network + 28]);
    }
    for frame in [
        Frame::ethernet().ipv6(V6, V6_TO).udp(4000, 53, b"hello"),
        Frame::ethernet()
            .vlan(5)
            .ipv6(V6, V6_TO)
            .payload(47, &[9; 30]),
        Frame::ethernet().ipv6(V6, V6_TO).icmp(128),
    ] {
        let frame = frame.build();
        let reply = answer(&frame);
        let sliced = checked(&reply);
        let Some(TransportSlice::Icmpv6(icmp)) = &sliced.transport else {
            panic!("{sliced:?}")
        };
        assert_eq!(
            icmp.icmp_type(),
            Icmpv6Type::DestinationUnreachable(icmpv6::DestUnreachableCode::Prohibited)
        );
        let network = frame
            .windows(2)
            .position(|pair| pair == [0x86, 0xdd])
            .unwrap()
            + 2;
        assert_eq!(icmp.payload(), &frame[network..network + 48]);
    }
}

/// Completes the checksum of a packet like hardware.
fn completed(mut reply: Vec<u8>, start: usize, field: usize) -> Vec<u8> {
    let sum: u64 = reply[start..]
        .chunks(2)
        .map(|pair| u64::from(u16::from_be_bytes([pair[0], pair[1]])))
        .sum();
    let checksum = match !fold(sum) {
        0 => 0xffff,
        checksum => checksum,
    };
    reply[start + field..][..2].copy_from_slice(&checksum.to_be_bytes());
    reply
}

#[test]
fn a_reply_is_valid_though_hardware_completes_its_checksum() {
    for port in 0..2_000 {
        for (is_tcp, field) in [(true, 16), (false, 6)] {
            for is_ipv4 in [true, false] {
                let ip = if is_ipv4 {
                    Frame::ethernet().ipv4(V4, V4_TO)
                } else {
                    Frame::ethernet().ipv6(V6, V6_TO)
                };
                let frame = if is_tcp {
                    ip.tcp(port, 443, SYN, b"early")
                } else {
                    ip.udp(port, 53, b"hello")
                };
                let reply = answer(&frame.build());
                let _ = checked(&reply);
                let completed = completed(reply, if is_ipv4 { 20 } else { 40 }, field);
                if !is_tcp && is_ipv4 {
                    // An unused field of all ones has the sum of one of zeros; the parser would read it as a length.
                    assert_eq!(fold_of(&completed[20..]), 0xffff);
                } else {
                    let _ = checked(&completed);
                }
            }
        }
    }
}

fn fold_of(bytes: &[u8]) -> u16 {
    fold(
        bytes
            .chunks(2)
            .map(|pair| u64::from(u16::from_be_bytes([pair[0], pair[1]])))
            .sum(),
    )
}

#[test]
fn packets_that_no_error_may_answer_get_no_reply() {
    let (yes, no) = (MoreFragments::Yes, MoreFragments::No);
    let v6 = || Frame::ethernet().ipv6(V6, V6_TO);
    for (why, frame) in [
        (
            "a reset",
            Frame::ethernet().ipv4(V4, V4_TO).tcp(1, 2, RST, b""),
        ),
        ("a reset that acknowledges", v6().tcp(1, 2, RST | ACK, b"")),
        ("an ICMP error", Frame::ethernet().ipv4(V4, V4_TO).icmp(3)),
        ("an echo reply", Frame::ethernet().ipv4(V4, V4_TO).icmp(0)),
        ("an ICMPv6 error", v6().icmp(1)),
        (
            "a later fragment",
            Frame::ethernet()
                .ipv4(V4, V4_TO)
                .fragment(5, no)
                .udp(1, 2, b"xxxxxxxx"),
        ),
        (
            "a later fragment of a segment",
            Frame::ethernet()
                .ipv4(V4, V4_TO)
                .fragment(5, yes)
                .tcp(1, 2, SYN, b""),
        ),
        (
            "a later IPv6 fragment",
            v6().fragment(5, no).udp(1, 2, b"xxxxxxxx"),
        ),
        (
            "a broadcast",
            Frame::ethernet().ipv4(V4, [255; 4]).udp(1, 2, b"xxxxxxxx"),
        ),
        (
            "a multicast",
            Frame::ethernet()
                .ipv4(V4, [224, 0, 0, 1])
                .udp(1, 2, b"xxxxxxxx"),
        ),
        (
            "an IPv6 multicast",
            Frame::ethernet()
                .ipv6(V6, [0xff; 16])
                .udp(1, 2, b"xxxxxxxx"),
        ),
        (
            "one from nobody",
            Frame::ethernet().ipv4([0; 4], V4_TO).udp(1, 2, b"xxxxxxxx"),
        ),
        (
            "one from everybody",
            Frame::ethernet().ipv4([255; 4], V4_TO).tcp(1, 2, SYN, b""),
        ),
        (
            "one from no IPv6 address",
            Frame::ethernet()
                .ipv6([0; 16], V6_TO)
                .udp(1, 2, b"xxxxxxxx"),
        ),
        (
            "options before the ports",
            Frame::ethernet()
                .ipv4_with_options(V4, V4_TO, 1)
                .udp(1, 2, b"xxxxxxxx"),
        ),
        (
            "extension headers before the ports",
            v6().empty_extension(60).udp(1, 2, b"xxxxxxxx"),
        ),
        (
            "sctp",
            Frame::ethernet().ipv4(V4, V4_TO).payload(132, &[0; 40]),
        ),
        ("sctp over IPv6", v6().payload(132, &[0; 40])),
        (
            "too short to quote",
            Frame::ethernet().ipv4(V4, V4_TO).payload(47, b"xx"),
        ),
    ] {
        assert!(answer(&frame.build()).is_empty(), "{why} was answered");
    }
}
