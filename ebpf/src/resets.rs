//! Proofs of addresses by resets: [`common::proof::resets`] with this host's clock and maps.

use aya_ebpf::bindings::{__sk_buff, xdp_md};
use common::counters::Bypass;
use common::key::Key;
use common::packet::{Address, Packet};
use common::program::Context;
use common::proof::Proof;
use common::proof::resets::{Known, Memory, Part, prover, step};
use common::rule::Size;
use common::throttle::{Host, Outcome};

use crate::answer::is_to_own_device;
use crate::clock;
use crate::context::{TcFrame, Writable, XdpFrame};
use crate::maps::{PROVEN_SOURCES, setting};
use crate::prove::may_answer;
use crate::throttle::Kernel;

/// The proof in a TCP packet.
#[inline(always)]
pub fn prove(context: Context, packet: &Packet) -> Proof {
    let (network, transport) = (u32::from(packet.network_offset), u32::from(packet.transport_offset));
    let is_ipv4 = u32::from(packet.is_ipv4);
    Proof::from_bits(match context {
        Context::None => return Proof::NONE,
        Context::Driver(context) => weir_reset_driver(context.cast(), network, transport, is_ipv4),
        Context::Stack(context) => weir_reset_stack(context.cast(), network, transport, is_ipv4),
    })
}

// Global functions of the context and numbers, so that each is verified once, and not at all without proofs (Linux 6.8).

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_reset_driver(context: *mut xdp_md, network: u32, transport: u32, is_ipv4: u32) -> u64 {
    prove_in(&XdpFrame::new(context), network, transport, is_ipv4 != 0).to_bits()
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_reset_stack(context: *mut __sk_buff, network: u32, transport: u32, is_ipv4: u32) -> u64 {
    prove_in(&TcFrame::new(context), network, transport, is_ipv4 != 0).to_bits()
}

#[inline(always)]
fn prove_in(frame: &impl Writable, network: u32, transport: u32, is_ipv4: bool) -> Proof {
    let (network, transport) = (frame.within(network as usize), frame.within(transport as usize));
    let Some([ports, sequence, _, flags]) = frame.u32s::<4>(transport) else { return Proof::NONE };
    let part = Part::of(u32::from_be(sequence), u32::from_be(flags));
    // The destination may be another host, for which this one forwards.
    if part == Part::Other || network != 0 && !is_to_own_device(frame) {
        return Proof::NONE;
    }
    let addresses = if is_ipv4 {
        let Some([from, to]) = frame.u32s::<2>(network + 12) else { return Proof::NONE };
        [Address::from_ipv4_memory(from), Address::from_ipv4_memory(to)]
    } else {
        let Some(words) = frame.u32s::<8>(network + 8) else { return Proof::NONE };
        let half = |first: usize| u64::from(words[first]) | u64::from(words[first + 1]) << 32;
        [Address { hi: half(0), lo: half(2) }, Address { hi: half(4), lo: half(6) }]
    };
    step(&Maps, part, prover(addresses[0], is_ipv4), addresses[1], ports)
}

/// The maps as the memory of proofs.
struct Maps;

impl Maps {
    /// The source's entry, its hash, and the time.
    #[inline(always)]
    fn entry(source: Address) -> Option<(*mut Known, u64, u64)> {
        let hash = Kernel.seed().hash(&Key { hi: source.hi, lo: source.lo, ..Key::default() }).0;
        Some((PROVEN_SOURCES.get_ptr_mut(Known::index(hash))?, hash, clock::nanoseconds()))
    }
}

impl Memory for Maps {
    #[inline(always)]
    fn is_known(&self, source: Address) -> bool {
        let Some((entry, hash, now)) = Self::entry(source) else { return false };
        // SAFETY: an aligned word of a map's value, which other CPUs write.
        let Some(is_stale) = unsafe { entry.read_volatile() }.is(hash, now) else { return false };
        if is_stale {
            // SAFETY: as above.
            unsafe { entry.write_volatile(Known::new(hash, now)) };
        }
        true
    }

    #[inline(always)]
    fn learn(&self, source: Address) {
        let Some((entry, hash, now)) = Self::entry(source) else { return };
        // SAFETY: as above.
        unsafe { entry.write_volatile(Known::new(hash, now)) };
        Kernel.count(Bypass::ProvenByReset as u32, Outcome::Over, Size::of_one(0));
    }

    #[inline(always)]
    fn may_answer(&self) -> bool {
        may_answer(clock::nanoseconds())
    }

    #[inline(always)]
    fn key(&self) -> [u64; 2] {
        [setting!(seed.multipliers[0]), setting!(seed.multipliers[1])]
    }
}
