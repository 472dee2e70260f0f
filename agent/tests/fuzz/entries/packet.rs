//! Frames.

use common::packet::reply::Reply;
use common::packet::{Bytes, Depth, Link, RareHeaders, Unparsed, parse};

/// Bytes that refuse to be read past their end, and remember how far they were.
pub struct Watched<'a>(pub &'a [u8]);

impl Watched<'_> {
    fn within<T>(&self, offset: usize, value: Option<T>) -> Option<T> {
        assert_eq!(
            value.is_some(),
            offset + size_of::<T>() <= self.0.len(),
            "read at {offset} of {}",
            self.0.len()
        );
        value
    }
}

impl Bytes for Watched<'_> {
    fn u8(&self, offset: usize) -> Option<u8> {
        self.within(offset, self.0.u8(offset))
    }
    fn u16(&self, offset: usize) -> Option<u16> {
        self.within(offset, self.0.u16(offset))
    }
    fn u32(&self, offset: usize) -> Option<u32> {
        self.within(offset, self.0.u32(offset))
    }
    fn u64(&self, offset: usize) -> Option<u64> {
        self.within(offset, self.0.u64(offset))
    }
    fn length(&self) -> u32 {
        self.0.len() as u32
    }
    fn forget(&self, offset: usize) -> usize {
        assert!(
            offset <= common::packet::FURTHEST,
            "an offset of {offset} is forgotten"
        );
        offset
    }
}

impl RareHeaders for Watched<'_> {}

/// Whether the packet is refused since its ports or flags are hidden.
pub fn hides_its_transport(unparsed: Unparsed) -> bool {
    matches!(
        unparsed,
        Unparsed::TruncatedTransport | Unparsed::TinyFragment | Unparsed::OverlappingFragment
    )
}

/// Parses a frame at each depth: a deeper look changes no address.
pub fn every_depth(frame: &[u8], link: Link) {
    let mut addresses = None;
    for depth in [Depth::Addresses, Depth::Ports, Depth::Requests] {
        let parsed =
            parse(&Watched(frame), link, depth).map(|packet| (packet.source, packet.destination));
        // A deeper look may refuse a packet that hides its ports or flags. It never changes whose packet it is.
        let is_refused = parsed.is_err_and(hides_its_transport);
        assert!(
            is_refused || addresses.is_none_or(|known| known == parsed),
            "{link:?} {depth:?}: {frame:02x?}"
        );
        addresses = Some(parsed);
        if let Ok(packet) = parse(&Watched(frame), link, depth) {
            let words = Reply::EMPTY.clone().answer(&Watched(frame), &packet);
            assert!(words <= common::packet::reply::LONGEST_REPLY);
            assert!(packet.headers(&Watched(frame)) < 4_096);
        }
    }
}

/// Parses bytes by each link, and behind the headers of an Ethernet frame with IP in it.
pub fn packet(bytes: &[u8]) {
    for link in [Link::Ethernet, Link::RawIp] {
        every_depth(bytes, link);
    }
    for (ethertype, version) in [(0x0800u16, 0x40u8), (0x86dd, 0x60)] {
        let Some((first, rest)) = bytes.split_first() else {
            return;
        };
        let mut frame = vec![2; 12];
        frame.extend(ethertype.to_be_bytes());
        frame.push(version | first & 0xf);
        frame.extend(rest);
        every_depth(&frame, Link::Ethernet);
    }
}
