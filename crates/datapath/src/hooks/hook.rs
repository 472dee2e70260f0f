//! Hooks of the kernel.

use aya::util::KernelVersion;
use bpf::link::Target;
use common::packet::Direction;

/// A hook of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Hook {
    /// In the driver.
    Xdp,
    /// Before the network stack, for any driver. An interface has either this or [`Hook::Xdp`].
    XdpGeneric,
    /// In the network stack, ingress.
    TcIngress,
    /// In the network stack, egress.
    TcEgress,
}

/// A hook of one interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct HookOf {
    /// The kind of hook.
    pub hook: Hook,
    /// The interface's index.
    pub index: u32,
}

impl Hook {
    const ALL: [Self; 4] = [Self::Xdp, Self::XdpGeneric, Self::TcIngress, Self::TcEgress];

    /// The name in pins, which contains the mode of XDP since a link does not report it.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Xdp => "xdp",
            Self::XdpGeneric => "xdpgeneric",
            Self::TcIngress => "tcingress",
            Self::TcEgress => "tcegress",
        }
    }

    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|known| known.name() == name)
    }

    /// The hook of traffic control.
    pub(crate) const fn of(direction: Direction) -> Self {
        match direction {
            Direction::Ingress => Self::TcIngress,
            Direction::Egress => Self::TcEgress,
        }
    }

    /// The direction of its packets.
    #[must_use]
    pub const fn direction(self) -> Direction {
        match self {
            Self::Xdp | Self::XdpGeneric | Self::TcIngress => Direction::Ingress,
            Self::TcEgress => Direction::Egress,
        }
    }

    /// The target of its link; `None` if it requires a filter.
    pub(crate) fn target(self) -> Option<Target> {
        match self {
            Self::Xdp => Some(Target::XdpNative),
            Self::XdpGeneric => Some(Target::XdpGeneric),
            Self::TcIngress => has_tcx().then_some(Target::TcxIngress),
            Self::TcEgress => has_tcx().then_some(Target::TcxEgress),
        }
    }
}

impl std::fmt::Display for HookOf {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}:{}", self.hook.name(), self.index)
    }
}

impl HookOf {
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (hook, index) = text.split_once(':')?;
        Some(Self {
            hook: Hook::named(hook)?,
            index: index.parse().ok()?,
        })
    }
}

/// Whether this kernel has TCX links (commit e420bed02507, Linux 6.6).
pub fn has_tcx() -> bool {
    KernelVersion::current().is_ok_and(|version| version >= KernelVersion::new(6, 6, 0))
}
