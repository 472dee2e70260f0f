//! The maps and constants for classification. All decisions are in `common`.

use core::arch::asm;

use aya_ebpf::btf_maps::lpm_trie::Key as Prefix;
use common::ban::Ban;
use common::bank::Bank;
use common::connections::{Admission, Tuple};
use common::essential::{Essential, PacketBucket};
use common::list::{self, CHUNK_LINES, CHUNK_WORDS};
use common::neighbour::Neighbour;
use common::packet::{Address, Depth, Packet};
use common::prefix::{Line, Lines, Node, PrefixEntry, Search, may_have_entry};
use common::program::{Context, Program};
use common::proof::Proof;
use common::rule::{RuleSpan, Subject};
use common::scope::{ScopeSpans, ScopedPacket, Scopes, Scoping, SpansBy, find};
use common::settings::{PortSpans, Settings};
use common::throttle::Host;

use crate::atomics;
use crate::cell::MapCell;
use crate::clock;
use crate::connections;
use crate::maps::{
    BANS, ESSENTIAL, INTERFACES, LISTS, ListChunks, PORTS, PREFIXES, RUNTIME, SCOPES, setting,
};
use crate::prove::{prove, weir_note_proven};
use crate::resets;
use crate::throttle::{KERNEL, Kernel};
use crate::trace;

impl Program for Kernel {
    #[inline(always)]
    fn depth(&self) -> Depth {
        Depth::from_setting(setting!(depth))
    }

    #[inline(always)]
    fn only_observes(&self) -> bool {
        setting!(observe) != 0
    }

    #[inline(always)]
    fn prefix_entry(&self, address: Address) -> PrefixEntry {
        trace::begin(address);
        let bank = self
            .runtime()
            .map_or(Bank::FIRST, |runtime| Bank::from_setting(runtime.bank));
        let trees = Trees::of(bank);
        let mut entry = PrefixEntry::default()
            .in_bank(bank, setting!(source_index_bits))
            .to_bits();
        if setting!(prefixes_in_use) != 0 {
            if may_have_entry(&trees, address) {
                entry = weir_prefix(address.hi, address.lo);
            }
            // The verifier goes on once, not for each of the two.
            entry = trees.forget(u64::from(entry), address.lo) as u32;
        }
        PrefixEntry::from_bits(entry)
    }

    #[inline(always)]
    fn network(&self, entry: PrefixEntry, address: Address) -> u32 {
        // The verifier removes the call where no limit needs it.
        if setting!(networks_in_use) == 0 {
            return 0;
        }
        weir_network(
            entry.bank(setting!(source_index_bits)).number(),
            address.hi,
            address.lo,
        )
    }

    #[inline(always)]
    fn is_banned(&self, source: Address) -> bool {
        self.runtime().is_some_and(|runtime| runtime.bans != 0)
            && weir_ban(source.hi, source.lo) != 0
            || setting!(lists_in_use) != 0 && weir_list(source.hi, source.lo) != 0
    }

    #[inline(always)]
    fn conforms(&self, kind: Essential, interface: u32, neighbour: Neighbour) -> bool {
        weir_essential(kind.bucket(interface), neighbour.to_bits()) != 0
    }

    #[inline(always)]
    fn essential_limited(&self) -> u32 {
        setting!(essential_limited)
    }

    #[inline(always)]
    fn proves(&self) -> bool {
        setting!(prove_in_use) != 0
    }

    #[inline(always)]
    fn prove(&self, context: Context, packet: &Packet, by_resets: bool) -> Proof {
        match (by_resets, setting!(prove_in_use)) {
            (true, ways) if ways & Settings::BY_RESETS != 0 => resets::prove(context, packet),
            (false, ways) if ways & Settings::BY_COOKIES != 0 => prove(context, packet),
            _ => Proof::NONE,
        }
    }

    #[inline(always)]
    fn note_proven(&self) {
        weir_note_proven();
    }

    #[inline(always)]
    fn refuses_hidden(&self) -> bool {
        setting!(refuse_hidden) != 0
    }

    #[inline(always)]
    fn spans_by(&self) -> SpansBy {
        SpansBy::from_setting(setting!(spans_by))
    }

    #[inline(always)]
    fn port_spans(&self, port: u16) -> Option<&PortSpans> {
        PORTS.get(u32::from(port))
    }

    #[inline(always)]
    fn span(&self, index: usize) -> RuleSpan {
        setting!(spans[index])
    }

    #[inline(always)]
    fn scoped_span(&self, source_index: u32, interface: u32, packet: ScopedPacket) -> RuleSpan {
        let span = weir_scope(source_index, interface, packet.0);
        RuleSpan {
            first: (span >> 8) as u32,
            count: (span & 0xff) as u32,
        }
    }

    #[inline(always)]
    fn counts_connections(&self) -> bool {
        setting!(connections_in_use) != 0
    }

    #[inline(always)]
    fn reserve_connection(&self, span: RuleSpan, subject: &Subject, tuple: Tuple) -> Admission {
        connections::reserve(span, subject, tuple)
    }

    #[inline(always)]
    fn conclude_connection(&self, passes: bool) {
        connections::conclude(passes);
    }

    #[inline(always)]
    fn rules_per_multiplier(&self) -> u32 {
        setting!(rules_per_multiplier)
    }

    #[inline(always)]
    fn forget(&self, port: u16, any: u64) -> u16 {
        Trees(0).forget(u64::from(port), any) as u16
    }
}

/// A global function of numbers, so that it is verified once, and not at all without prefixes (Linux 6.8).
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_prefix(hi: u64, lo: u64) -> u32 {
    let address = Address { hi, lo };
    let Some(runtime) = RUNTIME.get(0) else {
        return 0;
    };
    let bank = Bank::from_setting(runtime.bank);
    let Some(roots) = runtime.roots.get(bank.number() as usize) else {
        return 0;
    };
    // One choice between two addresses, instead of one per field.
    let root = if address.is_ipv4() {
        &roots.prefixes.ipv4
    } else {
        &roots.prefixes.ipv6
    };
    root.look_up(&Trees::of(bank), address)
        .in_bank(bank, setting!(source_index_bits))
        .to_bits()
}

/// A global function of numbers, so that it is verified once, and not at all without keys of networks (Linux 6.8).
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_network(bank: u32, hi: u64, lo: u64) -> u32 {
    let (bank, address) = (Bank::from_setting(bank), Address { hi, lo });
    let Some(roots) = RUNTIME
        .get(0)
        .and_then(|runtime| runtime.roots.get(bank.number() as usize))
    else {
        return 0;
    };
    let root = if address.is_ipv4() {
        &roots.networks.ipv4
    } else {
        &roots.networks.ipv6
    };
    root.look_up_in_one_loop(&Trees::of(bank), address)
        .network()
}

/// The trees of a bank, by its first line in [`PREFIXES`].
struct Trees(u32);

impl Trees {
    #[inline(always)]
    fn of(bank: Bank) -> Self {
        Self(bank.first(setting!(lines_of_bank)))
    }
}

impl Lines for Trees {
    #[inline(always)]
    fn line(&self, number: u32) -> Option<&Line> {
        PREFIXES.get(self.0 + number)
    }

    #[inline(always)]
    fn forget(&self, number: u64, any: u64) -> u64 {
        let mut number = number;
        // SAFETY: arithmetic on registers. In assembly, since the compiler would compute the result.
        unsafe {
            asm!("{0} ^= {1}", "{0} ^= {1}", inout(reg) number, in(reg) any, options(pure, nomem, nostack));
        }
        number
    }

    #[inline(always)]
    fn go_further(&self, search: Search) -> Node {
        Node(weir_search(self.0, search.node.0, search.key, search.lower))
    }
}

/// A global function of numbers, so that trees with many steps are verified once instead of on each path.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_search(first_line: u32, node: u32, key: u64, lower: u64) -> u32 {
    Search {
        node: Node(node),
        key,
        lower,
    }
    .finish(&Trees(first_line))
    .0
}

impl Scopes for Kernel {
    #[inline(always)]
    fn scoping(&self) -> Scoping {
        Scoping {
            source_bits: setting!(scoping.source_bits),
            interfaces: setting!(scoping.interfaces),
            rows: setting!(scoping.rows),
        }
    }

    #[inline(always)]
    fn interface_number(&self, index: u32) -> u32 {
        // SAFETY: the value is copied at once; only the agent writes it, as a whole.
        unsafe { INTERFACES.get(index) }.map_or(0, |number| *number)
    }

    #[inline(always)]
    fn port_row(&self, port: u16) -> u32 {
        PORTS
            .get(u32::from(port))
            .map_or(0, |spans| spans.packed[0])
    }

    #[inline(always)]
    fn scope_spans(&self, row: u32) -> Option<&ScopeSpans> {
        SCOPES.get(row)
    }

    #[inline(always)]
    fn rules_of_multiplier(&self) -> u32 {
        setting!(rules_per_multiplier)
    }
}

/// A global function of numbers, so that it is verified once, and not at all without limits for certain sources or
/// interfaces (Linux 6.8). Returns the rules as `first << 8 | count`.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_scope(source_index: u32, interface: u32, packet: u32) -> u64 {
    let span = find(&KERNEL, source_index, interface, ScopedPacket(packet));
    u64::from(span.first) << 8 | u64::from(span.count & 0xff)
}

/// A global function of numbers, so that it is verified once; most hosts have no bans.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_ban(hi: u64, lo: u64) -> u32 {
    let Some(ban) = BANS.get(&Prefix::new(128, Address { hi, lo }.octets())) else {
        return 0;
    };
    if !Ban::is_in_effect(ban.until, clock::nanoseconds()) {
        return 0;
    }
    // SAFETY: a word of a map's value, which only atomic additions and the agent write.
    unsafe { atomics::add((&raw const ban.refused).cast_mut(), 1) };
    1
}

/// A global function of numbers, so that it is verified once, and not at all without ban lists (Linux 6.8).
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_list(hi: u64, lo: u64) -> u32 {
    let address = Address { hi, lo };
    let Some(chunks) = LISTS.get(0) else { return 0 };
    let Some(head) = chunks.get_ptr_mut(0) else {
        return 0;
    };
    let lists = Lists {
        head: head.cast(),
        chunks,
    };
    if !list::may_contain(&lists, address) {
        return 0;
    }
    let list = list::list_of(&lists, &lists, address);
    if list == 0 {
        return 0;
    }
    // SAFETY: a word of a map's value, which only atomic additions write.
    unsafe { atomics::add(at(lists.head, list::refused_word(list)), 1) };
    1
}

/// The map of the ban lists.
struct Lists {
    head: *mut u64,
    chunks: &'static ListChunks,
}

/// The address of a word of a chunk.
#[inline(always)]
fn at(chunk: *mut u64, index: u32) -> *mut u64 {
    let mut index = u64::from(index);
    // SAFETY: the mask is within the chunk. In assembly, since the compiler would remove it.
    unsafe {
        asm!("{0} &= {1}", inout(reg) index, const CHUNK_WORDS - 1, options(pure, nomem, nostack));
        chunk.add(index as usize)
    }
}

impl list::Words for Lists {
    #[inline(always)]
    fn head(&self, index: u32) -> u64 {
        // SAFETY: a word of a map's value.
        unsafe { at(self.head, index).read_volatile() }
    }

    #[inline(always)]
    fn word(&self, chunk: u32, index: u32) -> u64 {
        let Some(chunk) = self.chunks.get_ptr_mut(chunk) else {
            return 0;
        };
        // SAFETY: as in `head`.
        unsafe { at(chunk.cast(), index).read_volatile() }
    }
}

impl Lines for Lists {
    #[inline(always)]
    fn line(&self, number: u32) -> Option<&Line> {
        let chunk = self.chunks.get_ptr(1 + number / CHUNK_LINES)?;
        let mut line = u64::from(number);
        // SAFETY: as in `at`; a line is within the chunk.
        unsafe {
            asm!("{0} &= {1}", inout(reg) line, const CHUNK_LINES - 1, options(pure, nomem, nostack));
            Some(&*chunk.cast::<Line>().add(line as usize))
        }
    }

    #[inline(always)]
    fn forget(&self, number: u64, any: u64) -> u64 {
        Trees(0).forget(number, any)
    }
}

/// A global function of numbers, so that it is verified once.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_essential(bucket: u32, neighbour: u64) -> u32 {
    let take = |bucket, limit: PacketBucket| {
        ESSENTIAL
            .get_ptr_mut(bucket)
            .is_some_and(|state| limit.take(MapCell(state), KERNEL.now()))
    };
    let neighbour = Neighbour::from_bits(neighbour);
    if neighbour != Neighbour::NONE {
        let seed = [
            setting!(seed.words[0]),
            setting!(seed.words[1]),
            setting!(seed.words[2]),
        ];
        if take(neighbour.bucket(bucket, seed), setting!(neighbour)) {
            return 1;
        }
    }
    let limit = if Essential::is_not_ip(bucket) {
        setting!(not_ip)
    } else {
        setting!(essential)
    };
    take(bucket, limit).into()
}
