//! `setup`: finds or installs the tools for building and testing Weir.

use anyhow::Result;

use crate::apt::Apt;
use crate::cargo_tools::{DEB, DENY};
use crate::toolchain::Toolchain;
use crate::tools::{self, Detail, Group};

/// Find the eBPF toolchain and the system's tools, and provide what is missing.
#[derive(clap::Args)]
pub struct Arguments {
    /// The action on them.
    #[arg(value_enum, default_value_t = Group::Test)]
    group: Group,
}

/// Prints each tool and each action in one line.
pub fn run(arguments: &Arguments) -> Result<()> {
    ensure(arguments.group, Detail::Full)?;
    DENY.ensure(Detail::Full)?;
    DEB.ensure(Detail::Full)?;
    Ok(())
}

/// Ensures that all tools of a group are available.
pub fn ensure(group: Group, detail: Detail) -> Result<Toolchain> {
    let mut apt = Apt::default();
    tools::ensure(group, detail, &mut apt)?;
    Toolchain::ensure(detail, &mut apt)
}
