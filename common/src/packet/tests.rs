use super::build::{Frame, MoreFragments};
use super::*;
use crate::essential::Essential;
use proptest::prelude::*;

const V4: [u8; 4] = [192, 0, 2, 1];
const V4_TO: [u8; 4] = [198, 51, 100, 7];
const V6: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 1, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3];
const V6_TO: [u8; 16] = [0x20, 1, 0xd, 0xb8, 0, 9, 0, 9, 0, 0, 0, 0, 0, 0, 0, 9];
const SYN: u8 = 2;
const ACK: u8 = 16;

fn read(frame: &[u8]) -> Result<Packet, Unparsed> {
    parse(frame, Link::Ethernet, Depth::Requests)
}

fn ports(source: u16, destination: u16) -> Option<Ports> {
    Some(Ports {
        source,
        destination,
    })
}

fn v4() -> Frame {
    Frame::ethernet().ipv4(V4, V4_TO)
}

fn v6() -> Frame {
    Frame::ethernet().ipv6(V6, V6_TO)
}

/// Which limits apply to a frame: those on ports, only those on its protocol, or only those on addresses.
#[test]
fn every_encapsulation_keeps_the_address_and_the_known_fields() {
    use Protocol::{Hidden, Icmp, Other, Tcp, Udp};
    let fragment = MoreFragments::Yes;
    let table: Vec<(&str, Frame, Protocol, Option<Ports>)> = vec![
        ("udp", v4().udp(9, 53, b""), Udp, ports(9, 53)),
        ("tcp", v4().tcp(9, 80, ACK, b""), Tcp, ports(9, 80)),
        ("icmp", v4().icmp(8), Icmp, None),
        (
            "vlan",
            Frame::ethernet().vlan(5).ipv4(V4, V4_TO).udp(9, 53, b""),
            Udp,
            ports(9, 53),
        ),
        (
            "qinq",
            Frame::ethernet()
                .tag(0x88a8, 5)
                .vlan(6)
                .ipv4(V4, V4_TO)
                .udp(9, 53, b""),
            Udp,
            ports(9, 53),
        ),
        (
            "three tags",
            Frame::ethernet()
                .vlan(5)
                .vlan(6)
                .vlan(7)
                .ipv4(V4, V4_TO)
                .udp(9, 53, b""),
            Udp,
            ports(9, 53),
        ),
        (
            "four tags",
            Frame::ethernet()
                .tag(0x9100, 4)
                .vlan(5)
                .vlan(6)
                .vlan(7)
                .ipv4(V4, V4_TO)
                .udp(9, 53, b""),
            Udp,
            ports(9, 53),
        ),
        (
            "ipv4 options",
            Frame::ethernet()
                .ipv4_with_options(V4, V4_TO, 10)
                .udp(9, 53, b""),
            Udp,
            ports(9, 53),
        ),
        (
            "first fragment",
            v4().fragment(0, fragment).udp(9, 53, &[0; 16]),
            Udp,
            ports(9, 53),
        ),
        (
            "later fragment",
            v4().fragment(1, fragment).udp(9, 53, b""),
            Udp,
            None,
        ),
        (
            "last fragment",
            v4().fragment(100, MoreFragments::No).tcp(9, 80, SYN, b""),
            Tcp,
            None,
        ),
        ("gre", v4().payload(47, &[0; 40]), Other, None),
        ("sctp", v4().payload(132, &[0; 40]), Other, None),
        ("ipv6 udp", v6().udp(9, 53, b""), Udp, ports(9, 53)),
        ("ipv6 tcp", v6().tcp(9, 80, ACK, b""), Tcp, ports(9, 80)),
        (
            "ipv6 in vlan",
            Frame::ethernet().vlan(5).ipv6(V6, V6_TO).udp(9, 53, b""),
            Udp,
            ports(9, 53),
        ),
        (
            "hop-by-hop",
            v6().empty_extension(0).udp(9, 53, b""),
            Udp,
            ports(9, 53),
        ),
        (
            "routing",
            v6().empty_extension(43).udp(9, 53, b""),
            Udp,
            ports(9, 53),
        ),
        (
            "destination options",
            v6().empty_extension(60).udp(9, 53, b""),
            Udp,
            ports(9, 53),
        ),
        (
            "mobility",
            v6().empty_extension(135).udp(9, 53, b""),
            Udp,
            ports(9, 53),
        ),
        (
            "host identity",
            v6().empty_extension(139).udp(9, 53, b""),
            Udp,
            ports(9, 53),
        ),
        (
            "shim6",
            v6().empty_extension(140).udp(9, 53, b""),
            Udp,
            ports(9, 53),
        ),
        (
            "authentication",
            v6().extension(51, &[4; 23]).udp(9, 53, b""),
            Udp,
            ports(9, 53),
        ),
        ("encrypted", v6().payload(50, &[0; 40]), Other, None),
        ("no next header", v6(), Other, None),
        (
            "ipv6 first fragment",
            v6().fragment(0, fragment).udp(9, 53, &[0; 16]),
            Udp,
            ports(9, 53),
        ),
        (
            "ipv6 atomic fragment",
            v6().fragment(0, MoreFragments::No).tcp(9, 80, SYN, b""),
            Tcp,
            ports(9, 80),
        ),
        (
            "ipv6 later fragment behind options",
            v6().fragment(1, fragment)
                .empty_extension(60)
                .udp(9, 53, b""),
            Hidden,
            None,
        ),
        (
            "ipv6 later fragment",
            v6().fragment(8, fragment).udp(9, 53, b""),
            Udp,
            None,
        ),
        (
            "a chain of all",
            v6().empty_extension(0)
                .empty_extension(60)
                .empty_extension(43)
                .fragment(0, fragment)
                .extension(51, &[4; 23])
                .tcp(9, 80, ACK, &[0; 48]),
            Tcp,
            ports(9, 80),
        ),
        (
            "a chain of eight",
            (0..8)
                .fold(v6(), |frame, _| frame.empty_extension(60))
                .udp(9, 53, b""),
            Udp,
            ports(9, 53),
        ),
        (
            "a chain too long",
            (0..9)
                .fold(v6(), |frame, _| frame.empty_extension(60))
                .udp(9, 53, b""),
            Hidden,
            None,
        ),
        (
            "an extension beyond the frame",
            v6().extension(60, &[200; 7]),
            Hidden,
            None,
        ),
    ];
    for (name, frame, protocol, ports) in table {
        let packet = read(&frame.build()).unwrap_or_else(|unparsed| panic!("{name}: {unparsed:?}"));
        let (source, destination) = if packet.is_ipv4 {
            (Address::from_ipv4(V4), Address::from_ipv4(V4_TO))
        } else {
            (Address::from_ipv6(V6), Address::from_ipv6(V6_TO))
        };
        assert_eq!(
            (packet.source, packet.destination),
            (source, destination),
            "{name}"
        );
        assert_eq!(
            (packet.protocol, packet.ports()),
            (protocol, ports),
            "{name}"
        );
        assert!(!packet.is_essential, "{name}");
    }
}

#[test]
fn each_packet_without_an_address_has_one_verdict() {
    let five = (0..5)
        .fold(Frame::ethernet(), |frame, id| frame.vlan(id))
        .ipv4(V4, V4_TO);
    let mut wrong_version = v4().udp(1, 2, b"").build();
    wrong_version[14] = 0x65;
    let mut short_header = v4().udp(1, 2, b"").build();
    short_header[14] = 0x44;
    for (frame, unparsed, disposition) in [
        (
            Frame::ethernet().other(0x0806, &[0; 28]).build(),
            Unparsed::Arp,
            Disposition::Limit(Essential::Arp),
        ),
        (
            Frame::ethernet().vlan(3).other(0x0806, &[0; 28]).build(),
            Unparsed::Arp,
            Disposition::Limit(Essential::Arp),
        ),
        (
            Frame::ethernet().other(0x88cc, &[0; 28]).build(),
            Unparsed::NotIp,
            Disposition::Limit(Essential::NotIp),
        ),
        (vec![0; 13], Unparsed::TruncatedLink, Disposition::Refuse),
        (
            v4().build()[..33].to_vec(),
            Unparsed::TruncatedAddress,
            Disposition::Refuse,
        ),
        (
            v6().build()[..53].to_vec(),
            Unparsed::TruncatedAddress,
            Disposition::Refuse,
        ),
        (
            five.udp(1, 2, b"").build(),
            Unparsed::TooManyTags,
            Disposition::Refuse,
        ),
        (wrong_version, Unparsed::BadVersion, Disposition::Refuse),
        (short_header, Unparsed::BadVersion, Disposition::Refuse),
    ] {
        assert_eq!(read(&frame), Err(unparsed));
        assert_eq!(unparsed.disposition(), disposition);
    }
}

/// A frame whose IP header announces `payload` bytes, whatever follows.
fn told(mut frame: Vec<u8>, payload: u16) -> Vec<u8> {
    if frame[14] >> 4 == 4 {
        frame[16..18].copy_from_slice(&payload.wrapping_add(20).to_be_bytes());
    } else {
        frame[18..20].copy_from_slice(&payload.to_be_bytes());
    }
    frame
}

#[test]
fn a_fragment_that_hides_ports_or_flags_is_refused() {
    use Unparsed::{OverlappingFragment, TinyFragment};
    let (more, last) = (MoreFragments::Yes, MoreFragments::No);
    let v4_first = |length: u16| {
        told(
            v4().fragment(0, more).tcp(9, 80, SYN, &[0; 80]).build(),
            length,
        )
    };
    let v6_first = |length: u16| {
        told(
            v6().fragment(0, more).tcp(9, 80, SYN, &[0; 80]).build(),
            8 + length,
        )
    };
    let options = |length: u16| {
        told(
            v6().fragment(0, more)
                .empty_extension(60)
                .tcp(9, 80, SYN, &[0; 80])
                .build(),
            8 + length,
        )
    };
    let v4_udp = |length: u16| told(v4().fragment(0, more).udp(9, 53, &[0; 40]).build(), length);
    for (name, frame, expected) in [
        ("8 bytes of tcp", v4_first(8), Some(TinyFragment)),
        ("16 bytes", v4_first(16), Some(TinyFragment)),
        (
            "23, of which hosts keep 16",
            v4_first(23),
            Some(TinyFragment),
        ),
        (
            "63 bytes, without a request",
            v4_first(63),
            Some(TinyFragment),
        ),
        ("64 bytes", v4_first(64), None),
        ("none at all", v4_first(0), Some(TinyFragment)),
        (
            "a length within the IP header",
            told(v4().fragment(0, more).tcp(9, 80, SYN, b"").build(), 0xfff0),
            Some(TinyFragment),
        ),
        ("ipv6, 8 bytes", v6_first(8), Some(TinyFragment)),
        ("ipv6, 16 bytes", v6_first(16), Some(TinyFragment)),
        ("ipv6, 56 bytes", v6_first(56), Some(TinyFragment)),
        ("ipv6, 64 bytes", v6_first(64), None),
        ("ipv6, options alone", options(8), Some(TinyFragment)),
        ("ipv6, options and 8 bytes", options(16), Some(TinyFragment)),
        (
            "ipv6, options and 56 bytes",
            options(64),
            Some(TinyFragment),
        ),
        ("ipv6, options and 64 bytes", options(72), None),
        (
            "ipv6, ends within its options",
            options(0),
            Some(TinyFragment),
        ),
        ("udp without the dns header", v4_udp(8), Some(TinyFragment)),
        ("udp with it", v4_udp(24), None),
        (
            "over the flags",
            v4().fragment(1, more).payload(6, &[0; 16]).build(),
            Some(OverlappingFragment),
        ),
        (
            "the last, over the flags",
            v4().fragment(1, last).payload(6, &[0; 16]).build(),
            Some(OverlappingFragment),
        ),
        (
            "behind the flags",
            v4().fragment(2, last).payload(6, &[0; 16]).build(),
            None,
        ),
        (
            "ipv6, over the flags",
            v6().fragment(1, last).payload(6, &[0; 16]).build(),
            Some(OverlappingFragment),
        ),
        (
            "ipv6, behind the flags",
            v6().fragment(2, last).payload(6, &[0; 16]).build(),
            None,
        ),
        (
            "a later fragment of udp",
            v4().fragment(1, last).payload(17, &[0; 16]).build(),
            None,
        ),
    ] {
        assert_eq!(read(&frame).err(), expected, "{name}");
    }
    // Without a limit on requests the ports are enough.
    for (frame, is_ok) in [
        (v4_udp(8), true),
        (v4_first(24), true),
        (v4_first(23), false),
    ] {
        let packet = parse(frame.as_slice(), Link::Ethernet, Depth::Ports);
        assert_eq!(packet.is_ok(), is_ok);
    }
    assert_eq!(TinyFragment.disposition(), Disposition::Refuse);
    assert_eq!(OverlappingFragment.disposition(), Disposition::Refuse);
}

#[test]
fn a_transport_header_that_is_cut_off_is_refused_where_it_decides() {
    for frame in [
        v4().payload(17, b"ab"),
        v4().payload(6, &[0; 13]),
        v6().payload(6, &[0; 13]),
        v6().payload(17, b""),
    ] {
        assert_eq!(read(&frame.build()), Err(Unparsed::TruncatedTransport));
    }
    let syn = v4().payload(6, &[0; 13]).build();
    assert!(
        parse(syn.as_slice(), Link::Ethernet, Depth::Addresses).is_ok(),
        "nothing asks for its flags"
    );
    assert_eq!(
        Unparsed::TruncatedTransport.disposition(),
        Disposition::Refuse
    );
}

#[test]
fn each_kind_is_counted_where_it_is_one() {
    let dns = |flags: u16, questions: u16| {
        let mut header = vec![0, 1];
        header.extend(flags.to_be_bytes());
        header.extend(questions.to_be_bytes());
        header.extend([0; 6]);
        header
    };
    for (name, frame, kind) in [
        ("syn", v4().tcp(9, 80, SYN, b""), Kind::Connection),
        (
            "syn with a request in it",
            v4().tcp(9, 80, SYN, b"GET / HTTP/1.1\r\n\r\n"),
            Kind::Connection,
        ),
        ("syn-ack", v4().tcp(9, 80, SYN | ACK, b""), Kind::Plain),
        (
            "get",
            v4().tcp(9, 80, ACK, b"GET / HTTP/1.1\r\n\r\n"),
            Kind::Request,
        ),
        (
            "post",
            v6().tcp(9, 8080, ACK | 8, b"POST /a HTTP/1.1\r\n"),
            Kind::Request,
        ),
        (
            "options",
            v4().tcp(9, 80, ACK, b"OPTIONS * HTTP/1.1\r\n"),
            Kind::Request,
        ),
        (
            "two at once are one",
            v4().tcp(9, 80, ACK, b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n"),
            Kind::Request,
        ),
        (
            "behind an empty line",
            v4().tcp(9, 80, ACK, b"\r\nGET / HTTP/1.1\r\n\r\n"),
            Kind::Request,
        ),
        (
            "a method nobody has",
            v4().tcp(9, 80, ACK, b"GETS / HTTP/1.1\r\n\r\n"),
            Kind::Request,
        ),
        (
            "lower case",
            v4().tcp(9, 80, ACK, b"get / HTTP/1.1\r\n\r\n"),
            Kind::Request,
        ),
        (
            "a response",
            v4().tcp(80, 9, ACK, b"HTTP/1.1 200 OK\r\n\r\n"),
            Kind::Plain,
        ),
        (
            "tls",
            v4().tcp(9, 443, ACK, &[0x16, 3, 1, 2, 0, 1, 0, 1]),
            Kind::Plain,
        ),
        ("dns query", v4().udp(9, 53, &dns(0x0100, 1)), Kind::Request),
        (
            "dns response",
            v4().udp(53, 9, &dns(0x8180, 1)),
            Kind::Plain,
        ),
        (
            "a response sent to port 53",
            v4().udp(9, 53, &dns(0x8180, 1)),
            Kind::Plain,
        ),
        (
            "dns update",
            v4().udp(9, 53, &dns(0x2800, 1)),
            Kind::Request,
        ),
        (
            "a query without a question",
            v4().udp(9, 53, &dns(0x0100, 0)),
            Kind::Request,
        ),
        (
            "a query elsewhere",
            v4().udp(9, 5353, &dns(0x0100, 1)),
            Kind::Plain,
        ),
        (
            "a fragment of one",
            v4().fragment(3, MoreFragments::No)
                .tcp(9, 80, ACK, b"GET / HTTP/1.1\r\n"),
            Kind::Plain,
        ),
    ] {
        assert_eq!(read(&frame.build()).unwrap().kind, kind, "{name}");
    }
}

#[test]
fn only_what_the_network_needs_is_essential() {
    let hops = |hops: u8| v6().hops(hops);
    for (name, frame, essential) in [
        (
            "neighbour solicitation",
            hops(255).icmp(135),
            Some(Essential::NeighbourDiscovery),
        ),
        (
            "router advertisement",
            hops(255).icmp(134),
            Some(Essential::NeighbourDiscovery),
        ),
        (
            "behind an extension header",
            hops(255).empty_extension(0).icmp(136),
            Some(Essential::NeighbourDiscovery),
        ),
        ("one that came through a router", hops(64).icmp(135), None),
        ("ping", hops(255).icmp(128), None),
        ("the number in IPv4", v4().hops(255).icmp(135), None),
        (
            "dhcp to the server",
            v4().udp(68, 67, b""),
            Some(Essential::Dhcp),
        ),
        (
            "dhcp to the client",
            v4().udp(67, 68, b""),
            Some(Essential::Dhcp),
        ),
        (
            "dhcpv6 to the client",
            v6().udp(547, 546, b""),
            Some(Essential::Dhcp),
        ),
        (
            "to the client's port from anywhere",
            v4().udp(9, 68, b""),
            None,
        ),
        ("dhcp's ports in tcp", v4().tcp(67, 68, ACK, b""), None),
    ] {
        let frame = frame.build();
        for depth in [Depth::Addresses, Depth::Ports, Depth::Requests] {
            let packet = parse(frame.as_slice(), Link::Ethernet, depth).unwrap();
            assert_eq!(packet.essential(), essential, "{name} at {depth:?}");
        }
    }
}

#[test]
fn a_device_without_link_header_is_recognized_by_the_ip_version() {
    let frame = Frame::raw().ipv4(V4, V4_TO).udp(9, 53, b"").build();
    let packet = parse(frame.as_slice(), Link::RawIp, Depth::Ports).unwrap();
    assert_eq!(
        (packet.source, packet.ports()),
        (Address::from_ipv4(V4), ports(9, 53))
    );
    assert_eq!(
        parse(&[0x50; 40][..], Link::RawIp, Depth::Ports),
        Err(Unparsed::BadVersion)
    );
}

/// A frame of which only the first `seen` bytes are readable.
struct Window<'a> {
    bytes: &'a [u8],
    seen: usize,
}

impl Bytes for Window<'_> {
    fn u8(&self, offset: usize) -> Option<u8> {
        self.bytes[..self.seen].u8(offset)
    }
    fn u16(&self, offset: usize) -> Option<u16> {
        self.bytes[..self.seen].u16(offset)
    }
    fn u32(&self, offset: usize) -> Option<u32> {
        self.bytes[..self.seen].u32(offset)
    }
    fn u64(&self, offset: usize) -> Option<u64> {
        self.bytes[..self.seen].u64(offset)
    }
    fn length(&self) -> u32 {
        self.bytes.len() as u32
    }
}

impl RareHeaders for Window<'_> {}

fn frames() -> impl Strategy<Value = Vec<u8>> {
    let tags = prop::collection::vec(prop_oneof![Just(0x8100u16), Just(0x88a8)], 0..4);
    let extensions =
        prop::collection::vec(prop_oneof![Just(0u8), Just(43), Just(60), Just(135)], 0..5);
    let payload = prop::collection::vec(any::<u8>(), 0..60);
    (
        tags,
        any::<bool>(),
        0u8..=10,
        extensions,
        0u8..4,
        any::<(u16, u16, u8)>(),
        payload,
    )
        .prop_map(
            |(tags, is_ipv4, options, extensions, kind, (source, destination, flags), payload)| {
                let frame = tags
                    .into_iter()
                    .fold(Frame::ethernet(), |frame, tag| frame.tag(tag, 1));
                let frame = if is_ipv4 {
                    frame.ipv4_with_options(V4, V4_TO, options)
                } else {
                    extensions
                        .into_iter()
                        .fold(frame.ipv6(V6, V6_TO), Frame::empty_extension)
                };
                match kind {
                    0 => frame.udp(source, destination, &payload),
                    1 => frame.tcp(source, destination, flags, &payload),
                    2 => frame.icmp(flags),
                    _ => frame.payload(47, &payload),
                }
                .build()
            },
        )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Truncated at every byte: never another address, and once the addresses are readable, always the same result.
    #[test]
    fn truncation_hides_no_address(frame in frames()) {
        let whole = read(&frame).unwrap();
        let addresses = whole.network_offset as usize + if whole.is_ipv4 { 20 } else { 40 };
        for seen in 0..frame.len() {
            match parse(&Window { bytes: &frame, seen }, Link::Ethernet, Depth::Requests) {
                Ok(packet) => prop_assert_eq!((packet.source, packet.destination), (whole.source, whole.destination)),
                Err(unparsed) => {
                    prop_assert!(seen < addresses || unparsed == Unparsed::TruncatedTransport);
                    prop_assert_eq!(unparsed.disposition(), Disposition::Refuse);
                }
            }
        }
    }

    /// All depths agree on their common fields.
    #[test]
    fn a_shallower_look_sees_no_other_packet(frame in frames()) {
        let whole = read(&frame).unwrap();
        let ports = parse(frame.as_slice(), Link::Ethernet, Depth::Ports).unwrap();
        let addresses = parse(frame.as_slice(), Link::Ethernet, Depth::Addresses).unwrap();
        prop_assert_eq!((ports.ports, ports.protocol, ports.is_essential), (whole.ports, whole.protocol, whole.is_essential));
        prop_assert_eq!((addresses.source, addresses.protocol, addresses.is_essential), (whole.source, whole.protocol, whole.is_essential));
        prop_assert_eq!(ports.kind == Kind::Connection, whole.kind == Kind::Connection);
    }

    /// An independent parser agrees.
    #[test]
    fn an_independent_parser_agrees(frame in frames()) {
        use etherparse::{NetSlice, SlicedPacket, TransportSlice};
        let packet = read(&frame).unwrap();
        // It stops at three tags and fails if a header exceeds the frame.
        if let Ok(sliced) = SlicedPacket::from_ethernet(&frame) {
            match &sliced.net {
                Some(NetSlice::Ipv4(slice)) => prop_assert_eq!(packet.source, Address::from_ipv4(slice.header().source())),
                Some(NetSlice::Ipv6(slice)) => prop_assert_eq!(packet.source, Address::from_ipv6(slice.header().source())),
                _ => {}
            }
            match &sliced.transport {
                Some(TransportSlice::Udp(udp)) => {
                    prop_assert_eq!((packet.protocol, packet.ports()), (Protocol::Udp, ports(udp.source_port(), udp.destination_port())));
                }
                Some(TransportSlice::Tcp(tcp)) => {
                    prop_assert_eq!((packet.protocol, packet.ports()), (Protocol::Tcp, ports(tcp.source_port(), tcp.destination_port())));
                    prop_assert_eq!(packet.kind == Kind::Connection, tcp.syn() && !tcp.ack());
                }
                Some(TransportSlice::Icmpv4(_) | TransportSlice::Icmpv6(_)) => prop_assert_eq!(packet.protocol, Protocol::Icmp),
                _ => {}
            }
        }
    }

    /// Any bytes lead to a result, and to the same one wherever they end.
    #[test]
    fn any_bytes_are_parsed(bytes in prop::collection::vec(any::<u8>(), 0..200), ethertype in prop_oneof![Just(0x0800u16), Just(0x86dd), Just(0x8100), any::<u16>()]) {
        let mut frame = vec![2; 12];
        frame.extend(ethertype.to_be_bytes());
        frame.extend(bytes);
        for link in [Link::Ethernet, Link::RawIp] {
            let whole = parse(frame.as_slice(), link, Depth::Requests);
            let window = Window { bytes: &frame, seen: frame.len() };
            prop_assert_eq!(parse(&window, link, Depth::Requests), whole);
        }
    }
}
