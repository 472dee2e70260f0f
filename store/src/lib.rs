//! One central count in Redis or Valkey, for programs that want one: fixed window, sliding window and sliding log as
//! plain scripts, behind the trait [`Counter`].
//!
//! The definitions are those of `common::rate_limiter`, on the store's clock, in microseconds. Each call is one script:
//! atomic, so that any number of programs together never pass more than the limit, and one round trip. Keys expire with
//! what they hold, so that an idle key takes no memory. On a cluster each key is a slot's own (its name is in braces).
//!
//! Every decision waits for the store, and when the store is away there is none: use it where an exact count over all
//! hosts is worth that. Weir's `[cluster]` limits lease allowance ahead instead, and wait for nothing.
//!
//! ```no_run
//! use std::time::Duration;
//! use store::{Counter, FixedWindow, Limit, Store};
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
mod limit;

use std::time::Duration;

use redis::Script;

pub use connection::{Store, StoreError};
pub use limit::{Limit, LimitError};

use connection::Link;

/// A log's instants are written by one command, and gone through by each question.
const LARGEST_LOG: u64 = 1024;

/// What the store says of one cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether it passes (and, if it was recorded, was charged).
    pub allowed: bool,
    /// The largest cost that would pass after this, in units.
    pub remaining: u64,
    /// Until the cost would pass if nothing else did: zero if it does pass, `None` if it never can.
    pub retry_after: Option<Duration>,
    /// The store's clock when it said so, since the Unix epoch.
    pub at: Duration,
}

/// A limit per key whose count is in the store.
///
/// A key is any text. A cost of 0 passes and charges nothing. What is refused is not charged.
pub trait Counter {
    /// Charges `cost` units to `key` if all of them pass.
    ///
    /// # Errors
    ///
    /// When the store does not answer in time, or with an error. The cost may have been charged all the same if the
    /// answer was lost on its way; it is never charged twice.
    fn record(&mut self, key: &str, cost: u64) -> Result<Verdict, StoreError>;

    /// What `record` would say of one unit, charging nothing.
    ///
    /// # Errors
    ///
    /// When the store does not answer in time, or with an error.
    fn fetch(&mut self, key: &str) -> Result<Verdict, StoreError>;
}

/// An algorithm's script over one connection.
struct Central {
    algorithm: &'static str,
    script: Script,
    limit: Limit,
    link: Link,
}

impl Central {
    fn new(algorithm: &'static str, script: &str, store: Store, limit: Limit) -> Self {
        Self {
            algorithm,
            script: Script::new(&format!("{}{script}", include_str!("scripts/now.lua"))),
            limit,
            link: Link::new(store),
        }
    }

    fn ask(&mut self, key: &str, cost: u64, charges: bool) -> Result<Verdict, StoreError> {
        let Limit { most, .. } = self.limit;
        let mut call = self.script.key(self.limit.key(self.algorithm, key));
        // More than the most is refused whatever it is, and has to be a number that the script's doubles hold.
        call.arg(most).arg(self.limit.microseconds).arg(cost.min(most + 1)).arg(u8::from(charges));
        let (passes, remaining, wait, now): (u8, u64, i64, u64) = self.link.invoke(&call)?;
        Ok(Verdict {
            allowed: passes == 1,
            remaining,
            retry_after: u64::try_from(wait).ok().map(Duration::from_micros),
            at: Duration::from_micros(now),
        })
    }
}

macro_rules! counter {
    ($(#[$doc:meta])* $name:ident, $algorithm:literal, $most:expr) => {
        $(#[$doc])*
        pub struct $name(Central);

        impl $name {
            /// For a limit in a store, over a connection of its own, which is made with the first question.
            ///
            /// # Errors
            ///
            /// When the algorithm cannot keep the limit.
            pub fn new(store: Store, limit: Limit) -> Result<Self, LimitError> {
                limit.suits($most)?;
                Ok(Self(Central::new($algorithm, include_str!(concat!("scripts/", $algorithm, ".lua")), store, limit)))
            }
        }

        impl Counter for $name {
            fn record(&mut self, key: &str, cost: u64) -> Result<Verdict, StoreError> {
                self.0.ask(key, cost, true)
            }

            fn fetch(&mut self, key: &str) -> Result<Verdict, StoreError> {
                self.0.ask(key, 1, false)
            }
        }
    };
}

counter!(
    /// N in each window, which starts with the first unit after the last window ended. Up to 2·N pass around the end of
    /// a busy window. Two numbers a key.
    FixedWindow,
    "fixed-window",
    u64::MAX
);
counter!(
    /// N in this window and the share of the last that is still in view; windows are aligned to multiples of T. Assumes
    /// that the last window was evenly filled. Three numbers a key.
    SlidingWindow,
    "sliding-window",
    u64::MAX
);
counter!(
    /// N in any window, exactly. N instants a key, at most 1,024, and work in proportion to them: for small N.
    SlidingLog,
    "sliding-log",
    LARGEST_LOG
);
