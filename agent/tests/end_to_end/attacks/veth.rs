//! A veth whose peer has no program, as the network of a container is: replies of XDP would not arrive.

use std::io::Read as _;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use super::peer::{PORT, in_flood, limit, listen};
use crate::support::{Network, SERVER};
use crate::tcp::Offload;

/// In a flood of forged SYNs, three a millisecond.
pub fn clients_connect_in_a_flood_to_a_veth_whose_peer_has_no_program() {
    for merges in [true, false] {
        let network = Network::new();
        network.in_client(|| Offload::Gro.set("client0", merges));
        let limits = limit("rate = \"1000/s\"\nprove = \"always\"");
        let agent = network.start("", &limits);
        let listener = listen(&network, PORT);
        listener.set_nonblocking(false).unwrap();
        let greeted = in_flood(&network, PORT, || {
            (0..10).filter(|_| greets(&network, &listener)).count()
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
