//! One run: a row before a server with a limiter.

use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::thread;
use std::time::Duration;

use nix::sys::socket::{setsockopt, sockopt::RcvBufForce};
use serde_json::Value;
use testbed::network::{Network, SERVER};
use testbed::overload::{self, BIN, Sources, Watch};
use testbed::wire::Sender;

use crate::limiter::{InEffect, Limiter, UDP_PORT};
use crate::nginx::{Busy, Nginx};
use crate::rows::{self, Change, Course, Kind, Row, Server};

/// Datagrams that the UDP server reads in a second, and for which its buffer has room.
const CAPACITY: f64 = 10_000.0;
const ROOM: usize = 256;
/// Seconds after which nobody waits for the limit to be off any more.
const OFF_AT_MOST: f64 = 10.0;
/// Seconds for which refused units are counted once it is off.
const AFTERWARDS: f64 = 1.0;

/// The state of everything at the end of a bin.
#[derive(Clone, Debug)]
pub struct Sample {
    pub bin: usize,
    /// Units that were served so far, and that could have been.
    pub served: f64,
    pub possible: f64,
    /// Of the last status: the level and what passes a second.
    pub level: Option<f64>,
    pub passed: Option<f64>,
}

/// The record of a run.
pub struct Log {
    pub course: Course,
    pub sources: Sources,
    pub samples: Vec<Sample>,
    /// Units a second that the server can take.
    pub capacity: f64,
    /// Units that were refused until the end, and after the limit was off.
    pub refused: Option<u64>,
    pub refused_after: Option<u64>,
    /// Seconds from the end until it was off.
    pub off: Option<f64>,
    /// Served units of each of many sources from when on shares are compared until the end.
    pub shares: Vec<u64>,
    /// For how long threads of sources and of the server stalled, and the agent's waited for a CPU.
    pub delays: (Duration, Duration),
}

/// Runs a row.
pub fn run(row: &Row, server: Server, limiter: Limiter, is_quick: bool) -> Log {
    let course = row.course(server, is_quick);
    let network = Network::new();
    let _busy: Vec<Busy> = match row.kind {
        Kind::Heavy { busy, .. } => (0..busy).map(|_| Busy::anywhere()).collect(),
        _ => Vec::new(),
    };
    match server {
        Server::Udp => before_udp(&network, row, course, limiter),
        Server::Nginx => before_nginx(&network, row, course, limiter),
    }
}

fn before_udp(network: &Network, row: &Row, course: Course, limiter: Limiter) -> Log {
    let bind = || UdpSocket::bind((Ipv4Addr::from(SERVER), UDP_PORT)).unwrap();
    let socket = network.in_server(bind);
    let in_effect = limiter.start(network, Server::Udp, row.best() * CAPACITY);
    make_room(network, &socket);
    wait_for_signals(limiter, &in_effect);
    let server = overload::Server::new(socket, CAPACITY);
    let sources = Sources::new(rows::groups(Server::Udp));
    let threads = [&server.gaps, &sources.gaps];
    let measured = Measured {
        network,
        row,
        course: &course,
        limiter,
        in_effect: &in_effect,
        sources: &sources,
        capacity: CAPACITY,
        watch: watch(&in_effect, &threads),
        served: &|| {
            let (served, possible) = server.now();
            (served as f64, Some(possible as f64))
        },
        set_part: &|part| server.set_capacity(CAPACITY * part),
    };
    let seen = overload::beside(network, &server, &sources, || measured.follow());
    seen.log(course, sources, CAPACITY)
}

fn before_nginx(network: &Network, row: &Row, course: Course, limiter: Limiter) -> Log {
    let groups = rows::groups(Server::Nginx);
    let addresses: Vec<_> = groups.iter().flat_map(|group| group.addresses()).collect();
    network.add_client_addresses(&addresses);
    let nginx = Nginx::start(network);
    let capacity = nginx.capacity;
    let in_effect = limiter.start(network, Server::Nginx, row.best() * capacity);
    wait_for_signals(limiter, &in_effect);
    let sources = Sources::new(groups);
    let threads = [&sources.gaps];
    let before = nginx.replies.now();
    let measured = Measured {
        network,
        row,
        course: &course,
        limiter,
        in_effect: &in_effect,
        sources: &sources,
        capacity,
        watch: watch(&in_effect, &threads),
        served: &|| ((nginx.replies.now() - before) as f64, None),
        set_part: &|part| nginx.set_part(part),
    };
    let port = in_effect.port();
    let seen = nginx.beside(network, &sources, port, || measured.follow());
    seen.log(course, sources, capacity)
}

fn watch<'t>(in_effect: &InEffect<'_>, threads: &[&'t testbed::stalls::Gaps]) -> Watch<'t> {
    match in_effect.agent() {
        Some(agent) => Watch::begin(agent, threads),
        None => Watch::without_agent(threads),
    }
}

/// Has the buffer hold so many of the datagrams that come: how much memory one takes depends on the way that it came.
fn make_room(network: &Network, socket: &UdpSocket) {
    /// Fewer than are an overload while nobody serves them.
    const PROBES: usize = 4;
    /// Of `SO_MEMINFO`: the bytes of datagrams that wait.
    const ALLOCATED: usize = 0;
    setsockopt(&socket.as_fd(), RcvBufForce, &(8 << 20)).unwrap();
    let probe = overload::Group::new(1, PROBES);
    let frames: Vec<_> = (0..PROBES)
        .map(|nth| overload::frame(probe.address(nth), UDP_PORT))
        .collect();
    network.in_client(|| Sender::new().send_all(&frames));
    thread::sleep(Duration::from_millis(100));
    let mut info = [0_u32; 9];
    let mut length = size_of_val(&info) as libc::socklen_t;
    // SAFETY: the kernel writes at most `length` bytes.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_MEMINFO,
            info.as_mut_ptr().cast(),
            &raw mut length,
        )
    };
    assert_eq!(result, 0, "SO_MEMINFO: {}", std::io::Error::last_os_error());
    socket.set_nonblocking(true).unwrap();
    let mut arrived = 0;
    while socket.recv_from(&mut [0; 64]).is_ok() {
        arrived += 1;
    }
    assert!(arrived > 0, "no datagram arrived");
    let each = info[ALLOCATED] as usize / arrived;
    // The kernel doubles it.
    setsockopt(&socket.as_fd(), RcvBufForce, &(each * ROOM / 2)).unwrap();
}

fn wait_for_signals(limiter: Limiter, in_effect: &InEffect<'_>) {
    if let (Limiter::Fair, Some(agent)) = (limiter, in_effect.agent()) {
        agent.wait_for("the signal", |status| {
            status["fair"][0]["signals"][0]["kind"].is_string()
        });
    }
}

/// The parts of a run.
struct Measured<'m> {
    network: &'m Network,
    row: &'m Row,
    course: &'m Course,
    limiter: Limiter,
    in_effect: &'m InEffect<'m>,
    sources: &'m Sources,
    capacity: f64,
    watch: Watch<'m>,
    /// Units that were served so far, and that could have been if the server knows.
    served: &'m dyn Fn() -> (f64, Option<f64>),
    set_part: &'m dyn Fn(f64),
}

/// A [`Log`] without what it is of.
#[derive(Default)]
struct Seen {
    samples: Vec<Sample>,
    refused: Option<u64>,
    refused_after: Option<u64>,
    off: Option<f64>,
    shares: Vec<u64>,
    delays: (Duration, Duration),
}

impl Seen {
    fn log(self, course: Course, sources: Sources, capacity: f64) -> Log {
        Log {
            course,
            sources,
            samples: self.samples,
            capacity,
            refused: self.refused,
            refused_after: self.refused_after,
            off: self.off,
            shares: self.shares,
            delays: self.delays,
        }
    }
}

impl Measured<'_> {
    /// Changes what sources send and what the server takes, and looks at everything in each bin.
    fn follow(&self) -> Seen {
        let (mut seen, mut part) = (Seen::default(), 1.0);
        let mut changes = self.course.changes.iter().peekable();
        let mut shares_before = None;
        while self.seconds() < self.course.end {
            while let Some((_, change)) = changes.next_if(|(at, _)| *at <= self.seconds()) {
                match *change {
                    Change::Load(who, times) => {
                        self.sources.groups[who as usize].set_rate(times * self.capacity);
                    }
                    Change::Capacity(of_all) => {
                        (self.set_part)(of_all);
                        part = of_all;
                    }
                }
            }
            if shares_before.is_none() && self.seconds() >= self.course.shares_from {
                shares_before = Some(self.many());
            }
            self.look(&mut seen, part);
        }
        let after = self.many().into_iter();
        let pairs = after.zip(shares_before.unwrap_or_default());
        seen.shares = pairs.map(|(after, before)| after - before).collect();
        // The rest of a course is the end of its sources.
        for (_, change) in changes {
            if let Change::Load(who, times) = *change {
                self.sources.groups[who as usize].set_rate(times * self.capacity);
            }
        }
        seen.delays = self.watch.delays();
        if self.row.ends_off() && self.limiter == Limiter::Fair {
            self.wait_until_off(&mut seen);
        }
        seen.refused = self.in_effect.refused();
        if seen.off.is_some() {
            self.look_for(AFTERWARDS, &mut seen);
            let after = self.in_effect.refused();
            let pair = after.zip(seen.refused);
            seen.refused_after = pair.map(|(after, before)| after - before);
        }
        seen
    }

    fn wait_until_off(&self, seen: &mut Seen) {
        let end = self.seconds();
        while self.seconds() < end + OFF_AT_MOST && fair(&self.network.control())["state"] != "off"
        {
            self.look(seen, 1.0);
        }
        // One that is never off misses the aim.
        seen.off = Some(self.seconds() - end);
    }

    fn look_for(&self, seconds: f64, seen: &mut Seen) {
        let end = self.seconds() + seconds;
        while self.seconds() < end {
            self.look(seen, 1.0);
        }
    }

    /// Waits until the present bin is over, and takes a sample.
    fn look(&self, seen: &mut Seen, part: f64) {
        let bin = self.sources.now();
        let end = BIN * (bin as u32 + 1);
        thread::sleep(end.saturating_sub(self.sources.elapsed()));
        let (served, possible) = (self.served)();
        let last = seen.samples.last();
        let possible = possible.unwrap_or_else(|| {
            let bins = bin + 1 - last.map_or(0, |sample| sample.bin + 1);
            let more = self.capacity * part * BIN.as_secs_f64() * bins as f64;
            last.map_or(0.0, |sample| sample.possible) + more
        });
        // A level lasts for two bins.
        let (level, passed) = match last {
            _ if self.limiter != Limiter::Fair => (None, None),
            Some(last) if bin % 2 == 1 => (last.level, last.passed),
            _ => {
                let fair = fair(&self.network.control());
                (fair["level"].as_f64(), fair["passed"].as_f64())
            }
        };
        seen.samples.push(Sample {
            bin,
            served,
            possible,
            level,
            passed,
        });
    }

    fn seconds(&self) -> f64 {
        self.sources.elapsed().as_secs_f64()
    }

    fn many(&self) -> Vec<u64> {
        self.sources.groups[rows::Who::Many as usize].by_source()
    }
}

/// The fair limit in the agent's status, read without a process for each.
fn fair(control: &Path) -> Value {
    let mut stream = UnixStream::connect(control).unwrap();
    stream.write_all(b"{\"verb\":\"status\"}\n").unwrap();
    let mut reply = String::new();
    BufReader::new(stream).read_line(&mut reply).unwrap();
    let mut reply: Value = serde_json::from_str(&reply).unwrap();
    reply["ok"]["fair"][0].take()
}
