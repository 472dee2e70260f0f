//! Packets that tests send, and limits they are held to.

use std::net::UdpSocket;
use std::time::{Duration, Instant};

use common::packet::build::Frame;

use crate::support::{CLIENT_MAC, Network, SERVER, SERVER_MAC, SERVER6};
use crate::wire::{Sender, is_queueing};

pub const LIMIT: &str = "[[limit]]\nname = \"packets\"\nrate = \"1000/s\"\nburst = 100\n";
pub const PORT: u16 = 9000;

pub fn udp_from(last: u8) -> Vec<u8> {
    Frame::between(CLIENT_MAC, SERVER_MAC)
        .ipv4([10, 77, 0, last], SERVER)
        .udp(5000, PORT, &[0; 22])
        .build()
}

pub fn udp6_from(source: [u8; 16]) -> Vec<u8> {
    Frame::between(CLIENT_MAC, SERVER_MAC)
        .ipv6(source, SERVER6)
        .udp(5000, PORT, &[0; 22])
        .build()
}

pub fn v6(last_of_prefix: u8, last: u8) -> [u8; 16] {
    [
        0xfd,
        0x77,
        0,
        0,
        0,
        0,
        0,
        last_of_prefix,
        0,
        0,
        0,
        0,
        0,
        0,
        0,
        last,
    ]
}

/// Sends `count` frames as fast as it goes, and waits until the server's kernel has evaluated them.
pub fn burst(network: &Network, frames: &[Vec<u8>], count: usize) {
    let before = network.arrived();
    network.in_client(|| {
        let sender = Sender::new();
        for frame in frames.iter().cycle().take(count) {
            sender.send(frame);
        }
    });
    network.wait_for_arrival(before, count as u64);
}

/// Sends a packet of a source every few milliseconds to a socket on [`PORT`], until one does not arrive; returns when that
/// one was sent.
pub fn until_refused(network: &Network, receiver: &UdpSocket, last: u8) -> Instant {
    receiver
        .set_read_timeout(Some(Duration::from_millis(300)))
        .unwrap();
    let (frame, sender) = (udp_from(last), network.in_client(Sender::new));
    let deadline = Instant::now() + Duration::from_secs(300);
    loop {
        let sent = Instant::now();
        sender.send(&frame);
        while receiver.recv(&mut [0; 2_048]).is_err() {
            // On a busy machine, a CPU may not have delivered yet what it queued.
            if !is_queueing() {
                return sent;
            }
        }
        assert!(sent < deadline, "10.77.0.{last} is not refused");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A socket for [`until_refused`].
pub fn socket(network: &Network) -> UdpSocket {
    network
        .in_server(|| crate::wire::bind(([0; 4], PORT).into()))
        .unwrap()
}

/// A burst large enough that a sender which the host holds up for a while loses no allowance by it.
pub const WIDE_LIMIT: &str = "[[limit]]\nname = \"packets\"\nrate = \"100/s\"\nburst = 200\n";

/// The packets that this limit passes in a time, by its definition.
pub fn allowed(time: Duration) -> f64 {
    200.0 + 100.0 * time.as_secs_f64()
}
