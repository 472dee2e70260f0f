//! Refusals by source and limit: the lines of `weir events`.
//!
//! The kernel's records are read as they come ([`Feed`]), named, and stored in a bounded log ([`EventLog`]) that serves
//! followers. If the agent or a follower is too slow, events are lost, and their number is reported.

mod attack;
mod feed;
mod lifted;

pub use api::event::{Event, EventKind, exceeded_at, seconds_since_1970};
pub use attack::{BEGINS_AT, BEGINS_AT_SHARE, CurrentAttacks};
pub use events::{EventLog, Follower, MOST_FOLLOWERS, Observer, REMEMBERED, Subscription};
pub use feed::Feed;
