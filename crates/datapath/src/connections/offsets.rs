//! The running kernel's offsets and types on which the programs depend.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use bpf::btf::Btf;
use bpf::lockdown::Lockdown;
use common::connections::ConnectionSettings;

use crate::error::{LoadError, is_passing};

/// A kernel without BTF tracepoints.
pub const NO_TRACEPOINT: &str = "the kernel has no BTF for the tracepoint inet_sock_set_state (CONFIG_DEBUG_INFO_BTF, Linux 5.10 or later)";

/// A kernel that lets no program read its memory.
pub const LOCKED_DOWN: &str = "lockdown in its mode confidentiality forbids programs to read the sockets (lockdown= on the kernel's command line, or Secure Boot)";

/// The types on which the programs depend.
const TYPES: [&[u8]; 2] = [b"btf_trace_inet_sock_set_state\0", b"bpf_iter_tcp\0"];

/// Why limits with `concurrent` are not possible on a kernel, whose `sys` this is.
#[must_use]
pub fn unsupported(sys: &Path) -> Option<String> {
    if let Some(reason) = forbidden(sys) {
        return Some(reason.to_owned());
    }
    let Ok(types) = fs::read(sys.join("kernel/btf/vmlinux")) else {
        return Some(NO_TRACEPOINT.to_owned());
    };
    let is_there = |name: &&[u8]| types.windows(name.len()).any(|part| part == *name);
    if !TYPES.iter().all(is_there) {
        return Some(NO_TRACEPOINT.to_owned());
    }
    match offsets_at(sys) {
        Err(LoadError::Connections { reason }) => Some(reason),
        _ => None,
    }
}

/// Why a kernel, whose `sys` this is, lets no program read its sockets.
pub(super) fn forbidden(sys: &Path) -> Option<&'static str> {
    (Lockdown::of(sys) == Lockdown::Confidentiality).then_some(LOCKED_DOWN)
}

/// The settings for the running kernel and the agent's network namespace.
pub(super) fn settings() -> Result<ConnectionSettings, LoadError> {
    let namespace = namespace().map_err(|error| LoadError::Connections {
        reason: format!("the network namespace is unknown: {error}"),
    })?;
    let offsets = offsets_at(Path::new("/sys"))?;
    Ok(ConnectionSettings {
        namespace,
        ..offsets
    })
}

/// The number of the agent's network namespace.
pub(super) fn namespace() -> io::Result<u32> {
    Ok(fs::metadata("/proc/thread-self/ns/net")?.ino() as u32)
}

fn offsets_at(sys: &Path) -> Result<ConnectionSettings, LoadError> {
    let missing = |reason: String| LoadError::Connections { reason };
    let btf = Btf::of_kernel(sys).map_err(|error| match error.source.raw_os_error() {
        Some(number) if is_passing(number) => LoadError::KernelTypes(error.source),
        _ => missing(NO_TRACEPOINT.to_owned()),
    })?;
    let offset = |structure: &str, field: &str| {
        let offset = btf.offset(structure, field);
        offset.ok_or_else(|| {
            missing(format!(
                "the kernel's struct {structure} has no field {field}"
            ))
        })
    };
    let socket = |field: &str| offset("sock_common", field);
    Ok(ConnectionSettings {
        namespace: 0,
        family: socket("skc_family")?,
        remote_ipv4: socket("skc_daddr")?,
        local_ipv4: socket("skc_rcv_saddr")?,
        remote_ipv6: socket("skc_v6_daddr")?,
        local_ipv6: socket("skc_v6_rcv_saddr")?,
        remote_port: socket("skc_dport")?,
        local_port: socket("skc_num")?,
        state: socket("skc_state")?,
        net: socket("skc_net")?,
        namespace_number: offset("net", "ns")? + offset("ns_common", "inum")?,
        unused: 0,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_btf_tracepoints_is_named() {
        let sys = tempfile::tempdir().unwrap();
        assert_eq!(unsupported(sys.path()).as_deref(), Some(NO_TRACEPOINT));
        // A kernel with BTF, but without the tracepoint.
        fs::create_dir_all(sys.path().join("kernel/btf")).unwrap();
        fs::write(
            sys.path().join("kernel/btf/vmlinux"),
            b"\x9f\xeb\x01\0bpf_iter_tcp\0",
        )
        .unwrap();
        assert_eq!(unsupported(sys.path()).as_deref(), Some(NO_TRACEPOINT));
    }

    #[test]
    fn a_kernel_that_forbids_reading_is_named() {
        let sys = tempfile::tempdir().unwrap();
        fs::create_dir_all(sys.path().join("kernel/security")).unwrap();
        let lock = |modes: &str| fs::write(sys.path().join("kernel/security/lockdown"), modes);
        lock("none integrity [confidentiality]\n").unwrap();
        assert_eq!(unsupported(sys.path()).as_deref(), Some(LOCKED_DOWN));
        lock("none [integrity] confidentiality\n").unwrap();
        assert_eq!(unsupported(sys.path()).as_deref(), Some(NO_TRACEPOINT));
    }
}
