//! The contents of a guest: an initramfs with BusyBox, the programs that tests call, kernel modules, and a test.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use super::kernel::Kernel;
use super::modules::FOR_TESTS;
use super::programs::Programs;

const INIT: &[u8] = include_bytes!("init.sh");
const INIT_WITH_ROOT_DISK: &[u8] = include_bytes!("systemd/init.sh");
/// Programs in addition to BusyBox, in /usr/sbin, where they precede BusyBox's own.
const PROGRAMS: [&str; 3] = ["ip", "tc", "nsenter"];
const FOLDERS: [&str; 9] = [
    "bin", "dev", "etc", "modules", "proc", "root", "run", "sys", "tmp",
];
const USERS: &[u8] = b"root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/sh\n";
const GROUPS: &[u8] = b"root:x:0:\nnogroup:x:65534:\n";

/// The program that a guest runs.
pub struct Program {
    /// The binary, which is copied with its shared libraries.
    pub path: PathBuf,
    pub arguments: Vec<OsString>,
    /// For its environment, as in `NAME=1`.
    pub variables: Vec<&'static str>,
}

/// The files of a guest.
#[derive(Default)]
pub struct Guest {
    nodes: BTreeMap<PathBuf, Node>,
}

enum Node {
    Folder,
    File(Vec<u8>),
    Link(PathBuf),
}

impl Guest {
    /// A guest that runs `program` and contains the agent. Prints the modules that the kernel lacks.
    pub fn new(kernel: &Kernel, program: &Program, agent: &Path) -> Result<Self> {
        let programs = Programs::provide(kernel.architecture)?;
        let mut guest = Self::default();
        for folder in FOLDERS {
            guest.nodes.insert(folder.into(), Node::Folder);
        }
        guest.add_program(&programs, "busybox", "bin/busybox")?;
        // BusyBox's shell calls its own ip and tc, whatever is in PATH.
        guest.add_program(&programs, "dash", "bin/dash")?;
        guest.add("bin/sh", Node::Link("dash".into()));
        for name in PROGRAMS {
            guest.add_program(&programs, name, &format!("usr/sbin/{name}"))?;
        }
        let missing = guest.add_modules(kernel, &FOR_TESTS)?;
        if !missing.is_empty() {
            println!("note: Linux {} has no {}", kernel.name, missing.join(", "));
        }
        guest.add("etc/passwd", Node::File(USERS.to_vec()));
        guest.add("etc/group", Node::File(GROUPS.to_vec()));
        guest.add_stripped(&programs, agent, "usr/bin/agent")?;
        guest.add_stripped(&programs, &program.path, "program")?;
        let line = format!("STATUS_LINE=/dev/{}", kernel.architecture.lines[1]);
        let variables = [line.as_str(), "WEIR_AGENT=/usr/bin/agent", "WEIR_VM=1"]
            .into_iter()
            .chain(program.variables.iter().copied());
        let variables = variables.collect::<Vec<_>>().join(" ");
        guest.add(
            "environment",
            Node::File(environment(&variables, &program.arguments)?.into_bytes()),
        );
        guest.add("init", Node::File(INIT.to_vec()));
        Ok(guest)
    }

    /// A guest without any other program or library than BusyBox. It runs a shell script, with an archive at /release.tar.gz.
    pub fn with_busybox_only(kernel: &Kernel, script: &[u8], archive: &Path) -> Result<Self> {
        let mut guest = Self::default();
        for folder in FOLDERS {
            guest.nodes.insert(folder.into(), Node::Folder);
        }
        let busybox = Programs::provide(kernel.architecture)?.find("busybox")?;
        guest.add_file(&busybox, "bin/busybox")?;
        guest.add("bin/sh", Node::Link("busybox".into()));
        guest.add_modules(kernel, &["veth"])?;
        guest.add_file(archive, "release.tar.gz")?;
        guest.add("program", Node::File(script.to_vec()));
        let line = format!("STATUS_LINE=/dev/{}", kernel.architecture.lines[1]);
        guest.add(
            "environment",
            Node::File(environment(&line, &[])?.into_bytes()),
        );
        guest.add("init", Node::File(INIT.to_vec()));
        Ok(guest)
    }

    /// The initramfs of a guest with its own root file system on /dev/vda, where it starts /sbin/init.
    pub fn with_root_disk(kernel: &Kernel) -> Result<Self> {
        let mut guest = Self::default();
        for folder in ["bin", "dev", "modules", "proc", "root"] {
            guest.nodes.insert(folder.into(), Node::Folder);
        }
        let programs = Programs::provide(kernel.architecture)?;
        guest.add_program(&programs, "busybox", "bin/busybox")?;
        guest.add_modules(kernel, &["virtio_pci", "virtio_blk", "ext4"])?;
        guest.add("init", Node::File(INIT_WITH_ROOT_DISK.to_vec()));
        Ok(guest)
    }

    /// Adds modules in the order of loading, and returns the names of those that the kernel lacks.
    fn add_modules(
        &mut self,
        kernel: &Kernel,
        names: &[&'static str],
    ) -> Result<Vec<&'static str>> {
        let (modules, missing) = kernel.modules.wanted(names)?;
        for (nth, module) in modules.into_iter().enumerate() {
            self.add(
                &format!("modules/{nth:03}-{}", module.file_name),
                Node::File(module.bytes),
            );
        }
        Ok(missing)
    }

    /// Writes the initramfs as an uncompressed cpio archive, since unpacking takes an emulated machine longer than
    /// reading.
    pub fn write(&self, mut to: impl Write) -> Result<()> {
        for (number, (path, node)) in (1..).zip(&self.nodes) {
            let (mode, bytes): (u32, &[u8]) = match node {
                Node::Folder => (0o040_755, &[]),
                Node::File(bytes) => (0o100_755, bytes),
                Node::Link(target) => (0o120_777, target.as_os_str().as_encoded_bytes()),
            };
            let name = path
                .to_str()
                .with_context(|| format!("{} is no UTF-8", path.display()))?;
            let length = u32::try_from(bytes.len())
                .with_context(|| format!("{name} is too large for an archive"))?;
            let entry = cpio::NewcBuilder::new(name)
                .ino(number)
                .mode(mode)
                .uid(0)
                .gid(0)
                .nlink(1);
            let mut writer = entry.write(to, length);
            writer
                .write_all(bytes)
                .with_context(|| format!("archiving {name}"))?;
            to = writer
                .finish()
                .with_context(|| format!("archiving {name}"))?;
        }
        cpio::newc::trailer(to)
            .and_then(|mut to| to.flush())
            .context("closing the archive")
    }

    fn add(&mut self, path: &str, node: Node) {
        let path = Path::new(path);
        for folder in path
            .ancestors()
            .skip(1)
            .filter(|folder| !folder.as_os_str().is_empty())
        {
            self.nodes.entry(folder.to_owned()).or_insert(Node::Folder);
        }
        self.nodes.insert(path.to_owned(), node);
    }

    fn add_program(&mut self, programs: &Programs, name: &str, place: &str) -> Result<()> {
        self.add_with_libraries(programs, &programs.find(name)?, place)
    }

    /// Adds a program and its libraries without debug information, which an emulated machine takes long to read.
    fn add_stripped(&mut self, programs: &Programs, program: &Path, place: &str) -> Result<()> {
        let folder = tempfile::tempdir().context("making a temporary folder")?;
        let stripped = folder.path().join("program");
        programs.copy_stripped(program, &stripped)?;
        self.add_with_libraries(programs, &stripped, place)
    }

    /// Adds a program and its libraries, where the loader looks for them.
    fn add_with_libraries(
        &mut self,
        programs: &Programs,
        program: &Path,
        place: &str,
    ) -> Result<()> {
        for (place, library) in programs.libraries(program)? {
            self.add_file(&library, &place.to_string_lossy())?;
        }
        self.add_file(program, place)
    }

    fn add_file(&mut self, file: &Path, place: &str) -> Result<()> {
        if !self.nodes.contains_key(Path::new(place)) {
            let bytes = fs::read(file).with_context(|| format!("reading {}", file.display()))?;
            self.add(place, Node::File(bytes));
        }
        Ok(())
    }
}

/// The file that the guest's shell reads before it runs the test.
pub fn environment(variables: &str, arguments: &[OsString]) -> Result<String> {
    let mut text = format!("export {variables}\nset --");
    for argument in arguments {
        let argument = argument
            .to_str()
            .with_context(|| format!("{} is no UTF-8", argument.display()))?;
        text.push_str(&format!(" '{}'", argument.replace('\'', r"'\''")));
    }
    text.push('\n');
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_reach_the_guest_as_they_are() {
        let text = environment("A=1", &["a b".into(), "it's".into()]).unwrap();
        assert!(text.ends_with("set -- 'a b' 'it'\\''s'\n"), "{text}");
    }

    #[test]
    fn an_archive_holds_folders_before_what_is_in_them() {
        let mut guest = Guest::default();
        guest.add("usr/sbin/ip", Node::File(b"program".to_vec()));
        guest.add("bin/sh", Node::Link("dash".into()));
        let mut bytes = Vec::new();
        guest.write(&mut bytes).unwrap();
        let mut rest = bytes.as_slice();
        let mut seen = Vec::new();
        loop {
            let mut reader = cpio::NewcReader::new(rest).unwrap();
            if reader.entry().is_trailer() {
                break;
            }
            let mut content = String::new();
            std::io::Read::read_to_string(&mut reader, &mut content).unwrap();
            seen.push((
                reader.entry().name().to_owned(),
                reader.entry().mode() >> 12,
                content,
            ));
            rest = reader.finish().unwrap();
        }
        let entry =
            |name: &str, kind: u32, content: &str| (name.to_owned(), kind, content.to_owned());
        let expected = [
            entry("bin", 4, ""),
            entry("bin/sh", 0o12, "dash"),
            entry("usr", 4, ""),
            entry("usr/sbin", 4, ""),
            entry("usr/sbin/ip", 8, "program"),
        ];
        assert_eq!(seen, expected);
    }
}
