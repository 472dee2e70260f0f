use proptest::prelude::*;

use super::build::{ListTrees, build_lists, build_with_filter};
use super::*;
use crate::prefix::build::Prefix;

const MAPPED: u128 = 0xffff_0000_0000;

fn masked(address: u128, length: u32) -> Prefix {
    let mask = u128::MAX.checked_shl(128 - length).unwrap_or(0);
    Prefix {
        address: address & mask,
        length,
    }
}

fn prefix() -> impl Strategy<Value = Prefix> {
    let ipv4 = (any::<u32>(), 97u32..=128)
        .prop_map(|(address, length)| masked(MAPPED | u128::from(address), length));
    let near = (0u32..4096, 116u32..=128)
        .prop_map(|(address, length)| masked(MAPPED | 0x0a00_0000 | u128::from(address), length));
    let ipv6 = (any::<u128>(), 1u32..=128).prop_map(|(address, length)| masked(address, length));
    let wide = (0u32..40).prop_map(|length| masked(0, length + 1));
    prop_oneof![4 => ipv4, 4 => near, 3 => ipv6, 1 => wide]
}

impl Words for ListTrees {
    fn head(&self, index: u32) -> u64 {
        self.head[index as usize]
    }

    fn word(&self, chunk: u32, index: u32) -> u64 {
        let start = (chunk - self.filter_chunk()) as usize * CHUNK_WORDS;
        self.filter[start + index as usize % CHUNK_WORDS]
    }
}

fn look_up(trees: &ListTrees, address: u128) -> u32 {
    let address = Address::from_ipv6(address.to_be_bytes());
    if !may_contain(trees, address) {
        return 0;
    }
    list_of(trees, trees.lines.as_slice(), address)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn the_filter_hides_nothing_and_the_longest_prefix_decides(
        prefixes in prop::collection::btree_map(prefix().prop_map(|it| (it.length, it.address)), 0u32..=256, 0..200),
        others in prop::collection::vec(any::<u128>(), 8),
        finer in 0..=MOST_FINER,
    ) {
        let all: Vec<_> = prefixes.iter().map(|((length, address), list)| (Prefix { address: *address, length: *length }, *list)).collect();
        let trees = build_with_filter(all.clone(), finer);
        let ends = all.iter().flat_map(|(prefix, _)| {
            let last = prefix.address | u128::MAX.checked_shr(prefix.length).unwrap_or(0);
            [prefix.address, last, prefix.address.wrapping_sub(1), last.wrapping_add(1)]
        });
        for address in ends.chain(others) {
            let is_ipv4 = address >> 32 == MAPPED >> 32;
            let around = all.iter().filter(|(prefix, _)| masked(address, prefix.length).address == prefix.address);
            let around = around.filter(|(prefix, _)| !is_ipv4 || prefix.length >= 96);
            let expected = around.max_by_key(|(prefix, _)| prefix.length).map_or(0, |(_, list)| *list);
            prop_assert_eq!(look_up(&trees, address), expected);
        }
    }
}

#[test]
fn without_prefixes_nothing_is_in_a_list() {
    let trees = build_lists(Vec::new());
    assert_eq!(
        (
            trees.chunks(),
            look_up(&trees, MAPPED),
            look_up(&trees, 1 << 127)
        ),
        (1, 0, 0)
    );
}

#[test]
fn long_lists_have_a_filter_that_most_addresses_do_not_pass() {
    let spread = |count: u32| (0..count).map(move |nth| nth.wrapping_mul(0x9e37_79b1));
    for (count, chunks_of_the_filter) in
        [(1, 0), (32_768, 0), (32_769, 1), (200_000, 4), (600_000, 8)]
    {
        let all = spread(count).map(|address| {
            (
                Prefix {
                    address: MAPPED | u128::from(address),
                    length: 128,
                },
                1,
            )
        });
        let trees = build_lists(all.collect());
        assert_eq!(
            trees.chunks() - trees.filter_chunk(),
            chunks_of_the_filter,
            "{count}"
        );
        assert!(
            spread(count)
                .step_by(97)
                .all(|address| look_up(&trees, MAPPED | u128::from(address)) == 1)
        );
        // At most a thirty-second of the blocks has a prefix, or about 1/28 of the smallest for 600,000.
        let others = (0..10_000u32).map(|nth| nth.wrapping_mul(0x85eb_ca6b).wrapping_add(12_345));
        let address =
            |address: u32| Address::from_ipv6((MAPPED | u128::from(address)).to_be_bytes());
        let passing = others
            .filter(|other| may_contain(&trees, address(*other)))
            .count();
        assert!(
            passing < 10_000 / 20,
            "{passing} of 10,000 with {count} prefixes"
        );
    }
}
