//! The bans, their owners, and their ends.
//!
//! A ban belongs to its owner: a user or a program, a limit, CrowdSec, or another host. A prefix has one ban of each
//! owner, and is refused until the last of them ends. The kernel does one look-up, which finds the longest prefix that
//! contains an address. So the entry of a prefix has the latest end of *all* bans that contain it: its own, and those of
//! wider prefixes. An exception is an entry to which bans from elsewhere (by CrowdSec and by other hosts) do not apply,
//! neither its own nor those of wider prefixes.

mod ban;
mod entry;
mod list;

pub use ban::{BanKey, By, Held, Owner, Why};
pub use entry::{BanEntry, Change, Entry, Touched};
pub use list::{Around, BanList, MOST_OF_PREFIX, MOST_OWN, Merge, Record};
