//! The number of sources in a sketch.

use common::source_sketch::{REGISTERS, SourceSketch};

/// The correction factor for 64 registers (Flajolet et al., 2007, figure 3).
const ALPHA: f64 = 0.709;

/// The estimate of the number of sources, with a standard error of 13 %, and less below 100; `None` without sources.
#[must_use]
pub fn estimate(sketch: &SourceSketch) -> Option<u64> {
    let registers = sketch.registers();
    let empty = registers.iter().filter(|rank| **rank == 0).count();
    if empty == REGISTERS {
        return None;
    }
    let count = REGISTERS as f64;
    let sum: f64 = registers
        .iter()
        .map(|rank| 2f64.powi(-i32::from(*rank)))
        .sum();
    let estimate = ALPHA * count * count / sum;
    // Few sources leave registers empty, and are counted by these ("linear counting").
    let linear = estimate <= 2.5 * count && empty > 0;
    let estimate = if linear {
        count * (count / empty as f64).ln()
    } else {
        estimate
    };
    Some((estimate.round() as u64).max(1))
}

#[cfg(test)]
mod tests {
    use common::source_sketch::hash;

    use super::*;

    #[test]
    fn a_sketch_estimates_its_sources_within_three_standard_errors() {
        assert_eq!(estimate(&SourceSketch::EMPTY), None);
        for seed in [
            [0x9e37_79b9_7f4a_7c15, 0xbf58_476d_1ce4_e5b9],
            [0x94d0_49bb_1331_11eb, 0x2545_f491_4f6c_dd1d],
        ] {
            for count in [1u64, 2, 10, 212, 5_000, 200_000] {
                let mut sketch = SourceSketch::EMPTY;
                // Each source is added twice, in consecutive addresses as in a network.
                let number = |nth: u64| {
                    let [a, b, c, d] = (0xcb00_7100 + (nth % count) as u32).to_be_bytes();
                    u64::from_ne_bytes([0, 0, 0xff, 0xff, a, b, c, d])
                };
                (0..2 * count).for_each(|nth| sketch.add(hash(seed, number(nth))));
                let found = estimate(&sketch).unwrap() as f64;
                assert!(
                    (found / count as f64 - 1.0).abs() <= 3.0 * 0.13,
                    "{found} of {count}"
                );
            }
        }
    }
}
