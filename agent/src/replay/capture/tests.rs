use std::io::{self, Cursor, Read, Write};
use std::path::Path;

use common::packet::build::Frame;
use common::packet::{Depth, Direction, Link, parse};
use proptest::prelude::*;

use super::interface::{Clock, TimeUnit};
use super::{Capture, CaptureError, InterfaceNames};
use crate::replay::CapturedFrame;

/// A packet for comparisons.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Packet {
    nanoseconds: Option<u64>,
    link: Link,
    frame: Vec<u8>,
    length: u32,
    interface: u32,
    direction: Option<Direction>,
}

/// All packets, and the final result.
fn read(stream: impl Read + 'static) -> (Vec<Packet>, Result<Capture, CaptureError>) {
    let mut names = InterfaceNames::default();
    let mut packets = Vec::new();
    let mut capture = match Capture::from_stream(Path::new("test.pcap"), stream, &mut names) {
        Ok(capture) => capture,
        Err(error) => return (packets, Err(error)),
    };
    loop {
        match capture.advance(&mut names) {
            Ok(true) => {
                let packet = capture.packet().unwrap();
                packets.push(Packet {
                    nanoseconds: packet.nanoseconds,
                    link: packet.link,
                    frame: packet.frame.to_vec(),
                    length: packet.length,
                    interface: packet.interface,
                    direction: packet.direction,
                });
            }
            Ok(false) => return (packets, Ok(capture)),
            Err(error) => return (packets, Err(error)),
        }
    }
}

fn of(bytes: Vec<u8>) -> (Vec<Packet>, Result<Capture, CaptureError>) {
    read(Cursor::new(bytes))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Order {
    Little,
    Big,
}

impl Order {
    fn words(self, words: &[u32]) -> Vec<u8> {
        let bytes = |word: &u32| {
            if self == Self::Big {
                word.to_be_bytes()
            } else {
                word.to_le_bytes()
            }
        };
        words.iter().flat_map(bytes).collect()
    }

    fn halves(self, halves: &[u16]) -> Vec<u8> {
        let bytes = |half: &u16| {
            if self == Self::Big {
                half.to_be_bytes()
            } else {
                half.to_le_bytes()
            }
        };
        halves.iter().flat_map(bytes).collect()
    }
}

const MICROSECONDS: u32 = 0xa1b2_c3d4;
const NANOSECONDS: u32 = 0xa1b2_3c4d;

fn pcap(order: Order, magic: u32, link: u32, packets: &[(u32, u32, &[u8], u32)]) -> Vec<u8> {
    let mut bytes = order.words(&[magic]);
    bytes.extend(order.halves(&[2, 4]));
    bytes.extend(order.words(&[0, 0, 65_535, link]));
    for (seconds, fraction, data, length) in packets {
        bytes.extend(order.words(&[*seconds, *fraction, data.len() as u32, *length]));
        bytes.extend(*data);
    }
    bytes
}

fn block(order: Order, kind: u32, body: &[u8]) -> Vec<u8> {
    let length = 12 + body.len().next_multiple_of(4) as u32;
    let mut bytes = order.words(&[kind, length]);
    bytes.extend(body);
    bytes.resize(length as usize - 4, 0);
    bytes.extend(order.words(&[length]));
    bytes
}

fn option(order: Order, code: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = order.halves(&[code, value.len() as u16]);
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn section(order: Order) -> Vec<u8> {
    let mut body = order.words(&[0x1a2b_3c4d]);
    body.extend(order.halves(&[1, 0]));
    body.extend([0xff; 8]);
    block(order, 0x0a0d_0d0a, &body)
}

fn interface(order: Order, link: u16, options: &[Vec<u8>]) -> Vec<u8> {
    let mut body = order.halves(&[link, 0]);
    body.extend(order.words(&[0]));
    body.extend(options.concat());
    if !options.is_empty() {
        body.extend(order.halves(&[0, 0]));
    }
    block(order, 1, &body)
}

fn enhanced(
    order: Order,
    interface: u32,
    stamp: u64,
    data: &[u8],
    length: u32,
    options: &[Vec<u8>],
) -> Vec<u8> {
    let mut body = order.words(&[
        interface,
        (stamp >> 32) as u32,
        stamp as u32,
        data.len() as u32,
        length,
    ]);
    body.extend(data);
    body.resize(body.len().next_multiple_of(4), 0);
    body.extend(options.concat());
    if !options.is_empty() {
        body.extend(order.halves(&[0, 0]));
    }
    block(order, 6, &body)
}

fn frame() -> Vec<u8> {
    Frame::ethernet()
        .ipv4([192, 0, 2, 1], [192, 0, 2, 2])
        .udp(1, 2, b"payload")
        .build()
}

fn plain(nanoseconds: u64) -> Packet {
    let frame = frame();
    let length = frame.len() as u32;
    Packet {
        nanoseconds: Some(nanoseconds),
        link: Link::Ethernet,
        frame,
        length,
        interface: 1,
        direction: None,
    }
}

#[test]
fn pcap_in_either_byte_order_and_resolution() {
    let frame = frame();
    let length = frame.len() as u32;
    for order in [Order::Little, Order::Big] {
        for (magic, unit) in [(MICROSECONDS, 1_000), (NANOSECONDS, 1)] {
            let bytes = pcap(
                order,
                magic,
                1,
                &[(1, 2, &frame, length), (3, 4, &frame, length)],
            );
            let (packets, end) = of(bytes);
            assert_eq!(
                packets,
                [
                    plain(1_000_000_000 + 2 * unit),
                    plain(3_000_000_000 + 4 * unit)
                ]
            );
            assert_eq!(end.unwrap().format(), "pcap");
        }
    }
}

#[test]
fn pcapng_with_sections_in_both_byte_orders_and_clocks_of_all_kinds() {
    let frame = frame();
    let length = frame.len() as u32;
    let mut bytes = Vec::new();
    for order in [Order::Little, Order::Big] {
        let offset = 100i64;
        let offset = if order == Order::Big {
            offset.to_be_bytes()
        } else {
            offset.to_le_bytes()
        };
        bytes.extend(section(order));
        bytes.extend(interface(order, 1, &[option(order, 2, b"eth0")]));
        bytes.extend(interface(
            order,
            1,
            &[option(order, 2, b"eth1"), option(order, 9, &[9])],
        ));
        bytes.extend(interface(
            order,
            1,
            &[option(order, 9, &[0x80 | 20]), option(order, 14, &offset)],
        ));
        bytes.extend(enhanced(order, 0, 5_000_000, &frame, length, &[]));
        bytes.extend(enhanced(
            order,
            1,
            6_000_000_000,
            &frame,
            length,
            &[option(order, 2, &order.words(&[2]))],
        ));
        bytes.extend(enhanced(
            order,
            2,
            7 << 20,
            &frame,
            length,
            &[option(order, 2, &order.words(&[1]))],
        ));
        // Statistics of an interface, an unknown block, and a packet without a time.
        bytes.extend(block(order, 5, &order.words(&[0, 0, 0])));
        bytes.extend(block(order, 0x0bad, b"what"));
        bytes.extend(block(
            order,
            3,
            &[order.words(&[length]), frame.clone()].concat(),
        ));
    }
    let expected = [
        plain(5_000_000_000),
        Packet {
            interface: 2,
            direction: Some(Direction::Egress),
            ..plain(6_000_000_000)
        },
        Packet {
            interface: 3,
            direction: Some(Direction::Ingress),
            ..plain(107_000_000_000)
        },
        Packet {
            nanoseconds: None,
            ..plain(0)
        },
    ];
    let (packets, end) = of(bytes);
    assert_eq!(packets, [expected.clone(), expected].concat());
    assert_eq!(end.unwrap().format(), "pcapng");
}

#[test]
fn obsolete_packet_blocks_are_read_in_both_byte_orders() {
    let frame = frame();
    let length = frame.len() as u32;
    for order in [Order::Little, Order::Big] {
        let mut body = order.halves(&[0, 7]);
        body.extend(order.words(&[0, 5_000_000, length, length]));
        body.extend(&frame);
        body.resize(body.len().next_multiple_of(4), 0);
        body.extend(option(order, 1, b"comment"));
        body.extend(option(order, 2, &order.words(&[2])));
        body.extend(order.halves(&[0, 0]));
        let short = [order.halves(&[0, 0]), order.words(&[0, 0, 900, 900])].concat();
        let start = [section(order), interface(order, 1, &[])].concat();
        let (packets, end) = of([start.clone(), block(order, 2, &body)].concat());
        let expected = Packet {
            direction: Some(Direction::Egress),
            ..plain(5_000_000_000)
        };
        assert_eq!(packets, [expected]);
        assert!(end.is_ok());
        let (packets, end) = of([start, block(order, 2, &short)].concat());
        assert!(packets.is_empty() && end.is_err());
    }
}

#[test]
fn the_frame_check_sequence_of_pcapng_is_no_part_of_the_frame() {
    let mut checked = frame();
    checked.extend([0xaa; 4]);
    let length = checked.len() as u32;
    for order in [Order::Little, Order::Big] {
        // By the interface in bytes, in bits as an early draft has it, and by the packet.
        let of_packet = vec![option(order, 2, &order.words(&[4 << 5]))];
        for (of_interface, of_packet) in [
            (vec![option(order, 13, &[4])], Vec::new()),
            (vec![option(order, 13, &[32])], Vec::new()),
            (Vec::new(), of_packet.clone()),
            (vec![option(order, 13, &[2])], of_packet),
        ] {
            let bytes = [
                section(order),
                interface(order, 1, &of_interface),
                enhanced(order, 0, 5_000_000, &checked, length, &of_packet),
            ];
            assert_eq!(of(bytes.concat()).0, [plain(5_000_000_000)]);
        }
    }
}

#[test]
fn every_link_type_becomes_the_frame_of_the_hook() {
    let ethernet = Frame::ethernet()
        .vlan(7)
        .ipv4([192, 0, 2, 1], [192, 0, 2, 2])
        .tcp(1, 2, 2, b"")
        .build();
    let packet = &ethernet[18..];
    let raw = |link: u32| {
        of(pcap(
            Order::Little,
            MICROSECONDS,
            link,
            &[(0, 0, packet, packet.len() as u32)],
        ))
        .0
    };
    for link in [101, 228, 12, 14] {
        let found = raw(link);
        assert_eq!(
            (found[0].link, found[0].frame.as_slice()),
            (Link::RawIp, packet)
        );
        assert_eq!(found[0].length as usize, packet.len());
    }
    // As in the kernel: an Ethernet header with its tag.
    let parsed = parse(ethernet.as_slice(), Link::Ethernet, Depth::Requests).unwrap();
    let tagged = &ethernet[12..];
    for (kind, direction) in [(0u16, Direction::Ingress), (4, Direction::Egress)] {
        let sll = [&kind.to_be_bytes()[..], &[0, 1, 0, 6], &[2; 8], tagged].concat();
        let sll2 = [
            &tagged[..2],
            &[0, 0, 0, 0, 0, 9, 0, 1, kind as u8, 6],
            &[2; 8],
            &tagged[2..],
        ]
        .concat();
        for (link, bytes) in [(113, &sll), (276, &sll2)] {
            let (packets, _) = of(pcap(
                Order::Little,
                MICROSECONDS,
                link,
                &[(0, 0, bytes, bytes.len() as u32)],
            ));
            let found = &packets[0];
            assert_eq!(found.direction, Some(direction), "{link}");
            assert_eq!(found.length as usize, ethernet.len(), "{link}");
            assert_eq!(found.frame[12..], *tagged, "{link}");
            assert_eq!(
                parse(found.frame.as_slice(), found.link, Depth::Requests).unwrap(),
                parsed,
                "{link}"
            );
        }
    }
    // A tunnel has no link header.
    let sll = [&[0, 0, 0xff, 0xfe, 0, 0], &[0; 8][..], &[8, 0], packet].concat();
    let sll2 = [
        &[8, 0, 0, 0, 0, 0, 0, 9, 0xff, 0xfe, 0, 0],
        &[0; 8][..],
        packet,
    ]
    .concat();
    for (link, bytes) in [(113, sll), (276, sll2)] {
        let (packets, _) = of(pcap(
            Order::Little,
            MICROSECONDS,
            link,
            &[(0, 0, &bytes, bytes.len() as u32)],
        ));
        let found = &packets[0];
        assert_eq!(
            (found.link, found.frame.as_slice()),
            (Link::RawIp, packet),
            "{link}"
        );
        assert_eq!(found.length as usize, packet.len(), "{link}");
    }
}

#[test]
fn a_packet_that_was_cut_counts_with_its_length_on_the_wire() {
    let frame = frame();
    let (packets, _) = of(pcap(
        Order::Little,
        MICROSECONDS,
        1,
        &[(0, 0, &frame[..30], 1_500)],
    ));
    assert_eq!((packets[0].frame.len(), packets[0].length), (30, 1_500));
    let sll2 = [
        &[8, 0, 0, 0, 0, 0, 0, 9, 0, 1, 0, 6],
        &[0; 8][..],
        &frame[14..],
    ]
    .concat();
    let (packets, _) = of(pcap(
        Order::Little,
        MICROSECONDS,
        276,
        &[(0, 0, &sll2, 1_520)],
    ));
    assert_eq!(packets[0].length, 1_514);
    // A length below the captured one, and a frame check sequence of four bytes.
    let (packets, _) = of(pcap(Order::Little, MICROSECONDS, 1, &[(0, 0, &frame, 20)]));
    assert_eq!(packets[0].length as usize, frame.len());
    let checked = [&frame[..], &[1, 2, 3, 4]].concat();
    let link = 1 | 1 << 26 | 2 << 28;
    let (packets, _) = of(pcap(
        Order::Little,
        MICROSECONDS,
        link,
        &[(0, 0, &checked, checked.len() as u32)],
    ));
    assert_eq!(packets, [plain(0)]);
    // Reads beyond the captured part are distinguished from reads beyond the frame.
    let is_cut = std::cell::Cell::new(false);
    for (captured, expected) in [(30, true), (frame.len(), false)] {
        let packet = super::CapturedPacket {
            nanoseconds: None,
            link: Link::Ethernet,
            frame: &frame[..captured],
            length: frame.len() as u32,
            interface: 1,
            is_of_all_interfaces: false,
            direction: None,
        };
        is_cut.set(false);
        let _ = parse(
            &CapturedFrame::new(&packet, &is_cut),
            Link::Ethernet,
            Depth::Requests,
        );
        assert_eq!(is_cut.get(), expected);
    }
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn many() -> Vec<u8> {
    let frame = frame();
    let packets: Vec<(u32, u32, &[u8], u32)> = (0..9_000)
        .map(|nth| (nth, nth * 7 % 1_000, frame.as_slice(), frame.len() as u32))
        .collect();
    pcap(Order::Little, MICROSECONDS, 1, &packets)
}

#[test]
fn compressed_captures_in_one_part_or_several() {
    let bytes = many();
    let expected = of(bytes.clone()).0;
    assert_eq!(expected.len(), 9_000);
    let (one, other) = bytes.split_at(bytes.len() / 2);
    let zstd = |bytes: &[u8]| zstd::encode_all(bytes, 1).unwrap();
    // Parallel compressors start with a skippable frame.
    let skipped = [
        &[0x50, 0x2a, 0x4d, 0x18, 4, 0, 0, 0, 1, 2, 3, 4][..],
        &zstd(&bytes),
    ]
    .concat();
    for (name, compressed) in [
        ("gzip", gzip(&bytes)),
        ("gzip", [gzip(one), gzip(other)].concat()),
        ("zstd", zstd(&bytes)),
        ("zstd", [zstd(one), zstd(other)].concat()),
        ("zstd", skipped),
    ] {
        let (packets, end) = of(compressed);
        assert_eq!(packets, expected);
        assert_eq!(end.unwrap().compression().name(), name);
    }
}

#[test]
fn packets_before_damage_are_read_and_the_damage_is_named() {
    let bytes = many();
    let whole = of(bytes.clone()).0;
    for (what, damaged, expected) in [
        (
            "truncated record",
            bytes[..bytes.len() - 5].to_vec(),
            "truncated within the record at byte",
        ),
        (
            "truncated header",
            bytes[..bytes.len() - 60].to_vec(),
            "truncated within the record at byte",
        ),
        (
            "truncated gzip",
            {
                let all = gzip(&bytes);
                all[..all.len() / 2].to_vec()
            },
            "truncated within",
        ),
        (
            "truncated zstd",
            {
                let all = zstd::encode_all(bytes.as_slice(), 1).unwrap();
                all[..all.len() / 2].to_vec()
            },
            "truncated within",
        ),
        (
            "damaged gzip",
            {
                let mut all = gzip(&bytes);
                let half = all.len() / 2;
                all[half..half + 40].fill(0xff);
                all
            },
            "reading failed at byte",
        ),
        (
            "an impossible length",
            {
                let mut all = bytes.clone();
                let last = all.len() - frame().len() - 16;
                all[last + 8..last + 12].fill(0xfe);
                all
            },
            "damaged: the record at byte",
        ),
    ] {
        let (packets, end) = of(damaged);
        let error = end
            .err()
            .unwrap_or_else(|| panic!("{what}: no error"))
            .to_string();
        assert!(error.contains(expected), "{what}: {error}");
        assert!(!packets.is_empty() || what.starts_with("damaged"), "{what}");
        assert_eq!(packets, whole[..packets.len()], "{what}");
    }
}

#[test]
fn files_other_than_captures_are_errors_with_a_fix() {
    for (bytes, expected) in [
        (&b""[..], "empty"),
        (b"\n", "truncated within the record at byte 0"),
        (
            b"not a capture, but long enough for a header",
            "neither pcap nor pcapng",
        ),
        (
            &[0xfd, b'7', b'z', b'X', b'Z', 0, 0, 0],
            "xz -dc FILE | agent replay -",
        ),
        (b"BZh91AY&SY", "bzip2 -dc"),
        (
            &pcap(Order::Little, MICROSECONDS, 105, &[]),
            "link type 105 is not supported",
        ),
        (&section(Order::Little)[..16], "truncated"),
    ] {
        let error = of(bytes.to_vec())
            .1
            .err()
            .unwrap_or_else(|| panic!("{expected}"))
            .to_string();
        assert!(error.contains(expected), "{error}");
    }
    // A header without packets is a valid capture.
    let (packets, end) = of(pcap(Order::Little, MICROSECONDS, 1, &[]));
    assert!(packets.is_empty() && end.is_ok());
}

#[test]
fn pcapng_skips_interfaces_of_other_link_types_and_refuses_contradictions() {
    let frame = frame();
    let length = frame.len() as u32;
    let order = Order::Little;
    let mixed = [
        section(order),
        interface(order, 1, &[]),
        interface(order, 105, &[]),
        enhanced(order, 0, 1_000_000, &frame, length, &[]),
        enhanced(order, 1, 1_000_000, &frame, length, &[]),
        enhanced(order, 0, 2_000_000, &frame, length, &[]),
    ]
    .concat();
    let (packets, end) = of(mixed.clone());
    assert_eq!(packets, [plain(1_000_000_000), plain(2_000_000_000)]);
    assert_eq!(end.unwrap().skipped().link_types.get(&105), Some(&1));
    for (bad, reason) in [
        (
            enhanced(order, 2, 0, &frame, length, &[]),
            "interface was not described",
        ),
        (
            interface(order, 1, &[option(order, 9, &[77])]),
            "resolution of time",
        ),
        (
            {
                let mut block = enhanced(order, 0, 0, &frame, length, &[]);
                // The lengths at its start and end differ.
                let last = block.len() - 4;
                block[last] += 4;
                block
            },
            "damaged",
        ),
    ] {
        let (packets, end) = of([mixed.clone(), bad].concat());
        assert_eq!(packets.len(), 2);
        let error = end.err().unwrap().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

/// A pipe: a few bytes at a time, with interruptions.
struct Trickle(Cursor<Vec<u8>>, usize);

impl Read for Trickle {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.1 += 1;
        if self.1.is_multiple_of(5) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let length = buffer.len().min(1 + self.1 % 13);
        self.0.read(&mut buffer[..length])
    }
}

#[test]
fn a_pipe_that_trickles_is_read_like_a_file() {
    let bytes = many();
    assert_eq!(read(Trickle(Cursor::new(bytes.clone()), 0)).0, of(bytes).0);
}

#[test]
fn names_of_interfaces_are_bounded_and_fit_for_a_terminal() {
    let mut names = InterfaceNames::default();
    assert_eq!(names.number("eth0\x1b[2J\u{202e}"), 1);
    assert_eq!(names.name(1), Some("eth0[2J"));
    for nth in 0..5_000 {
        names.number(&format!("{nth}"));
    }
    assert_eq!(names.number("one more"), 4_096);
    assert_eq!(names.number("eth0[2J"), 1);
    assert_eq!((names.name(0), names.name(4_097)), (None, None));
}

#[test]
fn clocks_count_in_any_unit() {
    let clock = |resolution| Clock::of(resolution, 0).unwrap();
    assert_eq!(clock(0).nanoseconds(3), 3_000_000_000);
    assert_eq!(clock(6).unit, TimeUnit::Nanoseconds(1_000));
    assert_eq!(clock(12).nanoseconds(5_000), 5);
    assert_eq!(clock(0x80 | 30).nanoseconds(1 << 30), 1_000_000_000);
    assert_eq!(clock(0).nanoseconds(u64::MAX), u64::MAX);
    assert_eq!(
        Clock::of(6, -1).unwrap().nanoseconds(1_500_000),
        500_000_000
    );
    assert_eq!((Clock::of(20, 0), Clock::of(0xff, 0)), (None, None));
}

proptest! {
    #[test]
    fn no_bytes_make_the_reader_fail_otherwise_than_with_an_error(
        noise in proptest::collection::vec(any::<u8>(), 0..400),
        at in 0usize..400,
        kind in 0usize..4,
    ) {
        let frame = frame();
        let length = frame.len() as u32;
        let order = if kind % 2 == 0 { Order::Little } else { Order::Big };
        let mut bytes = match kind {
            0 | 1 => pcap(order, NANOSECONDS, 276, &[(1, 2, &frame, length), (3, 4, &frame, length)]),
            _ => [
                section(order),
                interface(order, 113, &[option(order, 2, b"eth0")]),
                enhanced(order, 0, 5, &frame, length, &[option(order, 2, &[1, 0, 0, 0])]),
                enhanced(order, 0, 6, &frame, length, &[]),
            ].concat(),
        };
        for (place, byte) in bytes.iter_mut().skip(at).zip(&noise) {
            *place ^= byte;
        }
        let (packets, _) = of(bytes);
        for packet in packets {
            prop_assert!(packet.frame.len() <= packet.length as usize || packet.length == 0);
        }
    }
}
