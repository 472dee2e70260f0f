//! Fingerprints of keys: 64 bits for a key of any length. Hashes of names and definitions, the same on every host.

use std::hash::{Hash, Hasher as _};

use siphasher::sip::SipHasher13;

/// A key's fingerprint, never 0. The lower half selects the place in a shard, the upper half the shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(u64);

impl Fingerprint {
    #[inline]
    pub(super) fn word(self) -> u64 {
        self.0
    }

    pub(super) const fn of_word(word: u64) -> Self {
        Self(word)
    }
}

/// Makes fingerprints: SipHash-1-3 with a secret, so that clients cannot choose a shard or collide with another key.
///
/// Two keys collide, and share an allowance, with a probability of 5·10⁻²⁰; any two of a million with 3·10⁻⁸.
#[derive(Clone, Debug)]
pub struct Fingerprints {
    empty: SipHasher13,
    secret: [u64; 2],
    /// Whether this host has it from elsewhere.
    is_known: bool,
}

impl Fingerprints {
    /// With a random secret.
    ///
    /// # Errors
    ///
    /// When the system has no randomness.
    pub fn new() -> Result<Self, getrandom::Error> {
        let secret = [getrandom::u64()?, getrandom::u64()?];
        Ok(Self {
            is_known: false,
            ..Self::under(secret)
        })
    }

    /// With a secret that other hosts, or the previous agent, use as well.
    #[must_use]
    pub fn under(secret: [u64; 2]) -> Self {
        Self {
            empty: SipHasher13::new_with_keys(secret[0], secret[1]),
            secret,
            is_known: true,
        }
    }

    pub(super) const fn is_known(&self) -> bool {
        self.is_known
    }

    pub(super) const fn secret(&self) -> [u64; 2] {
        self.secret
    }

    #[inline]
    #[must_use]
    pub fn of<T: Hash + ?Sized>(&self, key: &T) -> Fingerprint {
        let mut hasher = self.empty;
        key.hash(&mut hasher);
        // 0 marks a free place.
        Fingerprint(hasher.finish().max(1))
    }
}

/// FNV-1a, 64 bits: the same on every host and in every version.
#[must_use]
pub fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}
