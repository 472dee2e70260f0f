//! Every interleaving of a few CPUs with a few packets, compared with the definition; and the sizes of holds.

use std::collections::HashSet;

use super::{HotKey, Take, longest_hold};
use crate::key::Key;
use crate::limiter::{Costs, Decision, Rate, TokenBucket};
use crate::rule::has_holds;
use crate::table::Tally;
use crate::time::{TickScale, Ticks};

/// A clock that is far from 0, where states of 0 are those of no one.
const START: Ticks = 1 << 40;

/// A CPU's next step.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Step {
    /// Read the clock for its next packet.
    Idle,
    /// Read the state, after the clock.
    Load(Ticks),
    /// Exchange the state that it read.
    Exchange(Ticks, u64),
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct Cpu {
    step: Step,
    packets: u32,
    /// Of its hold: units, expiry.
    hold: (u32, Ticks),
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    now: Ticks,
    state: u64,
    cpus: Vec<Cpu>,
    /// The instants of packets that passed, in their order.
    passed: Vec<Ticks>,
}

/// How a hold is taken: from the bucket, the state, the instant, and a size in packets.
type Taking = fn(&TokenBucket, u64, Ticks, u16) -> Take;

const LIFE: Ticks = 4;

/// As the packet path does.
fn paid(bucket: &TokenBucket, from: u64, now: Ticks, size: u16) -> Take {
    let mut hot = HotKey::default();
    hot.begin(&Key::default(), now, size);
    // Neither grows nor shrinks.
    hot.taken_at = now.wrapping_sub(LIFE / 4);
    hot.take(bucket, from, now, 1, LIFE)
}

/// Without paying for the life of the hold.
fn unpaid(bucket: &TokenBucket, from: u64, now: Ticks, size: u16) -> Take {
    let base = if from > now { from } else { now };
    let next = base + bucket.charge(size.into());
    if size < 2 || next - now > bucket.tolerance {
        return Take::Single;
    }
    Take::Hold {
        next,
        units: u32::from(size) - 1,
    }
}

struct Explorer {
    bucket: TokenBucket,
    take: Taking,
    until: Ticks,
    seen: HashSet<World>,
    holds: u64,
}

impl Explorer {
    /// Whether some window of some run passes more than the definition allows.
    fn exceeds(&mut self, world: &World) -> bool {
        let mut world = world.clone();
        world.passed.sort_unstable();
        let world = &world;
        if !self.seen.insert(world.clone()) {
            return false;
        }
        if self.is_exceeded(world) {
            return true;
        }
        if world.now < self.until {
            let mut later = world.clone();
            later.now += 1;
            if self.exceeds(&later) {
                return true;
            }
        }
        (0..world.cpus.len()).any(|cpu| self.exceeds_by(world, cpu))
    }

    /// The cost of those in [s, t] is at most τ + (t − s), for all s and t.
    fn is_exceeded(&self, world: &World) -> bool {
        let instants = &world.passed;
        instants.iter().enumerate().any(|(first, s)| {
            instants[first..].iter().enumerate().any(|(more, t)| {
                (more as u64 + 1) * self.bucket.emission > self.bucket.tolerance + (t - s)
            })
        })
    }

    fn exceeds_by(&mut self, world: &World, nth: usize) -> bool {
        let mut next = world.clone();
        let cpu = &mut next.cpus[nth];
        match cpu.step {
            Step::Idle => {
                if cpu.packets == 0 {
                    return false;
                }
                cpu.packets -= 1;
                let (units, expiry) = cpu.hold;
                if units > 0 && world.now <= expiry {
                    cpu.hold.0 -= 1;
                    next.passed.push(world.now);
                } else {
                    cpu.step = Step::Load(world.now);
                }
                self.exceeds(&next)
            }
            Step::Load(now) => {
                cpu.step = Step::Exchange(now, world.state);
                self.exceeds(&next)
            }
            Step::Exchange(now, from) => {
                cpu.step = Step::Idle;
                let Decision::Pass(single) = self.bucket.decide(from, now, 1) else {
                    return self.exceeds(&next);
                };
                [1, 4].into_iter().any(|size| {
                    let mut next = next.clone();
                    let (to, units) = match (self.take)(&self.bucket, from, now, size) {
                        Take::Single => (single, 0),
                        Take::Hold { next, units } => (next, units),
                        Take::Refuse => return self.exceeds(&next),
                    };
                    if world.state == from {
                        self.holds += u64::from(units > 0);
                        next.state = to;
                        next.cpus[nth].hold = (units, now + LIFE);
                        next.passed.push(now);
                    } else if let Decision::Pass(to) = self.bucket.decide(world.state, now, 1) {
                        // The slow path tries again, alone.
                        next.state = to;
                        next.passed.push(now);
                    }
                    self.exceeds(&next)
                })
            }
        }
    }
}

/// Whether so many CPUs with so many packets each can exceed a bucket, and how many holds were taken.
fn explore(cpus: usize, packets: u32, (emission, burst): (u64, u64), take: Taking) -> (bool, u64) {
    let mut explorer = Explorer {
        bucket: TokenBucket {
            emission,
            emission_shift: 0,
            tolerance: emission * burst,
            burst,
        },
        take,
        until: START + 5,
        seen: HashSet::new(),
        holds: 0,
    };
    let idle = Cpu {
        step: Step::Idle,
        packets,
        hold: (0, START),
    };
    let exceeds = explorer.exceeds(&World {
        now: START,
        state: 0,
        cpus: vec![idle; cpus],
        passed: Vec::new(),
    });
    (exceeds, explorer.holds)
}

#[test]
fn holds_pass_no_more_than_the_bucket_in_any_interleaving() {
    for (cpus, packets, bucket) in [(2, 3, (2, 4)), (2, 2, (1, 7)), (3, 1, (1, 7))] {
        let (exceeds, holds) = explore(cpus, packets, bucket, paid);
        assert!(!exceeds, "{cpus} CPUs, {packets} packets, {bucket:?}");
        assert!(holds > 1_000, "only {holds} holds");
    }
}

#[test]
fn holds_that_are_not_paid_for_would_pass_more() {
    assert!(explore(2, 3, (1, 4), unpaid).0);
}

#[test]
fn a_hold_grows_while_other_cpus_charge_and_ends_when_they_do_not() {
    let scale = TickScale::FINEST;
    let bucket = TokenBucket::new(
        Rate::per_second(100_000_000),
        1_000_000,
        Costs::Single,
        scale,
    );
    let longest = longest_hold(bucket.tolerance, scale);
    let mut hot = HotKey::default();
    let mut now = START;
    hot.begin(&Key::default(), now, 1);
    hot.note_contention();
    // Another CPU charges between any two takes.
    let mut state = now;
    let mut sizes = Vec::new();
    for _ in 0..10 {
        now += longest / 8;
        let Take::Hold { next, units } = hot.take(&bucket, state, now, 1, longest) else {
            panic!("no hold of {}", hot.size);
        };
        hot.hold(0, next, units, now, longest);
        sizes.push(units + 1);
        state = next + bucket.charge(1);
    }
    assert_eq!(sizes, [4, 8, 16, 32, 64, 128, 256, 256, 256, 256]);
    // Nobody else does, for more than two lives.
    now += 2 * longest + 1;
    assert_eq!(hot.take(&bucket, hot.left, now, 1, longest), Take::Single);
}

#[test]
fn a_hold_costs_at_most_half_its_life() {
    let scale = TickScale::FINEST;
    let bucket = TokenBucket::new(Rate::per_second(1_000_000), 1_000_000, Costs::Single, scale);
    let longest = longest_hold(bucket.tolerance, scale);
    let mut hot = HotKey::default();
    hot.begin(&Key::default(), START, 256);
    let Take::Hold { next, units } = hot.take(&bucket, START + 1, START, 1, longest) else {
        panic!("no hold");
    };
    assert_eq!(units + 1, 128);
    assert!(next - (START + longest) <= longest / 2);
}

#[test]
fn an_expired_hold_is_not_spent() {
    let mut hot = HotKey::default();
    let key = Key::default();
    hot.begin(&key, START, 2);
    hot.hold(7, START + 100, 3, START, 10);
    assert!(hot.has_units(7, 3) && !hot.has_units(7, 4));
    // Of a class with another rate.
    assert!(!hot.has_units(8, 3));
    assert!(hot.spend(START + 10, 1, 1));
    assert!(!hot.spend(START + 11, 1, 1));
}

#[test]
fn a_row_is_of_one_key_and_a_row_of_zeros_of_none() {
    let key = Key::default();
    assert!(!HotKey::default().is(&key));
    let mut hot = HotKey::default();
    hot.begin(&key, START, 1);
    assert!(hot.is(&key));
    for other in [
        Key { hi: 1, ..key },
        Key { lo: 1 << 63, ..key },
        Key { extra: 1, ..key },
        Key { group: 1, ..key },
    ] {
        assert!(!hot.is(&other));
    }
}

#[test]
fn a_hot_key_gives_way_to_the_second_request() {
    let mut hot = HotKey::default();
    assert!(hot.give_way());
    hot.begin(&Key::default(), START, 1);
    assert!(!hot.give_way());
    assert!(hot.give_way());
}

#[test]
fn refusals_are_added_by_steps_of_a_millisecond_and_none_is_lost() {
    let scale = TickScale::FINEST;
    let mut hot = HotKey::default();
    hot.begin(&Key::default(), START, 1);
    // Ten million a second, and then a thousand.
    let (mut now, mut carried, mut longest_step) = (START, 0, 0);
    for gap in [100, 1_000_000] {
        for _ in 0..20_000 {
            now += scale.ticks(gap);
            let counted = hot.refuse(1, now, scale);
            longest_step = longest_step.max(counted.carried);
            carried += counted.carried;
        }
    }
    assert_eq!(carried + hot.refused, 40_000);
    assert_eq!(longest_step, 4_096);
    assert_eq!(hot.step, Tally::STEP);
    // After a pause, at once.
    now += scale.ticks(600_000_000);
    assert!(hot.refuse(1, now, scale).carried > 0);
}

#[test]
fn buckets_with_a_short_tolerance_have_no_holds() {
    let bucket = |rate: u64, burst: u64| {
        let scale = TickScale::FINEST;
        has_holds(
            &TokenBucket::new(Rate::per_second(rate), burst, Costs::Single, scale),
            scale,
        )
    };
    assert!(bucket(1_000, 1_000) && bucket(10_000_000, 1_000));
    assert!(!bucket(1_000, 10) && !bucket(10_000_000, 100));
}
