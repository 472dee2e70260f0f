//! The memory of requests while they are received: over gRPC, a client may send a thousand at a time on each connection.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use hyper::Request;
use hyper::body::{Bytes, Frame};
use thiserror::Error;
use tokio::time::{Sleep, sleep};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::NamedService;

use super::connection::ConnectionState;

/// The most bytes of all messages together: 25,000 of the usual length, or ten of the longest. A message that consists of
/// empty fields takes some thirty times as much when it is read.
const MOST: usize = 64 << 20;
/// The bytes of a stream and its request besides their headers and message.
const STREAM: usize = 2 * 1024;
/// How long a request for which there is no room may take to arrive: a small one has been sent with its headers.
const GRACE: Duration = Duration::from_millis(100);
/// The bytes of a header besides its name and value, as HTTP/2 counts them (RFC 9113, 6.5.2).
const HEADER: usize = 32;

/// The [`MOST`] bytes that are shared by all that is being received, or that waits.
#[derive(Clone, Debug, Default)]
pub struct Receiving(Arc<AtomicUsize>);

impl Receiving {
    /// Nothing of them yet.
    pub fn part(&self) -> Part {
        Part {
            bytes: 0,
            receiving: self.clone(),
        }
    }
}

/// The bytes of one message.
#[derive(Debug)]
pub struct Part {
    bytes: usize,
    receiving: Receiving,
}

impl Part {
    /// Adds bytes.
    ///
    /// # Errors
    ///
    /// When there is no room for them; they count nevertheless.
    pub fn add(&mut self, bytes: usize) -> Result<(), NoRoom> {
        self.bytes += bytes;
        if self.receiving.0.fetch_add(bytes, Ordering::Relaxed) + bytes <= MOST {
            Ok(())
        } else {
            Err(NoRoom)
        }
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.receiving.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// More is being received than there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
#[error("more than {} MiB of requests at a time: repeat the request", MOST >> 20)]
pub struct NoRoom;

/// A service whose messages and their headers share [`MOST`] bytes: what is beyond and arrives in parts is refused.
#[derive(Clone)]
pub struct Bounded<S> {
    service: S,
    receiving: Receiving,
}

impl<S> Bounded<S> {
    /// Services with the same `receiving` share its bytes.
    pub const fn new(service: S, receiving: Receiving) -> Self {
        Self { service, receiving }
    }
}

impl<S: NamedService> NamedService for Bounded<S> {
    const NAME: &'static str = S::NAME;
}

impl<S: Service<Request<Body>>> Service<Request<Body>> for Bounded<S> {
    type Response = S::Response;
    type Error = S::Error;
    type Future = S::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.service.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> S::Future {
        // A connection that is in use is not the first to make room for another.
        if let Some(connection) = request.extensions().get::<ConnectionState>() {
            connection.activity.reply();
        }
        let mut part = self.receiving.part();
        let has_room = part.add(STREAM + head(&request)).is_ok();
        let ends = (!has_room).then(|| Box::pin(sleep(GRACE)));
        self.service
            .call(request.map(|body| Body::new(Message { body, part, ends })))
    }
}

/// The bytes of a request's URI and headers, which are kept until its message is complete.
fn head<B>(request: &Request<B>) -> usize {
    let uri = request.uri();
    let uri = uri.path().len() + uri.query().map_or(0, str::len) + uri.host().map_or(0, str::len);
    let headers = request.headers().iter();
    headers.fold(uri, |sum, (name, value)| {
        sum + name.as_str().len() + value.len() + HEADER
    })
}

/// A message that is being received.
struct Message {
    body: Body,
    part: Part,
    /// The end of [`GRACE`], if there is no room for the request's headers.
    ends: Option<Pin<Box<Sleep>>>,
}

impl hyper::body::Body for Message {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let Poll::Ready(polled) = Pin::new(&mut self.body).poll_frame(context) else {
            let ends = self.ends.as_mut();
            let is_over = ends.is_some_and(|ends| ends.as_mut().poll(context).is_ready());
            return if is_over {
                Poll::Ready(Some(Err(refusal())))
            } else {
                Poll::Pending
            };
        };
        let bytes = match &polled {
            Some(Ok(frame)) => frame.data_ref().map_or(0, Bytes::len),
            _ => 0,
        };
        let has_room = self.part.add(bytes).is_ok() && self.ends.is_none();
        // Complete messages are decided at once: unfinished ones of one client refuse no other client's.
        Poll::Ready(if has_room || self.body.is_end_stream() {
            polled
        } else {
            Some(Err(refusal()))
        })
    }
}

fn refusal() -> Status {
    Status::resource_exhausted(NoRoom.to_string())
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::{Ready, ready};

    use http_body_util::{BodyExt as _, Full, StreamBody};
    use tokio_stream::StreamExt as _;

    use super::*;

    /// Hands back the request with its bounded message.
    #[derive(Clone)]
    struct Unread;

    impl Service<Request<Body>> for Unread {
        type Response = Request<Body>;
        type Error = Infallible;
        type Future = Ready<Result<Request<Body>, Infallible>>;

        fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
            Poll::Ready(Ok(()))
        }

        fn call(&mut self, request: Request<Body>) -> Self::Future {
            ready(Ok(request))
        }
    }

    /// A request with headers of this length, and a message of which these bytes have arrived.
    async fn call(service: &mut Bounded<Unread>, headers: usize, arrived: Arrived) -> Body {
        let body = match arrived {
            Arrived::Whole(length) => Body::new(Full::new(Bytes::from(vec![0; length]))),
            Arrived::Part(length) => {
                let data = (length > 0).then(|| Frame::data(Bytes::from(vec![0; length])));
                let frames = tokio_stream::iter(data.map(Ok::<_, Infallible>));
                Body::new(StreamBody::new(frames.chain(tokio_stream::pending())))
            }
        };
        let request = Request::post("/")
            .header("x-long", vec![b'a'; headers])
            .body(body)
            .unwrap();
        service.call(request).await.unwrap().into_body()
    }

    enum Arrived {
        Whole(usize),
        Part(usize),
    }

    async fn is_refused(mut message: Body) -> bool {
        match message.frame().await.unwrap() {
            Ok(_) => false,
            Err(error) => {
                assert_eq!(error.code(), tonic::Code::ResourceExhausted);
                true
            }
        }
    }

    #[tokio::test]
    async fn messages_at_a_time_are_bounded() {
        const LONG: usize = 6 << 20;
        let mut service = Bounded::new(Unread, Receiving::default());
        let mut held = Vec::new();
        for _ in 0..MOST / LONG {
            let mut one = call(&mut service, 0, Arrived::Part(LONG)).await;
            assert!(one.frame().await.unwrap().is_ok());
            held.push(one);
        }
        let beyond = call(&mut service, 0, Arrived::Part(LONG)).await;
        assert!(is_refused(beyond).await);
        // One that was refused holds nothing, and one that has been decided makes room.
        let short = call(&mut service, 0, Arrived::Part(1 << 20)).await;
        assert!(!is_refused(short).await);
        held.pop();
        let long = call(&mut service, 0, Arrived::Part(LONG)).await;
        assert!(!is_refused(long).await);
        drop(held);
        assert_eq!(service.receiving.0.load(Ordering::Relaxed), 0);
    }

    #[tokio::test]
    async fn services_share_the_bytes() {
        let receiving = Receiving::default();
        let mut checks = Bounded::new(Unread, receiving.clone());
        let mut limits = Bounded::new(Unread, receiving);
        let mut held = call(&mut checks, 0, Arrived::Part(MOST - 2 * STREAM)).await;
        assert!(held.frame().await.unwrap().is_ok());
        let beyond = call(&mut limits, 0, Arrived::Part(2 * STREAM)).await;
        assert!(is_refused(beyond).await);
    }

    /// A client that opens streams and sends no message.
    #[tokio::test]
    async fn headers_count_before_their_message_arrives() {
        const HEADERS: usize = 7 << 10;
        let mut service = Bounded::new(Unread, Receiving::default());
        let mut held = Vec::new();
        for _ in 0..MOST / (HEADERS + STREAM) {
            held.push(call(&mut service, HEADERS, Arrived::Part(0)).await);
        }
        let received = service.receiving.0.load(Ordering::Relaxed);
        assert!(received >= held.len() * (HEADERS + STREAM), "{received}");
        for unfinished in [0, 1] {
            let beyond = call(&mut service, HEADERS, Arrived::Part(unfinished)).await;
            assert!(is_refused(beyond).await);
        }
        // Others' requests arrive at once.
        let whole = call(&mut service, HEADERS, Arrived::Whole(1_000)).await;
        assert!(!is_refused(whole).await);
        held.clear();
        let one = call(&mut service, HEADERS, Arrived::Part(1)).await;
        assert!(!is_refused(one).await);
    }
}
