//! Removes the debug information of an eBPF object: four fifths of it, which the agent would carry for nothing. BTF, from
//! which the verifier's log quotes lines, stays.

use anyhow::{Context as _, Result};
use object::build::elf::{Builder, SectionData};
use object::elf::SHT_STRTAB;

/// The object without DWARF and what refers to it.
pub fn without_debug_information(bytes: &[u8]) -> Result<Vec<u8>> {
    let mut builder = Builder::read(bytes).context("reading the object")?;
    for section in &mut builder.sections {
        let name = section.name.to_vec();
        section.delete = [&b".debug_"[..], b".rel.debug_", b".rela.debug_"]
            .iter()
            .any(|start| name.starts_with(start));
    }
    // The linker has one table for the names of symbols and of sections; the builder writes two.
    let names = builder.sections.add();
    names.name = b".shstrtab"[..].into();
    names.sh_type = SHT_STRTAB;
    names.data = SectionData::SectionString;
    builder.delete_orphans();
    let mut stripped = Vec::new();
    builder.write(&mut stripped).context("writing the object")?;
    Ok(stripped)
}
