//! Kernels: Debian's cloud packages, unpacked into the user's cache folder and never installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, bail, ensure};

use super::modules::Modules;
use super::tool::{decompress, tool};
use crate::architecture::Architecture;
use crate::debian::Suite;
use crate::process;
use crate::workspace;

/// A kernel release and its Debian suites.
pub struct Release {
    /// Such as 6.12.
    pub version: &'static str,
    /// The suites, in search order: packages move between suites and disappear.
    suites: &'static [&'static str],
    /// Whether tests use it by default.
    pub is_default: bool,
    /// Whether it patches its code when an XDP program is attached, as kernels from 6.12 on do.
    is_patched: bool,
}

/// The tested kernels: the oldest is older than supported, and must be refused with a clear error.
pub const RELEASES: [Release; 5] = [
    Release {
        version: "5.10",
        suites: &["bullseye-security"],
        is_default: false,
        is_patched: false,
    },
    Release {
        version: "6.1",
        suites: &["bookworm-security", "bookworm"],
        is_default: true,
        is_patched: false,
    },
    Release {
        version: "6.12",
        suites: &["bookworm-security", "trixie-security", "trixie"],
        is_default: true,
        is_patched: true,
    },
    Release {
        version: "6.18",
        suites: &["trixie-backports"],
        is_default: false,
        is_patched: true,
    },
    Release {
        version: "7.2",
        suites: &["sid", "trixie-backports"],
        is_default: false,
        is_patched: true,
    },
];

/// A bootable kernel.
pub struct Kernel {
    /// The output of `uname -r` in it.
    pub name: String,
    /// The uncompressed kernel, which boots faster in an emulated machine.
    pub image: PathBuf,
    /// Its loadable modules.
    pub modules: Modules,
    pub architecture: &'static Architecture,
    /// The emulation of its CPUs, by QEMU's name.
    pub threads: &'static str,
}

impl Release {
    /// The release of this version.
    pub fn find(version: &str) -> Result<&'static Self> {
        RELEASES
            .iter()
            .find(|release| release.version == version)
            .with_context(|| {
                let known: Vec<&str> = RELEASES.iter().map(|release| release.version).collect();
                format!(
                    "there is no recipe for a kernel {version:?}: it is one of {}",
                    known.join(", ")
                )
            })
    }

    /// Finds the kernel for this architecture in the cache, or downloads it.
    pub fn provide(&self, architecture: &'static Architecture) -> Result<Kernel> {
        let cache = workspace::cache(architecture.kernels)?;
        let place = cache.join(self.version);
        if !place.exists() {
            let part = cache.join(format!("{}.part{}", self.version, std::process::id()));
            let fetched = self.fetch(architecture, &part);
            // Another run may have created it meanwhile; either one is fine.
            let placed = fetched.and_then(|()| match fs::rename(&part, &place) {
                Err(_) if place.exists() => Ok(()),
                renamed => renamed
                    .with_context(|| format!("renaming {} to {}", part.display(), place.display())),
            });
            let _ = fs::remove_dir_all(&part);
            placed.with_context(|| format!("providing Linux {}", self.version))?;
        }
        let threads = if self.is_patched {
            architecture.threads_while_patched
        } else {
            "multi"
        };
        Kernel::open(&place, architecture, threads).with_context(|| {
            format!(
                "reading Linux {} in {}: remove that folder to fetch it again",
                self.version,
                place.display()
            )
        })
    }

    fn fetch(&self, architecture: &Architecture, part: &Path) -> Result<()> {
        fs::create_dir_all(part).with_context(|| format!("creating {}", part.display()))?;
        let beginning = format!("linux-image-{}.", self.version);
        for suite in self.suites {
            let suite = Suite::open(suite, architecture.debian, part.join("apt"))?;
            let Some(package) = suite.newest(&beginning, architecture.flavour)? else {
                continue;
            };
            let release = package.trim_start_matches("linux-image-").to_owned();
            let root = part.join("root");
            suite.unpack(&package, |name| name.ends_with(&release), &root)?;
            fs::remove_dir_all(part.join("apt")).context("removing the package lists")?;
            let modules = modules_folder(&root)?;
            let base = modules
                .ancestors()
                .nth(3)
                .context("modules lie in lib/modules")?;
            process::capture(
                Command::new(tool("depmod")?)
                    .arg("-b")
                    .arg(base)
                    .arg(name_of(&modules)?),
            )?;
            let compressed = compressed_image(&root, &modules)?;
            let bytes = fs::read(&compressed)
                .with_context(|| format!("reading {}", compressed.display()))?;
            let image = uncompressed(&bytes)
                .with_context(|| format!("unpacking {}", compressed.display()))?;
            return fs::write(part.join("vmlinux"), image).context("writing the unpacked kernel");
        }
        bail!(
            "none of Debian's suites {} has a package {beginning}*{}",
            self.suites.join(", "),
            architecture.flavour
        )
    }
}

impl Kernel {
    fn open(
        place: &Path,
        architecture: &'static Architecture,
        threads: &'static str,
    ) -> Result<Self> {
        let image = place.join("vmlinux");
        ensure!(image.exists(), "there is no {}", image.display());
        let folder = modules_folder(&place.join("root"))?;
        Ok(Self {
            name: name_of(&folder)?,
            image,
            modules: Modules::open(folder)?,
            architecture,
            threads,
        })
    }
}

fn name_of(modules: &Path) -> Result<String> {
    let name = modules.file_name().and_then(|name| name.to_str());
    Ok(name
        .with_context(|| format!("{} is named after no kernel", modules.display()))?
        .to_owned())
}

/// The one folder of a package that holds its modules.
fn modules_folder(root: &Path) -> Result<PathBuf> {
    let candidates = ["usr/lib/modules", "lib/modules"].map(|folder| root.join(folder));
    let mut entries = candidates
        .iter()
        .filter_map(|folder| fs::read_dir(folder).ok())
        .flatten()
        .flatten();
    let first = entries
        .next()
        .with_context(|| format!("there are no modules in {}", root.display()))?;
    Ok(first.path())
}

fn compressed_image(root: &Path, modules: &Path) -> Result<PathBuf> {
    let name = name_of(modules)?;
    let candidates = [
        root.join("boot").join(format!("vmlinuz-{name}")),
        modules.join("vmlinuz"),
    ];
    let found = candidates.into_iter().find(|candidate| candidate.exists());
    found.with_context(|| format!("there is no kernel {name} in {}", root.display()))
}

/// The ELF file inside a bzImage, or the image itself if only the kernel can unpack it. The header is described in the
/// kernel's Documentation/arch/x86/boot.rst. An Image of arm64 (Documentation/arch/arm64/booting.rst) is not compressed.
fn uncompressed(image: &[u8]) -> Result<Vec<u8>> {
    if image.get(56..60) == Some(b"ARM\x64") {
        return Ok(image.to_vec());
    }
    let word = |at: usize| -> Result<usize> {
        let bytes = image
            .get(at..at + 4)
            .context("it is shorter than its header")?;
        Ok(u32::from_le_bytes(bytes.try_into()?) as usize)
    };
    let setup_sectors = match *image.get(0x1f1).context("it is shorter than its header")? {
        0 => 4,
        sectors => usize::from(sectors),
    };
    let start = (setup_sectors + 1) * 512 + word(0x248)?;
    let payload = image
        .get(start..start + word(0x24c)?)
        .context("its payload lies outside of it")?;
    let program = match payload {
        // xz's own format, and LZMA's older one, which xz reads as well.
        [0xfd, b'7', b'z', b'X', b'Z', 0, ..] | [0x5d, 0, 0, ..] => "xz",
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "zstd",
        [0x1f, 0x8b, ..] => "gzip",
        // LZ4, for which most machines have no program: the kernel unpacks it quickly.
        _ => return Ok(image.to_vec()),
    };
    let mut kernel = decompress(program, payload)?;
    let magic = kernel
        .windows(4)
        .position(|bytes| bytes == b"\x7fELF")
        .context("it holds no ELF file")?;
    Ok(kernel.split_off(magic))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_gives_out_the_kernel_inside() {
        let compressed = {
            let file = tempfile::NamedTempFile::new().unwrap();
            fs::write(file.path(), b"\x7fELF and so on").unwrap();
            Command::new("gzip")
                .arg("--stdout")
                .arg(file.path())
                .output()
                .unwrap()
                .stdout
        };
        let mut image = vec![0; 3 * 512 + 16];
        image[0x1f1] = 2;
        image[0x248..0x24c].copy_from_slice(&16u32.to_le_bytes());
        image[0x24c..0x250].copy_from_slice(&(compressed.len() as u32).to_le_bytes());
        image.extend_from_slice(&compressed);
        assert_eq!(uncompressed(&image).unwrap(), b"\x7fELF and so on");
        image[3 * 512 + 16] = 0;
        assert_eq!(uncompressed(&image).unwrap(), image);
        assert!(uncompressed(&image[..600]).is_err());
        image[56..60].copy_from_slice(b"ARM\x64");
        assert_eq!(uncompressed(&image[..600]).unwrap(), image[..600]);
    }

    #[test]
    fn an_unknown_kernel_is_an_error_that_lists_the_known_ones() {
        assert!(Release::find("6.12").is_ok());
        let error = Release::find("4.4").err().unwrap().to_string();
        assert!(
            error.contains("\"4.4\"") && error.contains("6.12"),
            "{error}"
        );
    }
}
