//! QEMU: one machine that runs one guest, and ends with its program's exit status.

use std::env;
use std::fs::{self, File};
use std::io::{BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

use super::guest::Guest;
use super::kernel::Kernel;
use super::tool::tool;
use crate::architecture::Architecture;
use crate::tally::{Tally, forward};

/// The size of the guest's disk, /dev/vda, in bytes. It is sparse.
const DISK: u64 = 256 << 20;
const KERNEL_ARGUMENTS: &str = "quiet panic=-1 mitigations=off nowatchdog";
const ARGUMENTS_WITH_DISKS: &str = "random.trust_cpu=on net.ifnames=0 systemd.show_status=true";

/// The prefix of machines' temporary folders; the ID of their process follows.
const FOLDER: &str = "weir-vm";

/// A machine that has not started.
pub struct Machine {
    folder: tempfile::TempDir,
    image: PathBuf,
    architecture: &'static Architecture,
    threads: &'static str,
    kernel_arguments: String,
    /// The guest's /dev/vda and following.
    disks: Vec<Disk>,
    /// The file of the guest's second serial line.
    second_line: PathBuf,
    /// The timeout after which it is ended.
    patience: Duration,
}

/// A disk of a guest.
pub struct Disk {
    pub file: PathBuf,
    pub is_read_only: bool,
}

/// The result of a machine.
pub struct Outcome {
    /// The exit status of its program.
    pub status: i32,
    /// The sums of the test programs' result lines.
    pub tally: Tally,
    pub time: Duration,
}

impl Machine {
    /// Prepares a machine that runs a guest from memory, for as long as `patience`. The second serial line carries the exit
    /// status.
    pub fn new(kernel: &Kernel, guest: &Guest, patience: Duration) -> Result<Self> {
        let mut machine = Self::with(kernel, guest, patience)?;
        let disk = machine.path("disk.img");
        let made = File::create(&disk).and_then(|file| file.set_len(DISK));
        made.with_context(|| format!("creating {}", disk.display()))?;
        machine.disks.push(Disk {
            file: disk,
            is_read_only: false,
        });
        machine.second_line = machine.status();
        Ok(machine)
    }

    /// Prepares a machine that runs from the first of `disks`. The exit status is what the guest writes to one more disk,
    /// the last; the second serial line is the kernel's and the service manager's console.
    pub fn from_disks(
        kernel: &Kernel,
        guest: &Guest,
        disks: Vec<Disk>,
        patience: Duration,
    ) -> Result<Self> {
        let mut machine = Self::with(kernel, guest, patience)?;
        let status = machine.status();
        let made = File::create(&status).and_then(|file| file.set_len(4096));
        made.with_context(|| format!("creating {}", status.display()))?;
        machine.disks = disks;
        machine.disks.push(Disk {
            file: status,
            is_read_only: false,
        });
        machine.second_line = machine.path("console");
        machine.kernel_arguments = kernel_arguments(kernel.architecture, 1);
        machine.add_argument(ARGUMENTS_WITH_DISKS);
        Ok(machine)
    }

    fn with(kernel: &Kernel, guest: &Guest, patience: Duration) -> Result<Self> {
        let folder = temporary_folder()?;
        let machine = Self {
            second_line: folder.path().join("line"),
            folder,
            image: kernel.image.clone(),
            architecture: kernel.architecture,
            threads: kernel.threads,
            kernel_arguments: kernel_arguments(kernel.architecture, 0),
            disks: Vec::new(),
            patience,
        };
        let archive = machine.archive();
        let file =
            File::create(&archive).with_context(|| format!("creating {}", archive.display()))?;
        guest
            .write(BufWriter::new(file))
            .with_context(|| format!("writing {}", archive.display()))?;
        Ok(machine)
    }

    /// Adds an argument to the kernel's command line.
    pub fn add_argument(&mut self, argument: &str) {
        self.kernel_arguments.push(' ');
        self.kernel_arguments.push_str(argument);
    }

    /// The end of the guest's console output, if it is separate from the tests' output.
    pub fn console(&self) -> String {
        let console = fs::read(self.path("console")).unwrap_or_default();
        let console = String::from_utf8_lossy(&console).replace('\r', "");
        let lines: Vec<&str> = console.lines().collect();
        lines[lines.len().saturating_sub(60)..].join("\n")
    }

    /// Runs it, and forwards its output. Ending without an exit status from the guest is an error.
    pub fn run(&self, to: &mut impl Write) -> Result<Outcome> {
        let start = Instant::now();
        let mut qemu = Qemu::start(&mut self.command()?)?;
        let output = qemu
            .child
            .stdout
            .take()
            .context("reading what the guest prints")?;
        let has_ended = || {
            if start.elapsed() >= self.patience {
                qemu.child.kill()?;
            }
            Ok(qemu.child.try_wait()?.is_some())
        };
        let tally = forward(BufReader::new(output), to, has_ended)
            .context("passing on what the guest prints")?;
        let ended = qemu.child.wait().context("waiting for QEMU")?;
        let time = start.elapsed();
        if time >= self.patience && ended.code().is_none() {
            bail!(
                "the guest did not end within {} s and was stopped",
                self.patience.as_secs()
            );
        }
        ensure!(ended.success(), "QEMU failed: {ended}");
        let status =
            fs::read_to_string(self.status()).context("reading the guest's exit status")?;
        let status = status.trim_end_matches('\0');
        Ok(Outcome {
            status: guest_status(status)?,
            tally,
            time,
        })
    }

    /// QEMU, which the kernel ends together with this process.
    fn command(&self) -> Result<Command> {
        let mut command = Command::new(tool("setpriv")?);
        command
            .args(["--pdeathsig", "KILL"])
            .arg(tool(self.architecture.emulator.programs[0])?);
        command.args(self.architecture.machine);
        command.args(["-smp", "2", "-m", "2048"]);
        // Never KVM: it does not work on some machines and is missing on others.
        command
            .arg("-accel")
            .arg(format!("tcg,thread={}", self.threads));
        command.args([
            "-nodefaults",
            "-no-user-config",
            "-display",
            "none",
            "-no-reboot",
            "-serial",
            "stdio",
        ]);
        command.arg("-chardev").arg(format!(
            "file,id=second,path={}",
            self.second_line.display()
        ));
        command
            .arg("-device")
            .arg(format!("{},chardev=second", self.architecture.second_line));
        for disk in &self.disks {
            let read_only = if disk.is_read_only {
                ",readonly=on"
            } else {
                ""
            };
            let file = disk.file.display();
            command.arg("-drive").arg(format!(
                "file={file},format=raw,if=virtio,cache=unsafe{read_only}"
            ));
        }
        command.args([
            "-object",
            "rng-builtin,id=random",
            "-device",
            "virtio-rng-pci,rng=random",
            "-nic",
            "none",
        ]);
        command
            .arg("-kernel")
            .arg(&self.image)
            .arg("-initrd")
            .arg(self.archive());
        command.args(["-append", &self.kernel_arguments]);
        command.stdin(Stdio::null()).stdout(Stdio::piped());
        Ok(command)
    }

    fn archive(&self) -> PathBuf {
        self.path("initramfs.cpio")
    }

    /// The file with the guest's exit status.
    fn status(&self) -> PathBuf {
        self.path("status")
    }

    fn path(&self, name: &str) -> PathBuf {
        Path::new(self.folder.path()).join(name)
    }
}

/// The kernel's command line, with its console on this serial line.
fn kernel_arguments(architecture: &Architecture, line: usize) -> String {
    format!(
        "{KERNEL_ARGUMENTS} {} console={}",
        architecture.kernel_arguments, architecture.lines[line]
    )
}

/// A folder that is removed on drop, or by a later run.
pub fn temporary_folder() -> Result<tempfile::TempDir> {
    remove_abandoned(&env::temp_dir());
    let prefix = format!("{FOLDER}{}-", std::process::id());
    tempfile::Builder::new()
        .prefix(&prefix)
        .tempdir()
        .context("making a temporary folder")
}

/// A running QEMU, ended on drop.
struct Qemu {
    child: Child,
}

impl Qemu {
    fn start(command: &mut Command) -> Result<Self> {
        Ok(Self {
            child: command.spawn().context("starting QEMU")?,
        })
    }
}

impl Drop for Qemu {
    fn drop(&mut self) {
        // After its end these have no effect.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Removes leftovers of runs that were killed.
fn remove_abandoned(temporary: &Path) {
    for entry in fs::read_dir(temporary).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let maker = name.to_str().and_then(|name| {
            name.strip_prefix(FOLDER)?
                .split_once('-')?
                .0
                .parse::<u32>()
                .ok()
        });
        if maker.is_some_and(|maker| !Path::new("/proc").join(maker.to_string()).exists()) {
            // Another user's folder stays.
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// The exit status in the guest's last output; an error if there is none.
fn guest_status(said: &str) -> Result<i32> {
    let status = said
        .strip_suffix('\n')
        .and_then(|line| line.trim_end().parse().ok());
    status.context(
        "the machine ended without the guest telling how: its kernel did not come up, or gave up",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_ended_processes_are_removed_and_others_left() {
        let temporary = tempfile::tempdir().unwrap();
        // No process has the first ID: they end at 2²².
        let names = [
            "weir-vm4194305-a",
            &format!("weir-vm{}-b", std::process::id()),
            "weir-vm-c",
            "other",
        ];
        for name in names {
            fs::create_dir(temporary.path().join(name)).unwrap();
        }
        remove_abandoned(temporary.path());
        let is_there = names.map(|name| temporary.path().join(name).exists());
        assert_eq!(is_there, [false, true, true, true]);
    }

    #[test]
    fn an_end_without_the_guests_report_is_never_a_pass() {
        assert_eq!(guest_status("0\r\n").unwrap(), 0);
        assert_eq!(guest_status("101\n").unwrap(), 101);
        for said in ["", "\n", "0", "end\n"] {
            assert!(guest_status(said).is_err(), "{said:?}");
        }
    }
}
