//! Requests in forms that servers take.

use super::peer::ACK;
use crate::support::{CLIENT_MAC, Network, SERVER, SERVER_MAC, SERVER6};
use crate::traffic::burst;
use common::packet::build::Frame;

/// The flag URG.
const URGENT: u8 = 0x20;
const LIMIT: u64 = 10;
const SENT: u64 = 100;

/// To a web server and to a DNS server. The first part of a request line counts.
pub fn requests_count_in_every_form_that_servers_take() {
    let query = |flags: u16, questions: u8| {
        let mut message = vec![0, 12, 1, 2];
        message.extend(flags.to_be_bytes());
        message.extend([0, questions, 0, 0, 0, 0, 0, 0]);
        message
    };
    let over_tcp = [
        (80, b"\r\n\r\nGET / HTTP/1.1\r\n\r\n".to_vec()),
        (80, b"PROPFIND /dav HTTP/1.1\r\n\r\n".to_vec()),
        (80, b"QUERY /search HTTP/1.1\r\n\r\n".to_vec()),
        (80, b"purge http://example.org/ HTTP/1.1\r\n\r\n".to_vec()),
        (80, b"GET\tftp://example.org/ HTTP/1.1\r\n\r\n".to_vec()),
        (80, b"GE".to_vec()),
        (53, query(0x0100, 1)),
        (53, query(0x2800, 0)),
        (53, query(0x0100, 1)[..3].to_vec()),
    ];
    let over_udp = [(0x0100, 0), (0x2800, 1)].map(|(flags, questions)| query(flags, questions));
    for attach in ["native", "tc"] {
        let network = Network::new();
        let agent = network.start(
            &format!("attach = {attach:?}"),
            &format!(
                "[[limit]]\nname = \"requests\"\nunit = \"requests\"\nipv6_prefix = 128\n\
                 rate = \"{LIMIT}/day\"\nburst = {LIMIT}\n"
            ),
        );
        let mut counted = (0, 0);
        let mut sources = 1..;
        let mut check = |what: &dyn Fn(Frame) -> Vec<u8>| {
            let source: u8 = sources.next().unwrap();
            let link = || Frame::between(CLIENT_MAC, SERVER_MAC);
            let mut source6 = SERVER6;
            source6[14..].copy_from_slice(&[9, source]);
            for from in [
                link().ipv4([10, 77, 9, source], SERVER),
                link().ipv6(source6, SERVER6),
            ] {
                let frame = what(from);
                burst(&network, std::slice::from_ref(&frame), SENT as usize);
                counted = (counted.0 + LIMIT, counted.1 + SENT - LIMIT);
                assert_eq!(
                    agent.counts("requests"),
                    counted,
                    "{attach}: {}",
                    frame.escape_ascii()
                );
            }
        };
        for (port, payload) in &over_tcp {
            check(&|from| from.tcp(4_000, *port, ACK, payload).build());
        }
        check(&|from| {
            from.tcp(4_000, 80, ACK | URGENT, b"\0GET / HTTP/1.1\r\n\r\n")
                .build()
        });
        for message in &over_udp {
            check(&|from| from.udp(4_000, 53, &message[2..]).build());
        }
    }
}
