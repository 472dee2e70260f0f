//! A stream of rules: its address, and the keys that count for it.

use std::fmt;
use std::path::PathBuf;

use super::cluster::{Cluster, is_name, without_credentials};
use super::policy::StoreUrl;
use super::report::Wrong;
use super::schema::{Key, Kind, Mask, Text};

/// The characters of a public key of minisign, 42 bytes in base64, and its first ones.
const KEY_LENGTH: usize = 56;
const KEY_START: &str = "RW";
const KEY_PREFIX: &str = "ed25519:";

/// Where the rules are: a store, and a stream in it. `Display` and `Debug` omit credentials.
#[derive(Clone, PartialEq, Eq)]
pub struct RulesAddress {
    text: String,
    pub store: RulesStore,
    pub stream: String,
}

/// A store of rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RulesStore {
    Folder(PathBuf),
    /// The URL of the folder on an HTTP server, without a slash at its end.
    Http(String),
    /// The URL of a bucket of S3 or of a compatible server, or of a folder in it: `https://ENDPOINT/BUCKET`.
    S3(String),
    Redis(StoreUrl),
}

impl RulesAddress {
    /// Parses an address.
    ///
    /// # Errors
    ///
    /// When it is no address of a stream. The message does not repeat it, since it may contain a password.
    pub fn parse(text: &str) -> Result<Self, Wrong> {
        let help = "write \"https://HOST/STREAM\", \"s3+https://HOST/BUCKET/STREAM\", \"file:///FOLDER/STREAM\" or \"redis://HOST:6379/STREAM\"";
        let wrong = |why: &str| Wrong::new(format!("invalid address of rules: {why}"), help);
        let (store, name) = text
            .rsplit_once('/')
            .ok_or_else(|| wrong("it has no stream"))?;
        // A stream may be written as the file that people expect.
        let stream = name.strip_suffix(".toml").unwrap_or(name);
        if !is_name(stream) || stream.starts_with('.') {
            return Err(wrong(
                "it does not end with the name of a stream, of letters, digits, dashes and underscores",
            ));
        }
        let is_http = |url: &str| {
            ["http://", "https://"]
                .iter()
                .any(|scheme| url.starts_with(scheme))
        };
        let check = |url: &str| {
            http_client::check(url).map_err(wrong)?;
            if url.contains(['@', '?']) {
                return Err(wrong("credentials and queries are not supported"));
            }
            Ok(url.to_owned())
        };
        let path = store.strip_prefix("file://").unwrap_or(store);
        let bucket = store.strip_prefix("s3+").filter(|url| is_http(url));
        let store = if is_http(store) {
            RulesStore::Http(check(store)?)
        } else if let Some(url) = bucket {
            // Other names would be escaped in signed requests.
            let mut names = url.split('/').skip(3).peekable();
            if names.peek().is_none() || !names.all(is_name) {
                return Err(wrong(
                    "its bucket is missing, or has other characters than letters, digits, dashes, dots and underscores",
                ));
            }
            RulesStore::S3(check(url)?)
        } else if path.starts_with('/') {
            RulesStore::Folder(path.into())
        } else {
            let url = StoreUrl::parse(store, &Cluster::STORE);
            RulesStore::Redis(url.map_err(|_| wrong("its scheme or its server is not supported"))?)
        };
        Ok(Self {
            text: text.to_owned(),
            store,
            stream: stream.to_owned(),
        })
    }
}

impl fmt::Display for RulesAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&without_credentials(&self.text))
    }
}

impl fmt::Debug for RulesAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl Text for RulesAddress {
    const KIND: Kind = Kind::Text(&[]);
    const MASK: Option<Mask> = Some(|text, _| without_credentials(text));

    fn parse(text: &str, _: &Key) -> Result<Self, Wrong> {
        Self::parse(text)
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

/// A public key of minisign as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicKeyText(String);

impl PublicKeyText {
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl Text for PublicKeyText {
    const KIND: Kind = Kind::Text(&[]);

    fn parse(text: &str, key: &Key) -> Result<Self, Wrong> {
        let base64 = text.strip_prefix(KEY_PREFIX).unwrap_or(text);
        let is_base64 = |c: char| c.is_ascii_alphanumeric() || matches!(c, '+' | '/');
        if base64.len() == KEY_LENGTH
            && base64.starts_with(KEY_START)
            && base64.chars().all(is_base64)
        {
            return Ok(Self(text.to_owned()));
        }
        let help = "write \"ed25519:\" and the second line of a public key file of `minisign -G` or `weir fleet keygen`";
        Err(Wrong::new(format!("invalid {} {text:?}", key.name), help))
    }

    fn text(&self) -> String {
        self.0.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_has_a_store_and_a_stream() {
        let folder = |path: &str| RulesStore::Folder(path.into());
        let http = |url: &str| RulesStore::Http(url.to_owned());
        for (text, store, stream) in [
            ("file:///srv/rules/web", folder("/srv/rules"), "web"),
            ("/srv/rules/web.toml", folder("/srv/rules"), "web"),
            (
                "https://rules.example.net/web.toml",
                http("https://rules.example.net"),
                "web",
            ),
            ("http://[::1]:80/a/b", http("http://[::1]:80/a"), "b"),
            (
                "s3+https://s3.example.net/rules/of/web",
                RulesStore::S3("https://s3.example.net/rules/of".to_owned()),
                "web",
            ),
        ] {
            let address = RulesAddress::parse(text).unwrap();
            assert_eq!(
                (address.store, address.stream.as_str()),
                (store, stream),
                "{text}"
            );
        }
        let redis = RulesAddress::parse("valkeys://me:secret@host:6379/3/web").unwrap();
        assert!(!format!("{redis} {redis:?}").contains("secret"));
        let RulesStore::Redis(url) = redis.store else {
            panic!("{:?}", redis.store)
        };
        assert_eq!(url.reveal(), "rediss://me:secret@host:6379/3");
    }
}
