//! `setup`: finds or installs the tools for building and testing Weir.

use anyhow::Result;

use crate::apt::Apt;
use crate::architecture::Architecture;
use crate::cargo_tools::{DEB, DENY};
use crate::toolchain::Toolchain;
use crate::tools::{self, Detail, Group, RELEASE, Tool};

/// Find the eBPF toolchain and the system's tools, and provide what is missing.
#[derive(clap::Args)]
pub struct Arguments {
    /// The action on them.
    #[arg(value_enum, default_value_t = Group::Test)]
    group: Group,
    /// The architecture of virtual machines, this machine's by default.
    #[arg(long, value_name = "NAME", value_parser = Architecture::find)]
    arch: Option<&'static Architecture>,
}

/// Prints each tool and each action in one line.
pub fn run(arguments: &Arguments) -> Result<()> {
    let guests = match arguments.arch {
        Some(architecture) => architecture.tools(),
        None if arguments.group >= Group::Vm => Architecture::host()?.tools(),
        None => Vec::new(),
    };
    ensure_with(arguments.group, &guests, Detail::Full)?;
    DENY.ensure(Detail::Full)?;
    DEB.ensure(Detail::Full)?;
    Ok(())
}

/// Ensures that all tools of a group are available.
pub fn ensure(group: Group, detail: Detail) -> Result<Toolchain> {
    ensure_with(group, &[], detail)
}

/// Ensures that the tools for guests of this architecture are available.
pub fn ensure_guests(architecture: &Architecture) -> Result<Toolchain> {
    ensure_with(Group::Vm, &architecture.tools(), Detail::Changes)
}

/// Ensures that the tools for a release are available. Packages are examined and tried where they can be: root installs
/// what that takes.
pub fn ensure_release() -> Result<Toolchain> {
    let more = if nix::unistd::geteuid().is_root() {
        RELEASE.iter().collect()
    } else {
        Vec::new()
    };
    ensure_with(Group::Build, &more, Detail::Changes)
}

/// Ensures that the tools for guests that nothing is built for are available.
pub fn ensure_machines(architecture: &Architecture) -> Result<()> {
    let mut apt = Apt::default();
    tools::ensure(
        Group::Vm,
        &[&architecture.emulator],
        Detail::Changes,
        &mut apt,
    )
}

fn ensure_with(group: Group, more: &[&Tool], detail: Detail) -> Result<Toolchain> {
    let mut apt = Apt::default();
    tools::ensure(group, more, detail, &mut apt)?;
    Toolchain::ensure(detail, &mut apt)
}
