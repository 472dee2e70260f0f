//! One follower of the events: lines, until it goes.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::Response;
use crate::events::Subscription;

/// So many bytes are written in one call, if that many are there.
const PART: usize = 16 * 1024;

/// Writes events as they come. Nobody but this follower waits for it: what it does not take in time is lost to it, and
/// counted.
///
/// # Errors
///
/// When the follower is gone.
pub(super) async fn serve(
    mut read: impl AsyncRead + Unpin,
    mut write: impl AsyncWrite + Unpin,
    mut events: Subscription,
) -> io::Result<()> {
    loop {
        let event = tokio::select! {
            // A follower has nothing more to say: what can be read is its end.
            _ = read.read_u8() => return Ok(()),
            event = events.next() => event,
        };
        let Some(event) = event else { return Ok(()) };
        let mut lines = Vec::new();
        let mut next = Some(event);
        while let Some(event) = next {
            serde_json::to_writer(&mut lines, &Response::Ok(serde_json::to_value(&*event)?))?;
            lines.push(b'\n');
            next = if lines.len() < PART { events.try_next() } else { None };
        }
        write.write_all(&lines).await?;
    }
}
