//! TCP flows between the namespaces, and their rates.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use nix::libc;

use crate::network::{Network, StopWhenDropped};
use crate::tcp;

/// The sender.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    Client,
    Server,
}

/// The parameters of a measurement.
#[derive(Clone, Copy, Debug)]
pub struct Flows {
    pub from: From,
    pub count: usize,
    /// Added to the delay of acknowledgements.
    pub delay: Duration,
    /// Time for the bucket to be emptied, before measuring.
    pub warm_up: Duration,
    pub time: Duration,
}

/// The received payload, in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Measured {
    /// Per second, after the warm-up.
    pub rate: f64,
    pub bytes: u64,
    /// From before the first packet to after the last one.
    pub elapsed: Duration,
}

impl Measured {
    /// The rate with the headers of full packets, which limits count.
    pub fn rate_on_wire(&self) -> f64 {
        self.rate * 1_514.0 / 1_448.0
    }
}

const PORT: u16 = 9_100;
/// The largest payload of Ethernet's packets with timestamps.
const MSS: u32 = 1_460;

impl Flows {
    /// Measures after the warm-up.
    pub fn measure(self, network: &Network) -> Measured {
        let (own, other) = match self.from {
            From::Client => ("10.77.0.2", "10.77.0.1"),
            From::Server => ("10.77.0.1", "10.77.0.2"),
        };
        let address = format!("{other}:{PORT}");
        let listener = self.in_receiver(network, || TcpListener::bind(&address).unwrap());
        let relay = (!self.delay.is_zero()).then(|| self.relay(network, own, other));
        let (stop, arrived) = (AtomicBool::new(false), AtomicU64::new(0));
        thread::scope(|scope| {
            let _stopped = StopWhenDropped(&stop);
            if let Some((from, to)) = &relay {
                scope.spawn(|| delay(from, to, self.delay, &stop));
            }
            let start = Instant::now();
            for _ in 0..self.count {
                // A socket stays in the namespace in which it was created.
                let sender = self.in_sender(network, || tcp::connect(&address, MSS).unwrap());
                let (receiver, _) = listener.accept().unwrap();
                scope.spawn(|| send(sender, &stop));
                scope.spawn(|| receive(receiver, &arrived, &stop));
            }
            thread::sleep(self.warm_up);
            let (before, begun) = (arrived.load(Ordering::Relaxed), Instant::now());
            thread::sleep(self.time);
            let (bytes, ended) = (arrived.load(Ordering::Relaxed), Instant::now());
            let rate = (bytes - before) as f64 / (ended - begun).as_secs_f64();
            Measured {
                rate,
                bytes,
                elapsed: ended - start,
            }
        })
    }

    /// Two tunnels for acknowledgements: the receiver's and the sender's.
    fn relay(self, network: &Network, own: &str, other: &str) -> (File, File) {
        let from = self.in_receiver(network, || {
            let tunnel = open_tunnel("delay0");
            crate::network::run(
                "ip",
                &[
                    "route",
                    "add",
                    &format!("{own}/32"),
                    "dev",
                    "delay0",
                    "src",
                    other,
                ],
            );
            tunnel
        });
        let to = self.in_sender(network, || open_tunnel("delay0"));
        (from, to)
    }

    fn in_sender<T: Send>(self, network: &Network, work: impl FnOnce() -> T + Send) -> T {
        if self.from == From::Client {
            network.in_client(work)
        } else {
            network.in_server(work)
        }
    }

    fn in_receiver<T: Send>(self, network: &Network, work: impl FnOnce() -> T + Send) -> T {
        if self.from == From::Client {
            network.in_server(work)
        } else {
            network.in_client(work)
        }
    }
}

fn open_tunnel(name: &str) -> File {
    for place in ["all", "default"] {
        std::fs::write(format!("/proc/sys/net/ipv4/conf/{place}/rp_filter"), "0").unwrap();
    }
    let tunnel = crate::wire::tunnel(name);
    crate::network::run("ip", &["link", "set", name, "up", "txqueuelen", "100000"]);
    // SAFETY: a flag of a descriptor that is open.
    let outcome = unsafe { libc::fcntl(tunnel.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) };
    assert_eq!(outcome, 0);
    tunnel
}

/// Forwards each packet after its delay.
fn delay(mut from: &File, mut to: &File, delay: Duration, stop: &AtomicBool) {
    let mut waiting: VecDeque<(Instant, Vec<u8>)> = VecDeque::new();
    let mut buffer = vec![0; 1 << 16];
    while !stop.load(Ordering::Relaxed) {
        while let Ok(length) = from.read(&mut buffer) {
            waiting.push_back((Instant::now() + delay, buffer[..length].to_vec()));
        }
        while waiting
            .front()
            .is_some_and(|(due, _)| *due <= Instant::now())
        {
            // TCP tolerates an acknowledgement that a full queue drops.
            let _ = waiting.pop_front().map(|(_, packet)| to.write(&packet));
        }
        let due = waiting.front().map_or(PATIENCE, |(due, _)| {
            due.saturating_duration_since(Instant::now())
        });
        wait_for_packet(from, due.min(PATIENCE));
    }
}

/// Returns at once when there is one: acknowledgements that wait for each other would make the sender's bursts longer.
fn wait_for_packet(tunnel: &File, longest: Duration) {
    let mut poll = libc::pollfd {
        fd: tunnel.as_raw_fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    let time = libc::timespec {
        tv_sec: 0,
        tv_nsec: longest.subsec_nanos().into(),
    };
    // SAFETY: one descriptor that is open, and a time that outlives the call.
    unsafe { libc::ppoll(&raw mut poll, 1, &raw const time, std::ptr::null()) };
}

const PATIENCE: Duration = Duration::from_millis(200);

fn send(mut stream: TcpStream, stop: &AtomicBool) {
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let data = vec![7; 1 << 18];
    while !stop.load(Ordering::Relaxed) {
        let _ = stream.write(&data);
    }
}

fn receive(mut stream: TcpStream, arrived: &AtomicU64, stop: &AtomicBool) {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut buffer = vec![0; 1 << 18];
    while !stop.load(Ordering::Relaxed) {
        if let Ok(length) = stream.read(&mut buffer) {
            arrived.fetch_add(length as u64, Ordering::Relaxed);
        }
    }
}
