//! HTTP requests over plain TCP or TLS, bounded in time, size and redirects.
//!
//! A [`Client`] blocks its thread. Certificates are checked against those of the host, or of the file in
//! `SSL_CERT_FILE`. A server can neither make a request take longer than [`Bounds::timeout`], nor take more memory than
//! [`Bounds::body`], nor redirect from https to http. Compression is not requested.

mod client;
mod error;
mod url;

pub use client::{Bounds, Client, LONGEST_RETRY, Response};
pub use error::HttpError;
pub use url::{check, shown};

#[cfg(test)]
mod tests;
