//! Units and keys of limits: a test for each row of `[[limit]]` without a test in another file.

use common::packet::build::Frame;
use testbed::tests;
use testbed::trials::Test;

use crate::support::{CLIENT_MAC, Network, SERVER, SERVER_MAC, SERVER6};
use crate::traffic::{burst, udp_from, v6};

pub const TESTS: &[Test] = tests![
    each_protocol_comes_under_its_own_limits,
    a_source_has_one_key_for_each_port_it_calls,
    a_prefix_is_reset_with_all_its_addresses_and_nobody_elses,
    a_class_shares_one_key,
    an_interface_is_one_key_for_all_its_sources,
    requests_are_counted_where_they_are_one,
    bytes_are_those_of_whole_frames,
    prefixes_decide_who_shares_a_key,
    a_packet_conforms_to_all_tiers_or_is_charged_to_none,
    a_full_table_does_what_on_full_says,
    an_elastic_limit_says_whether_there_is_room,
];

fn link() -> Frame {
    Frame::between(CLIENT_MAC, SERVER_MAC)
}

fn from(last: u8) -> Frame {
    link().ipv4([10, 77, 0, last], SERVER)
}

fn limit(name: &str, rest: &str) -> String {
    format!("[[limit]]\nname = \"{name}\"\nrate = \"1/h\"\nburst = 5\n{rest}\n")
}

fn each_protocol_comes_under_its_own_limits() {
    let network = Network::new();
    let limits: String = ["any", "tcp", "udp", "icmp"]
        .iter()
        .map(|protocol| {
            limit(
                protocol,
                &format!("protocol = \"{protocol}\"\naction = \"observe\""),
            )
        })
        .collect();
    let agent = network.start("", &limits);
    let from6 = || link().ipv6(v6(1, 1), SERVER6);
    let sent = [
        (from(7).tcp(1, 2, 16, b"").build(), 3),
        (from6().tcp(1, 2, 16, b"").build(), 4),
        (from(7).udp(1, 2, b"").build(), 7),
        (from6().udp(1, 2, b"").build(), 8),
        (from(7).icmp(8).build(), 11),
        (from6().icmp(128).build(), 12),
        (from(7).payload(47, &[0; 20]).build(), 17),
    ];
    for (frame, count) in &sent {
        burst(&network, std::slice::from_ref(frame), *count);
    }
    let counted = |name: &str| agent.counts(name).0;
    assert_eq!(
        [
            counted("tcp"),
            counted("udp"),
            counted("icmp"),
            counted("any")
        ],
        [7, 15, 23, 62]
    );
}

fn a_source_has_one_key_for_each_port_it_calls() {
    let network = Network::new();
    let agent = network.start("", &limit("calls", "key = \"source-port\""));
    let to = |last: u8, port: u16| from(last).udp(5000, port, b"x").build();
    burst(&network, &[to(7, 53), to(7, 54), to(8, 53)], 30);
    assert_eq!(agent.counts("calls"), (15, 15));
    // An address is reset with all its ports.
    assert_eq!(agent.json(&["reset", "10.77.0.7"])["forgotten"], 2);
    burst(&network, &[to(7, 53), to(7, 54), to(8, 53)], 30);
    assert_eq!(agent.counts("calls"), (25, 35));
    // Of a prefix, that would be 65,536 keys for each address.
    let reset = agent.json(&["reset", "10.77.0.0/29"]);
    assert_eq!(
        (&reset["forgotten"], &reset["kept"][0]),
        (&0.into(), &"calls".into())
    );
    assert_eq!(agent.json(&["reset", "10.77.0.8/32"])["forgotten"], 1);
    let top = agent.json(&["top", "--once"]);
    let sources: Vec<&str> = top
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["source"].as_str().unwrap())
        .collect();
    assert!(sources.contains(&"10.77.0.7 port 53"), "{sources:?}");
}

fn a_prefix_is_reset_with_all_its_addresses_and_nobody_elses() {
    let network = Network::new();
    let limits = limit("a", "") + &limit("nets", "ipv4_prefix = 30\nipv6_prefix = 56");
    let agent = network.start("", &limits);
    let frames: Vec<Vec<u8>> = [7, 8, 200].map(udp_from).to_vec();
    burst(&network, &frames, 30);
    let v6_of = |network: u8| {
        let source = v6(network, 9);
        link().ipv6(source, SERVER6).udp(5000, 53, b"x").build()
    };
    burst(&network, &[v6_of(1), v6_of(2)], 20);
    let left = |source: &str| {
        let shown = agent.json(&["show", source]);
        let rows = shown["limits"].as_array().unwrap();
        let of = |row: &serde_json::Value| row["remaining"].as_u64().unwrap();
        rows.iter().map(of).collect::<Vec<_>>()
    };
    // The two /64 share the allowance of their /56.
    assert_eq!(
        (left("10.77.0.7"), left("fd77:0:0:2::9")[1]),
        (vec![0, 0], 0)
    );
    // Two addresses, and the /30 that each of them is in.
    let reset = |words: &[&str]| agent.json(&[&["reset"], words].concat());
    assert_eq!(reset(&["10.77.0.0/25"])["forgotten"], 4);
    for source in ["10.77.0.7", "10.77.0.8"] {
        assert_eq!(left(source), [5, 5], "{source}");
    }
    assert_eq!(left("10.77.0.200"), [0, 0]);
    assert_eq!(reset(&["10.77.0.0/16", "--limit", "a"])["forgotten"], 1);
    assert_eq!(left("10.77.0.200"), [5, 0]);
    // Of IPv6, keys are the prefixes of the limits.
    assert_eq!(reset(&["fd77::/56"])["forgotten"], 3);
    assert_eq!(left("fd77:0:0:2::9"), [5, 5]);
    let refused = network.command(&["reset", "10.0.0.0/8", "--limit", "a"]);
    assert_eq!(refused.status.code(), Some(1));
    let error = String::from_utf8(refused.stderr).unwrap();
    for words in [
        "16,777,216 keys of limit \"a\"",
        "at most 65,536",
        "--limit a",
    ] {
        assert!(error.contains(words), "{error}");
    }
}

fn a_class_shares_one_key() {
    let network = Network::new();
    let classes = "[[class]]\nname = \"office\"\nsources = [\"10.77.0.0/29\"]\nmultiplier = 2\n";
    let agent = network.start(
        "",
        &format!("{classes}{}", limit("shared", "key = \"class\"")),
    );
    let office: Vec<_> = (1..=7).map(udp_from).collect();
    let others: Vec<_> = (20..=29).map(udp_from).collect();
    burst(&network, &office, 70);
    assert_eq!(
        agent.counts("shared"),
        (10, 60),
        "the office together has twice the limit"
    );
    burst(&network, &others, 70);
    assert_eq!(
        agent.counts("shared"),
        (15, 125),
        "all others together have the limit"
    );
    assert_eq!(agent.json(&["show", "10.77.0.3"])["class"], "office");
}

fn an_interface_is_one_key_for_all_its_sources() {
    let network = Network::new();
    network.add_link("weir1", "client1");
    let agent = network.start_on(
        &["weir0", "weir1"],
        "",
        &limit("shared", "key = \"interface\""),
    );
    let frames: Vec<_> = (1..=20).map(udp_from).collect();
    burst(&network, &frames, 40);
    assert_eq!(agent.counts("shared"), (5, 35));
    network.send_on(("client1", "weir1"), &frames);
    assert_eq!(agent.counts("shared"), (10, 50));
    let top = agent.json(&["top", "--once"]);
    let names: Vec<&str> = top
        .as_array()
        .unwrap()
        .iter()
        .map(|row| row["source"].as_str().unwrap())
        .collect();
    assert!(
        names.contains(&"interface weir0") && names.contains(&"interface weir1"),
        "{names:?}"
    );
}

fn requests_are_counted_where_they_are_one() {
    const SYN: u8 = 2;
    const ACK: u8 = 16;
    let network = Network::new();
    let limits =
        limit("requests", "unit = \"requests\"") + &limit("connections", "unit = \"connections\"");
    let agent = network.start("", &limits);
    let mut query = [0u8; 20];
    query[5] = 1;
    let mut response = query;
    response[2] = 0x80;
    let from6 = || link().ipv6(v6(1, 1), SERVER6);
    // (what it is, whether it is a request, whether it is a connection)
    let sent = [
        (from(7).tcp(1, 80, ACK, b"GET / HTTP/1.1\r\n").build(), 1, 0),
        (
            from(7).tcp(1, 80, ACK, b"POST /a HTTP/1.0\r\n").build(),
            1,
            0,
        ),
        (
            from6().tcp(1, 80, ACK, b"DELETE /b HTTP/1.1\r\n").build(),
            1,
            0,
        ),
        (from(7).udp(4000, 53, &query).build(), 1, 0),
        // The rest of a request, a TLS record, a response, DNS elsewhere: none of these begins one.
        (from(7).tcp(1, 80, ACK, b"Host: example\r\n").build(), 0, 0),
        (
            from(7)
                .tcp(1, 443, ACK, &[0x16, 3, 1, 2, 0, 1, 0, 1])
                .build(),
            0,
            0,
        ),
        (from(7).udp(53, 4000, &response).build(), 0, 0),
        (from(7).udp(4000, 53, &response).build(), 0, 0),
        (from(7).udp(4000, 5353, &query).build(), 0, 0),
        // Two heads in one segment are one; a head in a SYN is a connection.
        (
            from(7)
                .tcp(1, 80, ACK, b"GET / HTTP/1.1\r\n\r\nGET / HTTP/1.1\r\n\r\n")
                .build(),
            1,
            0,
        ),
        (from(7).tcp(1, 80, SYN, b"GET / HTTP/1.1\r\n").build(), 0, 1),
    ];
    let (mut requests, mut connections) = (0, 0);
    for (nth, (frame, is_request, is_connection)) in sent.iter().enumerate() {
        burst(&network, std::slice::from_ref(frame), 1);
        requests += is_request;
        connections += is_connection;
        assert_eq!(
            (agent.counts("requests").0, agent.counts("connections").0),
            (requests, connections),
            "frame {nth}"
        );
    }
    burst(&network, &[sent[0].0.clone()], 10);
    assert_eq!(
        agent.counts("requests"),
        (6, 9),
        "five of one source, one of another"
    );
}

fn bytes_are_those_of_whole_frames() {
    let network = Network::new();
    let agent = network.start(
        "",
        "[[limit]]\nname = \"bytes\"\nunit = \"bytes\"\nrate = \"10kB/day\"\nburst = \"10kB\"\n",
    );
    let frame = from(7).udp(5000, 9, &[0; 958]).build();
    assert_eq!(frame.len(), 1_000);
    burst(&network, &[frame], 30);
    let counted = agent.limit("bytes");
    assert_eq!(counted["passed"]["bytes"], 10_000);
    assert_eq!(counted["throttled"]["packets"], 20);
    assert_eq!(
        agent.json(&["show", "10.77.0.7"])["limits"][0]["remaining"]
            .as_u64()
            .unwrap()
            / 100,
        0
    );
}

fn prefixes_decide_who_shares_a_key() {
    let network = Network::new();
    let limits = limit("wide", "ipv4_prefix = 24\nipv6_prefix = 32");
    let agent = network.start("", &limits);
    let of = |third: u8, last: u8| {
        link()
            .ipv4([10, 77, third, last], SERVER)
            .udp(5000, 9, b"x")
            .build()
    };
    burst(&network, &[of(1, 1), of(1, 2), of(2, 1)], 30);
    assert_eq!(agent.counts("wide"), (10, 20));
    let six = |subnet: u8| {
        link()
            .ipv6(v6(subnet, 1), SERVER6)
            .udp(5000, 9, b"x")
            .build()
    };
    burst(&network, &[six(1), six(2)], 20);
    assert_eq!(agent.counts("wide"), (15, 35));
}

fn a_packet_conforms_to_all_tiers_or_is_charged_to_none() {
    let network = Network::new();
    let agent = network.start(
        "",
        "[[limit]]\nname = \"tiered\"\nrate = \"1000/h\"\ntiers = [\"40/h\", \"600/day\"]\n\
         [[limit]]\nname = \"other\"\nrate = \"100/h\"\n",
    );
    burst(&network, &[udp_from(7)], 300);
    assert_eq!(agent.counts("tiered"), (40, 260));
    let shown = agent.json(&["show", "10.77.0.7"]);
    let remaining = |name: &str| {
        let limits = shown["limits"].as_array().unwrap();
        limits.iter().find(|limit| limit["name"] == name).unwrap()["remaining"]
            .as_u64()
            .unwrap()
    };
    assert_eq!(remaining("tiered"), 0);
    // Packets that the tier refused were not charged; a token comes back every 36 seconds.
    assert!(
        (60..=63).contains(&remaining("other")),
        "{}",
        remaining("other")
    );
}

fn a_full_table_does_what_on_full_says() {
    for (on_full, passes, counter) in [
        ("pass", 100, "full_passed"),
        ("throttle", 0, "full_throttled"),
        ("share", 100, "full_shared"),
    ] {
        let network = Network::new();
        // One source fits nowhere beside eight that are busier than it: a table of one set, and one to overflow into.
        let agent = network.start(
            "max_sources = 1",
            &limit("packets", &format!("on_full = \"{on_full}\"")),
        );
        let busy: Vec<_> = (1..=8).map(udp_from).collect();
        burst(&network, &busy, 40);
        assert_eq!(agent.counts("packets"), (40, 0));
        let new: Vec<_> = (100..200).map(udp_from).collect();
        burst(&network, &new, 100);
        assert_eq!(
            agent.counts("packets"),
            (40 + passes, 100 - passes),
            "{on_full}"
        );
        assert_eq!(
            agent.json(&["status"])["sources"][counter],
            100,
            "{on_full}"
        );
    }
}

fn an_elastic_limit_says_whether_there_is_room() {
    let network = Network::new();
    let agent = network.start(
        "",
        &limit("elastic", "throttle = { elastic = { up_to = 3.0 } }"),
    );
    assert!(agent.json(&["status"])["has_room"].is_boolean());
    burst(&network, &[udp_from(7)], 40);
    // Whether the host has room is for it to say. It is three times the limit at the most, the limit at the least, and
    // what was let through above it is counted apart.
    let counted = agent.limit("elastic");
    let of = |what: &str| counted[what]["packets"].as_u64().unwrap();
    assert!((5..=15).contains(&of("passed")), "{counted}");
    assert_eq!(of("passed") - of("over"), 5, "{counted}");
    assert_eq!(of("passed") + of("throttled"), 40, "{counted}");
}
