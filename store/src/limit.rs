//! What is counted.

use std::time::Duration;

use thiserror::Error;

/// The largest count times window, in unit-microseconds: the scripts' doubles are exact up to twice that.
const LARGEST_PRODUCT: u128 = 1 << 52;

/// A limit that the scripts cannot keep.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LimitError {
    /// Nothing would pass.
    #[error("a limit of 0, or in no time, passes nothing: give a count of at least 1 and a window of at least 1 µs")]
    Nothing,
    /// Too large to be exact.
    #[error("{most} in {window:?} is more than the store counts exactly: take a shorter window or a smaller count")]
    TooLarge {
        /// The count.
        most: u64,
        /// The window.
        window: Duration,
    },
    /// A log of more instants than one command writes.
    #[error("a sliding log holds at most 1,024 instants, not {most}: take a sliding window")]
    LogTooLong {
        /// The count.
        most: u64,
    },
    /// The name would be taken for other parts of a key.
    #[error("{0:?} is no name of a limit: leave out colons and braces")]
    Name(String),
}

/// A name, a count and a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Limit {
    pub(crate) name: String,
    pub(crate) most: u64,
    pub(crate) microseconds: u64,
}

impl Limit {
    /// `most` units in each `window`, which is taken in whole microseconds. Limits of one name, count, window and
    /// algorithm are one limit, whoever asks.
    ///
    /// # Errors
    ///
    /// When nothing would pass, or more than can be counted exactly (count × window up to 2⁵² unit-microseconds, such
    /// as 50,000 in a day), or the name has a colon or a brace.
    pub fn new(name: &str, most: u64, window: Duration) -> Result<Self, LimitError> {
        let microseconds = window.as_micros();
        if most == 0 || microseconds == 0 {
            return Err(LimitError::Nothing);
        }
        let too_large = LimitError::TooLarge { most, window };
        if u128::from(most).saturating_mul(microseconds) > LARGEST_PRODUCT {
            return Err(too_large);
        }
        if name.contains([':', '{', '}']) {
            return Err(LimitError::Name(name.to_owned()));
        }
        let microseconds = u64::try_from(microseconds).map_err(|_| too_large)?;
        Ok(Self { name: name.to_owned(), most, microseconds })
    }

    /// Whether its count is at most so many.
    pub(crate) fn suits(&self, most: u64) -> Result<(), LimitError> {
        if self.most > most { Err(LimitError::LogTooLong { most: self.most }) } else { Ok(()) }
    }

    /// The name in the store. The caller's key is in braces: what a cluster chooses a node by. Count and window are part
    /// of it, so that programs with another definition, as during an upgrade, do not read each other's state.
    pub(crate) fn key(&self, algorithm: &str, key: &str) -> String {
        format!("weir:{algorithm}:{}:{}/{}us:{{{key}}}", self.name, self.most, self.microseconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_counted_is_refused() {
        let second = Duration::from_secs(1);
        assert_eq!(Limit::new("a", 0, second), Err(LimitError::Nothing));
        assert_eq!(Limit::new("a", 1, Duration::from_nanos(999)), Err(LimitError::Nothing));
        assert_eq!(Limit::new("a:b", 1, second), Err(LimitError::Name("a:b".to_owned())));
        let day = Duration::from_secs(86_400);
        assert!(Limit::new("a", 50_000, day).is_ok());
        assert!(matches!(Limit::new("a", 60_000, day), Err(LimitError::TooLarge { .. })));
        assert!(matches!(Limit::new("a", u64::MAX, Duration::MAX), Err(LimitError::TooLarge { .. })));
    }

    #[test]
    fn keys_are_in_braces_and_definitions_apart() {
        let limit = Limit::new("logins", 5, Duration::from_secs(60)).unwrap();
        assert_eq!(limit.key("sliding-log", "alice"), "weir:sliding-log:logins:5/60000000us:{alice}");
    }
}
