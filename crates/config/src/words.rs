//! Enums of the words that a config may contain.

use std::fmt;

use common::limiter::Algorithm;
use common::packet::Direction;
use toml::de::DeValue;

use super::report::{Problems, Wrong};
use super::schema::{self, At, Kind, Text, Value};
use super::suggestion::suggestion;

/// The word that is meant. Where several may be written, all of them too.
fn correction(text: &str, words: &[&str], key: &schema::Key) -> String {
    let nearest = suggestion(text, words);
    let is_list = matches!(key.kind, Kind::List(_) | Kind::Either(_));
    if is_list && nearest.starts_with("did you mean") {
        format!("{nearest} All: {}", words.join(", "))
    } else {
        nearest
    }
}

/// Defines an enum with its words, for parsing, listing and printing.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant),+ }

        impl $name {
            /// All words, in order.
            pub const WORDS: &'static [(&'static str, Self)] = &[$(($word, Self::$variant)),+];
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(match self { $(Self::$variant => $word),+ })
            }
        }
    };
}

/// Makes values of types with `WORDS`.
macro_rules! texts {
    ($($name:ident),+ $(,)?) => {$(
        impl Text for $name {
            const KIND: Kind = Kind::Words(|| words_of(Self::WORDS));

            fn parse(text: &str, key: &schema::Key) -> Result<Self, Wrong> {
                word(text, key, Self::WORDS)
            }

            fn text(&self) -> String {
                self.to_string()
            }
        }
    )+};
}

/// Makes values of types with `WORDS`, which may also be `true` for one of them, or `false` for none.
macro_rules! switches {
    ($($name:ident = $on:ident),+ $(,)?) => {$(
        impl Value for $name {
            const KIND: Kind = Kind::Either(&[
                Kind::Words(|| words_of(Self::WORDS)),
                Kind::Boolean,
            ]);

            fn read(at: At<'_>, key: &schema::Key, problems: &mut Problems) -> Option<Self> {
                match at.get_ref() {
                    DeValue::Boolean(is_on) => is_on.then_some(Self::$on),
                    DeValue::String(text) => match word(text, key, Self::WORDS) {
                        Ok(value) => Some(value),
                        Err(wrong) => {
                            problems.error(at.span(), wrong.message, wrong.help);
                            None
                        }
                    },
                    _ => {
                        let others = words_of(Self::WORDS).split_off(1).join("\", \"");
                        let on = Self::$on;
                        let help =
                            format!("write {} = true (\"{on}\"), \"{others}\" or false", key.name);
                        key.not_a(at, help, problems);
                        None
                    }
                }
            }

            fn write(&self) -> Option<toml::Value> {
                Some(self.to_string().into())
            }

            fn write_none() -> Option<toml::Value> {
                Some(false.into())
            }

            fn shown(&self) -> String {
                self.to_string()
            }
        }
    )+};
}

fn words_of<T>(words: &[(&'static str, T)]) -> Vec<&'static str> {
    words.iter().map(|(word, _)| *word).collect()
}

/// One of these words, case-insensitive.
pub fn word<T: Copy>(
    text: &str,
    key: &schema::Key,
    words: &[(&'static str, T)],
) -> Result<T, Wrong> {
    let found = words
        .iter()
        .find(|(word, _)| word.eq_ignore_ascii_case(text));
    found.map(|(_, value)| *value).ok_or_else(|| {
        let message = format!("invalid {} {text:?}", key.name);
        Wrong::new(message, correction(text, &words_of(words), key))
    })
}

texts!(
    Attach,
    Mode,
    OnExit,
    Shield,
    ProtocolFilter,
    WhenStoreIsDown,
    Unit,
    OnFull,
    NotifyOn,
    Scope,
    RequestUnit,
    RequestEnforcement,
    RequestProtocol,
    Algorithm
);
switches!(Prove = InUse, ClusterMode = Shares);

const DIRECTIONS: &[(&str, Direction)] = &[
    ("ingress", Direction::Ingress),
    ("egress", Direction::Egress),
];

/// The word of a direction.
#[must_use]
pub const fn direction_name(direction: Direction) -> &'static str {
    match direction {
        Direction::Ingress => DIRECTIONS[0].0,
        Direction::Egress => DIRECTIONS[1].0,
    }
}

impl Text for Direction {
    const KIND: Kind = Kind::Words(|| words_of(DIRECTIONS));

    fn parse(text: &str, key: &schema::Key) -> Result<Self, Wrong> {
        word(text, key, DIRECTIONS)
    }

    fn text(&self) -> String {
        direction_name(*self).to_owned()
    }
}

/// The word for [`Key::Source`] on egress.
pub const DESTINATION: &str = "destination";

impl Text for Key {
    const KIND: Kind = Kind::Words(|| {
        let words = Self::WORDS.iter().map(|(word, _)| *word);
        words.chain([DESTINATION]).collect()
    });

    fn parse(text: &str, key: &schema::Key) -> Result<Self, Wrong> {
        if text == DESTINATION {
            return Ok(Self::Source);
        }
        word(text, key, Self::WORDS)
    }

    fn text(&self) -> String {
        self.to_string()
    }
}

words!(
    /// The hook for ingress limits.
    Attach {
        /// Native XDP, else TC.
        Auto = "auto",
        /// Native XDP or not at all.
        Native = "native",
        /// Generic XDP.
        Generic = "generic",
        Tc = "tc",
    }
);
words!(
    /// Whether limits are enforced.
    Mode {
        /// Limits are enforced.
        Enforce = "enforce",
        /// Packets that would be refused are only counted.
        Observe = "observe",
    }
);
words!(
    /// The state of the limits after the agent ends.
    OnExit {
        /// Limits stay in effect.
        Keep = "keep",
        /// Limits are detached.
        Detach = "detach",
    }
);
words!(
    /// Kinds of exempt addresses that the agent detects.
    Shield {
        /// The address of the SSH session from which the agent was started or commanded.
        Ssh = "ssh",
        /// The default gateways.
        Gateways = "gateways",
        /// The cluster's store.
        Store = "store",
        /// The name servers of this host.
        Resolvers = "resolvers",
        /// The addresses of this host itself.
        Addresses = "addresses",
    }
);
words!(
    /// The protocols of a limit.
    ProtocolFilter {
        Any = "any",
        Tcp = "tcp",
        Udp = "udp",
        /// ICMP and ICMPv6.
        Icmp = "icmp",
    }
);
words!(
    /// The limit on a host whose leases have expired while the store is unavailable.
    WhenStoreIsDown {
        /// The limit divided by the number of hosts last known.
        Share = "share",
        /// The whole limit.
        Local = "local",
        /// Nothing is refused.
        Open = "open",
        /// Everything is refused.
        Closed = "closed",
    }
);
words!(
    /// How the hosts of a cluster share a limit.
    ClusterMode {
        /// Each host enforces a share of the limit.
        Shares = "shares",
        /// Each host enforces the whole limit, and hosts exchange the consumption of their busy keys.
        Keys = "keys",
    }
);
words!(
    /// When and how sources of a limit prove their address.
    Prove {
        /// While the kernel has SYN cookies in use.
        InUse = "in-use",
        /// Always: the kernel uses SYN cookies for every connection.
        Always = "always",
        /// Always, by resets: also for forwarded connections.
        Reset = "reset",
    }
);
words!(
    /// The key of a limit.
    Key {
        /// The remote address.
        Source = "source",
        /// The remote address and the local port.
        SourcePort = "source-port",
        /// The class of the remote address.
        Class = "class",
        Interface = "interface",
        /// The network (autonomous system) of the remote address.
        Asn = "asn",
        /// Everything that the limit applies to, per direction.
        All = "all",
    }
);
words!(
    /// The unit of a limit.
    Unit {
        Packets = "packets",
        /// Bytes of whole frames.
        Bytes = "bytes",
        /// TCP connections: SYN without ACK.
        Connections = "connections",
        /// HTTP/1.x request lines and DNS queries.
        Requests = "requests",
    }
);
words!(
    /// The action on a new key while the table is full of busier ones.
    OnFull {
        /// Its packets pass.
        Pass = "pass",
        /// Its packets are refused.
        Throttle = "throttle",
        /// All new keys share one bucket.
        Share = "share",
    }
);
words!(
    /// The protocols of `[decide]`, by the keys of their addresses.
    RequestProtocol {
        Http = "http",
        Grpc = "grpc",
    }
);
words!(
    /// The events of a `[[notify]]`.
    NotifyOn {
        /// A ban by a limit or an operator.
        Ban = "ban",
        /// A ban that would be made in enforce mode.
        WouldBan = "would-ban",
        /// The start and the end of an attack.
        Attack = "attack",
        /// The start and the end of an overload under a fair limit, and its release where it cannot help.
        Overload = "overload",
        /// A trial that was not confirmed, or that could not be rolled back.
        TrialFailed = "trial-failed",
        /// An interface on which limits are in effect from now on, or not any more.
        Interface = "interface",
        /// The cluster's store is unavailable, or available again.
        StoreDown = "store-down",
        /// CrowdSec's local API is unavailable, or available again.
        CrowdsecDown = "crowdsec-down",
        /// A ban list could not be read or put in effect.
        ListFailed = "list-failed",
        /// A database of `[geo]` cannot be used.
        GeoFailed = "geo-failed",
        /// A limit is not enforced, in whole or on one port or group, as the event says.
        NotEnforced = "not-enforced",
        /// Rules of the fleet that are refused or stopped, that no host begins with, or whose store is unavailable.
        Rules = "rules",
        /// A limit on requests has no room for new keys.
        KeysFull = "keys-full",
        /// The kernel killed processes of a group.
        OomKill = "oom-kill",
        /// A source is refused.
        Throttled = "throttled",
    }
);

words!(
    /// What a limit is on.
    Scope {
        /// Packets, in the kernel.
        Packet = "packet",
        /// Requests of applications.
        Request = "request",
    }
);
words!(
    /// The unit of a limit on requests.
    RequestUnit {
        /// The costs of requests.
        Credits = "credits",
        /// Requests, each as one unless the caller states a cost.
        Requests = "requests",
    }
);
words!(
    /// The action on a request above the limit.
    RequestEnforcement {
        /// It is refused.
        Enforce = "drop",
        /// It is counted and passes.
        Observe = "observe",
    }
);

impl Key {
    /// Whether the key contains an address.
    #[must_use]
    pub const fn has_address(self) -> bool {
        matches!(self, Self::Source | Self::SourcePort)
    }

    /// Whether prefixes of some length have a key of their own: for networks, where an address is in none.
    #[must_use]
    pub const fn has_prefix(self) -> bool {
        self.has_address() || matches!(self, Self::Asn)
    }

    /// The default lengths of these prefixes, for IPv4 and IPv6.
    #[must_use]
    pub const fn default_prefixes(self) -> (u8, u8) {
        if matches!(self, Self::Asn) {
            (24, 48)
        } else {
            (32, 64)
        }
    }

    /// Whether the key contains a port.
    #[must_use]
    pub const fn has_port(self) -> bool {
        matches!(self, Self::SourcePort)
    }
}
