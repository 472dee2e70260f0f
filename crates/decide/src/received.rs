//! The memory of requests while they are received: over gRPC, a client may send a thousand at a time on each connection.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use host::clients::Activity;
use hyper::Request;
use hyper::body::{Bytes, Frame};
use thiserror::Error;
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::NamedService;

/// The most bytes of all messages together: 25,000 of the usual length, or ten of the longest. A message that consists of
/// empty fields takes some thirty times as much when it is read.
const MOST: usize = 64 << 20;
/// The bytes of a stream and its request besides their headers and message.
const STREAM: usize = 2 * 1024;
/// The bytes of a header besides its name and value, as HTTP/2 counts them (RFC 9113, 6.5.2).
const HEADER: usize = 32;

/// The [`MOST`] bytes that are shared by all that is being received.
#[derive(Clone, Debug, Default)]
pub struct Receiving(Arc<AtomicUsize>);

impl Receiving {
    /// Nothing of them yet.
    pub const fn part(self) -> Part {
        Part {
            bytes: 0,
            receiving: self,
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

/// A service whose messages and their headers share [`MOST`] bytes: what is beyond is refused.
#[derive(Clone)]
pub struct Bounded<S> {
    service: S,
    receiving: Receiving,
}

impl<S> Bounded<S> {
    pub fn new(service: S) -> Self {
        Self {
            service,
            receiving: Receiving::default(),
        }
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
        if let Some(activity) = request.extensions().get::<Activity>() {
            activity.reply();
        }
        let mut part = self.receiving.clone().part();
        let refused = part.add(STREAM + head(&request)).err();
        self.service.call(request.map(|body| {
            Body::new(Message {
                body,
                part,
                refused,
            })
        }))
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
    /// There is no room for the request's headers.
    refused: Option<NoRoom>,
}

impl hyper::body::Body for Message {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let refuse = |no_room: NoRoom| Status::resource_exhausted(no_room.to_string());
        if let Some(no_room) = self.refused {
            return Poll::Ready(Some(Err(refuse(no_room))));
        }
        let polled = ready!(Pin::new(&mut self.body).poll_frame(context));
        let bytes = match &polled {
            Some(Ok(frame)) => frame.data_ref().map_or(0, Bytes::len),
            _ => 0,
        };
        Poll::Ready(match self.part.add(bytes) {
            Ok(()) => polled,
            Err(no_room) => Some(Err(refuse(no_room))),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::future::{Ready, ready};

    use http_body_util::{BodyExt as _, Full};

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

    /// A request with headers and a message of these lengths.
    async fn call(service: &mut Bounded<Unread>, headers: usize, message: usize) -> Body {
        let request = Request::post("/")
            .header("x-long", vec![b'a'; headers])
            .body(Body::new(Full::new(Bytes::from(vec![0; message]))))
            .unwrap();
        service.call(request).await.unwrap().into_body()
    }

    #[tokio::test]
    async fn messages_at_a_time_are_bounded() {
        const LONG: usize = 6 << 20;
        let mut service = Bounded::new(Unread);
        let mut held = Vec::new();
        for _ in 0..MOST / LONG {
            let mut one = call(&mut service, 0, LONG).await;
            assert!(one.frame().await.unwrap().is_ok());
            held.push(one);
        }
        let mut refused = call(&mut service, 0, LONG).await;
        let error = refused.frame().await.unwrap().unwrap_err();
        assert_eq!(error.code(), tonic::Code::ResourceExhausted);
        drop(refused);
        // One that was refused holds nothing, and one that has been decided makes room.
        let mut short = call(&mut service, 0, 1 << 20).await;
        assert!(short.frame().await.unwrap().is_ok());
        held.pop();
        let mut long = call(&mut service, 0, LONG).await;
        assert!(long.frame().await.unwrap().is_ok());
        drop((held, short, long));
        assert_eq!(service.receiving.0.load(Ordering::Relaxed), 0);
    }

    /// A client that opens streams and sends no message.
    #[tokio::test]
    async fn headers_count_before_their_message_arrives() {
        const HEADERS: usize = 7 << 10;
        let mut service = Bounded::new(Unread);
        let mut held = Vec::new();
        for _ in 0..MOST / (HEADERS + STREAM) {
            held.push(call(&mut service, HEADERS, 1).await);
        }
        let received = service.receiving.0.load(Ordering::Relaxed);
        assert!(received >= held.len() * (HEADERS + STREAM), "{received}");
        let mut refused = call(&mut service, HEADERS, 1).await;
        let error = refused.frame().await.unwrap().unwrap_err();
        assert_eq!(error.code(), tonic::Code::ResourceExhausted);
        held.clear();
        drop(refused);
        let mut one = call(&mut service, HEADERS, 1).await;
        assert!(one.frame().await.unwrap().is_ok());
    }
}
