//! The programs of a guest besides its test, and shared libraries: this machine's, or Debian's for another architecture.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail};
use object::Endianness;
use object::elf::{DT_NEEDED, FileHeader64};
use object::read::elf::{Dyn as _, FileHeader as _};

use super::tool::tool;
use crate::architecture::Architecture;
use crate::debian::Suite;
use crate::process;
use crate::workspace;

/// The packages with a guest's programs.
const PACKAGES: [&str; 4] = ["busybox-static", "dash", "iproute2", "util-linux"];
/// A suite that is no newer than the C library of the compilers: older programs run with a newer library.
const SUITE: &str = "bookworm";
const FOLDERS: [&str; 4] = ["usr/bin", "bin", "usr/sbin", "sbin"];

/// Where the programs and libraries of a guest come from.
pub struct Programs {
    /// The name of the program that strips others.
    strip: &'static str,
    source: Source,
}

enum Source {
    ThisMachine,
    /// Unpacked packages, and the folders of shared libraries in the order of searching.
    Packages {
        root: PathBuf,
        libraries: Vec<PathBuf>,
    },
}

impl Programs {
    /// Finds the programs for this architecture, or downloads them.
    pub fn provide(architecture: &Architecture) -> Result<Self> {
        let Some(cross) = architecture.cross() else {
            return Ok(Self {
                strip: "strip",
                source: Source::ThisMachine,
            });
        };
        let root = workspace::cache(&format!("programs-{}-{SUITE}", architecture.debian))?;
        if !root.exists() {
            let part = root.with_extension(format!("part{}", std::process::id()));
            let fetched = fetch(architecture, &part);
            // Another run may have created it meanwhile; either one is fine.
            let placed = fetched.and_then(|()| match fs::rename(part.join("root"), &root) {
                Err(_) if root.exists() => Ok(()),
                renamed => renamed.with_context(|| format!("making {}", root.display())),
            });
            let _ = fs::remove_dir_all(&part);
            placed
                .with_context(|| format!("providing programs for {} guests", architecture.name))?;
        }
        let folders = ["usr/lib", "lib"].map(|folder| root.join(folder).join(cross.triplet));
        let libraries = [cross.libraries.into()]
            .into_iter()
            .chain(folders)
            .collect();
        Ok(Self {
            strip: cross.strip,
            source: Source::Packages { root, libraries },
        })
    }

    /// The program of this name.
    pub fn find(&self, name: &str) -> Result<PathBuf> {
        match &self.source {
            Source::ThisMachine => tool(name),
            // A link would lead out of the folder.
            Source::Packages { root, .. } => FOLDERS
                .map(|folder| root.join(folder).join(name))
                .into_iter()
                .find(|path| path.symlink_metadata().is_ok_and(|found| found.is_file()))
                .with_context(|| {
                    format!(
                        "there is no {name} in {}: remove that folder to fetch it again",
                        root.display()
                    )
                }),
        }
    }

    /// The shared libraries of a program, none if it is static: by their place in the guest, the file.
    pub fn libraries(&self, program: &Path) -> Result<BTreeMap<PathBuf, PathBuf>> {
        match &self.source {
            Source::ThisMachine => Ok(loaded_here(program)?
                .into_iter()
                .map(|path| {
                    (
                        path.strip_prefix("/").unwrap_or(&path).to_owned(),
                        path.clone(),
                    )
                })
                .collect()),
            Source::Packages { libraries, .. } => {
                let mut found = BTreeMap::new();
                add_needed(program, libraries, &mut found)?;
                Ok(found)
            }
        }
    }

    /// Copies a program without debug information, which is most of a test's size.
    pub fn copy_stripped(&self, program: &Path, to: &Path) -> Result<()> {
        let mut strip = Command::new(tool(self.strip)?);
        strip.args(["--strip-debug", "-o"]).arg(to).arg(program);
        process::capture(&mut strip).map(drop)
    }
}

fn fetch(architecture: &Architecture, part: &Path) -> Result<()> {
    fs::create_dir_all(part).with_context(|| format!("creating {}", part.display()))?;
    let suite = Suite::open(SUITE, architecture.debian, part.join("apt"))?;
    for package in PACKAGES {
        suite.unpack(package, is_library, &part.join("root"))?;
    }
    Ok(())
}

/// Whether a package of this name has shared libraries.
fn is_library(package: &str) -> bool {
    package.starts_with("lib") || package.starts_with("zlib")
}

/// The shared libraries that this machine's loader takes for a program, by absolute path.
fn loaded_here(program: &Path) -> Result<Vec<PathBuf>> {
    let output = Command::new(tool("ldd")?)
        .arg(program)
        .output()
        .context("starting ldd")?;
    let said = String::from_utf8_lossy(&output.stdout);
    if said.contains("not found") {
        bail!("{} cannot run here: {said}", program.display());
    }
    Ok(library_paths(&said))
}

/// The paths in the output of ldd, such as `libc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f…)`.
fn library_paths(said: &str) -> Vec<PathBuf> {
    let words = said
        .lines()
        .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')));
    words
        .filter(|word| !word.ends_with(':'))
        .map(PathBuf::from)
        .collect()
}

/// Adds the libraries that a program needs, and those that they need, to `found`. Every loader looks in /lib.
fn add_needed(
    program: &Path,
    folders: &[PathBuf],
    found: &mut BTreeMap<PathBuf, PathBuf>,
) -> Result<()> {
    let bytes = fs::read(program).with_context(|| format!("reading {}", program.display()))?;
    let names = needed(&bytes)
        .with_context(|| format!("reading which libraries {} needs", program.display()))?;
    for name in names {
        let place = Path::new("lib").join(&name);
        if found.contains_key(&place) {
            continue;
        }
        let library = folders
            .iter()
            .map(|folder| folder.join(&name))
            .find(|path| path.exists())
            .with_context(|| format!("there is no {name}, which {} needs", program.display()))?;
        found.insert(place, library.clone());
        add_needed(&library, folders, found)?;
    }
    Ok(())
}

/// The names of the libraries that an ELF file names.
fn needed(bytes: &[u8]) -> Result<Vec<String>> {
    let header = FileHeader64::<Endianness>::parse(bytes)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, bytes)?;
    let Some((entries, link)) = sections.dynamic(endian, bytes)? else {
        return Ok(Vec::new());
    };
    let strings = sections.strings(endian, bytes, link)?;
    entries
        .iter()
        .filter(|entry| entry.tag(endian) == DT_NEEDED)
        .map(|entry| Ok(String::from_utf8(entry.string(endian, strings)?.to_vec())?))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_libraries_of_a_program_are_read_from_what_ldd_prints() {
        let said = "\tlinux-vdso.so.1 (0x00007ffc)\n\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f)\n\
                    \t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n";
        let paths = [
            "/lib/x86_64-linux-gnu/libc.so.6",
            "/lib64/ld-linux-x86-64.so.2",
        ]
        .map(PathBuf::from);
        assert_eq!(library_paths(said), paths);
        assert!(library_paths("\tstatically linked\n").is_empty());
    }

    #[test]
    fn an_elf_file_names_the_libraries_that_the_loader_takes() {
        let program = std::env::current_exe().unwrap();
        let loaded = loaded_here(&program).unwrap();
        let folders: Vec<PathBuf> = loaded
            .iter()
            .filter_map(|path| path.parent().map(Path::to_owned))
            .collect();
        let mut found = BTreeMap::new();
        add_needed(&program, &folders, &mut found).unwrap();
        let mut names: Vec<_> = loaded.iter().filter_map(|path| path.file_name()).collect();
        names.sort();
        let found: Vec<_> = found.keys().filter_map(|place| place.file_name()).collect();
        assert_eq!(found, names);
    }
}
