//! Buffers of the network stack that represent several packets on the wire: segmentation and receive offloads.

use crate::rule::Size;

/// The segmentation of a buffer: `gso_size` and `gso_segs` of `struct skb_shared_info`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Segments {
    /// Bytes of payload in each packet but the last; 0 if the buffer is one packet.
    pub payload: u32,
    /// Number of packets; 0 if the kernel has not counted them.
    pub count: u32,
}

impl Segments {
    /// A single packet.
    pub const NONE: Self = Self {
        payload: 0,
        count: 0,
    };
    /// `GSO_BY_FRAGS`: the packets have different lengths.
    const BY_FRAGMENTS: u32 = 0xffff;

    /// From the four bytes at `gso_size` in the memory of a little-endian host.
    #[inline(always)]
    #[must_use]
    pub const fn from_memory(word: u32) -> Self {
        Self {
            payload: word & 0xffff,
            count: word >> 16,
        }
    }

    /// The size on the wire of a buffer of `bytes` that begins with `headers` bytes of headers. Each packet has a copy of
    /// the headers.
    #[inline(always)]
    #[must_use]
    pub const fn size(self, bytes: u32, headers: u32) -> Size {
        if self.payload == 0 || bytes <= headers {
            return Size::of_one(bytes);
        }
        let packets = match self.count {
            // The kernel counts a buffer from a guest or a packet socket later.
            0 if self.payload == Self::BY_FRAGMENTS => 1,
            0 => (bytes - headers).div_ceil(self.payload),
            count => count,
        };
        Size {
            packets,
            bytes: bytes + (packets - 1) * headers,
        }
    }
}

/// The location of generic XDP's buffer and its segments in this kernel's memory, from its BTF.
///
/// `struct xdp_md` has no field for them. Generic XDP runs on a socket buffer, whose `struct skb_shared_info` is at the
/// end of the memory that `struct xdp_buff` describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct BufferLayout {
    /// Offset of `data_hard_start` in `struct xdp_buff`.
    pub start: u32,
    /// Offset of `frame_sz` in `struct xdp_buff`.
    pub length: u32,
    /// The size of `struct skb_shared_info` at the end of the memory, in bytes; 0 if the layout is unknown.
    pub shared: u32,
    /// Offset of `gso_size` in `struct skb_shared_info`; `gso_segs` follows.
    pub segments: u32,
}

impl BufferLayout {
    /// No layout: a buffer counts as one packet.
    pub const UNKNOWN: Self = Self {
        start: 0,
        length: 0,
        shared: 0,
        segments: 0,
    };

    /// Whether the layout is known.
    #[must_use]
    pub const fn is_known(&self) -> bool {
        self.shared != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_packet_of_a_buffer_has_its_headers() {
        let of = |payload, count| Segments { payload, count }.size(66 + 3_000, 66);
        assert_eq!(
            of(0, 0),
            Size {
                packets: 1,
                bytes: 3_066
            }
        );
        assert_eq!(
            of(1_000, 3),
            Size {
                packets: 3,
                bytes: 3_000 + 3 * 66
            }
        );
        assert_eq!(
            of(1_000, 0),
            Size {
                packets: 3,
                bytes: 3_000 + 3 * 66
            }
        );
        assert_eq!(
            of(1_448, 0),
            Size {
                packets: 3,
                bytes: 3_000 + 3 * 66
            }
        );
        assert_eq!(of(3_000, 0), Size::of_one(3_066));
        // Different lengths: only the kernel's count has the number of packets.
        assert_eq!(
            of(0xffff, 7),
            Size {
                packets: 7,
                bytes: 3_000 + 7 * 66
            }
        );
        assert_eq!(of(0xffff, 0), Size::of_one(3_066));
        assert_eq!(
            Segments {
                payload: 9,
                count: 2
            }
            .size(66, 66),
            Size::of_one(66)
        );
    }
}
