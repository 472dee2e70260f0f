//! Prefixes through the kernel's program: what a packet is held to is what the longest prefix around its source says.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, Ipv6Addr};

use common::counters::{Bypass, SampleKey};
use common::key::Key;
use common::packet::Address;
use common::packet::build::Frame;
use common::prefix::PrefixEntry;
use common::settings::Runtime;
use datapath::Datapath;
use datapath::compile::Image;

use super::{Pins, Sequence, XDP_DROP, XDP_PASS, image, load, run};

const MAPPED: u128 = 0xffff_0000_0000;
/// Of a class with a multiplier; one class more is unlimited.
const CLASSES: u32 = 5;
const UNLIMITED: u32 = CLASSES + 1;

/// By (length, address): the class, none where the prefix is never limited.
type Prefixes = BTreeMap<(u32, u128), Option<u32>>;

pub fn a_source_has_the_class_of_its_longest_prefix() {
    for count in [1, 4, 40, 400, 3_000] {
        let mut sequence = Sequence(0x5eed + count);
        let prefixes: Prefixes = (0..count).map(|_| prefix(&mut sequence)).collect();
        check(&prefixes, &mut sequence);
    }
}

fn mask(length: u32) -> u128 {
    u128::MAX.checked_shl(128 - length).unwrap_or(0)
}

/// An address where others are too, or somewhere.
fn address(sequence: &mut Sequence) -> u128 {
    let any = u128::from(sequence.below(u64::MAX)) << 64 | u128::from(sequence.below(u64::MAX));
    match sequence.below(6) {
        0 => MAPPED + (any & 0xffff_ffff),
        1 | 2 => MAPPED + 0x0a00_0000 + (any & 0x3ff),
        3 => 0x2001_0db8 << 96 | (any >> 64 & 0xff) << 64 | any & 3,
        4 => any & 7,
        _ => 1 << 125 | any >> 3,
    }
}

fn prefix(sequence: &mut Sequence) -> ((u32, u128), Option<u32>) {
    let address = address(sequence);
    let is_ipv4 = address >> 32 == MAPPED >> 32;
    let length = match sequence.below(4) {
        0 => 128 - sequence.below(if is_ipv4 { 33 } else { 129 }) as u32,
        1 => 128 - sequence.below(8) as u32,
        _ => {
            if is_ipv4 {
                120
            } else {
                64
            }
        }
    };
    // Nothing would be left of the others within a wide prefix that is never limited.
    let is_wide = length < if is_ipv4 { 108 } else { 16 };
    let class = [None, Some(UNLIMITED)]
        .get(sequence.below(8) as usize)
        .copied()
        .filter(|_| !is_wide);
    let class = class.unwrap_or_else(|| Some(1 + sequence.below(u64::from(CLASSES)) as u32));
    ((length, address & mask(length)), class)
}

fn text(length: u32, address: u128) -> String {
    let address = Ipv6Addr::from(address);
    match address.to_ipv4_mapped() {
        Some(address) if length >= 96 => format!("\"{address}/{}\",", length - 96),
        _ => format!("\"{address}/{length}\","),
    }
}

/// A policy of these prefixes, with one limit by class: each multiplier more lets one more packet pass.
fn policy(prefixes: &Prefixes) -> Image {
    let list = |class: Option<u32>| -> String {
        let of_class = prefixes.iter().filter(|(_, of)| **of == class);
        of_class
            .map(|((length, address), _)| text(*length, *address))
            .collect()
    };
    let mut limits = format!("never_limit = [{}]\n", list(None));
    for class in 1..=UNLIMITED {
        let service = if class == UNLIMITED {
            "unlimited = true".to_owned()
        } else {
            format!("multiplier = {}", class + 1)
        };
        let _ = write!(
            limits,
            "[[class]]\nname = \"c{class}\"\n{service}\nsources = [{}]\n",
            list(Some(class))
        );
    }
    let mut image = image(
        &(limits + "[[limit]]\nname = \"a\"\nkey = \"class\"\nrate = \"1/day\"\nburst = 1\n"),
    );
    image.settings.given_clock = 1;
    image
}

/// By the definition: (class, whether it is never limited).
fn longest(prefixes: &Prefixes, address: u128) -> (u32, bool) {
    let holding = || {
        prefixes
            .iter()
            .filter(|((length, of), _)| address & mask(*length) == *of)
    };
    (
        holding()
            .filter_map(|(_, class)| *class)
            .next_back()
            .unwrap_or(0),
        holding().any(|(_, class)| class.is_none()),
    )
}

fn check(prefixes: &Prefixes, sequence: &mut Sequence) {
    let image = policy(prefixes);
    let pins = Pins::new();
    let mut datapath = load(&image, &pins);
    datapath
        .set_runtime(Runtime {
            nanoseconds: 3_600_000_000_000,
            ..Runtime::default()
        })
        .unwrap();
    let boundaries = prefixes.keys().flat_map(|(length, address)| {
        let last = address | !mask(*length);
        [
            *address,
            address.wrapping_sub(1),
            last,
            last.wrapping_add(1),
        ]
    });
    let boundaries: Vec<u128> = boundaries.step_by(1 + prefixes.len() / 500).collect();
    let more: Vec<u128> = (0..500).map(|_| address(sequence)).collect();
    let mut seen = [0u32; UNLIMITED as usize + 2];
    for address in boundaries.into_iter().chain(more) {
        let (class, is_never_limited) = longest(prefixes, address);
        let held = if is_never_limited {
            UNLIMITED + 1
        } else {
            class
        };
        let is_over = held <= CLASSES && seen[held as usize] > held;
        seen[held as usize] += 1;
        let what = || format!("{} of {} prefixes", Ipv6Addr::from(address), prefixes.len());

        let before = counted(&datapath, &image);
        let verdict = run(&datapath, &frame(address, sequence), 1);
        let counted: Vec<bool> = counted(&datapath, &image)
            .iter()
            .zip(&before)
            .map(|(now, then)| now != then)
            .collect();
        let expected: Vec<bool> = (0..counted.len()).map(|of| of == held as usize).collect();
        assert_eq!(counted, expected, "{}", what());
        assert_eq!(
            verdict,
            if is_over { XDP_DROP } else { XDP_PASS },
            "{}",
            what()
        );

        // The class in reports is found by the same function.
        let source = Address::from_ipv6(address.to_be_bytes());
        let entry = image.entry(source);
        assert_eq!(
            (entry.class(), entry.exemption() == PrefixEntry::NEVER_LIMIT),
            (class, is_never_limited),
            "{}",
            what()
        );
    }
    // Each class has had more than pass, and some packets were bypassed. Wide prefixes may leave nothing to the default class.
    let is_varied = (0u32..)
        .zip(seen)
        .skip(1)
        .all(|(held, packets)| packets > if held <= CLASSES { held + 1 } else { 0 });
    assert!(
        prefixes.len() < 10 || is_varied,
        "{seen:?}: too one-sided to tell anything"
    );
}

fn frame(address: u128, sequence: &mut Sequence) -> Vec<u8> {
    let octets = address.to_be_bytes();
    match Ipv6Addr::from(octets)
        .to_ipv4_mapped()
        .map(|address: Ipv4Addr| address.octets())
    {
        Some(source) if sequence.below(8) > 0 => Frame::ethernet()
            .ipv4(source, [10, 9, 9, 9])
            .udp(7, 53, b"")
            .build(),
        // An IPv4 address mapped into IPv6 is that address.
        _ => Frame::ethernet()
            .ipv6(octets, [7; 16])
            .udp(7, 53, b"")
            .build(),
    }
}

/// The packets of each class, of the unlimited one and of exempt addresses.
fn counted(datapath: &Datapath, image: &Image) -> Vec<u64> {
    let sources = datapath.sources().unwrap();
    let of_class = |class| {
        let key = Key {
            hi: 0,
            lo: 0,
            extra: class,
            group: u32::from(image.rules[0].group),
        };
        let in_slot = sources.find(&key).map_or(0, |slot| {
            u64::from(slot.passed) + u64::from(sources.refused(&slot)[1])
        });
        let rule = &image.rules[0];
        let sampled: u64 = [
            SampleKey::refused(key.group, rule.position),
            SampleKey::passed(key.group, rule.closes_key),
        ]
        .into_iter()
        .filter_map(|entry| {
            let key = Key {
                group: entry.0,
                ..key
            };
            datapath.sample(None, &key).unwrap()
        })
        .map(|sample| sample.refused + sample.passed)
        .sum();
        in_slot + sampled
    };
    let rows = datapath.counters().unwrap();
    let bypassed =
        [Bypass::Unlimited, Bypass::NeverLimit].map(|bypass| rows[bypass as usize].passed.packets);
    (0..=CLASSES).map(of_class).chain(bypassed).collect()
}
