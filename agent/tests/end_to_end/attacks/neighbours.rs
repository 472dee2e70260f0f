//! Floods of ARP, neighbour discovery and DHCP, and what they leave of others' requests.

use std::collections::BTreeSet;
use std::os::fd::AsRawFd as _;

use common::packet::build::Frame;

use crate::support::{CLIENT_MAC, INTERFACE, Network, SERVER, SERVER_MAC, SERVER6};
use crate::traffic::v6;
use crate::wire;

const HOOKS: [&str; 2] = ["native", "tc"];
const HONEST: u8 = 80;
/// Packets of the flood before each honest one: in all, several times what an interface passes meanwhile.
const FLOOD: u16 = 500;
/// Senders that share the flood's allowance by chance, each with a probability of 1 in 1,024: more of 80 do with one of 3e-10.
const UNLUCKY: u64 = 5;

/// The hardware address of a sender that is not the flood's.
const fn mac(last: u8) -> [u8; 6] {
    [2, 0, 0x88, 0, 0, last]
}

/// A request for the server's address.
fn arp(from: [u8; 6], address: [u8; 4]) -> Vec<u8> {
    let mut request = vec![0, 1, 8, 0, 6, 4, 0, 1];
    request.extend(from.iter().chain(&address));
    request.extend([0; 6].iter().chain(&SERVER));
    Frame::between(from, SERVER_MAC)
        .other(0x0806, &request)
        .build()
}

/// The flood, and in between one packet of each honest sender.
fn mixed(flood: impl Fn(u16) -> Vec<u8>, honest: impl Fn(u8) -> Vec<u8>) -> Vec<Vec<u8>> {
    let part = |nth| {
        let first = FLOOD * u16::from(nth);
        let mut part: Vec<Vec<u8>> = (first..first + FLOOD).map(&flood).collect();
        part.push(honest(nth));
        part
    };
    (1..=HONEST).flat_map(part).collect()
}

/// The last octets of the honest senders to whose addresses the server has replied.
fn answered(network: &Network, frames: &[Vec<u8>]) -> BTreeSet<u8> {
    let tap = network.in_client(|| wire::tap(64 << 20));
    network.send_on(("client0", INTERFACE), frames);
    let mut answered = BTreeSet::new();
    let mut frame = [0u8; 2048];
    while answered.len() < usize::from(HONEST) {
        let Ok(length) = nix::sys::socket::recv(
            tap.as_raw_fd(),
            &mut frame,
            nix::sys::socket::MsgFlags::empty(),
        ) else {
            break;
        };
        // A reply from the server.
        let is_reply =
            length >= 42 && frame[6..14] == [&SERVER_MAC[..], &[8, 6]].concat() && frame[21] == 2;
        if is_reply && frame[..5] == mac(0)[..5] {
            answered.insert(frame[5]);
        }
    }
    answered
}

pub fn a_flood_of_arp_from_one_sender_leaves_others_answered() {
    for attach in HOOKS {
        let network = Network::new();
        let limit = "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\n";
        let _agent = network.start(&format!("attach = {attach:?}"), limit);
        let flood = arp(CLIENT_MAC, [10, 77, 8, 8]);
        let frames = mixed(|_| flood.clone(), |nth| arp(mac(nth), [10, 77, 6, nth]));
        let answered = answered(&network, &frames).len() as u64;
        assert!(
            answered + UNLUCKY >= u64::from(HONEST),
            "{attach}: {answered} of {HONEST}"
        );
    }
}

/// The kernel replies to all of them: 40 a place of 1,024, each of which passes 100 at once.
pub fn arp_from_made_up_senders_passes_up_to_the_allowances_of_all() {
    for attach in HOOKS {
        let network = Network::new();
        let limit = "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\n";
        let agent = network.start(&format!("attach = {attach:?}"), limit);
        let made_up = |nth: u16| {
            let [b, c] = nth.to_be_bytes();
            arp([2, 0, 0x99, 0, b, c], [10, 77, 8, 8])
        };
        let frames = mixed(made_up, |nth| arp(mac(nth), [10, 77, 6, nth]));
        let answered = answered(&network, &frames);
        assert_eq!(answered.len(), usize::from(HONEST), "{attach}");
        let bypass = agent.json(&["status"])["bypass"].clone();
        assert_eq!(bypass["essential_throttled"], 0, "{attach}: {bypass}");
    }
}

/// A packet from a hardware address, and from a source.
type Kind = fn([u8; 6], u8) -> Vec<u8>;

/// Above its allowances, such a packet is charged to its source.
pub fn a_flood_of_discovery_or_dhcp_from_one_sender_leaves_others_theirs() {
    let dhcp: Kind = |from, last| {
        Frame::between(from, SERVER_MAC)
            .ipv4([10, 77, 6, last], SERVER)
            .udp(67, 68, &[0; 240])
            .build()
    };
    let discovery: Kind = |from, last| {
        Frame::between(from, SERVER_MAC)
            .ipv6(v6(last, 1), SERVER6)
            .hops(255)
            .icmp(135)
            .build()
    };
    let kinds: [(&str, Kind); 2] = [("dhcp", dhcp), ("neighbour discovery", discovery)];
    for attach in HOOKS {
        for (kind, packet) in kinds {
            let network = Network::new();
            let limit = "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 1\n";
            let agent = network.start(&format!("attach = {attach:?}"), limit);
            let flood = packet(CLIENT_MAC, 200);
            let frames = mixed(|_| flood.clone(), |nth| packet(mac(nth), nth));
            network.send_on(("client0", INTERFACE), &frames);
            // One of the flood's, and one of each source that came under the limit.
            let (passed, refused) = agent.counts("packets");
            assert!(passed <= 1 + UNLUCKY, "{attach}, {kind}: {passed}");
            assert!(refused > 0, "{attach}, {kind}");
        }
    }
}
