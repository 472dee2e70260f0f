//! Packets in a victim's name that would make Weir ban the victim, or use up its allowance.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use testbed::wait::PATIENCE;

use super::peer::{ACK, FIRST, PORT, Peer, SYN, limit, listen};
use crate::prove::{network, proofs};
use crate::support::{Agent, CLIENT_MAC, Network, SERVER, SERVER_MAC, SERVER6};
use crate::traffic::burst;
use common::packet::build::Frame;

const HOOKS: [&str; 2] = ["native", "tc"];
const VICTIM: [u8; 4] = [10, 77, 9, 9];
const NAME: &str = "10.77.9.9";
const ESCALATE: &str = "escalate = { after = 100, within = \"1h\", ban = \"5m\" }";
/// The agent bans within a second of the last refusal.
const BANS_WITHIN: Duration = Duration::from_secs(3);

/// A segment in the victim's name, whose header claims to have so many words.
fn forged(port: u16, flags: u8, words: u8, payload: &[u8]) -> Vec<u8> {
    let frame = Frame::between(CLIENT_MAC, SERVER_MAC).ipv4(VICTIM, SERVER);
    let mut bytes = frame.tcp(4_000, port, flags, payload).build();
    bytes[14 + 20 + 12] = words << 4;
    // A sum with another word is another sum.
    let sum = u16::from_be_bytes([bytes[50], bytes[51]]);
    let more = u16::from(words.wrapping_sub(5)) << 12;
    let (sum, is_carried) = sum.overflowing_sub(more);
    bytes[50..52].copy_from_slice(&sum.wrapping_sub(u16::from(is_carried)).to_be_bytes());
    bytes
}

/// Nobody is banned, after the time within which somebody would be.
fn bans_nobody(agent: &Agent<'_>) -> bool {
    thread::sleep(BANS_WITHIN);
    agent.json(&["bans"]).as_array().unwrap().is_empty()
}

/// A header of four words, or of fifteen of which the packet has five: with and without the padding that a link adds.
pub fn syns_that_the_kernel_drops_are_charged_to_nobody() {
    for attach in HOOKS {
        let network = network("2", attach);
        let limits = limit(&format!(
            "rate = \"20/day\"\nburst = 20\nprove = \"always\"\n{ESCALATE}"
        ));
        let agent = network.start(&format!("attach = {attach:?}"), &limits);
        let _listener = listen(&network, PORT);
        let mut padded = forged(PORT, SYN, 15, b"");
        padded.resize(60, 0);
        let frames = [
            forged(PORT, SYN, 4, b""),
            forged(PORT, SYN, 15, b""),
            padded,
        ];
        burst(&network, &frames, 300);
        assert_eq!(
            (agent.counts("web"), proofs(&agent, "syns_refused")),
            ((0, 0), 300),
            "{attach}"
        );
        assert!(bans_nobody(&agent), "{attach}");
        // A source that has proven its address is banned for what it does.
        let peer = Peer::new(&network, true, 7);
        let acks: Vec<Vec<u8>> = peer
            .handshakes(&|frame| frame, 20_000..20_150)
            .iter()
            .map(|(port, cookie)| {
                let numbers = (FIRST + 1, cookie.wrapping_add(1));
                peer.tcp(&|frame| frame, *port, ACK, numbers, b"")
            })
            .collect();
        peer.send(&acks);
        agent.wait_for("the ban", |_| agent.is_banned("10.77.5.7"));
    }
}

/// While the kernel has no cookies in use. Such SYNs are charged.
pub fn syns_without_a_proof_ban_nobody() {
    let network = network("1", "native");
    let limits = on_all_ports(&format!(
        "rate = \"20/day\"\nburst = 20\nprove = true\n{ESCALATE}"
    ));
    let agent = network.start("attach = \"native\"", &limits);
    let _listener = listen(&network, PORT);
    burst(&network, &[forged(PORT, SYN, 5, b"")], 300);
    assert_eq!(agent.counts("web"), (20, 280));
    assert!(bans_nobody(&agent));
}

fn on_all_ports(more: &str) -> String {
    format!("[[limit]]\nname = \"web\"\nprotocol = \"tcp\"\nunit = \"connections\"\n{more}\n")
}

/// By no limit on connections, so that an honest client learns at once that nobody listens; by one on packets they are.
pub fn syns_to_a_closed_port_are_charged_to_nobody() {
    for (attach, prove, cookies) in [
        ("native", "\"always\"", "2"),
        ("tc", "\"always\"", "2"),
        ("native", "true", "1"),
    ] {
        let network = network(cookies, attach);
        let limits = on_all_ports(&format!(
            "rate = \"1/day\"\nburst = 1\nprove = {prove}\n{ESCALATE}\n[[limit]]\nname = \"packets\"\n\
             protocol = \"tcp\"\nrate = \"200/day\"\nburst = 200"
        ));
        let agent = network.start(&format!("attach = {attach:?}"), &limits);
        let what = format!("{attach}, {prove}");
        burst(&network, &[forged(81, SYN, 5, b"")], 300);
        assert_eq!(
            (agent.counts("web"), proofs(&agent, "syns_to_closed_ports")),
            ((0, 0), 300),
            "{what}"
        );
        assert_eq!(agent.counts("packets"), (200, 100), "{what}");
        for port in 90..95 {
            let refused = network.in_client(|| {
                let to = SocketAddr::from((SERVER, port));
                TcpStream::connect_timeout(&to, PATIENCE).unwrap_err()
            });
            assert_eq!(refused.kind(), ErrorKind::ConnectionRefused, "{what}");
        }
        assert_eq!(agent.counts("web"), (0, 0), "{what}");
        assert!(bans_nobody(&agent), "{what}");
    }
}

/// Neither are they challenged: no host that has the address would know of the connection.
pub fn syns_that_the_kernel_drops_are_not_challenged() {
    for attach in HOOKS {
        let network = network("2", attach);
        let limits = on_all_ports("rate = \"20/day\"\nburst = 20\nprove = \"reset\"");
        let agent = network.start(&format!("attach = {attach:?}"), &limits);
        let mut cut = Frame::between(CLIENT_MAC, SERVER_MAC)
            .ipv6([0xfd; 16], SERVER6)
            .tcp(4_000, PORT, SYN, b"")
            .build();
        cut.truncate(14 + 40 + 14);
        cut[14 + 5] = 14;
        let frames = [forged(PORT, SYN, 4, b""), forged(PORT, SYN, 15, b""), cut];
        burst(&network, &frames, 300);
        let outcomes = ["syns_refused", "syns_challenged"].map(|name| proofs(&agent, name));
        assert_eq!(
            (outcomes, agent.counts("web")),
            ([300, 0], (0, 0)),
            "{attach}"
        );
        burst(&network, &[forged(PORT, SYN, 5, b"")], 300);
        assert_eq!(proofs(&agent, "syns_challenged"), 300, "{attach}");
    }
}

/// A neighbour can forge them. They are exempt within the allowance of gateways, and cannot have the gateway banned.
pub fn packets_in_a_gateways_name_have_a_limit() {
    const SENT: u64 = 4_000;
    let (burst_of_gateways, rate_of_gateways) = (1_000.0, 10_000.0);
    for attach in HOOKS {
        let network = Network::new();
        network.add_default_route(NAME);
        let agent = network.start(
            &format!("attach = {attach:?}"),
            &format!(
                "[[limit]]\nname = \"web\"\nprotocol = \"udp\"\nrate = \"10/s\"\nburst = 10\n{ESCALATE}\n"
            ),
        );
        assert_eq!(agent.json(&["status"])["protected"][0]["address"], NAME);
        let frame = Frame::between(CLIENT_MAC, SERVER_MAC)
            .ipv4(VICTIM, SERVER)
            .udp(4_000, 9, b"")
            .build();
        let began = Instant::now();
        burst(&network, &[frame], SENT as usize);
        let seconds = began.elapsed().as_secs_f64();
        let exempt = agent.json(&["status"])["bypass"]["never_limit"]
            .as_u64()
            .unwrap();
        let (passed, refused) = agent.counts("web");
        let what = format!("{attach}: {exempt} exempt, {passed} passed, {refused} in {seconds} s");
        assert_eq!(exempt + passed + refused, SENT, "{what}");
        let most = burst_of_gateways + rate_of_gateways * seconds;
        assert!(exempt >= 1_000 && exempt as f64 <= most + 1.0, "{what}");
        assert!(passed as f64 <= 10.0 + 10.0 * seconds + 1.0, "{what}");
        assert!(bans_nobody(&agent), "{what}");
    }
}

pub fn syns_in_a_gateways_name_have_to_be_proven() {
    for attach in HOOKS {
        let network = network("2", attach);
        network.add_default_route(NAME);
        let limits = limit("rate = \"20/day\"\nburst = 20\nprove = \"always\"");
        let agent = network.start(&format!("attach = {attach:?}"), &limits);
        let _listener = listen(&network, PORT);
        burst(&network, &[forged(PORT, SYN, 5, b"")], 300);
        assert_eq!(
            (agent.counts("web"), proofs(&agent, "syns_answered")),
            ((0, 0), 300),
            "{attach}"
        );
    }
}

/// Request lines: without a connection, and on one.
pub fn single_segments_ban_nobody_and_those_of_a_connection_do() {
    const REQUEST: &[u8] = b"GET / HTTP/1.0\r\n\r\n";
    for attach in HOOKS {
        let network = Network::new();
        let limits = format!(
            "[[limit]]\nname = \"web\"\nprotocol = \"tcp\"\nunit = \"requests\"\nipv6_prefix = 128\n\
             rate = \"20/day\"\nburst = 20\n{ESCALATE}\n"
        );
        let agent = network.start(&format!("attach = {attach:?}"), &limits);
        let _listener = listen(&network, PORT);
        burst(&network, &[forged(PORT, ACK, 5, REQUEST)], 1_400);
        assert_eq!(agent.counts("web"), (20, 1_380), "{attach}");
        assert!(bans_nobody(&agent), "{attach}");
        for is_ipv4 in [true, false] {
            let peer = Peer::new(&network, is_ipv4, 7);
            let number = peer.handshakes(&|frame| frame, 20_000..20_001)[&20_000];
            let numbers = (FIRST + 1, number.wrapping_add(1));
            let ack = peer.tcp(&|frame| frame, 20_000, ACK, numbers, b"");
            let request = peer.tcp(&|frame| frame, 20_000, ACK, numbers, REQUEST);
            peer.send(&[ack]);
            peer.send(&vec![request; 200]);
            let name = if is_ipv4 { "10.77.5.7" } else { "fd77::5:7" };
            agent.wait_for("the ban", |_| agent.is_banned(name));
        }
        assert!(!agent.is_banned(NAME), "{attach}");
    }
}

/// Whatever the secret, sums of words times odd numbers are equal for two addresses that differ in the uppermost bits of both
/// halves. The table keeps addresses in network byte order: those bits are in the last byte of each half.
pub fn addresses_with_chosen_bits_share_no_allowance() {
    const VICTIM6: [u8; 16] = [0xfd, 0x77, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 9];
    for attach in HOOKS {
        let network = network("1", attach);
        let agent = network.start(
            &format!("attach = {attach:?}"),
            "[[limit]]\nname = \"web\"\nprotocol = \"udp\"\nipv6_prefix = 128\nrate = \"20/day\"\nburst = 20",
        );
        let frame = |source| {
            Frame::between(CLIENT_MAC, SERVER_MAC)
                .ipv6(source, SERVER6)
                .udp(4_000, 9, b"")
                .build()
        };
        let (mut both, mut upper, mut lower) = (VICTIM6, VICTIM6, VICTIM6);
        both[7] ^= 0x80;
        both[15] ^= 0x80;
        upper[7] ^= 0x80;
        lower[15] ^= 0x80;
        for (nth, source) in [both, upper, lower, VICTIM6].into_iter().enumerate() {
            burst(&network, &[frame(source)], 30);
            let sources = nth as u64 + 1;
            assert_eq!(
                agent.counts("web"),
                (20 * sources, 10 * sources),
                "{attach}"
            );
        }
    }
}
