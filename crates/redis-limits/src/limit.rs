//! A limit's definition.

use std::time::Duration;

use thiserror::Error;

/// The largest count times window, in unit-microseconds: the scripts' doubles are exact up to twice that.
const LARGEST_PRODUCT: u128 = 1 << 52;

/// A limit that the scripts cannot enforce.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum LimitError {
    /// The count or the window is 0.
    #[error(
        "invalid limit: it would pass nothing; use a count of at least 1 and a window of at least 1 µs"
    )]
    Nothing,
    /// Too large to be exact.
    #[error(
        "a limit of {most} in {window:?} is too large to be counted exactly; use a shorter window or a smaller count"
    )]
    TooLarge { most: u64, window: Duration },
    /// A log of more instants than one command writes.
    #[error(
        "a sliding log of {most} instants is not supported (at most 1,024); use a sliding window"
    )]
    LogTooLong { most: u64 },
    /// The name contains a separator of key names.
    #[error("invalid limit name {0:?}: leave out colons and braces")]
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
    /// `most` units in each `window`, rounded to whole microseconds. Programs that use the same name, count, window and
    /// algorithm share one limit.
    ///
    /// # Errors
    ///
    /// When the count or window is 0, count × window exceeds 2⁵² unit-microseconds (such as 50,000 a day), or the name
    /// contains a colon or a brace.
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
        Ok(Self {
            name: name.to_owned(),
            most,
            microseconds,
        })
    }

    /// Checks that the count is at most `most`.
    pub(crate) fn suits(&self, most: u64) -> Result<(), LimitError> {
        if self.most > most {
            Err(LimitError::LogTooLong { most: self.most })
        } else {
            Ok(())
        }
    }

    /// The key's name in the store. The caller's key is in braces, by which a cluster chooses the node. Count and
    /// window are part of the name, so that programs with another definition, as during an upgrade, do not share state.
    pub(crate) fn key(&self, algorithm: &str, key: &str) -> String {
        format!(
            "weir:{algorithm}:{}:{}/{}us:{{{key}}}",
            self.name, self.most, self.microseconds
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_beyond_the_counters_are_refused() {
        let second = Duration::from_secs(1);
        assert_eq!(Limit::new("a", 0, second), Err(LimitError::Nothing));
        assert_eq!(
            Limit::new("a", 1, Duration::from_nanos(999)),
            Err(LimitError::Nothing)
        );
        assert_eq!(
            Limit::new("a:b", 1, second),
            Err(LimitError::Name("a:b".to_owned()))
        );
        let day = Duration::from_secs(86_400);
        assert!(Limit::new("a", 50_000, day).is_ok());
        assert!(matches!(
            Limit::new("a", 60_000, day),
            Err(LimitError::TooLarge { .. })
        ));
        assert!(matches!(
            Limit::new("a", u64::MAX, Duration::MAX),
            Err(LimitError::TooLarge { .. })
        ));
    }

    #[test]
    fn keys_are_in_braces_and_definitions_apart() {
        let limit = Limit::new("logins", 5, Duration::from_secs(60)).unwrap();
        assert_eq!(
            limit.key("sliding-log", "alice"),
            "weir:sliding-log:logins:5/60000000us:{alice}"
        );
    }
}
