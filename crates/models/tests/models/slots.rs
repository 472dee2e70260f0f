//! Slots of the table of sources: `common::table` and the evaluation of whole packets, `common::throttle`.

use std::sync::Arc;

use common::limiter::{Moves, TokenBucket};
use common::rule::{OnFull, Rule, RuleSpan, Size, Subject};
use common::table::{Set, Tag};
use common::throttle::{Verdict, evaluate};
use common::time::Ticks;
use models::{Cpu, Memory, Work, cpus, explore};

const START: Ticks = 1 << 40;

/// The time in which a unit flows back.
const REFILL: Ticks = 1_000;

/// A set of four slots, with a word for the states of three limits each.
const SETS: u32 = 1;
const SLOT_WORDS: u32 = 4;
const SLOTS: u32 = 4;

/// A limit of `burst` units for each address.
fn bucket(burst: u64, position: u8, opens_key: bool, closes_key: bool) -> Rule {
    let bucket = TokenBucket {
        emission: REFILL,
        emission_shift: 0,
        tolerance: burst * REFILL,
        burst,
    };
    Rule {
        mask_lo: u64::MAX,
        mask_ipv4: u32::MAX,
        position,
        opens_key: u8::from(opens_key),
        closes_key: u8::from(closes_key),
        ..Rule::EMPTY
    }
    .with(bucket)
    .when_full(OnFull::Share, Moves::Anywhere, false)
    .made_fast()
}

fn one_limit(burst: u64) -> Arc<Memory> {
    let rules = vec![bucket(burst, 1, true, true)];
    Arc::new(Memory::table(rules, SETS, SLOT_WORDS, 1))
}

/// A packet of a source at an instant: whether it passes.
fn packet(memory: &Memory, source: u32, at: Ticks) -> bool {
    evaluated(memory, source, at) == Evaluated::Passed
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Evaluated {
    Passed,
    Refused,
    Contended,
}

fn evaluated(memory: &Memory, source: u32, at: Ticks) -> Evaluated {
    let subject = Subject {
        lo: u64::from(source) << 32 | 0xffff_0000,
        is_ipv4: 1,
        size: Size::of_one(100),
        ..Subject::default()
    };
    let cpu = Cpu::at(memory, START + at);
    let span = RuleSpan {
        first: 0,
        count: memory.rules() as u32,
    };
    match evaluate(&cpu, span, &subject) {
        Verdict::Pass(_) => Evaluated::Passed,
        Verdict::Refuse(_) if cpu.contended.get() > 0 => Evaluated::Contended,
        Verdict::Refuse(_) => Evaluated::Refused,
    }
}

/// A packet on a CPU of its own.
fn on_a_cpu(source: u32, at: Ticks) -> Work<Memory, Evaluated> {
    Box::new(move |memory| evaluated(memory, source, at))
}

/// The heads of the set that are not free, without what is not of the key.
fn tags(memory: &Memory) -> Vec<Tag> {
    let set = memory.set(0).expect("there is a set");
    (0..SLOTS)
        .map(|slot| set.load(slot * SLOT_WORDS))
        .filter(|head| Tag::group(*head).is_some())
        .map(Tag::of_head)
        .collect()
}

fn count(verdicts: &[Evaluated], of: Evaluated) -> usize {
    verdicts.iter().filter(|verdict| **verdict == of).count()
}

#[test]
fn two_cpus_create_one_slot_for_a_new_key() {
    explore("a new key on two CPUs", 3, || {
        let memory = one_limit(1);
        let verdicts = cpus(&memory, vec![on_a_cpu(1, 0), on_a_cpu(1, 0)]);
        assert_eq!(count(&verdicts, Evaluated::Passed), 1, "a burst of one");
        assert_eq!(tags(&memory).len(), 1);
    });
}

#[test]
fn two_new_keys_get_a_slot_each() {
    explore("two new keys", 3, || {
        let memory = one_limit(1);
        let verdicts = cpus(&memory, vec![on_a_cpu(1, 0), on_a_cpu(2, 0)]);
        assert_eq!(verdicts, [Evaluated::Passed; 2]);
        assert_eq!(tags(&memory).len(), 2);
        assert!(
            !packet(&memory, 1, 0) && !packet(&memory, 2, 0),
            "both are charged"
        );
    });
}

/// The last slot that has decayed is taken by a new key, while its old key comes back. A packet that has found its slot just
/// before may be charged to the new key: the old one then passes one packet more.
#[test]
fn a_decayed_slot_goes_to_one_of_two_keys() {
    explore("a decayed slot", 3, || {
        let memory = one_limit(1);
        assert!(packet(&memory, 1, 0));
        for source in 2..=SLOTS {
            assert!(packet(&memory, source, REFILL / 2));
        }
        let verdicts = cpus(&memory, vec![on_a_cpu(1, REFILL), on_a_cpu(9, REFILL)]);
        let tags = tags(&memory);
        assert_eq!(tags.len(), SLOTS as usize);
        assert!((1..tags.len()).all(|nth| !tags[..nth].contains(&tags[nth])));
        let at_once = usize::from(verdicts[0] == Evaluated::Passed);
        let later = (0..3).filter(|_| packet(&memory, 1, REFILL)).count();
        assert!(at_once + later <= 2, "{verdicts:?}, then {later}");
    });
}

/// A full table: a new key evicts the one with the least use, which has one unit left and a packet at the same time. Its
/// charges are in its slot or its cells, but for the instant between both: then it begins anew, once, beside the packet
/// that was under evaluation.
#[test]
fn an_evicted_key_begins_anew_once_at_most() {
    explore("an eviction", 3, || {
        let memory = one_limit(2);
        for source in 1..=SLOTS {
            assert!(packet(&memory, source, u64::from(source)));
        }
        let (new, evicted, at) = (9, 1, REFILL / 2);
        let verdicts = cpus(&memory, vec![on_a_cpu(new, at), on_a_cpu(evicted, at)]);
        let at_once = usize::from(verdicts[1] == Evaluated::Passed);
        let later = (0..3).filter(|_| packet(&memory, evicted, at)).count();
        assert!(at_once + later <= 2, "{verdicts:?}, then {later}");
    });
}

/// Two limits on one key: their states are charged both, or neither.
#[test]
fn two_limits_on_one_key_pass_what_the_tighter_one_allows() {
    explore("two limits", 3, || {
        let rules = vec![bucket(2, 1, true, false), bucket(1, 2, false, true)];
        let memory = Arc::new(Memory::table(rules, SETS, SLOT_WORDS, 1));
        assert!(packet(&memory, 1, 0));
        let at = REFILL;
        let verdicts = cpus(&memory, vec![on_a_cpu(1, at), on_a_cpu(1, at)]);
        assert_eq!(count(&verdicts, Evaluated::Passed), 1, "{verdicts:?}");
        assert!(!packet(&memory, 1, at));
    });
}

/// The tighter limit refuses one of two packets, whose charge under the wider one is refunded beside the other's.
#[test]
fn a_refund_beside_another_charge_passes_no_more_than_the_limit() {
    explore("a refund beside a charge", 3, || {
        let rules = vec![bucket(2, 1, true, false), bucket(1, 2, false, true)];
        let memory = Arc::new(Memory::table(rules, SETS, SLOT_WORDS, 1));
        assert!(packet(&memory, 1, 0));
        let verdicts = cpus(&memory, vec![on_a_cpu(1, REFILL), on_a_cpu(1, REFILL + 1)]);
        assert_eq!(count(&verdicts, Evaluated::Passed), 1, "{verdicts:?}");
        assert!(!packet(&memory, 1, REFILL + 1));
        assert!(
            packet(&memory, 1, 2 * REFILL + 1),
            "a lost refund has flowed back"
        );
    });
}
