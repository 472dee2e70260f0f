use etherparse::{NetSlice, SlicedPacket, TcpOptionElement, TransportSlice};
use std::vec::Vec;

use super::*;
use crate::packet::build::Frame;
use crate::packet::{Depth, Link, parse};

const V4: [u8; 4] = [192, 0, 2, 1];
const V4_TO: [u8; 4] = [198, 51, 100, 7];
const V6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3];
const V6_TO: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 9, 0, 9, 0, 0, 0, 0, 0, 0, 0, 9];
const COOKIE: u32 = 0xdead_beef;

/// A SYN with options: lengths and checksums are those of the whole.
fn syn(is_ipv4: bool, options: &[u8], payload: &[u8]) -> Vec<u8> {
    let mut segment = [
        0x0f, 0xa0, 1, 187, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 2, 4, 0, 0, 0, 0, 0,
    ]
    .to_vec();
    segment[12] = (5 + options.len() as u8 / 4) << 4;
    segment.extend(options);
    segment.extend(payload);
    let frame = if is_ipv4 {
        Frame::ethernet().ipv4(V4, V4_TO)
    } else {
        Frame::ethernet().ipv6(V6, V6_TO)
    };
    frame.payload(6, &segment).build()
}

fn reply(frame: &[u8], mtu: u32) -> Vec<u8> {
    reply_with(frame, SynReply::cookie(COOKIE), mtu)
}

fn reply_with(frame: &[u8], with: SynReply, mtu: u32) -> Vec<u8> {
    let packet = parse(frame, Link::Ethernet, Depth::Ports).unwrap();
    let mut reply = Reply::EMPTY;
    let words = reply.syn_ack(frame, &packet, with, mtu);
    (0..words)
        .flat_map(|nth| reply.word(nth).to_ne_bytes())
        .collect()
}

/// The segment size that a valid reply announces, if any; the SYN's number wraps around.
fn checked(reply: &[u8]) -> Option<u16> {
    checked_with(reply, (COOKIE, 0))
}

fn checked_with(reply: &[u8], numbers: (u32, u32)) -> Option<u16> {
    let sliced = SlicedPacket::from_ip(reply).unwrap();
    let Some(TransportSlice::Tcp(tcp)) = &sliced.transport else {
        panic!("{sliced:?}")
    };
    match sliced.net.as_ref().unwrap() {
        NetSlice::Ipv4(ip) => {
            let header = ip.header();
            assert_eq!((header.source(), header.destination()), (V4_TO, V4));
            assert_eq!(usize::from(header.total_len()), reply.len());
            assert_eq!(
                header.header_checksum(),
                header.to_header().calc_header_checksum()
            );
            assert_eq!(tcp.checksum(), tcp.calc_checksum_ipv4(V4_TO, V4).unwrap());
        }
        NetSlice::Ipv6(ip) => {
            assert_eq!(usize::from(ip.header().payload_length()) + 40, reply.len());
            assert_eq!(tcp.checksum(), tcp.calc_checksum_ipv6(V6_TO, V6).unwrap());
        }
        NetSlice::Arp(_) => panic!("an ARP packet"),
    }
    assert!(tcp.syn() && tcp.ack() && !tcp.rst() && !tcp.fin() && !tcp.urg());
    assert_eq!((tcp.source_port(), tcp.destination_port()), (443, 4000));
    assert_eq!(
        (tcp.sequence_number(), tcp.acknowledgment_number()),
        numbers
    );
    let mut size = None;
    for option in tcp.options_iterator() {
        let Ok(TcpOptionElement::MaximumSegmentSize(found)) = option else {
            panic!("{option:?}")
        };
        size = Some(found);
    }
    size
}

/// The options of common systems, and of none.
const OPTIONS: [&[u8]; 5] = [
    &[],
    &[2, 4, 5, 0xb4],
    &[
        2, 4, 5, 0xb4, 4, 2, 8, 10, 0, 0, 0, 9, 0, 0, 0, 0, 1, 3, 3, 7,
    ],
    &[2, 4, 5, 0xb4, 1, 3, 3, 8, 1, 1, 4, 2],
    &[1, 3, 3, 8, 2, 4, 5, 0xb4],
];

#[test]
fn a_syn_is_answered_with_the_cookie() {
    for is_ipv4 in [true, false] {
        let sizes = OPTIONS.map(|options| checked(&reply(&syn(is_ipv4, options, b""), 1_500)));
        let (most, least) = if is_ipv4 {
            (1_460, 536)
        } else {
            (1_440, 1_220)
        };
        assert_eq!(
            sizes,
            [None, Some(most), Some(most), Some(most), Some(least)]
        );
    }
}

#[test]
fn a_challenge_acknowledges_its_number() {
    const NUMBER: u32 = 0xffff_8123;
    for is_ipv4 in [true, false] {
        for options in OPTIONS {
            let frame = syn(is_ipv4, options, b"");
            let reply = reply_with(&frame, SynReply::challenge(NUMBER), 1_500);
            checked_with(&reply, (NUMBER, NUMBER));
            assert!(14 + reply.len() <= frame.len());
        }
    }
}

#[test]
fn only_a_syn_from_one_host_to_one_host_has_a_reply() {
    for (from, to) in [
        ([224, 0, 0, 1], V4_TO),
        ([0, 0, 0, 0], V4_TO),
        (V4, [239, 1, 2, 3]),
        (V4, [255; 4]),
    ] {
        let frame = Frame::ethernet()
            .ipv4(from, to)
            .tcp(4_000, 443, 2, b"")
            .build();
        assert_eq!(reply(&frame, 1_500), b"");
    }
}

#[test]
fn no_reply_has_more_bytes_than_its_syn() {
    for is_ipv4 in [true, false] {
        for length in 0..=10 {
            // Without options, with one that is a segment size, and with others.
            for first in [&[2, 4, 5, 0xb4][..], &[1, 1, 1, 1]] {
                let options: Vec<u8> = first
                    .iter()
                    .copied()
                    .chain([1; 36])
                    .take(4 * length)
                    .collect();
                for payload in [&b""[..], b"early data"] {
                    let frame = syn(is_ipv4, &options, payload);
                    let reply = reply(&frame, 1_500);
                    assert!(
                        !reply.is_empty() && 14 + reply.len() <= frame.len(),
                        "{frame:?}"
                    );
                }
            }
        }
    }
}

#[test]
fn the_segment_size_is_that_of_the_shorter_side() {
    let size = |is_ipv4, mtu| checked(&reply(&syn(is_ipv4, &[2, 4, 5, 0xb4], b""), mtu));
    assert_eq!(
        [size(true, 1_280), size(true, 9_000), size(true, 0)],
        [Some(1_240), Some(1_460), Some(1_460)]
    );
    assert_eq!(
        [size(false, 1_280), size(false, 9_000)],
        [Some(1_220), Some(1_460)]
    );
}

#[test]
fn a_checksum_that_hardware_completes_stays_as_it_is() {
    for is_ipv4 in [true, false] {
        for options in OPTIONS {
            let mut frame = syn(is_ipv4, options, b"");
            let at = if is_ipv4 { 34 } else { 54 };
            // The sender's part of the field.
            let addresses = if is_ipv4 {
                &frame[26..34]
            } else {
                &frame[22..54]
            };
            let pseudo: u64 = addresses
                .chunks(2)
                .map(|pair| u64::from(u16::from_be_bytes([pair[0], pair[1]])))
                .sum::<u64>()
                + 6
                + (frame.len() - at) as u64;
            let partial = (pseudo % 0xffff) as u16;
            frame[at + 16..at + 18].copy_from_slice(&partial.to_be_bytes());
            let reply = reply(&frame, 1_500);
            checked(&reply);
            // The device writes the complement of the sum of the segment, whose checksum field is the partial one.
            let segment = &reply[at - 14..];
            let sum: u64 = segment
                .chunks(2)
                .map(|pair| u64::from(u16::from_be_bytes([pair[0], pair[1]])))
                .sum();
            let completed = !((sum % 0xffff) as u16);
            assert_eq!(
                completed % 0xffff,
                u16::from_be_bytes([segment[16], segment[17]]) % 0xffff
            );
        }
    }
}

#[test]
fn a_truncated_header_has_no_reply() {
    let frame = syn(true, &[2, 4, 5, 0xb4], b"");
    assert_eq!(reply(&frame[..54], 1_500), b"");
    let mut short = frame;
    short[14 + 20 + 12] = 0x40;
    assert_eq!(reply(&short, 1_500), b"");
}
