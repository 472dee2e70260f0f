//! Reads lists from files and URLs, bounded.

use std::path::Path;
use std::time::Duration;

use config::{PrefixKey, human};
use http_client::{Bounds, Client};
use lists::Origin;

use crate::files::{self, Fingerprint};

/// The most bytes of a list.
const MOST_BYTES: u64 = 128 << 20;
/// The longest validator that is kept and sent back: copies have room for no more, and servers refuse long headers.
const LONGEST_VALIDATOR: usize = 4096;
/// The bounds of a request.
const BOUNDS: Bounds = Bounds {
    timeout: Duration::from_secs(60),
    body: MOST_BYTES,
    redirects: 5,
};

/// The result of reading a source.
#[derive(Debug)]
pub(super) enum Content {
    /// It has not changed.
    Unchanged,
    /// Its text, with the validators of its URL.
    Text {
        bytes: Vec<u8>,
        etag: Option<String>,
        last_modified: Option<String>,
    },
    /// Prefixes from the databases of `[geo]`, in order.
    Prefixes(Vec<PrefixKey>),
}

/// A source could not be read.
#[derive(Debug)]
pub(super) struct Failure {
    pub why: String,
    /// The time that the server requests before the next attempt.
    pub retry_after: Option<Duration>,
}

impl From<String> for Failure {
    fn from(why: String) -> Self {
        Self {
            why,
            retry_after: None,
        }
    }
}

/// A client for all lists.
pub(super) fn client() -> Client {
    Client::new(BOUNDS)
}

/// Reads a file, unless it still has this fingerprint.
pub(super) fn read(
    path: &Path,
    known: Option<Fingerprint>,
) -> Result<(Content, Fingerprint), String> {
    let (bytes, found) = files::read(path, known, MOST_BYTES).map_err(|error| error.to_string())?;
    let text = |bytes| Content::Text {
        bytes,
        etag: None,
        last_modified: None,
    };
    Ok((bytes.map_or(Content::Unchanged, text), found))
}

/// Fetches a URL, unless it still has the content with this origin.
pub(super) fn fetch(
    client: &Client,
    url: &str,
    known: Option<&Origin>,
) -> Result<Content, Failure> {
    let fail = |why: String| format!("fetching {} failed: {why}", http_client::shown(url));
    let etag = known.and_then(|known| Some(("if-none-match", known.etag.as_deref()?)));
    let date = known.and_then(|known| Some(("if-modified-since", known.last_modified.as_deref()?)));
    let headers: Vec<_> = etag.into_iter().chain(date).collect();
    let response = client
        .get(url, &headers)
        .map_err(|error| fail(error.to_string()))?;
    match response.status {
        304 if !headers.is_empty() => Ok(Content::Unchanged),
        200 => {
            let validator = |name: &str| {
                let text = response.header(name)?;
                (text.len() <= LONGEST_VALIDATOR).then(|| text.to_owned())
            };
            let (etag, last_modified) = (validator("etag"), validator("last-modified"));
            Ok(Content::Text {
                bytes: response.body,
                etag,
                last_modified,
            })
        }
        status => {
            let retry_after = response.retry_after();
            let after = retry_after
                .map(|after| format!(" and Retry-After, {}", human::time(after)))
                .unwrap_or_default();
            Err(Failure {
                why: fail(format!("the server replied with status {status}{after}")),
                retry_after,
            })
        }
    }
}
