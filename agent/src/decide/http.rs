//! JSON over HTTP/1.1: `POST /v1/decide`, and `GET /v1/health` for who asks whether anybody answers.
//!
//! hyper and no framework above it: there are two routes. Requests are bounded in size; their heads, their bodies and the
//! pauses between them in time; connections in number.

use std::convert::Infallible;
use std::pin::Pin;

use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body, Bytes};
use hyper::header::{ALLOW, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

use super::connection::{PATIENCE, accept};
use super::headers;
use super::question::{Answer, DecideError, Question};
use super::service::Desk;
use crate::descriptors::places;

/// The longest body of a request, in bytes.
const LONGEST_BODY: usize = 256 * 1024;
/// The most questions of one request.
const MOST_QUESTIONS: usize = 1_000;

const RATELIMIT: HeaderName = HeaderName::from_static("ratelimit");
const RATELIMIT_POLICY: HeaderName = HeaderName::from_static("ratelimit-policy");

/// Where to take connections from.
pub enum Listener {
    /// A port.
    Tcp(TcpListener),
    /// A socket in the file system.
    Unix(UnixListener),
}

/// That somebody answers.
#[derive(Serialize)]
struct Health {
    status: &'static str,
}

/// Why a request is not answered.
#[derive(Serialize)]
struct Refusal {
    error: String,
}

/// Answers until it is dropped.
pub async fn serve(listener: Listener, desk: Desk) {
    let places = places().http;
    let spawn = |connection: Pin<Box<dyn Future<Output = ()> + Send>>| drop(tokio::spawn(connection));
    match listener {
        Listener::Tcp(listener) => {
            accept(listener, places, |stream| spawn(Box::pin(connection(stream, desk.clone())))).await;
        }
        Listener::Unix(listener) => {
            accept(listener, places, |stream| spawn(Box::pin(connection(stream, desk.clone())))).await;
        }
    }
}

async fn connection(stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static, desk: Desk) {
    let service = service_fn(move |request| {
        let desk = desk.clone();
        async move { Ok::<_, Infallible>(respond(request, &desk).await) }
    });
    // A client that breaks off or dawdles is its own loss.
    let _ = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(PATIENCE)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

/// Answers one request.
async fn respond<B>(request: Request<B>, desk: &Desk) -> Response<Full<Bytes>>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    match request.uri().path() {
        "/v1/decide" => {}
        "/v1/health" => return json(StatusCode::OK, &Health { status: "ok" }),
        _ => return refuse(StatusCode::NOT_FOUND, "there are /v1/decide and /v1/health"),
    }
    if request.method() != Method::POST {
        let mut response = refuse(StatusCode::METHOD_NOT_ALLOWED, "ask by POST");
        response.headers_mut().insert(ALLOW, HeaderValue::from_static("POST"));
        return response;
    }
    let body = Limited::new(request.into_body(), LONGEST_BODY).collect();
    let body = match tokio::time::timeout(PATIENCE, body).await {
        Ok(Ok(body)) => body.to_bytes(),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            return refuse(StatusCode::PAYLOAD_TOO_LARGE, &format!("the body is longer than {LONGEST_BODY} bytes"));
        }
        Ok(Err(error)) => return refuse(StatusCode::BAD_REQUEST, &format!("the body broke off: {error}")),
        Err(_) => return refuse(StatusCode::REQUEST_TIMEOUT, "the body did not come in time"),
    };
    decide(&body, desk).await
}

/// Answers one body: a question, or an array of them.
async fn decide(body: &[u8], desk: &Desk) -> Response<Full<Bytes>> {
    let is_batch = body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
    if !is_batch {
        let question: Question = match serde_json::from_slice(body) {
            Ok(question) => question,
            Err(error) => return refuse(StatusCode::BAD_REQUEST, &format!("this is no question: {error}")),
        };
        let answer = match desk.ask(&question) {
            Ok(decision) => decision.answer().await,
            Err(error) => Err(error),
        };
        return match answer {
            Ok(answer) => one(&answer),
            Err(error) => refuse(status_of(&error), &error.to_string()),
        };
    }
    let questions: Vec<Question> = match serde_json::from_slice(body) {
        Ok(questions) => questions,
        Err(error) => return refuse(StatusCode::BAD_REQUEST, &format!("these are no questions: {error}")),
    };
    if questions.len() > MOST_QUESTIONS {
        let reason = format!("{} questions at once; the most is {MOST_QUESTIONS}", questions.len());
        return refuse(StatusCode::BAD_REQUEST, &reason);
    }
    // Each is decided for itself, and says so itself: one status for all of them would mislead.
    match each(&questions, desk).await {
        Ok(answers) => json(StatusCode::OK, &answers),
        Err((nth, error)) => refuse(status_of(&error), &format!("question {} of the array: {error}", nth + 1)),
    }
}

/// Answers many questions, once the last of them is answered.
async fn each(questions: &[Question], desk: &Desk) -> Result<Vec<Answer>, (usize, DecideError)> {
    let mut answers = Vec::with_capacity(questions.len());
    for (nth, decision) in desk.ask_each(questions)?.into_iter().enumerate() {
        answers.push(decision.answer().await.map_err(|error| (nth, error))?);
    }
    Ok(answers)
}

fn one(answer: &Answer) -> Response<Full<Bytes>> {
    let policy = answer.policy.as_deref();
    let mut response = json(status(answer.allowed), answer);
    header(&mut response, RATELIMIT_POLICY, policy.map(str::to_owned));
    header(&mut response, RATELIMIT, policy.map(|_| headers::limit(answer)));
    header(&mut response, RETRY_AFTER, headers::retry_after(answer));
    response
}

const fn status_of(error: &DecideError) -> StatusCode {
    match error {
        DecideError::Ending => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::BAD_REQUEST,
    }
}

const fn status(allowed: bool) -> StatusCode {
    if allowed { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS }
}

fn refuse(status: StatusCode, reason: &str) -> Response<Full<Bytes>> {
    json(status, &Refusal { error: reason.to_owned() })
}

fn json(status: StatusCode, document: &impl Serialize) -> Response<Full<Bytes>> {
    // These documents are strings and numbers: there is nothing in them that could not be written.
    let body = serde_json::to_vec(document).unwrap_or_default();
    let mut response = Response::new(Full::new(Bytes::from(body)));
    *response.status_mut() = status;
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

fn header(response: &mut Response<Full<Bytes>>, name: HeaderName, value: Option<String>) {
    if let Some(value) = value.and_then(|value| HeaderValue::try_from(value).ok()) {
        response.headers_mut().insert(name, value);
    }
}
