//! Captures of packets.

use std::ops::RangeInclusive;
use std::time::Duration;

use config::units;
use serde::{Deserialize, Serialize};

/// The lengths that a capture may have.
pub const LENGTHS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(86_400);

/// The error for any other.
#[must_use]
pub fn wrong_length(length: Duration) -> String {
    let typed = units::time_text(length.as_nanos().try_into().unwrap_or(u64::MAX));
    format!("invalid --for {typed}: a capture takes from 1s to 24h; write --for 10m")
}

/// The samples that a capture may have: one in so many sources.
pub const SAMPLES: RangeInclusive<u32> = 1..=1_000_000;

/// The error for any other.
#[must_use]
pub fn wrong_sample(one_in: u32) -> String {
    format!("invalid --sample 1/{one_in}: write 1/1 for all sources, or from 1/2 to 1/1000000")
}

/// The packets of a capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CaptureOf {
    /// Those that Weir refuses.
    #[default]
    Refused,
    /// All that Weir's kernel programs receive.
    All,
}

impl CaptureOf {
    /// As in documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Refused => "refused",
            Self::All => "all",
        }
    }
}

/// A part of a running capture.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CapturePart {
    /// Whole blocks of pcapng, in base64; the first part has the section's header.
    pub blocks: String,
    /// Packets in all parts so far.
    pub packets: u64,
    /// Packets of the sample so far that are in no part, since the agent or its client read too slowly.
    pub lost: u64,
    /// Notes for the operator.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Why the capture has ended; `null` if it goes on.
    pub end: Option<CaptureEnd>,
}

/// The end of a capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CaptureEnd {
    /// Its time is over.
    Time,
    /// The file has its largest size.
    Size,
    /// The client ended it.
    Client,
}

impl CaptureEnd {
    /// As in documents.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Size => "size",
            Self::Client => "client",
        }
    }
}

/// `weir record --capture`, at its end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CaptureSummary {
    /// The file as given.
    pub file: String,
    /// Its packets.
    pub packets: u64,
    /// Its bytes.
    pub bytes: u64,
    /// Packets of the sample that were lost.
    pub lost: u64,
    /// One in this many sources was captured; 1: all were.
    pub one_in: u32,
    pub of: CaptureOf,
    pub end: CaptureEnd,
    /// Notes for the operator.
    pub notes: Vec<String>,
}
