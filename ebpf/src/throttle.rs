//! The maps as the limiters' host. All decisions are in `common`.

use core::arch::asm;
use core::ops::{Deref, DerefMut};
use core::ptr::NonNull;

use aya_ebpf::helpers::generated::bpf_get_prandom_u32;
use common::fair::{Offered, Word, Words};
use common::hot::CpuRow;
use common::key::{Hash, Key};
use common::limiter::{Algorithm, Moves};
use common::rule::{Rule, Size};
use common::settings::{Runtime, Settings};
use common::table::{Claim, Claimed, Counted, ELEMENT_WORDS, Place, Set, Shape, SlotCounter, Tag};
use common::throttle::{
    self, FairStep, FullTable, Host, HotVerdict, Outcome, PackedVerdict, PacketState, Sample,
    Steps, TableEvent,
};
use common::time::{TickScale, Ticks, is_alive};

use crate::atomics;
use crate::cell::{MapCell, count_byte};
use crate::clock;
use crate::maps::{
    COUNTERS, OFFERED, PACKET_STATE, RINGS, RULES, RUNTIME, SOURCES, TABLE_COUNTERS, setting,
};
use crate::ring::NO_WAKEUP;
use crate::sample::{self, may_sample};
use crate::trace;

/// A set of [`SOURCES`]: an element of the map, and the offset of the set in it.
#[derive(Clone, Copy)]
pub struct MapSet {
    element: *mut [u64; ELEMENT_WORDS as usize],
    first: u32,
}

impl MapSet {
    #[inline(always)]
    fn word(self, word: u32) -> *mut u64 {
        let mut word = u64::from(self.first + word);
        // SAFETY: the mask is within the element's number of words. In assembly, since the compiler would remove it,
        // but Linux 6.1 computes no bounds for the "or" of two numbers.
        unsafe {
            asm!("{0} &= {1}", inout(reg) word, const ELEMENT_WORDS - 1, options(pure, nomem, nostack));
            self.element.cast::<u64>().add(word as usize)
        }
    }
}

impl Set for MapSet {
    #[inline(always)]
    fn load(self, word: u32) -> u64 {
        // SAFETY: a word of a map's value; volatile since other CPUs write it.
        unsafe { self.word(word).read_volatile() }
    }

    #[inline(always)]
    fn store(self, word: u32, value: u64) {
        // SAFETY: as in `load`.
        unsafe { self.word(word).write_volatile(value) };
    }

    #[inline(always)]
    fn compare_exchange(self, word: u32, current: u64, new: u64) -> u64 {
        // SAFETY: a word of a map's value.
        unsafe { atomics::compare_exchange(self.word(word), current, new) }
    }

    #[inline(always)]
    fn exchange(self, word: u32, value: u64) -> u64 {
        // SAFETY: a word of a map's value.
        unsafe { atomics::exchange(self.word(word), value) }
    }

    #[inline(always)]
    fn fetch_or(self, word: u32, bits: u64) -> u64 {
        // SAFETY: a word of a map's value.
        unsafe { atomics::fetch_or(self.word(word), bits) }
    }

    #[inline(always)]
    fn and(self, word: u32, bits: u64) {
        // SAFETY: a word of a map's value.
        unsafe { atomics::and(self.word(word), bits) };
    }

    #[inline(always)]
    fn forget(self, word: u32, a: u64, b: u64) -> u32 {
        let mut word = u64::from(word);
        // SAFETY: arithmetic on registers. In assembly, since the compiler would compute the result.
        unsafe {
            asm!("{0} ^= {1}", "{0} ^= {2}", inout(reg) word, in(reg) a, in(reg) b, options(pure, nomem, nostack));
        }
        word as u32
    }

    #[inline(always)]
    fn count(self, word: u32, counter: SlotCounter, packets: u32, instant: u8) -> Counted {
        let byte = match counter {
            SlotCounter::Passed => 0,
            SlotCounter::Refused => 1,
        };
        // SAFETY: one of the lowest bytes of a head on this little-endian target.
        unsafe { count_byte(self.word(word).cast::<u8>().add(byte), packets, instant) }
    }
}

/// This CPU's value of a map: a program is not interrupted by another run of itself on the same CPU.
pub struct CpuOwn<T>(NonNull<T>);

impl<T> CpuOwn<T> {
    /// A value that a look-up has found.
    #[inline(always)]
    fn new(found: *mut T) -> Self {
        // SAFETY: a look-up returns null for none. Not compared again: it would be another branch for the verifier.
        Self(unsafe { NonNull::new_unchecked(found) })
    }
}

impl<T> Deref for CpuOwn<T> {
    type Target = T;

    #[inline(always)]
    fn deref(&self) -> &T {
        // SAFETY: a map value that only this CPU uses.
        unsafe { self.0.as_ref() }
    }
}

impl<T> DerefMut for CpuOwn<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut T {
        // SAFETY: as in `deref`.
        unsafe { self.0.as_mut() }
    }
}

/// The kernel.
#[derive(Clone, Copy)]
pub struct Kernel {
    runtime: Option<&'static Runtime>,
}

/// The kernel in functions that are called, which look up the settings that change if they need them.
pub const KERNEL: Kernel = Kernel { runtime: None };

impl Kernel {
    /// The kernel where a packet enters: the settings that change are looked up once.
    #[inline(always)]
    pub const fn with_runtime(runtime: &'static Runtime) -> Self {
        Self {
            runtime: Some(runtime),
        }
    }

    /// The settings that change.
    #[inline(always)]
    pub fn runtime(&self) -> Option<&'static Runtime> {
        self.runtime.or_else(|| RUNTIME.get(0))
    }

    /// [`Host::hash`] by a call, where the stack has no room beside it. The fast path has none: on some CPUs a return costs as
    /// much as the hash does (`spec_rstack_overflow`).
    #[inline(always)]
    pub fn hash_by_call(&self, key: &Key) -> u64 {
        let extra = u64::from(key.extra) << 32 | u64::from(key.group);
        weir_hash(key.hi, key.lo, extra)
    }
}

/// A global function of numbers, so that it is verified once.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_hash(hi: u64, lo: u64, extra: u64) -> u64 {
    let key = Key {
        hi,
        lo,
        extra: (extra >> 32) as u32,
        group: extra as u32,
    };
    KERNEL.hash(&key).0
}

impl Host for Kernel {
    type Set = MapSet;
    type Cell = MapCell;

    #[inline(always)]
    fn rule(&self, index: u32) -> Option<&Rule> {
        RULES.get(index)
    }

    #[inline(always)]
    fn set(&self, index: u32) -> Option<MapSet> {
        let (element, first) = self.shape().element(index);
        SOURCES
            .get_ptr_mut(element)
            .map(|element| MapSet { element, first })
    }

    #[inline(always)]
    fn cell(&self, index: u32) -> Option<MapCell> {
        RINGS.get_ptr_mut(index).map(MapCell)
    }

    #[inline(always)]
    fn now(&self) -> Ticks {
        clock::ticks(clock::nanoseconds())
    }

    #[inline(always)]
    fn shape(&self) -> Shape {
        Shape {
            sets: setting!(shape.sets),
            slot_words: setting!(shape.slot_words),
            groups: setting!(shape.groups),
            cells: setting!(shape.cells),
        }
    }

    #[inline(always)]
    fn hash(&self, key: &Key) -> Hash {
        key.hash(|nth| setting!(seed.words[nth]))
    }

    #[inline(always)]
    fn ring_words(&self) -> u32 {
        setting!(ring_words)
    }

    #[inline(always)]
    fn most_rules(&self) -> u32 {
        setting!(most_rules)
    }

    #[inline(always)]
    fn may_run(&self, algorithm: Algorithm) -> bool {
        setting!(algorithms) & 1 << algorithm as u32 != 0
    }

    #[inline(always)]
    fn has_room(&self, now: Ticks) -> bool {
        setting!(elastic_in_use) != 0
            && self
                .runtime()
                .is_some_and(|runtime| is_alive(clock::ticks(runtime.room_until), now))
    }

    #[inline(always)]
    fn count(&self, counter: u32, outcome: Outcome, size: Size) {
        trace::count(counter, outcome, size);
        if let Some(mut row) = COUNTERS.get_ptr_mut(counter).map(CpuOwn::new) {
            row.counters.of(outcome).add(size);
        }
    }

    #[inline(always)]
    fn row(&self, counter: u32) -> Option<impl DerefMut<Target = CpuRow>> {
        COUNTERS.get_ptr_mut(counter).map(CpuOwn::new)
    }

    #[inline(always)]
    fn trace(&self, counter: u32, outcome: Outcome, size: Size) {
        trace::count(counter, outcome, size);
    }

    #[inline(always)]
    fn charge_hot(&self, rule: u32, place: Place, from: u64, now: Ticks, size: Size) -> HotVerdict {
        let place = u64::from(place.set) << 32 | u64::from(place.word);
        let size = u64::from(size.packets) << 32 | u64::from(size.bytes);
        HotVerdict::from_number(weir_charge_hot(rule, place, from, now, size))
    }

    #[inline(always)]
    fn add_hot(&self, rule: u32, now: Ticks, only_if_due: bool) {
        weir_add_hot(rule, now, u32::from(only_if_due));
    }

    #[inline(always)]
    fn add_refused(&self, rule: &Rule, key: &Key, refused: u32) {
        sample::add_refused(rule, key, refused);
    }

    #[inline(always)]
    fn make_hot(&self, rule: u32, key: &Key, now: Ticks, size: u16) -> bool {
        let extra = u64::from(key.extra) << 32 | u64::from(key.group);
        weir_make_hot(
            key.hi,
            key.lo,
            extra,
            now,
            u64::from(size) << 32 | u64::from(rule),
        ) != 0
    }

    #[inline(always)]
    fn fair_in_use(&self) -> bool {
        setting!(fair_in_use) != 0
    }

    #[inline(always)]
    fn wider_in_use(&self) -> bool {
        setting!(fair_in_use) & Settings::WIDER != 0
    }

    #[inline(always)]
    fn fair_words(&self, rule: &Rule) -> Words {
        Words::read(|word| fair_word(rule, word))
    }

    #[inline(always)]
    fn fair_is_idle(&self, rule: &Rule) -> bool {
        Words::are_idle_in(|word| fair_word(rule, word))
    }

    #[inline(always)]
    fn forget_number(&self, number: u64, any: u64) -> u64 {
        let mut number = number;
        // SAFETY: arithmetic on registers. In assembly, since the compiler would compute the result.
        unsafe {
            asm!("{0} ^= {1}", "{0} ^= {1}", inout(reg) number, in(reg) any, options(pure, nomem, nostack));
        }
        number
    }

    #[inline(always)]
    fn random(&self) -> u32 {
        // SAFETY: a helper without arguments. The CPU's generator has a seed that no sender knows.
        unsafe { bpf_get_prandom_u32() }
    }

    #[inline(always)]
    fn sample_offered(&self, rule: &Rule, key: &Key, class: u32, units: u64, one_in: u32) {
        let units = units << 32 | u64::from(one_in);
        weir_offered(key.hi, key.lo, rule.counter, class, units);
    }

    #[inline(always)]
    fn note(&self, event: TableEvent) {
        trace::note(event);
        if let Some(counters) = TABLE_COUNTERS.get_ptr_mut(0) {
            // SAFETY: this CPU's own value.
            unsafe { *(*counters).of(event) += 1 };
        }
    }

    #[inline(always)]
    fn may_sample(&self, now: Ticks) -> bool {
        may_sample(clock::scale().whole_nanoseconds(now))
    }

    #[inline(always)]
    fn sample(&self, sampled: &Sample<'_>) {
        sample::sample(sampled);
    }

    #[inline(always)]
    fn sample_untallied(&self, sampled: &Sample<'_>) {
        sample::sample_untallied(sampled);
    }

    #[inline(always)]
    fn scale(&self) -> TickScale {
        clock::scale()
    }
}

impl FullTable for Kernel {
    #[inline(always)]
    fn least(&self, set: u32, tag: Tag, moves: Moves, now: Ticks) -> u64 {
        weir_least(set, tag.0, moves as u32, now)
    }

    #[inline(always)]
    fn is_background(&self, set: u32, tag: Tag, used: Ticks, now: Ticks) -> bool {
        weir_background(set, tag.0, used, now) != 0
    }
}

impl Steps for Kernel {
    type PacketState = CpuOwn<PacketState>;

    #[inline(always)]
    fn packet_state(&self) -> Option<CpuOwn<PacketState>> {
        PACKET_STATE.get_ptr_mut(0).map(CpuOwn::new)
    }

    #[inline(always)]
    fn charge_by_bucket(&self, _packet_state: &mut PacketState) -> PackedVerdict {
        PackedVerdict::from_bits(weir_bucket())
    }

    #[inline(always)]
    fn look(&self, _packet_state: &mut PacketState, nth: u32) -> bool {
        weir_look(nth) != 0
    }

    #[inline(always)]
    fn refuse_by(&self, _packet_state: &mut PacketState, nth: u32) -> bool {
        weir_refuse(nth) != 0
    }

    #[inline(always)]
    fn open(&self, _packet_state: &mut PacketState, nth: u32) {
        weir_open(nth);
    }

    #[inline(always)]
    fn charge(&self, _packet_state: &mut PacketState, nth: u32) -> bool {
        weir_charge(nth) != 0
    }

    #[inline(always)]
    fn conclude(&self, _packet_state: &mut PacketState, nth: u32) {
        weir_conclude(nth);
    }

    #[inline(always)]
    fn take_back(&self, _packet_state: &mut PacketState, count: u32) {
        weir_take_back(count);
    }

    #[inline(always)]
    fn charge_fair(&self, _packet_state: &mut PacketState, place: u32) -> FairStep {
        FairStep::from_number(weir_charge_fair(place))
    }

    #[inline(always)]
    fn charge_new_fair(&self, _packet_state: &mut PacketState, place: u32) -> FairStep {
        FairStep::from_number(weir_charge_new_fair(place))
    }

    #[inline(always)]
    fn take_back_fair(&self, _packet_state: &mut PacketState, count: u32) {
        weir_take_back_fair(count);
    }

    #[inline(always)]
    fn estimate(&self, _packet_state: &mut PacketState) {
        weir_estimate();
    }

    #[inline(always)]
    fn claim(&self, _packet_state: &mut PacketState) -> Claim {
        unpacked(weir_claim())
    }

    #[inline(always)]
    fn take(&self, _packet_state: &mut PacketState, nth: u32, claim: Claim) {
        weir_take(nth, packed(claim));
    }

    #[inline(always)]
    fn leave(&self, _packet_state: &mut PacketState) {
        weir_leave();
    }

    #[inline(always)]
    fn spread(&self, _packet_state: &mut PacketState) {
        weir_spread();
    }
}

/// A word of a fair rule.
#[inline(always)]
fn fair_word(rule: &Rule, word: Word) -> u64 {
    let word = match word {
        Word::Until => &raw const rule.tolerance,
        Word::Level => &raw const rule.interval,
        Word::Rest => &raw const rule.most,
    };
    // SAFETY: a word of a map's value; volatile since the agent writes it meanwhile.
    unsafe { word.read_volatile() }
}

// Global functions of numbers: the kernel verifies each once, regardless of the number of rules and paths (Linux 5.6,
// commit 51c39bb1d5d1). A packet with several rules is this CPU's `PACKET_STATE`.

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_bucket() -> u64 {
    KERNEL
        .packet_state()
        .map_or(PackedVerdict::FREE, |mut packet_state| {
            throttle::charge_by_bucket(&KERNEL, &mut packet_state)
        })
        .to_bits()
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_look(nth: u32) -> u32 {
    KERNEL.packet_state().map_or(1, |mut packet_state| {
        u32::from(throttle::look(&KERNEL, &mut packet_state, nth))
    })
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_refuse(nth: u32) -> u32 {
    KERNEL.packet_state().map_or(0, |packet_state| {
        u32::from(throttle::refuse_by(&KERNEL, &packet_state, nth))
    })
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_open(nth: u32) -> u32 {
    if let Some(mut packet_state) = KERNEL.packet_state() {
        throttle::open(&KERNEL, &mut packet_state, nth);
    }
    0
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_charge(nth: u32) -> u32 {
    KERNEL.packet_state().map_or(1, |mut packet_state| {
        u32::from(throttle::charge(&KERNEL, &mut packet_state, nth))
    })
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_conclude(nth: u32) -> u32 {
    if let Some(packet_state) = KERNEL.packet_state() {
        throttle::conclude(&KERNEL, &packet_state, nth);
    }
    0
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_take_back(count: u32) -> u32 {
    if let Some(mut packet_state) = KERNEL.packet_state() {
        throttle::take_back(&KERNEL, &mut packet_state, count);
    }
    0
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_charge_fair(place: u32) -> u32 {
    KERNEL
        .packet_state()
        .map_or(FairStep::Passed, |mut packet_state| {
            throttle::charge_fair(&KERNEL, &mut packet_state, place)
        }) as u32
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_charge_new_fair(place: u32) -> u32 {
    KERNEL
        .packet_state()
        .map_or(FairStep::Passed, |mut packet_state| {
            throttle::charge_new_fair(&KERNEL, &mut packet_state, place)
        }) as u32
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_take_back_fair(count: u32) -> u32 {
    if let Some(packet_state) = KERNEL.packet_state() {
        throttle::take_back_fair(&KERNEL, &packet_state, count);
    }
    0
}

/// `units` has the cost in its upper half, and below it the one-in-so-many of the sample.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_offered(hi: u64, lo: u64, counter: u32, class: u32, units: u64) -> u32 {
    let offered = Offered {
        hi,
        lo,
        counter,
        class,
        units: (units >> 32) as u32,
        one_in: units as u32,
    };
    let _ = OFFERED.output(offered, NO_WAKEUP);
    0
}

/// The slot's word in the lower half; then a byte with the outcome's number, and one with whether the slot is in the
/// alternate set.
#[inline(always)]
fn packed(claim: Claim) -> u64 {
    let outcome: u64 = match claim.outcome {
        Claimed::Reserved => 0,
        Claimed::Displaced => 1,
        Claimed::Found => 2,
        Claimed::Full => 3,
        Claimed::Contended => 4,
        Claimed::Shared => 5,
    };
    u64::from(claim.is_alternate) << 40 | outcome << 32 | u64::from(claim.slot)
}

/// The reverse of [`packed`].
#[inline(always)]
fn unpacked(claim: u64) -> Claim {
    let outcome = match claim >> 32 & 0xff {
        0 => Claimed::Reserved,
        1 => Claimed::Displaced,
        2 => Claimed::Found,
        3 => Claimed::Full,
        4 => Claimed::Contended,
        _ => Claimed::Shared,
    };
    Claim {
        outcome,
        slot: claim as u32,
        is_alternate: claim >> 40 != 0,
    }
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_estimate() -> u32 {
    if let Some(mut packet_state) = KERNEL.packet_state() {
        throttle::estimate(&KERNEL, &mut packet_state);
    }
    0
}

/// Returns a [`packed`] claim.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_claim() -> u64 {
    packed(
        KERNEL
            .packet_state()
            .map_or(Claim::none(Claimed::Full), |mut packet_state| {
                throttle::claim(&KERNEL, &mut packet_state)
            }),
    )
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_take(nth: u32, claim: u64) -> u32 {
    if let Some(mut packet_state) = KERNEL.packet_state() {
        throttle::take(&KERNEL, &mut packet_state, nth, unpacked(claim));
    }
    0
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_leave() -> u32 {
    if let Some(packet_state) = KERNEL.packet_state() {
        throttle::leave(&KERNEL, &packet_state);
    }
    0
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_spread() -> u32 {
    if let Some(packet_state) = KERNEL.packet_state() {
        throttle::spread(&KERNEL, &packet_state);
    }
    0
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_charge_hot(rule: u32, place: u64, from: u64, now: u64, size: u64) -> u32 {
    let place = Place {
        set: (place >> 32) as u32,
        word: place as u32,
    };
    let size = Size {
        packets: (size >> 32) as u32,
        bytes: size as u32,
    };
    throttle::charge_hot(&KERNEL, rule, place, from, now, size) as u32
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_add_hot(rule: u32, now: u64, only_if_due: u32) -> u32 {
    throttle::add_hot(&KERNEL, rule, now, only_if_due != 0);
    0
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_make_hot(hi: u64, lo: u64, extra: u64, now: u64, what: u64) -> u32 {
    let key = Key {
        hi,
        lo,
        extra: (extra >> 32) as u32,
        group: extra as u32,
    };
    u32::from(throttle::make_hot(
        &KERNEL,
        what as u32,
        &key,
        now,
        (what >> 32) as u16,
    ))
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_least(set: u32, tag: u64, moves: u32, now: u64) -> u64 {
    throttle::least(&KERNEL, set, Tag(tag), Moves::from_bits(moves as u8), now)
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_background(set: u32, tag: u64, used: u64, now: u64) -> u32 {
    u32::from(throttle::is_background(&KERNEL, set, Tag(tag), used, now))
}
