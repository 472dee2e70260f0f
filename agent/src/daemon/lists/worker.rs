//! The thread that waits for intervals, changes of files, and replies.

use std::sync::Weak;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

use super::set::BanLists;
use super::watch::Message;
use host::PROGRAM;

/// A file is written in several steps: it is read after this long without a change.
const QUIET: Duration = Duration::from_millis(200);
/// Files that keep changing are read after this long all the same.
const BUSY: Duration = Duration::from_secs(2);
/// The most time without a look at the lists.
const LONGEST: Duration = Duration::from_secs(3600);

/// Starts the thread, which ends with the lists.
pub(super) fn start(lists: Weak<BanLists>, messages: Receiver<Message>) {
    let run = move || while turn(&lists, &messages).is_some() {};
    if let Err(error) = thread::Builder::new()
        .name("weir-lists".to_owned())
        .spawn(run)
    {
        tracing::error!(
            "starting the thread of ban lists failed: {error}; they are read only by {PROGRAM} reload"
        );
    }
}

/// Waits for one message or the next interval; `None` at the end.
fn turn(lists: &Weak<BanLists>, messages: &Receiver<Message>) -> Option<()> {
    let due = lists.upgrade()?.next_due();
    let wait = due.map_or(LONGEST, |due| {
        due.saturating_duration_since(Instant::now()).min(LONGEST)
    });
    let message = match messages.recv_timeout(wait) {
        Ok(message) => Some(message),
        Err(RecvTimeoutError::Timeout) => None,
        Err(RecvTimeoutError::Disconnected) => return None,
    };
    match message {
        None | Some(Message::Replaced) => lists.upgrade()?.refresh(),
        Some(Message::Fetched(list, content)) => lists.upgrade()?.fetched(&list, content),
        Some(Message::FilesChanged) => {
            let until = Instant::now() + BUSY;
            while Instant::now() < until {
                match messages.recv_timeout(QUIET) {
                    Ok(Message::FilesChanged | Message::Replaced) => {}
                    Ok(Message::Fetched(list, content)) => lists.upgrade()?.fetched(&list, content),
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => return None,
                }
            }
            lists.upgrade()?.files_changed();
        }
    }
    Some(())
}
