//! Replies to refused packets.

use common::own::{Own, OwnKey};
use common::packet::reply::Reply;
use common::packet::{Address, Depth, Direction, Link, Packet, parse};
use common::throttle::Host;

use crate::cell::MapCell;
use crate::clock;
use crate::context::Writable;
use crate::maps::{ANSWERS, COOKIES, OWN, REPLY, setting};
use crate::throttle::KERNEL;

/// Turns the frame into its reply; `false` if there is none, or the limit on replies is reached. If `is_proven`, its source
/// has the address, so that the limit is that on answers to SYNs.
#[inline(always)]
pub fn answer(frame: &mut impl Writable, link: Link, is_proven: bool) -> bool {
    let Ok(packet) = parse(frame, link, Depth::Ports) else {
        return false;
    };
    let direction = if setting!(is_egress) != 0 {
        Direction::Egress
    } else {
        Direction::Ingress
    };
    let own = packet.own(direction);
    let headers = if frame.may_lack_tag() {
        packet.network_offset
    } else {
        0
    };
    if weir_own_address(own.hi, own.lo, u32::from(headers)) == 0 {
        return false;
    }
    if link == Link::Ethernet && direction == Direction::Ingress && !is_to_own_device(frame) {
        return false;
    }
    let Some(reply) = REPLY.get_ptr_mut(0) else {
        return false;
    };
    // SAFETY: a map value that only this CPU uses.
    let reply = unsafe { &mut *reply };
    *reply = Reply::EMPTY;
    let words = reply.answer(frame, &packet);
    if words == 0 || !may_answer(is_proven) {
        return false;
    }
    send(frame, link, &packet, reply, words)
}

/// Sends a reply of so many words in the place of the packet.
#[inline(always)]
pub fn send(
    frame: &mut impl Writable,
    link: Link,
    packet: &Packet,
    reply: &Reply,
    words: usize,
) -> bool {
    let network = usize::from(packet.network_offset);
    // Read again, since from above they would take more of the stack; and now, since the frame may begin elsewhere then.
    let swapped = match link {
        Link::RawIp => [0; 3],
        Link::Ethernet => {
            let Some([a, b, c]) = addresses(frame) else {
                return false;
            };
            [b >> 16 | c << 16, c >> 16 | a << 16, a >> 16 | b << 16]
        }
    };
    frame.resize(network + 4 * words)
        && (link == Link::RawIp || frame.put_addresses(swapped))
        && frame.put_reply(network, reply, words)
}

/// Whether a received packet is to an address of this host and, if it has a link header, to its device.
#[inline(always)]
pub fn is_to_own(frame: &impl Writable, to: Address, network: usize) -> bool {
    let headers = if frame.may_lack_tag() {
        network as u32
    } else {
        0
    };
    weir_own_address(to.hi, to.lo, headers) != 0 && (network == 0 || is_to_own_device(frame))
}

/// Whether a frame is to this device. Packets to another device, or to several, get no reply.
#[inline(always)]
fn is_to_own_device(frame: &impl Writable) -> bool {
    own_device(frame) != 0
}

/// The [`Own`] of the device that a frame is to; 0 if it is not this host's.
#[inline(always)]
pub fn own_device(frame: &impl Writable) -> u32 {
    addresses(frame).map_or(0, |[a, b, _]| {
        weir_own_device(u64::from(a) | u64::from(b & 0xffff) << 32)
    })
}

/// The length of a link header without tags.
pub const UNTAGGED: usize = 14;

/// The words of the destination and the source, six bytes each.
#[inline(always)]
fn addresses(frame: &impl Writable) -> Option<[u32; 3]> {
    // The last one first: if it is readable, all are.
    let c = frame.u32(8)?;
    let b = frame.u32(4)?;
    Some([frame.u32(0)?, b, c])
}

// No replies in another host's name. Global functions of numbers, so that they are verified once.

/// Whether this host may reply from an address. Where a tag may be lost, `headers` is the length of the link header and
/// tags: an address on a VLAN device needs a tag.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_own_address(hi: u64, lo: u64, headers: u32) -> u32 {
    let own = look_up(OwnKey::of_address(Address { hi, lo }));
    u32::from(own == Own::Plain as u32 || own == Own::Tagged as u32 && headers != UNTAGGED as u32)
}

/// The [`Own`] of the device with the hardware address; 0 if it is not this host's.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_own_device(hardware: u64) -> u32 {
    look_up(OwnKey::of_hardware(hardware))
}

/// The map's value for an address; 0 if there is none.
#[inline(always)]
fn look_up(key: OwnKey) -> u32 {
    // SAFETY: only the agent writes the map, and replaces whole values of four bytes.
    unsafe { OWN.get(key) }.map_or(0, |own| *own)
}

/// Whether one more packet may be answered: a SYN or another one of a source that has its address, or any refused one.
#[inline(always)]
pub fn may_answer(is_proven: bool) -> bool {
    weir_may_answer(u32::from(is_proven)) != 0
}

/// [`may_answer`]. A global function of a number, so that the calculation takes no stack
/// space beside a reply.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_may_answer(is_proven: u32) -> u32 {
    if is_proven != 0 {
        return u32::from(may_answer_syn(clock::coarse_nanoseconds()));
    }
    ANSWERS.get_ptr_mut(0).map_or(0, |state| {
        u32::from(setting!(answers).take(MapCell(state), KERNEL.now()))
    })
}

/// Whether one more SYN may be answered.
#[inline(always)]
pub fn may_answer_syn(now: u64) -> bool {
    // Not a closure, which the compiler would not inline.
    let Some(state) = COOKIES.get_ptr_mut(0) else {
        return false;
    };
    setting!(cookies).take(MapCell(state), clock::ticks(now))
}
