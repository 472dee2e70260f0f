//! The only `unsafe` code of this crate: map values are plain data.

use crate::ban::Ban;
use crate::connections::{Connection, ConnectionSettings, Reservation, Stale, Tuple};
use crate::counters::{Counters, KeyStatistics, SampleQuota, TableCounters};
use crate::group::{GroupCounters, GroupSettings};
use crate::hot::CpuRow;
use crate::key::Key;
use crate::list::Chunk;
use crate::own::OwnKey;
use crate::prefix::Line;
use crate::record::{RecordKey, Recorded};
use crate::rule::Rule;
use crate::scope::ScopeSpans;
use crate::settings::{Mark, PortSpans, Runtime, Settings, TableIdentity};
use crate::trace::TracedSources;

macro_rules! plain {
    ($($type:ty),* $(,)?) => {$(
        // SAFETY: repr(C), made of integers only, and `layout` asserts that it has no padding: every bit pattern is
        // valid, and every byte is initialised.
        unsafe impl aya::Pod for $type {}
    )*};
}

plain!(
    Ban,
    Chunk,
    Connection,
    ConnectionSettings,
    Reservation,
    Stale,
    Tuple,
    Counters,
    CpuRow,
    GroupCounters,
    GroupSettings,
    Key,
    Line,
    Mark,
    OwnKey,
    PortSpans,
    RecordKey,
    Recorded,
    Rule,
    Runtime,
    ScopeSpans,
    Settings,
    KeyStatistics,
    SampleQuota,
    TableCounters,
    TableIdentity,
    TracedSources
);
