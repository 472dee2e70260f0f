//! The limits on what limits per source do not apply to, with a clock that stands still.

use aya::programs::TestRunOptions;
use common::counters::Bypass;
use common::packet::build::Frame;
use common::settings::Runtime;
use datapath::Entry;

use super::{Pins, image, load};

/// Each kind passes its burst and no more, and takes nothing from another.
pub fn each_kind_of_essential_traffic_passes_its_burst() {
    let mut image = image("[[limit]]\nname = \"tcp\"\nprotocol = \"tcp\"\nrate = \"1/s\"\n");
    image.settings.given_clock = 1;
    let (essential, not_ip) = (image.settings.essential.burst, image.settings.not_ip.burst);
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
    let v6 = |last: u8| [0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, last];
    let kinds = [
        (
            "arp",
            Frame::ethernet().other(0x0806, &[0; 46]),
            Bypass::NotIp,
            Bypass::EssentialThrottled,
            essential,
        ),
        (
            "tagged arp",
            Frame::ethernet().vlan(5).other(0x0806, &[0; 46]),
            Bypass::NotIp,
            Bypass::EssentialThrottled,
            0,
        ),
        (
            "neighbour discovery",
            Frame::ethernet().ipv6(v6(1), v6(2)).hops(255).icmp(135),
            Bypass::Essential,
            Bypass::EssentialThrottled,
            essential,
        ),
        (
            "dhcp",
            Frame::ethernet()
                .ipv4([0; 4], [255; 4])
                .udp(68, 67, &[0; 240]),
            Bypass::Essential,
            Bypass::EssentialThrottled,
            essential,
        ),
        (
            "dhcpv6",
            Frame::ethernet().ipv6(v6(1), v6(2)).udp(546, 547, &[0; 40]),
            Bypass::Essential,
            Bypass::EssentialThrottled,
            0,
        ),
        (
            "lldp",
            Frame::ethernet().other(0x88cc, &[0; 46]),
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
