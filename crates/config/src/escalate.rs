//! `escalate`: a source whose packets or requests a limit keeps refusing is banned.

use common::limiter::sliding_log::LARGEST_LOG;

use super::policy::{
    Action, Direction, Escalate, LevelKey, Limit, Multiplier, ProtocolFilter, Unit,
};
use super::read_limit::ReadLimit;
use super::report::Problems;
use super::table::{Table, float};

/// The subject of a limit, whose refusals an `escalate` counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counts {
    /// Packets, by samples of the kernel's counters.
    Packets,
    /// Requests, exactly, in a sliding log.
    Requests,
}

/// The largest `after` of a limit on packets.
pub const MOST_REFUSED_PACKETS: u64 = 1_000_000_000;
/// The range of `grow`.
pub const GROW: (f64, f64) = (1.0, 1_000.0);
/// The least `within`, in nanoseconds: the kernel's counters are read several times in it.
pub const LEAST_WITHIN: u64 = 1_000_000_000;
/// The default of `max`, in nanoseconds.
const DEFAULT_MAX: u64 = 24 * 60 * 60 * 1_000_000_000;
/// The widest prefix lengths (IPv4, IPv6) that may be banned; `agent ban` requires `--force` beyond them.
const WIDEST: (u8, u8) = (8, 16);

impl Counts {
    /// The largest `after`.
    #[must_use]
    pub const fn most(self) -> u64 {
        match self {
            Self::Packets => MOST_REFUSED_PACKETS,
            Self::Requests => LARGEST_LOG,
        }
    }

    /// `packets` or `requests`.
    #[must_use]
    pub const fn noun(self) -> &'static str {
        match self {
            Self::Packets => "packets",
            Self::Requests => "requests",
        }
    }

    const fn example(self) -> &'static str {
        match self {
            Self::Packets => "{ after = 1000, within = \"10s\", ban = \"10m\" }",
            Self::Requests => "{ after = 20, within = \"1m\", ban = \"5m\" }",
        }
    }
}

/// Reads the key if it is present.
pub fn read(table: &mut Table<'_, '_>, counts: Counts) -> Option<Escalate> {
    let value = table.value("escalate")?;
    let Some(content) = value.get_ref().as_table() else {
        table.wrong_type(
            "escalate",
            value,
            &format!("a table: escalate = {}", counts.example()),
        );
        return None;
    };
    let mut inner = Table::new(content, value.span(), "escalate", table.problems);
    inner.required("after", "20");
    let after = inner.number("after", 1, counts.most());
    inner.required("within", "\"1m\"");
    let within = inner.time("within", "\"1m\"");
    if counts == Counts::Packets && within.is_some_and(|within| within < LEAST_WITHIN) {
        let span = inner.span_of("within");
        let message =
            "within is shorter than a second: refused packets are counted four times a second";
        inner
            .problems
            .error(span, message, "write within = \"1s\" or longer");
    }
    inner.required("ban", "\"5m\"");
    let ban = inner.time("ban", "\"5m\"");
    let grow = grow(&mut inner);
    let max = inner.time("max", "\"1d\"");
    let grows = grow.is_some_and(|grow| grow != Multiplier::ONE);
    if let (Some(max), Some(ban)) = (max, ban) {
        let wrong = if max < ban {
            Some((
                "max is shorter than the first ban",
                "write a max that is at least ban",
            ))
        } else if !grows && inner.value("grow").is_none() {
            Some((
                "max requires grow: without it every ban is as long as the first",
                "add grow = 2.0",
            ))
        } else {
            None
        };
        if let Some((message, help)) = wrong {
            let span = inner.span_of("max");
            inner.problems.error(span, message, help);
        }
    }
    inner.finish();
    let (after, within, ban) = (after?, within?, ban?);
    let max = if grows {
        max.unwrap_or(DEFAULT_MAX).max(ban)
    } else {
        ban
    };
    Some(Escalate {
        after,
        within,
        ban,
        grow: grow.unwrap_or(Multiplier::ONE),
        max,
    })
}

fn grow(table: &mut Table<'_, '_>) -> Option<Multiplier> {
    let value = table.value("grow")?;
    let grow = float(value)
        .filter(|grow| (GROW.0..=GROW.1).contains(grow))
        .and_then(Multiplier::new);
    if grow.is_none() {
        let message = "invalid grow: each further ban is longer by this factor";
        table.problems.error(
            value.span(),
            message,
            "write a number from 1.0 to 1000.0: grow = 2.0",
        );
    }
    grow
}

/// Checks that limits on packets with `escalate` have a key that can be banned.
pub fn check(limits: &[ReadLimit], problems: &mut Problems) {
    for ReadLimit {
        limit,
        escalate_span,
        ..
    } in limits.iter().filter(|read| read.limit.escalate.is_some())
    {
        let error = if limit.direction == Direction::Egress {
            let message = "escalate is not supported on egress: a ban refuses incoming packets, by their source";
            Some((
                message.to_owned(),
                "set direction = \"ingress\", or leave out escalate".to_owned(),
            ))
        } else if !limit.key.has_address() {
            let message = format!(
                "escalate requires a key with a source: key = \"{}\" has none to ban",
                limit.key
            );
            Some((
                message,
                "set key = \"source\", or leave out escalate".to_owned(),
            ))
        } else {
            let prefixes = [
                ("ipv4_prefix", limit.ipv4_prefix, WIDEST.0),
                ("ipv6_prefix", limit.ipv6_prefix, WIDEST.1),
            ];
            prefixes.into_iter().find(|(_, length, widest)| length < widest).map(|(key, length, widest)| {
                let message =
                    format!("escalate is not supported with {key} = {length}: one source would ban the whole prefix");
                (message, format!("set {key} to {widest} or more, or leave out escalate"))
            })
        };
        if let Some((message, help)) = error.or_else(|| too_wide(limit)) {
            problems.error(escalate_span.clone(), message, help);
        } else if !refuses(limit) {
            let message = "escalate has no effect: this action refuses nothing";
            problems.warning(
                escalate_span.clone(),
                message,
                "set action = \"drop\", or leave out escalate",
            );
        } else if (limit.protocol != ProtocolFilter::Tcp || limit.unit == Unit::Connections)
            && !limit.proves_by_cookies()
        {
            let message =
                "escalate bans source addresses, which senders can forge to have others banned";
            let help = if limit.unit == Unit::Connections {
                "set prove = true, and list addresses that must not be banned in [agent] never_limit"
            } else {
                "set protocol = \"tcp\" where that fits, and list addresses that must not be banned in [agent] \
                 never_limit"
            };
            problems.warning(escalate_span.clone(), message, help);
        }
    }
}

/// The error for a level whose prefix is too wide to be banned.
fn too_wide(limit: &Limit) -> Option<(String, String)> {
    let is_wide = |key: &LevelKey| matches!(key, LevelKey::Prefix { ipv4, ipv6 } if *ipv4 < WIDEST.0 || *ipv6 < WIDEST.1);
    let key = limit.levels.iter().map(|level| level.key).find(is_wide)?;
    let message =
        format!("escalate is not supported with level {key}: it would ban the whole prefix");
    let help = format!(
        "write lengths of at least {}/{}, or key = \"all\", which is never banned",
        WIDEST.0, WIDEST.1
    );
    Some((message, help))
}

const fn refuses(limit: &Limit) -> bool {
    !matches!(limit.action, Action::Observe | Action::Mark(_))
}

/// The limits on packets with `escalate`, each with its index.
pub fn of_packets(limits: &[Limit]) -> impl Iterator<Item = (usize, Escalate)> + '_ {
    let limits = limits
        .iter()
        .enumerate()
        .filter(|(_, limit)| refuses(limit));
    limits.filter_map(|(nth, limit)| Some((nth, limit.escalate?)))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use proptest::prelude::*;

    use super::*;
    use crate::{Loaded, parse};

    const SECOND: u64 = 1_000_000_000;

    fn read(lines: &str) -> Result<Loaded, Vec<(String, String)>> {
        let text = format!(
            "[agent]\ninterfaces = [\"eth0\"]\n[[limit]]\nname = \"a\"\nprotocol = \"tcp\"\nrate = \"10/s\"\n{lines}\n"
        );
        let text = if lines.contains("protocol") {
            text.replacen("protocol = \"tcp\"\n", "", 1)
        } else {
            text
        };
        let errors = |report: crate::report::Report| {
            report
                .errors
                .into_iter()
                .map(|error| (error.message, error.help))
                .collect()
        };
        parse(Path::new("limits.toml"), &text).map_err(errors)
    }

    fn escalate(inner: &str) -> Escalate {
        let loaded = read(&format!("escalate = {{ {inner} }}"))
            .unwrap_or_else(|errors| panic!("{inner}: {errors:?}"));
        assert!(loaded.warnings.is_empty(), "{:?}", loaded.warnings);
        loaded.config.limits[0].escalate.unwrap()
    }

    #[test]
    fn growth_is_read_with_its_defaults() {
        let plain = escalate("after = 1000, within = \"10s\", ban = \"10m\"");
        let minutes = 60 * SECOND;
        let ban = 10 * minutes;
        assert_eq!(
            plain,
            Escalate {
                after: 1_000,
                within: 10 * SECOND,
                ban,
                grow: Multiplier::ONE,
                max: ban
            }
        );
        let grow = Multiplier::new(2.0).unwrap();
        let growing = escalate("after = 1000, within = \"10s\", ban = \"10m\", grow = 2.0");
        assert_eq!(
            growing,
            Escalate {
                grow,
                max: 24 * 60 * minutes,
                ..plain
            }
        );
        let long = escalate("after = 1000, within = \"10s\", ban = \"7d\", grow = 2");
        assert_eq!(
            (long.ban, long.max),
            (7 * 24 * 60 * minutes, 7 * 24 * 60 * minutes)
        );
        let bounded =
            escalate("after = 1000, within = \"10s\", ban = \"10m\", grow = 2.0, max = \"30m\"");
        assert_eq!(bounded.max, 30 * minutes);
        assert_eq!(
            escalate("after = 1, within = \"1s\", ban = \"1s\", grow = 1.0, max = \"1m\"").max,
            SECOND
        );
        assert_eq!(
            growing.words(),
            "1,000 refusals in 10 s ban for 10 min, then 2 times as long up to 1 d"
        );
    }

    #[test]
    fn what_cannot_be_banned_is_an_error_with_the_way_to_do_it() {
        let table = "{ after = 1000, within = \"10s\", ban = \"10m\" }";
        let escalate = format!("escalate = {table}");
        for (lines, message, help) in [
            (
                "escalate = 5".to_owned(),
                "escalate is an integer",
                "after = 1000",
            ),
            (
                "escalate = { within = \"10s\", ban = \"10m\" }".to_owned(),
                "missing key \"after\" in escalate",
                "after = 20",
            ),
            (
                escalate.replace("1000", "0"),
                "after is out of range",
                "from 1 to 1000000000",
            ),
            (
                escalate.replace("10s", "900ms"),
                "within is shorter than a second",
                "within = \"1s\"",
            ),
            (
                escalate.replace("\"10s\"", "10"),
                "within is an integer",
                "within = \"1m\"",
            ),
            (
                escalate.replace(" }", ", grow = 0.5 }"),
                "invalid grow",
                "grow = 2.0",
            ),
            (
                escalate.replace(" }", ", grow = \"2\" }"),
                "invalid grow",
                "grow = 2.0",
            ),
            (
                escalate.replace(" }", ", max = \"1d\" }"),
                "max requires grow",
                "add grow = 2.0",
            ),
            (
                escalate.replace(" }", ", grow = 2.0, max = \"5m\" }"),
                "max is shorter than the first ban",
                "at least ban",
            ),
            (
                escalate.replace(" }", ", growth = 2.0 }"),
                "unknown key \"growth\" in escalate",
                "did you mean \"grow\"?",
            ),
            (
                format!("{escalate}\ndirection = \"egress\""),
                "not supported on egress",
                "direction = \"ingress\"",
            ),
            (
                format!("{escalate}\nkey = \"class\""),
                "key = \"class\" has none to ban",
                "key = \"source\"",
            ),
            (
                format!("{escalate}\nkey = \"interface\""),
                "key = \"interface\" has none",
                "key = \"source\"",
            ),
            (
                format!("{escalate}\nipv4_prefix = 0"),
                "ipv4_prefix = 0",
                "set ipv4_prefix to 8 or more",
            ),
            (
                format!("{escalate}\nipv6_prefix = 15"),
                "ipv6_prefix = 15",
                "set ipv6_prefix to 16 or more",
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
    fn what_is_probably_not_meant_is_a_warning() {
        let escalate = "escalate = { after = 1000, within = \"10s\", ban = \"10m\" }";
        for (lines, message) in [
            ("action = \"observe\"", "escalate has no effect"),
            ("action = \"mark\"", "escalate has no effect"),
            ("protocol = \"udp\"", "senders can forge"),
            ("protocol = \"any\"", "senders can forge"),
        ] {
            let loaded = read(&format!("{escalate}\n{lines}")).unwrap();
            let warnings: Vec<&str> = loaded
                .warnings
                .iter()
                .map(|warning| warning.message.as_str())
                .collect();
            assert!(
                matches!(warnings[..], [warning] if warning.contains(message)),
                "{lines}: {warnings:?}"
            );
            let bans = of_packets(&loaded.config.limits).count();
            assert_eq!(bans, usize::from(!lines.contains("action")), "{lines}");
        }
        let wide = read(&format!(
            "{escalate}\nkey = \"source-port\"\nipv4_prefix = 24\naction = \"reject\""
        ))
        .unwrap();
        assert!(wide.warnings.is_empty(), "{:?}", wide.warnings);
    }

    proptest! {
        /// The first ban lasts `ban`, each further one `grow` times as long, at most `max`.
        #[test]
        fn bans_grow_up_to_the_longest(ban in 1u64..1 << 50, factor in 1.0f64..1_000.0, more in 0u64..1 << 60) {
            let grow = Multiplier::new(factor).unwrap();
            let escalate = Escalate { after: 1, within: SECOND, ban, grow, max: ban + more };
            let mut before = None;
            for _ in 0..40 {
                let time = escalate.time_after(before);
                let expected = before.map_or(ban, |before| grow.units(before).clamp(ban, ban + more));
                prop_assert_eq!(time, expected);
                prop_assert!(time >= before.unwrap_or(ban) && time <= ban + more);
                before = Some(time);
            }
            // A longer last ban, from another config, does not exceed this config's `max`.
            prop_assert_eq!(escalate.time_after(Some(u64::MAX)), ban + more);
        }
    }
}
