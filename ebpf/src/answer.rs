//! Turns a refused packet into the answer to it.

use common::packet::reply::Reply;
use common::packet::{Depth, Link, parse};

use crate::context::Frame;
use crate::essential::take;
use crate::maps::{ANSWERS, REPLY, setting};

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
    ANSWERS.get_ptr_mut(0).is_some_and(|state| take(state, &setting!(answers)))
}
