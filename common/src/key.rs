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

/// The words of a [`HashSeed`]: seven for each half of a hash.
pub const SEED_WORDS: usize = 14;

/// The secret of the hash, so that no source can choose its place in the table, and of [`crate::proof::resets`]. Random,
/// unless the table takes up the states of another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct HashSeed {
    /// Any numbers.
    pub words: [u64; SEED_WORDS],
}

/// The hash of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hash(pub u64);

impl HashSeed {
    /// The same seed for the same number, where nobody chooses keys: by SplitMix64.
    #[must_use]
    pub const fn of_number(number: u64) -> Self {
        let (mut words, mut nth) = ([0; SEED_WORDS], 0);
        while nth < SEED_WORDS {
            let state = number.wrapping_add((nth as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            let mixed = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
            words[nth] = mixed ^ mixed >> 31;
            nth += 1;
        }
        Self { words }
    }

    /// Pair-multiply-shift over the key's six words of 32 bits (Thorup, "High Speed Hashing for Integers and Strings",
    /// arXiv:1504.06804, 2015): the upper 32 bits of a sum modulo 2⁶⁴ are strongly universal. Whatever two keys a sender
    /// chooses before it has seen which of its own share a slot, over the seeds their sums are independent and uniform, so that
    /// all n chosen bits of two hashes are equal with probability 2⁻ⁿ. The halves have words of their own, since one sum has no
    /// more than 33 such bits.
    ///
    /// Sums of consecutive keys are evenly spaced, for some seeds in few clusters: a last bijection, which keeps what the
    /// theorem says, scatters them.
    #[inline(always)]
    #[must_use]
    pub fn hash(&self, key: &Key) -> Hash {
        let [a, b, c, d, e, f, g, first_of_lower @ ..] = self.words;
        let upper = pair_multiply([a, b, c, d, e, f, g], key);
        let lower = pair_multiply(first_of_lower, key);
        let both = upper & 0xffff_ffff << 32 | (upper ^ lower) >> 32;
        let mixed = both.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Hash(mixed ^ mixed >> 32)
    }
}

#[inline(always)]
fn pair_multiply(words: [u64; SEED_WORDS / 2], key: &Key) -> u64 {
    let [a, b, c, d, e, f, g] = words;
    let pair = |a: u64, b: u64, first: u64, second: u64| {
        a.wrapping_add(second).wrapping_mul(b.wrapping_add(first))
    };
    let half = |word: u64| (word >> 32, word & 0xffff_ffff);
    let (hi, lo) = (half(key.hi), half(key.lo));
    pair(a, b, hi.0, hi.1)
        .wrapping_add(pair(c, d, lo.0, lo.1))
        .wrapping_add(pair(e, f, u64::from(key.extra), u64::from(key.group)))
        .wrapping_add(g)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbouring_addresses_spread_over_the_lines_like_random_ones() {
        const COUNT: u32 = 65_536;
        let of_ipv4 = |n: u32| Key {
            lo: u64::from((0x0a00_0000 + n).to_be()) << 32 | 0xffff_0000,
            ..Key::default()
        };
        let of_ipv6 = |n: u32| Key {
            hi: (0x2001_0db8_0000_0000 + u64::from(n)).to_be(),
            ..Key::default()
        };
        let of_ports = |n: u32| Key {
            lo: 7,
            extra: n,
            ..Key::default()
        };
        for number in 1..33 {
            let seed = HashSeed::of_number(number << 40);
            for key_of in [of_ipv4, of_ipv6, of_ports] {
                // Balls into bins: with 4 balls per bin, a bin of more than 22 has a probability of 3e-11.
                let mut bins = vec![0u8; 1 << 14];
                let mut tags = std::collections::HashSet::new();
                for hash in (0..COUNT).map(|n| seed.hash(&key_of(n)).0) {
                    bins[((hash & 0xffff_ffff) >> 18) as usize] += 1;
                    tags.insert(hash >> 32);
                }
                let most = bins.iter().max();
                assert!(most <= Some(&22), "seed {number}: {most:?}");
                assert!(tags.len() > 65_500, "seed {number}: {}", tags.len());
            }
        }
    }

    /// Chosen pairs: words that differ in their uppermost bits, which odd multipliers cancel, in one bit, or in both halves.
    #[test]
    fn keys_that_a_sender_chooses_are_equal_as_seldom_as_random_ones() {
        const SEEDS: u64 = 1 << 16;
        let victim = Key {
            hi: 0x2001_0db8_0000_0001_u64.to_be(),
            lo: 0xfeed_u64.to_be(),
            extra: 443,
            group: 1,
        };
        let other = |hi: u64, lo: u64, extra: u32| Key {
            hi: victim.hi ^ hi,
            lo: victim.lo ^ lo,
            extra: victim.extra ^ extra,
            ..victim
        };
        for chosen in [
            other(1 << 63, 1 << 63, 0),
            other(1 << 63, 0, 1 << 31),
            other(0, 1 << 63, 1 << 31),
            other(1 << 31, 1 << 31, 0),
            other(1 << 62 | 1 << 63, 1 << 62, 0),
            other(0, 1, 0),
            other(u64::MAX, u64::MAX, u32::MAX),
        ] {
            // Of each half, the bits that are used: of a tag, of a set, of a line and of a sample.
            for (shift, bits) in [(33, 8), (56, 8), (24, 8), (0, 8)] {
                let equal = (0..SEEDS)
                    .filter(|number| {
                        let seed = HashSeed::of_number(*number << 32);
                        let differing = seed.hash(&victim).0 ^ seed.hash(&chosen).0;
                        differing >> shift & ((1 << bits) - 1) == 0
                    })
                    .count() as f64;
                let expected = (SEEDS >> bits) as f64;
                // Six standard deviations.
                assert!(
                    (equal - expected).abs() <= 6.0 * expected.sqrt(),
                    "{chosen:?}: {equal} of {SEEDS} have bits {shift} to {} in common",
                    shift + bits - 1
                );
            }
        }
    }
}
