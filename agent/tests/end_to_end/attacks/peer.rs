//! An attacker's TCP: raw segments from addresses of no host, and the replies to them.

use std::collections::BTreeMap;
use std::net::{Ipv6Addr, TcpListener};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use common::packet::build::{Frame, MoreFragments};

use crate::support::{CLIENT_MAC, Network, SERVER, SERVER_MAC, SERVER6, StopWhenDropped};
use crate::tcp;
use crate::traffic::burst;
use crate::wire::{self, Sender};

pub const PORT: u16 = 80;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const ACK: u8 = 16;
/// The sequence number of the attacker's SYNs.
pub const FIRST: u32 = 1;

/// A limit on connections to [`PORT`]; each IPv6 address is a source.
pub fn limit(more: &str) -> String {
    format!(
        "[[limit]]\nname = \"web\"\nprotocol = \"tcp\"\nports = [80]\nunit = \"connections\"\nipv6_prefix = 128\n{more}\n"
    )
}

/// A listener of both IP versions whose queue has room for every test.
pub fn listen(network: &Network, port: u16) -> TcpListener {
    network.in_server(|| {
        std::fs::write("/proc/sys/net/core/somaxconn", "4096").unwrap();
        let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).unwrap();
        // SAFETY: a live socket; a second call only changes the backlog, which std sets to 128.
        assert_eq!(unsafe { libc::listen(listener.as_raw_fd(), 4096) }, 0);
        listener.set_nonblocking(true).unwrap();
        listener
    })
}

/// A flood of SYNs to a port from a thousand forged sources, three a millisecond, while `work` runs.
pub fn in_flood<T>(network: &Network, port: u16, work: impl FnOnce() -> T) -> T {
    let forged: Vec<Vec<u8>> = (0..1_000u16)
        .map(|nth| {
            let [c, d] = nth.to_be_bytes();
            Frame::between(CLIENT_MAC, SERVER_MAC)
                .ipv4([10, 77, 100 + c, d], SERVER)
                .tcp(4_000, port, SYN, b"")
                .build()
        })
        .collect();
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            network.in_client(|| {
                let sender = Sender::new();
                while !is_over.load(Ordering::Relaxed) {
                    sender.pace(&forged, 3, Duration::from_millis(100));
                }
            });
        });
        let _stop = StopWhenDropped(&is_over);
        work()
    })
}

/// Connections that the server's kernel has opened since its namespace exists.
pub fn opened(network: &Network) -> u64 {
    network.in_server(|| tcp::counted("PassiveOpens"))
}

/// Established connections of the server.
pub fn established(network: &Network) -> usize {
    let of = |file: &str| {
        let path = format!("/proc/thread-self/net/{file}");
        let text = network.in_server(|| std::fs::read_to_string(path).unwrap());
        text.lines()
            .filter(|line| line.split_ascii_whitespace().nth(3) == Some("01"))
            .count()
    };
    of("tcp") + of("tcp6")
}

/// An attacker with an address of its own, to which the server's kernel can send.
pub struct Peer<'n> {
    network: &'n Network,
    tap: OwnedFd,
    is_ipv4: bool,
    last: u8,
}

impl<'n> Peer<'n> {
    pub fn new(network: &'n Network, is_ipv4: bool, last: u8) -> Self {
        let address = if is_ipv4 {
            format!("10.77.5.{last}")
        } else {
            format!("fd77::5:{last:x}")
        };
        let mac = "02:00:00:00:77:02";
        let known = format!("neigh replace {address} lladdr {mac} dev weir0 nud permanent\n");
        network.ip_batch(&known);
        let tap = network.in_client(|| wire::tap(16 << 20));
        Self {
            network,
            tap,
            is_ipv4,
            last,
        }
    }

    /// A frame from this address, up to its IP header.
    pub fn frame(&self) -> Frame {
        let link = Frame::between(CLIENT_MAC, SERVER_MAC);
        if self.is_ipv4 {
            link.ipv4([10, 77, 5, self.last], SERVER)
        } else {
            let mut source = SERVER6;
            source[13] = 5;
            source[15] = self.last;
            link.ipv6(source, SERVER6)
        }
    }

    /// The bytes of a TCP segment with a right checksum.
    fn segment(&self, port: u16, flags: u8, numbers: (u32, u32), payload: &[u8]) -> Vec<u8> {
        let whole = self
            .frame()
            .tcp_at(port, PORT, flags, numbers, payload)
            .build();
        whole[if self.is_ipv4 { 34 } else { 54 }..].to_vec()
    }

    /// A segment behind `headers`.
    pub fn tcp(
        &self,
        headers: &dyn Fn(Frame) -> Frame,
        port: u16,
        flags: u8,
        numbers: (u32, u32),
        payload: &[u8],
    ) -> Vec<u8> {
        headers(self.frame())
            .payload(6, &self.segment(port, flags, numbers, payload))
            .build()
    }

    /// The same in two fragments. The first one has the whole TCP header, and four bytes more.
    pub fn fragments(
        &self,
        port: u16,
        flags: u8,
        numbers: (u32, u32),
        payload: &[u8],
    ) -> [Vec<u8>; 2] {
        let segment = self.segment(port, flags, numbers, payload);
        let (first, rest) = segment.split_at(24);
        let part = |offset, more, bytes: &[u8]| {
            let frame = self.frame().identification(port).fragment(offset, more);
            let mut frame = frame.payload(6, bytes).build();
            if !self.is_ipv4 {
                // The identification in the fragment header, so that fragments of different packets stay apart.
                frame[60..62].copy_from_slice(&port.to_be_bytes());
            }
            frame
        };
        [
            part(0, MoreFragments::Yes, first),
            part(3, MoreFragments::No, rest),
        ]
    }

    /// Sends SYNs from these ports behind `headers`, and returns the numbers of the SYN-ACKs, by port.
    pub fn handshakes(
        &self,
        headers: &dyn Fn(Frame) -> Frame,
        ports: std::ops::Range<u16>,
    ) -> BTreeMap<u16, u32> {
        let syns: Vec<Vec<u8>> = ports
            .clone()
            .map(|port| self.tcp(headers, port, SYN, (FIRST, 0), b""))
            .collect();
        self.send(&syns);
        let mut numbers = BTreeMap::new();
        while numbers.len() < ports.len() {
            match self.syn_ack() {
                Some((port, number)) if ports.contains(&port) => numbers.insert(port, number),
                Some(_) => None,
                None => break,
            };
        }
        numbers
    }

    /// Sends frames, and waits until the server's kernel has processed them.
    pub fn send(&self, frames: &[Vec<u8>]) {
        burst(self.network, frames, frames.len());
    }

    /// (destination port, sequence number) of the next SYN-ACK; `None` if none comes for a second.
    fn syn_ack(&self) -> Option<(u16, u32)> {
        let mut frame = [0u8; 2048];
        loop {
            let length = nix::unistd::read(&self.tap, &mut frame).ok()?;
            let at = match (&frame[12..14], frame[23], frame[20]) {
                ([8, 0], 6, _) => 34,
                ([0x86, 0xdd], _, 6) => 54,
                _ => continue,
            };
            let Some(tcp) = frame[..length].get(at..at + 20) else {
                continue;
            };
            if tcp[13] & 0x3f == SYN | ACK {
                let port = u16::from_be_bytes([tcp[2], tcp[3]]);
                return Some((port, u32::from_be_bytes([tcp[4], tcp[5], tcp[6], tcp[7]])));
            }
        }
    }
}
