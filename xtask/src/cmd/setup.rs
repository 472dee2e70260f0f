//! `setup`: finds or provides what Weir is built and tested with.

use anyhow::Result;

use crate::apt::Apt;
use crate::cargo_tools::{DEB, DENY};
use crate::toolchain::Toolchain;
use crate::tools::{self, Detail, Group};

/// Find the eBPF toolchain and the system's tools, and provide what is missing.
#[derive(clap::Args)]
pub struct Arguments {
    /// What is to be done with them.
    #[arg(value_enum, default_value_t = Group::Test)]
    group: Group,
}

/// Says each find and each action in one line.
pub fn run(arguments: &Arguments) -> Result<()> {
    ensure(arguments.group, Detail::Full)?;
    DENY.ensure(Detail::Full)?;
    DEB.ensure(Detail::Full)?;
    Ok(())
}

/// Sees that everything of a group is there.
pub fn ensure(group: Group, detail: Detail) -> Result<Toolchain> {
    let mut apt = Apt::default();
    tools::ensure(group, detail, &mut apt)?;
    Toolchain::ensure(detail, &mut apt)
}
