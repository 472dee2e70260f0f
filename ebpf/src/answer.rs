//! Turns a refused packet into the answer to it.

use common::limiter::Decision;
use common::packet::reply::Reply;
use common::packet::{Depth, Link, parse};
use common::throttle::Host;

use crate::atomics;
use crate::context::Frame;
use crate::maps::{ANSWERS, REPLY, setting};
use crate::throttle::Kernel;

/// How often a bucket that another CPU keeps changing is decided upon again.
const TRIES: u32 = 4;

/// Makes the frame the answer to itself; `false` if there is none, or there have been enough of them.
#[inline(always)]
pub fn answer(frame: &mut impl Frame, link: Link) -> bool {
    let Ok(packet) = parse(frame, link, Depth::Ports) else { return false };
    let mut addresses = [0; 3];
    if link == Link::Ethernet {
        // The last one first: if that is there, all are.
        let Some(c) = frame.u32(8) else { return false };
        let Some(b) = frame.u32(4) else { return false };
        let Some(a) = frame.u32(0) else { return false };
        // What was sent to many is not answered: the lowest bit of the first byte says so.
        if a & 1 != 0 {
            return false;
        }
        // Destination and source, six bytes each, change places.
        addresses = [b >> 16 | c << 16, c >> 16 | a << 16, a >> 16 | b << 16];
    }
    let Some(reply) = REPLY.get_ptr_mut(0) else { return false };
    // SAFETY: a map's value, of this CPU only.
    let reply = unsafe { &mut *reply };
    *reply = Reply::EMPTY;
    let words = reply.answer(frame, &packet);
    if words == 0 || !may_answer() {
        return false;
    }
    let network = usize::from(packet.network_offset);
    frame.resize(network + 4 * words)
        && (link == Link::RawIp || frame.put_addresses(addresses))
        && frame.put_reply(network, reply, words)
}

#[inline(always)]
fn may_answer() -> bool {
    let Some(state) = ANSWERS.get_ptr_mut(0) else { return false };
    let bucket = setting!(answers).bucket();
    let now = Kernel.now();
    // SAFETY: a map's value; volatile since other CPUs write it.
    let mut found = unsafe { state.read_volatile() };
    for _ in 0..TRIES {
        let Decision::Pass(next) = bucket.decide(found, now, 1) else { return false };
        let current = found;
        // SAFETY: a map's value.
        found = unsafe { atomics::compare_exchange(state, current, next) };
        if found == current {
            return true;
        }
    }
    false
}
