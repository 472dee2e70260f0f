//! `weir trace --json`.

use serde::{Deserialize, Serialize};

/// The verdict on a traced packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum TraceVerdict {
    Passed,
    /// The packet was refused.
    Throttled,
    /// The packet passed, but would have been refused if the limit were not on `observe`.
    WouldThrottle,
    /// Verdicts were lost.
    Lost,
}

impl TraceVerdict {
    /// The name in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Passed => "passed",
            Self::Throttled => "throttled",
            Self::WouldThrottle => "would-throttle",
            Self::Lost => "lost",
        }
    }
}

/// One line of `weir trace --json`: the verdict on a packet.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TraceLine {
    /// Seconds since 1970.
    pub time: f64,
    /// The remote address: the sender of incoming packets, the receiver of outgoing ones; `None` for lost verdicts.
    pub source: Option<String>,
    pub verdict: TraceVerdict,
    /// The limit that refused the packet, would have refused it, or passed it above its rate.
    pub limit: Option<String>,
    /// The reason as text.
    pub reason: String,
    /// `ingress` or `egress`.
    pub direction: Option<String>,
    /// The interface's name.
    pub interface: Option<String>,
    /// `tcp`, `udp`, `icmp`, `other`, or `hidden` by extension headers.
    pub protocol: Option<String>,
    /// The local port.
    pub port: Option<u16>,
    /// Packets on the wire that the buffer represents. For lost verdicts, their number.
    pub packets: u64,
    pub bytes: u64,
}

impl TraceLine {
    /// The line that reports `packets` lost verdicts.
    #[must_use]
    pub fn lost(time: f64, packets: u64, reason: &str) -> Self {
        Self {
            time,
            source: None,
            verdict: TraceVerdict::Lost,
            limit: None,
            reason: reason.to_owned(),
            direction: None,
            interface: None,
            protocol: None,
            port: None,
            packets,
            bytes: 0,
        }
    }
}
