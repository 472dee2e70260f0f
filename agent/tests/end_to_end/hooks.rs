//! Where packets are held: by traffic control, on their way out, on tunnels, in several buffers.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use common::packet::build::Frame;
use nix::sys::signal::Signal;
use nix::sys::socket::{setsockopt, sockopt};
use testbed::tests;
use testbed::trials::{Test, is_quick};

use crate::foreign::Place;
use crate::support::{CLIENT_MAC, INTERFACE, Network, SERVER, SERVER_MAC};
use crate::traffic::{LIMIT, PORT, burst, udp_from};

pub const TESTS: &[Test] = tests![
    traffic_control_holds_what_xdp_would,
    tags_hide_no_source_from_traffic_control,
    egress_is_limited_by_destination,
    a_buffer_counts_as_its_later_segments,
    a_request_that_leaves_is_seen_though_it_lies_apart_from_its_headers,
    a_tunnel_without_an_ethernet_header_is_limited,
    tc_replaces_unsupported_xdp_and_status_reports_it,
    frames_in_several_buffers_count_whole,
    changing_the_hook_leaves_one_of_them,
];

const SLOW: &str = "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 100\n";

fn traffic_control_holds_what_xdp_would() {
    let network = Network::new();
    let agent = network.start("attach = \"tc\"", SLOW);
    assert_eq!(agent.json(&["status"])["interfaces"][0]["attach"], "tc");
    assert!(!network.has_program(), "no XDP program is there");
    let receiver = network.receiver(PORT);
    burst(&network, &[udp_from(7)], 150);
    assert_eq!(agent.counts("packets"), (100, 50));
    assert_eq!(receiver.counts()[7], 100);
    assert_eq!(
        agent.limit("packets")["passed"]["bytes"].as_u64(),
        Some(100 * udp_from(7).len() as u64)
    );
    // Its limits stay in effect, and the next agent takes them over.
    agent.stop(Signal::SIGKILL);
    burst(&network, &[udp_from(7), udp_from(8)], 300);
    let counts = receiver.counts();
    assert_eq!((counts[7], counts[8]), (0, 100));
    let agent = network.start("attach = \"tc\"", SLOW);
    burst(&network, &[udp_from(7), udp_from(8)], 20);
    assert_eq!(agent.counts("packets"), (200, 270));
    agent.stop(Signal::SIGTERM);
    assert!(
        network
            .command(&[
                "detach",
                "--config",
                network.config("", SLOW).to_str().unwrap()
            ])
            .status
            .success()
    );
    burst(&network, &[udp_from(7)], 20);
    assert_eq!(receiver.counts()[7], 20, "nothing is held any more");
}

fn tags_hide_no_source_from_traffic_control() {
    let network = Network::new();
    let agent = network.start(
        "attach = \"tc\"",
        "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 10\n",
    );
    let link = || Frame::between(CLIENT_MAC, SERVER_MAC);
    for (last, tagged) in [
        (1, link()),
        (2, link().vlan(5)),
        (3, link().tag(0x88a8, 5).vlan(6)),
        (4, link().vlan(1).vlan(2).vlan(3)),
    ] {
        let (passed, throttled) = agent.counts("packets");
        burst(
            &network,
            &[tagged
                .ipv4([10, 77, 1, last], SERVER)
                .udp(1, 2, &[0; 64])
                .build()],
            30,
        );
        let (passed_now, throttled_now) = agent.counts("packets");
        assert_eq!(
            (passed_now - passed, throttled_now - throttled),
            (10, 20),
            "source {last}"
        );
    }
}

/// A socket of the server's.
fn server_socket(network: &Network) -> UdpSocket {
    network.in_server(|| UdpSocket::bind("10.77.0.1:0").unwrap())
}

fn egress_is_limited_by_destination() {
    let network = Network::new();
    network.add_client_address("10.77.0.3/16");
    let agent = network.start(
        "",
        "[[class]]\nname = \"partner\"\nsources = [\"10.77.0.3\"]\nmultiplier = 3\n\
         [[limit]]\nname = \"answers\"\ndirection = \"egress\"\nrate = \"1/h\"\nburst = 10\nprotocol = \"udp\"\n\
         [[limit]]\nname = \"calls\"\nrate = \"1/h\"\nburst = 20\nprotocol = \"udp\"\n",
    );
    let receivers =
        ["10.77.0.2:9000", "10.77.0.3:9000"].map(|address| network.client_receiver(address));
    let socket = server_socket(&network);
    for address in ["10.77.0.2:9000", "10.77.0.3:9000"] {
        for _ in 0..50 {
            // The sender may get an error for refused packets: this test is not about that.
            let _ = socket.send_to(b"answer", address);
        }
    }
    assert_eq!(receivers.map(|receiver| receiver.counts()[1]), [10, 30]);
    assert_eq!(agent.counts("answers"), (40, 60));
    assert_eq!(agent.limit("answers")["key"], "destination");
    // The directions have limits of their own, and the table keeps them apart.
    assert_eq!(agent.counts("calls"), (0, 0));
    burst(&network, &[udp_from(2)], 50);
    assert_eq!(
        (agent.counts("calls"), agent.counts("answers")),
        ((20, 30), (40, 60))
    );
    let shown = agent.json(&["show", "10.77.0.3"]);
    assert_eq!(shown["class"], "partner");
    let limits = shown["limits"].as_array().unwrap();
    let answers = limits
        .iter()
        .find(|limit| limit["name"] == "answers")
        .unwrap();
    assert_eq!(
        (&answers["remaining"], &answers["passed_packets"]),
        (&0.into(), &30.into())
    );
    // Forgetting one limit leaves the other.
    assert_eq!(agent.json(&["reset", "--limit", "answers"])["forgotten"], 2);
    for _ in 0..50 {
        let _ = socket.send_to(b"answer", "10.77.0.2:9000");
    }
    burst(&network, &[udp_from(2)], 50);
    assert_eq!(
        (agent.counts("calls"), agent.counts("answers")),
        ((20, 80), (50, 100))
    );
    assert!(
        !network
            .command(&["reset", "--limit", "answer"])
            .status
            .success()
    );
}

fn a_buffer_counts_as_its_later_segments() {
    let network = Network::new();
    let agent = network.start(
        "",
        "[[limit]]\nname = \"packets\"\ndirection = \"egress\"\nrate = \"1/h\"\nburst = 35\nprotocol = \"udp\"\n",
    );
    let receiver = network.client_receiver("10.77.0.2:9000");
    let socket = server_socket(&network);
    setsockopt(&socket, sockopt::UdpGsoSegment, &1_000).unwrap();
    for _ in 0..5 {
        let _ = socket.send_to(&[0; 10_000], "10.77.0.2:9000");
    }
    // Three buffers of ten packets fit into 35, a fourth does not.
    assert_eq!(agent.counts("packets"), (30, 20));
    assert_eq!(agent.limit("packets")["passed"]["bytes"], 30 * 1_042);
    assert_eq!(receiver.counts()[1], 30);
}

fn a_request_that_leaves_is_seen_though_it_lies_apart_from_its_headers() {
    let network = Network::new();
    let agent = network.start(
        "",
        "[[limit]]\nname = \"calls\"\ndirection = \"egress\"\nrate = \"1/h\"\nburst = 100\nunit = \"requests\"\n",
    );
    let listener = network.in_client(|| TcpListener::bind("10.77.0.2:9000").unwrap());
    let mut stream = network.in_server(|| TcpStream::connect("10.77.0.2:9000").unwrap());
    let (mut peer, _) = listener.accept().unwrap();
    stream.set_nodelay(true).unwrap();
    peer.set_read_timeout(Some(Duration::from_secs(300)))
        .unwrap();
    // The stack keeps a segment's payload apart from its headers. One at a time, so that each begins a segment.
    for text in [
        "GET / HTTP/1.1\r\n\r\n",
        "neither a request\r\n",
        "PUT /a HTTP/1.1\r\n\r\n",
    ] {
        stream.write_all(text.as_bytes()).unwrap();
        let mut buffer = vec![0; text.len()];
        peer.read_exact(&mut buffer).unwrap();
    }
    assert_eq!(agent.counts("calls"), (2, 0));
}

fn a_tunnel_without_an_ethernet_header_is_limited() {
    let network = Network::new();
    let mut tunnel = network.in_server(|| crate::wire::tunnel("weirtun"));
    network.configure_server("weirtun", "10.78.0.1/24");
    let native = network.config_on(&["weirtun"], "attach = \"native\"", SLOW);
    let output = network.run_to_end(&native);
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("no Ethernet header"),
        "{output:?}"
    );
    let agent = network.start_on(&["weirtun"], "", SLOW);
    let status = agent.json(&["status"]);
    assert_eq!(status["interfaces"][0]["attach"], "tc");
    assert!(
        status["notes"][0]
            .as_str()
            .unwrap()
            .contains("no Ethernet header"),
        "{status}"
    );
    let receiver = network.receiver(PORT);
    let packet = Frame::raw()
        .ipv4([10, 78, 0, 7], [10, 78, 0, 1])
        .udp(5000, PORT, &[0; 22])
        .build();
    for _ in 0..150 {
        tunnel.write_all(&packet).unwrap();
    }
    assert_eq!(receiver.counts()[7], 100);
    assert_eq!(agent.counts("packets"), (100, 50));
    assert_eq!(
        agent.limit("packets")["passed"]["bytes"].as_u64(),
        Some(100 * packet.len() as u64)
    );
}

fn tc_replaces_unsupported_xdp_and_status_reports_it() {
    let network = Network::new();
    // A driver that has no native XDP: the loopback device's.
    let agent = network.start_on(&["lo"], "", LIMIT);
    let status = agent.json(&["status"]);
    assert_eq!(status["interfaces"][0]["attach"], "tc");
    assert!(
        status["notes"][0]
            .as_str()
            .unwrap()
            .contains("native XDP is not supported"),
        "{status}"
    );
    drop(agent);
    // A hook that another program holds.
    let network = Network::new();
    let foreign = network.attach_foreign(Place::Xdp);
    let agent = network.start("", SLOW);
    let status = agent.json(&["status"]);
    assert_eq!(status["interfaces"][0]["attach"], "tc");
    assert!(
        status["notes"][0]
            .as_str()
            .unwrap()
            .contains("another program is attached to the XDP hook"),
        "{status}"
    );
    let _counting = aya::sys::enable_stats(aya::sys::Stats::RunTime).unwrap();
    let before = foreign.runs();
    burst(&network, &[udp_from(7)], 150);
    assert_eq!(agent.counts("packets"), (100, 50));
    assert!(
        foreign.runs() >= before + 150,
        "the other program sees every packet, as before"
    );
}

fn frames_in_several_buffers_count_whole() {
    let network = Network::new();
    network.set_mtu(9_000);
    let agent = network.start(
        "attach = \"native\"",
        "[[limit]]\nname = \"bytes\"\nunit = \"bytes\"\nrate = \"90kB/h\"\nburst = \"90kB\"\n",
    );
    let frame = Frame::between(CLIENT_MAC, SERVER_MAC)
        .ipv4([10, 77, 0, 7], SERVER)
        .udp(5000, PORT, &[7; 8_958]);
    let frame = frame.build();
    assert_eq!(frame.len(), 9_000);
    let receiver = network.receiver(PORT);
    burst(&network, &[frame], 30);
    assert_eq!(agent.limit("bytes")["passed"]["bytes"], 90_000);
    assert_eq!(receiver.counts()[7], 10);
}

fn changing_the_hook_leaves_one_of_them() {
    let network = Network::new();
    let receiver = network.receiver(PORT);
    let modes = [
        ("native", true),
        ("tc", false),
        ("generic", true),
        ("tc", false),
        ("native", true),
    ];
    let count = if is_quick() { 3 } else { modes.len() };
    for (nth, (attach, has_xdp)) in (1..).zip(modes).take(count) {
        let agent = network.start(&format!("attach = {attach:?}"), SLOW);
        assert_eq!(agent.json(&["status"])["interfaces"][0]["attach"], attach);
        assert_eq!(network.has_program(), has_xdp, "{attach} on {INTERFACE}");
        // A packet that two hooks held would be charged twice.
        burst(&network, &[udp_from(7)], 10);
        assert_eq!(agent.counts("packets"), (10 * nth, 0), "{attach}");
        agent.stop(Signal::SIGKILL);
    }
    burst(&network, &[udp_from(7)], 100);
    assert_eq!(receiver.counts()[7], 100, "fifty of a hundred were left");
}
