//! Frames that the program may change.

use common::packet::reply::Reply;
use common::program::Frame;

/// A frame that the program may change.
pub trait Writable: Frame {
    /// Whether the driver may have removed a VLAN tag, which a reply would lack.
    fn may_lack_tag(&self) -> bool;

    /// Cuts or extends the frame, of which everything but the link header's type and tags will be overwritten; `false`
    /// if that fails.
    fn resize(&mut self, length: usize) -> bool;

    /// Writes an Ethernet header's first twelve bytes; `false` if the frame is shorter.
    fn put_addresses(&mut self, words: [u32; 3]) -> bool;

    /// Writes the first `words` words of a reply at `offset`; `false` if they do not fit.
    fn put_reply(&mut self, offset: usize, reply: &Reply, words: usize) -> bool;
}
