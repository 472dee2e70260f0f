//! A policy that replaces another one in the same programs.

use common::settings::Runtime;
use common::share::Share;

use super::{Pins, frame, image, load, run};

pub fn a_share_is_that_of_both_banks_and_what_was_set_at_run_time_stays() {
    let class = |source: &str| {
        format!("[[class]]\nname = \"c\"\nsources = [\"{source}\"]\nmultiplier = 3\n")
    };
    let policy = |source: &str| {
        let mut image = image(&format!(
            "[[limit]]\nname = \"a\"\nrate = \"1/day\"\nburst = 100\n{}",
            class(source)
        ));
        image.settings.given_clock = 1;
        image
    };
    let (one, other) = (policy("10.0.0.1"), policy("10.0.0.2"));
    let pins = Pins::new();
    let mut datapath = load(&one, &pins);
    datapath
        .set_runtime(Runtime {
            nanoseconds: 3_600_000_000_000,
            ..Runtime::default()
        })
        .unwrap();
    datapath.set_share(0, Share::of_parts(500_000_000), false);
    let passed = |datapath: &datapath::Datapath, source: u32| {
        let count = || {
            datapath
                .counters()
                .unwrap()
                .iter()
                .map(|row| row.passed.packets)
                .sum::<u64>()
        };
        let before = count();
        run(datapath, &frame(source, 20), 400);
        count() - before
    };
    assert_eq!([1, 3].map(|source| passed(&datapath, source)), [150, 50]);
    assert!(datapath.can_switch_to(&other, &[]));
    datapath.write_other_bank(&other).unwrap();
    assert_eq!(passed(&datapath, 4), 50, "what is written is not in effect");
    datapath.switch_to(other).unwrap();
    // On the same clock: otherwise all of them had their allowance again.
    assert_eq!(
        [2, 5, 1, 3].map(|source| passed(&datapath, source)),
        [150, 50, 0, 0]
    );
    // A share that changes changes the bank in effect, and the next one.
    datapath.set_share(0, Share::of_parts(200_000_000), false);
    assert_eq!([6].map(|source| passed(&datapath, source)), [20]);
    datapath.write_other_bank(&one).unwrap();
    datapath.switch_to(one).unwrap();
    assert_eq!([7].map(|source| passed(&datapath, source)), [20]);
}
