//! The collector on small captures.

use super::*;
use common::packet::build::Frame;
use common::packet::{Depth, Link, parse};

const HOST: [u8; 4] = [192, 0, 2, 1];
const SYN: u8 = 2;
const ACK: u8 = 16;

struct Clock(Collector, u64);

impl Clock {
    fn new(capacity: usize) -> Self {
        Self(Collector::with_capacity(capacity), 3_600 * SECOND)
    }

    fn add(&mut self, milliseconds: u64, frame: Frame) {
        let bytes = frame.build();
        let packet = parse(bytes.as_slice(), Link::Ethernet, Depth::Requests).unwrap();
        self.0.add(
            self.1 + milliseconds * 1_000_000,
            &packet,
            bytes.len() as u32,
        );
    }
}

fn tcp(source: u32, port: u16, flags: u8) -> Frame {
    Frame::ethernet()
        .ipv4(source.to_be_bytes(), HOST)
        .tcp(40_000, port, flags, b"")
}

fn service(traffic: &Traffic, protocol: Transport, port: Option<u16>) -> &ServiceTraffic {
    traffic
        .services
        .iter()
        .find(|service| service.service == Service { protocol, port })
        .unwrap()
}

#[test]
fn a_source_has_its_busiest_windows_by_unit() {
    let mut clock = Clock::new(1 << 10);
    for nth in 0..30 {
        clock.add(nth * 10, tcp(1, 443, SYN));
        clock.add(nth * 10 + 1, tcp(1, 443, ACK));
    }
    clock.add(100_000, tcp(1, 443, SYN));
    clock.add(100_001, tcp(1, 443, ACK));
    let traffic = clock.0.finish();
    let web = service(&traffic, Transport::Tcp, Some(443));
    assert_eq!(
        web.named[0].busiest[Unit::Packets as usize],
        [60, 60, 60, 62, 62]
    );
    assert_eq!(
        web.named[0].busiest[Unit::Connections as usize],
        [30, 30, 30, 31, 31]
    );
    assert_eq!((web.named[0].active_seconds, web.packets), (20, 62));
    assert_eq!(web.completed[0], 30);
    assert_eq!(service(&traffic, Transport::Tcp, None).packets, 62);
    assert!((traffic.seconds - 100.001).abs() < 1e-6);
}

#[test]
fn sources_that_only_open_connections_are_apart() {
    let mut clock = Clock::new(1 << 10);
    (0..100).for_each(|nth| clock.add(nth, tcp(2, 443, SYN)));
    clock.add(200, tcp(3, 443, ACK));
    let traffic = clock.0.finish();
    let web = service(&traffic, Transport::Tcp, Some(443));
    assert_eq!(
        (web.only_open[0].sources(), web.busiest[0][0].sources()),
        (1, 1)
    );
    assert_eq!((web.unanswered[0], web.completed[0]), (3, 0));
}

#[test]
fn replies_to_the_host_are_no_service() {
    let mut clock = Clock::new(1 << 10);
    clock.add(0, tcp(1, 50_000, ACK));
    let udp = |from: u16, to: u16| {
        Frame::ethernet()
            .ipv4([10, 0, 0, 1], HOST)
            .udp(from, to, b"12345678")
    };
    clock.add(1, udp(53, 40_000));
    clock.add(2, udp(5_000, 51_820));
    let traffic = clock.0.finish();
    let ports: Vec<_> = traffic
        .services
        .iter()
        .filter_map(|service| service.service.port)
        .collect();
    assert_eq!(ports, [51_820]);
    assert_eq!(service(&traffic, Transport::Udp, None).packets, 2);
}

#[test]
fn made_up_sources_and_ports_make_room_for_those_that_are_busier() {
    let mut clock = Clock::new(1_000);
    for nth in 0..200_000u32 {
        if nth % 100 == 0 {
            clock.add(u64::from(nth / 100), tcp(nth / 100 % 10, 443, ACK));
            clock.add(u64::from(nth / 100), tcp(nth / 100 % 10, 443, SYN));
        }
        clock.add(
            u64::from(nth / 100),
            tcp(1_000 + nth, (nth % 60_000) as u16, SYN),
        );
        assert!(clock.0.sources.len() <= 1_000 && clock.0.open.len() <= MOST_SERVICES);
    }
    let traffic = clock.0.finish();
    let web = service(&traffic, Transport::Tcp, Some(443));
    let busy: Vec<_> = web
        .named
        .iter()
        .filter(|source| source.packets > 300)
        .collect();
    assert_eq!(busy.len(), 10);
    // Two packets of each every 10 ms, in windows of 1 s to 1.25 s.
    assert!(
        busy.iter()
            .all(|source| (200..=250).contains(&source.busiest[0][0])),
        "{busy:?}"
    );
    assert!(traffic.early > 100_000 && traffic.services.len() <= MOST_SERVICES);
}

#[test]
fn parts_merge_into_the_whole() {
    let part = |from: u32, to: u32| {
        let mut clock = Clock::new(1 << 12);
        for nth in from..to {
            clock.add(u64::from(nth) * 100, tcp(nth % 300, 443, SYN));
            clock.add(u64::from(nth) * 100 + 1, tcp(nth % 300, 443, ACK));
        }
        clock.0.finish()
    };
    let (mut sum, other, whole) = (part(0, 3_000), part(3_000, 6_000), part(0, 6_000));
    sum.merge(&other);
    let read: Traffic = serde_json::from_str(&serde_json::to_string(&sum).unwrap()).unwrap();
    for sum in [sum, read] {
        let (sum_of, whole_of) = (
            service(&sum, Transport::Tcp, Some(443)),
            service(&whole, Transport::Tcp, Some(443)),
        );
        assert_eq!(
            (sum.packets, sum_of.packets),
            (whole.packets, whole_of.packets)
        );
        // Each source is in both parts.
        assert_eq!(
            sum_of.busiest[0][0].sources(),
            2 * whole_of.busiest[0][0].sources()
        );
        assert_eq!(sum_of.named.len(), whole_of.named.len());
        let addresses = |service: &ServiceTraffic| {
            service
                .sample
                .iter()
                .map(|(hash, _)| *hash)
                .collect::<Vec<_>>()
        };
        assert_eq!(addresses(sum_of), addresses(whole_of));
    }
}
