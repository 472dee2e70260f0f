//! Architectures of guests: everything that differs between them.

use std::env::consts::ARCH;
use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context as _, Result};

use crate::toolchain::Toolchain;
use crate::tools::{Group, Tool};
use crate::workspace::Workspace;

/// A CPU architecture, as a guest has it. Another one is one more of [`ARCHITECTURES`].
pub struct Architecture {
    /// Rust's name, as in `--arch`.
    pub name: &'static str,
    /// Debian's name.
    pub debian: &'static str,
    /// The suffix of the kernels' package names.
    pub flavour: &'static str,
    /// The folder of its kernels in the user's cache.
    pub kernels: &'static str,
    /// QEMU for it.
    pub emulator: Tool,
    /// QEMU's machine and CPU.
    pub machine: &'static [&'static str],
    /// QEMU's device of the second serial line; the machine has the first.
    pub second_line: &'static str,
    /// The guest's names of both serial lines.
    pub lines: [&'static str; 2],
    /// For the kernel's command line.
    pub kernel_arguments: &'static str,
    /// The emulation of CPUs, by QEMU's name, for kernels that patch their code while they run: a thread for each
    /// (`multi`), or one for all (`single`).
    pub threads_while_patched: &'static str,
    cross: Cross,
}

/// The programs that build for an architecture on machines of another one.
pub struct Cross {
    /// Rust's name of the target.
    target: &'static str,
    compiler: Tool,
    /// The headers of the C library, which the compiler's package only recommends.
    headers: Tool,
    /// Of GNU's binutils, in the compiler's dependencies.
    pub strip: &'static str,
    /// The folder of the C library that the compiler links.
    pub libraries: &'static str,
    /// The folder in which Debian's packages have their libraries.
    pub triplet: &'static str,
}

const ARCHITECTURES: [&Architecture; 2] = [&X86_64, &AARCH64];

const EMULATION: &str = "other kernels, in virtual machines";
const COMPILATION: &str = "builds for guests of another architecture";

static X86_64: Architecture = Architecture {
    name: "x86_64",
    debian: "amd64",
    flavour: "-cloud-amd64",
    kernels: "kernels",
    emulator: Tool {
        programs: &["qemu-system-x86_64"],
        package: "qemu-system-x86",
        group: Group::Vm,
        reason: EMULATION,
    },
    machine: &["-M", "q35", "-cpu", "max"],
    second_line: "isa-serial",
    lines: ["ttyS0", "ttyS1"],
    // Otherwise a late emulated timer sometimes causes a panic at boot.
    kernel_arguments: "no_timer_check",
    // A CPU that executes that code at the same instant may fail on a breakpoint that was just removed ("Oops: int3"); if
    // CPUs take turns, that cannot happen.
    threads_while_patched: "single",
    cross: Cross {
        target: "x86_64-unknown-linux-gnu",
        compiler: Tool {
            programs: &["x86_64-linux-gnu-gcc"],
            package: "gcc-x86-64-linux-gnu",
            group: Group::Vm,
            reason: COMPILATION,
        },
        headers: Tool {
            programs: &["/usr/x86_64-linux-gnu/include/stdio.h"],
            package: "libc6-dev-amd64-cross",
            group: Group::Vm,
            reason: COMPILATION,
        },
        strip: "x86_64-linux-gnu-strip",
        libraries: "/usr/x86_64-linux-gnu/lib",
        triplet: "x86_64-linux-gnu",
    },
};

static AARCH64: Architecture = Architecture {
    name: "aarch64",
    debian: "arm64",
    flavour: "-cloud-arm64",
    kernels: "kernels-arm64",
    emulator: Tool {
        programs: &["qemu-system-aarch64"],
        package: "qemu-system-arm",
        group: Group::Vm,
        reason: EMULATION,
    },
    // Pointer authentication by its architected algorithm takes most of the time of an emulated CPU.
    machine: &["-M", "virt", "-cpu", "max,pauth-impdef=on"],
    second_line: "pci-serial",
    lines: ["ttyAMA0", "ttyS0"],
    kernel_arguments: "",
    threads_while_patched: "multi",
    cross: Cross {
        target: "aarch64-unknown-linux-gnu",
        compiler: Tool {
            programs: &["aarch64-linux-gnu-gcc"],
            package: "gcc-aarch64-linux-gnu",
            group: Group::Vm,
            reason: COMPILATION,
        },
        headers: Tool {
            programs: &["/usr/aarch64-linux-gnu/include/stdio.h"],
            package: "libc6-dev-arm64-cross",
            group: Group::Vm,
            reason: COMPILATION,
        },
        strip: "aarch64-linux-gnu-strip",
        libraries: "/usr/aarch64-linux-gnu/lib",
        triplet: "aarch64-linux-gnu",
    },
};

impl Architecture {
    /// The one of this name.
    pub fn find(name: &str) -> Result<&'static Self> {
        let found = ARCHITECTURES
            .into_iter()
            .find(|architecture| architecture.name == name);
        found.with_context(|| {
            let known = ARCHITECTURES.map(|architecture| architecture.name);
            format!(
                "unknown architecture `{name}`: it is one of {}",
                known.join(", ")
            )
        })
    }

    /// This machine's.
    pub fn host() -> Result<&'static Self> {
        Self::find(ARCH)
    }

    /// The programs that build for it, unless this machine has it.
    pub fn cross(&self) -> Option<&Cross> {
        (self.name != ARCH).then_some(&self.cross)
    }

    /// The cargo that builds for it on a machine of another architecture, with this verb. It builds the standard library as
    /// well: the compiler of the kernel programs has the source. Without debug information, which no guest gets.
    pub fn cargo(&self, verb: &str, workspace: &Workspace, toolchain: &Toolchain) -> Command {
        let target = self.cross.target;
        let name = target.replace('-', "_").to_uppercase();
        let mut cargo = Command::new(&toolchain.compiler.cargo);
        cargo
            .args([verb, "-Zbuild-std=std,panic_abort", "--target", target])
            .current_dir(&workspace.root)
            .env("CARGO", &toolchain.compiler.cargo)
            .env("RUSTC", &toolchain.compiler.rustc)
            .env("RUSTC_BOOTSTRAP", "1")
            .env(
                format!("CARGO_TARGET_{name}_LINKER"),
                self.cross.compiler.programs[0],
            )
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env("CARGO_INCREMENTAL", "0")
            .env("CARGO_TARGET_DIR", self.target_directory(workspace));
        cargo
    }

    /// The agent that this cargo builds.
    pub fn agent(&self, workspace: &Workspace) -> PathBuf {
        self.target_directory(workspace)
            .join(self.cross.target)
            .join("debug/agent")
    }

    fn target_directory(&self, workspace: &Workspace) -> PathBuf {
        workspace.target.join(self.name)
    }

    /// The tools that its guests take besides those of every guest.
    pub fn tools(&self) -> Vec<&Tool> {
        let cross = self
            .cross()
            .into_iter()
            .flat_map(|cross| [&cross.compiler, &cross.headers]);
        [&self.emulator].into_iter().chain(cross).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_architecture_is_an_error_that_lists_the_known_ones() {
        let error = Architecture::find("arm").err().unwrap().to_string();
        assert!(
            error.contains("`arm`") && error.contains("aarch64"),
            "{error}"
        );
        assert!(Architecture::find("aarch64").is_ok());
    }

    #[test]
    fn only_an_architecture_that_this_machine_lacks_takes_another_compiler() {
        let with_compiler = ARCHITECTURES
            .into_iter()
            .filter(|architecture| architecture.tools().len() > 1);
        assert_eq!(with_compiler.count(), ARCHITECTURES.len() - 1);
        assert!(Architecture::host().unwrap().cross().is_none());
    }
}
