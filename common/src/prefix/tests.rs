use std::collections::BTreeMap;
use std::vec::Vec;

use proptest::prelude::*;

use super::build::{Prefix, PrefixTree, build, build_filtered};
use super::*;

const MAPPED: u128 = 0xffff_0000_0000;

fn prefix(address: u128, length: u32) -> Prefix {
    let mask = u128::MAX.checked_shl(128 - length).unwrap_or(0);
    Prefix {
        address: address & mask,
        length,
    }
}

fn entry(number: u32) -> PrefixEntry {
    PrefixEntry::new(number % 8_192, number / 3 % 8_192).with(number % 4)
}

/// The definition: the longest prefix that contains an address.
fn longest(prefixes: &[(Prefix, PrefixEntry)], address: u128) -> PrefixEntry {
    let holding = prefixes
        .iter()
        .filter(|(of, _)| prefix(address, of.length).address == of.address);
    holding
        .max_by_key(|(of, _)| of.length)
        .map(|(_, entry)| *entry)
        .unwrap_or_default()
}

fn look_up(tree: &PrefixTree, address: u128) -> PrefixEntry {
    tree.roots.look_up(
        tree.lines.as_slice(),
        Address::from_ipv6(address.to_be_bytes()),
    )
}

fn is_in_filter(tree: &PrefixTree, address: u128) -> bool {
    may_have_entry(
        tree.lines.as_slice(),
        Address::from_ipv6(address.to_be_bytes()),
    )
}

/// The first and the last address of each prefix, and their neighbours.
fn boundaries(prefixes: &[(Prefix, PrefixEntry)]) -> impl Iterator<Item = u128> + '_ {
    prefixes.iter().flat_map(|(of, _)| {
        let last = of.address | u128::MAX.checked_shr(of.length).unwrap_or(0);
        [
            of.address,
            of.address.wrapping_sub(1),
            last,
            last.wrapping_add(1),
        ]
    })
}

fn check(prefixes: &[(Prefix, PrefixEntry)], more: &[u128]) {
    let tree = build_filtered(prefixes);
    let ends = [
        0,
        u128::MAX,
        MAPPED,
        MAPPED - 1,
        MAPPED + 0xffff_ffff,
        MAPPED + 0x1_0000_0000,
    ];
    for address in boundaries(prefixes).chain(more.iter().copied()).chain(ends) {
        assert_eq!(
            look_up(&tree, address),
            longest(prefixes, address),
            "{address:x} of {prefixes:x?}"
        );
        assert!(
            look_up(&tree, address) == PrefixEntry::default() || is_in_filter(&tree, address),
            "{address:x} of {prefixes:x?}"
        );
    }
    for root in [tree.roots.ipv4, tree.roots.ipv6] {
        assert!(root.steps <= MOST_STEPS, "{} steps", root.steps);
    }
}

/// Removes duplicates.
fn distinct(prefixes: impl IntoIterator<Item = Prefix>) -> Vec<(Prefix, PrefixEntry)> {
    let distinct: BTreeMap<_, _> = prefixes
        .into_iter()
        .zip(1..)
        .map(|(of, nth)| ((of.address, of.length), nth))
        .collect();
    distinct
        .into_iter()
        .map(|((address, length), nth)| (Prefix { address, length }, entry(nth)))
        .collect()
}

/// Addresses with and without common leading bits.
fn address() -> impl Strategy<Value = u128> {
    let few = prop::sample::select(std::vec![
        0u128,
        1,
        0x80,
        0xff,
        0x0a00_0000,
        0x7fff_ffff,
        0xffff_ffff
    ]);
    let near = (few.clone(), 0u32..128, few, 0u32..128)
        .prop_map(|(a, shift, b, other)| a << shift ^ b << other);
    let ipv4 = any::<u32>().prop_map(|address| MAPPED | u128::from(address));
    let dense_ipv4 = (0u32..512).prop_map(|address| MAPPED | u128::from(0x0a00_0000 | address));
    let dense_ipv6 =
        (0u128..300, 0u128..3).prop_map(|(hi, lo)| (0x2001_0db8 << 96) | hi << 64 | lo);
    prop_oneof![any::<u128>(), near, ipv4, dense_ipv4, dense_ipv6]
}

fn prefixes() -> impl Strategy<Value = Vec<(Prefix, PrefixEntry)>> {
    let length = prop_oneof![
        0u32..=128,
        96u32..=128,
        Just(128),
        Just(64),
        Just(120),
        Just(0),
        Just(96)
    ];
    let one = (address(), length)
        .prop_map(|(address, length)| prefix(address, length))
        .boxed();
    let most = prop_oneof![Just(3usize), Just(20), Just(100), Just(400)];
    most.prop_flat_map(move |most| prop::collection::vec(one.clone(), 0..most))
        .prop_map(distinct)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn longest_prefix_wins(
        prefixes in prefixes(),
        addresses in prop::collection::vec(address(), 50),
    ) {
        check(&prefixes, &addresses);
    }
}

#[test]
fn an_empty_tree_has_no_entries_and_no_lines() {
    assert_eq!(build(&[]), PrefixTree::default());
    check(&[], &[0, 1, MAPPED + 5]);
}

#[test]
fn few_addresses_outside_of_a_prefix_pass_its_filter() {
    let ipv4 = |a, b| MAPPED | u128::from(u32::from_be_bytes([a, b, 7, 7]));
    let ipv6 = |first: u128, second: u128| first << 112 | second << 96 | 7;
    let tree = build_filtered(&distinct([
        prefix(ipv4(10, 9), 128),
        prefix(ipv4(172, 16), 96 + 12),
        prefix(ipv6(0xfe80, 0), 10),
        prefix(ipv6(0x2001, 0xdb8), 128),
        prefix(ipv6(0x2a00, 0x1450), 28),
    ]));
    let numbers = |count: u128| 0..count;
    let passing_ipv4 = numbers(1 << 16)
        .filter(|number| is_in_filter(&tree, ipv4((number >> 8) as u8, *number as u8)))
        .count();
    assert_eq!(passing_ipv4, 1 + 16);
    assert!(is_in_filter(&tree, ipv4(10, 9)) && !is_in_filter(&tree, ipv4(10, 8)));
    for (first, passing) in [(0x2001, 17 * 8), (0x2600, 17 * 8), (0xfebf, 1 << 16)] {
        let count = numbers(1 << 16)
            .filter(|second| is_in_filter(&tree, ipv6(first, *second)))
            .count();
        assert_eq!(count, passing, "{first:x}");
    }
    assert!(is_in_filter(&tree, ipv6(0x2a00, 0x145f)));
    assert!(!is_in_filter(&tree, ipv6(0x2a00, 0x1460)));
}

#[test]
fn a_prefix_of_all_addresses_applies_to_all() {
    check(&[(prefix(0, 0), entry(5))], &[]);
    check(&[(prefix(MAPPED, 96), entry(5))], &[]);
    check(
        &[
            (prefix(0, 0), entry(5)),
            (prefix(MAPPED, 96), entry(6)),
            (prefix(MAPPED, 97), entry(7)),
        ],
        &[],
    );
    assert!(
        build(&[(prefix(0, 0), entry(5)), (prefix(MAPPED, 96), entry(6))])
            .lines
            .is_empty()
    );
    let everything = build_filtered(&[(prefix(0, 0), entry(5))]);
    assert!(is_in_filter(&everything, MAPPED) && is_in_filter(&everything, u128::MAX));
}

#[test]
fn an_entry_has_room_for_every_class_index_and_exemption() {
    for (class, source_index) in [
        (MAX_CLASSES, MAX_CLASSES),
        (MAX_CLASSES, 0),
        (0, MAX_CLASSES),
        (0, 0),
    ] {
        for exemption in 0..4 {
            let entry = PrefixEntry::new(class, source_index)
                .with(PrefixEntry::NEVER_BANNED)
                .with(exemption);
            assert_eq!((entry.class(), entry.source_index()), (class, source_index));
            assert_eq!(entry.exemption(), exemption);
            assert!(!Node(entry.0).goes_on());
            check(&[(prefix(MAPPED, 104), entry)], &[]);
        }
    }
}

/// As skewed as possible: one stretch of each table contains nearly everything.
#[test]
fn prefixes_that_halve_the_rest_each_time_take_a_bounded_number_of_steps() {
    let halves = (1..=128).map(|length| prefix(u128::MAX << (128 - length) << 1, length));
    check(&distinct(halves), &[]);
    let both = (1..=128).flat_map(|length| {
        [
            prefix(1 << (128 - length), length),
            prefix(!0 ^ 1 << (128 - length), length),
        ]
    });
    check(&distinct(both), &[]);
    // Fifty at each power of two, in the upper halves and in the lower ones of each of them.
    let clumps = (0..64u32).flat_map(|power| (0..50u128).map(move |nth| (1u128 << power) + nth));
    let upper = clumps.clone().map(|half| prefix(half << 64, 64));
    let lower = clumps.map(|half| prefix((0x2001 << 112) + half, 128));
    let all = distinct(upper.chain(lower));
    let tree = build(&all);
    assert!(
        tree.roots.ipv6.steps <= MOST_STEPS,
        "{}",
        tree.roots.ipv6.steps
    );
    let holding = |address: u128| {
        all.iter()
            .filter(move |(of, _)| prefix(address, of.length).address == of.address)
    };
    for address in boundaries(&all).step_by(7) {
        let longest = holding(address)
            .max_by_key(|(of, _)| of.length)
            .map(|(_, entry)| *entry)
            .unwrap_or_default();
        assert_eq!(look_up(&tree, address), longest, "{address:x}");
    }
}

/// A deterministic hash with 64 bits.
fn mixed(number: u128) -> u128 {
    let mut mixed = (number as u64)
        .wrapping_add(1)
        .wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^= mixed >> 29;
    mixed = mixed.wrapping_mul(0xbf58_476d_1ce4_e5b9);
    u128::from(mixed ^ mixed >> 32)
}

/// A kind of list, and the most steps and bytes per prefix.
type Kind = (&'static str, fn(u128) -> Prefix, u32, usize);

const KINDS: [Kind; 8] = [
    (
        "/24s side by side",
        |nth| prefix(MAPPED + (0x0a00_0000 + nth * 256), 120),
        0,
        5,
    ),
    (
        "/24s anywhere",
        |nth| prefix(MAPPED + (mixed(nth) & 0xffff_ffff), 120),
        2,
        48,
    ),
    (
        "IPv4 addresses side by side",
        |nth| prefix(MAPPED + 0x0a00_0000 + nth, 128),
        0,
        5,
    ),
    (
        "IPv4 addresses anywhere",
        |nth| prefix(MAPPED + (mixed(nth) & 0xffff_ffff), 128),
        2,
        48,
    ),
    (
        "/49s side by side",
        |nth| prefix(0x2001_0db8 << 96 | nth << 79, 49),
        0,
        5,
    ),
    (
        "/48s anywhere",
        |nth| prefix((0x2000 | mixed(nth) >> 51) << 112 ^ mixed(nth) << 76, 48),
        2,
        48,
    ),
    (
        "/64s side by side",
        |nth| prefix(0x2001_0db8 << 96 | nth << 64, 64),
        0,
        5,
    ),
    (
        "IPv6 addresses anywhere",
        |nth| prefix(mixed(nth) << 64 | mixed(!nth), 128),
        3,
        112,
    ),
];

#[test]
fn a_hundred_thousand_prefixes_take_few_steps_and_little_memory() {
    for (what, of, most_steps, most_bytes) in KINDS {
        let all = distinct((0..100_000).map(of));
        let tree = build(&all);
        let steps = tree.roots.ipv4.steps.max(tree.roots.ipv6.steps);
        let bytes = tree.lines.len() * size_of::<Line>();
        std::println!(
            "{what}: {} prefixes, {steps} steps, {bytes} bytes",
            all.len()
        );
        assert!(steps <= most_steps, "{what}: {steps} steps");
        assert!(
            bytes <= most_bytes * all.len(),
            "{what}: {bytes} bytes for {}",
            all.len()
        );
        for nth in (0..100_000).step_by(97) {
            let of = of(nth);
            let said = all
                .binary_search_by_key(&(of.address, of.length), |(of, _)| (of.address, of.length))
                .unwrap();
            assert_eq!(look_up(&tree, of.address), all[said].1, "{what}: {of:x?}");
        }
    }
}
