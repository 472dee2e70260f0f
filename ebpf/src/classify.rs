//! From a packet to the rules it is held to.

use core::arch::asm;
use core::mem::MaybeUninit;

use aya_ebpf::btf_maps::lpm_trie::Key as Prefix;
use common::ban::Ban;
use common::counters::Bypass;
use common::packet::{Address, Direction, Packet, Protocol};
use common::prefix::{Line, Lines, Node, PrefixEntry, PrefixRoot, Search};
use common::rule::{RuleSpan, Subject};
use common::settings::{PortSpans, span_index};

use crate::context::Frame;
use crate::maps::{BANS, PORTS, PREFIXES, RUNTIME, setting, setting_at};
use crate::throttle::Kernel;
use crate::{Seen, atomics, essential};

/// The rules for a packet, or why there are none. Fills in what they look at, if there are any.
#[inline(always)]
pub fn classify(
    frame: &impl Frame,
    packet: &Packet,
    direction: Direction,
    seen: &Seen,
    subject: &mut MaybeUninit<Subject>,
) -> Result<RuleSpan, Bypass> {
    let other = packet.other(direction);
    let entry = prefix_entry(other);
    if entry.has(PrefixEntry::NEVER_LIMIT) {
        return Err(Bypass::NeverLimit);
    }
    if direction == Direction::Ingress && is_banned(other) {
        return Err(Bypass::Banned);
    }
    let mut local_port = packet.local_port_or_0(direction);
    // Above its own limit it is traffic like any other, so that a flood from one source does not starve the others.
    if let Some(kind) = packet.essential() {
        if essential::conforms(kind, frame.interface()) {
            return Err(Bypass::Essential);
        }
        if setting!(essential_limited) & 1 << kind as u32 == 0 {
            return Err(Bypass::EssentialThrottled);
        }
        // What is known of the port is forgotten, or the verifier would go on with each of DHCP's by itself.
        local_port = Trees.forget(u64::from(local_port), other.lo) as u16;
    }
    if entry.has(PrefixEntry::UNLIMITED) {
        return Err(Bypass::Unlimited);
    }
    if setting!(refuse_hidden) != 0 && packet.protocol == Protocol::Hidden {
        return Err(Bypass::Malformed);
    }
    let mut span = span(packet, local_port).ok_or(Bypass::Unlimited)?;
    if span.count == 0 {
        return Err(Bypass::Unlimited);
    }
    span.first += entry.grade() * setting!(rules_per_grade);
    subject.write(Subject {
        hi: other.hi,
        lo: other.lo,
        is_ipv4: u32::from(packet.is_ipv4),
        local_port: u32::from(local_port),
        class: entry.class(),
        interface: seen.interface,
        size: seen.size,
    });
    Ok(span)
}

#[inline(always)]
fn prefix_entry(address: Address) -> PrefixEntry {
    if setting!(prefixes_in_use) == 0 {
        return PrefixEntry::default();
    }
    // One choice between two addresses, and not one for each field.
    let root = if address.is_ipv4() { setting_at!(prefixes.ipv4) } else { setting_at!(prefixes.ipv6) };
    // SAFETY: a field of the settings; as all of them.
    let root = unsafe {
        PrefixRoot {
            base: (&raw const (*root).base).read_volatile(),
            shift: (&raw const (*root).shift).read_volatile(),
            last: (&raw const (*root).last).read_volatile(),
            node: (&raw const (*root).node).read_volatile(),
            steps: (&raw const (*root).steps).read_volatile(),
        }
    };
    root.look_up(&Trees, address)
}

/// [`PREFIXES`].
struct Trees;

impl Lines for Trees {
    #[inline(always)]
    fn line(&self, number: u32) -> Option<&Line> {
        PREFIXES.get(number)
    }

    #[inline(always)]
    fn forget(&self, number: u64, any: u64) -> u64 {
        let mut number = number;
        // SAFETY: arithmetic on registers. It is written out, since the compiler knows as well as we do what it comes to.
        unsafe {
            asm!("{0} ^= {1}", "{0} ^= {1}", inout(reg) number, in(reg) any, options(pure, nomem, nostack));
        }
        number
    }

    #[inline(always)]
    fn go_further(&self, search: Search) -> Node {
        Node(weir_search(search.node.0, search.key, search.lower))
    }
}

/// A global function of numbers, so that trees with many steps are verified once and not for each way to get there.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_search(node: u32, key: u64, lower: u64) -> u32 {
    Search { node: Node(node), key, lower }.finish(&Trees).0
}

/// Whether the source is banned; counts the packet if it is.
#[inline(always)]
fn is_banned(source: Address) -> bool {
    RUNTIME.get(0).is_some_and(|runtime| runtime.bans != 0) && weir_ban(source.hi, source.lo) != 0
}

/// A global function of numbers, so that it is verified once; most hosts ban nobody.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_ban(hi: u64, lo: u64) -> u32 {
    let Some(ban) = BANS.get(&Prefix::new(128, Address { hi, lo }.octets())) else { return 0 };
    if !Ban::is_in_force(ban.until, Kernel::nanoseconds()) {
        return 0;
    }
    // SAFETY: a word of a map's value, which only atomic additions and the agent write.
    unsafe { atomics::add((&raw const ban.refused).cast_mut(), 1) };
    1
}

#[inline(always)]
fn span(packet: &Packet, local_port: u16) -> Option<RuleSpan> {
    let index = span_index(packet.protocol, packet.kind);
    if setting!(ports_in_use) != 0 && matches!(packet.protocol, Protocol::Tcp | Protocol::Udp) && packet.has_ports() {
        return PORTS.get(u32::from(local_port))?.packed.get(index).map(|packed| PortSpans::unpack(*packed));
    }
    if index < common::settings::SPANS { Some(setting!(spans[index])) } else { None }
}
