use super::*;
use proptest::prelude::*;

/// Runs the steps as one CPU does.
fn decide(limiter: &SlidingWindow, words: &mut [u64; 2], now: Ticks, cost: u64) -> bool {
    for _ in 0..4 {
        match limiter.step(words[0], words[1], now, cost) {
            Step::Seal { word, from, to } => {
                assert_eq!(words[word as usize], from);
                words[word as usize] = to;
            }
            Step::Pass { word, from, to } => {
                assert_eq!(words[word as usize], from);
                words[word as usize] = to;
                return true;
            }
            Step::Refuse => return false,
        }
    }
    panic!("did not come to a decision");
}

fn limiter(count: u64, per_nanoseconds: u64) -> SlidingWindow {
    let limiter = SlidingWindow::new(
        Rate {
            count,
            per_nanoseconds,
        },
        TickScale::FINEST,
    );
    assert!(limiter.is_representable());
    limiter
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_000))]

    #[test]
    fn every_verdict_is_that_of_the_definition(count in 1u64..2_000, per_nanoseconds in 1_000_000u64..100_000_000_000, start in 1u64..1 << 60, arrivals in prop::collection::vec((0u64..3_000, 1u64..20), 1..300)) {
        let limiter = limiter(count, per_nanoseconds);
        prop_assert_eq!(limiter.share_shift, 0);
        let mut words = [SlidingWindow::fresh(start); 2];
        let mut passed: std::collections::HashMap<u64, u64> = Default::default();
        let mut now = start;
        for (gap, cost) in arrivals {
            now += gap * limiter.window / (500 * count).min(3_000);
            let number = now / limiter.window;
            let before = u128::from(number.checked_sub(1).and_then(|n| passed.get(&n)).copied().unwrap_or(0));
            let this = u128::from(passed.get(&number).copied().unwrap_or(0));
            let window = u128::from(limiter.window);
            let left = window - u128::from(now % limiter.window);
            let expected = cost <= count && (this + u128::from(cost) - 1) * window + before * left < u128::from(count) * window;
            let remaining = limiter.remaining(words[0], words[1], now);
            prop_assert!(expected || cost > remaining);
            prop_assert_eq!(decide(&limiter, &mut words, now, cost), expected);
            if expected { *passed.entry(number).or_default() += cost; }
        }
    }

    /// Where N·T does not fit, the share is rounded: never more, and less by no more than one part in a million.
    #[test]
    fn large_limits_err_on_the_safe_side(count in 1u64 << 24..1 << 32, before in 0u64..1 << 32, spent in 0u64..1 << 32, at in 0u64..1_000_000) {
        let limiter = limiter(count, 3_600_000_000_000);
        let (before, spent) = (before % count, spent % count);
        let number = 10;
        let now = number * limiter.window + (u128::from(limiter.window) * u128::from(at) / 1_000_000) as u64;
        let start = number * limiter.window;
        let even = limiter.label(start) | (spent << 1);
        let odd = limiter.label(start - limiter.window) | (before << 1) | SEAL;
        let window = u128::from(limiter.window);
        let left = window - u128::from(now - start);
        let used = u128::from(spent) * window + u128::from(before) * left;
        match limiter.step(even, odd, now, 1) {
            Step::Pass { .. } => prop_assert!(used < u128::from(count) * window),
            Step::Refuse => prop_assert!(used + u128::from(before) * (window >> 20) >= u128::from(count) * window),
            Step::Seal { .. } => prop_assert!(false, "sealed already"),
        }
    }

    #[test]
    fn refused_until_exactly_the_wait_time(count in 1u64..1_000, per_nanoseconds in 1_000_000u64..10_000_000_000, start in 1u64 << 40..1 << 60, offset in 0u64..1_000, cost in 1u64..1_000) {
        let limiter = limiter(count, per_nanoseconds);
        let cost = cost.min(count);
        let mut words = [SlidingWindow::fresh(start); 2];
        while decide(&limiter, &mut words, start, 1) {}
        let now = start + offset * limiter.window / 1_000;
        while decide(&limiter, &mut words, now, 1) {}
        let wait = limiter.wait(words[0], words[1], now, cost).unwrap();
        if wait > 0 {
            let mut copy = words;
            prop_assert!(!decide(&limiter, &mut copy, now + wait - 1, cost));
        }
        let mut copy = words;
        prop_assert!(decide(&limiter, &mut copy, now + wait, cost));
    }

    /// A CPU that is late by a window counts in the new one, with the whole of the old in view.
    #[test]
    fn a_late_clock_gains_nothing(count in 1u64..1_000, start in 1u64 << 50..1 << 60, late in 0u64..1 << 20) {
        let limiter = limiter(count, 1_000_000_000);
        let boundary = (start / limiter.window + 1) * limiter.window;
        let mut words = [SlidingWindow::fresh(boundary - 1); 2];
        let mut passed = 0;
        while decide(&limiter, &mut words, boundary - 1, 1) { passed += 1; }
        prop_assert_eq!(passed, count);
        // Another CPU opens the new window far in, where some of the old is out of view …
        let within = boundary + limiter.window / 2;
        while decide(&limiter, &mut words, within, 1) { passed += 1; }
        // … and the late one, still before the boundary, gets nothing of the old window and no more of the new.
        prop_assert!(!decide(&limiter, &mut words, boundary - 1 - late, 1) || count == 1);
        prop_assert!(passed <= count + count.div_ceil(2));
    }

    #[test]
    fn any_state_is_a_state(count in 1u64..1 << 30, even: u64, odd: u64, now: u64, cost: u64) {
        let limiter = limiter(count, 1_000_000_000);
        if let Step::Pass { to, .. } = limiter.step(even, odd, now, cost) {
            prop_assert!(limiter.count(to) <= count);
        }
    }

    #[test]
    fn a_sliding_window_keeps_its_counts(old_count in 1u64..5_000, new_count in 1u64..5_000, before in 0.0f64..1.0, used in 0.0f64..1.0, later in 0.0f64..1.0) {
        let rate = |count| Rate { count, per_nanoseconds: 1_000_000_000 };
        let (old, new) = (SlidingWindow::new(rate(old_count), TickScale::FINEST), SlidingWindow::new(rate(new_count), TickScale::FINEST));
        let start = (1 << 49) / old.window * old.window;
        let mut words = [SlidingWindow::fresh(start); 2];
        let charge = |words: &mut [u64; 2], at: u64, cost: u64| for _ in 0..3 {
            match old.step(words[0], words[1], at, cost) {
                Step::Seal { word, to, .. } => words[word as usize] = to,
                Step::Pass { word, to, .. } => { words[word as usize] = to; break; }
                Step::Refuse => break,
            }
        };
        charge(&mut words, start, (before * old_count as f64) as u64);
        let at = start + old.window + (later * old.window as f64) as u64;
        charge(&mut words, at, (used * old_count as f64) as u64);
        let left = old.remaining(words[0], words[1], at);
        let used = old_count - left;
        let remaining = |limiter: &SlidingWindow, of: &SlidingWindow, now: Instants| {
            let mut carried = [0; 2];
            limiter.migrate(of, &words, &mut carried, now);
            limiter.remaining(carried[0], carried[1], now.to)
        };
        let wanted = new_count.saturating_sub(used);
        let same = remaining(&new, &old, Instants { from: at, to: at });
        // Of counts that do not fit, and on another clock, the fraction of a unit that is in view is rounded up.
        let other = remaining(&new, &old, Instants { from: at, to: at + old.window / 3 });
        for carried in [same, other] {
            prop_assert!(carried <= wanted && carried + 1 >= wanted, "{carried} of {wanted}");
        }
        if old_count <= new_count {
            prop_assert_eq!(same, wanted);
        }
    }
}
