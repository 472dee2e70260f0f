//! Signing of documents, for publishers.

use std::io::Cursor;
use std::str::FromStr as _;

use minisign::{KeyPair, PublicKey, SecretKey, SecretKeyBox};
use thiserror::Error;

use crate::document::Document;
use crate::envelope::SIZE;
use crate::key::KeyId;

/// A document cannot be signed.
#[derive(Debug, Error)]
pub enum SignError {
    #[error(
        "the secret key cannot be used: {0}; name a key file of `minisign -G`, and its password if it has one"
    )]
    Key(String),
    #[error("the document cannot be written: {0}")]
    Document(#[from] toml::ser::Error),
    #[error("signing failed: {0}; check that the system has randomness")]
    Failed(String),
}

/// The start of a public key in limits.toml.
const PREFIX: &str = "ed25519:";

/// A new pair of keys.
pub struct NewKey {
    /// The text of its key file, which `minisign` reads. It has no password.
    pub secret: String,
    /// The public key, as `public_keys` takes it.
    pub public: String,
}

/// Makes a pair of keys.
///
/// # Errors
///
/// When the system has no randomness.
pub fn new_key() -> Result<NewKey, SignError> {
    let failed = |error: minisign::PError| SignError::Failed(error.to_string());
    let pair = KeyPair::generate_unencrypted_keypair().map_err(failed)?;
    let secret = pair.sk.to_box(None).map_err(failed)?;
    Ok(NewKey {
        secret: secret.into_string(),
        public: format!("{PREFIX}{}", pair.pk.to_base64()),
    })
}

/// A publisher's secret key.
pub struct Signer(SecretKey);

impl Signer {
    /// Reads the text of a key file of `minisign -G`, with its password unless the file is not encrypted (`-W`).
    ///
    /// # Errors
    ///
    /// When the text is no key, or the password is wrong.
    pub fn new(text: &str, password: Option<String>) -> Result<Self, SignError> {
        let failed = |error: minisign::PError| SignError::Key(error.to_string());
        let boxed = SecretKeyBox::from_string(text).map_err(failed)?;
        let key = match password {
            // An absent password would be read from the terminal.
            None => boxed.into_unencrypted_secret_key(),
            Some(password) => boxed.into_secret_key(Some(password)),
        };
        key.map(Self).map_err(failed)
    }

    /// The public key, as `public_keys` takes it.
    ///
    /// # Errors
    ///
    /// When the secret key has none.
    pub fn public(&self) -> Result<String, SignError> {
        let key = PublicKey::from_secret_key(&self.0);
        let key = key.map_err(|error| SignError::Key(error.to_string()))?;
        Ok(format!("{PREFIX}{}", key.to_base64()))
    }

    /// The ID of the key.
    ///
    /// # Errors
    ///
    /// As [`Signer::public`].
    pub fn key(&self) -> Result<KeyId, SignError> {
        let public = crate::key::PublicKey::from_str(&self.public()?);
        let public = public.map_err(|error| SignError::Key(error.to_string()))?;
        Ok(public.id())
    }

    /// The object of a document.
    ///
    /// # Errors
    ///
    /// When the document cannot be written as TOML, or the system has no randomness.
    pub fn sign(&self, document: &Document) -> Result<String, SignError> {
        let text = document.to_text()?;
        let comment = format!("weir {} {SIZE}{}", document.title(), text.len());
        let signature = minisign::sign(
            None,
            &self.0,
            Cursor::new(text.as_bytes()),
            Some(&comment),
            None,
        )
        .map_err(|error| SignError::Failed(error.to_string()))?;
        let lines = signature.into_string();
        Ok(format!("{}\n{text}", lines.trim_end()))
    }
}
