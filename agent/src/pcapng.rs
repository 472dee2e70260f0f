//! Writes pcapng as `weir record --capture` does: the blocks, and the note about the sample that `weir replay` reads.
//!
//! <https://www.ietf.org/archive/id/draft-ietf-opsawg-pcapng-03.html>

use api::capture::CaptureOf;
use common::capture::{Captured, SNAP_LENGTH};

/// Types of blocks.
const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const STATISTICS: u32 = 5;
const PACKET: u32 = 6;
/// Options.
const COMMENT: u16 = 1;
const APPLICATION: u16 = 4;
const INTERFACE_NAME: u16 = 2;
const RESOLUTION: u16 = 9;
const FLAGS: u16 = 2;
const VERDICT: u16 = 7;
/// `isb_osdrop`: packets that the system lost.
pub const SYSTEM_DROPS: u16 = 7;
/// Nanoseconds.
const NANOSECONDS: u8 = 9;
/// Link types.
const ETHERNET: u16 = 1;
const RAW_IP: u16 = 101;
/// The kinds of program in `epb_verdict`.
const TRAFFIC_CONTROL: u8 = 1;
const XDP: u8 = 2;

/// The beginning of the section's comment.
const PREFIX: &str = "weir capture: ";

/// The share of traffic that a capture has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// One in this many sources; 1: all.
    pub one_in: u32,
    pub of: CaptureOf,
}

impl Sample {
    /// As the section's comment.
    #[must_use]
    pub fn comment(self) -> String {
        format!(
            "{PREFIX}1/{} of sources, {} packets",
            self.one_in,
            self.of.name()
        )
    }

    /// From a section's comment.
    #[must_use]
    pub fn from_comment(comment: &str) -> Option<Self> {
        let (sources, packets) = comment.strip_prefix(PREFIX)?.split_once(" of sources, ")?;
        let of = [CaptureOf::Refused, CaptureOf::All]
            .into_iter()
            .find(|of| packets == format!("{} packets", of.name()))?;
        let one_in = sources
            .strip_prefix("1/")?
            .parse()
            .ok()
            .filter(|one_in| *one_in > 0)?;
        Some(Self { one_in, of })
    }
}

/// Adds the section's header.
pub fn section(out: &mut Vec<u8>, sample: Sample) {
    block(out, SECTION, |body| {
        body.extend(0x1a2b_3c4d_u32.to_le_bytes());
        body.extend([1, 0, 0, 0]);
        // The section's length is unknown.
        body.extend((-1i64).to_le_bytes());
        option(body, COMMENT, sample.comment().as_bytes());
        option(
            body,
            APPLICATION,
            concat!("weir ", env!("CARGO_PKG_VERSION")).as_bytes(),
        );
        option(body, 0, &[]);
    });
}

/// Adds an interface; its number is that of the interfaces before it.
pub fn interface(out: &mut Vec<u8>, name: &str, is_raw_ip: bool) {
    block(out, INTERFACE, |body| {
        body.extend(if is_raw_ip { RAW_IP } else { ETHERNET }.to_le_bytes());
        body.extend([0, 0]);
        body.extend(SNAP_LENGTH.to_le_bytes());
        option(body, INTERFACE_NAME, name.as_bytes());
        option(body, RESOLUTION, &[NANOSECONDS]);
        option(body, 0, &[]);
    });
}

/// Adds a packet at an instant in nanoseconds since 1970.
pub fn packet(
    out: &mut Vec<u8>,
    interface: u32,
    nanoseconds: u64,
    record: &Captured,
    bytes: &[u8],
) {
    block(out, PACKET, |body| {
        let is_refused = record.flags & Captured::REFUSED != 0;
        body.extend(interface.to_le_bytes());
        body.extend(((nanoseconds >> 32) as u32).to_le_bytes());
        body.extend((nanoseconds as u32).to_le_bytes());
        body.extend((bytes.len() as u32).to_le_bytes());
        body.extend(record.length.max(bytes.len() as u32).to_le_bytes());
        padded(body, bytes);
        let direction: u32 = if record.flags & Captured::OUTGOING != 0 {
            2
        } else {
            1
        };
        option(body, FLAGS, &direction.to_le_bytes());
        // `XDP_PASS` and `XDP_DROP`, `TC_ACT_UNSPEC` and `TC_ACT_SHOT`.
        let (program, verdict) = match (record.flags & Captured::DRIVER != 0, is_refused) {
            (true, false) => (XDP, 2),
            (true, true) => (XDP, 1),
            (false, false) => (TRAFFIC_CONTROL, u64::MAX),
            (false, true) => (TRAFFIC_CONTROL, 2),
        };
        let mut value = vec![program];
        value.extend(verdict.to_le_bytes());
        option(body, VERDICT, &value);
        option(body, 0, &[]);
    });
}

/// Adds the number of packets that the capture lost, for its first interface.
pub fn lost(out: &mut Vec<u8>, nanoseconds: u64, lost: u64) {
    block(out, STATISTICS, |body| {
        body.extend(0u32.to_le_bytes());
        body.extend(((nanoseconds >> 32) as u32).to_le_bytes());
        body.extend((nanoseconds as u32).to_le_bytes());
        option(body, SYSTEM_DROPS, &lost.to_le_bytes());
        option(body, 0, &[]);
    });
}

/// The blocks of a part of a capture, and whether each is a packet. Ends before a block that is not whole.
pub fn blocks(mut bytes: &[u8]) -> impl Iterator<Item = (&[u8], bool)> {
    std::iter::from_fn(move || {
        let word = |at: usize| Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?));
        let (kind, length) = (word(0)?, word(4)? as usize);
        let (block, rest) = bytes.split_at_checked(length).filter(|_| length >= 12)?;
        bytes = rest;
        Some((block, kind == PACKET))
    })
}

fn block(out: &mut Vec<u8>, kind: u32, write: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend(kind.to_le_bytes());
    out.extend([0; 4]);
    write(out);
    let length = ((out.len() + 4 - start) as u32).to_le_bytes();
    out.extend(length);
    out[start + 4..start + 8].copy_from_slice(&length);
}

fn option(out: &mut Vec<u8>, code: u16, value: &[u8]) {
    out.extend(code.to_le_bytes());
    out.extend((value.len() as u16).to_le_bytes());
    padded(out, value);
}

fn padded(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend(bytes);
    out.extend(std::iter::repeat_n(
        0,
        bytes.len().next_multiple_of(4) - bytes.len(),
    ));
}

#[cfg(test)]
mod tests {
    use common::packet::{Direction, Link};

    use super::*;
    use crate::replay::capture::{Capture, InterfaceNames};

    #[test]
    fn a_sample_is_read_from_its_comment_and_other_comments_are_none() {
        for sample in [
            Sample {
                one_in: 1,
                of: CaptureOf::All,
            },
            Sample {
                one_in: 100,
                of: CaptureOf::Refused,
            },
        ] {
            assert_eq!(Sample::from_comment(&sample.comment()), Some(sample));
        }
        for other in [
            "",
            "weir capture: ",
            "weir capture: 1/0 of sources, all packets",
            "a capture",
            "1/2 of sources, all",
        ] {
            assert_eq!(Sample::from_comment(other), None, "{other:?}");
        }
    }

    #[test]
    fn replay_reads_what_is_written() {
        let sample = Sample {
            one_in: 7,
            of: CaptureOf::Refused,
        };
        let mut bytes = Vec::new();
        section(&mut bytes, sample);
        interface(&mut bytes, "eth7", false);
        interface(&mut bytes, "wg0", true);
        let record = |length, flags| Captured {
            length,
            flags,
            ..Captured::default()
        };
        packet(
            &mut bytes,
            0,
            1_763_718_281_500_000_001,
            &record(1_500, Captured::REFUSED),
            &[1; 61],
        );
        packet(
            &mut bytes,
            1,
            1_763_718_281_500_000_002,
            &record(20, Captured::OUTGOING | Captured::RAW_IP),
            &[2; 20],
        );
        lost(&mut bytes, 1_763_718_281_500_000_003, 12);
        assert_eq!(
            blocks(&bytes)
                .map(|(_, is_packet)| is_packet)
                .collect::<Vec<_>>(),
            [false, false, false, true, true, false]
        );
        assert_eq!(
            blocks(&bytes).map(|(block, _)| block.len()).sum::<usize>(),
            bytes.len()
        );
        assert_eq!(
            blocks(&bytes[..bytes.len() - 1]).count(),
            5,
            "the last is not whole"
        );

        let mut names = InterfaceNames::default();
        let mut capture =
            Capture::from_stream("a".as_ref(), std::io::Cursor::new(bytes), &mut names).unwrap();
        assert!(capture.advance(&mut names).unwrap());
        let first = capture.packet().unwrap();
        assert_eq!(
            (first.nanoseconds, first.length),
            (Some(1_763_718_281_500_000_001), 1_500)
        );
        assert_eq!(
            (first.frame, first.link, first.direction),
            ([1; 61].as_slice(), Link::Ethernet, Some(Direction::Ingress))
        );
        assert_eq!(names.named(first.interface), Some("eth7"));
        assert!(capture.advance(&mut names).unwrap());
        let second = capture.packet().unwrap();
        assert_eq!(
            (second.frame, second.link, second.direction),
            ([2; 20].as_slice(), Link::RawIp, Some(Direction::Egress))
        );
        assert_eq!(names.named(second.interface), Some("wg0"));
        assert!(!capture.advance(&mut names).unwrap());
        assert_eq!(
            (capture.origin().sample, capture.origin().lost),
            (Some(sample), 12)
        );
    }
}
