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

/// The words of a [`HashSeed`]: one for each half of a hash, and three for each half of each word of a key.
pub const SEED_WORDS: usize = 2 + 3 * 2 * 3;

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

    /// The hash of a key under this secret.
    #[inline(always)]
    #[must_use]
    pub fn hash(&self, key: &Key) -> Hash {
        key.hash(|nth| self.words[nth])
    }
}

impl Key {
    /// The hash under the secret whose words `seed` returns.
    ///
    /// Pair-multiply-shift over the key's words (Thorup, "High Speed Hashing for Integers and Strings", arXiv:1504.06804,
    /// 2015): the upper 32 bits of a sum modulo 2⁶⁴ of products `(a + x)(b + y)`, where x and y are a word's halves, are
    /// strongly universal. Whatever two keys a sender chooses before it knows which of its own share a slot, over the seeds
    /// their sums are independent and uniform: n chosen bits of two hashes are equal with probability 2⁻ⁿ. The halves of a hash
    /// have seeds of their own, since one sum has no more than 33 such bits.
    ///
    /// A word that is 0 adds nothing, so that most keys take one product a half. Each other word adds a third random number,
    /// by which the sums of two keys are independent if one of them lacks the word.
    ///
    /// Sums of consecutive keys are evenly spaced, for some seeds in few clusters: a last bijection, which keeps the theorem,
    /// scatters them.
    #[inline(always)]
    #[must_use]
    pub fn hash(&self, seed: impl Fn(usize) -> u64) -> Hash {
        let mut sums = [seed(0), seed(1)];
        add(&mut sums, self.hi, 2, &seed);
        add(&mut sums, self.lo, 8, &seed);
        let extra = u64::from(self.extra) << 32 | u64::from(self.group);
        add(&mut sums, extra, 14, &seed);
        let [upper, lower] = sums;
        let mixed = (upper & 0xffff_ffff << 32 | lower >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        Hash(mixed ^ mixed >> 32)
    }
}

/// Adds a word to both sums, by six words of the seed.
#[inline(always)]
fn add(sums: &mut [u64; 2], word: u64, first: usize, seed: &impl Fn(usize) -> u64) {
    if word == 0 {
        return;
    }
    let (low, high) = (word & 0xffff_ffff, word >> 32);
    let product = |nth: usize| {
        let (a, b) = (
            seed(nth).wrapping_add(low),
            seed(nth + 1).wrapping_add(high),
        );
        a.wrapping_mul(b).wrapping_add(seed(nth + 2))
    };
    *sums = [
        sums[0].wrapping_add(product(first)),
        sums[1].wrapping_add(product(first + 3)),
    ];
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
            // Without words of the victim's.
            Key { hi: 0, ..victim },
            Key {
                hi: victim.lo,
                lo: 0,
                ..victim
            },
            Key {
                extra: 0,
                group: 0,
                ..victim
            },
            Key::default(),
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
