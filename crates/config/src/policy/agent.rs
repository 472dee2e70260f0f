//! `[agent]`.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;

use super::{Attach, Mode, OnExit, Prefix, Shield};

/// The default control socket.
pub const DEFAULT_SOCKET: &str = "/run/weir/control.sock";

/// The default directory of pins.
pub const DEFAULT_PINS: &str = "/sys/fs/bpf/weir";

/// The default state directory.
pub const DEFAULT_STATE: &str = "/var/lib/weir";

/// The default capacity of the table of sources, unless logs would take too much memory.
pub const DEFAULT_SOURCES: u32 = 1_000_000;

/// The largest capacity of the table of sources: 512 MiB with one limit.
pub const MOST_SOURCES: u32 = 1 << 24;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AgentConfig {
    /// Names, or patterns with `*`.
    pub interfaces: Vec<InterfacePattern>,
    /// The hook of ingress limits.
    pub attach: Attach,
    pub mode: Mode,
    /// The state of the limits after the agent ends.
    pub on_exit: OnExit,
    /// The control socket's path.
    pub control: PathBuf,
    /// The address of the metrics endpoint, if enabled.
    pub metrics: Option<SocketAddr>,
    /// The addresses and names under which the live page is served.
    pub live: LivePage,
    /// The directory of pins, in a BPF file system.
    pub pins: PathBuf,
    /// The directory of files that survive a reboot.
    pub state_dir: PathBuf,
    /// The parent cgroup of the groups' own cgroups, relative to the root of each hierarchy.
    pub cgroup: String,
    /// Sockets of Docker and Podman, which map containers to names and labels.
    pub container_sockets: Vec<PathBuf>,
    /// The capacity of the table of sources, if configured.
    pub max_sources: Option<u32>,
    /// The exempt prefixes.
    pub never_limit: Vec<Prefix>,
    /// The kinds of exempt addresses that the agent detects.
    pub protect: Vec<Shield>,
    /// Whether the agent reloads the config when its file changes.
    pub watch: bool,
    /// Whether a config without limits is valid.
    pub allow_empty: bool,
}

impl Default for AgentConfig {
    fn default() -> Self {
        Self {
            interfaces: Vec::new(),
            attach: Attach::Auto,
            mode: Mode::Enforce,
            on_exit: OnExit::Keep,
            control: DEFAULT_SOCKET.into(),
            metrics: None,
            live: LivePage::default(),
            pins: DEFAULT_PINS.into(),
            state_dir: DEFAULT_STATE.into(),
            cgroup: "weir".to_owned(),
            container_sockets: vec!["/run/docker.sock".into(), "/run/podman/podman.sock".into()],
            max_sources: None,
            never_limit: Vec::new(),
            protect: vec![Shield::Ssh, Shield::Gateways, Shield::Store],
            watch: false,
            allow_empty: false,
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

/// A name of an interface, or a pattern of names.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct InterfacePattern(pub(crate) String);

impl InterfacePattern {
    /// Whether it contains wildcards.
    #[must_use]
    pub fn is_pattern(&self) -> bool {
        self.0.contains(['*', '?', '[', '{', '!'])
    }

    /// Whether `name` matches. `*` matches any characters, `?` one.
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
