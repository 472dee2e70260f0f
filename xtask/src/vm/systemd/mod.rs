//! Guests with systemd: Debian releases whose first process is systemd, made by mmdebstrap into the user's cache folder.
//!
//! A machine has three disks: a copy of the release's image, an archive with the tests and the packages, and one that
//! takes the exit status. `weir-tests.service` runs the tests once the system is up.

mod image;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

pub use self::image::Image;
use super::guest::{Guest, Program, environment};
use super::kernel::tool;
use super::machine::{Disk, Machine, Outcome, temporary_folder};
use crate::process;
use crate::tally::Tally;

/// A Debian release that Weir's package is tested on.
pub struct Distribution {
    /// As its archive calls it.
    pub name: &'static str,
    /// The kernel it is shipped with.
    pub kernel: &'static str,
}

/// Debian 12 with systemd 252, and Debian 13 with systemd 257.
pub const DISTRIBUTIONS: [Distribution; 2] =
    [Distribution { name: "bookworm", kernel: "6.1" }, Distribution { name: "trixie", kernel: "6.12" }];

/// The exit status by which a test program wants to go on after a reboot.
const REBOOT: i32 = 75;
/// More boots than any test has.
const BOOTS: usize = 8;

impl Distribution {
    /// The release of this name.
    pub fn find(name: &str) -> Result<&'static Self> {
        DISTRIBUTIONS.iter().find(|known| known.name == name).with_context(|| {
            let known: Vec<&str> = DISTRIBUTIONS.iter().map(|known| known.name).collect();
            format!("unknown guest {name:?}: it is one of {}", known.join(", "))
        })
    }
}

/// What a guest is given beside its image.
pub struct Cargo<'c> {
    pub program: &'c Program,
    /// By the name that the tests know it by.
    pub packages: [(&'static str, &'c Path); 2],
}

impl Image {
    /// Runs a test program in a fresh copy of the image, as many boots as it wants.
    pub fn run(&self, cargo: &Cargo<'_>, patience: Duration, to: &mut impl Write) -> Result<Outcome> {
        let folder = temporary_folder()?;
        let root = folder.path().join("root.img");
        // The image is sparse, and so is the copy.
        process::capture(Command::new("cp").arg("--sparse=always").arg(self.disk()).arg(&root))?;
        let archive = folder.path().join("tests.tar");
        pack(cargo, &archive)?;
        let guest = Guest::with_root_disk(&self.kernel)?;
        let mut total = Outcome { status: 0, tally: Tally::default(), time: Duration::ZERO };
        for _ in 0..BOOTS {
            let disks = vec![
                Disk { file: root.clone(), is_read_only: false },
                Disk { file: archive.clone(), is_read_only: true },
            ];
            let machine = Machine::from_disks(&self.kernel, &guest, disks, patience)?;
            let outcome = machine.run(to).with_context(|| format!("the console's end:\n{}", machine.console()))?;
            total.tally += &outcome.tally;
            total.time += outcome.time;
            if outcome.status != REBOOT {
                total.status = if total.tally.failed > 0 { outcome.status.max(1) } else { outcome.status };
                return Ok(total);
            }
        }
        bail!("the tests asked for more than {BOOTS} boots")
    }
}

/// Writes what the guest unpacks into its folder for tests.
fn pack(cargo: &Cargo<'_>, archive: &Path) -> Result<()> {
    let folder = temporary_folder()?;
    let copy = |from: &Path, name: &str| {
        fs::copy(from, folder.path().join(name)).with_context(|| format!("copying {}", from.display()))
    };
    copy(&cargo.program.path, "program")?;
    for (name, path) in cargo.packages {
        copy(path, name)?;
    }
    let variables = "WEIR_AGENT=/usr/bin/agent WEIR_VM=1 WEIR_SYSTEMD=1";
    let text = environment(variables, &cargo.program.arguments)?;
    fs::write(folder.path().join("environment"), text).context("writing the guest's environment")?;
    process::capture(Command::new(tool("tar")?).arg("-cf").arg(archive).arg("-C").arg(folder.path()).arg("."))?;
    Ok(())
}
