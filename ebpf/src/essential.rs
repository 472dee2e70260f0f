//! Limits on what limits per source do not apply to.

use common::counters::Bypass;
use common::essential::{Essential, PacketBucket};
use common::limiter::Decision;
use common::throttle::Host;

use crate::atomics;
use crate::maps::{ESSENTIAL, setting};
use crate::throttle::Kernel;

/// How often a bucket that another CPU keeps changing is decided upon again.
const TRIES: u32 = 16;

/// Whether one more packet of this kind conforms on this interface; charges it if so.
#[inline(always)]
pub fn conforms(kind: Essential, interface: u32) -> bool {
    weir_essential(kind.bucket(interface)) != 0
}

/// The counters of a frame without an address.
#[inline(always)]
pub fn bypass(kind: Essential, interface: u32) -> Bypass {
    match (conforms(kind, interface), kind) {
        (true, _) => Bypass::NotIp,
        (false, Essential::NotIp) => Bypass::NotIpThrottled,
        (false, _) => Bypass::EssentialThrottled,
    }
}

/// A global function of a number, so that it is verified once.
#[unsafe(no_mangle)]
#[inline(never)]
extern "C" fn weir_essential(bucket: u32) -> u32 {
    let is_not_ip = bucket & 3 == Essential::NotIp as u32;
    let limit = if is_not_ip { setting!(not_ip) } else { setting!(essential) };
    ESSENTIAL.get_ptr_mut(bucket).map_or(0, |state| u32::from(take(state, &limit)))
}

/// Takes one packet's share of a bucket; `false` if it does not hold as much.
#[inline(always)]
pub fn take(state: *mut u64, limit: &PacketBucket) -> bool {
    let bucket = limit.bucket();
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
