//! Ways around `prove`: ACKs that are hard to judge, and cookies that are used again.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use common::packet::build::Frame;

use super::peer::{ACK, FIRST, PORT, Peer, RST, established, limit, listen, opened};
use crate::prove::{network, proofs};
use crate::support::Agent;

const HOOKS: [&str; 2] = ["native", "tc"];
/// More than the limits of these tests allow.
const TRIES: u16 = 60;
const ALLOWED: u64 = 5;

/// A limit of [`ALLOWED`] connections, whose sources prove their address.
fn proven() -> String {
    limit("rate = \"5/day\"\nburst = 5\nprove = \"always\"")
}

fn acks(agent: &Agent<'_>) -> (u64, u64) {
    (
        proofs(agent, "acks_accepted"),
        proofs(agent, "acks_refused"),
    )
}

pub fn an_ack_in_fragments_is_evaluated_by_its_header() {
    for attach in HOOKS {
        for is_ipv4 in [true, false] {
            let network = network("2", attach);
            let agent = network.start(&format!("attach = {attach:?}"), &proven());
            let _listener = listen(&network, PORT);
            let peer = Peer::new(&network, is_ipv4, 9);
            let cookies = peer.handshakes(&|frame| frame, 20_000..20_000 + TRIES);
            assert_eq!(cookies.len(), usize::from(TRIES), "{attach}, {is_ipv4}");
            let frames: Vec<Vec<u8>> = cookies
                .iter()
                .flat_map(|(port, cookie)| {
                    let numbers = (FIRST + 1, cookie.wrapping_add(1));
                    peer.fragments(*port, ACK, numbers, &[7; 20])
                })
                .collect();
            peer.send(&frames);
            let case = format!("{attach}, IPv4: {is_ipv4}");
            assert_eq!(established(&network), ALLOWED as usize, "{case}");
            assert_eq!(
                agent.counts("web"),
                (ALLOWED, u64::from(TRIES) - ALLOWED),
                "{case}"
            );
            assert_eq!(acks(&agent), (ALLOWED, 0), "{case}");
        }
    }
}

/// A header before TCP that hosts skip.
type Behind = fn(Frame) -> Frame;

pub fn an_ack_behind_extension_headers_is_checked_by_its_cookie() {
    const HOP_BY_HOP: u8 = 0;
    const ROUTING: u8 = 43;
    const FRAGMENT: u8 = 44;
    const DESTINATION: u8 = 60;
    // Options that are skipped, a routing header without segments left, a fragment that is the whole packet.
    const PADDED: [u8; 7] = [0, 1, 4, 0, 0, 0, 0];
    let chains: [(&str, Behind); 6] = [
        ("destination", |frame| frame.extension(DESTINATION, &PADDED)),
        ("hop by hop", |frame| frame.extension(HOP_BY_HOP, &PADDED)),
        ("routing", |frame| {
            frame.extension(ROUTING, &[0, 1, 0, 0, 0, 0, 0])
        }),
        ("fragment", |frame| frame.extension(FRAGMENT, &[0; 7])),
        ("eight", |frame| {
            (0..8).fold(frame, |frame, _| frame.extension(DESTINATION, &PADDED))
        }),
        ("nine", |frame| {
            (0..9).fold(frame, |frame, _| frame.extension(DESTINATION, &PADDED))
        }),
    ];
    for attach in HOOKS {
        for (nth, (chain, behind)) in (1..).zip(chains) {
            let network = network("2", attach);
            let agent = network.start(&format!("attach = {attach:?}"), &proven());
            let _listener = listen(&network, PORT);
            let peer = Peer::new(&network, false, nth);
            let cookies = peer.handshakes(&|frame| frame, 20_000..20_000 + TRIES);
            assert_eq!(cookies.len(), usize::from(TRIES), "{attach}, {chain}");
            let frames: Vec<Vec<u8>> = cookies
                .iter()
                .map(|(port, cookie)| {
                    let numbers = (FIRST + 1, cookie.wrapping_add(1));
                    peer.tcp(&behind, *port, ACK, numbers, b"x")
                })
                .collect();
            peer.send(&frames);
            let case = format!("{attach}, {chain}");
            // More headers than are parsed hide the protocol, and are refused.
            let allowed = if chain == "nine" { 0 } else { ALLOWED };
            assert_eq!(established(&network), allowed as usize, "{case}");
            assert_eq!(agent.counts("web").0, allowed, "{case}");
            assert_eq!(acks(&agent), (allowed, 0), "{case}");
        }
    }
}

/// A connection that ends at once, whichever way, and the same ACK again.
pub fn a_cookie_opens_no_second_connection_free_of_charge() {
    const TIMES: usize = 300;
    for attach in HOOKS {
        for (is_ipv4, way) in [
            (true, "data"),
            (false, "data"),
            (true, "bare"),
            (true, "fragments"),
        ] {
            let network = network("2", attach);
            let agent = network.start(&format!("attach = {attach:?}"), &proven());
            let _listener = listen(&network, PORT);
            let peer = Peer::new(&network, is_ipv4, 9);
            let cookie = peer.handshakes(&|frame| frame, 20_000..20_001)[&20_000];
            let acknowledged = cookie.wrapping_add(1);
            let payload: &[u8] = if way == "bare" { b"" } else { b"x" };
            let ack = peer.tcp(
                &|frame| frame,
                20_000,
                ACK,
                (FIRST + 1, acknowledged),
                payload,
            );
            let next = FIRST + 1 + payload.len() as u32;
            let resets = if way == "fragments" {
                peer.fragments(20_000, RST, (next, 0), &[0; 20]).to_vec()
            } else {
                vec![peer.tcp(&|frame| frame, 20_000, RST, (next, 0), b"")]
            };
            let round: Vec<Vec<u8>> = std::iter::once(ack).chain(resets).collect();
            let frames: Vec<Vec<u8>> = std::iter::repeat_n(round, TIMES).flatten().collect();
            let before = opened(&network);
            peer.send(&frames);
            let case = format!("{attach}, IPv4: {is_ipv4}, {way}");
            assert_eq!(opened(&network) - before, ALLOWED, "{case}");
            assert_eq!(
                agent.counts("web"),
                (ALLOWED, TIMES as u64 - ALLOWED),
                "{case}"
            );
            assert_eq!(acks(&agent).0, ALLOWED, "{case}");
        }
    }
}

/// A server that speaks first: its client waits for a banner, and nothing that it sends would be refused.
pub fn a_client_whose_connection_is_refused_learns_it_at_once() {
    for (attach, more) in [
        ("native", "rate = \"4/day\"\nburst = 4"),
        ("tc", "rate = \"4/day\"\nburst = 4"),
        ("native", "concurrent = 4"),
    ] {
        for address in ["10.77.0.1", "[fd77::1]"] {
            let network = network("2", attach);
            let limits = limit(&format!("prove = \"always\"\n{more}"));
            let agent = network.start(&format!("attach = {attach:?}"), &limits);
            let listener = listen(&network, PORT);
            let to: SocketAddr = format!("{address}:{PORT}").parse().unwrap();
            let mut clients: Vec<TcpStream> = network.in_client(|| {
                (0..6)
                    .filter_map(|_| TcpStream::connect_timeout(&to, Duration::from_secs(5)).ok())
                    .collect()
            });
            agent.wait_for("every ACK", |_| agent.counts("web").0 == 4);
            let mut served = Vec::new();
            let deadline = Instant::now() + Duration::from_secs(30);
            while served.len() < 4 {
                match listener.accept() {
                    Ok((mut stream, _)) => {
                        stream.write_all(b"220\r\n").unwrap();
                        served.push(stream);
                    }
                    Err(error) => {
                        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
                        assert!(Instant::now() < deadline, "{} are accepted", served.len());
                        thread::sleep(Duration::from_millis(1));
                    }
                }
            }
            // The refused ones are reset, and need no timeout for it; this one only ends the test.
            let results: Vec<io::Result<usize>> = clients
                .iter_mut()
                .map(|client| {
                    client
                        .set_read_timeout(Some(Duration::from_secs(30)))
                        .unwrap();
                    client.read(&mut [0; 8])
                })
                .collect();
            let case = format!("{attach}, {more}, {address}: {results:?}");
            let greeted = results.iter().filter(|it| matches!(it, Ok(5))).count();
            let reset = results.iter().flat_map(|it| it.as_ref().err());
            let reset = reset.filter(|error| error.kind() == io::ErrorKind::ConnectionReset);
            assert_eq!(
                (greeted, greeted + reset.count()),
                (4, results.len()),
                "{case}"
            );
        }
    }
}
