//! What stands for a key: 64 bits, whatever its length.

use std::hash::{Hash, Hasher as _};

use siphasher::sip::SipHasher13;

/// A key's fingerprint, never 0. Places are looked for by its lower half within a shard, by its upper half among the
/// shards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fingerprint(u64);

impl Fingerprint {
    /// The word itself.
    #[inline]
    pub(super) fn word(self) -> u64 {
        self.0
    }

    /// One that is this word.
    pub(super) fn of_word(word: u64) -> Self {
        Self(word)
    }
}

/// Makes fingerprints: SipHash-1-3 under a secret, so that nobody can aim at one shard, or at another's key.
///
/// Two keys share an allowance with a probability of 5·10⁻²⁰; that any two of a million do has one of 3·10⁻⁸.
#[derive(Clone, Debug)]
pub struct Fingerprints {
    empty: SipHasher13,
}

impl Fingerprints {
    /// Under a secret from the system.
    ///
    /// # Errors
    ///
    /// When the system has no randomness to give.
    pub fn new() -> Result<Self, getrandom::Error> {
        let (first, second) = (getrandom::u64()?, getrandom::u64()?);
        Ok(Self { empty: SipHasher13::new_with_keys(first, second) })
    }

    /// Of anything that can be hashed.
    #[inline]
    #[must_use]
    pub fn of<T: Hash + ?Sized>(&self, key: &T) -> Fingerprint {
        let mut hasher = self.empty;
        key.hash(&mut hasher);
        // 0 is where no key is.
        Fingerprint(hasher.finish().max(1))
    }
}
