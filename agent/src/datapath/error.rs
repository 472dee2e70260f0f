//! What can go wrong between a policy and the kernel, and what to do about it.

use std::io;
use std::path::PathBuf;

use aya::EbpfError;
use aya::maps::MapError;
use aya::programs::ProgramError;
use thiserror::Error;

use super::release;

/// Loading or reading failed.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The agent was built by plain cargo.
    #[error("this agent was built without its eBPF object: build it with `cargo xtask build`")]
    NoObject,
    /// The object in the binary lacks one of the agent's own names.
    #[error("the eBPF object in this binary is not that of this agent: build both with `cargo xtask build`")]
    ForeignObject,
    /// No permission.
    #[error("loading a BPF program is not permitted: run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON")]
    NotPermitted,
    /// The kernel has no BPF, or not what is needed.
    #[error(
        "this kernel ({release}) cannot do what Weir needs: {what}; Weir needs Linux 5.15 or newer with BPF and BTF"
    )]
    Kernel {
        /// `uname -r`.
        release: String,
        /// What it said.
        what: String,
    },
    /// The verifier refused.
    #[error("the kernel's verifier refused program {program}: this is a fault in Weir, please report it with\n{log}")]
    Verifier {
        /// Its name.
        program: &'static str,
        /// The end of what the verifier said.
        log: String,
    },
    /// The directory of pins cannot be made.
    #[error("making {} failed: {source}; run as root, with bpffs mounted: mount -t bpf bpf /sys/fs/bpf", path.display())]
    PinDirectory {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The directory of pins is on another file system.
    #[error("{} does not lie in a BPF file system: mount it (mount -t bpf bpf /sys/fs/bpf) or name another place under [agent] pins", path.display())]
    NotBpffs {
        /// Which.
        path: PathBuf,
    },
    /// A pin cannot be removed.
    #[error("removing the pin {} failed: {source}", path.display())]
    Unpin {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// Something cannot be pinned.
    #[error("pinning {} failed: {reason}; it has to be writable, and a BPF file system (mount -t bpf bpf /sys/fs/bpf)", path.display())]
    Pin {
        /// Where.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// A pin cannot be moved.
    #[error("moving the pin {} into the place of the one before failed: {source}", path.display())]
    MovePin {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel does not tell which interfaces there are.
    #[error("reading this host's interfaces failed: {0}")]
    Interfaces(io::Error),
    /// What was there before a change cannot be put back.
    #[error(
        "putting back the program of hook {hook}, as it was before the change, failed: {reason}; it is tried again by the next reload or start"
    )]
    Restore {
        /// Which.
        hook: String,
        /// Why.
        reason: io::Error,
    },
    /// Another agent uses the pins.
    #[error(
        "another agent is running: it holds what is pinned at {}; stop it first, or name other interfaces and another place under [agent] pins",
        path.display()
    )]
    InUse {
        /// Which.
        path: PathBuf,
    },
    /// More than the kernel's rows can say.
    #[error(transparent)]
    Policy(#[from] crate::compile::CompileError),
    /// More memory than is left.
    #[error(transparent)]
    Memory(#[from] crate::memory::TooLarge),
    /// No random numbers.
    #[error("reading random numbers from the kernel failed: {0}")]
    Random(String),
    /// The host's addresses are unknown.
    #[error("reading this host's addresses over netlink failed: {0}; refused packets to new addresses get no reply")]
    Addresses(#[source] io::Error),
    /// The table cannot be mapped.
    #[error("mapping the table of sources into memory failed: {0}")]
    Mmap(io::Error),
    /// A map operation failed.
    #[error("a BPF map operation failed: {0}")]
    Map(MapError),
    /// A program operation failed.
    #[error("a BPF program operation failed: {0}")]
    Program(#[from] ProgramError),
    /// Everything else of aya's.
    #[error("loading the eBPF object failed: {0}")]
    Ebpf(EbpfError),
}

impl LoadError {
    /// Sorts out what loading an object can fail of.
    pub(super) fn from_aya(error: EbpfError) -> Self {
        match errno(&error) {
            Some(libc::EPERM | libc::EACCES) => Self::NotPermitted,
            Some(libc::ENOSYS) => kernel("it has no bpf() system call"),
            Some(libc::ENOMEM) => kernel("not enough memory for its maps: lower max_sources"),
            _ => Self::Ebpf(error),
        }
    }

    /// Sorts out what loading a program can fail of.
    pub(super) fn from_program(program: &'static str, error: ProgramError) -> Self {
        match error {
            ProgramError::LoadError { io_error, verifier_log } => {
                let log = verifier_log.to_string();
                if log.trim().is_empty() && matches!(io_error.raw_os_error(), Some(libc::EPERM | libc::EACCES)) {
                    return Self::NotPermitted;
                }
                let release = release::of_this_kernel();
                if release::is_too_old(&release) {
                    let said = log.lines().find(|line| !line.trim().is_empty()).unwrap_or("nothing more");
                    let what = format!("its verifier refuses program {program}, saying {said:?}");
                    return Self::Kernel { release, what };
                }
                let tail: Vec<&str> = log.lines().rev().take(30).collect();
                let log = tail.into_iter().rev().collect::<Vec<_>>().join("\n");
                Self::Verifier { program, log: format!("{io_error}\n{log}") }
            }
            error => Self::Program(error),
        }
    }
}

impl From<MapError> for LoadError {
    fn from(error: MapError) -> Self {
        match errno(&error) {
            Some(libc::EPERM | libc::EACCES) => Self::NotPermitted,
            _ => Self::Map(error),
        }
    }
}

fn kernel(what: &str) -> LoadError {
    LoadError::Kernel { release: release::of_this_kernel(), what: what.to_owned() }
}

/// The system's error number at the bottom of an error, if there is one.
pub(super) fn errno(error: &(dyn std::error::Error + 'static)) -> Option<i32> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(number) = error.downcast_ref::<io::Error>().and_then(io::Error::raw_os_error) {
            return Some(number);
        }
        next = error.source();
    }
    None
}

/// Attaching failed; nothing of this attempt is left attached.
#[derive(Debug, Error)]
pub enum AttachError {
    /// No such interface.
    #[error("interface `{interface}` not found (available: {present})")]
    NoInterface {
        /// What was asked for.
        interface: String,
        /// What there is.
        present: String,
    },
    /// It is not up, and its driver wants that.
    #[error(
        "{interface} is down, and its driver attaches a program only while it is up: ip link set dev {interface} up"
    )]
    Down {
        /// Which interface.
        interface: String,
    },
    /// It was removed at this moment.
    #[error("interface {interface} was removed while it was being attached")]
    Gone {
        /// Which interface.
        interface: String,
    },
    /// The hook is taken.
    #[error(
        "another program holds the XDP hook of {interface} (`ip -details link show dev {interface}` tells which): take it off, or leave {interface} out of [agent] interfaces"
    )]
    Taken {
        /// Which interface.
        interface: String,
    },
    /// Another Weir holds it.
    #[error(
        "another Weir agent, running or gone, holds {interface} already ({program}): stop it and run agent detach with its config, or leave {interface} out of [agent] interfaces"
    )]
    OtherWeir {
        /// Which interface.
        interface: String,
        /// Its program there.
        program: String,
    },
    /// The driver cannot.
    #[error(
        "the driver of {interface} does not do native XDP here: {reason}; set attach = \"auto\" for traffic control, or \"generic\" if its cost is acceptable"
    )]
    NotNative {
        /// Which interface.
        interface: String,
        /// What the kernel said, and what helps.
        reason: String,
    },
    /// Its frames are not what a program expects.
    #[error("{interface} cannot be held: {source}")]
    NoLink {
        /// Which interface.
        interface: String,
        /// Why.
        source: io::Error,
    },
    /// A tunnel, and XDP asked for by name.
    #[error(
        "the frames of {interface} have no Ethernet header, which XDP takes for granted: set attach = \"auto\" or \"tc\""
    )]
    NoEthernet {
        /// Which interface.
        interface: String,
    },
    /// No permission.
    #[error("attaching to {interface} is not permitted: run as root, or with CAP_NET_ADMIN and CAP_BPF")]
    NotPermitted {
        /// Which interface.
        interface: String,
    },
    /// Traffic control refused.
    #[error("attaching to {interface} by traffic control failed: {source}")]
    TrafficControl {
        /// Which interface.
        interface: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// Anything else.
    #[error("attaching to {interface} failed: {source}")]
    Other {
        /// Which interface.
        interface: String,
        /// What the kernel said.
        source: io::Error,
    },
    /// The link cannot be pinned.
    #[error("pinning the link of {interface} failed: {reason}")]
    Pin {
        /// Which interface.
        interface: String,
        /// Why.
        reason: String,
    },
    /// A load error on the way.
    #[error(transparent)]
    Load(#[from] LoadError),
}

impl AttachError {
    /// A link that cannot be pinned.
    pub(super) fn pin(interface: &str, reason: &dyn std::fmt::Display) -> Self {
        Self::Pin { interface: interface.to_owned(), reason: reason.to_string() }
    }

    /// Whether it is the interface that has to change, as it may at any time: nothing is wrong with the policy.
    pub(crate) const fn is_of_the_interface(&self) -> bool {
        matches!(self, Self::Down { .. } | Self::Gone { .. } | Self::NoInterface { .. })
    }

    /// Whether another hook may do where this one does not.
    pub(super) const fn is_of_the_hook(&self) -> bool {
        matches!(self, Self::Taken { .. } | Self::NotNative { .. })
    }

    /// Sorts out what attaching by traffic control can fail of.
    pub(super) fn from_tc(interface: &str, error: io::Error) -> Self {
        let interface = interface.to_owned();
        match error.raw_os_error() {
            Some(libc::ENETDOWN) => Self::Down { interface },
            Some(libc::ENODEV) => Self::Gone { interface },
            Some(libc::EPERM | libc::EACCES) => Self::NotPermitted { interface },
            // The place of our filter among those of a device is taken by one that has its handle.
            Some(libc::EEXIST) => Self::OtherWeir { interface, program: "a filter with Weir's handle".to_owned() },
            _ => Self::TrafficControl { interface, source: error },
        }
    }

    /// Sorts out what attaching by XDP can fail of.
    pub(super) fn from_xdp(interface: &str, error: io::Error) -> Self {
        let interface = interface.to_owned();
        match error.raw_os_error() {
            Some(libc::ENETDOWN) => Self::Down { interface },
            Some(libc::ENODEV) => Self::Gone { interface },
            Some(libc::EBUSY | libc::EEXIST) => Self::Taken { interface },
            Some(libc::EPERM | libc::EACCES) => Self::NotPermitted { interface },
            Some(libc::EOPNOTSUPP) => Self::NotNative { reason: "it does not implement it".to_owned(), interface },
            Some(libc::ERANGE) => Self::NotNative {
                reason: "its MTU is above what the driver allows with XDP: lower it".to_owned(),
                interface,
            },
            Some(libc::EINVAL) => Self::NotNative {
                reason:
                    "the driver refused; often large receive offload is on (ethtool -K … lro off) or queues are short"
                        .to_owned(),
                interface,
            },
            _ => Self::Other { interface, source: error },
        }
    }
}
