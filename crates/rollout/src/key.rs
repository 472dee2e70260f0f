//! Public keys in the format of minisign.

use std::fmt;
use std::str::FromStr;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use minisign_verify::Signature;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// The ID of a key, as `minisign` prints it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct KeyId([u8; 8]);

impl KeyId {
    /// The ID in a signature's second line.
    pub(crate) fn of_signature(lines: &str) -> Option<Self> {
        Self::of(&STANDARD.decode(lines.lines().nth(1)?).ok()?)
    }

    /// Keys and signatures begin with two bytes of the algorithm and eight of the key's ID.
    fn of(bytes: &[u8]) -> Option<Self> {
        bytes.get(2..10)?.try_into().ok().map(Self)
    }
}

impl fmt::Display for KeyId {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "{:016X}", u64::from_le_bytes(self.0))
    }
}

/// A text is no public key.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error(
    "invalid public key {0:?}; write \"ed25519:\" and the second line of a public key file of `minisign -G`"
)]
pub struct NotAKey(String);

/// A public key: `ed25519:`, which may be left out, and the base64 of minisign.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKey {
    id: KeyId,
    key: minisign_verify::PublicKey,
}

impl PublicKey {
    #[must_use]
    pub const fn id(&self) -> KeyId {
        self.id
    }

    /// Verifies a prehashed signature; those of the legacy format do not count.
    pub(crate) fn verify(
        &self,
        text: &[u8],
        signature: &Signature,
    ) -> Result<(), minisign_verify::Error> {
        self.key.verify(text, signature, false)
    }
}

impl FromStr for PublicKey {
    type Err = NotAKey;

    fn from_str(text: &str) -> Result<Self, NotAKey> {
        let invalid = || NotAKey(text.to_owned());
        let base64 = text.trim();
        let base64 = base64.strip_prefix("ed25519:").unwrap_or(base64);
        let key = minisign_verify::PublicKey::from_base64(base64).map_err(|_| invalid())?;
        let bytes = STANDARD.decode(base64).map_err(|_| invalid())?;
        let id = KeyId::of(&bytes).ok_or_else(invalid)?;
        Ok(Self { id, key })
    }
}
