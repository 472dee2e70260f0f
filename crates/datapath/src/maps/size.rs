//! Sizes of maps, in elements or bytes.

use common::own::MOST_OWN;
use common::prefix::FILTER_LINES;
use common::proof::resets::Known;
use common::record::MOST_RECORDED;
use common::settings::Settings;

use crate::compile::Image;

/// The most keys with sampled statistics.
pub(crate) const SAMPLES: u32 = 16_384;

/// Keys with reservations, and reserved connections: the oldest of more are forgotten.
pub const MOST_RESERVED: u32 = 1 << 16;
/// Keys with open connections, and these connections. More are not counted.
pub const MOST_OPEN: u32 = 1 << 18;

/// The most prefixes that can be banned.
pub const MOST_BANS: u32 = 1 << 20;

/// Room for 1,170 records of one direction between two reads.
pub const RING_BYTES: u32 = 64 << 10;

/// Bytes of one element of a text's map.
pub const TEXT_CHUNK: usize = 4096;

/// The least room for more lines of prefixes: some hundred prefixes.
const MORE_LINES: u32 = 64;

/// The most interfaces of a policy with limits for some interfaces.
const MOST_INTERFACES: u32 = 1 << 14;

/// The most addresses of this host, where the programs reply.
pub(crate) const fn own_addresses(settings: &Settings) -> u32 {
    if settings.reject_in_use != 0 || settings.prove_in_use != 0 {
        MOST_OWN
    } else {
        1
    }
}

/// The ports whose cookies are recorded: all, where sources prove their address by them.
pub(crate) const fn cookie_ports(settings: &Settings) -> u32 {
    if settings.prove_in_use & Settings::BY_COOKIES != 0 {
        1 << 16
    } else {
        1
    }
}

/// The sets of sources that are remembered to have proven their address by resets.
pub(crate) const fn proven_sources(settings: &Settings) -> u32 {
    if settings.prove_in_use & Settings::BY_RESETS != 0 {
        Known::SETS
    } else {
        1
    }
}

/// Bytes of the ring of packets that fair rules sample.
pub(crate) const OFFERED_BYTES: u32 = 256 << 10;

/// The same for these settings: one page, the least, if none are sampled.
pub(crate) const fn offered(settings: &Settings) -> u32 {
    if settings.fair_in_use != 0 {
        OFFERED_BYTES
    } else {
        4096
    }
}

/// The most sources of a part of a recording: outgoing packets are not recorded.
pub(crate) fn recorded(image: &Image) -> u32 {
    if image.settings.is_egress != 0 {
        1
    } else {
        MOST_RECORDED
    }
}

/// Rows of rules in each bank: those of the policy, with room for multipliers up to the next power of two.
pub(crate) fn rows_of_bank(image: &Image) -> u32 {
    image.settings.rules_per_multiplier * multipliers(image).next_power_of_two()
}

/// The bits of a source index in one bank.
pub(crate) fn source_index_bits(image: &Image) -> u32 {
    image.settings.scoping.source_bits + multipliers(image).next_power_of_two().ilog2()
}

fn multipliers(image: &Image) -> u32 {
    (image.rules.len() as u32)
        .checked_div(image.settings.rules_per_multiplier)
        .unwrap_or(1)
        .max(1)
}

/// Lines of prefixes in each bank: those of the policy, with room for more.
pub(crate) fn lines_of_bank(image: &Image) -> u32 {
    if image.settings.prefixes_in_use == 0 && image.settings.networks_in_use == 0 {
        return 0;
    }
    let lines = image.prefixes.len() as u32;
    let growing = lines.saturating_sub(FILTER_LINES);
    lines + growing / 4 + MORE_LINES
}

/// The most interfaces that a policy numbers.
pub(crate) fn interfaces(image: &Image) -> u32 {
    if image.interfaces.are_in_use() {
        MOST_INTERFACES
    } else {
        1
    }
}
