//! A run of the tests in a guest.

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

use super::image::Image;
use crate::process;
use crate::tally::Tally;
use crate::vm::guest::{Guest, Program, environment};
use crate::vm::machine::{Disk, Machine, Outcome, temporary_folder};
use crate::vm::programs::Programs;
use crate::vm::tool::tool;

/// The exit status with which a test program requests a reboot.
const REBOOT: i32 = 75;
/// The most boots of a test.
const BOOTS: usize = 8;

/// The files for a guest besides its image.
pub struct Cargo<'c> {
    pub program: &'c Program,
    /// By the name that the tests use.
    pub packages: [(&'static str, &'c Path); 2],
    /// A release's image, for the tests that take it.
    pub released: Option<&'c Path>,
    /// Whether their agent is a debug build, which tests of large tables skip.
    pub is_debug: bool,
    pub is_quick: bool,
    /// Added to the kernel's command line.
    pub kernel_arguments: Option<&'static str>,
}

impl Image {
    /// Runs a test program in a fresh copy of the image, with as many boots as it requests.
    pub fn run(
        &self,
        cargo: &Cargo<'_>,
        patience: Duration,
        to: &mut impl Write,
    ) -> Result<Outcome> {
        let folder = temporary_folder()?;
        let root = folder.path().join("root.img");
        // The image is sparse, and so is the copy.
        process::capture(
            Command::new("cp")
                .arg("--sparse=always")
                .arg(self.disk())
                .arg(&root),
        )?;
        let archive = folder.path().join("tests.tar");
        pack(
            cargo,
            &Programs::provide(self.kernel.architecture)?,
            &archive,
        )?;
        let guest = Guest::with_root_disk(&self.kernel)?;
        let mut total = Outcome {
            status: 0,
            tally: Tally::default(),
            time: Duration::ZERO,
        };
        for _ in 0..BOOTS {
            let disks = vec![
                Disk {
                    file: root.clone(),
                    is_read_only: false,
                },
                Disk {
                    file: archive.clone(),
                    is_read_only: true,
                },
            ];
            let mut machine = Machine::from_disks(&self.kernel, &guest, disks, patience)?;
            if let Some(arguments) = cargo.kernel_arguments {
                machine.add_argument(arguments);
            }
            let outcome = machine
                .run(to)
                .with_context(|| format!("the console's end:\n{}", machine.console()))?;
            total.tally += &outcome.tally;
            total.time += outcome.time;
            if outcome.status != REBOOT {
                total.status = if total.tally.failed > 0 {
                    outcome.status.max(1)
                } else {
                    outcome.status
                };
                return Ok(total);
            }
        }
        bail!("the tests asked for more than {BOOTS} boots")
    }
}

/// Writes the archive that the guest unpacks into its folder for tests.
fn pack(cargo: &Cargo<'_>, programs: &Programs, archive: &Path) -> Result<()> {
    let folder = temporary_folder()?;
    let copy = |from: &Path, name: &str| {
        fs::copy(from, folder.path().join(name))
            .with_context(|| format!("copying {}", from.display()))
    };
    programs.copy_stripped(&cargo.program.path, &folder.path().join("program"))?;
    for (name, path) in cargo.packages {
        copy(path, name)?;
    }
    if let Some(image) = cargo.released {
        copy(image, "weir-oci.tar")?;
    }
    let mut variables = "WEIR_AGENT=/usr/bin/agent WEIR_VM=1 WEIR_SYSTEMD=1".to_owned();
    if cargo.is_debug {
        variables.push_str(" WEIR_DEBUG=1");
    }
    if cargo.is_quick {
        variables.push_str(" WEIR_QUICK=1");
    }
    let text = environment(&variables, &cargo.program.arguments)?;
    fs::write(folder.path().join("environment"), text)
        .context("writing the guest's environment")?;
    process::capture(
        Command::new(tool("tar")?)
            .arg("-cf")
            .arg(archive)
            .arg("-C")
            .arg(folder.path())
            .arg("."),
    )?;
    Ok(())
}
