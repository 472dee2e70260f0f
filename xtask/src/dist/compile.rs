//! Static programs, by one of two compilers: the one that runs this program, if it has the target's standard library, else
//! the one of the kernel programs, which builds that library, too. cargo-zigbuild links both targets.

use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use object::read::elf::{FileHeader as _, ProgramHeader as _};
use object::{Endianness, elf};

use super::audit;
use super::source::Source;
use super::target::Target;
use crate::process;
use crate::toolchain::{Renamed, Toolchain, renamed};
use crate::workspace::{Workspace, host_cargo};

/// How long a build may take.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Speed {
    /// As for a release.
    Full,
    /// As for the package of one's own machine: faster to build.
    Thin,
    /// Not optimized, for trying `dist` itself.
    Quick,
}

impl Speed {
    /// Cargo's profile. `dist` is none: its folder in `target` has the release.
    pub fn profile(self) -> &'static str {
        match self {
            Self::Full => "packaged",
            Self::Thin => "release",
            Self::Quick => "dev",
        }
    }

    /// The folder of the profile's programs.
    fn folder(self) -> &'static str {
        match self {
            Self::Full | Self::Thin => self.profile(),
            Self::Quick => "debug",
        }
    }
}

/// The inputs that all targets share.
pub struct Compilation<'a> {
    pub workspace: &'a Workspace,
    /// The toolchain of the kernel programs.
    pub toolchain: &'a Toolchain,
    /// The checked eBPF object for limits on packets.
    pub object: &'a Path,
    pub source: &'a Source,
    pub zigbuild: &'a Path,
    /// `cargo auditable`.
    pub auditable: &'a Path,
    pub speed: Speed,
}

impl Compilation<'_> {
    /// Builds the agent for a target, and returns its path.
    pub fn agent(&self, target: &Target) -> Result<PathBuf> {
        let mut build = Command::new(self.zigbuild);
        build
            .args(["rustc", "--locked", "--package", "agent", "--bin", "agent"])
            .args(["--profile", self.speed.profile(), "--target", target.triple]);
        match installed(target) {
            Some(rustc) => {
                build.env("CARGO", host_cargo()).env("RUSTC", rustc);
            }
            None => {
                build
                    .args(["-Zbuild-std=std,panic_abort"])
                    .env("CARGO", &self.toolchain.compiler.cargo)
                    .env("RUSTC", &self.toolchain.compiler.rustc)
                    .env("RUSTC_BOOTSTRAP", "1");
            }
        }
        self.set_environment(&mut build, target);
        audit::include(&mut build, self.auditable);
        // rustc's `-static-pie` is none of the arguments that Zig knows.
        build.args(["--", "-Clink-arg=-pie"]);
        process::run(&mut build)
            .with_context(|| format!("building the agent for {}", target.triple))?;
        let agent = self
            .workspace
            .target
            .join(target.triple)
            .join(self.speed.folder())
            .join("agent");
        ensure!(
            agent.exists(),
            "built the agent for {}, yet {} is missing",
            target.triple,
            agent.display()
        );
        let bytes =
            std::fs::read(&agent).with_context(|| format!("reading {}", agent.display()))?;
        check_static(&bytes).with_context(|| format!("checking {}", agent.display()))?;
        if target.is_native() {
            check_allocator(&agent)?;
        }
        let crates = audit::check(&bytes, "agent", env!("CARGO_PKG_VERSION"))
            .with_context(|| format!("checking {}", agent.display()))?;
        println!(
            "dist: the agent for {} lists its {crates} crates",
            target.triple
        );
        Ok(agent)
    }

    fn set_environment(&self, build: &mut Command, target: &Target) {
        let renamed = renamed(self.workspace, &self.toolchain.compiler);
        // The C library and the objects at a program's start are Zig's.
        let mut rust = vec!["-Clink-self-contained=no".to_owned()];
        rust.extend(renamed.iter().map(Renamed::for_rustc));
        let c: Vec<String> = renamed.iter().map(Renamed::for_cc).collect();
        let profile = |setting: &str| {
            format!(
                "CARGO_PROFILE_{}_{setting}",
                self.speed.profile().to_uppercase()
            )
        };
        build
            .current_dir(&self.workspace.root)
            .env("CARGO_TARGET_DIR", &self.workspace.target)
            .env("CARGO_ENCODED_RUSTFLAGS", rust.join("\x1f"))
            .env(
                format!("CFLAGS_{}", target.triple.replace('-', "_")),
                c.join(" "),
            )
            .env("CARGO_INCREMENTAL", "0")
            .env(profile("STRIP"), "symbols")
            .env(profile("DEBUG"), "0")
            .env(
                "CARGO_ZIGBUILD_PYTHON_PATH",
                self.zigbuild.with_file_name("python3"),
            )
            .env("SOURCE_DATE_EPOCH", self.source.time.to_string())
            .env("WEIR_COMMIT", self.source.short_commit())
            .env("WEIR_EBPF_OBJECT", self.object)
            // jemalloc's pages are those of the kernel, or larger: kernels for arm64 may have 64 KiB.
            .env("JEMALLOC_SYS_WITH_LG_PAGE", target.log_page)
            // Of the cargo that runs this program.
            .env_remove("CARGO_MANIFEST_DIR");
    }

    /// The compilers of the programs, for the record of the build.
    pub fn compiler(&self, target: &Target) -> Result<String> {
        let rustc = installed(target);
        let rustc = rustc.as_deref().unwrap_or(&self.toolchain.compiler.rustc);
        Ok(process::capture(Command::new(rustc).arg("--version"))?
            .trim()
            .to_owned())
    }
}

/// Checks that a program requires no loader and no library, and can be loaded at any address.
fn check_static(bytes: &[u8]) -> Result<()> {
    let header = elf::FileHeader64::<Endianness>::parse(bytes)?;
    let endian = header.endian()?;
    ensure!(
        header.e_type(endian) == elf::ET_DYN,
        "the program is linked for a fixed address"
    );
    let segments = header.program_headers(endian, bytes)?;
    ensure!(
        segments
            .iter()
            .all(|segment| segment.p_type(endian) != elf::PT_INTERP),
        "the program is not static"
    );
    Ok(())
}

/// Checks that the allocator has read the options in the program.
fn check_allocator(agent: &Path) -> Result<()> {
    const OPTION: &str = "opt.narenas: 4";
    let output = Command::new(agent)
        .arg("--version")
        .env("_RJEM_MALLOC_CONF", "stats_print:true")
        .output()
        .with_context(|| format!("starting {}", agent.display()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    ensure!(
        said.contains(OPTION),
        "{} ignores the options in agent/src/allocator.rs: its allocator does not print {OPTION:?}",
        agent.display()
    );
    Ok(())
}

/// The rustc of the cargo that runs this program, if rustup installed the target's standard library.
fn installed(target: &Target) -> Option<PathBuf> {
    let rustc = host_cargo().with_file_name("rustc");
    let mut query = Command::new(&rustc);
    query.args(["--print", "target-libdir", "--target", target.triple]);
    let libraries = PathBuf::from(process::capture(&mut query).ok()?.trim());
    libraries.is_dir().then_some(rustc)
}
