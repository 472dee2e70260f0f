//! The limits on what limits per source do not apply to, with a clock that stands still.

use std::collections::HashSet;

use aya::programs::TestRunOptions;
use common::counters::Bypass;
use common::essential::Essential;
use common::neighbour::Neighbour;
use common::packet::build::Frame;
use common::settings::Runtime;
use datapath::Entry;

use super::{Pins, image, load};

const SENDER: [u8; 6] = [2, 0, 0, 0, 0, 1];

/// Each kind passes its burst and no more, and takes nothing from another.
pub fn each_kind_of_essential_traffic_passes_its_burst() {
    let mut image = image("[[limit]]\nname = \"tcp\"\nprotocol = \"tcp\"\nrate = \"1/s\"\n");
    image.settings.given_clock = 1;
    let (essential, not_ip) = (image.settings.essential.burst, image.settings.not_ip.burst);
    let of_neighbour = image.settings.neighbour.burst;
    let pins = Pins::new();
    let mut datapath = load(&image, &pins);
    datapath
        .prepare(Entry::Tc)
        .unwrap_or_else(|error| panic!("{error}"));
    datapath
        .set_runtime(Runtime {
            nanoseconds: 3_600_000_000_000,
            ..Runtime::default()
        })
        .unwrap();
    // Two kinds share a neighbour's bucket for one seed in 1,024.
    let [first, second, third, ..] = datapath.settings().seed.words;
    let bucket = |kind: Essential| {
        let [a, b, c, d, e, f] = SENDER;
        let sender = Neighbour::from_bits(u64::from_le_bytes([a, b, c, d, e, f, 0, 0]));
        // The interface of a test run.
        sender.bucket(kind.bucket(1), [first, second, third])
    };
    let mut taken = HashSet::new();
    let mut burst_of = |kind| {
        let is_new = taken.insert(bucket(kind));
        essential + if is_new { of_neighbour } else { 0 }
    };
    let link = || Frame::between(SENDER, [2, 0, 0, 0, 0, 2]);
    let v6 = |last: u8| [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
    let kinds = [
        (
            "arp",
            link().other(0x0806, &[0; 46]),
            Bypass::NotIp,
            Bypass::EssentialThrottled,
            burst_of(Essential::Arp),
        ),
        (
            "tagged arp",
            link().vlan(5).other(0x0806, &[0; 46]),
            Bypass::NotIp,
            Bypass::EssentialThrottled,
            0,
        ),
        (
            "neighbour discovery",
            link().ipv6(v6(1), v6(2)).hops(255).icmp(135),
            Bypass::Essential,
            Bypass::EssentialThrottled,
            burst_of(Essential::NeighbourDiscovery),
        ),
        (
            "dhcp",
            link().ipv4([0; 4], [255; 4]).udp(68, 67, &[0; 240]),
            Bypass::Essential,
            Bypass::EssentialThrottled,
            burst_of(Essential::Dhcp),
        ),
        (
            "dhcpv6",
            link().ipv6(v6(1), v6(2)).udp(546, 547, &[0; 40]),
            Bypass::Essential,
            Bypass::EssentialThrottled,
            0,
        ),
        (
            "lldp",
            link().other(0x88cc, &[0; 46]),
            Bypass::NotIp,
            Bypass::NotIpThrottled,
            not_ip,
        ),
    ];
    for (name, frame, passes, refused, burst) in kinds {
        let counted = || {
            let rows = datapath.counters().unwrap();
            (
                rows[passes as usize].passed.packets,
                rows[refused as usize].throttled.packets,
            )
        };
        let (passed_before, refused_before) = counted();
        let frame = frame.build();
        let mut options = TestRunOptions::new();
        options.data_in = Some(&frame);
        options.repeat = 20_000;
        datapath.test_run(Entry::Xdp, options).unwrap();
        let (passed, refused) = counted();
        assert_eq!(
            (passed - passed_before, refused - refused_before),
            (burst, 20_000 - burst),
            "{name}"
        );
    }
}
