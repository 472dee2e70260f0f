//! Connections of applications, with bounds on the time to the first bytes, on the time that a reply stays unread, and on
//! their age.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use host::clients::{Activity, Client};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Sleep, sleep};
use tonic::transport::server::Connected;

/// The timeout of each step of a client.
pub const PATIENCE: Duration = Duration::from_secs(10);

/// A connection with these bounds.
pub struct Connection<S> {
    stream: Client<S>,
    /// The deadline for the opening bytes, and how many are missing.
    opening: Option<(Pin<Box<Sleep>>, usize)>,
    /// The deadline for the client to read.
    unread: Option<Pin<Box<Sleep>>>,
    /// The end of a connection without quota streams.
    ends: Option<Pin<Box<Sleep>>>,
    quota_streams: QuotaStreams,
}

/// The number of open quota streams of a connection.
#[derive(Clone, Debug, Default)]
pub struct QuotaStreams(Arc<AtomicUsize>);

/// An open quota stream, which ends when this is dropped.
#[derive(Debug)]
pub struct OpenStream(QuotaStreams);

impl QuotaStreams {
    /// Opens one more, unless there are `most`.
    pub fn open(&self, most: usize) -> Option<OpenStream> {
        let stream = OpenStream(self.clone());
        (self.0.fetch_add(1, Ordering::SeqCst) < most).then_some(stream)
    }
}

impl Drop for OpenStream {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The state of a connection, for its requests.
#[derive(Clone, Debug)]
pub struct ConnectionState {
    pub activity: Activity,
    pub quota_streams: QuotaStreams,
}

impl<S> Connection<S> {
    pub fn new(stream: Client<S>) -> Self {
        Self {
            stream,
            opening: None,
            unread: None,
            ends: None,
            quota_streams: QuotaStreams::default(),
        }
    }

    /// Ends after a time, unless it has quota streams.
    pub fn ends_after(mut self, time: Duration) -> Self {
        self.ends = Some(Box::pin(sleep(time)));
        self
    }

    /// Aborts unless the client sends its first `bytes` in time.
    pub fn opened_by(mut self, bytes: usize) -> Self {
        self.opening = Some((Box::pin(sleep(PATIENCE)), bytes));
        self
    }

    /// Aborts a write that the client has blocked for too long.
    fn bounded<T>(
        &mut self,
        context: &mut Context<'_>,
        written: Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.unread = None;
            return written;
        }
        let deadline = self.unread.get_or_insert_with(|| Box::pin(sleep(PATIENCE)));
        deadline
            .as_mut()
            .poll(context)
            .map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Connection<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = into.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(context, into);
        if let Some((deadline, missing)) = &mut self.opening {
            *missing = missing.saturating_sub(into.filled().len() - before);
            if *missing == 0 {
                self.opening = None;
            } else if deadline.as_mut().poll(context).is_ready() {
                return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
            }
        }
        // It is polled again for the client's replies to pings.
        if let Some(ends) = &mut self.ends
            && ends.as_mut().poll(context).is_ready()
            && self.quota_streams.0.load(Ordering::SeqCst) == 0
        {
            return Poll::Ready(Err(io::ErrorKind::TimedOut.into()));
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Connection<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.bounded(context, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(context, parts);
        self.bounded(context, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(context);
        self.bounded(context, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shut = Pin::new(&mut self.stream).poll_shutdown(context);
        self.bounded(context, shut)
    }
}

impl<S> Connected for Connection<S> {
    type ConnectInfo = ConnectionState;

    fn connect_info(&self) -> ConnectionState {
        ConnectionState {
            activity: self.stream.activity(),
            quota_streams: self.quota_streams.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use host::clients::Places;
    use tokio::io::AsyncReadExt as _;
    use tokio::time::timeout;

    use super::*;

    #[tokio::test]
    async fn a_connection_ends_unless_it_has_a_quota_stream() {
        const AGE: Duration = Duration::from_millis(20);
        let (_client, server) = tokio::io::duplex(64);
        let activity = Places::new(1).take_unless_busy().await.unwrap();
        let mut connection = Connection::new(Client::new(server, activity)).ends_after(AGE);
        let open = connection.quota_streams.open(1).unwrap();
        assert!(connection.quota_streams.open(1).is_none());
        let mut byte = [0];
        let waits = timeout(3 * AGE, connection.read(&mut byte)).await;
        assert!(waits.is_err(), "{waits:?}");
        drop(open);
        let ends = connection.read(&mut byte).await.unwrap_err();
        assert_eq!(ends.kind(), io::ErrorKind::TimedOut);
    }
}
