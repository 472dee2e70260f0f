//! Requests to the local API.

use std::time::Duration;

use http_client::{Bounds, Client, HttpError, Response};
use thiserror::Error;

use crate::text::plain;

/// The most bytes of a decision in the stream, on average: they have some 170.
const BYTES_PER_DECISION: u64 = 1_024;
/// The bytes that a reply may have besides.
const OTHER_BYTES: u64 = 1 << 20;

/// The local API is unavailable, or refused a request.
#[derive(Debug, Error)]
pub enum LapiError {
    /// No complete reply.
    #[error(transparent)]
    Http(#[from] HttpError),
    #[error("it refuses the API key (status {0}): run cscli bouncers add weir, then set api_key")]
    Key(u16),
    #[error(
        "it refuses machine_id and password (status {0}): run cscli machines add --password PASSWORD MACHINE_ID"
    )]
    Machine(u16),
    #[error("status {status}: {said}")]
    Status {
        status: u16,
        /// The start of the body.
        said: String,
    },
    #[error("its reply to the login has no token")]
    Token,
}

/// The decisions that a request asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pull {
    /// All decisions in effect.
    Full,
    /// The changes since the last request.
    Changes,
}

/// A bouncer's requests.
#[derive(Clone, Debug)]
pub struct Bouncer {
    client: Client,
    url: String,
    key: String,
}

impl Bouncer {
    /// For the API at `url`, whose replies take at most `timeout` and have at most so many decisions.
    #[must_use]
    pub fn new(url: &str, key: String, timeout: Duration, decisions: u64) -> Self {
        let body = decisions
            .saturating_mul(BYTES_PER_DECISION)
            .saturating_add(OTHER_BYTES);
        // A redirect would send the key to another server.
        let client = Client::new(Bounds {
            timeout,
            body,
            redirects: 0,
        });
        Self {
            client,
            url: url.trim_end_matches('/').to_owned(),
            key,
        }
    }

    /// The body of a page of decisions.
    ///
    /// # Errors
    ///
    /// When there is no complete reply with status 200.
    pub fn pull(&self, pull: Pull) -> Result<Vec<u8>, LapiError> {
        let startup = pull == Pull::Full;
        let url = format!("{}/v1/decisions/stream?startup={startup}", self.url);
        let response = self.client.get(
            &url,
            &[("X-Api-Key", &self.key), ("Accept", "application/json")],
        )?;
        match response.status {
            200 => Ok(response.body),
            status @ (401 | 403) => Err(LapiError::Key(status)),
            _ => Err(unexpected(&response)),
        }
    }
}

/// An unexpected reply.
pub(crate) fn unexpected(response: &Response) -> LapiError {
    let said = plain(&String::from_utf8_lossy(
        &response.body[..response.body.len().min(1_000)],
    ));
    LapiError::Status {
        status: response.status,
        said: if said.is_empty() {
            "no text".to_owned()
        } else {
            said
        },
    }
}
