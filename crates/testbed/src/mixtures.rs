//! Captures of which each packet is known to be polite or part of an attack, made from a seed.

use std::path::Path;

use common::packet::build::Frame;

use crate::random::Random;

/// A capture's length in seconds.
pub const SPAN: f64 = 2_400.0;
const START: u64 = 1_700_000_000;
const HOST: [u8; 4] = [192, 0, 2, 1];
const WEB: u16 = 443;
const DNS: u16 = 53;

/// Whose a packet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Label {
    Polite,
    Attack,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Syn,
    Ack,
    Data,
    Query,
}

/// A packet to the host.
#[derive(Clone, Copy, Debug)]
pub struct Event {
    /// Microseconds after the start.
    pub at: u64,
    pub source: u32,
    pub port: u16,
    pub label: Label,
    pub is_syn: bool,
    kind: Kind,
    length: u16,
}

/// A capture in the making.
#[derive(Default)]
pub struct Mixture {
    pub events: Vec<Event>,
}

impl Mixture {
    fn add(&mut self, seconds: f64, source: u32, port: u16, label: Label, kind: Kind, length: u64) {
        if (0.0..SPAN).contains(&seconds) {
            let at = (seconds * 1e6) as u64;
            let is_syn = kind == Kind::Syn;
            self.events.push(Event {
                at,
                source,
                port,
                label,
                is_syn,
                kind,
                length: length as u16,
            });
        }
    }

    /// A connection of so many further packets.
    fn connection(
        &mut self,
        random: &mut Random,
        at: f64,
        source: u32,
        label: Label,
        packets: u64,
    ) {
        let port = random.up_to(1_024, 65_535) as u16;
        self.add(at, source, port, label, Kind::Syn, 74);
        let mut at = at + random.between(0.01, 0.1);
        self.add(at, source, port, label, Kind::Ack, 66);
        for nth in 0..packets {
            at += random.exponential(0.03);
            match nth % 4 {
                0 => self.add(at, source, port, label, Kind::Data, random.up_to(150, 900)),
                _ => self.add(at, source, port, label, Kind::Ack, 66),
            }
        }
    }

    /// One visit of a web site: pages with pauses between them, of a heavy-tailed number and size.
    fn visit(&mut self, random: &mut Random, start: f64, source: u32) {
        let mut at = start;
        for _ in 0..random.heavy(1.0, 1.3, 40.0) as u64 {
            for _ in 0..random.up_to(1, 3) {
                let packets = random.heavy(3.0, 1.2, 300.0) as u64;
                let begins = at + random.between(0.0, 0.6);
                self.connection(random, begins, source, Label::Polite, packets);
            }
            at += 2.0 + random.exponential(25.0);
        }
    }

    /// Clients of a web site, each with one visit or a few.
    pub fn web_clients(mut self, random: &mut Random, clients: u64) -> Self {
        for _ in 0..clients {
            let source = 0x6440_0000 + random.up_to(0, 0x3f_ffff) as u32;
            for _ in 0..random.heavy(1.0, 2.0, 4.0) as u64 {
                let start = random.between(-60.0, SPAN);
                self.visit(random, start, source);
            }
        }
        self
    }

    /// Networks behind one address each: as many visits as so many clients make. Their addresses are the same on each day.
    pub fn nats(mut self, random: &mut Random, visits: &[u64]) -> Self {
        for (nth, visits) in visits.iter().enumerate() {
            for _ in 0..*visits {
                let start = random.between(-60.0, SPAN);
                self.visit(random, start, 0xc633_6400 + nth as u32);
            }
        }
        self
    }

    /// Crawlers: a page of one connection at a time, so many a second, all day. Their addresses are the same on each day.
    pub fn crawlers(mut self, random: &mut Random, rates: &[f64]) -> Self {
        for (nth, rate) in rates.iter().enumerate() {
            let mut at = random.exponential(1.0 / rate);
            while at < SPAN {
                let packets = random.up_to(4, 12);
                self.connection(random, at, 0xc633_6480 + nth as u32, Label::Polite, packets);
                at += random.exponential(1.0 / rate);
            }
        }
        self
    }

    /// Clients of a name server: queries in groups, of a heavy-tailed number.
    pub fn dns_clients(mut self, random: &mut Random, clients: u64) -> Self {
        for _ in 0..clients {
            let source = 0x6440_0000 + random.up_to(0, 0x3f_ffff) as u32;
            let mut at = random.between(-60.0, SPAN);
            for _ in 0..random.heavy(2.0, 1.2, 60.0) as u64 {
                for _ in 0..random.up_to(1, 8) {
                    let (begins, port) = (
                        at + random.between(0.0, 0.4),
                        random.up_to(1_024, 65_535) as u16,
                    );
                    let length = random.up_to(64, 96);
                    self.add(begins, source, port, Label::Polite, Kind::Query, length);
                }
                at += 1.0 + random.exponential(20.0);
            }
        }
        self
    }

    /// Resolvers of providers: so many queries a second, all day. Their addresses are the same on each day.
    pub fn resolvers(mut self, random: &mut Random, rates: &[f64]) -> Self {
        for (nth, rate) in rates.iter().enumerate() {
            let mut at = random.exponential(1.0 / rate);
            while at < SPAN {
                let (port, length) = (random.up_to(1_024, 65_535) as u16, random.up_to(64, 96));
                self.add(
                    at,
                    0xc633_64c0 + nth as u32,
                    port,
                    Label::Polite,
                    Kind::Query,
                    length,
                );
                at += random.exponential(1.0 / rate);
            }
        }
        self
    }

    /// SYNs and nothing else, from bots that each send so many a second.
    pub fn syn_flood(
        self,
        random: &mut Random,
        bots: u64,
        rates: (f64, f64),
        from: f64,
        seconds: f64,
    ) -> Self {
        self.flood(
            random,
            bots,
            rates,
            from,
            seconds,
            |mixture, random, at, source| {
                let port = random.up_to(1_024, 65_535) as u16;
                mixture.add(at, source, port, Label::Attack, Kind::Syn, 60);
            },
        )
    }

    /// Whole connections with one request each, from bots that each open so many a second.
    pub fn slow_flood(
        self,
        random: &mut Random,
        bots: u64,
        rates: (f64, f64),
        from: f64,
        seconds: f64,
    ) -> Self {
        self.flood(
            random,
            bots,
            rates,
            from,
            seconds,
            |mixture, random, at, source| {
                mixture.connection(random, at, source, Label::Attack, 2);
            },
        )
    }

    /// Queries in the name of victims, for replies that are larger.
    pub fn amplification(
        self,
        random: &mut Random,
        victims: u64,
        rates: (f64, f64),
        from: f64,
        seconds: f64,
    ) -> Self {
        self.flood(
            random,
            victims,
            rates,
            from,
            seconds,
            |mixture, random, at, source| {
                let port = random.up_to(1_024, 65_535) as u16;
                mixture.add(at, source, port, Label::Attack, Kind::Query, 74);
            },
        )
    }

    fn flood(
        mut self,
        random: &mut Random,
        bots: u64,
        (low, high): (f64, f64),
        from: f64,
        seconds: f64,
        one: impl Fn(&mut Self, &mut Random, f64, u32),
    ) -> Self {
        for _ in 0..bots {
            let source = 0xcb00_7000 + random.up_to(0, 0xf_ffff) as u32;
            let rate = random.between(low, high);
            // Bots do not begin at the same instant.
            let mut at = from + random.between(0.0, 3.0);
            while at < from + seconds {
                one(&mut self, random, at, source);
                at += random.between(0.5, 1.5) / rate;
            }
        }
        self
    }

    /// SYNs from made-up sources, each of which sends one.
    pub fn random_flood(
        mut self,
        random: &mut Random,
        packets: u64,
        from: f64,
        seconds: f64,
    ) -> Self {
        for _ in 0..packets {
            let source = 0x2000_0000 + random.up_to(0, 0x1fff_ffff) as u32;
            let at = from + random.between(0.0, seconds);
            let port = random.up_to(1_024, 65_535) as u16;
            self.add(at, source, port, Label::Attack, Kind::Syn, 60);
        }
        self
    }

    /// In the order of their times.
    pub fn sorted(mut self) -> Self {
        self.events.sort_by_key(|event| event.at);
        self
    }

    /// Writes a capture that is cut at 60 bytes.
    pub fn write(&self, path: &Path) {
        let frames = [
            Frame::ethernet()
                .ipv4([0; 4], HOST)
                .tcp(1, WEB, 2, b"")
                .build(),
            Frame::ethernet()
                .ipv4([0; 4], HOST)
                .tcp(1, WEB, 16, b"")
                .build(),
            Frame::ethernet()
                .ipv4([0; 4], HOST)
                .tcp(1, WEB, 24, b"\x17\x03\x03")
                .build(),
            Frame::ethernet()
                .ipv4([0; 4], HOST)
                .udp(1, DNS, b"\0\x07\x01\0\0\x01\0\0\0\0\0\0")
                .build(),
        ];
        let mut bytes: Vec<u8> = [0xa1b2_c3d4u32, 0x0004_0002, 0, 0, 262_144, 1]
            .iter()
            .flat_map(|word| word.to_le_bytes())
            .collect();
        for event in &self.events {
            let frame = &frames[event.kind as usize];
            let words = [
                (START + event.at / 1_000_000) as u32,
                (event.at % 1_000_000) as u32,
                frame.len() as u32,
                u32::from(event.length).max(frame.len() as u32),
            ];
            words
                .iter()
                .for_each(|word| bytes.extend(word.to_le_bytes()));
            let begin = bytes.len();
            bytes.extend(frame);
            bytes[begin + 26..begin + 30].copy_from_slice(&event.source.to_be_bytes());
            bytes[begin + 34..begin + 36].copy_from_slice(&event.port.to_be_bytes());
        }
        std::fs::write(path, bytes).unwrap();
    }
}
