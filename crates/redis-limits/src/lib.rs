//! Exact central counts in Redis or Valkey, for programs: fixed window, sliding window and sliding log as plain scripts
//! behind the trait [`Counter`].
//!
//! The definitions are those of `common::rate_limiter`, on the store's clock, in microseconds. Each call is one atomic
//! script and one round trip, so that all programs together never exceed the limit. Keys expire with their contents:
//! idle keys take no memory. On a cluster, each key has its own slot (its name is in braces).
//!
//! Every call waits for the store, and fails while the store is unavailable. Use this crate where an exact count over
//! all hosts is worth that. Weir's `[cluster]` limits lease allowance in advance and do not wait.
//!
//! ```no_run
//! use std::time::Duration;
//! use redis_limits::{Counter, FixedWindow, Limit, Store};
//!
//! let store = Store::single("redis://127.0.0.1:6379", Duration::from_millis(100))?;
//! // 100 logins in each hour, whichever host they come to.
//! let mut logins = FixedWindow::new(store, Limit::new("logins", 100, Duration::from_secs(3_600))?)?;
//! let verdict = logins.record("alice", 1)?;
//! if !verdict.allowed {
//!     println!("come again in {:?}", verdict.retry_after);
//! }
//! // Looks, and charges nothing.
//! println!("{} are left", logins.fetch("alice")?.remaining);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod connection;
mod counter;
mod limit;
#[cfg(feature = "cluster")]
mod redirection;

pub use connection::{Store, StoreError};
pub use counter::{Counter, FixedWindow, SlidingLog, SlidingWindow, Verdict};
pub use limit::{Limit, LimitError};
