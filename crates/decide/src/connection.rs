//! Connections of applications, with bounds on the time to the first bytes, and on the time that a reply stays unread.

use std::io;
use std::pin::Pin;
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
}

impl<S> Connection<S> {
    pub const fn new(stream: Client<S>) -> Self {
        Self {
            stream,
            opening: None,
            unread: None,
        }
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
    type ConnectInfo = Activity;

    fn connect_info(&self) -> Activity {
        self.stream.activity()
    }
}
