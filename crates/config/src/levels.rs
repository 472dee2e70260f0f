//! `levels` of `[[limit]]`: the same limit at wider keys.

use std::fmt;

use super::policy::{Algorithm, Key, Multiplier};
use super::rates::ReadRates;
use super::report::{Problems, Span, Wrong};
use super::schema::{self, At, Kind, Located, Place, Table, Text, Value, read_inner};
use super::table;
use super::units::LARGEST_COUNT;

/// The most levels: with the limit's own rule, half of a packet's rules.
const MOST: usize = 7;

/// The same limit at a wider key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Level {
    pub key: LevelKey,
    /// The factor on each rate and burst; 1 of a fair limit, which has none.
    pub factor: Multiplier,
}

/// The key of a level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LevelKey {
    /// The limit's key, with shorter prefixes of the address.
    Prefix { ipv4: u8, ipv6: u8 },
    /// The network (autonomous system) of the address; for an address in none, a prefix.
    Asn { ipv4: u8, ipv6: u8 },
    /// Everything that the limit applies to.
    All,
}

impl fmt::Display for LevelKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Prefix { ipv4, ipv6 } => write!(formatter, "{ipv4}/{ipv6}"),
            Self::Asn { .. } => formatter.write_str("asn"),
            Self::All => formatter.write_str("all"),
        }
    }
}

/// The keys of a level.
#[derive(Clone, Debug, PartialEq, Eq, Table)]
#[table(inner, since = "0.1.0", check = check_level)]
pub struct LevelTable {
    /// The lengths for IPv4 and IPv6: addresses that agree in them share the level. Wider than the limit's own key and
    /// than the level before.
    #[key(absent = "not a prefix", examples = ["24/48"])]
    prefix: Option<LevelPrefix>,
    /// `asn`: the network of the address, by the database `[geo] asn`. `all`: everything that the limit applies to, in
    /// its direction.
    #[key(absent = "not a key")]
    key: Option<LevelWord>,
    /// How many times the limit's rate, burst and tiers the level allows: more than the level before. Not with `rate = "fair"`.
    #[key(absent = "required, unless `rate = \"fair\"`", range = (1.0, 1e6), examples = ["20"])]
    factor: Option<Multiplier>,
}

impl LevelTable {
    /// `None`: it has no key, or two.
    fn level(&self) -> Option<Level> {
        let key = match (self.prefix, self.key) {
            (Some(LevelPrefix { ipv4, ipv6 }), None) => LevelKey::Prefix { ipv4, ipv6 },
            (None, Some(LevelWord::All)) => LevelKey::All,
            (None, Some(LevelWord::Asn)) => {
                let (ipv4, ipv6) = Key::Asn.default_prefixes();
                LevelKey::Asn { ipv4, ipv6 }
            }
            _ => return None,
        };
        let factor = self.factor.unwrap_or(Multiplier::ONE);
        Some(Level { key, factor })
    }
}

fn check_level(read: &Located<'_, LevelTable>, problems: &mut Problems) {
    match (read.has(&LevelTable::PREFIX), read.has(&LevelTable::KEY)) {
        (true, true) => problems.conflict(
            read.span_of(&LevelTable::PREFIX),
            "prefix conflicts with key: a level has one key",
            "leave out one of them, or write two levels",
        ),
        (false, false) => problems.error(
            read.span(),
            "missing prefix or key of a level",
            "write prefix = \"24/48\" or key = \"all\"",
        ),
        _ => {}
    }
}

/// The lengths of `24/48`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LevelPrefix {
    ipv4: u8,
    ipv6: u8,
}

impl Text for LevelPrefix {
    const KIND: Kind = Kind::Text(&[]);

    fn parse(text: &str, key: &schema::Key) -> Result<Self, Wrong> {
        let length = |text: &str, most: u8| {
            let length = text.trim().parse().ok();
            length.filter(|length| *length <= most)
        };
        let parts = text.split_once('/');
        let lengths = parts.and_then(|(ipv4, ipv6)| {
            let (ipv4, ipv6) = (length(ipv4, 32)?, length(ipv6, 128)?);
            Some(Self { ipv4, ipv6 })
        });
        lengths.ok_or_else(|| {
            let message = format!("invalid prefix {text:?}: it is the lengths for IPv4 and IPv6");
            Wrong::new(message, format!("write {}", key.example()))
        })
    }

    fn text(&self) -> String {
        format!("{}/{}", self.ipv4, self.ipv6)
    }
}

/// A key of a level that is no prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LevelWord {
    Asn,
    All,
}

impl Text for LevelWord {
    const KIND: Kind = Kind::Words(|| vec!["asn", "all"]);

    fn parse(text: &str, key: &schema::Key) -> Result<Self, Wrong> {
        match text.to_ascii_lowercase().as_str() {
            "asn" => Ok(Self::Asn),
            "all" => Ok(Self::All),
            _ => {
                let message = format!("{} = {text:?} is not supported in levels", key.name);
                let help = "write key = \"asn\", key = \"all\", or prefix = \"24/48\"";
                Err(Wrong::new(message, help))
            }
        }
    }

    fn text(&self) -> String {
        match self {
            Self::Asn => "asn".to_owned(),
            Self::All => "all".to_owned(),
        }
    }
}

impl Value for Level {
    const KIND: Kind = LevelTable::KIND;

    fn read(at: At<'_>, key: &schema::Key, problems: &mut Problems) -> Option<Self> {
        if !at.get_ref().is_table() {
            let help = format!(
                "write {} = [{{ prefix = \"24/48\", factor = 20 }}, {{ key = \"all\", factor = 2000 }}]",
                key.name
            );
            let message = format!("invalid level {}: not a table", table::typed(at));
            problems.error(at.span(), message, help);
            return None;
        }
        read_inner::<LevelTable>(at, key, problems)?.table.level()
    }

    fn write(&self) -> Option<toml::Value> {
        None
    }

    fn shown(&self) -> String {
        format!("{} times at {}", self.factor.factor(), self.key)
    }
}

/// The key and the prefixes of a limit.
#[derive(Clone, Copy)]
pub struct OwnKey {
    pub key: Key,
    pub ipv4: u8,
    pub ipv6: u8,
}

/// The levels of a limit. Checks that each is wider and allows more than the one before.
pub fn check(
    place: Place<'_>,
    key: &schema::Key,
    own: OwnKey,
    algorithm: Algorithm,
    rates: &ReadRates<'_>,
    problems: &mut Problems,
) -> Vec<Level> {
    let mut levels: Vec<Level> = Vec::new();
    for read in place.tables::<LevelTable>(key) {
        if !read.has(&LevelTable::FACTOR) {
            let help = format!("write a factor: {}", LevelTable::FACTOR.example());
            problems.error(read.span(), "missing key \"factor\" in levels", help);
        }
        let Some(mut level) = read.table.level() else {
            continue;
        };
        let before = levels.last().copied();
        if let LevelKey::Asn { ipv4, ipv6 } = &mut level.key {
            // An address in no network has a prefix as its key, which is wider than the key before.
            let (old_ipv4, old_ipv6) = prefix_before(own, before.map(|level| level.key));
            (*ipv4, *ipv6) = ((*ipv4).min(old_ipv4), (*ipv6).min(old_ipv6));
        }
        let is_prefix = read.table.prefix.is_some();
        let of_key = if is_prefix {
            LevelTable::PREFIX
        } else {
            LevelTable::KEY
        };
        if let Some((message, help)) = not_wider(own, before.map(|level| level.key), level.key) {
            problems.conflict(read.span_of(&of_key), message, help);
        }
        let least = before.map_or(Multiplier::ONE, |level| level.factor);
        let span = read.span_of(&LevelTable::FACTOR);
        if level.factor.factor() < least.factor() || (before.is_some() && level.factor == least) {
            let factor = level.factor.factor();
            let message = format!("factor {factor} is not above that of the level before");
            let least = least.factor();
            let help = format!("write more than {least}: a wider key allows more");
            problems.conflict(span, message, help);
        } else {
            check_rates(&level, algorithm, rates, &span, problems);
        }
        levels.push(level);
    }
    if levels.len() > MOST {
        let message = format!("{} levels of one limit are too many", levels.len());
        problems.error(place.span_of(key), message, format!("write at most {MOST}"));
    }
    levels
}

/// The levels of a limit with `rate = "fair"`, whose rates the agent finds: networks, and then all sources together.
pub fn check_fair(
    place: Place<'_>,
    key: &schema::Key,
    own: OwnKey,
    problems: &mut Problems,
) -> Vec<Level> {
    let mut levels: Vec<Level> = Vec::new();
    for read in place.tables::<LevelTable>(key) {
        if read.has(&LevelTable::FACTOR) {
            let message = "factor is not supported with rate = \"fair\"";
            let help = "leave out factor: the agent finds each level";
            problems.error(read.span_of(&LevelTable::FACTOR), message, help);
        }
        let Some(level) = read.table.level() else {
            continue;
        };
        let before = levels.last().map(|level| level.key);
        let wrong = match (before, level.key) {
            (_, LevelKey::Asn { .. }) => Some((
                "key = \"asn\" of a level is not supported with rate = \"fair\"",
                "write prefix = \"24/48\"",
            )),
            (None, LevelKey::All) => Some((
                "the first level is key = \"all\": with rate = \"fair\" it is that of networks",
                "write levels = [{ prefix = \"24/48\" }, { key = \"all\" }]",
            )),
            (Some(LevelKey::Prefix { .. }), LevelKey::Prefix { .. }) => Some((
                "a second level with a prefix is not supported with rate = \"fair\"",
                "leave out one of them",
            )),
            _ => None,
        };
        let of_key = if read.has(&LevelTable::PREFIX) {
            LevelTable::PREFIX
        } else {
            LevelTable::KEY
        };
        if let Some((message, help)) = wrong {
            problems.error(read.span_of(&of_key), message, help);
        } else if let Some((message, help)) = not_wider(own, before, level.key) {
            problems.conflict(read.span_of(&of_key), message, help);
        }
        levels.push(level);
    }
    levels
}

/// The prefixes of the level before, or of the limit's own key.
const fn prefix_before(own: OwnKey, before: Option<LevelKey>) -> (u8, u8) {
    match before {
        Some(LevelKey::Prefix { ipv4, ipv6 } | LevelKey::Asn { ipv4, ipv6 }) => (ipv4, ipv6),
        Some(LevelKey::All) | None => (own.ipv4, own.ipv6),
    }
}

/// Why a level is not wider than the one before, or than the limit's own key.
fn not_wider(own: OwnKey, before: Option<LevelKey>, key: LevelKey) -> Option<(String, String)> {
    let all_is_last = "write the level with key = \"all\" last: nothing is wider";
    match (before, key) {
        _ if own.key == Key::All => {
            let message = "levels is not supported with key = \"all\": nothing is wider";
            Some((
                message.to_owned(),
                "leave out levels, or set key = \"source\"".to_owned(),
            ))
        }
        (Some(LevelKey::All), _) => Some((
            format!("level {key} is not wider than the level before"),
            all_is_last.to_owned(),
        )),
        (_, LevelKey::All) => None,
        (_, LevelKey::Prefix { .. } | LevelKey::Asn { .. }) if !own.key.has_address() => {
            let message = format!(
                "level {key} is not supported with key = \"{}\": that key has no address",
                own.key
            );
            Some((message, "write key = \"all\" instead".to_owned()))
        }
        (Some(LevelKey::Asn { .. }), _) => {
            let help = "write prefixes first, then key = \"asn\", then key = \"all\"";
            Some((
                format!("level {key} is not wider than the level before, a network"),
                help.to_owned(),
            ))
        }
        (_, LevelKey::Asn { .. }) => None,
        (before, LevelKey::Prefix { ipv4, ipv6 }) => {
            let (old_ipv4, old_ipv6) = prefix_before(own, before);
            let what = if before.is_some() {
                "level before"
            } else {
                "limit's own key"
            };
            let is_wider =
                ipv4 <= old_ipv4 && ipv6 <= old_ipv6 && (ipv4, ipv6) != (old_ipv4, old_ipv6);
            (!is_wider).then(|| {
                let message = format!(
                    "prefix {ipv4}/{ipv6} is not wider than the {what}, {old_ipv4}/{old_ipv6}"
                );
                (
                    message,
                    "write shorter lengths, the longest first".to_owned(),
                )
            })
        }
    }
}

/// Checks that the level's rates can be counted.
fn check_rates(
    level: &Level,
    algorithm: Algorithm,
    rates: &ReadRates<'_>,
    span: &Span,
    problems: &mut Problems,
) {
    for read in rates.all() {
        let count = level.factor.units(read.rate.count);
        let largest = algorithm.largest_count().min(LARGEST_COUNT);
        if read.rate.count <= largest && count > largest {
            let message = format!(
                "{:?} times {} is {count}, and a {} holds at most {largest}",
                read.text,
                level.factor.factor(),
                algorithm.noun()
            );
            let help = if algorithm.largest_count() < LARGEST_COUNT {
                "set algorithm = \"sliding-window\", or a smaller factor"
            } else {
                "write a smaller factor"
            };
            problems.conflict(span.clone(), message, help);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::policy::{Limit, Rate};

    fn read(lines: &str) -> Result<Limit, Vec<(String, String)>> {
        let rate = if lines.contains("rate = ") {
            ""
        } else {
            "rate = \"10/s\"\n"
        };
        let text =
            format!("[agent]\ninterfaces = [\"lo\"]\n[[limit]]\nname = \"web\"\n{rate}{lines}\n");
        let errors = |report: crate::report::Report| {
            report
                .errors
                .into_iter()
                .map(|error| (error.message, error.help))
                .collect::<Vec<_>>()
        };
        let loaded = crate::parse(Path::new("limits.toml"), &text).map_err(errors)?;
        Ok(loaded.config.limits[0].clone())
    }

    #[test]
    fn each_level_is_the_limit_at_a_wider_key_with_its_factor() {
        let limit = read(
            "tiers = [\"60/h\"]\nkey = \"source-port\"\nescalate = { after = 10, within = \"10s\", ban = \"10m\" }\nprotocol = \"tcp\"\n\
             levels = [{ prefix = \"24/48\", factor = 20 }, { prefix = \"16/48\", factor = 22.5 }, { key = \"all\", factor = 2000 }]",
        )
        .unwrap();
        let levels = limit.at_levels();
        let keys: Vec<_> = levels
            .iter()
            .map(|at| (at.name.as_str(), at.key, at.ipv4_prefix, at.ipv6_prefix))
            .collect();
        assert_eq!(
            keys,
            [
                ("web", Key::SourcePort, 32, 64),
                ("web at 24/48", Key::SourcePort, 24, 48),
                ("web at 16/48", Key::SourcePort, 16, 48),
                ("web at all", Key::All, 0, 0)
            ]
        );
        // 200, 225 and 20,000 a second, reduced.
        let every = |per_nanoseconds: u64, count: u64| Rate {
            count,
            per_nanoseconds,
        };
        let rates: Vec<_> = levels
            .iter()
            .map(|at| (at.rates.rate, at.rates.burst, at.rates.tiers[0].burst))
            .collect();
        assert_eq!(
            rates,
            [
                (Rate::per_second(10), 10, 60),
                (every(5_000_000, 1), 200, 1_200),
                (every(40_000_000, 9), 225, 1_350),
                (every(50_000, 1), 20_000, 120_000)
            ]
        );
        assert_eq!(levels[1].rates.text(), "20 × 10/s, 20 × 60/h");
        let after: Vec<_> = levels
            .iter()
            .map(|at| at.escalate.map(|escalate| escalate.after))
            .collect();
        assert_eq!(after, [Some(10), Some(200), Some(225), None]);
        assert!(
            limit.summary().contains("20 times per IPv4 /24, IPv6 /48"),
            "{}",
            limit.summary()
        );
        assert!(
            limit.summary().contains("2000 times for all"),
            "{}",
            limit.summary()
        );
    }

    #[test]
    fn a_level_of_networks_has_the_prefixes_of_the_level_before_at_most() {
        let geo = "\n[geo]\nasn = \"/asn.mmdb\"";
        let prefixes = |levels: &str| {
            let limit = read(&format!(
                "levels = [{levels}{{ key = \"asn\", factor = 30 }}]{geo}"
            ))
            .unwrap();
            let last = limit.at_levels().pop().unwrap();
            assert!(limit.uses_networks() && last.escalate.is_none());
            (last.key, last.ipv4_prefix, last.ipv6_prefix)
        };
        assert_eq!(prefixes(""), (Key::Asn, 24, 48));
        assert_eq!(
            prefixes("{ prefix = \"16/56\", factor = 20 }, "),
            (Key::Asn, 16, 48)
        );
    }

    #[test]
    fn a_class_or_an_interface_has_a_level_for_all() {
        for key in ["class", "interface"] {
            let limit = read(&format!(
                "key = \"{key}\"\nlevels = [{{ key = \"all\", factor = 3 }}]"
            ))
            .unwrap();
            assert_eq!(limit.at_levels()[1].key, Key::All);
        }
    }

    #[test]
    fn levels_that_mean_nothing_are_errors_with_the_way_out() {
        let level = |text: &str| format!("levels = [{text}]");
        let wide = "{ prefix = \"24/48\", factor = 20 }";
        for (lines, message, help) in [
            (
                "levels = 5".to_owned(),
                "levels is an integer",
                "levels = [",
            ),
            (level("\"24/48\""), "invalid level \"24/48\":", "levels = ["),
            (
                level("{ factor = 20 }"),
                "missing prefix or key",
                "key = \"all\"",
            ),
            (
                level("{ prefix = \"24/48\" }"),
                "missing key \"factor\"",
                "factor = 20",
            ),
            (
                level("{ prefix = \"24/48\", key = \"all\", factor = 20 }"),
                "prefix conflicts with key",
                "two levels",
            ),
            (
                level("{ prefix = \"24\", factor = 20 }"),
                "invalid prefix \"24\"",
                "\"24/48\"",
            ),
            (
                level("{ prefix = \"33/48\", factor = 20 }"),
                "invalid prefix",
                "\"24/48\"",
            ),
            (
                level("{ prefix = 24, factor = 20 }"),
                "prefix is an integer",
                "\"24/48\"",
            ),
            (
                level("{ key = \"asm\", factor = 20 }"),
                "key = \"asm\" is not supported in levels",
                "key = \"asn\"",
            ),
            (
                level("{ key = \"asn\", factor = 20 }"),
                "[geo] asn is not set",
                "asn.mmdb",
            ),
            (
                level(&format!("{{ key = \"asn\", factor = 10 }}, {wide}")),
                "not wider than the level before, a network",
                "prefixes first",
            ),
            (
                level("{ prefix = \"24/48\", factor = 0.5 }"),
                "invalid factor",
                "factor = 20",
            ),
            (
                level("{ prefix = \"24/48\", factor = 2000000 }"),
                "invalid factor",
                "1000000",
            ),
            (
                level("{ prefix = \"24/48\", factor = 20, rate = \"5/s\" }"),
                "unknown key \"rate\" in levels",
                "factor",
            ),
            (
                level("{ prefix = \"32/64\", factor = 20 }"),
                "not wider than the limit's own key",
                "shorter",
            ),
            (
                level("{ prefix = \"24/65\", factor = 20 }"),
                "not wider than the limit's own key, 32/64",
                "shorter",
            ),
            (
                level(&format!("{wide}, {{ prefix = \"25/48\", factor = 30 }}")),
                "than the level before, 24/48",
                "shorter",
            ),
            (
                level(&format!("{wide}, {{ prefix = \"16/48\", factor = 20 }}")),
                "not above that of the level",
                "than 20",
            ),
            (
                level(&format!("{{ key = \"all\", factor = 10 }}, {wide}")),
                "not wider than the level before",
                "last",
            ),
            (
                format!("{}\nkey = \"class\"", level(wide)),
                "not supported with key = \"class\"",
                "key = \"all\"",
            ),
            (
                format!("{}\nkey = \"all\"", level(wide)),
                "not supported with key = \"all\"",
                "key = \"source\"",
            ),
            (
                format!("{}\ncluster = true", level(wide)),
                "levels conflicts with cluster",
                "without cluster",
            ),
            (
                format!(
                    "{}\nrate = \"100/s\"\nalgorithm = \"sliding-log\"",
                    level(wide)
                ),
                "times 20 is 2000, and a sliding log holds at most 1024",
                "sliding-window",
            ),
            (
                format!(
                    "{}\nrate = \"100000000000/s\"",
                    level("{ prefix = \"24/48\", factor = 20 }")
                ),
                "holds at most 1099511627776",
                "smaller factor",
            ),
            (
                level("{ prefix = \"7/48\", factor = 20 }")
                    + "\nescalate = { after = 10, within = \"10s\", ban = \"10m\" }\nprotocol = \"tcp\"",
                "escalate is not supported with level 7/48",
                "8/16",
            ),
        ] {
            let errors = read(&lines)
                .err()
                .unwrap_or_else(|| panic!("{lines} is accepted"));
            let has = |(of, how): &(String, String)| of.contains(message) && how.contains(help);
            assert!(errors.iter().any(has), "{lines}\n{errors:?}");
        }
    }

    #[test]
    fn a_limit_with_the_name_of_a_level_is_an_error() {
        let errors = read(
            "rate = \"10/s\"\nlevels = [{ prefix = \"24/48\", factor = 20 }]\n[[limit]]\nname = \"web at 24/48\"\nrate = \"1/s\"",
        );
        assert!(
            errors.unwrap_err()[0]
                .0
                .contains("duplicate limit name \"web at 24/48\"")
        );
    }
}
