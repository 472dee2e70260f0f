//! The thread that waits for the store.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Weak};
use std::thread;

use config::policy::RulesAddress;
use rollout::brief;
use rollout::host::{Input, Request};

use super::handle::{FollowerId, Rollout, Signal};
use crate::rules_store::{StoreError, Stream};

/// A request, and the digest of the release that the host has.
pub(super) type Sent = (Request, Option<String>);

/// Why no request is sent any more.
pub(super) const ENDED: &str = "the thread weir-rules-store has ended; restart the agent";

/// Starts the thread of a follower. It ends with the sender, or with the rollout after a request.
pub(super) fn start(
    rules: &RulesAddress,
    node: &str,
    follower: FollowerId,
    rollout: &Arc<Rollout>,
) -> std::io::Result<Sender<Sent>> {
    let (sender, receiver) = channel();
    let (stream, node) = (Stream::open(rules), node.to_owned());
    let replies = Replies {
        follower,
        rollout: Arc::downgrade(rollout),
    };
    thread::Builder::new()
        .name("weir-rules-store".to_owned())
        .spawn(move || serve(stream, &node, &receiver, &replies))?;
    Ok(sender)
}

/// Where replies go.
struct Replies {
    follower: FollowerId,
    rollout: Weak<Rollout>,
}

/// Reports that the thread has ended by a panic, so that no request waits for it.
struct Ending<'r>(&'r Replies);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let Replies { follower, rollout } = self.0;
        let rollout = rollout.upgrade().filter(|_| thread::panicking());
        if let Some(rollout) = rollout {
            let failed = Input::StoreFailed(ENDED.to_owned());
            rollout.signal(Signal::Store(*follower, Box::new(failed)));
        }
    }
}

fn serve(mut stream: Stream, node: &str, sent: &Receiver<Sent>, replies: &Replies) {
    let _ending = Ending(replies);
    while let Ok((request, known)) = sent.recv() {
        let (input, not_written) = reply(&mut stream, node, request, known.as_deref());
        let Some(rollout) = replies.rollout.upgrade() else {
            return;
        };
        let (follower, input) = (replies.follower, Box::new(input));
        rollout.signal(match not_written {
            None => Signal::Store(follower, input),
            Some(reason) => Signal::NotWritten(follower, input, reason),
        });
    }
}

/// The reply to a request, and why a report was not written where that alone failed.
fn reply(
    stream: &mut Stream,
    node: &str,
    request: Request,
    known: Option<&str>,
) -> (Input, Option<String>) {
    // A store's own text may be long.
    let failed = |error: StoreError| (Input::StoreFailed(brief(&error.to_string())), None);
    match request {
        Request::Read => match stream.read(node, known) {
            Ok(reply) => (Input::Replied(Box::new(reply)), None),
            Err(error) => failed(error),
        },
        Request::Report(report) => match stream.report(&report) {
            Ok(()) => (Input::Reported(report), None),
            // Reading goes on: without its report, the host is no canary that others wait for.
            Err(error) if !matches!(error, StoreError::Unavailable(_)) => {
                (Input::NotWritten(report), Some(brief(&error.to_string())))
            }
            Err(error) => failed(error),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    use api::rules::RulesStatus;

    #[test]
    fn a_thread_that_panics_is_a_failed_request() {
        let rollout = Arc::new(Rollout::default());
        rollout.publish(vec![RulesStatus::default()], Vec::new());
        let replies = Replies {
            follower: 7,
            rollout: Arc::downgrade(&rollout),
        };
        let thread = thread::spawn(move || {
            let _ending = Ending(&replies);
            panic!("for the test");
        });
        assert!(thread.join().is_err());
        let Ok(Some(Signal::Store(7, input))) = rollout.next(Instant::now()) else {
            panic!("no signal");
        };
        assert!(matches!(*input, Input::StoreFailed(reason) if reason == ENDED));
    }
}
