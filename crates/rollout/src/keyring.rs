//! The keys that count for a stream: those of the host's own file.
//!
//! Several keys may count at a time, so that a key is replaced without a gap: add the new one, publish with it, remove the
//! old one. Rules that a removed key signed stay in effect once they are confirmed.

use crate::envelope::Envelope;
use crate::key::{KeyId, PublicKey};
use crate::refusal::Refusal;

/// The keys that count for a stream on a host.
#[derive(Clone, Debug, Default)]
pub struct Keyring(Vec<PublicKey>);

impl Keyring {
    /// The keys of the host's own file.
    #[must_use]
    pub const fn new(keys: Vec<PublicKey>) -> Self {
        Self(keys)
    }

    /// Verifies an object. Returns its document, and the key that signed it.
    ///
    /// # Errors
    ///
    /// When no key that counts signed it.
    pub fn verify<'t>(&self, object: &'t str) -> Result<(&'t str, KeyId), Refusal> {
        let envelope = Envelope::open(object)?;
        let key = envelope.key();
        Ok((envelope.verified_by(&self.0)?, key))
    }

    /// Whether a key counts.
    #[must_use]
    pub fn has(&self, key: KeyId) -> bool {
        self.0.iter().any(|one| one.id() == key)
    }
}
