//! The checks of an object, and its functions.

use anyhow::{Context as _, Result, bail};
use object::{Object as _, ObjectSection as _};

use super::code::{Code, File, INSTRUCTION, Placed};

/// Whether the kernel programs log verdicts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Logging {
    None,
    Verdicts,
}

/// The kernel's list (include/linux/license.h): other licences exclude most helpers.
const LICENCES: [&str; 6] = [
    "GPL",
    "GPL v2",
    "GPL and additional rights",
    "Dual BSD/GPL",
    "Dual MIT/GPL",
    "Dual MPL/GPL",
];

/// A function of an eBPF object.
#[derive(Debug, PartialEq, Eq)]
pub struct Function {
    pub section: String,
    pub name: String,
    /// The number of instructions as the kernel counts them.
    pub instructions: u64,
}

/// Checks an object; returns its functions, or an error with all problems.
pub fn check(bytes: &[u8], logging: Logging) -> Result<Vec<Function>> {
    let file =
        File::parse(bytes).context("reading it as an ELF file for a little-endian machine")?;
    let code = Code::read(&file)?;
    let mut faults = panics(&code);
    faults.extend(map_faults(&file, logging));
    faults.extend(log_fault(&code, logging));
    faults.extend(licence_fault(&file));
    faults.extend(btf_faults(&file));
    if code.functions.is_empty() {
        faults.push("it holds no function: is anything exported?".to_owned());
    }
    if !faults.is_empty() {
        bail!("it may not go into an agent:\n- {}", faults.join("\n- "));
    }
    let shown = |function: &Placed| Function {
        section: function.section.clone(),
        name: function.name.clone(),
        instructions: (function.end - function.start) / INSTRUCTION as u64,
    };
    Ok(code.functions.iter().map(shown).collect())
}

/// Whether a function belongs to Rust's panic handling.
fn is_panic(name: &str) -> bool {
    let parts = [
        "panic",
        "begin_unwind",
        "unwrap_failed",
        "expect_failed",
        "len_mismatch_fail",
        "__bpf_trap",
    ];
    parts.iter().any(|part| name.contains(part))
        || (name.contains("slice_") && name.contains("_fail"))
}

fn panics(code: &Code) -> Vec<String> {
    let mut faults = Vec::new();
    // Calls among panic functions are only the path from the first to the last.
    for call in code
        .calls
        .iter()
        .filter(|call| is_panic(&call.to) && !is_panic(&call.from))
    {
        faults.push(format!(
            "{} may panic, in {}: use a form that cannot fail (`get`, a match, wrapping arithmetic)",
            call.from, call.to
        ));
    }
    if faults.is_empty() {
        let panics = code.symbols.iter().filter(|name| is_panic(name));
        faults.extend(panics.map(|name| {
            format!("it holds {name}, which the kernel will not load, and nothing calls it")
        }));
    }
    for name in code.stuck.iter().filter(|name| !is_panic(name)) {
        faults.push(format!(
            "{name} has an endless loop, which is what a panic becomes when it is inlined"
        ));
    }
    faults
}

/// The map that aya-log writes to.
const LOG_MAP: &str = "AYA_LOGS";

/// The problem of an object that logs but should not.
fn log_fault(code: &Code, logging: Logging) -> Option<String> {
    let has_log = code.symbols.contains(LOG_MAP);
    (has_log && logging == Logging::None)
        .then(|| format!("it logs (map {LOG_MAP}), which only a trace build may"))
}

fn map_faults(file: &File, logging: Logging) -> Vec<String> {
    let mut faults = Vec::new();
    let maps = file.section_by_name(".maps");
    if maps.is_none_or(|section| section.size() == 0) {
        faults
            .push("it holds no BTF maps (section .maps): declare maps with #[btf_map]".to_owned());
    }
    let legacy = file
        .sections()
        .filter_map(|section| section.name().ok())
        .find(|name| *name == "maps" || name.starts_with("maps/"));
    // aya-log's map is one.
    if let (Some(name), Logging::None) = (legacy, logging) {
        faults.push(format!(
            "it holds a legacy map (section {name}), which bpftool cannot read: use #[btf_map]"
        ));
    }
    faults
}

fn licence_fault(file: &File) -> Option<String> {
    let section = file.section_by_name("license");
    let Some(bytes) = section.and_then(|section| section.data().ok()) else {
        return Some("it declares no licence (section license)".to_owned());
    };
    let text = bytes.split(|byte| *byte == 0).next().unwrap_or_default();
    let licence = String::from_utf8_lossy(text);
    let is_compatible = LICENCES.contains(&licence.as_ref());
    (!is_compatible).then(|| {
        format!(
            "its licence is {licence:?}, and the kernel takes only {}",
            LICENCES.join(", ")
        )
    })
}

fn btf_faults(file: &File) -> Vec<String> {
    let missing = [".BTF", ".BTF.ext"]
        .into_iter()
        .filter(|name| file.section_by_name(name).is_none());
    missing
        .map(|name| format!("it has no section {name}: was it linked with --btf?"))
        .collect()
}

#[cfg(test)]
mod tests {
    use object::write::{Object, Relocation, SectionId, Symbol, SymbolId, SymbolSection};
    use object::{
        Architecture, BinaryFormat, Endianness, RelocationFlags, SectionKind, SymbolFlags,
        SymbolKind, SymbolScope,
    };

    use super::*;

    const EXIT: [u8; INSTRUCTION] = [0x95, 0, 0, 0, 0, 0, 0, 0];
    const WIDE_LOAD: [u8; INSTRUCTION] = [0x18, 0, 0, 0, 0, 0, 0, 0];
    const JUMP_TO_ITSELF: [u8; INSTRUCTION] = [0x05, 0, 0xff, 0xff, 0, 0, 0, 0];
    const R_BPF_64_32: u32 = 10;

    /// A call with this distance in instructions from the next one.
    fn call(distance: i32) -> [u8; INSTRUCTION] {
        let [a, b, c, d] = distance.to_le_bytes();
        [0x85, 0x10, 0, 0, a, b, c, d]
    }

    /// The parts of an object as bpf-linker writes it.
    struct Sample {
        object: Object<'static>,
        xdp: SectionId,
    }

    impl Sample {
        fn empty() -> Self {
            let mut object = Object::new(BinaryFormat::Elf, Architecture::Bpf, Endianness::Little);
            let xdp = object.add_section(Vec::new(), "xdp".into(), SectionKind::Text);
            Self { object, xdp }
        }

        fn good() -> Self {
            let mut sample = Self::empty();
            sample
                .data(".maps", b"maps")
                .data("license", b"Dual MIT/GPL\0");
            sample.data(".BTF", b"types").data(".BTF.ext", b"lines");
            sample
        }

        fn data(&mut self, name: &str, bytes: &[u8]) -> &mut Self {
            let section = self
                .object
                .add_section(Vec::new(), name.into(), SectionKind::Data);
            self.object.append_section_data(section, bytes, 8);
            self
        }

        fn function(
            &mut self,
            section: SectionId,
            name: &str,
            code: &[[u8; INSTRUCTION]],
        ) -> SymbolId {
            let value = self.object.append_section_data(section, &code.concat(), 8);
            self.object.add_symbol(Symbol {
                name: name.into(),
                value,
                size: (code.len() * INSTRUCTION) as u64,
                kind: SymbolKind::Text,
                scope: SymbolScope::Linkage,
                weak: false,
                section: SymbolSection::Section(section),
                flags: SymbolFlags::None,
            })
        }

        /// Adds a relocation for a symbol at the start of the XDP section.
        fn refer(&mut self, symbol: SymbolId) {
            let flags = RelocationFlags::Elf {
                r_type: R_BPF_64_32,
            };
            self.object
                .add_relocation(
                    self.xdp,
                    Relocation {
                        offset: 0,
                        symbol,
                        addend: 0,
                        flags,
                    },
                )
                .unwrap();
        }

        fn text(&mut self) -> SectionId {
            self.object
                .add_section(Vec::new(), ".text".into(), SectionKind::Text)
        }

        fn fault(&self) -> String {
            check(&self.object.write().unwrap(), Logging::None)
                .unwrap_err()
                .to_string()
        }
    }

    #[test]
    fn functions_are_reported_with_their_sections_and_sizes() {
        let mut sample = Sample::good();
        let (text, xdp) = (sample.text(), sample.xdp);
        sample.function(xdp, "first", &[WIDE_LOAD, JUMP_TO_ITSELF, EXIT]);
        sample.function(xdp, "second", &[EXIT]);
        sample.function(text, "third", &[call(0), EXIT]);
        let function = |section: &str, name: &str, instructions| Function {
            section: section.into(),
            name: name.into(),
            instructions,
        };
        assert_eq!(
            check(&sample.object.write().unwrap(), Logging::None).unwrap(),
            [
                function("xdp", "first", 3),
                function("xdp", "second", 1),
                function(".text", "third", 2)
            ]
        );
    }

    #[test]
    fn a_panic_is_reported_with_its_caller() {
        let told = "weir_xdp may panic, in core::panicking::panic_bounds_check:";
        let panic = "_ZN4core9panicking18panic_bounds_check17h0123456789abcdefE";

        let mut by_symbol = Sample::good();
        let text = by_symbol.text();
        by_symbol.function(by_symbol.xdp, "weir_xdp", &[call(-1), EXIT]);
        let symbol = by_symbol.function(text, panic, &[EXIT]);
        by_symbol.refer(symbol);
        assert!(by_symbol.fault().contains(told), "{}", by_symbol.fault());

        let mut by_section = Sample::good();
        let text = by_section.text();
        by_section.function(by_section.xdp, "weir_xdp", &[call(0), EXIT]);
        by_section.function(text, "harmless", &[EXIT]);
        by_section.function(text, panic, &[EXIT]);
        let symbol = by_section.object.section_symbol(text);
        by_section.refer(symbol);
        assert!(by_section.fault().contains(told), "{}", by_section.fault());

        let mut by_distance = Sample::good();
        by_distance.function(by_distance.xdp, "weir_xdp", &[call(1), EXIT]);
        by_distance.function(by_distance.xdp, panic, &[EXIT]);
        assert!(
            by_distance.fault().contains(told),
            "{}",
            by_distance.fault()
        );
    }

    #[test]
    fn an_inlined_or_uncalled_panic_is_reported() {
        let mut sample = Sample::good();
        sample.function(sample.xdp, "weir_xdp", &[JUMP_TO_ITSELF, EXIT]);
        assert!(
            sample.fault().contains("weir_xdp has an endless loop"),
            "{}",
            sample.fault()
        );

        let mut sample = Sample::good();
        sample.function(sample.xdp, "core::slice::index::slice_index_fail", &[EXIT]);
        assert!(
            sample
                .fault()
                .contains("slice_index_fail, which the kernel will not load"),
            "{}",
            sample.fault()
        );
    }

    #[test]
    fn only_a_trace_build_may_log() {
        let mut sample = Sample::good();
        let maps = sample
            .object
            .add_section(Vec::new(), b"maps".to_vec(), SectionKind::Data);
        sample.function(sample.xdp, "weir_xdp", &[EXIT]);
        sample.function(maps, LOG_MAP, &[EXIT]);
        for part in ["section maps", "map AYA_LOGS"] {
            assert!(sample.fault().contains(part), "{part}: {}", sample.fault());
        }
        assert!(check(&sample.object.write().unwrap(), Logging::Verdicts).is_ok());
    }

    #[test]
    fn all_errors_of_an_object_are_reported_at_once() {
        let mut sample = Sample::empty();
        sample.data("maps", b"old").data("license", b"Apache-2.0\0");
        let fault = sample.fault();
        for part in [
            "no function",
            "no BTF maps",
            "section maps",
            "\"Apache-2.0\"",
            "no section .BTF:",
            ".BTF.ext",
        ] {
            assert!(fault.contains(part), "{part} is missing from: {fault}");
        }
    }
}
