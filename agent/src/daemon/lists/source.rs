//! Reads lists from files and URLs, bounded.

use std::fs::File;
use std::io::Read as _;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::time::Duration;

use http_client::{Bounds, Client};
use lists::Origin;

/// The most bytes of a list.
const MOST_BYTES: u64 = 128 << 20;
/// The bounds of a request.
const BOUNDS: Bounds = Bounds { timeout: Duration::from_secs(60), body: MOST_BYTES, redirects: 5 };

/// The result of reading a source.
#[derive(Debug)]
pub(super) enum Content {
    /// It has not changed.
    Unchanged,
    /// Its text, with the validators of its URL.
    Text { bytes: Vec<u8>, etag: Option<String>, last_modified: Option<String> },
}

/// A client for all lists.
pub(super) fn client() -> Client {
    Client::new(BOUNDS)
}

/// Identifies the content of a file: device, inode, size, and the time of its last change in nanoseconds.
pub(super) type Fingerprint = (u64, u64, u64, i128);

/// Reads a file, unless it still has this fingerprint.
pub(super) fn read(path: &Path, known: Option<Fingerprint>) -> Result<(Content, Fingerprint), String> {
    let fail = |error: std::io::Error| format!("reading {} failed: {error}", path.display());
    // A pipe without a writer would block.
    let file = File::options().read(true).custom_flags(nix::libc::O_NONBLOCK).open(path).map_err(fail)?;
    let about = file.metadata().map_err(fail)?;
    if !about.is_file() {
        return Err(format!("{} is not a regular file", path.display()));
    }
    let changed = i128::from(about.mtime()) * 1_000_000_000 + i128::from(about.mtime_nsec());
    let found = (about.dev(), about.ino(), about.len(), changed);
    if known == Some(found) {
        return Ok((Content::Unchanged, found));
    }
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(fail)?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err(format!("{} is larger than {MOST_BYTES} bytes", path.display()));
    }
    Ok((Content::Text { bytes, etag: None, last_modified: None }, found))
}

/// Fetches a URL, unless it still has the content with this origin.
pub(super) fn fetch(client: &Client, url: &str, known: Option<&Origin>) -> Result<Content, String> {
    let fail = |why: String| format!("fetching {} failed: {why}", http_client::shown(url));
    let etag = known.and_then(|known| Some(("if-none-match", known.etag.as_deref()?)));
    let date = known.and_then(|known| Some(("if-modified-since", known.last_modified.as_deref()?)));
    let headers: Vec<_> = etag.into_iter().chain(date).collect();
    let response = client.get(url, &headers).map_err(|error| fail(error.to_string()))?;
    match response.status {
        304 if !headers.is_empty() => Ok(Content::Unchanged),
        200 => {
            let text = |name: &str| response.header(name).map(str::to_owned);
            let (etag, last_modified) = (text("etag"), text("last-modified"));
            Ok(Content::Text { bytes: response.body, etag, last_modified })
        }
        status => Err(fail(format!("the server replied with status {status}"))),
    }
}
