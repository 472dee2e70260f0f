//! The eBPF objects of `cargo xtask build`; empty if this crate was built without them.

/// The SHA-256 of all of them.
pub const HASH: &str = env!("WEIR_OBJECTS_HASH");

/// The programs of limits on packets.
pub static WEIR: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/weir.o"));

/// The programs of process groups.
pub static GROUPS: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/groups.o"));

/// The programs that count open connections.
pub static CONNECTIONS: &[u8] =
    aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/connections.o"));
