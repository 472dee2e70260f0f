//! A UDP server of known capacity.

use std::net::UdpSocket;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::{MADE_UP, Rate, Sources};
use crate::stalls::Gaps;

/// A server that reads so many datagrams a second.
pub struct Server {
    socket: UdpSocket,
    capacity: Rate,
    all: AtomicU64,
    possible: AtomicU64,
    stop: AtomicBool,
    pub gaps: Gaps,
}

impl Server {
    pub fn new(socket: UdpSocket, per_second: f64) -> Self {
        socket.set_nonblocking(true).unwrap();
        Self {
            socket,
            capacity: Rate::new(per_second),
            all: AtomicU64::new(0),
            possible: AtomicU64::new(0),
            stop: AtomicBool::new(false),
            gaps: Gaps::default(),
        }
    }

    pub fn port(&self) -> u16 {
        self.socket.local_addr().unwrap().port()
    }

    /// From now on, it reads so many a second.
    pub fn set_capacity(&self, per_second: f64) {
        self.capacity.set(per_second);
    }

    /// Reads until it is stopped. After a pause of this thread, [`MADE_UP`] is made up for.
    pub fn serve(&self, sources: &Sources) {
        let (mut last, mut budget) = (Instant::now(), 0.0);
        let mut datagram = [0; 64];
        while !self.stop.load(Ordering::Relaxed) {
            self.gaps.mark();
            budget += last.elapsed().min(MADE_UP).as_secs_f64() * self.capacity.get();
            last = Instant::now();
            let whole = budget as u64;
            budget -= whole as f64;
            self.possible.fetch_add(whole, Ordering::Relaxed);
            for _ in 0..whole {
                let Ok((length, from)) = self.socket.recv_from(&mut datagram) else {
                    break;
                };
                self.all.fetch_add(1, Ordering::Relaxed);
                if let Some(unit) = sources.unit(&datagram[..length], from) {
                    sources.serve(unit);
                }
            }
            thread::sleep(Duration::from_micros(500));
        }
    }

    /// The datagrams that it has read, and those that it could have read.
    pub fn now(&self) -> (u64, u64) {
        (
            self.all.load(Ordering::Relaxed),
            self.possible.load(Ordering::Relaxed),
        )
    }

    pub fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}
