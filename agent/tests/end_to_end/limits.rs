//! Limits on packets.

use std::time::{Duration, Instant};

use common::limiter::Algorithm;
use common::packet::build::{Frame, MoreFragments};
use testbed::tests;
use testbed::trials::Test;

use crate::support::{CLIENT_MAC, Network, SERVER, SERVER_MAC};
use crate::traffic::{PORT, WIDE_LIMIT, allowed, burst, udp_from, udp6_from, v6};
use crate::wire::Sender;

pub const TESTS: &[Test] = tests![
    a_source_at_twenty_times_its_limit_gets_burst_plus_rate_times_time,
    a_source_within_its_limit_loses_nothing_beside_a_greedy_one,
    an_ipv6_prefix_shares_one_limit,
    tags_options_and_fragments_hide_no_source,
    observing_throttles_nothing_and_counts,
    never_limit_is_never_limited,
    two_limits_on_one_packet_charge_both_or_none,
    a_limit_on_ports_leaves_other_ports_alone,
    connections_are_counted_by_their_syn,
    classes_multiply_and_lift_limits,
    a_soft_limit_passes_its_share_and_counts_it_apart,
    every_algorithm_holds_in_the_kernel,
];

fn a_source_at_twenty_times_its_limit_gets_burst_plus_rate_times_time() {
    let network = Network::new();
    let agent = network.start("", WIDE_LIMIT);
    let receiver = network.receiver(PORT);
    // In two seconds, fifty times what the limit allows; so many however long it takes.
    const SENT: usize = 20_000;
    // At once, so that no allowance is unused.
    const AT_THE_END: usize = 220;
    let (before, began) = (network.arrived(), Instant::now());
    let sent_at = network.in_client(|| {
        let (sender, frame) = (Sender::new(), udp_from(7));
        let sent_at = sender.pace_all(std::slice::from_ref(&frame), 10, SENT - AT_THE_END);
        (0..AT_THE_END).for_each(|_| sender.send(&frame));
        sent_at
    });
    network.wait_for_arrival(before, SENT as u64);
    let most = allowed(began.elapsed());
    let received = receiver.counts()[7] as f64;
    assert!(received <= most, "{received} passed of at most {most}");
    // The burst covers two seconds in which the machine sends nothing; what came after longer ones is lost.
    let gaps = sent_at.windows(2).map(|pair| pair[1] - pair[0]);
    let lost: Duration = gaps
        .map(|gap| gap.saturating_sub(Duration::from_secs(2)))
        .sum();
    let least = allowed(sent_at[sent_at.len() - 1] - lost).min(SENT as f64);
    assert!(
        received >= 0.98 * least,
        "only {received} passed of {least}"
    );
    let (passed, throttled) = agent.counts("packets");
    assert_eq!((passed as f64, passed + throttled), (received, SENT as u64));
}

fn a_source_within_its_limit_loses_nothing_beside_a_greedy_one() {
    let network = Network::new();
    let agent = network.start("", WIDE_LIMIT);
    let receiver = network.receiver(PORT);
    // Nineteen of the greedy one for each of the polite one, who stays at half its limit.
    let mut frames = vec![udp_from(7); 19];
    frames.push(udp_from(8));
    let sent = 2_000;
    network.in_client(|| Sender::new().pace_all(&frames, 1, sent as usize));
    let counts = receiver.counts();
    // The polite one's frame is the last of each twenty.
    assert_eq!(counts[8], sent / 20, "of {} that were sent", sent / 20);
    let shown = agent.json(&["show", "10.77.0.8"]);
    assert_eq!(shown["limits"][0]["throttled_packets"], 0);
    assert_eq!(
        shown["limits"][0]["passed_packets"].as_u64(),
        Some(counts[8])
    );
    let top = agent.json(&["top", "--once"]);
    assert_eq!(top[0]["source"], "10.77.0.7");
    assert_eq!(top[0]["limit"], "packets");
    assert!(top[0]["throttled_packets"].as_u64().unwrap() > 0);
}

fn an_ipv6_prefix_shares_one_limit() {
    let network = Network::new();
    let agent = network.start(
        "",
        "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 50\n",
    );
    let frames: Vec<_> = (1..=10).map(|host| udp6_from(v6(3, host))).collect();
    burst(&network, &frames, 200);
    burst(&network, &[udp6_from(v6(4, 1))], 20);
    assert_eq!(agent.counts("packets"), (70, 150));
    let shown = agent.json(&["show", "fd77:0:0:3::99"]);
    assert_eq!(shown["limits"][0]["remaining"], 0);
    assert!(shown["limits"][0]["retry_after_seconds"].as_f64().unwrap() > 1.0);
    assert_eq!(
        agent.json(&["top", "--once"])[0]["source"],
        "fd77:0:0:3::/64"
    );
}

fn tags_options_and_fragments_hide_no_source() {
    let network = Network::new();
    let agent = network.start(
        "",
        "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 10\n",
    );
    let link = || Frame::between(CLIENT_MAC, SERVER_MAC);
    let source = |last: u8| ([10, 77, 1, last], SERVER);
    let wrap: Vec<(u8, Frame)> = vec![
        (1, link().vlan(5).ipv4(source(1).0, SERVER)),
        (2, link().tag(0x88a8, 5).vlan(6).ipv4(source(2).0, SERVER)),
        (3, link().vlan(1).vlan(2).vlan(3).ipv4(source(3).0, SERVER)),
        (4, link().ipv4_with_options(source(4).0, SERVER, 10)),
        (
            5,
            link()
                .ipv4(source(5).0, SERVER)
                .fragment(0, MoreFragments::Yes),
        ),
        (
            6,
            link()
                .ipv4(source(6).0, SERVER)
                .fragment(64, MoreFragments::No),
        ),
    ];
    for (last, frame) in wrap {
        let (passed, throttled) = agent.counts("packets");
        burst(&network, &[frame.udp(1, 2, &[0; 64]).build()], 30);
        let (passed_now, throttled_now) = agent.counts("packets");
        assert_eq!(
            (passed_now - passed, throttled_now - throttled),
            (10, 20),
            "source {last}"
        );
        assert_eq!(
            agent.json(&["show", &format!("10.77.1.{last}")])["limits"][0]["remaining"],
            0
        );
    }
    // More tags than anybody looks through: refused as malformed, not passed.
    let five = (0..5)
        .fold(link(), |frame, id| frame.vlan(id))
        .ipv4(source(9).0, SERVER)
        .udp(1, 2, b"")
        .build();
    burst(&network, &[five], 5);
    assert_eq!(agent.json(&["status"])["bypass"]["malformed"], 5);
}

fn observing_throttles_nothing_and_counts() {
    let network = Network::new();
    let agent = network.start(
        "mode = \"observe\"",
        "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 10\n",
    );
    let receiver = network.receiver(PORT);
    burst(&network, &[udp_from(7)], 100);
    assert_eq!(receiver.counts()[7], 100);
    let limit = agent.limit("packets");
    assert_eq!(limit["throttled"]["packets"], 0);
    assert_eq!(limit["would_throttle"]["packets"], 90);
    assert_eq!(limit["passed"]["packets"], 100);
    assert_eq!(agent.json(&["status"])["mode"], "observe");
}

fn never_limit_is_never_limited() {
    let network = Network::new();
    let agent = network.start(
        "never_limit = [\"10.77.0.7\", \"fd77:0:0:3::/64\"]",
        "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 10\n",
    );
    burst(&network, &[udp_from(7)], 100);
    burst(&network, &[udp6_from(v6(3, 1))], 100);
    assert_eq!(agent.counts("packets"), (0, 0));
    assert_eq!(agent.json(&["status"])["bypass"]["never_limit"], 200);
    assert_eq!(agent.json(&["show", "10.77.0.7"])["never_limit"], true);
    burst(&network, &[udp_from(8)], 100);
    assert_eq!(agent.counts("packets"), (10, 90));
}

fn two_limits_on_one_packet_charge_both_or_none() {
    let network = Network::new();
    let agent = network.start(
        "",
        "[[limit]]\nname = \"wide\"\nrate = \"1/h\"\nburst = 100\n\
         [[limit]]\nname = \"narrow\"\nrate = \"1/h\"\nburst = 30\nprotocol = \"udp\"\n\
         [[limit]]\nname = \"network\"\nrate = \"1/h\"\nburst = 80\nipv4_prefix = 24\n",
    );
    burst(&network, &[udp_from(7)], 50);
    assert_eq!(agent.counts("wide"), (30, 0));
    assert_eq!(agent.counts("narrow"), (30, 20));
    // Packets that the narrow one refused were charged to neither of the others.
    let remaining =
        |nth: usize| agent.json(&["show", "10.77.0.7"])["limits"][nth]["remaining"].clone();
    assert_eq!(
        (remaining(0), remaining(1), remaining(2)),
        (70.into(), 0.into(), 50.into())
    );
    // The network's is shared, and the last to give out.
    burst(&network, &[udp_from(8)], 30);
    burst(&network, &[udp_from(9)], 30);
    assert_eq!(agent.counts("network"), (80, 10));
}

fn a_limit_on_ports_leaves_other_ports_alone() {
    let network = Network::new();
    let agent = network.start(
        "",
        "[[limit]]\nname = \"dns\"\nrate = \"1/h\"\nburst = 5\nprotocol = \"udp\"\nports = [53, \"8000-8100\"]\n",
    );
    let to = |port: u16| {
        Frame::between(CLIENT_MAC, SERVER_MAC)
            .ipv4([10, 77, 0, 7], SERVER)
            .udp(5000, port, b"x")
            .build()
    };
    burst(&network, &[to(52), to(54), to(7999), to(8101)], 40);
    assert_eq!(agent.counts("dns"), (0, 0));
    burst(&network, &[to(53), to(8000), to(8100)], 30);
    assert_eq!(agent.counts("dns"), (5, 25));
}

fn connections_are_counted_by_their_syn() {
    let network = Network::new();
    let agent = network.start(
        "",
        "[[limit]]\nname = \"connections\"\nrate = \"1/h\"\nburst = 5\nunit = \"connections\"\n",
    );
    let tcp = |flags: u8| {
        Frame::between(CLIENT_MAC, SERVER_MAC)
            .ipv4([10, 77, 0, 7], SERVER)
            .tcp(5000, 80, flags, b"")
            .build()
    };
    burst(&network, &[tcp(16)], 50);
    assert_eq!(agent.counts("connections"), (0, 0));
    burst(&network, &[tcp(2)], 20);
    assert_eq!(agent.counts("connections"), (5, 15));
    burst(&network, &[tcp(16)], 50);
    assert_eq!(agent.counts("connections"), (5, 15));
}

fn classes_multiply_and_lift_limits() {
    let network = Network::new();
    let agent = network.start(
        "",
        "[[class]]\nname = \"payer\"\nsources = [\"10.77.0.0/28\"]\nmultiplier = 5\n\
         [[class]]\nname = \"poor\"\nsources = [\"10.77.0.7\"]\nmultiplier = 0.5\n\
         [[class]]\nname = \"node\"\nsources = [\"10.77.0.9\"]\nunlimited = true\n\
         [[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 10\n",
    );
    for (last, class, passes) in [
        (8u8, "payer", 50u64),
        (7, "poor", 5),
        (9, "node", 0),
        (200, "default", 10),
    ] {
        let (passed, _) = agent.counts("packets");
        burst(&network, &[udp_from(last)], 100);
        assert_eq!(agent.counts("packets").0 - passed, passes, "class {class}");
        assert_eq!(
            agent.json(&["show", &format!("10.77.0.{last}")])["class"],
            class
        );
    }
    assert_eq!(agent.json(&["status"])["bypass"]["unlimited"], 100);
}

fn a_soft_limit_passes_its_share_and_counts_it_apart() {
    let network = Network::new();
    let agent = network
        .start("", "[[limit]]\nname = \"packets\"\nrate = \"1/h\"\nburst = 100\nthrottle = { soft = \"10%\" }\n");
    burst(&network, &[udp_from(7)], 300);
    let limit = agent.limit("packets");
    assert_eq!(
        (
            &limit["passed"]["packets"],
            &limit["over"]["packets"],
            &limit["throttled"]["packets"]
        ),
        (&110.into(), &10.into(), &190.into())
    );
}

fn every_algorithm_holds_in_the_kernel() {
    for algorithm in Algorithm::ALL {
        let network = Network::new();
        // Windows begin at multiples of their length since the boot: an hour's may end within the test.
        let agent = network.start(
            "max_sources = 1000",
            &format!(
                "[[limit]]\nname = \"packets\"\nrate = \"20/day\"\nalgorithm = \"{algorithm}\"\ntiers = [\"500/month\"]\n"
            ),
        );
        burst(&network, &[udp_from(7)], 100);
        assert_eq!(agent.counts("packets"), (20, 80), "{algorithm}");
        let shown = agent.json(&["show", "10.77.0.7"]);
        assert_eq!(shown["limits"][0]["remaining"], 0, "{algorithm}");
        // A window of a day may be in its last minute.
        let is_window = matches!(algorithm, Algorithm::FixedWindow | Algorithm::SlidingWindow);
        let least = if is_window { 0.0 } else { 60.0 };
        assert!(
            shown["limits"][0]["retry_after_seconds"].as_f64().unwrap() > least,
            "{algorithm}"
        );
        assert_eq!(agent.limit("packets")["keys"], 1, "{algorithm}");
    }
}
