//! `[[limit]]` on packets.

use super::escalate::Escalate;
use super::fair::{Fair, FairTable, LimitRate};
use super::levels::Level;
use super::limit_action::{Action, Throttle};
use super::limit_scope::{LimitInterfaces, LimitSources};
use super::names;
use super::policy::{
    Algorithm, ClusterMode, Country, Direction, Key, OnFull, ProtocolFilter, Prove, Unit,
};
use super::ports::PortSet;
use super::rates::{Burst, RateSpec, RateText};
use super::report::Wrong;
use super::schema::{self, Table};
use super::words::{DESTINATION, Scope, direction_name};

/// The most open connections of one key.
const MOST_CONCURRENT: f64 = common::connections::MOST_CONCURRENT as f64;

/// A limit on packets, enforced in the kernel.
// `limit_rules` has the rules between its keys.
#[derive(Clone, Debug, PartialEq, Eq, Table)]
#[table(heading = "[[limit]]", since = "0.1.0")]
#[table(
    example = "[agent]\ninterfaces = [\"eth0\"]\n\n[[limit]]\nname = \"connections-per-source\"\n\
                   protocol = \"tcp\"\nports = [80, 443]\nunit = \"connections\"\nrate = \"50/s\"\nburst = 200\n\
                   tiers = [\"6000/h\"]\n"
)]
pub struct Limit {
    /// Unique name: the label in `weir limits`, events and metrics. At most 64 characters, without control characters.
    #[key(examples = ["connections-per-source"], check = check_name)]
    pub name: String,
    /// Count per time: `N/s`, `N/min`, `N/h`, `N/day`, `N/week`, `N/month` (30 days), or per any time as `10/5s`. A limit
    /// on bytes takes a size (`10MB/s`) or bits (`100Mbit/s`). From one a year to 1,099,511,627,776. `fair`: no number. While
    /// the servers behind it keep up, nothing is refused; while they do not, all sources have one level, which the agent finds.
    #[key(unless = "concurrent")]
    #[key(examples = ["1000/s", "60/min", "10/5s", "10MB/s", "100Mbit/s"])]
    pub(crate) rate: Option<LimitRate>,
    /// With `rate = "fair"`: bounds of the level, and the signs of an overload. On ingress, for `unit = "packets"`,
    /// `"connections"` and `"bytes"`, with `key = "source"`.
    #[key(absent = "no bounds, and the sockets on the limit's ports as signal")]
    pub(crate) fair: Option<FairTable>,
    /// Open TCP connections at one time per key, instead of a rate. Only with `unit = "connections"`, on ingress. With a
    /// `key` that sources share, `prove` keeps forged SYNs from using it up. See the guide on open connections.
    #[key(absent = "off: the limit has a rate", range = (1.0, MOST_CONCURRENT))]
    pub concurrent: Option<u64>,
    /// Units that pass at once after a pause. A size for `unit = "bytes"`, else a number. Only for `token-bucket` and
    /// `leaky-bucket`. A burst that takes thousands of years to refill makes other limits inexact; where by more than 1 %, it is an error.
    #[key(absent = "the rate's count; for bytes a quarter of a second, at least 256 KiB")]
    #[key(examples = ["256KiB"])]
    pub(crate) burst: Option<Burst>,
    /// Whether the limit applies to incoming or outgoing packets.
    #[key(default = Direction::Ingress)]
    pub direction: Direction,
    /// Protocol of the packets. `icmp` includes ICMPv6.
    #[key(default = ProtocolFilter::Any)]
    pub protocol: ProtocolFilter,
    /// Local ports of TCP and UDP: numbers, ranges, services by name.
    #[key(absent = "every packet, those without ports included", examples = ["8000-8100", "ssh"])]
    pub ports: Option<PortSet>,
    /// The only sources that the limit applies to: addresses and prefixes, with `!` those it does not apply to. The
    /// longest prefix around an address decides; where all have `!`, the limit applies to all others. On egress they are
    /// destinations.
    // With `asn` and `country`. `None`: all sources.
    #[key(absent = "every source", examples = ["192.0.2.0/24", "!192.0.2.7", "2001:db8::/32"])]
    pub sources: Option<LimitSources>,
    /// Numbers of autonomous systems: with `asn` or `country`, the limit applies only to their addresses and to `sources`.
    /// A prefix in `sources` decides for all addresses within it. Requires `[geo] asn`.
    #[key(absent = "none", range = (1.0, u32::MAX as f64), examples = ["64500"])]
    pub(crate) asn: Vec<u32>,
    /// Countries, as codes of ISO 3166-1, in the same way. Requires `[geo] country`.
    #[key(absent = "none", examples = ["XX"])]
    pub(crate) country: Vec<Country>,
    /// The only interfaces that the limit applies to: names or patterns, of those in `[agent] interfaces`.
    #[key(absent = "every interface of `[agent] interfaces`", examples = ["eth0", "wg*"])]
    pub interfaces: Option<LimitInterfaces>,
    /// Packets that share one allowance: those of one address, of one address and local port, of all sources of a class,
    /// of an interface, of all addresses in a network (`asn`, an autonomous system by the database `[geo] asn`; addresses
    /// in none share that of their prefix), or all to which the limit applies (`all`). On egress the address is the
    /// packet's destination, written `"destination"`.
    #[key(absent = "`\"source\"`; for egress `\"destination\"`", default = Key::Source)]
    pub key: Key,
    /// IPv4 addresses that agree in this many bits share an allowance. Only with an address in the key.
    #[key(absent = "32; 24 with `key = \"asn\"`", default = 32, range = (0.0, 32.0))]
    pub ipv4_prefix: u8,
    /// The same for IPv6. A customer's network is a /64 or wider.
    #[key(absent = "64; 48 with `key = \"asn\"`", default = 64, range = (0.0, 128.0))]
    pub ipv6_prefix: u8,
    /// Unit of the limit. `bytes` are those of whole frames. `connections` are TCP SYNs. `requests` are HTTP/1.x request
    /// lines and DNS queries, as segments and datagrams begin with them; encrypted ones are not visible to the kernel.
    #[key(default = Unit::Packets)]
    pub unit: Unit,
    /// How the rate is measured. `sliding-log` is exact and keeps one instant per packet, at most 1,024.
    #[key(default = Algorithm::TokenBucket)]
    pub(crate) algorithm: Algorithm,
    /// Packets that pass above the limit. `hard`: none.
    #[key(default = Throttle::Hard)]
    pub throttle: Throttle,
    /// What happens to a packet above the limit. `drop` refuses it silently. `observe` counts it. `reject` refuses it with
    /// a TCP reset or ICMP "administratively prohibited". `mark` passes it marked. `shape` delays it, on egress with
    /// `algorithm = "leaky-bucket"` under the `fq` queueing discipline.
    #[key(default = Action::Drop)]
    pub action: Action,
    /// What happens to a new source while the table is full of busier ones. `share` charges it in hashed cells that new
    /// sources share; `pass` exempts it; `throttle` refuses it.
    #[key(default = OnFull::Share)]
    pub on_full: OnFull,
    /// Further rates on the same key, at most six. A packet or request must conform to all, and is charged to none if one
    /// refuses it.
    #[key(default = Vec::new(), examples = ["60/h", "10/5s"])]
    pub(crate) tiers: Vec<RateText>,
    /// The same limit at wider keys, the narrowest first: a packet must conform to the limit and to all levels, and is
    /// charged to none if one refuses it. Each has a `factor`, and a `prefix` or a `key`. See the guide on levels. With
    /// `rate = "fair"`, networks and then all sources together, which have a level while that of sources does not suffice:
    /// see the guide on fair limits.
    #[key(default = Vec::new())]
    pub levels: Vec<Level>,
    /// Bans a source whose packets the limit keeps refusing, within a second. A ban takes the key's address or prefix, and
    /// refuses all of its packets on all interfaces. Only for `key = "source"` and `"source-port"` on ingress.
    #[key(absent = "off")]
    pub escalate: Option<Escalate>,
    /// `packet`: enforced in the kernel. `request`: for requests of applications, see the keys of request limits.
    #[key(default = Scope::Packet)]
    pub(crate) scope: Scope,
    /// Whether sources of TCP prove their address before they take a slot or a socket: this host answers their SYN by a
    /// SYN cookie, in the kernel's place. `in-use`: while the kernel has cookies in use, that is, while the listener's
    /// queue of SYNs is full. `always`: Weir sets `net.ipv4.tcp_syncookies` to 2. `true` is `in-use`. `reset`: by a
    /// challenge that the source resets, which needs no listener; a source's first connection takes 10 ms longer from
    /// Linux, a second and more from other systems. See [Sources that prove their address](../../guides/prove.md).
    #[key(default = None)]
    pub prove: Option<Prove>,
    /// How all hosts of `[cluster]` enforce the limit together. `shares`: each host has a share of the limit that follows
    /// demand. `keys`: each key has the whole limit, wherever it is used. `true` is `shares`.
    #[key(default = None)]
    pub cluster: Option<ClusterMode>,
    /// `algorithm`, `rate`, `burst` and `tiers`. With `concurrent`, that number is the count and the burst. With
    /// `rate = "fair"`, the rate is `at_most`, or any if there is none.
    #[key(skip, default = RateSpec::per_second(1, 1))]
    pub rates: RateSpec,
    /// With `rate = "fair"`: its bounds and signals.
    #[key(skip, default = None)]
    pub shares: Option<Fair>,
}

impl Prove {
    /// Whether sources prove their address by the kernel's SYN cookies, and not by resets.
    #[must_use]
    pub fn is_by_cookies(self) -> bool {
        self != Self::Reset
    }
}

impl Limit {
    /// `ingress` or `egress`.
    #[must_use]
    pub const fn direction_name(&self) -> &'static str {
        direction_name(self.direction)
    }

    /// Whether sources prove their address before their connections are evaluated.
    #[must_use]
    pub fn proves(&self) -> bool {
        self.prove.is_some() && self.action != Action::Observe
    }

    /// Whether refused SYNs count towards a ban: those of a limit on connections, since nothing else is known of its sources.
    /// With cookies, only connections count whose source has proven its address.
    #[must_use]
    pub fn bans_by_syns(&self) -> bool {
        self.unit == Unit::Connections && !self.proves_by_cookies()
    }

    /// Whether they do by the kernel's SYN cookies.
    #[must_use]
    pub fn proves_by_cookies(&self) -> bool {
        self.proves() && self.prove.is_some_and(Prove::is_by_cookies)
    }

    /// Whether they do by resets.
    #[must_use]
    pub fn proves_by_resets(&self) -> bool {
        self.proves() && !self.prove.is_some_and(Prove::is_by_cookies)
    }

    /// Whether packets above the limit do not pass.
    #[must_use]
    pub const fn refuses(&self) -> bool {
        !matches!(self.action, Action::Observe | Action::Mark(_))
    }

    /// The key as written in limits.toml.
    #[must_use]
    pub fn key_name(&self) -> String {
        match (self.key, self.direction) {
            (Key::Source, Direction::Egress) => DESTINATION.to_owned(),
            (key, _) => key.to_string(),
        }
    }

    /// All rates as written in the config.
    #[must_use]
    pub fn rate_text(&self) -> String {
        self.rates.text()
    }
}

fn check_name(text: &str, key: &schema::Key) -> Result<(), Wrong> {
    names::check(text, "limit", key)
}
