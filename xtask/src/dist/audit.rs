//! The list of crates inside a program, which `cargo audit bin` and others read: `cargo auditable` puts it into a section
//! of its own.

use std::io::Read as _;
use std::path::Path;
use std::process::Command;

use anyhow::{Context as _, Result, ensure};
use flate2::read::ZlibDecoder;
use object::read::elf::{FileHeader as _, SectionHeader as _};
use object::{Endianness, elf};
use serde::Deserialize;

/// The section, whose format is that of version 0.
const SECTION: &[u8] = b".dep-v0";
/// The longest list that is read.
const LONGEST: u64 = 1 << 20;
/// Options of cargo that `cargo auditable` passes on to `cargo metadata`.
const OPTIONS: &str = r#"{"offline":false,"locked":true,"frozen":false,"config":[]}"#;

#[derive(Deserialize)]
struct List {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    version: String,
    #[serde(default)]
    root: bool,
}

/// Has a build put the list into the program. `cargo auditable` would start cargo itself, and cargo-zigbuild is started in
/// cargo's place, so it is set as the compiler's wrapper, as it does then.
pub fn include(build: &mut Command, tool: &Path) {
    build
        .env("RUSTC_WORKSPACE_WRAPPER", tool)
        .env("CARGO_AUDITABLE_ORIG_ARGS", OPTIONS);
}

/// Checks that a program has the list, with this package and version as its root. Returns the number of crates.
pub fn check(program: &[u8], name: &str, version: &str) -> Result<usize> {
    let header = elf::FileHeader64::<Endianness>::parse(program)?;
    let endian = header.endian()?;
    let sections = header.sections(endian, program)?;
    let (_, section) = sections
        .section_by_name(endian, SECTION)
        .context("the program has no list of its crates (section .dep-v0)")?;
    let mut text = Vec::new();
    ZlibDecoder::new(section.data(endian, program)?)
        .take(LONGEST)
        .read_to_end(&mut text)
        .context("unpacking the list of crates")?;
    let list: List = serde_json::from_slice(&text).context("reading the list of crates")?;
    let root = list.packages.iter().find(|package| package.root);
    let root = root.context("the list of crates has no root")?;
    ensure!(
        root.name == name && root.version == version,
        "the list of crates is that of {} {}",
        root.name,
        root.version
    );
    Ok(list.packages.len())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use flate2::Compression;
    use flate2::write::ZlibEncoder;
    use object::write::{Object, SectionKind};
    use object::{Architecture, BinaryFormat};

    use super::*;

    fn program(section: &[u8], text: &str) -> Vec<u8> {
        let mut packed = ZlibEncoder::new(Vec::new(), Compression::default());
        packed.write_all(text.as_bytes()).unwrap();
        let mut object = Object::new(
            BinaryFormat::Elf,
            Architecture::X86_64,
            object::Endianness::Little,
        );
        let id = object.add_section(Vec::new(), section.to_vec(), SectionKind::ReadOnlyData);
        object.append_section_data(id, &packed.finish().unwrap(), 1);
        object.write().unwrap()
    }

    #[test]
    fn a_list_is_found_and_another_programs_list_is_not_taken_for_it() {
        let text = r#"{"packages":[{"name":"aya","version":"0.14.0","source":"crates.io"},
            {"name":"agent","version":"1.2.3","source":"local","dependencies":[0],"root":true}]}"#;
        let good = program(SECTION, text);
        assert_eq!(check(&good, "agent", "1.2.3").unwrap(), 2);
        for (bytes, name, problem) in [
            (program(b".other", text), "agent", "has no list"),
            (good, "weir", "that of agent 1.2.3"),
            (program(SECTION, "{}"), "agent", "reading the list"),
            (program(SECTION, r#"{"packages":[]}"#), "agent", "no root"),
        ] {
            let error = format!("{:#}", check(&bytes, name, "1.2.3").unwrap_err());
            assert!(error.contains(problem), "{error}");
        }
    }
}
