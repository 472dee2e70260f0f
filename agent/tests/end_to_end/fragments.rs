//! Packets that hide their ports, flags or protocol: in fragments, or behind extension headers.

use std::net::UdpSocket;

use common::packet::build::{Frame, MoreFragments};
use testbed::tests;
use testbed::trials::Test;

use crate::support::{Agent, CLIENT_MAC, Network, SERVER, SERVER_MAC, SERVER6};
use crate::traffic::{PORT, burst, v6};

pub const TESTS: &[Test] = tests![
    tiny_fragments_get_no_connection_past_its_limit,
    large_datagrams_in_fragments_pass,
    a_hidden_protocol_comes_under_the_limits_of_all,
    a_hidden_protocol_is_refused_where_limits_count_by_port,
    a_later_fragment_with_a_hidden_protocol_comes_under_all_limits,
];

const SYN: u8 = 2;
const CONNECTIONS: &str =
    "[[limit]]\nname = \"c\"\nunit = \"connections\"\nrate = \"1/h\"\nburst = 5\n";

fn link() -> Frame {
    Frame::between(CLIENT_MAC, SERVER_MAC)
}

fn malformed(agent: &Agent<'_>) -> u64 {
    agent.json(&["status"])["bypass"]["malformed"]
        .as_u64()
        .unwrap()
}

/// TCP segments that the server's kernel has received.
fn segments(network: &Network) -> u64 {
    network.in_server(|| crate::tcp::counted("InSegs"))
}

/// A connection attempt in two fragments, the first of which has `first` bytes of TCP.
fn syn_in_two(is_ipv4: bool, port: u16, first: usize) -> [Vec<u8>; 2] {
    let whole = if is_ipv4 {
        link()
            .ipv4([10, 77, 0, 2], SERVER)
            .tcp(port, PORT, SYN, &[0; 12])
            .build()[34..]
            .to_vec()
    } else {
        link()
            .ipv6(v6(0, 9), SERVER6)
            .tcp(port, PORT, SYN, &[0; 12])
            .build()[54..]
            .to_vec()
    };
    let part = |offset: usize, more, bytes: &[u8]| {
        let ip = if is_ipv4 {
            link().ipv4([10, 77, 0, 2], SERVER)
        } else {
            link().ipv6(v6(0, 9), SERVER6)
        };
        ip.fragment(offset as u16 / 8, more)
            .payload(6, bytes)
            .build()
    };
    let (head, tail) = whole.split_at(first);
    [
        part(0, MoreFragments::Yes, head),
        part(first, MoreFragments::No, tail),
    ]
}

fn tiny_fragments_get_no_connection_past_its_limit() {
    for attach in ["native", "tc"] {
        for is_ipv4 in [true, false] {
            let network = Network::new();
            let agent = network.start(&format!("attach = {attach:?}"), CONNECTIONS);
            let (before, refused) = (segments(&network), malformed(&agent));
            for port in 1_000..1_100 {
                burst(&network, &syn_in_two(is_ipv4, port, 8), 2);
            }
            assert_eq!(
                malformed(&agent) - refused,
                200,
                "{attach}, IPv4: {is_ipv4}"
            );
            for port in 2_000..2_100 {
                burst(&network, &syn_in_two(is_ipv4, port, 16), 2);
            }
            // The second one begins behind the flags and refers to a first one that is not there.
            assert_eq!(
                malformed(&agent) - refused,
                300,
                "{attach}, IPv4: {is_ipv4}"
            );
            assert_eq!(segments(&network), before, "{attach}, IPv4: {is_ipv4}");
            // With its whole header in the first fragment, a connection is counted as one.
            for port in 3_000..3_100 {
                burst(&network, &syn_in_two(is_ipv4, port, 24), 2);
            }
            assert_eq!(
                malformed(&agent) - refused,
                300,
                "{attach}, IPv4: {is_ipv4}"
            );
            assert_eq!(agent.counts("c").1, 95, "{attach}, IPv4: {is_ipv4}");
            assert!(
                segments(&network) - before <= 5,
                "{attach}, IPv4: {is_ipv4}"
            );
        }
    }
}

fn large_datagrams_in_fragments_pass() {
    for attach in ["native", "tc"] {
        let network = Network::new();
        let agent = network.start(&format!("attach = {attach:?}"), CONNECTIONS);
        let receiver = network.receiver(PORT);
        let socket = network.in_client(|| UdpSocket::bind("10.77.0.2:0").unwrap());
        for _ in 0..10 {
            socket.send_to(&[7; 9_001], ("10.77.0.1", PORT)).unwrap();
        }
        assert_eq!(receiver.counts()[2], 10, "{attach}");
        assert_eq!(malformed(&agent), 0, "{attach}");
    }
}

/// UDP behind more extension headers than are read. The host's own stack reads on.
fn hidden(port: u16) -> Vec<u8> {
    (0..9)
        .fold(link().ipv6(v6(0, 9), SERVER6), |frame, _| {
            frame.extension(60, &[0, 1, 4, 0, 0, 0, 0])
        })
        .udp(5_000, port, &[0; 22])
        .build()
}

fn a_hidden_protocol_comes_under_the_limits_of_all() {
    let limits = "[[limit]]\nname = \"tcp\"\nprotocol = \"tcp\"\nrate = \"1/h\"\nburst = 20\n\
                  [[limit]]\nname = \"udp\"\nprotocol = \"udp\"\nports = [9000]\nrate = \"1/h\"\nburst = 10\n";
    for attach in ["native", "tc"] {
        let network = Network::new();
        let agent = network.start(&format!("attach = {attach:?}"), limits);
        let socket = network.in_server(|| UdpSocket::bind(("fd77::1", PORT)).unwrap());
        burst(&network, &[hidden(PORT)], 100);
        assert_eq!(agent.counts("udp"), (10, 90), "{attach}");
        assert_eq!(agent.counts("tcp").0, 10, "{attach}");
        socket
            .set_read_timeout(Some(std::time::Duration::from_secs(1)))
            .unwrap();
        let received = std::iter::from_fn(|| socket.recv(&mut [0; 64]).ok()).count();
        assert_eq!(received, 10, "{attach}: the host does read on");
    }
}

fn a_hidden_protocol_is_refused_where_limits_count_by_port() {
    let network = Network::new();
    let agent = network
        .start("", "[[limit]]\nname = \"p\"\nprotocol = \"udp\"\nkey = \"source-port\"\nrate = \"1/h\"\nburst = 10\n");
    burst(&network, &[hidden(PORT)], 100);
    assert_eq!((malformed(&agent), agent.counts("p")), (100, (0, 0)));
}

fn a_later_fragment_with_a_hidden_protocol_comes_under_all_limits() {
    let network = Network::new();
    let agent = network.start(
        "",
        "[[limit]]\nname = \"udp\"\nprotocol = \"udp\"\nrate = \"1/h\"\nburst = 10\n",
    );
    let later = link()
        .ipv6(v6(0, 9), SERVER6)
        .fragment(1, MoreFragments::No)
        .empty_extension(60)
        .udp(1, 2, &[0; 22]);
    burst(&network, &[later.build()], 100);
    assert_eq!(agent.counts("udp"), (10, 90));
}
