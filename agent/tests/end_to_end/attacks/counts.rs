//! Ways around `concurrent`: handshakes that are hard to see, and connections whose port is translated.

use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use common::packet::build::Frame;

use super::peer::{ACK, FIRST, PORT, Peer, established, limit, listen};
use crate::prove::network;
use crate::support::Network;

const HOOKS: [&str; 2] = ["native", "tc"];
const CONCURRENT: usize = 4;

pub fn fragmented_acks_reserve_open_connections() {
    for attach in HOOKS {
        for is_ipv4 in [true, false] {
            let network = network("2", attach);
            let limits = limit("concurrent = 4\nprove = \"always\"");
            let agent = network.start(&format!("attach = {attach:?}"), &limits);
            let _listener = listen(&network, PORT);
            let peer = Peer::new(&network, is_ipv4, 9);
            let cookies = peer.handshakes(&|frame| frame, 20_000..20_100);
            let frames: Vec<Vec<u8>> = cookies
                .iter()
                .flat_map(|(port, cookie)| {
                    let numbers = (FIRST + 1, cookie.wrapping_add(1));
                    peer.fragments(*port, ACK, numbers, &[7; 20])
                })
                .collect();
            peer.send(&frames);
            let case = format!("{attach}, IPv4: {is_ipv4}");
            assert_eq!(established(&network), CONCURRENT, "{case}");
            assert_eq!(agent.counts("web"), (4, 96), "{case}");
        }
    }
}

/// Nine destination headers, or one that is longer than is parsed: Linux reads on.
pub fn hidden_handshakes_open_no_connection() {
    let nine = |frame: Frame| {
        (0..9).fold(frame, |frame, _| {
            frame.extension(60, &[0, 1, 4, 0, 0, 0, 0])
        })
    };
    let long = |frame: Frame| {
        // Options of an unknown type that hosts skip.
        let option = |length: u8| [&[0x1e, length][..], &vec![0; usize::from(length)]].concat();
        let options = [255, 255, 255, 241].map(option).concat();
        assert_eq!(2 + options.len(), 1_016);
        frame.extension(60, &[&[126], &options[..]].concat())
    };
    let chains: [(&str, &dyn Fn(Frame) -> Frame); 2] = [("nine", &nine), ("long", &long)];
    for attach in HOOKS {
        for (chain, behind) in chains {
            let network = network("1", attach);
            let agent = network.start(&format!("attach = {attach:?}"), &limit("concurrent = 4"));
            let _listener = listen(&network, PORT);
            let peer = Peer::new(&network, false, 9);
            let numbers = peer.handshakes(behind, 20_000..20_060);
            let acks: Vec<Vec<u8>> = numbers
                .iter()
                .map(|(port, number)| {
                    let numbers = (FIRST + 1, number.wrapping_add(1));
                    peer.tcp(behind, *port, ACK, numbers, b"")
                })
                .collect();
            peer.send(&acks);
            assert_eq!(established(&network), 0, "{attach}, {chain}");
            let malformed = agent.json(&["status"])["bypass"]["malformed"].as_u64();
            assert_eq!(malformed, Some(60), "{attach}, {chain}");
        }
    }
}

/// The packets have the port that the client means, and the socket has another one.
pub fn redirected_connections_count_by_their_original_port() {
    const INNER: u16 = 8080;
    for (attach, address) in [
        ("native", "10.77.0.1"),
        ("tc", "10.77.0.1"),
        ("native", "[fd77::1]"),
    ] {
        let network = network("1", attach);
        redirect(&network, INNER);
        let agent = network.start(&format!("attach = {attach:?}"), &limit("concurrent = 4"));
        let _listener = listen(&network, INNER);
        let to: SocketAddr = format!("{address}:{PORT}").parse().unwrap();
        let connect = |time| network.in_client(|| TcpStream::connect_timeout(&to, time));
        let case = format!("{attach}, {address}");
        let mut open: Vec<TcpStream> = (0..CONCURRENT)
            .map(|_| connect(Duration::from_secs(5)).unwrap())
            .collect();
        // Longer than a reservation lasts.
        std::thread::sleep(Duration::from_secs(5));
        for _ in 0..3 {
            assert!(connect(Duration::from_millis(300)).is_err(), "{case}");
        }
        assert_eq!(established(&network), CONCURRENT, "{case}");
        assert_eq!(agent.counts("web").0, 4, "{case}");
        // One that ends makes room for another.
        nix::sys::socket::setsockopt(
            &open.remove(0),
            nix::sys::socket::sockopt::Linger,
            &libc::linger {
                l_onoff: 1,
                l_linger: 0,
            },
        )
        .unwrap();
        agent.wait_for("the end of the first", |_| established(&network) == 3);
        open.push(connect(Duration::from_secs(20)).unwrap());
    }
}

/// Redirects connections to [`PORT`] to another port of the same host.
fn redirect(network: &Network, port: u16) {
    let rules = format!(
        "table inet nat {{\n chain prerouting {{ type nat hook prerouting priority dstnat;\n \
         tcp dport {PORT} redirect to :{port}; }}\n}}\n"
    );
    network.in_server(|| network.use_rules(&rules));
}
