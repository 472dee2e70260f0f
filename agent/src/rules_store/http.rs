//! An HTTP server that can read and replace objects, such as nginx with `dav_methods PUT`, or S3 with its signatures.

use std::time::Duration;

use http_client::{Bounds, Client, Response, shown};
use jiff::SignedDuration;
use jiff::fmt::rfc2822::DateTimeParser;
use serde::Deserialize;

use super::bucket::{self, Bucket, MOST_PAGES};
use super::store::{Found, MOST_BYTES, Object, SETTLES, Store, StoreError};

const BOUNDS: Bounds = Bounds {
    timeout: Duration::from_secs(10),
    body: MOST_BYTES,
    redirects: 0,
};
/// How long ago an object has changed whose ETag stands for its content.
const SETTLED: SignedDuration = SignedDuration::from_secs(2);
/// How often a change is tried while other writers are faster.
const ATTEMPTS: u32 = 5;

pub(super) struct Http {
    client: Client,
    url: String,
    /// With signed requests.
    bucket: Option<Bucket>,
}

/// A response to a request for an object, and its text.
enum Fetched {
    Missing,
    Unchanged,
    Text(Response, String),
}

/// An entry of a folder, as nginx lists it with `autoindex_format json`.
#[derive(Deserialize)]
struct Entry {
    name: String,
}

impl Http {
    pub(super) fn new(url: &str) -> Self {
        Self {
            client: Client::new(BOUNDS),
            url: url.to_owned(),
            bucket: None,
        }
    }

    /// A bucket of S3, or a folder in it.
    pub(super) fn s3(url: &str) -> Self {
        Self {
            bucket: Some(Bucket::of(url)),
            ..Self::new(url)
        }
    }

    fn at(&self, name: &str) -> String {
        format!("{}/{name}", self.url)
    }

    /// The headers that sign a request; none without a bucket.
    fn signed(
        &self,
        method: &str,
        url: &str,
        body: &[u8],
    ) -> Result<Vec<(&'static str, String)>, StoreError> {
        let bucket = self.bucket.as_ref();
        bucket.map_or_else(|| Ok(Vec::new()), |_| bucket::signed(method, url, body))
    }

    fn get(&self, url: &str, headers: &[(&str, &str)]) -> Result<Response, StoreError> {
        let signed = self.signed("GET", url, b"")?;
        let headers = [headers, &borrowed(&signed)].concat();
        self.client.get(url, &headers).map_err(|error| {
            StoreError::Unavailable(format!("reading {} failed: {error}", shown(url)))
        })
    }

    fn object(&self, name: &str, tag: Option<&str>) -> Result<Fetched, StoreError> {
        let url = self.at(name);
        let condition = tag.map(|tag| ("if-none-match", tag));
        let headers: Vec<_> = condition.into_iter().collect();
        let mut response = self.get(&url, &headers)?;
        match response.status {
            304 if !headers.is_empty() => Ok(Fetched::Unchanged),
            404 => Ok(Fetched::Missing),
            200 => match String::from_utf8(std::mem::take(&mut response.body)) {
                Ok(text) => Ok(Fetched::Text(response, text)),
                Err(_) => Err(StoreError::Invalid {
                    name: name.to_owned(),
                    reason: "it is no text".to_owned(),
                }),
            },
            _ => Err(StoreError::Unavailable(format!(
                "reading {} failed: {}",
                shown(&url),
                replied(&response)
            ))),
        }
    }

    /// Writes an object on a condition; whether it held.
    fn put(&self, name: &str, text: &str, condition: (&str, &str)) -> Result<bool, StoreError> {
        let url = self.at(name);
        let failed = |why: String| format!("writing {} failed: {why}", shown(&url));
        let signed = self.signed("PUT", &url, text.as_bytes())?;
        let mut headers = borrowed(&signed);
        if !condition.0.is_empty() {
            headers.push(condition);
        }
        let response = self
            .client
            .put(&url, &headers, text.as_bytes())
            .map_err(|error| StoreError::Unavailable(failed(error.to_string())))?;
        match response.status {
            200..=299 => Ok(true),
            409 | 412 => Ok(false),
            401 | 403 | 405 | 501 => Err(StoreError::ReadOnly(failed(format!(
                "{}; let this host write there by PUT",
                replied(&response)
            )))),
            _ => Err(StoreError::ReadOnly(failed(replied(&response)))),
        }
    }
}

impl Http {
    fn list_bucket(&self, bucket: &Bucket, folder: &str) -> Result<Vec<String>, StoreError> {
        let (mut names, mut next) = (Vec::new(), None::<String>);
        for _ in 0..MOST_PAGES {
            let response = self.get(&bucket.page_url(folder, next.as_deref()), &[])?;
            if response.status != 200 {
                return Err(StoreError::Unavailable(format!(
                    "listing {} failed: {}",
                    shown(&bucket.url),
                    replied(&response)
                )));
            }
            let page = bucket.page(folder, &response.body);
            let page = page.ok_or_else(|| StoreError::Invalid {
                name: format!("{folder}/"),
                reason: "it is no list of objects of S3".to_owned(),
            })?;
            names.extend(page.names);
            if page.next.is_none() || page.next == next {
                return Ok(names);
            }
            next = page.next;
        }
        Err(StoreError::Invalid {
            name: format!("{folder}/"),
            reason: format!("its list has more than {MOST_PAGES} parts"),
        })
    }
}

impl Store for Http {
    fn read(&mut self, name: &str, tag: Option<&str>) -> Result<Found, StoreError> {
        let (response, text) = match self.object(name, tag)? {
            Fetched::Missing => return Ok(Found::Missing),
            Fetched::Unchanged => return Ok(Found::Unchanged),
            Fetched::Text(response, text) => (response, text),
        };
        let tag = response.header("etag").filter(|_| is_settled(&response));
        Ok(Found::Object(Object {
            text,
            tag: tag.map(str::to_owned),
        }))
    }

    fn write(&mut self, name: &str, text: &str) -> Result<(), StoreError> {
        if self.put(name, text, ("", ""))? {
            Ok(())
        } else {
            Err(StoreError::Contended(name.to_owned()))
        }
    }

    fn change(
        &mut self,
        name: &str,
        change: &mut dyn FnMut(Option<&str>) -> Result<String, StoreError>,
    ) -> Result<(), StoreError> {
        for _ in 0..ATTEMPTS {
            // Servers that ignore the condition lose one of two reports at once, which is sent again.
            let is_written = match self.object(name, None)? {
                Fetched::Text(response, text) => {
                    let tag = response.header("etag");
                    let condition = tag.map_or(("", ""), |tag| ("if-match", tag));
                    self.put(name, &change(Some(&text))?, condition)?
                }
                Fetched::Missing | Fetched::Unchanged => {
                    self.put(name, &change(None)?, ("if-none-match", "*"))?
                }
            };
            if is_written {
                return Ok(());
            }
        }
        Err(StoreError::Contended(name.to_owned()))
    }

    fn settles(&self) -> Option<Duration> {
        // Servers such as nginx ignore the condition.
        Some(SETTLES)
    }

    fn list(&mut self, folder: &str) -> Result<Vec<String>, StoreError> {
        if let Some(bucket) = &self.bucket {
            return self.list_bucket(bucket, folder);
        }
        let url = format!("{}/", self.at(folder));
        let response = self.get(&url, &[("accept", "application/json")])?;
        if response.status == 404 {
            return Ok(Vec::new());
        }
        let entries: Vec<Entry> =
            serde_json::from_slice(&response.body).map_err(|_| StoreError::Invalid {
                name: format!("{folder}/"),
                reason: "it is no list of objects as JSON; with nginx, set `autoindex on` and `autoindex_format json`"
                    .to_owned(),
            })?;
        Ok(entries.into_iter().map(|entry| entry.name).collect())
    }
}

fn borrowed<'h>(headers: &'h [(&'static str, String)]) -> Vec<(&'h str, &'h str)> {
    let headers = headers.iter();
    headers
        .map(|(name, value)| (*name, value.as_str()))
        .collect()
}

/// The status of a reply that is no success, with S3's code.
fn replied(response: &Response) -> String {
    let code = bucket::code(&response.body);
    let code = code.map_or_else(String::new, |code| format!(" ({code})"));
    format!("the server replied with status {}{code}", response.status)
}

/// Whether the ETag of a response stands for its content. Servers such as nginx make it of size and second, so that an
/// object which changed just now may change again without another one.
fn is_settled(response: &Response) -> bool {
    let time = |name: &str| {
        DateTimeParser::new()
            .parse_timestamp(response.header(name)?)
            .ok()
    };
    match (time("date"), time("last-modified")) {
        (Some(now), Some(changed)) => now.duration_since(changed) >= SETTLED,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{BufRead as _, BufReader, Write as _};
    use std::net::TcpListener;
    use std::thread;

    /// Serves one object with these headers, and replies to a condition as if it held.
    fn store(headers: &'static str) -> Http {
        let server = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", server.local_addr().unwrap());
        thread::spawn(move || {
            for stream in server.incoming() {
                let mut stream = stream.unwrap();
                let lines = BufReader::new(stream.try_clone().unwrap()).lines();
                let lines = lines.map(Result::unwrap);
                // The whole request: an unread part would reset the connection.
                let lines: Vec<String> = lines.take_while(|line| !line.is_empty()).collect();
                let is_condition = |line: &String| line.starts_with("if-none-match");
                let is_conditional = lines.iter().any(is_condition);
                let (status, body) = match is_conditional {
                    true => ("304 Not Modified", ""),
                    false => ("200 OK", "text"),
                };
                let length = body.len();
                let reply = format!(
                    "HTTP/1.1 {status}\r\n{headers}connection: close\r\ncontent-length: {length}\r\n\r\n{body}"
                );
                stream.write_all(reply.as_bytes()).unwrap();
            }
        });
        Http::new(&url)
    }

    fn tag(headers: &'static str) -> (Option<String>, Http) {
        let mut store = store(headers);
        match store.read("web/index", None) {
            Ok(Found::Object(object)) => (object.tag, store),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_object_that_has_not_changed_is_not_read_again() {
        let headers = "etag: \"1\"\r\ndate: Mon, 30 Nov 2026 00:00:09 GMT\r\n\
                       last-modified: Mon, 30 Nov 2026 00:00:07 GMT\r\n";
        let (tag, mut store) = tag(headers);
        assert_eq!(tag.as_deref(), Some("\"1\""));
        let again = store.read("web/index", tag.as_deref());
        assert_eq!(again, Ok(Found::Unchanged));
    }

    #[test]
    fn an_object_that_changed_just_now_is_read_again() {
        let headers = "etag: \"1\"\r\ndate: Mon, 30 Nov 2026 00:00:08 GMT\r\n\
                       last-modified: Mon, 30 Nov 2026 00:00:07 GMT\r\n";
        assert_eq!(tag(headers).0, None);
    }
}
