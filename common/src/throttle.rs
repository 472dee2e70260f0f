//! One packet, all its rules: charged by all or by none.
//!
//! First every rule is looked at; a packet that one of them refuses has then changed nothing, and costs no write but
//! one counter. Only if all agree are they charged, each by compare-and-swap. If a rule turns out to refuse after all,
//! since another CPU was faster, what was charged before it is taken back.

use core::ops::DerefMut;

use crate::key::{HashSeed, Key};
use crate::limiter::sliding_log::LOOK_AHEAD;
use crate::limiter::sliding_window::{Step, Word};
use crate::limiter::{Decision, SlidingWindow};
use crate::rule::{Algorithm, Enforcement, MAX_RULES, OnFull, Rule, RuleSpan, Subject};
use crate::table::{Claim, Claimed, NO_SLOT, Set, Shape, SlotCounter, Tag};
use crate::time::{Ticks, is_alive};

/// How often a state that others keep changing is decided upon again.
pub const CHARGE_TRIES: u32 = 16;

/// A word of a log's ring, shared by CPUs.
pub trait Cell: Copy {
    /// Reads it.
    fn load(self) -> u64;
    /// Replaces `current` by `new` and returns what was there. Sequentially consistent.
    fn compare_exchange(self, current: u64, new: u64) -> u64;
}

/// Where rules, states and counters are: BPF maps in the kernel, memory in user space.
pub trait Host: Sized {
    /// A set of the table.
    type Set: Set;
    /// A word of a ring.
    type Cell: Cell;
    /// Memory for a packet with several rules: kept apart, for there is little room on the kernel's stack.
    type Hearing: DerefMut<Target = Hearing>;
    /// The row of a rule.
    fn rule(&self, index: u32) -> Option<&Rule>;
    /// A set of the table of sources, of a table cut as `shape` says.
    fn set(&self, index: u32) -> Option<Self::Set>;
    /// A word of the rings.
    fn cell(&self, index: u32) -> Option<Self::Cell>;
    /// The clock, read anew.
    fn now(&self) -> Ticks;
    /// How the table is cut.
    fn shape(&self) -> Shape;
    /// The table's secret.
    fn seed(&self) -> HashSeed;
    /// Words of ring that each slot has.
    fn ring_words(&self) -> u32;
    /// The most rules that any packet is held to: what lies above it need not be verified or run.
    fn most_rules(&self) -> u32;
    /// Whether elastic limits may give more than their rate at this moment.
    fn has_room(&self) -> bool;
    /// Counts a packet of `bytes` under `outcome` of the counters at `counter`.
    fn count(&self, counter: u32, outcome: Outcome, bytes: u32);
    /// Counts something that befell the table.
    fn note(&self, event: TableEvent);
    /// Where a packet with several rules is kept while it is judged.
    fn hearing(&self) -> Option<Self::Hearing>;
    /// [`judge_by_bucket`]. The kernel verifies it by itself, once, instead of for every way to get there; so with the
    /// next four.
    fn judge_by_bucket(&self, rule: u32, key: &Key, length: u32) -> bool {
        judge_by_bucket(self, rule, key, length)
    }
    /// [`look`].
    fn look(&self, hearing: &mut Hearing, nth: u32) -> bool {
        look(self, hearing, nth)
    }
    /// [`charge`].
    fn charge(&self, hearing: &mut Hearing, nth: u32) -> bool {
        charge(self, hearing, nth)
    }
    /// [`take_back`].
    fn take_back(&self, hearing: &mut Hearing, count: u32) {
        take_back(self, hearing, count);
    }
    /// [`claim`].
    fn claim(&self, set: u32, tag: Tag, now: Ticks, life: Ticks) -> Claim {
        claim(self, set, tag, now, life)
    }
    /// Tells of a key that has been counted another 64 times, or was refused for the first time of 64.
    fn sight(&self, sighting: &Sighting<'_>);
}

/// What is counted of a rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Passed all rules of its span; counted at the span's first rule only.
    Passed,
    /// Refused by this rule.
    Throttled,
    /// Would have been refused by this rule.
    WouldThrottle,
    /// Passed above the limit, since that is soft, or elastic and there is room.
    Over,
}

/// What befalls the table of sources.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TableEvent {
    /// A key whose state had not decayed gave way to one that is as busy.
    Evicted,
    /// A new key found no room and passed uncounted.
    FullPassed,
    /// A new key found no room and was refused.
    FullThrottled,
    /// A new key found no room and was counted in the shared bucket.
    FullShared,
    /// A packet was refused since other CPUs held its set or kept changing its state.
    Contended,
}

/// A key worth telling of.
#[derive(Clone, Copy, Debug)]
pub struct Sighting<'a> {
    /// The rule.
    pub rule: &'a Rule,
    /// Under which key it was counted.
    pub key: &'a Key,
    /// Passed or refused.
    pub counter: SlotCounter,
    /// How many packets this stands for: 64, or 0 for the first one refused.
    pub weight: u32,
}

/// What becomes of the packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It conforms to all its rules, and all are charged.
    Pass,
    /// The rule with this index refuses it, and none is charged.
    Refuse(u32),
}

/// The slot of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(C)]
pub struct Slot {
    /// The number of the set.
    set: u32,
    /// First word in the set; [`NO_SLOT`] if the key has none.
    word: u32,
    /// What its head has to say.
    tag: Tag,
}

/// What came of charging one rule: what the charge left, or one of two reasons why there was none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
#[repr(transparent)]
struct Charge(u64);

impl Charge {
    /// The rule refuses, and was not charged.
    const REFUSED: Self = Self(0);
    /// The slot was given to another key, or its state never stood still: not charged.
    const LOST: Self = Self(1);

    /// Charged; what the charge left, for taking it back. A state of 0 or 1 is an instant as good as 2.
    #[inline(always)]
    const fn done(left: u64) -> Self {
        Self(if left < 2 { 2 } else { left })
    }

    #[inline(always)]
    const fn is_done(self) -> bool {
        self.0 > Self::LOST.0
    }
}

/// What a rule was charged, and where.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Charged {
    slot: Slot,
    charge: Charge,
}

/// A packet with several rules, while it is judged.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Hearing {
    subject: Subject,
    span: RuleSpan,
    now: Ticks,
    open: Opened,
    charges: [Charged; MAX_RULES as usize],
}

/// What came of looking for the slot of a key, and for room for a new one.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
struct Opened {
    /// The slot, if there is one to charge.
    slot: Slot,
    /// 1: it was reserved just now, its set locked, and has to be published.
    is_reserved: u32,
    /// 1: the packet is refused for want of one.
    is_refused: u32,
}

/// Holds a packet to the rules of `span`.
#[inline(always)]
pub fn judge<H: Host>(host: &H, span: RuleSpan, subject: &Subject) -> Verdict {
    let Some(rule) = host.rule(span.first) else { return Verdict::Pass };
    // The commonest case is the one that is all in line.
    if span.count == 1 && rule.is_bucket() {
        let passes = host.judge_by_bucket(span.first, &rule.key_of(subject), subject.length);
        if passes { Verdict::Pass } else { Verdict::Refuse(span.first) }
    } else {
        judge_by_several(host, span, rule.counter, subject)
    }
}

/// With one rule, charging it is looking at it.
#[inline(always)]
pub fn judge_by_bucket<H: Host>(host: &H, index: u32, key: &Key, length: u32) -> bool {
    let Some(rule) = host.rule(index) else { return true };
    let now = host.now();
    let mut open = open_key(host, rule, key, now, length);
    if open.slot.exists() {
        let result = charge_bucket(host, rule, open.slot, now, cost(rule, length));
        settle(host, rule, &mut open, result, length);
        if open.is_reserved != 0 {
            publish(host, open.slot);
        }
    }
    if open.is_refused != 0 {
        refuse(host, rule, open.slot, key, length);
        return false;
    }
    passed(host, rule, open.slot, key);
    host.count(rule.counter, Outcome::Passed, length);
    true
}

#[inline(always)]
fn judge_by_several<H: Host>(host: &H, span: RuleSpan, counter: u32, subject: &Subject) -> Verdict {
    let Some(mut hearing) = host.hearing() else { return Verdict::Pass };
    hearing.subject = *subject;
    hearing.span = span;
    hearing.now = host.now();
    for nth in 0..MAX_RULES {
        if nth >= span.count || nth >= host.most_rules() {
            break;
        }
        if !host.look(&mut hearing, nth) {
            return Verdict::Refuse(span.first + nth);
        }
    }
    for nth in 0..MAX_RULES {
        if nth >= span.count || nth >= host.most_rules() {
            break;
        }
        if !host.charge(&mut hearing, nth) {
            host.take_back(&mut hearing, nth);
            return Verdict::Refuse(span.first + nth);
        }
    }
    host.count(counter, Outcome::Passed, subject.length);
    Verdict::Pass
}

/// Whether the nth rule lets the packet pass as things are; counts it if not.
#[inline(always)]
pub fn look<H: Host>(host: &H, hearing: &mut Hearing, nth: u32) -> bool {
    let Some(rule) = host.rule(hearing.span.first + nth) else { return true };
    if rule.opens_key != 0 {
        hearing.open.slot = Slot::of(host, &rule.key_of(&hearing.subject));
    }
    let slot = hearing.open.slot;
    let cost = cost(rule, hearing.subject.length);
    // A key without a slot has its whole allowance.
    let conforms = if slot.exists() { conforms(host, rule, slot, hearing.now, cost) } else { cost <= rule.most };
    if conforms || !has_last_word(host, rule) {
        return true;
    }
    refuse(host, rule, slot, &rule.key_of(&hearing.subject), hearing.subject.length);
    false
}

/// Charges the nth rule; `false` if it refuses after all, or there is no room for its key.
#[inline(always)]
pub fn charge<H: Host>(host: &H, hearing: &mut Hearing, nth: u32) -> bool {
    let Some(rule) = host.rule(hearing.span.first + nth) else { return true };
    if rule.opens_key != 0 {
        let key = rule.key_of(&hearing.subject);
        hearing.open = open_key(host, rule, &key, hearing.now, hearing.subject.length);
    }
    let slot = hearing.open.slot;
    let mut result = Charge::REFUSED;
    if slot.exists() {
        result = charge_rule(host, rule, slot, hearing.now, hearing.subject.length);
        settle(host, rule, &mut hearing.open, result, hearing.subject.length);
        if hearing.open.is_reserved != 0 && (hearing.open.is_refused != 0 || rule.closes_key != 0) {
            publish(host, slot);
            hearing.open.is_reserved = 0;
        }
    }
    if let Some(charged) = hearing.charges.get_mut(nth as usize) {
        *charged = Charged { slot, charge: result };
    }
    if hearing.open.is_refused != 0 {
        refuse(host, rule, slot, &rule.key_of(&hearing.subject), hearing.subject.length);
        return false;
    }
    if rule.closes_key != 0 {
        passed(host, rule, slot, &rule.key_of(&hearing.subject));
    }
    true
}

/// Turns what came of a charge into whether the packet is refused, and counts what passes all the same.
#[inline(always)]
fn settle<H: Host>(host: &H, rule: &Rule, open: &mut Opened, result: Charge, length: u32) {
    if result == Charge::LOST {
        host.note(TableEvent::Contended);
        open.is_refused = 1;
    } else if result == Charge::REFUSED {
        if has_last_word(host, rule) {
            open.is_refused = 1;
        } else if rule.enforcement == Enforcement::Observe as u8 {
            host.count(rule.counter, Outcome::WouldThrottle, length);
        } else {
            host.count(rule.counter, Outcome::Over, length);
        }
    }
}

#[inline(always)]
fn publish<H: Host>(host: &H, slot: Slot) {
    if let Some(set) = host.set(slot.set) {
        host.shape().publish(set, slot.word, slot.tag);
    }
}

/// The slot for the key that `rule` opens.
#[inline(always)]
fn open_key<H: Host>(host: &H, rule: &Rule, key: &Key, now: Ticks, length: u32) -> Opened {
    let slot = Slot::of(host, key);
    if slot.exists() {
        Opened { slot, is_reserved: 0, is_refused: 0 }
    } else {
        make_room(host, rule, slot, now, length)
    }
}

/// A slot for a key that has none.
#[inline(always)]
fn make_room<H: Host>(host: &H, rule: &Rule, mut slot: Slot, now: Ticks, length: u32) -> Opened {
    let cost = cost(rule, length);
    if cost > rule.most && has_last_word(host, rule) {
        return Opened { slot, is_reserved: 0, is_refused: 1 };
    }
    let mut claim = host.claim(slot.set, slot.tag, now, life_of_one(rule, cost));
    let mut is_refused = 0;
    if claim.outcome == Claimed::Full {
        if rule.on_full == OnFull::Share as u8 {
            host.note(TableEvent::FullShared);
            slot = Slot::shared(host, u32::from(rule.group));
            claim = host.claim(slot.set, slot.tag, now, 0);
            is_refused = u32::from(claim.outcome == Claimed::Full);
        } else if rule.on_full == OnFull::Throttle as u8 {
            host.note(TableEvent::FullThrottled);
            is_refused = 1;
        } else {
            host.note(TableEvent::FullPassed);
        }
    }
    if claim.outcome == Claimed::Contended {
        host.note(TableEvent::Contended);
        is_refused = 1;
    }
    slot.word = claim.slot;
    let is_reserved = u32::from(matches!(claim.outcome, Claimed::Reserved | Claimed::Displaced));
    Opened { slot, is_reserved, is_refused }
}

impl Slot {
    /// The slot of a key, if it has one; where it would be, if it has none.
    #[inline(always)]
    fn of<H: Host>(host: &H, key: &Key) -> Self {
        let hash = host.seed().hash(key);
        let index = host.shape().set(hash);
        let tag = Tag::new(hash, key);
        let word = host.set(index).map_or(NO_SLOT, |set| host.shape().find(set, tag));
        Self { set: index, word, tag }
    }

    /// Where the bucket is that all keys of a group share which found no room of their own.
    #[inline(always)]
    fn shared<H: Host>(host: &H, group: u32) -> Self {
        let key = Key { hi: 0, lo: 0, extra: u32::MAX, group };
        Self { set: host.shape().overflow_set(group), word: NO_SLOT, tag: Tag::new(host.seed().hash(&key), &key) }
    }

    #[inline(always)]
    fn exists(&self) -> bool {
        self.word != NO_SLOT
    }

    /// The word of a rule's state.
    #[inline(always)]
    fn state(&self, rule: &Rule) -> u32 {
        self.word + u32::from(rule.position)
    }

    /// The first word of a rule's ring.
    #[inline(always)]
    fn ring<H: Host>(&self, host: &H, rule: &Rule) -> u32 {
        host.shape().slot_number(self.set, self.word) * host.ring_words() + u32::from(rule.ring)
    }

    /// Whether the slot belongs to another key by now.
    #[inline(always)]
    fn has_gone(&self, set: impl Set) -> bool {
        // A slot that is reserved has no head yet; nobody else can take it.
        let head = set.load(self.word);
        !Tag::is_free(head) && !self.tag.matches(head)
    }
}

/// How long the key's first charge lives: how busy the key would be.
#[inline(always)]
fn life_of_one(rule: &Rule, cost: u64) -> Ticks {
    // A window's end does not tell how much is in it: such keys give way to nobody before they have decayed.
    if rule.is_bucket() && cost <= rule.most { rule.token_bucket().charge(cost) } else { 0 }
}

/// Counts a packet that passed all rules of its key.
#[inline(always)]
fn passed<H: Host>(host: &H, rule: &Rule, slot: Slot, key: &Key) {
    if slot.exists() && count(host, slot, SlotCounter::Passed) & 63 == 0 {
        host.sight(&Sighting { rule, key, counter: SlotCounter::Passed, weight: 64 });
    }
}

#[inline(always)]
fn count<H: Host>(host: &H, slot: Slot, counter: SlotCounter) -> u8 {
    // 2 is a count that tells of nothing.
    host.set(slot.set).map_or(2, |set| set.count(slot.word, counter))
}

/// What a frame of `length` costs under a rule, in the rule's unit.
#[inline(always)]
fn cost(rule: &Rule, length: u32) -> u64 {
    if rule.bytes != 0 { u64::from(length) } else { 1 }
}

/// Whether a refusal by this rule refuses the packet.
#[inline(always)]
fn has_last_word<H: Host>(host: &H, rule: &Rule) -> bool {
    rule.enforcement == Enforcement::Enforce as u8
        || (rule.enforcement == Enforcement::Elastic as u8 && !host.has_room())
}

/// Counts a refusal, for the rule and for the key.
#[inline(always)]
fn refuse<H: Host>(host: &H, rule: &Rule, slot: Slot, key: &Key, length: u32) {
    host.count(rule.counter, Outcome::Throttled, length);
    if slot.exists() {
        let count = count(host, slot, SlotCounter::Refused) & 63;
        if count <= 1 {
            let weight = if count == 0 { 64 } else { 0 };
            host.sight(&Sighting { rule, key, counter: SlotCounter::Refused, weight });
        }
    }
}

/// Takes a slot in `set` for a key whose first charge lives for `life`, or finds that another CPU has.
#[inline(always)]
pub fn claim<H: Host>(host: &H, set: u32, tag: Tag, now: Ticks, life: Ticks) -> Claim {
    let Some(set) = host.set(set) else { return Claim { outcome: Claimed::Full, slot: NO_SLOT } };
    let claim = host.shape().claim(set, tag, now, life);
    if claim.outcome == Claimed::Displaced {
        host.note(TableEvent::Evicted);
    }
    claim
}

/// Whether the rule would pass `cost` as things are.
#[inline(always)]
fn conforms<H: Host>(host: &H, rule: &Rule, slot: Slot, now: Ticks, cost: u64) -> bool {
    let Some(set) = host.set(slot.set) else { return false };
    let word = slot.state(rule);
    let state = set.load(word);
    if rule.is(Algorithm::SlidingWindow) {
        rule.sliding_window().step(state, set.load(word + 1), now, cost) != Step::Refuse
    } else if rule.is(Algorithm::SlidingLog) {
        log_place(host, rule, slot, state, now).is_some()
    } else if rule.is(Algorithm::FixedWindow) {
        rule.fixed_window().decide(state, now, cost) != Decision::Refuse
    } else {
        rule.token_bucket().decide(state, now, cost) != Decision::Refuse
    }
}

#[inline(always)]
fn charge_rule<H: Host>(host: &H, rule: &Rule, slot: Slot, now: Ticks, length: u32) -> Charge {
    let cost = cost(rule, length);
    if rule.is(Algorithm::SlidingWindow) {
        charge_sliding_window(host, rule, slot, now, cost)
    } else if rule.is(Algorithm::SlidingLog) {
        charge_sliding_log(host, rule, slot, now)
    } else if rule.is(Algorithm::FixedWindow) {
        charge_word(host, slot, slot.state(rule), |state| rule.fixed_window().decide(state, now, cost))
    } else {
        charge_bucket(host, rule, slot, now, cost)
    }
}

#[inline(always)]
fn charge_bucket<H: Host>(host: &H, rule: &Rule, slot: Slot, now: Ticks, cost: u64) -> Charge {
    charge_word(host, slot, slot.state(rule), |state| rule.token_bucket().decide(state, now, cost))
}

#[inline(always)]
fn charge_word<H: Host>(host: &H, slot: Slot, word: u32, decide: impl Fn(u64) -> Decision) -> Charge {
    let Some(set) = host.set(slot.set) else { return Charge::LOST };
    let mut state = set.load(word);
    for _ in 0..CHARGE_TRIES {
        let Decision::Pass(next) = decide(state) else { return Charge::REFUSED };
        let found = set.compare_exchange(word, state, next);
        if found == state {
            return Charge::done(next);
        }
        if slot.has_gone(set) {
            return Charge::LOST;
        }
        state = found;
    }
    Charge::LOST
}

#[inline(always)]
fn charge_sliding_window<H: Host>(host: &H, rule: &Rule, slot: Slot, now: Ticks, cost: u64) -> Charge {
    let Some(set) = host.set(slot.set) else { return Charge::LOST };
    let limiter: SlidingWindow = rule.sliding_window();
    let even = slot.state(rule);
    for _ in 0..CHARGE_TRIES {
        match limiter.step(set.load(even), set.load(even + 1), now, cost) {
            Step::Refuse => return Charge::REFUSED,
            Step::Seal { word, from, to } => {
                set.compare_exchange(even + offset(word), from, to);
            }
            Step::Pass { word, from, to } => {
                if set.compare_exchange(even + offset(word), from, to) == from {
                    return Charge::done(to);
                }
            }
        }
        if slot.has_gone(set) {
            return Charge::LOST;
        }
    }
    Charge::LOST
}

#[inline(always)]
const fn offset(word: Word) -> u32 {
    match word {
        Word::Even => 0,
        Word::Odd => 1,
    }
}

/// A place of the log that may be taken: (place, its cell, what it holds, what to put there).
#[inline(always)]
fn log_place<H: Host>(host: &H, rule: &Rule, slot: Slot, head: u64, now: Ticks) -> Option<(u32, H::Cell, u64, u64)> {
    let log = rule.sliding_log();
    for ahead in 0..LOOK_AHEAD {
        if ahead >= log.places() {
            break;
        }
        let place = log.place(head, ahead);
        let cell = host.cell(slot.ring(host, rule) + place)?;
        let instant = cell.load();
        if let Some(next) = log.take(instant, now) {
            return Some((place, cell, instant, next));
        }
    }
    None
}

#[inline(always)]
fn charge_sliding_log<H: Host>(host: &H, rule: &Rule, slot: Slot, now: Ticks) -> Charge {
    let Some(set) = host.set(slot.set) else { return Charge::LOST };
    let word = slot.state(rule);
    let log = rule.sliding_log();
    let mut head = set.load(word);
    for _ in 0..CHARGE_TRIES {
        let Some((place, cell, instant, next)) = log_place(host, rule, slot, head, now) else { return Charge::REFUSED };
        if cell.compare_exchange(instant, next) == instant {
            // The head is a hint: if another CPU moves it at the same time, one of the two moves stands.
            set.compare_exchange(word, head, log.advance(head, place, now));
            return Charge(u64::from(place) + FIRST_PLACE);
        }
        if slot.has_gone(set) {
            return Charge::LOST;
        }
        head = set.load(word);
    }
    Charge::LOST
}

/// What a charge of a log says instead of the state it left: the place it took, counted from here.
const FIRST_PLACE: u64 = Charge::LOST.0 + 1;

/// Takes back what the first `count` rules were charged.
#[inline(always)]
pub fn take_back<H: Host>(host: &H, hearing: &mut Hearing, count: u32) {
    for (nth, charged) in (0..MAX_RULES).zip(&hearing.charges) {
        if nth >= count || nth >= host.most_rules() {
            break;
        }
        if let (Some(rule), true) = (host.rule(hearing.span.first + nth), charged.charge.is_done()) {
            refund(host, rule, charged.slot, charged.charge, cost(rule, hearing.subject.length));
        }
    }
}

/// Takes back one charge, as far as it is still there.
#[inline(always)]
fn refund<H: Host>(host: &H, rule: &Rule, slot: Slot, charged: Charge, cost: u64) {
    let Some(set) = host.set(slot.set) else { return };
    let now = host.now();
    let word = slot.state(rule);
    if rule.is(Algorithm::SlidingLog) {
        // The place is free again; the head passes by it once more.
        if let Some(cell) = host.cell(slot.ring(host, rule) + charged.0.wrapping_sub(FIRST_PLACE) as u32) {
            let instant = cell.load();
            if is_alive(instant, now) {
                cell.compare_exchange(instant, now);
            }
        }
    } else if rule.is(Algorithm::SlidingWindow) {
        for side in 0..2 {
            refund_word(set, word + side, |state| rule.sliding_window().refund(state, charged.0, cost));
        }
    } else if rule.is(Algorithm::FixedWindow) {
        refund_word(set, word, |state| rule.fixed_window().refund(state, charged.0, cost));
    } else {
        refund_word(set, word, |state| rule.token_bucket().refund(state, charged.0, now, cost));
    }
}

#[inline(always)]
fn refund_word(set: impl Set, word: u32, refunded: impl Fn(u64) -> Option<u64>) {
    for _ in 0..CHARGE_TRIES {
        let state = set.load(word);
        let Some(next) = refunded(state) else { return };
        if set.compare_exchange(word, state, next) == state {
            return;
        }
    }
}
