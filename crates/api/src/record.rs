//! The recording of sources.

use std::ops::RangeInclusive;
use std::time::Duration;

use config::units;
use serde::{Deserialize, Serialize};

/// The lengths that a recording may have.
pub const LENGTHS: RangeInclusive<Duration> =
    Duration::from_secs(1)..=Duration::from_secs(31 * 86_400);

/// The error for any other.
#[must_use]
pub fn wrong_length(length: Duration) -> String {
    let typed = units::time_text(length.as_nanos().try_into().unwrap_or(u64::MAX));
    format!("invalid --for {typed}: a recording takes from 1s to 31d; write --for 24h")
}

/// The state of a recording.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecordState {
    /// There is no recording.
    #[default]
    None,
    /// The agent records.
    Recording,
    /// It has ended.
    Ended,
}

impl RecordState {
    /// As in documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Recording => "recording",
            Self::Ended => "ended",
        }
    }
}

/// `weir record`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RecordStatus {
    pub state: RecordState,
    /// The recording's file.
    pub file: String,
    /// The start, in seconds since 1970.
    pub started: f64,
    /// The end, in seconds since 1970.
    pub ends: f64,
    /// From the first recorded packet to the last.
    pub seconds: f64,
    /// Recorded packets.
    pub packets: u64,
    /// Pairs of a source and a service that are counted now.
    pub sources: u64,
    /// Protocols, and local ports of TCP and UDP.
    pub services: u64,
    /// One in this many sources is recorded now; 1: all are.
    pub one_in: u32,
    /// Seconds in which only a sample of the sources was recorded.
    pub sampled_seconds: f64,
    /// Packets of sources for which there was no room.
    pub lost: u64,
    /// Times in which nothing was recorded, such as restarts of the agent.
    pub gaps: Vec<RecordGap>,
    /// Why the file could not be written the last time; `null` if it was.
    pub error: Option<String>,
}

/// A time in which nothing was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RecordGap {
    /// Its start, in seconds since 1970.
    pub from: f64,
    /// Its end.
    pub to: f64,
}
