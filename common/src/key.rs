//! Keys of the table of sources, and the keyed hash that determines their place.

/// The key of one bucket. Addresses are in network byte order, IPv4 as IPv4-mapped IPv6, masked to the limit's prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
#[repr(C)]
pub struct Key {
    /// First half of the masked address.
    pub hi: u64,
    /// Second half of the masked address.
    pub lo: u64,
    /// The port for keys with one; the class, the interface or the network for those without an address.
    pub extra: u32,
    /// The group of limits with this key, so that equal keys of different groups differ.
    pub group: u32,
}

/// The secret of the hash, so that no source can choose its place in the table, and of [`crate::proof::resets`]. Random,
/// unless the table takes up the states of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct HashSeed {
    /// Odd multipliers.
    pub multipliers: [u64; 4],
}

/// The hash of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hash(pub u64);

impl HashSeed {
    /// A seed from random words.
    #[must_use]
    pub const fn new(random: [u64; 4]) -> Self {
        let [a, b, c, d] = random;
        Self {
            multipliers: [a | 1, b | 1, c | 1, d | 1],
        }
    }

    /// Multiply-shift hashing with secret odd multipliers (Dietzfelbinger et al., 1997: two keys have equal upper bits
    /// with probability at most 2/2ⁿ, regardless of how they were chosen), and one more round that mixes the upper bits
    /// down.
    #[inline(always)]
    #[must_use]
    pub fn hash(&self, key: &Key) -> Hash {
        let [a, b, c, d] = self.multipliers;
        let extra = u64::from(key.extra) << 32 | u64::from(key.group);
        let sum = key
            .hi
            .wrapping_mul(a)
            .wrapping_add(key.lo.wrapping_mul(b))
            .wrapping_add(extra.wrapping_mul(c))
            .wrapping_add(d);
        let mixed = (sum ^ sum >> 32).wrapping_mul(d);
        Hash(mixed ^ mixed >> 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[test]
    fn neighbouring_addresses_spread_over_the_lines_like_random_ones() {
        let seed = HashSeed::new([
            0x9e37_79b9_7f4a_7c15,
            0xbf58_476d_1ce4_e5b9,
            0x94d0_49bb_1331_11eb,
            0x2545_f491_4f6c_dd1d,
        ]);
        for keys in [
            (0..65_536u32)
                .map(|n| Key {
                    lo: u64::from((0x0a00_0000 + n).to_be()) << 32 | 0xffff_0000,
                    ..Key::default()
                })
                .collect::<Vec<_>>(),
            (0..65_536u64)
                .map(|n| Key {
                    hi: (0x2001_0db8_0000_0000 + n).to_be(),
                    ..Key::default()
                })
                .collect(),
            (0..65_536u32)
                .map(|n| Key {
                    lo: 7,
                    extra: n,
                    ..Key::default()
                })
                .collect(),
        ] {
            // Balls into bins: with 4 balls per bin, a bin of more than 20 has a probability of 1e-9.
            let mut bins: HashMap<u64, u32> = HashMap::new();
            for key in &keys {
                *bins.entry(seed.hash(key).0 & 0x3fff).or_default() += 1;
            }
            assert!(
                bins.values().all(|balls| *balls <= 20),
                "{:?}",
                bins.values().max()
            );
            let tags: std::collections::HashSet<u64> =
                keys.iter().map(|key| seed.hash(key).0 >> 32).collect();
            assert!(tags.len() > 65_500);
        }
    }
}
