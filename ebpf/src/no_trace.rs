//! Replaces `trace.rs` in an ordinary build.

use aya_ebpf::bindings::{__sk_buff, xdp_md};
use common::packet::{Address, Link};
use common::program::PacketVerdict;
use common::rule::Size;
use common::throttle::{Outcome, TableEvent};

#[inline(always)]
pub fn begin(_: Address) {}

#[inline(always)]
pub fn count(_: u32, _: Outcome, _: Size) {}

#[inline(always)]
pub fn note(_: TableEvent) {}

#[inline(always)]
pub fn driver_frame(_: *mut xdp_md, _: &PacketVerdict<'_>) {}

#[inline(always)]
pub fn stack_frame(_: *mut __sk_buff, _: Link, _: &PacketVerdict<'_>) {}
