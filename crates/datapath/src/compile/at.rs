//! The limits at each of their keys.

use config::policy::{Config, Limit};

/// A limit at one of its keys.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LimitAt {
    /// The limit's index in the config.
    pub limit: usize,
    /// 0: its own key; n: its nth level.
    pub level: usize,
}

/// Every limit at each of its keys, the limits in the config's order.
pub(super) fn every(config: &Config) -> Vec<(LimitAt, Limit)> {
    let at = |(limit, it): (usize, &Limit)| {
        let levels = it.at_levels().into_iter().enumerate();
        levels
            .map(|(level, of_level)| (LimitAt { limit, level }, of_level))
            .collect::<Vec<_>>()
    };
    config.limits.iter().enumerate().flat_map(at).collect()
}
