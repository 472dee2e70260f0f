//! A bucket of S3 or of a compatible server: how its objects are listed, and what its requests are signed with.

use jiff::Timestamp;

use super::signature::{Credentials, Request};
use super::store::StoreError;

/// The most pages of a list, of a thousand objects each.
pub(super) const MOST_PAGES: usize = 100;

/// A bucket, and the folder in it that has the streams.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bucket {
    /// Its URL.
    pub(super) url: String,
    /// The folder with a slash at its end; empty for the bucket itself.
    folder: String,
}

/// A part of a list.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Page {
    pub(super) names: Vec<String>,
    /// Where the next part begins; `None` for the last one.
    pub(super) next: Option<String>,
}

impl Bucket {
    /// That of `https://ENDPOINT/BUCKET`, or of a folder in it.
    pub(super) fn of(url: &str) -> Self {
        let start = url.find("://").map_or(0, |at| at + 3);
        // The second slash behind the scheme ends the bucket's name.
        let slashes = url[start..].match_indices('/').map(|(at, _)| start + at);
        let (bucket, folder) = match slashes.clone().nth(1) {
            Some(end) => (&url[..end], format!("{}/", &url[end + 1..])),
            None => (url, String::new()),
        };
        Self {
            url: bucket.to_owned(),
            folder,
        }
    }

    /// The URL of a part of the list of a folder. The names of its query are sorted, as they are signed.
    pub(super) fn page_url(&self, folder: &str, next: Option<&str>) -> String {
        let next = next.map_or_else(String::new, |next| {
            format!("continuation-token={}&", escaped(next))
        });
        let prefix = escaped(&self.prefix(folder));
        format!(
            "{}?{next}delimiter=%2F&list-type=2&prefix={prefix}",
            self.url
        )
    }

    /// Reads a part of the list of a folder. Names of objects have no characters that XML escapes.
    pub(super) fn page(&self, folder: &str, body: &[u8]) -> Option<Page> {
        let text = std::str::from_utf8(body).ok()?;
        if !text.contains("<ListBucketResult") {
            return None;
        }
        let prefix = self.prefix(folder);
        let keys = elements(text, "Key");
        let names = keys.filter_map(|key| key.strip_prefix(&prefix));
        Some(Page {
            names: names.map(str::to_owned).collect(),
            next: elements(text, "NextContinuationToken")
                .next()
                .map(str::to_owned),
        })
    }

    fn prefix(&self, folder: &str) -> String {
        format!("{}{folder}/", self.folder)
    }
}

/// The headers that sign a request, with the credentials of the present file.
pub(super) fn signed(
    method: &str,
    url: &str,
    body: &[u8],
) -> Result<Vec<(&'static str, String)>, StoreError> {
    let credentials = Credentials::read().map_err(StoreError::Unavailable)?;
    Ok(credentials.headers(request(method, url, body), Timestamp::now()))
}

fn request<'r>(method: &'r str, url: &'r str, body: &'r [u8]) -> Request<'r> {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
    Request {
        method,
        host,
        path,
        query,
        body,
    }
}

/// The code of an error, such as `AccessDenied`.
pub(super) fn code(body: &[u8]) -> Option<&str> {
    let code = elements(std::str::from_utf8(body).ok()?, "Code").next()?;
    let is_code = code.len() <= 64 && code.bytes().all(|byte| byte.is_ascii_alphanumeric());
    is_code.then_some(code)
}

/// The texts of all elements of a name, which have no attributes.
fn elements<'t>(text: &'t str, name: &str) -> impl Iterator<Item = &'t str> + use<'t> {
    let (start, end) = (format!("<{name}>"), format!("</{name}>"));
    let mut rest = text;
    std::iter::from_fn(move || {
        let (_, behind) = rest.split_once(&start)?;
        let (element, behind) = behind.split_once(&end)?;
        rest = behind;
        Some(element)
    })
}

/// A text in a query (RFC 3986, 2.3).
fn escaped(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                escaped.push(char::from(byte));
            }
            other => escaped.push_str(&format!("%{other:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_has_the_objects_of_a_folder_page_by_page() {
        let bucket = Bucket::of("https://s3.example.net/rules/of/web");
        assert_eq!(bucket.url, "https://s3.example.net/rules");
        let url = bucket.page_url("web/reports", Some("a+/="));
        let query = "continuation-token=a%2B%2F%3D&delimiter=%2F&list-type=2&prefix=of%2Fweb%2Fweb%2Freports%2F";
        assert_eq!(url, format!("https://s3.example.net/rules?{query}"));
        let signed = request("GET", &url, b"");
        assert_eq!(
            (signed.host, signed.path, signed.query),
            ("s3.example.net", "/rules", query)
        );
        let body = "<?xml version=\"1.0\"?><ListBucketResult xmlns=\"x\"><Name>rules</Name>\
                    <Contents><Key>of/web/web/reports/a</Key><Size>1</Size></Contents>\
                    <Contents><Key>of/web/web/reports/b</Key></Contents>\
                    <NextContinuationToken>x</NextContinuationToken></ListBucketResult>";
        let page = bucket.page("web/reports", body.as_bytes()).unwrap();
        assert_eq!(page.names, ["a", "b"]);
        assert_eq!(page.next.as_deref(), Some("x"));
        let last = "<ListBucketResult></ListBucketResult>";
        let last = bucket.page("web/reports", last.as_bytes()).unwrap();
        assert_eq!((last.names.len(), last.next), (0, None));
        assert_eq!(bucket.page("web/reports", b"[]"), None);
        assert_eq!(
            Bucket::of("http://[::1]:9000/rules").page_url("a", None),
            "http://[::1]:9000/rules?delimiter=%2F&list-type=2&prefix=a%2F"
        );
    }

    #[test]
    fn an_error_has_a_code() {
        let body = b"<Error><Code>AccessDenied</Code><Message>no</Message></Error>";
        assert_eq!(code(body), Some("AccessDenied"));
        assert_eq!(code(b"no"), None);
        let long = format!("<Code>{}</Code>", "x".repeat(65));
        for other in [long.as_str(), "<Code>a b</Code>", "<Code>\x1b[2J</Code>"] {
            assert_eq!(code(other.as_bytes()), None, "{other:?}");
        }
    }
}
