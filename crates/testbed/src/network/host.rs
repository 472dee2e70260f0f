//! Features of this host.

use std::process::Command;
use std::time::Duration;

use super::{INTERFACE, Network, agent};

/// Why end-to-end tests cannot run here; `None` if they can.
pub fn obstacle() -> Option<&'static str> {
    if !nix::unistd::geteuid().is_root() {
        return Some("end-to-end tests need root, for namespaces and BPF");
    }
    if agent().is_none() {
        return Some(
            "end-to-end tests need the agent that `cargo xtask build` leaves: run `cargo xtask test`",
        );
    }
    None
}

/// Whether this kernel has the queueing discipline `fq`.
pub fn has_fq() -> bool {
    let network = Network::new();
    let namespace = format!("--net=/run/netns/{}", network.server);
    let arguments = [
        &namespace, "tc", "qdisc", "replace", "dev", INTERFACE, "root", "fq",
    ];
    Command::new("nsenter")
        .args(arguments)
        .output()
        .is_ok_and(|output| output.status.success())
}

/// Whether this kernel supports a device with these arguments of `ip link add`.
pub fn can_make(device: &[&str]) -> bool {
    let network = Network::new();
    let output = Command::new("ip")
        .args([&["-n", &network.server, "link", "add"], device].concat())
        .output();
    output.is_ok_and(|output| output.status.success())
}

/// Whether this kernel has VXLAN devices.
pub fn has_vxlan() -> bool {
    let network = Network::new();
    let link = [
        "-n",
        &network.server,
        "link",
        "add",
        "probe",
        "type",
        "vxlan",
        "id",
        "1",
        "dstport",
        "4789",
    ];
    Command::new("ip")
        .args(link)
        .output()
        .is_ok_and(|output| output.status.success())
}

/// Whether this kernel has TCX.
pub fn has_tcx() -> bool {
    aya::util::KernelVersion::current()
        .is_ok_and(|version| version >= aya::util::KernelVersion::new(6, 6, 0))
}

/// Whether this is a virtual machine of `cargo xtask vm`, whose CPUs are emulated and slow.
pub fn is_virtual() -> bool {
    std::env::var_os("WEIR_VM").is_some()
}

/// A time that is sufficient for several commands of the CLI, also on a busy machine or an emulated CPU.
pub fn a_while() -> Duration {
    Duration::from_secs(if is_virtual() { 40 } else { 8 })
}
