//! Ban lists through the kernel's program: a packet is refused if and only if the merged lists contain its source.

use std::time::{Duration, Instant};

use aya::programs::TestRunOptions;
use common::list::build::build_lists;
use common::packet::build::Frame;
use common::prefix::build::Prefix;
use config::PrefixKey;
use config::policy::ListFormat;
use datapath::{Datapath, Entry, ListMap};
use lists::{Listed, dated, merge, parse};

use super::{Pins, Sequence, XDP_DROP, XDP_PASS, image, load, run};

const LIMIT: &str = "[[limit]]\nname = \"a\"\nrate = \"1000000000/s\"\n";
pub const LIST: &str = "[[ban_list]]\nname = \"l\"\nfile = \"/dev/null\"\n";
const MAPPED: u128 = 0xffff_0000_0000;

/// A frame from an address; one for each version.
fn frame(source: u128) -> Vec<u8> {
    if source >> 32 == MAPPED >> 32 {
        Frame::ethernet()
            .ipv4((source as u32).to_be_bytes(), [10, 9, 9, 9])
            .udp(7, 53, &[0; 22])
            .build()
    } else {
        Frame::ethernet()
            .ipv6(source.to_be_bytes(), [7; 16])
            .udp(7, 53, &[0; 22])
            .build()
    }
}

fn address(sequence: &mut Sequence) -> u128 {
    let any = u128::from(sequence.below(u64::MAX)) << 64 | u128::from(sequence.below(u64::MAX));
    match sequence.below(4) {
        0 => MAPPED + (any & 0xffff_ffff),
        1 => MAPPED + 0x0a00_0000 + (any & 0xfff),
        2 => 0x2001_0db8 << 96 | (any >> 64 & 0xff) << 64 | any & 7,
        _ => any | 1 << 125,
    }
}

fn cut(address: u128, length: u32) -> u128 {
    address & u128::MAX.checked_shl(128 - length).unwrap_or(0)
}

pub fn the_merged_lists_decide_which_packets_are_refused() {
    let pins = Pins::new();
    let mut datapath = load(&image(&format!("{LIST}{LIMIT}")), &pins);
    // No map yet.
    assert_eq!(run(&datapath, &frame(MAPPED + 1), 1), XDP_PASS);
    for count in [0u64, 1, 30, 3_000, 100_000] {
        let mut sequence = Sequence(0x1157 + count);
        let mut prefixes = std::collections::BTreeMap::new();
        for _ in 0..count {
            let address = address(&mut sequence);
            let is_ipv4 = address >> 32 == MAPPED >> 32;
            let length = 128 - sequence.below(if is_ipv4 { 17 } else { 90 }) as u32;
            prefixes.insert((length, cut(address, length)), sequence.below(4) as u32);
        }
        let all: Vec<_> = prefixes
            .iter()
            .map(|((length, address), list)| {
                (
                    Prefix {
                        address: *address,
                        length: *length,
                    },
                    *list,
                )
            })
            .collect();
        let map = ListMap::create(&build_lists(all)).unwrap();
        datapath.set_lists(Some(&map)).unwrap();
        let expected = |address: u128| {
            let shortest = if address >> 32 == MAPPED >> 32 { 96 } else { 0 };
            (shortest..=128)
                .rev()
                .find_map(|length| prefixes.get(&(length, cut(address, length))))
                .copied()
                .unwrap_or(0)
        };
        let ends = prefixes
            .keys()
            .step_by(1 + prefixes.len() / 1_000)
            .flat_map(|(length, address)| {
                let last = address | u128::MAX.checked_shr(*length).unwrap_or(0);
                [
                    *address,
                    last,
                    address.wrapping_sub(1),
                    last.wrapping_add(1),
                ]
            });
        let sources: Vec<u128> = ends
            .chain((0..500).map(|_| self::address(&mut sequence)))
            .collect();
        let mut refused = [0u64; 4];
        for source in sources {
            // Neighbour discovery and sources that no host may have are not the subject.
            let list = expected(source);
            let verdict = run(&datapath, &frame(source), 1);
            let what = std::net::Ipv6Addr::from(source);
            assert_eq!(
                verdict,
                if list == 0 { XDP_PASS } else { XDP_DROP },
                "{what} of {count} prefixes"
            );
            refused[list as usize] += 1;
        }
        assert_eq!(map.refused()[..3], refused[1..], "by list");
        assert!(
            count < 3_000 || refused.iter().all(|packets| *packets > 0),
            "{refused:?} tells nothing"
        );
    }
    datapath.set_lists(None).unwrap();
    datapath.set_lists(None).unwrap();
    assert_eq!(run(&datapath, &frame(MAPPED + 0x0a00_0001), 1), XDP_PASS);
}

/// Nanoseconds a packet, of one source and of many, the least of several turns.
fn nanoseconds(datapath: &Datapath, sources: &[Vec<u8>], repeat: u32) -> f64 {
    let mut sum = Duration::ZERO;
    for frame in sources {
        let mut options = TestRunOptions::new();
        options.data_in = Some(frame);
        options.repeat = repeat;
        let result = datapath.test_run(Entry::Xdp, options).unwrap();
        assert_eq!(result.return_value, XDP_PASS);
        // The kernel reports the mean of one run.
        sum += result.duration;
    }
    sum.as_nanos() as f64 / sources.len() as f64
}

/// Prints what a million prefixes cost; asserts only what does not depend on the machine.
pub fn a_million_prefixes_of_a_list_load_and_cost_little() {
    let text: String = (0..1_000_000u32)
        .map(|nth| {
            format!(
                "{}\n",
                std::net::Ipv4Addr::from(nth.wrapping_mul(2_654_435_761))
            )
        })
        .collect();
    let began = Instant::now();
    let parsed = parse(text.as_bytes(), &ListFormat::Plain).unwrap();
    let parsing = began.elapsed();
    let listed: Vec<Listed> = dated(&parsed.prefixes, &[], 0);
    let own: Vec<PrefixKey> = Vec::new();
    let trees = build_lists(merge(&[&listed], &own));
    let building = began.elapsed() - parsing;
    let map = ListMap::create(&trees).unwrap();
    let (without, with) = (Pins::new(), Pins::new());
    let plain = load(&image(LIMIT), &without);
    let mut listing = load(&image(&format!("{LIST}{LIMIT}")), &with);
    listing.set_lists(Some(&map)).unwrap();
    println!(
        "a million addresses: parsed in {parsing:?}, trees in {building:?}, in effect after {:?}; {} MiB",
        began.elapsed(),
        map.bytes() >> 20
    );
    assert_eq!(listed.len(), 1_000_000);
    let is_listed = |address: u32| {
        listed
            .binary_search_by(|one| {
                one.prefix().cmp(&PrefixKey {
                    address: (MAPPED + u128::from(address)).to_be_bytes(),
                    length: 128,
                })
            })
            .is_ok()
    };
    let frames: Vec<Vec<u8>> = (0..4_000u32)
        .map(|nth| 0x4000_0000 + nth.wrapping_mul(40_503))
        .filter(|address| !is_listed(*address))
        .map(|address| frame(MAPPED + u128::from(address)))
        .take(50)
        .collect();
    for (what, sources, repeat) in [
        ("one source", &frames[..1], 400_000),
        ("50 sources, 1,000 packets each", &frames[..], 1_000),
    ] {
        let turns: Vec<(f64, f64)> = (0..5)
            .map(|_| {
                (
                    nanoseconds(&plain, sources, repeat),
                    nanoseconds(&listing, sources, repeat),
                )
            })
            .collect();
        let least = |of: fn(&(f64, f64)) -> f64| turns.iter().map(of).fold(f64::INFINITY, f64::min);
        println!(
            "{what}: {:.0} ns a packet without lists, {:.0} ns with a million prefixes",
            least(|turn| turn.0),
            least(|turn| turn.1)
        );
    }
    let some = parsed.prefixes[500_000];
    assert_eq!(
        run(&listing, &frame(u128::from_be_bytes(some.address)), 1),
        XDP_DROP
    );
}
