//! Errors of loading, attaching and reading.

use std::io;
use std::path::PathBuf;

use aya::EbpfError;
use aya::maps::MapError;
use aya::programs::ProgramError;
use bpf::{DirectoryError, is_too_old, kernel_release};
use host::PROGRAM;
use thiserror::Error;

use crate::devices::device::Unsupported;

/// Loading or reading failed.
#[derive(Debug, Error)]
pub enum LoadError {
    /// The agent was built without the eBPF object.
    #[error("this agent was built without its eBPF object: build it with `cargo xtask build`")]
    NoObject,
    /// The object in the binary lacks a map or program of the agent.
    #[error(
        "the eBPF object in this binary does not match the agent: build both with `cargo xtask build`"
    )]
    ForeignObject,
    /// No permission.
    #[error(
        "loading a BPF program is not permitted: run as root, or with CAP_BPF, CAP_NET_ADMIN and CAP_PERFMON; in a container, permit `bpf` in its seccomp profile, too"
    )]
    NotPermitted,
    /// The kernel lacks BPF, or a feature of it.
    #[error(
        "kernel {release} is not supported: {what}; Weir requires Linux 5.15 or newer with BPF and BTF"
    )]
    Kernel {
        /// The release, as `uname -r` prints it.
        release: String,
        /// The reason.
        what: String,
    },
    /// The kernel has no memory for a map.
    #[error("creating the BPF maps failed: not enough memory; lower [agent] max_sources")]
    NoMemory,
    /// The verifier rejected a program.
    #[error(
        "the kernel's verifier rejected program {program}: this is a fault in Weir, please report it with\n{log}"
    )]
    Verifier {
        program: &'static str,
        /// The end of the verifier's log.
        log: String,
    },
    /// The kernel cannot load a program at this moment.
    #[error("loading program {program} failed: {reason}; try again")]
    NotNow {
        program: &'static str,
        /// Such as want of memory, or signals that interrupted the verifier.
        reason: io::Error,
    },
    /// The directory of pins cannot be used.
    #[error(transparent)]
    PinDirectory(#[from] DirectoryError),
    /// A pin cannot be removed.
    #[error("removing the pin {} failed: {source}; run as root", path.display())]
    Unpin {
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// A map, link or program cannot be pinned.
    #[error("pinning {} failed: {reason}; [agent] pins requires a writable BPF file system (mount -t bpf bpf /sys/fs/bpf)", path.display())]
    Pin { path: PathBuf, reason: String },
    /// A pin cannot be moved.
    #[error("moving the pin {} failed: {source}; the next start or reload tries again", path.display())]
    MovePin { path: PathBuf, source: io::Error },
    /// The kernel does not list the interfaces.
    #[error("reading this host's interfaces over netlink failed: {0}")]
    Interfaces(io::Error),
    /// A program that a change replaced cannot be restored.
    #[error(
        "restoring the previous program of hook {hook} failed: {reason}; the next reload or start tries again"
    )]
    Restore {
        /// The hook, as in its pin.
        hook: String,
        reason: io::Error,
    },
    /// Another agent uses the pins.
    #[error(
        "another agent is running with the pins at {}: stop it first, or set other [agent] pins and interfaces",
        path.display()
    )]
    InUse { path: PathBuf },
    /// The policy exceeds what the kernel program supports.
    #[error(transparent)]
    Policy(#[from] crate::compile::CompileError),
    /// Open connections cannot be counted.
    #[error("counting open connections failed: {reason}; leave out limits with concurrent")]
    Connections { reason: String },
    /// The kernel's types cannot be read at this moment.
    #[error("reading the kernel's types failed: {0}; try again")]
    KernelTypes(io::Error),
    /// The policy takes more memory than is available.
    #[error(transparent)]
    Memory(#[from] crate::memory::TooLarge),
    /// Random numbers are unavailable.
    #[error("reading random numbers from the kernel failed: {0}")]
    Random(String),
    /// The host's addresses are unknown.
    #[error(
        "reading this host's addresses over netlink failed: {0}; refused packets to new addresses get no reply"
    )]
    Addresses(#[source] io::Error),
    /// A map cannot be mapped into memory.
    #[error("mapping a BPF map into memory failed: {0}")]
    Mmap(io::Error),
    /// The counters of a recording cannot be read.
    #[error("reading the counters of the recording failed: {0}")]
    Record(#[source] io::Error),
    /// Packets cannot be captured.
    #[error(
        "allocating rings for captured packets failed: {0}; they take 256 KiB of memory for each CPU and direction, which counts \
         towards the agent's memory limit (MemoryMax=)"
    )]
    Capture(#[source] io::Error),
    /// Packets cannot be sampled.
    #[error(
        "allocating rings for sampled packets failed: {0}; they take 64 KiB of memory for each CPU, which counts towards the \
         agent's memory limit (MemoryMax=)"
    )]
    Stream(#[source] io::Error),
    /// The kernel has no memory for ban lists.
    #[error("creating a map of {bytes} bytes for ban lists failed: {source}")]
    Lists { bytes: u64, source: io::Error },
    /// A map operation failed.
    #[error("a BPF map operation failed: {0}")]
    Map(MapError),
    /// A program operation failed.
    #[error("a BPF program operation failed: {0}")]
    Program(#[from] ProgramError),
    /// Any other error of aya.
    #[error("loading the eBPF object failed: {0}")]
    Ebpf(EbpfError),
}

impl LoadError {
    /// Whether the kernel refuses a program or map, now and at every attempt; otherwise it may have no memory or descriptors
    /// at this moment.
    pub(crate) fn is_of_the_kernel(&self) -> bool {
        let number = match self {
            Self::NotPermitted | Self::Kernel { .. } | Self::Verifier { .. } => return true,
            Self::Map(error) => errno(error),
            Self::Program(error) => errno(error),
            Self::Ebpf(error) => errno(error),
            _ => return false,
        };
        !number.is_some_and(is_passing)
    }

    /// Classifies an error of loading an object.
    pub(crate) fn from_aya(error: EbpfError) -> Self {
        match errno(&error) {
            Some(libc::EPERM | libc::EACCES) => Self::NotPermitted,
            Some(libc::ENOSYS) => kernel("it has no bpf() system call"),
            Some(libc::ENOMEM) => Self::NoMemory,
            _ => Self::Ebpf(error),
        }
    }

    /// Classifies an error of loading a program.
    pub(crate) fn from_program(program: &'static str, error: ProgramError) -> Self {
        match error {
            ProgramError::LoadError {
                io_error,
                verifier_log,
            } => {
                let log = verifier_log.to_string();
                if lacks_capability(&io_error, &log) {
                    return Self::NotPermitted;
                }
                // Without room for the verifier's log (ENOSPC), another attempt fails as well.
                let is_now = |number| is_passing(number) && number != libc::ENOSPC;
                if io_error.raw_os_error().is_some_and(is_now) {
                    let reason = io_error;
                    return Self::NotNow { program, reason };
                }
                let release = kernel_release();
                if is_too_old(&release) {
                    let said = log
                        .lines()
                        .find(|line| !line.trim().is_empty())
                        .unwrap_or("no reason");
                    let what = format!("its verifier rejects program {program}: {said:?}");
                    return Self::Kernel { release, what };
                }
                let tail: Vec<&str> = log.lines().rev().take(30).collect();
                let log = tail.into_iter().rev().collect::<Vec<_>>().join("\n");
                Self::Verifier {
                    program,
                    log: format!("{io_error}\n{log}"),
                }
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

/// Whether a capability is missing for loading. Without CAP_PERFMON the verifier forbids arithmetic of pointers.
fn lacks_capability(error: &io::Error, log: &str) -> bool {
    matches!(error.raw_os_error(), Some(libc::EPERM | libc::EACCES))
        && (log.trim().is_empty() || log.contains("prohibited for !root"))
}

fn kernel(what: &str) -> LoadError {
    LoadError::Kernel {
        release: kernel_release(),
        what: what.to_owned(),
    }
}

/// Whether the kernel may succeed at another attempt.
pub(crate) const fn is_passing(number: i32) -> bool {
    matches!(
        number,
        libc::ENOMEM
            | libc::EMFILE
            | libc::ENFILE
            | libc::EAGAIN
            | libc::EINTR
            | libc::EBUSY
            | libc::ENOSPC
    )
}

/// The error number at the end of an error's chain of causes, if there is one.
pub(crate) fn errno(error: &(dyn std::error::Error + 'static)) -> Option<i32> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(number) = error
            .downcast_ref::<io::Error>()
            .and_then(io::Error::raw_os_error)
        {
            return Some(number);
        }
        next = error.source();
    }
    None
}

/// Attaching failed; nothing of this attempt is left attached.
#[derive(Debug, Error)]
pub enum AttachError {
    /// The interface does not exist.
    #[error("interface `{interface}` not found (available: {present})")]
    NoInterface {
        /// The interface's name.
        interface: String,
        /// This host's interfaces.
        present: String,
    },
    /// The interface is down, and its driver requires it to be up.
    #[error(
        "{interface} is down, and its driver attaches a program only while it is up: ip link set dev {interface} up"
    )]
    Down {
        /// The interface's name.
        interface: String,
    },
    /// The interface was removed meanwhile.
    #[error(
        "interface {interface} was removed while it was being attached; it will be attached when it appears again"
    )]
    Gone {
        /// The interface's name.
        interface: String,
    },
    #[error(
        "another program is attached to the XDP hook of {interface} (`ip -details link show dev {interface}` shows it): detach it, set attach = \"tc\", or remove {interface} from [agent] interfaces"
    )]
    Taken {
        /// The interface's name.
        interface: String,
    },
    /// A Weir agent with other pins is attached.
    #[error(
        "another Weir agent, running or stopped, is attached to {interface} ({program}): stop it and run {PROGRAM} detach with its config, or remove {interface} from [agent] interfaces"
    )]
    OtherWeir {
        /// The interface's name.
        interface: String,
        program: String,
    },
    /// The driver has no native XDP, or not in this configuration.
    #[error(
        "native XDP is not supported by the driver of {interface}: {reason}; set attach = \"auto\" for traffic control, or \"generic\", which is slower"
    )]
    NotNative {
        /// The interface's name.
        interface: String,
        reason: String,
    },
    /// The interface's frames are not supported.
    #[error("attaching to {interface} is not supported: {source}")]
    Unsupported {
        /// The interface's name.
        interface: String,
        source: Unsupported,
    },
    /// XDP was configured for a tunnel.
    #[error(
        "XDP on {interface} is not supported, since its frames have no Ethernet header: set attach = \"auto\" or \"tc\""
    )]
    NoEthernet {
        /// The interface's name.
        interface: String,
    },
    /// No permission.
    #[error(
        "attaching to {interface} is not permitted: run as root, or with CAP_NET_ADMIN and CAP_BPF"
    )]
    NotPermitted {
        /// The interface's name.
        interface: String,
    },
    /// Traffic control rejected the program.
    #[error("attaching to {interface} by traffic control failed: {source}")]
    TrafficControl {
        /// The interface's name.
        interface: String,
        /// The system's reason.
        source: io::Error,
    },
    /// Any other error.
    #[error("attaching to {interface} failed: {source}")]
    Other {
        /// The interface's name.
        interface: String,
        /// The system's reason.
        source: io::Error,
    },
    /// The link cannot be pinned.
    #[error(
        "pinning the link of {interface} failed: {reason}; [agent] pins requires a writable BPF file system (mount -t bpf bpf /sys/fs/bpf)"
    )]
    Pin {
        /// The interface's name.
        interface: String,
        reason: String,
    },
    /// Loading failed.
    #[error(transparent)]
    Load(#[from] LoadError),
}

impl AttachError {
    /// The error for a link that cannot be pinned.
    pub(crate) fn pin(interface: &str, reason: &dyn std::fmt::Display) -> Self {
        Self::Pin {
            interface: interface.to_owned(),
            reason: reason.to_string(),
        }
    }

    /// Whether the cause is the interface's state, which may change at any time, and not the policy.
    pub(crate) const fn is_of_the_interface(&self) -> bool {
        matches!(
            self,
            Self::Down { .. }
                | Self::Gone { .. }
                | Self::NoInterface { .. }
                | Self::Unsupported { .. }
        )
    }

    /// Whether the same policy can be attached to other interfaces.
    #[must_use]
    pub const fn spares_other_interfaces(&self) -> bool {
        !matches!(
            self,
            Self::Load(_) | Self::Pin { .. } | Self::NotPermitted { .. }
        )
    }

    /// Whether another hook may work instead.
    pub(crate) const fn is_of_the_hook(&self) -> bool {
        matches!(self, Self::Taken { .. } | Self::NotNative { .. })
    }

    /// Classifies an error of attaching by traffic control.
    pub(crate) fn from_tc(interface: &str, error: io::Error) -> Self {
        let interface = interface.to_owned();
        match error.raw_os_error() {
            Some(libc::ENETDOWN) => Self::Down { interface },
            Some(libc::ENODEV) => Self::Gone { interface },
            Some(libc::EPERM | libc::EACCES) => Self::NotPermitted { interface },
            // Another filter of the device has this handle.
            Some(libc::EEXIST) => Self::OtherWeir {
                interface,
                program: "a filter with Weir's handle".to_owned(),
            },
            _ => Self::TrafficControl {
                interface,
                source: error,
            },
        }
    }

    /// Classifies an error of attaching by XDP.
    pub(crate) fn from_xdp(interface: &str, error: io::Error) -> Self {
        let interface = interface.to_owned();
        match error.raw_os_error() {
            Some(libc::ENETDOWN) => Self::Down { interface },
            Some(libc::ENODEV) => Self::Gone { interface },
            Some(libc::EBUSY | libc::EEXIST) => Self::Taken { interface },
            Some(libc::EPERM | libc::EACCES) => Self::NotPermitted { interface },
            Some(libc::EOPNOTSUPP) => Self::NotNative {
                reason: "not implemented".to_owned(),
                interface,
            },
            Some(libc::ERANGE) => Self::NotNative {
                reason: "its MTU is above what the driver allows with XDP: lower it".to_owned(),
                interface,
            },
            Some(libc::EINVAL) => Self::NotNative {
                reason: format!(
                    "the driver rejects the program; often large receive offload is on (ethtool -K {interface} lro off), or \
                     there are too few queues"
                ),
                interface,
            },
            _ => Self::Other {
                interface,
                source: error,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verifier_without_perfmon_means_a_missing_capability() {
        let refused = |number, log| lacks_capability(&io::Error::from_raw_os_error(number), log);
        // Linux 6.1, with CAP_BPF and CAP_NET_ADMIN.
        let log = "11221: (0f) r1 += r7\nR1 has pointer with unsupported alu operation, pointer arithmetic with it \
                   prohibited for !root\nprocessed 30 insns";
        assert!(refused(libc::EACCES, log) && refused(libc::EPERM, "\n"));
        assert!(!refused(libc::EACCES, "R1 invalid mem access 'scalar'"));
        assert!(!refused(libc::E2BIG, ""));
    }
}
