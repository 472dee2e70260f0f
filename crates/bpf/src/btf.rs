//! Offsets of fields in structures of the running kernel, from its BTF (Documentation/bpf/btf.rst).
//!
//! The Rust compiler emits no relocations for these offsets, so the agent looks them up and passes them to the program.

use std::path::{Path, PathBuf};
use std::{fs, io};

const STRUCT: u32 = 4;
const UNION: u32 = 5;

/// The kernel's BTF cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("reading {path}: {source}", path = path.display())]
pub struct BtfError {
    pub path: PathBuf,
    pub source: io::Error,
}

/// The types of a kernel.
pub struct Btf {
    bytes: Vec<u8>,
    strings: usize,
    /// The offset of each type; type 0 is void.
    types: Vec<usize>,
}

impl Btf {
    /// Reads the running kernel's.
    ///
    /// # Errors
    ///
    /// When the kernel has none.
    pub fn of_kernel(sys: &Path) -> Result<Self, BtfError> {
        let path = sys.join("kernel/btf/vmlinux");
        let bytes = match fs::read(&path) {
            Ok(bytes) => bytes,
            Err(source) => return Err(BtfError { path, source }),
        };
        let unknown = || BtfError {
            path,
            source: io::Error::other("unknown BTF version"),
        };
        Self::parse(bytes).ok_or_else(unknown)
    }

    fn parse(bytes: Vec<u8>) -> Option<Self> {
        let word = |at: usize| word(&bytes, at);
        if word(0)? & 0xffff != 0xeb9f {
            return None;
        }
        let header = word(4)? as usize;
        let (first, end) = (
            header + word(8)? as usize,
            header + word(8)? as usize + word(12)? as usize,
        );
        let strings = header + word(16)? as usize;
        let mut types = vec![0];
        let mut at = first;
        while at < end {
            types.push(at);
            let (kind, members) = kind_and_members(word(at + 4)?);
            at += 12
                + match kind {
                    1 | 14 | 17 => 4,
                    3 => 12,
                    STRUCT | UNION | 15 | 19 => 12 * members,
                    6 | 13 => 8 * members,
                    2 | 7..=12 | 16 | 18 => 0,
                    _ => return None,
                };
        }
        Some(Self {
            bytes,
            strings,
            types,
        })
    }

    /// The offset of a field of a structure, in bytes.
    #[must_use]
    pub fn offset(&self, structure: &str, field: &str) -> Option<u32> {
        Some(self.offset_in(self.structure(structure)?, field)? / 8)
    }

    /// The size of a structure, in bytes.
    #[must_use]
    pub fn size(&self, structure: &str) -> Option<u32> {
        word(&self.bytes, self.structure(structure)? + 8)
    }

    fn structure(&self, name: &str) -> Option<usize> {
        let is_meant = |at: &&usize| {
            word(&self.bytes, **at + 4).is_some_and(|info| kind_and_members(info).0 == STRUCT)
                && word(&self.bytes, **at).is_some_and(|at| self.is_name(at, name))
        };
        self.types.iter().skip(1).find(is_meant).copied()
    }

    /// The offset in bits; fields of unnamed inner structures are included.
    fn offset_in(&self, at: usize, field: &str) -> Option<u32> {
        let info = word(&self.bytes, at + 4)?;
        let (kind, members) = kind_and_members(info);
        if kind != STRUCT && kind != UNION {
            return None;
        }
        for member in (0..members).map(|nth| at + 12 + 12 * nth) {
            let (name, of) = (word(&self.bytes, member)?, word(&self.bytes, member + 4)?);
            let offset = word(&self.bytes, member + 8)?;
            // With the flag set, the upper eight bits are the width of a bit field.
            let offset = if info >> 31 == 1 {
                offset & 0xff_ffff
            } else {
                offset
            };
            if name == 0 {
                if let Some(inner) = self
                    .types
                    .get(of as usize)
                    .and_then(|at| self.offset_in(*at, field))
                {
                    return Some(offset + inner);
                }
            } else if self.is_name(name, field) {
                return Some(offset);
            }
        }
        None
    }

    fn is_name(&self, name: u32, text: &str) -> bool {
        let rest = self
            .bytes
            .get(self.strings + name as usize..)
            .unwrap_or_default();
        rest.strip_prefix(text.as_bytes())
            .is_some_and(|rest| rest.first() == Some(&0))
    }
}

fn kind_and_members(info: u32) -> (u32, usize) {
    ((info >> 24) & 0x1f, (info & 0xffff) as usize)
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A BTF with `struct outer { int a; struct { int b; }; }`.
    fn sample() -> Vec<u8> {
        let strings = b"\0int\0outer\0a\0b\0";
        let types: Vec<u32> = [
            [1, 1 << 24, 4].as_slice(),
            &[32],
            &[0, STRUCT << 24 | 1, 4, 13, 1, 0],
            &[5, STRUCT << 24 | 2, 8, 11, 1, 0, 0, 2, 32],
        ]
        .concat();
        let length = types.len() as u32 * 4;
        let header = [0x0001_eb9f, 24, 0, length, length, strings.len() as u32];
        header
            .iter()
            .chain(&types)
            .flat_map(|word| word.to_ne_bytes())
            .chain(strings.iter().copied())
            .collect()
    }

    #[test]
    fn fields_are_found_in_inner_structures_too() {
        let btf = Btf::parse(sample()).unwrap();
        assert_eq!(btf.offset("outer", "a"), Some(0));
        assert_eq!(btf.offset("outer", "b"), Some(4));
        assert_eq!(btf.offset("outer", "c"), None);
        assert_eq!(btf.offset("oute", "a"), None);
        assert_eq!((btf.size("outer"), btf.size("oute")), (Some(8), None));
    }

    #[test]
    fn invalid_btf_of_any_length_is_refused() {
        for length in 0..sample().len() {
            if let Some(btf) = Btf::parse(sample()[..length].to_vec()) {
                let _ = btf.offset("outer", "b");
            }
        }
        assert!(Btf::parse(vec![7; 100]).is_none());
        assert!(Btf::of_kernel(Path::new("/weir-has-no-such-folder")).is_err());
    }
}
