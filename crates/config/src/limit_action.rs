//! `action` and `throttle` of `[[limit]]`: the handling of packets above a limit.

use toml::de::DeValue;

use super::policy::Multiplier;
use super::report::{Problems, Wrong};
use super::schema::{At, Key, Kind, Located, Table, Text, Value, read_inner};
use super::table;
use super::words::word;

/// The action on refused packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// The packet is dropped.
    Drop,
    /// The packet is only counted.
    Observe,
    /// The packet is answered with a reset or an ICMP error.
    Reject,
    /// The packet passes with a mark.
    Mark(Mark),
    /// The packet is delayed.
    Shape,
}

const ACTIONS: &[(&str, Action)] = &[
    ("drop", Action::Drop),
    ("observe", Action::Observe),
    ("reject", Action::Reject),
    ("mark", Action::Mark(Mark::DEFAULT)),
    ("shape", Action::Shape),
];

/// An action with values.
#[derive(Clone, Debug, PartialEq, Eq, Table)]
#[table(inner, since = "0.1.0")]
pub struct ActionTable {
    /// Values to set; `"mark"` without a table sets mark 1 and DSCP 8.
    mark: Mark,
}

/// The marks of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Table)]
#[table(inner, since = "0.1.0", check = check_mark)]
pub struct Mark {
    /// The packet's mark inside this host, for nftables and routing rules.
    // `skb->mark`.
    #[key(absent = "unchanged")]
    pub mark: Option<u32>,
    /// The packet's code point (DSCP) on the wire.
    #[key(absent = "unchanged", range = (0.0, 63.0))]
    pub dscp: Option<u8>,
}

const MARK_HELP: &str = "write \"mark\", or action = { mark = { mark = 1, dscp = 8 } }";

impl Mark {
    /// The mark 1, and the code point of lower effort, CS1 (RFC 3662).
    pub const DEFAULT: Self = Self {
        mark: Some(1),
        dscp: Some(8),
    };
}

fn check_mark(read: &Located<'_, Mark>, problems: &mut Problems) {
    if !read.has(&Mark::MARK) && !read.has(&Mark::DSCP) {
        let message = "empty mark: it sets neither mark nor dscp";
        problems.error(read.span(), message, MARK_HELP);
    }
}

impl Action {
    /// The name in limits.toml.
    #[must_use]
    pub fn words(self) -> String {
        match self {
            Self::Drop => "drop".to_owned(),
            Self::Observe => "observe".to_owned(),
            Self::Reject => "reject".to_owned(),
            Self::Shape => "shape".to_owned(),
            Self::Mark(mark) => {
                let value = mark.mark.map(|mark| format!(" {mark}"));
                let dscp = mark.dscp.map(|dscp| format!(" DSCP {dscp}"));
                format!(
                    "mark{}{}",
                    value.unwrap_or_default(),
                    dscp.unwrap_or_default()
                )
            }
        }
    }
}

impl Value for Action {
    const KIND: Kind = Kind::Either(&[
        Kind::Words(|| ACTIONS.iter().map(|(word, _)| *word).collect()),
        ActionTable::KIND,
    ]);

    fn read(at: At<'_>, key: &Key, problems: &mut Problems) -> Option<Self> {
        match at.get_ref() {
            DeValue::String(text) => word(text, key, ACTIONS)
                .map_err(|wrong| problems.error(at.span(), wrong.message, wrong.help))
                .ok(),
            DeValue::Table(content) => match content.get(ActionTable::MARK.name) {
                Some(mark) if !mark.get_ref().is_table() => {
                    let message = format!("invalid mark {}: not a table", table::typed(mark));
                    problems.error(mark.span(), message, MARK_HELP);
                    None
                }
                _ => {
                    let read = read_inner::<ActionTable>(at, key, problems);
                    read.map(|read| Self::Mark(read.table.mark))
                }
            },
            _ => {
                key.wrong_type(at, problems);
                None
            }
        }
    }

    fn write(&self) -> Option<toml::Value> {
        Some(self.words().into())
    }

    fn shown(&self) -> String {
        self.words()
    }
}

/// The action above the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Throttle {
    /// All packets above it are refused.
    Hard,
    /// Packets pass up to this multiple of the limit, and are counted separately.
    Soft(Multiplier),
    /// Packets pass up to this multiple of the limit while the host has spare CPU time.
    Elastic(Multiplier),
}

/// A throttle with values: one of these keys.
#[derive(Clone, Debug, PartialEq, Eq, Table)]
#[table(inner, since = "0.1.0")]
pub struct ThrottleTable {
    /// Share above the limit that passes, counted separately: above 0, at most 1000 %.
    #[key(absent = "not soft", examples = ["10%"])]
    soft: Option<SoftShare>,
    /// Allows a multiple of the limit while the host has spare resources, and the limit itself otherwise.
    #[key(absent = "not elastic")]
    elastic: Option<Elastic>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Table)]
#[table(inner, since = "0.1.0", check = check_elastic)]
pub struct Elastic {
    /// Factor on the limit while the host has CPU and memory to spare: above 1.
    #[key(range = (1.0, 1_000.0), examples = ["3.0"])]
    up_to: Multiplier,
}

const ELASTIC_HELP: &str = "write { elastic = { up_to = 3.0 } }";

fn check_elastic(read: &Located<'_, Elastic>, problems: &mut Problems) {
    if read.table.up_to == Multiplier::ONE {
        let message = "invalid up_to 1: it is a number above 1, at most 1000";
        problems.conflict(read.span_of(&Elastic::UP_TO), message, ELASTIC_HELP);
    }
}

/// The limit with a share above it, as a multiple of the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SoftShare(Multiplier);

impl Text for SoftShare {
    const KIND: Kind = Kind::Percent(&[]);

    fn parse(text: &str, key: &Key) -> Result<Self, Wrong> {
        let share = text
            .strip_suffix('%')
            .and_then(|number| number.trim().parse::<f64>().ok());
        let share = share.filter(|share| *share > 0.0 && *share <= 1_000.0);
        let multiplier = share.and_then(|share| Multiplier::new(1.0 + share / 100.0));
        multiplier.map(Self).ok_or_else(|| {
            let help = format!(
                "write a percentage above 0, at most 1000: {{ {} }}",
                key.example()
            );
            Wrong::new(format!("invalid share {text:?}"), help)
        })
    }

    fn text(&self) -> String {
        format!("{}%", (self.0.factor() - 1.0) * 100.0)
    }
}

impl Throttle {
    /// Whether it depends on the host's load.
    #[must_use]
    pub const fn is_elastic(self) -> bool {
        matches!(self, Self::Elastic(_))
    }

    /// What passes, as a multiple of the limit; `None` for hard limits.
    #[must_use]
    pub const fn multiplier(self) -> Option<Multiplier> {
        match self {
            Self::Hard => None,
            Self::Soft(multiplier) | Self::Elastic(multiplier) => Some(multiplier),
        }
    }

    /// The throttle as text.
    #[must_use]
    pub fn text(self) -> String {
        self.words().unwrap_or_else(|| "hard".to_owned())
    }

    /// The throttle as text; `None` for hard limits, the default.
    #[must_use]
    pub fn words(self) -> Option<String> {
        match self {
            Self::Hard => None,
            Self::Soft(multiplier) => Some(format!("soft up to {} times", multiplier.factor())),
            Self::Elastic(multiplier) => {
                Some(format!("elastic up to {} times", multiplier.factor()))
            }
        }
    }
}

impl Value for Throttle {
    const KIND: Kind = Kind::Either(&[
        Kind::Words(|| vec!["hard"]),
        Kind::OneKey(ThrottleTable::REFERENCE.keys),
    ]);

    fn read(at: At<'_>, key: &Key, problems: &mut Problems) -> Option<Self> {
        match at.get_ref() {
            DeValue::String(text) if text == "hard" => return Some(Self::Hard),
            DeValue::Table(content) => {
                let elastic = content.get(ThrottleTable::ELASTIC.name);
                if let Some(elastic) = elastic.filter(|it| !it.get_ref().is_table()) {
                    let typed = table::typed(elastic);
                    let message = format!("invalid elastic {typed}: not a table with up_to");
                    problems.error(elastic.span(), message, ELASTIC_HELP);
                    return None;
                }
                let read = read_inner::<ThrottleTable>(at, key, problems)?;
                let has_soft = read.has(&ThrottleTable::SOFT);
                if has_soft != elastic.is_some() {
                    let ThrottleTable { soft, elastic } = read.table;
                    let soft = soft.map(|soft| Self::Soft(soft.0));
                    return soft.or(elastic.map(|elastic| Self::Elastic(elastic.up_to)));
                }
            }
            _ => {}
        }
        let help = "write \"hard\", { soft = \"10%\" } or { elastic = { up_to = 3.0 } }";
        let message = format!("invalid {} {}", key.name, table::typed(at));
        problems.error(at.span(), message, help);
        None
    }

    fn write(&self) -> Option<toml::Value> {
        Some(self.text().into())
    }

    fn shown(&self) -> String {
        self.text()
    }
}
