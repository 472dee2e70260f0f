//! Policies that the kernel program does not support.

use common::connections::MOST_KEYS;
use common::fair::MOST_FAIR;
use common::limiter::Algorithm;
use common::prefix::MAX_CLASSES;
use common::rule::MAX_RULES;
use thiserror::Error;

/// A valid policy exceeds what the kernel program supports.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum CompileError {
    /// Too many rules for one packet.
    #[error(
        "{rules} rates would apply to {packet} packets, and at most {MAX_RULES} can: give some limits other protocols or ports, or \
         remove tiers or levels (each level repeats all rates, and a soft or elastic rate counts as two)"
    )]
    TooManyRules {
        /// Their number.
        rules: usize,
        /// The packets, as in `tcp port 443`.
        packet: String,
    },
    /// Too many limits on open connections for one connection.
    #[error(
        "{limits} limits with concurrent would apply to {packet} packets, and at most {MOST_KEYS} can: give some limits \
         other ports, sources or interfaces"
    )]
    TooManyConcurrent {
        /// Their number.
        limits: usize,
        /// The packets, as in `tcp port 443 connection`.
        packet: String,
    },
    /// Too many fair limits for one packet.
    #[error(
        "{limits} limits with rate = \"fair\" would apply to {packet} packets, and at most {MOST_FAIR} can: give some limits \
         other protocols, ports, sources or interfaces"
    )]
    TooManyFair {
        /// Their number.
        limits: usize,
        /// The packets, as in `tcp port 443 connection`.
        packet: String,
    },
    /// Too many rates for a slot.
    #[error(
        "limit {limit:?} has too many tiers: its state takes {words} words of a source's 7; remove tiers"
    )]
    TooWide {
        /// The limit's name.
        limit: String,
        /// The words that its state needs.
        words: u32,
    },
    /// Sliding logs exceed the memory for rings.
    #[error(
        "sliding logs would take {mebibytes} MiB for {max_sources} sources, and at most 1024 MiB is supported: set [agent] \
         max_sources = {fits}, lower the rates, or set algorithm = \"sliding-window\""
    )]
    LogsTooLarge {
        /// Their size.
        mebibytes: u64,
        /// The configured number of sources.
        max_sources: u32,
        /// The largest number of sources whose logs fit.
        fits: u32,
    },
    /// More classes than a prefix's entry can number.
    #[error(
        "{classes} classes are too many, at most {MAX_CLASSES} are supported: merge classes with the same multiplier"
    )]
    TooManyClasses {
        /// Their number.
        classes: usize,
    },
    /// More sets of sources than a prefix's entry can number.
    #[error(
        "the sources of limits divide addresses into {sources} sets, for each of {multipliers} multipliers: at most {} in all \
         are supported, both numbers rounded up to powers of 2; give several limits the same sources",
        MAX_CLASSES + 1
    )]
    TooManySources {
        /// The number of sets.
        sources: u32,
        /// The number of multipliers.
        multipliers: usize,
    },
    /// Too many lists of interfaces with patterns.
    #[error(
        "{lists} different lists of interfaces have patterns, and at most 6 are supported: write names, or give several limits \
         the same list"
    )]
    TooManyPatterns {
        /// Their number.
        lists: usize,
    },
    /// Too many combinations of sources, interfaces and ports.
    #[error(
        "sources, interfaces and ports of limits have {rows} combinations, and at most 131072 are supported: give several \
         limits the same lists"
    )]
    TooManyScopes {
        /// Their number.
        rows: usize,
    },
    /// A window with fewer ticks than its count.
    #[error(
        "the rate of limit {limit:?} is too high for algorithm = \"{algorithm}\": set algorithm = \"token-bucket\""
    )]
    WindowTooShort {
        /// The limit's name.
        limit: String,
        /// The limit's algorithm.
        algorithm: Algorithm,
    },
}
