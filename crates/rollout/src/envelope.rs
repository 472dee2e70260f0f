//! A signed document as one object: the four lines of a minisign signature, then the document.
//!
//! Signature and document are replaced together, so that no reader combines an old one with a new one. Without Weir:
//! `head -n 4 OBJECT > s; tail -n +5 OBJECT > d; minisign -V -p KEY.pub -x s -m d`.

use minisign_verify::{Error, Signature};

use crate::document::Document;
use crate::key::{KeyId, PublicKey};
use crate::refusal::Refusal;
use crate::text::digest;

/// The most bytes of an object.
pub const MOST_BYTES: usize = 4 << 20;
const COMMENT: &str = "untrusted comment: ";
const TRUSTED: &str = "trusted comment: ";
/// The number of bytes of the document, in the trusted comment.
pub(crate) const SIZE: &str = "size=";

/// The digest of an object's document, which [`crate::index::Index`] names, and [`crate::host::Host::known`].
///
/// # Errors
///
/// When the object has no complete signature.
pub fn digest_of(object: &str) -> Result<String, Refusal> {
    Envelope::open(object).map(|envelope| digest(envelope.text()))
}

/// The document of an object, whose signature is not verified: for publishers, who compare it with what they sign.
///
/// # Errors
///
/// When the object has no complete signature, or no document.
pub fn unverified(object: &str) -> Result<Document, Refusal> {
    Envelope::open(object).and_then(|envelope| Document::parse(envelope.text()))
}

/// An object whose signature is not yet verified.
pub struct Envelope<'t> {
    signature: Signature,
    key: KeyId,
    expected: usize,
    text: &'t str,
}

impl<'t> Envelope<'t> {
    /// Splits an object.
    ///
    /// # Errors
    ///
    /// When the object has no complete signature.
    pub fn open(object: &'t str) -> Result<Self, Refusal> {
        if object.len() > MOST_BYTES {
            return Err(Refusal::TooLarge(object.len()));
        }
        if !object.starts_with(COMMENT) {
            return Err(Refusal::Unsigned);
        }
        let ends = object.match_indices('\n').nth(3);
        let expected = object
            .lines()
            .nth(2)
            .and_then(|line| line.strip_prefix(TRUSTED))
            .and_then(|comment| comment.split(' ').find_map(|word| word.strip_prefix(SIZE)))
            .and_then(|size| size.parse().ok());
        let Some((end, _)) = ends else {
            return Err(Refusal::Truncated {
                found: 0,
                expected: expected.unwrap_or(0),
            });
        };
        let (lines, text) = object.split_at(end + 1);
        let invalid = |reason: String| Refusal::BadSignature(reason);
        let signature = Signature::decode(lines).map_err(|error| invalid(error.to_string()))?;
        let key = KeyId::of_signature(lines).ok_or_else(|| invalid("it names no key".into()))?;
        let expected = expected.ok_or_else(|| invalid("its trusted comment has no size".into()))?;
        Ok(Self {
            signature,
            key,
            expected,
            text,
        })
    }

    #[must_use]
    pub const fn key(&self) -> KeyId {
        self.key
    }

    /// The document, whose signature is not verified.
    pub(crate) const fn text(&self) -> &'t str {
        self.text
    }

    /// The document, if one of the keys signed it.
    ///
    /// # Errors
    ///
    /// When none did, or the document is not the signed one.
    pub fn verified_by(&self, keys: &[PublicKey]) -> Result<&'t str, Refusal> {
        // IDs of keys are eight bytes of the signer's choice, so that two keys may have one.
        let mut outcome = Err(Refusal::UnknownKey(self.key));
        for key in keys.iter().filter(|key| key.id() == self.key) {
            match key.verify(self.text.as_bytes(), &self.signature) {
                Ok(()) => return Ok(self.text),
                Err(Error::InvalidSignature) if self.text.len() < self.expected => {
                    outcome = Err(Refusal::Truncated {
                        found: self.text.len(),
                        expected: self.expected,
                    });
                }
                Err(Error::InvalidSignature) => outcome = Err(Refusal::Changed(self.key)),
                Err(error) => outcome = Err(Refusal::BadSignature(error.to_string())),
            }
        }
        outcome
    }
}
