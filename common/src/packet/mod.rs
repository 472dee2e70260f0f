//! Parses frames: the addresses and the kind of a packet.
//!
//! Invariant: no packet passes a limit because it is hard to parse. The address is taken from the IP header before any
//! later header is parsed. A packet whose ports or flags are truncated or in a later fragment is refused; the limits of
//! every protocol apply to one whose protocol is hidden. Each error has a name ([`Unparsed`]) and one verdict
//! ([`Unparsed::disposition`]).
//!
//! The parser must pass the kernel's verifier: comparisons bound offsets, constants bound loops.

mod address;
#[cfg(any(test, feature = "user"))]
pub mod build;
mod bytes;
mod extensions;
mod link;
mod network;
mod parse;
mod parsed;
mod rare_headers;
pub mod reply;
mod request;
mod transport;
mod tunnel;
mod unparsed;

pub use address::Address;
pub use bytes::{Bytes, FURTHEST};
pub use extensions::{MAX_EXTENSIONS, Transport, behind_extensions};
pub use link::{MAX_TAGS, Network, behind_tags};
pub use parse::parse;
pub use parsed::{Depth, Direction, Kind, Link, Packet, Ports, Protocol};
pub use rare_headers::RareHeaders;
pub use request::begins_request;
pub use tunnel::{Layers, headers};
pub use unparsed::{Disposition, Unparsed};

#[cfg(test)]
mod tests;
