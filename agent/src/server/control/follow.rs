//! A client that follows events, verdicts or a capture.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use api::Event;
use api::trace::TraceLine;
use serde::Serialize;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::timeout;

use super::Response;
use crate::daemon::capture::CaptureParts;
use crate::daemon::events::Subscription;
use crate::daemon::trace::Verdicts;

/// The most bytes of one write.
const PART: usize = 16 * 1024;

/// The source of the lines.
pub(super) trait Feed {
    type Line: Serialize + Send + Sync;

    /// How long a client may read nothing; `None` without a bound.
    const PATIENCE: Option<Duration>;

    /// Waits for the next line; `None` once there will be no more.
    fn next(&mut self) -> impl Future<Output = Option<Arc<Self::Line>>> + Send;

    /// The next line, if it is there.
    fn try_next(&mut self) -> Option<Arc<Self::Line>>;
}

impl Feed for Subscription {
    type Line = Event;

    /// Followers that block have separate places.
    const PATIENCE: Option<Duration> = None;

    fn next(&mut self) -> impl Future<Output = Option<Arc<Event>>> + Send {
        Self::next(self)
    }

    fn try_next(&mut self) -> Option<Arc<Event>> {
        Self::try_next(self)
    }
}

impl Feed for Verdicts {
    type Line = TraceLine;

    /// A trace costs the kernel time for every packet of its source.
    const PATIENCE: Option<Duration> = Some(Duration::from_secs(60));

    fn next(&mut self) -> impl Future<Output = Option<Arc<TraceLine>>> + Send {
        Self::next(self)
    }

    fn try_next(&mut self) -> Option<Arc<TraceLine>> {
        Self::try_next(self)
    }
}

/// Writes lines as they come. Only this follower is affected if it reads too slowly: it loses lines, which are counted.
///
/// # Errors
///
/// When the follower has disconnected.
pub(super) async fn serve<F: Feed>(
    mut read: impl AsyncRead + Unpin,
    mut write: impl AsyncWrite + Unpin,
    mut feed: F,
) -> io::Result<()> {
    loop {
        let line = tokio::select! {
            // Followers send nothing more: readable means disconnected.
            _ = read.read_u8() => return Ok(()),
            line = feed.next() => line,
        };
        let Some(line) = line else { return Ok(()) };
        let mut lines = Vec::new();
        let mut next = Some(line);
        while let Some(line) = next {
            serde_json::to_writer(&mut lines, &Response::Ok(serde_json::to_value(&*line)?))?;
            lines.push(b'\n');
            next = if lines.len() < PART {
                feed.try_next()
            } else {
                None
            };
        }
        match F::PATIENCE {
            Some(patience) => timeout(patience, write.write_all(&lines)).await??,
            None => write.write_all(&lines).await?,
        }
    }
}

/// How long the client of a capture may read nothing.
const PATIENCE_WITH_CAPTURES: Duration = Duration::from_secs(60);

/// Writes the parts of a capture as they come. A client that writes something, or will write nothing more, ends it.
///
/// # Errors
///
/// When the client has disconnected, or reads nothing for too long.
pub(super) async fn capture(
    mut read: impl AsyncRead + Unpin,
    mut write: impl AsyncWrite + Unpin,
    mut parts: CaptureParts,
) -> io::Result<()> {
    let mut is_ended = false;
    loop {
        let part = tokio::select! {
            _ = read.read_u8(), if !is_ended => {
                is_ended = true;
                parts.end();
                continue;
            }
            part = parts.next() => part,
        };
        let Some(part) = part else { return Ok(()) };
        let mut line = serde_json::to_vec(&Response::Ok(serde_json::to_value(&*part)?))?;
        line.push(b'\n');
        timeout(PATIENCE_WITH_CAPTURES, write.write_all(&line)).await??;
    }
}
