//! Windows and logs of classes with multipliers, by the kernel's program, on a clock that the test sets.

use common::settings::Runtime;

use super::{Pins, Sequence, XDP_PASS, frame, image, load, run};

const HOUR: u64 = 3_600_000_000_000;
/// Units in an hour of a source in no class.
const MOST: u64 = 20;
const MULTIPLIER: u64 = 7;
/// One source of the class, one of none.
const SOURCES: [u32; 2] = [1, 2];

/// Sources of two classes in turns, in one window: each passes while fewer units than its class has were passed by its
/// key, which it has for itself or shares.
pub fn windows_and_logs_count_for_each_class_what_its_key_has_passed() {
    for algorithm in ["fixed-window", "sliding-window", "sliding-log"] {
        for key in ["source", "all"] {
            count(algorithm, key);
        }
    }
}

fn count(algorithm: &str, key: &str) {
    let mut image = image(&format!(
        "[[class]]\nname = \"c\"\nsources = [\"10.0.0.{}\"]\nmultiplier = {MULTIPLIER}\n\
         [[limit]]\nname = \"a\"\nkey = \"{key}\"\nrate = \"{MOST}/h\"\nalgorithm = \"{algorithm}\"\n",
        SOURCES[0]
    ));
    image.settings.given_clock = 1;
    let pins = Pins::new();
    let mut datapath = load(&image, &pins);
    datapath
        .set_runtime(Runtime {
            nanoseconds: 10 * HOUR + HOUR / 100,
            ..Runtime::default()
        })
        .unwrap();
    let mut sequence = Sequence(0xc1a55);
    let mut passed = [0u64; 2];
    for nth in 0..400 {
        let source = sequence.below(2) as usize;
        let most = [MOST * MULTIPLIER, MOST][source];
        let of_key = if key == "all" {
            passed[0] + passed[1]
        } else {
            passed[source]
        };
        let passes = run(&datapath, &frame(SOURCES[source], 20), 1) == XDP_PASS;
        assert_eq!(
            passes,
            of_key < most,
            "{algorithm} by {key}: packet {nth} of source {source} after {passed:?}"
        );
        passed[source] += u64::from(passes);
    }
    assert!(passed.iter().sum::<u64>() >= MOST * MULTIPLIER);
}
