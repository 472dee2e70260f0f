//! The only `unsafe` of this crate: the promise that values in maps are plain data.

use crate::ban::Ban;
use crate::counters::{Counters, Sighted, TableCounters};
use crate::group::{GroupCounters, GroupSettings};
use crate::key::Key;
use crate::own::OwnKey;
use crate::prefix::Line;
use crate::rule::Rule;
use crate::settings::{Mark, PortSpans, Runtime, Settings, TableIdentity};

macro_rules! plain {
    ($($type:ty),* $(,)?) => {$(
        // SAFETY: repr(C), made of integers only, and `layout` asserts that it has no padding: every bit pattern is a
        // value, and every byte of a value is initialised.
        unsafe impl aya::Pod for $type {}
    )*};
}

plain!(
    Ban,
    Counters,
    GroupCounters,
    GroupSettings,
    Key,
    Line,
    Mark,
    OwnKey,
    PortSpans,
    Rule,
    Runtime,
    Settings,
    Sighted,
    TableCounters,
    TableIdentity
);
