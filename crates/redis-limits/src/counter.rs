//! The three algorithms behind one trait, each as a script.

use std::time::Duration;

use redis::Script;

use crate::connection::{Link, Store, StoreError};
use crate::limit::{Limit, LimitError};

/// A log's instants are written by one command and scanned by each call.
const LARGEST_LOG: u64 = 1024;

/// The store's verdict on one cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Whether the cost passes; if it was recorded, it was charged.
    pub allowed: bool,
    /// The largest cost that would pass after this, in units.
    pub remaining: u64,
    /// The time until the cost would pass if nothing else did: zero if it passes, `None` if it never can.
    pub retry_after: Option<Duration>,
    /// The store's clock at the verdict, since the Unix epoch.
    pub at: Duration,
}

/// A limit per key whose count is in the store.
///
/// A key is any text. A cost of 0 passes and charges nothing. Refused costs are not charged.
pub trait Counter {
    /// Charges `cost` units to `key` if all of them pass.
    ///
    /// # Errors
    ///
    /// When the store does not reply in time, or replies with an error. The cost may have been charged if only the
    /// reply was lost; it is never charged twice.
    fn record(&mut self, key: &str, cost: u64) -> Result<Verdict, StoreError>;

    /// The verdict of `record` on one unit, without charging it.
    ///
    /// # Errors
    ///
    /// When the store does not reply in time, or replies with an error.
    fn fetch(&mut self, key: &str) -> Result<Verdict, StoreError>;
}

/// An algorithm's script and its connection.
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
        // A cost above `most` is always refused; it must stay a number that the script's doubles represent.
        call.arg(most)
            .arg(self.limit.microseconds)
            .arg(cost.min(most + 1))
            .arg(u8::from(charges));
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
            /// Creates the limit. The connection is opened by the first call.
            ///
            /// # Errors
            ///
            /// When the algorithm cannot enforce the limit.
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
