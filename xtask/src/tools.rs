//! The system's programs for building and testing Weir.

use std::path::Path;

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;

use crate::apt::Apt;
use crate::process;

/// A purpose; each includes the previous ones.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Group {
    /// The eBPF object and the agent.
    Build,
    /// The tests and the demo.
    Test,
    /// The tests in virtual machines with other kernels.
    Vm,
    /// The benchmark's alternatives.
    Bench,
    /// Everything.
    All,
}

/// Programs of a Debian package.
pub struct Tool {
    /// Names in PATH, or absolute paths of files.
    pub programs: &'static [&'static str],
    pub package: &'static str,
    pub group: Group,
    /// Why they are needed.
    pub reason: &'static str,
}

const TOOLS: [Tool; 20] = [
    Tool {
        programs: &["ip", "tc"],
        package: "iproute2",
        group: Group::Test,
        reason: "makes the tests' networks",
    },
    Tool {
        programs: &["nsenter", "setpriv"],
        package: "util-linux",
        group: Group::Test,
        reason: "enters the tests' networks",
    },
    Tool {
        programs: &["bpftool"],
        package: "bpftool",
        group: Group::Test,
        reason: "reads maps as a user would",
    },
    Tool {
        programs: &["redis-server", "redis-cli"],
        package: "redis-server",
        group: Group::Test,
        reason: "the store of central counts and of a cluster",
    },
    Tool {
        programs: &["jq"],
        package: "jq",
        group: Group::Test,
        reason: "commands of the documents",
    },
    Tool {
        programs: &["curl"],
        package: "curl",
        group: Group::Test,
        reason: "commands of the documents",
    },
    Tool {
        programs: &["openssl"],
        package: "openssl",
        group: Group::Test,
        reason: "certificates for the store",
    },
    Tool {
        programs: &["/usr/share/zoneinfo/Europe/Berlin"],
        package: "tzdata",
        group: Group::Test,
        reason: "the days of limits by the calendar",
    },
    Tool {
        programs: &["busybox"],
        package: "busybox-static",
        group: Group::Vm,
        reason: "a guest's programs",
    },
    Tool {
        programs: &["dash"],
        package: "dash",
        group: Group::Vm,
        reason: "a guest's shell",
    },
    Tool {
        programs: &["depmod"],
        package: "kmod",
        group: Group::Vm,
        reason: "reads what kernel modules need",
    },
    Tool {
        programs: &["strip"],
        package: "binutils",
        group: Group::Vm,
        reason: "makes a guest's programs smaller",
    },
    Tool {
        programs: &["mmdebstrap"],
        package: "mmdebstrap",
        group: Group::Vm,
        reason: "makes guests with systemd",
    },
    Tool {
        programs: &["mke2fs"],
        package: "e2fsprogs",
        group: Group::Vm,
        reason: "makes the disks of guests",
    },
    Tool {
        programs: &["lintian"],
        package: "lintian",
        group: Group::Vm,
        reason: "examines the package by Debian's policy",
    },
    Tool {
        programs: &["nft"],
        package: "nftables",
        group: Group::Test,
        reason: "a client's firewall, and an alternative to measure",
    },
    Tool {
        programs: &["iptables-nft", "iptables-legacy"],
        package: "iptables",
        group: Group::Test,
        reason: "rules that translate ports, and an alternative to measure, with hashlimit",
    },
    Tool {
        programs: &["ethtool"],
        package: "ethtool",
        group: Group::Bench,
        reason: "sets up the benchmark's networks",
    },
    Tool {
        programs: &["xz"],
        package: "xz-utils",
        group: Group::Vm,
        reason: "unpacks kernels",
    },
    Tool {
        programs: &["zstd"],
        package: "zstd",
        group: Group::Vm,
        reason: "unpacks kernels",
    },
];

/// Of a release alone.
pub static RELEASE: [Tool; 3] = [
    Tool {
        programs: &["lintian"],
        package: "lintian",
        group: Group::Build,
        reason: "examines Debian packages",
    },
    Tool {
        programs: &["rpm"],
        package: "rpm",
        group: Group::Build,
        reason: "tries RPM packages",
    },
    Tool {
        programs: &["rpmlint"],
        package: "rpmlint",
        group: Group::Build,
        reason: "examines RPM packages",
    },
];

/// Which steps are printed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Detail {
    /// Every tool and every action.
    Full,
    /// Only actions.
    Changes,
}

/// Ensures that the tools of a group are available, and those of `more` that belong to it.
pub fn ensure(group: Group, more: &[&Tool], detail: Detail, apt: &mut Apt) -> Result<()> {
    let wanted = || {
        TOOLS
            .iter()
            .chain(more.iter().copied())
            .filter(|tool| tool.group <= group)
    };
    let missing: Vec<&Tool> = wanted().filter(|tool| !tool.is_there()).collect();
    if detail == Detail::Full {
        for tool in wanted().filter(|tool| tool.is_there()) {
            println!("found      {} ({})", tool.names(), tool.reason);
        }
    }
    if missing.is_empty() {
        return Ok(());
    }
    for tool in &missing {
        println!("missing    {} ({})", tool.names(), tool.reason);
    }
    let packages: Vec<&str> = missing.iter().map(|tool| tool.package).collect();
    apt.install(&packages)
        .context("providing the system's tools")?;
    if let Some(tool) = missing.iter().find(|tool| !tool.is_there()) {
        bail!(
            "installed {}, yet {} is not there: see where the package puts it",
            tool.package,
            tool.names()
        );
    }
    Ok(())
}

impl Tool {
    fn names(&self) -> String {
        self.programs.join(", ")
    }

    fn is_there(&self) -> bool {
        self.programs.iter().all(|name| {
            let file = Path::new(name);
            if file.is_absolute() {
                file.is_file()
            } else {
                process::find(name).is_some()
            }
        })
    }
}
