use std::io;
use std::time::Duration;

use thiserror::Error;

/// A request failed.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum HttpError {
    /// The URL or a header is invalid.
    #[error("invalid request: {0}")]
    Invalid(String),
    /// The name does not resolve.
    #[error("host not found")]
    HostNotFound,
    /// The whole request took longer than allowed.
    #[error("no complete response within {}", seconds(.0))]
    TimedOut(Duration),
    /// Too many redirects, or one that cannot be followed.
    #[error("more than {0} redirects")]
    Redirects(u32),
    /// A redirect from https to another scheme.
    #[error("the server redirects from https to an unencrypted URL")]
    Unencrypted,
    /// The body is larger than allowed.
    #[error("the body is larger than {0} bytes")]
    TooLarge(u64),
    /// The connection ended before the body was complete.
    #[error("the connection was closed before the response was complete")]
    CutShort,
    /// The response is not HTTP.
    #[error("invalid response: {0}")]
    Protocol(String),
    /// The certificate or the handshake is invalid.
    #[error("TLS: {0}")]
    Tls(String),
    /// The connection failed.
    #[error("{0}")]
    Io(io::Error),
}

fn seconds(time: &Duration) -> String {
    format!("{} s", time.as_secs_f64())
}

impl HttpError {
    pub(crate) fn of(error: ureq::Error, timeout: Duration, redirects: u32) -> Self {
        match error {
            ureq::Error::Timeout(_) => Self::TimedOut(timeout),
            ureq::Error::HostNotFound => Self::HostNotFound,
            ureq::Error::TooManyRedirects | ureq::Error::RedirectFailed => {
                Self::Redirects(redirects)
            }
            ureq::Error::RequireHttpsOnly(_) => Self::Unencrypted,
            ureq::Error::BadUri(_) => Self::Invalid("the URL has no scheme or host".to_owned()),
            ureq::Error::Http(error) => Self::Invalid(error.to_string()),
            ureq::Error::Rustls(error) => Self::Tls(error.to_string()),
            ureq::Error::Tls(error) => Self::Tls(error.to_owned()),
            ureq::Error::Io(error) => Self::of_io(error, timeout, redirects),
            ureq::Error::BodyStalled => Self::CutShort,
            other => Self::Protocol(other.to_string()),
        }
    }

    /// An error of a read, which may contain one of the library.
    pub(crate) fn of_io(error: io::Error, timeout: Duration, redirects: u32) -> Self {
        match error.kind() {
            io::ErrorKind::UnexpectedEof
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::BrokenPipe => Self::CutShort,
            io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => Self::TimedOut(timeout),
            _ => match error.downcast::<ureq::Error>() {
                Ok(inner) => Self::of(inner, timeout, redirects),
                Err(error) => match error.downcast::<rustls::Error>() {
                    Ok(inner) => Self::Tls(inner.to_string()),
                    Err(error) => Self::Io(error),
                },
            },
        }
    }
}
