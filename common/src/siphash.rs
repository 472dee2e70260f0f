//! SipHash-2-4, a keyed pseudorandom function (Aumasson and Bernstein, INDOCRYPT 2012), of whole words: kernel programs have
//! no loop over bytes.

/// The hash of words under a secret key. Outputs do not reveal it.
#[inline(always)]
#[must_use]
pub fn siphash<const N: usize>(key: [u64; 2], words: [u64; N]) -> u64 {
    let mut v = [
        key[0] ^ 0x736f_6d65_7073_6575,
        key[1] ^ 0x646f_7261_6e64_6f6d,
        key[0] ^ 0x6c79_6765_6e65_7261,
        key[1] ^ 0x7465_6462_7974_6573,
    ];
    for word in words {
        absorb(&mut v, word);
    }
    absorb(&mut v, (N as u64 * 8) << 56);
    v[2] ^= 0xff;
    for _ in 0..4 {
        round(&mut v);
    }
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

#[inline(always)]
fn absorb(v: &mut [u64; 4], word: u64) {
    v[3] ^= word;
    round(v);
    round(v);
    v[0] ^= word;
}

#[inline(always)]
fn round(v: &mut [u64; 4]) {
    let [mut a, mut b, mut c, mut d] = *v;
    a = a.wrapping_add(b);
    b = b.rotate_left(13) ^ a;
    a = a.rotate_left(32);
    c = c.wrapping_add(d);
    d = d.rotate_left(16) ^ c;
    a = a.wrapping_add(d);
    d = d.rotate_left(21) ^ a;
    c = c.wrapping_add(b);
    b = b.rotate_left(17) ^ c;
    c = c.rotate_left(32);
    *v = [a, b, c, d];
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::Hasher;

    #[test]
    fn it_is_that_of_the_paper_and_of_the_standard_library() {
        // The key 00 01 … 0f, and the first 8 and 16 bytes of 00 01 …: the authors' vectors.
        let bytes: [u8; 16] = std::array::from_fn(|nth| nth as u8);
        let [a, b] =
            [&bytes[..8], &bytes[8..]].map(|half| u64::from_le_bytes(half.try_into().unwrap()));
        assert_eq!(siphash([a, b], [a]), 0x93f5_f579_9a93_2462);
        assert_eq!(siphash([a, b], [a, b]), 0x3f2a_cc7f_57c2_9bdb);
        for seed in 0..1_000u64 {
            let words: [u64; 5] =
                std::array::from_fn(|nth| (seed + nth as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15));
            // The only SipHash-2-4 of the standard library, whose default has fewer rounds.
            #[expect(deprecated)]
            let mut theirs = std::hash::SipHasher::new_with_keys(seed, !seed);
            words
                .iter()
                .for_each(|word| theirs.write(&word.to_le_bytes()));
            assert_eq!(siphash([seed, !seed], words), theirs.finish());
        }
    }
}
