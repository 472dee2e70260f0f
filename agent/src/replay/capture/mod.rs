//! Captures: reads pcap and pcapng packet by packet, from streams of any length.

mod block;
mod error;
mod interface;
mod link;
mod reader;
mod source;
#[cfg(test)]
mod tests;
mod window;

pub use block::Origin;
pub use error::CaptureError;
pub use interface::InterfaceNames;
pub use link::LinkType;
pub use reader::{Capture, CapturedPacket, Skipped};
pub use source::{Compression, STANDARD_INPUT};
