use common::connections::MOST_CONCURRENT;

use super::key::{key, words};
use crate::escalate::{Counts, GROW};
use crate::schema::{Absent, Key, Kind, TableReference};

pub const LIMIT: TableReference = TableReference {
    heading: "[[limit]]",
    variant: None,
    page: "limit",
    summary: "A limit on packets, enforced in the kernel.",
    keys: &[
        NAME,
        Key {
            default: Absent::Unless("concurrent"),
            ..RATE
        },
        key(
            "concurrent",
            Kind::Integer(1, MOST_CONCURRENT),
            Absent::Described("off: the limit has a rate"),
            "Open TCP connections at one time per key, instead of a rate. Only with `unit = \"connections\"`, on ingress. \
             With a `key` that sources share, `prove` keeps forged SYNs from using it up. See the guide on open connections.",
        ),
        key(
            "burst",
            Kind::Either(&[Kind::Integer(1, u32::MAX as u64), Kind::Size(&["256KiB"])]),
            Absent::Described(
                "the rate's count; for bytes a quarter of a second, at least 256 KiB",
            ),
            "Units that pass at once after a pause. A size for `unit = \"bytes\"`, else a number. Only for `token-bucket` and \
             `leaky-bucket`.",
        ),
        key(
            "direction",
            Kind::Words(|| vec!["ingress", "egress"]),
            Absent::Value("\"ingress\""),
            "Whether the limit applies to incoming or outgoing packets.",
        ),
        key(
            "protocol",
            words!(ProtocolFilter),
            Absent::Value("\"any\""),
            "Protocol of the packets. `icmp` includes ICMPv6.",
        ),
        key(
            "ports",
            Kind::Either(&[
                Kind::Integer(1, 65_535),
                Kind::Text(&["8000-8100", "ssh"]),
                Kind::List(&Kind::Either(&[
                    Kind::Integer(1, 65_535),
                    Kind::Text(&["8000-8100", "ssh"]),
                ])),
            ]),
            Absent::Described("every packet, those without ports included"),
            "Local ports of TCP and UDP: numbers, ranges, services by name.",
        ),
        key(
            "sources",
            Kind::Either(&[
                Kind::Text(&["192.0.2.0/24", "!192.0.2.7"]),
                Kind::List(&Kind::Text(&[
                    "192.0.2.0/24",
                    "!192.0.2.7",
                    "2001:db8::/32",
                ])),
            ]),
            Absent::Described("every source"),
            "The only sources that the limit applies to: addresses and prefixes, with `!` those it does not apply to. The \
             longest prefix around an address decides; where all have `!`, the limit applies to all others. On egress \
             they are destinations.",
        ),
        key(
            "asn",
            Kind::List(&Kind::Integer(1, 4_294_967_295)),
            Absent::Described("none"),
            "Numbers of autonomous systems: with `asn` or `country`, the limit applies only to their addresses and to \
             `sources`. A prefix in `sources` decides for all addresses within it. Requires `[geo] asn`.",
        ),
        key(
            "country",
            Kind::List(&Kind::Text(&["XX"])),
            Absent::Described("none"),
            "Countries, as codes of ISO 3166-1, in the same way. Requires `[geo] country`.",
        ),
        key(
            "interfaces",
            Kind::Either(&[
                Kind::Text(&["eth0", "wg*"]),
                Kind::List(&Kind::Text(&["eth0", "wg*"])),
            ]),
            Absent::Described("every interface of `[agent] interfaces`"),
            "The only interfaces that the limit applies to: names or patterns, of those in `[agent] interfaces`.",
        ),
        key(
            "key",
            Kind::Words(|| {
                vec![
                    "source",
                    "source-port",
                    "class",
                    "interface",
                    "asn",
                    "all",
                    "destination",
                ]
            }),
            Absent::Described("`\"source\"`; for egress `\"destination\"`"),
            "Packets that share one allowance: those of one address, of one address and local port, of all sources of \
             a class, of an interface, of all addresses in a network (`asn`, an autonomous system by the database `[geo] \
             asn`; addresses in none share that of their prefix), or all to which the limit applies (`all`). On egress \
             the address is the packet's destination, written `\"destination\"`.",
        ),
        Key {
            default: Absent::Described("32; 24 with `key = \"asn\"`"),
            ..IPV4_PREFIX
        },
        Key {
            default: Absent::Described("64; 48 with `key = \"asn\"`"),
            ..IPV6_PREFIX
        },
        key(
            "unit",
            words!(Unit),
            Absent::Value("\"packets\""),
            "Unit of the limit. `bytes` are those of whole frames. `connections` are TCP SYNs. `requests` are HTTP/1.x \
             request heads and DNS queries; encrypted ones are not visible to the kernel.",
        ),
        ALGORITHM,
        key(
            "throttle",
            Kind::Either(&[
                Kind::Words(|| vec!["hard"]),
                Kind::OneKey(&[
                    key(
                        "soft",
                        Kind::Percent(&["10%"]),
                        Absent::Described("not soft"),
                        "Share above the limit that passes, counted separately: above 0, at most 1000 %.",
                    ),
                    key(
                        "elastic",
                        Kind::Table(&[key(
                            "up_to",
                            Kind::Number(1.0, 1_000.0),
                            Absent::Invalid,
                            "Factor on the limit while the host has CPU and memory to spare: above 1.",
                        )]),
                        Absent::Described("not elastic"),
                        "Allows a multiple of the limit while the host has spare resources, and the limit itself otherwise.",
                    ),
                ]),
            ]),
            Absent::Value("\"hard\""),
            "Packets that pass above the limit. `hard`: none.",
        ),
        key(
            "action",
            Kind::Either(&[
                Kind::Words(|| vec!["drop", "observe", "reject", "mark", "shape"]),
                Kind::Table(&[key(
                    "mark",
                    Kind::Table(&[
                        key(
                            "mark",
                            Kind::Integer(0, u32::MAX as u64),
                            Absent::Described("unchanged"),
                            "The packet's mark inside this host, for nftables and routing rules.",
                        ),
                        key(
                            "dscp",
                            Kind::Integer(0, 63),
                            Absent::Described("unchanged"),
                            "The packet's code point (DSCP) on the wire.",
                        ),
                    ]),
                    Absent::Invalid,
                    "Values to set; `\"mark\"` without a table sets mark 1 and DSCP 8.",
                )]),
            ]),
            Absent::Value("\"drop\""),
            "What happens to a packet above the limit. `drop` refuses it silently. `observe` counts it. `reject` refuses it \
             with a TCP reset or ICMP \"administratively prohibited\". `mark` passes it marked. `shape` delays it, on \
             egress with `algorithm = \"leaky-bucket\"` under the `fq` queueing discipline.",
        ),
        key(
            "on_full",
            words!(OnFull),
            Absent::Value("\"share\""),
            "What happens to a new source while the table is full of busier ones. `share` charges it in hashed cells \
             that new sources share; `pass` exempts it; `throttle` refuses it.",
        ),
        TIERS,
        key(
            "levels",
            Kind::List(&Kind::Table(&[
                key(
                    "prefix",
                    Kind::Text(&["24/48"]),
                    Absent::Described("not a prefix"),
                    "The lengths for IPv4 and IPv6: addresses that agree in them share the level. Wider than the limit's own \
                     key and than the level before.",
                ),
                key(
                    "key",
                    Kind::Words(|| vec!["asn", "all"]),
                    Absent::Described("not a key"),
                    "`asn`: the network of the address, by the database `[geo] asn`. `all`: everything that the limit \
                     applies to, in its direction.",
                ),
                key(
                    "factor",
                    Kind::Number(1.0, 1e6),
                    Absent::Invalid,
                    "How many times the limit's rate, burst and tiers the level allows: more than the level before.",
                ),
            ])),
            Absent::Value("[]"),
            "The same limit at wider keys, the narrowest first: a packet must conform to the limit and to all levels, and is \
             charged to none if one refuses it. Each has a `factor`, and a `prefix` or a `key`. See the guide on levels.",
        ),
        key(
            "escalate",
            Kind::Table(&[
                key(
                    "after",
                    Kind::Integer(1, Counts::Packets.most()),
                    Absent::Invalid,
                    "Refused packets of one key, for any unit of the limit.",
                ),
                key(
                    "within",
                    Kind::Time(&["10s"]),
                    Absent::Invalid,
                    "The time in which they happen, from 1 s. It is exact to a sixteenth, or to 0.25 s where that is more.",
                ),
                ESCALATE_BAN,
                ESCALATE_GROW,
                ESCALATE_MAX,
            ]),
            Absent::Described("off"),
            "Bans a source whose packets the limit keeps refusing, within a second. A ban takes the key's address or \
             prefix, and refuses all of its packets on all interfaces. Only for `key = \"source\"` and `\"source-port\"` on \
             ingress.",
        ),
        SCOPE,
        PROVE,
        CLUSTER,
    ],
    example: "[agent]\ninterfaces = [\"eth0\"]\n\n[[limit]]\nname = \"connections-per-source\"\nprotocol = \"tcp\"\n\
              ports = [80, 443]\nunit = \"connections\"\nrate = \"50/s\"\nburst = 200\ntiers = [\"6000/h\"]\n",
};

pub const NAME: Key = key(
    "name",
    Kind::Text(&["connections-per-source"]),
    Absent::Invalid,
    "Unique name: the label in `agent limits`, events and metrics.",
);
pub const RATE: Key = key(
    "rate",
    Kind::Rate(&["1000/s", "60/min", "10/5s", "10MB/s", "100Mbit/s"]),
    Absent::Invalid,
    "Count per time: `N/s`, `N/min`, `N/h`, `N/day`, `N/week`, `N/month` (30 days), or per any time as `10/5s`. A limit on \
     bytes takes a size (`10MB/s`) or bits (`100Mbit/s`). From one a year to 1,099,511,627,776.",
);
pub const IPV4_PREFIX: Key = key(
    "ipv4_prefix",
    Kind::Integer(0, 32),
    Absent::Described("32"),
    "IPv4 addresses that agree in this many bits share an allowance. Only with an address in the key.",
);
pub const IPV6_PREFIX: Key = key(
    "ipv6_prefix",
    Kind::Integer(0, 128),
    Absent::Described("64"),
    "The same for IPv6. A customer's network is a /64 or wider.",
);
pub const ALGORITHM: Key = key(
    "algorithm",
    words!(Algorithm),
    Absent::Value("\"token-bucket\""),
    "How the rate is measured. `sliding-log` is exact and keeps one instant per packet, at most 1,024.",
);
pub const TIERS: Key = key(
    "tiers",
    Kind::List(&Kind::Rate(&["60/h", "10/5s"])),
    Absent::Value("[]"),
    "Further rates on the same key, at most six. A packet or request must conform to all, and is charged to none if one \
     refuses it.",
);
pub const ESCALATE_BAN: Key = key(
    "ban",
    Kind::Time(&["10m"]),
    Absent::Invalid,
    "How long the kernel refuses the source the first time.",
);
pub const ESCALATE_GROW: Key = key(
    "grow",
    Kind::Number(GROW.0, GROW.1),
    Absent::Described("1.0: every ban is as long as the first"),
    "Factor by which each further ban of the source is longer than the previous one.",
);
pub const ESCALATE_MAX: Key = key(
    "max",
    Kind::Time(&["1d"]),
    Absent::Described("with `grow` a day, or `ban` if that is longer"),
    "The longest ban. A source that is not banned for this time after its last ban starts over with `ban`.",
);
pub const SCOPE: Key = key(
    "scope",
    Kind::Words(|| vec!["packet", "request"]),
    Absent::Described("`\"packet\"`"),
    "`packet`: enforced in the kernel. `request`: for requests of applications, see the keys of request limits.",
);
const PROVE: Key = key(
    "prove",
    Kind::Either(&[words!(Prove), Kind::Boolean]),
    Absent::Value("false"),
    "Whether sources of TCP prove their address before they take a slot or a socket: this host answers their SYN by a \
     SYN cookie, in the kernel's place. `in-use`: while the kernel has cookies in use, that is, while the \
     listener's queue of SYNs is full. `always`: Weir sets `net.ipv4.tcp_syncookies` to 2. `true` is \
     `in-use`. `reset`: by a challenge that the source resets, which needs no listener; a source's first connection \
     takes 10 ms longer from Linux, a second and more from other systems. See [Sources that prove their address](../../guides/prove.md).",
);
pub const CLUSTER: Key = key(
    "cluster",
    Kind::Either(&[words!(ClusterMode), Kind::Boolean]),
    Absent::Value("false"),
    "How all hosts of `[cluster]` enforce the limit together. `shares`: each host has a share of the limit that follows \
     demand. `keys`: each key has the whole limit, wherever it is used. `true` is `shares`.",
);
