//! HTTP/1.1: `POST /v1/decide` in JSON, `GET /v1/check` for proxies, `POST /v1/load` for services, and `GET /v1/health` for
//! health checks.
//!
//! hyper without a framework: there are four routes. Requests are bounded in size; heads, bodies and pauses in time;
//! connections in number.

use std::convert::Infallible;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use api::decide::Question;
use config::human;
use config::policy::RequestProtocol;
use fair::Loads;
use host::clients::{Activity, Client, accept};
use host::descriptors::places;
use http_body_util::{BodyExt, Full, LengthLimitError, Limited};
use hyper::body::{Body, Bytes};
use hyper::header::{HeaderMap, ORIGIN};
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};

use self::reply::{Reach, done, json, refuse, refuse_method, status, with_headers};
use super::answer::Decided;
use super::connection::{Connection, PATIENCE};
use super::engine_handle::EngineHandle;
use super::error::{DecideError, quoted};
use super::received::{NoRoom, Receiving};

/// The longest body of a request, in bytes.
const LONGEST_BODY: usize = 256 * 1024;
/// The bytes of a connection's buffer, and thereby of a head: proxies pass on long cookies.
const BUFFER: usize = 64 * 1024;
/// The longest array of requests.
const MOST_QUESTIONS: usize = 1_000;

/// A listening socket.
pub enum Listener {
    Tcp(TcpListener),
    /// A Unix socket.
    Unix(UnixListener),
}

/// Serves until it is dropped.
pub async fn serve(listener: Listener, handle: EngineHandle, loads: Arc<Loads>) {
    serve_clients(listener, handle, loads, places().http).await;
}

/// The same for up to `most` clients at a time.
async fn serve_clients(listener: Listener, handle: EngineHandle, loads: Arc<Loads>, most: usize) {
    let of = |reach| Endpoint {
        handle,
        loads,
        reach,
        user: None,
        receiving: Receiving::default(),
    };
    match listener {
        Listener::Tcp(listener) => {
            let endpoint = of(Reach::Browsers);
            accept(listener, most, |client| spawn(client, endpoint.clone())).await;
        }
        Listener::Unix(listener) => {
            let endpoint = of(Reach::Files);
            accept(listener, most, |client| {
                let user = client.user();
                let endpoint = endpoint.clone();
                spawn(client, Endpoint { user, ..endpoint });
            })
            .await;
        }
    }
}

/// The state that the connections of a listener share.
#[derive(Clone)]
struct Endpoint {
    handle: EngineHandle,
    loads: Arc<Loads>,
    reach: Reach,
    /// The client's user, on a Unix socket.
    user: Option<u32>,
    /// The bodies that are being received.
    receiving: Receiving,
}

/// Serves one connection that is no listener's, as if by a Unix socket.
pub async fn converse<S>(client: Client<S>, handle: EngineHandle)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let endpoint = Endpoint {
        handle,
        loads: Arc::default(),
        reach: Reach::Files,
        user: None,
        receiving: Receiving::default(),
    };
    connection(client, endpoint).await;
}

fn spawn<S>(client: Client<S>, endpoint: Endpoint)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    // Boxed, since a task moves its future.
    tokio::spawn(Box::pin(connection(client, endpoint)));
}

async fn connection<S>(client: Client<S>, endpoint: Endpoint)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let activity = client.activity();
    let service = service_fn(move |request| {
        let (endpoint, activity) = (endpoint.clone(), activity.clone());
        async move {
            let reply = respond(request, &endpoint, &activity).await;
            activity.reply();
            Ok::<_, Infallible>(reply)
        }
    });
    // Errors of one client concern no other.
    let _ = hyper::server::conn::http1::Builder::new()
        .timer(TokioTimer::new())
        // Replies are small: one buffer costs less than a list of two.
        .writev(false)
        .max_buf_size(BUFFER)
        .header_read_timeout(PATIENCE)
        .serve_connection(TokioIo::new(Connection::new(client)), service)
        .await;
}

/// Replies to one request.
async fn respond<B>(
    request: Request<B>,
    endpoint: &Endpoint,
    activity: &Activity,
) -> Response<Full<Bytes>>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let Endpoint {
        handle,
        reach,
        receiving,
        ..
    } = endpoint;
    let reach = *reach;
    let is_load = match request.uri().path() {
        "/v1/decide" => false,
        "/v1/load" => true,
        "/v1/check" => {
            activity.begin();
            return check::respond(&request, handle, reach);
        }
        "/v1/health" => return done(),
        _ => {
            return refuse(
                StatusCode::NOT_FOUND,
                "unknown path: use /v1/decide, /v1/check, /v1/load or /v1/health",
            );
        }
    };
    if request.method() != Method::POST {
        return refuse_method("POST");
    }
    if reach == Reach::Browsers
        && let Some(refusal) = refusal_of_page(request.headers())
    {
        return refusal;
    }
    let mut body = pin!(whole(request.into_body(), receiving));
    // Most bodies arrive with their heads, and need no timer.
    let arrived = poll_fn(|context| Poll::Ready(body.as_mut().poll(context))).await;
    let body = match arrived {
        Poll::Ready(body) => body,
        // Boxed, since every request would move it.
        Poll::Pending => match Box::pin(tokio::time::timeout(PATIENCE, body)).await {
            Ok(body) => body,
            Err(_) => {
                return refuse(
                    StatusCode::REQUEST_TIMEOUT,
                    &format!("the body did not arrive within {}", human::time(PATIENCE)),
                );
            }
        },
    };
    match body {
        Ok(body) => {
            // Until here, the client may have to make room.
            activity.begin();
            if is_load {
                load::respond(&body, endpoint.user, &endpoint.loads)
            } else {
                decide(body, handle).await
            }
        }
        Err(error) if error.is::<LengthLimitError>() => refuse(
            StatusCode::PAYLOAD_TOO_LARGE,
            &format!("the body exceeds {LONGEST_BODY} bytes: send fewer requests at once"),
        ),
        Err(error) if error.is::<NoRoom>() => {
            refuse(StatusCode::SERVICE_UNAVAILABLE, &error.to_string())
        }
        Err(error) => refuse(
            StatusCode::BAD_REQUEST,
            &format!("reading the body failed: {error}"),
        ),
    }
}

/// The refusal of what a web page makes a browser send; `None` of anything else. A page of any origin may send a POST to this host without asking; also one
/// whose name resolves to this host's address (DNS rebinding), for which the browser would ask nobody. Browsers name the
/// page's origin in every POST ([Fetch, 3.2](https://fetch.spec.whatwg.org/#origin-header)). The type of the content says nothing: Node's
/// `fetch` sends text without one that is named.
fn refusal_of_page(headers: &HeaderMap) -> Option<Response<Full<Bytes>>> {
    let origin = headers.get(ORIGIN)?;
    let reason = format!(
        "a web page ({}) may not ask: only applications may, which send no header Origin; a proxy in between removes it",
        quoted(origin.to_str().unwrap_or("unreadable"))
    );
    Some(refuse(StatusCode::FORBIDDEN, &reason))
}

/// A body of bounded length. One that arrives in one piece is not copied, and does not count as being received.
async fn whole<B>(
    body: B,
    receiving: &Receiving,
) -> Result<Bytes, Box<dyn std::error::Error + Send + Sync>>
where
    B: Body<Data = Bytes>,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let mut body = pin!(Limited::new(body, LONGEST_BODY));
    let (mut read, mut part) = (Vec::new(), receiving.part());
    while !body.is_end_stream() {
        let Some(frame) = body.frame().await.transpose()? else {
            break;
        };
        // Trailers say nothing here.
        let Ok(data) = frame.into_data() else {
            continue;
        };
        if body.is_end_stream() && read.is_empty() {
            return Ok(data);
        }
        part.add(data.len())?;
        read.extend_from_slice(&data);
    }
    Ok(read.into())
}

/// The reply to one body: a request, or an array of them. Neither is kept while requests wait.
async fn decide(body: Bytes, handle: &EngineHandle) -> Response<Full<Bytes>> {
    let bans_nobody = !handle.engine().bans_from(RequestProtocol::Http);
    let is_batch = body.iter().find(|byte| !byte.is_ascii_whitespace()) == Some(&b'[');
    if !is_batch {
        let question: Question = match serde_json::from_slice(&body) {
            Ok(question) => Question {
                bans_nobody,
                ..question
            },
            Err(error) => {
                return refuse(
                    StatusCode::BAD_REQUEST,
                    &format!("invalid request: {error}"),
                );
            }
        };
        drop(body);
        let decision = handle.ask(&question);
        drop(question);
        let answer = match decision {
            Ok(decision) => decision.answer().await,
            Err(error) => Err(error),
        };
        return match answer {
            Ok(decided) => one(&decided),
            Err(error) => refuse(status_of(&error), &error.to_string()),
        };
    }
    let mut questions: Vec<Question> = match serde_json::from_slice(&body) {
        Ok(questions) => questions,
        Err(error) => {
            return refuse(
                StatusCode::BAD_REQUEST,
                &format!("invalid array of requests: {error}"),
            );
        }
    };
    if questions.len() > MOST_QUESTIONS {
        let reason = format!(
            "{} requests in one array: send at most {MOST_QUESTIONS}",
            questions.len()
        );
        return refuse(StatusCode::BAD_REQUEST, &reason);
    }
    drop(body);
    for question in &mut questions {
        question.bans_nobody = bans_nobody;
    }
    // Each element has its own verdict: one status for all would mislead.
    match each(questions, handle).await {
        Ok(decided) => json(
            StatusCode::OK,
            &decided.iter().map(|one| &one.answer).collect::<Vec<_>>(),
        ),
        Err((nth, error)) => refuse(
            status_of(&error),
            &format!("request {} of the array: {error}", nth + 1),
        ),
    }
}

/// The reply to an array, once its last request is decided.
async fn each(
    questions: Vec<Question>,
    handle: &EngineHandle,
) -> Result<Vec<Decided>, (usize, DecideError)> {
    let mut answers = Vec::with_capacity(questions.len());
    let decisions = handle.ask_each(&questions)?;
    drop(questions);
    for (nth, decision) in decisions.into_iter().enumerate() {
        answers.push(decision.answer().await.map_err(|error| (nth, error))?);
    }
    Ok(answers)
}

fn one(decided: &Decided) -> Response<Full<Bytes>> {
    let answer = &decided.answer;
    with_headers(json(status(answer.allowed), answer), decided)
}

const fn status_of(error: &DecideError) -> StatusCode {
    match error {
        DecideError::Ending
        | DecideError::ReservationsFull { .. }
        | DecideError::ReservationsOfKeyFull { .. }
        | DecideError::Randomness(_) => StatusCode::SERVICE_UNAVAILABLE,
        DecideError::UnknownReservation(_) => StatusCode::NOT_FOUND,
        _ => StatusCode::BAD_REQUEST,
    }
}

mod check;
mod load;
mod reply;
#[cfg(test)]
mod tests;
