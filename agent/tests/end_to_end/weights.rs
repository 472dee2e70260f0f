//! Buffers that stand for many packets: each hook weighs them as what they are on the wire.
//!
//! The measure is what the sender's TCP counts of its own packets, and the device's counters where no buffer has more
//! than one packet.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use nix::sys::socket::{setsockopt, sockopt};
use testbed::tests;
use testbed::trials::{Test, is_quick};

use crate::support::{Agent, INTERFACE, Network};
use crate::tcp::{Info, Offload};

pub const ON_KERNELS: &[Test] = tests![
    a_merged_buffer_is_weighed_as_its_packets_by_traffic_control,
    a_buffer_that_is_cut_later_is_weighed_as_its_packets_on_egress,
];
pub const ON_ANY_KERNEL: &[Test] = tests![
    a_merged_buffer_is_weighed_as_its_packets_by_native_xdp,
    a_merged_buffer_is_weighed_as_its_packets_by_generic_xdp,
];

/// Needs the kernel's VXLAN.
pub const WITH_VXLAN: &[Test] = tests![a_buffer_in_a_tunnel_is_weighed_with_its_inner_headers,];

fn a_merged_buffer_is_weighed_as_its_packets_by_native_xdp() {
    ingress("native");
}

fn a_merged_buffer_is_weighed_as_its_packets_by_generic_xdp() {
    ingress("generic");
}

fn a_merged_buffer_is_weighed_as_its_packets_by_traffic_control() {
    ingress("tc");
}

const TRANSFER: usize = 4 << 20;
/// Link, IPv4 and TCP header with timestamps, and what a SYN's options have more.
const HEADERS: u64 = 14 + 20 + 32;
const SYN: u64 = 8;

const ROOMY: &str = "unit = \"bytes\"\nrate = \"1GB/s\"\nburst = \"1GB\"\n";

#[derive(Clone, Copy, Debug)]
enum Offloads {
    /// As a device comes.
    Default,
    /// The receiver's device merges what the sender's sent packet by packet.
    Merged,
    None,
}

fn ingress(attach: &str) {
    let limit = format!("[[limit]]\nname = \"tcp\"\nprotocol = \"tcp\"\n{ROOMY}");
    let sizes: &[_] = if is_quick() {
        &[(Offloads::Default, 1_448), (Offloads::Merged, 1_448)]
    } else {
        &[
            (Offloads::Default, 1_448),
            (Offloads::Default, 536),
            (Offloads::Merged, 1_448),
            (Offloads::None, 1_448),
        ]
    };
    for &(offloads, mss) in sizes {
        let network = Network::new();
        // Native XDP takes segmentation away from the peer, which then cannot be switched.
        set_offloads(&network, "client0", INTERFACE, offloads);
        let agent = network.start(&format!("attach = {attach:?}"), &limit);
        assert_eq!(agent.json(&["status"])["interfaces"][0]["attach"], attach);
        let listener = network.in_server(|| TcpListener::bind("10.77.0.1:9000").unwrap());
        let what = format!("{attach} {offloads:?} {mss}");
        let arrived = received(&network);
        let sent = network.in_client(|| transfer(listener, "10.77.0.1:9000", mss));
        assert_weight(&agent, "tcp", sent, HEADERS, &what);
        if matches!(offloads, Offloads::None) {
            // No buffer had more than one packet. What else arrived is neighbour discovery.
            let packets = received(&network) - arrived;
            let passed = agent.counts("tcp").0;
            assert!(
                (passed..=passed + 8).contains(&packets),
                "{what}: the device counted {packets}, Weir {passed}"
            );
        }
        drop(agent);
        let config = network.config("", "");
        assert!(
            network
                .command(&["detach", "--config", config.to_str().unwrap()])
                .status
                .success()
        );
        datagrams(&network, attach);
    }
}

/// Buffers of datagrams that the sender's socket put together.
fn datagrams(network: &Network, attach: &str) {
    let limit = format!("[[limit]]\nname = \"udp\"\nprotocol = \"udp\"\n{ROOMY}");
    let agent = network.start(&format!("attach = {attach:?}"), &limit);
    let receiver = network.receiver(9001);
    let socket = network.in_client(|| UdpSocket::bind("10.77.0.2:0").unwrap());
    setsockopt(&socket, sockopt::UdpGsoSegment, &1_000).unwrap();
    for _ in 0..5 {
        socket.send_to(&[0; 9_500], "10.77.0.1:9001").unwrap();
    }
    assert_eq!(receiver.counts()[2], 50);
    assert_eq!(agent.counts("udp"), (50, 0), "{attach}");
    assert_eq!(
        agent.limit("udp")["passed"]["bytes"],
        5 * (9_500 + 10 * 42),
        "{attach}"
    );
}

fn a_buffer_that_is_cut_later_is_weighed_as_its_packets_on_egress() {
    let limit =
        format!("[[limit]]\nname = \"tcp\"\nprotocol = \"tcp\"\ndirection = \"egress\"\n{ROOMY}");
    for (offloads, mss) in [
        (Offloads::Default, 1_448),
        (Offloads::Default, 536),
        (Offloads::None, 1_448),
    ] {
        let network = Network::new();
        let agent = network.start("", &limit);
        set_offloads(&network, INTERFACE, "client0", offloads);
        let listener = network.in_client(|| TcpListener::bind("10.77.0.2:9000").unwrap());
        let sent = network.in_server(|| transfer(listener, "10.77.0.2:9000", mss));
        assert_weight(
            &agent,
            "tcp",
            sent,
            HEADERS,
            &format!("egress {offloads:?} {mss}"),
        );
    }
}

fn a_buffer_in_a_tunnel_is_weighed_with_its_inner_headers() {
    const OUTER: u64 = 14 + 20 + 8 + 8;
    let network = Network::new();
    network.add_vxlan();
    for (direction, attach) in [
        ("egress", "auto"),
        ("ingress", "native"),
        ("ingress", "generic"),
        ("ingress", "tc"),
    ] {
        let limit = format!(
            "[[limit]]\nname = \"udp\"\nprotocol = \"udp\"\ndirection = {direction:?}\n{ROOMY}"
        );
        let agent = network.start(&format!("attach = {attach:?}"), &limit);
        let before = agent.limit("udp")["passed"].clone();
        let sent = if direction == "egress" {
            let listener = network.in_client(|| TcpListener::bind("10.79.0.2:9000").unwrap());
            network.in_server(|| transfer(listener, "10.79.0.2:9000", 1_398))
        } else {
            let listener = network.in_server(|| TcpListener::bind("10.79.0.1:9000").unwrap());
            network.in_client(|| transfer(listener, "10.79.0.1:9000", 1_398))
        };
        assert_eq!(
            (before["packets"].as_u64(), before["bytes"].as_u64()),
            (Some(0), Some(0))
        );
        assert_weight(
            &agent,
            "udp",
            sent,
            OUTER + HEADERS,
            &format!("{direction} {attach}"),
        );
        drop(agent);
        let config = network.config("", "");
        assert!(
            network
                .command(&["detach", "--config", config.to_str().unwrap()])
                .status
                .success()
        );
    }
}

fn set_offloads(network: &Network, sender: &str, receiver: &str, offloads: Offloads) {
    let (is_sent_whole, is_merged) = match offloads {
        Offloads::Default => return,
        Offloads::Merged => (false, true),
        Offloads::None => (false, false),
    };
    let in_sender = |work: &(dyn Fn() + Sync)| {
        if sender == INTERFACE {
            network.in_server(work);
        } else {
            network.in_client(work);
        }
    };
    let in_receiver = |work: &(dyn Fn() + Sync)| {
        if sender == INTERFACE {
            network.in_client(work);
        } else {
            network.in_server(work);
        }
    };
    in_sender(&|| {
        Offload::Tso.set(sender, is_sent_whole);
        Offload::Gso.set(sender, is_sent_whole);
    });
    in_receiver(&|| Offload::Gro.set(receiver, is_merged));
}

/// Sends to a listener of the other namespace, and returns what the sender's TCP counts once all has arrived.
fn transfer(listener: TcpListener, to: &str, mss: u32) -> Info {
    let reader = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream
            .set_read_timeout(Some(Duration::from_secs(60)))
            .unwrap();
        let mut buffer = vec![0; 1 << 16];
        let mut left = TRANSFER;
        while left > 0 {
            left -= stream.read(&mut buffer).unwrap();
        }
        stream
    });
    let mut stream = crate::tcp::connect(to, mss).unwrap();
    stream
        .set_write_timeout(Some(Duration::from_secs(60)))
        .unwrap();
    stream.write_all(&vec![7; TRANSFER]).unwrap();
    let peer = reader.join().unwrap();
    let deadline = Instant::now() + Duration::from_secs(300);
    let info = loop {
        let info = Info::of(&stream);
        if info.unacknowledged == 0 {
            break info;
        }
        assert!(
            Instant::now() < deadline,
            "the last packet was not acknowledged: {info:?}"
        );
        std::thread::sleep(Duration::from_millis(5));
    };
    // Closed after it was counted: a reset at the end would be one more packet.
    keep_open(stream, peer);
    info
}

/// Leaves both ends open until the namespaces end: closing them would send packets that nobody has counted.
fn keep_open(stream: TcpStream, peer: TcpStream) {
    std::mem::forget((stream, peer));
}

fn assert_weight(agent: &Agent<'_>, limit: &str, sent: Info, headers: u64, what: &str) {
    let passed = agent.limit(limit)["passed"].clone();
    let (packets, bytes) = (
        passed["packets"].as_u64().unwrap(),
        passed["bytes"].as_u64().unwrap(),
    );
    // A device whose queue is full drops what the hook then never sees; TCP sends it again.
    let (again, _) = sent.retransmitted;
    // It may send two lost packets again as one, if both fit into a segment.
    assert!(
        (sent.packets - 2 * again..=sent.packets).contains(&packets),
        "{what}: {packets} packets of {sent:?}"
    );
    let payload = bytes - packets * headers - SYN;
    // All of it was acknowledged, so each byte has passed at least once.
    assert!(
        (TRANSFER as u64..=sent.bytes).contains(&payload),
        "{what}: {payload} bytes of {sent:?}"
    );
    assert!(
        sent.packets > TRANSFER as u64 / 1_500,
        "{what}: only {} packets were sent",
        sent.packets
    );
    assert!(
        again < sent.packets / 4,
        "{what}: too much was lost to compare: {sent:?}"
    );
}

/// Packets that the server's device has received.
fn received(network: &Network) -> u64 {
    let text = network.in_server(|| std::fs::read_to_string("/proc/thread-self/net/dev").unwrap());
    let row = text
        .lines()
        .find_map(|line| line.trim().strip_prefix(INTERFACE)?.strip_prefix(':'))
        .unwrap();
    row.split_whitespace().nth(1).unwrap().parse().unwrap()
}
