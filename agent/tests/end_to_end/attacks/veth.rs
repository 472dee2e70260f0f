//! A veth whose peer has no program, as the network of a container is: replies of XDP would not arrive.

use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use super::peer::{PORT, SYN, limit, listen};
use crate::support::{CLIENT_MAC, Network, SERVER, SERVER_MAC};
use crate::tcp::Offload;
use crate::wire::Sender;
use common::packet::build::Frame;

/// In a flood of forged SYNs, three a millisecond.
pub fn clients_connect_in_a_flood_to_a_veth_whose_peer_has_no_program() {
    let forged: Vec<Vec<u8>> = (0..1_000u16)
        .map(|nth| {
            let [c, d] = nth.to_be_bytes();
            Frame::between(CLIENT_MAC, SERVER_MAC)
                .ipv4([10, 77, 100 + c, d], SERVER)
                .tcp(4_000, PORT, SYN, b"")
                .build()
        })
        .collect();
    for merges in [true, false] {
        let network = Network::new();
        network.in_client(|| Offload::Gro.set("client0", merges));
        let limits = limit("rate = \"1000/s\"\nprove = \"always\"");
        let agent = network.start("", &limits);
        let listener = listen(&network, PORT);
        listener.set_nonblocking(false).unwrap();
        let is_over = AtomicBool::new(false);
        let greeted = thread::scope(|scope| {
            scope.spawn(|| {
                network.in_client(|| {
                    let sender = Sender::new();
                    while !is_over.load(Ordering::Relaxed) {
                        sender.pace(&forged, 3, Duration::from_millis(100));
                    }
                });
            });
            let greeted = (0..10).filter(|_| greets(&network, &listener)).count();
            is_over.store(true, Ordering::Relaxed);
            greeted
        });
        assert_eq!(greeted, 10, "GRO at the peer: {merges}");
        let status = agent.json(&["status"]);
        assert_eq!(status["interfaces"][0]["attach"], "tc", "{status}");
    }
}

/// Whether a client connects, and receives the first byte, which the server sends.
fn greets(network: &Network, listener: &std::net::TcpListener) -> bool {
    use std::io::Write as _;
    let to = SocketAddr::from((SERVER, PORT));
    let time = Duration::from_secs(5);
    let Ok(mut client) = network.in_client(|| TcpStream::connect_timeout(&to, time)) else {
        return false;
    };
    let (mut served, _) = listener.accept().unwrap();
    served.write_all(b"x").unwrap();
    client.set_read_timeout(Some(time)).unwrap();
    client.read_exact(&mut [0]).is_ok()
}
