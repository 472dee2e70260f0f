//! The table of sources in memory, and a program that uses it instead of the kernel's maps.

use std::cell::{Cell, RefCell, RefMut};

use common::connections::{Admission, Tuple};
use common::counters::{Bypass, Counters, TableCounters, Traffic};
use common::essential::{ESSENTIAL_BUCKETS, Essential, PacketBucket};
use common::key::{Hash, HashSeed, Key};
use common::limiter::Algorithm;
use common::neighbour::Neighbour;
use common::packet::{Address, Depth, Direction};
use common::prefix::PrefixEntry;
use common::program::{Case, PacketVerdict, Program};
use common::rule::{Rule, RuleSpan, Size, Subject};
use common::scope::{self, ScopeSpans, ScopedPacket, Scopes, Scoping, SpansBy};
use common::settings::{PortSpans, Settings};
use common::table::{Set, Shape, Tag};
use common::throttle::{FullTable, Host, Outcome, PacketState, Sample, Steps, TableEvent};
use common::time::{TickScale, Ticks};
use datapath::compile::Image;

use super::capture::{CapturedPacket, InterfaceNames};
use super::frame::CapturedFrame;
use super::table::{MemoryCell, MemorySet, Table};

/// A sample of a key, in steps of 64 packets: passed, or refused if the rule were not on `observe`.
#[derive(Clone, Copy, Debug)]
pub struct Sampled {
    /// The rule's row of counters.
    pub counter: u32,
    /// The key under which it was counted.
    pub key: Key,
    /// Whether the rule would have refused them.
    pub would_refuse: bool,
    /// The number of packets; 0 for the first one in a while.
    pub packets: u32,
}

/// The verdict on a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It passes.
    Pass,
    /// A rule refuses it.
    Refuse,
    /// It is refused before any rule is evaluated: malformed, or above the limit of its kind.
    Drop,
    /// Too little of it was captured to evaluate it; it is not counted.
    Unknown,
}

/// Words of a row of counters: packets and bytes of each outcome.
const ROW: usize = size_of::<Counters>() / size_of::<u64>();

/// One direction's policy with a table.
#[derive(Debug)]
pub struct MemoryProgram<'m> {
    image: &'m Image,
    settings: Settings,
    table: Table<'m>,
    words_of_set: usize,
    essential: Vec<Cell<u64>>,
    nanoseconds: Cell<u64>,
    /// The rows of counters of all classes.
    counters: Vec<Cell<u64>>,
    /// The packet's class.
    class: Cell<u32>,
    table_counters: Cell<TableCounters>,
    packet_state: RefCell<PacketState>,
    /// The numbers of the capture's interfaces for limits that are for certain ones.
    interfaces: RefCell<Vec<u32>>,
    /// Set when a read is within the frame, but beyond its captured part.
    is_cut: Cell<bool>,
    /// Set when the verdict depended on such a read.
    is_unknown: Cell<bool>,
    /// Set when a rule on `observe` would have refused the packet.
    would_refuse: Cell<bool>,
    sampled: RefCell<Vec<Sampled>>,
}

impl<'m> MemoryProgram<'m> {
    /// A program that runs `image` on `table`, with this `seed`. Class 0 is the default one.
    #[must_use]
    pub fn new(image: &'m Image, table: Table<'m>, seed: HashSeed, classes: usize) -> Self {
        let settings = Settings {
            seed,
            ..image.settings
        };
        Self {
            image,
            settings,
            table,
            words_of_set: (settings.shape.slots() * settings.shape.slot_words) as usize,
            essential: vec![Cell::new(0); ESSENTIAL_BUCKETS as usize],
            nanoseconds: Cell::new(0),
            counters: vec![Cell::new(0); image.counters() as usize * ROW * (classes + 1)],
            class: Cell::new(0),
            table_counters: Cell::default(),
            packet_state: RefCell::default(),
            interfaces: RefCell::default(),
            is_cut: Cell::new(false),
            is_unknown: Cell::new(false),
            would_refuse: Cell::new(false),
            sampled: RefCell::default(),
        }
    }

    /// Adds the interface names that the captures have described since the last call.
    #[inline]
    pub fn name_interfaces(&self, names: &InterfaceNames) {
        let mut known = self.interfaces.borrow_mut();
        if known.len() < names.count() {
            let new = (known.len() + 1..=names.count()).map(|number| names.named(number as u32));
            known.extend(new.map(|name| {
                name.map_or(0, |name| self.image.interfaces.of(std::iter::once(name)))
            }));
        }
    }

    /// Evaluates a frame at an instant of the clock; `refused` receives the refusing rule and its subject.
    #[inline(always)]
    pub fn evaluate(
        &self,
        packet: &CapturedPacket<'_>,
        direction: Direction,
        nanoseconds: u64,
        refused: impl FnOnce(&Rule, &Subject),
    ) -> Verdict {
        self.nanoseconds.set(nanoseconds);
        self.is_cut.set(false);
        self.is_unknown.set(false);
        self.would_refuse.set(false);
        self.class.set(0);
        let frame = CapturedFrame::new(packet, &self.is_cut);
        let interface = if self.settings.interfaces_in_use != 0 {
            packet.interface
        } else {
            0
        };
        match Case::new(interface).evaluate(&self, &frame, packet.link, direction) {
            _ if self.is_unknown.get() => Verdict::Unknown,
            PacketVerdict::Passed(_) => Verdict::Pass,
            PacketVerdict::Refused(rule, subject) => {
                if let Some(rule) = self.image.rules.get(rule as usize) {
                    refused(rule, subject);
                }
                Verdict::Refuse
            }
            // A capture has no sockets, so that no SYN is answered.
            PacketVerdict::Dropped | PacketVerdict::Answered(_) => Verdict::Drop,
        }
    }

    /// Whether the last frame was captured too short for the program's reads.
    #[inline(always)]
    #[must_use]
    pub fn is_cut(&self) -> bool {
        self.is_cut.get()
    }

    /// Whether a rule on `observe` would have refused the last packet.
    #[inline(always)]
    #[must_use]
    pub fn would_refuse(&self) -> bool {
        self.would_refuse.get()
    }

    /// The class of the last packet.
    #[must_use]
    pub fn class(&self) -> u32 {
        self.class.get()
    }

    /// The samples since the last call.
    #[inline(always)]
    pub fn take_sampled(&self, each: impl FnMut(Sampled)) {
        let mut sampled = self.sampled.borrow_mut();
        if !sampled.is_empty() {
            sampled.drain(..).for_each(each);
        }
    }

    /// The rows of counters of a class.
    #[must_use]
    pub fn counters_of(&self, class: usize) -> Vec<Counters> {
        let words = self.image.counters() as usize * ROW;
        self.counters[class * words..][..words]
            .chunks_exact(ROW)
            .map(counters)
            .collect()
    }

    /// The rows of counters of all classes.
    #[must_use]
    pub fn counters(&self) -> Vec<Counters> {
        let rows = self.image.counters() as usize;
        let mut sums = vec![Counters::default(); rows];
        for (nth, words) in self.counters.chunks_exact(ROW).enumerate() {
            sums[nth % rows] = sums[nth % rows].plus(counters(words));
        }
        sums
    }

    /// Keys whose allowance is not full at the clock's time, of both directions.
    #[must_use]
    pub fn tracked(&self) -> u64 {
        let (shape, now) = (self.settings.shape, Host::now(&self));
        let sets = (0..shape.sets).filter_map(|set| Host::set(&self, set));
        let is_tracked = |set: MemorySet<'_>, nth: u32| {
            let slot = shape.slot(nth);
            !Tag::is_free(set.load(slot)) && shape.life(set, slot, now) > 0
        };
        sets.map(|set| {
            (0..shape.slots())
                .filter(|nth| is_tracked(set, *nth))
                .count() as u64
        })
        .sum()
    }

    /// The events of the table.
    #[must_use]
    pub fn table_counters(&self) -> TableCounters {
        self.table_counters.get()
    }

    #[must_use]
    pub const fn image(&self) -> &'m Image {
        self.image
    }
}

fn counters(words: &[Cell<u64>]) -> Counters {
    let of = |outcome: Outcome| Traffic {
        packets: words[2 * outcome as usize].get(),
        bytes: words[2 * outcome as usize + 1].get(),
    };
    Counters {
        passed: of(Outcome::Passed),
        throttled: of(Outcome::Throttled),
        would_throttle: of(Outcome::WouldThrottle),
        over: of(Outcome::Over),
        contended: of(Outcome::Contended),
    }
}

impl<'m> Host for &MemoryProgram<'m> {
    type Set = MemorySet<'m>;
    type Cell = MemoryCell<'m>;

    #[inline(always)]
    fn rule(&self, index: u32) -> Option<&Rule> {
        self.image.rules.get(index as usize)
    }

    #[inline(always)]
    fn set(&self, index: u32) -> Option<MemorySet<'m>> {
        let first = index as usize * self.words_of_set;
        self.table
            .words
            .get(first..first + self.words_of_set)
            .map(MemorySet)
    }

    #[inline(always)]
    fn cell(&self, index: u32) -> Option<MemoryCell<'m>> {
        self.table.rings.get(index as usize).map(MemoryCell)
    }

    #[inline(always)]
    fn now(&self) -> Ticks {
        self.settings.scale.ticks(self.nanoseconds.get())
    }

    #[inline(always)]
    fn shape(&self) -> Shape {
        self.settings.shape
    }

    #[inline(always)]
    fn hash(&self, key: &Key) -> Hash {
        self.settings.seed.hash(key)
    }

    #[inline(always)]
    fn ring_words(&self) -> u32 {
        self.settings.ring_words
    }

    #[inline(always)]
    fn most_rules(&self) -> u32 {
        self.settings.most_rules
    }

    #[inline(always)]
    fn may_run(&self, algorithm: Algorithm) -> bool {
        self.settings.algorithms & 1 << algorithm as u32 != 0
    }

    fn fair_in_use(&self) -> bool {
        self.settings.fair_in_use != 0
    }

    fn has_room(&self, _now: Ticks) -> bool {
        // The capture does not contain the host's load.
        false
    }

    #[inline(always)]
    fn count(&self, counter: u32, outcome: Outcome, size: Size) {
        if counter == Bypass::Malformed as u32 && self.is_cut.get() {
            self.is_unknown.set(true);
            return;
        }
        if matches!(outcome, Outcome::WouldThrottle) {
            self.would_refuse.set(true);
        }
        let row = (self.class.get() * self.image.counters() + counter) as usize * ROW
            + 2 * outcome as usize;
        if let Some([packets, bytes]) = self.counters.get(row..row + 2) {
            packets.set(packets.get() + u64::from(size.packets));
            bytes.set(bytes.get() + u64::from(size.bytes));
        }
    }

    fn note(&self, event: TableEvent) {
        let mut counters = self.table_counters.get();
        *counters.of(event) += 1;
        self.table_counters.set(counters);
    }

    #[inline(always)]
    fn scale(&self) -> TickScale {
        self.settings.scale
    }

    /// Such a sample counts no packets.
    #[inline(always)]
    fn may_sample(&self, _now: Ticks) -> bool {
        false
    }

    #[inline(always)]
    fn sample(&self, sample: &Sample<'_>) {
        let Sample {
            rule,
            key,
            outcome,
            weight,
            ..
        } = sample;
        // Refusals are counted packet by packet.
        if *outcome != Outcome::Throttled {
            self.sampled.borrow_mut().push(Sampled {
                counter: rule.counter,
                key: *key,
                would_refuse: *outcome == Outcome::WouldThrottle,
                packets: *weight,
            });
        }
    }
}

impl FullTable for &MemoryProgram<'_> {}

impl<'a, 'm> Steps for &'a MemoryProgram<'m> {
    type PacketState = RefMut<'a, PacketState>;

    #[inline(always)]
    fn packet_state(&self) -> Option<RefMut<'a, PacketState>> {
        let program: &'a MemoryProgram<'m> = self;
        program.packet_state.try_borrow_mut().ok()
    }
}

impl Program for &MemoryProgram<'_> {
    #[inline(always)]
    fn depth(&self) -> Depth {
        Depth::from_setting(self.settings.depth)
    }

    #[inline(always)]
    fn only_observes(&self) -> bool {
        self.settings.observe != 0
    }

    #[inline(always)]
    fn prefix_entry(&self, address: Address) -> PrefixEntry {
        if self.settings.prefixes_in_use == 0 {
            return PrefixEntry::default();
        }
        let entry = self.image.entry(address);
        self.class.set(entry.class());
        entry
    }

    #[inline(always)]
    fn network(&self, _entry: PrefixEntry, address: Address) -> u32 {
        self.image.network(address)
    }

    fn is_banned(&self, _source: Address) -> bool {
        false
    }

    fn conforms(&self, kind: Essential, interface: u32, neighbour: Neighbour) -> bool {
        let take = |bucket: u32, limit: PacketBucket| {
            let state = self.essential.get(bucket as usize);
            state.is_some_and(|state| limit.take(MemoryCell(state), self.now()))
        };
        let bucket = kind.bucket(interface);
        let [first, second, third, ..] = self.settings.seed.words;
        if neighbour != Neighbour::NONE
            && take(
                neighbour.bucket(bucket, [first, second, third]),
                self.settings.neighbour,
            )
        {
            return true;
        }
        let limit = if kind == Essential::NotIp {
            self.settings.not_ip
        } else {
            self.settings.essential
        };
        take(bucket, limit)
    }

    #[inline(always)]
    fn essential_limited(&self) -> u32 {
        self.settings.essential_limited
    }

    #[inline(always)]
    fn proves(&self) -> bool {
        self.settings.prove_in_use != 0
    }

    #[inline(always)]
    fn refuses_hidden(&self) -> bool {
        self.settings.refuse_hidden != 0
    }

    #[inline(always)]
    fn spans_by(&self) -> SpansBy {
        SpansBy::from_setting(self.settings.spans_by)
    }

    #[inline(always)]
    fn port_spans(&self, port: u16) -> Option<&PortSpans> {
        self.image.ports.get(usize::from(port))
    }

    #[inline(always)]
    fn span(&self, index: usize) -> RuleSpan {
        self.settings.spans[index]
    }

    #[inline(always)]
    fn scoped_span(&self, source_index: u32, interface: u32, packet: ScopedPacket) -> RuleSpan {
        scope::find(self, source_index, interface, packet)
    }

    fn counts_connections(&self) -> bool {
        self.settings.connections_in_use != 0
    }

    /// Skips the rules: a recording has no sockets.
    fn reserve_connection(&self, span: RuleSpan, _subject: &Subject, _tuple: Tuple) -> Admission {
        let rules = (span.first..span.first + span.count).map_while(|index| self.rule(index));
        Admission::admitted(rules.take_while(|rule| rule.counts_open()).count() as u32)
    }

    fn conclude_connection(&self, _passes: bool) {}

    #[inline(always)]
    fn rules_per_multiplier(&self) -> u32 {
        self.settings.rules_per_multiplier
    }
}

impl Scopes for &MemoryProgram<'_> {
    #[inline(always)]
    fn scoping(&self) -> Scoping {
        self.settings.scoping
    }

    #[inline(always)]
    fn interface_number(&self, index: u32) -> u32 {
        let nth = (index as usize).wrapping_sub(1);
        self.interfaces.borrow().get(nth).copied().unwrap_or(0)
    }

    #[inline(always)]
    fn port_row(&self, port: u16) -> u32 {
        self.image
            .ports
            .get(usize::from(port))
            .map_or(0, |spans| spans.packed[0])
    }

    #[inline(always)]
    fn scope_spans(&self, row: u32) -> Option<&ScopeSpans> {
        self.image.scopes.get(row as usize)
    }

    #[inline(always)]
    fn rules_of_multiplier(&self) -> u32 {
        self.settings.rules_per_multiplier
    }
}
