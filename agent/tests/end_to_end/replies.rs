//! Replies to refused packets: valid whatever the offloads, and in nobody else's name.

use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::{Duration, Instant};

use common::packet::build::Frame;
use testbed::tests;
use testbed::trials::{Test, is_quick};
use testbed::wait::PATIENCE;

use crate::support::{CLIENT_MAC, INTERFACE, Network, SERVER, SERVER_MAC};
use crate::tcp::Offload;
use crate::traffic::burst;

pub const ON_ANY_KERNEL: &[Test] = tests![replies_are_valid_whatever_the_offloads];
pub const ON_KERNELS: &[Test] = tests![
    no_reply_is_sent_in_another_hosts_name,
    an_address_that_is_added_later_is_answered_for,
];

const SYN: u8 = 2;
const CLIENT6: &str = "fd77::2";

fn nsenter(namespace: &str, arguments: &[&str]) {
    let namespace = format!("--net=/run/netns/{namespace}");
    let output = Command::new("nsenter")
        .arg(&namespace)
        .args(arguments)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{arguments:?}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
}

/// The client kernel's counters of a protocol.
fn counted(network: &Network, protocol: &str, name: &str) -> u64 {
    network.in_client(|| {
        let text = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
        let prefix = format!("{protocol}: ");
        let mut lines = text
            .lines()
            .filter_map(|line| line.strip_prefix(prefix.as_str()));
        let column = lines
            .next()
            .unwrap()
            .split(' ')
            .position(|column| column == name)
            .unwrap();
        lines
            .next()
            .unwrap()
            .split(' ')
            .nth(column)
            .unwrap()
            .parse()
            .unwrap()
    })
}

/// Its counters of IPv6.
fn counted6(network: &Network, name: &str) -> u64 {
    network.in_client(|| {
        let text = std::fs::read_to_string("/proc/thread-self/net/snmp6").unwrap();
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        line.split_whitespace().last().unwrap().parse().unwrap()
    })
}

fn is_refused(network: &Network, address: &str) {
    let address: SocketAddr = address.parse().unwrap();
    let start = Instant::now();
    let error = network
        .in_client(|| TcpStream::connect_timeout(&address, Duration::from_secs(30)))
        .unwrap_err();
    assert_eq!(
        error.kind(),
        ErrorKind::ConnectionRefused,
        "{address}: {error} after {:?}",
        start.elapsed()
    );
}

fn is_prohibited(network: &Network, from: &str, to: &str) {
    let socket = network.in_client(|| UdpSocket::bind((from, 0)).unwrap());
    socket.connect(to).unwrap();
    socket.send(b"refused").unwrap();
    socket
        .set_read_timeout(Some(Duration::from_secs(300)))
        .unwrap();
    let error = socket.recv(&mut [0; 16]).unwrap_err();
    let expected = if to.starts_with('[') {
        libc::EACCES
    } else {
        libc::EHOSTUNREACH
    };
    assert_eq!(error.raw_os_error(), Some(expected), "{to}: {error}");
}

fn replies_are_valid_whatever_the_offloads() {
    let limits = "[[limit]]\nname = \"tcp\"\nprotocol = \"tcp\"\nrate = \"1/day\"\naction = \"reject\"\n\
                  [[limit]]\nname = \"udp\"\nprotocol = \"udp\"\nrate = \"1/day\"\naction = \"reject\"\n";
    for attach in ["native", "generic", "tc"] {
        let network = Network::new();
        network.in_client(|| {
            std::fs::write("/proc/sys/net/ipv6/conf/client0/disable_ipv6", "0").unwrap();
        });
        nsenter(
            network.client(),
            &[
                "ip",
                "addr",
                "add",
                &format!("{CLIENT6}/64"),
                "dev",
                "client0",
                "nodad",
            ],
        );
        if attach == "native" {
            network.accept_xdp_frames();
        }
        let agent = network.start(&format!("attach = {attach:?}"), limits);
        // The one of each that passes.
        for (from, to) in [("10.77.0.2", "10.77.0.1:9000"), (CLIENT6, "[fd77::1]:9000")] {
            is_refused(&network, to);
            let socket = network.in_client(|| UdpSocket::bind((from, 0)).unwrap());
            socket.send_to(b"passes", to).unwrap();
        }
        for (client, server) in [(true, true), (true, false), (false, true), (false, false)] {
            network.in_client(|| Offload::Checksum.set("client0", client));
            network.in_server(|| Offload::Checksum.set(INTERFACE, server));
            let before = agent.counts("tcp").1 + agent.counts("udp").1;
            let retransmitted = || counted(&network, "Tcp", "RetransSegs");
            let again = retransmitted();
            is_refused(&network, "10.77.0.1:9000");
            is_refused(&network, "[fd77::1]:9000");
            is_prohibited(&network, "10.77.0.2", "10.77.0.1:9000");
            is_prohibited(&network, CLIENT6, "[fd77::1]:9000");
            // One packet each: no sender had to try again, unless the machine kept it from its reply.
            let (refused, again) = (
                agent.counts("tcp").1 + agent.counts("udp").1 - before,
                retransmitted() - again,
            );
            assert!(
                (4..=4 + again).contains(&refused),
                "{attach}, {client}, {server}: {refused}, {again}"
            );
            let wrong = [
                counted(&network, "Tcp", "InCsumErrors"),
                counted(&network, "Icmp", "InCsumErrors"),
                counted6(&network, "Icmp6InCsumErrors"),
            ];
            assert_eq!(
                wrong, [0; 3],
                "{attach}, the client's offload {client}, the server's {server}"
            );
        }
    }
}

/// How many resets the client's kernel gets in answer to a hundred attempts, of which at least so many are to come.
fn resets(network: &Network, device: [u8; 6], to: [u8; 4], at_least: u64) -> u64 {
    let received = || counted(network, "Tcp", "InSegs");
    let before = received();
    let syn = Frame::between(CLIENT_MAC, device)
        .ipv4([10, 77, 0, 2], to)
        .tcp(4_000, 9_000, SYN, b"")
        .build();
    burst(network, &[syn], 100);
    // On a busy machine some of them are on their way still.
    let start = Instant::now();
    while received() - before < at_least && start.elapsed() < PATIENCE {
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut count = received();
    loop {
        std::thread::sleep(Duration::from_millis(50));
        match received() {
            now if now == count => return count - before,
            now => count = now,
        }
    }
}

fn no_reply_is_sent_in_another_hosts_name() {
    const OTHER_MAC: [u8; 6] = [2, 0, 0, 0, 0x77, 9];
    let limit = "[[limit]]\nname = \"c\"\nunit = \"connections\"\nrate = \"1/h\"\nburst = 1\naction = \"reject\"\n";
    // A host that forwards has more to get wrong.
    let settings: &[_] = if is_quick() { &["1"] } else { &["0", "1"] };
    for attach in ["native", "generic", "tc"] {
        for forwards in settings {
            let network = Network::new();
            if attach == "native" {
                network.accept_xdp_frames();
            }
            network
                .in_server(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", forwards).unwrap());
            nsenter(
                network.server(),
                &["ip", "link", "set", INTERFACE, "promisc", "on"],
            );
            let agent = network.start(&format!("attach = {attach:?}"), limit);
            // The limit's one packet: the server's own stack has nobody who listens.
            assert_eq!(resets(&network, SERVER_MAC, SERVER, 100), 100, "{attach}");
            assert_eq!(
                resets(&network, SERVER_MAC, [10, 77, 0, 9], 0),
                0,
                "{attach}, to be forwarded: {forwards}"
            );
            assert_eq!(
                resets(&network, OTHER_MAC, SERVER, 0),
                0,
                "{attach}, on its way to another device"
            );
            assert_eq!(
                resets(&network, OTHER_MAC, [10, 77, 0, 9], 0),
                0,
                "{attach}, on its way to another host"
            );
            // Refused all the same.
            assert_eq!(agent.counts("c"), (1, 399), "{attach}");
        }
    }
}

fn an_address_that_is_added_later_is_answered_for() {
    let network = Network::new();
    let limit = "[[limit]]\nname = \"c\"\nunit = \"connections\"\nrate = \"1/h\"\nburst = 1\naction = \"reject\"\n";
    let _agent = network.start("attach = \"tc\"", limit);
    let listener = network.in_server(|| TcpListener::bind("10.77.0.1:9000").unwrap());
    let kept = network.in_client(|| TcpStream::connect("10.77.0.1:9000").unwrap());
    assert_eq!(resets(&network, SERVER_MAC, [10, 77, 0, 5], 0), 0);
    network.configure_server(INTERFACE, "10.77.0.5/16");
    let deadline = Instant::now() + Duration::from_secs(300);
    while resets(&network, SERVER_MAC, [10, 77, 0, 5], 0) == 0 {
        assert!(Instant::now() < deadline, "not answered for in time");
        std::thread::sleep(Duration::from_millis(50));
    }
    nsenter(
        network.server(),
        &["ip", "addr", "del", "10.77.0.5/16", "dev", INTERFACE],
    );
    while resets(&network, SERVER_MAC, [10, 77, 0, 5], 0) != 0 {
        assert!(Instant::now() < deadline, "answered for after a minute");
        std::thread::sleep(Duration::from_millis(50));
    }
    drop((listener, kept));
}
