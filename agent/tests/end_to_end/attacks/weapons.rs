//! Packets in a victim's name that would make Weir ban the victim, or use up its allowance.

use std::thread;
use std::time::Duration;

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

/// To a closed port, and while the kernel has no cookies in use: such SYNs are charged, since they may be forwarded.
pub fn syns_without_a_proof_ban_nobody() {
    for (prove, cookies, port) in [("\"always\"", "2", 81), ("true", "1", PORT)] {
        let network = network(cookies, "native");
        let limits = format!(
            "[[limit]]\nname = \"web\"\nprotocol = \"tcp\"\nunit = \"connections\"\nrate = \"20/day\"\nburst = 20\n\
             prove = {prove}\n{ESCALATE}\n"
        );
        let agent = network.start("attach = \"native\"", &limits);
        let _listener = listen(&network, PORT);
        burst(&network, &[forged(port, SYN, 5, b"")], 300);
        assert_eq!(agent.counts("web"), (20, 280), "{prove}");
        assert!(bans_nobody(&agent), "{prove}");
    }
}

/// Heads of requests: without a connection, and on one.
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
