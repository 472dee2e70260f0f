//! Names that a config may say in one place: an enum each.

use std::fmt;

/// Names written in a config: each enum's words, for parsing, listing and printing.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$variant_doc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$variant_doc])* $variant),+ }

        impl $name {
            /// Every word there is, in order.
            pub const WORDS: &'static [(&'static str, Self)] = &[$(($word, Self::$variant)),+];
        }

        impl fmt::Display for $name {
            fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str(match self { $(Self::$variant => $word),+ })
            }
        }
    };
}

words!(
    /// Where to hook in.
    Attach {
        /// Native XDP, else TC.
        Auto = "auto",
        /// Native XDP or not at all.
        Native = "native",
        /// Generic XDP.
        Generic = "generic",
        /// TC.
        Tc = "tc",
    }
);
words!(
    /// Whether to throttle.
    Mode {
        /// Throttle.
        Enforce = "enforce",
        /// Count what would be throttled, and throttle nothing.
        Observe = "observe",
    }
);
words!(
    /// What becomes of the limits when the agent ends.
    OnExit {
        /// They stay in force.
        Keep = "keep",
        /// They are taken out.
        Detach = "detach",
    }
);
words!(
    /// Who is never throttled without being named.
    Shield {
        /// The address of the SSH session that the agent is started or told from.
        Ssh = "ssh",
        /// The default gateways.
        Gateways = "gateways",
        /// The cluster's store.
        Store = "store",
    }
);
words!(
    /// Which packets a limit is for.
    ProtocolFilter {
        /// All.
        Any = "any",
        /// TCP.
        Tcp = "tcp",
        /// UDP.
        Udp = "udp",
        /// ICMP and ICMPv6.
        Icmp = "icmp",
    }
);
words!(
    /// What holds on a host whose leases have run out since the store does not answer.
    WhenStoreIsDown {
        /// The limit, divided by the hosts last seen.
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
    /// What a limit counts by.
    Key {
        /// The other side's address.
        Source = "source",
        /// The address and the local port.
        SourcePort = "source-port",
        /// The class of the address.
        Class = "class",
        /// The interface.
        Interface = "interface",
    }
);
words!(
    /// What a limit counts.
    Unit {
        /// Packets.
        Packets = "packets",
        /// Bytes of whole frames.
        Bytes = "bytes",
        /// TCP connections: SYN without ACK.
        Connections = "connections",
        /// HTTP/1.x request heads and DNS queries.
        Requests = "requests",
    }
);
words!(
    /// How a limit counts.
    Algorithm {
        /// Refilled continuously, holding at most the burst.
        TokenBucket = "token-bucket",
        /// Drained continuously, holding at most the burst.
        LeakyBucket = "leaky-bucket",
        /// A count that starts over.
        FixedWindow = "fixed-window",
        /// Two counts, the older one weighed.
        SlidingWindow = "sliding-window",
        /// Every instant.
        SlidingLog = "sliding-log",
    }
);
words!(
    /// What becomes of a new key when the table is full of busier ones.
    OnFull {
        /// Its packets pass.
        Pass = "pass",
        /// They are refused.
        Throttle = "throttle",
        /// One bucket for all of them.
        Share = "share",
    }
);

impl Key {
    /// Whether keys hold an address.
    #[must_use]
    pub const fn has_address(self) -> bool {
        matches!(self, Self::Source | Self::SourcePort)
    }

    /// Whether keys hold a port.
    #[must_use]
    pub const fn has_port(self) -> bool {
        matches!(self, Self::SourcePort)
    }

    /// Whether an address alone says which key is its.
    #[must_use]
    pub const fn is_of_one_address(self) -> bool {
        matches!(self, Self::Source | Self::Class)
    }
}

impl Algorithm {
    /// Whether it has a burst.
    #[must_use]
    pub const fn has_burst(self) -> bool {
        matches!(self, Self::TokenBucket | Self::LeakyBucket)
    }
}
