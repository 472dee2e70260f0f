//! `escalate`: a source whose packets or requests a limit keeps refusing is banned.

use std::time::Duration;

use common::limiter::sliding_log::LARGEST_LOG;

use super::human;
use super::policy::Multiplier;
use super::report::{Problems, Wrong};
use super::schema::{At, Key, Kind, Located, Table, Value, read_inner};
use super::units;

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
/// The least `within`, in nanoseconds: the kernel's counters are read several times in it.
pub const LEAST_WITHIN: u64 = 1_000_000_000;
/// The default of `max`.
const DEFAULT_MAX: Duration = Duration::from_secs(24 * 60 * 60);

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
}

/// The keys of `escalate`, with texts and ranges for limits on packets.
#[derive(Clone, Debug, PartialEq, Eq, Table)]
#[table(inner, since = "0.1.0", check = check)]
pub struct EscalateTable {
    /// Refused packets of one key, for any unit of the limit.
    #[key(range = (1.0, Counts::Packets.most() as f64), examples = ["1000"])]
    after: u64,
    /// The time in which they happen, from 1 s. It is exact to a sixteenth, or to 0.25 s where that is more.
    #[key(examples = ["10s"], check = check_within)]
    within: Duration,
    /// How long the kernel refuses the source the first time.
    #[key(examples = ["10m"])]
    ban: Duration,
    /// Factor by which each further ban of the source is longer than the previous one.
    #[key(absent = "1.0: every ban is as long as the first", range = (1.0, 1_000.0))]
    #[key(examples = ["2.0"])]
    grow: Option<Multiplier>,
    /// The longest ban. A source that is not banned for this time after its last ban starts over with `ban`.
    #[key(absent = "with `grow` a day, or `ban` if that is longer", examples = ["1d"])]
    max: Option<Duration>,
}

/// The same keys for limits on requests.
pub const OF_REQUESTS: [Key; 5] = [
    Key {
        text: "Refusals of one client's address.",
        range: Some((1.0, Counts::Requests.most() as f64)),
        examples: &["20"],
        ..EscalateTable::AFTER
    },
    Key {
        text: "The time in which they happen.",
        examples: &["1m"],
        check: None,
        ..EscalateTable::WITHIN
    },
    EscalateTable::BAN,
    EscalateTable::GROW,
    EscalateTable::MAX,
];

impl EscalateTable {
    fn grows(&self) -> bool {
        self.grow.is_some_and(|grow| grow != Multiplier::ONE)
    }
}

fn check_within(text: &str, _: &Key) -> Result<(), Wrong> {
    if units::time(text).is_ok_and(|within| within < LEAST_WITHIN) {
        let message =
            "within is shorter than a second: refused packets are counted four times a second";
        return Err(Wrong::new(message, "write within = \"1s\" or longer"));
    }
    Ok(())
}

fn check(read: &Located<'_, EscalateTable>, problems: &mut Problems) {
    let table = &read.table;
    let Some(max) = table.max else { return };
    let (message, help) = if max < table.ban {
        (
            "max is shorter than the first ban",
            "write a max that is at least ban",
        )
    } else if !table.grows() && !read.has(&EscalateTable::GROW) {
        (
            "max requires grow: without it every ban is as long as the first",
            "add grow = 2.0",
        )
    } else {
        return;
    };
    problems.error(read.span_of(&EscalateTable::MAX), message, help);
}

/// Bans a source for `ban` after `after` refusals within `within`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Escalate {
    /// Refusals of one key of packets, or of one client's address.
    pub after: u64,
    /// The time span of these refusals, in nanoseconds.
    pub within: u64,
    /// The duration of the first ban, in nanoseconds.
    pub ban: u64,
    /// The factor on the duration of each further ban, at least 1.
    pub grow: Multiplier,
    /// The longest ban, in nanoseconds, at least the first one's. A source without a ban for this long starts over.
    pub max: u64,
}

impl Escalate {
    /// The next ban's duration in nanoseconds. `before` is the last ban's; `None` if there was none, or it is too long
    /// ago.
    #[must_use]
    pub fn time_after(&self, before: Option<u64>) -> u64 {
        before.map_or(self.ban, |before| {
            self.grow.units(before).max(self.ban).min(self.max)
        })
    }

    /// The same for a level: a wider key, which this many times as many refusals ban.
    #[must_use]
    pub fn times(self, factor: Multiplier) -> Self {
        Self {
            after: factor.units(self.after),
            ..self
        }
    }

    /// `1,000 refusals in 10 s ban for 10 min, then 2 times as long up to 1 d`.
    #[must_use]
    pub fn words(&self) -> String {
        let time = |nanoseconds| human::time(Duration::from_nanos(nanoseconds));
        let growth = match self.grow == Multiplier::ONE {
            true => String::new(),
            false => format!(
                ", then {} times as long up to {}",
                self.grow.factor(),
                time(self.max)
            ),
        };
        let (ban, within) = (time(self.ban), time(self.within));
        format!(
            "{} refusals in {within} ban for {ban}{growth}",
            human::number(self.after)
        )
    }
}

impl Value for Escalate {
    const KIND: Kind = EscalateTable::KIND;

    fn read(at: At<'_>, key: &Key, problems: &mut Problems) -> Option<Self> {
        let table = read_inner::<EscalateTable>(at, key, problems)?.table;
        let max = if table.grows() {
            table.max.unwrap_or(DEFAULT_MAX).max(table.ban)
        } else {
            table.ban
        };
        // Times are at most 366 days.
        let nanoseconds = |time: Duration| time.as_nanos() as u64;
        Some(Self {
            after: table.after,
            within: nanoseconds(table.within),
            ban: nanoseconds(table.ban),
            grow: table.grow.unwrap_or(Multiplier::ONE),
            max: nanoseconds(max),
        })
    }

    fn write(&self) -> Option<toml::Value> {
        None
    }

    fn shown(&self) -> String {
        self.words()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::path::Path;

    use common::escalation;
    use common::packet::build::Frame;
    use common::packet::{self, Depth, Link, parse};
    use common::rule::Rule;
    use proptest::prelude::*;

    use super::*;
    use crate::Loaded;
    use crate::policy::{ProtocolFilter, Unit};

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
        let text = if lines.contains("bytes") {
            text.replacen("10/s", "10MB/s", 1)
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
        crate::parse(Path::new("limits.toml"), &text).map_err(errors)
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
    fn limits_that_cannot_ban_are_errors_with_a_fix() {
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
                "after = 1000",
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
                "within = \"10s\"",
            ),
            (
                escalate.replace(" }", ", grow = 0.5 }"),
                "invalid grow",
                "grow = 2.0",
            ),
            (
                escalate.replace(" }", ", grow = \"2\" }"),
                "grow is a string",
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
    fn probable_mistakes_are_warnings() {
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
            let bans = loaded.config.bans().count();
            assert_eq!(bans, usize::from(!lines.contains("action")), "{lines}");
        }
        let wide = read(&format!(
            "{escalate}\nkey = \"source-port\"\nipv4_prefix = 24\naction = \"reject\""
        ))
        .unwrap();
        assert!(wide.warnings.is_empty(), "{:?}", wide.warnings);
    }

    /// Of all limits, `check` warns exactly of those under which the kernel counts a packet without a connection or a proof.
    #[test]
    fn a_ban_that_forged_packets_can_cause_is_a_warning() {
        let frame = || Frame::ethernet().ipv4([192, 0, 2, 1], [192, 0, 2, 2]);
        let packets = [
            (ProtocolFilter::Tcp, frame().tcp(1, 2, 2, b"")),
            (
                ProtocolFilter::Tcp,
                frame().tcp(1, 2, 16, b"GET / HTTP/1.1\r\n"),
            ),
            (ProtocolFilter::Udp, frame().udp(1, 53, &[0; 24])),
            (ProtocolFilter::Icmp, frame().icmp(8)),
        ]
        .map(|(protocol, frame)| (protocol, frame.build()));
        let mut of_kind = BTreeMap::new();
        for protocol in ["any", "tcp", "udp", "icmp"] {
            for unit in ["packets", "bytes", "connections", "requests"] {
                for prove in [
                    "",
                    "prove = true",
                    "prove = \"always\"",
                    "prove = \"reset\"",
                ] {
                    let case = format!("protocol = {protocol:?}\nunit = {unit:?}\n{prove}");
                    // Not all of them are supported.
                    let Ok(loaded) = read(&format!(
                        "{case}\nescalate = {{ after = 9, within = \"9s\", ban = \"9m\" }}"
                    )) else {
                        continue;
                    };
                    let limit = &loaded.config.limits[0];
                    let rule = Rule::EMPTY.escalating(true, limit.bans_by_syns());
                    let counts = |bytes: &[u8]| {
                        let packet = parse(bytes, Link::Ethernet, Depth::Ports).unwrap();
                        let is_of_unit = match limit.unit {
                            Unit::Connections => packet.kind == packet::Kind::Connection,
                            Unit::Requests => packet.kind != packet::Kind::Connection,
                            Unit::Packets | Unit::Bytes => true,
                        };
                        is_of_unit
                            && escalation::Counts::of(&rule, &packet) == escalation::Counts::Always
                    };
                    let is_fed = packets.iter().any(|(of, bytes)| {
                        let is_limited = [*of, ProtocolFilter::Any].contains(&limit.protocol);
                        // No request is an ICMP packet.
                        is_limited
                            && (unit, *of) != ("requests", ProtocolFilter::Icmp)
                            && counts(bytes)
                    });
                    let warning = loaded
                        .warnings
                        .iter()
                        .find(|warning| warning.message.contains("senders can forge"));
                    assert_eq!(warning.is_some(), is_fed, "{case}: {:?}", loaded.warnings);
                    let by = warning.and_then(|warning| warning.message.split_once("here by "));
                    *of_kind
                        .entry(by.map_or("", |(_, by)| by).to_owned())
                        .or_insert(0) += 1;
                }
            }
        }
        let found: Vec<(&str, u32)> = of_kind.iter().map(|(by, count)| (&**by, *count)).collect();
        assert_eq!(
            found,
            [
                ("", 16),
                ("DNS queries over UDP", 2),
                ("ICMP packets", 2),
                ("SYNs", 2),
                (
                    "SYNs in the name of a source that has proven its address",
                    2
                ),
                ("UDP and ICMP packets", 2),
                ("UDP packets", 2),
            ]
        );
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
