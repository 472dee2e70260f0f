//! Sizes of maps, in elements or bytes.

use common::record::MOST_RECORDED;

use crate::compile::Image;

/// The most keys with sampled statistics.
pub(crate) const SAMPLES: u32 = 16_384;

/// The most prefixes that can be banned.
pub const MOST_BANS: u32 = 1 << 20;

/// Room for 1,170 records of one direction between two reads.
pub const RING_BYTES: u32 = 64 << 10;

/// Bytes of one element of a text's map.
pub const TEXT_CHUNK: usize = 4096;

/// The most interfaces of a policy with limits for some interfaces.
const MOST_INTERFACES: u32 = 1 << 14;

/// The most sources of a part of a recording: outgoing packets are not recorded.
pub(crate) fn recorded(image: &Image) -> u32 {
    if image.settings.is_egress != 0 { 1 } else { MOST_RECORDED }
}

/// The most interfaces that a policy numbers.
pub(crate) fn interfaces(image: &Image) -> u32 {
    if image.interfaces.are_in_use() { MOST_INTERFACES } else { 1 }
}
