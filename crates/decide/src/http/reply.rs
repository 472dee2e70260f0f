//! Replies over HTTP, and who may ask for them.

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{Response, StatusCode};
use serde::Serialize;

use crate::answer::Decided;
use crate::headers;

/// The bytes of most replies: room for them is allocated at once.
const USUAL_REPLY: usize = 256;

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// An HTTP error.
#[derive(Serialize)]
struct Refusal {
    error: String,
}

/// A reply that says only that all is well.
#[derive(Serialize)]
struct Done {
    status: &'static str,
}

/// The clients of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// All that reach the port, web pages in browsers among them.
    Browsers,
    /// Programs that may open the socket's file. No page can; a proxy may pass on what a browser sent.
    Files,
}

pub(super) const fn status(allowed: bool) -> StatusCode {
    if allowed {
        StatusCode::OK
    } else {
        StatusCode::TOO_MANY_REQUESTS
    }
}

pub(super) fn with_headers(
    mut response: Response<Full<Bytes>>,
    Decided { answer, policy }: &Decided,
) -> Response<Full<Bytes>> {
    if let Some(policy) = policy {
        response
            .headers_mut()
            .insert(RATELIMIT_POLICY, policy.clone());
        header(&mut response, RATELIMIT, Some(headers::limit(answer)));
    }
    header(&mut response, RETRY_AFTER, headers::retry_after(answer));
    response
}

pub(super) fn refuse_method(allowed: &'static str) -> Response<Full<Bytes>> {
    let reason = format!("method not allowed: use {allowed}");
    let mut response = refuse(StatusCode::METHOD_NOT_ALLOWED, &reason);
    let allowed = HeaderValue::from_static(allowed);
    response.headers_mut().insert(ALLOW, allowed);
    response
}

pub(super) fn refuse(status: StatusCode, reason: &str) -> Response<Full<Bytes>> {
    json(
        status,
        &Refusal {
            error: reason.to_owned(),
        },
    )
}

pub(super) fn done() -> Response<Full<Bytes>> {
    json(StatusCode::OK, &Done { status: "ok" })
}

pub(super) fn json(status: StatusCode, document: &impl Serialize) -> Response<Full<Bytes>> {
    let mut body = Vec::with_capacity(USUAL_REPLY);
    // These documents are strings and numbers, which always serialise.
    let _ = serde_json::to_writer(&mut body, document);
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response
        .headers_mut()
        .insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn header(response: &mut Response<Full<Bytes>>, name: HeaderName, value: Option<String>) {
    if let Some(value) = value.and_then(|value| HeaderValue::try_from(value).ok()) {
        response.headers_mut().insert(name, value);
    }
}
