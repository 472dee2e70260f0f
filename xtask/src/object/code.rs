//! Reads an eBPF object: its functions and their calls.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use object::read::elf::{ElfFile64, ElfSection64};
use object::{
    LittleEndian, Object as _, ObjectSection as _, ObjectSymbol as _, RelocationTarget,
    SectionIndex, SectionKind, SymbolIndex, SymbolKind,
};

/// An object for a 64-bit little-endian machine, as BPF's are here.
pub type File<'data> = ElfFile64<'data, LittleEndian>;

/// Bytes of an instruction; one that loads 64 bits takes two.
pub const INSTRUCTION: usize = 8;

/// A function and its location.
pub struct Placed {
    pub name: String,
    pub section: String,
    section_index: SectionIndex,
    pub start: u64,
    pub end: u64,
}

/// A call from one function to another.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
pub struct Call {
    pub from: String,
    pub to: String,
}

/// The functions of an object and their calls.
pub struct Code {
    pub functions: Vec<Placed>,
    pub calls: BTreeSet<Call>,
    /// Functions with an endless loop of a single jump: an inlined panic handler.
    pub stuck: BTreeSet<String>,
    /// Every name in the symbol table.
    pub symbols: BTreeSet<String>,
}

impl Code {
    pub fn read(file: &File) -> Result<Self> {
        let mut functions = Vec::new();
        let mut symbols = BTreeSet::new();
        for symbol in file.symbols() {
            let name = readable(symbol.name().context("reading a symbol's name")?);
            if name.is_empty() {
                continue;
            }
            symbols.insert(name.clone());
            if let Some(section_index) = symbol
                .section_index()
                .filter(|_| symbol.kind() == SymbolKind::Text)
            {
                let section = file
                    .section_by_index(section_index)
                    .context("finding a function's section")?;
                let start = symbol.address();
                let section = section
                    .name()
                    .context("reading a section's name")?
                    .to_owned();
                functions.push(Placed {
                    name,
                    section,
                    section_index,
                    start,
                    end: start + symbol.size(),
                });
            }
        }
        functions.sort_by_key(|function| (function.section_index.0, function.start));
        let mut code = Self {
            functions,
            calls: BTreeSet::new(),
            stuck: BTreeSet::new(),
            symbols,
        };
        for section in file
            .sections()
            .filter(|section| section.kind() == SectionKind::Text)
        {
            code.read_section(file, &section)?;
        }
        Ok(code)
    }

    fn read_section<'data>(
        &mut self,
        file: &File<'data>,
        section: &ElfSection64<'data, '_, LittleEndian>,
    ) -> Result<()> {
        let bytes = section.data().context("reading a section with code")?;
        let relocations: Vec<(u64, SymbolIndex)> = section
            .relocations()
            .filter_map(|(offset, relocation)| match relocation.target() {
                RelocationTarget::Symbol(symbol) => Some((offset, symbol)),
                _ => None,
            })
            .collect();
        let mut is_second_half = false;
        for (index, instruction) in bytes.chunks_exact(INSTRUCTION).enumerate() {
            if is_second_half {
                is_second_half = false;
                continue;
            }
            let place = (index * INSTRUCTION) as u64;
            let instruction = Instruction::read(instruction).context("reading an instruction")?;
            is_second_half = instruction.is_wide();
            let here = self.function_at(section.index(), place);
            if instruction.is_jump_to_itself() {
                self.stuck.insert(here);
            } else if instruction.is_call() {
                let called = relocations.iter().find(|(offset, _)| *offset == place);
                let to = match called {
                    Some((_, symbol)) => self.called_by_symbol(file, *symbol, instruction)?,
                    None => self.function_at(section.index(), instruction.call_target(place)),
                };
                self.calls.insert(Call { from: here, to });
            }
        }
        Ok(())
    }

    fn called_by_symbol(
        &self,
        file: &File,
        symbol: SymbolIndex,
        call: Instruction,
    ) -> Result<String> {
        let symbol = file
            .symbol_by_index(symbol)
            .context("finding the symbol that a call refers to")?;
        match symbol.section_index() {
            // A function that is not exported is called by its offset in the section.
            Some(section) if symbol.kind() == SymbolKind::Section => {
                Ok(self.function_at(section, call.call_target(0)))
            }
            _ => {
                Ok(readable(symbol.name().context(
                    "reading the name of a function that is called",
                )?))
            }
        }
    }

    fn function_at(&self, section: SectionIndex, place: u64) -> String {
        let holds = |function: &&Placed| {
            function.section_index == section && (function.start..function.end).contains(&place)
        };
        let found = self.functions.iter().find(holds);
        found.map_or_else(
            || format!("section {} at {place}", section.0),
            |function| function.name.clone(),
        )
    }
}

/// One instruction's fields.
#[derive(Clone, Copy)]
struct Instruction {
    opcode: u8,
    source: u8,
    offset: i16,
    immediate: i32,
}

impl Instruction {
    fn read(bytes: &[u8]) -> Option<Self> {
        let [opcode, registers, low, high, immediate @ ..] =
            <[u8; INSTRUCTION]>::try_from(bytes).ok()?;
        let offset = i16::from_le_bytes([low, high]);
        Some(Self {
            opcode,
            source: registers >> 4,
            offset,
            immediate: i32::from_le_bytes(immediate),
        })
    }

    /// A load of 64 bits, whose upper half occupies a second instruction.
    fn is_wide(self) -> bool {
        self.opcode == 0x18
    }

    /// A call of a function of the object, not of a helper.
    fn is_call(self) -> bool {
        const OF_THE_OBJECT: u8 = 1;
        self.opcode == 0x85 && self.source == OF_THE_OBJECT
    }

    fn is_jump_to_itself(self) -> bool {
        (self.opcode == 0x05 && self.offset == -1) || (self.opcode == 0x06 && self.immediate == -1)
    }

    /// The target of a call at `place`, in bytes.
    fn call_target(self, place: u64) -> u64 {
        place.wrapping_add_signed((i64::from(self.immediate) + 1) * INSTRUCTION as i64)
    }
}

fn readable(symbol: &str) -> String {
    format!("{:#}", rustc_demangle::demangle(symbol))
}
