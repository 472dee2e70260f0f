//! `weir replay` and the kernel's programs over the same capture: each verdict and each counter.

use std::io::Cursor;
use std::path::Path;

use aya::programs::TestRunOptions;
use common::network::from_asn;
use common::packet::Direction;
use common::packet::build::{Frame, MoreFragments};
use common::settings::Runtime;
use config::policy::Prefix;
use datapath::compile::plan;
use datapath::{Datapath, Entry, PinDirectory, host_interfaces};
use ipnet::IpNet;
use testbed::trials::is_long;
use weir::replay::capture::{Capture, InterfaceNames};
use weir::replay::{Clock, Evaluation, TableMemory, Verdict};

use super::{Pins, Sequence, XDP_PASS};

const TC_ACT_UNSPEC: u32 = u32::MAX;

/// Packets, unless `WEIR_REPLAY_PACKETS` says otherwise; a machine in software takes twenty times as long for each.
const PACKETS: u64 = 200_000;
const PACKETS_LONG: u64 = 1_000_000;
const PACKETS_EMULATED: u64 = 50_000;
/// Packets of one capture; a run of many is a row of captures on one clock.
const CAPTURE: u64 = 10_000;

/// An Ethernet and an IPv6 header.
const LEAST_EGRESS: usize = 14 + 40;

/// Every algorithm, unit, key and way to enforce, in both directions, and a table that is soon full.
const POLICY: &str = r#"
[agent]
interfaces = ["lo"]
max_sources = 1024
never_limit = ["10.0.0.3", "2001:db8:0:3::/64"]
[[class]]
name = "payer"
sources = ["10.0.1.0/24", "2001:db8:0:1::/64"]
multiplier = 3
[[class]]
name = "node"
sources = ["10.0.2.0/28"]
unlimited = true
[[limit]]
name = "all"
rate = "400/s"
ipv4_prefix = 24
on_full = "share"
tiers = ["3000/10s"]
[[limit]]
name = "bytes"
rate = "50kB/s"
burst = "64KiB"
unit = "bytes"
on_full = "throttle"
throttle = { soft = "10%" }
[[limit]]
name = "dns"
protocol = "udp"
ports = [53]
unit = "requests"
rate = "20/s"
algorithm = "sliding-window"
levels = [{ prefix = "24/64", factor = 3.5 }]
[[limit]]
name = "web"
protocol = "tcp"
ports = [80, "8000-8100"]
unit = "connections"
rate = "10/s"
algorithm = "fixed-window"
key = "source-port"
[[limit]]
name = "log"
protocol = "icmp"
rate = "15/s"
algorithm = "sliding-log"
levels = [{ prefix = "24/48", factor = 2 }, { key = "all", factor = 5 }]
[[limit]]
name = "classes"
key = "class"
rate = "2000/s"
algorithm = "leaky-bucket"
[[limit]]
name = "wire"
key = "interface"
rate = "4000/s"
action = "observe"
[[limit]]
name = "out"
direction = "egress"
rate = "100/s"
ipv6_prefix = 56
algorithm = "sliding-window"
levels = [{ prefix = "22/48", factor = 2 }, { key = "all", factor = 3 }]
[[limit]]
name = "out-web"
direction = "egress"
protocol = "tcp"
ports = [80, 443]
rate = "30kB/s"
unit = "bytes"
throttle = { elastic = { up_to = 2.0 } }
"#;

/// Limits for some sources and interfaces beside them: no packet's rules are those that the policy alone gives it.
const SCOPED: &str = r#"
[[limit]]
name = "some"
rate = "50/s"
sources = ["10.0.0.0/23", "!10.0.1.4", "172.16.0.0/14", "2001:db8::/62", "!2001:db8:0:2::/64"]
[[limit]]
name = "some-ports"
protocol = "udp"
ports = [53, "4000-4100"]
rate = "200/s"
key = "class"
sources = ["!10.1.0.0/25", "!2001:db8:0:1::1"]
interfaces = ["l?"]
[[limit]]
name = "nowhere"
rate = "1/h"
interfaces = ["weir9"]
[[limit]]
name = "out-some"
direction = "egress"
rate = "40/s"
sources = ["10.1.0.0/16", "!10.1.0.8/29", "2001:db8::/32"]
[[limit]]
name = "out-nowhere"
direction = "egress"
rate = "1/h"
interfaces = ["weir*"]
"#;

pub fn a_replay_comes_to_the_verdicts_and_counters_of_the_kernel() {
    compare(POLICY, &[], 1);
}

pub fn a_replay_of_limits_for_some_sources_and_interfaces_does_so_too() {
    compare(
        &(POLICY.replace("[\"lo\"]", "[\"lo\", \"weir*\"]") + SCOPED),
        &[],
        4,
    );
}

/// Limits by network in both directions, with a class and tiers.
const BY_NETWORK: &str = r#"
[geo]
asn = "/asn.mmdb"
[[limit]]
name = "networks"
key = "asn"
rate = "600/s"
tiers = ["5000/10s"]
[[limit]]
name = "networks-log"
protocol = "udp"
key = "asn"
ipv4_prefix = 28
rate = "100/s"
algorithm = "sliding-log"
[[limit]]
name = "levels-of-networks"
protocol = "icmp"
rate = "20/s"
levels = [{ prefix = "28/56", factor = 3 }, { key = "asn", factor = 8 }, { key = "all", factor = 20 }]
[[limit]]
name = "out-networks"
direction = "egress"
key = "asn"
rate = "60/s"
ipv6_prefix = 40
"#;

pub fn a_replay_of_keys_of_networks_does_so_too() {
    let net = |text: &str, asn: u32| {
        (
            text.parse::<IpNet>().unwrap().into(),
            from_asn(asn).unwrap(),
        )
    };
    let mut networks = vec![
        net("10.0.0.0/24", 64_500),
        net("10.0.0.4/32", 4_200_000_001),
        net("10.0.1.0/30", 64_501),
        net("172.16.0.0/14", 100),
        net("2001:db8:0:1::/64", 64_500),
        net("2001:db8:0:2::1/128", 64_501),
        net("2001:db8:0:2::2/127", (1 << 28) - 1),
        net("2001:db8:100::/40", 4_294_967_294),
    ];
    // More than leaves have room for, with gaps; in several networks each.
    networks.extend((0..128u32).map(|nth| net(&format!("10.1.0.{}/32", nth * 2), 1_000 + nth % 9)));
    networks.extend((0..4_000u32).map(|nth| {
        net(
            &format!("172.{}.{}.0/24", 20 + nth / 250, nth % 250),
            70_000 + nth % 50,
        )
    }));
    compare(&(POLICY.to_owned() + BY_NETWORK), &networks, 4);
}

/// Evaluates a part of the packets by both.
fn compare(policy: &str, networks: &[(Prefix, u32)], part: u64) {
    let is_emulated = std::env::var_os("WEIR_VM").is_some();
    let default = if is_emulated {
        PACKETS_EMULATED
    } else if is_long() {
        PACKETS_LONG
    } else {
        PACKETS
    };
    let packets =
        std::env::var("WEIR_REPLAY_PACKETS").map_or(default, |count| count.parse().unwrap()) / part;
    let mut loaded =
        config::parse(Path::new("limits.toml"), policy).unwrap_or_else(|report| panic!("{report}"));
    loaded.config.geo.networks = std::sync::Arc::new(networks.to_vec());
    let mut plan = plan(&loaded.config).unwrap();
    let pins = Pins::new();
    let directory = PinDirectory::open(&pins.0).unwrap();
    plan.ingress.settings.given_clock = 1;
    let egress = plan.egress.as_mut().unwrap();
    egress.settings.given_clock = 1;
    // Both directions share the table.
    let mut ingress =
        Datapath::load(plan.ingress.clone(), &directory).unwrap_or_else(|error| panic!("{error}"));
    let mut egress =
        Datapath::load(egress.clone(), &directory).unwrap_or_else(|error| panic!("{error}"));
    ingress
        .prepare(Entry::Xdp)
        .unwrap_or_else(|error| panic!("{error}"));
    egress
        .prepare(Entry::Tc)
        .unwrap_or_else(|error| panic!("{error}"));
    let seed = ingress.settings().seed;
    assert_eq!(seed, egress.settings().seed, "one table");
    // Test runs are on the loopback interface.
    let loopback = host_interfaces()
        .unwrap()
        .into_iter()
        .find(|device| device.index == 1)
        .unwrap();
    [&mut ingress, &mut egress]
        .into_iter()
        .for_each(|datapath| datapath.number_interface(&loopback).unwrap());

    let mut memory = TableMemory::new(&plan.ingress.settings);
    let mut evaluation = Evaluation::with_seed(&loaded.config, &plan, memory.table(), seed);
    let mut clock = Clock::default();
    let mut traffic = Traffic {
        sequence: Sequence(0x5eed_1234),
        nanoseconds: 1_700_000_000_000_000_000,
    };
    let mut passed = [0u64; 2];
    let mut seen = 0;
    while seen < packets {
        let count = CAPTURE.min(packets - seen);
        let (bytes, directions) = traffic.capture(count);
        let mut names = InterfaceNames::with_unnamed(Some(&loopback.name));
        let mut capture =
            Capture::from_stream(Path::new("generated"), Cursor::new(bytes), &mut names).unwrap();
        evaluation.name_interfaces(&names);
        for direction in directions {
            assert!(capture.advance(&mut names).unwrap());
            let packet = capture.packet().unwrap();
            let now = clock.advance(packet.nanoseconds);
            let runtime = Runtime {
                nanoseconds: now,
                ..Runtime::default()
            };
            let is_egress = direction == Direction::Egress;
            let (datapath, entry, pass) = if is_egress {
                (&mut egress, Entry::Tc, TC_ACT_UNSPEC)
            } else {
                (&mut ingress, Entry::Xdp, XDP_PASS)
            };
            datapath.set_runtime(runtime).unwrap();
            let mut options = TestRunOptions::new();
            options.data_in = Some(packet.frame);
            options.repeat = 1;
            let enforced = datapath.test_run(entry, options).unwrap().return_value == pass;
            let evaluated = evaluation.evaluate(&packet, direction, now, clock.captured());
            let replayed = match evaluated.verdict {
                Verdict::Pass => true,
                Verdict::Refuse | Verdict::Drop => false,
                Verdict::Unknown => panic!("packet {seen} was captured whole"),
            };
            assert_eq!(
                replayed, enforced,
                "packet {seen}, {direction:?}, at {now}: {:02x?}",
                packet.frame
            );
            passed[usize::from(is_egress)] += u64::from(enforced);
            seen += 1;
        }
        assert!(!capture.advance(&mut names).unwrap());
    }
    for (program, datapath) in evaluation.programs().zip([&ingress, &egress]) {
        assert_eq!(program.counters(), datapath.counters().unwrap());
        assert_eq!(program.table_counters(), datapath.table_counters().unwrap());
    }
    let share = |count: u64, of: u64| count as f64 / of as f64;
    println!(
        "{packets} packets, 0 differences; {passed:?} passed in and out, {:?}",
        ingress.table_counters().unwrap()
    );
    assert!(
        (0.2..0.9).contains(&share(passed[0] + passed[1], packets)),
        "too one-sided to tell anything: {passed:?}"
    );
    assert!(
        ingress.table_counters().unwrap().full_shared > 0,
        "the table was never full"
    );
}

/// Generated traffic: few busy sources and many that come once, tagged, fragmented, malformed.
struct Traffic {
    sequence: Sequence,
    nanoseconds: u64,
}

impl Traffic {
    /// A pcap file of so many packets, and which way each goes.
    fn capture(&mut self, count: u64) -> (Vec<u8>, Vec<Direction>) {
        // Nanoseconds, version 2.4, Ethernet.
        let mut bytes: Vec<u8> = [0xa1b2_3c4d, 0x0004_0002, 0, 0, 262_144, 1u32]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        let mut directions = Vec::new();
        for _ in 0..count {
            let frame = self.frame();
            // Test runs of traffic control refuse frames that end within an IP header.
            let is_egress = self.below(4) == 0 && frame.len() >= LEAST_EGRESS;
            self.nanoseconds += match self.below(1_000) {
                0..200 => 0,
                999 => self.below(300_000_000),
                _ => self.below(120_000),
            };
            let (seconds, fraction) = (
                self.nanoseconds / 1_000_000_000,
                self.nanoseconds % 1_000_000_000,
            );
            for word in [
                seconds as u32,
                fraction as u32,
                frame.len() as u32,
                frame.len() as u32,
            ] {
                bytes.extend(word.to_le_bytes());
            }
            bytes.extend(frame);
            directions.push(if is_egress {
                Direction::Egress
            } else {
                Direction::Ingress
            });
        }
        (bytes, directions)
    }

    fn below(&mut self, bound: u64) -> u64 {
        self.sequence.below(bound)
    }

    fn one_of<T: Copy, const N: usize>(&mut self, choices: [T; N]) -> T {
        choices[self.below(N as u64) as usize]
    }

    fn ipv4(&mut self) -> [u8; 4] {
        match self.below(10) {
            0..5 => [10, 0, self.below(3) as u8, self.below(6) as u8],
            5..8 => [10, 1, 0, self.below(256) as u8],
            _ => [
                172,
                16 + self.below(16) as u8,
                self.below(256) as u8,
                self.below(256) as u8,
            ],
        }
    }

    fn ipv6(&mut self) -> [u8; 16] {
        let mut address = [0x20, 1, 0xd, 0xb8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1];
        address[7] = self.below(5) as u8;
        if self.below(3) == 0 {
            address[4] = self.below(256) as u8;
        }
        address[15] = self.below(4) as u8;
        address
    }

    fn frame(&mut self) -> Vec<u8> {
        let mut frame = match self.below(40) {
            0 => Frame::ethernet()
                .other(self.one_of([0x0806, 0x88cc, 0x8863, 0x0026]), &[0; 46])
                .build(),
            1 => {
                let (source, destination) = (self.ipv6(), self.ipv6());
                let kind = self.one_of([133, 134, 135, 136, 137, 128]);
                Frame::ethernet()
                    .ipv6(source, destination)
                    .hops(self.one_of([255, 64]))
                    .icmp(kind)
                    .build()
            }
            2 => {
                let (ports, source) = (self.one_of([(68, 67), (67, 68), (546, 547)]), self.ipv4());
                Frame::ethernet()
                    .ipv4(source, [255; 4])
                    .udp(ports.0, ports.1, &[0; 240])
                    .build()
            }
            3 => (0..16 + self.below(200))
                .map(|_| self.below(256) as u8)
                .collect(),
            _ => self.packet(),
        };
        match self.below(16) {
            // Cut, as a broken sender may.
            0 => frame.truncate(16 + self.below(frame.len() as u64) as usize),
            // Bits that fall over.
            1 | 2 => {
                for _ in 0..=self.below(4) {
                    let at = 12 + self.below(60) as usize;
                    if let Some(byte) = frame.get_mut(at) {
                        *byte ^= 1 << self.below(8);
                    }
                }
            }
            _ => {}
        }
        // The test run takes no frame without a payload.
        frame.resize(frame.len().max(16), 0);
        frame
    }

    fn packet(&mut self) -> Vec<u8> {
        let mut frame = Frame::ethernet();
        if self.below(4) == 0 {
            for _ in 0..self.one_of([1, 1, 1, 2, 4, 5]) {
                frame = frame.tag(
                    self.one_of([0x8100, 0x88a8, 0x9100]),
                    self.below(4_096) as u16,
                );
            }
        }
        if self.below(3) > 0 {
            let (source, destination) = (self.ipv4(), self.ipv4());
            let options = if self.below(10) == 0 {
                1 + self.below(10) as u8
            } else {
                0
            };
            frame = frame.ipv4_with_options(source, destination, options);
        } else {
            let (source, destination) = (self.ipv6(), self.ipv6());
            frame = frame.ipv6(source, destination);
            if self.below(5) == 0 {
                for _ in 0..self.below(10) {
                    frame = frame.empty_extension(self.one_of([0, 43, 60, 135, 51, 139]));
                }
            }
        }
        if self.below(8) == 0 {
            let offset = self.one_of([0, 0, 1, 2, 185]);
            frame = frame.fragment(
                offset,
                if self.below(2) == 0 {
                    MoreFragments::Yes
                } else {
                    MoreFragments::No
                },
            );
        }
        let port = |traffic: &mut Self| match traffic.below(8) {
            0..6 => traffic.one_of([53, 80, 443, 8_050, 22, 4_000]),
            _ => traffic.below(65_536) as u16,
        };
        let (from, to) = (port(self), port(self));
        let plain = vec![7; self.one_of([0, 4, 30, 100, 700, 1_400])];
        let payload = match self.below(4) {
            0 => b"GET / HTTP/1.1\r\nHost: a\r\n\r\n".to_vec(),
            1 => [0, 9, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, b'a', 0, 0, 1, 0, 1].to_vec(),
            _ => plain,
        };
        let frame = match self.below(10) {
            0..4 => frame.tcp(from, to, self.one_of([2, 18, 16, 24, 4, 1]), &payload),
            4..8 => frame.udp(from, to, &payload),
            8 => frame.icmp(self.one_of([8, 0, 3, 128])),
            _ => frame.payload(self.one_of([47, 50, 132, 4, 17, 6]), &payload),
        };
        frame.build()
    }
}
