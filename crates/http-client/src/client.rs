//! The client.

use std::fmt;
use std::io::Read as _;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use ureq::http::{HeaderMap, Uri};
use ureq::tls::{Certificate, RootCerts, TlsConfig};
use ureq::typestate::WithBody;
use ureq::{Agent, RequestBuilder};

use crate::error::HttpError;

/// The longest time that a server can request before the next attempt.
pub const LONGEST_RETRY: Duration = Duration::from_secs(24 * 3600);

/// The bounds of each request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The most time of a request, from the resolution of the name to the last byte of the body.
    pub timeout: Duration,
    /// The most bytes of a response's body.
    pub body: u64,
    /// The most redirects that are followed. With 0, a redirect is a response.
    pub redirects: u32,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            timeout: Duration::from_secs(10),
            body: 1 << 20,
            redirects: 0,
        }
    }
}

/// Makes requests. Cloning shares the connections that are kept alive.
#[derive(Clone)]
pub struct Client {
    agent: Agent,
    bounds: Bounds,
}

impl fmt::Debug for Client {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter
            .debug_struct("Client")
            .field("bounds", &self.bounds)
            .finish_non_exhaustive()
    }
}

/// A response, whatever its status.
#[derive(Clone, Debug)]
pub struct Response {
    /// The status code.
    pub status: u16,
    /// The whole body.
    pub body: Vec<u8>,
    headers: HeaderMap,
}

impl Response {
    /// The first value of a header, if it is text.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }

    /// The time that the server requests before the next attempt: `Retry-After` of RFC 9110, 10.2.3, in seconds or as a date,
    /// of a reply with status 429 or 503. At most [`LONGEST_RETRY`].
    #[must_use]
    pub fn retry_after(&self) -> Option<Duration> {
        if !matches!(self.status, 429 | 503) {
            return None;
        }
        let text = self.header("retry-after")?.trim();
        let until = |date: SystemTime| date.duration_since(SystemTime::now()).unwrap_or_default();
        let is_number = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        let after = if is_number {
            // A number that is too large is longer than the longest.
            text.parse().map_or(LONGEST_RETRY, Duration::from_secs)
        } else {
            until(httpdate::parse_http_date(text).ok()?)
        };
        Some(after.min(LONGEST_RETRY))
    }

    /// Whether the status is 200 to 299.
    #[must_use]
    pub const fn is_success(&self) -> bool {
        matches!(self.status, 200..=299)
    }
}

impl Client {
    /// A client with the host's certificates. It connects to nothing yet.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        // Without certificates, requests over https fail and report it.
        let certificates = rustls_native_certs::load_native_certs().certs;
        let certificates: Vec<_> = certificates
            .iter()
            .map(|one| Certificate::from_der(one).to_owned())
            .collect();
        let tls = TlsConfig::builder()
            .root_certs(RootCerts::Specific(Arc::new(certificates)))
            .unversioned_rustls_crypto_provider(Arc::new(rustls::crypto::ring::default_provider()))
            .build();
        let config = Agent::config_builder()
            .timeout_global(Some(bounds.timeout))
            .max_redirects(bounds.redirects)
            .max_redirects_will_error(bounds.redirects > 0)
            .http_status_as_error(false)
            .user_agent(concat!("weir/", env!("CARGO_PKG_VERSION")))
            .tls_config(tls);
        Self {
            agent: config.build().into(),
            bounds,
        }
    }

    /// GET.
    ///
    /// # Errors
    ///
    /// When no complete response arrives within the bounds.
    pub fn get(&self, url: &str, headers: &[(&str, &str)]) -> Result<Response, HttpError> {
        let mut request = self
            .agent
            .get(url)
            .config()
            .https_only(is_encrypted(url))
            .build();
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.finish(request.call())
    }

    /// POST. A redirect that asks for the body again is an error.
    ///
    /// # Errors
    ///
    /// As [`Client::get`].
    pub fn post(
        &self,
        url: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Response, HttpError> {
        self.send(self.agent.post(url), url, headers, body)
    }

    /// PUT.
    ///
    /// # Errors
    ///
    /// As [`Client::get`].
    pub fn put(
        &self,
        url: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Response, HttpError> {
        self.send(self.agent.put(url), url, headers, body)
    }

    fn send(
        &self,
        request: RequestBuilder<WithBody>,
        url: &str,
        headers: &[(&str, &str)],
        body: &[u8],
    ) -> Result<Response, HttpError> {
        let request = request.config().https_only(is_encrypted(url)).build();
        let request = (headers.iter()).fold(request, |request, (name, value)| {
            request.header(*name, *value)
        });
        self.finish(request.send(body))
    }

    fn finish(
        &self,
        response: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
    ) -> Result<Response, HttpError> {
        let Bounds {
            timeout,
            body: most,
            redirects,
        } = self.bounds;
        let response = response.map_err(|error| HttpError::of(error, timeout, redirects))?;
        let (parts, content) = response.into_parts();
        let expected = content.content_length();
        if expected.is_some_and(|length| length > most) {
            return Err(HttpError::TooLarge(most));
        }
        let mut body = Vec::new();
        let mut reader = content
            .into_with_config()
            .limit(u64::MAX)
            .reader()
            .take(most.saturating_add(1));
        reader
            .read_to_end(&mut body)
            .map_err(|error| HttpError::of_io(error, timeout, redirects))?;
        if body.len() as u64 > most {
            return Err(HttpError::TooLarge(most));
        }
        if parts.status.as_u16() != 304
            && expected.is_some_and(|length| length != body.len() as u64)
        {
            return Err(HttpError::CutShort);
        }
        Ok(Response {
            status: parts.status.as_u16(),
            body,
            headers: parts.headers,
        })
    }
}

/// Whether a request must not leave TLS, not even by a redirect.
fn is_encrypted(url: &str) -> bool {
    url.parse::<Uri>()
        .is_ok_and(|uri| uri.scheme_str() == Some("https"))
}
