//! Bounds the size of maps.

use std::collections::HashMap;
use std::hash::Hash;

/// Removes the half of the entries with the lowest ranks.
pub(super) fn keep_half<K: Eq + Hash, V>(
    map: &mut HashMap<K, V>,
    mut rank: impl FnMut(&mut V) -> u64,
) {
    let mut ranks: Vec<u64> = map.values_mut().map(&mut rank).collect();
    let middle = ranks.len() / 2;
    if ranks.is_empty() {
        return;
    }
    let (_, median, higher) = ranks.select_nth_unstable(middle);
    let median = *median;
    let mut as_high = middle.saturating_sub(higher.iter().filter(|rank| **rank > median).count());
    map.retain(|_, value| {
        let rank = rank(value);
        let is_kept = rank > median || (rank == median && as_high > 0);
        as_high -= usize::from(is_kept && rank == median);
        is_kept
    });
}
