//! Clients of an HTTP server: each unit is a connection with one request.

use std::collections::{HashMap, VecDeque};
use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddrV4, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::io::Errno;
use testbed::overload::{Pace, Sources, Unit};
use testbed::tcp::begin;

/// A reply counts for its source if it comes within this time.
pub const IN_TIME: Duration = Duration::from_millis(250);
/// Clients close after this time, before the kernel sends a SYN again.
const PATIENCE: Duration = Duration::from_millis(900);
/// How long the thread waits for events.
const TURN: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 1_000_000,
};
/// More than are open at once: 0.9 s of ten times what nginx serves.
const MOST_OPEN: u64 = 32_768;
const REQUEST: &[u8] =
    b"GET /page HTTP/1.1\r\nhost: weir\r\naccept-encoding: gzip\r\nconnection: close\r\n\r\n";
const OK: &[u8] = b"HTTP/1.1 200";

/// A connection and what it is of.
struct Connection {
    descriptor: OwnedFd,
    unit: Unit,
    since: Instant,
    is_requested: bool,
    /// Whether the reply's status is 200, once it has begun.
    is_ok: Option<bool>,
}

/// Replies so far.
#[derive(Default)]
pub struct Replies(AtomicU64);

impl Replies {
    pub fn now(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// The next step of a connection after an event.
enum Next {
    Wait,
    Close { is_served: bool },
}

/// Connects as sources become due, until they are stopped. Call it inside the client's namespace.
pub fn run(sources: &Sources, to: SocketAddrV4, replies: &Replies) {
    allow_open(MOST_OPEN);
    let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
    let mut pace = Pace::new(sources);
    let (mut open, mut number) = (HashMap::new(), 0);
    let mut ends: VecDeque<(Instant, u64)> = VecDeque::new();
    let mut events = Vec::with_capacity(1_024);
    while !sources.is_stopped() {
        for unit in pace.due(sources.now()) {
            let from = sources.groups[unit.group].address(unit.source);
            // Without a free port or descriptor, this unit is lost.
            let Ok(descriptor) = begin(from, to) else {
                continue;
            };
            number += 1;
            let flags = epoll::EventFlags::IN
                | epoll::EventFlags::OUT
                | epoll::EventFlags::RDHUP
                | epoll::EventFlags::ET;
            let data = epoll::EventData::new_u64(number);
            epoll::add(&epoll, &descriptor, data, flags).unwrap();
            ends.push_back((Instant::now() + PATIENCE, number));
            let connection = Connection {
                descriptor,
                unit,
                since: Instant::now(),
                is_requested: false,
                is_ok: None,
            };
            open.insert(number, connection);
        }
        while let Some((end, late)) = ends.front().copied()
            && end <= Instant::now()
        {
            ends.pop_front();
            open.remove(&late);
        }
        sources.gaps.mark();
        match epoll::wait(&epoll, spare_capacity(&mut events), Some(&TURN)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => panic!("waiting for replies: {error}"),
        }
        for event in events.drain(..) {
            let number = event.data.u64();
            let next = open.get_mut(&number).map(Connection::go_on);
            if let Some(Next::Close { is_served }) = next
                && let Some(connection) = open.remove(&number)
                && is_served
            {
                replies.0.fetch_add(1, Ordering::Relaxed);
                if connection.since.elapsed() <= IN_TIME {
                    sources.serve(connection.unit);
                }
            }
        }
    }
}

impl Connection {
    /// Sends the request once it is open, and reads the reply.
    fn go_on(&mut self) -> Next {
        const FAILED: Next = Next::Close { is_served: false };
        if !self.is_requested {
            match rustix::io::write(&self.descriptor, REQUEST) {
                Ok(_) => self.is_requested = true,
                Err(Errno::AGAIN | Errno::NOTCONN) => return Next::Wait,
                Err(_) => return FAILED,
            }
        }
        let mut buffer = [0; 16_384];
        loop {
            match rustix::io::read(&self.descriptor, &mut buffer) {
                Ok(0) => {
                    let is_served = self.is_ok == Some(true);
                    return Next::Close { is_served };
                }
                Ok(length) => {
                    let begins = buffer[..length].starts_with(OK);
                    self.is_ok.get_or_insert(begins);
                }
                Err(Errno::AGAIN) => return Next::Wait,
                Err(Errno::INTR) => {}
                Err(_) => return FAILED,
            }
        }
    }
}

/// Requests the page, and waits for the reply.
pub fn get(from: SocketAddrV4) -> io::Result<()> {
    let mut stream = TcpStream::connect(from)?;
    stream.write_all(REQUEST)?;
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply)?;
    if !reply.starts_with(OK) {
        return Err(io::Error::other("the reply's status is not 200"));
    }
    Ok(())
}

/// Raises the limit on open files.
fn allow_open(files: u64) {
    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    if soft < files {
        setrlimit(Resource::RLIMIT_NOFILE, files, hard.max(files)).unwrap();
    }
}
