//! `rate = "fair"` and `fair` of `[[limit]]`: a limit whose rate the agent finds while the host is overloaded.

use super::policy::{Rate, Unit};
use super::rates::RateText;
use super::report::Problems;
use super::schema::{self, At, Kind, Table, Text, Value};
use super::{human, table, units};

/// The word in place of a rate.
pub(super) const FAIR: &str = "fair";

/// The rate of a limit on packets: a count per time, or `fair`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitRate(pub RateText);

impl Value for LimitRate {
    const KIND: Kind = Kind::Either(&[<RateText as Text>::KIND, Kind::Words(|| vec![FAIR])]);

    fn read(at: At<'_>, key: &schema::Key, problems: &mut Problems) -> Option<Self> {
        RateText::read(at, key, problems).map(Self)
    }

    fn write(&self) -> Option<toml::Value> {
        Some(self.0.0.clone().into())
    }

    fn shown(&self) -> String {
        self.0.0.clone()
    }
}

impl LimitRate {
    pub(super) fn is_fair(&self) -> bool {
        self.0.0 == FAIR
    }
}

/// The keys of `fair`.
#[derive(Clone, Debug, PartialEq, Eq, Table)]
#[table(inner, since = "0.1.0")]
pub struct FairTable {
    /// The least level: however overloaded the servers are, a source may send at this rate, and beyond it a burst: at once at least 2 at
    /// the onset, and at least 5 from 7 s on (for `unit = "bytes"` 3 kB and 7.5 kB). At least `1/s`, for `unit = "bytes"` `1kB/s`.
    #[key(absent = "`1/s`, for bytes `1.5kB/s`", examples = ["20/s"])]
    pub(super) at_least: Option<RateText>,
    /// A rate that no source exceeds, also while servers keep up and while the agent does not run.
    #[key(absent = "none", examples = ["5000/s"])]
    pub(super) at_most: Option<RateText>,
    /// The signs of an overload. `sockets`: queues and drops of the sockets on the limit's ports. A number: those of the
    /// sockets on this port of the host, for a backend that requests wait for: its listeners, and its UDP sockets
    /// if the limit is on packets or bytes of UDP. `load`: what the service reports by `POST /v1/load` on the Unix socket of
    /// `[decide] http`, under the limit's name.
    #[key(absent = "`[\"sockets\"]`")]
    pub(super) signals: Option<Vec<Signal>>,
    /// The user that may report the load, beside root: a name in `/etc/passwd`, or a number. With `load` in `signals`.
    #[key(absent = "root alone", examples = ["app"])]
    pub(super) reported_by: Option<String>,
}

/// A sign of an overload.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    /// Queues and drops of the sockets on the limit's ports.
    Sockets,
    /// Those of the sockets on this port.
    Port(u16),
    /// The load that the service reports.
    Load,
}

const WORD: Kind = Kind::Words(|| vec!["sockets", "load"]);
const PORT: Kind = Kind::Integer(1, 65_535);

impl Value for Signal {
    const KIND: Kind = Kind::Either(&[WORD, PORT]);

    fn read(at: At<'_>, _: &schema::Key, problems: &mut Problems) -> Option<Self> {
        let port = table::integer(at).and_then(|number| u16::try_from(number).ok());
        let signal = match (at.get_ref().as_str(), port) {
            (Some("sockets"), _) => Some(Self::Sockets),
            (Some("load"), _) => Some(Self::Load),
            (_, Some(port)) if port > 0 => Some(Self::Port(port)),
            _ => None,
        };
        if signal.is_none() {
            let message = format!("invalid signal {}", table::typed(at));
            let help = "write \"sockets\" for the limit's own ports, the port of a backend on this host, or \"load\" for what the service reports: signals = [\"sockets\", 8080, \"load\"]";
            problems.error(at.span(), message, help);
        }
        signal
    }

    fn write(&self) -> Option<toml::Value> {
        Some(match self {
            Self::Sockets => "sockets".into(),
            Self::Port(port) => i64::from(*port).into(),
            Self::Load => "load".into(),
        })
    }

    fn shown(&self) -> String {
        match self {
            Self::Sockets => "sockets".to_owned(),
            Self::Port(port) => format!("port {port}"),
            Self::Load => "reported load".to_owned(),
        }
    }
}

impl Signal {
    /// As in a config.
    pub(super) fn word(&self) -> String {
        match self {
            Self::Sockets => "\"sockets\"".to_owned(),
            Self::Port(port) => port.to_string(),
            Self::Load => "\"load\"".to_owned(),
        }
    }
}

/// The shares of a limit with `rate = "fair"`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fair {
    /// The least level.
    pub at_least: Option<Rate>,
    /// The rate that no source exceeds, at any time.
    pub at_most: Option<Rate>,
    /// The signs of an overload, at least one.
    pub signals: Vec<Signal>,
    /// The user that may report the load, beside root.
    pub reported_by: Option<String>,
}

impl Fair {
    /// `at least 20/s, at most 5000/s, by sockets, port 8080`.
    #[must_use]
    pub fn words(&self, unit: Unit) -> String {
        let rate = |rate: Rate| {
            let count = match unit {
                Unit::Bytes => human::size(rate.count),
                _ => human::number(rate.count),
            };
            format!("{count}/{}", units::period_text(rate.per_nanoseconds))
        };
        let least = self
            .at_least
            .map(|least| format!("at least {}", rate(least)));
        let most = self.at_most.map(|most| format!("at most {}", rate(most)));
        let signals = format!("by {}", self.signals.shown());
        let user = self.reported_by.as_ref();
        let user = user.map(|user| format!("reported by user {user}"));
        let parts = least.into_iter().chain(most).chain([signals]).chain(user);
        parts.collect::<Vec<_>>().join(", ")
    }
}
