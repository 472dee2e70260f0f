use super::*;
use crate::time::HORIZON;
use proptest::prelude::*;

/// A simple model: a bucket of tokens, refilled by exact fractions. Tokens are counted in units of 1/`per` of a token;
/// a tick adds `count` of them.
struct Model {
    count: u128,
    per: u128,
    size: u128,
    tokens: u128,
    last: u128,
}

impl Model {
    fn new(count: u128, per: u128, burst: u64, now: u128) -> Self {
        let size = u128::from(burst) * per;
        Self {
            count,
            per,
            size,
            tokens: size,
            last: now,
        }
    }

    /// A bucket that is larger by what comes in a tick: a tolerance that is not whole is rounded up.
    fn with_a_tick_more(mut self) -> Self {
        self.size += self.count;
        self.tokens = self.size;
        self
    }

    fn decide(&mut self, now: u128, cost: u64) -> bool {
        if now > self.last {
            self.tokens = (self.tokens + (now - self.last) * self.count).min(self.size);
            self.last = now;
        }
        let price = u128::from(cost) * self.per;
        if self.tokens < price {
            return false;
        }
        self.tokens -= price;
        true
    }
}

const DAY: u64 = 86_400_000_000_000;

fn rates() -> impl Strategy<Value = Rate> {
    prop_oneof![
        (1u64..=100).prop_map(|count| Rate {
            count,
            per_nanoseconds: DAY
        }),
        (1u64..=10_000).prop_map(|count| Rate {
            count,
            per_nanoseconds: 3_600_000_000_000
        }),
        (1u64..=1_000_000).prop_map(Rate::per_second),
        (1u64..=50_000_000).prop_map(Rate::per_second),
        Just(Rate::per_second(49_999_999)),
        Just(Rate {
            count: 1,
            per_nanoseconds: DAY
        }),
    ]
}

fn bursts() -> impl Strategy<Value = u64> {
    prop_oneof![
        1u64..=10,
        1u64..=1_000,
        1u64..=10_000_000,
        Just(1),
        Just(10_000_000)
    ]
}

/// Steps of a clock in shares of the emission interval, with standstills, long pauses and jumps back.
fn steps() -> impl Strategy<Value = Vec<i64>> {
    let step = prop_oneof![
        4 => 0i64..3_000,
        2 => Just(0),
        1 => 3_000i64..2_000_000,
        1 => -5_000i64..0,
    ];
    prop::collection::vec(step, 1..300)
}

fn bucket(rate: Rate, burst: u64, costs: Costs) -> (TokenBucket, TickScale) {
    let scale = TickScale::for_longest_life(rate.nanoseconds_for(burst));
    (TokenBucket::new(rate, burst, costs, scale), scale)
}

/// Instants in ticks with any start, also just before the clock wraps.
fn instants(start: Ticks, steps: &[i64], emission: u64) -> Vec<Ticks> {
    let mut now = start;
    steps
        .iter()
        .map(|step| {
            // Thousandths of the emission interval; bounded so that a run stays within the horizon.
            let delta = (i128::from(*step) * i128::from(emission) / 1_000)
                .clamp(-(1 << 52), 1 << 52) as i64;
            now = now.wrapping_add_signed(delta);
            now
        })
        .collect()
}

fn starts() -> impl Strategy<Value = Ticks> {
    prop_oneof![
        0u64..1 << 60,
        Just(0),
        (0u64..1 << 40).prop_map(|back| u64::MAX - back)
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    /// Costs of 1: every verdict equals that of the model whose rate is one unit per emission interval.
    #[test]
    fn every_verdict_is_that_of_exact_arithmetic(rate in rates(), burst in bursts(), start in starts(), steps in steps()) {
        let (bucket, _) = bucket(rate, burst, Costs::Single);
        let mut state = start;
        // The model reads the same clock without the wrap, and never backwards.
        let origin = 1u128 << 80;
        let mut model = Model::new(1, u128::from(bucket.emission), burst, origin);
        let mut latest = origin;
        for now in instants(start, &steps, bucket.emission) {
            let read = origin.wrapping_add_signed(i128::from(now.wrapping_sub(start) as i64));
            let clock_is_behind = read < latest;
            latest = latest.max(read);
            let expected = model.decide(latest, 1);
            match bucket.decide(state, now, 1) {
                Decision::Pass(next) => { prop_assert!(expected); state = next; }
                // A clock that jumped back sees less room until it has caught up; never more.
                Decision::Refuse => prop_assert!(!expected || clock_is_behind),
            }
            if clock_is_behind && expected { return Ok(()); }
        }
    }

    /// At most burst + rate·t by the configured rate, in exact arithmetic, for all arrivals.
    #[test]
    fn never_more_than_burst_plus_rate_times_time(rate in rates(), burst in bursts(), start in starts(), steps in steps(), many in 1u64..400) {
        let (bucket, scale) = bucket(rate, burst, Costs::Single);
        let mut state = start;
        let (mut passed, mut first, mut latest) = (0u128, None, 0i128);
        for now in instants(start, &steps, bucket.emission) {
            let first = *first.get_or_insert(now);
            latest = latest.max(i128::from(now.wrapping_sub(first) as i64));
            for _ in 0..many {
                match bucket.decide(state, now, 1) {
                    Decision::Pass(next) => { state = next; passed += 1; }
                    Decision::Refuse => break,
                }
            }
            // passed ≤ burst + count × elapsed / per, in ticks and multiplied out.
            let per = (u128::from(rate.per_nanoseconds) << scale.left) >> scale.right;
            prop_assert!(passed.saturating_sub(u128::from(burst)) * per <= u128::from(rate.count) * latest as u128);
        }
    }

    /// A source that does not exceed its rate is never refused, however long it sends.
    #[test]
    fn a_conforming_source_is_never_refused(rate in rates(), burst in bursts(), start in starts(), lateness in prop::collection::vec(0u64..1_000, 1..500)) {
        let (bucket, _) = bucket(rate, burst, Costs::Single);
        let (mut state, mut now) = (start, start);
        for late in lateness {
            let Decision::Pass(next) = bucket.decide(state, now, 1) else { panic!("refused a conforming source") };
            state = next;
            now = now.wrapping_add(bucket.emission + late.min(bucket.emission));
        }
        // The interval differs from the exact one by at most one tick.
        let exact = u128::from(rate.per_nanoseconds) << 40;
        let scale = TickScale::for_longest_life(rate.nanoseconds_for(burst));
        let kept = ((u128::from(bucket.emission) << 40) >> scale.left << scale.right) * u128::from(rate.count);
        let tick = ((1u128 << 40) >> scale.left << scale.right) * u128::from(rate.count);
        prop_assert!(kept >= exact && kept < exact + tick + (u128::from(rate.count) << scale.right));
    }

    /// Refused until exactly the wait time: refused one tick earlier, passed at the wait time.
    #[test]
    fn refused_until_exactly_the_wait_time(rate in rates(), burst in 1u64..2_000, start in starts(), cost in 1u64..2_000) {
        let (bucket, _) = bucket(rate, burst, Costs::Many);
        let cost = cost.min(burst);
        let mut state = start;
        while let Decision::Pass(next) = bucket.decide(state, start, 1) { state = next; }
        let wait = bucket.wait(state, start, cost).unwrap();
        prop_assert!(wait > 0);
        prop_assert_eq!(bucket.decide(state, start.wrapping_add(wait - 1), cost), Decision::Refuse);
        prop_assert!(matches!(bucket.decide(state, start.wrapping_add(wait), cost), Decision::Pass(_)));
    }

    /// Byte costs up to 64 KiB and rates up to 100 Gbit/s: above the bound by at most what comes in a tick, and below it by at
    /// most a tick per packet.
    #[test]
    fn byte_costs_are_right_to_a_tick_a_packet(bytes_per_second in 1u64..12_500_000_000, burst in 65_536u64..1 << 32, start in starts(), costs in prop::collection::vec((1u64..=65_536, 0u64..100_000), 1..300)) {
        let (bucket, scale) = bucket(Rate::per_second(bytes_per_second), burst, Costs::Many);
        prop_assume!(scale == TickScale::FINEST);
        let second = 1_000_000_000u128 << scale.left;
        let mut model = Model::new(u128::from(bytes_per_second), second, burst, 0).with_a_tick_more();
        // The same bucket with one tick per packet to spare, plus the rounding of the interval.
        let slow_emission = u128::from(bucket.emission);
        let (mut state, mut now, mut elapsed) = (start, start, 0u128);
        for (cost, gap) in costs {
            now = now.wrapping_add(gap);
            elapsed += u128::from(gap);
            let passed = bucket.decide(state, now, cost);
            if let Decision::Pass(next) = passed {
                prop_assert!(model.decide(elapsed, cost), "passed what exact arithmetic refuses");
                state = next;
            }
            let charge = u128::from(bucket.charge(cost)) << bucket.emission_shift;
            prop_assert!(charge >= u128::from(cost) * slow_emission && charge < u128::from(cost) * slow_emission + (1 << bucket.emission_shift));
        }
    }

    /// Exactly `remaining` units pass.
    #[test]
    fn remaining_passes_and_one_more_does_not(rate in rates(), burst in bursts(), spent in 0u64..10_000_000, start in starts()) {
        let (bucket, _) = bucket(rate, burst, Costs::Many);
        let state = match bucket.decide(start, start, spent.clamp(1, burst)) { Decision::Pass(next) => next, Decision::Refuse => start };
        let remaining = bucket.remaining(state, start);
        prop_assert!(remaining == 0 || matches!(bucket.decide(state, start, remaining), Decision::Pass(_)));
        prop_assert_eq!(bucket.decide(state, start, remaining + 1), Decision::Refuse);
    }

    /// The state before a charge passes what it would have passed, and a full bucket is full again.
    #[test]
    fn an_uncharged_state_is_the_one_before(rate in rates(), burst in 2u64..1_000, start in starts(), spent in 0u64..1_000, cost in 1u64..1_000) {
        let (bucket, _) = bucket(rate, burst, Costs::Single);
        let before = match bucket.decide(start, start, spent % burst) { Decision::Pass(next) => next, Decision::Refuse => start };
        let Decision::Pass(charged) = bucket.decide(before, start, cost.min(bucket.remaining(before, start))) else { panic!() };
        prop_assert_eq!(bucket.uncharged(charged, cost.min(bucket.remaining(before, start))), before);
    }

    /// Any word may be in the map: no panic, and a passed cost leaves a state within the tolerance.
    #[test]
    fn any_state_is_a_state(rate in rates(), burst in bursts(), state: u64, now: u64, cost: u64) {
        let (bucket, _) = bucket(rate, burst, Costs::Many);
        if let Decision::Pass(next) = bucket.decide(state, now, cost) {
            prop_assert!(next.wrapping_sub(now) <= bucket.tolerance);
            prop_assert!(bucket.tolerance <= HORIZON / 2 + 1);
        }
    }
}

/// After 65,509 of 65,538 bytes, 31 more pass after 21 ticks: 2 bytes take 21⅓ ticks.
#[test]
fn bytes_pass_at_most_a_tick_early() {
    let (rate, burst) = (Rate::per_second(3_000_000_000), 65_538);
    let (bucket, scale) = bucket(rate, burst, Costs::Many);
    let second = 1_000_000_000 << scale.left;
    let passes = |mut model: Model, now| {
        assert!(model.decide(0, 65_509));
        model.decide(now, 31)
    };
    let model = || Model::new(rate.count.into(), second, burst, 0);
    let Decision::Pass(state) = bucket.decide(0, 0, 65_509) else {
        panic!("refused");
    };
    assert_eq!(bucket.wait(state, 0, 31), Some(21));
    assert!(!passes(model(), 21) && passes(model(), 22));
    assert!(passes(model().with_a_tick_more(), 21));
}

#[test]
fn the_extremes_keep_their_rates() {
    for (rate, burst) in [
        (
            Rate {
                count: 1,
                per_nanoseconds: DAY,
            },
            1,
        ),
        (
            Rate {
                count: 1,
                per_nanoseconds: DAY,
            },
            10_000_000,
        ),
        (Rate::per_second(50_000_000), 1),
        (Rate::per_second(50_000_000), 10_000_000),
    ] {
        let (bucket, scale) = bucket(rate, burst, Costs::Single);
        let interval = scale.nanoseconds(bucket.emission);
        assert_eq!(interval, rate.per_nanoseconds / rate.count);
        let mut state = 7;
        let mut passed = 0;
        while let Decision::Pass(next) = bucket.decide(state, 7, 1) {
            state = next;
            passed += 1;
        }
        assert_eq!(passed, burst);
    }
}

const NOW: u64 = 1 << 41;

proptest! {
    /// Charges on both copies of a state add up.
    #[test]
    fn charges_on_both_copies_add_up(before in 0u64..100, on_one in 0u64..100, on_other in 0u64..100) {
        let bucket = TokenBucket::new(Rate::per_second(1_000), 1_000, Costs::Single, TickScale::FINEST);
        let after = |state: u64, count: u64| state + bucket.charge(1) * count;
        let then = after(NOW, before);
        prop_assert_eq!(bucket.merge(after(then, on_one), then, after(then, on_other), NOW), after(then, on_one + on_other));
    }

    /// As many units are missing as before, on any two scales.
    #[test]
    fn a_bucket_keeps_its_used_units(old_rate in 1u64..100_000, old_burst in 1u64..10_000, new_rate in 1u64..100_000, new_burst in 1u64..10_000, used in 0.0f64..1.0, shift in 0u32..6) {
        let scales = (TickScale::FINEST, TickScale { left: TickScale::FINEST.left - shift, right: 0 });
        let old = TokenBucket::new(Rate::per_second(old_rate), old_burst, Costs::Single, scales.0);
        let new = TokenBucket::new(Rate::per_second(new_rate), new_burst, Costs::Single, scales.1);
        let now = Instants { from: scales.0.ticks(NOW), to: scales.1.ticks(NOW) };
        let used = (used * old_burst as f64) as u64;
        let state = now.from + old.charge(used);
        let mut words = [0];
        new.migrate(&old, &[state], &mut words, now);
        let left = new.remaining(words[0], now.to) as f64;
        let wanted = new_burst.saturating_sub(used) as f64;
        // The time of a unit is rounded up to a tick.
        prop_assert!(left <= wanted + 1e-3 * used as f64 && left > wanted - 1.001 - 1e-3 * used as f64, "{left} of {wanted}");
    }
}

/// 50,000 of a burst are in use when the rate falls to a thousandth.
#[test]
fn a_lowered_bucket_without_its_debt_is_empty() {
    let bucket =
        |rate| TokenBucket::new(Rate::per_second(rate), rate, Costs::Many, TickScale::FINEST);
    let (old, new) = (bucket(100_000), bucket(100));
    let now = Instants {
        from: 1 << 46,
        to: 1 << 46,
    };
    let mut words = [0];
    new.migrate(&old, &[now.from + old.charge(50_000)], &mut words, now);
    let whole = TickScale::FINEST.ticks(500_000_000_000);
    assert!(words[0] - now.to >= whole, "500 s");
    let empty = new.without_debt(words[0], now.to);
    assert_eq!(new.remaining(empty, now.to), 0);
    assert_eq!(new.wait(empty, now.to, 1), Some(new.charge(1)));
    assert_eq!(new.without_debt(now.to - 7, now.to), now.to - 7);
}

#[test]
fn a_decayed_state_stays_decayed_under_another_rate() {
    let bucket =
        |rate| TokenBucket::new(Rate::per_second(rate), 10, Costs::Single, TickScale::FINEST);
    let now = Instants {
        from: 1 << 46,
        to: 1 << 46,
    };
    for old in [now.from, now.from - 5, 0] {
        let mut words = [0];
        bucket(9).migrate(&bucket(5), &[old], &mut words, now);
        assert_eq!(words[0], now.to);
    }
}
