//! `[agent]`.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use toml::de::DeValue;

use super::policy::{Attach, Mode, Multiplier, OnExit, Prefix, Shield};
use super::report::{Problems, Wrong};
use super::schema::{At, Key, Kind, Located, Table, Text, Value};

/// The default control socket.
pub const DEFAULT_SOCKET: &str = "/run/weir/control.sock";

/// The default directory of pins.
pub const DEFAULT_PINS: &str = "/sys/fs/bpf/weir";

/// The default state directory.
pub const DEFAULT_STATE: &str = "/var/lib/weir";

/// The default files with resolvers: the host's, and those behind the stub of systemd-resolved.
pub const RESOLV_CONF: [&str; 2] = ["/etc/resolv.conf", "/run/systemd/resolve/resolv.conf"];

/// The default capacity of the table of sources, unless logs would take too much memory.
pub const DEFAULT_SOURCES: u32 = 1_000_000;

/// The largest capacity of the table of sources: 512 MiB with one limit.
pub const MOST_SOURCES: u32 = 1 << 24;

/// Where limits are enforced, and how the agent runs.
#[derive(Clone, Debug, PartialEq, Eq, Table)]
#[table(heading = "[agent]", since = "0.1.0", check = check)]
#[table(
    example = "[agent]\ninterfaces = [\"eth0\"]\nmode = \"observe\"\nnever_limit = [\"192.0.2.10\"]\n\n\
                   [[limit]]\nname = \"packets-per-source\"\nrate = \"20000/s\"\n"
)]
pub struct AgentConfig {
    /// Interfaces on which limits on packets are enforced: names, or patterns with `*` and `?`. The agent attaches to an
    /// interface within a second of its appearing; a missing one is a note in `weir status`, not an error.
    #[key(absent = "none; required by limits on packets", examples = ["eth0", "ens*"])]
    pub interfaces: Vec<InterfacePattern>,
    /// The hook for ingress. `auto` takes native XDP where the driver has it, else traffic control. `native` requires
    /// native XDP. `generic` is XDP after the kernel has allocated a buffer. `tc` is traffic control. Egress always uses
    /// traffic control.
    #[key(default = Attach::Auto)]
    pub attach: Attach,
    /// `enforce` refuses packets and requests above a limit. `observe` counts what would be refused, and refuses nothing
    /// except an operator's bans.
    #[key(default = Mode::Enforce)]
    pub mode: Mode,
    /// What happens when the agent stops. `keep` leaves limits in effect, and the next agent takes them over with their
    /// state. `detach` removes them from the kernel.
    #[key(default = OnExit::Keep)]
    pub on_exit: OnExit,
    /// Capacity of the table of sources, for all limits together. `weir check` prints the memory that it takes.
    #[key(absent = "1_000_000, or fewer where sliding logs would take too much memory")]
    #[key(range = (1.0, MOST_SOURCES as f64))]
    pub max_sources: Option<u32>,
    /// Exempt addresses and prefixes: no limit and no ban applies to them, nor to packets that others send in their name
    /// ([how to filter those](../../operations/access.md#addresses-that-others-can-forge)).
    #[key(default = Vec::new(), examples = ["192.0.2.10", "2001:db8:ffff::/48"])]
    pub never_limit: Vec<Prefix>,
    /// Detected addresses that are exempt from bans, and from limits within an allowance: others can forge them.
    #[key(skip)]
    pub within_allowance: Vec<Prefix>,
    /// Detected addresses that are exempt from bans, and from no limit.
    #[key(skip)]
    pub never_banned_only: Vec<Prefix>,
    /// Prefixes whose sources have so many times what the limits and their class say, by `weir allow --times`.
    #[key(skip)]
    pub multiplied: Vec<(Prefix, Multiplier)>,
    /// Further exempt addresses, found by the agent: the client of the SSH session that starts or controls it (`ssh`), the store
    /// of `[cluster]`, the default gateways, the resolvers in `resolv_conf`, and the host's own addresses (`addresses`). `true`
    /// is all of them, `false` none. The agent follows them: a default route may appear after it, and a name may have another
    /// address. No ban applies to any of them. Limits apply to neither SSH clients nor stores. They apply to gateways and resolvers above
    /// 10,000 packets a second on each interface, 1,000 at once, since others can forge these addresses; under `prove`, gateways and
    /// resolvers prove their address like other sources. All limits apply to the host's own addresses, and limits on requests also to
    /// gateways and resolvers. List an address in `never_limit` to exempt it without bound.
    #[key(default = Protect::default())]
    pub protect: Protect,
    /// Files in the format of resolv.conf(5), whose name servers `protect` exempts. Missing files, and addresses of loopback,
    /// are ignored.
    #[key(default = RESOLV_CONF.map(PathBuf::from).to_vec(), examples = RESOLV_CONF)]
    pub resolv_conf: Vec<PathBuf>,
    /// Whether the agent reloads the file when it changes.
    #[key(default = false)]
    pub watch: bool,
    /// Whether a file without a limit and without a group is valid. Without it, an empty file is an error, so that a
    /// failed template cannot remove every limit.
    #[key(default = false)]
    pub allow_empty: bool,
    /// Whether the agent refuses to start if the kernel cannot enforce one of the limits. Without it, such a limit is left
    /// out with its reason, and the others are in effect.
    #[key(default = false)]
    pub strict: bool,
    /// Address and port on which the agent serves Prometheus metrics at `/metrics`, and the live page at `/`.
    #[key(absent = "off", examples = ["127.0.0.1:9464", "[::1]:9464"], restart)]
    pub metrics: Option<SocketAddr>,
    /// Whether the address of `metrics` serves the live page: addresses of sources, and all that `weir status` prints,
    /// to all clients that reach it. `true` serves it on any address, `false` on none. A list serves it on any address,
    /// also to requests for these host names: without them, a request has to name an IP address or `localhost`.
    #[key(absent = "on where `metrics` is a loopback address", examples = ["weir.example.org"], restart)]
    pub live: LivePage,
    /// The control socket, which `weir status` and the other commands use.
    #[key(default = DEFAULT_SOCKET.into(), examples = [DEFAULT_SOCKET], restart)]
    pub control: PathBuf,
    /// Directory in a BPF file system for the programs, links and maps that outlive the agent.
    #[key(default = DEFAULT_PINS.into(), examples = [DEFAULT_PINS], restart)]
    pub pins: PathBuf,
    /// Directory for the state that survives a reboot: bans, counters, the state of slow limits, trials.
    #[key(default = DEFAULT_STATE.into(), examples = [DEFAULT_STATE], restart)]
    pub state_dir: PathBuf,
    /// Sockets of Docker and Podman, where groups look up containers by name and label.
    #[key(default = vec!["/run/docker.sock".into(), "/run/podman/podman.sock".into()])]
    #[key(examples = ["/run/docker.sock"])]
    pub container_sockets: Vec<PathBuf>,
    /// Name of the cgroup that contains the groups' own, relative to the root of each hierarchy: letters, digits, dashes
    /// and underscores.
    #[key(default = "weir".to_owned(), examples = ["weir"], check = check_cgroup, restart)]
    pub cgroup: String,
}

impl AgentConfig {
    /// The prefixes to which no ban applies.
    pub fn never_banned(&self) -> impl Iterator<Item = &Prefix> {
        let detected = self.within_allowance.iter().chain(&self.never_banned_only);
        self.never_limit.iter().chain(detected)
    }
}

fn check(read: &Located<'_, AgentConfig>, problems: &mut Problems) {
    for (prefix, span) in read.elements::<Prefix>(&AgentConfig::NEVER_LIMIT) {
        if prefix.mapped_length() == 0 || prefix.mapped_length() == 96 {
            problems.warning(
                span,
                format!("{prefix} exempts every address: nothing will be limited"),
                "to count without refusing, set mode = \"observe\"",
            );
        }
    }
    if matches!(read.table.live, LivePage::Everywhere(_)) && !read.has(&AgentConfig::METRICS) {
        problems.error(
            read.span_of(&AgentConfig::LIVE),
            "live requires metrics",
            "add metrics = \"127.0.0.1:9464\", on which the page is served",
        );
    }
}

fn check_cgroup(text: &str, key: &Key) -> Result<(), Wrong> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_');
    if !text.is_empty() && text.chars().all(is_plain) {
        return Ok(());
    }
    let help = format!(
        "write letters, digits, dashes and underscores: {}",
        key.example()
    );
    Err(Wrong::new(format!("invalid cgroup name {text:?}"), help))
}

/// The kinds of exempt addresses that the agent detects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Protect(pub Vec<Shield>);

impl Default for Protect {
    /// All of them.
    fn default() -> Self {
        Self(Shield::WORDS.iter().map(|(_, shield)| *shield).collect())
    }
}

impl Value for Protect {
    const KIND: Kind = Kind::Either(&[Kind::Boolean, <Vec<Shield> as Value>::KIND]);

    fn read(at: At<'_>, key: &Key, problems: &mut Problems) -> Option<Self> {
        match at.get_ref() {
            DeValue::Boolean(true) => Some(Self::default()),
            DeValue::Boolean(false) => Some(Self(Vec::new())),
            _ => Vec::read(at, key, problems).map(Self),
        }
    }

    fn write(&self) -> Option<toml::Value> {
        self.0.write()
    }

    fn shown(&self) -> String {
        match self.0.as_slice() {
            [] => "false".to_owned(),
            shields => shields.to_vec().shown(),
        }
    }
}

/// Where the live page is served on the address of `metrics`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum LivePage {
    /// On loopback only.
    #[default]
    Loopback,
    /// On every address, also to requests for these host names, in lower case.
    Everywhere(Vec<String>),
    Nowhere,
}

impl LivePage {
    /// Whether it is served on an address.
    #[must_use]
    pub fn is_served_on(&self, address: IpAddr) -> bool {
        match self {
            Self::Loopback => address.to_canonical().is_loopback(),
            Self::Everywhere(_) => true,
            Self::Nowhere => false,
        }
    }

    /// The host names by which it may be requested, beside addresses and `localhost`.
    #[must_use]
    pub fn names(&self) -> &[String] {
        match self {
            Self::Everywhere(names) => names,
            Self::Loopback | Self::Nowhere => &[],
        }
    }
}

impl Value for LivePage {
    const KIND: Kind = Kind::Either(&[Kind::Boolean, <Vec<HostName> as Value>::KIND]);

    fn read(at: At<'_>, key: &Key, problems: &mut Problems) -> Option<Self> {
        match at.get_ref() {
            DeValue::Boolean(false) => Some(Self::Nowhere),
            DeValue::Boolean(true) => Some(Self::Everywhere(Vec::new())),
            DeValue::Array(names) if !names.is_empty() => {
                let names: Vec<HostName> = Vec::read(at, key, problems)?;
                Some(Self::Everywhere(
                    names.into_iter().map(|name| name.0).collect(),
                ))
            }
            _ => {
                key.wrong_type(at, problems);
                None
            }
        }
    }

    fn write(&self) -> Option<toml::Value> {
        match self {
            Self::Loopback => None,
            Self::Everywhere(names) if names.is_empty() => Some(true.into()),
            Self::Everywhere(names) => names.write(),
            Self::Nowhere => Some(false.into()),
        }
    }

    fn shown(&self) -> String {
        match self {
            Self::Loopback => String::new(),
            Self::Everywhere(names) if names.is_empty() => "true".to_owned(),
            Self::Everywhere(names) => names.shown(),
            Self::Nowhere => "false".to_owned(),
        }
    }
}

/// A host name in lower case: labels of letters, digits, dashes and underscores.
struct HostName(String);

impl Text for HostName {
    const KIND: Kind = Kind::Text(&[]);

    fn parse(text: &str, key: &Key) -> Result<Self, Wrong> {
        let is_label = |label: &str| {
            !label.is_empty()
                && label.len() <= 63
                && label
                    .chars()
                    .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_'))
        };
        if text.len() <= 253 && text.split('.').all(is_label) {
            return Ok(Self(text.to_ascii_lowercase()));
        }
        let message = format!("invalid host name {text:?} in {}", key.name);
        let help = format!("write a host name without a port: {}", key.example());
        Err(Wrong::new(message, help))
    }

    fn text(&self) -> String {
        self.0.clone()
    }
}

/// The kernel's longest alternative name of an interface (`ALTIFNAMSIZ`).
const LONGEST_NAME: usize = 127;

/// A name of an interface, or a pattern of names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InterfacePattern(pub(crate) String);

impl InterfacePattern {
    /// Whether it contains wildcards.
    #[must_use]
    pub fn is_pattern(&self) -> bool {
        self.0.contains(['*', '?', '[', '{', '!'])
    }

    /// Whether it matches an interface with these names: one of them; or all, if it begins with `!` and so excludes names.
    pub fn matches_any<'n>(&self, mut names: impl Iterator<Item = &'n str>) -> bool {
        if self.0.starts_with('!') {
            names.all(|name| self.matches(name))
        } else {
            names.any(|name| self.matches(name))
        }
    }

    /// Whether `name`, one of an interface, matches. `*` matches any characters, `?` one.
    #[must_use]
    pub fn matches(&self, name: &str) -> bool {
        glob_match::glob_match(&self.0, name)
    }
}

impl fmt::Display for InterfacePattern {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

impl Text for InterfacePattern {
    const KIND: Kind = Kind::Text(&[]);

    fn parse(text: &str, _: &Key) -> Result<Self, Wrong> {
        if !text.is_empty() && text.len() <= LONGEST_NAME && !text.contains(['/', ' ']) {
            return Ok(Self(text.to_owned()));
        }
        let help = "write a name or alternative name as `ip link` shows it, at most 127 characters, or a pattern as \"ens*\"";
        Err(Wrong::new(format!("invalid interface name {text:?}"), help))
    }

    fn text(&self) -> String {
        self.0.clone()
    }
}
