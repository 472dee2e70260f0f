//! Ends a command that follows the agent: its terminal or reader is closed, a signal arrives, or the agent exits.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::thread;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;

/// The reason why a follower ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Standard input or output: the terminal hung up, or the pipe's other end is closed.
    Closed,
    Signal,
    /// The agent exited.
    Agent,
}

/// The descriptors that are watched besides standard input and output.
#[derive(Debug, Default)]
pub struct Watched {
    /// Readable when a signal has arrived.
    pub signals: Option<UnixStream>,
    /// The agent's process: see [`crate::server::control::Client::process`].
    pub agent: Option<OwnedFd>,
}

/// A socket that is readable when a signal to end has arrived.
///
/// # Errors
///
/// When the process has too many open files.
pub fn signals() -> io::Result<UnixStream> {
    let (arrived, signals) = UnixStream::pair()?;
    for signal in [
        signal_hook::consts::SIGTERM,
        signal_hook::consts::SIGINT,
        signal_hook::consts::SIGHUP,
    ] {
        signal_hook::low_level::pipe::register(signal, arrived.try_clone()?)?;
    }
    Ok(signals)
}

/// Waits on a separate thread, and then calls `end` there: the follower itself may be blocked in a read or a write.
///
/// # Errors
///
/// When the system has no threads.
pub fn watch(watched: Watched, end: impl FnOnce(End) + Send + 'static) -> io::Result<()> {
    thread::Builder::new()
        .name("weir-end".to_owned())
        .spawn(move || end(wait(&watched)))?;
    Ok(())
}

fn wait(watched: &Watched) -> End {
    let (stdin, stdout) = (io::stdin(), io::stdout());
    // Without requested events, poll(2) only reports hang-ups and errors: unread input, and files such as /dev/null, do
    // not wake it.
    let mut polled = vec![
        PollFd::new(&stdin, PollFlags::empty()),
        PollFd::new(&stdout, PollFlags::empty()),
    ];
    let mut reasons = vec![End::Closed; 2];
    if let Some(signals) = &watched.signals {
        polled.push(PollFd::new(signals, PollFlags::IN));
        reasons.push(End::Signal);
    }
    if let Some(agent) = &watched.agent {
        polled.push(PollFd::new(agent, PollFlags::IN));
        reasons.push(End::Agent);
    }
    loop {
        match poll(&mut polled, None) {
            Ok(_) => {}
            Err(Errno::INTR | Errno::AGAIN | Errno::NOMEM) => continue,
            Err(_) => return End::Closed,
        }
        let ready = polled
            .iter()
            .zip(&reasons)
            .find(|(polled, _)| !polled.revents().is_empty());
        if let Some((_, reason)) = ready {
            return *reason;
        }
    }
}
