//! Proofs of addresses by resets: [`common::proof::resets`] with this host's clock and maps.

use aya_ebpf::bindings::{__sk_buff, xdp_md};
use common::counters::Bypass;
use common::key::Key;
use common::own::Own;
use common::packet::reply::is_between_two_hosts;
use common::packet::{Address, Packet};
use common::program::Context;
use common::proof::resets::{Known, Memory, Part, prover, step};
use common::proof::{Header, Proof, Step};
use common::rule::Size;
use common::throttle::{Host, Outcome};

use crate::answer::{UNTAGGED, may_answer_syn, own_device};
use crate::clock;
use crate::context::{TcFrame, Writable, XdpFrame};
use crate::maps::{PROVEN_SOURCES, setting};
use crate::throttle::KERNEL;

/// The proof in a TCP packet.
#[inline(always)]
pub fn prove(context: Context, packet: &Packet) -> Proof {
    // Of a later fragment, there is no TCP header.
    if !packet.has_ports() {
        return Proof::NONE;
    }
    let (network, transport) = (
        u32::from(packet.network_offset),
        u32::from(packet.transport_offset),
    );
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
extern "C" fn weir_reset_driver(
    context: *mut xdp_md,
    network: u32,
    transport: u32,
    is_ipv4: u32,
) -> u64 {
    prove_in(&XdpFrame::new(context), network, transport, is_ipv4 != 0).to_bits()
}

#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_reset_stack(
    context: *mut __sk_buff,
    network: u32,
    transport: u32,
    is_ipv4: u32,
) -> u64 {
    prove_in(&TcFrame::new(context), network, transport, is_ipv4 != 0).to_bits()
}

#[inline(always)]
fn prove_in(frame: &impl Writable, network: u32, transport: u32, is_ipv4: bool) -> Proof {
    let (network, transport) = (
        frame.within(network as usize),
        frame.within(transport as usize),
    );
    // Hosts drop a shorter one, whatever its flags.
    let Some([ports, sequence, _, flags]) = frame.u32s::<4>(transport) else {
        return Proof::of(Step::Refuse);
    };
    let flags = u32::from_be(flags);
    let part = Part::of(u32::from_be(sequence), flags);
    if part == Part::Other {
        return Proof::NONE;
    }
    let Some([first, second]) = frame.u32s::<2>(network) else {
        return Proof::NONE;
    };
    // The length from the network header on; that of IPv6 is without its own 40 bytes.
    let length = if is_ipv4 {
        u32::from_be(first) & 0xffff
    } else {
        (u32::from_be(second) >> 16) + 40
    };
    let header = Header::new(flags, length.wrapping_sub((transport - network) as u32));
    if matches!(part, Part::Syn(_)) && !header.is_whole() {
        return Proof::of(Step::Refuse);
    }
    // The destination may be another host, for which this one forwards. Where VLAN devices have the hardware address, the
    // frame may lack its tag, and the answer would leave without it.
    if network != 0 {
        let own = own_device(frame);
        let may_lack_tag = own == Own::Tagged as u32 && frame.may_lack_tag() && network == UNTAGGED;
        if own == 0 || may_lack_tag {
            return Proof::NONE;
        }
    }
    let addresses = if is_ipv4 {
        let Some([from, to]) = frame.u32s::<2>(network + 12) else {
            return Proof::NONE;
        };
        [
            Address::from_ipv4_memory(from),
            Address::from_ipv4_memory(to),
        ]
    } else {
        let Some(words) = frame.u32s::<8>(network + 8) else {
            return Proof::NONE;
        };
        let half = |first: usize| u64::from(words[first]) | u64::from(words[first + 1]) << 32;
        [
            Address {
                hi: half(0),
                lo: half(2),
            },
            Address {
                hi: half(4),
                lo: half(6),
            },
        ]
    };
    let [source, destination] = addresses;
    if !is_between_two_hosts(source, destination, is_ipv4) {
        return if matches!(part, Part::Syn(_)) {
            Proof::of(Step::Refuse)
        } else {
            Proof::NONE
        };
    }
    step(&Maps, part, prover(source, is_ipv4), destination, ports)
}

/// The maps as the memory of proofs.
struct Maps;

impl Maps {
    /// The places of the source's set, and its hash.
    #[inline(always)]
    fn places(source: Address) -> Option<(*mut Known, u64)> {
        let hash = KERNEL.hash_by_call(&Key {
            hi: source.hi,
            lo: source.lo,
            ..Key::default()
        });
        Some((PROVEN_SOURCES.get_ptr_mut(Known::set(hash))?.cast(), hash))
    }
}

impl Memory for Maps {
    #[inline(always)]
    fn is_known(&self, source: Address) -> bool {
        let Some((places, hash)) = Self::places(source) else {
            return false;
        };
        let now = self.now();
        for nth in 0..Known::PLACES {
            // SAFETY: an aligned word of a map's value, which other CPUs write.
            let place = unsafe { places.add(nth) };
            // SAFETY: as above.
            if let Some(is_stale) = unsafe { place.read_volatile() }.is(hash, now) {
                if is_stale {
                    // SAFETY: as above.
                    unsafe { place.write_volatile(Known::new(hash, now)) };
                }
                return true;
            }
        }
        false
    }

    #[inline(always)]
    fn learn(&self, source: Address) {
        let Some((places, hash)) = Self::places(source) else {
            return;
        };
        let (now, mut oldest, mut nth_oldest) = (self.now(), 0, 0);
        for nth in 0..Known::PLACES {
            // SAFETY: as above.
            let age = unsafe { places.add(nth).read_volatile() }.age(now);
            if age > oldest {
                (oldest, nth_oldest) = (age, nth);
            }
        }
        // SAFETY: as above; the mask tells the verifier of the bound.
        unsafe {
            places
                .add(nth_oldest & (Known::PLACES - 1))
                .write_volatile(Known::new(hash, now));
        }
        KERNEL.count(Bypass::ProvenByReset as u32, Outcome::Over, Size::of_one(0));
    }

    #[inline(always)]
    fn may_answer(&self) -> bool {
        may_answer_syn(self.now())
    }

    #[inline(always)]
    fn key(&self) -> [u64; 2] {
        [setting!(seed.words[0]), setting!(seed.words[1])]
    }

    #[inline(always)]
    fn now(&self) -> u64 {
        clock::coarse_nanoseconds()
    }
}
