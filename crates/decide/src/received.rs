//! The memory of gRPC messages while they are received: a client may send a thousand at a time on each connection.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};

use host::clients::Activity;
use hyper::Request;
use hyper::body::{Bytes, Frame};
use tonic::Status;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::server::NamedService;

/// The most bytes of all messages together: a hundred thousand of the usual length, or ten of the longest. A message that
/// consists of empty fields takes some thirty times as much when it is read.
const MOST: usize = 64 << 20;

/// A service whose messages share [`MOST`] bytes: what is beyond is refused.
#[derive(Clone)]
pub struct Bounded<S> {
    service: S,
    received: Arc<AtomicUsize>,
}

impl<S> Bounded<S> {
    pub fn new(service: S) -> Self {
        Self {
            service,
            received: Arc::default(),
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
        let received = Arc::clone(&self.received);
        self.service
            .call(request.map(|body| Body::new(Message::new(body, received))))
    }
}

/// A message that is being received.
struct Message {
    body: Body,
    length: usize,
    /// The bytes of all messages.
    received: Arc<AtomicUsize>,
}

impl Message {
    const fn new(body: Body, received: Arc<AtomicUsize>) -> Self {
        Self {
            body,
            length: 0,
            received,
        }
    }

    /// Whether there is room for so many more bytes.
    fn take(&mut self, bytes: usize) -> bool {
        self.length += bytes;
        self.received.fetch_add(bytes, Ordering::Relaxed) + bytes <= MOST
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        self.received.fetch_sub(self.length, Ordering::Relaxed);
    }
}

impl hyper::body::Body for Message {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        let polled = ready!(Pin::new(&mut self.body).poll_frame(context));
        let bytes = match &polled {
            Some(Ok(frame)) => frame.data_ref().map_or(0, Bytes::len),
            _ => 0,
        };
        Poll::Ready(if self.take(bytes) {
            polled
        } else {
            Some(Err(Status::resource_exhausted(format!(
                "more than {} MiB of messages at a time",
                MOST >> 20
            ))))
        })
    }
}

#[cfg(test)]
mod tests {
    use http_body_util::{BodyExt as _, Full};

    use super::*;

    #[tokio::test]
    async fn messages_at_a_time_are_bounded() {
        const LONG: usize = 6 << 20;
        let received = Arc::new(AtomicUsize::new(0));
        let message = |length| {
            let body = Body::new(Full::new(Bytes::from(vec![0; length])));
            Message::new(body, Arc::clone(&received))
        };
        let mut held = Vec::new();
        for _ in 0..MOST / LONG {
            let mut one = message(LONG);
            assert!(one.frame().await.unwrap().is_ok());
            held.push(one);
        }
        let refused = message(LONG).frame().await.unwrap().unwrap_err();
        assert_eq!(refused.code(), tonic::Code::ResourceExhausted);
        // One that was refused holds nothing, and one that has been decided makes room.
        assert!(message(1 << 20).frame().await.unwrap().is_ok());
        held.pop();
        assert!(message(LONG).frame().await.unwrap().is_ok());
        held.clear();
        assert_eq!(received.load(Ordering::Relaxed), 0);
    }
}
